//! Objects that another client replaces while they are read. Every eight bytes of an object say which version it is: nothing that one open
//! reads, be it one read call or a loop over the whole file, holds two of them. An error (ESTALE) is allowed; a wrong byte is not.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::duration;
use crate::limit::{trial, trial_with};
use crate::program::Group;
use crate::support::mounts::{Daemon, Mount};
use crate::support::{S3Server, python};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("eight_readers_of_a_replaced_object_see_one_version_per_open", eight_readers),
        trial("third_version_is_not_read_behind_pages_of_the_second", || third_version(Reader::Pages)),
        trial("third_version_is_not_read_directly_behind_the_second", || third_version(Reader::Direct)),
        trial_with(&["python3"], "third_version_is_not_mapped_beside_pages_of_the_second", || third_version(Reader::Map)),
        trial_with(&["python3"], "mapping_of_a_replaced_object_shows_one_version", mapped),
        trial("opens_at_once_after_a_replacement_keep_no_older_pages", || opens_at_once(|size, _| size)),
        trial("opens_at_once_after_a_new_size_keep_no_older_pages", || {
            opens_at_once(|size, random| random.random_range(size / 2..2 * size) / 8 * 8)
        }),
        trial("tag_that_returns_unseen_is_read_again", || tag_returns(Between::Unopened)),
        trial("tag_that_returns_after_another_is_read_again", || tag_returns(Between::Read)),
        trial("tag_that_returns_after_a_delete_is_read_again", || tag_returns(Between::Deleted)),
    ]
}

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn content(version: u64, len: usize) -> Vec<u8> {
    version.to_le_bytes().repeat(len / 8)
}

fn is_stale(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESTALE)
}

/// What one open has read so far.
struct Open {
    file: File,
    version: Option<u64>,
    memory: Vec<u8>,
    is_direct: bool,
}

/// Why an open came to its end.
#[derive(Debug)]
enum Wrong {
    Stale,
    /// What must never be.
    Mixed(String),
}

impl Open {
    fn new(path: &Path, is_direct: bool, most: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(if is_direct { libc::O_DIRECT } else { 0 }).open(path)?;
        // What goes past the pages wants aligned memory.
        Ok(Self { file, version: None, memory: vec![0; most + PAGE], is_direct })
    }

    /// One read call of up to `len` bytes at a multiple of eight; how many there were.
    fn read(&mut self, at: usize, len: usize) -> Result<usize, Wrong> {
        let skip = self.memory.as_ptr().align_offset(PAGE);
        let buffer = &mut self.memory[skip..skip + len];
        let got = match self.file.read_at(buffer, at as u64) {
            Ok(got) => got / 8 * 8,
            Err(error) if is_stale(&error) => return Err(Wrong::Stale),
            Err(error) => return Err(Wrong::Mixed(format!("read of {len} bytes at {at}: {error}"))),
        };
        let bytes = &buffer[..got];
        if got == 0 {
            return Ok(0);
        }
        let version = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let how = if self.is_direct { "direct read" } else { "read" };
        if bytes[8..] != bytes[..got - 8] {
            let versions: BTreeSet<u64> =
                bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).take(MIB).collect();
            return Err(Wrong::Mixed(format!("one {how} of {got} bytes at {at} holds the versions {versions:?}")));
        }
        match self.version {
            Some(known) if known != version => {
                Err(Wrong::Mixed(format!("one open: version {known}, then {version} in a {how} of {got} bytes at {at}")))
            }
            _ => {
                self.version = Some(version);
                Ok(got)
            }
        }
    }
}

