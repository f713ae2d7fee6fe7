//! The size of a file that is open and was changed: what fstat, stat and other processes show is what the last change made it, and what is
//! written next goes where that ends.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use libtest_mimic::Trial;

use crate::limit::{trial, trial_with};
use crate::program::Program;
use crate::support::S3Server;
use crate::support::mounts::{Daemon, Mount};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("truncated_and_synced_file_has_its_new_size_at_once", truncated),
        trial_with(&["python3"], "python_truncates_and_appends_to_an_open_file", python),
        trial("extended_and_synced_file_has_its_new_size_at_once", extended),
        trial("reader_sees_what_another_process_appended", appended),
        trial("reader_sees_what_another_handle_overwrote", overwritten),
        trial("append_handle_and_reader_without_a_cache_keep_every_byte", without_a_cache),
    ]
}

/// Bytes that tell where they are.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn object(server: &S3Server, key: &str) -> Vec<u8> {
    server.stored(key).unwrap_or_else(|| panic!("{key} is not in the bucket")).0.to_vec()
}

/// The size that another process sees.
#[track_caller]
fn size_elsewhere(path: &Path) -> u64 {
    Program::new("stat").arg("-L").arg("-c").arg("%s").arg(path).succeeds().trim().parse().expect("a number")
}

/// Every way to ask shows a file of `size` bytes.
#[track_caller]
fn assert_size(file: &File, path: &Path, size: u64, when: &str) {
    let sizes = [file.metadata().expect("it is open").len(), fs::metadata(path).expect("it is there").len(), size_elsewhere(path)];
    assert_eq!(sizes, [size; 3], "fstat, stat and stat of another process, {when}");
}

/// With the cache of attributes that there is by itself, and without one.
fn mounts(server: &S3Server) -> [Mount; 2] {
    [Daemon::new(server).start(), Daemon::new(server).arg("--stat-cache-ttl", "0").start()]
}

#[track_caller]
fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn truncated() {
    let server = S3Server::start();
    for (n, mount) in mounts(&server).into_iter().enumerate() {
        // One that is sent in one request, and one that has several chunks.
        for (len, shorter) in [(5_000, 100), (9 << 20, 4_100_000)] {
            let (key, old) = (format!("{n}-{len}"), content(len));
            server.put(&key, old.clone());
            let path = mount.join(&key);
            let file = open(&path);
            file.read_exact_at(&mut [0], 0).expect("it can be read");
            file.set_len(shorter).expect("it can be cut");
            assert_eq!(file.metadata().expect("it is open").len(), shorter, "before fsync");
            file.sync_all().expect("the store takes it");
            assert_size(&file, &path, shorter, "after fsync");
            assert_eq!(object(&server, &key), old[..shorter as usize]);
            assert_eq!(file.read_at(&mut [0; 16], shorter).expect("the end is no error"), 0);
            file.write_all_at(b"tail", shorter).expect("it can be written");
            file.sync_all().expect("the store takes it");
            assert_size(&file, &path, shorter + 4, "after more was written");
            drop(file);
            assert_eq!(object(&server, &key), [&old[..shorter as usize], b"tail"].concat());
            assert_eq!(fs::read(&path).expect("it can be read"), object(&server, &key));
        }
    }
}

fn python() {
    const SCRIPT: &str = "
import os, sys
with open(sys.argv[1], 'r+b') as file:
    file.read(1)
    file.truncate(100)
    file.flush()
    os.fsync(file.fileno())
    print(file.seek(0, 2), os.fstat(file.fileno()).st_size, os.stat(sys.argv[1]).st_size)
    file.write(b'tail')
";
    let (server, old) = (S3Server::start(), content(5_000));
    let mount = Daemon::new(&server).start();
    server.put("file", old.clone());
    let sizes = Program::python(SCRIPT).arg(mount.join("file")).succeeds();
    let stored = object(&server, "file");
    assert_eq!((stored.len(), sizes.trim()), (104, "100 100 100"), "bytes of the object, and the end, fstat and stat after fsync");
    assert_eq!(stored, [&old[..100], b"tail"].concat());
}

