//! Directories of one directory that are asked for here and there, in an order of their own: by cp -r in that of inode numbers, by git in that
//! of hashes. A few of them are worth a page of all that is below the directory above. Pure: times and answers come as arguments.
//! Invariant: of one listing no more than [`IN_VAIN`] pages are asked for and as many as directories were spared a request by them.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::flat::{Flat, Listed};
use super::walkers::{Ask, before};
use crate::store::{Key, ListPage};
use crate::vfs::changes::directory_of;

/// Directories that are remembered with what is below them.
const TOPS: usize = 16;

/// Directories that were asked for by themselves before a page is worth one, and after that for each page.
const BELIEVED: u32 = 4;

/// Those that were asked for last count once, however many of their names were asked for.
const LATELY: usize = 16;

const IN_VAIN: u32 = 4;

/// Directories that pages told of and nobody has used, before there are more pages.
const UNUSED: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct Aside {
    /// Who was asked for last comes last.
    tops: VecDeque<Top>,
    most_held: usize,
    /// The store does not list in order.
    is_useless: bool,
}

/// A directory of which others are asked for.
#[derive(Debug)]
struct Top {
    key: Key,
    began: Instant,
    lately: VecDeque<Key>,
    /// How many were asked for by themselves since the last page.
    alone: u32,
    pages: u32,
    /// Directories that pages told of and nobody has used yet, and how many were used.
    told: HashSet<Key>,
    spared: u32,
    flat: Option<Flat>,
    next: Next,
}

#[derive(Debug)]
enum Next {
    UnderWay,
    At(Option<String>),
    End,
}

impl Aside {
    /// Nothing yet; at most so many entries of directories that have not come whole.
    pub fn new(most_held: usize) -> Self {
        Self { tops: VecDeque::new(), most_held, is_useless: false }
    }

    /// The store was asked for `directory`, or a name in it, by itself. What was listed is believed for `ttl`.
    pub fn on_alone(&mut self, directory: &Key, now: Instant, ttl: Duration) -> Option<Ask> {
        if self.is_useless || directory.as_bytes().is_empty() {
            return None;
        }
        let key = directory_of(directory);
        let known = self.tops.iter().position(|top| top.key == key).and_then(|at| self.tops.remove(at));
        let known = known.filter(|top| now.duration_since(top.began) < ttl);
        let top = known.unwrap_or_else(|| Top::new(key, now));
        if self.tops.len() >= TOPS {
            self.tops.pop_front();
        }
        self.tops.push_back(top);
        self.tops.back_mut()?.on_alone(directory, now)
    }

    /// `directory`, which is known, is used.
    pub fn on_use(&mut self, directory: &Key) {
        let key = directory_of(directory);
        if let Some(top) = self.tops.iter_mut().find(|top| top.key == key)
            && top.told.remove(directory)
        {
            top.spared += 1;
        }
    }

    /// Whether it is to be told of what is used.
    pub fn is_waiting(&self) -> bool {
        self.tops.iter().any(|top| !top.told.is_empty() && !matches!(top.next, Next::End))
    }

    /// A page of what is below `key` has come that was asked for at `learnt`. Returns the directories that are known with it;
    /// [`on_learnt`](Self::on_learnt) follows.
    pub fn on_page(&mut self, key: &Key, page: ListPage, learnt: Instant) -> Vec<Listed> {
        let Some(top) = self.tops.iter_mut().find(|top| top.key == *key) else { return Vec::new() };
        let Some(flat) = &mut top.flat else { return Vec::new() };
        let Some(listed) = flat.on_page(page, learnt) else {
            self.is_useless = true;
            self.tops.clear();
            return Vec::new();
        };
        if flat.held() > self.most_held {
            top.flat = None;
        }
        let new = listed.iter().map(|listed| &listed.directory).filter(|directory| directory_of(directory) == *key);
        top.told.extend(new.filter(|directory| !top.lately.contains(directory)).cloned());
        listed
    }

    /// Everybody can see what the newest page told, and this is how to ask for the one after it.
    pub fn on_learnt(&mut self, key: &Key, next: Option<String>) {
        if let Some(top) = self.tops.iter_mut().find(|top| top.key == *key) {
            top.next = if next.is_some() && top.flat.is_some() { Next::At(next) } else { Next::End };
        }
    }

    /// A page could not be had.
    pub fn on_failed(&mut self, key: &Key) {
        if let Some(top) = self.tops.iter_mut().find(|top| top.key == *key) {
            (top.flat, top.next) = (None, Next::End);
        }
    }
}

impl Top {
    fn new(key: Key, now: Instant) -> Self {
        let (lately, told, next) = (VecDeque::new(), HashSet::new(), Next::At(None));
        Self { key, began: now, lately, alone: 0, pages: 0, told, spared: 0, flat: None, next }
    }

