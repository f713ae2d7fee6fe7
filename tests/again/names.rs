//! Names, numbers and open directories across a daemon's death.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use libtest_mimic::Trial;
use rustix::fs::{Dir, Mode, OFlags};

use crate::program::{Supervised, trial};
use crate::support::S3Server;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("numbers_are_the_same_and_open_files_stay_open", numbers),
        trial("a_listing_goes_on_where_it_was", listing),
        trial("a_listing_goes_on_behind_what_its_reader_removes", removing),
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
