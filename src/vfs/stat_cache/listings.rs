//! Whole directories as they were listed, single pages of larger ones, and what this mount has changed in them since. For how long a listing is
//! believed is decided above. Invariant: every listing that is kept shows all changes that this mount made in its directory, whenever it was
//! asked for and whenever it came.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::super::fact::Listing;
use super::patch::{Change, patched};
use super::split;
use crate::store::Key;

/// Directories whose last change is remembered at least for [`LONGEST_WALK`] when there are more of them.
const CHANGED: usize = 4096;

/// A listing that takes longer may be kept although it lacks a change of this mount from before that.
const LONGEST_WALK: Duration = Duration::from_secs(600);

/// Changes of all directories that are remembered, for listings that are under way meanwhile.
const RECENT: usize = 512;

/// Pages of large directories that are kept, of all directories together.
const PARTS: usize = 32;

/// Pages of one directory that are believed at a time, at most.
const PARTS_OF_ONE: usize = 8;

/// Names that were created in the range of a page while it was believed, on average, so that another page is worth its request.
const CREATED: usize = 2;

/// One page of the listing of a directory that has more entries.
#[derive(Debug)]
struct Part {
    directory: Key,
    /// The page has all keys behind this one ...
    after: Key,
    /// ... up to this one, or to the end.
    to: Option<Key>,
    /// Entries of the page when it came.
    len: usize,
    listing: Arc<Listing>,
}

impl Part {
    /// Whether the page would have shown both an object and a directory at `path`.
    fn covers(&self, path: &[u8]) -> bool {
        let directory = path.iter().chain(b"/");
        split(path).0 == self.directory.as_bytes()
            && path > self.after.as_bytes()
            && self.to.as_ref().is_none_or(|to| directory.le(to.as_bytes()))
    }
}

/// See the module. Clones share their contents.
#[derive(Clone, Debug)]
pub(super) struct Listings {
    /// At most `most` entries in all of them together; none: nothing is kept. Written to with `changes` held only, so that a listing is never
    /// replaced by one that was made from the one before it.
    kept: Option<Cache<Key, Arc<Listing>>>,
    /// The newest last. Written to with `changes` held only, as `kept`.
    parts: Arc<RwLock<VecDeque<Part>>>,
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
        Self { kept: (most > 0).then(kept), parts: Arc::default(), most, changes: Arc::default() }
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

    /// A page of `directory` with all entries behind the key `after`, up to `to` or to the end.
    pub fn insert_part(&self, directory: &Key, (after, to): (Key, Option<Key>), listing: Arc<Listing>) {
        let changes = self.changes.lock();
        let Some(listing) = changes.brought_up_to_date(directory, listing).filter(|_| self.kept.is_some()) else { return };
        let mut parts = self.parts.write();
        if parts.len() == PARTS {
            parts.pop_front();
        }
        parts.push_back(Part { directory: directory.clone(), after, to, len: listing.len, listing });
    }

    /// When a page was asked for that has no entry at `path`; of the last one.
    pub fn absent_since(&self, path: &[u8]) -> Option<Instant> {
        let parts = self.parts.read();
        let part = parts.iter().rev().find(|part| part.covers(path))?;
        let name = split(path).1;
        let listing = &part.listing;
        let page = listing.pages.get(listing.pages.partition_point(|page| page.ends_before(name)));
        page.is_none_or(|page| page.find(name).is_none()).then_some(listing.learnt)
    }

    /// Whether to ask for one more page of `directory`: while few are newer than `fresh`, and names were created in the range of those that are
    /// older and newer than `recent`. (Names in random order would fetch a page for each.)
    pub fn is_part_worth(&self, directory: &Key, fresh: Duration, recent: Duration) -> bool {
        let parts = self.parts.read();
        let lately = parts.iter().filter(|part| part.directory == *directory && part.listing.learnt.elapsed() < recent.max(fresh));
        let (fresh, judged): (Vec<_>, Vec<_>) = lately.partition(|part| part.listing.learnt.elapsed() < fresh);
        let created: usize = judged.iter().map(|part| part.listing.len.saturating_sub(part.len)).sum();
        fresh.len() < PARTS_OF_ONE && created >= CREATED * judged.len()
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
        self.parts.write().retain_mut(|part| match &change {
            _ if part.directory != *directory => true,
            Change::Put(entry) if !part.covers(entry.path()) => true,
            // The absence of what is gone is a fact of its own.
            Change::Gone(_) => true,
            Change::Put(_) | Change::Unknown => match patched(&part.listing, &change) {
                Some(listing) => {
                    part.listing = Arc::new(listing);
                    true
                }
                None => false,
            },
        });
        // Now, so that they are remembered in the order of their times.
        changes.on_change(directory, change, Instant::now());
    }

