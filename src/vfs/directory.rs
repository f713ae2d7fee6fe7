//! Directory handles: turns the entries of a walk, or of a cached listing, into what readdir and readdirplus reply.
//! It asks for no page itself. Invariants: an offset means the same entry for as long as the handle is open; only
//! what was really put into a reply is remembered; a listing that failed is an error, never a shorter directory.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use parking_lot::Mutex;

use super::attr::Entry;
use super::error::{Error, Result};
use super::inodes::{Inode, Kind};
use super::listing::DirEntry;
use super::lookup::Names;
use super::stat_cache::{Fact, Listing, What};
use super::walk::{Found, Slice, Walk};
use crate::store::Key;

/// `.` and `..` come before the entries.
const DOTS: u64 = 2;

/// Entries of a readdirplus that are asked for one by one when listings are not to be trusted with attributes: about
/// what one reply of the kernel's usual page holds, so that few are asked for in vain.
const HEADS_A_PAGE: usize = 32;

/// Entries that are remembered under one lock of the inode table. More would hold up other threads, fewer would
/// spend more time with the lock than with the entries.
const BATCH: usize = 32;

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    names: Arc<Names>,
    ino: Inode,
    parent: Inode,
    key: Key,
    source: Mutex<Option<Source>>,
}

/// Where the entries come from.
#[derive(Clone, Debug)]
enum Source {
    Cached(Arc<Listing>),
    Walk(Arc<Walk>),
}

impl Names {
    /// Opens a directory. No request is sent before it is read.
    ///
    /// # Errors
    /// [`Error::NotADirectory`], [`Error::UnknownInode`].
    pub fn open_dir(self: &Arc<Self>, ino: Inode) -> Result<DirHandle> {
        let node = self.node(ino)?;
        if node.kind() != Kind::Directory {
            return Err(Error::NotADirectory);
        }
        Ok(DirHandle { names: self.clone(), ino, parent: node.parent, key: node.key, source: Mutex::default() })
    }

    /// The listing of a directory if it is believed, else the walk that another handle has begun, else a new walk.
    fn entries_of(&self, directory: &Key) -> Source {
        if let Some(listing) = self.cache.listing(directory.as_bytes()) {
            return Source::Cached(listing);
        }
        let mut walks = self.walks.lock();
        if let Some(walk) = walks.get(directory).and_then(|walk| walk.upgrade()).filter(|walk| walk.is_open_to_others()) {
            return Source::Walk(walk);
        }
        // Walks end with their last handle and leave their place here; it is cleared whenever the map would grow.
        if walks.len() == walks.capacity() {
            walks.retain(|_, walk| walk.strong_count() > 0);
        }
        let walk = self.new_walk(directory);
        walks.insert(directory.clone(), Arc::downgrade(&walk));
        Source::Walk(walk)
    }

    fn new_walk(&self, directory: &Key) -> Arc<Walk> {
        Walk::new(directory.clone(), self.store.clone(), self.cache.clone(), self.hidden.clone())
    }
}

impl DirHandle {
    /// The entries from `offset` on: 0 is the start, then what an entry named as its own. At least one, unless the
    /// directory ends there. Reading from 0 again begins anew, as rewinddir(3) asks for.
    ///
    /// # Errors
    /// Why the store could not list the directory. The next read asks it again.
    pub async fn read(&self, offset: u64) -> Result<DirPage> {
        if let Some(page) = self.try_read(offset) {
            return page;
        }
        let position = offset.saturating_sub(DOTS);
        let mut source = self.source_for_async(offset);
        loop {
            let found = match &source {
                Source::Cached(listing) => find_in(listing, position),
                Source::Walk(walk) => walk.read(position).await?,
            };
            if !matches!(found, Found::Dropped) {
                return Ok(self.page(offset, found));
            }
            // A walk of our own, from the start and past what was read already: one that others may join could
            // leave us behind again.
            source = Source::Walk(self.names.new_walk(&self.key));
            *self.source.lock() = Some(source.clone());
        }
    }

    /// [`read`](Self::read) when that takes no request, neither for these entries nor to fetch ahead.
    pub fn try_read(&self, offset: u64) -> Option<Result<DirPage>> {
        let position = offset.saturating_sub(DOTS);
        let found = match self.source_for_try(offset)? {
            Source::Cached(listing) => find_in(&listing, position),
            Source::Walk(walk) => walk.peek(position)?,
        };
        (!matches!(found, Found::Dropped)).then(|| Ok(self.page(offset, found)))
    }

