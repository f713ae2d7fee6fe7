//! What a walk has and what it has asked for. Pure but for the tasks that it holds: it sends nothing and waits for nothing.
//! Invariants: pages are taken in one after the other, each once; a page that was asked for early counts only when the page
//! before it ends with the token that it was asked with; whatever is dropped here has its request cancelled.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{Came, Found, PAGES_KEPT, Slice};
use crate::store;
use crate::vfs::error::Error;
use crate::vfs::fact::{Listing, Page};
use crate::vfs::listing::Merge;

/// Which request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(u64);

#[derive(Debug)]
pub struct State {
    pages: VecDeque<Page>,
    /// Entries in `pages`.
    pub kept: usize,
    /// Entries before `pages`.
    pub dropped: u64,
    /// When the first page came.
    pub began: Option<Instant>,
    pub next: Next,
    requests: u64,
}

/// The page after the last of `pages`.
#[derive(Debug)]
pub enum Next {
    NotAsked(Step),
    UnderWay(Box<UnderWay>),
    /// Its answer has come and is being taken in; the page after it may have been asked for.
    Merging(Option<Box<Asked>>),
    /// Its error waits for a reader that gets there; after that the page can be asked for again.
    Failed(Error, Step),
    /// A panic while it was taken in: how to go on is lost, and each reader that gets there has the error.
    Broken(Error),
    /// There is none.
    End,
}

/// What it takes to ask for a page and to read the answer.
#[derive(Debug)]
pub struct Step {
    pub token: Option<String>,
    pub merge: Merge,
}

#[derive(Debug)]
pub struct UnderWay {
    asked: Asked,
    merge: Merge,
    /// Whether a reader has come to the end of what there is.
    awaited: bool,
    /// The page after it: asked for only while this one is awaited.
    ahead: Option<Box<Asked>>,
}

/// A page that was asked for.
#[derive(Debug)]
pub struct Asked {
    id: Id,
    token: Option<String>,
    /// The token of the page after it.
    told: Option<String>,
    /// Its answer, when it came before that of the page before.
    answer: Option<store::Result<Came>>,
    _task: AbortOnDrop,
}

