//! One walk through the LIST pages of a directory, shared by the handles that read it. It turns nothing into inodes.
//! Invariants: no page is asked for twice; page n+1 is asked for when page n begins to be read, or when a reader waits for page n
//! and how to go on is known before page n has come; never page n+2;
//! memory holds at most the entries that the stat cache could keep, and the few pages being read.

mod state;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Weak};

use futures::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::join;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::carrying;
use super::error::Result;
use super::fact::{Listing, Page};
use super::hidden::Hidden;
use super::listing::{DirEntry, Extra, Merge};
use super::posix;
use super::stat_cache::StatCache;
use crate::store::{self, ErrorKind, Key, ListPage, ListRequest, ObjectStore, Op, SYMLINK_SIZE};
use state::{Id, Next, State};

/// What stores give at most.
pub(super) const PAGE_KEYS: u16 = 1000;

/// Kept even when the cache is off: the page being read, the one that was fetched ahead, and the one before, into
/// which the kernel may step back because it could not hand out all of its last reply.
const PAGES_KEPT: usize = 3;

/// HEADs in flight for the symbolic links of a page.
const LINKS_AT_ONCE: usize = 32;

/// Entries from some position on, up to the end of their page.
#[derive(Clone, Debug)]
pub struct Slice {
    pub page: Page,
    pub from: usize,
}

impl Slice {
    pub fn entries(&self) -> &[DirEntry] {
        &self.page.entries[self.from..]
    }
}

/// A page that came. What it says was true when it was asked for: since then this mount may have changed it.
#[derive(Clone, Debug)]
pub struct Came {
    pub page: ListPage,
    pub asked: Instant,
    /// Which of its objects are symbolic links.
    pub links: HashMap<Key, Arc<Extra>>,
    /// Whether its entries may have attributes that only a HEAD tells.
    pub carries: bool,
}

/// What is at a position.
#[derive(Debug)]
pub enum Found {
    Entries(Slice),
    /// The directory ends before it, after so many entries.
    End(u64),
    /// It was there and memory has been needed for something else since: only a walk from the start comes by again.
    Dropped,
}

/// The walk.
#[derive(Debug)]
pub struct Walk {
    directory: Key,
    store: Arc<dyn ObjectStore>,
    cache: StatCache,
    hidden: Arc<Hidden>,
    state: Mutex<State>,
    /// Told whenever a page, or an error instead of one, has come.
    progress: Notify,
}

impl Walk {
    /// A walk through `directory`, which is empty or ends in `/`, that passes over one name. Nothing is asked for until it is read.
    pub fn new(
        directory: Key,
        without: Option<&'static [u8]>,
        store: Arc<dyn ObjectStore>,
        cache: StatCache,
        hidden: Arc<Hidden>,
    ) -> Arc<Self> {
        let state = Mutex::new(State::new(Merge::new(directory.clone()).without(without)));
        Arc::new(Self { directory, store, cache, hidden, state, progress: Notify::new() })
    }

    /// What is at `position`, as soon as it is known.
    pub async fn read(self: &Arc<Self>, position: u64) -> Result<Found> {
        loop {
            let mut progress = pin!(self.progress.notified());
            // From here on a page that comes is not missed, though it comes before we wait.
            progress.as_mut().enable();
            if let Some(found) = self.step(position) {
                return found;
            }
            progress.await;
        }
    }

    /// What is at `position`, when that takes no request: neither for it nor for the page after it.
    pub fn peek(&self, position: u64) -> Option<Found> {
        let state = self.state.lock();
        match state.find(position) {
            Some(Found::Entries(slice)) if state.is_last(&slice) && matches!(state.next, Next::NotAsked(_)) => None,
            found => found,
        }
    }

    /// The entry of that name and the page that it is in, when that has come and is still there.
    pub fn find(&self, name: &[u8]) -> Option<(DirEntry, Page)> {
        let state = self.state.lock();
        let page = state.page_of(name)?;
        page.find(name).map(|entry| (entry.clone(), page.clone()))
    }

