//! Times of directories over the store in memory: which changes of entries they show, and that this asks the store for nothing.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use windlass::store::memory::Memory;
use windlass::vfs::{Inode, NewAttributes, SetAttributes};
use windlass::writer;

use support::model::{How, World};
use support::vfs_world::VfsWorld;

/// The mount point and two directories in it.
const DIRECTORIES: [&str; 3] = ["", "d", "e"];

const NEW: How = How { create: true, exclusive: false, truncate: false };

fn bench() -> (Memory, VfsWorld) {
    let store = Memory::default();
    let mut world = VfsWorld::new(Arc::new(store.clone()), writer::Options::default());
    for directory in &DIRECTORIES[1..] {
        world.mkdir(directory).expect("it is new");
    }
    (store, world)
}

fn ino(world: &VfsWorld, directory: &str) -> Inode {
    if directory.is_empty() {
        return Inode::ROOT;
    }
    world.runtime.block_on(world.names.lookup(Inode::ROOT, directory.as_bytes())).expect("it is there").attr.ino
}

/// The time of each directory, which must be known by heart.
fn times(store: &Memory, world: &VfsWorld) -> BTreeMap<&'static str, SystemTime> {
    let before = store.requests().len();
    let time = |directory: &str| world.names.try_getattr(ino(world, directory)).expect("it is known").expect("it is there").0.modified;
    let times = DIRECTORIES.iter().map(|&directory| (directory, time(directory))).collect();
    assert_eq!(store.requests().len(), before, "the store was asked");
    times
}

#[test]
fn a_directory_shows_when_an_entry_of_it_was_made_removed_or_renamed() {
    type Act = fn(&mut VfsWorld) -> Result<(), i32>;
    let acts: [(&str, Act, &[&str]); 15] = [
        ("a file is made", |world| world.open(0, "d/file", NEW), &["d"]),
        ("it is written and closed", |world| world.write(0, 0, b"content").and_then(|()| world.close(0)), &[]),
        (
            "it is written again",
            |world| world.open(0, "d/file", NEW).and_then(|()| world.write(0, 3, b"x")).and_then(|()| world.close(0)),
            &[],
        ),
        ("it is moved", |world| world.rename("d/file", "e/file", false), &["d", "e"]),
        ("it is renamed", |world| world.rename("e/file", "e/other", false), &["e"]),
        ("it is removed", |world| world.unlink("e/other"), &["e"]),
        ("a file is removed while it is written", |world| world.open(0, "d/new", NEW).and_then(|()| world.unlink("d/new")), &["d"]),
        ("it is closed", |world| world.close(0), &[]),
        ("a directory is made", |world| world.mkdir("d/below"), &["d"]),
        ("what is in that is changed", |world| world.open(0, "d/below/file", NEW).and_then(|()| world.close(0)), &[]),
        ("it is moved", |world| world.rename("d/below", "e/below", false), &["d", "e"]),
        ("it is emptied", |world| world.unlink("e/below/file"), &[]),
        ("it is removed", |world| world.rmdir("e/below"), &["e"]),
        ("a link is made", |world| world.symlink("d/link", "nowhere"), &["d"]),
        ("something is made beside them", |world| world.mkdir("other"), &[""]),
    ];
    let (store, mut world) = bench();
    let mut before = times(&store, &world);
    for (what, act, expected) in acts {
        let started = SystemTime::now();
        act(&mut world).unwrap_or_else(|errno| panic!("{what}: {errno}"));
        let after = times(&store, &world);
        let changed: BTreeSet<_> = DIRECTORIES.into_iter().filter(|directory| after[directory] != before[directory]).collect();
        assert_eq!(changed, expected.iter().copied().collect(), "{what}");
        assert!(changed.iter().all(|directory| after[directory] >= started), "{what}");
        before = after;
    }
    for refused in [world.mkdir("d"), world.rmdir("d"), world.unlink("d/none"), world.rename("d/none", "e/none", false)] {
        refused.expect_err("it cannot be done");
    }
    assert_eq!(times(&store, &world), before, "what is refused changes nothing");
}

#[test]
fn a_time_that_is_set_holds_until_an_entry_changes_and_moves_with_the_directory() {
    let (_, mut world) = bench();
    let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_500_000_000);
    world.mkdir("d/below").expect("it is new");
    let set = SetAttributes { own: NewAttributes { modified: Some(time), ..NewAttributes::default() }, ..SetAttributes::default() };
    let d = ino(&world, "d");
    let (attr, _) = world.runtime.block_on(world.edits.set_attributes(d, None, set)).expect("it is taken");
    assert_eq!(attr.modified, time);
    world.open(0, "d/below/file", NEW).and_then(|()| world.close(0)).expect("it is new");
    world.rename("d", "moved", false).expect("the name is free");
    let shown = |world: &VfsWorld| world.names.try_getattr(ino(world, "moved")).expect("it is known").expect("it is there").0.modified;
    assert_eq!(shown(&world), time);
    let started = SystemTime::now();
    world.open(0, "moved/file", NEW).and_then(|()| world.close(0)).expect("it is new");
    assert!(shown(&world) >= started);
    world.rename("moved", "again", false).expect("the name is free");
    world.mkdir("moved").expect("the name is free");
    let fresh = shown(&world);
    assert!(fresh >= started && fresh != world.names.try_getattr(ino(&world, "again")).expect("known").expect("there").0.modified);
}
