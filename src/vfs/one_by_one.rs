//! Names that are looked up one after another in a directory that nobody lists: files of a manifest, of an index, of an import. After a few
//! of them the directory is listed behind their backs, a page for every few more, so that the rest is known. Invariant: nobody waits here,
//! and a directory in which a mount only finds that names are free is never listed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::directory::Source;
use super::lookup::Names;
use super::walk::{Found, Walk};
use crate::store::Key;

/// Names of one directory that are found by a request each before a page of its listing is worth one.
const BELIEVED: u32 = 3;

/// After so many pages each next one takes [`BELIEVED`] names more: in a directory that is larger than what can be remembered, pages help
/// few.
const GENTLE: u32 = 8;

/// Directories of which names are counted. With more of them they all begin anew.
const DIRECTORIES: usize = 1024;

/// Listings that are not complete, each with as many entries as the stat cache may have.
const UNDER_WAY: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct OneByOne {
    counts: Mutex<Counts>,
    under_way: Mutex<VecDeque<UnderWay>>,
    /// Ended with this.
    pages: Mutex<JoinSet<()>>,
}

#[derive(Clone, Debug)]
struct UnderWay {
    directory: Key,
    walk: Arc<Walk>,
    /// Entries that have come.
    position: Arc<AtomicU64>,
}

/// What was found by name in each directory.
#[derive(Debug, Default)]
struct Counts(HashMap<Key, Count>);

#[derive(Debug)]
struct Count {
    began: Instant,
    found: u32,
    pages: u32,
    /// How many are to be found for the next page.
    next: u32,
}

impl Counts {
    /// A name of `directory` was found by asking for it alone. Whether a page of its listing is worth asking for, which is believed for
    /// `ttl`.
    fn on_found(&mut self, directory: &Key, now: Instant, ttl: Duration) -> bool {
        if self.0.len() >= DIRECTORIES && !self.0.contains_key(directory) {
            self.0.clear();
        }
        let new = || Count { began: now, found: 0, pages: 0, next: BELIEVED };
        let count = self.0.entry(directory.clone()).or_insert_with(new);
        if now.duration_since(count.began) > ttl {
            *count = new();
        }
        count.found += 1;
        if count.found < count.next {
            return false;
        }
        count.pages += 1;
        count.next = count.found + BELIEVED * (1 + count.pages / GENTLE);
        true
    }
}

impl OneByOne {
    /// The listing of `directory` that is under way, as far as it may be believed, or else a new one.
    fn listing(&self, names: &Names, directory: &Key) -> Option<UnderWay> {
        let mut all = self.under_way.lock();
        let own = all.iter().position(|one| one.directory == *directory).and_then(|at| all.remove(at));
        let own = match own.filter(|one| one.walk.is_open_to_others()) {
            Some(own) => own,
            None => match names.entries_of(directory) {
                Source::Cached(_) => return None,
                Source::Walk(walk) => UnderWay { directory: directory.clone(), walk, position: Arc::default() },
            },
        };
        if all.len() >= UNDER_WAY {
            all.pop_front();
        }
        all.push_back(own.clone());
        Some(own)
    }
}

impl UnderWay {
    async fn next_page(self) {
        let position = self.position.load(Ordering::Relaxed);
        // What fails here is told to those who ask for a name, or read the directory.
        if let Ok(Found::Entries(slice)) = self.walk.read(position).await {
            self.position.fetch_max(position + slice.entries().len() as u64, Ordering::Relaxed);
        }
    }
}

impl Names {
    /// A name of `directory` was found by asking the store for it alone.
    pub(super) fn on_found_alone(&self, directory: &Key) {
        if !self.cache.tells_attributes(directory.as_bytes()) || !self.cache.is_enabled() {
            return;
        }
        self.ahead.on_alone(directory);
        if !self.one_by_one.counts.lock().on_found(directory, Instant::now(), self.cache.ttls().believed.get()) {
            return;
        }
        self.ahead.on_looked_into(directory);
        let Some(listing) = self.one_by_one.listing(self, directory) else { return };
        // More than that would not be remembered.
        if listing.position.load(Ordering::Relaxed) >= self.cache.size() as u64 {
            return;
        }
        let mut pages = self.one_by_one.pages.lock();
        while pages.try_join_next().is_some() {}
        pages.spawn(listing.next_page());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn every_few_names_are_worth_a_page_and_more_when_pages_do_not_help() {
        let mut counts = Counts::default();
        let mut on_found = || counts.on_found(&"d/".into(), Instant::now(), TTL);
        let worth: Vec<u32> = (1..=60).filter(|_| on_found()).collect();
        assert_eq!(worth, [3, 6, 9, 12, 15, 18, 21, 24, 30, 36, 42, 48, 54, 60]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_found_long_ago_does_not_count() {
        let mut counts = Counts::default();
        for _ in 0..5 {
            assert!(!counts.on_found(&"d/".into(), Instant::now(), TTL) && !counts.on_found(&"d/".into(), Instant::now(), TTL));
            tokio::time::advance(TTL + Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn directories_are_counted_each_for_itself_and_not_for_ever() {
        let mut counts = Counts::default();
        for n in 0..3 * DIRECTORIES {
            assert!(!counts.on_found(&format!("d{n}/").into(), Instant::now(), TTL));
        }
        assert!(counts.0.len() <= DIRECTORIES);
    }
}
