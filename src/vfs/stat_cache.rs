//! What is believed about names, and until when: the only door to moka. It asks no store. Invariants: a fact dies at
//! the deadline it was born with, however often it is looked at; of two things known about a name the newer one
//! decides, even when it has expired, so nothing comes back to life.

mod carrying;
mod listings;
mod pages;
mod patch;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::expiry::{Expiries, concerns_listing, is_below};
use super::fact::{Fact, Listing, Marker, Page, What};
use super::listing::{DirEntry, FileFacts};
use super::ttl::{Ttl, Ttls};
use super::{Options, RootNames};
use crate::store::Key;
use carrying::Carrying;
use listings::Listings;
use pages::DirectoryPage;
pub(super) use patch::Change;

/// The cache. Clones share their contents.
#[derive(Clone, Debug)]
pub struct StatCache {
    /// What was learnt name by name: at most `size` of them.
    facts: Option<Cache<Key, Fact>>,
    /// Whole directories: at most `size` entries in all of them together.
    listings: Listings,
    /// When something was learnt by name for the last time.
    named: Arc<Mutex<Option<Instant>>>,
    /// What somebody asked to forget, for answers that were under way then.
    expiries: Arc<RwLock<Expiries>>,
    size: u64,
    ttls: Arc<Ttls>,
    /// Whether a listing tells the attributes of files, or only that they are there.
    readdir_optimize: bool,
    /// In which directories only a HEAD tells attributes.
    carrying: Carrying,
    /// There may be names in the root that its listing does not show.
    root_hides_names: bool,
    /// That a directory has more entries than are kept was said.
    told_too_large: Arc<AtomicBool>,
}

impl StatCache {
    /// An empty cache.
    pub fn new(options: &Options) -> Self {
        let enabled = options.stat_cache_size > 0 && !options.stat_cache_ttl.is_zero();
        let size = if enabled { options.stat_cache_size } else { 0 };
        let facts = || Cache::builder().max_capacity(size).eviction_policy(EvictionPolicy::lru()).build();
        Self {
            facts: enabled.then(facts),
            listings: Listings::new(size),
            named: Arc::default(),
            expiries: Arc::default(),
            size,
            ttls: Arc::new(Ttls {
                believed: Ttl::new(if enabled { options.stat_cache_ttl } else { Duration::ZERO }),
                absent: Ttl::new(if enabled { options.negative_ttl } else { Duration::ZERO }),
            }),
            readdir_optimize: options.readdir_optimize,
            carrying: Carrying::new(options.posix_attributes, size),
            root_hides_names: options.root_names == RootNames::Buckets { all_listed: false },
            told_too_large: Arc::default(),
        }
    }

    /// For how long what is learnt from now on is believed.
    pub fn ttls(&self) -> &Ttls {
        &self.ttls
    }

    /// Whether anything is believed at all.
    pub fn is_enabled(&self) -> bool {
        self.size > 0
    }

    /// How many entries of a listing may be kept.
    pub fn size(&self) -> usize {
        usize::try_from(self.size).unwrap_or(usize::MAX)
    }

    /// How long the kernel may believe what we believe until `deadline`.
    pub fn remaining(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(Instant::now())
    }

    /// Until when a listing that began then is believed.
    pub fn believed_until(&self, learnt: Instant) -> Instant {
        later(learnt, self.ttls.believed.get())
    }

    /// Object and directory were both asked for at `learnt`, or changed by this mount then: this is what the name stands for.
    pub fn learn_name(&self, path: &Key, what: What, learnt: Instant) -> Fact {
        let until = self.deadline(&what, learnt);
        self.insert(path, Fact { what, learnt, until, named_until: until })
    }

    /// The marker of the directory `path` was asked for at `learnt`. None: it has none, and is believed to be there until `named_until`
    /// all the same.
    pub fn learn_directory(&self, path: &Key, marker: Option<Marker>, named_until: Instant, learnt: Instant) -> Fact {
        let has_marker = marker.is_some();
        let what = What::Directory(marker);
        let until = if has_marker { self.deadline(&what, learnt) } else { named_until };
        self.insert(path, Fact { what, learnt, until, named_until: until })
    }

    /// A listing that was asked for at `learnt` shows the marker of the directory `path`: all there is to know of it, unless attributes are
    /// kept with it.
    pub fn learn_marker(&self, path: &Key, modified: SystemTime, learnt: Instant) {
        if self.carries(split(path.as_bytes()).0) == Some(false) {
            self.learn_name(path, What::Directory(Some(Marker::from(modified))), learnt);
        }
    }

