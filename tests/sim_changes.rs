//! What programs change in a mount, over the store in memory on a paused clock: what rm -r, tar and git cost in requests and time, and that
//! everybody sees what was changed although nobody asks the store for it.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use proptest::prelude::*;
use tokio::time::{Instant, sleep};
use windlass::store::memory::{Latency, Memory, Plan};
use windlass::store::{Key, ObjectStore, Op};
use windlass::vfs::{Access, Caller, Edits, Error, Files, Inode, Names, NewAttributes, Options, PosixAttributes, SetAttributes};
use windlass::writer;

use support::model::{How, Node, World};
use support::vfs_world::VfsWorld;

const RTT: Duration = Duration::from_millis(20);

const NEW: How = How { create: true, exclusive: false, truncate: false };

const ME: Caller = Caller { uid: 0, gid: 0, thread: 1 };

fn bench() -> (Memory, VfsWorld) {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(RTT), ..Plan::default() });
    let world = VfsWorld::new(Arc::new(store.clone()), writer::Options::default());
    (store, world)
}

/// Requests since the last time: LISTs, PUTs, DELETEs. There are no others.
fn requests(store: &Memory) -> (usize, usize, usize) {
    let counts = (store.count(Op::List), store.count(Op::Put), store.count(Op::Delete));
    assert_eq!(store.requests().len(), counts.0 + counts.1 + counts.2, "{:?}", store.requests());
    store.reset_log();
    counts
}

fn write(world: &mut VfsWorld, path: &str) {
    world.open(0, path, NEW).expect("it can be made");
    world.write(0, 0, b"content").expect("there is room");
    world.close(0).expect("it is stored");
}

/// What `act` took of the time of the simulation.
fn time(world: &mut VfsWorld, act: impl FnOnce(&mut VfsWorld)) -> Duration {
    let now = |world: &VfsWorld| world.runtime.block_on(async { Instant::now() });
    let began = now(world);
    act(world);
    now(world) - began
}

/// Directories of so many files, as tar makes them.
fn unpack(world: &mut VfsWorld, directories: usize, files: usize) {
    world.mkdir("t").expect("it is new");
    for d in 0..directories {
        world.mkdir(&format!("t/d{d}")).expect("it is new");
        for f in 0..files {
            write(world, &format!("t/d{d}/f{f}"));
        }
    }
}

/// rm -r: reads all of a directory, then removes what is in it.
fn remove(world: &mut VfsWorld, path: &str) {
    for name in world.list(path).expect("it can be read") {
        let path = format!("{path}/{name}");
        match world.unlink(&path) {
            Err(libc::EISDIR) => remove(world, &path),
            removed => removed.expect("it can be removed"),
        }
    }
    world.rmdir(path).expect("it is empty");
}

#[test]
fn a_tree_that_is_unpacked_is_a_put_for_each_name() {
    let (store, mut world) = bench();
    let took = time(&mut world, |world| unpack(world, 20, 10));
    // What is free in a new directory is known for a second: files are not asked for, directories at most.
    let (lists, puts, deletes) = requests(&store);
    assert!(lists <= 1 + 20, "{lists} in {took:?}");
    assert_eq!((puts, deletes), (1 + 20 + 200, 0));
    assert_eq!(took, RTT * u32::try_from(lists + puts).expect("few"));
}

