//! The read window: turns reads of one object into parallel range GETs that run ahead of the reader.

mod options;

pub use options::{Options, PrefetchChunks};
