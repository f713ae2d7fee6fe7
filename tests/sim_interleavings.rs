//! Interleavings of requests that change files, each driven to one exact order: a request to the store is held, something else happens, the
//! request goes on. What was acknowledged is in the bucket or its loss is reported, each read is of one version, and no name shows what it does
//! not have. Over the store in memory, on a paused clock.

mod support;

use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use proptest::prelude::*;
use proptest::test_runner::Config;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use windlass::store::memory::{Fault, Held, Latency, Memory, Plan, Rule};
use windlass::store::{ErrorKind, Headers, ObjectStore, Op};
use windlass::units::ByteSize;
use windlass::vfs::{
    Access, Caller, Conflict, Error, HandleId, Inode, Names, Opened, Options, PosixAttributes, Result, SetAttributes, Told,
};
use windlass::writer::{self, Left, Limits, staging};

use support::vfs_world::VfsWorld;

const ME: Caller = Caller { uid: 0, gid: 0, thread: 1 };
const READS: Access = Access { read: true, write: false, truncate: false, exclusive: false, direct: false, append: false };
const CHANGES: Access = Access { write: true, ..READS };
const APPENDS: Access = Access { append: true, read: false, ..CHANGES };
const EMPTIES: Access = Access { truncate: true, ..CHANGES };
const PART: usize = 1000;

/// The longest wait of a test, longer than any cached fact is valid.
const LIMIT: Duration = Duration::from_secs(300);

/// After this no cached fact is valid any more.
const EXPIRED: Duration = Duration::from_secs(61);

fn writing(directory: Option<&Path>) -> writer::Options {
    let limits = Limits { least_part: PART as u64, ahead: 3000, kept: 2000, ..Limits::default() };
    let staging = staging::Options { dir: directory.map(Path::to_owned), ..staging::Options::default() };
    writer::Options { part_size: ByteSize::bytes(PART as u64), limits, staging, ..writer::Options::default() }
}

/// A mount of a bucket.
struct Mount {
    world: VfsWorld,
    store: Memory,
    /// Where it stages files, if that was named.
    directory: Option<TempDir>,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct File {
    ino: Inode,
    handle: HandleId,
    keep_pages: bool,
}

impl Mount {
    fn new(store: &Memory) -> Self {
        store.set_least_part(PART as u64);
        Self::with(store, writing(None))
    }

    fn with(store: &Memory, writing: writer::Options) -> Self {
        Self { world: VfsWorld::new(Arc::new(store.clone()), writing), store: store.clone(), directory: None }
    }

    /// One that overwrites nobody unseen.
    fn refusing(store: &Memory) -> Self {
        Self::refusing_with(store, writing(None).limits, Options::default())
    }

    fn on_conflict(store: &Memory, conflict: Conflict) -> Self {
        Self::refusing_with(store, writing(None).limits, Options { conflict, ..Options::default() })
    }

    fn refusing_with(store: &Memory, limits: Limits, options: Options) -> Self {
        store.set_least_part(PART as u64);
        let names = |store: Arc<dyn ObjectStore>| Names::new(store, options);
        let world = VfsWorld::over(Arc::new(store.clone()), writer::Options { limits, ..writing(None) }, names);
        Self { world, store: store.clone(), directory: None }
    }

    /// One that writes down what is open.
    fn lasting(store: &Memory) -> Self {
        Self::lasting_with(store, writing(None).limits)
    }

    fn lasting_with(store: &Memory, limits: Limits) -> Self {
        store.set_least_part(PART as u64);
        let directory = tempfile::tempdir().expect("there is a disk");
        let names = |store: Arc<dyn ObjectStore>| Names::lasting(store, Options::default()).expect("there is memory for it");
        let writing = writer::Options { limits, ..writing(Some(directory.path())) };
        let world = VfsWorld::over(Arc::new(store.clone()), writing, names);
        Self { world, store: store.clone(), directory: Some(directory) }
    }

    /// What goes on where this one is killed now, with a copy of its staging directory, before it restores anything.
    fn kill(self) -> Self {
        let memory = self.world.names.memory().expect("there are descriptors").expect("it is written down");
        let (store, directory) = (self.store.clone(), tempfile::tempdir().expect("there is a disk"));
        copy_staged(self.staging().as_deref(), &directory.path().join("staging"));
        // Not dropped: a process that is killed cleans nothing up, and nothing of this one runs any more.
        let Self { world, directory: before, .. } = self;
        std::mem::forget(world);
        drop(before);
        let names = |store: Arc<dyn ObjectStore>| Names::load(store, Options::default(), memory).expect("it can be read");
        let world = VfsWorld::over(Arc::new(store.clone()), writing(Some(directory.path())), names);
        Self { world, store, directory: Some(directory) }
    }

    fn restore(&self) {
        {
            let _entered = self.world.runtime.enter();
            self.world.files.restore();
        }
        self.run(self.world.edits.restore());
    }

    fn staging(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.path().join("staging"))
    }

    /// The staged files.
    fn staged(&self) -> Vec<String> {
        let entries = self.staging().and_then(|staging| fs::read_dir(staging).ok()).into_iter().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.expect("it is there").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn run<T>(&self, what: impl Future<Output = T>) -> T {
        self.world.runtime.block_on(async { tokio::time::timeout(LIMIT, what).await.expect("it ends") })
    }

    fn begin<T: Send + 'static>(&self, what: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.world.runtime.spawn(what)
    }

    fn end<T>(&self, task: JoinHandle<T>) -> T {
        self.run(task).expect("it does not panic")
    }

    /// Waits until a request is held.
    fn reach(&self, held: &mut Held) {
        self.run(held.reached());
    }

    fn wait(&self, time: Duration) {
        self.run(async { tokio::time::sleep(time).await });
    }

    /// Lets everything come as far as it can.
    fn settle(&self) {
        self.wait(Duration::from_millis(50));
    }

    /// Waits until no cached fact is valid any more.
    fn expire(&self) {
        self.wait(EXPIRED);
    }

    fn lookup_in(&self, parent: Inode, name: &str) -> Result<Inode> {
        self.run(self.world.names.lookup(parent, name.as_bytes())).map(|entry| entry.attr.ino)
    }

    fn lookup(&self, name: &str) -> Result<Inode> {
        self.lookup_in(Inode::ROOT, name)
    }

    fn size_of(&self, name: &str) -> u64 {
        self.size(self.lookup(name).expect("it is there"))
    }

    /// What fstat shows.
    fn size(&self, ino: Inode) -> u64 {
        match self.world.files.attributes_of_open(ino).or_else(|| self.world.edits.attributes_of_removed(ino)) {
            Some(attr) => attr.size,
            None => self.run(self.world.names.getattr(ino)).expect("it has attributes").0.size,
        }
    }

    fn open_inode(&self, ino: Inode, access: Access) -> Result<Opened> {
        self.run(self.world.edits.open(ino, access, ME))
    }

    /// As the kernel does: a name that stands for another inode by now is looked up again.
    fn open(&self, name: &str, access: Access) -> File {
        for _ in 0..3 {
            let ino = self.lookup(name).expect("it is there");
            match self.open_inode(ino, access) {
                Err(Error::Retired) => {}
                opened => {
                    let Opened { handle, keep_pages, .. } = opened.expect("it opens");
                    self.told(handle);
                    return File { ino, handle, keep_pages };
                }
            }
        }
        panic!("{name} does not get an inode that can be opened");
    }

    fn told(&self, handle: HandleId) {
        self.world.files.on_told(handle, Told::default());
        self.world.edits.on_told(handle, Told::default());
    }

    fn create(&self, name: &str, access: Access) -> File {
        let made = self.run(self.world.edits.create(Inode::ROOT, name.as_bytes(), 0o644, access, ME));
        let (entry, Opened { handle, keep_pages, .. }) = made.expect("it is new");
        self.told(handle);
        File { ino: entry.attr.ino, handle, keep_pages }
    }

    fn write(&self, file: &File, offset: u64, data: &[u8]) -> Result<()> {
        self.run(self.world.edits.write(file.handle, offset, data, ME.thread))
    }

    fn flush(&self, file: &File) -> Result<()> {
        self.run(flush(&self.world, file.handle))
    }

    fn begin_flush(&self, file: &File) -> JoinHandle<Result<()>> {
        self.begin(flush(&self.world, file.handle))
    }

    fn fsync(&self, file: &File) -> Result<()> {
        self.run(self.world.edits.fsync(file.handle))
    }

    /// close(2), and the last of the handle.
    fn close(&self, file: &File) -> Result<()> {
        let closed = self.flush(file);
        self.release(file);
        closed
    }

    fn release(&self, file: &File) {
        self.run(release(&self.world, file));
    }

    fn begin_release(&self, file: &File) -> JoinHandle<()> {
        self.begin(release(&self.world, file))
    }

    fn read(&self, file: &File, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.run(read(&self.world, file, offset, len))
    }

    fn read_whole(&self, name: &str) -> Vec<u8> {
        let file = self.open(name, READS);
        let content = self.read(&file, 0, 1 << 20).unwrap();
        self.release(&file);
        content
    }

    fn begin_read(&self, file: &File, offset: u64, len: usize) -> JoinHandle<Result<Vec<u8>>> {
        self.begin(read(&self.world, file, offset, len))
    }

    /// All of a file by its name.
    fn content(&self, name: &str) -> Vec<u8> {
        let file = self.open(name, READS);
        let content = self.read(&file, 0, 1 << 20).expect("it can be read");
        self.release(&file);
        content
    }

    /// The names in the root.
    fn list(&self) -> Vec<String> {
        let directory = self.world.names.open_dir(Inode::ROOT).expect("it is a directory");
        let (mut names, mut offset, mut is_more) = (Vec::new(), 0, true);
        while is_more {
            let page = self.run(directory.read_plus(offset)).expect("it can be listed");
            is_more = !page.is_empty();
            page.fill_plus(|item, _| {
                offset = item.next_offset;
                names.push(String::from_utf8_lossy(item.name).into_owned());
                false
            });
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    fn truncate(&self, file: &File, size: u64) -> Result<()> {
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.run(self.world.edits.set_attributes(file.ino, Some(file.handle), set)).map(drop)
    }

    fn begin_rename(&self, from: &'static str, to: &'static str) -> JoinHandle<Result<()>> {
        let edits = Arc::clone(&self.world.edits);
        self.begin(async move { edits.rename(Inode::ROOT, from.as_bytes(), Inode::ROOT, to.as_bytes(), false).await })
    }
}

fn flush(world: &VfsWorld, handle: HandleId) -> BoxFuture<'static, Result<()>> {
    let edits = Arc::clone(&world.edits);
    async move { edits.flush(handle, ME.thread, &|_, _| true).await }.boxed()
}

fn release(world: &VfsWorld, file: &File) -> BoxFuture<'static, ()> {
    let (files, edits, File { ino, handle, .. }) = (Arc::clone(&world.files), Arc::clone(&world.edits), *file);
    async move {
        files.release(handle);
        edits.release(handle).await;
        edits.on_released(ino).await;
    }
    .boxed()
}

