//! What becomes of staged bytes that the store does not have when a mount ends. Whether there shall be somebody who finds them is decided by where
//! they lie: in a directory that a person named they stay with their description, as after a kill. Invariant: what is said to be kept is not
//! removed by this process, unless the store takes it after all.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::access::blocking;
use super::file::{Described, ENTRY, StagedFile};
use super::journal;
use crate::writer::content::{Inner, Kind};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// Nothing of it was on the disk.
    Nothing,
    /// It was among the temporary files, and goes.
    Dropped,
    /// Its bytes: the next mount of the same with the same directory takes care of them.
    Kept(PathBuf),
    /// All of it, for the daemon that goes on with the mount and with the handles that are open.
    HandedOver,
}

impl Inner {
    /// Leaves what is staged, or drops it for good; does not wait for a commit that is under way, and for the disk no longer than `patience`.
    /// What `is_whole` may be uploaded by whoever finds it, if a commit of it had begun.
    pub async fn leave_on_disk(self: &Arc<Self>, is_whole: bool, patience: Duration) -> Left {
        let Some(file) = self.if_staged(|staged, _| staged.file.clone()).flatten() else { return Left::Nothing };
        let is_kept = self.shared.options.staging.dir.is_some();
        // At once: a description is there already, be it an older one.
        file.stay(is_kept);
        let (inner, staged) = (Arc::clone(self), Arc::clone(&file));
        let described =
            blocking(move || if is_kept { inner.describe_left(&staged, is_whole) } else { staged.undescribe().map(|()| false) });
        match (tokio::time::timeout(patience, described).await, is_kept) {
            (_, false) => Left::Dropped,
            (Ok(Ok(false)), true) => Left::Nothing,
            (Ok(Ok(true)) | Err(_), true) => Left::Kept(file.shown().to_owned()),
            (Ok(Err(error)), true) => {
                tracing::warn!(path = %file.shown().display(), %error, "the description of a staged file that is kept could not be renewed");
                Left::Kept(file.shown().to_owned())
            }
        }
    }

    /// Says what is in the file by now, also where no commit has. False: it has nothing that the store lacks.
    fn describe_left(&self, file: &Arc<StagedFile>, is_whole: bool) -> io::Result<bool> {
        let _io = self.io.write();
        let is_current = self.if_staged(|staged, _| staged.file.as_ref().is_some_and(|current| Arc::ptr_eq(current, file)));
        if is_current != Some(true) {
            // The content was emptied since it was looked at; from here on `io` prevents that.
            file.stay(false);
            return Ok(false);
        }
        // It is over for its inode: a daemon that goes on must not take it for what is written under the same number later.
        self.state.lock().owner = None;
        match file.described() {
            Described::Not => {
                file.stay(false);
                return Ok(false);
            }
            Described::Sealed if is_whole => {
                let path = file.path().with_extension(ENTRY);
                let mut entry = journal::read(&path)?;
                entry.owner = None;
                journal::write(&path, &entry, true)?;
            }
            Described::Open | Described::Sealed => file.describe(&self.entry(false)?, false)?,
        }
        Ok(true)
    }

    /// Whether its bytes stay on the disk.
    pub fn stays(&self) -> bool {
        match &self.state.lock().kind {
            Kind::Staged(staged) => staged.file.as_ref().is_some_and(|file| file.stays()),
            Kind::Streaming(stream) => stream.handed_over.is_some(),
        }
    }
}
