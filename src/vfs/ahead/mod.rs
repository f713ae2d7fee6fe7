//! Listings of the directories that whoever goes through a tree will read next, all in one listing without delimiter: asks for its pages and
//! puts what they tell into the stat cache. `walkers` decides, and `aside` for those who have an order of their own. Invariant: nobody waits here for more than one page that was asked for
//! already, and what fails here is no error for anybody.

mod aside;
mod flat;
mod walkers;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::join;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::carrying;
use super::changes::directory_of;
use super::hidden::Hidden;
use super::listing::Extra;
use super::stat_cache::{StatCache, split};
use super::walk::{self, PAGE_KEYS};
use crate::store::{Key, ListRequest, ObjectStore};
use aside::Aside;
use flat::Listed;
use walkers::{Advice, Ask, LEFT_OUT, Walkers, comes_after};

/// Of the entries that the stat cache may have, those in directories of which the end has not come yet: for each who goes through a tree.
const HELD: usize = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Ahead {
    inner: Arc<Inner>,
    /// Ended with this.
    pages: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn ObjectStore>,
    cache: StatCache,
    hidden: Arc<Hidden>,
    walkers: Mutex<Walkers>,
    aside: Mutex<Aside>,
    /// Spares names a look at them when nobody goes through a tree.
    is_following: AtomicBool,
    is_aside: AtomicBool,
    /// Told whenever a page has come, or will not.
    came: Notify,
}

/// Who asked for a page.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Walkers,
    Aside,
}

impl Ahead {
    /// Asks `store` and fills `cache`.
    pub fn new(store: Arc<dyn ObjectStore>, cache: StatCache, hidden: Arc<Hidden>) -> Self {
        let (walkers, aside) = (Mutex::new(Walkers::new(cache.size() / HELD)), Mutex::new(Aside::new(cache.size() / HELD)));
        let [is_following, is_aside] = [(); 2].map(|()| AtomicBool::new(false));
        let inner = Inner { store, cache, hidden, walkers, aside, is_following, is_aside, came: Notify::new() };
        Self { inner: Arc::new(inner), pages: Mutex::default() }
    }

    /// `directory`, whose listing is believed, is read.
    pub fn on_known(&self, directory: &Key) {
        self.on_read(directory, true);
        self.inner.on_use(directory);
    }

    /// The store was asked for a name of `directory` by itself.
    pub fn on_alone(&self, directory: &Key) {
        let inner = &self.inner;
        let ask = inner.aside.lock().on_alone(directory, Instant::now(), inner.cache.ttls().believed.get());
        self.ask(ask, Whose::Aside);
    }

    /// So many names of `directory` were asked for that it is as if somebody read it.
    pub fn on_looked_into(&self, directory: &Key) {
        self.on_read(directory, false);
    }

    /// `directory` is about to be listed. Returns when a page has come that may have spared that.
    pub async fn before(&self, directory: &Key) {
        let mut came = pin!(self.inner.came.notified());
        came.as_mut().enable();
        let advice = self.on_read(directory, false);
        if !advice.wait {
            if advice.ask.is_none() && self.inner.cache.is_enabled() {
                self.on_alone(directory);
            }
            return;
        }
        while self.inner.walkers.lock().is_under_way(directory) {
            came.as_mut().await;
            came.set(self.inner.came.notified());
            came.as_mut().enable();
        }
        if self.inner.cache.listing(directory.as_bytes()).is_some() {
            self.on_known(directory);
        }
    }

    /// Whether somebody goes through a tree and is at `directory`, or would be there next.
    pub fn is_next(&self, directory: &Key) -> bool {
        let inner = &self.inner;
        inner.cache.is_enabled() && inner.walkers.lock().is_next(directory, &inner.left_out())
    }

    /// Whether who was in the directory `last` comes to `directory` next, when it goes through a tree in order.
    pub fn leads_to(&self, last: &Key, directory: &Key) -> bool {
        comes_after(last.as_bytes(), directory.as_bytes(), &self.inner.left_out())
    }

    /// A name was found in what is known of the directory that holds it.
    pub fn on_name(&self, path: &Key) {
        let inner = &self.inner;
        if inner.is_following.load(Ordering::Relaxed) {
            let ask = inner.walkers.lock().on_name(&directory_of(path), Instant::now(), &inner.left_out());
            self.ask(ask, Whose::Walkers);
        }
        if inner.is_aside.load(Ordering::Relaxed) {
            inner.on_use(&directory_of(path));
        }
    }

