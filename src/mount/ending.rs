//! How a mount ends: asked by a signal, because it was unmounted from outside, or because requests cannot be read any more. What was written goes to the
//! bucket first, while requests are still answered; then the mount goes, if it is ours. A mount that failed is left to the next daemon where there is one. Invariant: what is not in the bucket when the process ends is named.

use std::time::{Duration, Instant};

use super::{Consequence, End, Error, Mounted};
use crate::fuse::Ended;
use crate::handover::Wish;
use crate::vfs::Lost;
use crate::writer::Left;

/// How long files that are still open may keep the session alive after the mount point is free.
const GRACE: Duration = Duration::from_secs(1);

/// How long the disk may take at the end for what was read last, which is a quarter of the memory at most.
const SETTLED: Duration = Duration::from_secs(5);

/// Interval between two looks for a moment at which nothing would be lost by leaving.
const LOOK: Duration = Duration::from_millis(50);

/// How long each open file may take at the end to be left to another daemon.
const LEFT: Duration = Duration::from_secs(2);

/// What ends the wait for an end.
enum Asked {
    End(&'static str),
    Fail(String),
    Wish(Wish),
}

impl Mounted {
    /// Serves until a signal asks for the end, the mount is taken away, the keeper wishes for another daemon, or requests cannot be read any more.
    pub fn serve(&mut self) -> End {
        let reason = loop {
            let runtime = self.runtime.as_ref().expect("only drop takes the runtime");
            let (session, signals, wishes) = (&self.session, &mut self.signals, &mut self.wishes);
            let asked = runtime.block_on(async {
                tokio::select! {
                    ending = signals.next() => Asked::End(ending.name()),
                    ended = session.ended() => match ended {
                        Ended::Unmounted => Asked::End("it was unmounted"),
                        Ended::Failed { reason } => Asked::Fail(reason),
                    },
                    Some(wish) = wishes.recv() => Asked::Wish(wish),
                }
            });
            match asked {
                Asked::End(reason) => break reason,
                Asked::Fail(reason) => return End::Failed { reason },
                Asked::Wish(wish) if self.grants(&wish) => return End::Left,
                Asked::Wish(_) => {}
            }
        };
        self.health.on_ending();
        let metrics = &self.observer.metrics;
        let (read_bytes, fetched_bytes) = (metrics.read_bytes.get(), metrics.fetched_bytes.get());
        tracing::info!(reason, read_bytes, fetched_bytes, spill_read_bytes = metrics.spill_read_bytes.get(), "ending");
        End::Over
    }

    /// Stores what was written, and unmounts what was mounted here. Where another daemon can go on, files that are still open are left to that one.
    ///
    /// # Errors
    /// When the mount cannot be taken away, and the files that did not reach the bucket.
    pub fn unmount(mut self) -> Result<(), Error> {
        if self.has_successor() && self.session.outlives() { self.hand_over() } else { self.take_down() }
    }

