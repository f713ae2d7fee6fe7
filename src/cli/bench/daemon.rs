//! The daemon behind a directory that is measured. It only asks. Invariant: a directory that no daemon of ours serves is as good as any
//! other, so that nothing here fails.

use std::path::Path;

use super::super::Failure;
use super::super::locate::locate;
use super::super::remote::runtime;
use super::ceiling;
use crate::admin::{Command, Done, Stats};
use crate::bench::Ceiling;

/// What the daemon that serves `dir` tells of itself, if one does and answers.
pub fn daemon(dir: &Path) -> Option<Stats> {
    let located = locate(dir).ok()?;
    let asked = located
        .connect()
        .and_then(|mut client| client.ask(&Command::Stats {}, |_| {}).map_err(|error| Failure::internal(error.to_string())));
    match asked {
        Ok(Done::Stats(stats)) => Some(*stats),
        Ok(_) => None,
        Err(failure) => {
            eprintln!("windlass: warning: nothing is known of the daemon: {}", failure.message);
            None
        }
    }
}

/// What the network between this machine and the store behind `daemon` carries, if that was measured.
pub fn ceiling_of(daemon: Option<&Stats>) -> Option<Ceiling> {
    let host = daemon?.data_host.clone();
    runtime().ok()?.block_on(ceiling(host.as_deref()))
}
