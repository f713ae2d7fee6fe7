//! Open files: from an inode to the bytes of the version that it named when it was opened.
//!
//! Invariant: whoever has read bytes through a handle never gets bytes of another version through it; until then it
//! moves on to the new version instead of failing. The kernel's pages are shared by all handles of an inode, so what one
//! of them has returned any other may have passed on: a version that was read from is not replaced inside its inode
//! while it is open.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use crate::reader::{ObjectHandle, Pending, ReadData, ReadError, Reader};
use crate::spill::Whole;
use crate::store::{self, ETag, ErrorKind, ObjectMeta};

use super::attr::Attr;
use super::fact::What;
use super::listing::FileFacts;
use super::{Error, Inode, Names, Result};

/// Longest wait for the kernel to be told of a change. It takes microseconds unless something is badly wrong.
const TELL: Duration = Duration::from_secs(5);

/// Names an open file towards the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// The open files of a mount.
#[derive(Debug)]
pub struct Files {
    names: Arc<Names>,
    reader: Reader,
    open: RwLock<HashMap<HandleId, Arc<OpenFile>>>,
    next: AtomicU64,
    /// The latest version seen of every inode that was ever opened and is not forgotten.
    latest: Mutex<HashMap<Inode, Latest>>,
    changed: Mutex<Changes>,
    change: Notify,
    /// How many changes the kernel has been told of.
    told: watch::Sender<u64>,
}

/// Inodes whose content was seen to change.
#[derive(Debug, Default)]
pub struct Changes {
    pub inodes: Vec<Inode>,
    /// Those of them of which the kernel may have pages that are old. No others are dropped: that takes until reads under way are
    /// answered, and an answer to getattr that crosses it is thrown away by the kernel (`attr_version`), which then goes on with the size
    /// it had and ends the file there.
    pub old_pages: Vec<Inode>,
    /// How many changes there were until now.
    count: u64,
}

/// One open file.
#[derive(Debug)]
pub struct OpenFile {
    ino: Inode,
    /// It was opened with O_DIRECT: nothing comes to it through the kernel's pages.
    direct: bool,
    version: Mutex<Version>,
}

#[derive(Debug)]
struct Latest {
    meta: ObjectMeta,
    state: Arc<VersionState>,
}

impl Latest {
    /// Bytes of it were returned through handles that are still open.
    fn is_being_read(&self) -> bool {
        self.state.returned.load(Ordering::SeqCst) && Arc::strong_count(&self.state) > 1
    }
}

/// What all handles of one version of an inode share.
#[derive(Debug, Default)]
struct VersionState {
    /// It is no longer what the store has.
    superseded: AtomicBool,
    /// Bytes were returned through some handle, and may be in the kernel's pages.
    returned: AtomicBool,
    /// A handle has moved on to it, and the kernel may have pages of the version before: the next open drops them.
    has_older_pages: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    Same,
    Other,
}

#[derive(Debug)]
struct Version {
    object: Arc<ObjectHandle>,
    state: Arc<VersionState>,
    /// Bytes of it were returned through this handle.
    has_returned: bool,
}

/// A read that has begun.
#[derive(Debug)]
pub struct Read {
    object: Arc<ObjectHandle>,
    pending: Pending,
    thread: u32,
    offset: u64,
    len: usize,
}

/// An answer to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub handle: HandleId,
    /// The kernel's pages of this inode are of this version and may stay.
    pub keep_pages: bool,
    /// Reads and writes shall go past the kernel's pages.
    pub direct: bool,
}

impl Files {
    /// No open files yet.
    pub fn new(names: Arc<Names>, reader: Reader) -> Arc<Self> {
        Arc::new(Self {
            names,
            reader,
            open: RwLock::default(),
            next: AtomicU64::new(1),
            latest: Mutex::default(),
            changed: Mutex::default(),
            change: Notify::new(),
            told: watch::Sender::new(0),
        })
    }

    /// Opens without waiting when the object's facts are cached and the kernel need not be told of a change. `direct`:
    /// past the kernel's pages.
    pub fn try_open(&self, ino: Inode, direct: bool) -> Option<Result<Opened>> {
        let (meta, _) = self.names.file(ino)?;
        if self.is_other_than_latest(ino, &meta.etag) {
            return None;
        }
        Some(Ok(self.opened(ino, direct, &meta)))
    }

