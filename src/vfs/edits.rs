//! Files that are open for writing, and everything else that changes the bucket: the door for the operations of a read-write mount.
//! Which bytes go where is the writer's business.
//!
//! Invariant: an inode has a draft from the first change of its content until its last writer is gone and the change is in the store or given up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::attr::Entry;
use super::drafts::{Beginning, Draft};
use super::fact::What;
use super::files::{Files, HandleId, Opened};
use super::lookup::Names;
use super::own::NewAttributes;
use super::{Error, Inode, Result};
use crate::store::{ErrorKind, Headers, Key, ObjectMeta, ObjectStore};
use crate::writer::{Allocate, Writer};

/// Longest wait for the kernel to say that a file which was closed is released, and how often to look.
const RELEASE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);

/// What can be changed in a mounted bucket.
#[derive(Debug)]
pub struct Edits {
    pub(super) names: Arc<Names>,
    pub(super) files: Arc<Files>,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) writer: Writer,
    pub(super) open: RwLock<HashMap<HandleId, Arc<EditHandle>>>,
    /// How many handles may write to an inode.
    writers: Mutex<HashMap<Inode, usize>>,
    /// The mount is about to end: nothing new may be written.
    ending: AtomicBool,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The thread.
    pub thread: u32,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    pub truncate: bool,
    pub exclusive: bool,
    /// Past the kernel's pages (O_DIRECT).
    pub direct: bool,
}

/// A handle that this module knows: it was opened for writing, or reads what is being written.
#[derive(Debug)]
pub(super) struct EditHandle {
    pub ino: Inode,
    pub may_write: bool,
    /// The version that was there when it was opened, unless that was being written already.
    pub version: Option<ObjectMeta>,
    draft: Mutex<Option<Arc<Draft>>>,
    /// The thread that opened it and the one that wrote last: a close by another process is no end of writing.
    opened_by: u32,
    wrote_by: AtomicU32,
}

/// What a handle has when it is opened.
enum Beginner {
    /// Nothing is changed yet.
    Version(ObjectMeta),
    Draft(Arc<Draft>),
}

/// Whether a thread belongs to the process of another one; told by the edge of the kernel, where processes are known.
pub type Tracked<'a> = &'a (dyn Fn(u32, u32) -> bool + Sync);

impl EditHandle {
    pub fn draft(&self) -> Option<Arc<Draft>> {
        self.draft.lock().clone()
    }
}

impl Edits {
    /// Nothing is open yet.
    pub fn new(names: Arc<Names>, files: Arc<Files>, store: Arc<dyn ObjectStore>, writer: Writer) -> Arc<Self> {
        let (open, writers) = (RwLock::default(), Mutex::default());
        Arc::new(Self { names, files, store, writer, open, writers, ending: AtomicBool::new(false) })
    }

    /// Creates and opens a file, or opens the one that is there by now. Counts as one lookup of it.
    ///
    /// # Errors
    /// EEXIST when it is there and must not, EISDIR, ENAMETOOLONG, EBUSY.
    pub async fn create(&self, parent: Inode, name: &[u8], mode: u16, access: Access, caller: Caller) -> Result<(Entry, Opened)> {
        self.check_open()?;
        let path = self.names.path(parent, name)?;
        // The kernel has just looked the name up: it is asked for again only when something is believed to be there.
        let there = match self.names.drafts.named(path.as_bytes()) {
            Some(_) => true,
            None => match self.names.known_name(&path).map(|fact| fact.what) {
                Some(What::Directory(_)) => return Err(Error::IsADirectory),
                Some(What::File(_)) => true,
                Some(What::Absent) | None => false,
            },
        };
        if there {
            if access.exclusive {
                return Err(Error::Exists);
            }
            let entry = self.names.lookup(parent, name).await?;
            let opened = match self.open(entry.attr.ino, access, caller).await {
                Err(error) => {
                    self.names.forget(entry.attr.ino, 1);
                    return Err(error);
                }
                Ok(opened) => opened,
            };
            return Ok((entry, opened));
        }
        let ino = self.names.inodes.lock().remember(parent, &path);
        self.adopt_attributes(&path, mode, self.names.options.file_mode, caller);
        let content = self.writer.create(path.clone(), self.headers_for(&path));
        let beginning = Beginning::New { exclusive: access.exclusive };
        let draft = self.names.drafts.insert(Draft::new(ino, path.clone(), content, beginning, None));
        self.names.on_entry_changed(&path);
        // Also when it is opened for reading only: with its last handle it is committed.
        let opened = self.register(ino, Beginner::Draft(draft.clone()), Access { write: true, ..access }, caller);
        Ok((self.entry_of(&draft), opened))
    }

