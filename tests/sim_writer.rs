//! The real writer over a simulated store on tokio's paused clock: requests, bytes held and virtual time are exact.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::reader::{self, Reader};
use windlass::store::memory::{Bandwidth, Fault, Latency, Memory, Plan, Rule, Synthetic};
use windlass::store::{Condition, ErrorKind, Headers, Op};
use windlass::units::ByteSize;
use windlass::writer::{Allocate, Content, Limits, Options, WriteError, Writer, staging};

const MIB: u64 = 1 << 20;
const PART: u64 = 8 * MIB;
const FIRST_BYTE: Duration = Duration::from_millis(20);
/// One connection of the cloud that the field measures.
const PER_CONNECTION: u64 = 90_000_000;

struct Sim {
    store: Arc<Memory>,
    budget: Arc<Budget>,
    metrics: Arc<Metrics>,
    writer: Writer,
    disk: tempfile::TempDir,
}

fn cloud() -> Plan {
    Plan { first_byte: Latency::Fixed(FIRST_BYTE), bandwidth: Bandwidth { per_connection: Some(PER_CONNECTION), total: None }, seed: 1 }
}

fn sim(plan: Plan, limit: ByteSize, options: Options) -> Sim {
    let store = Arc::new(Memory::new(plan));
    store.set_least_part(options.limits.least_part);
    let budget = Budget::new(&budget::Options { memory_limit: Some(limit) });
    let metrics = Arc::new(Metrics::default());
    let disk = tempfile::tempdir().unwrap();
    let staging = staging::Options { dir: Some(disk.path().to_owned()), ..options.staging.clone() };
    let options = Options { staging, ..options };
    let writer = Writer::new(store.clone(), budget.clone(), metrics.clone(), options, "test");
    Sim { store, budget, metrics, writer, disk }
}

fn large(plan: Plan) -> Sim {
    sim(plan, ByteSize::gib(1), Options::default())
}

/// Parts of a kilobyte, so that little content has many.
fn tiny() -> Options {
    let limits = Limits { least_part: 1000, copied_part: 4000, ahead: 3000, kept: 2000, ..Limits::default() };
    Options { part_size: ByteSize::bytes(1000), limits, ..Options::default() }
}

fn small() -> Sim {
    sim(Plan::default(), ByteSize::mib(64), tiny())
}

fn bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    Synthetic::new(seed).fill(offset, &mut buf);
    buf
}

impl Sim {
    fn create(&self, key: &str) -> Arc<Content> {
        self.writer.create(key.into(), Headers::default())
    }

    fn edit(&self, key: &str) -> Arc<Content> {
        self.writer.edit(self.store.meta(key).unwrap(), Headers::default())
    }

    fn put(&self, key: &str, len: usize) -> Vec<u8> {
        let content = bytes(99, 0, len);
        self.store.put(key, content.clone());
        self.store.reset_log();
        content
    }

    fn stored(&self, key: &str) -> Vec<u8> {
        self.store.content(key).expect("there is an object").to_vec()
    }

    fn staged_files(&self) -> usize {
        std::fs::read_dir(self.disk.path().join("staging")).map_or(0, Iterator::count)
    }

    /// Everything that was begun has ended, and nothing is left of it.
    async fn assert_clean(&self) {
        self.writer.settle().await;
        assert_eq!(self.store.uploads(), []);
        assert_eq!(self.staged_files(), 0);
        assert_eq!(self.store.in_flight(), 0);
    }
}

/// Writes front to back as the kernel does, and says how often it had to wait.
async fn stream(content: &Content, seed: u64, range: std::ops::Range<u64>, block: usize) -> usize {
    let mut waited = 0;
    let mut at = range.start;
    while at < range.end {
        let data = bytes(seed, at, block.min((range.end - at) as usize));
        match content.try_write(at, &data, || {}) {
            Some(result) => result.unwrap(),
            None => {
                waited += 1;
                content.write(at, &data).await.unwrap();
            }
        }
        at += data.len() as u64;
    }
    waited
}

