//! Files whose content is being changed through this mount: which there are, under which inode and key, how many handles they have, and
//! what became of their bytes. It sends no request.
//!
//! ```text
//!               begin_change                    commit ok
//!   Saved ----------------------> Dirty -------------------------> Saved
//!                                 |   ^
//!             commit failed, told |   | begin_change
//!                                 v   |
//!                                 Failed ----- last writer closes ----> removed
//!
//!   Saved, Dirty, Failed -- name removed or replaced --> Unwanted -- last handle closes --> removed
//!   Dirty, Failed -------- given up, or not there after a restart --> Lost: removed at once, and known to its handles alone
//! ```
//!
//! Invariants: one inode and one key have at most one dirty file. [`Table`] is the only owner of the count of handles and of the two indexes, so
//! registration and removal are one critical section each. A file is in the table while a handle may write to it, unless it is lost, and its
//! journal row says [`Fate::Saved`] only while every acknowledged byte is in the bucket. Each handle of a lost file has a row that says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::inodes::Inode;
use super::listing::FileFacts;
use super::options::Conflict;
use super::record::{DirtyRow, Record};
use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, OwnedTurnGuard, RwLock, TurnMutex};
use super::{Error, Result};
use crate::store::{Condition, ETag, Key, ObjectMeta};
use crate::writer::{Content, WriteError};

/// What became of the acknowledged changes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All of them are in the bucket.
    Saved,
    /// Some are not in the bucket yet.
    Dirty,
    /// As `Dirty`; the last commit failed and its caller got the error. The next commit tries again, but none that has no caller to report to:
    /// a program that got the error may have written the bytes elsewhere by now.
    Failed,
    /// The name was removed or given to another file through this mount: the changes are for open handles alone.
    Unwanted,
    /// They will never be in the bucket. Every write, fsync and close of a handle that had the file open fails.
    Lost,
}

/// A file that is being changed.
#[derive(Debug)]
pub struct DirtyFile {
    pub ino: Inode,
    pub content: Arc<Content>,
    state: Mutex<State>,
    /// Serializes commit, rename, unlink and end. Get it through [`DirtyFiles::turn`], which looks whether the file is still there.
    turn: Arc<TurnMutex<()>>,
    /// A handle that reads through the kernel's pages was open while this file was: a write past the pages has to drop them.
    has_paged_readers: AtomicBool,
    /// The end of the bytes of it that were returned.
    read_to: AtomicU64,
    record: Record,
}

/// What a change does to the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// Bytes are put at its end, wherever that is.
    Append,
    /// Bytes are put where the writer says, or its size changes.
    Write,
    /// It is emptied.
    Empty,
}

/// A change of the content, from before its first byte is taken to its acknowledgement. A commit that ends meanwhile leaves the file dirty.
#[derive(Debug)]
pub struct Change<'a>(&'a DirtyFile);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.changes -= 1;
        state.last_change = Instant::now();
    }
}

#[derive(Debug)]
struct State {
    key: Key,
    /// What the store has under the key: the version that is edited or replaced, then the last that was committed.
    committed: Option<ObjectMeta>,
    /// Since when it has that.
    committed_at: Instant,
    /// Nothing may be there when it is committed for the first time (O_EXCL).
    exclusive: bool,
    fate: Fate,
    /// Bytes were written since the file was made or emptied. Without, another daemon can begin it again with nothing lost.
    written: bool,
    /// Changes under way, and when the last one began or ended.
    changes: usize,
    last_change: Instant,
    /// How often bytes were about to be written.
    writes: u64,
    /// All that the bucket lacks was appended, to `committed` or to nothing.
    only_appends: bool,
    /// Why it is lost, for its handles. None: the daemon ended.
    lost_by: Option<Error>,
    /// It is not in the table any more, and has no row.
    is_out: bool,
    modified: SystemTime,
}

impl State {
    fn new(
        key: Key,
        (committed, committed_at): (Option<ObjectMeta>, Instant),
        exclusive: bool,
        (fate, written): (Fate, bool),
        modified: SystemTime,
    ) -> Self {
        Self {
            key,
            committed,
            committed_at,
            exclusive,
            fate,
            written,
            changes: 0,
            last_change: Instant::now(),
            writes: 0,
            only_appends: false,
            lost_by: None,
            is_out: false,
            modified,
        }
    }
}

