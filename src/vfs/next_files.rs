//! The files that will probably be opened after one that is opened now, in its directory and in those that come after it in a tree. It opens
//! and fetches nothing; `succession` judges. Only cached listings are asked: where there is none, nothing is known of what comes next.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::fact::{Listing, Page, What};
use super::inodes::Inodes;
use super::lookup::{Names, object_meta};
use super::stat_cache::{common_directory, split};
use super::succession::{Next, Succession};
use crate::store::{Key, ObjectMeta};

/// Directories whose files are opened at one time. With more of them they all begin anew, which costs a few round trips.
const DIRECTORIES: usize = 1024;

/// Programs that go from one directory to the next at one time.
const TRAILS: usize = 16;

/// After so many opens that are not in the order of the listing that of the inode numbers is tried, in a directory that is sorted within
/// milliseconds.
const OPENS_TO_SORT: usize = 8;
const MOST_TO_SORT: usize = 20_000;

/// Directories that are looked at for the next files, for each file that is opened.
const LOOKS: usize = 32;

/// Where readers are in the directories that they go through.
#[derive(Debug, Default)]
pub(super) struct Successions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    directories: HashMap<Key, Opens>,
    /// The latest last.
    trails: VecDeque<Trail>,
    /// Directories of which the order of the inode numbers is remembered, 160 kB for the largest.
    sorted: VecDeque<Key>,
}

/// Who opens the files of one directory after another.
#[derive(Debug)]
struct Trail {
    /// The directory that was entered last.
    last: Key,
    /// What all of them are in: it is not left by guesses.
    top: Key,
    /// How many of them came one after another in the order of the listings, up to the last one.
    in_order: u64,
    /// The directories after it that had files announced, or will have next.
    ahead: VecDeque<Announced>,
}

#[derive(Debug)]
struct Announced {
    directory: Key,
    /// All before this one.
    position: u64,
    files: u64,
}

impl State {
    /// The file at `position` of `directory`, which has this `listing`, was opened.
    fn on_open(&mut self, directory: &Key, position: u64, listing: &Listing, names: &Names) -> Next {
        if !self.directories.contains_key(directory) {
            self.enter(directory, names);
        }
        let opens = self.directories.get_mut(directory).expect("it was just put in");
        let mut is_sorted = false;
        let numbers = || {
            is_sorted = true;
            Numbers::of(listing, &names.inodes.lock())
        };
        let next = opens.on_open(position, listing, Instant::now(), numbers);
        if is_sorted {
            self.sorted.push_back(directory.clone());
            if self.sorted.len() > TRAILS
                && let Some(oldest) = self.sorted.pop_front().and_then(|oldest| self.directories.get_mut(&oldest))
            {
                oldest.numbered = None;
            }
        }
        next
    }

    /// The first file of `directory` is opened.
    fn enter(&mut self, directory: &Key, names: &Names) {
        if self.directories.len() >= DIRECTORIES {
            let trails = &self.trails;
            self.directories.retain(|directory, _| trails.iter().any(|trail| trail.last == *directory));
        }
        let left = |trail: &Trail, by: Order| {
            self.directories.get(&trail.last).is_some_and(|before| before.listed.is_left_for(&trail.last, directory, by, names))
        };
        let next = self.trails.iter().rposition(|trail| left(trail, Order::Listing) && names.ahead.leads_to(&trail.last, directory));
        // Whoever takes directories in an order of his own, such as cp -r that of inode numbers, still takes all that is in them.
        let like = |trail: &Trail| depth(&trail.last) == depth(directory) && left(trail, Order::Other);
        let from = next.or_else(|| self.trails.iter().rposition(like));
        let (trail, succession) = match from.and_then(|from| self.trails.remove(from)) {
            Some(mut trail) => {
                let before = &self.directories[&trail.last];
                trail.in_order = if next.is_some() { trail.in_order + 1 } else { 0 };
                let announced = trail.on_enter(directory);
                (trail, Succession::after(&before.listed, announced))
            }
            None => {
                let trail = Trail { last: directory.clone(), top: directory.clone(), in_order: 0, ahead: VecDeque::new() };
                (trail, Succession::default())
            }
        };
        self.directories.insert(directory.clone(), Opens { listed: succession, ..Opens::default() });
        if self.trails.len() >= TRAILS {
            self.trails.pop_front();
        }
        self.trails.push_back(trail);
    }
}

