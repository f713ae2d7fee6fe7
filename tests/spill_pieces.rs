//! What is kept on the disk comes back as it was, or not at all: across restarts, versions, damage and accidents with the directory.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{PIECE, check, content, files, fill, identity, max_mib, object, open};
use windlass::spill::{Added, Addition, Bounds, CHUNK_BYTES, Identity, PIECE_BYTES, Spill, Way};
use windlass::store::{ETag, Key};

#[path = "support/spill.rs"]
#[allow(dead_code, reason = "each test binary uses a part of the support")]
mod support;

const MIB: u64 = 1 << 20;

#[test]
fn a_piece_that_was_added_is_read_and_others_are_not() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let size = 10 * PIECE_BYTES + 5;
    let it = object(&spill, "a", size);
    assert_eq!((it.present(&(0..size)), it.bytes_on_disk(), check(&it, "a", 0..size)), (vec![], 0, 0));
    assert_eq!(files(disk.path(), "map").len(), 0, "nothing was added");

    let (two, last) = (2 * PIECE_BYTES..4 * PIECE_BYTES, 10 * PIECE_BYTES..size);
    assert_eq!(fill(&it, "a", two.clone()), 2 * PIECE_BYTES);
    assert_eq!(fill(&it, "a", last.clone()), 5);
    assert_eq!(it.present(&(0..size)), [two.clone(), last.clone()]);
    let inner = two.start + 1..two.end - 1;
    assert_eq!(it.present(&inner), vec![inner.clone()]);
    assert_eq!((check(&it, "a", two.start..size), check(&it, "a", last)), (2 * PIECE_BYTES, 5));
    assert_eq!(check(&it, "a", two.start + 77..two.end - 99), 2 * PIECE_BYTES - 176);
    assert_eq!((check(&it, "a", two.end - 10..two.end + 10), it.read(size, &mut [0; 4])), (10, 0));
    assert!(it.bytes_on_disk() >= 2 * PIECE_BYTES && !it.is_whole());
    assert_eq!(spill.stats().objects, 1);
}

#[test]
fn only_whole_pieces_are_kept_and_none_twice() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let it = object(&spill, "a", 40 * PIECE_BYTES);
    let bytes = content("a", 100..3 * PIECE_BYTES + 7);
    assert_eq!(it.add(100, &bytes), Added { kept: 2 * PIECE_BYTES, ..Added::default() });
    assert_eq!(it.add(100, &bytes), Added { present: 2 * PIECE_BYTES, ..Added::default() });
    assert_eq!(it.add(100, &bytes[..PIECE]), Added::default());
    let all = it.add(0, &content("a", 0..40 * PIECE_BYTES));
    assert_eq!(all, Added { kept: 38 * PIECE_BYTES, present: 2 * PIECE_BYTES, dropped: 0 });
    assert!(it.is_whole());
    assert_eq!(check(&it, "a", 0..40 * PIECE_BYTES), 40 * PIECE_BYTES);
}

/// A copy of `bytes` that begins where memory pages do, as buffers of chunks do: what a disk takes without a copy.
struct Aligned {
    padded: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    fn of(bytes: &[u8]) -> Self {
        let mut padded = vec![0; bytes.len() + 4096];
        let at = padded.as_ptr().align_offset(4096);
        padded[at..at + bytes.len()].copy_from_slice(bytes);
        Self { padded, at, len: bytes.len() }
    }

    fn bytes(&self) -> &[u8] {
        &self.padded[self.at..self.at + self.len]
    }
}

