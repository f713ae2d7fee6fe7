//! Random changes of one content against a vector of bytes: what is read, and what the store has after each commit. Parts, memory
//! and what is kept of it are so small that every way through the writer is taken.

#[path = "support/receiving.rs"]
mod receiving;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::store::memory::{Memory, Synthetic};
use windlass::store::{Condition, Headers, Key, LARGEST_COPY};
use windlass::units::ByteSize;
use windlass::writer::{Allocate, Content, Limits, Options, Writer, staging};

#[derive(Clone, Debug)]
enum Change {
    Append(usize),
    Write(u64, usize),
    Read(u64, usize),
    Truncate(u64),
    Allocate(u64, u64, Allocate),
    Commit,
    Rename(u8),
    Headers(u8),
    HandOver,
}

fn change() -> impl Strategy<Value = Change> {
    let (at, len) = (0u64..12_000, 1usize..3000);
    let how = prop_oneof![
        Just(Allocate::Extend),
        Just(Allocate::KeepSize),
        Just(Allocate::Zero { keep_size: true }),
        Just(Allocate::Zero { keep_size: false }),
        Just(Allocate::Punch),
    ];
    prop_oneof![
        12 => len.clone().prop_map(Change::Append),
        4 => (at.clone(), len.clone()).prop_map(|(at, len)| Change::Write(at, len)),
        4 => (at.clone(), len.clone()).prop_map(|(at, len)| Change::Read(at, len)),
        2 => prop_oneof![Just(0), at.clone()].prop_map(Change::Truncate),
        1 => (at, len, how).prop_map(|(at, len, how)| Change::Allocate(at, len as u64, how)),
        3 => Just(Change::Commit),
        1 => (0u8..3).prop_map(Change::Rename),
        1 => (0u8..3).prop_map(Change::Headers),
        2 => Just(Change::HandOver),
    ]
}

/// What the content should be.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    key: u8,
    headers: Headers,
    /// What the bucket should hold.
    objects: BTreeMap<Key, Vec<u8>>,
}

impl Model {
    fn key(&self) -> Key {
        Key::from(format!("k{}", self.key))
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        let end = at as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at as usize..end].copy_from_slice(data);
    }

    fn allocate(&mut self, at: u64, len: u64, how: Allocate) {
        let (at, end) = (at as usize, (at + len) as usize);
        let grows = matches!(how, Allocate::Extend | Allocate::Zero { keep_size: false });
        if grows && self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        if matches!(how, Allocate::Punch | Allocate::Zero { .. }) {
            let end = end.min(self.bytes.len());
            self.bytes[at.min(end)..end].fill(0);
        }
    }
}

fn options(largest_copy: u64, disk: &std::path::Path) -> Options {
    let limits = Limits { least_part: 1000, copied_part: 3000, ahead: 3000, kept: 2000, received: 20, largest_copy, ..Limits::default() };
    let staging = staging::Options { dir: Some(disk.to_owned()), ..staging::Options::default() };
    Options { part_size: ByteSize::bytes(1000), concurrency: Some(3), limits, staging, ..Options::default() }
}

/// The bucket moves what is there, as a rename does, and the content hears of it.
async fn rename(store: &Memory, content: &Content, model: &mut Model, to: u8) {
    let old = model.key();
    model.key = to;
    let new = model.key();
    if old == new {
        return;
    }
    let moved = store.content(old.clone());
    if let Some(bytes) = &moved {
        let headers = store.headers(old.clone()).unwrap();
        store.put(new.clone(), bytes.clone());
        store.set_headers(new.clone(), headers);
        store.delete(old.clone());
        let bytes = model.objects.remove(&old).unwrap();
        model.objects.insert(new.clone(), bytes);
    }
    content.freeze().await.rename(new.clone(), moved.and_then(|_| store.meta(new))).await;
}

