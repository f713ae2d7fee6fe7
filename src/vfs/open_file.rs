//! One open file: the version that it reads, and whether it may still move on to another one. Which version is current is decided where all
//! files are known. Invariant: bytes are given out only while the version that they are of is current, and bind the handle to it.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::record::{FileRow, Told};
use super::versions::VersionState;
use super::{Error, Inode, Result};
use crate::reader::{ObjectHandle, Pending, ReadData};
use crate::store::ObjectMeta;

/// After a read-ahead that failed the kernel asks once more for the page that the program waits for, and the same wait would begin again. Within
/// this time of a failure it has the same answer; a read that failed sooner is asked for again.
pub(super) const REPEATED_WITHIN: Duration = Duration::from_secs(1);

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
    /// The latest reads through the kernel's pages that failed after a wait.
    pub failed: Option<Failed>,
}

/// Reads of one handle that failed at about the same time.
#[derive(Debug)]
pub(super) struct Failed {
    bytes: Range<u64>,
    at: Instant,
    error: Error,
    /// The kernel has asked again, and been answered.
    is_repeated: bool,
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

impl Failed {
    fn is_repeated_by(&self, offset: u64, len: usize) -> bool {
        !self.is_repeated && self.at.elapsed() < REPEATED_WITHIN && offset < self.bytes.end && self.bytes.start < offset + len as u64
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
    ///
    /// # Errors
    /// That of the read-ahead that the kernel repeats with this read.
    pub fn begin(&self, thread: u32, offset: u64, len: usize) -> Result<Read> {
        let object = {
            let mut version = self.version.lock();
            if let Some(failed) = version.failed.as_mut().filter(|failed| failed.is_repeated_by(offset, len)) {
                failed.is_repeated = true;
                return Err(failed.error.clone());
            }
            Arc::clone(&version.object)
        };
        let pending = object.begin(thread, offset, len);
        Ok(Read { object, pending, thread, offset, len })
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

    /// A read of `bytes` that began at `began` has failed.
    pub(super) fn on_failed(&self, mut bytes: Range<u64>, began: Instant, error: &Error) {
        if self.direct || began.elapsed() < REPEATED_WITHIN {
            return;
        }
        let mut version = self.version.lock();
        if let Some(before) = &version.failed {
            // Pages that have been asked for singly stay, and are asked for once by each read of the program.
            if before.is_repeated && before.bytes.start <= bytes.start && bytes.end <= before.bytes.end {
                return;
            }
            if !before.is_repeated && before.at.elapsed() < REPEATED_WITHIN {
                bytes = bytes.start.min(before.bytes.start)..bytes.end.max(before.bytes.end);
            }
        }
        version.failed = Some(Failed { bytes, at: Instant::now(), error: error.clone(), is_repeated: false });
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
