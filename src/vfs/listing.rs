//! Turns pages of a delimited LIST into directory entries, page by page. Pure: it asks for no page and keeps none.
//! Invariant: over all pages each name comes out exactly once, in [`order`]; a name that is both an object and a
//! common prefix comes out as the directory only, however many pages lie between the two.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::mem;
use std::sync::Arc;
use std::time::SystemTime;
use std::vec;

use super::error::{Error, Result};
use super::inodes::Kind;
use super::user_attributes::UserAttributes;
use crate::store::{ETag, Key, ListPage, ObjectMeta};

/// Longest name Linux takes (NAME_MAX).
const NAME_MAX: usize = 255;

/// What is known of an object beside its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    pub size: u64,
    pub etag: ETag,
    pub modified: SystemTime,
    /// What only a HEAD tells, when there is anything.
    pub extra: Option<Arc<Extra>>,
}

/// What is kept beside the content of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Where it leads, when it is a symbolic link.
    pub link: Option<Vec<u8>>,
    pub posix: Posix,
    pub user: UserAttributes,
}

/// Attributes that a listing does not know. None: those of the options, or of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posix {
    /// Permission bits.
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub modified: Option<SystemTime>,
    /// None: as `modified`.
    pub accessed: Option<SystemTime>,
}

impl FileFacts {
    /// File or symbolic link.
    pub fn kind(&self) -> Kind {
        if self.link().is_some() { Kind::Symlink } else { Kind::File }
    }

    /// Where it leads, when it is a symbolic link.
    pub fn link(&self) -> Option<&[u8]> {
        self.extra.as_ref()?.link.as_deref()
    }

    /// Whether it is known which version this is. Some stores list no etags; then only a HEAD tells.
    pub fn names_version(&self) -> bool {
        !self.etag.as_str().is_empty()
    }
}

impl From<&ObjectMeta> for FileFacts {
    fn from(meta: &ObjectMeta) -> Self {
        Self { size: meta.size, etag: meta.etag.clone(), modified: meta.modified, extra: None }
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The object, or the directory with its `/`. Shared with the page it came from: an entry costs no allocation.
    pub key: Key,
    /// Where the name starts in the key.
    name_start: usize,
    /// What the listing tells of a file; none is a directory.
    pub file: Option<FileFacts>,
}

impl DirEntry {
    /// A file that no listing has shown; `name_start`: where its name starts in the key.
    pub fn file(key: Key, name_start: usize, facts: FileFacts) -> Self {
        Self { key, name_start, file: Some(facts) }
    }

    /// A directory that no listing has shown; `key` ends in `/`.
    pub fn directory(key: Key, name_start: usize) -> Self {
        Self { key, name_start, file: None }
    }

    /// What a HEAD told of a file beside what the listing did.
    pub fn add(&mut self, extra: Option<Arc<Extra>>) {
        if let Some(file) = &mut self.file {
            file.extra = extra;
        }
    }

    /// Its name in the directory.
    pub fn name(&self) -> &[u8] {
        let name = &self.key.as_bytes()[self.name_start..];
        name.strip_suffix(b"/").unwrap_or(name)
    }

    /// The key without the `/` of a directory: what the stat cache calls it.
    pub fn path(&self) -> &[u8] {
        let key = self.key.as_bytes();
        key.strip_suffix(b"/").unwrap_or(key)
    }

    /// File or directory.
    pub fn kind(&self) -> Kind {
        self.file.as_ref().map_or(Kind::Directory, FileFacts::kind)
    }
}

/// Whether a component of a key can be a name in a directory.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    let odd = matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, 0 | b'/'));
    if odd { Err(Error::NotFound) } else { Ok(()) }
}

/// The order of entries: that of `name/`, for files too. A file can only be told from a directory of its name when
/// the listing has passed `name/`, and that is where it comes out.
pub fn order(a: &[u8], b: &[u8]) -> Ordering {
    let common = a.len().min(b.len());
    a[..common].cmp(&b[..common]).then_with(|| match (a.get(common), b.get(common)) {
        (None, None) => Ordering::Equal,
        // No name holds a '/', so these two are never equal.
        (None, Some(next)) => b'/'.cmp(next),
        (Some(next), None) => next.cmp(&b'/'),
        (Some(_), Some(_)) => unreachable!("one of the two ends where the common part ends"),
    })
}

/// The merge of one listing, between its pages.
#[derive(Debug)]
pub struct Merge {
    directory: Key,
    /// Objects whose directory may still come: each name is a prefix of the next, because between `foo` and `foo/`
    /// only keys that start with `foo` can come. So no more of them than a name has bytes.
    held: Vec<DirEntry>,
    /// The last key taken in.
    last: Option<Key>,
    ordered: bool,
    marker: Option<SystemTime>,
    conflicts: Vec<Key>,
    /// A name that is left out.
    without: Option<&'static [u8]>,
}

impl Merge {
    /// The merge of the listing of `directory`, which is empty or ends in `/`.
    pub fn new(directory: Key) -> Self {
        Self { directory, held: Vec::new(), last: None, ordered: true, marker: None, conflicts: Vec::new(), without: None }
    }