#[test]
fn files_that_are_stored_at_the_same_time_mark_their_directory_once() {
    const FILES: usize = 20;
    let store = Memory::new(Plan { first_byte: Latency::Fixed(RTT), ..Plan::default() });
    let options = || windlass::vfs::Options { posix_attributes: PosixAttributes::Auto, ..windlass::vfs::Options::default() };
    let mut world = VfsWorld::over(Arc::new(store.clone()), writer::Options::default(), |store| Names::new(store, options()));
    world.mkdir("t").expect("it is new");
    for n in 0..FILES {
        world.open(n, &format!("t/{n}"), NEW).expect("it can be made");
        world.write(n, 0, b"#!/bin/sh").expect("there is room");
        let (ino, executable) = (world.open[&n].1, NewAttributes { mode: Some(0o755), ..NewAttributes::default() });
        let attributes = SetAttributes { size: None, own: executable };
        world.runtime.block_on(world.edits.set_attributes(ino, None, attributes)).expect("it is a file");
    }
    store.reset_log();
    let flushes = world.open.values().map(|&(handle, _)| world.edits.flush(handle, ME.thread, &|_, _| true));
    world.runtime.block_on(join_all(flushes)).into_iter().for_each(|flushed| flushed.expect("it is stored"));
    assert_eq!([Op::Put, Op::Head, Op::Copy].map(|op| store.count(op)), [FILES, 1, 1], "{:?}", store.requests());
}

#[test]
fn many_files_in_one_directory_are_few_listings() {
    let (store, mut world) = bench();
    let took = time(&mut world, |world| {
        world.mkdir("t").expect("it is new");
        (0..500).for_each(|n| write(world, &format!("t/{n}")));
    });
    let (lists, puts, _) = requests(&store);
    // Three names, then all of them, each second.
    let seconds = usize::try_from(took.as_secs()).expect("few");
    assert!(puts == 501 && lists <= 1 + 4 * (seconds + 1), "{lists} in {took:?}");
}

#[test]
fn many_files_beside_more_than_a_page_are_few_listings() {
    let (store, mut world) = bench();
    let ascending: Vec<_> = (0..300).map(|n| format!("a{n:04}")).collect();
    let sequences: Vec<_> = (0..20).flat_map(|n| (0..16).map(move |sequence| format!("s{sequence}.{n}"))).collect();
    let descending: Vec<_> = (0..300).rev().map(|n| format!("z{n:04}")).collect();
    (0..1001).for_each(|n| drop(store.put(format!("t/old{n:04}").as_str(), "x")));
    // Names that a page answers: all that follow while it is valid, or those that differ in the last digit only.
    for (names, pages_for) in [(ascending, None), (sequences, None), (descending, Some(10))] {
        let files = names.len();
        let took = time(&mut world, |world| names.iter().for_each(|name| write(world, &format!("t/{name}"))));
        let (lists, puts, _) = requests(&store);
        let pages = pages_for.map_or(3 * (usize::try_from(took.as_secs()).expect("few") + 1), |names| files / names);
        // `t` itself, three names, and the first page, which is not all of the directory.
        assert!(puts == files && lists <= 5 + pages, "{}: {lists} in {took:?}", names[0]);
    }
}

#[test]
fn many_sequences_that_grow_past_a_page_are_a_page_now_and_then() {
    let (store, mut world) = bench();
    world.mkdir("t").expect("it is new");
    requests(&store);
    let names: Vec<_> = (0..40).flat_map(|n| (0..128).map(move |sequence| format!("t/small.{sequence}.{n}"))).collect();
    let took = time(&mut world, |world| names.iter().for_each(|name| write(world, name)));
    let (lists, puts, _) = requests(&store);
    // 5,120 names are at most 11 pages that are half full; each is fetched twice in the second that it is valid.
    let seconds = usize::try_from(took.as_secs()).expect("few");
    assert!(puts == names.len() && lists <= 11 * 2 * seconds, "{lists} in {took:?}");
    // Nobody waits for the pages that are fetched again.
    assert!(took <= RTT * u32::try_from(puts + puts / 10).expect("few"), "{took:?}");
}

#[test]
fn names_in_no_order_beside_many_pages_are_a_request_each_after_some_in_vain() {
    let (store, mut world) = bench();
    (0..50_000).for_each(|n| drop(store.put(format!("t/{n:05}").as_str(), "x")));
    // Each behind another page.
    (0..300).for_each(|n| write(&mut world, &format!("t/{:05}-new", n * 7919 % 50_000)));
    let (lists, puts, _) = requests(&store);
    let (names, pages) = (300 + 1, 1 + 2 * 8);
    assert!(puts == 300 && lists <= names + pages, "{lists}");
}