    /// Opens the version that the name has now.
    ///
    /// # Errors
    /// ENOENT when the object is gone, EISDIR for a directory, ESTALE when the name has to be looked up again because
    /// older bytes are still being read from this inode, else what the store said.
    pub async fn open(&self, ino: Inode, direct: bool) -> Result<Opened> {
        let believed = self.believed_size(ino);
        let meta = self.names.fresh_object(ino).await?;
        if self.is_read_in_another_version(ino, &meta.etag) {
            self.names.retire(ino);
            return Err(Error::Retired);
        }
        let was_other = self.is_other_than_latest(ino, &meta.etag) || believed.is_some_and(|size| size != meta.size);
        let opened = self.opened(ino, direct, &meta);
        if was_other {
            // Else the kernel would go by the size of the version before, or of a listing that told none. Its pages of another version
            // it drops itself with this open.
            self.tell(ino, false).await;
        }
        Ok(opened)
    }

    /// A number for a handle.
    pub(super) fn new_handle(&self) -> HandleId {
        HandleId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// `handle`, which is open for writing, reads from the version `meta` until something is written.
    pub(super) fn read_as(&self, handle: HandleId, ino: Inode, direct: bool, meta: &ObjectMeta) {
        self.open_as(handle, ino, direct, meta);
    }

    /// Whether bytes of the version that counts were read through handles that are still open.
    pub(super) fn is_being_read(&self, ino: Inode) -> bool {
        self.latest.lock().get(&ino).is_some_and(Latest::is_being_read)
    }

    /// This mount has written another version of `ino`: handles of the one before read no more, and the next open takes none of
    /// the kernel's pages on trust.
    pub(super) fn on_commit(&self, ino: Inode, etag: &ETag) {
        let mut latest = self.latest.lock();
        if let Some(known) = latest.get(&ino).filter(|known| known.meta.etag != *etag) {
            known.state.superseded.store(true, Ordering::SeqCst);
            if !known.is_being_read() {
                latest.remove(&ino);
            }
        }
    }

    /// The object behind `ino` is `meta` now, under another key and perhaps another etag, and still the same content.
    pub(super) fn on_rename(&self, ino: Inode, meta: &ObjectMeta) {
        if let Some(latest) = self.latest.lock().get_mut(&ino) {
            latest.meta = meta.clone();
        }
        let open: Vec<_> = self.open.read().values().filter(|file| file.ino == ino).cloned().collect();
        for file in open {
            let mut version = file.version.lock();
            if !version.state.superseded.load(Ordering::SeqCst) {
                version.object = Arc::new(self.reader.open(meta));
            }
        }
    }

    /// The open file behind a handle.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn get(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        self.open.read().get(&handle).cloned().ok_or(Error::BadHandle)
    }

    /// The bytes of `version` of `ino` that are in memory for those who have it open, with their places.
    pub(super) fn in_memory(&self, ino: Inode, version: &ETag) -> Vec<(u64, ReadData)> {
        let open: Vec<_> = self.open.read().values().filter(|file| file.ino == ino).cloned().collect();
        let mut objects = open.iter().map(|file| Arc::clone(&file.version.lock().object));
        let Some(object) = objects.find(|object| object.etag() == version) else { return Vec::new() };
        let there = |range: std::ops::Range<u64>| {
            let data = object.begin(0, range.start, (range.end - range.start) as usize).ready()?;
            Some((range.start, data))
        };
        object.resident().into_iter().filter_map(there).collect()
    }

    /// Whether there may be files of the disk to read from.
    pub fn may_be_on_disk(&self) -> bool {
        self.reader.has_disk()
    }

    /// The file of the disk that holds all of what `handle` reads. Whoever asks reads from it from now on: the handle is bound to
    /// its version.
    pub fn whole(&self, handle: HandleId) -> Option<Whole> {
        let file = self.open.read().get(&handle).cloned()?;
        let object = Arc::clone(&file.version.lock().object);
        let whole = object.whole()?;
        file.returns(&object).then_some(whole)
    }

