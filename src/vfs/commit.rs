//! How what was written gets into the bucket: at close, at fsync, and when the last writer goes. It uploads nothing itself. Invariant: a dirty file leaves
//! the table only when its content is in the store, unwanted or lost, and after a commit every open and every stat shows the new version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::dirty_files::{DirtyFile, Fate};
use super::drain::Lost;
use super::edits::Edits;
use super::files::HandleId;
use super::listing::{FileFacts, Posix};
use super::options::{Conflict, PosixAttributes};
use super::{Error, Result, posix, user_attributes};
use crate::store::{Condition, Key, ObjectMeta};
use crate::writer::{Left, Outcome, WriteError};

/// Interval between two looks at whether something has come to an end.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How long the disk may take for the description of what stays there.
pub(super) const DISK: Duration = Duration::from_secs(1);

/// How long a file that only got a length waits for its content after its last close.
const BLANK: Duration = Duration::from_secs(2);

impl Edits {
    /// Puts the content of `file` into the store, if it is not there already, for a caller that reports how that went.
    ///
    /// # Errors
    /// Why it is not there now. The store still has the version from before.
    pub(super) async fn commit(&self, file: &Arc<DirtyFile>) -> Result<()> {
        loop {
            let key = file.key();
            let _shared = self.names.locks.share(&key).await;
            // Without a turn it is over: its fate says how.
            let turn = self.names.dirty.turn(file).await;
            if turn.is_some() && file.key() != key && !file.is_unwanted() {
                continue;
            }
            let result = self.commit_in_turn(file).await;
            // What was left to another daemon is reported by that one.
            if result.as_ref().is_err_and(|error| !error.is_left()) {
                file.on_failure_reported();
            }
            return result;
        }
    }

