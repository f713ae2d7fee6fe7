//! The real reader over a simulated store on tokio's paused clock: virtual time, requests and bytes held are exact.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use tokio::time::Instant;
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::reader::{ObjectHandle, Options, PrefetchChunks, ReadError, Reader};
use windlass::store::memory::{Bandwidth, Fault, Latency, Memory, Outcome, Plan, Request, Rule};
use windlass::store::{ErrorKind, Op};
use windlass::units::ByteSize;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4 * MIB;
const FIRST_BYTE: Duration = Duration::from_millis(20);
/// One connection of the cloud that the field measures.
const PER_CONNECTION: u64 = 90_000_000;

struct Sim {
    store: Arc<Memory>,
    budget: Arc<Budget>,
    metrics: Arc<Metrics>,
    reader: Reader,
}

fn cloud() -> Plan {
    Plan { first_byte: Latency::Fixed(FIRST_BYTE), bandwidth: Bandwidth { per_connection: Some(PER_CONNECTION), total: None }, seed: 1 }
}

fn sim(plan: Plan, limit: ByteSize, options: Options) -> Sim {
    let store = Arc::new(Memory::new(plan));
    let budget = Budget::new(&budget::Options { memory_limit: Some(limit) });
    let metrics = Arc::new(Metrics::default());
    let reader = Reader::new(store.clone(), budget.clone(), metrics.clone(), options, Duration::from_secs(120));
    Sim { store, budget, metrics, reader }
}

fn fixed(chunks: u32) -> Options {
    Options { prefetch_chunks: PrefetchChunks::Fixed(chunks), ..Options::default() }
}

impl Sim {
    fn open(&self, key: &str, size: u64) -> Arc<ObjectHandle> {
        if self.store.meta(key).is_none() {
            self.store.put_synthetic(key, size);
        }
        Arc::new(self.reader.open(&self.store.meta(key).unwrap()))
    }

    /// Reads and compares with what the store has.
    async fn read(&self, handle: &ObjectHandle, key: &str, thread: u32, offset: u64, len: u64) {
        let data = handle.read(thread, offset, len as usize).await.unwrap();
        let synthetic = self.store.synthetic(key).unwrap();
        let mut at = offset;
        for slice in data.slices() {
            assert!(synthetic.matches(at, slice), "wrong bytes of {key} at {at}");
            at += slice.len() as u64;
        }
        assert_eq!(at, (offset + len).min(handle.size()), "{key} at {offset}");
    }

    async fn read_all(&self, handle: &ObjectHandle, key: &str, thread: u32, block: u64) {
        for offset in (0..handle.size()).step_by(block as usize) {
            self.read(handle, key, thread, offset, block).await;
        }
    }

    fn gets(&self) -> Vec<Request> {
        self.store.requests().into_iter().filter(|request| request.op == Op::Get).collect()
    }
}

/// When the first `bytes` of one GET are there. Timers of the paused clock go off at whole milliseconds.
fn one_get(bytes: u64) -> Duration {
    let exact = FIRST_BYTE + Duration::from_secs_f64(bytes as f64 / PER_CONNECTION as f64);
    Duration::from_millis(exact.as_micros().div_ceil(1000) as u64)
}

/// Asserts that the GETs cover `0..size` exactly once.
fn assert_each_byte_once(gets: &[Request], size: u64) {
    let mut ranges: Vec<_> = gets.iter().map(|request| request.range.clone().unwrap()).collect();
    ranges.sort_by_key(|range| range.start);
    let mut at = 0;
    for range in ranges {
        assert_eq!(range.start, at, "a byte was fetched twice or never");
        at = range.end;
    }
    assert_eq!(at, size);
}