/// Looks for an open that holds two versions, in a mount that learns of a new one within half a second.
fn eight_readers() {
    const SIZE: usize = 20 * MIB;
    let server = S3Server::start();
    server.put("object", content(0, SIZE));
    let mount = Daemon::new(&server).arg("--stat-cache-ttl", "500ms").start();
    let (path, end) = (mount.join("object"), Instant::now() + duration(8));
    let (is_over, passes, reads, wrong) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let reader = |number: u64| {
        let mut random = StdRng::seed_from_u64(number);
        while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
            let piece = [MIB, 256 << 10, 64 << 10][random.random_range(0..3)];
            let mut open = Open::new(&path, number % 4 == 3, piece).expect("it is there all the time");
            let mut at = 0;
            let came = loop {
                match open.read(at, piece) {
                    Ok(0) => break Ok(()),
                    Ok(got) => at += got,
                    Err(why) => break Err(why),
                }
                reads.fetch_add(1, Ordering::Relaxed);
            };
            let why = match came {
                Ok(()) if at == SIZE => {
                    passes.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Ok(()) => format!("a file of {SIZE} bytes ends at {at}"),
                Err(Wrong::Stale) => continue,
                Err(Wrong::Mixed(why)) => why,
            };
            is_over.store(true, Ordering::Relaxed);
            wrong.lock().expect("no panic while it is held").push(why);
        }
    };
    std::thread::scope(|scope| {
        for number in 0..8 {
            let reader = &reader;
            scope.spawn(move || reader(number));
        }
        let mut random = StdRng::seed_from_u64(99);
        for version in 1.. {
            if is_over.load(Ordering::Relaxed) || Instant::now() > end {
                break;
            }
            server.put("object", content(version, SIZE));
            std::thread::sleep(Duration::from_millis(random.random_range(300..500)));
        }
    });
    let (passes, reads) = (passes.into_inner(), reads.into_inner());
    let wrong = wrong.into_inner().expect("no panic while it was held");
    eprintln!("{reads} reads, {passes} whole files");
    assert!(wrong.is_empty(), "in {reads} reads: {wrong:#?}");
    assert!(reads > 100, "only {reads} reads");
}

/// A mount that asks the store for the version at every open.
fn mount(server: &S3Server) -> Mount {
    Daemon::new(server).arg("--stat-cache-ttl", "0").arg("--chunk-size", "1MiB").arg("--prefetch-chunks", "1").start()
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Pages,
    Direct,
    Map,
}

/// One opened the first version and read nothing; another one read half of the second; then there is a third.
fn third_version(how: Reader) {
    const SIZE: usize = 8 * MIB;
    for round in 0..5_u64 {
        let (server, first) = (S3Server::start(), 10 * round + 1);
        server.put("object", content(first, SIZE));
        let mount = mount(&server);
        let path = mount.join("object");
        let mut unbound = Open::new(&path, how == Reader::Direct, MIB).expect("it is there");
        let mut map = (how == Reader::Map).then(|| Mapping::start(&path));
        server.put("object", content(first + 1, SIZE));
        let mut second = Open::new(&path, false, MIB).expect("it is there");
        for at in (0..SIZE / 2).step_by(MIB) {
            assert!(matches!(second.read(at, MIB), Ok(MIB)), "the second version can be read");
        }
        assert_eq!(second.version, Some(first + 1));
        server.put("object", content(first + 2, SIZE));
        // In some rounds the third one is known before the unbound handle reads, in some its read finds it out.
        let mut third = (round % 2 == 1).then(|| Open::new(&path, false, MIB).expect("it is there"));
        let mut opens: Vec<&mut Open> = vec![&mut unbound, &mut second];
        opens.extend(third.as_mut());
        for open in opens {
            for at in (0..SIZE).step_by(MIB) {
                match open.read(at, MIB) {
                    Ok(_) => {}
                    Err(Wrong::Stale) => break,
                    Err(Wrong::Mixed(why)) => panic!("round {round}: {why}"),
                }
            }
        }
        if let Some(map) = &mut map {
            map.shows_one_version(0..SIZE / 2);
            map.shows_one_version(SIZE / 2..SIZE);
        }
        let mut last = Open::new(&path, false, MIB).expect("it is there");
        for at in (0..SIZE).step_by(MIB) {
            let came = last.read(at, MIB);
            assert!(matches!(came, Ok(MIB)), "round {round}: a new open at {at}: {came:?}");
        }
        assert_eq!(last.version, Some(first + 2), "round {round}: a new open reads what is there");
    }
}