#[test]
fn several_are_kept_at_once_wherever_they_lie() {
    let size = 9 * CHUNK_BYTES + 4097;
    // One behind the other across chunks, the end of the object, a part of what came before, a piece by itself, none that is whole.
    let starts = [0, CHUNK_BYTES, 2 * CHUNK_BYTES, 8 * CHUNK_BYTES, CHUNK_BYTES + MIB, 5 * CHUNK_BYTES + PIECE_BYTES, 6 * CHUNK_BYTES + 1];
    let ends = [
        CHUNK_BYTES,
        2 * CHUNK_BYTES,
        4 * CHUNK_BYTES,
        size,
        CHUNK_BYTES + 3 * MIB,
        5 * CHUNK_BYTES + 2 * PIECE_BYTES,
        6 * CHUNK_BYTES + 7,
    ];
    let expected = |kept, present| Added { kept, present, dropped: 0 };
    for (way, is_aligned) in [(Way::Straight, true), (Way::Straight, false), (Way::Pages, true)] {
        let disk = tempfile::tempdir().unwrap();
        let it = object(&open(disk.path(), Bounds::default()), "a", size);
        let bytes: Vec<_> = starts.iter().zip(ends).map(|(start, end)| Aligned::of(&content("a", *start..end))).collect();
        let copies: Vec<Vec<u8>> = bytes.iter().map(|bytes| [&[0; 1], bytes.bytes()].concat()).collect();
        let summing = (0..bytes.len()).map(|at| {
            let mut summing = it.summing(starts[at]).unwrap();
            summing.on_bytes(starts[at], bytes[at].bytes());
            summing
        });
        let summing: Vec<_> = summing.collect();
        let additions: Vec<_> = (0..bytes.len())
            .map(|at| Addition {
                offset: starts[at],
                bytes: if is_aligned { bytes[at].bytes() } else { &copies[at][1..] },
                summing: summing.get(at).filter(|_| at % 2 == 0),
            })
            .collect();
        let added = it.add_all(way, &additions);
        let lens: Vec<u64> = starts.iter().zip(ends).map(|(start, end)| end - start).collect();
        assert_eq!(added[..4], [0, 1, 2, 3].map(|at| expected(lens[at], 0)), "{way:?}");
        assert_eq!(added[4..], [expected(0, lens[4]), expected(lens[5], 0), Added::default()], "{way:?}");
        let parts = [0..4 * CHUNK_BYTES, starts[5]..ends[5], 8 * CHUNK_BYTES..size];
        assert_eq!(it.present(&(0..size)), parts);
        for part in parts {
            assert_eq!(check(&it, "a", part.clone()), part.end - part.start, "{way:?}");
        }
    }
}

#[test]
fn of_several_at_once_those_are_kept_for_which_there_is_room() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(10));
    let it = object(&spill, "a", 4 * CHUNK_BYTES);
    let bytes = content("a", 0..4 * CHUNK_BYTES);
    let chunks = bytes.chunks(CHUNK_BYTES as usize);
    let additions: Vec<_> = (0..).zip(chunks).map(|(at, bytes)| Addition { offset: at * CHUNK_BYTES, bytes, summing: None }).collect();
    let added = it.add_all(Way::Straight, &additions);
    assert!(added.iter().all(|added| added.kept == CHUNK_BYTES), "each makes room for itself: {added:?}");
    let there: u64 = it.present(&(0..4 * CHUNK_BYTES)).iter().map(|part| part.end - part.start).sum();
    assert_eq!((there, spill.stats().dropped), (2 * CHUNK_BYTES, 0));
    assert!(spill.stats().bytes <= 10 * MIB);
}

#[test]
fn what_cannot_be_told_apart_or_has_no_content_is_not_kept() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let no_etag = spill.object(&Key::from("a"), &ETag::from(""), PIECE_BYTES);
    assert_eq!((fill(&no_etag, "a", 0..PIECE_BYTES), check(&no_etag, "a", 0..PIECE_BYTES)), (0, 0));
    let empty = object(&spill, "b", 0);
    assert_eq!((empty.add(0, &[]), empty.is_whole(), empty.verify()), (Added::default(), false, false));
    assert!(empty.whole().is_none() && files(disk.path(), "map").is_empty());
}

#[test]
fn the_next_process_finds_everything_and_adds_after_its_scan() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(64));
    for key in ["a", "b", "c"] {
        assert_eq!(fill(&object(&spill, key, 9 * MIB), key, 0..9 * MIB), 9 * MIB);
    }
    let before = spill.stats().bytes;
    drop(spill);

    let spill = open(disk.path(), max_mib(64));
    assert_eq!(check(&object(&spill, "a", 9 * MIB), "a", 0..9 * MIB), 9 * MIB, "hits need no scan");
    assert_eq!(fill(&object(&spill, "d", MIB), "d", 0..MIB), 0, "nothing is added before the scan");
    spill.scan();
    assert_eq!((spill.stats().objects, spill.stats().bytes), (3, before));
    for key in ["a", "b", "c"] {
        let it = object(&spill, key, 9 * MIB);
        assert!(it.is_whole());
        assert_eq!(check(&it, key, 0..9 * MIB), 9 * MIB);
    }
    assert_eq!(fill(&object(&spill, "d", MIB), "d", 0..MIB), MIB);
    assert_eq!(spill.stats().damaged, 0);
}

