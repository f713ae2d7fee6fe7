//! Whole directories as they were listed, single pages of larger ones, and what this mount has changed in them since. For how long a listing is
//! believed is decided above. Invariant: every listing that is kept shows all changes that this mount made in its directory, whenever it was
//! asked for and whenever it came.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::time::Instant;

use super::super::fact::Listing;
use super::pages::{DirectoryPage, DirectoryPages};
use super::patch::{Change, patched};
use crate::store::Key;

/// Directories whose last change is remembered at least for [`LONGEST_WALK`] when there are more of them.
const CHANGED: usize = 4096;

/// A listing that takes longer may be kept although it lacks a change of this mount from before that.
const LONGEST_WALK: Duration = Duration::from_secs(600);

/// Changes of all directories that are remembered, for listings that are under way meanwhile.
const RECENT: usize = 4096;

/// See the module. Clones share their contents.
#[derive(Clone, Debug)]
pub(super) struct Listings {
    /// At most `most` entries in all of them together; none: nothing is kept. Written to with `changes` held only, so that a listing is never
    /// replaced by one that was made from the one before it.
    kept: Option<Cache<Key, Arc<Listing>>>,
    /// Written to with `changes` held only, as `kept`.
    pages: Arc<RwLock<DirectoryPages>>,
    most: u64,
    changes: Arc<Mutex<Changes>>,
}

/// What this mount changed.
#[derive(Debug, Default)]
struct Changes {
    /// When each directory was changed for the last time.
    directories: HashMap<Key, Instant>,
    /// What was changed last, in order.
    recent: VecDeque<(Instant, Key, Change)>,
    /// When the newest of those was made that are not in `recent` any more.
    forgotten: Option<Instant>,
}

impl Changes {
    fn on_change(&mut self, directory: &Key, change: Change, now: Instant) {
        if self.directories.len() >= CHANGED {
            self.directories.retain(|_, &mut at| now.duration_since(at) < LONGEST_WALK);
        }
        self.directories.insert(directory.clone(), now);
        if self.recent.len() >= RECENT {
            self.forgotten = self.recent.pop_front().map(|(at, ..)| at);
        }
        self.recent.push_back((now, directory.clone(), change));
    }

    /// A listing as it is after what was changed in `directory` since it was asked for. None: that is not known.
    fn brought_up_to_date(&self, directory: &Key, listing: Arc<Listing>) -> Option<Arc<Listing>> {
        let mut changes = self.since(directory, listing.learnt)?;
        changes.try_fold(listing, |listing, change| patched(&listing, change).map(Arc::new))
    }

    /// Adds to `page` what was created in its directory since it was asked for. Returns whether all of that is known.
    fn bring_up_to_date(&self, page: &mut DirectoryPage) -> bool {
        let Some(mut changes) = self.since(&page.directory, page.learnt) else { return false };
        changes.all(|change| match change {
            Change::Put(entry) => {
                page.paths.insert(Key::from(entry.path()));
                true
            }
            Change::Gone(_) => true,
            Change::Unknown => false,
        })
    }

    /// What was changed in `directory` since `learnt`. None: that is not known.
    fn since<'a>(&'a self, directory: &'a Key, learnt: Instant) -> Option<impl Iterator<Item = &'a Change>> {
        let is_changed = self.directories.get(directory).is_some_and(|&changed| changed >= learnt);
        if is_changed && self.forgotten.is_some_and(|forgotten| forgotten >= learnt) {
            return None;
        }
        let since = if is_changed { self.recent.partition_point(|(at, ..)| *at < learnt) } else { self.recent.len() };
        Some(self.recent.range(since..).filter(move |(_, of, _)| of == directory).map(|(.., change)| change))
    }
}

impl Listings {
    /// None yet, and at most so many entries in all of them together.
    pub fn new(most: u64) -> Self {
        let weight = |_: &Key, listing: &Arc<Listing>| u32::try_from(listing.len).unwrap_or(u32::MAX).max(1);
        let kept = || Cache::builder().max_capacity(most).eviction_policy(EvictionPolicy::lru()).weigher(weight).build();
        Self { kept: (most > 0).then(kept), pages: Arc::default(), most, changes: Arc::default() }
    }

