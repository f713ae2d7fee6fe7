//! How files are opened for writing: made, emptied, or as they are; and where their dirty files begin. What is then done with a handle is the
//! business of its neighbour.
//!
//! Invariant: a handle is counted in the table of dirty files before anything is awaited for it, so that what it is opened on does not end meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::attr::Entry;
use super::dirty_files::{Beginning, DirtyFile, Fate, Occupied};
use super::edits::{BasedOn, Beginner, Caller, Edits};
use super::fact::What;
use super::files::Opened;
use super::lookup::object_key;
use super::own::NewAttributes;
use super::versions::Seen;
use super::{Error, Inode, Result};
use crate::store::{self, Details, ErrorKind, Headers, Key, ObjectMeta, Op};

/// How often the beginning of an edit looks for a version that is not replaced while it is read.
const ROUNDS: usize = 1000;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    pub truncate: bool,
    pub exclusive: bool,
    /// Past the kernel's pages (O_DIRECT).
    pub direct: bool,
    /// Every write goes to the end of the file (O_APPEND).
    pub append: bool,
}

impl Edits {
    /// Creates and opens a file, or opens the one that is there by now. Counts as one lookup of it.
    ///
    /// # Errors
    /// EEXIST when it is there and must not, EISDIR, ENAMETOOLONG.
    pub async fn create(&self, parent: Inode, name: &[u8], mode: u16, access: Access, caller: Caller) -> Result<(Entry, Opened)> {
        self.check_open()?;
        self.names.check_may_change(parent)?;
        let (path, shared) = self.share_name(|| self.names.path(parent, name)).await?;
        // The kernel has just looked the name up: a request is sent only when the cache has something under it.
        let there = match self.names.dirty.named(path.as_bytes()) {
            Some(_) => true,
            None => match self.names.known_name(&path).map(|fact| fact.what) {
                Some(What::Directory(_)) => return Err(Error::IsADirectory),
                Some(What::File(_)) => true,
                Some(What::Absent) | None => false,
            },
        };
        if there {
            drop(shared);
            return if access.exclusive { Err(Error::Exists) } else { self.create_existing(parent, name, access, caller).await };
        }
        let ino = self.names.inodes.lock().remember(parent, &path);
        // Also when it is opened for reading only: with its last handle it is committed.
        let access = Access { write: true, ..access };
        self.names.dirty.open_handle(ino, true);
        self.adopt_attributes(&path, mode, self.names.options.file_mode, caller);
        let content = self.writer.create(path.clone(), self.headers_for(&path));
        let beginning = Beginning::New { exclusive: access.exclusive };
        let file = self.names.dirty.begin(ino, path.clone(), content, beginning, None);
        if self.names.dirty.insert(&file).is_err() {
            // Another thread of this mount has made it since.
            drop(shared);
            self.give_back(ino, true).await;
            self.names.forget(ino, 1);
            return if access.exclusive { Err(Error::Exists) } else { self.create_existing(parent, name, access, caller).await };
        }
        self.names.on_entry_changed(&path);
        let opened = self.register(self.files.new_handle(), ino, Beginner::Dirty(file.clone()), access, caller);
        Ok((self.entry_of(&file), opened))
    }

    async fn create_existing(&self, parent: Inode, name: &[u8], access: Access, caller: Caller) -> Result<(Entry, Opened)> {
        let entry = self.names.lookup(parent, name).await?;
        match self.open(entry.attr.ino, access, caller).await {
            Ok(opened) => Ok((entry, opened)),
            Err(error) => {
                self.names.forget(entry.attr.ino, 1);
                Err(error)
            }
        }
    }

