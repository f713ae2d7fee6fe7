//! Files that are changed in place, and the disk that this takes: what a killed daemon leaves there for the next mount, and what happens
//! to whom when the disk is full.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::Trial;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;

use super::look::Look;
use super::support::mounts::{Daemon, Mount, trial, trial_unless, wait_until};
use super::support::{Effect, Fault, Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("killed_before_fsync_the_old_version_is_there_and_the_bytes_are_kept_and_named", killed_before_fsync),
        trial("killed_after_fsync_everything_is_in_the_store_already", killed_after_fsync),
        trial("killed_in_fsync_the_next_mount_finishes_it", killed_in_fsync),
        trial("killed_in_fsync_the_next_mount_leaves_a_newer_object_alone_and_says_so", killed_and_overtaken),
        trial("told_to_end_before_a_store_that_does_not_answer_the_next_mount_finishes_it", ended_without_a_store),
        trial("told_to_end_in_the_middle_of_a_file_its_bytes_are_kept_and_named", ended_in_the_middle),
        trial("told_to_end_after_an_fsync_that_failed_its_bytes_are_kept_and_named", ended_after_a_failure),
        trial("told_to_end_without_a_spill_dir_what_is_staged_is_dropped_and_that_is_said", ended_without_a_spill_dir),
        trial_unless(|| SmallDisk::new().err(), "a_full_disk_is_an_error_of_who_stages_there_and_of_nobody_else", full_disk),
    ]
}

const MIB: usize = 1 << 20;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(31) >> 3) as u8 ^ seed as u8).collect()
}

/// A server, a disk to stage on, and a daemon that uses both.
struct Stage {
    server: S3Server,
    spill: tempfile::TempDir,
    old: Vec<u8>,
}

/// Where the object is changed, and into what.
const AT: usize = 700_000;
const CHANGE: &[u8] = b"changed in the middle";

impl Stage {
    fn new() -> Self {
        let (server, old) = (S3Server::start(), pattern(3 * MIB, 1));
        server.put("dir/file", old.clone());
        Self { server, spill: tempfile::tempdir().expect("a temporary directory can be made"), old }
    }

    fn mount(&self) -> Mount {
        Daemon::new(&self.server).arg("--spill-dir", self.spill.path().to_str().expect("text")).start()
    }

    fn changed(&self) -> Vec<u8> {
        let mut content = self.old.clone();
        content[AT..AT + CHANGE.len()].copy_from_slice(CHANGE);
        content
    }

    /// Opens the object for both and changes it.
    fn change(mount: &Mount) -> File {
        let file = File::options().read(true).write(true).open(mount.join("dir/file")).expect("it is there");
        file.write_all_at(CHANGE, AT as u64).expect("there is room");
        file
    }

    fn staged(&self) -> Vec<PathBuf> {
        staged_in(self.spill.path())
    }

    /// Kills the daemon while fsync waits for a store that takes nothing.
    fn killed_in_fsync(&self) {
        let mut mount = self.mount();
        for kind in [Kind::Put, Kind::CreateUpload] {
            self.server.fault(Fault::new(Effect::Status(503)).kind(kind));
        }
        let file = Self::change(&mount);
        let asked =
            |requests: &[super::support::Request]| requests.iter().any(|asked| matches!(asked.kind, Kind::Put | Kind::CreateUpload));
        std::thread::scope(|scope| {
            let fsync = scope.spawn(|| file.sync_all());
            assert!(self.server.wait_for(asked), "fsync sends nothing");
            mount.signal(Signal::KILL);
            mount.wait();
            fsync.join().expect("it returns").expect_err("it is not in the store");
        });
        self.server.clear_faults();
        assert_eq!(self.server.object("dir/file").expect("it is there"), self.old);
    }

