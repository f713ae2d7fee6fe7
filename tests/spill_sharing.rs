//! The bounds of a directory hold for all that use it, and what is evicted is what is wanted least. Snapshots of du(1) are taken while
//! nobody is in the middle of a call; spill_disks samples the disk itself at any time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{PIECE, check, content, du, du_within, files, fill, max_mib, object, open};
use windlass::spill::{CHUNK_BYTES, PIECE_BYTES, Spill};
use windlass::store::{ETag, Key};

#[path = "support/spill.rs"]
#[allow(dead_code, reason = "each test binary uses a part of the support")]
mod support;

const MIB: u64 = 1 << 20;
const MAX: u64 = 24 * MIB;

/// One of a few hundred objects, most of them small.
fn any_object(random: &mut StdRng) -> (String, u64) {
    let number = random.random_range(0..300u64);
    let size = if number < 250 { 1000 + number * 900 } else { (number - 249) * 700_001 };
    (format!("key-{number}"), size)
}

/// What readers do: read, and add what was not there.
fn anything(spill: &Spill, random: &mut StdRng) {
    let (key, size) = any_object(random);
    let it = object(spill, &key, size);
    let start = random.random_range(0..size);
    let end = size.min(start + random.random_range(1..2 * MIB));
    match random.random_range(0..100) {
        0..50 => drop(fill(&it, &key, start..end)),
        50..95 => drop(check(&it, &key, start..end)),
        95..97 => drop(spill.forget(&Key::from(&*key))),
        97..98 => spill.drop_others(&Key::from(&*key), &ETag::from("\"2\"")),
        98..99 => spill.scan(),
        _ => spill.on_time(Instant::now()),
    }
}

#[test]
fn du_never_says_more_than_the_bound_whatever_is_added() {
    let disk = tempfile::tempdir().unwrap();
    let max = MAX / 2;
    let spill = open(disk.path(), max_mib(max / MIB));
    let mut random = StdRng::seed_from_u64(1);
    let mut most = 0;
    for step in 0..400 {
        anything(&spill, &mut random);
        let now = du_within(disk.path(), max);
        assert!(now <= max, "{now} after {step}");
        most = most.max(now);
    }
    assert!(most > max * 3 / 4, "the room is used: {most}");
    assert!(spill.stats().evictions > 10 && spill.stats().damaged == 0, "{:?}", spill.stats());
}

#[test]
fn two_processes_keep_the_bound_together_and_read_nothing_wrong() {
    let disk = tempfile::tempdir().unwrap();
    let spills = [open(disk.path(), max_mib(MAX / MIB)), open(disk.path(), max_mib(MAX / MIB))];
    let quiet = RwLock::new(());
    let mut most = 0;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|number| {
                let (spill, quiet) = (&spills[number % 2], &quiet);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(number as u64);
                    // What is read of the others' is left to chance.
                    let (own, working) = (format!("own-{number}"), quiet.read());
                    let it = object(spill, &own, 100_000);
                    assert_eq!((fill(&it, &own, 0..100_000), check(&it, &own, 0..100_000)), (100_000, 100_000));
                    drop(working);
                    for _ in 0..100 {
                        let _working = quiet.read();
                        anything(spill, &mut random);
                    }
                })
            })
            .collect();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let _alone = quiet.write();
            let now = du_within(disk.path(), MAX);
            assert!(now <= MAX, "{now}");
            most = most.max(now);
        }
    });
    assert!(most > MAX / 2, "the room is used: {most}");
    // One of them may have made room for both.
    let evictions: u64 = spills.iter().map(|spill| spill.stats().evictions).sum();
    assert!(evictions > 0, "{:?}", spills.each_ref().map(Spill::stats));
    for spill in &spills {
        let stats = spill.stats();
        assert!(stats.hit_bytes > 0 && stats.damaged == 0, "{stats:?}");
        assert!(stats.bytes >= du(&disk.path().join("chunks")) / 2 && stats.bytes <= MAX, "{stats:?}");
    }
}

