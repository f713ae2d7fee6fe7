//! One walk through the LIST pages of a directory, shared by the handles that read it. It turns nothing into inodes.
//! Invariants: no page is asked for twice; page n+1 is asked for when page n begins to be read, and never page n+2;
//! memory holds at most the entries that the stat cache could keep, and the few pages being read.

use std::collections::VecDeque;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::error::{Error, Result};
use super::fact::{Listing, Page, What};
use super::hidden::Hidden;
use super::listing::{DirEntry, Merge};
use super::stat_cache::StatCache;
use crate::store::{self, ErrorKind, Key, ListPage, ListRequest, ObjectStore, Op};

/// What stores give at most.
const PAGE_KEYS: u16 = 1000;

/// Kept even when the cache is off: the page being read, the one that was fetched ahead, and the one before, into
/// which the kernel may step back because it could not hand out all of its last reply.
const PAGES_KEPT: usize = 3;

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

/// What is at a position.
#[derive(Debug)]
pub enum Found {
    Entries(Slice),
    /// The directory ends before it.
    End,
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

#[derive(Debug)]
struct State {
    pages: VecDeque<Page>,
    /// Entries in `pages`.
    kept: usize,
    /// Entries before `pages`.
    dropped: u64,
    /// When the first page came.
    began: Option<Instant>,
    next: Next,
}

/// The page after the last of `pages`.
#[derive(Debug)]
enum Next {
    NotAsked(Step),
    UnderWay(#[expect(dead_code, reason = "held for its Drop")] AbortOnDrop),
    /// Its error waits for a reader that gets there; after that the page can be asked for again.
    Failed(Error, Step),
    /// There is none.
    End,
}

/// What it takes to ask for a page and to read the answer.
#[derive(Debug)]
struct Step {
    token: Option<String>,
    merge: Merge,
}

/// The request of a walk that nobody reads any more is cancelled.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Walk {
    /// A walk through `directory`, which is empty or ends in `/`. Nothing is asked for until it is read.
    pub fn new(directory: Key, store: Arc<dyn ObjectStore>, cache: StatCache, hidden: Arc<Hidden>) -> Arc<Self> {
        let next = Next::NotAsked(Step { token: None, merge: Merge::new(directory.clone()) });
        let state = State { pages: VecDeque::new(), kept: 0, dropped: 0, began: None, next };
        Arc::new(Self { directory, store, cache, hidden, state: Mutex::new(state), progress: Notify::new() })
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

    /// The entry of that name, when its page has come and is still there, and when it was learnt.
    pub fn find(&self, name: &[u8]) -> Option<(DirEntry, Instant)> {
        let state = self.state.lock();
        let page = state.pages.get(state.pages.partition_point(|page| page.ends_before(name)))?;
        page.find(name).map(|entry| (entry.clone(), page.learnt))
    }

    /// Whether a handle that is opened now may read along: it would see everything, and nothing that is too old.
    pub fn is_open_to_others(&self) -> bool {
        let state = self.state.lock();
        let fresh = state.began.is_none_or(|began| self.cache.believed_until(began) > Instant::now());
        fresh && state.dropped == 0 && self.cache.is_enabled() && !matches!(state.next, Next::Failed(..))
    }

    /// Entries in memory.
    pub fn held(&self) -> usize {
        self.state.lock().kept
    }

    /// One look at `position`; asks for the page after the one that is read. None: it has to come first.
    fn step(self: &Arc<Self>, position: u64) -> Option<Result<Found>> {
        let mut state = self.state.lock();
        let found = state.find(position);
        let at_the_end = match &found {
            Some(Found::Entries(slice)) => state.is_last(slice),
            Some(Found::End | Found::Dropped) => false,
            None => true,
        };
        if at_the_end {
            state.next = match mem::replace(&mut state.next, Next::End) {
                Next::NotAsked(step) => Next::UnderWay(self.ask(step)),
                Next::Failed(error, step) if found.is_none() => {
                    state.next = Next::NotAsked(step);
                    return Some(Err(error));
                }
                next => next,
            };
        }
        found.map(Ok)
    }

    /// Asks for a page. The task holds the walk only weakly: it ends with the last handle.
    fn ask(self: &Arc<Self>, mut step: Step) -> AbortOnDrop {
        let (walk, store) = (Arc::downgrade(self), self.store.clone());
        let request = ListRequest { prefix: self.directory.clone(), delimited: true, token: step.token.take(), max_keys: PAGE_KEYS };
        let task = tokio::spawn(async move {
            let answer = store.list(&request).await.and_then(|page| check_progress(page, &request));
            let Some(walk) = Weak::upgrade(&walk) else { return };
            match answer {
                Ok(page) => walk.on_page(page, step.merge),
                Err(error) => {
                    let step = Step { token: request.token, merge: step.merge };
                    walk.state.lock().next = Next::Failed(error.into(), step);
                }
            }
            walk.progress.notify_waiters();
        });
        AbortOnDrop(task.abort_handle())
    }

    fn on_page(&self, page: ListPage, mut merge: Merge) {
        let token = page.next.clone();
        let learnt = Instant::now();
        let entries: Arc<[DirEntry]> = merge.on_page(page).into();
        for key in merge.take_conflicts() {
            self.hidden.note(&key);
        }
        let marker = merge.take_marker();
        let is_sorted = merge.is_ordered();
        let complete = {
            let mut state = self.state.lock();
            state.push(Page { entries, learnt });
            state.drop_pages(self.cache.size());
            let is_last = token.is_none();
            state.next = if is_last { Next::End } else { Next::NotAsked(Step { token, merge }) };
            (is_last && is_sorted && state.dropped == 0).then(|| state.listing(learnt))
        };
        if let Some(listing) = complete {
            self.cache.learn_listing(&self.directory, Arc::new(listing));
        }
        if let (Some(time), Some(path)) = (marker, self.directory.as_bytes().strip_suffix(b"/")) {
            self.cache.learn_name(&Key::from(path), What::Directory(Some(time)));
        }
    }
}

impl State {
    /// None: the page has not come yet.
    fn find(&self, position: u64) -> Option<Found> {
        let Some(mut skip) = position.checked_sub(self.dropped) else { return Some(Found::Dropped) };
        for page in &self.pages {
            let len = page.entries.len() as u64;
            if skip < len {
                let from = usize::try_from(skip).expect("less than the length of a slice");
                return Some(Found::Entries(Slice { page: page.clone(), from }));
            }
            skip -= len;
        }
        matches!(self.next, Next::End).then_some(Found::End)
    }

