//! Many readers at once: of one file, and of as many files as memory allows.

use std::fs::File;
use std::ops::Range;

use libtest_mimic::Trial;
use windlass::store::memory::Synthetic;

use crate::bytes::{BOTH, KIB, MIB, Through, assert_each_byte_once, gets, open, read_and_compare};
use crate::support::S3Server;
use crate::support::mounts::{Daemon, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("four_threads_on_one_descriptor_fetch_every_byte_once", || four_readers(1, side_by_side)),
        trial("four_threads_on_four_descriptors_fetch_every_byte_once", || four_readers(4, side_by_side)),
        trial("one_thread_at_four_places_of_one_descriptor_fetches_every_byte_once", || four_readers(1, in_turn)),
        trial("one_thread_at_four_places_of_four_descriptors_fetches_every_byte_once", || four_readers(4, in_turn)),
        trial("a_hundred_readers_stay_inside_256_mib", a_hundred_readers_stay_inside_256_mib),
    ]
}

/// A reader's file and its part of it.
type Part<'a> = (&'a File, Range<u64>);

const PIECE: u64 = 256 * KIB;

fn four_readers(descriptors: usize, read: fn(&[Part<'_>; 4], Synthetic)) {
    const QUARTER: u64 = 48 * MIB;
    for through in BOTH {
        let server = S3Server::start();
        let content = server.put_synthetic("shared", 4 * QUARTER);
        let mount = Daemon::new(&server).arg("--chunk-size", "4MiB").arg("--prefetch-chunks", "8").flag("--hedge=false").start();
        server.reset_log();
        let files: Vec<File> = (0..descriptors).map(|_| open(&mount.join("shared"), through)).collect();
        let parts = [0, 1, 2, 3].map(|i| (&files[i % descriptors], i as u64 * QUARTER..(i as u64 + 1) * QUARTER));
        read(&parts, content);
        assert_each_byte_once(&gets(&server, "shared"), 0..4 * QUARTER);
    }
}

fn side_by_side(parts: &[Part<'_>; 4], content: Synthetic) {
    std::thread::scope(|scope| {
        for (file, part) in parts {
            scope.spawn(|| read_and_compare(file, content, part.clone(), PIECE));
        }
    });
}

fn in_turn(parts: &[Part<'_>; 4], content: Synthetic) {
    let len = parts[0].1.end - parts[0].1.start;
    for at in (0..len).step_by(PIECE as usize) {
        for (file, part) in parts {
            read_and_compare(file, content, part.start + at..part.start + at + PIECE, PIECE);
        }
    }
}

fn a_hundred_readers_stay_inside_256_mib() {
    const READERS: usize = 100;
    const SIZE: u64 = 16 * MIB;
    let server = S3Server::start();
    let contents: Vec<Synthetic> = (0..READERS).map(|i| server.put_synthetic(&i.to_string(), SIZE)).collect();
    let mount = Daemon::new(&server).arg("--memory-limit", "256MiB").start();
    std::thread::scope(|scope| {
        for (i, &content) in contents.iter().enumerate() {
            let (path, through) = (mount.join(i.to_string()), if i % 2 == 0 { Through::Pages } else { Through::Direct });
            scope.spawn(move || read_and_compare(&open(&path, through), content, 0..SIZE, PIECE));
        }
    });
    let peak = mount.peak_rss_bytes();
    assert!(peak < (256 + 96) * MIB, "the daemon held {} MiB", peak / MIB);
}