#[test]
fn a_tree_that_is_removed_is_a_delete_for_each_name() {
    let (store, mut world) = bench();
    for (d, f) in (0..20).flat_map(|d| (0..10).map(move |f| (d, f))) {
        store.put(format!("t/d{d:02}/f{f}").as_str(), "x");
    }
    let took = time(&mut world, |world| remove(world, "t"));
    let (lists, puts, deletes) = requests(&store);
    // None of the directories has a marker: each gets one with its last file, which is looked for. `t` itself, as names and listing, the
    // listings of the first directories, and one page for all others.
    assert_eq!((puts, deletes), (20 + 1, 200 + 20 + 1));
    assert!(lists <= 21 + 6, "{lists}");
    assert!(took <= RTT * u32::try_from(lists + puts + deletes).expect("few"), "{took:?}");
    assert!(store.keys().is_empty());
}

#[test]
fn a_directory_that_is_not_empty_is_known_not_to_be() {
    let (store, mut world) = bench();
    (0..10).for_each(|n| drop(store.put(format!("t/{n}").as_str(), "x")));
    assert_eq!(world.list("t").expect("it can be read").len(), 10);
    requests(&store);
    // As git does.
    for n in 0..9 {
        world.unlink(&format!("t/{n}")).expect("it is there");
        assert_eq!(world.rmdir("t"), Err(libc::ENOTEMPTY));
    }
    assert_eq!(requests(&store), (0, 0, 9));
    // What somebody else has put there is not known, and stays.
    store.put("t/other", "x");
    world.unlink("t/9").expect("it is there");
    assert_eq!(world.rmdir("t"), Err(libc::ENOTEMPTY));
    assert_eq!(store.keys(), [Key::from("t/other")]);
}

/// What a mount that knows nothing sees.
async fn fresh(store: &Memory, directory: &str) -> BTreeSet<String> {
    let names = Names::new(Arc::new(store.clone()), windlass::vfs::Options::default());
    let ino = names.lookup(Inode::ROOT, directory.as_bytes()).await.expect("it is there").attr.ino;
    list(&names, ino).await
}

async fn list(names: &Arc<Names>, directory: Inode) -> BTreeSet<String> {
    let handle = names.open_dir(directory).expect("a directory");
    let (mut offset, mut seen) = (0, BTreeSet::new());
    loop {
        let page = match handle.try_read(offset) {
            Some(page) => page.expect("listed"),
            None => handle.read(offset).await.expect("listed"),
        };
        if page.is_empty() {
            seen.retain(|name| name != "." && name != "..");
            return seen;
        }
        page.fill(|item| {
            offset = item.next_offset;
            assert!(seen.insert(String::from_utf8_lossy(item.name).into_owned()), "a name came twice");
            false
        });
    }
}