fn read(world: &VfsWorld, file: &File, offset: u64, len: usize) -> BoxFuture<'static, Result<Vec<u8>>> {
    let (files, edits, File { ino, handle, .. }) = (Arc::clone(&world.files), Arc::clone(&world.edits), *file);
    async move {
        if let Some(data) = edits.read(ino, offset, len).await? {
            return Ok(data.to_vec());
        }
        let file = files.get(handle).or_else(|_| edits.bind_reader(handle))?;
        let read = file.begin(ME.thread, offset, len)?;
        Ok(files.finish(&file, read).await?.slices().collect::<Vec<_>>().concat())
    }
    .boxed()
}

/// As the disk is after a kill: nothing holds locks on the copy.
fn copy_staged(from: Option<&Path>, to: &Path) {
    fs::create_dir(to).expect("it is new");
    fs::set_permissions(to, PermissionsExt::from_mode(0o700)).expect("it is ours");
    for entry in from.and_then(|from| fs::read_dir(from).ok()).into_iter().flatten() {
        let entry = entry.expect("it is there");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("it can be copied");
    }
}

/// The store takes nothing more under `key`, or nothing at all.
fn refuse_writes(store: &Memory) {
    let is_write = |op: Op, _: &_| matches!(op, Op::Put | Op::CreateUpload | Op::UploadPart | Op::CopyPart | Op::CompleteUpload);
    store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).when(is_write));
}

fn is(store: &Memory, key: &str, expected: &[u8]) -> bool {
    store.content(key).is_some_and(|content| content == expected)
}

#[test]
fn size_after_fsync_of_a_cut_file_is_the_new_one() {
    let store = Memory::default();
    store.put("f", vec![1; 5000]);
    let mount = Mount::new(&store);
    let file = mount.open("f", CHANGES);
    assert_eq!(mount.read(&file, 0, 1).unwrap(), [1]);
    mount.truncate(&file, 100).unwrap();
    mount.fsync(&file).unwrap();
    assert_eq!((mount.size(file.ino), mount.size_of("f")), (100, 100));
    let reader = mount.open("f", READS);
    mount.write(&file, 100, b"more").unwrap();
    mount.close(&file).unwrap();
    assert_eq!((mount.size(file.ino), mount.size_of("f")), (104, 104));
    assert_eq!(mount.read(&reader, 99, 50).unwrap(), b"\x01more");
    assert_eq!(store.meta("f").unwrap().size, 104);
}

#[test]
fn size_seen_after_an_append_beside_a_reader_is_the_new_one() {
    let store = Memory::default();
    store.put("f", "old");
    let mount = Mount::new(&store);
    let reader = mount.open("f", READS);
    assert_eq!(mount.read(&reader, 0, 10).unwrap(), b"old");
    let file = mount.open("f", Access { read: false, append: true, ..CHANGES });
    mount.write(&file, 0, b" and new").unwrap();
    mount.close(&file).unwrap();
    assert_eq!((mount.size(reader.ino), mount.size_of("f")), (11, 11));
    assert_eq!(mount.read(&reader, 3, 10).unwrap(), b" and new");
    assert!(mount.world.notices.lock().unwrap().awaited_pages.contains(&reader.ino), "the write went past the pages");
}

#[test]
fn rename_meeting_the_release_of_its_file_moves_all_of_it() {
    let store = Memory::default();
    let mount = Mount::new(&store);
    let other = mount.create("other", CHANGES);
    mount.write(&other, 0, b"other").unwrap();
    for is_answer in [false, true] {
        let file = mount.create("a", CHANGES);
        mount.write(&file, 0, b"content").unwrap();
        let mut put = if is_answer { store.hold_answer(Op::Put, "a") } else { store.hold(Op::Put, "a") };
        let released = mount.begin_release(&file);
        mount.reach(&mut put);
        let renamed = mount.begin_rename("a", "b");
        mount.settle();
        put.release();
        mount.end(renamed).unwrap();
        mount.end(released);
        assert!(is(&store, "b", b"content") && store.content("a").is_none());
        assert_eq!(mount.list(), ["b", "other"]);
        assert!(mount.lookup("a").is_err() && mount.content("b") == b"content");
        let next = mount.create("a", CHANGES);
        mount.write(&next, 0, b"next").unwrap();
        mount.close(&next).unwrap();
        assert!(is(&store, "a", b"next") && is(&store, "b", b"content"));
        mount.run(mount.world.edits.unlink(Inode::ROOT, b"a")).unwrap();
    }
}

#[test]
fn emptied_file_is_empty_at_once_and_stored_at_the_flush() {
    let store = Memory::default();
    store.put("f", "old bytes");
    let mount = Mount::new(&store);
    let reader = mount.open("f", READS);
    assert_eq!(mount.read(&reader, 0, 3).unwrap(), b"old");
    let file = mount.open("f", EMPTIES);
    assert_eq!((mount.size_of("f"), mount.content("f").len(), mount.read(&reader, 0, 9).unwrap().len()), (0, 0, 0));
    mount.flush(&file).unwrap();
    assert!(is(&store, "f", b""), "close has returned 0");
    assert_eq!((mount.size_of("f"), mount.content("f").len()), (0, 0));
    mount.release(&file);
    mount.expire();
    assert_eq!((mount.size_of("f"), mount.content("f").len(), mount.read(&reader, 0, 9).unwrap().len()), (0, 0, 0));
}

#[test]
fn pages_after_a_failed_commit_are_dropped() {
    let store = Memory::default();
    store.put("f", "old");
    let mount = Mount::new(&store);
    for _ in 0..2 {
        assert_eq!(mount.content("f"), b"old");
    }
    let proven = mount.open("f", READS);
    assert!(proven.keep_pages, "what was read is what there is");
    mount.release(&proven);
    let file = mount.open("f", CHANGES);
    mount.write(&file, 0, b"new").unwrap();
    refuse_writes(&store);
    assert!(mount.flush(&file).is_err());
    mount.release(&file);
    assert!(mount.world.notices.lock().unwrap().old_pages.contains(&file.ino));
    let after = mount.open("f", READS);
    assert!(!after.keep_pages, "they may hold what the bucket never had");
    assert_eq!(mount.read(&after, 0, 9).unwrap(), b"old");
    assert!(is(&store, "f", b"old"));
}

#[test]
fn etag_that_returns_is_read_like_any_version() {
    let all = |bits: u8| [bits & 1, bits & 2, bits & 4].map(|bit| bit != 0);
    for [is_own, is_seen, is_released] in (0..8).map(all) {
        let store = Memory::default();
        store.put("f", "version a");
        let mount = Mount::new(&store);
        for _ in 0..2 {
            let held = mount.open("f", READS);
            assert_eq!(mount.read(&held, 0, 9).unwrap(), b"version a");
            let a = store.take("f").unwrap();
            store.put_back(a.clone());
            if is_own {
                let file = mount.open("f", CHANGES);
                mount.write(&file, 8, b"b").unwrap();
                mount.close(&file).unwrap();
            } else {
                store.put("f", "version b");
                mount.expire();
            }
            if is_seen {
                assert_eq!(mount.content("f"), b"version b");
            }
            if is_released {
                mount.release(&held);
            }
            store.put_back(a);
            mount.expire();
            for _ in 0..2 {
                assert_eq!(mount.content("f"), b"version a", "{is_own} {is_seen} {is_released}");
            }
            if !is_released {
                mount.release(&held);
            }
            assert_eq!(mount.content("f"), b"version a");
        }
    }
}

#[test]
fn same_bytes_uploaded_after_a_delete_are_readable() {
    for is_open in [true, false] {
        let store = Memory::default();
        let content = support::model::content(7, 0, 32 << 20);
        store.put("f", content.clone());
        let mount = Mount::new(&store);
        let (reader, far) = (mount.open("f", READS), 24 << 20);
        assert_eq!(mount.read(&reader, 0, 9).unwrap(), content[..9]);
        let taken = store.take("f").unwrap();
        mount.expire();
        assert!(mount.read(&reader, far, 9).is_err() && mount.lookup("f").is_err());
        store.put_back(taken);
        mount.expire();
        if !is_open {
            mount.release(&reader);
        }
        for _ in 0..2 {
            let again = mount.open("f", READS);
            for at in [0, far] {
                assert_eq!(mount.read(&again, at, 9).unwrap(), content[at as usize..][..9]);
            }
            mount.release(&again);
        }
    }
}

#[test]
fn rename_over_a_file_in_commit_leaves_the_renamed_content() {
    for (source_is_open, is_answer) in [(false, false), (false, true), (true, false), (true, true)] {
        let store = Memory::default();
        store.put("t", "old target");
        let mount = Mount::new(&store);
        let source = mount.create("s", CHANGES);
        mount.write(&source, 0, b"source").unwrap();
        if !source_is_open {
            mount.close(&source).unwrap();
        }
        let target = mount.open("t", EMPTIES);
        mount.write(&target, 0, b"new target").unwrap();
        let mut put = if is_answer { store.hold_answer(Op::Put, "t") } else { store.hold(Op::Put, "t") };
        let flushed = mount.begin_flush(&target);
        mount.reach(&mut put);
        let renamed = mount.begin_rename("s", "t");
        mount.settle();
        put.release();
        mount.end(renamed).unwrap();
        mount.end(flushed).unwrap();
        if source_is_open {
            mount.close(&source).unwrap();
        }
        mount.write(&target, 0, b"of no name").unwrap();
        mount.close(&target).unwrap();
        assert!(is(&store, "t", b"source") && store.content("s").is_none(), "{source_is_open} {is_answer}");
        assert!(mount.content("t") == b"source" && mount.lookup("s").is_err());
    }
}

#[test]
fn directory_rename_that_fails_takes_back_copies_that_arrive_late() {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(Duration::from_millis(10)), ..Plan::default() });
    store.put("d/a", "one");
    store.put("d/b", "two");
    let mount = Mount::new(&store);
    store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::Copy).key("e/a"));
    let late = store.hold(Op::Copy, "e/b");
    let renamed = mount.begin_rename("d", "e");
    mount.settle();
    // A request that is given up reaches a real store all the same: what it does has to be waited for.
    assert!(late.is_reached() && !renamed.is_finished());
    late.release();
    assert_eq!(mount.end(renamed).unwrap_err().errno(), libc::EACCES);
    assert!(is(&store, "d/a", b"one") && is(&store, "d/b", b"two") && store.content("e/a").is_none() && store.content("e/b").is_none());
}

#[test]
fn directory_is_not_renamed_over_another_that_no_cache_knows() {
    let store = Memory::default();
    for key in ["a/x", "b/", "b/x", "b/y", "f"] {
        store.put(key, key);
    }
    let mount = Mount::refusing_with(&store, writing(None).limits, Options { stat_cache_ttl: Duration::ZERO, ..Options::default() });
    assert_eq!(mount.end(mount.begin_rename("a", "b")).unwrap_err().errno(), libc::ENOTEMPTY);
    assert_eq!(mount.end(mount.begin_rename("f", "b")).unwrap_err().errno(), libc::EISDIR);
    assert_eq!(mount.end(mount.begin_rename("a", "f")).unwrap_err().errno(), libc::ENOTDIR);
    for key in ["a/x", "b/x", "b/y", "f"] {
        assert!(is(&store, key, key.as_bytes()), "{key}");
    }
}

