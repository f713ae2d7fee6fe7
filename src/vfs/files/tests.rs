use std::time::Duration;

use async_trait::async_trait;

use super::*;
use crate::budget::{self, Budget};
use crate::store::memory::{Fault, Latency, Memory, Plan, Rule};
use crate::store::{Key, ListPage, ListRequest, ObjectStore, Op, RangeRequest, RangeSink};
use crate::vfs::Options;
use crate::vfs::open_file::REPEATED_WITHIN;
use crate::{metrics::Metrics, reader, units::ByteSize};

/// A store that lists no etags.
#[derive(Debug)]
struct Untagged(Memory);

#[async_trait]
impl ObjectStore for Untagged {
    async fn head(&self, key: &Key) -> store::Result<ObjectMeta> {
        self.0.head(key).await
    }

    async fn list(&self, request: &ListRequest) -> store::Result<ListPage> {
        let mut page = self.0.list(request).await?;
        page.objects.iter_mut().for_each(|object| object.etag = ETag::from(""));
        Ok(page)
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> store::Result<()> {
        self.0.get_range(request, sink).await
    }
}

fn mounted(store: impl ObjectStore) -> (Arc<Names>, Arc<Files>) {
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) });
    let deadline = std::time::Duration::from_secs(60);
    let reader = Reader::new(Arc::clone(&store), budget, Arc::new(Metrics::default()), reader::Options::default(), deadline);
    let names = Names::new(store, Options::default());
    (Arc::clone(&names), Files::new(names, reader))
}

/// Lists the root as readdirplus does; the inode of its only file.
async fn listed(names: &Arc<Names>) -> Inode {
    let directory = names.open_dir(Inode::ROOT).unwrap();
    let mut found = None;
    directory.read_plus(0).await.unwrap().fill_plus(|item, entry| {
        found = (item.name == b"a").then_some(entry.attr.ino);
        false
    });
    found.unwrap()
}

async fn content(files: &Files, opened: Opened) -> Vec<u8> {
    let file = files.get(opened.handle).unwrap();
    let read = file.begin(1, 0, 4096).unwrap();
    let data = files.finish(&file, read).await.unwrap();
    data.slices().collect::<Vec<_>>().concat()
}