/// How the files of one directory are opened.
#[derive(Debug, Default)]
struct Opens {
    /// In the order of the listing.
    listed: Succession,
    /// In the order of the inode numbers, as cp(1) does with what readdir tells, if they are.
    numbered: Option<(Numbers, Succession)>,
    /// The first positions.
    first: Vec<u64>,
}

/// The order of the inode numbers in a directory.
#[derive(Debug)]
struct Numbers {
    /// The place of each position in it.
    places: Vec<u32>,
    positions: Vec<u32>,
}

impl Opens {
    fn on_open(&mut self, position: u64, listing: &Listing, now: Instant, numbers: impl FnOnce() -> Numbers) -> Next {
        let next = self.listed.on_open(position, listing.len as u64, now);
        if self.first.len() < OPENS_TO_SORT {
            self.first.push(position);
            if self.first.len() == OPENS_TO_SORT && !self.listed.is_in_order() && listing.len <= MOST_TO_SORT {
                self.numbered = numbers().succession(&self.first, now);
            }
            return next;
        }
        if let Some((numbers, succession)) = &mut self.numbered {
            if numbers.places.len() == listing.len && succession.is_dense() {
                return numbers.on_open(succession, position, now);
            }
            self.numbered = None;
        }
        next
    }
}

impl Numbers {
    fn of(listing: &Listing, inodes: &Inodes) -> Self {
        let entries = listing.pages.iter().flat_map(|page| page.entries.iter());
        let mut positions: Vec<_> = (0_u32..).zip(entries.map(|entry| inodes.number(&entry.key))).collect();
        positions.sort_unstable_by_key(|&(_, ino)| ino.0);
        let positions: Vec<u32> = positions.into_iter().map(|(position, _)| position).collect();
        let mut places = vec![0; positions.len()];
        for (place, &position) in (0..).zip(&positions) {
            places[position as usize] = place;
        }
        Self { places, positions }
    }

    /// Itself and how it was gone through, if what was `opened` is in this order.
    fn succession(self, opened: &[u64], now: Instant) -> Option<(Self, Succession)> {
        let mut succession = Succession::default();
        for &position in opened {
            // Of a listing that was longer then.
            if position as usize >= self.places.len() {
                return None;
            }
            self.on_open(&mut succession, position, now);
        }
        succession.is_in_order().then_some((self, succession))
    }

    fn on_open(&self, succession: &mut Succession, position: u64, now: Instant) -> Next {
        let next = succession.on_open(self.places[position as usize].into(), self.places.len() as u64, now);
        Next { positions: next.positions.into_iter().map(|place| self.positions[place as usize].into()).collect(), beyond: 0 }
    }
}

/// In which order directories are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Listing,
    Other,
}

impl Succession {
    /// Whether who went through `last` like this may be in `directory` now, when directories are taken in that order: all of it was opened,
    /// or all before what is in it. Without an order little says that it is the same one: then really all, for git reads some objects of
    /// each of many directories.
    fn is_left_for(&self, last: &Key, directory: &Key, by: Order, names: &Names) -> bool {
        if directory.as_bytes().starts_with(last.as_bytes()) {
            return self.is_dense();
        }
        let Some(listing) = names.cache.listing(last.as_bytes()) else { return false };
        self.is_through(listing.len as u64) && (by == Order::Listing || self.is_through_all(listing.files() as u64))
    }
}

impl Trail {
    /// It goes on in `directory`, of which so many positions were announced.
    fn on_enter(&mut self, directory: &Key) -> u64 {
        self.top = Key::from(common_directory(directory.as_bytes(), self.top.as_bytes()));
        self.last = directory.clone();
        let Some(at) = self.ahead.iter().position(|announced| announced.directory == *directory) else {
            self.ahead.clear();
            return 0;
        };
        self.ahead.drain(..=at).next_back().map_or(0, |announced| announced.position)
    }
}