    /// Whether a handle that is opened now may read along: it would see everything, and nothing that is too old.
    pub fn is_open_to_others(&self) -> bool {
        let state = self.state.lock();
        let fresh = state.began.is_none_or(|began| self.cache.believed_until(began) > Instant::now());
        fresh && state.dropped == 0 && self.cache.is_enabled() && !matches!(state.next, Next::Failed(..) | Next::Broken(_))
    }

    /// Entries in memory.
    pub fn held(&self) -> usize {
        self.state.lock().kept
    }

    /// One look at `position`; asks for what is wanted next. None: it has to come first.
    fn step(self: &Arc<Self>, position: u64) -> Option<Result<Found>> {
        self.state.lock().step(position, |id, token| self.ask(id, token))
    }

    /// Asks for a page. The task holds the walk only weakly: it ends with the last handle.
    fn ask(self: &Arc<Self>, id: Id, token: Option<String>) -> AbortHandle {
        let (walk, store, cache) = (Arc::downgrade(self), self.store.clone(), self.cache.clone());
        let request =
            ListRequest { prefix: self.directory.clone(), delimited: true, after: None, token, max_keys: PAGE_KEYS, any_order: false };
        let bring = async move |walk: Weak<Self>| {
            let tell = |token: &str| {
                if let Some(walk) = Weak::upgrade(&walk)
                    && request.token.as_deref() != Some(token)
                {
                    walk.state.lock().on_token(id, token, |id, token| walk.ask(id, token));
                }
            };
            let asked = Instant::now();
            let page = store.list_telling(&request, &tell).await.and_then(|page| check_progress(page, &request))?;
            let asked = page.asked_at(asked);
            let listed = (&page, request.token.is_none(), asked);
            let (links, carries) = join!(links(&*store, &cache, &page), carrying::in_listed(&*store, &cache, &request.prefix, listed));
            Ok(Came { links, carries: carries?, page, asked })
        };
        let directory = self.directory.clone();
        let task = tokio::spawn(async move {
            // Readers wait for every answer, also when a panic is all there is.
            let panicked = || store::Error::panicked(Op::List, &directory);
            let answer = AssertUnwindSafe(bring(Weak::clone(&walk))).catch_unwind().await.unwrap_or_else(|_| Err(panicked()));
            if let Some(walk) = Weak::upgrade(&walk)
                && catch_unwind(AssertUnwindSafe(|| walk.on_answer(id, answer))).is_err()
            {
                walk.state.lock().next = Next::Broken(panicked().into());
                walk.progress.notify_waiters();
            }
        });
        task.abort_handle()
    }

    /// Takes a page in, and the one after it if that came before; tells the readers after each.
    fn on_answer(&self, id: Id, answer: store::Result<Came>) {
        let mut turn = self.state.lock().on_answer(id, answer);
        while let Some((came, merge)) = turn {
            turn = self.take_in(came, merge);
            self.progress.notify_waiters();
        }
        self.progress.notify_waiters();
    }

    fn take_in(&self, came: Came, mut merge: Merge) -> Option<(Came, Merge)> {
        let Came { page, asked: learnt, mut links, carries } = came;
        let token = page.next.clone();
        let entries: Arc<[DirEntry]> = entries(&mut merge, page, &mut links, &self.hidden).into();
        let marker = merge.take_marker();
        let is_complete = token.is_none() && merge.is_ordered();
        let (listing, turn) = {
            let mut state = self.state.lock();
            let turn = state.on_merged(Page { entries, learnt, carries }, self.cache.size(), token, merge);
            if is_complete && state.dropped > 0 {
                self.cache.on_too_large(&self.directory, state.dropped + state.kept as u64);
            }
            ((is_complete && state.dropped == 0).then(|| state.listing(learnt)), turn)
        };
        if let Some(listing) = listing {
            self.cache.learn_listing(&self.directory, Arc::new(listing));
        }
        if let (Some(time), Some(path)) = (marker, self.directory.as_bytes().strip_suffix(b"/")) {
            self.cache.learn_marker(&Key::from(path), time, learnt);
        }
        turn
    }
}

