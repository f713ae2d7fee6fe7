//! How a daemon leaves its mount to the next one: at a moment when nothing is lost by it. What is read and what is staged goes on there; what is on
//! its way to the store as a stream cannot, and is waited for. Invariant: a daemon that says it leaves has taken no request since the last look.

use std::time::{Duration, Instant};

use super::Mounted;
use crate::handover::Wish;

/// How often is looked whether the moment has come.
const LOOK: Duration = Duration::from_millis(20);

/// Longest wait for uploads that go on by themselves, while requests are held back.
const HELD: Duration = Duration::from_secs(2);

/// Names that are told of what is in the way.
const SHOWN: usize = 5;

impl Mounted {
    /// Whether the mount is left because of `wish`. The keeper is told.
    pub(super) fn grants(&self, wish: &Wish) -> bool {
        let Some(patience) = wish.leave_within_ms.map(Duration::from_millis) else { return false };
        let deadline = Instant::now() + patience;
        let told = match self.quiet_moment(deadline) {
            Ok(()) => return true,
            Err(why) => {
                tracing::warn!(%why, "the mount is not left to another daemon");
                self.line.as_ref().map_or(Ok(()), |line| line.stays(&why))
            }
        };
        if let Err(error) = told {
            tracing::warn!(%error, "the keeper of this mount is gone");
        }
        false
    }

    /// Holds requests back from a moment on in which nothing would be lost.
    fn quiet_moment(&self, deadline: Instant) -> Result<(), String> {
        loop {
            if self.pause_if_quiet() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let busy = self.edits.as_ref().map_or_else(Vec::new, |edits| edits.not_to_be_left());
                let names: Vec<String> = busy.iter().take(SHOWN).map(ToString::to_string).collect();
                return Err(match busy.len() {
                    0 => "uploads are under way".to_owned(),
                    more if more > SHOWN => format!("files are being written: {} and {} more", names.join(", "), more - SHOWN),
                    _ => format!("files are being written: {}", names.join(", ")),
                });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Holds requests back if nothing would be lost by leaving now; says whether it does.
    pub(super) fn pause_if_quiet(&self) -> bool {
        if self.edits.as_ref().is_some_and(|edits| !edits.not_to_be_left().is_empty()) {
            return false;
        }
        self.session.pause();
        let is_quiet = self.is_quiet();
        if !is_quiet {
            self.session.unpause();
        }
        is_quiet
    }

    fn is_quiet(&self) -> bool {
        let Some(edits) = &self.edits else { return true };
        self.runtime().block_on(async { tokio::time::timeout(HELD, edits.settle()).await }).is_ok() && edits.not_to_be_left().is_empty()
    }

    /// Whether the next daemon gets all that it needs to go on.
    pub(super) fn has_successor(&self) -> bool {
        // A keeper that is gone and cannot come back speaks no more.
        self.line.is_some() && !self.wishes.is_closed() && self.observer.names.is_written_down()
    }

    /// Answers no more questions: another daemon is to be found in the same places.
    pub(super) fn withdraw(&mut self) {
        self.control.clear();
        self.pages = None;
        self.counters = None;
    }

    /// Ends as a kill would, at any moment: the next daemon goes on with what is written down, and nothing here may change that.
    pub(super) fn abandon(mut self) {
        self.session.pause();
        self.withdraw();
        // No other process knows where it is.
        drop(self.private.take());
        // What its tasks still do is cut off by the end of the process. Dropped, they would answer their requests with an error, which the next
        // daemon is to answer.
        std::mem::forget(self);
    }

    /// Ends without a word to the kernel. What had begun since the look is left to the next daemon as well.
    pub fn leave(mut self) {
        tracing::info!("another daemon goes on with the mount");
        self.leave_open_files();
        self.withdraw();
        self.unmounted = true;
        if let Some(line) = &self.line
            && let Err(error) = line.left()
        {
            tracing::warn!(%error, "the keeper of this mount is gone");
        }
        // Not dropped: tasks would answer their requests with an error, which the next daemon is to answer.
        self.abandon();
    }
}
