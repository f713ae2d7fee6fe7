//! The real reader with a real disk behind it, over a simulated store: what is fetched, what is kept, and what is read from the disk.
//! On a paused clock; the disk is a temporary directory.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use windlass::admin::{InnerPath, Tally, Warming, warm};
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::reader::{Options, ReadMode, Reader, WarmError};
use windlass::spill::{Bounds, Identity, Spill};
use windlass::store::memory::{Fault, Memory, Rule};
use windlass::store::{ETag, ErrorKind, ObjectMeta, Op};
use windlass::units::ByteSize;
use windlass::vfs::{self, Inode, Names};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4 * MIB;
const PIECE: u64 = 128 << 10;

/// One process.
struct Process {
    store: Memory,
    metrics: Arc<Metrics>,
    reader: Reader,
    spill: Spill,
}

fn process(store: &Memory, disk: &Path, mode: ReadMode, memory: ByteSize, bounds: Bounds) -> Process {
    process_with(store, disk, Options { mode, ..Options::default() }, memory, bounds)
}

fn process_with(store: &Memory, disk: &Path, options: Options, memory: ByteSize, bounds: Bounds) -> Process {
    let identity = Identity { endpoint: "memory".into(), bucket: "bucket".into() };
    let spill = Spill::open(disk, bounds, identity).expect("the directory can be used");
    spill.scan();
    let metrics = Arc::new(Metrics::default());
    let budget = Budget::new(&budget::Options { memory_limit: Some(memory) });
    let deadline = Duration::from_secs(60);
    let reader = Reader::with_spill(Arc::new(store.clone()), budget, metrics.clone(), options, deadline, spill.clone());
    Process { store: store.clone(), metrics, reader, spill }
}

fn cached(store: &Memory, disk: &Path) -> Process {
    process(store, disk, ReadMode::Cached, ByteSize::gib(1), Bounds::default())
}

impl Process {
    async fn read(&self, key: &str, range: Range<u64>, step: u64) {
        let handle = self.reader.open(&self.store.meta(key).expect("it is there"));
        let synthetic = self.store.synthetic(key).expect("it is made up");
        for offset in range.clone().step_by(step as usize) {
            let len = step.min(range.end - offset);
            let data = handle.read(1, offset, len as usize).await.expect("it can be read");
            let mut at = offset;
            for slice in data.slices() {
                assert!(synthetic.matches(at, slice), "wrong bytes of {key} at {at}");
                at += slice.len() as u64;
            }
            assert_eq!(at, offset + len);
        }
    }

    async fn read_all(&self, key: &str) {
        let size = self.store.meta(key).expect("it is there").size;
        self.read(key, 0..size, MIB).await;
        self.settle().await;
    }

    /// Whether all of an object is on the disk, and good.
    fn holds(&self, key: &str) -> bool {
        let meta = self.store.meta(key).expect("it is there");
        let object = self.spill.object(&meta.key, &meta.etag, meta.size);
        object.is_whole() && object.verify()
    }

