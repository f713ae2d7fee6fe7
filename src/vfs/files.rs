//! Open files: from an inode to the bytes of the version that it named when it was opened.
//!
//! Invariant: a handle that has returned bytes of a version never returns bytes of a version that another client has put in its place; until
//! then it moves on to the new version instead of failing. The kernel's pages are shared by all handles of an inode, so what one
//! of them has returned any other may have passed on: a version that was read from is not replaced inside its inode
//! while it is open. What this mount itself changes, all handles of the inode see.

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
use super::versions::{Opening, Seen, VersionState};
use super::{Error, Inode, Names, Result};

/// So many more files that had to be read again than were found in the kernel's pages are enough to believe that it has lost most, and as many
/// of the others that it has not: pages go one by one, too.
const PAGES_GONE: i32 = 8;

const REPLACED: &str = "the object was replaced while it was open";

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
            telling: Telling::default(),
            expected: Expected::default(),
            pages_gone: AtomicI32::new(0),
        })
    }

    /// Opens without waiting when the object's facts are cached and may be used, and the kernel need not be told of a change. `direct`:
    /// past the kernel's pages.
    pub fn try_open(&self, ino: Inode, direct: bool) -> Option<Result<Opened>> {
        if self.names.options.close_to_open {
            return None;
        }
        let (meta, learnt) = self.names.file(ino)?;
        if self.names.versions.is_other(ino, &meta.etag) || self.names.is_removed(ino) {
            return None;
        }
        let handle = self.new_handle();
        let opening = self.open_as(handle, ino, direct, &meta, learnt)?;
        Some(Ok(Opened { handle, keep_pages: opening.keeps_pages, direct: false }))
    }

    /// Opens the version that the name has now.
    ///
    /// # Errors
    /// ENOENT when the object is gone, EISDIR for a directory, ESTALE when the name has to be looked up again because
    /// older bytes are still being read from this inode, else what the store said.
    pub async fn open(&self, ino: Inode, direct: bool) -> Result<Opened> {
        let handle = self.new_handle();
        let opening = self.open_handle(handle, ino, direct).await?;
        Ok(Opened { handle, keep_pages: opening.keeps_pages, direct: false })
    }

    /// Opens the version that the name has now under the number `handle`.
    pub(super) async fn open_handle(&self, handle: HandleId, ino: Inode, direct: bool) -> Result<Opening> {
        self.opening(ino, |meta, learnt| self.open_as(handle, ino, direct, meta, learnt)).await
    }

    /// What `open` makes of the version that the name has now; none: older bytes are still being read from this inode.
    async fn opening(&self, ino: Inode, open: impl FnOnce(&ObjectMeta, Instant) -> Option<Opening>) -> Result<Opening> {
        let known = self.known_size(ino);
        let (meta, learnt) = self.names.object_to_open(ino).await?;
        if self.names.is_removed(ino) {
            // Looked at after the facts: they may be of the file that has the name now, and the kernel goes by the size of this one.
            return Err(Error::Retired);
        }
        let Some(opening) = open(&meta, learnt) else {
            self.names.retire(ino);
            return Err(Error::Retired);
        };
        if opening.was_other || known.is_some_and(|size| size != opening.meta.size) {
            // Else the kernel would go by the size of the version before, or of a listing that told none. Its pages of another version
            // it drops itself with this open.
            self.telling.tell(ino, false).await;
        }
        Ok(opening)
    }

    /// The version that the name has now, for a handle that only writes: it reads nothing of it, and others need not stay with it.
    pub(super) async fn version_to_change(&self, ino: Inode) -> Result<ObjectMeta> {
        let see = |meta: &ObjectMeta, learnt| match self.names.versions.lock().see(ino, meta, learnt) {
            Seen::Current(opening) => Some(opening),
            Seen::Retire => None,
        };
        self.opening(ino, see).await.map(|opening| opening.meta)
    }

    /// A number for a handle.
    pub(super) fn new_handle(&self) -> HandleId {
        HandleId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// `handle`, which was opened to read what was being written, reads from the version `meta` that came of it. What it has read counts as read of
    /// that.
    pub(super) fn read_as(&self, handle: HandleId, ino: Inode, direct: bool, meta: &ObjectMeta) {
        if self.open_as(handle, ino, direct, meta, Instant::now()).is_some()
            && let Ok(file) = self.get(handle)
        {
            let object = Arc::clone(&file.version.lock().object);
            file.returns_unproven(&object);
        }
    }

    /// `handle`, which has read what was being written, reads from the version `meta` that came of it, which the store has since then.
    pub(super) fn bind(&self, handle: HandleId, ino: Inode, meta: &ObjectMeta, since: Instant) -> Result<Arc<OpenFile>> {
        if let Ok(file) = self.get(handle) {
            return Ok(file);
        }
        // Past the kernel's pages: it was opened so.
        match self.open_as(handle, ino, true, meta, since) {
            Some(opening) if opening.meta.etag == meta.etag => {
                let file = self.get(handle)?;
                let object = Arc::clone(&file.version.lock().object);
                file.returns_unproven(&object);
                Ok(file)
            }
            opening => {
                if opening.is_some() {
                    self.open.write().remove(&handle);
                }
                Err(Error::Stale(store::Error::new(ErrorKind::Replaced, store::Op::Get, &meta.key, REPLACED)))
            }
        }
    }

    /// Whether a handle that reads a version of `ino` is open, and goes through the kernel's pages.
    pub(super) fn has_paged_readers(&self, ino: Inode) -> bool {
        self.open.read().values().any(|file| file.ino == ino && !file.direct)
    }

    /// Whether handles are open that read a version of `ino`.
    pub(super) fn is_open(&self, ino: Inode) -> bool {
        self.names.versions.open(ino).is_some()
    }

    /// This mount has made the version `meta` of `ino`: all that is open of it reads that from now on, and the next open takes none of
    /// the kernel's pages on trust.
    pub(super) fn on_commit(&self, ino: Inode, meta: &ObjectMeta) {
        {
            let mut versions = self.names.versions.lock();
            let open = self.files_of(ino);
            // What was read of the dirty file is of this version, and may be in the kernel's pages.
            let state = versions.on_commit(ino, meta, !open.is_empty());
            self.move_all(open, meta, &state);
        }
        self.write_down_all(ino);
    }

    /// `ino` is longer by what another client has appended: the kernel's last page has zeros behind the old end. Not for a request that may hold a page.
    pub(super) async fn on_longer(&self, ino: Inode) {
        // Before the new end is known, or the zeros would be read.
        self.drop_pages(ino).await;
        self.on_given_up(ino).await;
    }

    /// Another client has made the version `meta` of `ino`, which begins with all of `read`, the version of its readers: they go on in the new one.
    /// The store was asked at `learnt`. Returns whether they read `read` until now. As [`on_longer`](Self::on_longer).
    pub(super) async fn on_continued(&self, ino: Inode, read: &ObjectMeta, meta: &ObjectMeta, learnt: Instant) -> bool {
        let is_moved = {
            let mut versions = self.names.versions.lock();
            // What read a version from before, which is gone, stays with that.
            let open = self.files_of(ino).into_iter().filter(|file| !file.version.lock().state.is_superseded()).collect();
            let state = versions.on_continued(ino, read, meta, learnt);
            if let Some(state) = &state {
                self.move_all(open, meta, state);
            }
            state.is_some()
        };
        if is_moved {
            self.write_down_all(ino);
            self.on_longer(ino).await;
        }
        is_moved
    }

    /// All of `open` read `meta` from now on, for a caller that has the versions locked.
    fn move_all(&self, open: Vec<Arc<OpenFile>>, meta: &ObjectMeta, state: &Arc<VersionState>) {
        for file in open {
            let mut version = file.version.lock();
            version.object = Arc::new(self.reader.open_quietly(meta));
            version.state = Arc::clone(state);
            version.modified = meta.modified;
            version.has_returned = true;
            version.in_pages = None;
        }
    }

    /// What was being written to `ino` is given up: the kernel is to drop what it has of it.
    pub(super) async fn on_given_up(&self, ino: Inode) {
        self.names.versions.lock().on_unproven(ino);
        self.telling.tell(ino, true).await;
    }

    /// Has the kernel drop its pages of `ino`, and waits until it has. Not for a request that may hold a page, as a write through the pages does.
    pub(super) async fn drop_pages(&self, ino: Inode) {
        self.telling.drop_pages(ino).await;
    }

    /// The object behind `ino`, which was the version `from`, is `meta` now, under another key and perhaps another etag, and still the same content.
    pub(super) fn on_rename(&self, ino: Inode, from: &ETag, meta: &ObjectMeta) {
        {
            let mut versions = self.names.versions.lock();
            versions.on_rename(ino, from, meta);
            for file in self.files_of(ino) {
                let mut version = file.version.lock();
                if !version.state.is_superseded() {
                    version.object = Arc::new(self.reader.open_quietly(meta));
                    version.modified = meta.modified;
                }
            }
        }
        self.write_down_all(ino);
    }

    fn files_of(&self, ino: Inode) -> Vec<Arc<OpenFile>> {
        self.open.read().values().filter(|file| file.ino == ino).cloned().collect()
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

    /// Under the lock of what is open: no later call would remove the row of a handle that was closed meanwhile.
    fn write_down(&self, handle: HandleId, file: &OpenFile) {
        let open = self.open.read();
        if open.contains_key(&handle)
            && let Some(row) = file.row()
        {
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

    /// Opens again what the daemon before had open. What of it was read is not known: all of it counts as read.
    pub fn restore(&self) {
        for (handle, row) in self.names.record.files() {
            let mut versions = self.names.versions.lock();
            // Rows are in the order in which they were written: the last version of an inode is the current one.
            let state = match versions.see(row.ino, &row.meta, Instant::now()) {
                Seen::Current(opening) => opening.state,
                Seen::Retire => {
                    let state = versions.on_commit(row.ino, &row.meta, true);
                    for file in self.files_of(row.ino).into_iter().filter(|file| !file.direct) {
                        // As in `take_along`.
                        file.version.lock().in_pages = Some(Arc::clone(&state));
                    }
                    state
                }
            };
            // Before the handle is opened: pages are not proven by it.
            state.returns(0);
            let object = Arc::new(self.reader.open_quietly(&row.meta));
            let version =
                Version { object, state, modified: row.meta.modified, ticket: 0, has_returned: true, in_pages: None, failed: None };
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
        file.returns_unproven(&object).then_some(whole)
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
        let file = {
            let mut open = self.open.write();
            self.names.record.drop_handle(handle);
            open.remove(&handle)
        };
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
            let (thread, offset, len, began) = (read.thread, read.offset, read.len, read.began());
            match read.pending.finish().await {
                Ok(data) if file.returns(&read.object) => return Ok(data),
                // Another read of this handle moved it to the next version meanwhile, or an open has seen that there is one.
                Ok(_) => self.move_on(file, &read.object, replaced(&read.object)).await?,
                Err(ReadError::Store(error)) if is_other_version(&error) => self.move_on(file, &read.object, error).await?,
                Err(error) => {
                    let error = Error::from(error);
                    file.on_failed(offset..offset + len as u64, began, &error);
                    return Err(error);
                }
            }
            read = file.begin(thread, offset, len)?;
        }
    }

    /// The attributes of `ino` that an open handle decides, not the name: of a file that has lost its name, or whose version is not what
    /// the name stands for any more. A dirty file decides by itself.
    pub fn attributes_of_open(&self, ino: Inode) -> Option<Attr> {
        if self.names.is_being_written(ino) {
            return None;
        }
        let is_nameless = self.names.is_nameless(ino);
        let meta = if is_nameless {
            self.names.versions.open(ino)?
        } else {
            let meta = self.names.versions.being_read(ino)?;
            let (named, _) = self.names.file(ino)?;
            Some(meta).filter(|meta| meta.etag != named.etag)?
        };
        let attr = self.names.attr(ino, meta.key.as_bytes(), &What::File(FileFacts::from(&meta)))?;
        Some(Attr { nlink: u32::from(!is_nameless), ..attr })
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

    /// Binds `handle` to the current version of `ino`, which is `meta` unless a newer one is known. None: other bytes are being read from this
    /// inode.
    fn open_as(&self, handle: HandleId, ino: Inode, direct: bool, meta: &ObjectMeta, learnt: Instant) -> Option<Opening> {
        let (opening, file) = {
            let mut versions = self.names.versions.lock();
            let Seen::Current(opening) = versions.see(ino, meta, learnt) else { return None };
            let (meta, state) = (&opening.meta, Arc::clone(&opening.state));
            // What was read before is in the kernel's pages, and if it is there no more the first read comes now.
            let was_read = opening.keeps_pages && !direct && state.has_returned();
            let object = Arc::new(if was_read { self.reader.open_quietly(meta) } else { self.reader.open(meta) });
            let version = Version {
                object,
                state,
                modified: meta.modified,
                ticket: opening.ticket,
                has_returned: false,
                in_pages: None,
                failed: None,
            };
            let file = Arc::new(OpenFile { ino, direct, version: Mutex::new(version), was_read, told: OnceLock::new() });
            if opening.was_other {
                self.take_along(&self.files_of(ino), &opening, None);
            }
            // Under the lock of versions: the next version that is seen takes this handle along.
            self.open.write().insert(handle, Arc::clone(&file));
            (opening, file)
        };
        if opening.was_other {
            self.write_down_all(ino);
        }
        let mut next = self.names.next_files(&opening.meta.key);
        next.retain(|file| !self.is_in_pages(file));
        self.expected.on_open(&opening.meta.key, next, Instant::now(), |next| self.reader.expect(next));
        let is_dirty = self.names.dirty.get(ino).filter(|_| !file.direct).inspect(|dirty| dirty.on_paged_reader()).is_some();
        // Where it began since the caller looked, it sees this handle or this sees it.
        Some(Opening { keeps_pages: opening.keeps_pages && !is_dirty, ..opening })
    }

    /// The handles of an inode that go through the kernel's pages share the version that is current there: one that stayed with an older one would
    /// return the pages that others fill. For a caller that has the versions locked, and has published the one of `opening`.
    fn take_along(&self, files: &[Arc<OpenFile>], opening: &Opening, but: Option<&OpenFile>) {
        let others = files.iter().filter(|file| !file.direct && but.is_none_or(|but| !std::ptr::eq(&***file, but)));
        for file in others {
            let mut version = file.version.lock();
            if opening.meta.size < version.object.size() {
                // As in `move_on`: it asks with the old size. It gets no more bytes from here, only pages that other handles fill.
                version.has_returned = true;
                version.in_pages = Some(Arc::clone(&opening.state));
            } else {
                version.in_pages = None;
                version.object = Arc::new(self.reader.open_quietly(&opening.meta));
                version.state = Arc::clone(&opening.state);
                version.modified = opening.meta.modified;
            }
        }
    }

    /// Whether who opens `file` will probably find it in the kernel's pages.
    fn is_in_pages(&self, file: &ObjectMeta) -> bool {
        let ino = self.names.inodes.lock().number(&file.key);
        self.names.versions.was_read(ino, &file.etag) && self.pages_gone.load(Ordering::Relaxed) < PAGES_GONE / 2
    }

    fn known_size(&self, ino: Inode) -> Option<u64> {
        let (attr, _) = self.names.try_getattr(ino)?.ok()?;
        Some(attr.size)
    }

    /// The version `gone` of this handle is gone. A handle that has returned nothing yet takes the next one.
    async fn move_on(&self, file: &OpenFile, gone: &Arc<ObjectHandle>, error: store::Error) -> Result<()> {
        if !Arc::ptr_eq(&file.version.lock().object, gone) {
            return Ok(());
        }
        let fresh = self.names.refresh(file.ino).await;
        let stays = match &fresh {
            // The kernel asked with the old size and would fill what the new version lacks with zeros: it takes a short
            // answer for the end of the file only when nothing changed the attributes since it asked, and telling it does.
            Ok((meta, _)) => !file.direct && meta.size < gone.size(),
            Err(_) => true,
        };
        if !stays && !self.is_bound(file, gone) {
            // Before a byte of the new version is returned, which may have another size.
            self.telling.tell(file.ino, false).await;
        }
        let moved = {
            let mut versions = self.names.versions.lock();
            let files = self.files_of(file.ino);
            let mut version = file.version.lock();
            if !Arc::ptr_eq(&version.object, gone) {
                return Ok(());
            }
            let Ok((meta, learnt)) = fresh else {
                versions.on_gone(file.ino, &version.state);
                return Err(Error::Stale(error));
            };
            let is_same = &meta.etag == gone.etag();
            if stays || version.is_bound(file.direct) || is_same && !version.state.is_superseded() {
                // The kernel goes on with the size that belongs to what was read: the new one could pass for the end of the file.
                if !is_same {
                    versions.on_gone(file.ino, &version.state);
                }
                return Err(Error::Stale(error));
            }
            match versions.see_for(file.ino, &meta, learnt, Some(&version.state)) {
                Seen::Retire => return Err(Error::Stale(error)),
                Seen::Current(opening) => {
                    if opening.was_other {
                        self.take_along(&files, &opening, Some(file));
                    }
                    let meta = &opening.meta;
                    version.object = Arc::new(self.reader.open(meta));
                    version.modified = meta.modified;
                    // Not the number of this moment: it is the open that dropped pages.
                    version.state = opening.state;
                }
            }
            version.object.etag().clone()
        };
        tracing::debug!(key = %gone.key(), etag = %moved, "the object was replaced before its first byte was read: reading the new version");
        self.write_down_all(file.ino);
        Ok(())
    }

    /// Whether the handle, or another one through the kernel's pages, has returned bytes of `object`.
    fn is_bound(&self, file: &OpenFile, object: &Arc<ObjectHandle>) -> bool {
        let version = file.version.lock();
        !Arc::ptr_eq(&version.object, object) || version.is_bound(file.direct)
    }
}

/// What the store would have said had it been asked.
fn replaced(object: &ObjectHandle) -> store::Error {
    store::Error::new(ErrorKind::Replaced, store::Op::Get, object.key(), REPLACED)
}

fn is_other_version(error: &store::Error) -> bool {
    matches!(error.kind, ErrorKind::Replaced | ErrorKind::NotFound | ErrorKind::RangeNotSatisfiable)
}

#[cfg(test)]
mod tests;
