//! Files that get a length first and their content through a later open, as fio, databases and download programs make them: the content
//! is sent once. On a paused clock.

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use windlass::store::Op;
use windlass::store::memory::Memory;
use windlass::units::ByteSize;
use windlass::vfs::{Access, Caller, Edits, HandleId, Inode};
use windlass::writer::{self, Allocate, Limits};

use support::vfs_world::VfsWorld;

const ME: Caller = Caller { uid: 0, gid: 0, thread: 1 };
const WRITES: Access = Access { read: true, write: true, truncate: false, exclusive: false, direct: false, append: false };
const PART: usize = 1000;
const SIZE: u64 = 8 * PART as u64;

fn world(store: &Memory) -> VfsWorld {
    store.set_least_part(PART as u64);
    let limits = Limits { least_part: PART as u64, ahead: 3000, kept: 2000, ..Limits::default() };
    VfsWorld::new(Arc::new(store.clone()), writer::Options { part_size: ByteSize::bytes(PART as u64), limits, ..Default::default() })
}

/// Makes `file` so long and closes it; the last descriptor goes in the background, as in the kernel.
async fn give_length(edits: &Arc<Edits>) -> Inode {
    let (entry, opened) = edits.create(Inode::ROOT, b"file", 0o644, WRITES, ME).await.expect("it is new");
    edits.allocate(opened.handle, 0, SIZE, Allocate::Extend).await.expect("a length costs nothing");
    close(edits, opened.handle).await;
    entry.attr.ino
}

async fn close(edits: &Arc<Edits>, handle: HandleId) {
    edits.flush(handle, ME.thread, &|_, _| true).await.expect("it can be committed");
    let edits = edits.clone();
    tokio::spawn(async move { edits.release(handle).await });
    tokio::task::yield_now().await;
}

fn requests(store: &Memory) -> (usize, usize, usize) {
    (store.count(Op::Put), store.count(Op::UploadPart), store.count(Op::CompleteUpload))
}

#[test]
fn what_is_written_by_the_next_open_is_sent_once() {
    let store = Memory::default();
    let world = world(&store);
    world.runtime.block_on(async {
        let ino = give_length(&world.edits).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(requests(&store), (0, 0, 0));
        let handle = world.edits.open(ino, WRITES, ME).await.expect("nobody else writes").handle;
        for part in 0..8 {
            world.edits.write(handle, part * PART as u64, &[part as u8 + 1; PART], ME.thread).await.expect("it streams");
        }
        close(&world.edits, handle).await;
    });
    assert_eq!(requests(&store), (0, 8, 1));
    let expected: Vec<u8> = (1..=8).flat_map(|part| [part; PART]).collect();
    assert_eq!(store.content("file"), Some(Bytes::from(expected)));
    assert_eq!(store.uploads(), []);
}

#[test]
fn nobody_comes_to_write_and_it_is_zeros_after_two_seconds() {
    let store = Memory::default();
    let world = world(&store);
    world.runtime.block_on(async {
        let began = Instant::now();
        give_length(&world.edits).await;
        while store.content("file").is_none() && began.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!((2000..2100).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    });
    assert_eq!(store.content("file"), Some(Bytes::from(vec![0; SIZE as usize])));
}

#[test]
fn fsync_and_the_end_of_the_mount_do_not_wait() {
    let store = Memory::default();
    let world = world(&store);
    world.runtime.block_on(async {
        let (_, opened) = world.edits.create(Inode::ROOT, b"synced", 0o644, WRITES, ME).await.expect("it is new");
        world.edits.allocate(opened.handle, 0, SIZE, Allocate::Extend).await.expect("a length costs nothing");
        let began = Instant::now();
        world.edits.fsync(opened.handle).await.expect("the store takes it");
        assert_eq!(store.content("synced").map(|content| content.len() as u64), Some(SIZE));
        close(&world.edits, opened.handle).await;
        give_length(&world.edits).await;
        assert_eq!(world.edits.drain(Duration::from_secs(25)).await, []);
        assert_eq!(store.content("file").map(|content| content.len() as u64), Some(SIZE));
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    });
}

#[test]
fn a_name_that_is_removed_meanwhile_is_never_sent() {
    let store = Memory::default();
    let world = world(&store);
    world.runtime.block_on(async {
        give_length(&world.edits).await;
        world.edits.unlink(Inode::ROOT, b"file").await.expect("it is there");
        tokio::time::sleep(Duration::from_secs(5)).await;
    });
    assert_eq!((requests(&store), store.keys()), ((0, 0, 0), vec![]));
}
