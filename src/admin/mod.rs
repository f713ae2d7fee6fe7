//! The control socket of a mount: what can be asked of a running daemon from outside, and both ends of the line. It serves no file and
//! decides nothing about reads. One JSON object a line: a request, then any number of lines of progress, then one that ends it.
//!
//! Invariants: only the user of the mount and root are answered; lines, connections and waits are bounded, so nobody who asks badly costs
//! the mount more than a few buffers; a mount works as well without its socket.

mod answers;
mod client;
mod place;
mod protocol;
mod server;
mod warm;

pub use answers::{Forget, Subject};
pub use client::{Client, Error};
pub use place::{Device, directories};
pub use protocol::{Command, Done, InnerPath, Progress, Stats, Warmed, Warming};
pub use server::Server;
pub use warm::{Tally, warm};

use std::path::PathBuf;

/// Options of the control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where the socket may lie: the first of them that can be used.
    pub directories: Vec<PathBuf>,
}
