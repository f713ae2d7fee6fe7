//! Files whose content is being changed through this mount: which there are, under which inode and name, and what stat shows of
//! them. It sends nothing. Invariant: as long as a draft is listed here it decides what its name and its inode show; one name and one
//! inode have at most one draft.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::inodes::Inode;
use super::listing::FileFacts;
use super::record::{DraftRow, Record};
use crate::store::{ETag, Key, ObjectMeta};
use crate::writer::Content;

/// A file that is being changed.
#[derive(Debug)]
pub struct Draft {
    pub ino: Inode,
    pub content: Arc<Content>,
    state: Mutex<State>,
    /// Held by who commits, ends or renames it: these take their time and come one after the other.
    pub turn: tokio::sync::Mutex<()>,
    /// How many writes wait for memory, disk or network, and when the last of them was done.
    waits: Mutex<(usize, Option<Instant>)>,
}

/// A write that waits. Dropped, it is done.
#[derive(Debug)]
pub struct Waits<'a>(&'a Draft);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut waits = self.0.waits.lock();
        *waits = (waits.0 - 1, Some(Instant::now()));
    }
}

#[derive(Clone, Debug)]
struct State {
    key: Key,
    /// What the store has under the key: the version that is edited or replaced, then the last that was committed.
    committed: Option<ObjectMeta>,
    /// It replaces all of an older version, which others go on reading until it is committed.
    replaces: bool,
    /// Nothing may be there when it is committed for the first time (O_EXCL).
    exclusive: bool,
    /// Its name is gone: nothing is committed any more.
    unlinked: bool,
    /// It was written to since it was opened.
    written: bool,
    /// A close that had nothing to write has gone by.
    idle_close: bool,
    /// A descriptor was closed since it was written to: its handle may be about to go.
    closed: bool,
    /// The last commit failed.
    failed: bool,
    /// Somebody was told so.
    told: bool,
    /// Something of it is not in the bucket.
    dirty: bool,
    /// Something of it was refused because the mount is about to end: what there is was not meant to be all.
    cut: bool,
    modified: SystemTime,
}

/// How a draft begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// A name that was not there.
    New { exclusive: bool },
    /// Nothing is kept of the version that is there.
    Replace,
    /// Changes to the version that is there.
    Edit,
}

impl Draft {
    pub fn new(ino: Inode, key: Key, content: Arc<Content>, beginning: Beginning, committed: Option<ObjectMeta>) -> Arc<Self> {
        let modified = match (&committed, beginning) {
            (Some(meta), Beginning::Edit) => meta.modified,
            _ => SystemTime::now(),
        };
        let state = State {
            key,
            committed,
            replaces: beginning == Beginning::Replace,
            exclusive: beginning == Beginning::New { exclusive: true },
            unlinked: false,
            written: false,
            idle_close: false,
            closed: false,
            failed: false,
            told: false,
            dirty: false,
            cut: false,
            modified,
        };
        content.belong_to(ino.0);
        Arc::new(Self { ino, content, state: Mutex::new(state), turn: tokio::sync::Mutex::new(()), waits: Mutex::default() })
    }

    /// Changes to the version `meta` of a file whose name is gone.
    pub fn nameless(ino: Inode, content: Arc<Content>, meta: ObjectMeta) -> Arc<Self> {
        let draft = Self::new(ino, meta.key.clone(), content, Beginning::Edit, Some(meta));
        draft.state.lock().unlinked = true;
        draft
    }

    pub fn key(&self) -> Key {
        self.state.lock().key.clone()
    }

    /// What the store has under its name: what was committed last, also when that was not asked for, or what it replaces.
    pub fn committed(&self) -> Option<ObjectMeta> {
        let state = self.state.lock();
        self.content.stored().filter(|stored| stored.key == state.key).or_else(|| state.committed.clone())
    }

    /// Whether those who did not open it for writing still read the version that it replaces.
    pub fn is_hidden_from_readers(&self) -> bool {
        self.state.lock().replaces
    }

    /// Whether the bucket has nothing under its name.
    pub fn is_new(&self) -> bool {
        self.state.lock().committed.is_none()
    }

    pub fn is_exclusive(&self) -> bool {
        self.state.lock().exclusive
    }

    pub fn is_unlinked(&self) -> bool {
        self.state.lock().unlinked
    }