    /// mknod(2) of a plain file: created and closed.
    ///
    /// # Errors
    /// As [`create`](Self::create), and why it could not be written.
    pub async fn make_file(&self, parent: Inode, name: &[u8], mode: u16, caller: Caller) -> Result<Entry> {
        let access = Access { read: false, write: true, truncate: false, exclusive: true, direct: false };
        let (entry, opened) = self.create(parent, name, mode, access, caller).await?;
        let stored = self.fsync(opened.handle).await;
        self.release(opened.handle).await;
        match stored {
            Ok(()) => Ok(entry),
            Err(error) => {
                self.names.forget(entry.attr.ino, 1);
                Err(error)
            }
        }
    }

    /// Opens a file for writing, or for reading while it is being written.
    ///
    /// # Errors
    /// EBUSY when another handle streams to it; else as [`Files::open`].
    pub async fn open(&self, ino: Inode, access: Access, caller: Caller) -> Result<Opened> {
        if access.write {
            self.check_open()?;
        }
        let patience = Instant::now() + RELEASE;
        let draft = loop {
            let Some(draft) = self.names.drafts.get(ino) else { break None };
            let has_writers = self.has_writers(ino);
            if !access.write || has_writers && (draft.content.is_staged() || !draft.content.is_dirty()) {
                break Some(draft);
            }
            if has_writers {
                if !draft.may_be_over() || Instant::now() > patience {
                    return Err(Error::Busy);
                }
                tokio::time::sleep(LOOK).await;
                continue;
            }
            // Its last writer is gone: what comes next fills it if it is blank, or sees what became of it.
            let turn = draft.turn.lock().await;
            let is_there = self.names.drafts.get(ino).is_some_and(|known| Arc::ptr_eq(&known, &draft));
            if is_there && draft.content.is_blank() {
                return self.open_draft(draft.clone(), access, caller).await;
            }
            drop(turn);
            tokio::time::sleep(LOOK).await;
        };
        match draft {
            Some(draft) if access.truncate => self.open_draft(draft, access, caller).await,
            Some(draft) if access.write || !draft.is_hidden_from_readers() => {
                Ok(self.register(ino, Beginner::Draft(draft), access, caller))
            }
            Some(_) => {
                // Past the kernel's pages, whose size is that of what is being written.
                let opened = self.files.open(ino, true).await?;
                Ok(Opened { direct: true, keep_pages: false, ..opened })
            }
            None if access.truncate => self.replace(ino, access, caller).await,
            None => {
                let meta = self.names.fresh_object(ino).await?;
                let opened = self.register(ino, Beginner::Version(meta.clone()), access, caller);
                if access.read {
                    self.files.read_as(opened.handle, ino, access.direct, &meta);
                }
                Ok(opened)
            }
        }
    }

    /// Opens what is being written for more of it.
    async fn open_draft(&self, draft: Arc<Draft>, access: Access, caller: Caller) -> Result<Opened> {
        if access.truncate {
            if !draft.content.is_dirty() {
                draft.on_replace();
            }
            draft.content.truncate(0).await?;
            self.on_write(&draft);
        }
        Ok(self.register(draft.ino, Beginner::Draft(draft), access, caller))
    }

    /// Opens a file of which nothing is kept.
    async fn replace(&self, ino: Inode, access: Access, caller: Caller) -> Result<Opened> {
        let key = self.names.file_key(ino)?;
        if self.files.is_being_read(ino) {
            // Its readers go on with the old version under this inode; the kernel looks the name up again and gets another one.
            self.names.retire(ino);
            return Err(Error::Retired);
        }
        let draft = self.begin_empty(ino, &key).await?;
        Ok(self.register(ino, Beginner::Draft(draft), access, caller))
    }

