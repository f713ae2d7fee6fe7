//! The commands that move objects without a mount: the built program against a real S3 server over loopback. What was asked of the
//! server is counted. Invariant: a test leaves nothing behind but what its own directory held.

#[path = "../support/mod.rs"]
mod support;

mod get;
mod limits;
mod look;
mod program;
mod put;
mod trees;