    /// [`read`](Self::read) for readdirplus: when attributes are not to be taken from the listing, they are asked for
    /// here, side by side.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_plus(&self, offset: u64) -> Result<DirPage> {
        let mut page = self.read(offset).await?;
        while !self.names.options.readdir_optimize {
            let Some(asked) = page.ask_for_attributes().await else { break };
            // A page of which nothing is left would look like the end of the directory.
            let next = page.offset.max(DOTS) + asked as u64;
            if page.offset < DOTS || page.asked.iter().flatten().any(Option::is_some) {
                break;
            }
            page = self.read(next).await?;
        }
        Ok(page)
    }

    /// [`read_plus`](Self::read_plus) when that takes no request.
    pub fn try_read_plus(&self, offset: u64) -> Option<Result<DirPage>> {
        if self.names.options.readdir_optimize { self.try_read(offset) } else { None }
    }

    /// Whether its entries are a listing that is believed, so that what the kernel kept of an earlier reading is too.
    pub fn is_cached(&self) -> bool {
        self.names.cache.listing(self.key.as_bytes()).is_some()
    }

    /// Entries of the directory that are in memory for this handle.
    pub fn held_entries(&self) -> usize {
        match &*self.source.lock() {
            None => 0,
            Some(Source::Cached(listing)) => listing.len,
            Some(Source::Walk(walk)) => walk.held(),
        }
    }

    /// The source to read from; a read from the start looks for the best one there is now.
    fn source_for_async(&self, offset: u64) -> Source {
        let mut source = self.source.lock();
        match &*source {
            Some(source) if offset > 0 => source.clone(),
            _ => source.insert(self.names.entries_of(&self.key)).clone(),
        }
    }

    fn source_for_try(&self, offset: u64) -> Option<Source> {
        let mut source = self.source.lock();
        match &*source {
            Some(source) if offset > 0 => Some(source.clone()),
            _ => {
                let listing = self.names.cache.listing(self.key.as_bytes())?;
                Some(source.insert(Source::Cached(listing)).clone())
            }
        }
    }

    fn page(&self, offset: u64, found: Found) -> DirPage {
        let entries = match found {
            Found::Entries(slice) => Some(slice),
            Found::End | Found::Dropped => None,
        };
        DirPage { names: self.names.clone(), ino: self.ino, parent: self.parent, offset, entries, asked: None }
    }
}

/// What is at `position` of a complete listing.
fn find_in(listing: &Listing, position: u64) -> Found {
    let Some(mut skip) = usize::try_from(position).ok().filter(|&position| position < listing.len) else { return Found::End };
    for page in &listing.pages {
        if skip < page.entries.len() {
            return Found::Entries(Slice { page: page.clone(), from: skip });
        }
        skip -= page.entries.len();
    }
    Found::End
}

/// Entries to reply, from one offset on.
#[derive(Debug)]
pub struct DirPage {
    names: Arc<Names>,
    ino: Inode,
    parent: Inode,
    offset: u64,
    entries: Option<Slice>,
    /// What was asked for one by one: only as many entries as this are given to readdirplus. None: entry is gone.
    asked: Option<Vec<Option<Fact>>>,
}

/// One entry as readdir shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirItem<'a> {
    pub ino: Inode,
    /// Where to read on after this entry.
    pub next_offset: u64,
    pub kind: Kind,
    pub name: &'a [u8],
}

impl DirPage {
    /// Whether the directory ends here.
    pub fn is_empty(&self) -> bool {
        self.entries.is_none() && self.offset >= DOTS
    }

