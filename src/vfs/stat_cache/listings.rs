//! Whole directories as they were listed, and which of them this mount has changed since. For how long a listing is believed is decided above.
//! Invariant: a listing that was asked for before this mount changed an entry of its directory is not kept, whenever it comes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::fact::Listing;
use crate::store::Key;

/// Directories whose last change is remembered at least for [`LONGEST_WALK`] when there are more of them.
const CHANGED: usize = 4096;

/// A listing that takes longer may be kept although it lacks a change of this mount from before that.
const LONGEST_WALK: Duration = Duration::from_secs(600);

/// See the module. Clones share their contents.
#[derive(Clone, Debug)]
pub(super) struct Listings {
    /// At most `most` entries in all of them together; none: nothing is kept.
    kept: Option<Cache<Key, Arc<Listing>>>,
    most: u64,
    /// Directories that this mount changed, and when.
    changed: Arc<Mutex<HashMap<Key, Instant>>>,
}

impl Listings {
    /// None yet, and at most so many entries in all of them together.
    pub fn new(most: u64) -> Self {
        let weight = |_: &Key, listing: &Arc<Listing>| u32::try_from(listing.len).unwrap_or(u32::MAX).max(1);
        let kept = || Cache::builder().max_capacity(most).eviction_policy(EvictionPolicy::lru()).weigher(weight).build();
        Self { kept: (most > 0).then(kept), most, changed: Arc::default() }
    }

    /// All of a directory was listed.
    pub fn insert(&self, directory: &Key, listing: Arc<Listing>) {
        let is_old = self.changed.lock().get(directory).is_some_and(|&changed| changed >= listing.learnt);
        if let Some(kept) = &self.kept
            && listing.len as u64 <= self.most
            && !is_old
        {
            kept.insert(directory.clone(), listing);
        }
    }

    /// The listing of a directory.
    pub fn get(&self, directory: &[u8]) -> Option<Arc<Listing>> {
        self.kept.as_ref()?.get(directory)
    }

    /// This mount changed an entry of `directory`.
    pub fn on_change(&self, directory: &Key, now: Instant) {
        {
            let mut changed = self.changed.lock();
            if changed.len() >= CHANGED {
                changed.retain(|_, &mut at| now.duration_since(at) < LONGEST_WALK);
            }
            changed.insert(directory.clone(), now);
        }
        self.forget(directory.as_bytes());
    }

    /// The entries of a directory are not known any more.
    pub fn forget(&self, directory: &[u8]) {
        if let Some(kept) = &self.kept {
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
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn listing(len: usize) -> Arc<Listing> {
        Arc::new(Listing { pages: Vec::new(), len, learnt: Instant::now() })
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

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_before_a_change_is_not_kept_when_it_comes_after() {
        let listings = Listings::new(10);
        let (changed, other) = (Key::from("d/"), Key::from("e/"));
        let old = listing(1);
        listings.insert(&changed, Arc::clone(&old));
        advance(SECOND).await;
        listings.on_change(&changed, Instant::now());
        listings.insert(&changed, Arc::clone(&old));
        listings.insert(&other, old);
        assert!(listings.get(b"d/").is_none() && listings.get(b"e/").is_some());
        advance(SECOND).await;
        listings.insert(&changed, listing(1));
        assert!(listings.get(b"d/").is_some());
    }
}