/// A process that maps a file.
struct Mapping {
    process: Group,
    answers: BufReader<std::process::ChildStdout>,
    has_ended: bool,
}

impl Mapping {
    /// Maps all of `path`.
    fn start(path: &Path) -> Self {
        let mut command = Command::new(python::path());
        command.args(["-c", include_str!("map.py")]).arg(path);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).process_group(0).spawn().expect("python starts");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut mapping = Self { process: Group(child), answers, has_ended: false };
        assert_eq!(mapping.asks("map").as_deref(), Some("mapped"));
        mapping
    }

    /// None when a page cannot be had.
    #[track_caller]
    fn asks(&mut self, what: &str) -> Option<String> {
        let stdin = self.process.0.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{what}").expect("it reads");
        let mut answer = String::new();
        let len = self.answers.read_line(&mut answer).expect("it can be read");
        if len == 0 {
            let status = self.process.wait(Duration::from_secs(60)).expect("it has closed its output");
            assert_eq!(status.signal(), Some(libc::SIGBUS), "{what}: {status}");
            self.has_ended = true;
            return None;
        }
        Some(answer.trim().to_owned())
    }

    #[track_caller]
    fn shows_one_version(&mut self, range: std::ops::Range<usize>) -> Option<u64> {
        if self.has_ended {
            return None;
        }
        let seen = self.asks(&format!("touch {} {}", range.start, range.end))?;
        Some(seen.parse().unwrap_or_else(|_| panic!("one mapping shows the versions {seen}")))
    }
}

/// A mapping of which half was touched, an object that is replaced, and readers of the new version.
fn mapped() {
    const SIZE: usize = 8 * MIB;
    let server = S3Server::start();
    let mount = mount(&server);
    for round in 0..4_u64 {
        let (name, version) = (format!("object-{round}"), 10 * round + 1);
        let path = mount.join(&name);
        server.put(&name, content(version, SIZE));
        let mut map = Mapping::start(&path);
        if round % 2 == 0 {
            assert_eq!(map.shows_one_version(0..2 * MIB), Some(version), "round {round}");
        }
        // In some rounds it is replaced twice.
        for next in 1..=1 + round / 2 {
            server.put(&name, content(version + next, SIZE));
            let mut reader = Open::new(&path, false, MIB).expect("it is there");
            for at in (0..SIZE / 2).step_by(MIB) {
                assert!(matches!(reader.read(at, MIB), Ok(MIB)), "round {round}: the new version can be read");
            }
            assert_eq!(reader.version, Some(version + next), "round {round}");
        }
        map.shows_one_version(SIZE / 4..SIZE / 2);
        map.shows_one_version(0..SIZE);
    }
}