#[test]
fn directory_rename_that_fails_deletes_its_own_copies_alone() {
    let store = Memory::default();
    for n in 0..100 {
        store.put(format!("d/{n:03}").as_str(), "ours");
    }
    store.put("e/", "");
    let mount = Mount::new(&store);
    mount.lookup("e").unwrap();
    store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::Copy).key("e/000"));
    let mut first = store.hold(Op::Copy, "e/000");
    let renamed = mount.begin_rename("d", "e");
    mount.reach(&mut first);
    // After it was seen to be empty, and where no copy has begun yet.
    store.put("e/099", "theirs");
    first.release();
    assert_eq!(mount.end(renamed).unwrap_err().errno(), libc::EACCES);
    let below: Vec<_> = store.keys().iter().map(ToString::to_string).filter(|key| key.starts_with("e/")).collect();
    assert_eq!(below, ["e/", "e/099"]);
    assert!(is(&store, "e/099", b"theirs") && is(&store, "d/099", b"ours"));
}

#[test]
fn marker_whose_copy_is_refused_is_written_anew() {
    let store = Memory::default();
    store.put("d/", "");
    store.put("d/a", "one");
    let mount = Mount::new(&store);
    store.fault(Rule::new(Fault::Error(ErrorKind::Invalid)).op(Op::Copy).key("e/"));
    mount.end(mount.begin_rename("d", "e")).unwrap();
    assert!(is(&store, "e/", b"") && is(&store, "e/a", b"one") && store.content("d/").is_none());
    // What is not empty is not.
    store.fault(Rule::new(Fault::Error(ErrorKind::Invalid)).op(Op::Copy).key("f/a"));
    assert!(mount.end(mount.begin_rename("e", "f")).is_err());
    assert!(is(&store, "e/a", b"one") && store.content("f/a").is_none() && store.content("f/").is_none());
}

/// A mount whose memory keeps nothing that was sent, with a new file `name` of which parts are gone: reading them saves the file.
fn with_sent_bytes(store: &Memory, name: &str) -> (Mount, File) {
    store.set_least_part(PART as u64);
    let limits = Limits { kept: 0, kept_of_long: 0, ..writing(None).limits };
    let mount = Mount::with(store, writer::Options { limits, ..writing(None) });
    let file = mount.create(name, CHANGES);
    for part in 0..8 {
        mount.write(&file, part * PART as u64, &[1; PART]).unwrap();
    }
    mount.settle();
    assert!(store.count(Op::UploadPart) > 0, "bytes are gone from memory");
    (mount, file)
}

#[test]
fn rename_over_a_file_that_a_read_saves_leaves_the_renamed_content() {
    for is_answer in [false, true] {
        for source_is_open in [false, true] {
            let store = Memory::default();
            let (mount, target) = with_sent_bytes(&store, "t");
            let source = mount.create("s", CHANGES);
            mount.write(&source, 0, b"source").unwrap();
            if !source_is_open {
                mount.close(&source).unwrap();
            }
            let op = Op::CompleteUpload;
            let mut save = if is_answer { store.hold_answer(op, "t") } else { store.hold(op, "t") };
            let read = mount.begin_read(&target, 0, 10);
            mount.reach(&mut save);
            let renamed = mount.begin_rename("s", "t");
            mount.settle();
            save.release();
            mount.end(renamed).unwrap();
            // It came before, or finds that its object is gone; it is never stored.
            let read = mount.end(read);
            assert!(matches!(&read, Ok(bytes) if bytes == &[1; 10]) || read.is_err(), "{read:?}");
            if source_is_open {
                mount.close(&source).unwrap();
            }
            mount.release(&target);
            assert!(is(&store, "t", b"source") && store.content("s").is_none(), "{is_answer} {source_is_open}");
            assert!(mount.content("t") == b"source" && mount.lookup("s").is_err());
            assert_eq!(store.uploads(), []);
        }
    }
}

#[test]
fn rename_or_unlink_of_a_file_that_a_read_saves_leaves_no_second_object() {
    for is_answer in [false, true] {
        for is_unlink in [false, true] {
            let store = Memory::default();
            let (mount, file) = with_sent_bytes(&store, "f");
            let op = Op::CompleteUpload;
            let mut save = if is_answer { store.hold_answer(op, "f") } else { store.hold(op, "f") };
            let read = mount.begin_read(&file, 0, 10);
            mount.reach(&mut save);
            let edits = Arc::clone(&mount.world.edits);
            let changed = match is_unlink {
                true => mount.begin(async move { edits.unlink(Inode::ROOT, b"f").await }),
                false => mount.begin_rename("f", "g"),
            };
            mount.settle();
            save.release();
            mount.end(changed).unwrap();
            let read = mount.end(read);
            assert!(is_unlink || read.as_ref().is_ok_and(|bytes| bytes == &[1; 10]), "{read:?}");
            mount.close(&file).unwrap();
            let keys: Vec<_> = store.keys().iter().map(ToString::to_string).collect();
            assert_eq!(keys, if is_unlink { vec![] } else { vec!["g"] }, "{is_answer}");
            assert_eq!(store.uploads(), []);
        }
    }
}

#[test]
fn rename_of_a_directory_takes_a_file_along_that_a_read_saves() {
    for is_answer in [false, true] {
        let store = Memory::default();
        store.put("d/a", "a");
        store.set_least_part(PART as u64);
        let limits = Limits { kept: 0, kept_of_long: 0, ..writing(None).limits };
        let mount = Mount::with(&store, writer::Options { limits, ..writing(None) });
        let directory = mount.lookup("d").unwrap();
        let made = mount.run(mount.world.edits.create(directory, b"new", 0o644, CHANGES, ME)).unwrap();
        let file = File { ino: made.0.attr.ino, handle: made.1.handle, keep_pages: false };
        for part in 0..8 {
            mount.write(&file, part * PART as u64, &[1; PART]).unwrap();
        }
        mount.settle();
        let op = Op::CompleteUpload;
        let mut save = if is_answer { store.hold_answer(op, "d/new") } else { store.hold(op, "d/new") };
        let read = mount.begin_read(&file, 0, 10);
        mount.reach(&mut save);
        let renamed = mount.begin_rename("d", "t");
        mount.settle();
        save.release();
        mount.end(renamed).unwrap();
        assert_eq!(mount.end(read).unwrap(), [1; 10]);
        mount.close(&file).unwrap();
        let keys: Vec<_> = store.keys().iter().map(ToString::to_string).collect();
        assert_eq!(keys, ["t/a", "t/new"], "{is_answer}");
        assert!(is(&store, "t/new", &[1; 8 * PART]));
    }
}

#[test]
fn lookup_answered_after_its_directory_was_renamed_is_of_the_new_key() {
    for op in [Op::List, Op::Head] {
        let store = Memory::default();
        store.put("d/a", "a");
        let mount = Mount::new(&store);
        let directory = mount.lookup("d").unwrap();
        // What the kernel knows of: a getattr.
        let known = (op == Op::Head).then(|| mount.lookup_in(directory, "a").unwrap());
        mount.expire();
        let mut asked = store.hold_answer(op, "d/a");
        let names = Arc::clone(&mount.world.names);
        let found = mount.begin(async move {
            match known {
                None => names.lookup(directory, b"a").await.map(|entry| entry.attr.ino),
                Some(ino) => names.getattr(ino).await.map(|(attr, _)| attr.ino),
            }
        });
        mount.reach(&mut asked);
        mount.end(mount.begin_rename("d", "t")).unwrap();
        asked.release();
        let ino = mount.end(found).expect("it is there");
        // Another file that takes the old name is another file.
        store.put("d/a", "another one");
        mount.expire();
        assert_eq!((mount.world.names.key(ino).unwrap().to_string(), mount.size(ino)), ("t/a".into(), 1), "{op:?}");
        assert_eq!(mount.lookup_in(directory, "a").unwrap(), ino);
    }
}

#[test]
fn listing_read_after_its_directory_was_renamed_names_the_new_keys() {
    let store = Memory::default();
    store.put("d/a", "a");
    let mount = Mount::new(&store);
    let directory = mount.lookup("d").unwrap();
    let handle = mount.world.names.open_dir(directory).expect("it is a directory");
    let page = mount.run(handle.read_plus(0)).expect("it can be listed");
    mount.end(mount.begin_rename("d", "t")).unwrap();
    page.fill_plus(|item, entry| {
        assert!(entry.attr.ino == Inode::NONE || matches!(item.name, b"." | b".."), "the old key was told");
        false
    });
    assert!(!mount.run(handle.read_plus(2)).expect("it can be listed").is_empty(), "the entry is still there");
    let ino = mount.lookup_in(directory, "a").unwrap();
    store.put("d/a", "another one");
    mount.expire();
    assert_eq!((mount.world.names.key(ino).unwrap().to_string(), mount.size(ino)), ("t/a".into(), 1));
}

#[test]
fn file_below_a_directory_in_rename_is_never_missing() {
    let store = Memory::default();
    store.put("d/a", "first");
    store.put("d/b", "second");
    let mount = Mount::new(&store);
    let directory = mount.lookup("d").unwrap();
    let ino = mount.lookup_in(directory, "a").unwrap();
    let opened = mount.open_inode(ino, READS).unwrap();
    let open = File { ino, handle: opened.handle, keep_pages: false };
    mount.told(open.handle);
    mount.expire();
    // The first of them is gone from its old place, and the names still are what they were.
    let mut delete = store.hold(Op::Delete, "d/b");
    let renamed = mount.begin_rename("d", "t");
    mount.reach(&mut delete);
    mount.settle();
    assert!(store.content("d/a").is_none() && store.content("t/a").is_some());
    let read = mount.begin_read(&open, 0, 10);
    let names = Arc::clone(&mount.world.names);
    let looked_up = mount.begin(async move { names.lookup(directory, b"a").await.map(|entry| entry.attr.ino) });
    let names = Arc::clone(&mount.world.names);
    let looked_at = mount.begin(async move { names.getattr(ino).await.map(|(attr, _)| attr.size) });
    let edits = Arc::clone(&mount.world.edits);
    let opened = mount.begin(async move { edits.open(ino, READS, ME).await });
    let names = Arc::clone(&mount.world.names);
    let absent = mount.begin(async move { names.lookup(directory, b"c").await });
    mount.settle();
    delete.release();
    mount.end(renamed).unwrap();
    assert_eq!(mount.end(looked_up).expect("it is there"), ino);
    assert_eq!(mount.end(looked_at).expect("it is there"), 5);
    assert!(mount.end(opened).is_ok());
    assert_eq!(mount.end(read).expect("its bytes are there"), b"first");
    assert!(matches!(mount.end(absent), Err(Error::NotFound)));
}

#[test]
fn file_begun_below_a_renamed_directory_goes_with_it() {
    let store = Memory::default();
    store.put("d/a", "a");
    let mount = Mount::new(&store);
    let directory = mount.lookup("d").unwrap();
    let mut copy = store.hold(Op::Copy, "t/a");
    let renamed = mount.begin_rename("d", "t");
    mount.reach(&mut copy);
    let edits = Arc::clone(&mount.world.edits);
    let made = mount.begin(async move {
        let (_, Opened { handle, .. }) = edits.create(directory, b"new", 0o644, CHANGES, ME).await?;
        edits.write(handle, 0, b"content", ME.thread).await?;
        edits.flush(handle, ME.thread, &|_, _| true).await?;
        edits.release(handle).await;
        Ok::<_, Error>(())
    });
    mount.settle();
    copy.release();
    mount.end(renamed).unwrap();
    mount.end(made).unwrap();
    let keys: Vec<_> = store.keys().iter().map(ToString::to_string).collect();
    assert_eq!(keys, ["t/a", "t/new"]);
    assert!(is(&store, "t/new", b"content"));
    assert_eq!(mount.lookup("t").unwrap(), directory);
    assert!(mount.lookup_in(directory, "new").is_ok() && mount.lookup("d").is_err());
}