/// How a dirty file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// A name that was not there.
    New { exclusive: bool },
    /// Nothing is kept of the version that is there.
    Replace,
    /// Changes to the version that is there.
    Edit,
    /// Changes to a version whose name this mount has removed.
    Nameless,
}

impl DirtyFile {
    fn new(ino: Inode, content: Arc<Content>, state: State, record: Record) -> Arc<Self> {
        content.belong_to(ino.0);
        Arc::new(Self {
            ino,
            content,
            state: Mutex::new(state),
            turn: Arc::default(),
            has_paged_readers: AtomicBool::new(false),
            read_to: AtomicU64::new(0),
            record,
        })
    }

    pub fn key(&self) -> Key {
        self.state.lock().key.clone()
    }

    pub fn fate(&self) -> Fate {
        self.state.lock().fate
    }

    /// What the store has under its name: what was committed last, also when no caller asked for that commit, or what it replaces.
    pub fn committed(&self) -> Option<ObjectMeta> {
        let state = self.state.lock();
        self.content.stored().filter(|stored| stored.key == state.key).or_else(|| state.committed.clone())
    }

    /// What was committed last, or what it began with, and since when the store has that.
    pub fn last_version(&self) -> Option<(ObjectMeta, Instant)> {
        let state = self.state.lock();
        state.committed.clone().map(|meta| (meta, state.committed_at))
    }

    /// Whether the bucket has nothing under its name.
    pub fn is_new(&self) -> bool {
        self.state.lock().committed.is_none()
    }

    pub fn is_exclusive(&self) -> bool {
        self.state.lock().exclusive
    }

    pub fn is_unwanted(&self) -> bool {
        self.fate() == Fate::Unwanted
    }

    /// Whether acknowledged changes are not in the bucket and may still get there.
    pub fn is_unsaved(&self) -> bool {
        matches!(self.fate(), Fate::Dirty | Fate::Failed)
    }

