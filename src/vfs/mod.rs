//! POSIX over keys: which names there are, what they are, and how long that is believed. Nothing here knows the
//! kernel's protocol. [`Names`] is the door: the inode table, the stat cache and the probe of the store stand behind it.

mod attr;
mod dir_page;
mod directory;
mod error;
mod fact;
mod files;
mod flight;
mod hidden;
mod inodes;
mod listing;
mod lookup;
mod next_files;
mod options;
mod probe;
mod stat_cache;
mod succession;
mod walk;

pub use attr::{Attr, Entry};
pub use dir_page::{DirItem, DirPage};
pub use directory::DirHandle;
pub use error::{Error, Result};
pub use files::{Files, HandleId, OpenFile, Opened, Read};
pub use inodes::{Inode, Kind};
// For benches/listing.rs.
#[doc(hidden)]
pub use listing::{DirEntry, Merge};
pub use lookup::Names;
pub use options::Options;
