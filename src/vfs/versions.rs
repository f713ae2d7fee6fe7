//! Which version of each file counts: the latest that was seen of every inode that was ever opened and is not forgotten. Nothing is opened, read or
//! told here. Invariant: of an inode one version counts, and whoever holds the state of another finds it superseded.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Inode;
use crate::store::{ETag, ObjectMeta};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Versions(Mutex<HashMap<Inode, Latest>>);

/// What all handles of one version of an inode share.
#[derive(Debug, Default)]
pub(super) struct VersionState {
    /// It is no longer what the store has.
    pub superseded: AtomicBool,
    /// Bytes were returned through some handle, and may be in the kernel's pages.
    pub returned: AtomicBool,
    /// A handle has moved on to it, and the kernel may have pages of the version before: the next open drops them.
    pub has_older_pages: AtomicBool,
}

#[derive(Debug)]
struct Latest {
    meta: ObjectMeta,
    state: Arc<VersionState>,
}

/// Which version counted before one was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    Same,
    Other,
}

impl Latest {
    /// Handles of it are open.
    fn is_open(&self) -> bool {
        Arc::strong_count(&self.state) > 1
    }

    /// Bytes of it were returned through handles that are still open.
    fn is_being_read(&self) -> bool {
        self.state.returned.load(Ordering::SeqCst) && self.is_open()
    }
}

impl Versions {
    /// A version of `ino` was seen: the one that counts from now on. Handles of another one read no more, because what
    /// they returned would go into the pages that the kernel shares between all handles of an inode.
    pub fn on_version(&self, ino: Inode, meta: &ObjectMeta) -> (Arc<VersionState>, Before) {
        let mut latest = self.0.lock();
        let before = match latest.get(&ino) {
            None => Before::Nothing,
            Some(version) if version.meta.etag == meta.etag => return (Arc::clone(&version.state), Before::Same),
            Some(version) => {
                version.state.superseded.store(true, Ordering::SeqCst);
                Before::Other
            }
        };
        let state = Arc::new(VersionState::default());
        latest.insert(ino, Latest { meta: meta.clone(), state: Arc::clone(&state) });
        (state, before)
    }

    /// This mount has written another version of `ino`: handles of the one before read no more, and the next open takes none of
    /// the kernel's pages on trust.
    pub fn on_commit(&self, ino: Inode, etag: &ETag) {
        let mut latest = self.0.lock();
        if let Some(known) = latest.get(&ino).filter(|known| known.meta.etag != *etag) {
            known.state.superseded.store(true, Ordering::SeqCst);
            if !known.is_being_read() {
                latest.remove(&ino);
            }
        }
    }

    /// The object behind `ino` is `meta` now, under another key and perhaps another etag, and still the same content.
    pub fn on_rename(&self, ino: Inode, meta: &ObjectMeta) {
        if let Some(latest) = self.0.lock().get_mut(&ino) {
            latest.meta = meta.clone();
        }
    }

    /// The kernel forgot an inode, and with it its pages.
    pub fn forget(&self, ino: Inode) {
        self.0.lock().remove(&ino);
    }

    /// Whether bytes of the version that counts were read through handles that are still open.
    pub fn is_being_read(&self, ino: Inode) -> bool {
        self.0.lock().get(&ino).is_some_and(Latest::is_being_read)
    }

    /// Whether bytes of the version `etag`, which counts, were ever read: the kernel may have them in its pages.
    pub fn was_read(&self, ino: Inode, etag: &ETag) -> bool {
        self.0.lock().get(&ino).is_some_and(|latest| latest.meta.etag == *etag && latest.state.returned.load(Ordering::SeqCst))
    }

    /// Whether another version than `etag` counts.
    pub fn is_other(&self, ino: Inode, etag: &ETag) -> bool {
        self.0.lock().get(&ino).is_some_and(|latest| latest.meta.etag != *etag)
    }

    /// Whether bytes of another version than `etag` were read through handles that are still open.
    pub fn is_read_in_another(&self, ino: Inode, etag: &ETag) -> bool {
        self.0.lock().get(&ino).is_some_and(|latest| latest.meta.etag != *etag && latest.is_being_read())
    }

    /// The version of `ino` that handles are open of.
    pub fn open(&self, ino: Inode) -> Option<ObjectMeta> {
        self.0.lock().get(&ino).filter(|latest| latest.is_open()).map(|latest| latest.meta.clone())
    }

    /// The version of `ino` that is no longer what the store has, but still being read.
    pub fn old(&self, ino: Inode) -> Option<ObjectMeta> {
        let is_old = |latest: &&Latest| latest.state.superseded.load(Ordering::SeqCst) && latest.is_being_read();
        self.0.lock().get(&ino).filter(is_old).map(|latest| latest.meta.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::store::Key;

    const INO: Inode = Inode(7);

    fn version(etag: &str) -> ObjectMeta {
        ObjectMeta { key: Key::from("a"), size: 1, etag: ETag::from(etag), modified: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn one_version_counts_and_those_before_know_that_they_do_not() {
        let versions = Versions::default();
        let (first, before) = versions.on_version(INO, &version("1"));
        assert_eq!(before, Before::Nothing);
        let (same, before) = versions.on_version(INO, &version("1"));
        assert!(Arc::ptr_eq(&first, &same) && before == Before::Same && !first.superseded.load(Ordering::SeqCst));
        let (second, before) = versions.on_version(INO, &version("2"));
        assert_eq!(
            (before, first.superseded.load(Ordering::SeqCst), second.superseded.load(Ordering::SeqCst)),
            (Before::Other, true, false)
        );
        assert!(versions.is_other(INO, &ETag::from("1")) && !versions.is_other(INO, &ETag::from("2")));
        versions.forget(INO);
        assert!(!versions.is_other(INO, &ETag::from("1")));
    }

    #[test]
    fn a_version_is_read_while_a_handle_that_returned_bytes_of_it_is_open() {
        let versions = Versions::default();
        let (state, _) = versions.on_version(INO, &version("1"));
        assert!(versions.open(INO).is_some() && !versions.is_being_read(INO));
        state.returned.store(true, Ordering::SeqCst);
        assert!(versions.is_being_read(INO) && versions.is_read_in_another(INO, &ETag::from("2")));
        assert!(!versions.is_read_in_another(INO, &ETag::from("1")) && versions.old(INO).is_none());
        versions.on_commit(INO, &ETag::from("2"));
        assert_eq!(versions.old(INO), Some(version("1")), "it is kept for those who read it");
        drop(state);
        assert!(versions.old(INO).is_none() && versions.open(INO).is_none() && !versions.is_being_read(INO));
    }

    #[test]
    fn what_nobody_reads_is_gone_with_the_commit_of_another_and_a_rename_is_none() {
        let versions = Versions::default();
        let (state, _) = versions.on_version(INO, &version("1"));
        versions.on_rename(INO, &version("2"));
        versions.on_commit(INO, &ETag::from("2"));
        assert!(!state.superseded.load(Ordering::SeqCst));
        versions.on_commit(INO, &ETag::from("3"));
        assert!(state.superseded.load(Ordering::SeqCst));
        assert_eq!(versions.on_version(INO, &version("3")).1, Before::Nothing);
    }
}