    fn on_alone(&mut self, directory: &Key, now: Instant) -> Option<Ask> {
        if self.lately.contains(directory) {
            return None;
        }
        if self.lately.len() >= LATELY {
            self.lately.pop_front();
        }
        self.lately.push_back(directory.clone());
        self.alone += 1;
        let Next::At(token) = &self.next else { return None };
        if self.alone < BELIEVED || self.pages >= IN_VAIN + self.spared || self.told.len() > UNUSED {
            return None;
        }
        let (token, after) = (token.clone(), before(&self.key));
        if self.flat.is_none() {
            self.flat = Some(Flat::new(&self.key, after.clone(), now));
            self.began = now;
        }
        (self.alone, self.pages, self.next) = (0, self.pages + 1, Next::UnderWay);
        Some(Ask { stream: 0, top: self.key.clone(), after, token })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::store::{ETag, ObjectMeta};

    const TTL: Duration = Duration::from_secs(60);

    /// `t/d00/` to `t/dNN/`, each with so many files, in pages of that many keys.
    struct Store {
        keys: Vec<Key>,
        page: usize,
        pages: u32,
    }

    impl Store {
        fn new(directories: usize, files: usize, page: usize) -> Self {
            let keys = (0..directories).flat_map(|d| (0..files).map(move |f| Key::from(format!("t/d{d:04}/f{f}"))));
            Self { keys: keys.collect(), page, pages: 0 }
        }

        /// Answers `ask`; the directories that are known with it.
        fn answer(&mut self, aside: &mut Aside, ask: &Ask) -> Vec<Key> {
            self.pages += 1;
            assert_eq!((&ask.top, &ask.after), (&Key::from("t/"), &Key::from("t.")));
            let from: usize = ask.token.as_ref().map_or(0, |token| token.parse().unwrap());
            let end = (from + self.page).min(self.keys.len());
            let next = (end < self.keys.len()).then(|| end.to_string());
            let meta = |key: &Key| ObjectMeta { key: key.clone(), size: 1, etag: ETag::from("e"), modified: SystemTime::UNIX_EPOCH };
            let page = ListPage { objects: self.keys[from..end].iter().map(meta).collect(), next: next.clone(), ..ListPage::default() };
            let listed = aside.on_page(&ask.top, page, Instant::now());
            aside.on_learnt(&ask.top, next);
            listed.into_iter().map(|listed| listed.directory).collect()
        }
    }

    /// Reads directories in the order of `order`; how many were asked for by themselves, and pages.
    fn go(store: &mut Store, order: impl IntoIterator<Item = usize>) -> (u32, u32) {
        let (mut aside, mut known, mut alone) = (Aside::new(10_000), HashSet::new(), 0);
        for n in order {
            let directory = Key::from(format!("t/d{n:04}/"));
            if known.contains(&directory) {
                aside.on_use(&directory);
                continue;
            }
            alone += 1;
            if let Some(ask) = aside.on_alone(&directory, Instant::now(), TTL) {
                known.extend(store.answer(&mut aside, &ask));
            }
        }
        (alone, store.pages)
    }

    #[tokio::test(start_paused = true)]
    async fn directories_in_any_order_are_few_requests() {
        // 2,560 files: three pages, and four directories for each.
        let order = |n: usize| (0..n).map(move |i| i * 7919 % n);
        assert_eq!(go(&mut Store::new(320, 8, 1000), order(320)), (12, 3));
        let (alone, pages) = go(&mut Store::new(5000, 8, 1000), order(5000));
        assert!(alone < 5000 / 8 && pages == 40, "{alone} {pages}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_pages_do_not_help_is_not_paged() {
        // A page has two of 50,000.
        let (alone, pages) = go(&mut Store::new(50_000, 8, 16), (0..300).map(|i| i * 7919 % 50_000));
        assert_eq!((alone, pages), (300, IN_VAIN));
    }

    #[tokio::test(start_paused = true)]
    async fn pages_do_not_run_away_from_who_uses_them() {
        // Each page has a thousand of 20,000.
        let (alone, pages) = go(&mut Store::new(20_000, 1, 1000), (0..1000).map(|i| i * 7919 % 20_000));
        assert!(alone > 700 && pages <= 6, "{alone} {pages}");
    }

    #[tokio::test(start_paused = true)]
    async fn names_of_one_directory_count_once_and_what_is_long_ago_not_at_all() {
        let mut aside = Aside::new(10);
        for n in 0..30 {
            assert_eq!(aside.on_alone(&Key::from(format!("t/d{}/", n % 3)), Instant::now(), TTL), None);
        }
        tokio::time::advance(TTL).await;
        for n in 0..3 {
            assert_eq!(aside.on_alone(&Key::from(format!("t/e{n}/")), Instant::now(), TTL), None);
        }
        assert!(aside.on_alone(&Key::from("t/e3/"), Instant::now(), TTL).is_some());
        assert_eq!(aside.on_alone(&Key::root(), Instant::now(), TTL), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_or_does_not_fit_is_the_last_one() {
        for is_failure in [true, false] {
            let mut aside = Aside::new(10);
            let alone = |aside: &mut Aside, n: u32| aside.on_alone(&Key::from(format!("t/d{n:04}/")), Instant::now(), TTL);
            let asks: Vec<Ask> = (0..4).filter_map(|n| alone(&mut aside, n)).collect();
            if is_failure {
                aside.on_failed(&asks[0].top);
            } else {
                // A directory that is larger than what may be held.
                Store::new(1, 100, 50).answer(&mut aside, &asks[0]);
            }
            assert!((4..100).all(|n| alone(&mut aside, n).is_none()));
        }
    }
}