#[test]
fn the_ledger_is_the_sum_of_what_is_there() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(MAX / MIB));
    let mut random = StdRng::seed_from_u64(5);
    (0..200).for_each(|_| anything(&spill, &mut random));
    let said = spill.stats().bytes;
    let there = du_within(&disk.path().join("chunks"), said + 64 * 1024);
    assert!(said + 64 * 1024 >= there && said <= there + there / 10, "{said} of {there}");
}

#[test]
fn what_one_process_adds_the_other_reads_and_can_evict() {
    let disk = tempfile::tempdir().unwrap();
    let (one, two) = (open(disk.path(), max_mib(16)), open(disk.path(), max_mib(16)));
    let seen = object(&two, "a", 14 * MIB);
    assert_eq!(check(&seen, "a", 0..MIB), 0);
    assert_eq!(fill(&object(&one, "a", 14 * MIB), "a", 0..14 * MIB), 14 * MIB);
    assert_eq!(check(&seen, "a", 0..MIB), MIB);
    // All but the chunk that it read is unknown to the second, which then has nothing to evict but its own.
    let other = object(&two, "b", 8 * MIB);
    fill(&other, "b", 0..8 * MIB);
    assert!(!other.is_whole() && check(&seen, "a", 4 * MIB..14 * MIB) == 10 * MIB);
    two.on_time(Instant::now());
    fill(&other, "b", 0..8 * MIB);
    assert!(other.is_whole() && check(&seen, "a", 4 * MIB..14 * MIB) < 10 * MIB);
    assert!(two.stats().bytes <= 16 * MIB);
}

#[test]
fn who_comes_while_another_counts_reads_and_adds_afterwards() {
    let disk = tempfile::tempdir().unwrap();
    let first = open(disk.path(), max_mib(16));
    fill(&object(&first, "a", MIB), "a", 0..MIB);
    drop(first);
    let (one, two) = (open(disk.path(), max_mib(16)), open(disk.path(), max_mib(16)));
    let it = object(&two, "b", MIB);
    assert_eq!((check(&object(&two, "a", MIB), "a", 0..MIB), fill(&it, "b", 0..MIB)), (MIB, 0));
    two.on_time(Instant::now());
    assert_eq!(fill(&it, "b", 0..MIB), 0);
    one.scan();
    two.on_time(Instant::now());
    assert_eq!(fill(&it, "b", 0..MIB), MIB);
    drop(one);
    assert_eq!(fill(&object(&two, "c", MIB), "c", 0..MIB), MIB);
}

#[test]
fn who_waits_for_one_that_died_counting_counts_itself() {
    let disk = tempfile::tempdir().unwrap();
    let first = open(disk.path(), max_mib(16));
    fill(&object(&first, "a", MIB), "a", 0..MIB);
    drop(first);
    let (one, two) = (open(disk.path(), max_mib(16)), open(disk.path(), max_mib(16)));
    drop(one);
    two.on_time(Instant::now());
    assert_eq!(fill(&object(&two, "b", MIB), "b", 0..MIB), MIB);
    assert_eq!(two.stats().objects, 2);
}

#[test]
fn what_a_killed_process_reserved_is_free_after_the_next_count() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(16));
    fill(&object(&spill, "a", MIB), "a", 0..MIB);
    let before = spill.stats().bytes;
    std::mem::forget(spill.guard().reserve(disk.path(), 9 * MIB).unwrap());
    assert!(spill.guard().reserved_bytes() >= 10 * MIB);
    drop(spill);
    let spill = open(disk.path(), max_mib(16));
    spill.scan();
    assert_eq!((spill.stats().bytes, spill.guard().reserved_bytes()), (before, before));
}

#[test]
fn a_writer_that_needs_room_gets_that_of_chunks() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(16));
    let it = object(&spill, "a", 14 * MIB);
    assert_eq!(fill(&it, "a", 0..14 * MIB), 14 * MIB);
    let guard = spill.guard();
    guard.reserve(disk.path(), 10 * MIB).unwrap().written();
    assert!(it.bytes_on_disk() <= 6 * MIB && guard.reserved_bytes() <= 16 * MIB);
    let full = guard.reserve(disk.path(), 7 * MIB).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    guard.release(10 * MIB);
    assert!(fill(&it, "a", 0..14 * MIB) >= 8 * MIB);
}

