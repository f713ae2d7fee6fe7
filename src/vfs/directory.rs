//! Directory handles: finds the entries at an offset, in a cached listing or in a walk that is under way. It asks for
//! no page itself. Invariants: an offset means the same entry from one rewind to the next; a listing that failed is
//! an error, never a shorter directory.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::OWN_DIRECTORY;
use super::dir_page::{DOTS, DirPage, Left};
use super::error::{Error, Result};
use super::fact::{Listing, Page, What};
use super::inodes::{Inode, Kind};
use super::listing::DirEntry;
use super::lookup::Names;
use super::walk::{Found, Slice, Walk};
use crate::store::Key;

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    names: Arc<Names>,
    ino: Inode,
    parent: Inode,
    /// The key that it was opened under.
    opened: Key,
    /// Whether it goes where a rename takes the directory.
    is_of_inode: bool,
    /// Of the listing of this key.
    source: Mutex<Option<(Key, Source)>>,
    tail: Mutex<Tail>,
    /// None: it was opened through this daemon.
    resumed: Option<Mutex<Resumed>>,
}

/// Where a directory is read on that was opened through another daemon: offsets are places in the listing that that one had.
#[derive(Clone, Debug)]
enum Resumed {
    /// The entry of this name was given, with this offset after it.
    After(u64, Vec<u8>),
    /// Places in the listing of now are so much larger.
    Shift(i64),
}

/// What comes behind the entries that the store lists: files that were not in the bucket yet when reading began.
#[derive(Debug)]
enum Tail {
    Names(Vec<Key>),
    /// Without those that the listing had after all.
    Entries(Page),
}

/// Where the entries come from.
#[derive(Clone, Debug)]
pub(super) enum Source {
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
        Ok(DirHandle { is_of_inode: true, ..DirHandle::new(self, ino, node.parent, node.key) })
    }

    /// The listing of a directory if it is believed, else the walk that another handle has begun, else a new walk.
    pub(super) fn entries_of(&self, directory: &Key) -> Source {
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

    /// The name in `directory` that no listing shows.
    pub(super) fn left_out_of(&self, directory: &Key) -> Option<&'static [u8]> {
        (directory.as_bytes() == self.options.prefix.as_bytes()).then_some(OWN_DIRECTORY)
    }

    fn new_walk(&self, directory: &Key) -> Arc<Walk> {
        Walk::new(directory.clone(), self.left_out_of(directory), self.store.clone(), self.cache.clone(), self.hidden.clone())
    }
}

impl DirHandle {
    /// A handle of the directory `key`, which is shown as `ino`.
    pub(super) fn new(names: &Arc<Names>, ino: Inode, parent: Inode, key: Key) -> Self {
        let tail = Mutex::new(Tail::Names(Vec::new()));
        Self { names: names.clone(), ino, parent, opened: key, is_of_inode: false, source: Mutex::default(), tail, resumed: None }
    }

    /// The key of the directory, which a rename changes.
    fn key(&self) -> Key {
        match self.names.node(self.ino) {
            Ok(node) if self.is_of_inode => node.key,
            _ => self.opened.clone(),
        }
    }

    /// Goes on where another daemon was: behind `last`, if that had given any entry, by its name, since what came before it may be gone by now
    /// (whoever removes a tree reads on in what it removes from).
    pub fn going_on_after(self, last: Option<(u64, Vec<u8>)>) -> Self {
        Self { resumed: last.map(|(offset, name)| Mutex::new(Resumed::After(offset, name))), ..self }
    }

    /// By how much `offset` is larger here, as far as that is known.
    fn known_shift(&self, offset: u64) -> Option<i64> {
        let Some(resumed) = &self.resumed else { return Some(0) };
        let mut resumed = resumed.lock();
        if offset <= DOTS {
            *resumed = Resumed::Shift(0);
        }
        match &*resumed {
            Resumed::Shift(shift) => Some(*shift),
            Resumed::After(..) => None,
        }
    }

