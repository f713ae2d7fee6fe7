//! Names that are free, asked for one after another in one directory: files that are about to be written, places where a program looks for a
//! module. When the directory is small, one page of its listing says of all other names that they are free, for as long as the absence of
//! one is believed. Invariant: a directory that has more names than a page is listed here once in the time a listing is believed.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::carrying;
use super::flight::Flights;
use super::lookup::Names;
use super::walk::{self, PAGE_KEYS};
use crate::store::{Key, ListRequest};

/// Names of one directory that were found to be free by a request each, while the absence of the first was still believed, before a page of
/// its listing is worth one.
const BELIEVED: usize = 3;

/// Directories that are remembered. With more of them they all begin anew.
const DIRECTORIES: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FreeNames {
    seen: Mutex<Seen>,
    /// Pages under way; whether one says it all.
    pages: Flights<bool>,
}

#[derive(Debug, Default)]
struct Seen(HashMap<Key, Directory>);

#[derive(Debug, Default)]
struct Directory {
    /// When the last names were found to be free.
    free: VecDeque<Instant>,
    /// When it was seen that a page does not say it all.
    too_much: Option<Instant>,
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

    /// Whether to ask for a page of `directory` rather than for a name: absence is believed for `absent`, a listing for `believed`.
    fn is_worth(&self, directory: &Key, now: Instant, absent: Duration, believed: Duration) -> bool {
        let Some(seen) = self.0.get(directory) else { return false };
        let lately = seen.free.len() == BELIEVED && seen.free.front().is_some_and(|&first| now.duration_since(first) < absent);
        lately && seen.too_much.is_none_or(|at| now.duration_since(at) >= believed)
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

    /// A name of `directory` is about to be asked for. Whether all of it was listed instead.
    pub(super) async fn list_instead(&self, directory: &Key) -> bool {
        let (absent, believed) = (self.cache.ttls().absent.get(), self.cache.ttls().believed.get());
        if !self.cache.is_enabled() || !self.free_names.seen.lock().is_worth(directory, Instant::now(), absent, believed) {
            return false;
        }
        let listed = self.free_names.pages.join(directory, || {
            let (store, cache, hidden) = (self.store.clone(), self.cache.clone(), self.hidden.clone());
            let (directory, without) = (directory.clone(), self.left_out_of(directory));
            async move {
                let request = ListRequest { prefix: directory.clone(), delimited: true, after: None, token: None, max_keys: PAGE_KEYS };
                let asked = Instant::now();
                match store.list(&request).await {
                    Ok(page) if page.next.is_none() => {
                        let mut links = walk::links(&*store, &cache, &page).await;
                        let Ok(carries) = carrying::in_listed(&*store, &cache, &directory, (&page, true, asked)).await else {
                            return false;
                        };
                        walk::learn_whole(&cache, &hidden, &directory, without, page, &mut links, (asked, carries));
                        true
                    }
                    // What fails is told by the request for the name.
                    Ok(_) | Err(_) => false,
                }
            }
        });
        let listed = listed.await;
        if !listed {
            self.free_names.seen.lock().on_too_much(directory, Instant::now());
        }
        listed
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const ABSENT: Duration = Duration::from_secs(1);
    const TTL: Duration = Duration::from_secs(60);

    fn is_worth(seen: &Seen) -> bool {
        seen.is_worth(&"d/".into(), Instant::now(), ABSENT, TTL)
    }

    #[tokio::test(start_paused = true)]
    async fn three_free_names_in_the_time_that_absence_is_believed_are_worth_a_page() {
        for step in [Duration::from_millis(300), Duration::from_millis(400)] {
            let mut seen = Seen::default();
            for n in 0..10 {
                assert_eq!(is_worth(&seen), n >= BELIEVED && step < ABSENT / 3, "{n} {step:?}");
                seen.on_free(&"d/".into(), Instant::now());
                advance(step).await;
            }
            advance(ABSENT).await;
            assert!(!is_worth(&seen), "that was long ago");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_page_does_not_say_is_not_asked_for_again_soon() {
        let mut seen = Seen::default();
        seen.on_too_much(&"d/".into(), Instant::now());
        for second in 0..120 {
            for _ in 0..BELIEVED {
                seen.on_free(&"d/".into(), Instant::now());
            }
            assert_eq!(is_worth(&seen), second >= TTL.as_secs(), "{second}");
            advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn directories_are_remembered_each_for_itself_and_not_for_ever() {
        let mut seen = Seen::default();
        for n in 0..3 * DIRECTORIES {
            seen.on_free(&format!("d{n}/").into(), Instant::now());
            assert!(!is_worth(&seen));
        }
        assert!(seen.0.len() <= DIRECTORIES);
    }
}