    /// Begins a change if it is `allowed`. `allowed` is called under the lock of the state: after it has
    /// become false, each change that was allowed is seen by [`has_rested`](Self::has_rested).
    ///
    /// # Errors
    /// That of `allowed`, [`lost_by`](Self::lost_by) once the changes before it are lost.
    pub fn begin_change(&self, alters: Alteration, allowed: impl FnOnce() -> Result<()>) -> Result<Change<'_>> {
        let mut state = self.state.lock();
        allowed()?;
        if state.fate == Fate::Lost {
            return Err(state.lost_by.clone().unwrap_or_else(|| WriteError::Lost.into()));
        }
        let writes = alters != Alteration::Empty;
        state.only_appends &= alters == Alteration::Append;
        state.modified = SystemTime::now();
        state.last_change = Instant::now();
        state.changes += 1;
        let is_news = matches!(state.fate, Fate::Saved | Fate::Failed) || writes && !state.written;
        if matches!(state.fate, Fate::Saved | Fate::Failed) {
            state.fate = Fate::Dirty;
        }
        state.written |= writes;
        state.writes += u64::from(writes);
        if is_news {
            self.note(&state);
        }
        Ok(Change(self))
    }

    /// How often bytes were about to be written.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// The file was emptied by the one change that is under way, which began when there were `writes` writes: nothing that was written before
    /// counts any more.
    pub fn on_emptied(&self, writes: u64) {
        let mut state = self.state.lock();
        if state.writes == writes && state.changes == 1 {
            state.written = false;
            self.note(&state);
        }
    }

    /// Whether it has a length and nothing else: what follows is probably its content.
    pub fn waits_for_content(&self) -> bool {
        self.content.is_blank() && self.content.size() > 0 && !self.is_exclusive()
    }

    /// Whether it is new or emptied and nothing was written to it: another daemon can begin it again.
    pub fn holds_nothing(&self) -> bool {
        self.content.is_blank() && self.content.size() == 0
    }

    /// Whether it [holds nothing](Self::holds_nothing), for another daemon: its row says so from now on.
    pub fn is_left_empty(&self) -> bool {
        let mut state = self.state.lock();
        let is_empty = state.changes == 0 && self.holds_nothing();
        if is_empty && state.written {
            // By a write that failed.
            state.written = false;
            self.note(&state);
        }
        is_empty
    }

    /// The store has its content as `meta`.
    pub fn on_commit(&self, meta: &ObjectMeta) {
        let mut state = self.state.lock();
        state.committed = Some(meta.clone());
        state.committed_at = Instant::now();
        state.exclusive = false;
        if matches!(state.fate, Fate::Dirty | Fate::Failed) && state.changes == 0 && !self.content.is_dirty() {
            state.fate = Fate::Saved;
            state.only_appends = true;
            state.modified = meta.modified;
        } else if state.fate == Fate::Failed {
            state.fate = Fate::Dirty;
        }
        self.note(&state);
    }

    /// The version that a commit has made whose caller did not wait for its end.
    pub fn unnoted(&self) -> Option<ObjectMeta> {
        let state = self.state.lock();
        let is_known = |stored: &ObjectMeta| state.committed.as_ref().is_some_and(|committed| committed.etag == stored.etag);
        self.content.stored().filter(|stored| stored.key == state.key && !is_known(stored))
    }

    /// Nothing is to be sent: what is in the store is all of it.
    pub fn on_nothing_to_commit(&self) {
        let mut state = self.state.lock();
        if matches!(state.fate, Fate::Dirty | Fate::Failed) && state.changes == 0 && !self.content.is_dirty() {
            state.fate = Fate::Saved;
            self.note(&state);
        }
    }

    /// The store did not take its content, and the caller that asked for the commit gets the error.
    pub fn on_failure_reported(&self) {
        let mut state = self.state.lock();
        if state.fate == Fate::Dirty {
            state.fate = Fate::Failed;
            self.note(&state);
        }
    }

    /// The version that all of what the bucket lacks was appended to, by its size: 0 where there was none. None: other changes were made, too.
    pub fn appended_from(&self) -> Option<u64> {
        let committed = self.committed();
        let state = self.state.lock();
        state.only_appends.then(|| committed.map_or(0, |meta| meta.size))
    }

    /// What was appended follows `meta` now, which another client has put there.
    pub fn on_appended_to(&self, meta: &ObjectMeta) {
        let mut state = self.state.lock();
        (state.committed, state.committed_at) = (Some(meta.clone()), Instant::now());
        self.note(&state);
    }

    /// Why it is lost, for each later call of its handles. None: the daemon ended.
    pub fn lost_by(&self) -> Option<Error> {
        self.state.lock().lost_by.clone()
    }

    /// Its changes will never be in the bucket, because of `error`.
    pub fn on_lost_by(&self, error: Error) {
        self.state.lock().lost_by = Some(error);
        self.on_lost();
    }

    /// Its changes will never be in the bucket. Says whether that is news.
    pub fn on_lost(&self) -> bool {
        let mut state = self.state.lock();
        let is_news = matches!(state.fate, Fate::Dirty | Fate::Failed);
        if is_news {
            state.fate = Fate::Lost;
            self.note(&state);
        }
        is_news
    }

    /// Whether no change is under way, and none has been for `time`.
    pub fn has_rested(&self, time: Duration) -> bool {
        let state = self.state.lock();
        state.changes == 0 && state.last_change.elapsed() >= time
    }

    /// A handle is opened that reads through the kernel's pages.
    pub fn on_paged_reader(&self) {
        self.has_paged_readers.store(true, Ordering::SeqCst);
    }

    /// Whether the kernel may have taken pages of it for a reader since it began.
    pub fn has_paged_readers(&self) -> bool {
        self.has_paged_readers.load(Ordering::SeqCst)
    }

    /// Bytes of it up to `end` are about to be returned.
    pub fn on_read(&self, end: u64) {
        self.read_to.fetch_max(end, Ordering::SeqCst);
    }

    /// The end of the bytes of it that were returned; 0: none were.
    pub fn read_to(&self) -> u64 {
        self.read_to.load(Ordering::SeqCst)
    }

    /// What stat shows of it. The etag is empty: there is no version of this content yet.
    pub fn facts(&self) -> FileFacts {
        let state = self.state.lock();
        FileFacts { size: self.content.size(), etag: ETag::from(""), modified: state.modified, extra: None }
    }

    /// Writes its row. Under the lock of its state, so that rows come in the order of what they say.
    fn note(&self, state: &State) {
        if self.record.is_on() && !state.is_out {
            let State { key, committed, exclusive, fate, written, .. } = state;
            let (key, committed) = (key.clone(), committed.clone());
            self.record.put_dirty(self.ino, &DirtyRow { key, committed, exclusive: *exclusive, fate: *fate, written: *written });
        }
    }
}

