//! Open files: from an inode to the bytes of the version that it named when it was opened.
//!
//! Invariant: once a handle has returned bytes it never returns bytes of another version; until then it moves on to
//! the new version instead of failing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::reader::{ObjectHandle, Pending, ReadData, ReadError, Reader};
use crate::store::{self, ETag, ErrorKind, ObjectMeta};

use super::{Error, Inode, Names, Result};

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
    /// The version whose pages the kernel may hold, for every inode that was ever opened and is not forgotten.
    cached: Mutex<HashMap<Inode, ETag>>,
    changed: Mutex<HashSet<Inode>>,
    change: Notify,
}

/// One open file.
#[derive(Debug)]
pub struct OpenFile {
    ino: Inode,
    version: Mutex<Version>,
}

#[derive(Debug)]
struct Version {
    object: Arc<ObjectHandle>,
    /// Bytes of it were returned: the handle stays with it.
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
}

impl Files {
    /// No open files yet.
    pub fn new(names: Arc<Names>, reader: Reader) -> Arc<Self> {
        Arc::new(Self {
            names,
            reader,
            open: RwLock::default(),
            next: AtomicU64::new(1),
            cached: Mutex::default(),
            changed: Mutex::default(),
            change: Notify::new(),
        })
    }

    /// Opens without waiting when the object's facts are cached.
    pub fn try_open(&self, ino: Inode) -> Option<Result<Opened>> {
        let (meta, _) = self.names.file(ino)?;
        Some(Ok(self.opened(ino, &meta)))
    }

    /// Opens the version that the name has now.
    ///
    /// # Errors
    /// ENOENT when the object is gone, EISDIR for a directory, else what the store said.
    pub async fn open(&self, ino: Inode) -> Result<Opened> {
        let meta = self.names.fresh_object(ino).await?;
        Ok(self.opened(ino, &meta))
    }

    /// The open file behind a handle.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn get(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        self.open.read().get(&handle).cloned().ok_or(Error::BadHandle)
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
                // Another read of this handle moved it to the next version meanwhile.
                Ok(_) => {}
                Err(ReadError::Store(error)) if is_other_version(&error) => self.move_on(file, &read.object, error).await?,
                Err(error) => return Err(error.into()),
            }
            read = file.begin(read.thread, read.offset, read.len);
        }
    }

    /// The kernel forgot an inode, and with it its pages.
    pub fn forget(&self, ino: Inode) {
        self.cached.lock().remove(&ino);
    }

    /// Waits for inodes whose content was seen to change, so that the kernel can be told.
    pub async fn next_changed(&self) -> Vec<Inode> {
        loop {
            let changed: Vec<Inode> = self.changed.lock().drain().collect();
            if !changed.is_empty() {
                return changed;
            }
            self.change.notified().await;
        }
    }

    fn opened(&self, ino: Inode, meta: &ObjectMeta) -> Opened {
        let version = Mutex::new(Version { object: Arc::new(self.reader.open(meta)), has_returned: false });
        let file = OpenFile { ino, version };
        let handle = HandleId(self.next.fetch_add(1, Ordering::Relaxed));
        self.open.write().insert(handle, Arc::new(file));
        let before = self.cached.lock().insert(ino, meta.etag.clone());
        let keep_pages = before.as_ref() == Some(&meta.etag);
        if before.is_some() && !keep_pages {
            // Without this the kernel would go by the size of the version before until its attributes expire.
            self.on_change(ino);
        }
        Opened { handle, keep_pages }
    }

    fn on_change(&self, ino: Inode) {
        self.changed.lock().insert(ino);
        self.change.notify_one();
    }

    /// The version `gone` of this handle is gone. A handle that has returned nothing yet takes the next one.
    async fn move_on(&self, file: &OpenFile, gone: &Arc<ObjectHandle>, error: store::Error) -> Result<()> {
        let meta = self.names.refresh(file.ino).await;
        self.on_change(file.ino);
        let mut version = file.version.lock();
        if version.has_returned {
            return Err(Error::Stale(error));
        }
        if !Arc::ptr_eq(&version.object, gone) {
            return Ok(());
        }
        let meta = meta.map_err(|_| Error::Stale(error.clone()))?;
        if &meta.etag == gone.etag() {
            // The store contradicts itself: it has this version and does not.
            return Err(Error::Stale(error));
        }
        tracing::debug!(key = %meta.key, etag = %meta.etag, "the object was replaced before its first byte was read: reading the new version");
        self.cached.lock().insert(file.ino, meta.etag.clone());
        version.object = Arc::new(self.reader.open(&meta));
        Ok(())
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

    /// Binds the handle to the version of `object`; false when it is bound to another one by now.
    fn returns(&self, object: &Arc<ObjectHandle>) -> bool {
        let mut version = self.version.lock();
        let same = Arc::ptr_eq(&version.object, object);
        version.has_returned |= same;
        same
    }
}

fn is_other_version(error: &store::Error) -> bool {
    matches!(error.kind, ErrorKind::Replaced | ErrorKind::NotFound | ErrorKind::RangeNotSatisfiable)
}