    /// `mount`, which was told to end, keeps the change and says so; no mount after it uploads that.
    fn is_left_to_a_person(&self, mut mount: Mount) {
        assert_eq!(mount.wait().code(), Some(5), "{}", mount.log());
        let data = self.staged().into_iter().find(|path| path.extension().is_some_and(|end| end == "data")).expect("it is kept");
        assert!(mount.log().contains(&format!("kept={}", data.display())), "{}", mount.log());
        drop(mount);
        let mount = self.mount();
        mount.wait_for_log(|log| log.contains("dir/file") && log.contains("not closed") && log.contains("its bytes are kept"));
        let mut kept = vec![0; CHANGE.len()];
        File::open(data).and_then(|file| file.read_exact_at(&mut kept, AT as u64)).expect("it can be read");
        assert_eq!(kept, CHANGE);
        assert_eq!(self.server.object("dir/file").expect("it is there"), self.old);
    }
}

/// What is on the disk of a daemon that stages in `spill`.
fn staged_in(spill: &Path) -> Vec<PathBuf> {
    let Ok(directory) = fs::read_dir(spill.join("staging")) else { return Vec::new() };
    directory.map(|entry| entry.expect("an entry").path()).collect()
}

fn killed_before_fsync() {
    let stage = Stage::new();
    let mut mount = stage.mount();
    let file = Stage::change(&mount);
    mount.signal(Signal::KILL);
    mount.wait();
    drop(file);
    drop(mount);
    assert_eq!(stage.server.object("dir/file").expect("it is there"), stage.old);
    // Not only the next mount: as long as the bytes are there.
    for _ in 0..2 {
        let mount = stage.mount();
        mount.wait_for_log(|log| log.contains("dir/file") && log.contains("its bytes are kept"));
        let staged = stage.staged();
        let data = staged.iter().find(|path| path.extension().is_some_and(|end| end == "data")).expect("it is kept");
        assert!(mount.log().contains(data.to_str().expect("text")), "{}", mount.log());
        let mut kept = vec![0; CHANGE.len()];
        File::open(data).and_then(|file| file.read_exact_at(&mut kept, AT as u64)).expect("it can be read");
        assert_eq!(kept, CHANGE);
        assert_eq!(fs::read(mount.join("dir/file")).expect("it can be read"), stage.old);
    }
    assert_eq!(stage.server.object("dir/file").expect("it is there"), stage.old);
}

fn killed_after_fsync() {
    let stage = Stage::new();
    let mut mount = stage.mount();
    let file = Stage::change(&mount);
    file.sync_all().expect("it is in the store");
    mount.signal(Signal::KILL);
    mount.wait();
    assert_eq!(stage.server.object("dir/file").expect("it is there"), stage.changed());
    drop((file, mount));
    let puts = stage.server.count(Kind::Put) + stage.server.count(Kind::CompleteUpload);
    let mount = stage.mount();
    // A change of its own comes after what the mount looks for when it starts.
    fs::write(mount.join("dir/other"), "x").expect("it is written");
    assert_eq!(fs::read(mount.join("dir/file")).expect("it can be read"), stage.changed());
    assert!(!mount.log().contains("dir/file"), "{}", mount.log());
    drop(mount);
    assert_eq!(stage.server.count(Kind::Put) + stage.server.count(Kind::CompleteUpload), puts + 1, "it was uploaded again");
    assert_eq!(stage.server.object("dir/file").expect("it is there"), stage.changed());
}

fn killed_in_fsync() {
    let stage = Stage::new();
    stage.killed_in_fsync();
    let mount = stage.mount();
    mount.wait_for_log(|log| log.contains("dir/file") && log.contains("it is in the bucket now"));
    assert_eq!(stage.server.object("dir/file").expect("it is there"), stage.changed());
    assert_eq!(fs::read(mount.join("dir/file")).expect("it can be read"), stage.changed());
    assert_eq!((stage.staged(), stage.server.unfinished_uploads()), (vec![], 0));
}