    async fn shift(&self, offset: u64) -> Result<i64> {
        if let Some(shift) = self.known_shift(offset) {
            return Ok(shift);
        }
        let Some(resumed) = &self.resumed else { return Ok(0) };
        let Resumed::After(after, name) = resumed.lock().clone() else { return Ok(0) };
        let mut place = DOTS;
        while let Some(slice) = self.read_here(place).await?.into_slice() {
            let before = slice.entries().iter().take_while(|entry| entry.name() <= &name[..]).count();
            place += before as u64;
            if before < slice.entries().len() {
                break;
            }
        }
        let shift = place.cast_signed() - after.cast_signed();
        *resumed.lock() = Resumed::Shift(shift);
        Ok(shift)
    }

    /// The entries from `offset` on: 0 is the start, then what an entry named as its own. At least one, unless the
    /// directory ends there. Reading from 0 again begins anew, as rewinddir(3) asks for.
    ///
    /// # Errors
    /// Why the store could not list the directory. The next read asks it again.
    pub async fn read(&self, offset: u64) -> Result<DirPage> {
        let shift = self.shift(offset).await?;
        Ok(self.read_here(offset.saturating_add_signed(shift)).await?.shifted(shift))
    }

    async fn read_here(&self, offset: u64) -> Result<DirPage> {
        loop {
            if let Some(page) = self.try_read_here(offset) {
                return page;
            }
            let key = self.key();
            let page = self.read_at(&key, offset).await?;
            if self.key() == key && !self.names.locks.is_renamed(&key) {
                return Ok(page);
            }
            // What a rename had moved already was not there. Entries keep their order, and with it their places.
            drop(self.names.locks.share(&key).await);
        }
    }

    async fn read_at(&self, key: &Key, offset: u64) -> Result<DirPage> {
        let position = offset.saturating_sub(DOTS);
        if offset == 0 {
            self.names.ahead.before(key).await;
        }
        let mut source = self.source_for_async(key, offset);
        loop {
            let found = match &source {
                Source::Cached(listing) => find_in(listing, position),
                Source::Walk(walk) => walk.read(position).await?,
            };
            if !matches!(found, Found::Dropped) {
                return Ok(self.page(key, offset, found));
            }
            // A walk of our own, from the start and past what was read already: one that others may join could
            // leave us behind again.
            source = Source::Walk(self.names.new_walk(key));
            *self.source.lock() = Some((key.clone(), source.clone()));
        }
    }

    /// [`read`](Self::read) when that takes no request, neither for these entries nor to fetch ahead.
    pub fn try_read(&self, offset: u64) -> Option<Result<DirPage>> {
        let shift = self.known_shift(offset)?;
        Some(self.try_read_here(offset.saturating_add_signed(shift))?.map(|page| page.shifted(shift)))
    }

    fn try_read_here(&self, offset: u64) -> Option<Result<DirPage>> {
        let (key, position) = (self.key(), offset.saturating_sub(DOTS));
        if self.names.locks.is_renamed(&key) {
            return None;
        }
        let found = match self.source_for_try(&key, offset)? {
            Source::Cached(listing) => find_in(&listing, position),
            Source::Walk(walk) => walk.peek(position)?,
        };
        (!matches!(found, Found::Dropped)).then(|| Ok(self.page(&key, offset, found)))
    }