    /// Only the object was asked for, at `learnt`. The name is believed to be a file for as long as before, or until `named_until`
    /// when the caller knows from a listing.
    pub fn learn_object(&self, path: &Key, file: Option<FileFacts>, named_until: Option<Instant>, learnt: Instant) -> Fact {
        let what = file.map_or(What::Absent, What::File);
        let named_until = match (&what, self.newest(path.as_bytes())) {
            (What::Absent | What::Directory(_), _) => None,
            (What::File(_), Some(known)) if matches!(known.what, What::File(_)) => named_until.max(Some(known.named_until)),
            (What::File(_), _) => named_until,
        };
        let until = self.deadline(&what, learnt);
        self.insert(path, Fact { what, learnt, until, named_until: named_until.unwrap_or(learnt) })
    }

    /// What the name stands for.
    pub fn name(&self, path: &[u8]) -> Option<Fact> {
        let now = Instant::now();
        self.newest(path).filter(|fact| fact.entry_until() > now)
    }

    /// What is known of the object, or directory, at `path`.
    pub fn object(&self, path: &[u8]) -> Option<Fact> {
        let now = Instant::now();
        self.newest(path).filter(|fact| fact.until > now)
    }

    /// Whether something was learnt of the name alone after `since`.
    pub fn learnt_after(&self, path: &[u8], since: Instant) -> bool {
        self.facts.as_ref().and_then(|facts| facts.get(path)).is_some_and(|fact| fact.learnt > since)
    }

    /// Whether attributes are kept with objects anywhere. Those of symbolic links come with where they lead.
    pub fn keeps_attributes(&self) -> bool {
        self.carrying.is_anywhere()
    }

    /// Whether entries of `directory` may have attributes that only a HEAD tells. None: that is not known.
    pub fn carries(&self, directory: &[u8]) -> Option<bool> {
        self.carrying.get(directory, self.ttls.believed.get())
    }

    /// Whether they do was learnt by a request of then, or made so.
    pub fn learn_carries(&self, directory: &Key, carries: bool, learnt: Instant) {
        self.carrying.learn(directory, carries, learnt);
    }

    /// The directory `from` is called `to` now.
    pub fn on_moved(&self, from: &Key, to: &Key) {
        self.carrying.on_moved(from, to);
    }

    /// Whether attributes of entries of `directory` are taken from listings.
    pub fn tells_attributes(&self, directory: &[u8]) -> bool {
        self.readdir_optimize && self.carries(directory) != Some(true)
    }

    /// What an entry of a listing says of its name.
    pub fn listed(&self, entry: &DirEntry, &Page { learnt, carries, .. }: &Page) -> Fact {
        let expired = self.expiries.read().cover(entry.path(), learnt);
        let named_until = if expired { learnt } else { later(learnt, self.ttls.believed.get()) };
        match &entry.file {
            Some(file) => {
                let until = if self.readdir_optimize && !carries { named_until } else { learnt };
                Fact { what: What::File(file.clone()), learnt, until, named_until }
            }
            None => {
                let until = if carries { learnt } else { named_until };
                Fact { what: What::Directory(None), learnt, until, named_until }
            }
        }
    }

    /// What to tell the kernel of an entry of a listing: never something older than it may know already.
    pub fn entry(&self, entry: &DirEntry, page: &Page) -> Fact {
        let (listed, learnt) = (self.listed(entry, page), page.learnt);
        match self.facts.as_ref().and_then(|facts| facts.get(entry.path())) {
            None => listed,
            Some(fact) if fact.learnt < learnt => combine(listed, fact),
            Some(fact) if fact.what.kind() == Some(entry.kind()) => Fact { named_until: fact.named_until.max(listed.named_until), ..fact },
            // The name has become something else since: the kernel shall ask.
            Some(_) => Fact { until: learnt, ..listed },
        }
    }

    /// For how long what a listing says of its files is believed, when that is all there is to know of them: nothing was learnt
    /// by name since it came. Spares [`entry`](Self::entry) a search for each of thousands of entries.
    pub fn files_as_listed(&self, &Page { learnt, carries, .. }: &Page) -> Option<Duration> {
        let named_since = self.named.lock().is_some_and(|named| named >= learnt);
        let expired_since = self.expiries.read().any_since(learnt);
        (self.readdir_optimize && !carries && !named_since && !expired_since).then(|| self.remaining(self.believed_until(learnt)))
    }

