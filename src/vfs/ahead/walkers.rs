//! Who goes through a tree of directories one after another, and which pages of a listing without delimiter are worth asking for. Pure:
//! times and answers come as arguments. Invariant: pages that turn out to be of no use are never more than the directories that others of
//! them have spared a request, and one for each who began to go through a tree.
//!
//! `find`, `du`, `rsync`, `rm -r` and every os.walk() read a directory, then what is in it, then its neighbour: one round trip for each,
//! one after the other. Without delimiter a page of 1,000 keys tells of all directories that it passes.

use tokio::time::Instant;

use super::flat::{Flat, Listed};
use crate::store::{Key, ListPage};
use crate::vfs::stat_cache::{common_directory, split};

/// How many directories the listing of the first has between the second, or its start, and the third; none when it is not known.
pub(super) type LeftOut<'a> = dyn Fn(&[u8], Option<&[u8]>, &[u8]) -> Option<usize> + 'a;

/// Programs that go through trees at one time, each of their threads for itself; more of them push out who has not read for longest.
const WALKERS: usize = 16;

/// Directories in a row before it is believed: this one, the one above or beside it, and one more.
const BELIEVED: u32 = 2;

/// So many directories of one directory may be left out between two that are read in a row: threads share them out, programs pass over some.
pub(super) const LEFT_OUT: usize = 3;

/// Pages in reserve at most: who has been served for long and turns elsewhere costs no more than these.
const MOST_CREDIT: u32 = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Walkers {
    all: Vec<Walker>,
    streams: u64,
    /// Entries of directories that are not complete yet, for each of them.
    most_held: usize,
    /// The store does not list in order.
    is_useless: bool,
}

#[derive(Debug)]
struct Walker {
    /// The directory that was read last.
    last: Key,
    in_a_row: u32,
    /// What is gone through: all of them are in it.
    top: Key,
    /// Pages that may be asked for.
    credit: u32,
    /// The last one was there already, thanks to a page, and has been counted.
    counted: bool,
    stream: Option<Stream>,
    used: Instant,
}

/// Pages, one after another.
#[derive(Debug)]
struct Stream {
    id: u64,
    top: Key,
    /// The directory that it began with.
    from: Key,
    flat: Flat,
    /// Where its newest page began.
    newest: Key,
    next: Next,
}

#[derive(Debug)]
enum Next {
    UnderWay,
    At(String),
    End,
}

/// A page to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub stream: u64,
    pub top: Key,
    pub after: Key,
    pub token: Option<String>,
}

/// What to do when a directory is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Advice {
    pub ask: Option<Ask>,
    /// A page that probably has all of it is under way: no request of its own is needed before that has come.
    pub wait: bool,
}

impl Walkers {
    /// Nobody yet.
    pub fn new(most_held: usize) -> Self {
        Self { all: Vec::new(), streams: 0, most_held, is_useless: false }
    }

    /// `directory` is read, whose listing is known or not.
    pub fn on_read(&mut self, directory: &Key, is_known: bool, now: Instant, left_out: &LeftOut<'_>) -> Advice {
        if self.is_useless {
            return Advice::default();
        }
        let found = self.all.iter().position(|walker| walker.last == *directory);
        let found = found.or_else(|| self.all.iter().position(|walker| walker.leads_to(directory, left_out)));
        let Some(at) = found else {
            self.begin(directory, now);
            return Advice::default();
        };
        let id = self.streams;
        let advice = self.all[at].on_read(directory, is_known, now, id);
        self.streams += u64::from(advice.ask.as_ref().is_some_and(|ask| ask.stream == id));
        advice
    }

    /// A name of `directory` was found in what is known of it: whoever goes through a tree by the names of files is there.
    pub fn on_name(&mut self, directory: &Key, now: Instant, left_out: &LeftOut<'_>) -> Option<Ask> {
        if self.all.iter().any(|walker| walker.last == *directory) || !self.is_next(directory, left_out) {
            return None;
        }
        self.on_read(directory, true, now, left_out).ask
    }