#[test]
fn file_in_commit_below_a_renamed_directory_goes_with_it() {
    let store = Memory::default();
    store.put("d/a", "a");
    let mount = Mount::new(&store);
    let directory = mount.lookup("d").unwrap();
    let made = mount.run(mount.world.edits.create(directory, b"new", 0o644, CHANGES, ME)).unwrap();
    let file = File { ino: made.0.attr.ino, handle: made.1.handle, keep_pages: false };
    mount.write(&file, 0, b"content").unwrap();
    let mut put = store.hold(Op::Put, "d/new");
    let flushed = mount.begin_flush(&file);
    mount.reach(&mut put);
    let renamed = mount.begin_rename("d", "t");
    mount.settle();
    put.release();
    mount.end(flushed).unwrap();
    mount.end(renamed).unwrap();
    mount.write(&file, 7, b" and more").unwrap();
    mount.close(&file).unwrap();
    let keys: Vec<_> = store.keys().iter().map(ToString::to_string).collect();
    assert_eq!(keys, ["t/a", "t/new"]);
    assert!(is(&store, "t/new", b"content and more"));
}

#[test]
fn close_of_bytes_that_a_drain_gave_up_fails() {
    for (handles, is_flushed) in [(1, true), (1, false), (2, true), (2, false)] {
        let store = Memory::default();
        let mount = Mount::new(&store);
        let mut files = vec![mount.create("f", CHANGES)];
        files.extend((1..handles).map(|_| mount.open("f", CHANGES)));
        let file = files[0];
        mount.write(&file, 0, b"content").unwrap();
        let mut put = store.hold(Op::Put, "f");
        store.fault(Rule::new(Fault::Error(ErrorKind::Unavailable)).op(Op::Put));
        let flushed = is_flushed.then(|| mount.begin_flush(&file));
        let edits = Arc::clone(&mount.world.edits);
        let drained = mount.begin(async move { edits.drain(Duration::from_secs(5)).await });
        mount.reach(&mut put);
        let waiting = mount.begin_flush(&file);
        assert_eq!(mount.end(drained).len(), 1);
        put.release();
        if let Some(flushed) = flushed {
            assert!(mount.end(flushed).is_err());
        }
        assert!(mount.end(waiting).is_err(), "it waited for its turn, {handles} {is_flushed}");
        assert!(mount.write(&file, 7, b"more").is_err() && mount.truncate(&file, 1).is_err());
        for file in files {
            assert!(mount.fsync(&file).is_err() && mount.flush(&file).is_err(), "{handles} {is_flushed}");
            assert!(mount.close(&file).is_err());
        }
        assert_eq!(store.content("f"), None);
    }
}

#[test]
fn close_that_meets_the_giving_up_of_a_drain_fails() {
    for (closed, ended) in [(3_500, 4_700), (4_200, 4_300), (4_600, 4_700), (4_600, 4_900)] {
        let store = Memory::default();
        let mount = Mount::new(&store);
        let file = mount.create("f", CHANGES);
        mount.write(&file, 0, b"content").unwrap();
        let mut put = store.hold(Op::Put, "f");
        store.fault(Rule::new(Fault::Error(ErrorKind::Unavailable)).op(Op::Put));
        let edits = Arc::clone(&mount.world.edits);
        let drained = mount.begin(async move { edits.drain(Duration::from_secs(5)).await });
        mount.reach(&mut put);
        mount.wait(Duration::from_millis(closed - 1000));
        let flushed = mount.begin_flush(&file);
        mount.wait(Duration::from_millis(ended - closed));
        put.release();
        assert_eq!(mount.end(drained).len(), 1);
        assert!(mount.end(flushed).is_err(), "{closed} {ended}");
        assert!(mount.close(&file).is_err());
        assert_eq!(store.content("f"), None);
    }
}

#[test]
fn o_trunc_meeting_the_last_release_keeps_its_dirty_file() {
    for is_committing in [true, false] {
        let store = Memory::default();
        let mount = Mount::new(&store);
        let before = mount.create("f", CHANGES);
        mount.write(&before, 0, b"written before").unwrap();
        let mut put = store.hold(Op::Put, "f");
        let flushed = is_committing.then(|| mount.begin_flush(&before));
        let (edits, ino) = (Arc::clone(&mount.world.edits), before.ino);
        let (opened, released);
        if is_committing {
            mount.reach(&mut put);
            opened = mount.begin(async move { edits.open(ino, EMPTIES, ME).await });
            mount.settle();
            released = mount.begin_release(&before);
        } else {
            released = mount.begin_release(&before);
            mount.reach(&mut put);
            opened = mount.begin(async move { edits.open(ino, EMPTIES, ME).await });
        }
        mount.settle();
        put.release();
        let handle = mount.end(opened).unwrap().handle;
        mount.end(released);
        if let Some(flushed) = flushed {
            mount.end(flushed).unwrap();
        }
        let file = File { ino, handle, keep_pages: false };
        assert_eq!(mount.size_of("f"), 0);
        mount.write(&file, 0, b"after").unwrap();
        assert_eq!((mount.size_of("f"), mount.content("f")), (5, b"after".to_vec()), "{is_committing}");
        mount.close(&file).unwrap();
        assert!(is(&store, "f", b"after"));
        assert_eq!(mount.content("f"), b"after");
    }
}

#[test]
fn write_that_meets_a_commit_is_not_clean_after_a_kill() {
    for len in [3, 3 * PART] {
        let store = Memory::default();
        let mount = Mount::lasting(&store);
        let file = mount.create("f", CHANGES);
        mount.write(&file, 0, &vec![1; len]).unwrap();
        let op = if len > PART { Op::CompleteUpload } else { Op::Put };
        let mut put = store.hold_answer(op, "f");
        let flushed = mount.begin_flush(&file);
        mount.reach(&mut put);
        let edits = Arc::clone(&mount.world.edits);
        let written = mount.begin(async move { edits.write(file.handle, len as u64, b"more", ME.thread).await });
        mount.settle();
        put.release();
        mount.end(flushed).unwrap();
        mount.end(written).unwrap();
        let after = mount.kill();
        after.restore();
        let (synced, closed) = (after.fsync(&file), after.close(&file));
        let all = [vec![1; len], b"more".to_vec()].concat();
        assert!(synced.is_err() && closed.is_err() || is(&store, "f", &all), "{synced:?} {closed:?}");
    }
}

#[test]
fn file_that_was_stored_is_clean_after_a_kill() {
    let store = Memory::default();
    let mount = Mount::lasting(&store);
    let file = mount.create("f", CHANGES);
    mount.write(&file, 0, b"content").unwrap();
    mount.fsync(&file).unwrap();
    let after = mount.kill();
    after.restore();
    after.fsync(&file).unwrap();
    after.close(&file).unwrap();
    assert!(is(&store, "f", b"content") && after.content("f") == b"content");
}

#[test]
fn file_whose_commit_ends_while_the_mount_is_left_is_clean_in_the_next_daemon() {
    for is_staged in [true, false] {
        let store = Memory::default();
        let mount = Mount::lasting(&store);
        let file = mount.create("f", CHANGES);
        let offset = if is_staged { 50_000 } else { 0 };
        mount.write(&file, offset, b"content").unwrap();
        let op = if is_staged { Op::CompleteUpload } else { Op::Put };
        let mut stored = store.hold_answer(op, "f");
        mount.run(mount.world.edits.store_while_serving(Duration::from_secs(10)));
        mount.reach(&mut stored);
        let edits = Arc::clone(&mount.world.edits);
        let left = mount.begin(async move { edits.leave_open_files(Duration::from_secs(2)).await });
        mount.settle();
        stored.release();
        assert_eq!(mount.end(left), [], "{is_staged}");
        assert!(mount.write(&file, 0, b"late").unwrap_err().is_left(), "the next daemon answers");
        let mount = mount.kill();
        mount.restore();
        mount.fsync(&file).unwrap();
        mount.write(&file, offset + 7, b" and more").unwrap();
        mount.close(&file).unwrap();
        assert!(store.content("f").unwrap().ends_with(b"content and more"), "{is_staged}");
    }
}

#[test]
fn edit_whose_commit_ends_while_the_mount_is_left_goes_on_in_the_next_daemon() {
    let store = Memory::default();
    store.put("f", vec![7; 5 * PART]);
    let mount = Mount::lasting(&store);
    let file = mount.open("f", CHANGES);
    assert_eq!(mount.read(&file, 0, 10).unwrap(), [7; 10]);
    mount.write(&file, 0, b"changed").unwrap();
    let mut stored = store.hold_answer(Op::CompleteUpload, "f");
    mount.run(mount.world.edits.store_while_serving(Duration::from_secs(10)));
    mount.reach(&mut stored);
    let edits = Arc::clone(&mount.world.edits);
    let left = mount.begin(async move { edits.leave_open_files(Duration::from_secs(2)).await });
    mount.settle();
    stored.release();
    assert_eq!(mount.end(left), []);
    let mount = mount.kill();
    mount.restore();
    mount.write(&file, 7, b" again").unwrap();
    assert_eq!(mount.read(&file, 0, 20).unwrap(), b"changed again\x07\x07\x07\x07\x07\x07\x07");
    mount.close(&file).unwrap();
    assert!(store.content("f").unwrap().starts_with(b"changed again"));
}

#[test]
fn inode_that_was_replaced_by_a_rename_does_not_open_the_file_that_replaced_it() {
    for access in [READS, CHANGES] {
        let store = Memory::default();
        store.put("t", vec![7; 5 * PART]);
        let mount = Mount::new(&store);
        let source = mount.create("s", CHANGES);
        mount.write(&source, 0, b"short").unwrap();
        mount.close(&source).unwrap();
        let replaced = mount.lookup("t").unwrap();
        let renamed = mount.begin_rename("s", "t");
        mount.end(renamed).unwrap();
        // The kernel found it by its name before the rename, and goes by its size.
        let opened = mount.open_inode(replaced, access);
        assert!(matches!(opened, Err(Error::Retired)), "{opened:?}");
        assert_eq!(mount.content("t"), b"short");
    }
}