fn extended() {
    let server = S3Server::start();
    for (n, mount) in mounts(&server).into_iter().enumerate() {
        let (key, old) = (format!("{n}"), content(5_000));
        server.put(&key, old.clone());
        let path = mount.join(&key);
        let mut file = open(&path);
        file.read_exact_at(&mut [0; 10], 4_000).expect("it can be read");
        file.seek(SeekFrom::End(0)).expect("it has an end");
        let mut expected = old;
        for round in 0..4_u8 {
            let line = [b'a' + round; 3_000];
            file.write_all(&line).expect("it can be written");
            expected.extend(line);
            file.sync_all().expect("the store takes it");
            assert_size(&file, &path, expected.len() as u64, "after fsync");
            assert_eq!(file.seek(SeekFrom::End(0)).expect("it has an end"), expected.len() as u64);
            let mut all = vec![0; expected.len()];
            file.read_exact_at(&mut all, 0).expect("all of it can be read");
            assert!(all == expected && object(&server, &key) == expected, "round {round}");
        }
    }
}

/// One reads the file and keeps it open, another process appends to it and closes it.
fn appended() {
    let server = S3Server::start();
    for (n, mount) in mounts(&server).into_iter().enumerate() {
        for len in [5_000, 3 << 20] {
            let (key, mut expected) = (format!("{n}-{len}"), content(len));
            server.put(&key, expected.clone());
            let path = mount.join(&key);
            let reader = File::open(&path).expect("it is there");
            let mut all = vec![0; len];
            reader.read_exact_at(&mut all, 0).expect("all of it can be read");
            for round in 0..3 {
                let line = format!("line {round} of another process\n");
                Program::shell("printf '%s\\n' \"$2\" >> \"$1\"").arg(&path).arg(line.trim_end()).succeeds();
                let end = expected.len() as u64;
                expected.extend(line.as_bytes());
                assert_size(&reader, &path, expected.len() as u64, "after another process appended");
                let mut new = vec![0; line.len() + 10];
                let got = reader.read_at(&mut new, end).unwrap_or_else(|error| panic!("the reader at its end, round {round}: {error}"));
                assert_eq!(String::from_utf8_lossy(&new[..got]), line, "round {round}");
                assert_eq!(object(&server, &key), expected);
            }
            let mut all = vec![0; expected.len()];
            reader.read_exact_at(&mut all, 0).expect("all of it can be read");
            assert!(all == expected, "the reader's content");
        }
    }
}

/// One reads the file and keeps it open, another handle changes bytes in its middle.
fn overwritten() {
    let server = S3Server::start();
    for (n, mount) in mounts(&server).into_iter().enumerate() {
        let (key, mut expected) = (format!("{n}"), content(300_000));
        server.put(&key, expected.clone());
        let path = mount.join(&key);
        let reader = File::open(&path).expect("it is there");
        let read = || {
            let mut all = vec![0; 300_000];
            reader.read_exact_at(&mut all, 0).map(|()| all)
        };
        assert!(read().expect("it can be read") == expected);
        for round in 0..3_u8 {
            let at = 70_000 * usize::from(round) + 123;
            let writer = open(&path);
            writer.write_all_at(&[round; 5_000], at as u64).expect("it can be written");
            expected[at..at + 5_000].fill(round);
            // Once while the writer is open, once when it is closed.
            if round == 1 {
                writer.sync_all().expect("the store takes it");
                assert!(read().unwrap_or_else(|error| panic!("after fsync: {error}")) == expected, "after fsync");
            }
            drop(writer);
            let all = read().unwrap_or_else(|error| panic!("after close, round {round}: {error}"));
            assert!(all == expected, "after close, round {round}");
            assert_eq!(reader.metadata().expect("it is open").size(), 300_000);
        }
    }
}

/// Where no attribute is cached the kernel asks for the size again and again, and cuts its pages to what it is told.
fn without_a_cache() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).arg("--stat-cache-ttl", "0").start();
    let mut expected = content(5_000);
    server.put("file", expected.clone());
    let path = mount.join("file");
    let reader = File::open(&path).expect("it is there");
    reader.read_exact_at(&mut [0; 5_000], 0).expect("it can be read");
    let mut writer = File::options().read(true).append(true).open(&path).expect("it is there");
    writer.read_exact_at(&mut [0; 5_000], 0).expect("it can be read");
    for round in 0..20 {
        let line = format!("line {round}\n");
        writer.write_all(line.as_bytes()).expect("it can be written");
        expected.extend(line.as_bytes());
        if round % 3 == 0 {
            writer.sync_all().expect("the store takes it");
            assert_size(&writer, &path, expected.len() as u64, "after fsync");
        }
        // What it says is what counts here; the kernel asks the daemon.
        let _ = (fs::metadata(&path).expect("it is there"), reader.metadata().expect("it is open"));
    }
    writer.sync_all().expect("the store takes it");
    drop(writer);
    let stored = object(&server, "file");
    assert_eq!(String::from_utf8_lossy(&stored[5_000..]), String::from_utf8_lossy(&expected[5_000..]));
    assert!(stored == expected);
}