    /// As [`Self::commit`], for a caller that has the turn.
    pub(super) async fn commit_in_turn(&self, file: &Arc<DirtyFile>) -> Result<()> {
        match file.fate() {
            Fate::Unwanted => return Ok(()),
            Fate::Lost => {
                return Err(file.lost_by().unwrap_or_else(|| if self.is_ending() { Error::Ending } else { WriteError::Lost.into() }));
            }
            Fate::Saved if !file.content.is_dirty() => return Ok(()),
            Fate::Saved | Fate::Dirty | Fate::Failed => {}
        }
        match self.commit_once(file).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_conflict() && (file.is_exclusive() || self.names.options.conflict != Conflict::Overwrite) => {
                self.on_conflict(file, error).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// One attempt.
    pub(super) async fn commit_once(&self, file: &DirtyFile) -> Result<(), WriteError> {
        let key = file.key();
        if file.content.is_dirty() {
            // What is there, or was, has more than attributes.
            let mut before = file.content.headers();
            if file.is_new() {
                let headers = self.headers_for(&key);
                let metadata = std::mem::replace(&mut before, headers).metadata;
                user_attributes::keep(&metadata, &mut before.metadata);
            }
            let own = self.names.own.get(key.as_bytes(), None);
            if self.stores_attributes(&own, &before.metadata, false) {
                self.mark_directory_of(&key).await;
                let own = posix::written_over(Self::with_time(file, own), &before.metadata);
                file.content.set_headers(posix::headers(before, &own, &self.names.options, false));
            }
        }
        let condition = if file.is_exclusive() { Condition::Absent } else { Condition::Any };
        match file.content.commit(condition).await? {
            None => self.on_all_stored(file),
            Some(meta) => self.on_committed(file, &meta),
        }
        Ok(())
    }

    /// Whether an object is stored with attributes, of which `own` was set and `metadata` has what it had before.
    pub(super) fn stores_attributes(&self, own: &Posix, metadata: &BTreeMap<String, String>, is_directory: bool) -> bool {
        let options = &self.names.options;
        match options.posix_attributes {
            PosixAttributes::Off => false,
            PosixAttributes::Auto => {
                let has_some = posix::read(metadata) != Posix::default() || user_attributes::are_in(metadata);
                has_some || posix::differs(own, options, is_directory)
            }
            PosixAttributes::On => true,
        }
    }

    /// The time of the last write is stored, so that stat shows the same before and after.
    fn with_time(file: &DirtyFile, own: Posix) -> Posix {
        Posix { modified: own.modified.or(Some(file.facts().modified)), ..own }
    }

    /// There is nothing to send.
    pub(super) fn on_all_stored(&self, file: &DirtyFile) {
        match file.unnoted() {
            Some(meta) => self.on_committed(file, &meta),
            None => file.on_nothing_to_commit(),
        }
    }

    fn on_committed(&self, file: &DirtyFile, meta: &ObjectMeta) {
        self.names.own.on_commit(&meta.key, &meta.etag);
        let mut facts = FileFacts::from(meta);
        let (own, stored) = (self.names.own.get(meta.key.as_bytes(), Some(&meta.etag)), file.content.headers().metadata);
        if self.stores_attributes(&own, &stored, false) {
            let own = posix::written_over(Self::with_time(file, own), &stored);
            facts = posix::with(facts, &own, &self.names.options, &stored);
        }
        // What stat shows of it until its last handle is gone, and after that.
        let modified = facts.extra.as_ref().and_then(|extra| extra.posix.modified).unwrap_or(meta.modified);
        // First: a listing of the directory has it there or among those that are new.
        self.names.on_file(&meta.key, facts);
        self.files.on_commit(file.ino, meta);
        file.on_commit(&ObjectMeta { modified, ..meta.clone() });
        self.bind_readers(file);
    }

    /// Has the handles that were opened to read what is being written know the version that came of it: they move on with each later one.
    fn bind_readers(&self, file: &DirtyFile) {
        if !self.names.dirty.has_readers(file.ino) {
            return;
        }
        let Some((meta, since)) = file.last_version() else { return };
        let readers: Vec<HandleId> = {
            let open = self.open.read();
            open.iter().filter(|(_, edit)| edit.ino == file.ino && !edit.may_write).map(|(&handle, _)| handle).collect()
        };
        for handle in readers {
            if let Err(error) = self.files.bind(handle, file.ino, &meta, since) {
                tracing::debug!(key = %meta.key, %error, "a reader of what was being written cannot go on");
            }
        }
    }

    /// Gives the program that made `file` a bounded time to open it again and write to it.
    pub(super) async fn wait_for_content(&self, file: &DirtyFile) {
        let until = Instant::now() + BLANK;
        let may_wait =
            || file.is_unsaved() && file.waits_for_content() && !self.has_writers(file.ino) && !self.is_ending() && !self.is_left();
        while may_wait() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// No handle writes to `file` any more: it leaves the table, once what was written is in the store or lost.
    pub(super) async fn end(&self, file: &Arc<DirtyFile>) {
        loop {
            let key = file.key();
            let _shared = self.names.locks.share(&key).await;
            let Some(_turn) = self.names.dirty.turn(file).await else { return };
            // What is left is ended by the daemon that goes on: it finds no handle of it.
            if self.has_writers(file.ino) || self.is_left() {
                return;
            }
            if file.key() != key && !file.is_unwanted() {
                continue;
            }
            match file.fate() {
                Fate::Dirty => {
                    if let Err(error) = self.commit_in_turn(file).await
                        && file.is_unsaved()
                    {
                        if self.has_writers(file.ino) {
                            // A handle that was opened since reports it.
                            return;
                        }
                        return self.lose_at_end(file, Some(&error)).await;
                    }
                }
                // What a close has reported as failed is not tried again without a caller: the program may have written it elsewhere by now.
                Fate::Failed | Fate::Lost => return self.lose_at_end(file, None).await,
                Fate::Unwanted if self.files.is_open(file.ino) => return,
                Fate::Saved | Fate::Unwanted => {}
            }
            if self.names.dirty.remove_if_over(file) {
                if file.is_unwanted() {
                    file.content.discard().await;
                }
                return;
            }
            if file.is_unwanted() || self.has_writers(file.ino) {
                return;
            }
            // A write has come: once more.
            tokio::task::yield_now().await;
        }
    }

    /// The last handle of `file` is gone, and the store lacks what was written: `unreported`, why the commit failed that was made then, or as a
    /// close has reported. What is staged stays on the disk, where that outlives the mount; the next mount may store what no close has
    /// reported.
    async fn lose_at_end(&self, file: &Arc<DirtyFile>, unreported: Option<&Error>) {
        let lost = Lost::of(file, unreported.is_some(), DISK).await;
        let kept = if let Left::Kept(path) = &lost.left { Some(path.display().to_string()) } else { None };
        if let Some(error) = unreported {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::error!(key = %lost.key, %error, cause, kept, "a file that was closed is not in the bucket: no close could report it");
        } else if kept.is_some() {
            tracing::warn!(key = %lost.key, kept, "a file that was closed with an error is not in the bucket: its bytes are kept");
        }
        if self.is_ending() {
            self.lost.lock().push(lost);
        }
        self.lose(file).await;
    }

    /// Takes care of what a mount that was killed, or ended without a store, has left on the disk: it is uploaded where nobody has written since, else it stays
    /// and is named in the log.
    pub async fn recover(&self) {
        for found in self.writer.recover().await {
            let (key, path) = (found.key.map_or_else(|| "unknown".to_owned(), |key| key.to_string()), found.path);
            match found.outcome {
                Outcome::Uploaded(meta) => {
                    tracing::warn!(key, "a mount ended while it uploaded this file: it is in the bucket now");
                    self.names.on_file(&meta.key, FileFacts::from(&meta));
                }
                Outcome::Kept(why) => {
                    tracing::warn!(key, path = %path.display(), why, "a mount ended before this file was in the bucket: its bytes are kept");
                }
            }
        }
    }

    /// Files whose bytes only this process has, or knows where they are: streams that are not in the bucket yet, and what is written to a file
    /// that has no name any more.
    pub fn not_to_be_left(&self) -> Vec<Key> {
        let is_lost = |file: &DirtyFile| match file.fate() {
            Fate::Saved | Fate::Lost => false,
            Fate::Dirty | Fate::Failed => !(file.content.is_staged() || file.holds_nothing()),
            Fate::Unwanted => self.has_writers(file.ino),
        };
        self.names.dirty.all().iter().filter(|file| is_lost(file)).map(|file| file.key()).collect()
    }

    /// Waits for uploads that go on by themselves.
    pub async fn settle(&self) {
        self.writer.settle().await;
    }
}
