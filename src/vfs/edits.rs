//! Files that are open for writing, and everything else that changes the bucket: the door for the operations of a read-write mount.
//! Which bytes go where is the writer's business.
//!
//! Invariant: an inode has a dirty file from the first change of its content until its last writer is gone and the change is in the store or lost.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::dirty_files::{Alteration, DirtyFile, Fate};
use super::drain::Lost;
use super::files::{Files, HandleId, Opened};
use super::flight::Flights;
use super::lookup::Names;
use super::open_file::OpenFile;
use super::opening::Access;
use super::record::{EditRow, Told};
use super::{Error, Inode, Result};
use crate::store::{Key, ObjectMeta, ObjectStore};
use crate::writer::{Allocate, Content, End, Interrupted, Landing, WriteError, Writer};

/// What can be changed in a mounted bucket.
#[derive(Debug)]
pub struct Edits {
    pub(super) names: Arc<Names>,
    pub(super) files: Arc<Files>,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) writer: Writer,
    pub(super) open: RwLock<HashMap<HandleId, Arc<EditHandle>>>,
    /// The mount is about to end: nothing new may be written.
    ending: AtomicBool,
    /// Another daemon goes on with the mount: nothing is changed here any more, and what is asked for now is answered by that one.
    left: AtomicBool,
    /// What was let go since then without being in the store.
    pub(super) lost: Mutex<Vec<Lost>>,
    /// What is being renamed, from and to.
    pub(super) renames: Mutex<Vec<(Key, Key)>>,
    /// Directories that are being marked as those whose entries have attributes.
    pub(super) marks: Flights<crate::store::Result<()>>,
    /// Buckets of which the log says that a directory could not be marked as one whose entries have attributes.
    pub(super) cannot_mark: Mutex<HashSet<Key>>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The thread.
    pub thread: u32,
}

/// A handle that this module knows: it was opened for writing, or to read what is being written.
#[derive(Debug)]
pub(super) struct EditHandle {
    pub ino: Inode,
    pub may_read: bool,
    pub may_write: bool,
    pub direct: bool,
    appends: bool,
    /// The version that was there when it was opened, unless that was being written already.
    pub version: Option<ObjectMeta>,
    /// When it was opened; `None` for a handle of an earlier daemon, which may have stored another version since.
    opened: Option<Instant>,
    /// Why nothing can be written through it any more: another client has replaced what it was opened on.
    refused: OnceLock<Error>,
    /// What a handle that may write has changed, or what its inode had when it was opened. While a handle may write to it, it stays in the
    /// table.
    file: OnceLock<Arc<DirtyFile>>,
    /// The thread that opened it and the one that wrote last: a close by another process is no end of writing.
    opened_by: u32,
    wrote_by: AtomicU32,
}

/// What a handle has when it is opened.
pub(super) enum Beginner {
    /// Nothing is changed yet.
    Version(ObjectMeta),
    Dirty(Arc<DirtyFile>),
}

/// When a write that is done may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// It was, by the callback.
    Done,
    /// After [`Edits::drop_pages`]: readers may have pages of what was written past them.
    AfterPages(Inode),
}

/// Whether a thread belongs to the process of another one; told by the edge of the kernel, where processes are known.
pub type Tracked<'a> = &'a (dyn Fn(u32, u32) -> bool + Sync);

/// What a change is meant for.
#[derive(Clone, Copy, Debug)]
pub(super) enum BasedOn<'a> {
    /// Whatever is there: a handle from before a restart, or a call without a handle.
    Any,
    /// The end of whatever is there (O_APPEND).
    End,
    /// The version that was current when the handle was opened, and when that was.
    Version(&'a ObjectMeta, Instant),
}

/// Where a write goes; to be kept until it is done.
enum Place {
    Offset(u64),
    /// O_APPEND: the end that the file has here, which the kernel may not know.
    End(End),
}

impl Place {
    fn offset(&self) -> u64 {
        match self {
            Self::Offset(offset) => *offset,
            Self::End(end) => end.offset(),
        }
    }
}

