//! How files are opened for writing: made, emptied, or as they are; and where their drafts begin. What is then done with a handle is the
//! business of its neighbour.
//!
//! Invariant: of a file that streams there is one writer; whoever else wants to write gets EBUSY, or waits for one that is about to go.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::attr::Entry;
use super::drafts::{Beginning, Draft};
use super::edits::{Beginner, Caller, Edits};
use super::fact::What;
use super::files::Opened;
use super::own::NewAttributes;
use super::{Error, Inode, Result};
use crate::store::{ErrorKind, Headers, Key};

/// Longest wait for the kernel to say that a file which was closed is released, and how often to look.
const RELEASE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);

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

impl Edits {
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
    /// EBUSY when another handle streams to it; else as [`Files::open`](super::Files::open).
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

    pub(super) fn entry_of(&self, draft: &Draft) -> Entry {
        Entry { attr: self.names.attr_of_draft(draft), ttl: Duration::ZERO }
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