    fn on_read(&self, directory: &Key, is_known: bool) -> Advice {
        let inner = &self.inner;
        if !inner.cache.is_enabled() {
            return Advice::default();
        }
        let advice = {
            let mut walkers = inner.walkers.lock();
            let advice = walkers.on_read(directory, is_known, Instant::now(), &inner.left_out());
            inner.is_following.store(walkers.is_following(), Ordering::Relaxed);
            advice
        };
        self.ask(advice.ask.clone(), Whose::Walkers);
        advice
    }

    fn ask(&self, ask: Option<Ask>, whose: Whose) {
        let Some(ask) = ask else { return };
        if !self.inner.store.lists_in_order(&ask.top) {
            // A page would take all that is below.
            self.inner.on_failed(ask.stream, &ask.top, whose);
            self.inner.came.notify_waiters();
            return;
        }
        let mut pages = self.pages.lock();
        while pages.try_join_next().is_some() {}
        pages.spawn(Arc::clone(&self.inner).fetch(ask, whose));
    }
}

impl Inner {
    /// See [`LeftOut`](walkers::LeftOut).
    fn left_out(&self) -> impl Fn(&[u8], Option<&[u8]>, &[u8]) -> Option<usize> {
        |above, from, to| {
            let listing = self.cache.listing(above)?;
            Some(listing.directories_between(from.map(name), name(to), LEFT_OUT + 1))
        }
    }

    /// A directory that is known is used.
    fn on_use(&self, directory: &Key) {
        if self.is_aside.load(Ordering::Relaxed) {
            let mut aside = self.aside.lock();
            aside.on_use(directory);
            self.is_aside.store(aside.is_waiting(), Ordering::Relaxed);
        }
    }

    /// Fetches a page and wakes its waiters, also after a failure.
    async fn fetch(self: Arc<Self>, ask: Ask, whose: Whose) {
        let (stream, top) = (ask.stream, ask.top.clone());
        if AssertUnwindSafe(self.bring(ask, whose)).catch_unwind().await.is_err() {
            self.on_failed(stream, &top, whose);
        }
        self.came.notify_waiters();
    }

    async fn bring(&self, ask: Ask, whose: Whose) {
        let Ask { stream, top, after, token } = ask;
        let after = Some(after).filter(|after| !after.as_bytes().is_empty());
        let request = ListRequest { prefix: top.clone(), delimited: false, after, token, max_keys: PAGE_KEYS, any_order: false };
        let asked = Instant::now();
        match self.store.list(&request).await.and_then(|page| walk::check_progress(page, &request)) {
            Err(error) => {
                tracing::debug!(prefix = %request.prefix, %error, "directories could not be listed ahead of who reads them");
                self.on_failed(stream, &top, whose);
            }
            Ok(page) => {
                let (links, ()) =
                    join!(walk::links(&*self.store, &self.cache, &page), carrying::of_markers(&*self.store, &self.cache, &page));
                let next = page.next.clone();
                let listed = match whose {
                    Whose::Walkers => self.walkers.lock().on_page(stream, page, asked),
                    Whose::Aside => self.aside.lock().on_page(&top, page, asked),
                };
                // Learnt before anybody is told that nothing is under way any more.
                self.learn(listed, links);
                match whose {
                    Whose::Walkers => self.walkers.lock().on_learnt(stream, next),
                    Whose::Aside => {
                        let mut aside = self.aside.lock();
                        aside.on_learnt(&top, next);
                        self.is_aside.store(aside.is_waiting(), Ordering::Relaxed);
                    }
                }
            }
        }
    }

    fn on_failed(&self, stream: u64, top: &Key, whose: Whose) {
        match whose {
            Whose::Walkers => self.walkers.lock().on_failed(stream),
            Whose::Aside => self.aside.lock().on_failed(top),
        }
    }

    fn learn(&self, listed: Vec<Listed>, mut links: HashMap<Key, Arc<Extra>>) {
        for Listed { directory, page, learnt } in listed {
            let has_marker = page.objects.first().is_some_and(|first| first.key == directory);
            if !has_marker && !directory.as_bytes().is_empty() {
                self.cache.learn_carries(&directory, false, learnt);
            }
            let Some(carries) = self.cache.carries(directory.as_bytes()) else { continue };
            walk::learn_whole(&self.cache, &self.hidden, &directory, None, page, &mut links, (learnt, carries));
        }
    }
}

/// The last name of the path of a directory.
fn name(directory: &[u8]) -> &[u8] {
    split(directory.strip_suffix(b"/").unwrap_or(directory)).1
}
