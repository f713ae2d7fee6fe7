//! What can be known of a name, and of a directory as a whole, with the time it was learnt. Nothing here keeps or
//! judges it. Invariant: a fact is not changed after it was learnt.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use super::inodes::Kind;
use super::listing::{DirEntry, FileFacts, Posix, order};
use super::posix;
use super::user_attributes::UserAttributes;
use crate::store::Details;

/// What a name stands for, or stood for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    File(FileFacts),
    /// With its marker object, when that has been seen.
    Directory(Option<Marker>),
    Absent,
}

/// The marker object of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    pub modified: SystemTime,
    /// What only a HEAD tells.
    pub posix: Posix,
    pub user: UserAttributes,
}

impl From<SystemTime> for Marker {
    /// One of which only the time is known.
    fn from(modified: SystemTime) -> Self {
        Self { modified, posix: Posix::default(), user: UserAttributes::default() }
    }
}

impl From<&Details> for Marker {
    fn from(details: &Details) -> Self {
        let metadata = &details.headers.metadata;
        Self { modified: details.meta.modified, posix: posix::read(metadata), user: UserAttributes::read(metadata) }
    }
}

impl What {
    /// What it is, if it is anything.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::File(facts) => Some(facts.kind()),
            Self::Directory(_) => Some(Kind::Directory),
            Self::Absent => None,
        }
    }
}

/// Something that is known of a path (a key without the `/` of a directory).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub what: What,
    pub learnt: Instant,
    /// Until when the attributes are believed. Already over for a file that was only seen in a listing when
    /// attributes are not to be taken from there.
    pub until: Instant,
    /// Until when it is believed to be what the name stands for. Earlier than `until` when only the object was asked
    /// for: a directory of the same name would hide it.
    pub named_until: Instant,
}

impl Fact {
    /// Until when both are believed.
    pub fn entry_until(&self) -> Instant {
        self.until.min(self.named_until)
    }
}

/// Entries of a listing that came together. Never empty.
#[derive(Clone, Debug)]
pub struct Page {
    pub entries: Arc<[DirEntry]>,
    pub learnt: Instant,
    /// Whether they may have attributes that only a HEAD tells.
    pub carries: bool,
}

impl Page {
    /// Where `name` stands to the names of this page: for a binary search over pages.
    pub fn ends_before(&self, name: &[u8]) -> bool {
        self.entries.last().is_some_and(|last| order(last.name(), name).is_lt())
    }

    /// The entry of that name.
    pub fn find(&self, name: &[u8]) -> Option<&DirEntry> {
        self.position(name).map(|at| &self.entries[at])
    }

    /// Where that entry is.
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.entries.binary_search_by(|entry| order(entry.name(), name)).ok()
    }
}

/// All entries of a directory.
#[derive(Debug)]
pub struct Listing {
    pub pages: Vec<Page>,
    /// Entries in all pages.
    pub len: usize,
    /// When the first page came: what is not in the listing was absent no later than that.
    pub learnt: Instant,
    /// As of its pages.
    pub carries: bool,
}

impl Listing {
    /// One that came at once.
    pub fn whole(entries: Vec<DirEntry>, learnt: Instant, carries: bool) -> Self {
        let len = entries.len();
        let pages = if entries.is_empty() { Vec::new() } else { vec![Page { entries: entries.into(), learnt, carries }] };
        Self { pages, len, learnt, carries }
    }

    /// How many of the entries are no directories.
    pub fn files(&self) -> usize {
        self.pages.iter().flat_map(|page| page.entries.iter()).filter(|entry| entry.file.is_some()).count()
    }

    /// The first directory behind `from`, or of all.
    pub fn next_directory(&self, from: Option<&[u8]>) -> Option<&DirEntry> {
        self.behind(from).find(|entry| entry.file.is_none())
    }

    /// How many directories stand behind `from`, or at the start when that is none, and before `to`; counted up to `most`.
    pub fn directories_between(&self, from: Option<&[u8]>, to: &[u8], most: usize) -> usize {
        let behind = self.behind(from).take_while(|entry| order(entry.name(), to).is_lt());
        behind.filter(|entry| entry.file.is_none()).take(most).count()
    }

    /// The entries behind `from`, or all.
    fn behind(&self, from: Option<&[u8]>) -> impl Iterator<Item = &DirEntry> {
        let page = from.map_or(0, |from| self.pages.partition_point(|page| page.ends_before(from)));
        let pages = self.pages.get(page..).unwrap_or_default();
        let passed = |page: &Page, from| page.entries.partition_point(|entry| order(entry.name(), from).is_le());
        let skipped = from.zip(pages.first()).map_or(0, |(from, page)| passed(page, from));
        pages.iter().flat_map(|page| page.entries.iter()).skip(skipped)
    }
}
