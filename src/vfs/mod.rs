//! POSIX over keys: which names there are, what they are, and how long that is believed. Nothing here knows the
//! kernel's protocol. [`Names`] is the door: the inode table, the stat cache and the probe of the store stand behind it.

mod attr;
mod directory;
mod error;
mod files;
mod flight;
mod hidden;
mod inodes;
mod listing;
mod lookup;
mod options;
mod probe;
mod stat_cache;
mod walk;

pub use attr::{Attr, Entry};
pub use directory::{DirHandle, DirItem, DirPage};
pub use error::{Error, Result};
pub use files::{Files, HandleId, OpenFile, Opened, Read};
pub use inodes::{Inode, Kind};
pub use lookup::Names;
pub use options::Options;
