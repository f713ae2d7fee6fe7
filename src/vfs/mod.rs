//! POSIX over keys.

mod error;
mod inodes;
mod listing;
mod options;

pub use error::{Error, Result};
pub use inodes::{Inode, Kind};
pub use options::Options;