#[test]
fn objects_differ_by_endpoint_bucket_key_etag_and_size() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    fill(&object(&spill, "a", MIB), "a", 0..MIB);
    let other = |endpoint: &str, bucket: &str| {
        Spill::open(disk.path(), Bounds::default(), Identity { endpoint: endpoint.into(), bucket: bucket.into() }).unwrap()
    };
    for spill in [other("http://127.0.0.1:9000", "other"), other("http://other", "bucket"), other("http://127.0.0.1:9000b", "ucket")] {
        assert_eq!(check(&object(&spill, "a", MIB), "a", 0..MIB), 0);
    }
    assert_eq!(check(&object(&spill, "b", MIB), "a", 0..MIB), 0);
    assert_eq!(check(&object(&spill, "a", MIB + 1), "a", 0..MIB), 0);
    assert_eq!(check(&spill.object(&Key::from("a"), &ETag::from("\"2\""), MIB), "a", 0..MIB), 0);
    assert_eq!(check(&object(&spill, "a", MIB), "a", 0..MIB), MIB);
}

#[test]
fn a_new_version_drops_the_old_one_and_what_is_forgotten_is_gone() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let old = object(&spill, "a", 2 * MIB);
    fill(&old, "a", 0..2 * MIB);
    fill(&object(&spill, "b", MIB), "b", 0..MIB);
    let new = spill.object(&Key::from("a"), &ETag::from("\"2\""), MIB);
    assert_eq!(fill(&new, "new", 0..MIB), MIB);
    assert_eq!((check(&old, "a", 0..MIB), check(&new, "new", 0..MIB), spill.stats().objects), (0, MIB, 2));

    spill.drop_others(&Key::from("a"), &ETag::from("\"2\""));
    assert_eq!(check(&new, "new", 0..MIB), MIB);
    spill.drop_others(&Key::from("a"), &ETag::from("\"3\""));
    assert_eq!(check(&new, "new", 0..MIB), 0);
    assert!(spill.forget(&Key::from("b")) >= MIB);
    assert_eq!((check(&object(&spill, "b", MIB), "b", 0..MIB), spill.forget(&Key::from("b"))), (0, 0));
    assert_eq!((files(disk.path(), "data").len(), spill.stats().objects), (0, 0));
    assert!(spill.stats().bytes <= 4 * 4096 * 2, "only directories are left: {}", spill.stats().bytes);
}

fn flip(file: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_flipped_bit_is_a_miss_of_its_piece_and_the_piece_can_be_added_again() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let it = object(&spill, "a", 5 * MIB);
    fill(&it, "a", 0..5 * MIB);
    flip(&files(disk.path(), "data")[0], 3 * PIECE_BYTES + 1000);
    assert_eq!(check(&it, "a", 0..5 * MIB), 3 * PIECE_BYTES);
    assert_eq!(it.present(&(0..5 * MIB)), [0..3 * PIECE_BYTES, 4 * PIECE_BYTES..5 * MIB]);
    assert_eq!((check(&it, "a", 3 * PIECE_BYTES..5 * MIB), check(&it, "a", 4 * PIECE_BYTES..5 * MIB)), (0, 5 * MIB - 4 * PIECE_BYTES));
    assert_eq!(spill.stats().damaged, 1);
    let again = it.add(0, &content("a", 0..5 * MIB));
    assert_eq!(again, Added { kept: PIECE_BYTES, present: 5 * MIB - PIECE_BYTES, dropped: 0 });
    assert_eq!(check(&it, "a", 0..5 * MIB), 5 * MIB);
    flip(&files(disk.path(), "data")[0], 5 * MIB - 1);
    assert_eq!(check(&it, "a", 5 * MIB - 10..5 * MIB), 0, "also where only a part of the piece is read");
    assert_eq!(spill.stats().damaged, 2);
}

#[test]
fn damaged_slots_headers_and_lengths_are_misses() {
    for (ending, damage) in [
        ("map", (|file| flip(file, 3)) as fn(&Path)),
        ("map", |file| flip(file, 70)),
        ("map", |file| fs::File::options().write(true).open(file).unwrap().set_len(0).unwrap()),
        ("map", |file| fs::File::options().write(true).open(file).unwrap().set_len(100).unwrap()),
        ("map", |file| fs::write(file, "something else").unwrap()),
        ("data", |file| fs::File::options().write(true).open(file).unwrap().set_len(0).unwrap()),
        ("data", |file| fs::remove_file(file).unwrap()),
        ("map", |file| fs::remove_file(file).unwrap()),
    ] {
        let disk = tempfile::tempdir().unwrap();
        let spill = open(disk.path(), Bounds::default());
        fill(&object(&spill, "a", MIB), "a", 0..MIB);
        damage(&files(disk.path(), ending)[0]);
        drop(spill);
        let spill = open(disk.path(), Bounds::default());
        assert_eq!(check(&object(&spill, "a", MIB), "a", 0..MIB), 0);
        spill.scan();
        let it = object(&spill, "a", MIB);
        assert_eq!((check(&it, "a", 0..MIB), fill(&it, "a", 0..MIB), check(&it, "a", 0..MIB)), (0, MIB, MIB), "{ending}");
    }
}