#[test]
fn requests_that_meet_the_leaving_of_a_mount_are_answered_by_the_next_daemon() {
    let store = Memory::default();
    let mount = Mount::lasting(&store);
    let (streamed, staged) = (mount.create("streamed", CHANGES), mount.create("staged", CHANGES));
    let saved = mount.create("saved", CHANGES);
    for (file, offset) in [(&streamed, 0), (&staged, 50_000), (&saved, 0)] {
        mount.write(file, offset, b"content").unwrap();
    }
    mount.fsync(&saved).unwrap();
    let left = mount.run(mount.world.edits.leave_open_files(Duration::from_secs(2)));
    let left: Vec<_> = left.iter().map(|lost| (lost.key.to_string(), lost.left.clone())).collect();
    assert_eq!(left, ["staged", "streamed"].map(|name| (name.to_owned(), Left::HandedOver)));
    for file in [&streamed, &staged, &saved] {
        assert!(mount.write(file, 0, b"late").unwrap_err().is_left());
        assert!(mount.truncate(file, 3).unwrap_err().is_left());
    }
    assert!(mount.flush(&streamed).unwrap_err().is_left() && mount.fsync(&staged).unwrap_err().is_left());
    let mount = mount.kill();
    mount.restore();
    for (file, name) in [(&streamed, "streamed"), (&staged, "staged"), (&saved, "saved")] {
        mount.fsync(file).unwrap();
        assert!(store.content(name).unwrap().ends_with(b"content"));
        mount.write(file, 0, b"late").unwrap();
        mount.close(file).unwrap();
        assert!(store.content(name).unwrap().starts_with(b"late"), "{name}");
    }
}

#[test]
fn file_without_bytes_is_as_good_as_new_in_the_next_daemon() {
    let store = Memory::default();
    store.put("old", "content");
    let carried = [("tagging".to_owned(), "a=b".to_owned())].into();
    store.set_headers("old", Headers { carried, ..Headers::default() });
    let mount = Mount::lasting(&store);
    let files = [mount.create("new", CHANGES), mount.open("old", EMPTIES)];
    // A change has begun and brought no byte.
    files.iter().for_each(|file| mount.write(file, 0, b"").unwrap());
    assert_eq!(mount.run(mount.world.edits.leave_open_files(Duration::from_secs(2))), []);
    let mount = mount.kill();
    mount.restore();
    for (file, name) in files.iter().zip(["new", "old"]) {
        mount.write(file, 0, b"written").unwrap();
        mount.close(file).unwrap();
        assert!(is(&store, name, b"written"), "{name}");
    }
    assert_eq!(store.headers("old").unwrap().carried["tagging"], "a=b");
}

#[test]
fn file_that_is_released_while_the_mount_is_left_is_stored_by_the_next_daemon() {
    let store = Memory::default();
    let mount = Mount::lasting(&store);
    let file = mount.create("f", CHANGES);
    mount.truncate(&file, 5 * PART as u64).unwrap();
    // It waits for its content.
    mount.flush(&file).unwrap();
    let released = mount.begin_release(&file);
    mount.settle();
    let left = mount.run(mount.world.edits.leave_open_files(Duration::from_secs(2)));
    assert_eq!(left.len(), 1);
    mount.end(released);
    assert!(store.content("f").is_none());
    let mount = mount.kill();
    mount.restore();
    mount.wait(EXPIRED);
    assert!(is(&store, "f", &[0; 5 * PART]));
}

#[test]
fn file_that_a_read_has_saved_is_clean_in_the_next_daemon() {
    let store = Memory::default();
    let mount = Mount::lasting_with(&store, Limits { kept: 0, kept_of_long: 0, ..writing(None).limits });
    let file = mount.create("f", CHANGES);
    for part in 0..8 {
        mount.write(&file, part * PART as u64, &[1; PART]).unwrap();
    }
    mount.settle();
    assert_eq!(mount.read(&file, 0, 10).unwrap(), [1; 10]);
    assert!(is(&store, "f", &[1; 8 * PART]), "the read has stored it");
    assert_eq!(mount.run(mount.world.edits.leave_open_files(Duration::from_secs(2))), []);
    let mount = mount.kill();
    mount.restore();
    mount.fsync(&file).unwrap();
    mount.write(&file, 0, b"and on").unwrap();
    mount.close(&file).unwrap();
    assert!(store.content("f").unwrap().starts_with(b"and on"));
}

#[test]
fn rename_that_meets_the_leaving_of_a_mount_is_made_by_the_next_daemon() {
    let store = Memory::default();
    let mount = Mount::lasting(&store);
    let file = mount.create("a", CHANGES);
    mount.write(&file, 0, b"content").unwrap();
    let (list, head) = (store.hold(Op::List, "b"), store.hold(Op::Head, "b"));
    let renamed = mount.begin_rename("a", "b");
    mount.settle();
    assert!(list.is_reached() || head.is_reached(), "it asks for the target");
    let left = mount.run(mount.world.edits.leave_open_files(Duration::from_secs(2)));
    assert_eq!(left.len(), 1);
    list.release();
    head.release();
    assert!(mount.end(renamed).unwrap_err().is_left());
    let mount = mount.kill();
    mount.restore();
    let renamed = mount.begin_rename("a", "b");
    mount.end(renamed).unwrap();
    mount.close(&file).unwrap();
    assert!(is(&store, "b", b"content") && store.content("a").is_none());
}

#[test]
fn append_that_a_killed_daemon_has_made_is_not_made_again() {
    for made in [0, 3, 8] {
        for before in ["", "before, ", "repeated"] {
            let store = Memory::default();
            let mount = Mount::new(&store);
            let file = mount.create("f", Access { append: true, ..CHANGES });
            mount.write(&file, 0, before.as_bytes()).unwrap();
            let end = before.len() as u64;
            let data = b"repeated";
            if made > 0 {
                mount.write(&file, end, &data[..made]).unwrap();
            }
            mount.run(mount.world.edits.write_again(file.handle, end, data, ME.thread)).unwrap();
            mount.close(&file).unwrap();
            assert!(is(&store, "f", &[before.as_bytes(), data].concat()), "{made} {before}");
        }
    }
}

#[test]
fn append_of_another_writer_is_not_taken_for_one_that_is_made_again() {
    let store = Memory::default();
    let mount = Mount::new(&store);
    let file = mount.create("f", Access { append: true, ..CHANGES });
    mount.write(&file, 0, b"by another").unwrap();
    mount.run(mount.world.edits.write_again(file.handle, 0, b"appended!!", ME.thread)).unwrap();
    mount.close(&file).unwrap();
    assert!(is(&store, "f", b"by anotherappended!!"));
}

#[test]
fn bytes_that_stay_after_a_failed_close_are_not_taken_for_later_ones() {
    let store = Memory::default();
    store.put("f", vec![7; 5 * PART]);
    let mount = Mount::lasting(&store);
    let file = mount.open("f", CHANGES);
    mount.write(&file, 10, b"of the first writer").unwrap();
    refuse_writes(&store);
    mount.close(&file).unwrap_err();
    store.clear_faults();
    assert!(!mount.staged().is_empty(), "they stay");
    let file = mount.open("f", EMPTIES);
    mount.write(&file, 0, b"of the second").unwrap();
    let mount = mount.kill();
    mount.restore();
    mount.fsync(&file).unwrap_err();
    mount.close(&file).unwrap_err();
    mount.run(mount.world.edits.recover());
    assert!(is(&store, "f", &[7; 5 * PART]));
}

#[test]
fn read_that_meets_the_commit_of_an_edit_is_answered() {
    for is_answer in [false, true] {
        let store = Memory::default();
        store.put("f", vec![7; 5 * PART]);
        let mount = Mount::new(&store);
        let file = mount.open("f", CHANGES);
        mount.write(&file, 0, b"changed").unwrap();
        let op = Op::CompleteUpload;
        let mut commit = if is_answer { store.hold_answer(op, "f") } else { store.hold(op, "f") };
        let flushed = mount.begin_flush(&file);
        mount.reach(&mut commit);
        let read = mount.begin_read(&file, 4 * PART as u64, 10);
        mount.settle();
        commit.release();
        mount.end(flushed).unwrap();
        assert_eq!(mount.end(read).unwrap(), [7; 10], "{is_answer}");
        mount.close(&file).unwrap();
    }
}

#[test]
fn bytes_of_a_failed_release_commit_stay_on_disk() {
    let store = Memory::default();
    store.put("f", "old content");
    let mount = Mount::lasting(&store);
    let file = mount.open("f", CHANGES);
    mount.write(&file, 0, b"NEW").unwrap();
    refuse_writes(&store);
    // Without a flush: the kernel wrote back what a mapping had changed, or the descriptor was inherited.
    mount.release(&file);
    assert!(mount.staged().iter().any(|name| name.ends_with(".data")), "{:?}", mount.staged());
    assert_eq!(mount.content("f"), b"old content");
    store.clear_faults();
    let next = mount.kill();
    next.restore();
    next.run(next.world.edits.recover());
    next.run(next.world.edits.settle());
    assert!(is(&store, "f", b"NEW content"), "{:?} {:?}", store.content("f"), next.staged());
}

#[test]
fn restore_of_a_released_file_does_not_wait_for_its_upload() {
    let store = Memory::default();
    store.put("f", "old content");
    let mount = Mount::lasting(&store);
    let file = mount.open("f", CHANGES);
    mount.write(&file, 0, b"NEW").unwrap();
    let mut put = store.hold(Op::Put, "f");
    let _released = mount.begin_release(&file);
    mount.reach(&mut put);
    let next = mount.kill();
    let mut again = store.hold(Op::Put, "f");
    next.restore();
    next.reach(&mut again);
    assert_eq!(next.size_of("f"), 11, "requests are answered meanwhile");
    again.release();
    next.settle();
    next.run(next.world.edits.settle());
    assert!(is(&store, "f", b"NEW content"));
    assert_eq!(next.content("f"), b"NEW content");
}

#[test]
fn rename_whose_delete_fails_shows_the_file_under_both_names() {
    for source_is_open in [false, true] {
        let store = Memory::default();
        store.put("t", "old target");
        let mount = Mount::new(&store);
        let source = mount.create("s", CHANGES);
        mount.write(&source, 0, b"source").unwrap();
        if source_is_open {
            mount.flush(&source).unwrap();
        } else {
            mount.close(&source).unwrap();
        }
        assert_eq!((mount.size_of("t"), mount.content("t")), (10, b"old target".to_vec()));
        store.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(Op::Delete));
        let renamed = mount.begin_rename("s", "t");
        assert!(mount.end(renamed).is_err());
        assert_eq!((mount.size_of("t"), mount.content("t")), (6, b"source".to_vec()), "{source_is_open}");
        assert_eq!((mount.size_of("s"), mount.content("s")), (6, b"source".to_vec()));
        if source_is_open {
            mount.write(&source, 6, b" and more").unwrap();
            mount.close(&source).unwrap();
            assert_eq!((mount.content("s"), mount.content("t")), (b"source and more".to_vec(), b"source".to_vec()));
        }
        mount.expire();
        assert_eq!(mount.content("t"), b"source");
    }
}

#[test]
fn exclusive_file_whose_sent_bytes_are_used_overwrites_nothing() {
    for is_read in [true, false] {
        let store = Memory::default();
        store.set_least_part(PART as u64);
        let limits = Limits { kept: 0, kept_of_long: 0, ..writing(None).limits };
        let mount = Mount::with(&store, writer::Options { limits, ..writing(None) });
        let file = mount.create("f", Access { exclusive: true, ..CHANGES });
        for part in 0..8 {
            mount.write(&file, part * PART as u64, &[1; PART]).unwrap();
        }
        mount.settle();
        assert!(store.count(Op::UploadPart) > 0, "bytes are gone from memory");
        store.put("f", "of another client");
        let used = if is_read { mount.read(&file, 0, 10).map(drop) } else { mount.write(&file, 0, b"again") };
        assert!(used.is_err() && mount.close(&file).is_err(), "{used:?}");
        assert!(is(&store, "f", b"of another client"), "{is_read}");
        assert_eq!(store.uploads(), []);
    }
}

