//! Whole directories as they were listed, and what this mount has changed in them since. For how long a listing is believed is decided above.
//! Invariant: every listing that is kept shows all changes that this mount made in its directory, whenever it was asked for and whenever it came.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::fact::Listing;
use super::patch::{Change, patched};
use crate::store::Key;

/// Directories whose last change is remembered at least for [`LONGEST_WALK`] when there are more of them.
const CHANGED: usize = 4096;

/// A listing that takes longer may be kept although it lacks a change of this mount from before that.
const LONGEST_WALK: Duration = Duration::from_secs(600);

/// Changes of all directories that are remembered, for listings that are under way meanwhile.
const RECENT: usize = 512;

/// See the module. Clones share their contents.
#[derive(Clone, Debug)]
pub(super) struct Listings {
    /// At most `most` entries in all of them together; none: nothing is kept. Written to with `changes` held only, so that a listing is never
    /// replaced by one that was made from the one before it.
    kept: Option<Cache<Key, Arc<Listing>>>,
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
        if self.directories.get(directory).is_none_or(|&changed| changed < listing.learnt) {
            return Some(listing);
        }
        if self.forgotten.is_some_and(|forgotten| forgotten >= listing.learnt) {
            return None;
        }
        let since = self.recent.partition_point(|(at, ..)| *at < listing.learnt);
        let of_this = self.recent.range(since..).filter(|(_, of, _)| of == directory);
        of_this.map(|(.., change)| change).try_fold(listing, |listing, change| patched(&listing, change).map(Arc::new))
    }
}

impl Listings {
    /// None yet, and at most so many entries in all of them together.
    pub fn new(most: u64) -> Self {
        let weight = |_: &Key, listing: &Arc<Listing>| u32::try_from(listing.len).unwrap_or(u32::MAX).max(1);
        let kept = || Cache::builder().max_capacity(most).eviction_policy(EvictionPolicy::lru()).weigher(weight).build();
        Self { kept: (most > 0).then(kept), most, changes: Arc::default() }
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

    /// This mount changed an entry of `directory`.
    pub fn on_change(&self, directory: &Key, change: Change) {
        let Some(kept) = &self.kept else { return };
        let mut changes = self.changes.lock();
        if let Some(listing) = kept.get(directory) {
            match patched(&listing, &change) {
                Some(listing) if listing.len as u64 <= self.most => kept.insert(directory.clone(), Arc::new(listing)),
                _ => kept.invalidate(directory),
            }
        }
        // Now, so that they are remembered in the order of their times.
        changes.on_change(directory, change, Instant::now());
    }

    /// The entries of a directory are not known any more.
    pub fn forget(&self, directory: &[u8]) {
        if let Some(kept) = &self.kept {
            let _changes = self.changes.lock();
            kept.invalidate(directory);
        }
    }

    /// Nor are those of these directories.
    pub fn forget_those(&self, is_meant: impl Fn(&Key) -> bool) {
        for (directory, _) in self.kept.iter().flatten().filter(|(directory, _)| is_meant(directory)) {
            self.forget(directory.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
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
            listings.on_change(&directory, Change::Put(entry(name)));
        }
        listings.on_change(&directory, Change::Gone(Key::from("d/b")));
        assert_eq!(names(&listings.get(b"d/").unwrap()), ["a", "c"]);
        listings.on_change(&directory, Change::Unknown);
        assert!(listings.get(b"d/").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_before_a_change_shows_it_when_it_comes_after() {
        let listings = Listings::new(1000);
        let (changed, other) = (Key::from("d/"), Key::from("e/"));
        let old = listing(0);
        advance(SECOND).await;
        listings.on_change(&changed, Change::Put(entry("d/x")));
        listings.on_change(&other, Change::Put(entry("e/y")));
        listings.insert(&changed, Arc::clone(&old));
        assert_eq!(names(&listings.get(b"d/").unwrap()), ["x"]);
        listings.on_change(&changed, Change::Unknown);
        listings.insert(&changed, Arc::clone(&old));
        assert!(listings.get(b"d/").is_none(), "nobody knows what that change was");
        for n in 0..RECENT {
            listings.on_change(&Key::from("f/"), Change::Put(entry(&format!("f/{n}"))));
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
            listings.on_change(&directory, Change::Put(entry(name)));
            assert_eq!(listings.get(b"d/").is_some(), is_kept, "{name}");
        }
    }
}