    /// The same without what stands under `name`, if there is one.
    #[must_use]
    pub fn without(self, name: Option<&'static [u8]>) -> Self {
        Self { without: name, ..self }
    }

    /// Takes the next page in and gives out the entries that are certain after it: all of them after the last page.
    pub fn on_page(&mut self, page: ListPage) -> Vec<DirEntry> {
        let is_last = page.next.is_none();
        let mut out = Vec::with_capacity(page.objects.len() + page.prefixes.len() + self.held.len());
        for item in Interleaved::new(page) {
            self.on_item(item, &mut out);
        }
        if is_last {
            out.extend(mem::take(&mut self.held).into_iter().rev());
        }
        out
    }

    /// Whether all keys came in byte order. If not, entries may be missing from a search, and come out twice.
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// When the directory's own marker object was written, when it has come by since the last call.
    pub fn take_marker(&mut self) -> Option<SystemTime> {
        self.marker.take()
    }

    /// The objects hidden by a directory of the same name since the last call.
    pub fn take_conflicts(&mut self) -> Vec<Key> {
        mem::take(&mut self.conflicts)
    }

    fn on_item(&mut self, item: Item, out: &mut Vec<DirEntry>) {
        let key = item.key().clone();
        match self.last.as_ref().map(|last| last.cmp(&key)) {
            // Some stores repeat the last common prefix of a page at the start of the next.
            Some(Ordering::Equal) => return,
            Some(Ordering::Greater) => self.ordered = false,
            Some(Ordering::Less) | None => {}
        }
        self.last = Some(key.clone());
        let Some(rest) = key.as_bytes().strip_prefix(self.directory.as_bytes()) else { return };
        let name = match &item {
            Item::Object(meta) if rest.is_empty() => {
                self.marker = Some(meta.modified);
                return;
            }
            Item::Object(_) => rest,
            Item::Prefix(_) => rest.strip_suffix(b"/").unwrap_or(rest),
        };
        // Also drops what has a '/' inside the name: the store rolls such keys up, so there is nothing to see.
        if check_name(name).is_err() || self.without == Some(name) {
            return;
        }
        self.release_before(rest, out);
        let name_start = self.directory.as_bytes().len();
        match item {
            Item::Object(meta) => self.held.push(DirEntry { file: Some(FileFacts::from(&meta)), key, name_start }),
            Item::Prefix(_) => {
                if self.held.last().is_some_and(|held| held.name() == name) {
                    self.conflicts.extend(self.held.pop().map(|held| held.key));
                }
                out.push(DirEntry { file: None, key, name_start });
            }
        }
    }

    /// Gives out the held objects whose directory would have come before `next`.
    fn release_before(&mut self, next: &[u8], out: &mut Vec<DirEntry>) {
        while let Some(held) = self.held.pop_if(|held| !next.starts_with(held.name()) || next[held.name().len()..].first() > Some(&b'/')) {
            out.push(held);
        }
    }
}

/// An object or a common prefix.
enum Item {
    Object(ObjectMeta),
    Prefix(Key),
}

impl Item {
    fn key(&self) -> &Key {
        match self {
            Self::Object(meta) => &meta.key,
            Self::Prefix(key) => key,
        }
    }
}

/// The two sorted lists of a page as one.
struct Interleaved {
    objects: Peekable<vec::IntoIter<ObjectMeta>>,
    prefixes: Peekable<vec::IntoIter<Key>>,
}

impl Interleaved {
    fn new(page: ListPage) -> Self {
        Self { objects: page.objects.into_iter().peekable(), prefixes: page.prefixes.into_iter().peekable() }
    }
}