async fn run(existing: Option<usize>, changes: Vec<Change>, largest_copy: u64, landings: bool, check: impl Fn(&str, &[u8], &[u8])) {
    let disk = tempfile::tempdir().unwrap();
    let store = Arc::new(Memory::default());
    store.set_least_part(1000);
    let budget = Budget::new(&budget::Options { memory_limit: Some(if landings { ByteSize::mib(64) } else { ByteSize::kib(640) }) });
    let daemon = || {
        let metrics = Arc::new(Metrics::default());
        let writer = Writer::new(store.clone(), budget.clone(), metrics, options(largest_copy, disk.path()), "model");
        writer.write_down_changes();
        writer
    };
    let mut writer = daemon();
    let mut model = Model::default();
    let mut content = match existing {
        None => writer.create(model.key(), Headers::default()),
        Some(len) => {
            model.bytes = vec![0; len];
            Synthetic::new(77).fill(0, &mut model.bytes);
            store.put(model.key(), model.bytes.clone());
            model.objects.insert(model.key(), model.bytes.clone());
            writer.edit(store.meta(model.key()).unwrap(), Headers::default())
        }
    };
    for (n, change) in changes.into_iter().chain([Change::Commit]).enumerate() {
        let data = |at: u64, len: usize| {
            let mut data = vec![0; len];
            Synthetic::new(n as u64).fill(at, &mut data);
            data
        };
        match change {
            Change::Append(len) => {
                let at = content.size();
                receiving::write(&content, at, &data(at, len), writer.landing()).await;
                model.write(at, &data(at, len));
            }
            Change::Write(at, len) => {
                receiving::write(&content, at, &data(at, len), writer.landing()).await;
                model.write(at, &data(at, len));
            }
            Change::Read(at, len) => {
                let (start, end) = ((at as usize).min(model.bytes.len()), (at as usize + len).min(model.bytes.len()));
                check("read", &content.read(at, len).await.unwrap(), &model.bytes[start..end]);
            }
            Change::Truncate(size) => {
                content.truncate(size).await.unwrap();
                model.bytes.resize(size as usize, 0);
            }
            Change::Allocate(at, len, how) => {
                content.allocate(at, len, how).await.unwrap();
                model.allocate(at, len, how);
            }
            Change::Commit => {
                let meta = content.commit(Condition::Any).await.unwrap();
                if let Some(meta) = meta {
                    assert_eq!(Some((&meta.etag, meta.size)), store.meta(model.key()).as_ref().map(|meta| (&meta.etag, meta.size)));
                    model.objects.insert(model.key(), model.bytes.clone());
                }
                assert!(!content.is_dirty());
                check("committed", &store.content(model.key()).unwrap(), &model.bytes);
                assert_eq!(store.headers(model.key()).unwrap(), model.headers);
            }
            Change::Rename(to) => {
                // A commit that had to be made early is an object that a rename would find, too.
                if let Some(bytes) = store.content(model.key()) {
                    model.objects.insert(model.key(), bytes.to_vec());
                }
                rename(&store, &content, &mut model, to).await;
            }
            Change::HandOver => {
                // No later commit reports what was stored early.
                if let Some(bytes) = store.content(model.key()) {
                    model.objects.insert(model.key(), bytes.to_vec());
                }
                content.belong_to(7);
                assert!(content.hand_over(std::time::Duration::from_secs(60)).await);
                drop(content);
                writer.settle().await;
                writer = daemon();
                content = match writer.take_over(&[7].into()).await.remove(&7) {
                    Some(content) => content,
                    // The store had all of it.
                    None => writer.edit(store.meta(model.key()).unwrap(), model.headers.clone()),
                };
            }
            Change::Headers(n) => {
                model.headers.metadata.insert("n".into(), n.to_string());
                content.set_headers(model.headers.clone());
            }
        }
        assert_eq!(content.size() as usize, model.bytes.len());
    }
    content.give_up().await;
    assert!(!content.is_lost());
    check("read", &content.read(0, 100_000).await.unwrap(), &model.bytes);
    drop(content);
    writer.settle().await;
    assert_eq!(store.uploads(), []);
    assert_eq!(store.keys(), model.objects.keys().cloned().collect::<Vec<_>>());
    for (key, bytes) in &model.objects {
        check("object", &store.content(key.clone()).unwrap(), bytes);
    }
    assert_eq!(std::fs::read_dir(disk.path().join("staging")).map_or(0, Iterator::count), 0);
    assert_eq!(budget.leased_bytes(), 0);
}

fn same(what: &str, left: &[u8], right: &[u8]) {
    let at = left.iter().zip(right).position(|(a, b)| a != b);
    assert!(left == right, "{what}: {} and {} bytes, the first difference at {at:?}", left.len(), right.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn content_is_what_was_written(
        existing in proptest::option::of(0usize..10_000),
        changes in proptest::collection::vec(change(), 1..25),
        largest_copy in prop_oneof![Just(LARGEST_COPY), Just(2000)],
        landings in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run(existing, changes, largest_copy, landings, same));
    }
}

/// Found by chance: what a commit tells of was moved between an early commit, made for a read, and the one that tells of it.
#[tokio::test(start_paused = true)]
async fn an_early_commit_is_told_of_where_it_was_moved_to() {
    let appends = [1, 1184, 2985, 1141, 1690].map(Change::Append);
    let changes = appends.into_iter().chain([Change::Write(6000, 1), Change::Read(0, 1001), Change::Rename(1)]).collect();
    run(None, changes, LARGEST_COPY, false, same).await;
}
