//! The end of a mount that can be written to: nothing new is taken, and what was taken goes to the bucket. Invariants: it takes no longer than its
//! limit; a file is stored with all that was acknowledged to its writer, or is named as lost; a rename comes to its end, or is named; what of
//! the lost is staged in a directory that outlives
//! the mount stays there. Every later write, fsync and close of a lost file fails, also through the daemon that goes on with the mount.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;

use super::commit::LOOK;
use super::dirty_files::{DirtyFile, DirtyFiles, Fate};
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
    /// `is_whole`: the next mount may store it.
    pub(super) async fn of(file: &DirtyFile, is_whole: bool, patience: Duration) -> Self {
        Self { key: file.key(), left: file.content.leave_on_disk(is_whole, patience).await }
    }
}

impl Edits {
    /// Refuses what is new and stores what was written, in `time`: what is closed already at once, what is open once its writers are quiet, as
    /// fsync would. Returns the files that are not in the bucket; they are lost.
    pub async fn drain(&self, time: Duration) -> Vec<Lost> {
        self.close_for_writing();
        let began = Instant::now();
        let mut storing = FuturesUnordered::new();
        self.store_all(&mut storing, QUIET.min(time / 4), time - TAKING_BACK.min(time / 5)).await;
        // What is being stored goes on: each commit that comes to its end in time is one file less that is lost.
        let stores = async {
            while storing.next().await.is_some() {}
            std::future::pending().await
        };
        let lost = tokio::select! {
            lost = self.give_up_rest(began, time) => lost,
            lost = stores => lost,
        };
        self.end_renames(time.saturating_sub(began.elapsed())).await;
        lost
    }

    /// Gives up what is not stored. Returns the files that are lost, also those from before.
    async fn give_up_rest(&self, began: Instant, time: Duration) -> Vec<Lost> {
        let rest = time.saturating_sub(began.elapsed()).max(TAKING_BACK);
        let left: Vec<_> = self.names.dirty.all().into_iter().filter(|file| is_unstored(file)).collect();
        let named = futures::future::join_all(left.iter().map(|file| Lost::of(file, is_awaited(file), rest / 2))).await;
        let give_up = async {
            // After a commit that is under way, which may come to its end.
            futures::future::join_all(left.iter().map(|file| self.give_up(file))).await;
            futures::join!(self.writer.settle(), self.store.settle());
        };
        let rest = time.saturating_sub(began.elapsed()).max(TAKING_BACK);
        // A store that does not answer keeps all of them waiting.
        if tokio::time::timeout(rest, give_up).await.is_err() {
            tracing::warn!("unfinished uploads may be left in the bucket: see them with \"windlass mpu list\"");
        }
        let mut lost = std::mem::take(&mut *self.lost.lock());
        for (file, named) in left.iter().zip(named) {
            if is_unstored(file) {
                // Its commit did not end: what becomes of that is not known.
                file.on_lost();
            }
            if file.fate() == Fate::Lost {
                lost.push(named);
            }
        }
        lost.sort();
        lost.dedup();
        lost
    }