    /// Waits until what was fetched is on the disk or left out.
    async fn settle(&self) {
        let seen = || (self.metrics.spill_written_bytes.get(), self.metrics.spill_skipped_bytes.get());
        let mut before = (u64::MAX, 0);
        while seen() != before {
            before = seen();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Bytes asked of the store since the last time.
    fn fetched(&self) -> u64 {
        let requests = self.store.requests().into_iter().filter(|request| request.op == Op::Get);
        let bytes = requests.filter_map(|request| request.range).map(|range| range.end - range.start).sum();
        self.store.reset_log();
        bytes
    }
}

fn data_files(disk: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut open = vec![disk.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("it can be read") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "data") {
                all.push(path);
            }
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn what_was_read_once_is_not_asked_for_again_even_by_the_next_process() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("large", 50 * MIB + 12_345);
    store.put_synthetic("small", 100_000);
    let first = cached(&store, disk.path());
    first.read_all("large").await;
    first.read_all("small").await;
    assert_eq!(first.fetched(), 50 * MIB + 12_345 + 100_000);
    assert_eq!(first.metrics.spill_written_bytes.get(), 50 * MIB + 12_345 + 100_000);
    drop(first);
    let second = cached(&store, disk.path());
    second.read_all("large").await;
    second.read_all("small").await;
    assert_eq!((second.fetched(), second.metrics.spill_read_bytes.get()), (0, 50 * MIB + 12_345 + 100_000));
    // From the middle, in small steps.
    second.read("large", 21 * MIB + 4096..30 * MIB, 4096).await;
    assert_eq!(second.fetched(), 0);
}

#[tokio::test(start_paused = true)]
async fn random_reads_leave_their_pieces_and_a_later_read_fetches_only_what_is_between() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 128 * CHUNK);
    let first = cached(&store, disk.path());
    let handle = first.reader.open(&store.meta("k").unwrap());
    // Too few of its chunks for all of it to be fetched.
    let places: Vec<u64> = (0..16).map(|n| (n * 7 % 16) * 8 * CHUNK + 5 * PIECE).collect();
    for &offset in &places {
        handle.read(1, offset, 4096).await.unwrap();
    }
    first.settle().await;
    let pieces = first.fetched();
    assert!(pieces <= 16 * 2 * PIECE, "{pieces}");
    drop((handle, first));
    let second = cached(&store, disk.path());
    second.read_all("k").await;
    assert_eq!(second.fetched(), 128 * CHUNK - pieces);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_piece_is_fetched_again_and_nothing_else() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 4 * CHUNK);
    cached(&store, disk.path()).read_all("k").await;
    store.reset_log();
    let files = data_files(disk.path());
    let file = fs::File::options().write(true).open(&files[0]).unwrap();
    file.write_all_at(b"not what it was", CHUNK + 3 * PIECE + 100).unwrap();
    let process = cached(&store, disk.path());
    process.read_all("k").await;
    assert_eq!(process.fetched(), PIECE);
    process.read_all("k").await;
    assert_eq!(process.fetched(), 0, "it was not put right");
}

#[tokio::test(start_paused = true)]
async fn hybrid_keeps_so_much_of_an_object_and_reads_the_rest_direct() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("model", 16 * CHUNK);
    store.put_synthetic("config", 3 * MIB);
    let mode = ReadMode::Hybrid(ByteSize::mib(20));
    let first = process(&store, disk.path(), mode, ByteSize::gib(1), Bounds::default());
    first.read_all("config").await;
    first.read_all("model").await;
    let kept = first.metrics.spill_written_bytes.get() - 3 * MIB;
    assert!((20 * MIB..20 * MIB + CHUNK).contains(&kept), "{kept}");
    first.fetched();
    first.read_all("model").await;
    assert_eq!(first.fetched(), 16 * CHUNK - kept, "what is on the disk was fetched again");
    assert_eq!(first.metrics.spill_written_bytes.get() - 3 * MIB, kept);
    drop(first);
    let second = process(&store, disk.path(), mode, ByteSize::gib(1), Bounds::default());
    second.read_all("model").await;
    second.read_all("config").await;
    assert_eq!((second.fetched(), second.metrics.spill_written_bytes.get()), (16 * CHUNK - kept, 0));
}

#[tokio::test(start_paused = true)]
async fn what_the_disk_cannot_take_in_time_is_left_out_and_no_reader_waits() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 32 * CHUNK);
    // A quarter of it may wait to be written.
    let first = process(&store, disk.path(), ReadMode::Cached, ByteSize::mib(32), Bounds::default());
    first.read_all("k").await;
    let (written, skipped) = (first.metrics.spill_written_bytes.get(), first.metrics.spill_skipped_bytes.get());
    assert_eq!(written + skipped, 32 * CHUNK);
    first.fetched();
    drop(first);
    let second = cached(&store, disk.path());
    second.read_all("k").await;
    assert_eq!(second.fetched(), skipped);
}

#[tokio::test(start_paused = true)]
async fn a_new_version_is_read_and_the_old_one_leaves_the_disk() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 4 * CHUNK);
    let process = cached(&store, disk.path());
    process.read_all("k").await;
    store.put_synthetic("k", 3 * CHUNK + 1);
    process.read_all("k").await;
    process.fetched();
    process.read_all("k").await;
    assert_eq!(process.fetched(), 0);
    assert_eq!(data_files(disk.path()).len(), 1, "the old version is still there");
}