fn killed_and_overtaken() {
    let stage = Stage::new();
    stage.killed_in_fsync();
    stage.server.put("dir/file", "by somebody else");
    for _ in 0..2 {
        let mount = stage.mount();
        mount.wait_for_log(|log| log.contains("dir/file") && log.contains("written meanwhile") && log.contains("its bytes are kept"));
        assert_eq!(fs::read_to_string(mount.join("dir/file")).expect("it can be read"), "by somebody else");
        assert_eq!(stage.staged().len(), 2, "the bytes and their description");
    }
    assert_eq!(stage.server.object("dir/file").expect("it is there"), "by somebody else");
    assert_eq!(stage.server.unfinished_uploads(), 0);
}

/// A daemon that does not wait long for its store at the end.
fn impatient(server: &S3Server) -> Daemon<'_> {
    Daemon::new(server).arg("--drain-timeout", "2s")
}

/// From now on the store takes nothing, and does not say so.
fn fall_silent(server: &S3Server) {
    for kind in [Kind::Put, Kind::CreateUpload, Kind::UploadPart] {
        server.fault(Fault::new(Effect::Delay(std::time::Duration::from_secs(3600))).kind(kind));
    }
}

fn ended_without_a_store() {
    let stage = Stage::new();
    let spill = stage.spill.path().to_str().expect("text");
    let mut mount = impatient(&stage.server).arg("--spill-dir", spill).start();
    let file = Stage::change(&mount);
    let new = File::create_new(mount.join("new")).expect("it can be made");
    new.write_all_at(CHANGE, AT as u64).expect("it is taken");
    fall_silent(&stage.server);
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(5), "{}", mount.log());
    let said =
        format!("not in the bucket: dir/file, new; kept in {spill}/staging until a mount with the same --spill-dir stores them: dir/file");
    assert!(mount.log().contains(&said), "{said:?} is missing in {}", mount.log());
    drop((file, new, mount));
    stage.server.clear_faults();
    assert_eq!(stage.server.object("dir/file").expect("it is there"), stage.old);
    let mount = stage.mount();
    mount.wait_for_log(|log| log.contains("dir/file") && log.contains("it is in the bucket now"));
    assert_eq!(stage.server.object("dir/file").expect("it is there"), stage.changed());
    assert_eq!(fs::read(mount.join("dir/file")).expect("it can be read"), stage.changed());
    wait_until("the disk is empty", || stage.staged().is_empty());
}

fn ended_in_the_middle() {
    let stage = Stage::new();
    let mount = stage.mount();
    let file = Stage::change(&mount);
    mount.signal(Signal::TERM);
    let refused = || file.write_at(CHANGE, 0).is_err_and(|error| error.raw_os_error() == Some(libc::ESHUTDOWN));
    wait_until("nothing new is taken", refused);
    stage.is_left_to_a_person(mount);
}

fn ended_after_a_failure() {
    let stage = Stage::new();
    let mount = stage.mount();
    let file = Stage::change(&mount);
    for kind in [Kind::Put, Kind::CreateUpload] {
        stage.server.fault(Fault::new(Effect::Status(400)).kind(kind));
    }
    file.sync_all().expect_err("it is not in the store");
    stage.server.clear_faults();
    mount.signal(Signal::TERM);
    stage.is_left_to_a_person(mount);
}

fn ended_without_a_spill_dir() {
    let stage = Stage::new();
    let tmp = stage.spill.path().to_str().expect("text");
    let mut mount = impatient(&stage.server).env("TMPDIR", tmp).start();
    let file = Stage::change(&mount);
    fall_silent(&stage.server);
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(5), "{}", mount.log());
    let said = "not in the bucket: dir/file; staged and dropped, since no --spill-dir was named to keep them in: dir/file";
    assert!(mount.log().contains(said), "{}", mount.log());
    drop((file, mount));
    stage.server.clear_faults();
    let mount = Daemon::new(&stage.server).env("TMPDIR", tmp).start();
    let home =
        fs::read_dir(tmp).expect("it is there").map(|entry| entry.expect("an entry").path()).find(|path| path.join("staging").exists());
    wait_until("the disk is empty", || staged_in(home.as_deref().expect("it was staged somewhere")).is_empty());
    assert_eq!(fs::read(mount.join("dir/file")).expect("it can be read"), stage.old);
    assert!(!mount.log().contains("in the bucket now"), "{}", mount.log());
}