    /// Whether [`whole`](Self::whole) is worth asking, which reads from the disk.
    pub fn may_be_whole(&self, handle: HandleId) -> bool {
        let file = self.open.read().get(&handle).cloned();
        file.is_some_and(|file| file.version.lock().object.may_be_whole())
    }

    /// The next open of the name of `ino` gets another inode; those who have it open go on as they are.
    pub fn retire(&self, ino: Inode) {
        self.names.retire(ino);
    }

    /// The kernel closed the handle for good.
    pub fn release(&self, handle: HandleId) {
        let file = self.open.write().remove(&handle);
        drop(file);
    }

    /// The second step of a read that could not be answered at once.
    ///
    /// # Errors
    /// ESTALE when the object was replaced or deleted after the handle returned bytes, EIO when the store failed.
    pub async fn finish(&self, file: &OpenFile, mut read: Read) -> Result<ReadData> {
        loop {
            match read.pending.finish().await {
                Ok(data) if file.returns(&read.object) => return Ok(data),
                // Another read of this handle moved it to the next version meanwhile, or an open has seen that there is one.
                Ok(_) => self.move_on(file, &read.object, replaced(&read.object)).await?,
                Err(ReadError::Store(error)) if is_other_version(&error) => self.move_on(file, &read.object, error).await?,
                Err(error) => return Err(error.into()),
            }
            read = file.begin(read.thread, read.offset, read.len);
        }
    }

    /// The attributes of a file whose version is no longer what the store has, but still being read, or whose name is gone while it is
    /// open.
    pub fn attributes_of_old(&self, ino: Inode) -> Option<Attr> {
        let is_nameless = self.names.is_nameless(ino);
        if is_nameless && self.names.is_being_written(ino) {
            return None;
        }
        let latest = self.latest.lock();
        let is_old = |latest: &&Latest| latest.state.superseded.load(Ordering::SeqCst) && latest.is_being_read();
        let is_open = |latest: &&Latest| Arc::strong_count(&latest.state) > 1;
        let latest = latest.get(&ino).filter(|latest| if is_nameless { is_open(latest) } else { is_old(latest) })?;
        let attr = self.names.attr(ino, latest.meta.key.as_bytes(), &What::File(FileFacts::from(&latest.meta)))?;
        Some(Attr { nlink: u32::from(!is_nameless), ..attr })
    }

    /// The kernel forgot an inode, and with it its pages.
    pub fn forget(&self, ino: Inode) {
        self.latest.lock().remove(&ino);
    }

    /// Waits for inodes whose content was seen to change, so that the kernel can be told. Who asks must also say when
    /// that is [`told`](Self::told).
    pub async fn next_changes(&self) -> Changes {
        loop {
            {
                let mut changed = self.changed.lock();
                if !changed.inodes.is_empty() {
                    let (inodes, old_pages) = (std::mem::take(&mut changed.inodes), std::mem::take(&mut changed.old_pages));
                    return Changes { inodes, old_pages, count: changed.count };
                }
            }
            self.change.notified().await;
        }
    }

    /// The kernel believes nothing old of the attributes of `changes` any more.
    pub fn told(&self, changes: &Changes) {
        self.told.send_replace(changes.count);
    }

    /// Has the kernel told that `ino` changed, and waits until it was. With `old_pages` it is told to drop them too, some time.
    async fn tell(&self, ino: Inode, old_pages: bool) {
        let count = {
            let mut changed = self.changed.lock();
            changed.inodes.push(ino);
            changed.old_pages.extend(old_pages.then_some(ino));
            changed.count += 1;
            changed.count
        };
        self.change.notify_one();
        let mut told = self.told.subscribe();
        if tokio::time::timeout(TELL, told.wait_for(|&told| told >= count)).await.is_err() {
            tracing::warn!(ino = ino.0, "the kernel could not be told that a file changed");
        }
    }

    fn is_other_than_latest(&self, ino: Inode, etag: &ETag) -> bool {
        self.latest.lock().get(&ino).is_some_and(|latest| latest.meta.etag != *etag)
    }