    /// Gives entries to `add` until it says that it took no more (true, as fuser's `add` does for the one that did
    /// not fit).
    pub fn fill(&self, mut add: impl FnMut(DirItem<'_>) -> bool) {
        for item in self.dots() {
            if add(item) {
                return;
            }
        }
        let mut offset = self.offset.max(DOTS);
        for batch in self.slice().chunks(BATCH) {
            let numbers: [Inode; BATCH] = {
                let inodes = self.names.inodes.lock();
                std::array::from_fn(|i| batch.get(i).map_or(Inode::ROOT, |entry| inodes.number(&entry.key)))
            };
            for (entry, ino) in batch.iter().zip(numbers) {
                offset += 1;
                if add(DirItem { ino, next_offset: offset, kind: entry.kind(), name: entry.name() }) {
                    return;
                }
            }
        }
    }

    /// As [`fill`](Self::fill) with attributes. Each entry that was taken counts as a lookup, except `.` and `..`,
    /// for which the kernel does not count either (`fuse_direntplus_link`).
    pub fn fill_plus(&self, mut add: impl FnMut(DirItem<'_>, &Entry) -> bool) {
        for item in self.dots() {
            let Some(attr) = self.names.attr(item.ino, &What::Directory(None)) else { continue };
            if add(item, &Entry { attr, ttl: Duration::ZERO }) {
                return;
            }
        }
        let mut offset = self.offset.max(DOTS);
        for (number, batch) in self.slice().chunks(BATCH).enumerate() {
            let facts: Vec<Option<Fact>> = batch.iter().enumerate().map(|(i, entry)| self.fact(number * BATCH + i, entry)).collect();
            let inos = self.remember(batch, &facts);
            for (i, (entry, fact)) in batch.iter().zip(&facts).enumerate() {
                offset += 1;
                let Some((fact, attr)) = fact.as_ref().and_then(|fact| Some((fact, self.names.attr(inos[i], &fact.what)?))) else {
                    continue;
                };
                let item = DirItem { ino: inos[i], next_offset: offset, kind: entry.kind(), name: entry.name() };
                if add(item, &Entry { attr, ttl: self.names.cache.remaining(fact.entry_until()) }) {
                    self.forget(&inos[i..], &facts[i..]);
                    return;
                }
            }
        }
    }

    /// The entries to give; fewer when attributes were asked for one by one.
    fn slice(&self) -> &[DirEntry] {
        let entries = self.entries.as_ref().map_or(&[][..], Slice::entries);
        &entries[..entries.len().min(self.asked.as_ref().map_or(usize::MAX, Vec::len))]
    }

    fn dots(&self) -> impl Iterator<Item = DirItem<'static>> {
        let dots: [(Inode, &'static [u8]); 2] = [(self.ino, b"."), (self.parent, b"..")];
        let skip = usize::try_from(self.offset).unwrap_or(usize::MAX);
        dots.into_iter().zip(1..).map(|((ino, name), next_offset)| DirItem { ino, next_offset, kind: Kind::Directory, name }).skip(skip)
    }

    fn fact(&self, index: usize, entry: &DirEntry) -> Option<Fact> {
        match &self.asked {
            Some(asked) => asked.get(index)?.clone(),
            None => Some(self.names.cache.entry(entry, self.entries.as_ref()?.page.learnt)),
        }
    }

    fn remember(&self, batch: &[DirEntry], facts: &[Option<Fact>]) -> Vec<Inode> {
        let mut inodes = self.names.inodes.lock();
        let remember = |(entry, fact): (&DirEntry, &Option<Fact>)| match fact {
            Some(_) => inodes.remember(self.ino, &entry.key),
            None => Inode::ROOT,
        };
        batch.iter().zip(facts).map(remember).collect()
    }

    fn forget(&self, inos: &[Inode], facts: &[Option<Fact>]) {
        let mut inodes = self.names.inodes.lock();
        for (&ino, _) in inos.iter().zip(facts).filter(|(_, fact)| fact.is_some()) {
            inodes.forget(ino, 1);
        }
    }

    /// HEADs for the first files of the page. One that fails does not spoil the directory: its entry is given with
    /// what the listing said, to be believed for no time at all, and who stats it gets the error. Returns how many
    /// entries were asked for, if there are any.
    async fn ask_for_attributes(&mut self) -> Option<usize> {
        let slice = self.entries.as_ref()?;
        let (names, learnt) = (&self.names, slice.page.learnt);
        let ask = |entry: &DirEntry| {
            let entry = entry.clone();
            async move {
                let known = names.cache.entry(&entry, learnt);
                if entry.kind() == Kind::Directory || !names.cache.remaining(known.until).is_zero() {
                    return Some(known);
                }
                match names.probe.object(&entry.key, Some(known.named_until)).await {
                    Ok(Fact { what: What::Absent, .. }) => None,
                    Ok(fact) => Some(Fact { named_until: known.named_until, ..fact }),
                    Err(Error::NotFound) => None,
                    Err(_) => Some(known),
                }
            }
        };
        let asked = stream::iter(slice.entries().iter().take(HEADS_A_PAGE)).map(ask).buffered(HEADS_A_PAGE).collect::<Vec<_>>().await;
        Some(self.asked.insert(asked).len())
    }
}
