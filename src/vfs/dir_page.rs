//! What readdir and readdirplus reply: some entries of a directory, with inode numbers and attributes. It neither
//! reads the listing nor knows where it comes from. Invariants: only what was really put into a reply is remembered;
//! the inode table is never locked while a reply is being filled.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};

use super::attr::Entry;
use super::error::Error;
use super::fact::{Fact, What};
use super::inodes::{Inode, Kind};
use super::listing::DirEntry;
use super::lookup::Names;
use super::walk::Slice;

/// `.` and `..` come before the entries.
pub(super) const DOTS: u64 = 2;

/// Entries of a readdirplus that are asked for one by one when listings are not to be trusted with attributes: about
/// what one reply of the kernel's usual page holds, so that few are asked for in vain.
const HEADS_A_PAGE: usize = 32;

/// Entries that are remembered under one lock of the inode table. More would hold up other threads, fewer would
/// spend more time with the lock than with the entries.
const BATCH: usize = 32;

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
        Self { names, ino, parent, offset, entries, asked: None }
    }

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
    /// what the listing said, to be believed for no time at all, and who stats it gets the error.
    pub(super) async fn ask_for_attributes(&mut self) -> Left {
        let Some(slice) = &self.entries else { return Left::Something };
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
        let asked: Vec<_> = stream::iter(slice.entries().iter().take(HEADS_A_PAGE)).map(ask).buffered(HEADS_A_PAGE).collect().await;
        let something = self.offset < DOTS || asked.iter().any(Option::is_some);
        self.asked = Some(asked);
        if something { Left::Something } else { Left::Nothing }
    }

    /// Where to read on after the entries that were asked for.
    pub(super) fn after_asked(&self) -> u64 {
        self.offset.max(DOTS) + self.asked.as_ref().map_or(0, Vec::len) as u64
    }
}