    /// Whether bytes of another version than `etag` were read through handles that are still open.
    fn is_read_in_another_version(&self, ino: Inode, etag: &ETag) -> bool {
        self.latest.lock().get(&ino).is_some_and(|latest| latest.meta.etag != *etag && latest.is_being_read())
    }

    fn opened(&self, ino: Inode, direct: bool, meta: &ObjectMeta) -> Opened {
        let handle = self.new_handle();
        let keep_pages = self.open_as(handle, ino, direct, meta);
        Opened { handle, keep_pages, direct: false }
    }

    /// Whether the kernel's pages are of this version.
    fn open_as(&self, handle: HandleId, ino: Inode, direct: bool, meta: &ObjectMeta) -> bool {
        let (state, before) = self.on_version(ino, meta);
        let keeps_pages = before == Before::Same && !state.has_older_pages.swap(false, Ordering::SeqCst);
        let object = Arc::new(self.reader.open(meta));
        for next in self.names.next_files(&meta.key) {
            self.reader.expect(&next);
        }
        let version = Mutex::new(Version { object, state, has_returned: false });
        let file = OpenFile { ino, direct, version };
        self.open.write().insert(handle, Arc::new(file));
        keeps_pages
    }

    /// A version of `ino` was seen: the one that counts from now on. Handles of another one read no more, because what
    /// they returned would go into the pages that the kernel shares between all handles of an inode.
    fn on_version(&self, ino: Inode, meta: &ObjectMeta) -> (Arc<VersionState>, Before) {
        let mut latest = self.latest.lock();
        let before = match latest.get(&ino) {
            None => Before::Nothing,
            Some(version) if version.meta.etag == meta.etag => return (Arc::clone(&version.state), Before::Same),
            Some(version) => {
                version.state.superseded.store(true, Ordering::SeqCst);
                Before::Other
            }
        };
        let state = Arc::new(VersionState::default());
        latest.insert(ino, Latest { meta: meta.clone(), state: Arc::clone(&state) });
        (state, before)
    }

    fn believed_size(&self, ino: Inode) -> Option<u64> {
        let (attr, _) = self.names.try_getattr(ino)?.ok()?;
        Some(attr.size)
    }

    /// The version `gone` of this handle is gone. A handle that has returned nothing yet takes the next one.
    async fn move_on(&self, file: &OpenFile, gone: &Arc<ObjectHandle>, error: store::Error) -> Result<()> {
        if !Arc::ptr_eq(&file.version.lock().object, gone) {
            return Ok(());
        }
        if file.is_bound() && file.version.lock().state.superseded.load(Ordering::SeqCst) {
            return Err(Error::Stale(error));
        }
        let meta = self.names.refresh(file.ino).await;
        if file.is_bound() {
            // The kernel goes on with the size that belongs to what was read: the new one could pass for the end of the file.
            let contradicts = meta.is_ok_and(|meta| &meta.etag == gone.etag());
            file.version.lock().state.superseded.fetch_or(!contradicts, Ordering::SeqCst);
            return Err(Error::Stale(error));
        }
        let state = Arc::clone(&file.version.lock().state);
        if file.direct && self.is_read_through_pages(file.ino, &state) {
            // Whoever opens the inode next would share the pages of those.
            return Err(Error::Stale(error));
        }
        let old_pages = state.returned.load(Ordering::SeqCst);
        self.tell(file.ino, old_pages).await;
        let mut version = file.version.lock();
        if !Arc::ptr_eq(&version.object, gone) {
            return Ok(());
        }
        let meta = meta.map_err(|_| Error::Stale(error.clone()))?;
        if &meta.etag == gone.etag() {
            // The store contradicts itself: it has this version and does not.
            return Err(Error::Stale(error));
        }
        tracing::debug!(key = %meta.key, etag = %meta.etag, "the object was replaced before its first byte was read: reading the new version");
        let state = self.on_version(file.ino, &meta).0;
        // Looked at again, now that it is superseded: a read that was about to return bytes has either seen that, or
        // is seen here.
        if version.is_bound(file.direct) {
            return Err(Error::Stale(error));
        }
        if !file.direct && meta.size < gone.size() {
            // The kernel asked with the old size and would fill what the new version lacks with zeros: it takes a short
            // answer for the end of the file only when nothing changed the attributes since it asked, and we just did.
            return Err(Error::Stale(error));
        }
        state.has_older_pages.fetch_or(old_pages, Ordering::SeqCst);
        version.state = state;
        version.object = Arc::new(self.reader.open(&meta));
        Ok(())
    }