    /// Says whether that is news: nothing was written since the last commit.
    pub fn on_write(&self) -> bool {
        let mut state = self.state.lock();
        state.modified = SystemTime::now();
        state.written = true;
        state.closed = false;
        !std::mem::replace(&mut state.dirty, true)
    }

    /// As it is written down.
    fn row(&self) -> DraftRow {
        let State { key, committed, replaces, exclusive, unlinked, dirty, .. } = self.state.lock().clone();
        DraftRow { key, committed, replaces, exclusive, unlinked, dirty }
    }

    /// As it was written down.
    pub fn from_row(ino: Inode, content: Arc<Content>, row: DraftRow) -> Arc<Self> {
        let DraftRow { key, committed, replaces, exclusive, unlinked, dirty } = row;
        let beginning = match (&committed, replaces) {
            (None, _) => Beginning::New { exclusive },
            (Some(_), true) => Beginning::Replace,
            (Some(_), false) => Beginning::Edit,
        };
        let draft = Self::new(ino, key, content, beginning, committed);
        {
            let mut state = draft.state.lock();
            (state.unlinked, state.dirty, state.written) = (unlinked, dirty, dirty);
            if dirty {
                state.modified = SystemTime::now();
            }
        }
        draft
    }

    /// All of what was committed is about to be replaced.
    pub fn on_replace(&self) {
        let mut state = self.state.lock();
        state.replaces = state.committed.is_some();
    }

    /// A descriptor of it was closed.
    pub fn on_close(&self) {
        self.state.lock().closed = true;
    }

    /// Whether whoever writes to it may be done: the kernel tells that the last descriptor is gone after close(2) has returned.
    pub fn may_be_over(&self) -> bool {
        self.state.lock().closed
    }

    /// Whether it has a length and nothing else: what follows is probably its content.
    pub fn waits_for_content(&self) -> bool {
        self.content.is_blank() && self.content.size() > 0 && !self.is_exclusive()
    }

    /// Whether a close has to commit it. The first close of a file that was opened empty and not written may be that of a shell
    /// which has just duplicated the descriptor: committing it would replace the old content before there is new. And a file that only
    /// got its length (as fio and databases do first, and close it) would be sent twice, the first time as zeros.
    /// What was given up has to be told.
    pub fn wants_commit(&self) -> bool {
        if self.content.is_given_up() {
            return true;
        }
        if !self.content.is_dirty() || self.waits_for_content() {
            return false;
        }
        let mut state = self.state.lock();
        let may_wait = !state.written && !state.exclusive && !state.idle_close && self.content.size() == 0;
        state.idle_close |= may_wait;
        !may_wait
    }

    /// It is in the store as `meta`.
    pub fn on_commit(&self, meta: &ObjectMeta) {
        let mut state = self.state.lock();
        state.committed = Some(meta.clone());
        state.replaces = false;
        state.exclusive = false;
        state.failed = false;
        state.told = false;
        state.dirty = false;
        state.modified = meta.modified;
    }

    /// It could not be put into the store.
    pub fn on_failure(&self) {
        self.state.lock().failed = true;
    }

    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Who asked for a commit was told that there is none.
    pub fn on_told(&self) {
        self.state.lock().told = true;
    }

    /// A write begins that may wait.
    pub fn wait(&self) -> Waits<'_> {
        self.waits.lock().0 += 1;
        Waits(self)
    }

    /// Whether no write has waited for `time`.
    pub fn is_quiet(&self, time: Duration) -> bool {
        let (count, last) = *self.waits.lock();
        count == 0 && last.is_none_or(|last| last.elapsed() >= time)
    }

    /// A change of it was refused.
    pub fn on_cut(&self) {
        self.state.lock().cut = true;
    }

    pub fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    /// Whether it may be stored behind the back of whoever wrote it: nothing of it was refused, and nobody was told that it is not stored,
    /// who may have written it elsewhere by now.
    pub fn is_whole(&self) -> bool {
        let state = self.state.lock();
        !state.cut && !state.told
    }

    fn on_rename(&self, key: Key, committed: Option<ObjectMeta>) {
        let mut state = self.state.lock();
        state.key = key;
        state.committed = committed;
        state.exclusive = false;
    }

    /// What stat shows of it. The etag is empty: there is no version of this content yet.
    pub fn facts(&self) -> FileFacts {
        let state = self.state.lock();
        FileFacts { size: self.content.size(), etag: ETag::from(""), modified: state.modified, extra: None }
    }
}