#[tokio::test(start_paused = true)]
async fn what_was_listed_with_its_etag_opens_without_a_request() {
    let store = Memory::default();
    store.put("a", "one");
    let (names, files) = mounted(store.clone());
    let opened = files.try_open(listed(&names).await, false).unwrap().unwrap();
    assert_eq!((content(&files, opened).await, store.count(Op::Head)), (b"one".to_vec(), 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_listed_without_etag_is_asked_for_once_when_it_is_opened() {
    let store = Memory::default();
    store.put("a", "one");
    let (names, files) = mounted(Untagged(store.clone()));
    let ino = listed(&names).await;
    assert!(files.try_open(ino, false).is_none());
    let opened = files.open(ino, false).await.unwrap();
    assert_eq!((content(&files, opened).await, store.count(Op::Head)), (b"one".to_vec(), 1));
    assert!(files.try_open(ino, false).is_some(), "the version is known by now");
    let listings = store.count(Op::List);
    assert!(names.try_getattr(ino).is_some());
    assert_eq!((store.count(Op::Head), store.count(Op::List)), (1, listings));
}

#[tokio::test(start_paused = true)]
async fn what_is_looked_up_has_its_version_also_when_listings_tell_none() {
    let store = Memory::default();
    store.put("a", "one");
    let (names, files) = mounted(Untagged(store.clone()));
    let ino = names.lookup(Inode::ROOT, b"a").await.unwrap().attr.ino;
    assert!(files.try_open(ino, false).is_some());
    assert_eq!((store.count(Op::Head), store.count(Op::List)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_kernel_is_told_when_the_open_finds_another_size_than_the_listing() {
    let store = Memory::default();
    store.put("a", "one");
    let (names, files) = mounted(Untagged(store.clone()));
    let ino = listed(&names).await;
    store.put("a", "longer");
    let opened = files.open(ino, false).await.unwrap();
    assert_eq!(content(&files, opened).await, b"longer");
    let changes = files.next_changes().await;
    assert_eq!((changes.inodes, changes.old_pages), (vec![ino], vec![]));
}

/// Answers the kernel's side of [`Files::next_changes`] once.
async fn told(files: &Files) -> Changes {
    let changes = files.next_changes().await;
    files.told(&changes);
    changes
}

#[tokio::test(start_paused = true)]
async fn pages_are_dropped_only_where_there_are_old_ones() {
    let store = Memory::default();
    store.put("a", "one");
    let (names, files) = mounted(store.clone());
    let ino = listed(&names).await;
    let opened = files.try_open(ino, false).unwrap().unwrap();
    store.put("a", "longer");
    let (read, changes) = tokio::join!(content(&files, opened), told(&files));
    assert_eq!((&read[..], changes.inodes, changes.old_pages), (&b"longer"[..], vec![ino], vec![]));
    files.release(opened.handle);
    // One that reads past the pages moves on although there are some.
    let direct = files.try_open(ino, true).unwrap().unwrap();
    store.put("a", "the third");
    let (read, changes) = tokio::join!(content(&files, direct), told(&files));
    assert_eq!((&read[..], changes.inodes, changes.old_pages), (&b"the third"[..], vec![ino], vec![]));
    // Each open drops them until one has read: two replies may reach the kernel in any order.
    let [first, second] = [(); 2].map(|()| files.try_open(ino, false).unwrap().unwrap());
    assert!(!first.keep_pages && !second.keep_pages);
    assert_eq!(content(&files, second).await, b"the third");
    assert!(files.try_open(ino, false).unwrap().unwrap().keep_pages);
}

#[tokio::test(start_paused = true)]
async fn one_that_reads_past_the_pages_does_not_move_on_beside_one_that_reads_through_them() {
    const SIZE: u64 = 64 << 20;
    let store = Memory::default();
    store.put_synthetic("a", SIZE);
    let (names, files) = mounted(store.clone());
    let ino = listed(&names).await;
    let at = async |opened: Opened, offset: u64| {
        let file = files.get(opened.handle).unwrap();
        let read = file.begin(1, offset, 4096).unwrap();
        files.finish(&file, read).await
    };
    let [paged, direct] = [false, true].map(|direct| files.try_open(ino, direct).unwrap().unwrap());
    at(paged, 0).await.unwrap();
    store.put_synthetic("a", SIZE);
    // Not in memory: it is asked for, and another version is there.
    let stale = at(direct, SIZE - 4096).await;
    assert!(matches!(stale, Err(Error::Stale(_))), "{stale:?}");
    // Who opens it now gets an inode, and pages, of its own.
    assert!(matches!(files.open(ino, false).await, Err(Error::Retired)));
    // Nor beside another that reads past the pages: the inode has one size.
    [paged, direct].iter().for_each(|opened| files.release(opened.handle));
    let first = files.open(ino, true).await.unwrap();
    let second = files.try_open(ino, true).unwrap().unwrap();
    at(first, 0).await.unwrap();
    store.put_synthetic("a", SIZE + 1);
    let (stale, _) = tokio::join!(at(second, SIZE - 4095), told(&files));
    assert!(matches!(stale, Err(Error::Stale(_))), "{stale:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_stays_with_a_longer_version_counts_as_a_reader_of_the_pages_of_the_next() {
    let store = Memory::default();
    store.put("a", "the longer one");
    let (names, files) = mounted(store.clone());
    let ino = listed(&names).await;
    let _first = files.try_open(ino, false).unwrap().unwrap();
    store.put("a", "shorter");
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    let (second, _) = tokio::join!(files.open(ino, false), told(&files));
    let second = second.unwrap();
    assert_eq!(content(&files, second).await, b"shorter");
    files.release(second.handle);
    // What the first handle reads may come from pages that the second one has filled.
    store.put("a", "the next");
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    assert!(matches!(files.open(ino, false).await, Err(Error::Retired)));
    // The name has another inode from then on.
    let next = listed(&names).await;
    let third = files.open(next, false).await.unwrap();
    assert_eq!(content(&files, third).await, b"the next");
    assert!(next != ino);
}

/// A store of one object whose GETs fail after ten seconds.
fn silent(size: u64) -> Memory {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(Duration::from_secs(10)), ..Plan::default() });
    store.put_synthetic("a", size);
    store.fault(Rule::new(Fault::Error(ErrorKind::Timeout)).op(Op::Get));
    store
}

#[tokio::test(start_paused = true)]
async fn what_the_kernel_repeats_after_a_long_wait_has_the_same_answer_once() {
    for direct in [false, true] {
        let (names, files) = mounted(silent(4096));
        let opened = files.try_open(listed(&names).await, direct).unwrap().unwrap();
        let file = files.get(opened.handle).unwrap();
        let begin = || file.begin(1, 0, 4096);
        let fails = async |read: Result<Read>| files.finish(&file, read.unwrap()).await.unwrap_err();
        fails(begin()).await;
        // Nothing comes through the kernel's pages to a direct handle: that is the program, which asks again.
        assert_eq!(begin().is_err(), !direct, "the kernel");
        // The page stays, and the kernel asks for it once for each read of the program.
        fails(begin()).await;
        fails(begin()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_again_later_or_for_another_page_is_not_answered_from_a_failure_before() {
    let (names, files) = mounted(silent(8192));
    let ino = listed(&names).await;
    for (offset, after) in [(4096, Duration::ZERO), (0, REPEATED_WITHIN)] {
        let file = files.get(files.try_open(ino, false).unwrap().unwrap().handle).unwrap();
        files.finish(&file, file.begin(1, 0, 4096).unwrap()).await.unwrap_err();
        tokio::time::advance(after).await;
        assert!(file.begin(1, offset, 4096).is_ok(), "{offset} after {after:?}");
    }
}