    /// All of a directory was listed.
    pub fn learn_listing(&self, directory: &Key, listing: Arc<Listing>) {
        // Held, so that nothing is expired between the look and the insertion.
        let expiries = self.expiries.read();
        if !expiries.cover_listing(directory.as_bytes(), listing.learnt) {
            self.listings.insert(directory, listing);
        }
    }

    /// `directory` was listed and has more entries than are kept. Said once for each mount.
    pub fn on_too_large(&self, directory: &Key, entries: u64) {
        if self.is_enabled() && !self.told_too_large.swap(true, Ordering::Relaxed) {
            let size = self.size;
            tracing::warn!(%directory, entries, "listed again at each ls: it has more entries than --stat-cache-size={size}");
        }
    }

    /// A page of the listing of `directory`, which shows all there is at `paths` behind the first key of `range`, up to the second or to the end.
    pub fn learn_page(&self, directory: &Key, range: (Key, Option<Key>), paths: HashSet<Key>, learnt: Instant) {
        let expiries = self.expiries.read();
        if !expiries.cover_listing(directory.as_bytes(), learnt) {
            self.listings.insert_page(DirectoryPage::new(directory.clone(), range, paths, learnt));
        }
    }

    /// The key behind which a page of `directory` begins that is likely to answer for several names, `path` among them.
    pub fn page_for(&self, directory: &Key, path: &Key) -> Option<Key> {
        let recent = self.ttls.believed.get().max(self.ttls.absent.get());
        self.listings.pages().page_for(directory, path, recent)
    }

    /// The keys behind which those pages of `directory` begin that are to be fetched before they expire; each is returned once.
    pub fn pages_to_refresh(&self, directory: &[u8]) -> Vec<Key> {
        self.listings.pages_to_refresh(directory, self.ttls.absent.get() / 2)
    }

    /// All entries of a directory.
    pub fn listing(&self, directory: &[u8]) -> Option<Arc<Listing>> {
        let listing = self.listings.get(directory)?;
        (self.believed_until(listing.learnt) > Instant::now()).then_some(listing)
    }

    /// Nothing is known of `path` any more.
    pub fn forget(&self, path: &[u8]) {
        if let Some(facts) = &self.facts {
            facts.invalidate(path);
        }
        self.forget_dir(split(path).0);
    }

    /// Nothing that was learnt of `path` until now is believed, nor of what is below it when `below`, also when it has yet to come.
    /// Returns the names below it that were known to be nothing.
    pub fn expire(&self, path: &Key, below: bool) -> Vec<Key> {
        self.expiries.write().on_expire(path, below, Instant::now());
        self.forget(path.as_bytes());
        self.forget_dir(path.join(b"/").as_bytes());
        self.carrying.forget_all();
        let mut absent = Vec::new();
        if below && let Some(facts) = &self.facts {
            for (known, fact) in facts.iter().filter(|(known, _)| is_below(path, known.as_bytes())) {
                facts.invalidate(&*known);
                absent.extend(matches!(fact.what, What::Absent).then(|| Key::clone(&known)));
            }
            self.listings.forget_those(|directory| concerns_listing(path, below, directory.as_bytes()));
        }
        absent
    }

    /// This mount changed an entry of `directory`: from now on every listing of it shows that.
    pub fn on_change(&self, directory: &Key, change: Change) {
        self.listings.on_change(directory, change, self.ttls.absent.get());
    }

    /// A listing of `directory` has no entry, and came so late that this is believed of names.
    pub fn is_empty(&self, directory: &[u8]) -> bool {
        self.listing(directory).is_some_and(|listing| listing.len == 0 && self.deadline(&What::Absent, listing.learnt) > Instant::now())
    }

    /// The entries of a directory are not known any more.
    pub fn forget_dir(&self, directory: &[u8]) {
        self.listings.forget(directory);
    }

    /// The newest that is known of `path`, expired or not.
    fn newest(&self, path: &[u8]) -> Option<Fact> {
        let fact = self.facts.as_ref()?.get(path);
        let listed = self.in_parent(path);
        match (fact, listed) {
            (Some(fact), Some(listed)) if listed.learnt > fact.learnt => Some(combine(listed, fact)),
            (Some(fact), _) => Some(fact),
            (None, listed) => listed,
        }
    }

