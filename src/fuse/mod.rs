//! The edge of the kernel: the only module that names fuser.

mod options;

pub use options::Options;