/// How long 4 GiB take from a store whose first bytes come after 10 to 110 ms.
async fn from_an_uneven_store(chunks: PrefetchChunks) -> Duration {
    let first_byte = Latency::Between(Duration::from_millis(10), Duration::from_millis(110));
    let plan = Plan { first_byte, bandwidth: Bandwidth { per_connection: Some(PER_CONNECTION), total: Some(2_000_000_000) }, seed: 1 };
    let sim = sim(plan, ByteSize::gib(2), Options { prefetch_chunks: chunks, ..Options::default() });
    let handle = sim.open("large", 4 << 30);
    let start = Instant::now();
    for offset in (0..4 << 30).step_by(MIB as usize) {
        sim.read(&handle, "large", 1, offset, MIB).await;
    }
    assert_each_byte_once(&sim.gets(), 4 << 30);
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn where_the_time_of_a_get_varies_the_window_becomes_wide_enough_by_itself() {
    let (auto, narrow, wide) = (
        from_an_uneven_store(PrefetchChunks::Auto).await,
        from_an_uneven_store(PrefetchChunks::Fixed(32)).await,
        from_an_uneven_store(PrefetchChunks::Fixed(64)).await,
    );
    println!("4 GiB at 10 to 110 ms: {auto:?} of virtual time, {narrow:?} with 32 chunks, {wide:?} with 64");
    assert!(auto < narrow && auto < wide.mul_f64(1.25));
}

#[tokio::test(start_paused = true)]
async fn a_sequential_read_with_defaults_is_close_to_the_arithmetic_optimum() {
    let sim = sim(cloud(), ByteSize::gib(1), Options::default());
    let handle = sim.open("large", 1 << 30);
    let start = Instant::now();
    sim.read(&handle, "large", 1, 0, MIB).await;
    let first_mib = start.elapsed();
    // One round trip and the transfer of what was read, nothing else.
    assert_eq!(first_mib, one_get(MIB));
    for offset in (MIB..1 << 30).step_by(MIB as usize) {
        sim.read(&handle, "large", 1, offset, MIB).await;
    }
    let elapsed = start.elapsed();
    // 33 chunks at a time (one being read, 32 ahead), each a round trip and its transfer.
    let chunk = FIRST_BYTE.as_secs_f64() + CHUNK as f64 / PER_CONNECTION as f64;
    let optimum = Duration::from_secs_f64((1u64 << 30) as f64 / (33.0 * CHUNK as f64) * chunk);
    assert!(elapsed <= optimum.mul_f64(1.25), "{elapsed:?} is more than 1.25 x {optimum:?}");
    assert_each_byte_once(&sim.gets(), 1 << 30);
    println!(
        "1 GiB: {elapsed:?} of virtual time, {:.2} x the optimum of a fixed window of 32",
        elapsed.as_secs_f64() / optimum.as_secs_f64()
    );
}

/// A reader of the first `bytes` of 4 GiB that keeps its handle and does nothing for a minute, over a link of so many bytes a second: the time of
/// its reads, and the bytes that were asked for.
async fn part_of_a_large_object(bytes: u64, rate: u64, round_trip: Duration, block: u64) -> (Duration, u64) {
    let bandwidth = Bandwidth { per_connection: None, total: Some(rate) };
    let sim = sim(Plan { first_byte: Latency::Fixed(round_trip), bandwidth, seed: 1 }, ByteSize::gib(2), Options::default());
    let handle = sim.open("large", 4 << 30);
    let start = Instant::now();
    for offset in (0..bytes).step_by(block as usize) {
        sim.read(&handle, "large", 1, offset, block).await;
    }
    let elapsed = start.elapsed();
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sim.reader.on_time();
    }
    (elapsed, asked(&sim.gets()))
}

#[tokio::test(start_paused = true)]
async fn who_stops_early_has_fetched_little_however_slow_the_link_is() {
    for rate in [1, 5, 10, 50, 500, 5000] {
        for round_trip in [1, 50, 300] {
            let (rate, round_trip) = (rate * 1_000_000, Duration::from_millis(round_trip));
            let (_, fetched) = part_of_a_large_object(MIB, rate, round_trip, 128 << 10).await;
            assert!(fetched <= 20 * MIB, "{fetched} bytes for 1 MiB at {rate} B/s and {round_trip:?}");
            let (time, fetched) = part_of_a_large_object(256 * MIB, rate, round_trip, MIB).await;
            println!("256 MiB at {rate} B/s and {round_trip:?}: {time:?} of virtual time, {} MiB fetched", fetched / MIB);
            if rate <= 50_000_000 {
                assert!(fetched <= 336 * MIB, "{fetched} bytes for 256 MiB at {rate} B/s and {round_trip:?}");
            }
        }
    }
}