#[test]
fn an_object_larger_than_the_room_passes_through() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(12));
    let it = object(&spill, "a", 40 * MIB);
    for chunk in 0..10 {
        let range = chunk * CHUNK_BYTES..(chunk + 1) * CHUNK_BYTES;
        assert_eq!(fill(&it, "a", range.clone()), CHUNK_BYTES);
        assert_eq!(check(&it, "a", range), CHUNK_BYTES);
        assert!(du_within(disk.path(), 12 * MIB) <= 12 * MIB);
    }
}

#[test]
fn what_is_read_again_and_again_survives_a_scan_of_ten_times_the_room() {
    let disk = tempfile::tempdir().unwrap();
    let (spill, size) = (open(disk.path(), max_mib(8)), MIB / 4);
    let hot: Vec<String> = (0..8).map(|number| format!("hot-{number}")).collect();
    let read = |key: &str| check(&object(&spill, key, size), key, 0..size);
    hot.iter().for_each(|key| assert_eq!(fill(&object(&spill, key, size), key, 0..size), size));
    for number in 0..320 {
        if number % 8 == 0 {
            hot.iter().for_each(|key| assert_eq!(read(key), size, "{key} before {number}"));
        }
        let key = format!("scanned-{number}");
        assert_eq!(fill(&object(&spill, &key, size), &key, 0..size), size);
    }
    assert_eq!(hot.iter().map(|key| read(key)).sum::<u64>(), 8 * size);
}

#[test]
fn what_the_kernel_reads_stays_whole_and_counted_until_it_is_let_go() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(16));
    let it = object(&spill, "a", 6 * MIB);
    fill(&it, "a", 0..6 * MIB);
    assert!(it.verify());
    let whole = [it.whole().unwrap(), it.whole().unwrap()];
    // Others go first, and it stays when there are no others.
    for number in 0..6 {
        let key = format!("other-{number}");
        fill(&object(&spill, &key, 4 * MIB), &key, 0..4 * MIB);
    }
    assert!(it.is_whole() && spill.stats().evictions > 0);
    // A writer takes its name, but its room is not free yet.
    let before = spill.guard().reserved_bytes();
    assert!(spill.guard().reserve(disk.path(), 14 * MIB).is_err());
    assert_eq!(files(disk.path(), "data").len(), 0);
    let left = spill.guard().reserved_bytes();
    assert!(left < before && left >= 6 * MIB, "{before} {left}");
    let mut bytes = vec![0; PIECE];
    let [one, two] = whole;
    drop(one);
    two.file().read_exact_at(&mut bytes, 3 * PIECE_BYTES).unwrap();
    assert!(bytes == content("a", 3 * PIECE_BYTES..4 * PIECE_BYTES) && spill.guard().reserved_bytes() == left);
    drop(two);
    assert!(spill.guard().reserved_bytes() < MIB / 4);
    spill.guard().reserve(disk.path(), 14 * MIB).unwrap().written();
}

#[test]
fn what_lost_a_chunk_since_it_was_verified_is_not_whole() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(16));
    let it = object(&spill, "a", 6 * MIB);
    fill(&it, "a", 0..6 * MIB);
    assert!(it.verify());
    spill.guard().reserve(disk.path(), 11 * MIB).unwrap().written();
    assert!(it.whole().is_none() && !it.is_whole() && it.bytes_on_disk() > 0);
    spill.guard().release(11 * MIB);
    fill(&it, "a", 0..6 * MIB);
    assert!(it.is_whole() && it.whole().is_none() && it.verify() && it.whole().is_some());
}

#[test]
fn what_is_evicted_while_it_is_open_frees_its_room() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(64));
    let it = object(&spill, "a", 6 * MIB);
    fill(&it, "a", 0..6 * MIB);
    let file = std::fs::File::open(&files(disk.path(), "data")[0]).unwrap();
    spill.forget(&Key::from("a"));
    let left = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    assert_eq!((left, check(&it, "a", 0..MIB), it.bytes_on_disk()), (0, 0, 0));
}

