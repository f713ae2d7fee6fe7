//! How a mount ends: asked by a signal, or because somebody unmounted it. What was written goes to the bucket first, while requests are still
//! answered; then the mount goes, if it is ours. Invariant: what is not in the bucket when the process ends is named.

use std::time::{Duration, Instant};

use super::{End, Error, Mounted};
use crate::vfs::Lost;
use crate::writer::Left;

/// How long files that are still open may keep the session alive after the mount point is free.
const GRACE: Duration = Duration::from_secs(1);

/// How long the disk may take at the end for what was read last, which is a quarter of the memory at most.
const SETTLED: Duration = Duration::from_secs(5);

impl Mounted {
    /// Serves until a signal asks for the end, somebody unmounts, or the keeper wishes for another daemon.
    pub fn serve(&mut self) -> End {
        let reason = loop {
            let runtime = self.runtime.as_ref().expect("only drop takes the runtime");
            let (session, signals, wishes) = (&self.session, &mut self.signals, &mut self.wishes);
            let asked = runtime.block_on(async {
                tokio::select! {
                    ending = signals.next() => Err(ending.name()),
                    () = session.ended() => Err("it was unmounted"),
                    Some(wish) = wishes.recv() => Ok(wish),
                }
            });
            match asked {
                Err(reason) => break reason,
                Ok(wish) if self.grants(&wish) => return End::Left,
                Ok(_) => {}
            }
        };
        self.health.on_ending();
        let metrics = &self.observer.metrics;
        let (read_bytes, fetched_bytes) = (metrics.read_bytes.get(), metrics.fetched_bytes.get());
        tracing::info!(reason, read_bytes, fetched_bytes, spill_read_bytes = metrics.spill_read_bytes.get(), "ending");
        End::Over
    }

    /// Stores what was written, and unmounts what was mounted here.
    ///
    /// # Errors
    /// When the mount cannot be taken away, and the files that did not reach the bucket.
    pub fn unmount(mut self) -> Result<(), Error> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.unmounted, true) {
            return Ok(());
        }
        let began = Instant::now();
        self.health.on_ending();
        let lost = self.drain();
        // Before the mount, whose number another one may get.
        self.control.clear();
        self.pages = None;
        self.counters = None;
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
        for Lost { key, left } in &lost {
            match left {
                Left::Nothing => tracing::error!(%key, "was written and is not in the bucket"),
                Left::Kept(path) => {
                    tracing::error!(%key, kept = %path.display(), "was written and is not in the bucket: its bytes are kept")
                }
                Left::Dropped => tracing::error!(%key, "was written and is not in the bucket: its bytes on the disk are dropped"),
            }
        }
        lost
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