/// A GET of a wide window takes longer than a short epoch here: what a GET takes by itself would be forgotten.
#[tokio::test(start_paused = true)]
async fn slow_link_keeps_the_window_narrow() {
    for rate in [1_000_000, 10_000_000] {
        let bandwidth = Bandwidth { per_connection: None, total: Some(rate) };
        let plan = Plan { first_byte: Latency::Fixed(Duration::from_millis(50)), bandwidth, seed: 1 };
        let sim = sim(plan, ByteSize::gib(2), Options::default());
        let handle = sim.open("large", 4 << 30);
        let mut widest = 0;
        for offset in 0..1024 {
            sim.read(&handle, "large", 1, offset * MIB, MIB).await;
            if offset >= 512 {
                widest = widest.max(handle.resident().len());
            }
        }
        println!("1 GiB at {rate} B/s: {widest} chunks at the most in its second half");
        assert!(widest <= 16, "{widest} chunks");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_byte_takes_one_round_trip() {
    let sim = sim(cloud(), ByteSize::mib(256), Options::default());
    let handle = sim.open("large", 1 << 30);
    let start = Instant::now();
    sim.read(&handle, "large", 1, 0, 4096).await;
    // The store delivers in pieces of 64 KiB.
    assert_eq!(start.elapsed(), one_get(65536));
}

#[tokio::test(start_paused = true)]
async fn a_gibibyte_in_chunks_of_4_mib_costs_256_gets() {
    for block in [128 << 10, MIB, 3 * MIB, 16 * MIB] {
        let sim = sim(cloud(), ByteSize::mib(512), fixed(32));
        let handle = sim.open("large", 1 << 30);
        sim.read_all(&handle, "large", 1, block).await;
        let gets = sim.gets();
        assert_eq!(gets.len(), 256, "{block}");
        assert_each_byte_once(&gets, 1 << 30);
        assert!(gets.iter().all(|get| get.etag.is_some()));
    }
}

#[tokio::test(start_paused = true)]
async fn resident_chunks_stay_inside_the_window_and_memory_inside_the_limit() {
    let sim = sim(cloud(), ByteSize::mib(256), fixed(32));
    let handle = sim.open("large", 1 << 30);
    for offset in (0..1u64 << 30).step_by(MIB as usize) {
        sim.read(&handle, "large", 1, offset, MIB).await;
        let k = offset / CHUNK;
        for range in handle.resident() {
            let (first, last) = (range.start / CHUNK, (range.end - 1) / CHUNK);
            assert!(k.saturating_sub(1) <= first && last <= k + 32, "chunk {first}..={last} is resident while reading {k}");
        }
        assert!(sim.budget.leased_bytes() <= 256 << 20);
    }
    assert!(sim.budget.usage().peak_bytes > 128 << 20, "the window was never open: {}", sim.budget.usage().peak_bytes);
}

#[tokio::test(start_paused = true)]
async fn every_option_of_the_window_has_its_effect() {
    for (options, chunk, ahead, behind) in [
        (Options { chunk_size: ByteSize::mib(1), ..fixed(4) }, MIB, 4, 1),
        (Options { chunk_size: ByteSize::mib(8), ..fixed(2) }, 8 * MIB, 2, 1),
        (Options { backward_chunks: 3, ..fixed(2) }, CHUNK, 2, 3),
        (Options { backward_chunks: 0, ..fixed(0) }, CHUNK, 0, 0),
    ] {
        let sim = sim(cloud(), ByteSize::gib(1), options.clone());
        let handle = sim.open("large", 256 * MIB);
        let (mut most_ahead, mut most_behind) = (0, 0);
        for offset in (0..handle.size()).step_by(MIB as usize) {
            sim.read(&handle, "large", 1, offset, MIB).await;
            let k = offset / chunk;
            for range in handle.resident() {
                most_ahead = most_ahead.max((range.start / chunk).saturating_sub(k));
                most_behind = most_behind.max(k.saturating_sub(range.start / chunk));
            }
        }
        assert_eq!((most_ahead, most_behind), (ahead, behind), "{options:?}");
        assert!(sim.gets().iter().all(|get| get.range.clone().is_some_and(|range| range.end - range.start == chunk)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_concurrency_option_bounds_the_gets_in_flight() {
    for concurrency in [1, 4, 16] {
        let sim = sim(cloud(), ByteSize::gib(1), Options { prefetch_concurrency: Some(concurrency), ..fixed(32) });
        let handle = sim.open("large", 128 * MIB);
        sim.read_all(&handle, "large", 1, MIB).await;
        let most = sim.store.max_in_flight();
        assert!(most <= concurrency && most >= concurrency.div_ceil(2), "{most} of {concurrency}");
    }
}

#[tokio::test(start_paused = true)]
async fn sixteen_readers_in_a_small_budget_all_progress() {
    let sim = sim(cloud(), ByteSize::mib(256), Options::default());
    let keys: Vec<String> = (0..16).map(|i| format!("file-{i}")).collect();
    let handles: Vec<_> = keys.iter().map(|key| sim.open(key, 64 * MIB)).collect();
    let start = Instant::now();
    let reads = keys.iter().zip(&handles).map(|(key, handle)| sim.read_all(handle, key, 1, MIB));
    join_all(reads).await;
    assert!(sim.budget.usage().peak_bytes <= 256 << 20);
    // Alone, and without any prefetch, each would take 16 chunks of a round trip and a transfer; together they must not be slower.
    let serial = Duration::from_secs_f64(16.0 * (FIRST_BYTE.as_secs_f64() + CHUNK as f64 / PER_CONNECTION as f64));
    assert!(start.elapsed() <= serial, "{:?}", start.elapsed());
    let bytes: u64 = sim.gets().iter().map(|get| get.delivered).sum();
    assert_eq!(bytes, 16 * 64 * MIB, "a byte was fetched twice");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_readers_in_a_small_budget_never_fail() {
    let sim = sim(cloud(), ByteSize::mib(256), Options::default());
    let keys: Vec<String> = (0..100).map(|i| format!("file-{i}")).collect();
    let handles: Vec<_> = keys.iter().map(|key| sim.open(key, 16 * MIB)).collect();
    join_all(keys.iter().zip(&handles).map(|(key, handle)| sim.read_all(handle, key, 1, MIB))).await;
    assert!(sim.budget.usage().peak_bytes <= 256 << 20);
    drop(handles);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(sim.budget.leased_bytes(), 0);
}

/// A reader that waits for memory does not take the windows of all others until its own lease is granted.
#[tokio::test(start_paused = true)]
async fn readers_that_wait_for_memory_have_nothing_fetched_twice() {
    for (readers, mib) in [(32, 64), (64, 64), (100, 256)] {
        let sim = sim(cloud(), ByteSize::mib(mib), Options::default());
        let keys: Vec<String> = (0..readers).map(|i| format!("file-{i}")).collect();
        let handles: Vec<_> = keys.iter().map(|key| sim.open(key, 32 * MIB)).collect();
        join_all(keys.iter().zip(&handles).map(|(key, handle)| sim.read_all(handle, key, 1, MIB))).await;
        let bytes: u64 = sim.gets().iter().map(|get| get.delivered).sum();
        let times = bytes as f64 / (readers * 32 * MIB) as f64;
        assert!(times <= 1.05, "{readers} readers in {mib} MiB: {times:.3} bytes fetched for one that is read");
    }
}

#[tokio::test(start_paused = true)]
async fn handles_that_hold_a_chunk_and_stop_do_not_starve_the_others() {
    let sim = sim(cloud(), ByteSize::mib(64), fixed(32));
    let mut idle = Vec::new();
    for i in 0..40 {
        let key = format!("file-{i}");
        let handle = sim.open(&key, 16 * MIB);
        sim.read(&handle, &key, 1, 0, 4096).await;
        idle.push(handle);
    }
    let handle = sim.open("last", 64 * MIB);
    sim.read_all(&handle, "last", 1, MIB).await;
    assert!(sim.budget.usage().peak_bytes <= 64 << 20);
}

#[tokio::test(start_paused = true)]
async fn four_interleaved_readers_fetch_every_byte_once_through_one_handle_or_four() {
    for (handles, one_thread) in [(1, false), (4, false), (1, true)] {
        let sim = sim(cloud(), ByteSize::gib(1), fixed(8));
        let size = 256 * MIB;
        let handles: Vec<_> = (0..handles).map(|_| sim.open("shared", size)).collect();
        let quarter = size / 4;
        // As the kernel's read-ahead cuts them: the first one short, and from then on one read in four lies in two chunks.
        let cuts: Vec<u64> = [0].into_iter().chain((MIB / 4..quarter).step_by(MIB as usize)).chain([quarter]).collect();
        for cut in cuts.windows(2) {
            for reader in 0..4 {
                let handle = &handles[reader as usize % handles.len()];
                let thread = if one_thread { 7 } else { reader };
                sim.read(handle, "shared", thread, u64::from(reader) * quarter + cut[0], cut[1] - cut[0]).await;
            }
        }
        assert_each_byte_once(&sim.gets(), size);
        assert_eq!(sim.metrics.cancelled_fetches.get(), 0);
        // Four windows: about as many chunks ahead of each of the four places.
        assert!(sim.budget.usage().peak_bytes >= 4 * 8 * CHUNK as usize, "{}", sim.budget.usage().peak_bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn two_readers_of_one_object_share_what_is_fetched() {
    let sim = sim(cloud(), ByteSize::gib(1), fixed(8));
    let (a, b) = (sim.open("shared", 64 * MIB), sim.open("shared", 64 * MIB));
    tokio::join!(sim.read_all(&a, "shared", 1, MIB), sim.read_all(&b, "shared", 2, MIB));
    assert_each_byte_once(&sim.gets(), 64 * MIB);
}

#[tokio::test(start_paused = true)]
async fn a_small_random_read_fetches_at_most_256_kib() {
    let sim = sim(cloud(), ByteSize::mib(256), Options::default());
    let handle = sim.open("large", 1 << 30);
    for block in [200_000u64, 3, 77_777, 131_071, 261_000, 31_999, 8, 100_000] {
        sim.store.reset_log();
        sim.read(&handle, "large", 1, block * 4096 + 1000, 4096).await;
        let bytes: u64 = sim.gets().iter().map(|get| get.range.clone().map_or(0, |range| range.end - range.start)).sum();
        assert!(bytes <= 256 << 10, "{bytes} bytes fetched for 4 KiB");
    }
}

#[tokio::test(start_paused = true)]
async fn what_random_reads_fetched_is_served_from_memory_while_it_fits() {
    let sim = sim(cloud(), ByteSize::mib(256), Options::default());
    let handle = sim.open("data", 64 * MIB);
    let offsets: Vec<u64> = (0..400).map(|i| i * 7919 * 4096 % (64 * MIB)).collect();
    for &offset in &offsets {
        sim.read(&handle, "data", 1, offset, 4096).await;
    }
    sim.store.reset_log();
    for &offset in &offsets {
        sim.read(&handle, "data", 1, offset, 4096).await;
    }
    assert_eq!(sim.gets().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn random_reads_over_more_than_the_budget_go_on_inside_it() {
    let sim = sim(cloud(), ByteSize::mib(64), Options::default());
    let handle = sim.open("data", 1 << 30);
    for i in 0..2000u64 {
        sim.read(&handle, "data", 1, i * 7919 * 131_072 % (1 << 30), 4096).await;
    }
    assert!(sim.budget.usage().peak_bytes <= 64 << 20);
}

/// Bytes that `gets` asked for.
fn asked(gets: &[Request]) -> u64 {
    gets.iter().filter_map(|get| get.range.as_ref()).map(|range| range.end - range.start).sum()
}

/// Places in `0..size` in no order, always the same (SplitMix64).
fn scattered(size: u64) -> impl Iterator<Item = u64> {
    (1u64..).map(move |n| {
        let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (n ^ (n >> 31)) % (size - 4096)
    })
}

/// Reads `len` bytes at each of `places`, in requests of 1 MiB as the kernel makes them; the time that took.
async fn read_runs(sim: &Sim, handle: &ObjectHandle, places: &[u64], len: u64) -> Duration {
    let began = Instant::now();
    for place in places {
        for at in (*place..place + len).step_by(MIB as usize) {
            sim.read(handle, "samples", 1, at, MIB.min(place + len - at)).await;
        }
    }
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn samples_of_megabytes_at_random_cost_their_own_bytes_and_one_round_trip() {
    const SIZE: u64 = 64 << 30;
    for len in [3 * MIB / 2, 2 * MIB, 4 * MIB, 16 * MIB] {
        let sim = sim(cloud(), ByteSize::gib(1), Options::default());
        let handle = sim.open("samples", SIZE);
        let places: Vec<u64> = scattered(SIZE - len).take(64).collect();
        // Of the first ones nothing is known: they look like somebody who begins in the middle.
        let (first, others) = places.split_at(4);
        read_runs(&sim, &handle, first, len).await;
        let learning = asked(&sim.gets());
        let elapsed = read_runs(&sim, &handle, others, len).await;
        let (fetched, count) = (asked(&sim.gets()) - learning, others.len() as u64);
        // Whole pieces of 128 KiB.
        assert!(fetched <= count * (len + (256 << 10)), "{len}: {fetched}");
        // All of a sample at once, in GETs whose transfer takes about as long as their first byte. Timers go off at whole milliseconds, once
        // a request.
        let most = (one_get(len.min(2 * MIB)) + Duration::from_millis(len.div_ceil(MIB))) * others.len() as u32;
        assert!(elapsed <= most, "{len}: {elapsed:?} of {most:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_reads_on_after_samples_is_a_sequential_reader_again() {
    const SIZE: u64 = 64 << 30;
    let sim = sim(cloud(), ByteSize::gib(1), Options::default());
    let handle = sim.open("samples", SIZE);
    let places: Vec<u64> = scattered(SIZE / 2).take(16).collect();
    read_runs(&sim, &handle, &places, 2 * MIB).await;
    let elapsed = read_runs(&sim, &handle, &[SIZE / 2], 1 << 30).await;
    let fresh = Sim {
        reader: Reader::new(sim.store.clone(), sim.budget.clone(), Arc::default(), Options::default(), Duration::from_secs(120)),
        ..sim
    };
    let alone = read_runs(&fresh, &fresh.open("samples", SIZE), &[SIZE / 2], 1 << 30).await;
    assert!(elapsed <= alone + 6 * one_get(CHUNK), "{elapsed:?}, without samples before it {alone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_read_densely_at_random_is_fetched_as_a_whole() {
    // A quarter of the memory is the most; the smallest has two chunks.
    for size in [6 * MIB, 100 * MIB + 5, 256 * MIB] {
        let sim = sim(cloud(), ByteSize::gib(1), Options::default());
        let handle = sim.open("k", size);
        let chunks = size.div_ceil(CHUNK);
        let mut reads = 0;
        for place in scattered(size) {
            sim.read(&handle, "k", 1, place, 4096).await;
            reads += 1;
            if asked(&sim.gets()) == size {
                break;
            }
            assert!(reads < 3 * chunks + 60, "{size}: {} bytes fetched after {reads} reads", asked(&sim.gets()));
        }
        let gets = sim.gets();
        assert_each_byte_once(&gets, size);
        // Pieces of the reads before, and chunks, which they cut in two.
        assert!(gets.len() as u64 <= chunks + 2 * reads, "{} GETs for {chunks} chunks and {reads} reads", gets.len());
        let whole = gets.iter().filter(|get| get.range.as_ref().is_some_and(|range| range.end - range.start == CHUNK)).count();
        assert!(chunks < 20 || whole as u64 >= chunks / 4, "{whole} whole chunks of {chunks}");
        assert!(gets.iter().all(|get| get.range.as_ref().is_some_and(|range| range.end - range.start <= CHUNK)));
        // From here on everything comes from memory.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let started = Instant::now();
        for place in scattered(size).skip(5000).take(500) {
            sim.read(&handle, "k", 1, place, 4096).await;
        }
        assert_eq!((started.elapsed(), sim.gets().len()), (Duration::ZERO, gets.len()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_read_sparsely_or_is_too_large_is_not_fetched_as_a_whole() {
    // The size of the file, reads, the time between them, chunks ahead.
    let cases = [(1 << 30, 400, 0, None), (240 * MIB, 12, 0, None), (240 * MIB, 400, 1000, None), (240 * MIB, 400, 0, Some(0))];
    for (size, reads, pause, ahead) in cases {
        let sim = sim(cloud(), ByteSize::gib(1), ahead.map_or_else(Options::default, fixed));
        let handle = sim.open("k", size);
        for place in scattered(size).take(reads) {
            sim.read(&handle, "k", 1, place, 4096).await;
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let gets = sim.gets();
        assert!(asked(&gets) <= reads as u64 * (256 << 10), "{size}: {} bytes fetched for {reads} reads", asked(&gets));
        // Only half a chunk that is there already brings the rest of it.
        assert!(gets.iter().all(|get| get.range.as_ref().is_some_and(|range| range.end - range.start <= CHUNK / 2)));
    }
}

#[tokio::test(start_paused = true)]
async fn fetching_a_file_as_a_whole_takes_no_memory_from_others() {
    let sim = sim(cloud(), ByteSize::mib(128), fixed(32));
    let (shuffled, streamed) = (sim.open("shuffled", 32 * MIB), sim.open("streamed", 512 * MIB));
    let random = async {
        for place in scattered(32 * MIB).take(2000) {
            sim.read(&shuffled, "shuffled", 1, place, 4096).await;
        }
    };
    tokio::join!(random, sim.read_all(&streamed, "streamed", 2, MIB));
    assert!(sim.budget.usage().peak_bytes <= 128 << 20);
    let streamed: Vec<_> = sim.gets().into_iter().filter(|get| get.key.to_str() == Some("streamed")).collect();
    assert_each_byte_once(&streamed, 512 * MIB);
}

#[tokio::test(start_paused = true)]
async fn a_head_an_index_and_then_the_rest_are_fetched_about_once() {
    let sim = sim(cloud(), ByteSize::gib(1), fixed(8));
    let size = 128 * MIB;
    let head = sim.open("model", size);
    sim.read(&head, "model", 1, 0, MIB).await;
    let body = sim.open("model", size);
    drop(head);
    for offset in (120..size / MIB).chain(1..120) {
        sim.read(&body, "model", 1, offset * MIB, MIB).await;
    }
    let asked = asked(&sim.gets());
    assert!(asked <= size + CHUNK, "{asked} bytes fetched of {size}");
}

#[tokio::test(start_paused = true)]
async fn a_jump_cancels_what_is_in_flight_and_does_not_wait_for_it() {
    let sim = sim(cloud(), ByteSize::gib(1), fixed(32));
    let handle = sim.open("large", 1 << 30);
    for offset in 0..12 {
        sim.read(&handle, "large", 1, offset * MIB, MIB).await;
    }
    assert!(sim.store.in_flight() > 8, "{}", sim.store.in_flight());
    let start = Instant::now();
    sim.read(&handle, "large", 1, 900 * MIB, MIB).await;
    assert_eq!(start.elapsed(), one_get(MIB));
    for offset in 901..903 {
        sim.read(&handle, "large", 1, offset * MIB, MIB).await;
    }
    tokio::task::yield_now().await;
    let old_window = |request: &Request| request.range.clone().is_some_and(|range| range.start < 800 * MIB);
    let requests = sim.gets();
    assert!(requests.iter().any(|get| old_window(get) && get.outcome == Outcome::Cancelled), "nothing was cut");
    assert!(!requests.iter().any(|get| old_window(get) && get.outcome == Outcome::Open), "still fetching for the old place");
    assert!(sim.metrics.cancelled_fetches.get() > 0);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stays_away_is_given_up_by_housekeeping() {
    let slow = Plan { bandwidth: Bandwidth { per_connection: Some(1_000_000), total: None }, ..cloud() };
    let sim = sim(slow, ByteSize::gib(1), fixed(8));
    let handle = sim.open("large", 1 << 30);
    sim.read(&handle, "large", 1, 0, MIB).await;
    sim.read(&handle, "large", 1, 900 * MIB, 4096).await;
    assert!(sim.store.in_flight() > 4);
    tokio::time::sleep(Duration::from_millis(300)).await;
    sim.reader.on_time();
    tokio::task::yield_now().await;
    assert_eq!(sim.store.in_flight(), 0);
}

/// A window of 32 chunks of which four are in flight and the others queue, after 12 MiB were read.
async fn queued_window() -> (Sim, Arc<ObjectHandle>) {
    let slow = Plan { bandwidth: Bandwidth { per_connection: Some(1_000_000), total: None }, ..cloud() };
    let sim = sim(slow, ByteSize::gib(1), Options { prefetch_concurrency: Some(4), ..fixed(32) });
    let handle = sim.open("large", 1 << 30);
    for offset in 0..12 {
        sim.read(&handle, "large", 1, offset * MIB, MIB).await;
    }
    assert_eq!(handle.resident().last().unwrap().end, (2 + 1 + 32) * CHUNK);
    (sim, handle)
}

#[tokio::test(start_paused = true)]
async fn queued_prefetches_of_a_paused_reader_are_cancelled() {
    let (sim, handle) = queued_window().await;
    let in_flight = sim.store.in_flight();
    let sent = sim.gets().len();
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sim.reader.on_time();
    }
    // Two GETs of four seconds each are the pause: those in flight end twice until then.
    assert!(sim.gets().len() <= sent + 2 * in_flight, "{} after {sent}", sim.gets().len());
    for offset in 12..40 {
        sim.read(&handle, "large", 1, offset * MIB, MIB).await;
    }
    let ahead = handle.resident().last().unwrap().end;
    assert_each_byte_once(&sim.gets().into_iter().filter(|get| get.range.as_ref().unwrap().end <= 40 * MIB).collect::<Vec<_>>(), 40 * MIB);
    assert!(ahead > 40 * MIB, "the window opens again");
}

#[tokio::test(start_paused = true)]
async fn queued_prefetches_are_cancelled_when_the_window_narrows() {
    let (sim, handle) = queued_window().await;
    sim.reader.set_prefetch_chunks(PrefetchChunks::Fixed(2));
    for offset in 12..17 {
        sim.read(&handle, "large", 1, offset * MIB, MIB).await;
    }
    let ahead = handle.resident().last().unwrap().end;
    // Those that were in flight lie at the beginning of the window.
    assert!(ahead <= (4 + 1 + 4) * CHUNK, "{ahead}");
    assert!(sim.metrics.cancelled_fetches.get() > 20);
}

#[tokio::test(start_paused = true)]
async fn small_objects_are_asked_for_at_open_with_one_get() {
    let sim = sim(cloud(), ByteSize::mib(256), Options::default());
    sim.store.put_synthetic("small", 100_000);
    let handle = sim.open("small", 100_000);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = Instant::now();
    sim.read(&handle, "small", 1, 0, MIB).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(sim.store.requests().len(), 1);
    assert_eq!(sim.gets()[0].range, Some(0..100_000));
}

#[tokio::test(start_paused = true)]
async fn a_read_past_the_end_is_empty_and_one_over_the_end_is_short() {
    let sim = sim(cloud(), ByteSize::mib(256), Options::default());
    let handle = sim.open("file", 10 * MIB + 5);
    assert!(handle.read(1, 11 * MIB, 4096).await.unwrap().is_empty());
    assert_eq!(handle.read(1, 10 * MIB, 4096).await.unwrap().len(), 5);
    let empty = sim.open("empty", 0);
    assert!(empty.read(1, 0, 4096).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_replaced_while_it_is_read_fails_and_is_never_mixed() {
    let sim = sim(cloud(), ByteSize::mib(256), fixed(2));
    let handle = sim.open("file", 64 * MIB);
    sim.read(&handle, "file", 1, 0, MIB).await;
    let old = sim.store.synthetic("file").unwrap();
    sim.store.put_synthetic("file", 64 * MIB);
    let mut failed = None;
    for offset in (MIB..64 * MIB).step_by(MIB as usize) {
        match handle.read(1, offset, MIB as usize).await {
            Ok(data) => assert!(data.slices().all(|slice| old.matches(offset, slice)), "bytes of two versions"),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    assert!(matches!(failed, Some(ReadError::Store(error)) if error.kind == ErrorKind::Replaced));
}

#[tokio::test(start_paused = true)]
async fn a_failed_prefetch_is_asked_for_again_when_it_is_read() {
    let sim = sim(cloud(), ByteSize::mib(256), fixed(4));
    sim.store.fault(Rule::new(Fault::Error(ErrorKind::Unavailable)).op(Op::Get).nth(3));
    let handle = sim.open("file", 64 * MIB);
    sim.read(&handle, "file", 1, 0, MIB).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for offset in (MIB..64 * MIB).step_by(MIB as usize) {
        sim.read(&handle, "file", 1, offset, MIB).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_handle_gives_its_window_back() {
    let sim = sim(cloud(), ByteSize::gib(1), fixed(32));
    let handle = sim.open("file", 1 << 30);
    for offset in 0..8 {
        sim.read(&handle, "file", 1, offset * MIB, MIB).await;
    }
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(sim.budget.leased_bytes() > 0);
    sim.reader.on_time();
    tokio::task::yield_now().await;
    assert_eq!(sim.budget.leased_bytes(), 0);
    sim.read(&handle, "file", 1, 8 * MIB, MIB).await;
}

#[tokio::test(start_paused = true)]
async fn auto_opens_the_window_further_only_where_it_pays() {
    // A link of 33 connections: more in flight brings nothing.
    let full = Plan { bandwidth: Bandwidth { per_connection: Some(PER_CONNECTION), total: Some(12 * PER_CONNECTION) }, ..cloud() };
    for (plan, low, high) in [(cloud(), 64, 256), (full, 16, 66)] {
        let sim = sim(plan, ByteSize::gib(4), Options::default());
        let handle = sim.open("huge", 8 << 30);
        for offset in (0..3u64 << 30).step_by(MIB as usize) {
            sim.read(&handle, "huge", 1, offset, MIB).await;
        }
        let resident = handle.resident().len();
        assert!((low..=high).contains(&resident), "{resident} chunks, expected {low} to {high}");
        let delivered: u64 = sim.gets().iter().map(|get| get.delivered).sum();
        let prefix = handle.resident().last().map_or(0, |range| range.end);
        assert!(delivered <= prefix, "narrowing the window threw away {} bytes", delivered - prefix);
    }
}

#[tokio::test(start_paused = true)]
async fn a_strided_reader_fetches_what_it_reads_and_waits_for_few_round_trips() {
    let sim = sim(cloud(), ByteSize::gib(1), Options::default());
    let handle = sim.open("k", 1024 * MIB);
    let started = Instant::now();
    for n in 0..256 {
        sim.read(&handle, "k", 1, (256 + n) * MIB, 128 << 10).await;
    }
    let fetched: u64 = sim.gets().iter().map(|get| get.range.as_ref().map_or(0, |range| range.end - range.start)).sum();
    assert!(fetched <= (256 + 64) * (128 << 10), "{fetched}");
    assert!(started.elapsed() < 20 * FIRST_BYTE, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_backward_in_its_chunks_waits_for_few_round_trips() {
    let sim = sim(cloud(), ByteSize::gib(1), Options::default());
    let handle = sim.open("k", 1024 * MIB);
    let started = Instant::now();
    for chunk in 64..96 {
        for n in (0..32).rev() {
            sim.read(&handle, "k", 1, chunk * CHUNK + n * (128 << 10), 128 << 10).await;
        }
    }
    let fetched: u64 = sim.gets().iter().map(|get| get.range.as_ref().map_or(0, |range| range.end - range.start)).sum();
    assert!(fetched <= (32 + 6) * CHUNK, "{fetched}");
    assert!(started.elapsed() < 40 * FIRST_BYTE, "{:?}", started.elapsed());
}

/// However many there are, and also in an object that would be fetched as a whole if it were read at random.
#[tokio::test(start_paused = true)]
async fn looks_back_by_the_way_fetch_nothing() {
    let sim = sim(cloud(), ByteSize::gib(8), Options { backward_chunks: 32, ..Options::default() });
    let size = 256 * CHUNK;
    let handle = sim.open("k", size);
    let mut looks = 0;
    for offset in (0..size).step_by(MIB as usize) {
        sim.read(&handle, "k", 1, offset, MIB).await;
        if offset > 33 * CHUNK && (offset / MIB).is_multiple_of(9) {
            looks += 1;
            sim.read(&handle, "k", 1, offset - (looks * looks * 7919 % 10_007 % 31 + 1) * CHUNK, MIB).await;
        }
    }
    assert!(looks > 90, "{looks}");
    assert_eq!(asked(&sim.gets()), size);
}

#[tokio::test(start_paused = true)]
async fn jumps_back_into_the_chunks_that_are_kept_fetch_nothing() {
    let options = Options { backward_chunks: 32, ..fixed(4) };
    let sim = sim(cloud(), ByteSize::gib(1), options);
    let handle = sim.open("k", 64 * CHUNK);
    for offset in (0..40 * CHUNK).step_by(MIB as usize) {
        sim.read(&handle, "k", 1, offset, MIB).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = sim.gets().len();
    // Single looks, each from the front.
    for back in 1..=32 {
        sim.read(&handle, "k", 1, (39 - back) * CHUNK + MIB, MIB).await;
        sim.read(&handle, "k", 1, 40 * CHUNK - MIB, MIB).await;
    }
    assert_eq!(sim.gets().len(), before, "a look back was fetched");
    // All the way back, and forward again.
    for offset in (7 * CHUNK..40 * CHUNK).step_by(MIB as usize) {
        sim.read(&handle, "k", 1, offset, MIB).await;
    }
    assert_eq!(sim.gets().len(), before, "what was kept was fetched again");
    sim.read_all(&handle, "k", 1, MIB).await;
    let again: u64 = sim.gets().iter().map(|get| get.range.as_ref().map_or(0, |range| range.end - range.start)).sum();
    // The first seven chunks had been let go.
    assert!(again <= (64 + 7) * CHUNK, "{again}");
}

#[tokio::test(start_paused = true)]
async fn panicking_get_fails_its_readers_and_is_asked_anew() {
    let sim = sim(cloud(), ByteSize::mib(64), fixed(1));
    let handle = sim.open("object", CHUNK);
    let is_first = std::sync::atomic::AtomicBool::new(true);
    sim.store.fault(Rule::new(Fault::Lost).op(Op::Get).when(move |_, _| {
        if is_first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("a defect"));
        }
        false
    }));
    let reads = join_all([0, MIB, 2 * MIB].map(|offset| handle.read(1, offset, MIB as usize)));
    let start = Instant::now();
    for result in reads.await {
        let Err(ReadError::Store(error)) = result else { panic!("the bytes cannot have come") };
        assert_eq!(error.kind, ErrorKind::Unavailable);
    }
    assert!(start.elapsed() < Duration::from_secs(1), "they wait for the deadline: {:?}", start.elapsed());
    sim.read_all(&handle, "object", 1, MIB).await;
}

/// Reads as the kernel does for a program: one read of read-ahead is under way beside the one that is waited for.
async fn read_as_the_kernel(sim: &Sim, key: &str, size: u64, len: u64) {
    let handle = sim.open(key, size);
    let reads = (0..size).step_by(len as usize).map(|offset| sim.read(&handle, key, 1, offset, len));
    futures::stream::iter(reads).buffered(2).for_each(async |()| ()).await;
}

#[tokio::test(start_paused = true)]
async fn reads_that_together_need_more_than_the_memory_never_wait_for_each_other() {
    for (limit, readers, len) in [(64, 6, 1), (64, 12, 8), (32, 3, 8), (16, 3, 4), (64, 64, 2)] {
        let sim = sim(cloud(), ByteSize::mib(limit), Options::default());
        let start = Instant::now();
        let keys: Vec<_> = (0..readers).map(|reader| format!("k{reader}")).collect();
        join_all(keys.iter().map(|key| read_as_the_kernel(&sim, key, 32 * MIB, len * MIB))).await;
        let bytes: u64 = sim.gets().iter().map(|get| get.delivered).sum();
        println!("{limit} MiB, {readers} readers of {len} MiB: {:?} of virtual time, {} GETs", start.elapsed(), sim.gets().len());
        assert!(bytes < readers * 32 * MIB / 8 * 9, "{bytes} bytes were fetched: they took it from each other");
        assert!(sim.budget.usage().peak_bytes <= (limit as usize) << 20);
    }
}
