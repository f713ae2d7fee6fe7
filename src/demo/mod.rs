//! The engine behind `windlass demo`: an S3 server in this process over a directory, sample objects in it, and the
//! reader that checks them through a mount. It prints nothing and mounts nothing; the command does. Invariant: the
//! server listens on 127.0.0.1 only and takes requests signed with a secret that nobody else knows.

mod bucket;
mod samples;
mod server;

pub use samples::{Reading, Sample, Samples, Watch};
pub use server::{Error, Server};
