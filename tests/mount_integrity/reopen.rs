//! Files that are closed and opened again at once, as programs do that open a file for each change: nothing is busy, and nothing is lost in between.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::limit::{trial, trial_with};
use crate::number;
use crate::program::Program;
use crate::support::S3Server;
use crate::support::mounts::{Daemon, Mount};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("closed_file_can_be_opened_for_writing_at_once", written),
        trial_with(&["python3"], "closed_file_that_is_still_mapped_can_be_opened_at_once", hole),
        trial("closed_file_can_be_changed_at_random_again_and_again", at_random),
        trial_with(&["fsx"], "fsx_with_fsync_and_reopening_finds_every_byte", || fsx(1_500, &[])),
        trial_with(&["fsx"], "fsx_with_fsync_in_32_mib_finds_every_byte", || fsx(500, &[("--memory-limit", "32MiB")])),
        trial_with(&["fsx"], "fsx_with_fsync_without_a_cache_finds_every_byte", || fsx(500, &[("--stat-cache-ttl", "0")])),
    ]
}

/// How often a file is opened again.
const ROUNDS: usize = 500;

fn close(file: File) {
    windlass::sys::close(file.into()).expect("close succeeds");
}

#[track_caller]
fn open_again(path: &Path, round: usize, before: &str) -> File {
    let file = File::options().read(true).write(true).open(path);
    file.unwrap_or_else(|error| panic!("round {round}: open right after {before} and close: {error}"))
}

#[track_caller]
fn assert_content(file: &File, expected: &[u8], when: &str) {
    let mut content = vec![0; expected.len() + 100];
    let len = file.read_at(&mut content, 0).unwrap_or_else(|error| panic!("{when}: {error}"));
    content.truncate(len);
    assert!(
        content == expected,
        "{when}: {len} bytes for {}, first difference at {:?}",
        expected.len(),
        first_difference(&content, expected)
    );
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    one.iter().zip(other).position(|(one, other)| one != other)
}

/// Made or emptied, written front to back, closed, opened for a change in its middle, closed, and read.
fn written() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    // Each round opens it again twice.
    for round in 0..ROUNDS / 2 {
        // A name that is new, and one that is emptied.
        let path = if round % 2 == 0 { mount.join(format!("file-{round}")) } else { mount.join("file") };
        let mut expected = vec![b'a' + (round % 26) as u8; 100 + round * 37 % 9_000];
        let file = File::create(&path).expect("it can be created");
        file.write_all_at(&expected, 0).expect("it can be written");
        if round % 5 == 0 {
            file.sync_all().expect("the store takes it");
        }
        close(file);
        let file = open_again(&path, round, "a stream");
        assert_content(&file, &expected, "after a stream");
        file.write_all_at(b"changed", 50).expect("it can be written");
        expected[50..57].copy_from_slice(b"changed");
        close(file);
        let file = open_again(&path, round, "a change");
        assert_content(&file, &expected, "after a change");
        if round % 10 == 0 {
            file.set_len(60).expect("it can be cut");
            expected.truncate(60);
        }
        drop(file);
        let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
        assert!(server.stored(&name).is_some_and(|(stored, _)| stored == expected), "round {round}: the object after close");
    }
}

/// Written at its end, mapped at its hole, and cut to a part of that: what is left is zeros that nobody has written. The mapping outlives the
/// descriptor, as it may.
fn hole() {
    const SCRIPT: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
if sys.argv[2] == 'sync':
    os.fsync(fd)
os.pwrite(fd, b'x' * 17867, 244277)
mapping = mmap.mmap(fd, 0)
assert mapping[11887:58525] == bytes(58525 - 11887)
os.ftruncate(fd, 69425)
os.close(fd)
fd = os.open(sys.argv[1], os.O_RDWR)
assert os.fstat(fd).st_size == 69425, os.fstat(fd)
assert os.pread(fd, 100000, 0) == bytes(69425)
os.pwrite(fd, b'end', 69425)
os.close(fd)
";
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let expected = [vec![0; 69_425], b"end".to_vec()].concat();
    for round in 0..10 {
        let name = format!("file-{}", round / 4);
        Program::python(SCRIPT).arg(mount.join(&name)).arg(["sync", "none"][round % 2]).succeeds();
        assert!(server.stored(&name).is_some_and(|(stored, _)| stored == expected), "round {round}: the object");
    }
}

