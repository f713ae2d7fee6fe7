//! The end of a mount that files are being written to: what is stored, what is refused, what is named, and how long it takes. On a paused clock.

mod support;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use windlass::store::Op;
use windlass::store::memory::Latency;
use windlass::store::memory::{Fault, Memory, Plan, Rule};
use windlass::units::ByteSize;
use windlass::vfs::{Access, Caller, Error, HandleId, Inode, Lost};
use windlass::writer::{self, Limits};

use support::vfs_world::VfsWorld;

const ME: Caller = Caller { uid: 0, gid: 0, thread: 1 };
const WRITES: Access = Access { read: true, write: true, truncate: false, exclusive: false, direct: false, append: false };
const PART: usize = 1000;
const LIMIT: Duration = Duration::from_secs(25);

fn world(store: &Memory) -> VfsWorld {
    store.set_least_part(PART as u64);
    let limits = Limits { least_part: PART as u64, ahead: 3000, kept: 2000, ..Limits::default() };
    VfsWorld::new(Arc::new(store.clone()), writer::Options { part_size: ByteSize::bytes(PART as u64), limits, ..Default::default() })
}

/// Makes a file with one write and leaves it open.
async fn open(world: &VfsWorld, name: &str, len: usize) -> HandleId {
    let (_, opened) = world.edits.create(Inode::ROOT, name.as_bytes(), 0o644, WRITES, ME).await.expect("it is new");
    world.edits.write(opened.handle, 0, &vec![7; len], ME.thread).await.expect("it is taken");
    opened.handle
}

fn names(lost: &[Lost]) -> Vec<String> {
    lost.iter().map(|lost| lost.key.to_string()).collect()
}

#[test]
fn what_is_open_is_stored_once_its_writer_is_quiet() {
    let store = Memory::default();
    let world = world(&store);
    world.runtime.block_on(async {
        open(&world, "large", 3 * PART + 5).await;
        open(&world, "small", 5).await;
        let began = Instant::now();
        assert_eq!(world.edits.drain(LIMIT).await, []);
        assert!((1000..1100).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    });
    assert_eq!(["large", "small"].map(|name| store.content(name).map(|content| content.len())), [Some(3005), Some(5)]);
    assert_eq!(store.uploads(), []);
}

#[test]
fn what_is_cut_is_not_stored_and_named_also_when_it_was_closed_meanwhile() {
    let store = Memory::default();
    let world = world(&store);
    world.runtime.block_on(async {
        let (closed, left, quiet) =
            (open(&world, "closed", PART).await, open(&world, "left", PART).await, open(&world, "quiet", PART).await);
        let edits = world.edits.clone();
        let drain = tokio::spawn(async move { edits.drain(LIMIT).await });
        tokio::time::sleep(Duration::from_millis(10)).await;
        for handle in [closed, left] {
            let refused = world.edits.write(handle, PART as u64, &[7; 5], ME.thread).await;
            assert!(matches!(refused, Err(Error::Ending)), "{refused:?}");
        }
        assert!(matches!(world.edits.fsync(closed).await, Err(Error::Ending)), "whoever wrote it hears that it is not there");
        world.edits.release(closed).await;
        assert!(world.edits.create(Inode::ROOT, b"new", 0o644, WRITES, ME).await.is_err());
        assert_eq!(names(&drain.await.expect("it ends")), ["closed", "left"]);
        assert!(world.edits.fsync(quiet).await.is_ok());
        assert!(matches!(world.edits.fsync(left).await, Err(Error::Ending)), "also once it was given up");
    });
    assert_eq!(["closed", "left", "quiet"].map(|name| store.content(name).is_some()), [false, false, true]);
    assert_eq!(store.uploads(), []);
}

#[test]
fn what_is_refused_after_the_commit_has_begun_does_not_stop_it() {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(Duration::from_secs(3)), ..Plan::default() });
    let world = world(&store);
    world.runtime.block_on(async {
        let handle = open(&world, "file", 5).await;
        let edits = world.edits.clone();
        let drain = tokio::spawn(async move { edits.drain(LIMIT).await });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(matches!(world.edits.write(handle, 5, &[7; 5], ME.thread).await, Err(Error::Ending)));
        assert_eq!(drain.await.expect("it ends"), []);
    });
    assert_eq!(store.content("file").map(|content| content.len()), Some(5));
}

#[test]
fn a_writer_that_the_store_keeps_waiting_is_not_taken_for_quiet() {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(Duration::from_secs(3)), ..Plan::default() });
    let world = world(&store);
    world.runtime.block_on(async {
        let handle = open(&world, "file", PART).await;
        let edits = world.edits.clone();
        let writer = tokio::spawn(async move {
            let mut at = PART as u64;
            loop {
                if let Err(error) = edits.write(handle, at, &[7; PART], ME.thread).await {
                    return (at, error);
                }
                at += PART as u64;
            }
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(names(&world.edits.drain(LIMIT).await), ["file"]);
        let (at, error) = writer.await.expect("it is refused");
        assert!(at > 3 * PART as u64 && matches!(error, Error::Ending), "{at}: {error:?}");
    });
    assert_eq!((store.content("file"), store.uploads()), (None, Vec::new()));
}

#[test]
fn a_store_that_does_not_answer_costs_no_more_than_the_limit() {
    let store = Memory::default();
    let world = world(&store);
    store.fault(Rule::new(Fault::Stall { after: 0, pause: Duration::from_secs(3600) }).op(Op::Put));
    world.runtime.block_on(async {
        open(&world, "file", 5).await;
        let began = Instant::now();
        assert_eq!(names(&world.edits.drain(LIMIT).await), ["file"]);
        assert!(began.elapsed() <= LIMIT, "{:?}", began.elapsed());
    });
    assert_eq!(store.content("file"), None);
}
