//! POSIX over keys.

mod options;

pub use options::Options;
