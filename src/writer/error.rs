//! Why content cannot be changed, read or committed. The layer above makes errno of it.

use std::io;
use std::sync::Arc;

use super::Interrupted;
use crate::store::{self, ErrorKind};

/// See the module. Cloneable, because what failed once is told to everyone who depends on it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The store failed, after all retries.
    #[error(transparent)]
    Store(store::Error),
    /// The staging file; without room it is [`io::ErrorKind::StorageFull`].
    #[error("the staging file cannot be used")]
    Disk { source: Arc<io::Error> },
    /// No memory could be had.
    #[error("no memory for a part")]
    Memory(#[source] Arc<io::Error>),
    /// More than a store can hold in one object.
    #[error("larger than an object can be")]
    TooLarge,
    /// It was written, and the daemon ended, or gave it up because it ends, before it was in the store.
    #[error("the daemon that it was written through ended before it was stored: it has to be written again")]
    Lost,
    /// The object that is edited was replaced or deleted meanwhile, and bytes of it are needed.
    #[error("the object was replaced while it was being edited")]
    Stale(#[source] store::Error),
    /// The work ended before it was done.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl WriteError {
    /// Whether the object has become another one than that which was to be replaced.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Stale(_) => true,
            // A range inside the version that was asked for can be read, unless the object is another one by now: MinIO answers 416 without an ETag
            // where that is empty.
            Self::Store(error) => matches!(error.kind, ErrorKind::Replaced | ErrorKind::RangeNotSatisfiable),
            _ => false,
        }
    }

    /// Whether the same bytes may be taken in another upload, which is begun without a checksum.
    pub(super) fn refuses_checksum(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind == ErrorKind::ChecksumRefused)
    }

    /// An error of a request for bytes of the object that is edited.
    pub(super) fn of_base(error: store::Error) -> Self {
        match error.kind {
            ErrorKind::Replaced | ErrorKind::NotFound => Self::Stale(error),
            _ => Self::Store(error),
        }
    }
}

impl From<store::Error> for WriteError {
    fn from(error: store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Disk { source: Arc::new(error) }
    }
}
