//! What readdir and readdirplus reply: some entries of a directory, with inode numbers and attributes. It neither
//! reads the listing nor knows where it comes from. Invariants: only what was really put into a reply is remembered;
//! the inode table is never locked while a reply is being filled.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::attr::{Attr, Entry};
use super::error::Error;
use super::fact::{Fact, What};
use super::inodes::{Inode, Kind};
use super::listing::{DirEntry, FileFacts};
use super::lookup::Names;
use super::walk::Slice;

/// `.` and `..` come before the entries.
pub(super) const DOTS: u64 = 2;

/// Entries of a readdirplus that are asked for one by one when listings are not to be trusted with attributes: about
/// what one reply of the kernel's usual page holds, so that few are asked for in vain.
const HEADS_A_PAGE: usize = 32;

/// Entries that are remembered under one lock of the inode table. What then finds no room in the reply is forgotten again: about
/// 48 fit into the 8 KiB that Go's library asks for, 190 into the 32 KiB of glibc's.
const BATCH: usize = 16;

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
    /// By so much offsets here are larger than those the kernel knows.
    shift: i64,
}

/// What readdirplus tells of an entry.
enum Shown<'a> {
    /// What the listing says.
    Listed(&'a FileFacts, Duration),
    Known(Fact),
    /// Nothing: it is no more.
    Gone,
}