#[test]
fn commit_that_ends_late_in_a_drain_is_not_called_lost() {
    for (is_edit, len, end) in
        [(false, 7, 8_500), (false, 7, 9_200), (false, 7, 9_900), (false, 2 * PART, 9_900), (true, 7, 9_200), (true, 7, 9_900)]
    {
        for is_flushed in [false, true] {
            let store = Memory::default();
            let content = vec![1; len];
            if is_edit {
                store.put("f", vec![0; len]);
            }
            let mount = Mount::lasting(&store);
            let file = if is_edit { mount.open("f", CHANGES) } else { mount.create("f", CHANGES) };
            mount.write(&file, 0, &content).unwrap();
            let mut put = store.hold(if len > PART { Op::CompleteUpload } else { Op::Put }, "f");
            let flushed = is_flushed.then(|| mount.begin_flush(&file));
            let edits = Arc::clone(&mount.world.edits);
            let drained = mount.begin(async move { edits.drain(Duration::from_secs(10)).await });
            mount.reach(&mut put);
            let began = if is_flushed { 0 } else { 1000 };
            mount.wait(Duration::from_millis(end - began));
            put.release();
            let case = (is_edit, len, end, is_flushed);
            assert_eq!(mount.end(drained), [], "{case:?}");
            assert!(is(&store, "f", &content), "{case:?}");
            if let Some(flushed) = flushed {
                mount.end(flushed).unwrap();
            }
            mount.fsync(&file).unwrap();
            mount.close(&file).unwrap();
            assert_eq!(mount.staged(), Vec::<String>::new(), "{case:?}");
        }
    }
}

#[test]
fn truncate_to_zero_meeting_the_end_of_a_drain_ends() {
    for wait in (0..40).map(|step| 400 * step) {
        let store = Memory::default();
        store.put("f", vec![1; 3 * PART]);
        let mount = Mount::lasting(&store);
        let file = mount.open("f", CHANGES);
        mount.write(&file, 0, b"staged").unwrap();
        let put = store.hold(Op::Put, "f");
        let create = store.hold(Op::CreateUpload, "f");
        let flushed = mount.begin_flush(&file);
        mount.settle();
        assert!(put.is_reached() || create.is_reached());
        let edits = Arc::clone(&mount.world.edits);
        let emptied = mount.begin(async move { edits.truncate(file.handle, 0).await });
        mount.settle();
        let edits = Arc::clone(&mount.world.edits);
        let drained = mount.begin(async move { edits.drain(Duration::from_secs(10)).await });
        mount.wait(Duration::from_millis(wait));
        put.release();
        create.release();
        let (flushed, emptied, lost) = (mount.end(flushed), mount.end(emptied), mount.end(drained));
        let synced = mount.fsync(&file);
        let closed = mount.close(&file);
        let is_there = |content: &[u8]| is(&store, "f", content);
        assert_eq!(synced.is_ok(), closed.is_ok(), "{wait}");
        if synced.is_ok() {
            assert!(
                lost.is_empty() && if emptied.is_ok() { is_there(b"") } else { !is_there(b"") },
                "{wait} {flushed:?} {emptied:?} {lost:?}"
            );
        } else {
            assert!(!lost.is_empty(), "{wait} {flushed:?} {emptied:?}");
        }
    }
}

#[test]
fn forget_beside_an_open_of_the_same_inode_keeps_its_version() {
    let store = Memory::default();
    let mount = Mount::new(&store);
    for round in 0..2000 {
        store.put("f", "version a");
        mount.expire();
        let ino = mount.lookup("f").unwrap();
        let start = std::sync::Barrier::new(2);
        let opened = std::thread::scope(|scope| {
            let forgets = scope.spawn(|| {
                start.wait();
                mount.world.names.forget(ino, 1);
            });
            let opens = scope.spawn(|| {
                let _entered = mount.world.runtime.enter();
                start.wait();
                let found = mount.world.names.try_lookup(Inode::ROOT, b"f").expect("it is cached").expect("it is there");
                assert_eq!(found.attr.ino, ino);
                mount.world.files.try_open(ino, false).expect("it is cached").expect("it opens")
            });
            forgets.join().unwrap();
            opens.join().unwrap()
        });
        let file = File { ino, handle: opened.handle, keep_pages: opened.keep_pages };
        assert_eq!(mount.read(&file, 0, 9).unwrap(), b"version a");
        store.put("f", "version b");
        mount.expire();
        assert!(
            matches!(mount.open_inode(ino, READS), Err(Error::Retired)),
            "round {round}: the handle that has read is not known any more"
        );
        mount.release(&file);
        mount.world.names.forget(ino, 1);
    }
}

#[test]
fn o_trunc_of_one_file_by_two_writers_empties_it_for_each() {
    let store = Memory::default();
    store.put("f", "old content");
    let mount = Mount::new(&store);
    let ino = mount.lookup("f").unwrap();
    mount.expire();
    let mut head = store.hold(Op::Head, "f");
    let begin = |text: &'static [u8]| {
        let (edits, names) = (Arc::clone(&mount.world.edits), Arc::clone(&mount.world.names));
        mount.begin(async move {
            let handle = edits.open(ino, EMPTIES, ME).await?.handle;
            // Nothing else runs before this.
            let size = names.try_getattr(ino).expect("it is being written")?.0.size;
            edits.write(handle, 0, text, ME.thread).await?;
            Ok::<_, Error>((handle, size))
        })
    };
    let (first, second) = (begin(b"the first one"), begin(b"second"));
    mount.reach(&mut head);
    mount.settle();
    head.release();
    let ((first, size), (second, size_again)) = (mount.end(first).unwrap(), mount.end(second).unwrap());
    assert_eq!((size, size_again), (0, 0), "each of them has emptied it");
    let open = |handle| File { ino, handle, keep_pages: false };
    assert_eq!(mount.size(ino), 6);
    mount.close(&open(first)).unwrap();
    mount.close(&open(second)).unwrap();
    assert!(is(&store, "f", b"second"));
    assert_eq!(mount.content("f"), b"second");
}

#[test]
fn inode_that_lost_its_name_to_another_begins_no_dirty_file() {
    let store = Memory::default();
    store.put("f", "old content");
    let mount = Mount::new(&store);
    let old = mount.open("f", CHANGES);
    assert_eq!(mount.read(&old, 0, 3).unwrap(), b"old");
    store.put("f", "of another client");
    mount.expire();
    let new = mount.open("f", EMPTIES);
    assert_ne!(old.ino, new.ino, "bytes of the version before were read through it");
    mount.write(&new, 0, b"new").unwrap();
    assert!(mount.write(&old, 0, b"OLD").is_err());
    assert!(mount.close(&old).is_err(), "what was not stored says so");
    mount.close(&new).unwrap();
    assert!(is(&store, "f", b"new"));
    assert_eq!(mount.content("f"), b"new");
}

#[test]
fn edit_begun_while_its_name_gets_another_inode_is_refused() {
    for is_answer in [true, false] {
        let store = Memory::default();
        store.put("f", "old content");
        let mount = Mount::new(&store);
        let old = mount.open("f", CHANGES);
        assert_eq!(mount.read(&old, 0, 3).unwrap(), b"old");
        mount.expire();
        let mut head = if is_answer { store.hold_answer(Op::Head, "f") } else { store.hold(Op::Head, "f") };
        let edits = Arc::clone(&mount.world.edits);
        let written = mount.begin(async move { edits.write(old.handle, 0, b"OLD", ME.thread).await });
        mount.reach(&mut head);
        store.put("f", "of another client");
        let new = mount.open("f", EMPTIES);
        assert_ne!(old.ino, new.ino);
        mount.write(&new, 0, b"new").unwrap();
        head.release();
        assert!(mount.end(written).is_err());
        mount.close(&new).unwrap();
        // The HEAD shows another version, or the name has another dirty file: then a later write may still succeed.
        assert_eq!(mount.close(&old).is_err(), !is_answer);
        assert!(is(&store, "f", b"new"), "{is_answer}");
        assert_eq!((mount.size_of("f"), mount.content("f")), (3, b"new".to_vec()));
    }
}

#[test]
fn released_handles_leave_no_row_in_the_journal() {
    let store = Memory::default();
    store.put("f", "old content");
    let mount = Mount::lasting(&store);
    let (reader, file) = (mount.open("f", READS), mount.open("f", CHANGES));
    mount.read(&reader, 0, 3).unwrap();
    mount.write(&file, 0, b"NEW").unwrap();
    assert!(!mount.world.files.answered().is_empty() && !mount.world.edits.answered().is_empty());
    let mut put = store.hold(Op::Put, "f");
    let flushed = mount.begin_flush(&file);
    mount.reach(&mut put);
    mount.release(&reader);
    let released = mount.begin_release(&file);
    mount.settle();
    put.release();
    mount.end(flushed).unwrap();
    mount.end(released);
    let next = mount.kill();
    assert_eq!((next.world.files.answered(), next.world.edits.answered()), (vec![], vec![]));
}

#[test]
fn row_written_beside_a_release_does_not_stay_in_the_journal() {
    let store = Memory::default();
    store.put("f", "content");
    let mount = Mount::lasting(&store);
    let ino = mount.lookup("f").unwrap();
    for access in [READS, CHANGES] {
        for round in 0..2000 {
            let handle = mount.open_inode(ino, access).unwrap().handle;
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let tells = scope.spawn(|| {
                    start.wait();
                    mount.told(handle);
                });
                let releases = scope.spawn(|| {
                    start.wait();
                    mount.release(&File { ino, handle, keep_pages: false });
                });
                tells.join().unwrap();
                releases.join().unwrap();
            });
            assert_eq!((mount.world.files.answered(), mount.world.edits.answered()), (vec![], vec![]), "round {round}");
        }
    }
}

#[test]
fn reader_beside_an_edit_in_place_reads_the_new_bytes() {
    let store = Memory::default();
    let mut content = support::model::content(7, 0, 32 << 20);
    store.put("f", content.clone());
    let mount = Mount::with(&store, writer::Options::default());
    let reader = mount.open("f", READS);
    assert_eq!(mount.read(&reader, 0, 9).unwrap(), content[..9]);
    let (file, far) = (mount.open("f", CHANGES), 24 << 20);
    for round in 0..3 {
        // A read of the version before is under way while the file is changed and stored.
        let reading = (round == 0).then(|| {
            let mut get = store.hold(Op::Get, "f");
            let reading = mount.begin_read(&reader, far, 9);
            mount.reach(&mut get);
            (get, reading)
        });
        for at in [4, far as usize] {
            content[at..at + 5].fill(b'A' + round);
            mount.write(&file, at as u64, &content[at..at + 5]).unwrap();
        }
        assert_eq!(mount.read(&reader, 0, 9).unwrap(), content[..9], "{round}");
        mount.flush(&file).unwrap();
        assert!(is(&store, "f", &content));
        if let Some((get, reading)) = reading {
            get.release();
            assert_eq!(mount.end(reading).unwrap(), content[far as usize..][..9]);
        }
        for at in [0, far as usize, 16 << 20] {
            assert_eq!(mount.read(&reader, at as u64, 9).unwrap(), content[at..at + 9], "{round}");
        }
    }
    mount.close(&file).unwrap();
    mount.expire();
    assert_eq!(mount.read(&reader, far, 9).unwrap(), content[far as usize..][..9]);
}