#[test]
fn a_truncated_map_loses_the_pieces_whose_slots_are_gone() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let it = object(&spill, "a", MIB);
    fill(&it, "a", 0..MIB);
    let map = &files(disk.path(), "map")[0];
    let len = fs::metadata(map).unwrap().len();
    // Half of a slot is left of the sixth piece.
    fs::File::options().write(true).open(map).unwrap().set_len(len - 2 * 16 - 8).unwrap();
    assert_eq!((check(&it, "a", 0..MIB), spill.stats().damaged), (5 * PIECE_BYTES, 0));
}

#[test]
fn the_scan_removes_what_is_of_no_use_and_nothing_else() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let it = object(&spill, "a", 10 * CHUNK_BYTES);
    fill(&it, "a", 0..MIB);
    let (data, chunks) = (files(disk.path(), "data")[0].clone(), disk.path().join("chunks"));
    let fan = data.parent().unwrap();
    // What a killed process wrote without its slots, beside and far behind what is there.
    let file = fs::File::options().write(true).open(&data).unwrap();
    file.write_all_at(&vec![1; MIB as usize], 2 * MIB).unwrap();
    file.write_all_at(&vec![1; MIB as usize], 8 * CHUNK_BYTES).unwrap();
    fs::write(fan.join("notes.txt"), "not ours").unwrap();
    fs::write(chunks.join("notes.txt"), "not ours").unwrap();
    fs::write(fan.join("ffffffffffffffff-0000000000000000.data"), vec![1; 9000]).unwrap();
    let orphan = fs::read_dir(&chunks).unwrap().flatten().find(|entry| entry.path().is_dir()).unwrap().path();
    let orphan = orphan.join(format!("{}00000000000000-0000000000000000.data", orphan.file_name().unwrap().to_str().unwrap()));
    fs::write(&orphan, vec![1; 9000]).unwrap();
    fs::create_dir(fan.join("directory")).unwrap();
    fs::write(disk.path().join("beside"), "not below chunks").unwrap();
    spill.scan();
    assert_eq!((files(disk.path(), "data"), files(disk.path(), "txt").len()), (vec![data.clone()], 0));
    assert!(!chunks.join("notes.txt").exists() && fan.join("directory").exists() && disk.path().join("beside").exists());
    assert!(it.bytes_on_disk() < MIB + 70_000, "{}", it.bytes_on_disk());
    assert_eq!(check(&it, "a", 0..3 * MIB), MIB);
}

#[test]
fn a_directory_that_is_removed_while_it_is_open_is_a_miss_and_comes_back() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(64));
    let it = object(&spill, "a", 5 * MIB);
    fill(&it, "a", 0..MIB);
    for entry in fs::read_dir(disk.path()).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    assert_eq!((check(&it, "a", 0..MIB), fill(&it, "a", MIB..2 * MIB), it.present(&(0..5 * MIB))), (0, 0, vec![]));
    spill.on_time(std::time::Instant::now());
    assert_eq!((fill(&it, "a", 0..MIB), check(&it, "a", 0..MIB)), (MIB, MIB));

    fs::remove_dir_all(disk.path()).unwrap();
    spill.on_time(std::time::Instant::now());
    assert_eq!((check(&it, "a", 0..MIB), fill(&it, "a", 0..MIB)), (0, 0));
    assert!(!disk.path().exists(), "what is not there may be a disk that is not mounted");
    fs::create_dir(disk.path()).unwrap();
    spill.on_time(std::time::Instant::now());
    assert_eq!((fill(&it, "a", 0..MIB), check(&it, "a", 0..MIB)), (MIB, MIB));
}