/// The entries that are certain with `page`, its symbolic links among them; objects that a directory hides are noted.
fn entries(merge: &mut Merge, page: ListPage, links: &mut HashMap<Key, Arc<Extra>>, hidden: &Hidden) -> Vec<DirEntry> {
    let mut entries = merge.on_page(page);
    if !links.is_empty() {
        for entry in &mut entries {
            entry.add(links.remove(&entry.key));
        }
    }
    for key in merge.take_conflicts() {
        hidden.note(&key);
    }
    entries
}

/// `page` is all of `directory`, and was asked for at `learnt`.
pub(super) fn learn_whole(
    cache: &StatCache,
    hidden: &Hidden,
    directory: &Key,
    without: Option<&'static [u8]>,
    page: ListPage,
    links: &mut HashMap<Key, Arc<Extra>>,
    (learnt, carries): (Instant, bool),
) {
    let mut merge = Merge::new(directory.clone()).without(without);
    let entries = entries(&mut merge, page, links, hidden);
    if let (Some(time), Some(path)) = (merge.take_marker(), directory.as_bytes().strip_suffix(b"/")) {
        cache.learn_marker(&Key::from(path), time, learnt);
    }
    if merge.is_ordered() {
        cache.learn_listing(directory, Arc::new(Listing::whole(entries, learnt, carries)));
    }
}

/// `page` is what `directory` has behind the key `after`, or the beginning of that, and was asked for at `learnt`.
pub(super) fn learn_page(cache: &StatCache, directory: &Key, after: Key, page: ListPage, learnt: Instant) {
    let ListPage { objects, prefixes, next, .. } = page;
    let is_ordered = objects.is_sorted_by(|a, b| a.key < b.key) && prefixes.is_sorted();
    let last = objects.last().map(|object| &object.key).max(prefixes.last()).cloned();
    if !is_ordered || next.is_some() && last.is_none() {
        return;
    }
    let range = (after, last.filter(|_| next.is_some()));
    let of_prefix = |key: Key| Key::from(key.as_bytes().strip_suffix(b"/").unwrap_or(key.as_bytes()));
    let paths = objects.into_iter().map(|object| object.key).chain(prefixes.into_iter().map(of_prefix));
    cache.learn_page(directory, range, paths.collect(), learnt);
}

/// The symbolic links of a page: objects whose size says that they may be some are asked for. One that cannot be asked for is shown as a
/// file, as it is to every other client.
pub(super) async fn links(store: &dyn ObjectStore, cache: &StatCache, page: &ListPage) -> HashMap<Key, Arc<Extra>> {
    let candidates: Vec<Key> = page.objects.iter().filter(|object| object.size == SYMLINK_SIZE).map(|object| object.key.clone()).collect();
    let asked = stream::iter(candidates).map(|key| async move {
        let extra = posix::facts(&store.details(&key).await.ok()?, cache.keeps_attributes()).extra?;
        extra.link.is_some().then_some((key, extra))
    });
    asked.buffer_unordered(LINKS_AT_ONCE).filter_map(|link| async { link }).collect().await
}

/// A token that leads back to the same page would make a directory that never ends.
pub(super) fn check_progress(page: ListPage, request: &ListRequest) -> store::Result<ListPage> {
    if page.next.is_some() && page.next == request.token {
        let words = "the store names the same page as the next one";
        return Err(store::Error::new(ErrorKind::Malformed, Op::List, &request.prefix, words));
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_names_the_same_page_as_the_next_one_is_not_followed() {
        let request = |token: Option<&str>| ListRequest {
            prefix: Key::root(),
            delimited: true,
            after: None,
            token: token.map(Into::into),
            max_keys: PAGE_KEYS,
            any_order: false,
        };
        let page = |next: Option<&str>| ListPage { next: next.map(Into::into), ..ListPage::default() };
        assert!(check_progress(page(Some("b")), &request(Some("a"))).is_ok());
        assert!(check_progress(page(None), &request(None)).is_ok());
        let error = check_progress(page(Some("a")), &request(Some("a"))).expect_err("would never end");
        assert_eq!(error.kind, ErrorKind::Malformed);
    }
}