    /// What the parent's listing, or a page of it, says of `path`.
    fn in_parent(&self, path: &[u8]) -> Option<Fact> {
        let (directory, name) = split(path);
        let hides_names = self.root_hides_names && directory.is_empty();
        let in_page = || self.listings.pages().absent_since(path).filter(|_| !hides_names);
        let Some(listing) = self.listing(directory) else {
            return in_page().map(|learnt| self.absent(learnt));
        };
        let page = listing.pages.partition_point(|page| page.ends_before(name));
        let page = listing.pages.get(page);
        match page.and_then(|page| page.find(name).map(|entry| (entry, page))) {
            Some((entry, page)) => Some(self.listed(entry, page)),
            None if hides_names => None,
            // Names were created since it was small enough to be listed for them.
            None => Some(self.absent(in_page().map_or(listing.learnt, |learnt| learnt.max(listing.learnt)))),
        }
    }

    fn absent(&self, learnt: Instant) -> Fact {
        let until = self.deadline(&What::Absent, learnt);
        Fact { what: What::Absent, learnt, until, named_until: until }
    }

    fn deadline(&self, what: &What, learnt: Instant) -> Instant {
        match what {
            What::File(_) | What::Directory(_) => later(learnt, self.ttls.believed.get()),
            What::Absent => later(learnt, self.ttls.absent.get()),
        }
    }

    fn insert(&self, path: &Key, fact: Fact) -> Fact {
        // Held, so that nothing is expired between the look and the insertion.
        let expiries = self.expiries.read();
        if expiries.cover(path.as_bytes(), fact.learnt) {
            return Fact { until: fact.learnt, named_until: fact.learnt, ..fact };
        }
        if let Some(facts) = &self.facts {
            // First, so that no reply is made from a listing which the fact that is there already makes old. Held, so that of two
            // answers the one that was asked for later stays, whichever comes last.
            let mut named = self.named.lock();
            if let Some(newer) = facts.get(path).filter(|known| known.learnt > fact.learnt) {
                return newer;
            }
            *named = (*named).max(Some(fact.learnt));
            facts.insert(path.clone(), fact.clone());
        }
        fact
    }
}

/// A listing with what was learnt before it and the listing does not tell: the time of a marker (which would jump
/// otherwise), attributes when they are not to be taken from listings.
fn combine(listed: Fact, before: Fact) -> Fact {
    match (&listed.what, &before.what) {
        (What::File(_), What::File(_)) | (What::Directory(_), What::Directory(_)) if listed.until <= listed.learnt => {
            Fact { named_until: listed.named_until, ..before }
        }
        (What::Directory(None), What::Directory(_)) => Fact { what: before.what, ..listed },
        _ => listed,
    }
}

/// The directory of a path, with its `/`, and the name in it.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    path.split_at(path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1))
}

/// The innermost directory that both paths are in, or are, with its `/`.
pub(super) fn common_directory<'a>(path: &'a [u8], other: &[u8]) -> &'a [u8] {
    let common = path.iter().zip(other).take_while(|(a, b)| a == b).count();
    split(&path[..common]).0
}