    /// [`read`](Self::read) for readdirplus: when attributes are not to be taken from the listing, they are asked for
    /// here, side by side.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_plus(&self, offset: u64) -> Result<DirPage> {
        let mut page = self.read(offset).await?;
        if page.tells_attributes() {
            return Ok(page);
        }
        // A page of which no entry is left would look like the end of the directory.
        while page.ask_for_attributes().await == Left::Nothing {
            page = self.read(page.after_asked()).await?;
        }
        Ok(page)
    }

    /// [`read_plus`](Self::read_plus) when that takes no request.
    pub fn try_read_plus(&self, offset: u64) -> Option<Result<DirPage>> {
        self.try_read(offset).filter(|page| page.as_ref().map_or(true, DirPage::tells_attributes))
    }

    /// Whether its entries are a listing that is believed, so that what the kernel kept of an earlier reading is too.
    pub fn is_cached(&self) -> bool {
        self.names.cache.listing(self.key().as_bytes()).is_some()
    }

    /// Entries of the directory that are in memory for this handle.
    pub fn held_entries(&self) -> usize {
        match &*self.source.lock() {
            None => 0,
            Some((_, Source::Cached(listing))) => listing.len,
            Some((_, Source::Walk(walk))) => walk.held(),
        }
    }

    /// The source to read from; a read from the start looks for the best one there is now, and so does one after a rename.
    fn source_for_async(&self, key: &Key, offset: u64) -> Source {
        let mut source = self.source.lock();
        match &*source {
            Some((of, source)) if offset > 0 && of == key => source.clone(),
            _ => {
                *self.tail.lock() = Tail::Names(self.names.dirty.new_in(key));
                source.insert((key.clone(), self.names.entries_of(key))).1.clone()
            }
        }
    }

    fn source_for_try(&self, key: &Key, offset: u64) -> Option<Source> {
        let mut source = self.source.lock();
        match &*source {
            Some((of, source)) if offset > 0 && of == key => Some(source.clone()),
            _ => {
                // First: what is committed in between is in the listing.
                let new = self.names.dirty.new_in(key);
                let listing = self.names.cache.listing(key.as_bytes())?;
                self.names.ahead.on_known(key);
                *self.tail.lock() = Tail::Names(new);
                Some(source.insert((key.clone(), Source::Cached(listing))).1.clone())
            }
        }
    }

    fn page(&self, key: &Key, offset: u64, found: Found) -> DirPage {
        let entries = match found {
            Found::Entries(slice) => Some(slice),
            Found::End(len) => self.after(key, len, offset.saturating_sub(DOTS)),
            Found::Dropped => None,
        };
        DirPage::new(self.names.clone(), self.ino, self.parent, offset, entries)
    }
}

impl DirHandle {
    /// What is at `position` behind the `len` entries of the listing of `key`.
    fn after(&self, key: &Key, len: u64, position: u64) -> Option<Slice> {
        let source = self.source.lock().as_ref().map(|(_, source)| source.clone());
        let mut tail = self.tail.lock();
        let page = match &*tail {
            Tail::Entries(page) => page.clone(),
            Tail::Names(names) => {
                let page = self.tail_of(key, names, source.as_ref());
                *tail = Tail::Entries(page.clone());
                page
            }
        };
        let from = usize::try_from(position - len.min(position)).ok().filter(|&from| from < page.entries.len())?;
        Some(Slice { page, from })
    }

    /// Those of `names` that the listing lacks and that are still there.
    fn tail_of(&self, key: &Key, names: &[Key], source: Option<&Source>) -> Page {
        let start = key.as_bytes().len();
        let entries = names.iter().filter(|key| !source.is_some_and(|source| source.has(&key.as_bytes()[start..]))).filter_map(|key| {
            let facts = match self.names.dirty.named(key.as_bytes()) {
                Some(file) => file.facts(),
                // Committed or removed since reading began.
                None => match self.names.known_name(key)?.what {
                    What::File(facts) => facts,
                    What::Directory(_) | What::Absent => return None,
                },
            };
            Some(DirEntry::file(key.clone(), start, facts))
        });
        Page { entries: entries.collect(), learnt: Instant::now(), carries: false }
    }
}

impl Source {
    /// Whether the listing has an entry of that name, as far as it is in memory.
    fn has(&self, name: &[u8]) -> bool {
        match self {
            Self::Cached(listing) => {
                let page = listing.pages.partition_point(|page| page.ends_before(name));
                listing.pages.get(page).is_some_and(|page| page.find(name).is_some())
            }
            Self::Walk(walk) => walk.find(name).is_some(),
        }
    }
}

/// What is at `position` of a complete listing.
fn find_in(listing: &Listing, position: u64) -> Found {
    let Some(mut skip) = usize::try_from(position).ok().filter(|&position| position < listing.len) else {
        return Found::End(listing.len as u64);
    };
    for page in &listing.pages {
        if skip < page.entries.len() {
            return Found::Entries(Slice { page: page.clone(), from: skip });
        }
        skip -= page.entries.len();
    }
    Found::End(listing.len as u64)
}