    /// All of a directory was listed.
    pub fn insert(&self, directory: &Key, listing: Arc<Listing>) {
        let Some(kept) = &self.kept else { return };
        let changes = self.changes.lock();
        if let Some(listing) = changes.brought_up_to_date(directory, listing)
            && listing.len as u64 <= self.most
        {
            kept.insert(directory.clone(), listing);
        }
    }

    /// The listing of a directory.
    pub fn get(&self, directory: &[u8]) -> Option<Arc<Listing>> {
        self.kept.as_ref()?.get(directory)
    }

    /// The store returned a page.
    pub fn insert_page(&self, mut page: DirectoryPage) {
        let changes = self.changes.lock();
        if self.kept.is_some() && changes.bring_up_to_date(&mut page) {
            self.pages.write().insert(page, self.most);
        }
    }

    /// Single pages of large directories.
    pub fn pages(&self) -> RwLockReadGuard<'_, DirectoryPages> {
        self.pages.read()
    }

    /// As [`DirectoryPages::refresh`].
    pub fn pages_to_refresh(&self, directory: &[u8], age: Duration) -> Vec<Key> {
        if !self.pages().is_refresh_due(directory, age) {
            return Vec::new();
        }
        let _changes = self.changes.lock();
        self.pages.write().refresh(directory, age)
    }

    /// This mount changed an entry of `directory`. The absence of a name is valid for `absent`.
    pub fn on_change(&self, directory: &Key, change: Change, absent: Duration) {
        let Some(kept) = &self.kept else { return };
        let mut changes = self.changes.lock();
        if let Some(listing) = kept.get(directory) {
            match patched(&listing, &change) {
                Some(listing) if listing.len as u64 <= self.most => kept.insert(directory.clone(), Arc::new(listing)),
                _ => kept.invalidate(directory),
            }
        }
        match &change {
            Change::Put(entry) => self.pages.write().on_put(&Key::from(entry.path()), absent),
            // The absence of what is gone is a fact of its own.
            Change::Gone(_) => {}
            Change::Unknown => self.pages.write().forget(|of| of == directory),
        }
        // Now, so that they are remembered in the order of their times.
        changes.on_change(directory, change, Instant::now());
    }

    /// The entries of a directory are not known any more.
    pub fn forget(&self, directory: &[u8]) {
        if let Some(kept) = &self.kept {
            let _changes = self.changes.lock();
            kept.invalidate(directory);
            self.pages.write().forget(|of| of.as_bytes() == directory);
        }
    }

    /// Nor are those of these directories.
    pub fn forget_those(&self, is_meant: impl Fn(&Key) -> bool) {
        for (directory, _) in self.kept.iter().flatten().filter(|(directory, _)| is_meant(directory)) {
            self.forget(directory.as_bytes());
        }
        self.pages.write().forget(is_meant);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::SystemTime;

    use tokio::time::advance;

    use super::*;
    use crate::store::ETag;
    use crate::vfs::listing::{DirEntry, FileFacts};
    use crate::vfs::stat_cache::split;

    const SECOND: Duration = Duration::from_secs(1);

    fn listing(len: usize) -> Arc<Listing> {
        Arc::new(Listing { pages: Vec::new(), len, learnt: Instant::now(), carries: false })
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_follows_what_this_mount_changes() {
        let (listings, directory) = (Listings::new(9), Key::from("d/"));
        let page = |learnt| DirectoryPage::new(directory.clone(), (directory.clone(), None), HashSet::new(), learnt);
        let absent_since = |path: &str| listings.pages().absent_since(path.as_bytes());
        listings.insert_page(page(Instant::now()));
        listings.on_change(&directory, Change::Put(entry("d/e")), SECOND);
        assert_eq!((absent_since("d/e"), absent_since("d/f")), (None, Some(Instant::now())));
        // A page that was asked for before a change and comes after it.
        let old = Instant::now();
        advance(SECOND).await;
        listings.on_change(&directory, Change::Put(entry("d/f")), SECOND);
        listings.insert_page(page(old));
        assert_eq!((absent_since("d/f"), absent_since("d/g")), (None, Some(old)));
        listings.on_change(&directory, Change::Unknown, SECOND);
        assert_eq!(absent_since("d/g"), None);
        listings.insert_page(page(old));
        assert_eq!(absent_since("d/g"), None, "what was changed since it was asked for is not known");
    }

    #[tokio::test(start_paused = true)]
    async fn their_entries_are_bounded_together() {
        let listings = Listings::new(3);
        for (directory, len) in [("big/", 4), ("one/", 2), ("two/", 2)] {
            listings.insert(&Key::from(directory), listing(len));
        }
        let kept = listings.kept.as_ref().unwrap();
        kept.run_pending_tasks();
        assert_eq!(kept.weighted_size(), 2);
        let is_kept = ["big/", "one/", "two/"].map(|directory| listings.get(directory.as_bytes()).is_some());
        assert_eq!(is_kept, [false, false, true]);
    }

    fn entry(path: &str) -> DirEntry {
        let facts = FileFacts { size: 9, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH, extra: None };
        DirEntry::file(Key::from(path), split(path.as_bytes()).0.len(), facts)
    }

    fn names(listing: &Listing) -> Vec<String> {
        listing.pages.iter().flat_map(|page| page.entries.iter()).map(|entry| String::from_utf8_lossy(entry.name()).into_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_shows_what_was_changed_since() {
        let listings = Listings::new(10);
        let directory = Key::from("d/");
        listings.insert(&directory, listing(0));
        advance(SECOND).await;
        for name in ["d/b", "d/a", "d/c"] {
            listings.on_change(&directory, Change::Put(entry(name)), SECOND);
        }
        listings.on_change(&directory, Change::Gone(Key::from("d/b")), SECOND);
        assert_eq!(names(&listings.get(b"d/").unwrap()), ["a", "c"]);
        listings.on_change(&directory, Change::Unknown, SECOND);
        assert!(listings.get(b"d/").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_before_a_change_shows_it_when_it_comes_after() {
        let listings = Listings::new(1000);
        let (changed, other) = (Key::from("d/"), Key::from("e/"));
        let old = listing(0);
        advance(SECOND).await;
        listings.on_change(&changed, Change::Put(entry("d/x")), SECOND);
        listings.on_change(&other, Change::Put(entry("e/y")), SECOND);
        listings.insert(&changed, Arc::clone(&old));
        assert_eq!(names(&listings.get(b"d/").unwrap()), ["x"]);
        listings.on_change(&changed, Change::Unknown, SECOND);
        listings.insert(&changed, Arc::clone(&old));
        assert!(listings.get(b"d/").is_none(), "nobody knows what that change was");
        for n in 0..RECENT {
            listings.on_change(&Key::from("f/"), Change::Put(entry(&format!("f/{n}"))), SECOND);
        }
        listings.insert(&other, Arc::clone(&old));
        assert!(listings.get(b"e/").is_none(), "its change is too long ago to be remembered");
        listings.insert(&Key::from("g/"), old);
        assert!(listings.get(b"g/").is_some(), "nothing was changed there");
        advance(SECOND).await;
        listings.insert(&other, listing(0));
        assert!(listings.get(b"e/").is_some_and(|listing| listing.len == 0), "the store was asked after the change");
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_grows_past_the_bound_goes() {
        let listings = Listings::new(2);
        let directory = Key::from("d/");
        listings.insert(&directory, listing(0));
        for (name, is_kept) in [("d/a", true), ("d/b", true), ("d/c", false)] {
            listings.on_change(&directory, Change::Put(entry(name)), SECOND);
            assert_eq!(listings.get(b"d/").is_some(), is_kept, "{name}");
        }
    }
}