/// "For ever" is a TTL too, and an Instant cannot say it.
fn later(learnt: Instant, ttl: Duration) -> Instant {
    const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    learnt + ttl.min(FOR_EVER)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::time::advance;

    use super::*;
    use crate::store::{ETag, ListPage, ObjectMeta};
    use crate::vfs::fact::Page;
    use crate::vfs::listing::Merge;

    const SECOND: Duration = Duration::from_secs(1);

    fn file(size: u64) -> FileFacts {
        FileFacts { size, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH, extra: None }
    }

    fn listing(names: &[&str]) -> Arc<Listing> {
        let object =
            |name: &&str| ObjectMeta { key: Key::from(*name), size: 9, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH };
        let directory = names.first().map_or(Key::root(), |name| Key::from(split(name.as_bytes()).0));
        let page = ListPage { objects: names.iter().map(object).collect(), ..ListPage::default() };
        let entries: Arc<[_]> = Merge::new(directory).on_page(page).into();
        Arc::new(Listing {
            len: entries.len(),
            pages: vec![Page { entries, learnt: Instant::now(), carries: false }],
            learnt: Instant::now(),
            carries: false,
        })
    }

    fn cache(size: u64) -> StatCache {
        StatCache::new(&Options { stat_cache_size: size, ..Options::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_hit_never_extends_a_life() {
        let cache = cache(10);
        cache.learn_name(&Key::from("here"), What::File(file(1)), Instant::now());
        cache.learn_name(&Key::from("gone"), What::Absent, Instant::now());
        for seen in 0..600 {
            let here = cache.name(b"here").expect("believed for 60 s");
            assert_eq!(cache.remaining(here.until), Duration::from_secs(60) - SECOND / 10 * seen);
            assert_eq!(cache.name(b"gone").is_some(), seen < 10, "{seen}");
            advance(SECOND / 10).await;
        }
        assert_eq!(cache.name(b"here"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_newer_of_fact_and_listing_decides_even_after_it_expired() {
        let cache = cache(10);
        cache.learn_listing(&Key::from("d/"), listing(&["d/x"]));
        assert_eq!(cache.name(b"d/x").map(|f| f.what), Some(What::File(file(9))));
        advance(SECOND).await;
        cache.learn_name(&Key::from("d/x"), What::Absent, Instant::now());
        assert_eq!(cache.name(b"d/x").map(|f| f.what), Some(What::Absent));
        advance(SECOND * 2).await;
        assert_eq!(cache.name(b"d/x"), None, "the older listing does not bring it back");
        cache.learn_listing(&Key::from("d/"), listing(&["d/x"]));
        assert_eq!(cache.name(b"d/x").map(|f| f.what), Some(What::File(file(9))));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_listing_lacks_is_absent_for_the_negative_ttl_only() {
        let cache = cache(10);
        cache.learn_listing(&Key::from("d/"), listing(&["d/x", "d/z"]));
        assert_eq!(cache.name(b"d/y").map(|f| f.what), Some(What::Absent));
        advance(SECOND).await;
        assert_eq!(cache.name(b"d/y"), None);
        assert!(cache.name(b"d/x").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn asking_for_the_object_alone_does_not_prolong_the_name() {
        let cache = cache(10);
        let path = Key::from("a");
        cache.learn_name(&path, What::File(file(1)), Instant::now());
        advance(SECOND * 59).await;
        cache.learn_object(&path, Some(file(2)), None, Instant::now());
        advance(SECOND * 2).await;
        assert_eq!(cache.object(b"a").map(|f| f.what), Some(What::File(file(2))));
        assert_eq!(cache.name(b"a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn size_bounds_names() {
        let cache = cache(3);
        for name in ["a", "b", "c", "d", "e"] {
            cache.learn_name(&Key::from(name), What::Absent, Instant::now());
        }
        let facts = cache.facts.as_ref().expect("on");
        facts.run_pending_tasks();
        assert_eq!(facts.entry_count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn size_or_ttl_zero_disables_and_for_ever_is_a_ttl() {
        let off = [Options { stat_cache_size: 0, ..Options::default() }, Options { stat_cache_ttl: Duration::ZERO, ..Options::default() }];
        for options in off {
            let cache = StatCache::new(&options);
            let fact = cache.learn_name(&Key::from("a"), What::File(file(1)), Instant::now());
            assert_eq!(cache.remaining(fact.until), Duration::ZERO);
            assert_eq!(cache.name(b"a"), None);
            cache.learn_listing(&Key::from("d/"), listing(&["d/x"]));
            assert!(cache.listing(b"d/").is_none());
        }
        let cache = StatCache::new(&Options { stat_cache_ttl: Duration::MAX, ..Options::default() });
        cache.learn_name(&Key::from("a"), What::File(file(1)), Instant::now());
        assert!(cache.name(b"a").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn forgetting_a_path_forgets_what_its_directory_says_of_it() {
        let cache = cache(10);
        cache.learn_name(&Key::from("d/x"), What::File(file(1)), Instant::now());
        cache.learn_listing(&Key::from("d/"), listing(&["d/x"]));
        cache.forget(b"d/x");
        assert_eq!(cache.object(b"d/x"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_before_a_path_was_expired_is_not_kept_when_it_comes_after() {
        let cache = cache(10);
        let (old, path) = (Instant::now(), Key::from("d/x"));
        let old_listing = listing(&["d/x"]);
        advance(SECOND).await;
        cache.learn_name(&Key::from("d/y"), What::Absent, Instant::now());
        assert_eq!(cache.expire(&Key::from("d"), true), [Key::from("d/y")]);
        let told = cache.learn_name(&path, What::File(file(1)), old);
        assert_eq!((told.what, cache.remaining(told.until)), (What::File(file(1)), Duration::ZERO));
        cache.learn_listing(&Key::from("d/"), Arc::clone(&old_listing));
        assert_eq!((cache.object(b"d/x"), cache.listing(b"d/").is_none()), (None, true));
        assert_eq!(cache.entry(&old_listing.pages[0].entries[0], &old_listing.pages[0]).entry_until(), old);
        assert_eq!(cache.files_as_listed(&old_listing.pages[0]), None);
        advance(SECOND).await;
        cache.learn_name(&path, What::File(file(2)), Instant::now());
        assert_eq!(cache.object(b"d/x").map(|fact| fact.what), Some(What::File(file(2))));
    }
}
