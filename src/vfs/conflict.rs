//! What a commit does when another client has written the object since it became what the change is based on: what was only appended is appended
//! to the version that is there now; anything else is refused, and stored beside it where that was asked for. Invariant: what another client has
//! written stays, and a handle whose bytes are not under its name says so on every later call.

use std::sync::Arc;

use tokio::time::Instant;

use super::Inode;
use super::commit::DISK;
use super::dirty_files::{DirtyFile, Fate};
use super::drain::Lost;
use super::edits::Edits;
use super::listing::FileFacts;
use super::options::Conflict;
use super::{Error, Result};
use crate::store::{self, ErrorKind, Key, ObjectMeta, Op};
use crate::writer::{Content, WriteError};

/// How often what was appended is appended to another version before its writer is told. Each round that fails is one in which another client has
/// stored something, so that all together always come forward. 64 were too few beside five busy writers of another mount, over a store that answers
/// in a millisecond.
const APPEND_ROUNDS: usize = 1000;

/// The largest object of which all is fetched when a change of it begins that is to be saved also when another client replaces the object meanwhile.
const SAVED_WHOLE: u64 = 8 << 20;

/// The largest version that is compared with the beginning of its successor, which is fetched for that.
const COMPARED: u64 = 16 << 20;

/// The longest name of a file.
const NAME_MAX: usize = 255;

/// How many names are tried for what is stored beside the object.
const NAMES_TRIED: usize = 10;

