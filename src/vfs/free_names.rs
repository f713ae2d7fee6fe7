//! Names that are free, asked for one after another in one directory: files that are about to be written, places where a program looks for a
//! module. When the directory is small, one page of its listing says of all other names that they are free, for as long as the absence of
//! one is believed. In a larger one the page that begins at the name does so for the names behind it, which are often created next; pages that
//! proved useful are fetched again before they expire, because the kernel lets one create wait for the other in a directory. Invariant:
//! the first page of a directory that has more names than a page is asked for here once in the time a listing is believed.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::carrying;
use super::changes::directory_of;
use super::error::Result;
use super::fact::Fact;
use super::flight::Flights;
use super::lookup::Names;
use super::stat_cache::split;
use super::walk::{self, PAGE_KEYS};
use crate::store::{Key, ListRequest};

/// Names of one directory that were found to be free by a request each, while the absence of the first was still believed, before a page of
/// its listing is worth one.
const BELIEVED: usize = 3;

/// Pages that are fetched at a time before they expire.
const REFRESHES: usize = 16;

/// Directories that are remembered. With more of them they all begin anew.
const DIRECTORIES: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FreeNames {
    seen: Mutex<Seen>,
    /// First pages under way.
    first_pages: Flights<FirstPage>,
    /// Other pages under way, by the key that they begin behind.
    pages: Flights<()>,
    /// Pages that are fetched before they expire.
    refreshes: Mutex<JoinSet<()>>,
}

/// What the first page of a directory told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstPage {
    /// It has all entries.
    Whole,
    /// There are more.
    Part,
    /// The error is returned by the request for the name.
    Failed,
}

#[derive(Debug, Default)]
struct Seen(HashMap<Key, Directory>);

#[derive(Debug, Default)]
struct Directory {
    /// When the last names were found to be free.
    free: VecDeque<Instant>,
    /// When the last page was asked for.
    asked: Option<Instant>,
    /// When it was seen that the first page does not say it all.
    too_much: Option<Instant>,
}

/// What to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Name,
    /// The first page of the directory.
    FirstPage,
    /// The page that begins at the name.
    PageFromName,
}

impl Seen {
    /// A name of `directory` was asked for alone and is free.
    fn on_free(&mut self, directory: &Key, now: Instant) {
        let seen = self.of(directory);
        if seen.free.len() == BELIEVED {
            seen.free.pop_front();
        }
        seen.free.push_back(now);
    }

    /// A page did not say all of `directory`.
    fn on_too_much(&mut self, directory: &Key, now: Instant) {
        self.of(directory).too_much = Some(now);
    }

    /// Whether a name of `directory` was found to be free while that is still valid.
    fn is_free_likely(&self, directory: &Key, now: Instant, absent: Duration) -> bool {
        let newest = self.0.get(directory).and_then(|seen| seen.free.back());
        newest.is_some_and(|&at| now.duration_since(at) < absent)
    }

    /// Returns the request for a name of `directory`: absence is valid for `absent`, a listing for `believed`.
    fn request(&mut self, directory: &Key, now: Instant, absent: Duration, believed: Duration) -> Request {
        let Some(seen) = self.0.get_mut(directory) else { return Request::Name };
        let lately = seen.free.len() == BELIEVED && seen.free.front().is_some_and(|&first| now.duration_since(first) < absent);
        // A page is valid for `absent`, and the names that it answered did not come here.
        let goes_on = seen.asked.is_some_and(|asked| now.duration_since(asked) < 2 * absent);
        if !lately && !goes_on {
            return Request::Name;
        }
        seen.asked = Some(now);
        match seen.too_much.is_none_or(|at| now.duration_since(at) >= believed) {
            true => Request::FirstPage,
            false => Request::PageFromName,
        }
    }

    fn of(&mut self, directory: &Key) -> &mut Directory {
        if self.0.len() >= DIRECTORIES && !self.0.contains_key(directory) {
            self.0.clear();
        }
        self.0.entry(directory.clone()).or_default()
    }
}

impl Names {
    /// A name of `directory` was asked for alone and is free.
    pub(super) fn on_free_alone(&self, directory: &Key) {
        self.free_names.seen.lock().on_free(directory, Instant::now());
    }

    /// What the store says that `path` stands for.
    pub(super) async fn probed(&self, path: &Key) -> Result<Fact> {
        let directory = directory_of(path);
        let is_free_likely = self.free_names.seen.lock().is_free_likely(&directory, Instant::now(), self.cache.ttls().absent.get());
        self.probe.name(path, is_free_likely).await
    }

    /// The name `path` of `directory` is about to be asked for. Whether a page of the listing was fetched instead, which may tell of it.
    pub(super) async fn list_instead(&self, directory: &Key, path: &Key) -> bool {
        if !self.cache.is_enabled() {
            return false;
        }
        let (absent, believed) = (self.cache.ttls().absent.get(), self.cache.ttls().believed.get());
        let request = self.free_names.seen.lock().request(directory, Instant::now(), absent, believed);
        match request {
            Request::Name => false,
            // A page that begins at a name would be all of the directory.
            Request::PageFromName if !self.store.lists_in_order(directory) => false,
            Request::PageFromName => {
                let Some(after) = self.cache.page_for(directory, path) else { return false };
                self.page_behind(directory, after).await;
                true
            }
            Request::FirstPage => {
                let page = self.first_page(directory).await;
                if page != FirstPage::Whole {
                    self.free_names.seen.lock().on_too_much(directory, Instant::now());
                }
                page != FirstPage::Failed
            }
        }
    }