impl Names {
    /// The file `key` was opened: those that will probably be opened next and were not named before.
    pub fn next_files(&self, key: &Key) -> Vec<ObjectMeta> {
        let (directory, name) = split(key.as_bytes());
        let Some(listing) = self.cache.listing(directory) else { return Vec::new() };
        let Some(position) = position(&listing, name) else { return Vec::new() };
        let directory = Key::from(directory);
        let mut state = self.successions.0.lock();
        let next = state.on_open(&directory, position, &listing, self);
        let mut files: Vec<_> = next.positions.into_iter().filter_map(|position| self.file_at(&listing, position)).collect();
        if next.beyond > 0 {
            self.files_beyond(&mut state, &directory, next.beyond, &mut files);
        }
        files
    }

    /// Files of the directories after `directory`, so that `wanted` of them are announced.
    fn files_beyond(&self, state: &mut State, directory: &Key, wanted: u64, files: &mut Vec<ObjectMeta>) {
        let State { directories, trails, .. } = state;
        let Some(trail) = trails.iter_mut().find(|trail| trail.last == *directory) else { return };
        let Trail { top, ahead, in_order, .. } = trail;
        if *in_order == 0 && top != directory {
            return;
        }
        let mut missing = wanted.saturating_sub(ahead.iter().map(|announced| announced.files).sum());
        for _ in 0..LOOKS {
            if missing == 0 {
                return;
            }
            let (at, is_read) = match ahead.back_mut() {
                None => (directory.clone(), true),
                Some(last) => {
                    let Some(listing) = self.cache.listing(last.directory.as_bytes()) else { return };
                    // Whose files were opened before, those are not opened again.
                    let end = if directories.contains_key(&last.directory) { 0 } else { listing.len as u64 };
                    while last.position < end && missing > 0 {
                        if let Some(file) = self.file_at(&listing, last.position) {
                            files.push(file);
                            last.files += 1;
                            missing -= 1;
                        }
                        last.position += 1;
                    }
                    (last.directory.clone(), last.position >= end)
                }
            };
            if is_read {
                let Some(next) = self.next_in_tree(top.as_bytes(), &at) else { return };
                ahead.push_back(Announced { directory: next, position: 0, files: 0 });
            }
        }
    }

    /// The directory after `directory` when all below `top` is gone through, each before what is in it.
    fn next_in_tree(&self, top: &[u8], directory: &Key) -> Option<Key> {
        if let Some(below) = self.cache.listing(directory.as_bytes())?.next_directory(None) {
            return Some(below.key.clone());
        }
        let mut from = directory.as_bytes();
        while from.len() > top.len() {
            let (above, name) = split(from.strip_suffix(b"/")?);
            if let Some(beside) = self.cache.listing(above)?.next_directory(Some(name)) {
                return Some(beside.key.clone());
            }
            from = above;
        }
        None
    }

    /// What is known of the file at `position`.
    fn file_at(&self, listing: &Listing, position: u64) -> Option<ObjectMeta> {
        let (page, at) = entry_at(listing, position)?;
        let entry = &page.entries[at];
        let fact = self.cache.entry(entry, page);
        match fact.what {
            What::File(facts) if fact.until > Instant::now() && facts.names_version() => Some(object_meta(entry.key.clone(), facts)),
            _ => None,
        }
    }
}

/// How many directories a directory is in, itself included.
fn depth(directory: &Key) -> usize {
    directory.as_bytes().iter().filter(|&&byte| byte == b'/').count()
}

/// The page that holds the entry at `position`, and where in it.
fn entry_at(listing: &Listing, position: u64) -> Option<(&Page, usize)> {
    let mut left = position as usize;
    for page in &listing.pages {
        if left < page.entries.len() {
            return Some((page, left));
        }
        left -= page.entries.len();
    }
    None
}

/// How many entries come before `name`.
fn position(listing: &Listing, name: &[u8]) -> Option<u64> {
    let page = listing.pages.partition_point(|page| page.ends_before(name));
    let before: usize = listing.pages[..page].iter().map(|page| page.entries.len()).sum();
    let at = listing.pages.get(page)?.position(name)?;
    Some((before + at) as u64)
}

#[cfg(test)]
mod tests;
