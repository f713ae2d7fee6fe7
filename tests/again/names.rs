//! Names, numbers and open directories across a daemon's death.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use libtest_mimic::Trial;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Timespec, Timestamps, utimensat};

use crate::program::{Supervised, trial};
use crate::support::S3Server;
use crate::support::mounts::Daemon;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("numbers_are_the_same_and_open_files_stay_open", numbers),
        trial("a_listing_goes_on_where_it_was", listing),
        trial("a_listing_goes_on_behind_what_its_reader_removes", removing),
        trial("attributes_that_the_bucket_does_not_keep_hold_on", attributes),
        trial("a_deleted_file_that_is_open_is_stale_and_a_replaced_one_is_not_mixed", deleted),
    ]
}

/// Names and numbers below `top`.
fn tree(top: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top).unwrap().map(Result::unwrap) {
        let facts = entry.metadata().unwrap();
        found.push((entry.path().to_str().unwrap().to_owned(), facts.ino()));
        if facts.is_dir() {
            found.extend(tree(&entry.path()));
        }
    }
    found.sort();
    found
}

fn numbers() {
    let server = S3Server::start();
    for number in 0..300 {
        server.put(&format!("d/{}/{number}", number % 7), format!("content {number}"));
    }
    let mount = Supervised::of(&server);
    let before = tree(mount.mount.path());
    let open: Vec<File> = (0..20).map(|number| File::open(mount.join(&format!("d/{}/{number}", number % 7))).unwrap()).collect();
    fs::rename(mount.join("d/0/0"), mount.join("d/0/renamed")).unwrap();
    let renamed = fs::metadata(mount.join("d/0/renamed")).unwrap().ino();
    for _ in 0..3 {
        mount.replace();
        for (number, mut file) in open.iter().enumerate() {
            let mut text = vec![0; 99];
            let len = file.read_at(&mut text, 0).unwrap();
            assert_eq!(&text[..len], format!("content {number}").as_bytes());
            let _ = file.read(&mut text).unwrap();
        }
        assert_eq!(open[0].metadata().unwrap().ino(), renamed);
    }
    let number = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(number(&mount.join("d/0/renamed")), renamed);
    fs::rename(mount.join("d/0/renamed"), mount.join("d/0/0")).unwrap();
    assert_eq!(tree(mount.mount.path()), before);
}

/// Reads `count` names, or all that are left.
fn next(dir: &mut Dir, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    while names.len() < count
        && let Some(entry) = dir.read()
    {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        names.extend((name != "." && name != ".." && name != ".windlass").then_some(name));
    }
    names
}

fn open_dir(path: &Path) -> Dir {
    Dir::new(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()).unwrap()
}

const NAMES: usize = 3000;

fn many(server: &S3Server) -> Vec<String> {
    let names: Vec<String> = (0..NAMES).map(|number| format!("{number:05}")).collect();
    names.iter().for_each(|name| drop(server.put(&format!("many/{name}"), "x")));
    names
}

fn listing() {
    let server = S3Server::start();
    let names = many(&server);
    let mount = Supervised::of(&server);
    let mut dir = open_dir(&mount.join("many"));
    let mut found = next(&mut dir, 100);
    for _ in 0..4 {
        mount.replace();
        found.extend(next(&mut dir, 500));
    }
    found.extend(next(&mut dir, usize::MAX));
    assert!(found == names, "{} names", found.len());
    dir.rewind();
    assert_eq!(next(&mut dir, usize::MAX).len(), NAMES);
}

fn removing() {
    let server = S3Server::start();
    many(&server);
    let mount = Supervised::of(&server);
    let path = mount.join("many");
    let mut dir = open_dir(&path);
    let mut removed = 0;
    loop {
        let names = next(&mut dir, 250);
        if names.is_empty() {
            break;
        }
        names.iter().for_each(|name| fs::remove_file(path.join(name)).unwrap());
        removed += names.len();
        if removed % 1000 == 0 {
            mount.replace();
        }
    }
    assert_eq!(removed, NAMES, "none was passed over");
}

/// Nothing is cached: each stat asks the daemon that is there.
fn attributes() {
    let server = S3Server::start();
    for name in ["d/kept", "d/moved", "d/written", "d/gone"] {
        server.put(name, "content");
    }
    let mount = Supervised::start(Daemon::new(&server).arg("--stat-cache-ttl", "0s").arg("--negative-ttl", "0s"));
    let facts = |name: &str| {
        let found = fs::metadata(mount.join(name)).unwrap();
        (found.mode() & 0o7777, found.uid(), found.gid(), (found.mtime(), found.mtime_nsec()), (found.atime(), found.atime_nsec()))
    };
    let chmod = |name: &str, mode| fs::set_permissions(mount.join(name), fs::Permissions::from_mode(mode)).unwrap();
    let times =
        Timestamps { last_access: Timespec { tv_sec: 1_000_000, tv_nsec: 7 }, last_modification: Timespec { tv_sec: -5, tv_nsec: 3 } };
    let plain = facts("d/kept");
    for name in ["d/kept", "d/moved", "d/written", "d/gone"] {
        chmod(name, 0o4711);
        utimensat(CWD, mount.join(name), &times, AtFlags::empty()).unwrap();
    }
    chmod("d", 0o1700);
    let set = (0o4711, plain.1, plain.2, (-5, 3), (1_000_000, 7));
    assert_eq!(facts("d/kept"), set);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(mount.join("d/moved"), Some(1234), Some(4321)).unwrap();
    }
    chmod("d/moved", 0o4711);
    let moved = facts("d/moved");
    fs::rename(mount.join("d/moved"), mount.join("d/renamed")).unwrap();
    fs::write(mount.join("d/written"), "other").unwrap();
    let written = facts("d/written");
    fs::remove_file(mount.join("d/gone")).unwrap();
    let directory = facts("d");
    assert_eq!(directory.0, 0o1700);
    for _ in 0..2 {
        mount.replace();
        assert_eq!((facts("d/kept"), facts("d/renamed"), facts("d/written"), facts("d")), (set, moved, written, directory));
    }
    // What another daemon has written down is changed by this one.
    chmod("d/kept", 0o640);
    server.put("d/gone", "somebody else's");
    server.put("d/moved", "somebody else's");
    mount.replace();
    assert_eq!(facts("d/kept"), (0o640, set.1, set.2, set.3, set.4));
    assert_eq!((facts("d/gone").0, facts("d/moved").0), (plain.0, plain.0), "what is gone took its attributes along");
}

fn deleted() {
    let server = S3Server::start();
    let (deleted, replaced) = (server.put_synthetic("deleted", 40 << 20), server.put_synthetic("replaced", 40 << 20));
    let mount = Supervised::of(&server);
    let open = |name: &str| File::open(mount.join(name)).unwrap();
    let (gone, old) = (open("deleted"), open("replaced"));
    let mut bytes = vec![0; 4096];
    for (file, content) in [(&gone, deleted), (&old, replaced)] {
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(content.matches(0, &bytes));
    }
    fs::remove_file(mount.join("deleted")).unwrap();
    server.put("replaced", vec![9; 40 << 20]);
    mount.replace();
    for file in [&gone, &old] {
        let error = file.read_exact_at(&mut bytes, 30 << 20).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    }
    assert_eq!(fs::metadata(mount.join("deleted")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    open("replaced").read_exact_at(&mut bytes, 30 << 20).unwrap();
    assert_eq!(bytes, [9; 4096]);
}
