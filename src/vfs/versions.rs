//! Which version of each file is the current one, and what the kernel's pages of its inode may hold. Nothing is opened, read or sent here.
//!
//! The kernel has one set of pages and one size for all handles of an inode, so an inode has one current version. When another client replaces
//! the object, the inode takes the new version if no open handle has returned bytes of the old one; else the name gets another inode
//! ([`Seen::Retire`]). When this mount changes the object, all handles of the inode move on to the new version.
//!
//! Pages of an inode, as a state of its current version:
//! ```text
//!                 open: the kernel is to drop its pages
//!   unproven ---------------------------------------------+
//!      |  ^                                                |  (any number of opens, in any order)
//!      |  | first version seen, version changed,           |
//!      |  | commit, failed commit                          |
//!      v  |                                                v
//!   of this version  <--- read by a handle that was opened after the state became unproven
//!      |
//!      +-- open: the kernel may keep its pages
//! ```
//! The proof is the read: the kernel drops pages before open(2) returns, so a READ of that handle comes after it. A reply to open is no proof,
//! because two replies may reach the kernel in any order.
//!
//! Invariants: the state of a version that is not current is superseded, and no bytes are returned under a superseded state. Of two versions the
//! one that was learnt later counts.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::Inode;
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::store::{ETag, ObjectMeta};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Versions(Mutex<Known>);

/// The versions of all inodes, under their lock.
#[derive(Debug, Default)]
pub(super) struct Known {
    current: HashMap<Inode, Current>,
    /// The last version of each inode that this mount has made.
    made: HashMap<Inode, ETag>,
    /// Number of the last open, or of the last time that pages became unproven.
    clock: u64,
}

/// What all handles of one version of an inode share.
#[derive(Debug, Default)]
pub(super) struct VersionState {
    /// It is not the current version any more.
    superseded: AtomicBool,
    /// Bytes were returned through some handle, and may be in the kernel's pages.
    returned: AtomicBool,
    /// When the kernel's pages became unproven, by the clock of opens; 0: they hold bytes of this version alone.
    unproven: AtomicU64,
}

#[derive(Debug)]
struct Current {
    meta: ObjectMeta,
    learnt: Instant,
    state: Arc<VersionState>,
}

/// What became of a version that was seen.
#[derive(Debug)]
pub(super) enum Seen {
    /// It, or a newer one, is the current version of the inode.
    Current(Opening),
    /// Bytes of another version were returned through handles that are open: the name needs another inode.
    Retire,
}

/// The current version, for a handle that is about to be opened.
#[derive(Debug)]
pub(super) struct Opening {
    pub meta: ObjectMeta,
    pub state: Arc<VersionState>,
    /// The number of this open.
    pub ticket: u64,
    /// The kernel's pages hold bytes of this version alone.
    pub keeps_pages: bool,
    /// Another version was current before.
    pub was_other: bool,
}