impl EditHandle {
    /// As it was written down, with the dirty file of its inode.
    pub fn from_row(row: EditRow, file: Option<Arc<DirtyFile>>) -> Self {
        let EditRow { ino, may_read, may_write, direct, appends, is_lost: _, opened_by, told: _, version } = row;
        let file = file.map_or_else(OnceLock::new, OnceLock::from);
        let (opened, refused, wrote_by) = (None, OnceLock::new(), AtomicU32::new(opened_by));
        Self { ino, may_read, may_write, direct, appends, version, opened, refused, file, opened_by, wrote_by }
    }

    /// Whether each of its writes goes to the end of the file.
    pub fn appends(&self) -> bool {
        self.appends
    }

    /// What its writes are meant for.
    fn based_on(&self) -> BasedOn<'_> {
        match (&self.version, self.opened) {
            _ if self.appends => BasedOn::End,
            (Some(version), Some(opened)) => BasedOn::Version(version, opened),
            _ => BasedOn::Any,
        }
    }

    /// Returns the error of a write that was refused.
    fn check_refused(&self) -> Result<()> {
        self.refused.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether its writes go past the kernel's pages.
    fn writes_past_pages(&self) -> bool {
        !self.may_read || self.appends
    }

    /// What a write through this handle does.
    fn alters(&self) -> Alteration {
        if self.appends { Alteration::Append } else { Alteration::Write }
    }

    /// Where a write of this handle goes.
    async fn place(&self, content: &Content, offset: u64) -> Place {
        if self.appends { Place::End(content.end().await) } else { Place::Offset(offset) }
    }

    /// [`place`](Self::place) where that need not be waited for.
    fn try_place(&self, content: &Content, offset: u64) -> Option<Place> {
        if self.appends { content.try_end().map(Place::End) } else { Some(Place::Offset(offset)) }
    }
}

impl Edits {
    /// Nothing is open yet.
    pub fn new(names: Arc<Names>, files: Arc<Files>, store: Arc<dyn ObjectStore>, writer: Writer) -> Arc<Self> {
        let (open, lost) = (RwLock::default(), Mutex::default());
        let [ending, left] = [(); 2].map(|()| AtomicBool::new(false));
        Arc::new(Self {
            names,
            files,
            store,
            writer,
            open,
            ending,
            left,
            lost,
            renames: Mutex::default(),
            marks: Flights::default(),
            cannot_mark: Mutex::default(),
        })
    }

    /// A write that is done at once. None: see [`write`](Self::write). Calls `sure` once it is certain to be done, which may be before the bytes are
    /// copied: a request that asks for anything of the file after that waits for them. Where the answer says so, `sure` was not called, and the write
    /// is to be acknowledged later.
    pub fn try_write(&self, handle: HandleId, offset: u64, data: &[u8], thread: u32, sure: impl FnOnce()) -> Option<Result<Acknowledge>> {
        self.try_change(handle, offset, thread, sure, |content, offset, sure| content.try_write(offset, data, sure))
    }

    /// [`try_write`](Self::try_write) of what `landing` received, which is kept where it is if that spares a copy.
    pub fn try_write_received(
        &self,
        handle: HandleId,
        offset: u64,
        landing: &mut Landing,
        thread: u32,
        sure: impl FnOnce(),
    ) -> Option<Result<Acknowledge>> {
        self.try_change(handle, offset, thread, sure, |content, offset, sure| content.try_write_received(offset, landing, sure))
    }

    /// Memory to receive writes of so many bytes into; none when there is none to spare, or they are too small to be worth it.
    pub fn landing(&self, len: usize) -> Option<Landing> {
        if len < self.writer.least_received() { None } else { self.writer.landing() }
    }

