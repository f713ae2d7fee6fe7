//! The end of a mount that can be written to: nothing new is taken, and what was taken goes to the bucket. Invariants: it takes no longer than it
//! was told; a file is stored with all that its writer was told is written, or is named as lost; what of the lost lies in a directory that outlives
//! the mount stays there.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::commit::LOOK;
use super::drafts::Draft;
use super::edits::Edits;
use crate::store::Key;
use crate::writer::Left;

/// How long writers have to show that they are not done, by a write that is refused, before their files are stored as they are.
const QUIET: Duration = Duration::from_secs(1);

/// What is kept of the time for taking back what could not be finished, at most and at least.
const TAKING_BACK: Duration = Duration::from_secs(1);

/// A file that was written and is not in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lost {
    pub key: Key,
    /// What there still is of it.
    pub left: Left,
}

impl Lost {
    /// `is_whole`: whoever finds it may store it.
    pub(super) async fn of(draft: &Draft, is_whole: bool, patience: Duration) -> Self {
        Self { key: draft.key(), left: draft.content.leave_on_disk(is_whole, patience).await }
    }
}

impl Edits {
    /// Refuses what is new and stores what was written, in `time`: what is closed already at once, what is open once its writers are quiet, as
    /// fsync would. Returns the files that are not in the bucket; they are given up.
    pub async fn drain(&self, time: Duration) -> Vec<Lost> {
        self.close_for_writing();
        let began = Instant::now();
        self.store_all(QUIET.min(time / 4), time - TAKING_BACK.min(time / 5)).await;
        let left = self.names.drafts.all();
        let unstored: Vec<_> = left.iter().filter(|draft| is_unstored(draft)).collect();
        let rest = time.saturating_sub(began.elapsed()).max(TAKING_BACK);
        let named =
            futures::future::join_all(unstored.iter().map(|draft| Lost::of(draft, draft.is_whole() || is_committed_now(draft), rest / 2)))
                .await;
        let discard = async {
            // A commit of what stays may still come to its end.
            futures::future::join_all(left.iter().filter(|draft| !draft.content.stays()).map(|draft| draft.content.discard())).await;
            futures::join!(self.writer.settle(), self.store.settle());
        };
        let rest = time.saturating_sub(began.elapsed()).max(TAKING_BACK);
        // A store that does not answer keeps all of them waiting.
        if tokio::time::timeout(rest, discard).await.is_err() {
            tracing::warn!("unfinished uploads may be left in the bucket: see them with \"windlass mpu list\"");
        }
        let is_late = |draft: &Draft| draft.content.stays() && !draft.content.is_dirty();
        let mut lost: Vec<Lost> = unstored.iter().zip(named).filter(|(draft, _)| !is_late(draft)).map(|(_, lost)| lost).collect();
        for draft in &left {
            self.names.drafts.remove(draft);
        }
        lost.append(&mut self.given_up.lock());
        lost.sort();
        lost.dedup();
        lost
    }

    /// Waits for what others store, at most for `time`, and stores what is still open once its writers were `quiet` for so long.
    async fn store_all(&self, quiet: Duration, time: Duration) {
        let (began, mut storing, mut is_begun) = (Instant::now(), FuturesUnordered::new(), false);
        while began.elapsed() < time {
            let waits: Vec<_> = self.names.drafts.all().into_iter().filter(|draft| is_awaited(draft)).collect();
            if waits.is_empty() {
                return;
            }
            if !is_begun && began.elapsed() >= quiet {
                is_begun = true;
                storing.extend(waits.into_iter().map(|draft| self.store_open(draft, quiet)));
            }
            tokio::select! {
                Some(()) = storing.next(), if !storing.is_empty() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn store_open(&self, draft: Arc<Draft>, quiet: Duration) {
        // Who is kept waiting by the store has not had its turn to be refused.
        while !draft.is_quiet(quiet) {
            tokio::time::sleep(LOOK).await;
        }
        let _turn = draft.turn.lock().await;
        if draft.is_cut() {
            return;
        }
        if let Err(error) = self.commit_in_turn(&draft).await {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(key = %draft.key(), %error, cause, "a file that is open could not be stored");
            draft.on_failure();
        }
    }
}

/// Whether bytes of it are not in the bucket that should be.
fn is_unstored(draft: &Draft) -> bool {
    !draft.is_unlinked() && draft.content.is_dirty()
}

/// Whether they may still get there: what is refused after a commit has begun does not stop it.
fn is_awaited(draft: &Draft) -> bool {
    is_unstored(draft) && (!draft.is_cut() && !draft.has_failed() || is_committed_now(draft))
}

fn is_committed_now(draft: &Draft) -> bool {
    draft.turn.try_lock().is_err()
}
