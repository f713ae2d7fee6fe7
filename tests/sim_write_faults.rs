//! Every fault at every step of everything that changes the bucket, over the store in memory under a paused clock: whoever is told that it
//! went well finds the new content in the store; whoever is told that it did not finds the old or the new, whole; and when the mount has
//! come to its end no unfinished upload is left.

mod support;

use std::sync::Arc;
use std::time::Duration;

use windlass::metrics::Metrics;
use windlass::store::memory::{Fault, Latency, Memory, Plan, Rule};
use windlass::store::{ErrorKind, Op, Policy, Retrying};
use windlass::units::ByteSize;
use windlass::writer::{self, Limits};

use support::model::{Answer, How, World, content};
use support::vfs_world::VfsWorld;

/// What programs write at once. Parts hold eight of them, so that files of a few have several parts.
const PIECE: usize = 1000;

/// What is in the bucket before, by key.
type Before = &'static [(&'static str, usize)];

/// One thing that programs do.
struct Scenario {
    name: &'static str,
    before: Before,
    act: fn(&mut VfsWorld) -> Answer<()>,
    /// Checks the bucket, given whether the program was told that it went well.
    check: fn(&Memory, bool),
}

fn old(key: &str, len: usize) -> Vec<u8> {
    content(key.len() as u8, 0, len)
}

fn write(world: &mut VfsWorld, path: &str, truncate: bool, offset: u64, len: usize) -> Answer<()> {
    world.open(0, path, How { create: true, exclusive: false, truncate })?;
    let written = (0..len).step_by(PIECE).try_for_each(|done| {
        let at = offset + done as u64;
        world.write(0, at, &content(99, at, PIECE.min(len - done)))
    });
    let synced = world.fsync(0);
    let closed = world.close(0);
    written.and(synced).and(closed)
}

fn is(store: &Memory, key: &str, expected: &[u8]) -> bool {
    store.content(key).is_some_and(|content| content == expected)
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a small file",
        before: &[],
        act: |world| write(world, "a", true, 0, 1000),
        check: |store, ok| assert!(is(store, "a", &content(99, 0, 1000)) || !ok && store.meta("a").is_none()),
    },
    Scenario {
        name: "a large file",
        before: &[],
        act: |world| write(world, "a", true, 0, 20 * PIECE),
        check: |store, ok| assert!(is(store, "a", &content(99, 0, 20 * PIECE)) || !ok && store.meta("a").is_none()),
    },
    Scenario {
        name: "a file that exists, written anew",
        before: &[("a", 3 * PIECE)],
        act: |world| write(world, "a", true, 0, 18 * PIECE),
        check: |store, ok| assert!(is(store, "a", &content(99, 0, 18 * PIECE)) || !ok && is(store, "a", &old("a", 3 * PIECE))),
    },
    Scenario {
        name: "the middle of a file",
        before: &[("a", 20 * PIECE)],
        act: |world| write(world, "a", false, 9 * PIECE as u64, PIECE),
        check: |store, ok| {
            let mut new = old("a", 20 * PIECE);
            new[9 * PIECE..10 * PIECE].copy_from_slice(&content(99, 9 * PIECE as u64, PIECE));
            assert!(is(store, "a", &new) || !ok && is(store, "a", &old("a", 20 * PIECE)));
        },
    },
    Scenario {
        name: "more at the end of a file",
        before: &[("a", 12 * PIECE)],
        act: |world| write(world, "a", false, 12 * PIECE as u64, 100),
        check: |store, ok| {
            let new = [old("a", 12 * PIECE), content(99, 12 * PIECE as u64, 100)].concat();
            assert!(is(store, "a", &new) || !ok && is(store, "a", &old("a", 12 * PIECE)));
        },
    },
    Scenario {
        name: "a rename",
        before: &[("a", 1000), ("bb", 2000)],
        act: |world| world.rename("a", "bb", false),
        check: |store, ok| {
            let (here, there) = (is(store, "a", &old("a", 1000)), is(store, "bb", &old("a", 1000)));
            assert!(if ok { there && store.meta("a").is_none() } else { here || there });
            assert!(there || is(store, "bb", &old("bb", 2000)));
        },
    },
    Scenario {
        name: "a rename that replaces nothing",
        before: &[("a", 1000)],
        act: |world| world.rename("a", "bb", true),
        check: |store, ok| {
            let (here, there) = (is(store, "a", &old("a", 1000)), is(store, "bb", &old("a", 1000)));
            assert!(if ok { there && store.meta("a").is_none() } else { here || there });
        },
    },
    Scenario {
        name: "a rename of a directory",
        before: &[("d/", 0), ("d/a", 100), ("d/bb", 200), ("d/e/ccc", 300)],
        act: |world| world.rename("d", "t", false),
        check: |store, ok| {
            for (key, len) in [("a", 100), ("bb", 200), ("e/ccc", 300)] {
                let content = old(&format!("d/{key}"), len);
                let (here, there) = (is(store, &format!("d/{key}"), &content), is(store, &format!("t/{key}"), &content));
                assert!(if ok { there && !here } else { here || there }, "{key}");
            }
        },
    },
    Scenario {
        name: "an unlink",
        before: &[("d/a", 100)],
        act: |world| world.unlink("d/a"),
        check: |store, ok| assert!(store.meta("d/a").is_none() || !ok),
    },
    Scenario {
        name: "a directory",
        before: &[],
        act: |world| world.mkdir("d"),
        check: |store, ok| assert!(store.meta("d/").is_some() || !ok),
    },
    Scenario {
        name: "a directory less",
        before: &[("d/", 0)],
        act: |world| world.rmdir("d"),
        check: |store, ok| assert!(store.meta("d/").is_none() || !ok),
    },
    Scenario {
        name: "a symbolic link",
        before: &[],
        act: |world| world.symlink("l", "target"),
        check: |store, ok| assert!(store.meta("l").is_some() || !ok),
    },
    Scenario {
        name: "a file that must be new",
        before: &[],
        act: |world| {
            world.open(0, "a", How { create: true, exclusive: true, truncate: false })?;
            let written = world.write(0, 0, &content(99, 0, 500));
            written.and(world.fsync(0)).and(world.close(0))
        },
        check: |store, ok| assert!(is(store, "a", &content(99, 0, 500)) || !ok && store.meta("a").is_none()),
    },
];

