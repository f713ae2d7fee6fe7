//! A reader whose options are changed while it reads, over a simulated store on tokio's paused clock: what is fetched and kept before and
//! after is exact.

use std::sync::Arc;
use std::time::Duration;

use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::reader::{Holding, ObjectHandle, Options, PrefetchChunks, Reader};
use windlass::store::Op;
use windlass::store::memory::{Bandwidth, Latency, Memory, Plan};
use windlass::units::ByteSize;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4 * MIB;
const SIZE: u64 = 256 * MIB;

fn sim(options: Options) -> (Arc<Memory>, Reader, ObjectHandle) {
    let plan =
        Plan { first_byte: Latency::Fixed(Duration::from_millis(20)), bandwidth: Bandwidth { per_connection: None, total: None }, seed: 1 };
    let store = Arc::new(Memory::new(plan));
    store.put_synthetic("k", SIZE);
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::gib(1)) });
    let reader = Reader::new(store.clone(), budget, Arc::new(Metrics::default()), options, Duration::from_secs(60));
    let handle = reader.open(&store.meta("k").unwrap());
    (store, reader, handle)
}

async fn read(handle: &ObjectHandle, chunks: std::ops::Range<u64>) {
    for offset in (chunks.start * CHUNK..chunks.end * CHUNK).step_by(MIB as usize) {
        handle.read(1, offset, MIB as usize).await.unwrap();
    }
    // What was begun comes.
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// The chunks that are held: the first and the one after the last.
fn held(handle: &ObjectHandle) -> (u64, u64) {
    let resident = handle.resident();
    (resident.first().unwrap().start / CHUNK, resident.last().unwrap().end / CHUNK)
}

fn fixed(chunks: u32, backward: u32) -> Options {
    Options { prefetch_chunks: PrefetchChunks::Fixed(chunks), backward_chunks: backward, ..Options::default() }
}

#[tokio::test(start_paused = true)]
async fn a_window_is_as_wide_as_was_said_last() {
    let (_, reader, handle) = sim(fixed(4, 1));
    read(&handle, 0..4).await;
    assert_eq!(held(&handle), (2, 8));
    reader.set_prefetch_chunks(PrefetchChunks::Fixed(16));
    read(&handle, 4..8).await;
    assert_eq!(held(&handle), (6, 24));
    reader.set_prefetch_chunks(PrefetchChunks::Fixed(0));
    read(&handle, 8..30).await;
    assert_eq!(held(&handle), (28, 30));
    assert_eq!(reader.options().prefetch_chunks, PrefetchChunks::Fixed(0));
}

#[tokio::test(start_paused = true)]
async fn as_much_is_kept_behind_a_reader_as_was_said_last() {
    let (_, reader, handle) = sim(fixed(2, 1));
    read(&handle, 0..4).await;
    reader.set_backward_chunks(5);
    read(&handle, 4..12).await;
    assert_eq!(held(&handle), (6, 14));
    reader.set_backward_chunks(0);
    read(&handle, 12..14).await;
    assert_eq!(held(&handle), (13, 16));
}

#[tokio::test(start_paused = true)]
async fn as_many_requests_are_in_flight_as_was_said_last() {
    let (store, reader, handle) = sim(Options { prefetch_concurrency: Some(1), ..fixed(16, 1) });
    let pending = handle.begin(1, 0, MIB as usize);
    for offset in (0..CHUNK).step_by(MIB as usize) {
        drop(handle.begin(1, offset, MIB as usize));
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(store.count(Op::Get), 1, "the others queue");
    reader.set_concurrency(Some(4));
    tokio::time::sleep(Duration::from_millis(1)).await;
    // A quarter of the places is kept for readers that wait.
    assert_eq!((store.count(Op::Get), reader.concurrency()), (3, 4));
    drop(pending);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_told_apart_by_what_it_is_for() {
    let (_, reader, handle) = sim(fixed(4, 1));
    assert_eq!(reader.holding(), Holding { handles: 1, ..Holding::default() });
    handle.read(1, 100 * MIB, 4096).await.unwrap();
    let holding = reader.holding();
    assert_eq!((holding.streams, holding.stream_bytes, holding.handles), (0, 0, 1));
    assert!(holding.handle_bytes >= 4096 && holding.handle_bytes <= 256 << 10, "{holding:?}");
    read(&handle, 0..4).await;
    let (before, holding) = (holding, reader.holding());
    assert_eq!((holding.streams, holding.stream_bytes, holding.handle_bytes), (1, 6 * CHUNK, before.handle_bytes));
    drop(handle);
    assert_eq!((reader.holding().handles, reader.holding().stream_bytes), (0, 0));
}