#[tokio::test(start_paused = true)]
async fn spill_max_holds_and_readers_go_on() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    for n in 0..8 {
        store.put_synthetic(format!("k{n}"), 3 * CHUNK);
    }
    let bounds = Bounds { max: ByteSize::mib(40), ..Bounds::default() };
    let process = process(&store, disk.path(), ReadMode::Cached, ByteSize::gib(1), bounds);
    for n in 0..8 {
        process.read_all(&format!("k{n}")).await;
        assert!(process.spill.stats().bytes <= 40 * MIB, "{:?}", process.spill.stats());
    }
    process.fetched();
    process.read_all("k7").await;
    assert_eq!(process.fetched(), 0, "what was read last is not there");
}

#[tokio::test(start_paused = true)]
async fn warm_brings_what_is_missing_and_only_that() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 8 * CHUNK + 77);
    let process = process(&store, disk.path(), ReadMode::Hybrid(ByteSize::mib(1)), ByteSize::mib(64), Bounds::default());
    process.read("k", 0..CHUNK, MIB).await;
    process.settle().await;
    let there = process.metrics.spill_written_bytes.get();
    process.fetched();
    let meta = store.meta("k").unwrap();
    let warmed = process.reader.warm(&meta, &|_| {}).await.unwrap();
    assert_eq!((warmed.brought_bytes, warmed.there_bytes), (8 * CHUNK + 77 - there, there));
    process.fetched();
    let again = process.reader.warm(&meta, &|_| {}).await.unwrap();
    assert_eq!((again.brought_bytes, again.there_bytes, process.fetched()), (0, 8 * CHUNK + 77, 0));
    process.read_all("k").await;
    assert_eq!(process.fetched(), 0);
}

#[tokio::test(start_paused = true)]
async fn warm_says_when_there_is_no_room() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 8 * CHUNK);
    let bounds = Bounds { ensure_free: ByteSize::gib(1 << 20), ..Bounds::default() };
    let process = process(&store, disk.path(), ReadMode::Cached, ByteSize::gib(1), bounds);
    let refused = process.reader.warm(&store.meta("k").unwrap(), &|_| {}).await;
    assert!(matches!(refused, Err(WarmError::NoRoom)), "{refused:?}");
    // Readers do not notice.
    process.read_all("k").await;
}

#[tokio::test(start_paused = true)]
async fn warm_says_what_can_never_be_kept() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", CHUNK);
    let process = cached(&store, disk.path());
    let nameless = ObjectMeta { etag: ETag::from(""), ..store.meta("k").unwrap() };
    let refused = process.reader.warm(&nameless, &|_| {}).await;
    assert!(matches!(refused, Err(WarmError::NoEtag)), "{refused:?}");
    assert_eq!(process.fetched(), 0);
}

fn names(store: &Memory, options: vfs::Options) -> Arc<Names> {
    Names::new(Arc::new(store.clone()), options)
}

fn paths(of: &[&str]) -> Vec<InnerPath> {
    of.iter().map(|path| InnerPath::from(path.as_bytes())).collect()
}

const ALL_OF_IT: Warming = Warming { metadata_only: false, max_bytes: None, parallel: 8 };