    /// Whether the kernel has pages, or a file, of this version for handles that are open.
    fn is_read_through_pages(&self, ino: Inode, state: &Arc<VersionState>) -> bool {
        let open: Vec<_> = self.open.read().values().filter(|file| file.ino == ino && !file.direct).cloned().collect();
        open.iter().any(|file| {
            let version = file.version.lock();
            version.has_returned && Arc::ptr_eq(&version.state, state)
        })
    }
}

impl Version {
    /// Whoever reads through the handle may have bytes of this version.
    fn is_bound(&self, direct: bool) -> bool {
        self.has_returned || !direct && self.state.returned.load(Ordering::SeqCst)
    }
}

impl OpenFile {
    /// The first step of a read by `thread`; see [`ObjectHandle::begin`].
    pub fn begin(&self, thread: u32, offset: u64, len: usize) -> Read {
        let object = Arc::clone(&self.version.lock().object);
        let pending = object.begin(thread, offset, len);
        Read { object, pending, thread, offset, len }
    }

    /// The bytes of a read that can be answered at once.
    pub fn ready(&self, read: &Read) -> Option<ReadData> {
        read.pending.ready().filter(|_| self.returns(&read.object))
    }

    /// Has `then` called when [`ready`](Self::ready) may have more to say; see [`Pending::park`].
    pub fn park(read: Read, then: impl FnOnce(Read) + Send + 'static) {
        let Read { object, pending, thread, offset, len } = read;
        pending.park(move |pending| then(Read { object, pending, thread, offset, len }));
    }

    fn is_bound(&self) -> bool {
        self.version.lock().is_bound(self.direct)
    }

    /// Binds the handle to the version of `object`; false when it is bound to another one by now.
    fn returns(&self, object: &Arc<ObjectHandle>) -> bool {
        let mut version = self.version.lock();
        let is_current = |version: &Version| !version.state.superseded.load(Ordering::SeqCst);
        if !Arc::ptr_eq(&version.object, object) || !is_current(&version) {
            return false;
        }
        version.state.returned.store(true, Ordering::SeqCst);
        // Again, now that everybody can see that bytes are returned; see `move_on`.
        let same = is_current(&version);
        version.has_returned |= same;
        same
    }
}

/// What the store would have said had it been asked.
fn replaced(object: &ObjectHandle) -> store::Error {
    store::Error::new(ErrorKind::Replaced, store::Op::Get, object.key(), "the object was replaced while it was open")
}

fn is_other_version(error: &store::Error) -> bool {
    matches!(error.kind, ErrorKind::Replaced | ErrorKind::NotFound | ErrorKind::RangeNotSatisfiable)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::budget::{self, Budget};
    use crate::store::memory::Memory;
    use crate::store::{Key, ListPage, ListRequest, ObjectStore, Op, RangeRequest, RangeSink};
    use crate::vfs::Options;
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
        let read = file.begin(1, 0, 4096);
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
        assert_eq!((&read[..], changes.inodes, changes.old_pages), (&b"the third"[..], vec![ino], vec![ino]));
        // The kernel may not have dropped them yet.
        let keeps = || files.try_open(ino, false).unwrap().unwrap().keep_pages;
        assert_eq!([keeps(), keeps()], [false, true]);
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
            let read = file.begin(1, offset, 4096);
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
        // Beside others that read past the pages it moves on.
        [paged, direct].iter().for_each(|opened| files.release(opened.handle));
        let first = files.open(ino, true).await.unwrap();
        let second = files.try_open(ino, true).unwrap().unwrap();
        at(first, 0).await.unwrap();
        store.put_synthetic("a", SIZE + 1);
        let (read, _) = tokio::join!(at(second, SIZE - 4095), told(&files));
        assert_eq!(read.unwrap().len(), 4096);
    }
}