#[test]
fn room_is_made_before_it_is_needed() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(100));
    let it = object(&spill, "a", 120 * MIB);
    assert_eq!(fill(&it, "a", 0..99 * MIB), 99 * MIB);
    let before = spill.stats();
    assert!(before.bytes > 99 * MIB && before.evictions == 0, "{before:?}");
    spill.on_time(Instant::now());
    assert!(spill.stats().bytes <= 98 * MIB && spill.stats().evictions > before.evictions);
    let after = spill.stats();
    spill.on_time(Instant::now() + Duration::from_secs(60));
    assert_eq!(spill.stats(), after, "there is room enough");
}

#[test]
fn many_threads_add_one_object_and_lose_nothing() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(64));
    let size = 24 * MIB;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let spill = &spill;
            scope.spawn(move || {
                let it = object(spill, "a", size);
                for piece in (0..size / PIECE_BYTES).filter(|piece| piece % 4 == thread) {
                    assert_eq!(fill(&it, "a", piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES), PIECE_BYTES);
                }
            });
        }
    });
    let it = object(&spill, "a", size);
    assert!(it.is_whole() && it.verify() && check(&it, "a", 0..size) == size);
}

/// Names the directory in which [`reserve_room_and_wait`] reserves.
const RESERVES_IN: &str = "SPILL_SHARING_RESERVES_IN";

#[test]
#[ignore = "the child of another test, which kills it"]
fn reserve_room_and_wait() {
    let Some(directory) = std::env::var_os(RESERVES_IN) else { return };
    let spill = open(directory.as_ref(), max_mib(16));
    let _room = spill.guard().reserve(directory.as_ref(), 10 * MIB).expect("no other process has reserved as much");
    println!("reserved");
    std::io::stdin().lines().next();
}

#[test]
fn room_that_killed_processes_reserved_is_free_while_others_live() {
    let disk = tempfile::tempdir().unwrap();
    let (one, two) = (open(disk.path(), max_mib(16)), open(disk.path(), max_mib(16)));
    let (kept, written) = (one.guard().reserve(disk.path(), MIB).unwrap(), two.guard().reserve(disk.path(), MIB).unwrap());
    written.written();
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "reserve_room_and_wait", "--ignored", "--nocapture"])
            .env(RESERVES_IN, disk.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("reserved")), "round {round}: it found no room");
        one.on_time(Instant::now());
        assert_eq!(one.guard().reserved_bytes(), 12 * MIB, "it lives");
        child.kill().unwrap();
        child.wait().unwrap();
        two.on_time(Instant::now());
        assert_eq!(one.guard().reserved_bytes(), 2 * MIB, "round {round}");
    }
    drop(kept);
    assert_eq!(one.guard().reserved_bytes(), MIB);
    one.guard().reserve(disk.path(), 14 * MIB).unwrap().written();
}

#[test]
fn links_that_others_planted_are_not_followed() {
    for (mode, name) in [0o777, 0o700].into_iter().flat_map(|mode| ["ledger", "daemons", "chunks", "members"].map(|name| (mode, name))) {
        let (disk, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(disk.path(), fs::Permissions::from_mode(mode)).unwrap();
        let is_file = matches!(name, "ledger" | "daemons");
        let victim = if is_file { elsewhere.path().join("victim") } else { elsewhere.path().to_owned() };
        symlink(&victim, disk.path().join(name)).unwrap();
        fs::write(elsewhere.path().join("victim"), "mine").unwrap();
        let opened = Spill::open(disk.path(), max_mib(16), support::identity());
        // Where others can write, all is in a directory of its own.
        assert!(opened.is_ok() || mode == 0o700, "{name}: {opened:?}");
        if let Ok(spill) = opened {
            fill(&object(&spill, "a", MIB), "a", 0..MIB);
            drop(spill.guard().reserve(disk.path(), MIB).unwrap());
        } else {
            let error = opened.unwrap_err();
            assert!(error.kind() == std::io::ErrorKind::PermissionDenied && error.to_string().contains(name), "{error}");
        }
        let there: Vec<_> = fs::read_dir(elsewhere.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!((there, fs::read(elsewhere.path().join("victim")).unwrap()), (vec!["victim".into()], b"mine".to_vec()), "{name}");
    }
}