#[tokio::test(start_paused = true)]
async fn a_tree_is_warmed_beside_its_reader_and_each_byte_fetched_once() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    for n in 0..20 {
        store.put_synthetic(format!("d/{}/{n}", n % 3), CHUNK + n);
    }
    store.put_synthetic("d/large", 8 * CHUNK);
    store.put_synthetic("elsewhere", CHUNK);
    let total = 8 * CHUNK + (0..20).map(|n| CHUNK + n).sum::<u64>();
    let process = cached(&store, disk.path());
    let (names, tally) = (names(&store, vfs::Options::default()), Arc::new(Tally::default()));
    let warming = warm(&names, &process.reader, paths(&["d"]), ALL_OF_IT, &tally);
    let (warmed, ()) = tokio::join!(warming, process.read("d/large", 0..8 * CHUNK, MIB));
    let warmed = warmed.unwrap();
    assert_eq!((warmed.progress.objects, warmed.progress.bytes, warmed.progress.failed_objects, warmed.is_full), (21, total, 0, false));
    assert_eq!((warmed.progress.found_objects, warmed.progress.found_bytes), (21, total));
    assert_eq!(process.fetched(), total);
    // One for each object of more than a chunk at most: the listing does not tell the sum that its content is compared with.
    assert!(store.count(Op::Head) <= 20, "{}", store.count(Op::Head));
    let again =
        warm(&names, &process.reader, paths(&["d/0", "d/1", "d/2", "d/large"]), ALL_OF_IT, &Arc::new(Tally::default())).await.unwrap();
    assert_eq!((again.progress.there_bytes, process.fetched()), (total, 0));
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_named_and_the_rest_is_warmed_unless_the_disk_is_full() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    for n in 0..40 {
        store.put_synthetic(format!("d/{n:02}"), PIECE);
    }
    let process = cached(&store, disk.path());
    let names = names(&store, vfs::Options::default());
    for n in 0..12 {
        store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::Get).key(format!("d/{n:02}")));
    }
    let warmed = warm(&names, &process.reader, paths(&["d", "absent"]), ALL_OF_IT, &Arc::new(Tally::default())).await.unwrap();
    assert_eq!((warmed.progress.objects, warmed.progress.failed_objects, warmed.failures.len()), (28, 13, 10));
    // Ten of the thirteen are named; which ones, those decide that fail first among eight at a time.
    let mut failing: BTreeSet<_> = (0..12).map(|n| format!("d/{n:02}: planned fault")).collect();
    failing.insert("absent: no such file or directory".to_owned());
    let named: BTreeSet<_> = warmed.failures.iter().cloned().collect();
    assert!(named.len() == 10 && named.is_subset(&failing), "{:?}", warmed.failures);
    let both = warm(&names, &process.reader, paths(&["d/00", "absent"]), ALL_OF_IT, &Arc::new(Tally::default())).await.unwrap();
    let told = |words: &str| both.failures.iter().any(|failure| failure == words);
    assert!(told("absent: no such file or directory") && told("d/00: planned fault"), "{:?}", both.failures);
    let bound = Warming { max_bytes: Some(5 * PIECE + 1), ..ALL_OF_IT };
    let some = warm(&names, &process.reader, paths(&["d"]), bound, &Arc::new(Tally::default())).await.unwrap();
    assert_eq!((some.progress.found_objects, some.is_full), (5, true));

    let full = tempfile::tempdir().unwrap();
    let bounds = Bounds { ensure_free: ByteSize::gib(1 << 20), ..Bounds::default() };
    let no_room = self::process(&store, full.path(), ReadMode::Cached, ByteSize::gib(1), bounds);
    store.clear_faults();
    store.reset_log();
    let one = Warming { parallel: 1, ..ALL_OF_IT };
    let refused = warm(&names, &no_room.reader, paths(&["d"]), one, &Arc::new(Tally::default())).await.unwrap_err();
    assert!(refused.starts_with("d/00: the disk takes no more"), "{refused}");
    assert_eq!(no_room.fetched(), PIECE, "it does not go on");
}

#[tokio::test(start_paused = true)]
async fn attributes_that_no_listing_tells_are_asked_for_once() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    for n in 0..30 {
        store.put_synthetic(format!("d/{n}"), PIECE);
    }
    let process = cached(&store, disk.path());
    let names = names(&store, vfs::Options { readdir_optimize: false, ..vfs::Options::default() });
    let how = Warming { metadata_only: true, ..ALL_OF_IT };
    let warmed = warm(&names, &process.reader, paths(&[""]), how, &Arc::new(Tally::default())).await.unwrap();
    assert_eq!((warmed.progress.objects, store.count(Op::Head), process.fetched()), (30, 30, 0));
    let d = names.lookup(Inode::ROOT, b"d").await.unwrap().attr.ino;
    store.reset_log();
    for n in 0..30 {
        names.lookup(d, n.to_string().as_bytes()).await.unwrap();
    }
    assert_eq!((store.count(Op::Head), store.count(Op::List)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn fifty_readers_of_a_cold_object_fetch_it_once() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 32 * CHUNK);
    let process = cached(&store, disk.path());
    futures::future::join_all((0..50).map(|_| process.read("k", 0..32 * CHUNK, MIB))).await;
    let fetched = process.fetched();
    assert!(fetched <= 32 * CHUNK * 105 / 100, "{fetched}");
}