fn is_stale<T: std::fmt::Debug>(result: Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.errno() == libc::ESTALE) || panic!("{result:?}")
}

/// A change of `name` by another client while a file is open for `access` here, and its close.
fn close_after_another_wrote(mount: &Mount, access: Access, other: Option<&'static str>) -> (File, Result<()>) {
    let file = mount.open("f", access);
    mount.write(&file, 0, b"ours").unwrap();
    match other {
        Some(content) => drop(mount.store.put("f", content)),
        None => assert!(mount.store.delete("f")),
    }
    let closed = mount.flush(&file);
    (file, closed)
}

#[test]
fn conflicting_close_fails_and_leaves_the_other_version() {
    for (access, other) in [(CHANGES, Some("theirs")), (EMPTIES, Some("theirs")), (EMPTIES, None)] {
        let store = Memory::default();
        store.put("f", "before");
        let mount = Mount::refusing(&store);
        let (file, closed) = close_after_another_wrote(&mount, access, other);
        assert!(is_stale(closed), "{access:?} {other:?}");
        // It stays so, on every later call.
        assert!(is_stale(mount.fsync(&file)) && is_stale(mount.flush(&file)));
        mount.release(&file);
        assert_eq!(store.content("f").map(|content| content.to_vec()), other.map(|other| other.as_bytes().to_vec()), "{access:?}");
        // Who opens it after that has the new version, and changes it.
        if other.is_some() {
            let file = mount.open("f", CHANGES);
            mount.write(&file, 0, b"T").unwrap();
            mount.close(&file).unwrap();
            assert!(is(&store, "f", b"Theirs"));
        }
    }
}

#[test]
fn conflicting_close_replaces_the_other_version_where_that_was_asked_for() {
    let store = Memory::default();
    store.put("f", "before");
    let mount = Mount::on_conflict(&store, Conflict::Overwrite);
    let (file, closed) = close_after_another_wrote(&mount, EMPTIES, Some("theirs"));
    closed.unwrap();
    mount.release(&file);
    assert!(is(&store, "f", b"ours"));
}

/// Handles of two mounts that append to `f`, which has `before` bytes, opened before either has written.
fn two_that_append(store: &Memory, before: Option<usize>) -> [(Mount, File); 2] {
    if let Some(before) = before {
        store.put("f", vec![b'.'; before]);
    }
    // All that they write stays in memory while it is sent.
    let limits = Limits { kept: 8 * PART as u64, ..writing(None).limits };
    [(); 2].map(|()| {
        let mount = Mount::refusing_with(store, limits, Options::default());
        let file = if before.is_some() { mount.open("f", APPENDS) } else { mount.create("f", APPENDS) };
        (mount, file)
    })
}

#[test]
fn appends_of_two_mounts_are_all_kept() {
    for before in [None, Some(0), Some(7), Some(6 * PART)] {
        for len in [1, 3 * PART] {
            let store = Memory::default();
            let [(first, one), (second, two)] = two_that_append(&store, before);
            first.write(&one, 0, &vec![b'1'; len]).unwrap();
            second.write(&two, 0, &vec![b'2'; len]).unwrap();
            first.fsync(&one).unwrap();
            second.fsync(&two).unwrap();
            // Also by handles that go on.
            first.write(&one, 0, b"3").unwrap();
            second.write(&two, 0, b"4").unwrap();
            second.close(&two).unwrap();
            first.close(&one).unwrap();
            let before = before.unwrap_or(0);
            let expected = [vec![b'.'; before], vec![b'1'; len], vec![b'2'; len], b"43".to_vec()].concat();
            assert!(is(&store, "f", &expected), "{before} {len}");
            assert_eq!(first.read_whole("f"), expected, "{before} {len}");
        }
    }
}

#[test]
fn appends_follow_the_version_that_another_client_put_there() {
    for there in [PART / 2, 4 * PART] {
        let store = Memory::default();
        let [(mount, file), _] = two_that_append(&store, Some(3 * PART));
        mount.write(&file, 0, b"ours").unwrap();
        store.put("f", vec![b't'; there]);
        mount.close(&file).unwrap();
        assert!(is(&store, "f", &[vec![b't'; there], b"ours".to_vec()].concat()), "{there}");
    }
}

#[test]
fn append_to_what_another_client_removed_is_refused() {
    let store = Memory::default();
    let [(mount, file), _] = two_that_append(&store, Some(10));
    mount.write(&file, 0, b"ours").unwrap();
    assert!(store.delete("f"));
    assert!(is_stale(mount.close(&file)) && store.content("f").is_none());
}

#[test]
fn what_was_not_only_appended_is_refused() {
    let store = Memory::default();
    let [(mount, file), _] = two_that_append(&store, Some(10));
    let other = mount.open("f", CHANGES);
    mount.write(&file, 0, b"ours").unwrap();
    mount.write(&other, 3, b"inside").unwrap();
    store.put("f", "theirs");
    assert!(is_stale(mount.close(&file)) && is_stale(mount.close(&other)));
    assert!(is(&store, "f", b"theirs"));
}

#[test]
fn file_is_open_to_others_once_a_conflict_was_told() {
    for (access, conflict) in [(CHANGES, Conflict::Fail), (EMPTIES, Conflict::Fail), (EMPTIES, Conflict::Save)] {
        let store = Memory::default();
        store.put("f", "before");
        let mount = Mount::on_conflict(&store, conflict);
        let (failed, closed) = close_after_another_wrote(&mount, access, Some("theirs"));
        assert!(is_stale(closed));
        // The failed handle is still open.
        assert_eq!(mount.read_whole("f"), b"theirs");
        let file = mount.open("f", access);
        mount.write(&file, 0, b"Again.").unwrap();
        mount.close(&file).unwrap();
        assert!(is(&store, "f", b"Again."));
        assert!(is_stale(mount.write(&failed, 0, b"x")) && is_stale(mount.fsync(&failed)));
        mount.release(&failed);
        assert!(is(&store, "f", b"Again."));
    }
}

#[test]
fn conflicting_version_is_saved_beside_the_other() {
    for (access, size) in [(CHANGES, 6), (CHANGES, 4 * PART), (EMPTIES, 6)] {
        let store = Memory::default();
        store.put("d/f", vec![b'.'; size]);
        let mount = Mount::on_conflict(&store, Conflict::Save);
        let ino = mount.lookup_in(mount.lookup("d").unwrap(), "f").unwrap();
        let Opened { handle, keep_pages, .. } = mount.open_inode(ino, access).unwrap();
        let file = File { ino, handle, keep_pages };
        mount.write(&file, 2, b"ours").unwrap();
        store.put("d/f", "theirs");
        assert!(is_stale(mount.close(&file)), "{access:?}");
        assert!(is(&store, "d/f", b"theirs"));
        let beside = store.keys().into_iter().find(|key| key.to_string().starts_with("d/f.conflict-"));
        let beside = beside.unwrap_or_else(|| panic!("{access:?} {size}: {:?}", store.requests())).to_string();
        let mut expected = if access.truncate { vec![0; 6] } else { vec![b'.'; size] };
        expected[2..6].copy_from_slice(b"ours");
        assert!(is(&store, &beside, &expected), "{access:?} {size}");
        let name = beside.strip_prefix("d/").unwrap();
        assert!(mount.lookup_in(mount.lookup("d").unwrap(), name).is_ok());
    }
}

#[test]
fn file_that_was_renamed_over_another_is_no_append_to_that() {
    let store = Memory::default();
    store.put("f", "before");
    let mount = Mount::refusing(&store);
    let file = mount.create("new", APPENDS);
    mount.write(&file, 0, b"all of what is new").unwrap();
    mount.end(mount.begin_rename("new", "f")).unwrap();
    store.put("f", "theirs");
    assert!(is_stale(mount.close(&file)));
    assert!(is(&store, "f", b"theirs"));
}

#[test]
fn conflicts_leave_nothing_on_the_disk() {
    for conflict in [Conflict::Fail, Conflict::Save] {
        let store = Memory::default();
        store.put("f", "before");
        let directory = tempfile::tempdir().unwrap();
        let names = |store: Arc<dyn ObjectStore>| Names::new(store, Options { conflict, ..Options::default() });
        let world = VfsWorld::over(Arc::new(store.clone()), writing(Some(directory.path())), names);
        let mount = Mount { world, store: store.clone(), directory: Some(directory) };
        for _ in 0..3 {
            let (file, closed) = close_after_another_wrote(&mount, CHANGES, Some("theirs"));
            assert!(is_stale(closed));
            mount.release(&file);
        }
        assert_eq!(mount.staged(), [""; 0]);
    }
}

/// Another client writes under the old name while the object is copied to the new one.
#[test]
fn what_is_written_under_the_old_name_during_a_rename_stays() {
    for is_open in [false, true] {
        let store = Memory::default();
        store.put("f", "before");
        let mount = Mount::refusing(&store);
        let file = is_open.then(|| {
            let file = mount.open("f", CHANGES);
            mount.write(&file, 0, b"B").unwrap();
            mount.fsync(&file).unwrap();
            file
        });
        mount.lookup("f").unwrap();
        let mut delete = store.hold(Op::Delete, "f");
        let renaming = mount.begin_rename("f", "g");
        mount.reach(&mut delete);
        store.put("f", "theirs");
        drop(delete);
        mount.end(renaming).unwrap();
        assert!(is(&store, "f", b"theirs") && is(&store, "g", if is_open { b"Before" } else { b"before" }), "{is_open}");
        assert_eq!((mount.read_whole("f"), mount.read_whole("g").len()), (b"theirs".to_vec(), 6));
        if let Some(file) = file {
            mount.write(&file, 0, b"C").unwrap();
            mount.close(&file).unwrap();
            assert!(is(&store, "g", b"Cefore") && is(&store, "f", b"theirs"));
        }
    }
}

#[test]
fn new_file_that_another_client_has_made_too_is_refused() {
    for size in [10, 5 * PART] {
        let store = Memory::default();
        let mount = Mount::refusing(&store);
        let file = mount.create("f", CHANGES);
        mount.write(&file, 0, &vec![1; size]).unwrap();
        store.put("f", "theirs");
        assert!(is_stale(mount.close(&file)), "{size}");
        assert!(is(&store, "f", b"theirs"), "{size}");
    }
}

#[test]
fn long_file_replaced_while_it_was_written_is_refused() {
    for access in [CHANGES, EMPTIES] {
        let store = Memory::default();
        store.put("f", vec![0; 6 * PART]);
        let mount = Mount::refusing(&store);
        let file = mount.open("f", access);
        for part in 0..6 {
            mount.write(&file, part * PART as u64, &[1; PART]).unwrap();
        }
        store.put("f", "theirs");
        assert!(is_stale(mount.close(&file)));
        assert!(is(&store, "f", b"theirs"));
    }
}

