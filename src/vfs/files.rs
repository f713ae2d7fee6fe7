//! Open files: from an inode to the bytes of the version that it named when it was opened.
//!
//! Invariant: whoever has read bytes through a handle never gets bytes of another version through it; until then it
//! moves on to the new version instead of failing. The kernel's pages are shared by all handles of an inode, so what one
//! of them has returned any other may have passed on: a version that was read from is not replaced inside its inode
//! while it is open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::reader::{ObjectHandle, ReadData, ReadError, Reader};
use crate::spill::Whole;
use crate::store::{self, ETag, ErrorKind, ObjectMeta};

use super::attr::Attr;
use super::expected::Expected;
use super::fact::What;
use super::listing::FileFacts;
use super::open_file::{OpenFile, Read, Version};
use super::record::Told;
use super::telling::{Changes, Telling};
use super::versions::{Before, VersionState, Versions};
use super::{Error, Inode, Names, Result};

/// So many more files that had to be read again than were found in the kernel's pages are enough to believe that it has lost most, and as many
/// of the others that it has not: pages go one by one, too.
const PAGES_GONE: i32 = 8;

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
    versions: Versions,
    telling: Telling,
    expected: Expected,
    /// Of the files that were read before and opened again: how many more had to be read again, lately, than were found in the kernel's pages.
    pages_gone: AtomicI32,
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
            versions: Versions::default(),
            telling: Telling::default(),
            expected: Expected::default(),
            pages_gone: AtomicI32::new(0),
        })
    }

    /// Opens without waiting when the object's facts are cached and the kernel need not be told of a change. `direct`:
    /// past the kernel's pages.
    pub fn try_open(&self, ino: Inode, direct: bool) -> Option<Result<Opened>> {
        let (meta, _) = self.names.file(ino)?;
        if self.versions.is_other(ino, &meta.etag) {
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
        if self.versions.is_read_in_another(ino, &meta.etag) {
            self.names.retire(ino);
            return Err(Error::Retired);
        }
        let was_other = self.versions.is_other(ino, &meta.etag) || believed.is_some_and(|size| size != meta.size);
        let opened = self.opened(ino, direct, &meta);
        if was_other {
            // Else the kernel would go by the size of the version before, or of a listing that told none. Its pages of another version
            // it drops itself with this open.
            self.telling.tell(ino, false).await;
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
        self.versions.is_being_read(ino)
    }

    /// This mount has written another version of `ino`: handles of the one before read no more, and the next open takes none of
    /// the kernel's pages on trust.
    pub(super) fn on_commit(&self, ino: Inode, etag: &ETag) {
        self.versions.on_commit(ino, etag);
    }

    /// The object behind `ino` is `meta` now, under another key and perhaps another etag, and still the same content.
    pub(super) fn on_rename(&self, ino: Inode, meta: &ObjectMeta) {
        self.versions.on_rename(ino, meta);
        let open: Vec<_> = self.open.read().values().filter(|file| file.ino == ino).cloned().collect();
        for file in open {
            let mut version = file.version.lock();
            if !version.state.superseded.load(Ordering::SeqCst) {
                version.object = Arc::new(self.reader.open_quietly(meta));
                version.modified = meta.modified;
            }
        }
        self.write_down_all(ino);
    }

    /// What was `from` is the version `to` of another key now.
    pub(super) fn on_moved(&self, from: &ObjectMeta, to: &ObjectMeta) {
        self.reader.on_moved(from, to);
    }

    /// The kernel is about to be told of `handle`.
    pub fn on_told(&self, handle: HandleId, told: Told) {
        if !self.names.record.is_on() {
            return;
        }
        if let Ok(file) = self.get(handle) {
            // Only once: a handle is told of when it is opened.
            let _ = file.told.set(told);
            self.write_down(handle, &file);
        }
    }

    fn write_down(&self, handle: HandleId, file: &OpenFile) {
        if let Some(row) = file.row() {
            self.names.record.put_file(handle, &row);
        }
    }

    /// The versions of the open files of `ino` have changed.
    fn write_down_all(&self, ino: Inode) {
        if self.names.record.is_on() {
            let open: Vec<_> =
                self.open.read().iter().filter(|(_, file)| file.ino == ino).map(|(&handle, file)| (handle, file.clone())).collect();
            open.iter().for_each(|(handle, file)| self.write_down(*handle, file));
        }
    }

    /// Opens again what the daemon before had open. Nobody knows what of it was read: all of it counts as read.
    pub fn restore(&self) {
        for (handle, row) in self.names.record.files() {
            let (state, _) = self.versions.on_version(row.ino, &row.meta);
            state.returned.store(true, Ordering::SeqCst);
            let version =
                Version { object: Arc::new(self.reader.open_quietly(&row.meta)), state, modified: row.meta.modified, has_returned: true };
            let file = OpenFile {
                ino: row.ino,
                direct: row.direct,
                version: Mutex::new(version),
                was_read: false,
                told: OnceLock::from(row.told),
            };
            self.open.write().insert(handle, Arc::new(file));
            self.next.fetch_max(handle.0 + 1, Ordering::Relaxed);
        }
    }

    pub(super) fn rows(&self) -> Vec<(HandleId, super::record::FileRow)> {
        self.names.record.files()
    }

    /// From here on handles are numbered.
    pub(super) fn number_from(&self, handle: HandleId) {
        self.next.fetch_max(handle.0, Ordering::Relaxed);
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
        self.names.record.drop_handle(handle);
        if let Some(file) = file.filter(|file| file.was_read) {
            let step = {
                let version = file.version.lock();
                if version.object.size() == 0 {
                    0
                } else if version.has_returned {
                    1
                } else {
                    -1
                }
            };
            let known = self.pages_gone.load(Ordering::Relaxed);
            // One that is lost between the two is one of many.
            self.pages_gone.store((known + step).clamp(-PAGES_GONE, PAGES_GONE), Ordering::Relaxed);
        }
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
        let meta = if is_nameless { self.versions.open(ino) } else { self.versions.old(ino) }?;
        let attr = self.names.attr(ino, meta.key.as_bytes(), &What::File(FileFacts::from(&meta)))?;
        Some(Attr { nlink: u32::from(!is_nameless), ..attr })
    }

    /// The kernel forgot an inode, and with it its pages.
    pub fn forget(&self, ino: Inode) {
        self.versions.forget(ino);
    }

    /// Waits for inodes whose content was seen to change, so that the kernel can be told. Who asks must also say when
    /// that is [`told`](Self::told).
    pub async fn next_changes(&self) -> Changes {
        self.telling.next().await
    }

    /// The kernel believes nothing old of the attributes of `changes` any more.
    pub fn told(&self, changes: &Changes) {
        self.telling.told(changes);
    }

    fn opened(&self, ino: Inode, direct: bool, meta: &ObjectMeta) -> Opened {
        let handle = self.new_handle();
        let keep_pages = self.open_as(handle, ino, direct, meta);
        Opened { handle, keep_pages, direct: false }
    }

    /// Whether the kernel's pages are of this version.
    fn open_as(&self, handle: HandleId, ino: Inode, direct: bool, meta: &ObjectMeta) -> bool {
        let (state, before) = self.versions.on_version(ino, meta);
        let keeps_pages = before == Before::Same && !state.has_older_pages.swap(false, Ordering::SeqCst);
        // What was read before is in the kernel's pages, and if it is there no more the first read comes now.
        let was_read = keeps_pages && !direct && state.returned.load(Ordering::SeqCst);
        let object = Arc::new(if was_read { self.reader.open_quietly(meta) } else { self.reader.open(meta) });
        let mut next = self.names.next_files(&meta.key);
        next.retain(|file| !self.is_in_pages(file));
        self.expected.on_open(&meta.key, next, Instant::now(), |next| self.reader.expect(next));
        let version = Mutex::new(Version { object, state, modified: meta.modified, has_returned: false });
        let file = OpenFile { ino, direct, version, was_read, told: OnceLock::new() };
        self.open.write().insert(handle, Arc::new(file));
        keeps_pages
    }

    /// Whether who opens `file` will probably find it in the kernel's pages.
    fn is_in_pages(&self, file: &ObjectMeta) -> bool {
        let ino = self.names.inodes.lock().number(&file.key);
        self.versions.was_read(ino, &file.etag) && self.pages_gone.load(Ordering::Relaxed) < PAGES_GONE / 2
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
        self.telling.tell(file.ino, old_pages).await;
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
        let state = self.versions.on_version(file.ino, &meta).0;
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
        version.modified = meta.modified;
        drop(version);
        self.write_down_all(file.ino);
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

/// What the store would have said had it been asked.
fn replaced(object: &ObjectHandle) -> store::Error {
    store::Error::new(ErrorKind::Replaced, store::Op::Get, object.key(), "the object was replaced while it was open")
}

fn is_other_version(error: &store::Error) -> bool {
    matches!(error.kind, ErrorKind::Replaced | ErrorKind::NotFound | ErrorKind::RangeNotSatisfiable)
}

#[cfg(test)]
mod tests;