#[test]
fn what_was_removed_by_hand_is_not_counted_for_ever() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(8));
    fill(&object(&spill, "a", 6 * MIB), "a", 0..6 * MIB);
    for file in ["data", "map"].into_iter().flat_map(|ending| files(disk.path(), ending)) {
        fs::remove_file(file).unwrap();
    }
    let it = object(&spill, "b", 4 * MIB);
    assert_eq!(fill(&it, "b", 0..4 * MIB), 0, "the ledger knows nothing of it yet");
    spill.on_time(std::time::Instant::now());
    assert_eq!(fill(&it, "b", 0..4 * MIB), 4 * MIB);
}

#[test]
fn a_whole_object_is_handed_out_when_it_was_verified_and_is_as_it_was_then() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let it = object(&spill, "a", 9 * MIB);
    fill(&it, "a", 0..8 * MIB);
    assert!(!it.verify() && it.whole().is_none());
    fill(&it, "a", 8 * MIB..9 * MIB);
    assert!(it.whole().is_none(), "nobody verified it");
    assert!(it.verify());
    let whole = it.whole().unwrap();
    let mut bytes = vec![0; 9 * PIECE];
    whole.file().read_exact_at(&mut bytes, MIB).unwrap();
    assert!(bytes == content("a", MIB..MIB + 9 * PIECE_BYTES) && whole.size() == 9 * MIB);
    drop(whole);
    flip(&files(disk.path(), "data")[0], 100);
    assert!(it.whole().is_none() && !it.verify() && it.whole().is_none());
}

#[test]
fn thousands_of_open_objects_leave_descriptors_for_others() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(1024), ..before }).unwrap();
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), Bounds::default());
    let open_files = || {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(disk.path()))).count()
    };
    let all: Vec<_> = (0..700).map(|n| (n.to_string(), object(&spill, &n.to_string(), 5000))).collect();
    for (key, it) in &all {
        assert_eq!(fill(it, key, 0..5000), 5000);
        assert!(open_files() <= 1024 / 4 + 8, "{}", open_files());
    }
    for (key, it) in &all {
        assert_eq!(check(it, key, 0..5000), 5000);
    }
    assert!(open_files() <= 1024 / 4 + 8, "{}", open_files());
    // The kernel's share is smaller, and never in the way of readers.
    let passed = all.iter().filter_map(|(_, it)| it.verify().then(|| it.whole()).flatten()).collect::<Vec<_>>();
    assert!(!passed.is_empty() && passed.len() <= 1024 / 16);
    assert!(all.iter().all(|(key, it)| check(it, key, 0..5000) == 5000));
}

/// The kernel opens the file anew for who reads or maps it: here that is a plain open.
#[test]
fn what_was_mapped_stays_as_it_was_after_it_was_closed_whatever_takes_its_room() {
    let disk = tempfile::tempdir().unwrap();
    let spill = open(disk.path(), max_mib(16));
    let it = object(&spill, "a", 9 * MIB);
    let pass = || {
        fill(&it, "a", 0..9 * MIB);
        assert!(it.verify());
        let whole = it.whole().unwrap();
        fs::File::open(&files(disk.path(), "data")[0]).inspect(|_| drop(whole)).unwrap()
    };
    let is_as_it_was = |mapped: &fs::File| {
        let mut bytes = vec![0; 9 * MIB as usize];
        mapped.read_exact_at(&mut bytes, 0).unwrap();
        bytes == content("a", 0..9 * MIB)
    };
    // Read again and again, so that it is worth more than what is there.
    let other = object(&spill, "b", 12 * MIB);
    let press = || {
        for _ in 0..10 {
            fill(&other, "b", 0..12 * MIB);
            check(&other, "b", 0..12 * MIB);
        }
    };
    let mapped = pass();
    press();
    assert!(is_as_it_was(&mapped), "it was evicted in place");
    assert!(it.is_whole(), "its room would not have been free");
    assert!(spill.forget(&Key::from("a")) >= 9 * MIB && is_as_it_was(&mapped), "it was cut");
    assert_eq!(other.add(0, &content("b", 0..12 * MIB)).dropped, 0, "it is still counted");
    // And as ever when nobody has it any more.
    spill.forget(&Key::from("b"));
    drop((mapped, pass()));
    press();
    assert!(!it.is_whole(), "it is spared for ever");
}

#[test]
fn a_directory_of_others_is_refused() {
    let disk = tempfile::tempdir().unwrap();
    fs::create_dir(disk.path().join("chunks")).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(disk.path().join("chunks"), fs::Permissions::from_mode(0o755)).unwrap();
    let error = Spill::open(disk.path(), Bounds::default(), identity()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
}
