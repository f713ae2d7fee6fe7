//! Random reads, writes and truncations of a large object through handles that stay open over fsync, compared with what a file would be. The
//! reader that was there before any of it sees all of it, too.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use libtest_mimic::Trial;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::limit::trial;
use crate::number;
use crate::support::S3Server;
use crate::support::mounts::{Daemon, Mount};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("random_changes_over_fsync_are_those_of_a_file", || all_seeds(3, &[])),
        trial("random_changes_without_a_cache_are_those_of_a_file", || all_seeds(2, &[("--stat-cache-ttl", "0")])),
        trial("random_changes_in_32_mib_of_memory_are_those_of_a_file", || all_seeds(2, &[("--memory-limit", "32MiB")])),
    ]
}

const SIZE: usize = 12 << 20;
const MOST: usize = 14 << 20;
const STEPS: usize = 50;

fn all_seeds(seeds: u64, arguments: &[(&str, &str)]) {
    let server = S3Server::start();
    let seeds = 1..=number("WINDLASS_TEST_SEEDS", seeds);
    // Before the mount: the absence of a name is cached for a moment.
    let contents: Vec<_> = seeds.clone().map(|seed| begin(&server, seed)).collect();
    let mount = arguments.iter().fold(Daemon::new(&server), |daemon, (name, value)| daemon.arg(name, value)).start();
    for (seed, content) in seeds.zip(contents) {
        let run = AssertUnwindSafe(|| one_seed(&server, &mount, seed, content));
        if catch_unwind(run).is_err() {
            panic!("seed {seed} with {arguments:?}");
        }
    }
}

/// A file through its handles, and what it must be.
struct Pair {
    writer: File,
    reader: File,
    expected: Vec<u8>,
}

impl Pair {
    #[track_caller]
    fn check(&self, file: &File, at: usize, len: usize, who: &str) {
        let mut bytes = vec![0; len];
        let mut got = 0;
        while got < len {
            match file.read_at(&mut bytes[got..], (at + got) as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(error) => panic!("{who}: {} bytes at {}: {error}", len - got, at + got),
            }
        }
        let expected = self.expected.get(at..(at + len).min(self.expected.len())).unwrap_or_default();
        assert_eq!(got, expected.len(), "bytes that {who} gets of {len} at {at}, the size is {}", self.expected.len());
        if let Some(wrong) = expected.iter().zip(&bytes).position(|(expected, byte)| expected != byte) {
            panic!("{who}: wrong byte at {} ({} for {})", at + wrong, bytes[wrong], expected[wrong]);
        }
    }

    #[track_caller]
    fn check_all(&self, server: &S3Server, path: &Path, key: &str) {
        let size = self.expected.len() as u64;
        let sizes = [&self.writer, &self.reader].map(|file| file.metadata().expect("it is open").len());
        assert_eq!((sizes, fs::metadata(path).expect("it is there").len()), ([size; 2], size), "fstat of both and stat after fsync");
        assert!(server.stored(key).is_some_and(|(stored, _)| stored == self.expected), "the object after fsync");
        for file in [&self.writer, &self.reader] {
            self.check(file, self.expected.len().saturating_sub(5_000), 10_000, "the end after fsync");
        }
    }
}

fn open(path: &Path, writes: bool) -> File {
    File::options().read(true).write(writes).open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn begin(server: &S3Server, seed: u64) -> Vec<u8> {
    let mut content = vec![0; SIZE];
    StdRng::seed_from_u64(!seed).fill(&mut content[..]);
    server.put(&format!("object-{seed}"), content.clone());
    content
}

fn one_seed(server: &S3Server, mount: &Mount, seed: u64, expected: Vec<u8>) {
    let (mut random, key) = (StdRng::seed_from_u64(seed), format!("object-{seed}"));
    let path = mount.join(&key);
    let mut pair = Pair { writer: open(&path, true), reader: open(&path, false), expected };
    // Both have read something: there are pages, and versions that are being read.
    pair.check(&pair.writer, 0, 100_000, "the writer at first");
    pair.check(&pair.reader, SIZE / 2, 100_000, "the reader at first");
    let mut is_clean = true;
    for step in 0..STEPS {
        let size = pair.expected.len();
        let at = random.random_range(0..size + 10_000);
        let len = if random.random_bool(0.3) { random.random_range(1..300_000) } else { random.random_range(1..9_000) };
        match random.random_range(0..100) {
            0..40 => {
                let end = (at + len).min(MOST);
                let mut piece = vec![0; end.saturating_sub(at)];
                random.fill(&mut piece[..]);
                pair.writer.write_all_at(&piece, at as u64).unwrap_or_else(|error| panic!("step {step}, {len} to {at}: {error}"));
                pair.expected.resize(size.max(end), 0);
                pair.expected[at..end].copy_from_slice(&piece);
                is_clean &= piece.is_empty();
            }
            40..70 => pair.check(&pair.writer, at, len, &format!("step {step}, the writer")),
            70..80 => {
                let new = random.random_range(size / 2..(size + 500_000).min(MOST));
                pair.writer.set_len(new as u64).unwrap_or_else(|error| panic!("step {step}, to {new} bytes: {error}"));
                pair.expected.resize(new, 0);
                assert_eq!(pair.writer.metadata().expect("it is open").len(), new as u64, "step {step}: fstat after ftruncate");
                is_clean = false;
            }
            80..92 => {
                pair.writer.sync_all().unwrap_or_else(|error| panic!("step {step}, fsync: {error}"));
                pair.check_all(server, &path, &key);
                is_clean = true;
            }
            92..96 => {
                windlass::sys::close(std::mem::replace(&mut pair.writer, open(Path::new("/dev/zero"), false)).into())
                    .unwrap_or_else(|error| panic!("step {step}, close: {error}"));
                pair.writer = open(&path, true);
                is_clean = true;
            }
            // What is not committed may be shown to others or not.
            _ if is_clean => pair.check(&pair.reader, at, len, &format!("step {step}, the reader")),
            _ => {}
        }
    }
    pair.writer.sync_all().expect("the store takes it");
    pair.check_all(server, &path, &key);
    pair.check(&pair.writer, 0, MOST, "the writer at last");
    pair.check(&pair.reader, 0, MOST, "the reader at last");
    pair.check(&open(&path, false), 0, MOST, "a new reader");
}