/// The request of a walk that nobody reads any more is cancelled.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl State {
    pub fn new(merge: Merge) -> Self {
        let next = Next::NotAsked(Step { token: None, merge });
        Self { pages: VecDeque::new(), kept: 0, dropped: 0, began: None, next, requests: 0 }
    }

    /// One look at `position`. Asks with `ask` for what is wanted now: the page after the one that is read, and when a reader
    /// has nothing left to read also the page after that, as soon as its token is known. None: the page has to come first.
    pub fn step(&mut self, position: u64, ask: impl Fn(Id, Option<String>) -> AbortHandle) -> Option<Result<Found, Error>> {
        let found = self.find(position);
        let awaited = found.is_none();
        let at_the_end = match &found {
            Some(Found::Entries(slice)) => self.is_last(slice),
            Some(Found::End(_) | Found::Dropped) => false,
            None => true,
        };
        if at_the_end {
            self.next = match mem::replace(&mut self.next, Next::End) {
                Next::NotAsked(Step { token, merge }) => {
                    let asked = self.ask(token, ask);
                    Next::UnderWay(Box::new(UnderWay { asked, merge, awaited, ahead: None }))
                }
                Next::UnderWay(mut under_way) => {
                    under_way.awaited |= awaited;
                    self.ask_ahead(&mut under_way, ask);
                    Next::UnderWay(under_way)
                }
                Next::Failed(error, step) if awaited => {
                    self.next = Next::NotAsked(step);
                    return Some(Err(error));
                }
                Next::Broken(error) if awaited => {
                    self.next = Next::Broken(error.clone());
                    return Some(Err(error));
                }
                next => next,
            };
        }
        found.map(Ok)
    }

    /// The token of the page after that of request `id` has arrived.
    pub fn on_token(&mut self, id: Id, token: &str, ask: impl Fn(Id, Option<String>) -> AbortHandle) {
        match mem::replace(&mut self.next, Next::End) {
            Next::UnderWay(mut under_way) => {
                if let Some(asked) = under_way.find(id) {
                    asked.told = Some(token.to_owned());
                }
                self.ask_ahead(&mut under_way, ask);
                self.next = Next::UnderWay(under_way);
            }
            mut next => {
                if let Next::Merging(Some(ahead)) = &mut next
                    && ahead.id == id
                {
                    ahead.told = Some(token.to_owned());
                }
                self.next = next;
            }
        }
    }

    /// The answer to request `id`. Gives back what it takes to take it in, when its turn has come: then
    /// [`on_merged`](Self::on_merged) follows. An error ends the walk until it is asked again.
    pub fn on_answer(&mut self, id: Id, answer: store::Result<Came>) -> Option<(Came, Merge)> {
        match mem::replace(&mut self.next, Next::End) {
            Next::UnderWay(under_way) if under_way.asked.id == id => self.take(*under_way, answer),
            mut next => {
                let ahead = match &mut next {
                    Next::UnderWay(under_way) => under_way.ahead.as_mut(),
                    Next::Merging(ahead) => ahead.as_mut(),
                    _ => None,
                };
                if let Some(ahead) = ahead.filter(|ahead| ahead.id == id) {
                    ahead.answer = Some(answer);
                }
                self.next = next;
                None
            }
        }
    }

    /// The page that [`on_answer`](Self::on_answer) gave out is taken in; `token` leads to the one after it. When that has
    /// come in the meantime it is given out as well.
    pub fn on_merged(&mut self, page: Page, keep: usize, token: Option<String>, merge: Merge) -> Option<(Came, Merge)> {
        self.push(page);
        self.drop_pages(keep);
        let next = mem::replace(&mut self.next, Next::End);
        token.as_ref()?;
        match next {
            Next::Merging(Some(mut asked)) if asked.token == token => {
                let answer = asked.answer.take();
                let under_way = UnderWay { asked: *asked, merge, awaited: false, ahead: None };
                match answer {
                    Some(answer) => self.take(under_way, answer),
                    None => {
                        self.next = Next::UnderWay(Box::new(under_way));
                        None
                    }
                }
            }
            _ => {
                self.next = Next::NotAsked(Step { token, merge });
                None
            }
        }
    }

    /// None: the page has not come yet.
    pub fn find(&self, position: u64) -> Option<Found> {
        let Some(mut skip) = position.checked_sub(self.dropped) else { return Some(Found::Dropped) };
        for page in &self.pages {
            let len = page.entries.len() as u64;
            if skip < len {
                let from = usize::try_from(skip).expect("less than the length of a slice");
                return Some(Found::Entries(Slice { page: page.clone(), from }));
            }
            skip -= len;
        }
        matches!(self.next, Next::End).then(|| Found::End(self.dropped + self.kept as u64))
    }

    /// The page on which `name` would stand, of those that are there.
    pub fn page_of(&self, name: &[u8]) -> Option<&Page> {
        self.pages.get(self.pages.partition_point(|page| page.ends_before(name)))
    }

    pub fn is_last(&self, slice: &Slice) -> bool {
        self.pages.back().is_some_and(|last| Arc::ptr_eq(&last.entries, &slice.page.entries))
    }

    pub fn listing(&self, now: Instant) -> Listing {
        Listing {
            pages: self.pages.iter().cloned().collect(),
            len: self.kept,
            learnt: self.began.unwrap_or(now),
            carries: self.pages.front().is_some_and(|page| page.carries),
        }
    }

    fn ask(&mut self, token: Option<String>, ask: impl Fn(Id, Option<String>) -> AbortHandle) -> Asked {
        self.requests += 1;
        let id = Id(self.requests);
        Asked { id, token: token.clone(), told: None, answer: None, _task: AbortOnDrop(ask(id, token)) }
    }

    fn ask_ahead(&mut self, under_way: &mut UnderWay, ask: impl Fn(Id, Option<String>) -> AbortHandle) {
        if under_way.awaited && under_way.ahead.is_none() && under_way.asked.told.is_some() {
            under_way.ahead = Some(Box::new(self.ask(under_way.asked.told.clone(), ask)));
        }
    }

    fn take(&mut self, under_way: UnderWay, answer: store::Result<Came>) -> Option<(Came, Merge)> {
        let UnderWay { asked, merge, ahead, .. } = under_way;
        match answer {
            Ok(page) => {
                self.next = Next::Merging(ahead);
                Some((page, merge))
            }
            Err(error) => {
                self.next = Next::Failed(error.into(), Step { token: asked.token.clone(), merge });
                None
            }
        }
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
}

impl UnderWay {
    fn find(&mut self, id: Id) -> Option<&mut Asked> {
        if self.asked.id == id { Some(&mut self.asked) } else { self.ahead.as_deref_mut().filter(|ahead| ahead.id == id) }
    }
}

#[cfg(test)]
mod tests;
