//! Files that are open for writing, and everything else that changes the bucket: the door for the operations of a read-write mount.
//! Which bytes go where is the writer's business.
//!
//! Invariant: an inode has a draft from the first change of its content until its last writer is gone and the change is in the store or given up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::drafts::Draft;
use super::drain::Lost;
use super::files::{Files, HandleId, Opened};
use super::lookup::Names;
use super::opening::Access;
use super::record::{EditRow, Told};
use super::{Error, Inode, Result};
use crate::store::{ObjectMeta, ObjectStore};
use crate::writer::{Allocate, Content, Landing, WriteError, Writer};

/// What can be changed in a mounted bucket.
#[derive(Debug)]
pub struct Edits {
    pub(super) names: Arc<Names>,
    pub(super) files: Arc<Files>,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) writer: Writer,
    pub(super) open: RwLock<HashMap<HandleId, Arc<EditHandle>>>,
    /// How many handles may write to an inode.
    pub(super) writers: Mutex<HashMap<Inode, usize>>,
    /// The mount is about to end: nothing new may be written.
    ending: AtomicBool,
    /// What was let go since then without being in the store.
    pub(super) given_up: Mutex<Vec<Lost>>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The thread.
    pub thread: u32,
}

/// A handle that this module knows: it was opened for writing, or reads what is being written.
#[derive(Debug)]
pub(super) struct EditHandle {
    pub ino: Inode,
    pub may_read: bool,
    pub may_write: bool,
    direct: bool,
    /// The version that was there when it was opened, unless that was being written already.
    pub version: Option<ObjectMeta>,
    draft: Mutex<Option<Arc<Draft>>>,
    /// The thread that opened it and the one that wrote last: a close by another process is no end of writing.
    opened_by: u32,
    wrote_by: AtomicU32,
}

/// What a handle has when it is opened.
pub(super) enum Beginner {
    /// Nothing is changed yet.
    Version(ObjectMeta),
    Draft(Arc<Draft>),
}

/// Whether a thread belongs to the process of another one; told by the edge of the kernel, where processes are known.
pub type Tracked<'a> = &'a (dyn Fn(u32, u32) -> bool + Sync);

impl EditHandle {
    /// As it was written down, with what is being written of its inode.
    pub fn from_row(row: EditRow, draft: Option<Arc<Draft>>) -> Self {
        let EditRow { ino, may_read, may_write, direct, opened_by, told: _, version } = row;
        let (draft, wrote_by) = (Mutex::new(draft), AtomicU32::new(opened_by));
        Self { ino, may_read, may_write, direct, version, draft, opened_by, wrote_by }
    }

    pub fn draft(&self) -> Option<Arc<Draft>> {
        self.draft.lock().clone()
    }
}

impl Edits {
    /// Nothing is open yet.
    pub fn new(names: Arc<Names>, files: Arc<Files>, store: Arc<dyn ObjectStore>, writer: Writer) -> Arc<Self> {
        let (open, writers, given_up) = (RwLock::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { names, files, store, writer, open, writers, ending: AtomicBool::new(false), given_up })
    }

    /// A write that is done at once. None: see [`write`](Self::write). Calls `sure` once it is certain to be done, which may be before the bytes are
    /// copied: whoever asks for anything of the file after that waits for them.
    pub fn try_write(&self, handle: HandleId, offset: u64, data: &[u8], thread: u32, sure: impl FnOnce()) -> Option<Result<()>> {
        self.try_change(handle, thread, |content| content.try_write(offset, data, sure))
    }

    /// [`try_write`](Self::try_write) of what `landing` received, which is kept where it is if that spares a copy.
    pub fn try_write_received(
        &self,
        handle: HandleId,
        offset: u64,
        landing: &mut Landing,
        thread: u32,
        sure: impl FnOnce(),
    ) -> Option<Result<()>> {
        self.try_change(handle, thread, |content| content.try_write_received(offset, landing, sure))
    }

    /// Memory to receive writes of so many bytes into; none when there is none to spare, or they are too small to be worth it.
    pub fn landing(&self, len: usize) -> Option<Landing> {
        if len < self.writer.least_received() { None } else { self.writer.landing() }
    }