/// Makes or removes a file, without regard to whether it is there.
async fn change(edits: &Edits, files: &Files, names: &Names, directory: Inode, name: &str, is_there: bool) {
    if is_there {
        let access = Access { read: false, write: true, truncate: true, exclusive: false, direct: false, append: false };
        match edits.create(directory, name.as_bytes(), 0o644, access, ME).await {
            Ok((_, opened)) => {
                edits.write(opened.handle, 0, b"content", ME.thread).await.expect("there is room");
                edits.flush(opened.handle, ME.thread, &|_, _| true).await.expect("it is stored");
                files.release(opened.handle);
                edits.release(opened.handle).await;
            }
            Err(Error::Busy | Error::Retired | Error::NotFound) => {}
            Err(error) => panic!("{error}"),
        }
    } else {
        let _ = names.lookup(directory, name.as_bytes()).await;
        match edits.unlink(directory, name.as_bytes()).await {
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Some make and remove files, each its own, while others list the directory all the time, with requests that overtake each other.
    #[test]
    fn after_all_changes_everybody_sees_what_is_in_the_store(
        seed in any::<u64>(),
        changes in prop::collection::vec(prop::collection::vec((0..6_u8, any::<bool>(), 0..60_u64), 1..25), 1..5),
        old in 0..30_usize,
    ) {
        let latency = Latency::Between(Duration::from_millis(1), Duration::from_millis(40));
        let store = Memory::new(Plan { first_byte: latency, seed, ..Plan::default() });
        (0..old).for_each(|n| drop(store.put(format!("d/old{n}").as_str(), "x")));
        store.put("d/", "");
        let world = VfsWorld::new(Arc::new(store.clone()), writer::Options::default());
        let (names, edits, files) = (&world.names, &world.edits, &world.files);
        world.runtime.block_on(async {
            let directory = names.lookup(Inode::ROOT, b"d").await.expect("it is there").attr.ino;
            let writers = changes.iter().enumerate().map(|(who, changes)| async move {
                for (n, is_there, wait) in changes {
                    let name = format!("{who}-{n}");
                    change(edits, files, names, directory, &name, *is_there).await;
                    // At once, for everybody.
                    assert_eq!(names.lookup(directory, name.as_bytes()).await.is_ok(), *is_there, "{name}");
                    assert_eq!(list(names, directory).await.contains(&name), *is_there, "{name}");
                    sleep(Duration::from_millis(*wait)).await;
                }
            });
            let readers = (0..2).map(|n| async move {
                for _ in 0..40 {
                    let seen = list(names, directory).await;
                    assert!((0..old).all(|n| seen.contains(&format!("old{n}"))), "{seen:?}");
                    sleep(Duration::from_millis(7 + n)).await;
                }
            });
            futures::join!(join_all(writers), join_all(readers));
            assert_eq!(list(names, directory).await, fresh(&store, "d").await);
        });
    }
}

const AS_IT_IS: How = How { create: false, exclusive: false, truncate: false };

/// A mount whose names have the `options`, over a store with a file.
fn bench_with(options: Options) -> (Memory, VfsWorld) {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(RTT), ..Plan::default() });
    store.put("f", "first");
    let names = |store: Arc<dyn ObjectStore>| Names::new(store, options);
    let world = VfsWorld::over(Arc::new(store.clone()), writer::Options::default(), names);
    (store, world)
}

#[test]
fn close_to_open_shows_each_replacement_for_a_head_an_open() {
    let (store, mut world) = bench_with(Options { close_to_open: true, stat_cache_ttl: Duration::from_secs(900), ..Options::default() });
    for replacement in ["first", "the second", "third"] {
        store.put("f", replacement);
        world.open(0, "f", AS_IT_IS).expect("it is there");
        assert_eq!(world.read(0, 0, 64).expect("it can be read"), replacement.as_bytes());
        assert_eq!(world.stat("f"), Ok(Node::File(replacement.len() as u64)));
        world.close(0).expect("nothing was written");
    }
    assert_eq!(store.count(Op::Head), 3);
    // An open for reading alone is not answered from the cache either.
    let ino = world.runtime.block_on(world.names.lookup(Inode::ROOT, b"f")).expect("it is there").attr.ino;
    assert!(world.files.try_open(ino, false).is_none());
}

#[test]
fn without_close_to_open_an_open_asks_for_nothing_that_is_known() {
    let (store, mut world) = bench_with(Options::default());
    world.open(0, "f", AS_IT_IS).expect("it is there");
    store.put("f", "the second");
    world.open(1, "f", AS_IT_IS).expect("it is there");
    assert_eq!((world.stat("f"), store.count(Op::Head)), (Ok(Node::File(5)), 0));
    let ino = world.runtime.block_on(world.names.lookup(Inode::ROOT, b"f")).expect("it is there").attr.ino;
    assert!(world.files.try_open(ino, false).is_some());
}