/// One to six random changes between an open and a close.
fn at_random() {
    const MOST: usize = 200_000;
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    for seed in 0..3 {
        let (mut random, name) = (StdRng::seed_from_u64(seed), format!("file-{seed}"));
        let (path, mut expected) = (mount.join(&name), Vec::new());
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("it can be created");
        for round in 0..ROUNDS / 5 {
            let mut said = format!("seed {seed}, round {round}:");
            for _ in 0..random.random_range(1..=6) {
                match random.random_range(0..10) {
                    0..4 => {
                        let at = random.random_range(0..MOST);
                        let bytes = vec![random.random_range(1..=255); random.random_range(1..40_000)];
                        said += &format!(" write {} at {at},", bytes.len());
                        file.write_all_at(&bytes, at as u64).unwrap_or_else(|error| panic!("{said} {error}"));
                        let end = at + bytes.len();
                        expected.resize(expected.len().max(end), 0);
                        expected[at..end].copy_from_slice(&bytes);
                    }
                    4..6 => {
                        let size = random.random_range(0..MOST);
                        said += &format!(" truncate to {size},");
                        file.set_len(size as u64).unwrap_or_else(|error| panic!("{said} {error}"));
                        expected.resize(size, 0);
                    }
                    6..8 => {
                        said += " fsync,";
                        file.sync_all().unwrap_or_else(|error| panic!("{said} {error}"));
                    }
                    _ => {
                        said += " read,";
                        assert_content(&file, &expected, &said);
                    }
                }
                assert_eq!(file.metadata().expect("it is open").len(), expected.len() as u64, "{said}");
            }
            close(file);
            file = open_again(&path, round, &said);
            assert_content(&file, &expected, &format!("{said} close, open"));
        }
        close(file);
        assert!(server.stored(&name).is_some_and(|(stored, _)| stored == expected), "seed {seed}: the object");
    }
}

/// Much more closing, truncating and syncing than it does by itself.
const WEIGHTS: &str =
    "[weights]\nclose_open = 10\nread = 20\nwrite = 20\nmapread = 10\nmapwrite = 10\ntruncate = 10\nfsync = 10\nfdatasync = 5\n";

/// The first two have met a file that was busy.
const SEEDS: [u32; 5] = [9003, 9102, 9001, 9004, 9005];

fn fsx(operations: u64, arguments: &[(&str, &str)]) {
    let (server, place) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    let mount: Mount = arguments.iter().fold(Daemon::new(&server), |daemon, (name, value)| daemon.arg(name, value)).start();
    let (config, operations) = (place.path().join("fsx.toml"), number("WINDLASS_TEST_FSX_OPS", operations));
    fs::write(&config, WEIGHTS).expect("there is room");
    let mut wrong = Vec::new();
    for seed in SEEDS {
        let name = format!("file-{seed}");
        let program = Program::new("fsx").arg("-f").arg(&config).arg("-P").arg(place.path());
        let program = program.arg("-N").arg(operations.to_string()).arg("-S").arg(seed.to_string()).arg(mount.join(&name));
        let ended = program.limit(Duration::from_secs(120 + operations / 10)).ends();
        let content = fs::read(mount.join(&name)).unwrap_or_default();
        let stored = server.stored(&name).map(|(stored, _)| stored.to_vec()).unwrap_or_default();
        if !ended.status.success() {
            let said = ended.said();
            let why = said.lines().find(|line| line.contains("rror") || line.contains("expected") || line.contains("code:"));
            wrong.push(format!("fsx -S {seed}: {}", why.unwrap_or(&said)));
        } else if content != stored {
            wrong.push(format!("fsx -S {seed}: the mount has {} bytes and the bucket {}, or others", content.len(), stored.len()));
        }
    }
    assert!(wrong.is_empty(), "with {arguments:?} and {operations} operations:\n{}", wrong.join("\n"));
}