    /// mknod(2) of a plain file: created and closed.
    ///
    /// # Errors
    /// As [`create`](Self::create), and why it could not be written.
    pub async fn make_file(&self, parent: Inode, name: &[u8], mode: u16, caller: Caller) -> Result<Entry> {
        let access = Access { read: false, write: true, truncate: false, exclusive: true, direct: false, append: false };
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
    /// EIO when what was written before is lost and not all of it is replaced; else as [`Files::open`](super::Files::open).
    pub async fn open(&self, ino: Inode, access: Access, caller: Caller) -> Result<Opened> {
        if access.write {
            self.check_open()?;
        }
        self.names.dirty.open_handle(ino, access.write);
        let opened = self.open_counted(ino, access, caller).await;
        if !matches!(opened, Ok(Some(_))) {
            self.give_back(ino, access.write).await;
        }
        match opened? {
            Some(opened) => Ok(opened),
            None => self.files.open(ino, access.direct).await,
        }
    }

    /// None: it is opened for reading, and nothing is being written any more.
    async fn open_counted(&self, ino: Inode, access: Access, caller: Caller) -> Result<Option<Opened>> {
        let dirty = if access.truncate { Some(self.begin_empty(ino).await?) } else { self.names.dirty.get(ino) };
        if let Some(file) = &dirty {
            self.catch_up(file).await?;
        }
        let (handle, begins_with) = match dirty {
            Some(file) => (self.files.new_handle(), Beginner::Dirty(file)),
            None if !access.write => return Ok(None),
            None => {
                let handle = self.files.new_handle();
                if !access.read {
                    return Ok(Some(self.register(
                        handle,
                        ino,
                        Beginner::Version(self.files.version_to_change(ino).await?),
                        access,
                        caller,
                    )));
                }
                // As `register` decides: what writes past the kernel's pages is no reader of them.
                let past_pages = access.direct || !access.read || access.append;
                let opening = self.files.open_handle(handle, ino, past_pages).await?;
                (handle, Beginner::Version(opening.meta))
            }
        };
        Ok(Some(self.register(handle, ino, begins_with, access, caller)))
    }

    /// A handle that was counted is not opened after all. What others left meanwhile, in reliance on it, is ended.
    async fn give_back(&self, ino: Inode, writes: bool) {
        if let Some(file) = self.names.dirty.close_handle(ino, writes) {
            self.end(&file).await;
        }
    }

    /// The dirty file of `ino`, begun as a change of the version that is there when there is none, for a handle that was opened
    /// on `based_on`. A handle of `ino` that may write is counted.
    ///
    /// # Errors
    /// ESTALE when another client has replaced that since.
    pub(super) async fn begin_edit(&self, ino: Inode, based_on: BasedOn<'_>) -> Result<Arc<DirtyFile>> {
        let (key, _shared) = self.share_name(|| self.names.node(ino).and_then(object_key)).await?;
        if let Some(file) = self.names.dirty.get(ino) {
            return Ok(file);
        }
        if self.names.inodes.lock().is_retired(ino) {
            return Err(Error::Unlinked);
        }
        let details = self.version_to_edit(ino, &key, based_on).await?;
        let content = self.writer.edit(details.meta.clone(), details.headers);
        self.bring_whole(&content, details.meta.size).await?;
        let (file, _) = self.insert(ino, key, content, Beginning::Edit, Some(details.meta))?;
        if self.names.is_removed(ino) {
            // Unlinked since it was asked for; whichever comes second, this or the unlink, sees the other.
            self.names.dirty.unlink(&file);
            file.content.discard().await;
        } else if self.names.is_nameless(ino) && file.fate() == Fate::Saved {
            // The name has got another inode since.
            self.names.dirty.remove(&file);
            return Err(Error::Unlinked);
        }
        Ok(file)
    }

    /// What is at `key` when a change of it begins, as [`begin_edit`](Self::begin_edit).
    async fn version_to_edit(&self, ino: Inode, key: &Key, based_on: BasedOn<'_>) -> Result<Details> {
        let base = if let BasedOn::Version(meta, opened) = based_on { Some((meta, opened)) } else { None };
        for _ in 0..ROUNDS {
            let asked = Instant::now();
            let details = self.store.details_to_keep(key).await.map_err(|error| match error.kind {
                ErrorKind::NotFound => Error::Unlinked,
                _ => error.into(),
            })?;
            // Before the version is seen, which an open handle would take over.
            if base.is_some_and(|(base, opened)| self.is_replaced(ino, base, opened, &details.meta)) {
                return Err(self.refuse(key, base.map(|(base, _)| base), &details.meta));
            }
            if let Seen::Current(_) = self.names.versions.lock().see(ino, &details.meta, asked) {
                return Ok(details);
            }
            // Programs, perhaps the one of this handle among them, have read other bytes than those that would be changed.
            if !matches!(based_on, BasedOn::End) {
                return Err(self.refuse(key, base.map(|(base, _)| base), &details.meta));
            }
            // None: the last of them was closed since.
            let Some(read) = self.names.versions.being_read(ino) else { continue };
            match self.goes_on(&read, &details.meta).await {
                Ok(true) if self.files.on_continued(ino, &read, &details.meta, asked).await => return Ok(details),
                // They read another version by now.
                Ok(true) => {}
                Ok(false) => return Err(self.refuse(key, Some(&read), &details.meta)),
                Err(error) if error.kind == ErrorKind::Replaced => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Stale(store::Error::new(ErrorKind::Replaced, Op::Head, key, "the object was replaced again and again")))
    }

    /// The dirty file of `ino`, with nothing in it. A handle of `ino` that may write is counted.
    pub(super) async fn begin_empty(&self, ino: Inode) -> Result<Arc<DirtyFile>> {
        let (key, _shared) = self.share_name(|| self.names.node(ino).and_then(object_key)).await?;
        let file = match self.names.dirty.get(ino) {
            Some(file) => file,
            None => {
                if self.names.inodes.lock().is_retired(ino) {
                    return Err(Error::Retired);
                }
                let (replaced, headers) = tokio::join!(self.names.object_to_replace(ino), self.headers_to_keep(&key));
                let ((meta, _), headers) = (replaced?, headers?);
                let content = self.writer.create(key.clone(), headers);
                self.names.own.on_write(&key);
                match self.insert(ino, key, content, Beginning::Replace, Some(meta))? {
                    (file, Is::New) => return Ok(file),
                    (file, Is::Known) => file,
                }
            }
        };
        self.truncate_file(&file, 0).await?;
        Ok(file)
    }

    /// What an object has besides its content, when that is replaced as a whole. One that is gone, or that may be written and not be looked at, is
    /// written as a new one.
    pub(super) async fn headers_to_keep(&self, key: &Key) -> Result<Headers> {
        match self.store.details_to_keep(key).await {
            Ok(details) => Ok(details.headers),
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::AccessDenied) => {
                if error.kind == ErrorKind::AccessDenied {
                    tracing::warn!(%error, "what the object has besides its content is lost with that");
                }
                Ok(self.headers_for(key))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a new dirty file in, or gives the one that another request has put in since.
    pub(super) fn insert(
        &self,
        ino: Inode,
        key: Key,
        content: Arc<crate::writer::Content>,
        beginning: Beginning,
        committed: Option<ObjectMeta>,
    ) -> Result<(Arc<DirtyFile>, Is)> {
        let file = self.names.dirty.begin(ino, key, content, beginning, committed);
        match self.names.dirty.insert(&file) {
            Ok(()) => {
                // After it is in: a reader that comes now finds it there.
                if self.files.has_paged_readers(ino) {
                    file.on_paged_reader();
                }
                Ok((file, Is::New))
            }
            Err(Occupied::Inode(known)) => Ok((known, Is::Known)),
            Err(occupied) => Err(occupied.into()),
        }
    }

    pub(super) fn entry_of(&self, file: &DirtyFile) -> Entry {
        Entry { attr: self.names.attr_of_dirty(file), ttl: Duration::ZERO }
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
        self.names.options.content_types.headers(path)
    }
}

/// Whether a dirty file was begun or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    New,
    Known,
}