/// Half of the file is in the kernel's pages and it is not open when it is replaced; then eight threads open it at the same moment.
fn opens_at_once(next_size: fn(usize, &mut StdRng) -> usize) {
    const SIZE: usize = MIB;
    const ROUNDS: u64 = 80;
    const THREADS: usize = 8;
    let server = S3Server::start();
    let mut random = StdRng::seed_from_u64(7);
    let mut len = SIZE;
    server.put("object", content(0, len));
    let mount = mount(&server);
    let path = mount.join("object");
    let barrier = Barrier::new(THREADS);
    for version in 1..ROUNDS {
        let mut before = Open::new(&path, false, MIB).expect("it is there");
        for at in (0..len / 2).step_by(64 << 10) {
            if let Err(Wrong::Mixed(why)) = before.read(at, 64 << 10) {
                panic!("before version {version}: {why}");
            }
        }
        drop(before);
        len = next_size(SIZE, &mut random);
        server.put("object", content(version, len));
        let read = |thread: usize| -> Result<(), String> {
            barrier.wait();
            let mut open = Open::new(&path, thread % 4 == 3, MIB).map_err(|error| error.to_string())?;
            let piece = if thread.is_multiple_of(2) { 64 << 10 } else { 16 << 10 };
            let mut at = 0;
            loop {
                match open.read(at, piece) {
                    Ok(0) => break,
                    Ok(got) => at += got,
                    Err(Wrong::Stale) => return Ok(()),
                    Err(Wrong::Mixed(why)) => return Err(why),
                }
            }
            match (at, open.version) {
                (at, Some(read)) if at == len && read == version => Ok(()),
                (at, read) => Err(format!("version {version} of {len} bytes is read as {read:?} of {at}")),
            }
        };
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || read(thread))).collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("it does not panic").err()).collect()
        });
        assert!(wrong.is_empty(), "version {version}: {wrong:#?}");
    }
}

/// What comes between a version and the same one with the same tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// Another version, which only a handle of the first one detects.
    Unopened,
    /// Another one, which is opened and read.
    Read,
    /// Nothing.
    Deleted,
}

fn tag_returns(between: Between) {
    const SIZE: usize = 16 * MIB;
    for keeps_open in [false, true] {
        for ttl in ["0", "200ms"] {
            let server = S3Server::start();
            let put = |version: u64| drop(server.put_tagged("object", content(version, SIZE), &format!("{version:032x}")));
            put(1);
            let mount = Daemon::new(&server).arg("--stat-cache-ttl", ttl).arg("--negative-ttl", "0");
            let mount = mount.arg("--chunk-size", "1MiB").arg("--prefetch-chunks", "1").start();
            let path = mount.join("object");
            let mut first = Open::new(&path, false, MIB).expect("it is there");
            assert!(matches!(first.read(0, MIB), Ok(MIB)));
            let mut opens = vec![first];
            match between {
                Between::Unopened | Between::Read => put(2),
                Between::Deleted => assert!(server.delete("object")),
            }
            // Far beyond what was fetched ahead: the open handle detects it.
            assert!(matches!(opens[0].read(12 * MIB, MIB), Err(Wrong::Stale)), "the first one is gone");
            std::thread::sleep(Duration::from_millis(250));
            if between == Between::Read {
                let mut second = Open::new(&path, false, MIB).expect("it is there");
                assert!(matches!(second.read(0, MIB), Ok(MIB)) && second.version == Some(2), "the second one can be read");
                opens.push(second);
            }
            if !keeps_open {
                opens.clear();
            }
            put(1);
            std::thread::sleep(Duration::from_millis(250));
            // One try may meet what was known before.
            let tries: Vec<String> = (0..3).map(|_| whole(&path, SIZE, 1)).collect();
            let case = format!("{between:?}, kept open: {keeps_open}, --stat-cache-ttl {ttl}");
            assert!(tries[1..].iter().all(|came| came == "whole"), "{case}: {tries:?}");
            for mut open in opens {
                for at in (0..SIZE).step_by(MIB) {
                    match open.read(at, MIB) {
                        Ok(_) => {}
                        Err(Wrong::Stale) => break,
                        Err(Wrong::Mixed(why)) => panic!("{case}: {why}"),
                    }
                }
            }
        }
    }
}

/// How reading all of a file went.
fn whole(path: &Path, size: usize, version: u64) -> String {
    let mut open = match Open::new(path, false, MIB) {
        Ok(open) => open,
        Err(error) => return format!("open: {error}"),
    };
    let mut at = 0;
    loop {
        match open.read(at, MIB) {
            Ok(0) if at == size && open.version == Some(version) => return "whole".into(),
            Ok(0) => return format!("{at} bytes of version {:?}", open.version),
            Ok(got) => at += got,
            Err(why) => return format!("{why:?} at {at}"),
        }
    }
}