    fn try_change(
        &self,
        handle: HandleId,
        thread: u32,
        change: impl FnOnce(&Content) -> Option<std::result::Result<(), WriteError>>,
    ) -> Option<Result<()>> {
        let edit = match self.handle(handle) {
            Ok(edit) => edit,
            Err(error) => return Some(Err(error)),
        };
        if let Err(error) = self.check_change(edit.ino) {
            return Some(Err(error));
        }
        let draft = edit.draft()?;
        edit.wrote_by.store(thread, Ordering::Relaxed);
        // Before who wrote is told, and once more for a commit that went on meanwhile.
        self.on_write(&draft);
        let result = change(&draft.content)?;
        self.on_write(&draft);
        Some(result.map_err(Error::from))
    }

    /// Writes `data` at `offset`; waits for memory, disk or network where it must.
    ///
    /// # Errors
    /// EBADF, ENOSPC when there is no room to stage it, EFBIG, ESHUTDOWN when the mount is about to end, else what the store said.
    pub async fn write(&self, handle: HandleId, offset: u64, data: &[u8], thread: u32) -> Result<()> {
        let draft = self.draft_to_write(handle, thread).await?;
        let _waits = draft.wait();
        draft.content.write(offset, data).await?;
        Ok(())
    }

    /// [`write`](Self::write) of what a [`Landing`] received and kept.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_kept(&self, handle: HandleId, offset: u64, data: Bytes, thread: u32) -> Result<()> {
        let draft = self.draft_to_write(handle, thread).await?;
        let _waits = draft.wait();
        draft.content.write_kept(offset, data).await?;
        Ok(())
    }

    async fn draft_to_write(&self, handle: HandleId, thread: u32) -> Result<Arc<Draft>> {
        let edit = self.handle(handle)?;
        self.check_change(edit.ino)?;
        let draft = self.draft_of(&edit).await?;
        edit.wrote_by.store(thread, Ordering::Relaxed);
        self.on_write(&draft);
        Ok(draft)
    }

    /// The content that `handle` of `ino` reads instead of a version of the store.
    pub(super) fn draft_for(&self, handle: HandleId, ino: Inode) -> Option<Arc<Draft>> {
        let edit = self.open.read().get(&handle).cloned();
        if let Some(draft) = edit.as_ref().and_then(|edit| edit.draft()) {
            return Some(draft);
        }
        let draft = self.names.drafts.get(ino)?;
        (edit.is_some_and(|edit| edit.may_write) || !draft.is_hidden_from_readers()).then_some(draft)
    }

    /// Bytes that are being written, for a handle that shall see them. None: it reads from the store.
    pub fn reads_draft(&self, handle: HandleId, ino: Inode) -> bool {
        (!self.names.drafts.is_empty() || !self.open.read().is_empty()) && self.draft_for(handle, ino).is_some()
    }

    /// Bytes at `offset`, fewer only at the end.
    ///
    /// # Errors
    /// What disk or store said.
    pub async fn read(&self, handle: HandleId, ino: Inode, offset: u64, len: usize) -> Result<Bytes> {
        let draft = self.draft_for(handle, ino).ok_or(Error::BadHandle)?;
        Ok(draft.content.read(offset, len).await?)
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// EBADF, ENOSPC, EOPNOTSUPP for modes other than those of [`Allocate`].
    pub async fn allocate(&self, handle: HandleId, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let edit = self.handle(handle)?;
        self.check_change(edit.ino)?;
        let draft = self.draft_of(&edit).await?;
        self.on_write(&draft);
        Ok(draft.content.allocate(offset, len, how).await?)
    }

    /// ftruncate(2).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn truncate(&self, handle: HandleId, size: u64) -> Result<()> {
        let edit = self.handle(handle)?;
        self.check_change(edit.ino)?;
        let draft = self.draft_of(&edit).await?;
        self.on_write(&draft);
        Ok(draft.content.truncate(size).await?)
    }

    /// A descriptor of `handle` was closed by `thread`; `same_process` tells of two threads whether they belong together. Commits what
    /// was written, unless it was a process that only inherited the descriptor.
    ///
    /// # Errors
    /// Why what was written is not in the store.
    pub async fn flush(&self, handle: HandleId, thread: u32, same_process: Tracked<'_>) -> Result<()> {
        let Ok(edit) = self.handle(handle) else { return Ok(()) };
        let Some(draft) = edit.draft().filter(|_| edit.may_write) else { return Ok(()) };
        draft.on_close();
        let (opened_by, wrote_by) = (edit.opened_by, edit.wrote_by.load(Ordering::Relaxed));
        if !same_process(thread, opened_by) && !same_process(thread, wrote_by) {
            return Ok(());
        }
        if draft.wants_commit() { self.commit(&draft).await } else { Ok(()) }
    }

    /// fsync(2): returns when the store has it.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn fsync(&self, handle: HandleId) -> Result<()> {
        let Ok(edit) = self.handle(handle) else { return Ok(()) };
        match edit.draft().filter(|_| edit.may_write) {
            Some(draft) => self.commit(&draft).await,
            None => Ok(()),
        }
    }

    /// Whether `handle` is one of these.
    pub fn knows(&self, handle: HandleId) -> bool {
        self.open.read().contains_key(&handle)
    }

    /// The last descriptor of `handle` is gone. What no close has committed is committed now.
    pub async fn release(&self, handle: HandleId) {
        let Some(edit) = self.open.write().remove(&handle) else { return };
        self.names.record.drop_handle(handle);
        if edit.may_write {
            let is_last = {
                let mut writers = self.writers.lock();
                let left = writers.get_mut(&edit.ino).map_or(0, |count| {
                    *count -= 1;
                    *count
                });
                if left == 0 {
                    writers.remove(&edit.ino);
                }
                left == 0
            };
            if let Some(draft) = self.names.drafts.get(edit.ino).filter(|_| is_last) {
                self.wait_for_content(&draft).await;
                self.end(&draft).await;
            }
        }
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    pub(super) fn has_writers(&self, ino: Inode) -> bool {
        self.writers.lock().contains_key(&ino)
    }

    /// The draft that `edit` writes to; begins one when nothing was changed yet.
    async fn draft_of(&self, edit: &EditHandle) -> Result<Arc<Draft>> {
        if let Some(draft) = edit.draft() {
            return Ok(draft);
        }
        if !edit.may_write {
            return Err(Error::BadHandle);
        }
        let draft = match &edit.version {
            Some(version) if self.names.is_removed(edit.ino) => self.begin_nameless(edit.ino, version).await?,
            _ => self.begin_edit(edit.ino).await?,
        };
        Ok(edit.draft.lock().get_or_insert(draft).clone())
    }

    pub(super) fn on_write(&self, draft: &Draft) {
        if draft.on_write() {
            self.names.drafts.note(draft);
        }
        self.names.own.on_write(&draft.key());
    }

    pub(super) fn register(&self, ino: Inode, begins_with: Beginner, access: Access, caller: Caller) -> Opened {
        let handle = self.files.new_handle();
        let (version, draft) = match begins_with {
            Beginner::Version(version) => (Some(version), None),
            Beginner::Draft(draft) => (None, Some(draft)),
        };
        let edit = EditHandle {
            ino,
            may_read: access.read,
            may_write: access.write,
            direct: access.direct,
            version,
            draft: Mutex::new(draft),
            opened_by: caller.thread,
            wrote_by: AtomicU32::new(caller.thread),
        };
        if access.write {
            *self.writers.lock().entry(ino).or_default() += 1;
        }
        self.open.write().insert(handle, Arc::new(edit));
        // Who only writes has no use for the kernel's pages, which cost a copy. Who only reads must not leave old bytes in them.
        Opened { handle, keep_pages: false, direct: !(access.read && access.write) }
    }

    /// The kernel is about to be told of `handle`.
    pub fn on_told(&self, handle: HandleId, told: Told) {
        if self.names.record.is_on()
            && let Ok(edit) = self.handle(handle)
        {
            let EditHandle { ino, may_read, may_write, direct, opened_by, .. } = *edit;
            let row = EditRow { ino, may_read, may_write, direct, opened_by, told, version: edit.version.clone() };
            self.names.record.put_edit(handle, &row);
        }
    }

    fn handle(&self, handle: HandleId) -> Result<Arc<EditHandle>> {
        self.open.read().get(&handle).cloned().ok_or(Error::BadHandle)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.is_ending() { Err(Error::Ending) } else { Ok(()) }
    }

    /// Whether the content of `ino` may still be changed. Of what is refused here the rest is not stored as if it were all.
    pub(super) fn check_change(&self, ino: Inode) -> Result<()> {
        self.check_open().inspect_err(|_| {
            if let Some(draft) = self.names.drafts.get(ino) {
                draft.on_cut();
            }
        })
    }

    /// From now on nothing new is written.
    pub fn close_for_writing(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }
}
