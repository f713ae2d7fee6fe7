//! POSIX over keys: which names there are, what they are, and how long that is believed. Nothing here knows the
//! kernel's protocol. [`Names`] is the door: the inode table, the stat cache and the probe of the store stand behind it.

mod ahead;
mod attr;
mod carrying;
mod changes;
mod commit;
mod conflict;
mod dir_page;
mod directory;
mod dirty_files;
mod drain;
mod edits;
mod error;
mod expected;
mod expiry;
mod fact;
mod files;
mod flight;
mod free_names;
mod hidden;
mod inodes;
mod listing;
mod lookup;
mod name_locks;
mod nameless;
mod namespace;
mod next_files;
mod one_by_one;
mod open_file;
mod opening;
mod options;
mod own;
mod posix;
mod probe;
mod record;
mod rename;
mod restore;
mod setattr;
mod stat_cache;
mod succession;
mod sync;
mod telling;
mod tree;
mod ttl;
mod user_attributes;
mod versions;
mod walk;
mod xattr;

/// In the root of a mount this name is the mount's own: what a bucket has there is not shown.
pub const OWN_DIRECTORY: &[u8] = b".windlass";

pub use attr::{Attr, Entry};
pub use dir_page::{DirItem, DirPage};
pub use directory::DirHandle;
pub use drain::Lost;
pub use edits::{Acknowledge, Caller, Edits, Tracked};
pub use error::{Error, Result};
pub use expiry::Expired;
pub use files::{Files, HandleId, Opened};
pub use inodes::{Inode, Kind};
// For benches/listing.rs.
#[doc(hidden)]
pub use listing::{DirEntry, Merge};
pub use lookup::Names;
pub use open_file::{OpenFile, Read};
pub use opening::Access;
pub use options::{Conflict, Forced, Options, PosixAttributes, RootNames};
pub use own::NewAttributes;
pub use record::{Answered, DirectoryRow, Told};
pub use setattr::SetAttributes;
pub use tree::Tree;
pub use ttl::{Ttl, Ttls};
pub use user_attributes::{AttributeChange, NamedChange, Only, UserAttributes};
