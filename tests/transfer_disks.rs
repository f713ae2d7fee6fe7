//! Targets on disks that are too small, or cannot be written: one clear line, and nothing under the name that was not there before. Makes
//! and unmounts file systems of its own, so it says when it may not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::Trial;
use program::{MIB, at, content, get, names_in, run};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use support::mounts::trial_as_root;
use support::{Effect, Fault, Kind, S3Server};

#[path = "transfer/program.rs"]
mod program;
mod support;

fn main() -> ExitCode {
    let trials: [(&str, fn()); 3] = [
        ("a_full_disk_is_told_before_the_first_byte", a_full_disk),
        ("a_disk_that_another_program_fills_meanwhile_is_told", a_disk_that_another_program_fills),
        ("a_read_only_disk_is_told", a_read_only_disk),
    ];
    let trials = trials.map(|(name, test)| -> Trial { trial_as_root(name, test) });
    support::mounts::run(trials.into())
}

/// A file system of its own. It goes with this.
struct Disk {
    place: PathBuf,
    /// Last: it is empty when the disk is gone.
    _files: tempfile::TempDir,
}

impl Disk {
    fn new(options: &std::ffi::CStr) -> Self {
        let files = tempfile::tempdir().unwrap();
        let place = files.path().join("disk");
        fs::create_dir(&place).unwrap();
        mount("none", &place, "tmpfs", MountFlags::empty(), options).unwrap();
        Self { place, _files: files }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.place, UnmountFlags::DETACH).unwrap();
    }
}

fn untouched(place: &Path) {
    assert_eq!((names_in(place), fs::read(place.join("old")).unwrap()), (vec!["old".to_owned()], b"old".to_vec()));
}

fn a_full_disk() {
    let (server, disk) = (S3Server::start(), Disk::new(c"size=8m"));
    server.put("big", content(12 * MIB));
    fs::write(disk.path("old"), "old").unwrap();
    for name in ["old", "new"] {
        get(&server, "big", &disk.path(name), &[]).fails(1, &["cannot write", name, "No space left"]);
        untouched(&disk.place);
    }
    assert_eq!(server.count(Kind::Get), 0);
    let checkpoints = tempfile::tempdir().unwrap();
    let dir = checkpoints.path().to_str().unwrap();
    get(&server, "big", &disk.path("new"), &["--checkpoint-dir", dir]).fails(1, &["cannot write", "No space left"]);
    assert!(!disk.path("new").exists());
    // What fits is brought, and what does not is told.
    server.put("t/a", content(MIB));
    server.put("t/b", content(9 * MIB));
    get(&server, "t", &disk.path("tree"), &["-r", "--transfers", "1"]).fails(1, &["tree/b", "No space left"]);
    assert_eq!(names_in(&disk.path("tree")), ["a"]);
}

fn a_disk_that_another_program_fills() {
    let (server, disk) = (S3Server::start(), Disk::new(c"size=8m"));
    server.put("small", content(MIB));
    fs::write(disk.path("old"), "old").unwrap();
    // In order, so that nothing was reserved: into a pipe's stand-in, a file of the disk that shell redirection opened.
    let mut command = program::command(&server, &["get", &at("small"), "-"]);
    fs::write(disk.path("full"), vec![0; 8 * MIB - 64 * 1024]).unwrap();
    let out = fs::File::create(disk.path("out")).unwrap();
    program::said(command.stdout(out).output().unwrap()).fails(1, &["standard output", "No space left"]);
    fs::remove_file(disk.path("out")).unwrap();
    fs::remove_file(disk.path("full")).unwrap();
    untouched(&disk.place);
}

fn a_read_only_disk() {
    let (server, disk) = (S3Server::start(), Disk::new(c"size=8m"));
    server.put("big", content(5 * MIB));
    server.fault(Fault::new(Effect::Status(403)).kind(Kind::Get));
    fs::write(disk.path("old"), "old").unwrap();
    mount_remount(&disk.place, MountFlags::RDONLY, c"").unwrap();
    for name in ["old", "new"] {
        // Before the first byte is asked for.
        get(&server, "big", &disk.path(name), &[]).fails(1, &["cannot write", name, "Read-only file system"]);
        untouched(&disk.place);
    }
    let there = disk.path("checkpoints");
    let more = ["--checkpoint-dir", there.to_str().unwrap()];
    get(&server, "big", Path::new("/tmp/never"), &more).fails(1, &["checkpoints", "Read-only file system"]);
    run(&server, &["get", "-r", &at(""), disk.path("tree").to_str().unwrap()]).fails(1, &["tree", "Read-only file system"]);
}