    /// The entries of a directory are not known any more.
    pub fn forget(&self, directory: &[u8]) {
        if let Some(kept) = &self.kept {
            let _changes = self.changes.lock();
            kept.invalidate(directory);
            self.parts.write().retain(|part| part.directory.as_bytes() != directory);
        }
    }

    /// Nor are those of these directories.
    pub fn forget_those(&self, is_meant: impl Fn(&Key) -> bool) {
        for (directory, _) in self.kept.iter().flatten().filter(|(directory, _)| is_meant(directory)) {
            self.forget(directory.as_bytes());
        }
        self.parts.write().retain(|part| !is_meant(&part.directory));
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

    /// A page of `entries`, with all names behind `after` and up to `to`.
    fn part(listings: &Listings, after: &str, to: Option<&str>, entries: &[&str]) {
        let entries = entries.iter().map(|name| entry(&format!("d/{name}"))).collect();
        let range = (Key::from(after), to.map(Key::from));
        listings.insert_part(&Key::from("d/"), range, Arc::new(Listing::whole(entries, Instant::now(), false)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_tells_of_the_names_in_its_range_and_of_no_others() {
        let listings = Listings::new(9);
        let asked = Instant::now();
        part(&listings, "d/c", Some("d/g"), &["d", "f"]);
        advance(SECOND).await;
        for (path, is_told) in [
            ("d/b", false),
            ("d/c", false),
            ("d/c-", true),
            ("d/d", false),
            ("d/e", true),
            ("d/f", false),
            ("d/f0", true),
            // Its directory may come behind the page.
            ("d/g", false),
            ("d/h", false),
            ("d/e/e", false),
            ("e", false),
        ] {
            assert_eq!(listings.absent_since(path.as_bytes()), is_told.then_some(asked), "{path}");
        }
        let newer = Instant::now();
        part(&listings, "d/", None, &[]);
        for path in ["d/b", "d/d", "d/zz"] {
            assert_eq!(listings.absent_since(path.as_bytes()), Some(newer), "{path}");
        }
        listings.forget(b"d/");
        assert_eq!(listings.absent_since(b"d/b"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_follows_what_this_mount_changes() {
        let (listings, directory) = (Listings::new(9), Key::from("d/"));
        part(&listings, "d/", None, &[]);
        listings.on_change(&directory, Change::Put(entry("d/e")));
        assert_eq!((listings.absent_since(b"d/e"), listings.absent_since(b"d/f")), (None, Some(Instant::now())));
        // A page that was asked for before a change and comes after it.
        let old = Listing::whole(Vec::new(), Instant::now(), false);
        advance(SECOND).await;
        listings.on_change(&directory, Change::Put(entry("d/f")));
        listings.insert_part(&directory, (directory.clone(), None), Arc::new(old));
        assert_eq!(listings.absent_since(b"d/f"), None);
        listings.on_change(&directory, Change::Unknown);
        assert_eq!(listings.absent_since(b"d/g"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_worth_their_requests_while_names_are_created_in_them() {
        let (listings, directory) = (Listings::new(99), Key::from("d/"));
        let is_worth = || listings.is_part_worth(&directory, SECOND, 60 * SECOND);
        for n in 0..PARTS_OF_ONE {
            assert!(is_worth(), "{n}");
            part(&listings, "d/", None, &[]);
        }
        assert!(!is_worth(), "as many as are believed");
        advance(SECOND).await;
        assert!(!is_worth(), "nothing was created");
        advance(59 * SECOND).await;
        assert!(is_worth(), "that was long ago");
        part(&listings, "d/", None, &["old"]);
        listings.on_change(&directory, Change::Put(entry("d/old")));
        listings.on_change(&directory, Change::Put(entry("d/new")));
        advance(SECOND).await;
        assert!(!is_worth(), "one is too few");
        listings.on_change(&directory, Change::Put(entry("d/newer")));
        assert!(is_worth());
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