/// Whether a page still has an entry to give (`.` and `..` are some) after all were asked for, or never had any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Something,
    Nothing,
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
    /// What is at `offset` of the directory `ino`; no entries: it ends there.
    pub(super) fn new(names: Arc<Names>, ino: Inode, parent: Inode, offset: u64, entries: Option<Slice>) -> Self {
        Self { names, ino, parent, offset, entries, asked: None, shift: 0 }
    }

    /// The kernel knows offsets by other numbers.
    pub(super) fn shifted(self, shift: i64) -> Self {
        Self { shift, ..self }
    }

    fn told(&self, offset: u64) -> u64 {
        offset.saturating_add_signed(-self.shift)
    }

    /// Whether the directory ends here.
    pub fn is_empty(&self) -> bool {
        self.entries.is_none() && self.offset >= DOTS
    }

    /// Whether nothing has to be asked for to give its entries with their attributes.
    pub(super) fn tells_attributes(&self) -> bool {
        self.entries.as_ref().is_none_or(|slice| self.names.options.readdir_optimize && !slice.page.carries)
    }

    /// The entries as they were listed.
    pub(super) fn into_slice(self) -> Option<Slice> {
        self.entries
    }

    /// Gives entries to `add` until it says true, which it does for the one that did not fit.
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
                if add(DirItem { ino, next_offset: self.told(offset), kind: entry.kind(), name: entry.name() }) {
                    return;
                }
            }
        }
    }

    /// As [`fill`](Self::fill) with attributes. Each entry that was taken counts as a lookup, except `.` and `..`,
    /// for which the kernel does not count either (`fuse_direntplus_link`), nor an entry that has [no number](Inode::NONE).
    pub fn fill_plus(&self, mut add: impl FnMut(DirItem<'_>, &Entry) -> bool) {
        for item in self.dots() {
            let Some(attr) = self.names.attr(item.ino, b"", &What::Directory(None)) else { continue };
            if add(item, &Entry { attr, ttl: Duration::ZERO }) {
                return;
            }
        }
        let mut offset = self.offset.max(DOTS);
        let as_listed = self.as_listed();
        for (number, batch) in self.slice().chunks(BATCH).enumerate() {
            let shown: [Shown<'_>; BATCH] = std::array::from_fn(|i| match batch.get(i) {
                Some(entry) => self.shown(number * BATCH + i, entry, as_listed),
                None => Shown::Gone,
            });
            let inos = self.remember(batch, &shown);
            for (i, (entry, shown_entry)) in batch.iter().zip(&shown).enumerate() {
                offset += 1;
                let Some(told) = self.entry(inos[i], entry, shown_entry) else { continue };
                let ino = if inos[i] == Inode::NONE { self.names.inodes.lock().number(&entry.key) } else { inos[i] };
                let item = DirItem { ino, next_offset: self.told(offset), kind: entry.kind(), name: entry.name() };
                if add(item, &told) {
                    self.forget(&inos[i..], &shown[i..]);
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

    /// For how long files are believed to be what the page says of them, when it alone decides.
    fn as_listed(&self) -> Option<Duration> {
        let slice = self.entries.as_ref().filter(|_| self.asked.is_none())?;
        self.names.cache.files_as_listed(&slice.page)
    }

    fn shown<'a>(&self, index: usize, entry: &'a DirEntry, as_listed: Option<Duration>) -> Shown<'a> {
        if let (Some(ttl), Some(file)) = (as_listed, &entry.file) {
            return Shown::Listed(file, ttl);
        }
        let fact = match (&self.asked, &self.entries) {
            (Some(asked), _) => asked.get(index).cloned().flatten(),
            (None, Some(slice)) => Some(self.names.cache.entry(entry, &slice.page)),
            (None, None) => None,
        };
        // What is absent shows nothing and is not remembered.
        fact.filter(|fact| fact.what.kind().is_some()).map_or(Shown::Gone, Shown::Known)
    }

    fn entry(&self, ino: Inode, entry: &DirEntry, shown: &Shown<'_>) -> Option<Entry> {
        if let (Some(file), false) = (self.names.dirty.get(ino), matches!(shown, Shown::Gone)) {
            return Some(Entry { attr: self.names.attr_of_dirty(&file), ttl: Duration::ZERO });
        }
        match shown {
            Shown::Listed(file, ttl) => {
                let mut attr = Attr::file(&self.names.options, ino, file);
                self.names.own.apply_to_file(entry.path(), file, &mut attr);
                attr.impose(&self.names.options);
                Some(Entry { attr, ttl: *ttl })
            }
            Shown::Known(fact) => {
                let attr = self.names.attr(ino, entry.path(), &fact.what)?;
                Some(Entry { attr, ttl: self.names.cache.remaining(fact.entry_until()) })
            }
            Shown::Gone => None,
        }
    }

    fn remember(&self, batch: &[DirEntry], shown: &[Shown<'_>; BATCH]) -> [Inode; BATCH] {
        let mut inodes = self.names.inodes.lock();
        if batch.first().is_none_or(|first| inodes.of_parent(self.ino, &first.key).is_none()) {
            // The directory was renamed since it was listed: the names are still there, under other keys.
            return [Inode::NONE; BATCH];
        }
        let learnt = self.entries.as_ref().map_or_else(Instant::now, |slice| slice.page.learnt);
        std::array::from_fn(|i| match (batch.get(i), &shown[i]) {
            (None, _) | (_, Shown::Gone) => Inode::ROOT,
            (Some(entry), Shown::Listed(facts, _)) => self.names.remember_file(&mut inodes, self.ino, &entry.key, &facts.etag, learnt),
            (Some(entry), Shown::Known(Fact { what: What::File(facts), learnt, .. })) => {
                self.names.remember_file(&mut inodes, self.ino, &entry.key, &facts.etag, *learnt)
            }
            (Some(entry), _) => inodes.remember(self.ino, &entry.key),
        })
    }

    fn forget(&self, inos: &[Inode], shown: &[Shown<'_>]) {
        let mut inodes = self.names.inodes.lock();
        for (&ino, _) in inos.iter().zip(shown).filter(|(_, shown)| !matches!(shown, Shown::Gone)) {
            inodes.forget(ino, 1);
        }
    }

    /// HEADs for the first entries of the page, and for the directories among them when attributes are kept with their markers. One that fails does not spoil the directory: its entry is given with
    /// what the listing said, to be believed for no time at all, and who stats it gets the error.
    pub(super) async fn ask_for_attributes(&mut self) -> Left {
        let Some(slice) = &self.entries else { return Left::Something };
        let (names, page) = (&self.names, &slice.page);
        let ask = |entry: &DirEntry| {
            let entry = entry.clone();
            async move {
                let known = names.cache.entry(&entry, page);
                let is_directory = entry.kind() == Kind::Directory;
                if is_directory && !page.carries || !names.cache.remaining(known.until).is_zero() {
                    return Some(known);
                }
                let asked = match is_directory {
                    true => names.probe.marker(&entry.key, known.named_until).await,
                    false => names.probe.object(&entry.key, Some(known.named_until)).await,
                };
                match asked {
                    Ok(Fact { what: What::Absent, .. }) => None,
                    Ok(fact) => Some(Fact { named_until: known.named_until, ..fact }),
                    Err(Error::NotFound) => None,
                    Err(_) => Some(known),
                }
            }
        };
        let asked: Vec<_> = stream::iter(slice.entries().iter().take(HEADS_A_PAGE)).map(ask).buffered(HEADS_A_PAGE).collect().await;
        let something = self.offset < DOTS || asked.iter().any(Option::is_some);
        self.asked = Some(asked);
        if something { Left::Something } else { Left::Nothing }
    }

    /// Where to read on after the entries that were asked for.
    pub(super) fn after_asked(&self) -> u64 {
        self.told(self.offset.max(DOTS) + self.asked.as_ref().map_or(0, Vec::len) as u64)
    }
}