/// All dirty files of a mount, and the handles that may change or read them.
#[derive(Debug)]
pub struct DirtyFiles {
    count: AtomicUsize,
    table: RwLock<Table>,
    record: Record,
    conflict: Conflict,
}

#[derive(Debug, Default)]
struct Table {
    by_ino: HashMap<Inode, Entry>,
    /// Of files that have a name.
    by_key: HashMap<Key, Inode>,
}

/// An inode with a dirty file, or with handles that may make it dirty.
#[derive(Debug, Default)]
struct Entry {
    /// Handles that may write.
    writers: usize,
    /// Handles that were opened to read what is being written.
    readers: usize,
    file: Option<Arc<DirtyFile>>,
}

/// Why a dirty file could not be put in.
#[derive(Clone, Debug)]
pub enum Occupied {
    /// Its inode has one.
    Inode(Arc<DirtyFile>),
    /// Its name belongs to the dirty file of another inode.
    Name,
}

impl DirtyFiles {
    /// None yet; those that come are written down to `record`.
    pub(super) fn new(record: Record, conflict: Conflict) -> Self {
        Self { count: AtomicUsize::new(0), table: RwLock::default(), record, conflict }
    }

    /// What the store has under the name of `content`, `committed`, is all that its commit replaces, unless others may be overwritten.
    fn protect(&self, content: &Content, committed: Option<&ObjectMeta>) {
        if self.conflict != Conflict::Overwrite {
            content.replace_only(committed.map_or(Condition::Absent, |meta| Condition::Is(meta.etag.clone())));
        }
    }

    /// A dirty file that is not in the table yet.
    pub fn begin(
        &self,
        ino: Inode,
        key: Key,
        content: Arc<Content>,
        beginning: Beginning,
        committed: Option<ObjectMeta>,
    ) -> Arc<DirtyFile> {
        let modified = match (&committed, beginning) {
            (Some(meta), Beginning::Edit | Beginning::Nameless) => meta.modified,
            _ => SystemTime::now(),
        };
        let fate = match beginning {
            Beginning::New { .. } | Beginning::Replace => Fate::Dirty,
            Beginning::Edit => Fate::Saved,
            Beginning::Nameless => Fate::Unwanted,
        };
        let exclusive = beginning == (Beginning::New { exclusive: true });
        if exclusive {
            content.require_absent();
        }
        if beginning != Beginning::Nameless {
            self.protect(&content, committed.as_ref());
        }
        let written = matches!(beginning, Beginning::Edit | Beginning::Nameless);
        let only_appends = matches!(beginning, Beginning::New { exclusive: false } | Beginning::Edit);
        let state = State { only_appends, ..State::new(key, (committed, Instant::now()), exclusive, (fate, written), modified) };
        DirtyFile::new(ino, content, state, self.record.clone())
    }

    /// As `row` says; not in the table yet.
    pub(super) fn of_row(&self, ino: Inode, content: Arc<Content>, row: DirtyRow) -> Arc<DirtyFile> {
        let DirtyRow { key, committed, exclusive, fate, written } = row;
        // A save that no commit has noted is its own.
        let saved = content.stored().filter(|stored| stored.key == key);
        self.protect(&content, saved.as_ref().or(committed.as_ref()));
        let modified = match &committed {
            Some(meta) if fate == Fate::Saved => meta.modified,
            _ => SystemTime::now(),
        };
        let state = State::new(key, (committed, Instant::now()), exclusive, (fate, written), modified);
        DirtyFile::new(ino, content, state, self.record.clone())
    }

