//! What ends a transfer. Invariant: each says what was being done to what.

use std::io;
use std::path::PathBuf;

use crate::store::{self, Key, Mismatch};

/// Why something was not moved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store said no.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// This machine said no.
    #[error("cannot {what} {}: {source}", .path.display())]
    Local { what: &'static str, path: PathBuf, source: io::Error },
    /// The bytes that came are not those that the store took.
    #[error("\"{key}\": the checksum of what arrived is {}, the store's is {}: run it again", .mismatch.actual, .mismatch.expected)]
    Checksum { key: Key, mismatch: Box<Mismatch> },
    /// Whoever asked for it wants it no more.
    #[error("stopped")]
    Stopped {
        /// What is done is gone on with by the next run.
        is_kept: bool,
    },
    /// There is not enough memory to move one part.
    #[error("cannot get memory: {0}")]
    Memory(io::Error),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of a file or directory of this machine.
    pub fn local(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Local { what, path, source }
    }
}