    /// Whether pages are asked for as somebody gets on.
    pub fn is_following(&self) -> bool {
        self.all.iter().any(|walker| walker.stream.as_ref().is_some_and(|stream| !matches!(stream.next, Next::End)))
    }

    fn begin(&mut self, directory: &Key, now: Instant) {
        if self.all.len() >= WALKERS {
            let idle = self.all.iter().enumerate().min_by_key(|(_, walker)| (walker.in_a_row > 0, walker.used)).map(|(at, _)| at);
            idle.map(|at| self.all.swap_remove(at));
        }
        let (last, top) = (directory.clone(), directory.clone());
        self.all.push(Walker { last, in_a_row: 0, top, credit: 1, counted: true, stream: None, used: now });
    }

    /// Whether somebody goes through a tree and is at this directory, or would be there next.
    pub fn is_next(&self, directory: &Key, left_out: &LeftOut<'_>) -> bool {
        self.all.iter().any(|walker| walker.in_a_row >= BELIEVED && (walker.last == *directory || walker.leads_to(directory, left_out)))
    }

    /// Whether a page of a stream is still waited for.
    pub fn is_under_way(&self, directory: &Key) -> bool {
        let mut of = self.all.iter().filter(|walker| walker.last == *directory).filter_map(|walker| walker.stream.as_ref());
        of.any(|stream| matches!(stream.next, Next::UnderWay) && stream.may_have(directory))
    }

    /// A page has come that was asked for at `learnt`. Returns the directories that are known with it; [`on_learnt`](Self::on_learnt)
    /// follows.
    pub fn on_page(&mut self, stream: u64, page: ListPage, learnt: Instant) -> Vec<Listed> {
        let most_held = self.most_held;
        let Some(own) = self.stream(stream) else { return Vec::new() };
        let own_stream = own.as_mut().expect("it was found by it");
        own_stream.newest = own_stream.flat.position().unwrap_or(&own_stream.from).clone();
        let listed = own_stream.flat.on_page(page, learnt);
        if own_stream.flat.held() > most_held {
            *own = None;
        }
        listed.unwrap_or_else(|| {
            self.is_useless = true;
            self.all.clear();
            Vec::new()
        })
    }

    /// Everybody can see what the newest page told, and this is how to ask for the one after it.
    pub fn on_learnt(&mut self, stream: u64, next: Option<String>) {
        if let Some(Some(own)) = self.stream(stream) {
            own.next = next.map_or(Next::End, Next::At);
        }
    }

    /// A page could not be had.
    pub fn on_failed(&mut self, stream: u64) {
        for walker in &mut self.all {
            if walker.stream.take_if(|own| own.id == stream).is_some() {
                walker.credit = 0;
            }
        }
    }

    fn stream(&mut self, id: u64) -> Option<&mut Option<Stream>> {
        self.all.iter_mut().map(|walker| &mut walker.stream).find(|stream| stream.as_ref().is_some_and(|own| own.id == id))
    }
}

impl Walker {
    /// Whether `directory` comes next, or nearly, when a tree is gone through in order: below or beside the last one, or beside one that is
    /// above it; or, level by level, below one of these.
    fn leads_to(&self, directory: &Key, left_out: &LeftOut<'_>) -> bool {
        let (mut last, directory) = (self.last.as_bytes(), directory.as_bytes());
        if directory <= last {
            return false;
        }
        if let Some(position) = self.stream.as_ref().and_then(|stream| stream.flat.position()) {
            let position = position.as_bytes();
            // What pages have told of needs nobody who reads it.
            if directory <= position {
                return directory.starts_with(self.top.as_bytes());
            }
            last = last.max(split(position).0);
        }
        comes_after(last, directory, left_out)
    }