impl VersionState {
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::SeqCst)
    }

    pub fn has_returned(&self) -> bool {
        self.returned.load(Ordering::SeqCst)
    }

    /// Bytes are about to be returned through a handle with this `ticket`. False: the version is not current any more, and nothing may be returned.
    pub fn returns(&self, ticket: u64) -> bool {
        if self.is_superseded() {
            return false;
        }
        self.returned.store(true, Ordering::SeqCst);
        // Again, after `returned` was set: `Known::see` reads the two flags in the other order.
        if self.is_superseded() {
            return false;
        }
        let unproven = self.unproven.load(Ordering::SeqCst);
        if unproven != 0 && ticket > unproven {
            // It may have become unproven again.
            let _ = self.unproven.compare_exchange(unproven, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        true
    }
}

impl Current {
    /// Handles of it are open.
    fn is_open(&self) -> bool {
        Arc::strong_count(&self.state) > 1
    }

    /// Bytes of it were returned through handles that are still open.
    fn is_being_read(&self) -> bool {
        self.is_read_beside(0)
    }

    /// As [`is_being_read`](Self::is_being_read), not counting `unread` handles, which have returned nothing.
    fn is_read_beside(&self, unread: usize) -> bool {
        self.state.has_returned() && Arc::strong_count(&self.state) > 1 + unread
    }

    /// Takes its bytes out of circulation, unless an open handle has returned some.
    fn supersede(&self, unread: usize) -> bool {
        self.state.superseded.store(true, Ordering::SeqCst);
        if self.is_read_beside(unread) {
            // A read that was refused in between asks again.
            self.state.superseded.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }
}

impl Known {
    /// The version `meta` of `ino` was seen; the store was asked at `learnt`.
    pub fn see(&mut self, ino: Inode, meta: &ObjectMeta, learnt: Instant) -> Seen {
        self.see_for(ino, meta, learnt, None)
    }

    /// [`see`](Self::see) for an open handle under the state `own`, which has returned nothing and takes what is seen instead.
    pub fn see_for(&mut self, ino: Inode, meta: &ObjectMeta, learnt: Instant, own: Option<&Arc<VersionState>>) -> Seen {
        let current = self.current.get(&ino).map(|known| &known.state);
        let unread = usize::from(own.zip(current).is_some_and(|(own, current)| Arc::ptr_eq(own, current)));
        self.clock += 1;
        let ticket = self.clock;
        let was_other = match self.current.get_mut(&ino) {
            None => false,
            Some(known) if known.state.is_superseded() && known.is_read_beside(unread) => return Seen::Retire,
            // An answer from before this mount changed the object.
            Some(known) if known.state.is_superseded() && learnt < known.learnt => return Seen::Retire,
            // The object is gone and no open handle has returned bytes of it: what is there now is another one, also under the same etag.
            Some(known) if known.state.is_superseded() => true,
            Some(known) if known.meta.etag == meta.etag || learnt < known.learnt => {
                known.learnt = known.learnt.max(learnt);
                let keeps_pages = known.state.unproven.load(Ordering::SeqCst) == 0;
                let (meta, state) = (known.meta.clone(), Arc::clone(&known.state));
                return Seen::Current(Opening { meta, state, ticket, keeps_pages, was_other: false });
            }
            Some(known) if !known.supersede(unread) => return Seen::Retire,
            Some(_) => true,
        };
        let state = self.publish(ino, meta.clone(), learnt, false);
        // Later than what it has to prove.
        self.clock += 1;
        Seen::Current(Opening { meta: meta.clone(), state, ticket: self.clock, keeps_pages: false, was_other })
    }

    /// `meta` is the current version of `ino` from now on, whatever the kernel's pages hold.
    fn publish(&mut self, ino: Inode, meta: ObjectMeta, learnt: Instant, returned: bool) -> Arc<VersionState> {
        self.clock += 1;
        let unproven = AtomicU64::new(self.clock);
        let state = Arc::new(VersionState { unproven, returned: AtomicBool::new(returned), ..VersionState::default() });
        self.current.insert(ino, Current { meta, learnt, state: Arc::clone(&state) });
        state
    }

    /// This mount has made the version `meta` of `ino`. All handles of the version before are moved to the state that this returns; `is_read`: there
    /// are some.
    pub fn on_commit(&mut self, ino: Inode, meta: &ObjectMeta, is_read: bool) -> Arc<VersionState> {
        if let Some(known) = self.current.get(&ino) {
            known.state.superseded.store(true, Ordering::SeqCst);
        }
        self.made.insert(ino, meta.etag.clone());
        self.publish(ino, meta.clone(), Instant::now(), is_read)
    }

    /// Another client has made the version `meta` of `ino`, which begins with all of `read`; the store was asked at `learnt`. Returns the state that
    /// all handles are moved to. None: `read` is not the current version any more.
    pub fn on_continued(&mut self, ino: Inode, read: &ObjectMeta, meta: &ObjectMeta, learnt: Instant) -> Option<Arc<VersionState>> {
        let known = self.current.get(&ino).filter(|known| known.meta.etag == read.etag && learnt >= known.learnt)?;
        known.state.superseded.store(true, Ordering::SeqCst);
        Some(self.publish(ino, meta.clone(), learnt, true))
    }

    /// The kernel's pages of `ino` may hold bytes of no version.
    pub fn on_unproven(&mut self, ino: Inode) {
        self.clock += 1;
        if let Some(known) = self.current.get(&ino) {
            known.state.unproven.store(self.clock, Ordering::SeqCst);
        }
    }

    /// The object that is `state` of `ino` is gone from the store, or replaced there.
    pub fn on_gone(&mut self, ino: Inode, state: &Arc<VersionState>) {
        if self.current.get(&ino).is_some_and(|known| Arc::ptr_eq(&known.state, state)) {
            state.superseded.store(true, Ordering::SeqCst);
        }
    }

    /// The object behind `ino`, which was the version `from`, is `meta` now, under another key and perhaps another etag, and still the same
    /// content. Where another version is current, its object is gone.
    pub fn on_rename(&mut self, ino: Inode, from: &ETag, meta: &ObjectMeta) {
        if self.current.get(&ino).is_none_or(|known| known.meta.etag == *from) {
            self.made.insert(ino, meta.etag.clone());
        }
        if let Some(known) = self.current.get_mut(&ino) {
            if known.meta.etag == *from {
                // Also where its old key was seen to be gone meanwhile.
                known.state.superseded.store(false, Ordering::SeqCst);
                known.meta = meta.clone();
                known.learnt = Instant::now();
            } else {
                known.state.superseded.store(true, Ordering::SeqCst);
            }
        }
    }
}

impl Versions {
    /// All of them. Locked before the handles of files, and after the inode table.
    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// The kernel forgot an inode, and with it its pages.
    pub fn forget(&self, ino: Inode) {
        let mut known = self.0.lock();
        known.current.remove(&ino);
        known.made.remove(&ino);
    }

    /// Whether this mount has made the version `etag` of `ino`, and no other since.
    pub fn is_made_here(&self, ino: Inode, etag: &ETag) -> bool {
        self.0.lock().made.get(&ino) == Some(etag)
    }

    /// Whether bytes of the current version `etag` were ever read: the kernel may have them in its pages.
    pub fn was_read(&self, ino: Inode, etag: &ETag) -> bool {
        self.0.lock().current.get(&ino).is_some_and(|known| known.meta.etag == *etag && known.state.has_returned())
    }

    /// Whether another version than `etag` is current, or the current one is gone.
    pub fn is_other(&self, ino: Inode, etag: &ETag) -> bool {
        self.0.lock().current.get(&ino).is_some_and(|known| known.meta.etag != *etag || known.state.is_superseded())
    }

    /// Whether bytes of another version than `etag`, which was learnt then, were read through handles that are still open.
    pub fn is_read_in_another(&self, ino: Inode, etag: &ETag, learnt: Instant) -> bool {
        let is_other = |known: &Current| known.meta.etag != *etag && learnt >= known.learnt || known.state.is_superseded();
        self.0.lock().current.get(&ino).is_some_and(|known| is_other(known) && known.is_being_read())
    }

    /// The version of `ino` that handles are open of.
    pub fn open(&self, ino: Inode) -> Option<ObjectMeta> {
        self.0.lock().current.get(&ino).filter(|known| known.is_open()).map(|known| known.meta.clone())
    }

    /// The version of `ino` that open handles have returned bytes of.
    pub fn being_read(&self, ino: Inode) -> Option<ObjectMeta> {
        self.0.lock().current.get(&ino).filter(|known| known.is_being_read()).map(|known| known.meta.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::store::Key;

    const INO: Inode = Inode(7);

    fn version(etag: &str) -> ObjectMeta {
        ObjectMeta { key: Key::from("a"), size: 1, etag: ETag::from(etag), modified: SystemTime::UNIX_EPOCH }
    }

    fn see(versions: &Versions, etag: &str) -> Option<Opening> {
        match versions.lock().see(INO, &version(etag), Instant::now()) {
            Seen::Current(opening) => Some(opening),
            Seen::Retire => None,
        }
    }

    #[test]
    fn a_version_that_nobody_has_read_gives_way_to_the_next() {
        let versions = Versions::default();
        let first = see(&versions, "1").unwrap();
        assert!(!first.was_other && !first.keeps_pages);
        let second = see(&versions, "2").unwrap();
        assert!(second.was_other && first.state.is_superseded() && !second.state.is_superseded());
        assert!(!first.state.returns(first.ticket), "nothing of it is returned any more");
        assert!(versions.is_other(INO, &ETag::from("1")) && !versions.is_other(INO, &ETag::from("2")));
        versions.forget(INO);
        assert!(!versions.is_other(INO, &ETag::from("1")));
    }

    #[test]
    fn a_version_that_is_being_read_keeps_its_inode() {
        let versions = Versions::default();
        let first = see(&versions, "1").unwrap();
        assert!(first.state.returns(first.ticket));
        assert!(see(&versions, "2").is_none() && !first.state.is_superseded());
        assert!(versions.is_read_in_another(INO, &ETag::from("2"), Instant::now()));
        assert!(!versions.is_read_in_another(INO, &ETag::from("1"), Instant::now()));
        assert_eq!(versions.being_read(INO), Some(version("1")));
        drop(first);
        let second = see(&versions, "2").unwrap();
        assert!(second.was_other && !second.keeps_pages);
    }

    #[test]
    fn versions_made_here_are_known_until_another_client_replaces_them() {
        let versions = Versions::default();
        let is_made_here = |etag: &str| versions.is_made_here(INO, &ETag::from(etag));
        let _open = see(&versions, "1").unwrap();
        assert!(!is_made_here("1"));
        versions.lock().on_commit(INO, &version("2"), false);
        versions.lock().on_rename(INO, &ETag::from("2"), &version("3"));
        assert!(is_made_here("3") && !is_made_here("2"));
        // A copy of what another client has written is not ours.
        versions.lock().on_rename(INO, &ETag::from("theirs"), &version("4"));
        assert!(!is_made_here("4"));
        versions.forget(INO);
        assert!(!is_made_here("3"));
    }

    #[test]
    fn pages_are_kept_after_a_read_of_a_handle_that_dropped_them() {
        let versions = Versions::default();
        let first = see(&versions, "1").unwrap();
        let second = see(&versions, "1").unwrap();
        assert!(!first.keeps_pages && !second.keeps_pages, "the second reply may reach the kernel before the first");
        assert!(second.state.returns(second.ticket));
        let third = see(&versions, "1").unwrap();
        assert!(third.keeps_pages);
        versions.lock().on_unproven(INO);
        assert!(third.state.returns(third.ticket), "it was opened before");
        assert!(!see(&versions, "1").unwrap().keeps_pages);
        let fourth = see(&versions, "1").unwrap();
        assert!(fourth.state.returns(fourth.ticket) && see(&versions, "1").unwrap().keeps_pages);
    }

    #[test]
    fn an_older_answer_does_not_put_an_old_version_back() {
        let versions = Versions::default();
        let asked = Instant::now();
        let newer = see(&versions, "2").unwrap();
        let older = versions.lock().see(INO, &version("1"), asked - Duration::from_secs(1));
        assert!(matches!(older, Seen::Current(Opening { meta, .. }) if meta == version("2")));
        assert!(!newer.state.is_superseded());
    }

    #[test]
    fn an_etag_that_returns_is_another_version() {
        let versions = Versions::default();
        let first = see(&versions, "1").unwrap();
        assert!(first.state.returns(first.ticket));
        versions.lock().on_gone(INO, &first.state);
        assert!(see(&versions, "1").is_none(), "its reader still has the inode");
        drop(first);
        let again = see(&versions, "1").unwrap();
        assert!(again.was_other && !again.keeps_pages && again.state.returns(again.ticket));
    }

    #[test]
    fn a_commit_supersedes_and_a_rename_does_not() {
        let versions = Versions::default();
        let first = see(&versions, "1").unwrap();
        assert!(first.state.returns(first.ticket));
        versions.lock().on_rename(INO, &ETag::from("1"), &version("2"));
        assert!(!first.state.is_superseded());
        let committed = versions.lock().on_commit(INO, &version("3"), true);
        assert!(first.state.is_superseded() && committed.has_returned(), "its readers move on, and have read");
        let next = see(&versions, "3").unwrap();
        assert!(!next.was_other && !next.keeps_pages && Arc::ptr_eq(&next.state, &committed));
    }

    #[test]
    fn a_rename_of_another_version_leaves_none_current() {
        let versions = Versions::default();
        let first = see(&versions, "1").unwrap();
        assert!(first.state.returns(first.ticket));
        versions.lock().on_rename(INO, &ETag::from("2"), &version("3"));
        assert!(first.state.is_superseded() && see(&versions, "3").is_none(), "its reader keeps the inode and reads no more");
    }
}
