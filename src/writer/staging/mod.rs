//! Content that is not written front to back: a sparse file on the disk holds what was written and what was fetched, the object
//! that is edited has the rest. Invariant: changes of file and layout happen together under the content's `io` lock, on threads
//! that may block; the layout alone is read under its short lock.

mod access;
mod append;
mod changes;
mod fetch;
mod file;
mod handover;
mod journal;
mod layout;
mod leaving;
mod recover;
mod save;
mod takeover;

use std::path::PathBuf;
use std::sync::Arc;

use rangemap::RangeSet;

use crate::store::ObjectMeta;
use crate::units::ByteSize;

pub(super) use access::blocking;
pub(super) use file::{Area, StagedFile};
pub(super) use layout::{Layout, Place};
pub use leaving::Left;
pub(super) use recover::recover;
pub use recover::{Outcome, Recovered};
pub(super) use takeover::take_over;

/// Where staged files go and what they leave free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where; none: a private directory among the temporary files, the same for all mounts of a user.
    pub dir: Option<PathBuf>,
    /// Most bytes of them; 0: no bound.
    pub max: ByteSize,
    /// So much of the disk stays free.
    pub ensure_free: ByteSize,
    /// So many per cent of the disk stay free.
    pub free_ratio: u8,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Staged {
    pub layout: Layout,
    pub base: Option<Base>,
    /// None as long as there is nothing to put into it.
    pub file: Option<Arc<StagedFile>>,
    /// Pieces of the object that somebody fetches.
    pub fetching: RangeSet<u64>,
}

/// The object that is edited.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub meta: ObjectMeta,
    /// It is ours and goes once the content is where it shall be.
    pub temporary: bool,
}

impl Staged {
    /// All of `base`, nothing changed.
    pub fn of_object(base: Base) -> Self {
        Self { layout: Layout::of_object(base.meta.size), base: Some(base), file: None, fetching: RangeSet::new() }
    }
}
