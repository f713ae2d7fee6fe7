//! What can be asked of a running mount from outside. The control socket and both ends of its line: one JSON object a line, a request, then
//! any number of lines of progress, then one that ends it. The pages that are served over HTTP. It decides nothing about reads.
//!
//! Invariants: only the user of the mount and root are answered; lines, connections and waits are bounded, so nobody who asks badly costs
//! the mount more than a few buffers; a mount works as well without its socket.

mod answers;
mod client;
mod counter_files;
mod health;
mod listen;
mod observer;
mod openmetrics;
mod page_client;
mod pages;
mod place;
mod process;
mod protocol;
mod server;
mod socket_file;
mod warm;

pub use answers::{Forget, Live, Subject};
pub use client::{Client, Error};
pub use counter_files::{CounterFiles, MetricsDir};
pub use health::{Health, Stage, Waiting};
pub use listen::{Listen, Listener};
pub use observer::Observer;
pub use page_client::look;
pub use pages::{Alone, Pages, Shown, WAITS};
pub use place::{directories, keeper_of, keeper_place};
pub use protocol::{Command, Done, InnerPath, MEMORY_SHARE, Progress, Stats, Warmed, Warming};
pub use server::Server;
pub use warm::{Tally, warm};

use std::path::PathBuf;

/// Options of what a mount answers from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where the socket may lie: the first of them that can be used.
    pub directories: Vec<PathBuf>,
    /// Where the mount can be asked besides: also where nothing shows which mount it is.
    pub socket: Option<PathBuf>,
    /// Where metrics are served over HTTP; none: nowhere.
    pub metrics: Option<Listen>,
    /// Where counters are written to files; none: nowhere.
    pub files: Option<MetricsDir>,
}