    /// Stores what was written while requests are still answered, in `time` at most: for a mount that another daemon goes on with. A file that is
    /// open is stored, as fsync would, each time that its writers have rested.
    pub async fn store_while_serving(&self, time: Duration) {
        let (began, quiet) = (Instant::now(), QUIET.min(time / 4));
        let (mut storing, mut begun) = (FuturesUnordered::new(), HashSet::new());
        while began.elapsed() < time {
            let waits: Vec<_> = self.names.dirty.all().into_iter().filter(|file| is_awaited(file)).collect();
            if waits.is_empty() && storing.is_empty() {
                return;
            }
            for file in waits.into_iter().filter(|file| file.has_rested(quiet)) {
                if begun.insert(file.ino) {
                    storing.push(async move {
                        self.store_once(&file).await;
                        // A store that refuses is not asked without a rest.
                        tokio::time::sleep(LOOK).await;
                        file.ino
                    });
                }
            }
            tokio::select! {
                Some(ino) = storing.next(), if !storing.is_empty() => drop(begun.remove(&ino)),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Leaves the files that are not in the bucket to the daemon that goes on with this mount, with what they have; what that one cannot get is
    /// lost, and its handles say so there. What is asked for from now on is answered by that one. Returns all of them.
    pub async fn leave_open_files(&self, patience: Duration) -> Vec<Lost> {
        self.leave();
        let unsaved = self.names.dirty.all().into_iter().filter(|file| file.is_unsaved());
        let mut left: Vec<_> =
            futures::future::join_all(unsaved.map(|file| self.leave_file(file, patience))).await.into_iter().flatten().collect();
        left.sort();
        left
    }

    /// None: the store has all of it.
    async fn leave_file(&self, file: Arc<DirtyFile>, patience: Duration) -> Option<Lost> {
        let until = Instant::now() + patience;
        let begun = async {
            // A change that had begun is a part of what is left, and a commit that was asked for reports how it ended.
            while !file.has_rested(Duration::ZERO) {
                tokio::time::sleep(LOOK).await;
            }
            self.names.dirty.turn(&file).await
        };
        // No turn in time: the store has not answered a commit.
        let turn = tokio::time::timeout_at(until, begun).await;
        if matches!(turn, Ok(None)) || !file.is_unsaved() {
            return None;
        }
        if file.is_left_empty() {
            return None;
        }
        // A commit whose caller did not wait for its end may still be under way.
        if file.content.hand_over(until.saturating_duration_since(Instant::now())).await {
            if !file.content.is_dirty() {
                self.on_all_stored(&file);
                return None;
            }
            return Some(Lost { key: file.key(), left: Left::HandedOver });
        }
        if file.content.is_staged() {
            // It is described as of its last change, however a commit that is under way ends.
            return Some(Lost { key: file.key(), left: Left::HandedOver });
        }
        // Its row says that it is dirty: the next daemon finds no bytes and reports the file as lost.
        let _ = tokio::time::timeout(TAKING_BACK, self.lose(&file)).await;
        (file.fate() != Fate::Saved).then(|| Lost { key: file.key(), left: Left::Nothing })
    }

    async fn give_up(&self, file: &Arc<DirtyFile>) {
        let Some(_turn) = self.names.dirty.turn(file).await else { return };
        if is_unstored(file) {
            self.lose(file).await;
        }
    }

    /// Waits for what others store, at most for `time`, and puts what is still open into `storing` once its writers were `quiet` for that long.
    async fn store_all<'a>(&'a self, storing: &mut FuturesUnordered<BoxFuture<'a, ()>>, quiet: Duration, time: Duration) {
        let (began, mut is_begun) = (Instant::now(), false);
        while began.elapsed() < time {
            let waits: Vec<_> = self.names.dirty.all().into_iter().filter(|file| is_awaited(file)).collect();
            if waits.is_empty() {
                return;
            }
            if !is_begun && began.elapsed() >= quiet {
                is_begun = true;
                storing.extend(waits.into_iter().map(|file| self.store_open(file, quiet).boxed()));
            }
            tokio::select! {
                Some(()) = storing.next(), if !storing.is_empty() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Stores `file`, as fsync would, if it is dirty. False: the store failed, which is logged.
    async fn store_once(&self, file: &Arc<DirtyFile>) -> bool {
        let Some(_turn) = self.names.dirty.turn(file).await else { return true };
        if file.fate() != Fate::Dirty {
            return true;
        }
        let Err(error) = self.commit_in_turn(file).await else { return true };
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::warn!(key = %file.key(), %error, cause, "a file that is open could not be stored");
        false
    }

    /// Stores `file`, again and again as long as the store fails; the caller bounds the time.
    async fn store_open(&self, file: Arc<DirtyFile>, quiet: Duration) {
        // A writer that the store keeps waiting has not had its turn to be refused.
        while !file.has_rested(quiet) {
            tokio::time::sleep(LOOK).await;
        }
        while !self.store_once(&file).await {
            tokio::time::sleep(quiet.max(LOOK)).await;
        }
    }
}

/// Whether acknowledged bytes of it are not in the bucket.
fn is_unstored(file: &DirtyFile) -> bool {
    matches!(file.fate(), Fate::Dirty | Fate::Failed | Fate::Lost)
}

/// Whether they may still get there without their writer: nothing of it was refused, and no close has reported that it is not stored.
fn is_awaited(file: &DirtyFile) -> bool {
    file.fate() == Fate::Dirty || DirtyFiles::is_in_turn(file)
}
