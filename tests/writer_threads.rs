//! One content in the hands of many threads, as the kernel gives it: whatever they do at the same time, nothing hangs or breaks,
//! and the bytes that only one of them writes are there.

#[path = "support/receiving.rs"]
mod receiving;

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::store::memory::Memory;
use windlass::store::{Condition, Headers};
use windlass::units::ByteSize;
use windlass::writer::{Allocate, Content, Limits, Options, Writer, staging};

const THREADS: u64 = 4;
const ROUNDS: usize = 300;

fn sim(disk: &std::path::Path, memory: ByteSize) -> (Arc<Memory>, Arc<Budget>, Writer) {
    let store = Arc::new(Memory::default());
    store.set_least_part(1000);
    let budget = Budget::new(&budget::Options { memory_limit: Some(memory) });
    let limits = Limits { least_part: 1000, copied_part: 4000, ahead: 3000, kept: 2000, received: 20, ..Limits::default() };
    let staging = staging::Options { dir: Some(disk.to_owned()), ..staging::Options::default() };
    let options = Options { part_size: ByteSize::bytes(1000), concurrency: Some(3), limits, staging, ..Options::default() };
    let writer = Writer::new(store.clone(), budget.clone(), Arc::new(Metrics::default()), options, "threads");
    (store, budget, writer)
}

async fn anything(content: &Content, writer: &Writer, random: &mut StdRng) {
    let (at, len) = (random.random_range(0..8000), random.random_range(1..1500));
    match random.random_range(0..100) {
        0..50 => {
            receiving::write(content, at, &vec![random.random(); len], writer.landing()).await;
        }
        50..75 => assert!(content.read(at, len).await.unwrap().len() <= len),
        75..83 => drop(content.commit(Condition::Any).await.unwrap()),
        83..88 => content.truncate(0).await.unwrap(),
        88..93 => content.truncate(at).await.unwrap(),
        93..97 => content.allocate(at, len as u64, Allocate::Zero { keep_size: true }).await.unwrap(),
        _ => content.set_headers(Headers { content_type: Some(format!("{at}")), ..Headers::default() }),
    }
}

/// Little memory, and enough for each thread to receive into a landing.
const MEMORY: [ByteSize; 2] = [ByteSize::mib(1), ByteSize::mib(256)];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn anything_at_the_same_time_hangs_and_breaks_nothing() {
    for memory in MEMORY {
        anything_at_the_same_time(memory).await;
    }
}

async fn anything_at_the_same_time(memory: ByteSize) {
    let disk = tempfile::tempdir().unwrap();
    let (store, budget, writer) = sim(disk.path(), memory);
    let content = writer.create("a".into(), Headers::default());
    let tasks = (0..THREADS).map(|seed| {
        let (content, writer) = (Arc::clone(&content), writer.clone());
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            for _ in 0..ROUNDS {
                anything(&content, &writer, &mut random).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    content.commit(Condition::Any).await.unwrap();
    let read = content.read(0, 100_000).await.unwrap();
    assert!(store.content("a").unwrap() == read);
    drop(content);
    writer.settle().await;
    assert!(store.uploads().is_empty());
    assert_eq!((std::fs::read_dir(disk.path().join("staging")).map_or(0, Iterator::count), budget.leased_bytes()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_thread_finds_what_it_wrote_while_others_commit() {
    for memory in MEMORY {
        each_thread_finds_what_it_wrote(memory).await;
    }
}

async fn each_thread_finds_what_it_wrote(memory: ByteSize) {
    let disk = tempfile::tempdir().unwrap();
    let (store, _, writer) = sim(disk.path(), memory);
    let content = writer.create("a".into(), Headers::default());
    let tasks = (0..THREADS).map(|thread| {
        let (content, writer) = (Arc::clone(&content), writer.clone());
        tokio::spawn(async move {
            for round in 0..100_u64 {
                // Stripes of 50 bytes, so that all of them are in all parts.
                let at = (round * THREADS + thread) * 50;
                let data = [(thread * 60 + round % 60) as u8; 50];
                receiving::write(&content, at, &data, writer.landing()).await;
                if round % 25 == thread {
                    content.commit(Condition::Any).await.unwrap();
                }
                assert_eq!(content.read(at, 50).await.unwrap(), data[..]);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    content.commit(Condition::Any).await.unwrap();
    let stored = store.content("a").unwrap();
    let stripes = stored.chunks(50).enumerate();
    assert!(stripes.clone().all(|(n, stripe)| {
        let (round, thread) = (n as u64 / THREADS, n as u64 % THREADS);
        stripe.iter().all(|&byte| u64::from(byte) == thread * 60 + round % 60)
    }));
    assert_eq!(stripes.count() as u64, 100 * THREADS);
}