/// A file system of a few megabytes.
struct SmallDisk(tempfile::TempDir);

const DISK: usize = 6 * MIB;

impl SmallDisk {
    fn new() -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let options = std::ffi::CString::new(format!("size={DISK},mode=700")).expect("no NUL in it");
        match mount("tmpfs", directory.path(), "tmpfs", MountFlags::empty(), options.as_c_str()) {
            Ok(()) => Ok(Self(directory)),
            Err(error) => Err(format!("no small disk: mounting a tmpfs: {error}")),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

const READERS: usize = 50;
const WRITERS: usize = 2;
const STREAMED: usize = 20 * MIB;

/// Changes every second piece of the file from its end until there is no room, and returns what it should be then.
fn change_until_full(file: &File, old: &[u8]) -> Vec<u8> {
    let (mut expected, mut refused) = (old.to_vec(), None);
    for at in (0..old.len()).step_by(128 << 10).rev() {
        let piece = vec![0xa5; 64 << 10];
        match file.write_all_at(&piece, at as u64) {
            Ok(()) => expected[at..at + piece.len()].copy_from_slice(&piece),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert_eq!(refused.expect("it does not fit").kind(), io::ErrorKind::StorageFull);
    assert_ne!(expected, old, "nothing fits");
    expected
}

fn full_disk() {
    let (server, disk) = (S3Server::start(), SmallDisk::new().expect("it was there a moment ago"));
    let old = pattern(4 * DISK, 2);
    server.put("staged", old.clone());
    let contents: Vec<_> = (0..READERS).map(|n| server.put_synthetic(&format!("read/{n}"), MIB as u64 + n as u64)).collect();
    let mount = Daemon::new(&server).arg("--spill-dir", disk.0.path().to_str().expect("text")).start();
    let root = mount.path();
    let is_full = AtomicBool::new(false);
    // Everybody does all of it once more after the disk is full, so that each has met that.
    let until_full = |work: &dyn Fn()| {
        while !is_full.load(Ordering::SeqCst) {
            work();
        }
        work();
    };
    std::thread::scope(|scope| {
        for (n, content) in contents.iter().enumerate() {
            scope.spawn(move || {
                until_full(&|| {
                    let read = fs::read(root.join(format!("read/{n}"))).expect("readers need no disk");
                    assert!(read.len() == MIB + n && content.matches(0, &read));
                });
            });
        }
        for n in 0..WRITERS {
            let server = &server;
            scope.spawn(move || {
                let content = pattern(STREAMED, 10 + n);
                until_full(&|| {
                    fs::write(root.join(format!("streamed{n}")), &content).expect("streams need no disk");
                    assert!(server.object(&format!("streamed{n}")).expect("it is there") == content);
                });
            });
        }
        let file = File::options().read(true).write(true).open(root.join("staged")).expect("it is there");
        let expected = change_until_full(&file, &old);
        assert!(server.object("staged").expect("it is there") == old, "nothing was committed yet");
        is_full.store(true, Ordering::SeqCst);
        // What was taken is whole, and what is committed is no more and no less.
        file.sync_all().expect("an upload needs no disk");
        assert!(server.object("staged").expect("it is there") == expected);
    });
    // The kernel tells of the last close after it has returned.
    wait_until("nothing is left on the disk", || staged_in(disk.0.path()).is_empty());
    assert!(fs::read(root.join("staged")).expect("it can be read") == server.object("staged").expect("it is there"));
}