    /// Serves on and stores what was written until nothing would be lost by leaving, at most for as long as a drain may take. What is not in the
    /// bucket then is left to the next daemon, with what it has; what that cannot get is lost, and its handles say so there.
    fn hand_over(mut self) -> Result<(), Error> {
        self.health.on_ending();
        let deadline = Instant::now() + self.drain;
        loop {
            let (runtime, signals, edits) = (self.runtime.as_ref().expect("only drop takes the runtime"), &mut self.signals, &self.edits);
            let time = deadline.saturating_duration_since(Instant::now());
            let again = runtime.block_on(async {
                let Some(edits) = edits else { return None };
                tokio::select! {
                    () = edits.store_while_serving(time) => None,
                    ending = signals.next() => Some(ending),
                }
            });
            if let Some(ending) = again {
                tracing::warn!(name = ending.name(), "asked again: files that are open are left as they are");
                break;
            }
            if Instant::now() >= deadline || self.pause_if_quiet() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.session.pause();
        let lost = self.leave_open_files();
        self.abandon();
        if lost.is_empty() { Ok(()) } else { Err(Error::NotWritten(lost)) }
    }

    /// Leaves files that are open to the next daemon. Returns those that the bucket lacks.
    pub(super) fn leave_open_files(&self) -> Vec<Lost> {
        let Some(edits) = &self.edits else { return Vec::new() };
        let lost = self.runtime().block_on(edits.leave_open_files(LEFT));
        log_lost(&lost);
        lost
    }

    /// Ends a mount that [failed](End::Failed). Where another daemon can go on it is left to that one, in the middle of what is being
    /// written; else what was written is stored, and what was mounted here is unmounted.
    pub fn fail(mut self, reason: String) -> Error {
        let target = self.observer.mountpoint.clone();
        let consequence = if self.has_successor() {
            self.abandon();
            Consequence::LeftToNext
        } else {
            Consequence::Unmounted(self.take_down().map_err(Box::new))
        };
        Error::Session { target, reason, consequence }
    }

    fn take_down(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.unmounted, true) {
            return Ok(());
        }
        let began = Instant::now();
        self.health.on_ending();
        let lost = self.drain();
        // Before the mount, whose number another one may get.
        self.withdraw();
        self.runtime().block_on(self.session.unmount(GRACE)).map_err(Error::Unmount)?;
        // Whoever waits for the end waits for all of it, and what was read can be fetched again.
        self.settle_disk(SETTLED.min(self.drain.saturating_sub(began.elapsed())));
        if lost.is_empty() { Ok(()) } else { Err(Error::NotWritten(lost)) }
    }

    /// Waits for what was read last and is on its way to the disk: the next mount would fetch it again.
    fn settle_disk(&mut self, time: Duration) {
        if self.private.is_some() {
            return;
        }
        let reader = self.observer.reader.clone();
        let (runtime, signals) = (self.runtime.as_ref().expect("only drop takes the runtime"), &mut self.signals);
        runtime.block_on(async {
            tokio::select! {
                () = reader.written() => {}
                () = tokio::time::sleep(time) => tracing::warn!("the disk does not follow: what was read last is left out"),
                ending = signals.next() => tracing::warn!(name = ending.name(), "asked again: what was read last is left out of the disk"),
            }
        });
    }

    /// Stores what was written. Returns the files that did not reach the bucket.
    fn drain(&mut self) -> Vec<Lost> {
        let Some(edits) = self.edits.clone() else { return Vec::new() };
        let (runtime, signals, time) = (self.runtime.as_ref().expect("only drop takes the runtime"), &mut self.signals, self.drain);
        let lost = runtime.block_on(async {
            tokio::select! {
                lost = edits.drain(time) => return lost,
                ending = signals.next() => tracing::warn!(name = ending.name(), "asked again: giving up what is being written"),
            }
            edits.drain(Duration::ZERO).await
        });
        log_lost(&lost);
        lost
    }
}

fn log_lost(lost: &[Lost]) {
    for Lost { key, left } in lost {
        match left {
            Left::Nothing => tracing::error!(%key, "was written and is not in the bucket"),
            Left::Kept(path) => {
                tracing::error!(%key, kept = %path.display(), "was written and is not in the bucket: its bytes are kept")
            }
            Left::HandedOver => tracing::warn!(%key, "is open and not in the bucket: the daemon that goes on with the mount has its bytes"),
            Left::Dropped => tracing::error!(%key, "was written and is not in the bucket: its bytes on the disk are dropped"),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            tracing::error!(%error, "left mounted");
        }
        if let Some(runtime) = self.runtime.take() {
            // Requests of files that are still open would otherwise keep it. But what is being written to a directory of ours would
            // keep that from being removed.
            runtime.shutdown_timeout(if self.private.is_some() { GRACE } else { Duration::ZERO });
        }
    }
}