    /// A page said that `path` is free: fetches the pages of its directory that are about to expire, without waiting for them.
    pub(super) fn refresh_pages(&self, path: &Key) {
        let due = self.cache.pages_to_refresh(split(path.as_bytes()).0);
        if due.is_empty() {
            return;
        }
        let directory = directory_of(path);
        let pages: Vec<_> = due.into_iter().map(|after| self.page_behind(&directory, after)).collect();
        let mut refreshes = self.free_names.refreshes.lock();
        while refreshes.try_join_next().is_some() {}
        refreshes.spawn(async move { stream::iter(pages).for_each_concurrent(REFRESHES, |page| page).await });
    }

    /// Fetches the first page of `directory`.
    async fn first_page(&self, directory: &Key) -> FirstPage {
        let listed = self.free_names.first_pages.join(directory, || {
            let (store, cache, hidden) = (self.store.clone(), self.cache.clone(), self.hidden.clone());
            let (directory, without) = (directory.clone(), self.left_out_of(directory));
            async move {
                let asked = Instant::now();
                let Ok(page) = store.list(&request(&directory, None)).await else { return FirstPage::Failed };
                let asked = page.asked_at(asked);
                if page.next.is_some() {
                    walk::learn_page(&cache, &directory, directory.clone(), page, asked);
                    return FirstPage::Part;
                }
                let mut links = walk::links(&*store, &cache, &page).await;
                let Ok(carries) = carrying::in_listed(&*store, &cache, &directory, (&page, true, asked)).await else {
                    return FirstPage::Failed;
                };
                walk::learn_whole(&cache, &hidden, &directory, without, page, &mut links, (asked, carries));
                FirstPage::Whole
            }
        });
        listed.await
    }

    /// Fetches the page of `directory` that begins behind the key `after`.
    fn page_behind(&self, directory: &Key, after: Key) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (store, cache, directory) = (self.store.clone(), self.cache.clone(), directory.clone());
        self.free_names.pages.join(&after.clone(), || async move {
            let asked = Instant::now();
            // An error is returned by the request for the name.
            if let Ok(page) = store.list(&request(&directory, Some(after.clone()).filter(|after| !after.as_bytes().is_empty()))).await {
                walk::learn_page(&cache, &directory, after, page, asked);
            }
        })
    }
}

fn request(directory: &Key, after: Option<Key>) -> ListRequest {
    ListRequest { prefix: directory.clone(), delimited: true, after, token: None, max_keys: PAGE_KEYS, any_order: false }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const ABSENT: Duration = Duration::from_secs(1);
    const TTL: Duration = Duration::from_secs(60);

    fn request(seen: &mut Seen) -> Request {
        seen.request(&"d/".into(), Instant::now(), ABSENT, TTL)
    }

    #[tokio::test(start_paused = true)]
    async fn three_free_names_in_the_time_that_absence_is_believed_are_worth_a_page() {
        for (step, expected) in [(300, Request::FirstPage), (400, Request::Name)] {
            let mut seen = Seen::default();
            for n in 0..10 {
                let expected = if n >= BELIEVED { expected } else { Request::Name };
                assert_eq!(request(&mut seen), expected, "{n} {step} ms");
                seen.on_free(&"d/".into(), Instant::now());
                advance(Duration::from_millis(step)).await;
            }
            advance(2 * ABSENT).await;
            assert_eq!(request(&mut seen), Request::Name, "that was long ago");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_worth_the_next_one_where_its_names_go_on_being_asked_for() {
        let mut seen = Seen::default();
        (0..BELIEVED).for_each(|_| seen.on_free(&"d/".into(), Instant::now()));
        for _ in 0..10 {
            assert_eq!(request(&mut seen), Request::FirstPage);
            advance(ABSENT * 3 / 2).await;
        }
        advance(ABSENT).await;
        assert_eq!(request(&mut seen), Request::Name);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_page_of_a_large_directory_is_not_asked_for_again_soon() {
        let mut seen = Seen::default();
        seen.on_too_much(&"d/".into(), Instant::now());
        for second in 0..120 {
            for _ in 0..BELIEVED {
                seen.on_free(&"d/".into(), Instant::now());
            }
            let expected = if second >= TTL.as_secs() { Request::FirstPage } else { Request::PageFromName };
            assert_eq!(request(&mut seen), expected, "{second}");
            advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn directories_are_remembered_each_for_itself_and_not_for_ever() {
        let mut seen = Seen::default();
        for n in 0..3 * DIRECTORIES {
            seen.on_free(&format!("d{n}/").into(), Instant::now());
            assert_eq!(request(&mut seen), Request::Name);
        }
        assert!(seen.0.len() <= DIRECTORIES);
    }
}