impl Iterator for Interleaved {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        match (self.objects.peek(), self.prefixes.peek()) {
            (Some(object), Some(prefix)) if *prefix < object.key => self.prefixes.next().map(Item::Prefix),
            (Some(_), _) => self.objects.next().map(Item::Object),
            (None, _) => self.prefixes.next().map(Item::Prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn object(key: Key) -> ObjectMeta {
        ObjectMeta { size: key.as_bytes().len() as u64, key, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH }
    }

    /// What a store would answer for `keys`: items in byte order, cut into pages after each of `cuts` items.
    fn pages(directory: &Key, keys: &BTreeSet<Vec<u8>>, cuts: &[usize]) -> Vec<ListPage> {
        let mut items: Vec<(Key, bool)> = Vec::new();
        for key in keys {
            let Some(rest) = key.strip_prefix(directory.as_bytes()) else { continue };
            let item = match rest.iter().position(|&b| b == b'/') {
                Some(slash) => (directory.join(&rest[..=slash]), true),
                None => (Key::from(key.as_slice()), false),
            };
            if items.last() != Some(&item) {
                items.push(item);
            }
        }
        let mut pages = vec![ListPage::default()];
        let mut cuts = cuts.iter().cycle();
        let mut room = *cuts.next().unwrap_or(&1);
        for (key, is_prefix) in items {
            if room == 0 {
                pages.last_mut().expect("one").next = Some("more".into());
                pages.push(ListPage::default());
                room = *cuts.next().unwrap_or(&1);
            }
            room -= 1;
            let page = pages.last_mut().expect("one");
            if is_prefix { page.prefixes.push(key) } else { page.objects.push(object(key)) }
        }
        pages
    }

    fn merged(directory: &str, keys: &[&str], per_page: usize) -> Vec<String> {
        let directory = Key::from(directory);
        let keys = keys.iter().map(|k| k.as_bytes().to_vec()).collect();
        let mut merge = Merge::new(directory.clone());
        let entries: Vec<_> = pages(&directory, &keys, &[per_page]).into_iter().flat_map(|page| merge.on_page(page)).collect();
        let mark = |e: &DirEntry| if e.kind() == Kind::Directory { "/" } else { "" };
        entries.iter().map(|e| format!("{}{}", String::from_utf8_lossy(e.name()), mark(e))).collect()
    }

    #[test]
    fn the_directory_wins_though_pages_lie_between_it_and_the_file() {
        let keys = ["foo", "foo bar", "foo-bar", "foo.txt", "foo/x", "fop"];
        for per_page in 1..7 {
            assert_eq!(merged("", &keys, per_page), ["foo bar", "foo-bar", "foo.txt", "foo/", "fop"], "{per_page} a page");
        }
    }

    #[test]
    fn the_marker_is_not_an_entry_and_tells_its_time() {
        assert_eq!(merged("d/", &["d/", "d/a", "d/b/", "e"], 2), ["a", "b/"]);
        let mut merge = Merge::new(Key::from("d/"));
        merge.on_page(ListPage { objects: vec![object(Key::from("d/"))], ..ListPage::default() });
        assert_eq!(merge.take_marker(), Some(SystemTime::UNIX_EPOCH));
    }

    #[test]
    fn odd_names_are_hidden_and_the_rest_is_listed() {
        let long = "x".repeat(256);
        let keys = ["d//x", "d/./x", "d/..", "d/a\0b", "d/ok", &format!("d/{long}"), &format!("d/{long}/y"), &format!("d/{}", &long[1..])];
        assert_eq!(merged("d/", &keys, 3), ["ok".to_owned(), long[1..].to_owned()]);
    }

    #[test]
    fn a_prefix_that_is_repeated_on_the_next_page_is_one_entry() {
        let mut merge = Merge::new(Key::root());
        let page = |next: Option<&str>| ListPage { prefixes: vec![Key::from("a/")], next: next.map(Into::into), ..ListPage::default() };
        assert_eq!(merge.on_page(page(Some("t"))).len() + merge.on_page(page(None)).len(), 1);
        assert!(merge.is_ordered());
    }

    #[test]
    fn a_store_that_does_not_sort_is_noticed() {
        let mut merge = Merge::new(Key::root());
        merge.on_page(ListPage { objects: vec![object(Key::from("b")), object(Key::from("a"))], ..ListPage::default() });
        assert!(!merge.is_ordered());
    }

    proptest! {
        #[test]
        fn agrees_with_a_model_that_sees_the_whole_list(
            keys in prop::collection::btree_set("(d/|)[a./ -]{0,5}", 0..40),
            cuts in prop::collection::vec(1..5usize, 1..6),
            directory in prop::sample::select(vec!["", "d/"]),
        ) {
            let keys: BTreeSet<Vec<u8>> = keys.into_iter().map(String::into_bytes).filter(|k| !k.is_empty()).collect();
            let directory = Key::from(directory);
            let mut model: BTreeMap<Vec<u8>, (Kind, Vec<u8>)> = BTreeMap::new();
            let mut conflicts = BTreeSet::new();
            for rest in keys.iter().filter_map(|key| key.strip_prefix(directory.as_bytes())) {
                let name = rest.split(|&b| b == b'/').next().expect("a first component").to_vec();
                if check_name(&name).is_err() {
                    continue;
                }
                let kind = if rest.contains(&b'/') { Kind::Directory } else { Kind::File };
                let place = [name.as_slice(), b"/"].concat();
                let before = model.insert(place, (kind, name.clone()));
                if before.is_some_and(|(before, _)| before != kind) {
                    conflicts.insert(directory.join(&name));
                }
            }
            let mut merge = Merge::new(directory.clone());
            let mut seen = Vec::new();
            let mut hidden = Vec::new();
            for page in pages(&directory, &keys, &cuts) {
                seen.extend(merge.on_page(page));
                hidden.extend(merge.take_conflicts());
                prop_assert!(merge.held.windows(2).all(|two| two[1].name().starts_with(two[0].name())), "held more than a chain");
            }
            let seen: Vec<_> = seen.iter().map(|e| (e.kind(), e.name().to_vec())).collect();
            prop_assert_eq!(&seen, &model.into_values().collect::<Vec<_>>());
            prop_assert!(seen.windows(2).all(|two| order(&two[0].1, &two[1].1) == Ordering::Less));
            prop_assert!(merge.is_ordered());
            prop_assert_eq!(hidden.into_iter().collect::<BTreeSet<_>>(), conflicts);
        }
    }
}