/// All drafts of a mount.
#[derive(Debug, Default)]
pub struct Drafts {
    count: AtomicUsize,
    all: RwLock<Index>,
    record: Record,
}

#[derive(Debug, Default)]
struct Index {
    by_ino: HashMap<Inode, Arc<Draft>>,
    by_key: HashMap<Key, Inode>,
}

impl Drafts {
    /// None yet; those that come are written down to `record`.
    pub(super) fn new(record: Record) -> Self {
        Self { record, ..Self::default() }
    }

    /// What is written down of `draft` has changed.
    pub fn note(&self, draft: &Draft) {
        if self.record.is_on() {
            self.record.put_draft(draft.ino, &draft.row());
        }
    }

    /// Whether there is none: asked before every read.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub fn get(&self, ino: Inode) -> Option<Arc<Draft>> {
        if self.is_empty() { None } else { self.all.read().by_ino.get(&ino).cloned() }
    }

    /// The draft of that name.
    pub fn named(&self, key: &[u8]) -> Option<Arc<Draft>> {
        if self.is_empty() {
            return None;
        }
        let all = self.all.read();
        all.by_ino.get(all.by_key.get(key)?).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Draft>> {
        self.all.read().by_ino.values().cloned().collect()
    }

    /// Names right below `directory` that are not in the bucket yet.
    pub fn new_in(&self, directory: &Key) -> Vec<Key> {
        if self.is_empty() {
            return Vec::new();
        }
        let is_in =
            |key: &Key| key.as_bytes().strip_prefix(directory.as_bytes()).is_some_and(|name| !name.is_empty() && !name.contains(&b'/'));
        let all = self.all.read();
        let mut names: Vec<Key> =
            all.by_key.iter().filter(|(key, ino)| is_in(key) && all.by_ino[ino].is_new()).map(|(key, _)| key.clone()).collect();
        names.sort();
        names
    }

    /// Whether anything new is below `directory`.
    pub fn any_below(&self, directory: &Key) -> bool {
        !self.is_empty() && self.all.read().by_key.keys().any(|key| key.as_bytes().starts_with(directory.as_bytes()))
    }

    /// Those below `directory`, in the order of their names.
    pub fn below(&self, directory: &Key) -> Vec<Arc<Draft>> {
        if self.is_empty() {
            return Vec::new();
        }
        let all = self.all.read();
        let mut below: Vec<_> = all.by_key.iter().filter(|(key, _)| key.as_bytes().starts_with(directory.as_bytes())).collect();
        below.sort();
        below.into_iter().map(|(_, ino)| all.by_ino[ino].clone()).collect()
    }

    /// Puts `draft` in, unless its inode has one by now: then that one is given back.
    pub fn insert(&self, draft: Arc<Draft>) -> Arc<Draft> {
        let mut all = self.all.write();
        if let Some(known) = all.by_ino.get(&draft.ino) {
            return known.clone();
        }
        if !draft.is_unlinked() {
            all.by_key.insert(draft.key(), draft.ino);
        }
        self.note(&draft);
        all.by_ino.insert(draft.ino, draft.clone());
        self.count.store(all.by_ino.len(), Ordering::Release);
        draft
    }

    /// It is over.
    pub fn remove(&self, draft: &Draft) {
        let mut all = self.all.write();
        all.by_ino.remove(&draft.ino);
        all.drop_name(draft);
        self.record.drop_draft(draft.ino);
        self.count.store(all.by_ino.len(), Ordering::Release);
    }

    /// Its name is gone; whoever has it open goes on with it.
    pub fn unlink(&self, draft: &Draft) {
        let mut all = self.all.write();
        draft.state.lock().unlinked = true;
        all.drop_name(draft);
        self.note(draft);
    }

    /// It is called `key` now, where the store has `committed`.
    pub fn rename(&self, draft: &Draft, key: Key, committed: Option<ObjectMeta>) {
        let mut all = self.all.write();
        all.drop_name(draft);
        draft.on_rename(key.clone(), committed);
        all.by_key.insert(key, draft.ino);
        self.note(draft);
    }
}

impl Index {
    fn drop_name(&mut self, draft: &Draft) {
        let key = draft.key();
        if self.by_key.get(&key) == Some(&draft.ino) {
            self.by_key.remove(&key);
        }
    }
}