    fn is_last(&self, slice: &Slice) -> bool {
        self.pages.back().is_some_and(|last| Arc::ptr_eq(&last.entries, &slice.page.entries))
    }

    fn push(&mut self, page: Page) {
        self.began.get_or_insert(page.learnt);
        if !page.entries.is_empty() {
            self.kept += page.entries.len();
            self.pages.push_back(page);
        }
    }

    fn drop_pages(&mut self, keep: usize) {
        while self.kept > keep && self.pages.len() > PAGES_KEPT {
            let Some(page) = self.pages.pop_front() else { return };
            self.kept -= page.entries.len();
            self.dropped += page.entries.len() as u64;
        }
    }

    fn listing(&self, now: Instant) -> Listing {
        Listing { pages: self.pages.iter().cloned().collect(), len: self.kept, learnt: self.began.unwrap_or(now) }
    }
}

/// A token that leads back to the same page would make a directory that never ends.
fn check_progress(page: ListPage, request: &ListRequest) -> store::Result<ListPage> {
    if page.next.is_some() && page.next == request.token {
        let words = "the store names the same page as the next one";
        return Err(store::Error::new(ErrorKind::Corrupt, Op::List, &request.prefix, words));
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_names_the_same_page_as_the_next_one_is_not_followed() {
        let request =
            |token: Option<&str>| ListRequest { prefix: Key::root(), delimited: true, token: token.map(Into::into), max_keys: PAGE_KEYS };
        let page = |next: Option<&str>| ListPage { next: next.map(Into::into), ..ListPage::default() };
        assert!(check_progress(page(Some("b")), &request(Some("a"))).is_ok());
        assert!(check_progress(page(None), &request(None)).is_ok());
        let error = check_progress(page(Some("a")), &request(Some("a"))).expect_err("would never end");
        assert_eq!(error.kind, ErrorKind::Corrupt);
    }
}