    /// A write that is done at once. None: see [`write`](Self::write).
    pub fn try_write(&self, handle: HandleId, offset: u64, data: &[u8], thread: u32) -> Option<Result<()>> {
        let edit = match self.handle(handle) {
            Ok(edit) => edit,
            Err(error) => return Some(Err(error)),
        };
        let draft = edit.draft()?;
        let result = draft.content.try_write(offset, data)?;
        edit.wrote_by.store(thread, Ordering::Relaxed);
        self.on_write(&draft);
        Some(result.map_err(Error::from))
    }

    /// Writes `data` at `offset`; waits for memory, disk or network where it must.
    ///
    /// # Errors
    /// EBADF, ENOSPC when there is no room to stage it, EFBIG, else what the store said.
    pub async fn write(&self, handle: HandleId, offset: u64, data: &[u8], thread: u32) -> Result<()> {
        let edit = self.handle(handle)?;
        let draft = self.draft_of(&edit).await?;
        edit.wrote_by.store(thread, Ordering::Relaxed);
        self.on_write(&draft);
        draft.content.write(offset, data).await?;
        Ok(())
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

    /// The draft of `ino`, begun as a change of the version that is there when there is none.
    pub(super) async fn begin_edit(&self, ino: Inode) -> Result<Arc<Draft>> {
        if let Some(draft) = self.names.drafts.get(ino) {
            return Ok(draft);
        }
        if self.names.inodes.lock().is_retired(ino) {
            return Err(Error::Unlinked);
        }
        let gone = |error| if matches!(error, Error::NotFound) { Error::Unlinked } else { error };
        let meta = self.names.fresh_object(ino).await.map_err(gone)?;
        let details = self.store.details(&meta.key).await.map_err(|error| match error.kind {
            ErrorKind::NotFound => Error::Unlinked,
            _ => error.into(),
        })?;
        // What was read so far may be of an older version; what is edited is what is there now.
        let content = self.writer.edit(details.meta.clone(), details.headers);
        Ok(self.names.drafts.insert(Draft::new(ino, meta.key, content, Beginning::Edit, Some(details.meta))))
    }

    /// A draft of `ino` that begins empty.
    pub(super) async fn begin_empty(&self, ino: Inode, key: &Key) -> Result<Arc<Draft>> {
        let meta = self.names.fresh_object(ino).await?;
        let content = self.writer.create(key.clone(), self.headers_for(key));
        self.names.own.on_write(key);
        Ok(self.names.drafts.insert(Draft::new(ino, key.clone(), content, Beginning::Replace, Some(meta))))
    }

    pub(super) fn on_write(&self, draft: &Draft) {
        draft.on_write();
        self.names.own.on_write(&draft.key());
    }

    pub(super) fn entry_of(&self, draft: &Draft) -> Entry {
        Entry { attr: self.names.attr_of_draft(draft), ttl: Duration::ZERO }
    }

    fn register(&self, ino: Inode, begins_with: Beginner, access: Access, caller: Caller) -> Opened {
        let handle = self.files.new_handle();
        let (version, draft) = match begins_with {
            Beginner::Version(version) => (Some(version), None),
            Beginner::Draft(draft) => (None, Some(draft)),
        };
        let edit = EditHandle {
            ino,
            may_write: access.write,
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

    fn handle(&self, handle: HandleId) -> Result<Arc<EditHandle>> {
        self.open.read().get(&handle).cloned().ok_or(Error::BadHandle)
    }

    fn check_open(&self) -> Result<()> {
        if self.is_ending() { Err(Error::Ending) } else { Ok(()) }
    }

    /// From now on nothing new is written.
    pub fn close_for_writing(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Mode and owner that a new file or directory was asked for, where they differ from what it would have by `default`.
    pub(super) fn adopt_attributes(&self, path: &Key, mode: u16, default: u16, caller: Caller) {
        let options = &self.names.options;
        let new = NewAttributes {
            mode: Some(mode & !options.umask).filter(|&mode| mode != default & !options.umask),
            uid: Some(caller.uid).filter(|&uid| uid != options.uid),
            gid: Some(caller.gid).filter(|&gid| gid != options.gid),
            ..NewAttributes::default()
        };
        if new != NewAttributes::default() {
            self.names.own.set(path, new, None);
        }
    }

    /// What goes with the content of a new object of that name.
    pub(super) fn headers_for(&self, path: &Key) -> Headers {
        let name = path.to_str().unwrap_or_default();
        let content_type = mime_guess::from_path(name).first_raw().map(str::to_owned);
        Headers { content_type, ..Headers::default() }
    }
}