#[tokio::test(start_paused = true)]
async fn a_small_file_is_one_put_and_takes_little_memory() {
    let sim = large(cloud());
    let content = sim.create("small");
    assert!(content.is_dirty());
    assert_eq!(stream(&content, 1, 0..10_000, 4096).await, 0);
    assert_eq!((content.size(), sim.budget.leased_bytes()), (10_000, 16 << 10));
    let meta = content.commit(Condition::Absent).await.unwrap().unwrap();
    assert_eq!(Some(meta.etag), sim.store.meta("small").map(|meta| meta.etag));
    assert_eq!((meta.size, sim.stored("small")), (10_000, bytes(1, 0, 10_000)));
    assert_eq!((sim.store.count(Op::Put), sim.store.requests().len()), (1, 1));
    assert!(!content.is_dirty() && content.commit(Condition::Any).await.unwrap().is_none());
    drop(content);
    sim.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_file_is_an_object_too() {
    let sim = large(Plan::default());
    let content = sim.create("empty");
    assert_eq!(content.commit(Condition::Any).await.unwrap().unwrap().size, 0);
    assert!(sim.stored("empty").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_large_file_leaves_while_it_is_written() {
    let sim = sim(cloud(), ByteSize::mib(512), Options::default());
    let content = sim.create("large");
    let start = Instant::now();
    let size = 48 * PART;
    stream(&content, 1, 0..size, 1 << 20).await;
    content.commit(Condition::Any).await.unwrap();
    let elapsed = start.elapsed();
    assert_eq!(sim.store.count(Op::UploadPart) as u64, size / PART);
    assert_eq!((sim.store.count(Op::CreateUpload), sim.store.count(Op::CompleteUpload), sim.store.count(Op::Put)), (1, 1, 0));
    // 16 at a time, which is what the share of the memory holds, too, and a round trip each to begin and to end; timers go off at whole milliseconds.
    let part = FIRST_BYTE.as_secs_f64() + PART as f64 / PER_CONNECTION as f64;
    let optimum = Duration::from_secs_f64(48.0 / 16.0 * part) + 2 * FIRST_BYTE;
    assert!(elapsed <= optimum + Duration::from_millis(10), "{elapsed:?} is more than {optimum:?}");
    assert!(sim.budget.usage().peak_bytes as u64 <= 128 * MIB, "{} bytes held", sim.budget.usage().peak_bytes);
    assert!(sim.stored("large") == bytes(1, 0, size as usize));
    drop(content);
    sim.assert_clean().await;
    assert_eq!(sim.budget.leased_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_writer_ahead_of_the_network_has_two_parts_more_than_are_sent_at_once_and_is_no_slower() {
    let sim = sim(cloud(), ByteSize::gib(1), Options { concurrency: Some(16), ..Options::default() });
    let content = sim.create("large");
    let (start, size, block) = (Instant::now(), 64 * PART, 1 << 20);
    let mut ahead = 0;
    while content.try_write(ahead, &bytes(1, ahead, block), || {}).is_some() {
        ahead += block as u64;
    }
    assert_eq!((ahead, sim.budget.leased_bytes() as u64), (18 * PART, 18 * PART));
    stream(&content, 1, ahead..size, block).await;
    content.commit(Condition::Any).await.unwrap();
    let part = FIRST_BYTE.as_secs_f64() + PART as f64 / PER_CONNECTION as f64;
    let optimum = Duration::from_secs_f64(64.0 / 16.0 * part) + 2 * FIRST_BYTE;
    assert!(start.elapsed() <= optimum + Duration::from_millis(10), "{:?} is more than {optimum:?}", start.elapsed());
    // With what is kept of sent parts in case it is wanted again.
    assert!(sim.budget.usage().peak_bytes as u64 <= 19 * PART + 64 * MIB, "{} bytes held", sim.budget.usage().peak_bytes);
    assert!(sim.stored("large") == bytes(1, 0, size as usize));
    drop(content);
    sim.assert_clean().await;
}

/// How long it takes until `parts` of a kilobyte, written by somebody who is faster than the network, are an object.
async fn time_of(sim: &Sim, parts: u64) -> Duration {
    let (start, content) = (Instant::now(), sim.create("large"));
    stream(&content, 1, 0..parts * 1000, 1000).await;
    content.commit(Condition::Any).await.unwrap();
    assert!(sim.stored("large") == bytes(1, 0, parts as usize * 1000));
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn connections_with_a_rate_of_their_own_become_more_until_there_are_as_many_as_may_be() {
    let plan = Plan { first_byte: Latency::Fixed(FIRST_BYTE), ..Plan::default() };
    let auto = sim(plan, ByteSize::mib(64), tiny());
    // 16 parts at once and 32, then 64; and a request before and after them.
    let rounds = 2 + (640 - 16 - 32u64).div_ceil(64) + 2;
    assert_eq!(time_of(&auto, 640).await, FIRST_BYTE * u32::try_from(rounds).unwrap());
    let fixed = sim(plan, ByteSize::mib(64), Options { concurrency: Some(16), ..tiny() });
    assert_eq!(time_of(&fixed, 640).await, FIRST_BYTE * (640 / 16 + 2));
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_for_a_place_on_a_long_way() {
    let plan = Plan { first_byte: Latency::Fixed(FIRST_BYTE), ..Plan::default() };
    for parts in 2..=16 {
        assert_eq!(time_of(&sim(plan, ByteSize::mib(64), tiny()), parts).await, FIRST_BYTE * 3, "{parts}");
    }
    // Nor where it is staged.
    let sim = sim(plan, ByteSize::mib(64), tiny());
    sim.put("a", 16_000);
    let content = sim.edit("a");
    for part in 0..16 {
        content.write(part * 1000 + 5, b"changed").await.unwrap();
    }
    content.commit(Condition::Any).await.unwrap();
    assert!(sim.store.max_in_flight() == 16, "{}", sim.store.max_in_flight());
}

#[tokio::test(start_paused = true)]
async fn on_a_path_that_is_full_no_more_parts_are_sent_at_once() {
    let plan = Plan { bandwidth: Bandwidth { per_connection: None, total: Some(1_000_000) }, ..Plan::default() };
    let held = async |options: Options| {
        let sim = sim(plan, ByteSize::mib(64), options);
        let time = time_of(&sim, 640).await;
        (time, sim.budget.usage().peak_bytes)
    };
    let (auto, fixed) = (held(tiny()).await, held(Options { concurrency: Some(16), ..tiny() }).await);
    assert_eq!(auto, fixed);
    // The smallest buffers there are.
    assert!(auto.1 <= 24 * (16 << 10), "{auto:?}");
}

#[tokio::test(start_paused = true)]
async fn a_part_whose_task_panics_is_an_error_of_the_commit_and_sent_again_by_the_next_one() {
    let sim = small();
    let content = sim.create("a");
    sim.store.fault(Rule::new(Fault::Lost).first(1).when(|op, _| if op == Op::UploadPart { panic!("as no store should") } else { false }));
    stream(&content, 1, 0..5500, 700).await;
    let error = content.commit(Condition::Any).await.unwrap_err();
    assert!(error.to_string().contains("a defect"), "{error}");
    sim.store.clear_faults();
    content.commit(Condition::Any).await.unwrap();
    assert_eq!(sim.stored("a"), bytes(1, 0, 5500));
    sim.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_received_is_sent_from_where_it_lies() {
    // The first part is a copy; of the others each block of pages is in the landing that it came in. With blocks that do not fit parts.
    for (block, landed) in [(1 << 20, 16 * MIB), ((1 << 20) - 4096, 18 * MIB)] {
        let sim = large(cloud());
        let content = sim.create("large");
        let mut landing = sim.writer.landing().unwrap();
        let (mut at, size) = (0, 3 * PART);
        while at < size {
            if landing.room() < 1 << 20 {
                landing = sim.writer.landing().unwrap();
            }
            let data = bytes(1, at, block.min((size - at) as usize));
            landing.spare()[..data.len()].copy_from_slice(&data);
            landing.on_received(data.len());
            content.try_write_received(at, &mut landing, || {}).expect("there is memory").unwrap();
            at += data.len() as u64;
        }
        drop(landing);
        assert_eq!(sim.budget.leased_bytes() as u64, PART + landed);
        assert!(content.read(PART - 10, 1 << 20).await.unwrap() == bytes(1, PART - 10, 1 << 20));
        content.commit(Condition::Any).await.unwrap();
        assert!(sim.stored("large") == bytes(1, 0, size as usize));
        drop(content);
        sim.assert_clean().await;
        assert_eq!(sim.budget.leased_bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_of_one_part_is_still_one_put() {
    let sim = large(Plan::default());
    for (key, size, puts) in [("whole", PART, 1), ("more", PART + 1, 0)] {
        sim.store.reset_log();
        let content = sim.create(key);
        stream(&content, 1, 0..size, 1 << 20).await;
        content.commit(Condition::Any).await.unwrap();
        assert_eq!((sim.store.count(Op::Put), sim.store.count(Op::UploadPart)), (puts, 2 - 2 * puts));
    }
}

#[tokio::test(start_paused = true)]
async fn writes_that_arrive_out_of_order_stay_a_stream() {
    let sim = large(cloud());
    let content = sim.create("shuffled");
    // Four requests of each 4 MiB, as the kernel makes them of direct writes, the last one first.
    for large in 0..16 {
        for piece in [3, 1, 0, 2] {
            let at = (large * 4 + piece) * MIB;
            stream(&content, 1, at..at + MIB, 1 << 20).await;
        }
    }
    content.commit(Condition::Any).await.unwrap();
    assert!(sim.stored("shuffled") == bytes(1, 0, 64 << 20));
    assert_eq!((sim.store.count(Op::UploadPart), sim.staged_files()), (8, 0));
}

#[tokio::test(start_paused = true)]
async fn a_hole_that_stays_is_zeros() {
    let sim = small();
    let content = sim.create("hole");
    content.write(0, b"begin").await.unwrap();
    content.write(2500, b"end").await.unwrap();
    content.truncate(3000).await.unwrap();
    let mut expected = vec![0; 3000];
    expected[..5].copy_from_slice(b"begin");
    expected[2500..2503].copy_from_slice(b"end");
    assert_eq!(content.read(0, 10_000).await.unwrap(), expected);
    content.commit(Condition::Any).await.unwrap();
    assert_eq!((sim.stored("hole"), sim.staged_files()), (expected, 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_written_is_read_before_and_after_the_commit() {
    let sim = small();
    let content = sim.create("a");
    stream(&content, 1, 0..5500, 700).await;
    for committed in [false, true] {
        for (at, len) in [(0, 10), (990, 20), (0, 5500), (5490, 100), (6000, 1)] {
            let end = (at + len).min(5500).max(at);
            assert_eq!(content.read(at, len as usize).await.unwrap(), bytes(1, at, (end - at) as usize), "{at} {committed}");
        }
        content.commit(Condition::Any).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_head_is_written_again_without_the_disk() {
    let sim = large(Plan::default());
    let content = sim.create("a");
    stream(&content, 1, 0..4 * PART, 1 << 20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    content.write(0, b"header").await.unwrap();
    content.write(100, b"header").await.unwrap();
    content.commit(Condition::Any).await.unwrap();
    let mut expected = bytes(1, 0, 4 * PART as usize);
    expected[..6].copy_from_slice(b"header");
    expected[100..106].copy_from_slice(b"header");
    assert!(sim.stored("a") == expected);
    assert_eq!((sim.store.count(Op::UploadPart), sim.staged_files()), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn a_small_file_goes_on_in_memory_after_each_commit() {
    let sim = large(Plan::default());
    let content = sim.create("log");
    let mut expected = Vec::new();
    for line in 0..20 {
        let data = bytes(line, 0, 1000);
        content.write(expected.len() as u64, &data).await.unwrap();
        expected.extend(data);
        // The condition is about others.
        content.commit(Condition::Absent).await.unwrap().unwrap();
        assert_eq!(sim.stored("log"), expected);
    }
    assert_eq!((sim.store.count(Op::Put), sim.store.requests().len(), sim.staged_files()), (20, 20, 0));
    sim.store.put("log", "by somebody else");
    content.write(0, b"x").await.unwrap();
    let error = content.commit(Condition::Absent).await.unwrap_err();
    assert!(matches!(error, WriteError::Store(error) if error.kind == ErrorKind::Replaced));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_writers_share_little_memory_and_all_finish() {
    let sim = sim(cloud(), ByteSize::mib(64), Options::default());
    let write = async |n: u64| {
        let content = sim.create(&format!("{n}"));
        // Most are small, some are larger than a part.
        let size = if n.is_multiple_of(100) { 20 * MIB + n } else { 100_000 + n };
        let mut at = 0;
        while at < size {
            let data = bytes(n, at, (size - at).min(128 << 10) as usize);
            content.write(at, &data).await.unwrap();
            at += data.len() as u64;
            tokio::task::yield_now().await;
        }
        content.commit(Condition::Any).await.unwrap();
        assert!(sim.stored(&format!("{n}")) == bytes(n, 0, size as usize));
    };
    join_all((0..1000).map(write)).await;
    sim.assert_clean().await;
    assert_eq!(sim.budget.leased_bytes(), 0);
    assert!(sim.budget.usage().peak_bytes as u64 <= 64 * MIB);
    // Nobody had to go through the disk.
    assert_eq!(sim.metrics.staged_bytes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn writers_never_hold_more_than_their_share() {
    let sim = sim(cloud(), ByteSize::mib(256), Options::default());
    let write = async |n: u64| {
        let content = sim.create(&format!("{n}"));
        stream(&content, n, 0..5 * PART, 1 << 20).await;
        content.commit(Condition::Any).await.unwrap();
    };
    join_all((0..8).map(write)).await;
    assert!(sim.budget.usage().peak_bytes as u64 <= 64 * MIB, "{}", sim.budget.usage().peak_bytes);
    assert_eq!(sim.metrics.staged_bytes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn files_that_nobody_writes_do_not_stop_those_that_are_written() {
    let sim = sim(cloud(), ByteSize::mib(64), Options::default());
    let idle: Vec<_> = (0..40).map(|n| sim.create(&format!("idle{n}"))).collect();
    for content in &idle {
        content.write(0, &bytes(1, 0, 1 << 20)).await.unwrap();
    }
    let content = sim.create("busy");
    stream(&content, 2, 0..4 * PART, 1 << 20).await;
    content.commit(Condition::Any).await.unwrap();
    for content in &idle {
        content.commit(Condition::Any).await.unwrap();
    }
    assert!(sim.stored("busy") == bytes(2, 0, 4 * PART as usize) && sim.stored("idle39") == bytes(1, 0, 1 << 20));
    drop((idle, content));
    sim.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_or_discarded_leaves_nothing() {
    let sim = large(cloud());
    let dropped = sim.create("dropped");
    stream(&dropped, 1, 0..3 * PART, 1 << 20).await;
    drop(dropped);
    let discarded = sim.create("discarded");
    stream(&discarded, 1, 0..3 * PART, 1 << 20).await;
    discarded.discard().await;
    assert!(!discarded.is_dirty());
    // It goes on locally.
    discarded.write(3 * PART, b"more").await.unwrap();
    discarded.write(10, b"here").await.unwrap();
    assert_eq!(discarded.read(3 * PART - 2, 6).await.unwrap()[2..], *b"more");
    assert_eq!(discarded.read(10, 4).await.unwrap()[..], *b"here");
    assert_eq!(discarded.commit(Condition::Any).await.unwrap(), None);
    drop(discarded);
    sim.assert_clean().await;
    assert_eq!(sim.store.keys(), []);
    assert_eq!(sim.budget.leased_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_edit_copies_what_stayed_and_sends_the_rest() {
    let limits = Limits { copied_part: 64 * MIB, ..Limits::default() };
    let sim = sim(cloud(), ByteSize::gib(1), Options { limits, ..Options::default() });
    sim.store.put_synthetic("a", 256 * MIB);
    sim.store.reset_log();
    let content = sim.edit("a");
    assert!(!content.is_dirty() && content.size() == 256 * MIB);
    content.write(128 * MIB + 5, b"changed").await.unwrap();
    content.write(256 * MIB, b"appended").await.unwrap();
    assert_eq!(sim.store.requests().len(), 0);
    assert_eq!(content.read(128 * MIB + 3, 20).await.unwrap()[2..9], *b"changed");
    content.commit(Condition::Any).await.unwrap().unwrap();
    // Two stretches before, the changed part, the rest of its stretch, one more stretch, the end.
    assert_eq!((sim.store.count(Op::CopyPart), sim.store.count(Op::UploadPart)), (4, 2));
    assert_eq!(sim.store.sent_bytes(), PART + 8);
    assert!(sim.budget.usage().peak_bytes as u64 <= 4 * PART);
    drop(content);
    sim.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_emptied_and_written_anew_is_a_stream() {
    let sim = large(Plan::default());
    sim.put("a", 100_000);
    let content = sim.edit("a");
    content.truncate(0).await.unwrap();
    stream(&content, 1, 0..3 * PART, 1 << 20).await;
    content.commit(Condition::Any).await.unwrap();
    assert!(sim.stored("a") == bytes(1, 0, 3 * PART as usize));
    assert_eq!((sim.store.count(Op::Get), sim.metrics.staged_bytes.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_does_not_copy_gets_everything() {
    let sim = small();
    let mut expected = sim.put("a", 9500);
    sim.store.fault(Rule::new(Fault::Error(ErrorKind::Invalid)).when(|op, _| matches!(op, Op::CopyPart | Op::Copy)));
    for round in 0..2 {
        let content = sim.edit("a");
        content.write(4200 + round, b"x").await.unwrap();
        expected[4200 + round as usize] = b'x';
        content.commit(Condition::Any).await.unwrap();
        assert_eq!(sim.stored("a"), expected);
        drop(content);
        sim.assert_clean().await;
        // It is asked once.
        sim.store.clear_faults();
        assert_eq!(sim.store.count(Op::CopyPart) > 0, round == 0);
        sim.store.reset_log();
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_replaced_is_not_mixed_with_the_edit() {
    let sim = small();
    sim.put("a", 9500);
    let content = sim.edit("a");
    content.write(10, b"x").await.unwrap();
    sim.put("a", 9600);
    for _ in 0..2 {
        assert!(matches!(content.commit(Condition::Any).await, Err(WriteError::Stale(_))));
        assert!(matches!(content.read(5000, 10).await, Err(WriteError::Stale(_))));
    }
    assert_eq!(content.read(10, 1).await.unwrap()[..], *b"x");
    assert_eq!(sim.stored("a").len(), 9600);
    drop(content);
    sim.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_the_error_of_that_write_alone() {
    let guarded = staging::Options { max: ByteSize::kib(4), ..staging::Options::default() };
    let sim = sim(Plan::default(), ByteSize::mib(64), Options { staging: guarded, ..tiny() });
    let mut expected = sim.put("a", 9500);
    let content = sim.edit("a");
    content.write(100, &[1; 3000]).await.unwrap();
    expected[100..3100].fill(1);
    let error = content.write(5000, &[1; 2000]).await.unwrap_err();
    assert!(matches!(&error, WriteError::Disk { source } if source.kind() == std::io::ErrorKind::StorageFull), "{error:?}");
    // Reads need no room, and a stream and a smaller write go on.
    let read = content.read(0, 9500).await.unwrap();
    assert_eq!(read.iter().zip(&expected).position(|(a, b)| a != b), None);
    let streamed = sim.create("b");
    stream(&streamed, 1, 0..20_000, 700).await;
    streamed.commit(Condition::Any).await.unwrap();
    content.write(5000, &[2; 500]).await.unwrap();
    expected[5000..5500].fill(2);
    // What is given back can be used again.
    content.allocate(100, 3000, Allocate::Punch).await.unwrap();
    expected[100..3100].fill(0);
    content.write(7000, &[3; 2000]).await.unwrap();
    expected[7000..9000].fill(3);
    content.commit(Condition::Any).await.unwrap();
    assert!(sim.stored("a") == expected && sim.stored("b") == bytes(1, 0, 20_000));
    let error = content.allocate(0, 1 << 20, Allocate::Extend).await.unwrap_err();
    assert!(matches!(&error, WriteError::Disk { source } if source.kind() == std::io::ErrorKind::StorageFull), "{error:?}");
    drop((content, streamed));
    sim.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn pieces_of_an_object_are_fetched_once_by_all_who_read_them() {
    let sim = large(cloud());
    sim.store.put_synthetic("a", 32 * MIB + 100);
    let synthetic = sim.store.synthetic("a").unwrap();
    let content = sim.edit("a");
    content.write(5 * MIB + 7, b"x").await.unwrap();
    let start = Instant::now();
    let reads = (0..8).map(|_| content.read(MIB / 2, 16 << 20));
    for data in join_all(reads).await {
        let mut data = data.unwrap().to_vec();
        assert_eq!(data[(9 * MIB / 2 + 7) as usize], b'x');
        synthetic.fill(5 * MIB + 7, &mut data[(9 * MIB / 2 + 7) as usize..][..1]);
        assert!(synthetic.matches(MIB / 2, &data));
    }
    assert_eq!(sim.store.count(Op::Get), 17);
    // Two rounds of sixteen at most.
    assert!(start.elapsed() < 2 * (FIRST_BYTE + Duration::from_secs_f64(MIB as f64 / PER_CONNECTION as f64) + Duration::from_millis(2)));
    assert_eq!(content.read(32 * MIB, 1000).await.unwrap().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_failed_is_sent_again_by_the_commit_unless_a_write_was_refused() {
    for refused in [false, true] {
        let sim = small();
        sim.store.put("a", "old");
        sim.store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::UploadPart).nth(1));
        let content = sim.create("a");
        stream(&content, 1, 0..2500, 500).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        if refused {
            assert!(content.write(2500, b"more").await.is_err());
            assert!(content.commit(Condition::Any).await.is_err() && content.commit(Condition::Any).await.is_err());
            assert_eq!(sim.stored("a"), b"old");
            // What is written anew is whole again.
            content.truncate(0).await.unwrap();
            content.write(0, b"new").await.unwrap();
        }
        content.commit(Condition::Any).await.unwrap();
        assert_eq!(sim.stored("a"), if refused { b"new".to_vec() } else { bytes(1, 0, 2500) });
        drop(content);
        sim.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_caller_left_goes_on() {
    let sim = large(cloud());
    let content = sim.create("a");
    stream(&content, 1, 0..3 * PART, 1 << 20).await;
    assert!(tokio::time::timeout(Duration::from_millis(30), content.commit(Condition::Any)).await.is_err());
    drop(content);
    sim.assert_clean().await;
    assert!(sim.stored("a") == bytes(1, 0, 3 * PART as usize));
}

#[tokio::test(start_paused = true)]
async fn more_than_an_object_can_be_is_refused() {
    let sim = large(Plan::default());
    let content = sim.create("a");
    for at in [5 << 40, u64::MAX] {
        assert!(matches!(content.write(at, b"x").await, Err(WriteError::TooLarge)));
        assert!(matches!(content.try_write(at, b"x", || {}), Some(Err(WriteError::TooLarge))));
        assert!(matches!(content.truncate(at + u64::from(at != u64::MAX)).await, Err(WriteError::TooLarge)));
        assert!(matches!(content.allocate(at, 1, Allocate::Extend).await, Err(WriteError::TooLarge)));
    }
    assert_eq!(content.size(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_discarded_while_it_is_staged_is_found_by_nobody() {
    let sim = small();
    let mut expected = sim.put("a", 5000);
    let content = sim.edit("a");
    content.write(100, b"x").await.unwrap();
    assert_eq!(sim.staged_files(), 2);
    content.discard().await;
    assert_eq!(sim.staged_files(), 1);
    content.write(200, b"y").await.unwrap();
    (expected[100], expected[200]) = (b'x', b'y');
    assert_eq!(content.read(0, 5000).await.unwrap(), expected);
    assert!(!content.is_dirty() && content.commit(Condition::Any).await.unwrap().is_none());
    drop(content);
    sim.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn readers_that_fill_the_memory_make_room_for_a_writer() {
    let sim = sim(cloud(), ByteSize::mib(64), Options::default());
    let deadline = Duration::from_secs(120);
    let reader = Reader::new(sim.store.clone(), sim.budget.clone(), sim.metrics.clone(), reader::Options::default(), deadline);
    sim.writer.take_room_from(&reader);
    sim.store.put_synthetic("read", 1 << 30);
    let handle = reader.open(&sim.store.meta("read").unwrap());
    // Far from each other and in no order, so that all of them are kept as pieces.
    for n in 0..1000_u64 {
        handle.read(1, n * 7919 % 1000 * MIB, 4096).await.unwrap();
    }
    assert!(sim.budget.leased_bytes() as u64 > 56 * MIB, "{}", sim.budget.leased_bytes());
    let content = sim.create("a");
    let start = Instant::now();
    stream(&content, 1, 0..4 * PART, 1 << 20).await;
    content.commit(Condition::Any).await.unwrap();
    // Two parts are in the share at a time.
    let part = FIRST_BYTE.as_secs_f64() + PART as f64 / PER_CONNECTION as f64;
    assert!(start.elapsed() < Duration::from_secs_f64(2.0 * part) + 4 * FIRST_BYTE, "{:?}", start.elapsed());
    assert_eq!(sim.metrics.staged_bytes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn reading_an_edited_object_front_to_back_runs_ahead() {
    let sim = large(cloud());
    sim.store.put_synthetic("a", 128 * MIB);
    let synthetic = sim.store.synthetic("a").unwrap();
    let content = sim.edit("a");
    content.write(0, &bytes(1, 0, 10)).await.unwrap();
    let start = Instant::now();
    for at in 0..128 {
        let data = content.read(at * MIB, 1 << 20).await.unwrap();
        assert!(at == 0 || synthetic.matches(at * MIB, &data));
    }
    let alone = FIRST_BYTE + Duration::from_secs_f64(MIB as f64 / PER_CONNECTION as f64);
    assert!(start.elapsed() < alone * 32, "{:?}", start.elapsed());
    assert_eq!(sim.store.count(Op::Get), 128);
}

/// What a program may do with a new file before its first commit, so that parts that were sent are needed again.
#[derive(Clone, Copy, Debug)]
enum Needs {
    Nothing,
    Read,
    Overwrite,
    Truncate,
    Zeros,
}

impl Needs {
    async fn on(self, content: &Content) -> Result<(), WriteError> {
        match self {
            Self::Nothing => Ok(()),
            Self::Read => content.read(10_000, 10).await.map(drop),
            Self::Overwrite => content.write(10_000, b"again").await,
            Self::Truncate => content.truncate(10_500).await,
            Self::Zeros => content.allocate(10_000, 10, Allocate::Punch).await,
        }
    }
}

const NEEDS: [Needs; 5] = [Needs::Nothing, Needs::Read, Needs::Overwrite, Needs::Truncate, Needs::Zeros];

#[tokio::test(start_paused = true)]
async fn new_file_never_replaces_what_another_client_created() {
    for needs in NEEDS {
        // So short that it is one request, and parts.
        for size in [500, 20_000] {
            let sim = small();
            let content = sim.create("a");
            content.require_absent();
            stream(&content, 1, 0..size, 700).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            sim.store.put("a", "by another client");
            let needed = if size > 10_000 { needs.on(&content).await } else { Ok(()) };
            for error in needed.err().into_iter().chain(content.commit(Condition::Any).await.err()) {
                assert!(matches!(&error, WriteError::Store(error) if error.kind == ErrorKind::Replaced), "{needs:?}: {error}");
            }
            assert!(content.is_dirty(), "{needs:?}");
            assert_eq!(sim.stored("a"), b"by another client", "{needs:?} {size}");
            drop(content);
            sim.assert_clean().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn new_file_is_stored_again_after_its_first_save() {
    for needs in NEEDS {
        let sim = small();
        let content = sim.create("a");
        content.require_absent();
        stream(&content, 1, 0..20_000, 700).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        needs.on(&content).await.unwrap();
        content.commit(Condition::Any).await.unwrap().unwrap();
        content.write(5, b"more").await.unwrap();
        content.commit(Condition::Any).await.unwrap().unwrap();
        assert_eq!(sim.stored("a")[5..9], *b"more");
        // As for any other file, the last writer decides from then on.
        sim.store.put("a", "by another client");
        content.truncate(0).await.unwrap();
        content.commit(Condition::Any).await.unwrap().unwrap();
        assert!(sim.stored("a").is_empty());
        drop(content);
        sim.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn new_file_replaces_what_it_is_renamed_over() {
    for needs in NEEDS {
        let sim = small();
        let content = sim.create("a");
        content.require_absent();
        content.set_key("a".into()).await;
        stream(&content, 1, 0..20_000, 700).await;
        sim.store.put("b", "there before");
        content.set_key("b".into()).await;
        needs.on(&content).await.unwrap();
        content.commit(Condition::Any).await.unwrap().unwrap();
        assert_eq!(sim.stored("b")[..1000], bytes(1, 0, 1000));
        drop(content);
        sim.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn new_file_that_is_staged_or_left_by_a_kill_stays_new() {
    let sim = small();
    sim.writer.write_down_changes();
    let content = sim.create("a");
    content.require_absent();
    content.belong_to(7);
    content.write(50_000, b"far").await.unwrap();
    sim.store.put("a", "by another client");
    let error = content.commit(Condition::Any).await.unwrap_err();
    assert!(matches!(error, WriteError::Store(error) if error.kind == ErrorKind::Replaced));
    // Its description is what a killed daemon leaves, too.
    assert!(content.hand_over(Duration::from_secs(1)).await && content.stays());
    drop(content);
    let taken = sim.writer.take_over(&[7].into()).await.remove(&7).unwrap();
    assert_eq!(taken.size(), 50_003);
    assert!(taken.commit(Condition::Any).await.is_err());
    assert_eq!(sim.stored("a"), b"by another client");
    sim.store.delete("a");
    taken.commit(Condition::Any).await.unwrap().unwrap();
    assert_eq!(sim.stored("a").len(), 50_003);
}