    fn on_read(&mut self, directory: &Key, is_known: bool, now: Instant, id: u64) -> Advice {
        self.used = now;
        let before = self.last.clone();
        if *directory != self.last {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.last = directory.clone();
            self.counted = false;
            let above = common_directory(directory.as_bytes(), before.as_bytes());
            if above.len() < self.top.as_bytes().len() {
                self.top = Key::from(above);
            }
        }
        if let Some(stream) = &mut self.stream
            && directory.as_bytes().starts_with(stream.top.as_bytes())
            && stream.from <= *directory
        {
            let has_passed = stream.has_passed(directory);
            let wait = !is_known && !has_passed;
            if has_passed && is_known && !self.counted {
                self.counted = true;
                self.credit = (self.credit + 1).min(MOST_CREDIT);
            }
            match &stream.next {
                Next::UnderWay => return Advice { ask: None, wait },
                Next::At(token) if self.credit > 0 && *directory >= stream.newest && stream.leads_to(directory, &before) => {
                    let ask = stream.ask(Some(token.clone()));
                    stream.next = Next::UnderWay;
                    self.credit -= 1;
                    return Advice { ask: Some(ask), wait };
                }
                _ if has_passed => return Advice::default(),
                _ => {}
            }
        }
        if is_known || self.in_a_row < BELIEVED || self.credit == 0 {
            return Advice::default();
        }
        // With the page this one is asked for by itself: who reads large directories would wait twice.
        self.credit -= 1;
        let stream = Stream::new(id, &self.top, directory, now);
        let ask = stream.ask(None);
        self.stream = Some(stream);
        Advice { ask: Some(ask), wait: false }
    }
}

impl Stream {
    fn new(id: u64, top: &Key, from: &Key, now: Instant) -> Self {
        let flat = Flat::new(top, before(from), now);
        Self { id, top: top.clone(), from: from.clone(), flat, newest: from.clone(), next: Next::UnderWay }
    }

    fn ask(&self, token: Option<String>) -> Ask {
        Ask { stream: self.id, top: self.top.clone(), after: before(&self.from), token }
    }

    /// Whether all that is below `directory` has come.
    fn has_passed(&self, directory: &Key) -> bool {
        let Some(position) = self.flat.position() else { return matches!(self.next, Next::End) };
        let is_behind = position > directory && !position.as_bytes().starts_with(directory.as_bytes());
        is_behind || matches!(self.next, Next::End)
    }

    /// Whether the next page goes on where who came from `before` to `directory` is, and not in something that they left out.
    fn leads_to(&self, directory: &Key, before: &Key) -> bool {
        let Some(position) = self.flat.position() else { return false };
        if position.as_bytes().starts_with(directory.as_bytes()) || position > directory {
            return true;
        }
        split(position.as_bytes()).0 <= before.as_bytes()
    }

    /// Whether it has told of `directory`, or will.
    fn may_have(&self, directory: &Key) -> bool {
        let (top, directory) = (self.top.as_bytes(), directory.as_bytes());
        directory.starts_with(top) && self.from.as_bytes() <= directory || top.starts_with(directory)
    }
}

/// Whether `directory` is below or beside `last` or beside one that is above that, or below one of these, with few between the two.
pub(super) fn comes_after(last: &[u8], directory: &[u8], left_out: &LeftOut<'_>) -> bool {
    if directory <= last {
        return false;
    }
    let above = common_directory(directory, last).len();
    let mut level = end_of_name(directory, above);
    let from = (above < last.len()).then(|| &last[..end_of_name(last, above)]);
    let mut between = left_out(&directory[..above], from, &directory[..level]).unwrap_or(0);
    while level < directory.len() && between <= LEFT_OUT {
        let next = end_of_name(directory, level);
        // Where this is not known anything could be next.
        let Some(more) = left_out(&directory[..level], None, &directory[..next]) else { return false };
        (between, level) = (between + more, next);
    }
    between <= LEFT_OUT
}

/// The key before everything in `directory`, its marker included, and behind most that comes before that.
pub(super) fn before(directory: &Key) -> Key {
    let mut bytes = directory.as_bytes().to_vec();
    if let Some(slash) = bytes.last_mut() {
        *slash = b'/' - 1;
    }
    Key::from(bytes)
}

/// Where the name that starts at `start` ends, with its `/`.
fn end_of_name(path: &[u8], start: usize) -> usize {
    path[start..].iter().position(|&byte| byte == b'/').map_or(path.len(), |slash| start + slash + 1)
}

#[cfg(test)]
mod tests;
