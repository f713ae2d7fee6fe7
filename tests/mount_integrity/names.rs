//! Many threads that write a file and rename it over a name which others take, read, list and remove: every name has one whole content that
//! was acknowledged, and the daemon outlives it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use windlass::store::Polynomial;

use crate::limit::{trial, watched};
use crate::support::mounts::Daemon;
use crate::support::{Effect, Fault, Kind, S3Server};
use crate::{duration, number};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("renames_over_shared_names_leave_whole_contents", || storm(NAMES)),
        trial("rename_of_a_file_that_is_being_released_is_safe", released),
        trial("renames_over_few_names_leave_whole_contents", || storm(3)),
    ]
}

const THREADS: u64 = 16;
const NAMES: u64 = 300;

/// Content that names its writer and carries a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stamp {
    writer: u64,
    sequence: u64,
}

impl Stamp {
    const HEAD: usize = 32;

    fn content(self, len: usize) -> Vec<u8> {
        let mut body = vec![0; len];
        StdRng::seed_from_u64(self.writer << 32 | self.sequence).fill(&mut body[..]);
        let sum = Polynomial::Nvme.of(&body);
        [self.writer, self.sequence, len as u64, sum].iter().flat_map(|n| n.to_le_bytes()).chain(body).collect()
    }

    /// Whose content it is, when it is a whole one.
    fn of(content: &[u8]) -> Result<Self, String> {
        let Some((head, body)) = content.split_at_checked(Self::HEAD) else {
            return Err(format!("{} bytes, not even a head", content.len()));
        };
        let words: Vec<u64> = head.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
        let stamp = Self { writer: words[0], sequence: words[1] };
        match words[2] == body.len() as u64 && words[3] == Polynomial::Nvme.of(body) {
            true => Ok(stamp),
            false => Err(format!("{stamp:?} is said to have {} bytes and has {}, or others", words[2], body.len())),
        }
    }
}