const OPS: [Op; 12] = [
    Op::Head,
    Op::List,
    Op::Get,
    Op::Put,
    Op::CreateUpload,
    Op::UploadPart,
    Op::CopyPart,
    Op::CompleteUpload,
    Op::AbortUpload,
    Op::ListUploads,
    Op::Copy,
    Op::Delete,
];

/// What happens, and to how many requests from the nth on.
const FAULTS: [(&str, Fault, usize); 7] = [
    ("an error", Fault::Error(ErrorKind::Unavailable), 1),
    ("a time-out", Fault::Error(ErrorKind::Timeout), 1),
    ("a burst of 503", Fault::Error(ErrorKind::Throttled), 4),
    ("an expired token", Fault::Error(ErrorKind::BadCredentials), 1),
    ("a refusal for good", Fault::Error(ErrorKind::AccessDenied), usize::MAX),
    ("an answer that is lost", Fault::Lost, 1),
    ("answers that are lost for good", Fault::Lost, usize::MAX),
];

fn run(scenario: &Scenario, op: Op, nth: usize, fault: Fault, count: usize) -> bool {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(Duration::from_millis(20)), ..Plan::default() });
    for &(key, len) in scenario.before {
        store.put(key, old(key, len));
    }
    for n in 0..count.min(16) {
        store.fault(Rule::new(fault).op(op).nth(nth + n));
    }
    let policy = Policy { retries: 5, request_timeout: Duration::from_secs(30), attempt_timeout: Duration::from_secs(5) };
    let retrying = Retrying::new(Arc::new(store.clone()), policy, Arc::new(Metrics::default()));
    let staging = tempfile::tempdir().expect("a temporary directory can be made");
    let dir = Some(staging.path().to_owned());
    let part = 8 * PIECE as u64;
    let limits = Limits { least_part: part, copied_part: 2 * part, ahead: part, kept: part, ..Limits::default() };
    let staging_options = writer::staging::Options { dir, ..Default::default() };
    let options = writer::Options { part_size: ByteSize::bytes(part), limits, staging: staging_options, ..Default::default() };
    let mut world = VfsWorld::new(Arc::new(retrying), options);
    let ok = (scenario.act)(&mut world).is_ok();
    let hit = store.count(op) >= nth;
    store.clear_faults();
    world.runtime.block_on(world.edits.drain(Duration::from_secs(60)));
    (scenario.check)(&store, ok);
    assert_eq!(store.uploads(), [], "uploads are left");
    let left: Vec<_> = std::fs::read_dir(staging.path()).expect("it is there").flatten().filter(|entry| entry.path().is_file()).collect();
    assert!(left.is_empty(), "{left:?} is left on the disk");
    hit
}

#[test]
fn every_fault_at_every_step_leaves_the_old_or_the_new() {
    let (mut run_count, mut hit_count) = (0, 0);
    for scenario in SCENARIOS {
        for op in OPS {
            for (what, fault, count) in FAULTS {
                for nth in 1..=4 {
                    let ran = std::panic::AssertUnwindSafe(|| run(scenario, op, nth, fault, count));
                    match std::panic::catch_unwind(ran) {
                        Ok(hit) => {
                            run_count += 1;
                            hit_count += usize::from(hit);
                            if !hit {
                                // The step does not make so many of these requests.
                                break;
                            }
                        }
                        Err(panic) => {
                            eprintln!("{}: {what} at {op} {nth}", scenario.name);
                            std::panic::resume_unwind(panic);
                        }
                    }
                }
            }
        }
    }
    println!("{run_count} combinations were run, the fault was met in {hit_count}");
    assert!(hit_count > 300, "{hit_count}");
}