    /// Whether there is none: asked before every read.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub fn get(&self, ino: Inode) -> Option<Arc<DirtyFile>> {
        if self.is_empty() { None } else { self.table.read().by_ino.get(&ino)?.file.clone() }
    }

    /// The dirty file of that name.
    pub fn named(&self, key: &[u8]) -> Option<Arc<DirtyFile>> {
        if self.is_empty() { None } else { self.table.read().named(key) }
    }

    pub fn all(&self) -> Vec<Arc<DirtyFile>> {
        self.table.read().by_ino.values().filter_map(|entry| entry.file.clone()).collect()
    }

    /// Names right below `directory` that are not in the bucket yet.
    pub fn new_in(&self, directory: &Key) -> Vec<Key> {
        if self.is_empty() {
            return Vec::new();
        }
        let is_in =
            |key: &Key| key.as_bytes().strip_prefix(directory.as_bytes()).is_some_and(|name| !name.is_empty() && !name.contains(&b'/'));
        let table = self.table.read();
        let is_new = |key: &Key| table.named(key.as_bytes()).is_some_and(|file| file.is_new());
        let mut names: Vec<Key> = table.by_key.keys().filter(|key| is_in(key) && is_new(key)).cloned().collect();
        names.sort();
        names
    }

    /// Whether anything new is below `directory`.
    pub fn any_below(&self, directory: &Key) -> bool {
        !self.is_empty() && self.table.read().by_key.keys().any(|key| key.as_bytes().starts_with(directory.as_bytes()))
    }

    /// Those below `directory`, in the order of their names.
    pub fn below(&self, directory: &Key) -> Vec<Arc<DirtyFile>> {
        if self.is_empty() {
            return Vec::new();
        }
        let table = self.table.read();
        let mut below: Vec<_> = table.by_key.keys().filter(|key| key.as_bytes().starts_with(directory.as_bytes())).collect();
        below.sort();
        below.into_iter().filter_map(|key| table.named(key.as_bytes())).collect()
    }

    /// A handle of `ino` is opened that may write, or reads what is being written.
    pub fn open_handle(&self, ino: Inode, writes: bool) {
        let mut table = self.table.write();
        let entry = table.by_ino.entry(ino).or_default();
        if writes {
            entry.writers += 1;
        } else {
            entry.readers += 1;
        }
    }

    /// Such a handle is closed. Returns the dirty file whose last writer, or last handle, it was.
    pub fn close_handle(&self, ino: Inode, writes: bool) -> Option<Arc<DirtyFile>> {
        let mut table = self.table.write();
        let entry = table.by_ino.get_mut(&ino)?;
        let count = if writes { &mut entry.writers } else { &mut entry.readers };
        *count = count.saturating_sub(1);
        let is_last = *count == 0 && entry.writers == 0;
        let file = entry.file.clone().filter(|_| is_last);
        table.drop_if_unused(ino);
        file
    }

    /// Whether handles are open that were opened to read what is being written.
    pub fn has_readers(&self, ino: Inode) -> bool {
        self.table.read().by_ino.get(&ino).is_some_and(|entry| entry.readers > 0)
    }

    /// Handles of `ino` that may write.
    pub fn writers(&self, ino: Inode) -> usize {
        self.table.read().by_ino.get(&ino).map_or(0, |entry| entry.writers)
    }

    pub fn has_writers(&self, ino: Inode) -> bool {
        self.writers(ino) > 0
    }

    /// A file that is lost, for handles of a daemon that ended.
    pub(super) fn lost(&self, ino: Inode, key: Key, content: Arc<Content>) -> Arc<DirtyFile> {
        let modified = SystemTime::now();
        let state = State::new(key, (None, Instant::now()), false, (Fate::Lost, true), modified);
        DirtyFile::new(ino, content, state, Record::default())
    }

    /// Puts `file` in.
    ///
    /// # Errors
    /// What is in its place; `file` is not in the table then.
    pub fn insert(&self, file: &Arc<DirtyFile>) -> Result<(), Occupied> {
        let mut table = self.table.write();
        if let Some(known) = table.by_ino.get(&file.ino).and_then(|entry| entry.file.clone()) {
            return Err(Occupied::Inode(known));
        }
        let state = file.state.lock();
        if state.fate != Fate::Unwanted {
            if table.by_key.contains_key(&state.key) {
                return Err(Occupied::Name);
            }
            table.by_key.insert(state.key.clone(), file.ino);
        }
        file.note(&state);
        drop(state);
        table.by_ino.entry(file.ino).or_default().file = Some(Arc::clone(file));
        self.count.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Takes `file` out, unless a handle may write to it, it has changes that may still get into the bucket, or it has no name and is still
    /// read. Says whether it is out.
    pub fn remove_if_over(&self, file: &Arc<DirtyFile>) -> bool {
        let mut table = self.table.write();
        let Some(entry) = table.by_ino.get(&file.ino).filter(|entry| entry.is(file)) else { return true };
        let is_over = entry.writers == 0
            && match file.fate() {
                Fate::Dirty => false,
                Fate::Unwanted => entry.readers == 0,
                Fate::Saved | Fate::Failed | Fate::Lost => true,
            };
        if is_over {
            self.take_out(&mut table, file);
        }
        is_over
    }

    /// Takes `file` out, whatever handles it has.
    pub fn remove(&self, file: &Arc<DirtyFile>) {
        let mut table = self.table.write();
        if table.by_ino.get(&file.ino).is_some_and(|entry| entry.is(file)) {
            self.take_out(&mut table, file);
        }
    }

    fn take_out(&self, table: &mut Table, file: &Arc<DirtyFile>) {
        table.drop_name(file);
        if let Some(entry) = table.by_ino.get_mut(&file.ino) {
            entry.file = None;
        }
        table.drop_if_unused(file.ino);
        // Under the lock of its state: what it says later is written nowhere.
        let mut state = file.state.lock();
        state.is_out = true;
        self.record.drop_dirty(file.ino);
        self.count.fetch_sub(1, Ordering::Release);
    }

    /// Waits until no other commit, rename, unlink or end of `file` is under way, and keeps them away while the guard lives. None: the file is
    /// over, and what a caller knew of it counts no more.
    pub async fn turn(&self, file: &Arc<DirtyFile>) -> Option<OwnedTurnGuard<()>> {
        let turn = Arc::clone(&file.turn).lock_owned().await;
        self.has(file).then_some(turn)
    }

    /// The dirty file of the name `key`, with its [turn](Self::turn).
    pub async fn turn_of_name(&self, key: &[u8]) -> Option<(Arc<DirtyFile>, OwnedTurnGuard<()>)> {
        loop {
            let file = self.named(key)?;
            let turn = Arc::clone(&file.turn).lock_owned().await;
            if self.named(key).is_some_and(|now| Arc::ptr_eq(&now, &file)) {
                return Some((file, turn));
            }
        }
    }

    /// Whether a commit, rename, unlink or end of `file` is under way.
    pub fn is_in_turn(file: &DirtyFile) -> bool {
        file.turn.try_lock().is_err()
    }

    /// Whether `file` itself is in the table.
    pub fn has(&self, file: &Arc<DirtyFile>) -> bool {
        self.table.read().by_ino.get(&file.ino).is_some_and(|entry| entry.is(file))
    }

    /// Its name is gone; open handles go on with it.
    pub fn unlink(&self, file: &Arc<DirtyFile>) {
        let mut table = self.table.write();
        table.drop_name(file);
        let mut state = file.state.lock();
        if state.fate != Fate::Lost {
            state.fate = Fate::Unwanted;
        }
        if table.by_ino.get(&file.ino).is_some_and(|entry| entry.is(file)) {
            file.note(&state);
        }
    }

    /// It is called `key` now, where the store has `committed`.
    pub fn rename(&self, file: &Arc<DirtyFile>, key: Key, committed: Option<ObjectMeta>) {
        let mut table = self.table.write();
        table.drop_name(file);
        let mut state = file.state.lock();
        self.protect(&file.content, committed.as_ref());
        state.key = key.clone();
        state.committed = committed;
        state.exclusive = false;
        // What the store has under the new name may be the object that is replaced: nothing was appended to that.
        state.only_appends &= state.fate == Fate::Saved;
        if table.by_ino.get(&file.ino).is_some_and(|entry| entry.is(file)) {
            table.by_key.insert(key, file.ino);
            file.note(&state);
        }
    }
}

impl Table {
    fn named(&self, key: &[u8]) -> Option<Arc<DirtyFile>> {
        self.by_ino.get(self.by_key.get(key)?)?.file.clone()
    }

    fn drop_name(&mut self, file: &DirtyFile) {
        let key = file.key();
        if self.by_key.get(&key) == Some(&file.ino) {
            self.by_key.remove(&key);
        }
    }

    fn drop_if_unused(&mut self, ino: Inode) {
        if self.by_ino.get(&ino).is_some_and(|entry| entry.writers == 0 && entry.readers == 0 && entry.file.is_none()) {
            self.by_ino.remove(&ino);
        }
    }
}

impl Entry {
    fn is(&self, file: &Arc<DirtyFile>) -> bool {
        self.file.as_ref().is_some_and(|known| Arc::ptr_eq(known, file))
    }
}

impl From<Occupied> for Error {
    fn from(_: Occupied) -> Self {
        Self::Busy
    }
}