impl Edits {
    /// The commit of `file`, for a caller that has its turn, failed with `error`, which is a conflict.
    ///
    /// # Errors
    /// `error`, as ESTALE or EEXIST: what was written is not stored under its name.
    pub(super) async fn on_conflict(&self, file: &Arc<DirtyFile>, error: WriteError) -> Result<()> {
        let key = file.key();
        let error = match self.append_again(file, error).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_conflict() => error,
            Err(error) => return Err(error.into()),
        };
        if self.is_left() {
            return Err(error.into());
        }
        self.writer.metrics().write_conflicts.add(1);
        let found = self.store.head(&key).await;
        let saved = if self.names.options.conflict == Conflict::Save { self.save_beside(file, &key).await } else { None };
        let name = |meta: Option<&ObjectMeta>| meta.map_or_else(|| "nothing".to_owned(), |meta| meta.etag.to_string());
        let there = match &found {
            Ok(meta) => name(Some(meta)),
            Err(error) if error.kind == ErrorKind::NotFound => name(None),
            Err(error) => error.to_string(),
        };
        let based_on = name(file.committed().filter(|committed| committed.key == key).as_ref());
        let result = if file.is_exclusive() { Error::Exists } else { Error::from(error) };
        self.lose_to_another(file, result.clone(), saved.is_some()).await;
        let saved = saved.map(|saved| saved.to_string());
        tracing::error!(%key, based_on, found = there, saved, "not stored: the object is not what it was when it was opened");
        // What is there now is not what is believed.
        self.names.on_unknown(&key);
        Err(result)
    }

    /// Whether another client has put `there` in place of `base`, on which a handle was opened at `opened`. What was there before is no conflict: the
    /// handle was opened on what the cache had, and no bytes of that were returned.
    pub(super) fn is_replaced(&self, ino: Inode, base: &ObjectMeta, opened: Instant, there: &ObjectMeta) -> bool {
        self.names.options.conflict != Conflict::Overwrite
            && there.etag != base.etag
            && !self.names.versions.is_made_here(ino, &there.etag)
            && self.store.time_at(opened).is_some_and(|opened| opened.may_be_before(there.modified))
    }

    /// Counts and logs a write that begins on another version than that of its handle; returns its error.
    pub(super) fn refuse(&self, key: &Key, based_on: Option<&ObjectMeta>, there: &ObjectMeta) -> Error {
        self.writer.metrics().write_conflicts.add(1);
        let based_on = based_on.map(|base| base.etag.to_string());
        tracing::error!(%key, based_on, found = %there.etag, "not written: the object is not what it was when it was opened");
        self.names.on_unknown(key);
        Error::Stale(store::Error::new(ErrorKind::Replaced, Op::Head, key, "the object was replaced while it was open"))
    }

    /// Appends what was appended to the version that is there now.
    ///
    /// # Errors
    /// `error`, where other changes were made, the bytes are not here any more, or others were faster each time; else why it failed this time.
    async fn append_again(&self, file: &Arc<DirtyFile>, mut error: WriteError) -> Result<(), WriteError> {
        for _ in 0..APPEND_ROUNDS {
            let Some(from) = file.appended_from().filter(|_| error.is_conflict()) else { break };
            let details = match self.store.details_to_keep(&file.key()).await {
                Ok(details) if details.symlink.is_none() => details,
                // Who removes a file takes what is appended to it along.
                Err(error) if error.kind != ErrorKind::NotFound => return Err(error.into()),
                Ok(_) | Err(_) => break,
            };
            // What was read before it was stored would be at another offset.
            if self.read_to(file) > from {
                break;
            }
            // Programs that have read the version before go on in this one.
            let read = self.version_read(file);
            if let Some(read) = &read {
                match self.goes_on(read, &details.meta).await {
                    Ok(true) => {}
                    Err(error) if error.kind == ErrorKind::Replaced => continue,
                    Err(error) => return Err(error.into()),
                    Ok(false) => break,
                }
            }
            if !file.content.append_to(from, details.meta.clone(), details.headers).await? {
                break;
            }
            self.writer.metrics().appended_again.add(1);
            file.on_appended_to(&details.meta);
            // The kernel may have pages of what was there before.
            match read {
                Some(_) => self.files.on_longer(file.ino).await,
                None => self.files.on_given_up(file.ino).await,
            }
            let committed = match self.bring_whole(&file.content, details.meta.size).await {
                Ok(()) => self.commit_once(file).await,
                Err(error) => Err(error),
            };
            error = match committed {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
        }
        Err(error)
    }

    /// Has `file`, of which everything is stored and which is open for appends only, follow the version that another client has written since, for a
    /// handle that is about to be opened. It stays as it is where programs have read something else of it.
    ///
    /// # Errors
    /// What the store answered.
    pub(super) async fn catch_up(&self, file: &Arc<DirtyFile>) -> Result<()> {
        let is_stored = || file.fate() == Fate::Saved && !file.content.is_dirty();
        let only_appends = || !self.open.read().values().any(|edit| edit.ino == file.ino && edit.may_write && !edit.appends());
        let Some(committed) = file.committed().filter(|_| is_stored() && only_appends()) else { return Ok(()) };
        // Not from the cache: several machines write to this file.
        match self.names.refresh(file.ino).await {
            Ok((there, _)) if there.etag != committed.etag => {}
            _ => return Ok(()),
        }
        let _shared = self.names.locks.share(&committed.key).await;
        let Some(_turn) = self.names.dirty.turn(file).await else { return Ok(()) };
        if !is_stored() || file.committed().is_none_or(|now| now.etag != committed.etag || now.key != committed.key) {
            return Ok(());
        }
        let asked = Instant::now();
        let details = match self.store.details_to_keep(&committed.key).await {
            Ok(details) if details.symlink.is_none() => details,
            Ok(_) => return Ok(()),
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if let Some(read) = self.version_read(file) {
            match self.goes_on(&read, &details.meta).await {
                Ok(true) => {}
                Err(error) if error.kind != ErrorKind::Replaced => return Err(error.into()),
                Ok(false) | Err(_) => return Ok(()),
            }
        }
        // Nothing is behind its end: all of it is that version.
        if file.content.append_to(committed.size, details.meta.clone(), details.headers).await? {
            file.on_appended_to(&details.meta);
            match self.names.versions.being_read(file.ino) {
                Some(read) => drop(self.files.on_continued(file.ino, &read, &details.meta, asked).await),
                None => {
                    self.names.versions.lock().see(file.ino, &details.meta, asked);
                    self.files.on_longer(file.ino).await;
                }
            }
        }
        Ok(())
    }

    /// The end of the bytes of `file` that open handles may have returned; 0: there are none.
    fn read_to(&self, file: &DirtyFile) -> u64 {
        let is_open = || self.files.is_open(file.ino) || self.open.read().values().any(|edit| edit.ino == file.ino && edit.may_read);
        Some(file.read_to()).filter(|&end| end > 0 && is_open()).unwrap_or(0)
    }

    /// The version that open handles of `file` may have returned bytes of.
    fn version_read(&self, file: &DirtyFile) -> Option<ObjectMeta> {
        file.committed().filter(|_| self.read_to(file) > 0).or_else(|| self.names.versions.being_read(file.ino))
    }

    /// Whether `there`, which another client has written, begins with all of `read`, so that programs that have read that find the same bytes at the
    /// same offsets: true for what was only appended to.
    ///
    /// # Errors
    /// What the store answered, [`ErrorKind::Replaced`] when there is another version by now.
    pub(super) async fn goes_on(&self, read: &ObjectMeta, there: &ObjectMeta) -> store::Result<bool> {
        Ok(read.size <= COMPARED && (read.etag == there.etag || store::begins_with(&*self.store, there, read).await?))
    }

    /// Fetches the first `size` bytes of `content`, those of the object that is edited, where a version that takes its place shall not take them along.
    pub(super) async fn bring_whole(&self, content: &Content, size: u64) -> Result<(), WriteError> {
        if self.names.options.conflict == Conflict::Save && size <= SAVED_WHOLE {
            content.read(0, size as usize).await?;
        }
        Ok(())
    }

    /// Stores the content of `file`, which is a change of `key`, under a name beside it.
    async fn save_beside(&self, file: &DirtyFile, key: &Key) -> Option<Key> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let now = jiff::Timestamp::now();
        for number in 1..=NAMES_TRIED {
            let beside = name_beside(key, &host, now, number)?;
            match file.content.save_as(beside.clone()).await {
                Ok(Some(meta)) => {
                    self.names.on_file(&beside, FileFacts::from(&meta));
                    self.names.on_entry_changed(&beside);
                    return Some(beside);
                }
                Ok(None) => return None,
                Err(WriteError::Store(error)) if error.kind == ErrorKind::Replaced && error.key == beside => {}
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%key, %error, cause, "what was written could not be stored beside the object either");
                    return None;
                }
            }
        }
        None
    }

    /// Another client has the name. At the end of the mount, when no program may hear of it, what is staged stays on the disk, where that outlives the
    /// mount; else its writer knows, and the disk would fill with versions that nobody looks for.
    async fn lose_to_another(&self, file: &Arc<DirtyFile>, error: Error, is_saved: bool) {
        if self.is_ending() && !is_saved {
            let lost = Lost::of(file, false, DISK).await;
            self.lost.lock().push(lost);
        }
        if !file.content.stays() {
            file.content.give_up().await;
        }
        file.on_lost_by(error);
        self.let_go(file).await;
    }
}