#[test]
fn save_that_a_read_needs_overwrites_nobody() {
    let store = Memory::default();
    let limits = Limits { kept: 0, kept_of_long: 0, ..writing(None).limits };
    let mount = Mount::refusing_with(&store, limits, Options::default());
    let file = mount.create("f", CHANGES);
    for part in 0..8 {
        mount.write(&file, part * PART as u64, &[1; PART]).unwrap();
    }
    mount.settle();
    store.put("f", "theirs");
    assert!(mount.read(&file, 0, 10).is_err());
    assert!(is(&store, "f", b"theirs"));
    // After one that was made, its own version is what it replaces.
    let file = mount.create("g", CHANGES);
    for part in 0..8 {
        mount.write(&file, part * PART as u64, &[1; PART]).unwrap();
    }
    mount.settle();
    assert_eq!(mount.read(&file, 0, 10).unwrap(), [1; 10]);
    mount.write(&file, 0, b"2").unwrap();
    mount.close(&file).unwrap();
    assert_eq!(store.content("g").expect("it is there")[..2], *b"2\x01");
}

#[test]
fn own_versions_are_no_conflict() {
    let store = Memory::default();
    let options = Options { posix_attributes: PosixAttributes::On, ..Options::default() };
    for options in [Options::default(), options] {
        let mount = Mount::refusing_with(&store, writing(None).limits, options);
        let file = mount.create("f", CHANGES);
        for round in 0..3 {
            mount.write(&file, round, b"x").unwrap();
            mount.fsync(&file).unwrap();
        }
        // A change of mode makes another version of the object.
        let own = windlass::vfs::NewAttributes { mode: Some(0o600), ..Default::default() };
        mount.run(mount.world.edits.set_attributes(file.ino, None, SetAttributes { own, ..SetAttributes::default() })).unwrap();
        mount.write(&file, 3, b"y").unwrap();
        mount.fsync(&file).unwrap();
        mount.end(mount.begin_rename("f", "g")).unwrap();
        mount.write(&file, 4, b"z").unwrap();
        mount.close(&file).unwrap();
        assert!(is(&store, "g", b"xxxyz") && store.content("f").is_none());
        // One that is open takes the place of another.
        store.put("h", "there before");
        let file = mount.create("new", CHANGES);
        mount.write(&file, 0, b"new").unwrap();
        mount.end(mount.begin_rename("new", "h")).unwrap();
        mount.close(&file).unwrap();
        assert!(is(&store, "h", b"new"));
        // What was known of it is old by the time it is emptied.
        mount.wait(Duration::from_secs(2));
        store.put("h", "of another");
        let file = mount.open("h", EMPTIES);
        mount.write(&file, 0, b"ours").unwrap();
        mount.close(&file).unwrap();
        assert!(is(&store, "h", b"ours"));
        // Removed and made again.
        mount.run(mount.world.edits.unlink(Inode::ROOT, b"h")).unwrap();
        let file = mount.create("h", CHANGES);
        mount.write(&file, 0, b"again").unwrap();
        mount.close(&file).unwrap();
        assert!(is(&store, "h", b"again"));
        mount.run(mount.world.edits.unlink(Inode::ROOT, b"h")).unwrap();
        mount.run(mount.world.edits.unlink(Inode::ROOT, b"g")).unwrap();
    }
}

#[test]
fn headers_of_an_object_stay_through_changes_of_its_content_and_name() {
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let for_clients = [("cache-control", "no-store"), ("content-disposition", "inline"), ("content-encoding", "gzip")];
    let of_store = [("storage-class", "STANDARD_IA"), ("tagging", "a=b"), ("acl", "public-read"), ("object-lock-legal-hold", "ON")];
    let metadata = pairs(&[("owner", "me"), ("mode", "33152"), ("uid", "7")]);
    let headers = Headers { content_type: Some("model/gguf".into()), metadata, carried: pairs(&[&for_clients[..], &of_store].concat()) };
    let all = [PosixAttributes::Off, PosixAttributes::Auto, PosixAttributes::On];
    for (posix_attributes, size) in all.into_iter().flat_map(|attributes| [(attributes, 100), (attributes, 5 * PART)]) {
        let store = Memory::default();
        store.put("f", vec![1; size]);
        store.set_headers("f", headers.clone());
        let mount = Mount::refusing_with(&store, writing(None).limits, Options { posix_attributes, ..Options::default() });
        let check = |name: &str, after: &str| {
            let found = store.headers(name).expect("it is there");
            assert_eq!((&found.carried, &found.content_type), (&headers.carried, &headers.content_type), "after {after}, {size} bytes");
            let metadata = ["owner", "mode", "uid"].map(|name| &*found.metadata[name]);
            assert_eq!(metadata, ["me", "33152", "7"], "after {after}, {size} bytes");
        };
        let file = mount.open("f", CHANGES);
        mount.write(&file, 10, b"edited").unwrap();
        mount.close(&file).unwrap();
        check("f", "an edit");
        let file = mount.open("f", Access { append: true, ..CHANGES });
        mount.write(&file, size as u64, b"appended").unwrap();
        mount.close(&file).unwrap();
        check("f", "an append");
        let file = mount.open("f", CHANGES);
        mount.truncate(&file, 50).unwrap();
        mount.close(&file).unwrap();
        check("f", "a truncate");
        let own = windlass::vfs::NewAttributes { mode: Some(0o600), ..Default::default() };
        mount.run(mount.world.edits.set_attributes(file.ino, None, SetAttributes { own, ..SetAttributes::default() })).unwrap();
        check("f", "a chmod");
        mount.end(mount.begin_rename("f", "g")).unwrap();
        check("g", "a rename");
        let file = mount.open("g", CHANGES);
        mount.write(&file, 0, b"open").unwrap();
        mount.end(mount.begin_rename("g", "h")).unwrap();
        mount.close(&file).unwrap();
        check("h", "a rename while it was open");
        let file = mount.open("h", EMPTIES);
        mount.write(&file, 0, &vec![2; size]).unwrap();
        mount.close(&file).unwrap();
        check("h", "an overwrite");
        mount.run(mount.world.edits.set_attributes(file.ino, None, SetAttributes { size: Some(0), ..Default::default() })).unwrap();
        check("h", "a truncate to nothing");
        mount.run(mount.world.edits.set_attributes(file.ino, None, SetAttributes { size: Some(9), ..Default::default() })).unwrap();
        check("h", "a truncate to more");
    }
}

/// What somebody does to the one object of [`several_clients`].
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A mount opens it in one of its places for handles, to append or to change.
    Open {
        mount: usize,
        place: usize,
        appends: bool,
    },
    /// Reads all of it and adds a line, or only adds a line.
    Write {
        mount: usize,
        place: usize,
    },
    Fsync {
        mount: usize,
        place: usize,
    },
    Close {
        mount: usize,
        place: usize,
    },
    /// A program that uses the API of the store adds a line.
    Api,
    /// What is believed gets old.
    Wait {
        seconds: u64,
    },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let place = || (0usize..2, 0usize..2);
    let act = prop_oneof![
        4 => (place(), any::<bool>()).prop_map(|((mount, place), appends)| Act::Open { mount, place, appends }),
        6 => place().prop_map(|(mount, place)| Act::Write { mount, place }),
        2 => place().prop_map(|(mount, place)| Act::Fsync { mount, place }),
        4 => place().prop_map(|(mount, place)| Act::Close { mount, place }),
        2 => Just(Act::Api),
        1 => (1u64..70).prop_map(|seconds| Act::Wait { seconds }),
    ];
    prop::collection::vec(act, 1..60)
}

/// A handle of a mount, and the lines that it has written since the last fsync.
struct Writing {
    file: File,
    appends: bool,
    lines: Vec<String>,
}

/// Two mounts and a program that uses the API add lines to one object. Returns it, the other objects, the lines that somebody was told are stored, and
/// those of which a writer was told that they are not.
fn several_clients(conflict: Conflict, acts: &[Act]) -> (String, Vec<String>, Vec<String>, Vec<String>) {
    let store = Memory::default();
    store.put("f", "begin--\n");
    let mounts = [(); 2].map(|()| Mount::on_conflict(&store, conflict));
    let mut writing: [[Option<Writing>; 2]; 2] = Default::default();
    let (mut stored, mut refused) = (Vec::new(), Vec::new());
    // Of lines of another handle of the same mount, which may have been stored along, nothing was said yet.
    let told = |told: Result<()>, mut lines: Vec<String>, others: [&mut Option<Writing>; 2], ends: [&mut Vec<String>; 2]| {
        ends[usize::from(told.is_err())].append(&mut lines);
        others.into_iter().flatten().for_each(|other| other.lines.clear());
    };
    let closing = (0..4).map(|n| Act::Close { mount: n / 2, place: n % 2 });
    for (number, act) in acts.iter().copied().chain(closing).enumerate() {
        let line = format!("{number:07}\n");
        match act {
            Act::Open { mount, place, appends } => {
                if writing[mount][place].is_none() {
                    let file = mounts[mount].open("f", if appends { APPENDS } else { CHANGES });
                    writing[mount][place] = Some(Writing { file, appends, lines: Vec::new() });
                }
            }
            Act::Write { mount, place } => {
                let Some(Writing { file, appends, lines }) = &mut writing[mount][place] else { continue };
                let at = if *appends { Ok(0) } else { mounts[mount].read(file, 0, 1 << 20).map(|content| content.len() as u64) };
                if at.and_then(|at| mounts[mount].write(file, at, line.as_bytes())).is_ok() {
                    lines.push(line);
                }
            }
            Act::Fsync { mount, place } => {
                if let Some(Writing { file, lines, .. }) = &mut writing[mount][place] {
                    let (result, lines) = (mounts[mount].fsync(file), std::mem::take(lines));
                    told(result, lines, writing[mount].each_mut(), [&mut stored, &mut refused]);
                }
            }
            Act::Close { mount, place } => {
                if let Some(Writing { file, lines, .. }) = writing[mount][place].take() {
                    told(mounts[mount].close(&file), lines, writing[mount].each_mut(), [&mut stored, &mut refused]);
                }
            }
            Act::Api => {
                let before = store.content("f").expect("it is there");
                store.put("f", [&before, line.as_bytes()].concat());
                stored.push(line);
            }
            Act::Wait { seconds } => mounts.iter().for_each(|mount| mount.wait(Duration::from_secs(seconds))),
        }
    }
    let text = |key: &str| String::from_utf8(store.content(key).expect("it is there").to_vec()).expect("it is text");
    let beside = store.keys().iter().map(ToString::to_string).filter(|key| key != "f").map(|key| text(&key)).collect();
    (text("f"), beside, stored, refused)
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_line_that_was_acknowledged_is_there(acts in acts(), saves in any::<bool>()) {
        let conflict = if saves { Conflict::Save } else { Conflict::Fail };
        let (content, beside, stored, refused) = several_clients(conflict, &acts);
        for line in &stored {
            prop_assert_eq!(content.matches(line.as_str()).count(), 1, "{:?} in {:?}", line, content);
        }
        for line in &refused {
            prop_assert!(!content.contains(line.as_str()), "{:?} in {:?}", line, content);
            prop_assert_eq!(beside.iter().any(|other| other.contains(line.as_str())), saves, "{:?} in {:?}", line, beside);
        }
    }
}