/// What the threads share.
struct Storm<'a> {
    top: &'a Path,
    names: u64,
    end: Instant,
    acknowledged: Mutex<HashSet<Stamp>>,
    rounds: AtomicU64,
    is_over: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Storm<'_> {
    fn name(&self, random: &mut StdRng) -> std::path::PathBuf {
        self.top.join(format!("name-{}", random.random_range(0..self.names)))
    }

    /// One round of one writer: all that must not fail is an error.
    fn round(&self, writer: u64, sequence: u64, random: &mut StdRng) -> Result<(), String> {
        let stamp = Stamp { writer, sequence };
        // Half of the writers take the same name for all their temporary files.
        let temporary =
            self.top.join(if writer.is_multiple_of(2) { format!("temporary-{writer}") } else { format!("temporary-{writer}-{sequence}") });
        let len = if random.random_bool(0.05) { random.random_range(0..400_000) } else { random.random_range(0..6_000) };
        let said = |what: &'static str| move |error: io::Error| format!("{what} of {stamp:?}: {error}");
        let mut file = File::create_new(&temporary).map_err(said("create"))?;
        file.write_all(&stamp.content(len)).map_err(said("write"))?;
        if random.random_bool(0.2) {
            file.sync_all().map_err(said("fsync"))?;
        }
        // Before close and rename, which nothing shall keep apart: a failure of either ends the storm.
        self.acknowledged.lock().expect("no panic while it is held").insert(stamp);
        let name = self.name(random);
        windlass::sys::close(file.into()).map_err(said("close"))?;
        fs::rename(&temporary, name).map_err(said("rename"))?;
        if random.random_bool(0.2) {
            self.empty_file(writer, random).map_err(said("an empty file beside"))?;
        }
        if random.random_bool(0.3) {
            for entry in fs::read_dir(self.top).map_err(said("readdir beside"))? {
                let name = entry.map_err(said("an entry beside"))?.file_name();
                let name = name.to_string_lossy();
                if !["name-", "temporary-", "empty-"].iter().any(|known| name.starts_with(known)) {
                    return Err(format!("a name that was never made: {name}"));
                }
            }
        }
        if random.random_bool(0.2) {
            match fs::remove_file(self.name(random)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(said("unlink beside")(error)),
                _ => {}
            }
        }
        if random.random_bool(0.4) {
            self.look(&self.name(random))?;
        }
        Ok(())
    }

    /// Makes an empty file, which is renamed while the kernel still has to tell that it was closed.
    fn empty_file(&self, writer: u64, random: &mut StdRng) -> io::Result<()> {
        let (temporary, name) =
            (self.top.join(format!("temporary-empty-{writer}")), self.top.join(format!("empty-{}", random.random_range(0..self.names))));
        windlass::sys::close(File::create(&temporary)?.into())?;
        fs::rename(&temporary, &name)
    }

    /// A read of a name finds one whole content, or that it was replaced meanwhile.
    fn look(&self, path: &Path) -> Result<(), String> {
        let mut content = Vec::new();
        match File::open(path).and_then(|mut file| file.read_to_end(&mut content)) {
            Ok(_) => self.check(&content).map(drop).map_err(|error| format!("{}: {error}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESTALE) => Ok(()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    fn check(&self, content: &[u8]) -> Result<Stamp, String> {
        let stamp = Stamp::of(content)?;
        match self.acknowledged.lock().expect("no panic while it is held").contains(&stamp) {
            true => Ok(stamp),
            false => Err(format!("{stamp:?} was not acknowledged")),
        }
    }

    fn work(&self, writer: u64) {
        let mut random = StdRng::seed_from_u64(writer);
        for sequence in 0.. {
            if self.is_over.load(Ordering::Relaxed) || Instant::now() > self.end {
                return;
            }
            if let Err(error) = self.round(writer, sequence, &mut random) {
                self.is_over.store(true, Ordering::Relaxed);
                self.wrong.lock().expect("no panic while it is held").push(error);
                return;
            }
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn storm(names: u64) {
    let server = S3Server::start();
    let mut mount = Daemon::new(&server).start();
    fs::create_dir(mount.join("shared")).expect("it is new");
    let top = mount.join("shared");
    let storm = Storm {
        top: &top,
        names,
        end: Instant::now() + duration(5),
        acknowledged: Mutex::default(),
        rounds: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        wrong: Mutex::default(),
    };
    watched(&mount, || {
        std::thread::scope(|scope| {
            for writer in 0..number("WINDLASS_TEST_THREADS", THREADS) {
                let storm = &storm;
                scope.spawn(move || storm.work(writer));
            }
        });
    });
    let rounds = storm.rounds.load(Ordering::Relaxed);
    eprintln!("{rounds} rounds");
    let mut wrong = std::mem::take(&mut *storm.wrong.lock().expect("no panic while it is held"));
    assert!(!mount.log().contains("panicked"), "after {rounds} rounds a thread of the daemon panicked; {wrong:#?}");
    assert!(mount.is_mounted(), "after {rounds} rounds nothing is mounted any more; {wrong:#?}");
    assert!(wrong.is_empty(), "after {rounds} rounds: {wrong:#?}");
    // Through the mount, and in the bucket.
    let mut listed: Vec<String> = fs::read_dir(&top)
        .expect("it can be listed")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    listed.sort();
    let mut stored = Vec::new();
    for number in 0..names {
        let name = format!("name-{number}");
        let Some((object, _)) = server.stored(&format!("shared/{name}")) else { continue };
        match (storm.check(&object), fs::read(top.join(&name))) {
            (Ok(_), Ok(content)) if content == object => {}
            (Ok(stamp), Ok(content)) => wrong.push(format!("{name}: the bucket has {stamp:?}, the mount {:?}", Stamp::of(&content))),
            (stamp, content) => {
                wrong.push(format!("{name}: the bucket has {stamp:?}, the mount {:?}", content.map(|content| content.len())))
            }
        }
        stored.push(name);
    }
    for number in 0..names {
        let name = format!("empty-{number}");
        let Some((object, _)) = server.stored(&format!("shared/{name}")) else { continue };
        match fs::read(top.join(&name)) {
            Ok(content) if content.is_empty() && object.is_empty() => {}
            content => {
                wrong.push(format!("{name}: {} bytes in the bucket, the mount {:?}", object.len(), content.map(|content| content.len())))
            }
        }
        stored.push(name);
    }
    stored.sort();
    assert!(wrong.is_empty(), "after {rounds} rounds: {wrong:#?}");
    assert_eq!(listed, stored, "names that are shown, and names in the bucket, after {rounds} rounds");
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(0), "after {rounds} rounds:\n{}", mount.log());
    assert!(!mount.log().contains("panicked"), "{}", mount.log());
}

/// The store takes its time, and the kernel tells that a file was closed after close has returned: a rename comes in between.
fn released() {
    const ROUNDS: usize = 10;
    let server = S3Server::start();
    let mut mount = Daemon::new(&server).start();
    fs::create_dir(mount.join("directory")).expect("it is new");
    let top = mount.join("directory");
    // There is always another file that is being written, whose name is listed before it is in the bucket.
    let mut other = File::create_new(top.join("other")).expect("it is new");
    other.write_all(b"first").expect("it can be written");
    server.fault(Fault::new(Effect::Delay(Duration::from_millis(50))).kind(Kind::Put));
    let mut expected = vec!["other".to_owned()];
    for round in 0..ROUNDS {
        let (temporary, name) = (top.join("temporary"), format!("name-{round}"));
        let mut file = File::create(&temporary).expect("it can be created");
        // Every third one is not empty.
        let content: &[u8] = if round % 3 == 2 { b"content" } else { b"" };
        file.write_all(content).expect("it can be written");
        windlass::sys::close(file.into()).expect("close succeeds");
        fs::rename(&temporary, top.join(&name)).expect("it was closed");
        expected.push(name.clone());
        expected.sort();
        let listed = watched(&mount, || fs::read_dir(&top)).map(|entries| {
            let mut names: Vec<String> = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        });
        assert!(mount.is_mounted() && !mount.log().contains("panicked"), "round {round}: a thread of the daemon panicked");
        assert_eq!(listed.expect("it can be listed"), expected, "round {round}");
        assert_eq!(fs::read(top.join(&name)).expect("it is there"), content, "round {round}");
        assert_eq!(
            server.stored(&format!("directory/{name}")).map(|(stored, _)| stored.to_vec()).as_deref(),
            Some(content),
            "round {round}"
        );
        assert!(server.stored("directory/temporary").is_none(), "round {round}");
    }
    server.clear_faults();
    windlass::sys::close(other.into()).expect("close succeeds");
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(0), "{}", mount.log());
}