/// Sizes around those of pieces and chunks, and chunk sizes that are no multiple of either.
#[tokio::test(start_paused = true)]
async fn objects_and_chunks_of_any_size_come_to_be_on_the_disk_to_the_last_byte() {
    let sizes = [1, PIECE - 1, PIECE, PIECE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 12_345];
    for chunk_size in [MIB, 1_500_000, 3 * MIB, CHUNK - 1, CHUNK + 1, 32 * MIB] {
        for (size, warms) in sizes.into_iter().flat_map(|size| [(size, false), (size, true)]) {
            let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
            store.put_synthetic("k", size);
            let start = || {
                let options = Options { mode: ReadMode::Cached, chunk_size: ByteSize::bytes(chunk_size), ..Options::default() };
                process_with(&store, disk.path(), options, ByteSize::mib(256), Bounds::default())
            };
            let first = start();
            if warms {
                let warmed = first.reader.warm(&store.meta("k").unwrap(), &|_| {}).await.unwrap();
                // What was fetched ahead may be there by itself.
                assert_eq!(warmed.brought_bytes + warmed.there_bytes, size);
            } else {
                first.read_all("k").await;
            }
            // Where chunks are no multiple of pieces, two of them share one, and the disk may not have it yet when one goes from memory: seldom
            // one chunk is fetched again.
            let again = if chunk_size.is_multiple_of(PIECE) { 0 } else { chunk_size.next_multiple_of(PIECE) };
            let fetched = first.fetched();
            assert!((size..=size + again).contains(&fetched), "{fetched} bytes for {size} in chunks of {chunk_size}");
            assert!(first.holds("k"), "an object of {size}, chunks of {chunk_size}, warm: {warms}");
            drop(first);
            let second = start();
            second.read("k", 0..size, 100_000).await;
            assert_eq!(second.fetched(), 0, "an object of {size}, chunks of {chunk_size}");
        }
    }
}

/// Where one stream meets what another has, or what was given up is asked for again, nothing is lost between.
#[tokio::test(start_paused = true)]
async fn readers_that_meet_at_odd_places_leave_no_gaps_on_the_disk() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 8 * CHUNK + 5);
    let process = cached(&store, disk.path());
    let part = 1_234_567;
    let parts: Vec<_> = (0..8 * CHUNK + 5).step_by(part).map(|start| start..(start + part as u64).min(8 * CHUNK + 5)).collect();
    futures::future::join_all(parts.into_iter().map(|part| process.read("k", part, 7_777))).await;
    process.settle().await;
    assert!(process.holds("k"));
}

#[tokio::test(start_paused = true)]
async fn what_warm_brings_and_cannot_keep_does_not_upset_the_count_of_a_hybrid_reader() {
    let (store, disk) = (Memory::default(), tempfile::tempdir().unwrap());
    store.put_synthetic("k", 8 * CHUNK);
    // Room for the half of it.
    let bounds = Bounds { max: ByteSize::mib(16), ..Bounds::default() };
    let process = process(&store, disk.path(), ReadMode::Hybrid(ByteSize::mib(24)), ByteSize::mib(64), bounds);
    let meta = store.meta("k").unwrap();
    let _open = process.reader.open(&meta);
    // A chunk is there already, and one finds no room beside what is read.
    process.read("k", 0..CHUNK, MIB).await;
    process.settle().await;
    let _ = process.reader.warm(&meta, &|_| {}).await;
    process.settle().await;
    process.spill.forget(&meta.key);
    let before = process.metrics.spill_written_bytes.get();
    process.read_all("k").await;
    let kept = process.metrics.spill_written_bytes.get() - before;
    assert!(kept >= 12 * MIB, "{kept} bytes were kept");
}
