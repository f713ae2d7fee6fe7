//! One open file: the version that it reads, and whether it may still move on to another one. Which version is current is decided where all
//! files are known. Invariant: bytes are given out only while the version that they are of is current, and bind the handle to it.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Inode;
use super::record::{FileRow, Told};
use super::versions::VersionState;
use crate::reader::{ObjectHandle, Pending, ReadData};
use crate::store::ObjectMeta;

/// One open file.
#[derive(Debug)]
pub struct OpenFile {
    pub(super) ino: Inode,
    /// It was opened with O_DIRECT: nothing comes to it through the kernel's pages.
    pub(super) direct: bool,
    pub(super) version: Mutex<Version>,
    /// This version of it was read before it was opened.
    pub(super) was_read: bool,
    /// What the kernel was told of it, where that is written down.
    pub(super) told: OnceLock<Told>,
}

#[derive(Debug)]
pub(super) struct Version {
    pub object: Arc<ObjectHandle>,
    pub state: Arc<VersionState>,
    pub modified: SystemTime,
    /// The number of the open that bound the handle to this version; see [`VersionState::returns`].
    pub ticket: u64,
    /// Bytes of it were returned through this handle.
    pub has_returned: bool,
    /// A shorter version whose pages the kernel may show to this handle, which cannot move on to it: it counts as a reader of that.
    pub in_pages: Option<Arc<VersionState>>,
}

/// A read that has begun.
#[derive(Debug)]
pub struct Read {
    pub(super) object: Arc<ObjectHandle>,
    pub(super) pending: Pending,
    pub(super) thread: u32,
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl Version {
    /// Whoever reads through the handle may have bytes of this version.
    pub(super) fn is_bound(&self, direct: bool) -> bool {
        self.has_returned || !direct && self.state.has_returned()
    }
}

impl Read {
    /// When it began.
    pub fn began(&self) -> Instant {
        self.pending.began()
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

    /// As it is written down, once the kernel was told of it.
    pub(super) fn row(&self) -> Option<FileRow> {
        let told = *self.told.get()?;
        let version = self.version.lock();
        let object = &version.object;
        let meta = ObjectMeta { key: object.key().clone(), size: object.size(), etag: object.etag().clone(), modified: version.modified };
        Some(FileRow { ino: self.ino, direct: self.direct, told, meta })
    }

    /// As [`returns`](Self::returns), for bytes that the kernel has not asked for through this handle: it proves nothing of its pages.
    pub(super) fn returns_unproven(&self, object: &Arc<ObjectHandle>) -> bool {
        self.version.lock().ticket = 0;
        self.returns(object)
    }

    /// Binds the handle to the version of `object`; false when it is bound to another one by now, or that version is not current any more.
    pub(super) fn returns(&self, object: &Arc<ObjectHandle>) -> bool {
        let mut version = self.version.lock();
        if !Arc::ptr_eq(&version.object, object) || !version.state.returns(version.ticket) {
            return false;
        }
        version.has_returned = true;
        true
    }
}