/// `NAME.conflict-HOST-TIME` beside `key`. None: there can be no such name.
fn name_beside(key: &Key, host: &str, now: jiff::Timestamp, number: usize) -> Option<Key> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    // The name of the machine, without its domain.
    let host: String = host.split('.').next()?.chars().map(|c| if is_plain(c) { c } else { '-' }).take(63).collect();
    let number = if number > 1 { format!("-{number}") } else { String::new() };
    let suffix = format!(".conflict-{host}-{}{number}", now.strftime("%Y%m%dT%H%M%SZ"));
    let bytes = key.as_bytes();
    let name = bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let mut end = bytes.len().min(name + NAME_MAX.checked_sub(suffix.len())?);
    if end < bytes.len() {
        // No half of a character.
        while end > name && bytes[end] & 0xc0 == 0x80 {
            end -= 1;
        }
    }
    Some(Key::from([&bytes[..end], suffix.as_bytes()].concat()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn name_beside_tells_host_and_time_and_fits() {
        let now = jiff::Timestamp::UNIX_EPOCH + Duration::from_secs(86_400 + 3_661);
        let beside = |key: &str, number| name_beside(&Key::from(key), "node-1.example/x", now, number).expect("there is one").to_string();
        assert_eq!(beside("a/b.txt", 1), "a/b.txt.conflict-node-1-19700102T010101Z");
        assert_eq!(beside("b", 2), "b.conflict-node-1-19700102T010101Z-2");
        let long = beside(&format!("d/{}", "ä".repeat(127)), 1);
        let name = long.strip_prefix("d/").expect("it is in the same directory");
        assert!(name.len() <= 255 && name.starts_with("ää") && name.ends_with("ä.conflict-node-1-19700102T010101Z"), "{name}");
    }
}