    fn try_change(
        &self,
        handle: HandleId,
        offset: u64,
        thread: u32,
        sure: impl FnOnce(),
        write: impl FnOnce(&Content, u64, &mut dyn FnMut()) -> Option<std::result::Result<(), WriteError>>,
    ) -> Option<Result<Acknowledge>> {
        let edit = match self.handle(handle) {
            Ok(edit) => edit,
            Err(error) => return Some(Err(error)),
        };
        if let Err(error) = self.check_change(edit.ino) {
            return Some(Err(error));
        }
        let file = edit.file.get().filter(|_| edit.may_write)?;
        edit.wrote_by.store(thread, Ordering::Relaxed);
        let _change = match self.begin_change(file, edit.alters()) {
            Ok(change) => change,
            Err(error) => return Some(Err(error)),
        };
        let (mut sure, mut acknowledge) = (Some(sure), Acknowledge::Done);
        let mut on_sure = || {
            // Here: a reader that comes later waits for the bytes, and one that came before is seen.
            if edit.writes_past_pages() && file.has_paged_readers() {
                acknowledge = Acknowledge::AfterPages(edit.ino);
            } else if let Some(sure) = sure.take() {
                sure();
            }
        };
        let place = edit.try_place(&file.content, offset)?;
        let result = write(&file.content, place.offset(), &mut on_sure)?;
        Some(result.map(|()| acknowledge).map_err(Error::from))
    }

    /// Has the kernel drop its pages of `ino`, which was written past them.
    pub async fn drop_pages(&self, ino: Inode) {
        self.files.drop_pages(ino).await;
    }

    /// Writes `data` at `offset`; waits for memory, disk or network where it must.
    ///
    /// # Errors
    /// EBADF, ENOSPC when there is no room to stage it, EFBIG, ESHUTDOWN when the mount is about to end, EIO once what was written before is lost,
    /// else what the store said.
    pub async fn write(&self, handle: HandleId, offset: u64, data: &[u8], thread: u32) -> Result<()> {
        let (edit, file) = self.file_to_write(handle, thread).await?;
        {
            let _change = self.begin_change(&file, edit.alters())?;
            let place = edit.place(&file.content, offset).await;
            file.content.write(place.offset(), data).await?;
        }
        self.after_write(&edit, &file).await;
        Ok(())
    }

