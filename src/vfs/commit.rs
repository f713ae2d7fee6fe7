//! How what was written gets into the bucket: at close, at fsync, and when the last writer goes. It uploads nothing itself. Invariant: a draft leaves the list only when its content is in the store or was given up, and after a commit
//! everyone sees the new version.

use std::time::Duration;

use tokio::time::Instant;

use super::drafts::Draft;
use super::drain::Lost;
use super::edits::Edits;
use super::listing::FileFacts;
use super::{Error, Result, posix};
use crate::store::{Condition, ErrorKind, Key};
use crate::writer::{Outcome, WriteError};

/// How often is looked whether something has come to an end.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How long the disk may take for the description of what stays there.
const DISK: Duration = Duration::from_secs(1);

/// How long a file that only got a length waits for its content after its last close.
const BLANK: Duration = Duration::from_secs(2);

impl Edits {
    /// Puts the content of `draft` into the store, if it is not there already, for somebody who is told how that went.
    ///
    /// # Errors
    /// Why it is not there now. The store still has the version from before.
    pub(super) async fn commit(&self, draft: &Draft) -> Result<()> {
        let _turn = draft.turn.lock().await;
        let result = self.commit_in_turn(draft).await;
        if result.is_err() {
            draft.on_told();
        }
        result
    }

    /// As [`Self::commit`], for who has the turn and tells nobody.
    pub(super) async fn commit_in_turn(&self, draft: &Draft) -> Result<()> {
        if draft.is_unlinked() {
            return Ok(());
        }
        // With its name and its writers, only the end of the mount gives it up: until the kernel lets go of that they may still ask.
        if draft.content.is_given_up() {
            return Err(Error::Ending);
        }
        if !draft.content.is_dirty() {
            return Ok(());
        }
        if draft.is_cut() {
            return Err(Error::Ending);
        }
        let key = draft.key();
        if self.names.options.posix_attributes {
            let own = self.names.own.get(key.as_bytes(), None);
            draft.content.set_headers(posix::headers(self.headers_for(&key), &own, &self.names.options, false));
        }
        let condition = if draft.is_exclusive() { Condition::Absent } else { Condition::Any };
        match draft.content.commit(condition).await {
            Ok(None) => Ok(()),
            Ok(Some(meta)) => {
                self.names.own.on_commit(&meta.key, &meta.etag);
                let mut facts = FileFacts::from(&meta);
                if self.names.options.posix_attributes {
                    let own = self.names.own.get(key.as_bytes(), Some(&meta.etag));
                    facts = posix::with(facts, &own, &self.names.options);
                }
                // First: whoever lists the directory finds it there or among those that are new.
                self.names.on_file(&meta.key, facts);
                draft.on_commit(&meta);
                self.names.drafts.note(draft);
                self.files.on_commit(draft.ino, &meta.etag);
                Ok(())
            }
            Err(WriteError::Store(error)) if error.kind == ErrorKind::Replaced && draft.is_exclusive() => Err(Error::Exists),
            Err(error) => {
                draft.on_failure();
                Err(error.into())
            }
        }
    }

    /// Gives whoever made `draft` only so long the time to open it again and write to it.
    pub(super) async fn wait_for_content(&self, draft: &Draft) {
        let until = Instant::now() + BLANK;
        let may_wait = || draft.waits_for_content() && !draft.is_unlinked() && !self.has_writers(draft.ino) && !self.is_ending();
        while may_wait() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Nobody writes to `draft` any more.
    pub(super) async fn end(&self, draft: &Draft) {
        let _turn = draft.turn.lock().await;
        if self.has_writers(draft.ino) {
            return;
        }
        // What a close was told has failed is not tried again behind its back: who was told may have written it elsewhere by now.
        if !draft.is_unlinked()
            && !draft.has_failed()
            && !draft.is_cut()
            && !draft.content.is_given_up()
            && let Err(error) = self.commit_in_turn(draft).await
        {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(key = %draft.key(), %error, cause, "a file that was written is lost: no close could be told");
        }
        if draft.content.is_dirty() {
            if self.is_ending() && !draft.is_unlinked() {
                let lost = Lost::of(draft, draft.is_whole(), DISK).await;
                self.given_up.lock().push(lost);
            }
            if !draft.content.stays() {
                draft.content.discard().await;
            }
        }
        self.names.drafts.remove(draft);
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
        let is_lost = |draft: &Draft| {
            let has_bytes = draft.content.is_dirty() && !draft.content.is_staged() && !draft.content.is_blank();
            has_bytes || draft.is_unlinked() && self.has_writers(draft.ino)
        };
        self.names.drafts.all().iter().filter(|draft| is_lost(draft)).map(|draft| draft.key()).collect()
    }

    /// Waits for uploads that go on by themselves.
    pub async fn settle(&self) {
        self.writer.settle().await;
    }
}
