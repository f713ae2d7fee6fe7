//! Reads here and there in a large object, and a reader that goes elsewhere.

use std::os::unix::fs::FileExt;
use std::process::Command;

use libtest_mimic::Trial;

use crate::bytes::{BOTH, KIB, MIB, Through, asked_bytes, gets, open, read_and_compare};
use crate::support::mounts::{Daemon, trial, trial_with};
use crate::support::{Effect, Fault, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_small_random_read_fetches_at_most_256_kib", a_small_random_read_fetches_at_most_256_kib),
        trial("samples_of_4_mib_at_random_fetch_no_windows", samples_of_4_mib_at_random_fetch_no_windows),
        trial("a_jump_cancels_what_is_in_flight_and_waits_for_none_of_it", a_jump_cancels_what_is_in_flight_and_waits_for_none_of_it),
        trial_with(&["python3"], "a_mapped_file_reads_right", a_mapped_file_reads_right),
    ]
}

fn a_small_random_read_fetches_at_most_256_kib() {
    let server = S3Server::start();
    let size = 1 << 30;
    let content = server.put_synthetic("big", size);
    for through in BOTH {
        let mount = Daemon::new(&server).start();
        let file = open(&mount.join("big"), through);
        server.reset_log();
        // Far from each other, in no order, and not aligned to anything.
        for step in 1..=20 {
            let at = (step * 377 * MIB + step * 123_457) % size;
            read_and_compare(&file, content, at..at + 4 * KIB, 4 * KIB);
            let gets = gets(&server, "big");
            assert!(asked_bytes(&gets) <= 256 * KIB, "{through:?} read {step} at {at}: {gets:?}");
            server.reset_log();
        }
    }
}

/// The kernel cuts each of them into reads of a megabyte, which come in any order, and through its pages reads some more behind it.
fn samples_of_4_mib_at_random_fetch_no_windows() {
    const LEN: u64 = 4 * MIB;
    const HALF: u64 = 4096 * MIB;
    let server = S3Server::start();
    let content = server.put_synthetic("big", 2 * HALF);
    for through in BOTH {
        let mount = Daemon::new(&server).start();
        let file = open(&mount.join("big"), through);
        server.reset_log();
        let place = |step: u64| step * step * 377 * MIB % (HALF - LEN) / (4 * KIB) * 4 * KIB;
        // Of the first ones nothing is known: they look like somebody who begins in the middle.
        for step in 1..=4 {
            read_and_compare(&file, content, place(step)..place(step) + LEN, LEN);
        }
        let samples = 20;
        for step in 5..5 + samples {
            let at = HALF + place(step);
            read_and_compare(&file, content, at..at + LEN, LEN);
        }
        let gets: Vec<_> =
            gets(&server, "big").into_iter().filter(|get| get.range.as_ref().is_some_and(|range| range.start >= HALF)).collect();
        let ranges: Vec<_> = gets.iter().filter_map(|get| get.range.clone()).collect();
        assert!(asked_bytes(&gets) <= samples * 3 * LEN, "{through:?}: {} bytes: {ranges:?}", asked_bytes(&gets));
    }
}

/// What is under way at the old place would take minutes, so had the new place waited for it, the old requests would
/// have ended; instead each of them was given up.
fn a_jump_cancels_what_is_in_flight_and_waits_for_none_of_it() {
    let server = S3Server::start();
    let content = server.put_synthetic("big", 1 << 30);
    let mount = Daemon::new(&server).arg("--chunk-size", "4MiB").arg("--prefetch-chunks", "32").start();
    let file = open(&mount.join("big"), Through::Direct);
    server.fault(Fault::new(Effect::Bandwidth(128 * KIB)).key("big"));
    server.reset_log();
    read_and_compare(&file, content, 0..256 * KIB, 64 * KIB);
    let old_places =
        |server: &S3Server| gets(server, "big").into_iter().filter(|get| get.range.as_ref().is_some_and(|r| r.start < 500 * MIB));
    assert!(server.wait_for(|requests| requests.len() >= 3), "a window was opened: {:?}", gets(&server, "big"));
    server.clear_faults();
    read_and_compare(&file, content, 700 * MIB..701 * MIB, 64 * KIB);
    assert!(old_places(&server).all(|get| !get.finished), "the new place waited for the old one");
    let all_cut = |requests: &[crate::support::Request]| {
        requests.iter().filter(|get| get.range.as_ref().is_some_and(|r| r.start < 500 * MIB)).all(|get| get.aborted && !get.finished)
    };
    assert!(server.wait_for(all_cut), "still in flight: {:?}", old_places(&server).collect::<Vec<_>>());
}

fn a_mapped_file_reads_right() {
    let server = S3Server::start();
    let size = 20 * MIB + 1234;
    let content = server.put_synthetic("mapped", size);
    let mount = Daemon::new(&server).start();
    // Backwards, so that no read-ahead of the kernel helps, then all of it.
    let script = "
import mmap, sys
with open(sys.argv[1], 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    for at in range(len(mapped) - 1, 0, -1000003):
        sys.stdout.buffer.write(mapped[at:at + 1])
    sys.stdout.buffer.write(mapped)
";
    let output = Command::new("python3").args(["-c", script]).arg(mount.join("mapped")).output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (single, whole) = output.stdout.split_at(output.stdout.len() - size as usize);
    assert!(content.matches(0, whole));
    let expected: Vec<u8> = (1..size).rev().step_by(1_000_003).map(|at| whole[at as usize]).collect();
    assert_eq!(single, expected);
    // The same pages through read(2).
    let mut page = [0; 4096];
    open(&mount.join("mapped"), Through::Pages).read_exact_at(&mut page, 8 * MIB).expect("it can be read");
    assert!(content.matches(8 * MIB, &page));
}