    /// [`write`](Self::write) of what a [`Landing`] received and kept.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_kept(&self, handle: HandleId, offset: u64, data: Bytes, thread: u32) -> Result<()> {
        let (edit, file) = self.file_to_write(handle, thread).await?;
        {
            let _change = self.begin_change(&file, edit.alters())?;
            let place = edit.place(&file.content, offset).await;
            file.content.write_kept(place.offset(), data).await?;
        }
        self.after_write(&edit, &file).await;
        Ok(())
    }

    /// [`write`](Self::write) that a daemon before this one may have done, or begun: an append of what is there already is not made twice.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_again(&self, handle: HandleId, offset: u64, data: &[u8], thread: u32) -> Result<()> {
        let (edit, file) = self.file_to_write(handle, thread).await?;
        {
            let _change = self.begin_change(&file, edit.alters())?;
            let end = edit.place(&file.content, offset).await;
            let place = end.offset();
            // The kernel has one append of an inode under way at a time, and says where the file ended before it. Bytes that were sent already are read by
            // storing the file early, which is rare enough here.
            let begun = place.checked_sub(offset).filter(|&begun| edit.appends && begun <= data.len() as u64).unwrap_or(0) as usize;
            let is_begun = begun > 0 && file.content.read(offset, begun).await? == data[..begun];
            file.content.write(if is_begun { offset } else { place }, data).await?;
        }
        self.after_write(&edit, &file).await;
        Ok(())
    }

    async fn file_to_write(&self, handle: HandleId, thread: u32) -> Result<(Arc<EditHandle>, Arc<DirtyFile>)> {
        let edit = self.handle(handle)?;
        self.check_change(edit.ino)?;
        let file = self.file_of(&edit).await?;
        edit.wrote_by.store(thread, Ordering::Relaxed);
        Ok((edit, file))
    }

    async fn after_write(&self, edit: &EditHandle, file: &DirtyFile) {
        if edit.writes_past_pages() && file.has_paged_readers() {
            self.drop_pages(edit.ino).await;
        }
    }

    /// Whether reads of `ino` see what is being written, not a version of the store.
    pub fn reads_dirty(&self, ino: Inode) -> bool {
        self.names.is_being_written(ino)
    }

    /// Bytes at `offset` of what is being written, fewer only at the end. None: it is not being written any more.
    ///
    /// # Errors
    /// What disk or store said.
    pub async fn read(&self, ino: Inode, offset: u64, len: usize) -> Result<Option<Bytes>> {
        let Some(file) = self.names.dirty.get(ino) else { return Ok(None) };
        // Before: an append that meets a conflict meanwhile must know of it.
        file.on_read(file.content.size().min(offset.saturating_add(len as u64)));
        match file.content.read(offset, len).await {
            // It was given up meanwhile; the version from before is what there is now.
            Err(_) if !self.names.dirty.has(&file) => Ok(None),
            read => {
                let bytes = read?;
                file.on_read(offset + bytes.len() as u64);
                Ok(Some(bytes))
            }
        }
    }

    /// The version that `handle` reads now that what it was opened on is not being written any more.
    ///
    /// # Errors
    /// EIO when that is lost, ESTALE when another client has replaced it since.
    pub fn bind_reader(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        let edit = self.handle(handle)?;
        let file = edit.file.get().ok_or(Error::BadHandle)?;
        let is_lost = edit.may_write && file.fate() == Fate::Lost;
        let (meta, since) = file.last_version().filter(|_| !is_lost).ok_or(WriteError::Lost)?;
        self.files.bind(handle, edit.ino, &meta, since)
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// EBADF, ENOSPC, EOPNOTSUPP for modes other than those of [`Allocate`].
    pub async fn allocate(&self, handle: HandleId, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let edit = self.handle(handle)?;
        self.check_change(edit.ino)?;
        let file = self.file_of(&edit).await?;
        let _change = self.begin_change(&file, Alteration::Write)?;
        Ok(file.content.allocate(offset, len, how).await?)
    }

    /// ftruncate(2).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn truncate(&self, handle: HandleId, size: u64) -> Result<()> {
        let edit = self.handle(handle)?;
        self.check_change(edit.ino)?;
        let file = self.file_of(&edit).await?;
        self.truncate_file(&file, size).await
    }

    pub(super) async fn truncate_file(&self, file: &DirtyFile, size: u64) -> Result<()> {
        let _change = self.begin_change(file, if size > 0 { Alteration::Write } else { Alteration::Empty })?;
        let writes = file.writes();
        file.content.truncate(size).await?;
        if size == 0 {
            file.on_emptied(writes);
        }
        Ok(())
    }

    /// A descriptor of `handle` was closed by `thread`; `same_process` tells of two threads whether they belong together. Commits what
    /// was written, unless it was a process that only inherited the descriptor.
    ///
    /// # Errors
    /// Why what was written is not in the store. The same at every close and fsync from then on, until it is.
    pub async fn flush(&self, handle: HandleId, thread: u32, same_process: Tracked<'_>) -> Result<()> {
        let Ok(edit) = self.handle(handle) else { return Ok(()) };
        edit.check_refused()?;
        let Some(file) = self.changed_file(&edit).filter(|_| edit.may_write) else { return Ok(()) };
        let (opened_by, wrote_by) = (edit.opened_by, edit.wrote_by.load(Ordering::Relaxed));
        if !same_process(thread, opened_by) && !same_process(thread, wrote_by) {
            return Ok(());
        }
        // A file that only got its length (as fio and databases do first, and close it) would be sent twice, the first time as zeros.
        if file.fate() == Fate::Dirty && file.waits_for_content() { Ok(()) } else { self.commit(&file).await }
    }

    /// fsync(2): returns when the store has it.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn fsync(&self, handle: HandleId) -> Result<()> {
        let Ok(edit) = self.handle(handle) else { return Ok(()) };
        edit.check_refused()?;
        match self.changed_file(&edit) {
            Some(file) => self.commit(&file).await,
            None => Ok(()),
        }
    }

    /// fsync(2) through a handle that this module does not know: what other handles have written to `ino`.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn fsync_inode(&self, ino: Inode) -> Result<()> {
        match self.names.dirty.get(ino) {
            Some(file) => self.commit(&file).await,
            None => Ok(()),
        }
    }

    /// What was written through `edit`, or to its inode by others.
    fn changed_file(&self, edit: &EditHandle) -> Option<Arc<DirtyFile>> {
        edit.file.get().filter(|_| edit.may_write).cloned().or_else(|| self.names.dirty.get(edit.ino))
    }

    /// Whether `handle` is one of these.
    pub fn knows(&self, handle: HandleId) -> bool {
        self.open.read().contains_key(&handle)
    }

    /// The last descriptor of `handle` is gone. What no close has committed is committed now.
    pub async fn release(&self, handle: HandleId) {
        let edit = {
            let mut open = self.open.write();
            let Some(edit) = open.remove(&handle) else { return };
            // Under the lock: no later call would remove a row that is written after this.
            self.names.record.drop_handle(handle);
            edit
        };
        // A commit may have bound it to its version since.
        self.files.release(handle);
        if let Some(file) = self.names.dirty.close_handle(edit.ino, edit.may_write) {
            self.wait_for_content(&file).await;
            self.end(&file).await;
        }
    }

    /// A handle of `ino` was closed that this module may not know. What has no name and is not open any more goes.
    pub async fn on_released(&self, ino: Inode) {
        if let Some(file) = self.names.dirty.get(ino).filter(|file| file.is_unwanted()) {
            self.end(&file).await;
        }
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub(super) fn is_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    pub(super) fn check_not_left(&self) -> Result<()> {
        if self.is_left() { Err(WriteError::from(Interrupted::HandedOver).into()) } else { Ok(()) }
    }

    /// From now on another daemon answers.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_writers(&self, ino: Inode) -> bool {
        self.names.dirty.has_writers(ino)
    }

    /// The dirty file that `edit` writes to; begins one when nothing was changed yet.
    async fn file_of(&self, edit: &EditHandle) -> Result<Arc<DirtyFile>> {
        if !edit.may_write {
            return Err(Error::BadHandle);
        }
        if let Some(file) = edit.file.get() {
            return Ok(Arc::clone(file));
        }
        edit.check_refused()?;
        let began = match &edit.version {
            Some(version) if self.names.is_removed(edit.ino) => self.begin_nameless(edit.ino, version).await,
            _ => self.begin_edit(edit.ino, edit.based_on()).await,
        };
        let file = began.inspect_err(|error| self.on_refused(edit, error))?;
        Ok(Arc::clone(edit.file.get_or_init(|| file)))
    }

    /// A write through `edit` failed with `error`. When its object is another one by now, every later call of the handle says so, also after a restart:
    /// the bytes of a write from a mapping have no other caller to report to.
    fn on_refused(&self, edit: &EditHandle, error: &Error) {
        if !matches!(error, Error::Stale(_) | Error::Unlinked | Error::Retired) {
            return;
        }
        let _ = edit.refused.set(error.clone());
        let open = self.open.read();
        let handles = open.iter().filter(|(_, known)| std::ptr::eq(&***known, edit));
        handles.for_each(|(&handle, _)| self.names.record.lose_edit(handle));
    }

    /// A change of `file` begins.
    pub(super) fn begin_change<'a>(&self, file: &'a DirtyFile, alters: Alteration) -> Result<super::dirty_files::Change<'a>> {
        let change = file.begin_change(alters, || self.check_open());
        let change = change.map_err(|error| self.check_change(file.ino).err().unwrap_or(error))?;
        self.names.own.on_write(&file.key());
        Ok(change)
    }

    /// Opens `handle`, whose inode is [counted](super::dirty_files::DirtyFiles::open_handle) already.
    pub(super) fn register(&self, handle: HandleId, ino: Inode, begins_with: Beginner, access: Access, caller: Caller) -> Opened {
        let (version, file) = match begins_with {
            Beginner::Version(version) => (Some(version), OnceLock::new()),
            Beginner::Dirty(file) => {
                if access.read && access.write {
                    file.on_paged_reader();
                }
                (None, OnceLock::from(file))
            }
        };
        let edit = EditHandle {
            ino,
            may_read: access.read,
            may_write: access.write,
            direct: access.direct,
            appends: access.append,
            version,
            opened: Some(Instant::now()),
            refused: OnceLock::new(),
            file,
            opened_by: caller.thread,
            wrote_by: AtomicU32::new(caller.thread),
        };
        // A handle that only writes has no use for the kernel's pages, which cost a copy; one that appends writes where this side says. One that
        // only reads must not leave old bytes in them.
        let direct = !(access.read && access.write) || access.append;
        self.open.write().insert(handle, Arc::new(edit));
        Opened { handle, keep_pages: false, direct }
    }

    /// The kernel is about to be told of `handle`.
    pub fn on_told(&self, handle: HandleId, told: Told) {
        if self.names.record.is_on() {
            let open = self.open.read();
            let Some(edit) = open.get(&handle) else { return };
            let EditHandle { ino, may_read, may_write, direct, appends, opened_by, .. } = **edit;
            let is_lost = edit.file.get().is_some_and(|file| file.fate() == Fate::Lost);
            let row = EditRow { ino, may_read, may_write, direct, appends, is_lost, opened_by, told, version: edit.version.clone() };
            self.names.record.put_edit(handle, &row);
            // A loss since it was looked at has found no row of this handle, or one that was written over now.
            if !is_lost && edit.file.get().is_some_and(|file| file.fate() == Fate::Lost) {
                self.names.record.lose_edit(handle);
            }
        }
    }

    pub(super) fn handle(&self, handle: HandleId) -> Result<Arc<EditHandle>> {
        self.open.read().get(&handle).cloned().ok_or(Error::BadHandle)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        self.check_not_left()?;
        if self.is_ending() { Err(Error::Ending) } else { Ok(()) }
    }

    /// Whether the content of `ino` may still be changed. Of what is refused here the rest is not stored as if it were all, unless it is being
    /// stored already.
    pub(super) fn check_change(&self, ino: Inode) -> Result<()> {
        self.check_open().inspect_err(|error| {
            if !error.is_left()
                && let Some(file) = self.names.dirty.get(ino)
                && !super::dirty_files::DirtyFiles::is_in_turn(&file)
            {
                file.on_lost();
            }
        })
    }

    /// What was written to `file` and is not in the bucket never will be: each of its handles says so from now on, also through another
    /// daemon. The name, and the inode, are free for others.
    pub(super) async fn lose(&self, file: &Arc<DirtyFile>) {
        if !file.content.stays() {
            // After a commit that is under way.
            file.content.give_up().await;
            if !file.content.is_lost() && !file.content.is_given_up() {
                return self.on_all_stored(file);
            }
        }
        file.on_lost();
        self.let_go(file).await;
    }

    /// `file` is lost, and its handles alone know it from now on.
    pub(super) async fn let_go(&self, file: &Arc<DirtyFile>) {
        // Before an open may find the version from before.
        self.names.versions.lock().on_unproven(file.ino);
        {
            let open = self.open.read();
            let is_of_file = |edit: &EditHandle| edit.file.get().is_some_and(|known| Arc::ptr_eq(known, file));
            open.iter().filter(|(_, edit)| is_of_file(edit)).for_each(|(&handle, _)| self.names.record.lose_edit(handle));
        }
        // After the rows of the handles: a daemon that goes on in between finds the file dirty, and its bytes gone.
        self.names.dirty.remove(file);
        self.files.on_given_up(file.ino).await;
    }

    /// From now on nothing new is written.
    pub fn close_for_writing(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// The key that `key` tells, once no rename touches it, and for as long as the lock lives.
    pub(super) async fn share_name(&self, key: impl Fn() -> Result<Key>) -> Result<(Key, super::name_locks::SharedName<'_>)> {
        loop {
            let wanted = key()?;
            let shared = self.names.locks.share(&wanted).await;
            if key()? == wanted {
                return Ok((wanted, shared));
            }
        }
    }
}
