//! Single pages of the listings of large directories: which names in their ranges are free, and which page is worth another request. Pure.
//! Invariant: a page is fetched again only when this mount created at least [`CREATED`] names in its range while it was valid, so that pages
//! cost at most one request for each [`CREATED`] names; beside those there are at most [`UNPROVEN`] pages of a directory.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::split;
use crate::store::Key;

/// Pages that are kept, of all directories together: each lookup of an unknown name reads through them.
const PAGES: usize = 256;

/// Pages of one directory in whose ranges too few names were created yet.
const UNPROVEN: usize = 8;

/// Names that are created in the range of a page while it is valid, so that it is worth being fetched again.
const CREATED: usize = 2;

/// One page of the listing of a directory that has more entries.
#[derive(Debug)]
pub(super) struct DirectoryPage {
    pub directory: Key,
    /// The page has all keys behind this one ...
    pub after: Key,
    /// ... up to this one, or to the end.
    pub to: Option<Key>,
    /// Paths that stand for something.
    pub paths: HashSet<Key>,
    /// When the store was asked.
    pub learnt: Instant,
    /// Names that this mount created in the range while the page was valid, and half of those of the pages it replaced.
    created: usize,
    /// It is being fetched again.
    is_refreshing: bool,
}

impl DirectoryPage {
    /// A page as the store returned it.
    pub fn new(directory: Key, (after, to): (Key, Option<Key>), paths: HashSet<Key>, learnt: Instant) -> Self {
        Self { directory, after, to, paths, learnt, created: 0, is_refreshing: false }
    }

    /// Whether the page would have shown both an object and a directory at `path`.
    fn covers(&self, path: &[u8]) -> bool {
        let directory = path.iter().chain(b"/");
        split(path).0 == self.directory.as_bytes()
            && path > self.after.as_bytes()
            && self.to.as_ref().is_none_or(|to| directory.le(to.as_bytes()))
    }

    /// Whether `other` has nothing that this page has not.
    fn includes(&self, other: &Self) -> bool {
        let reaches = match (&self.to, &other.to) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(to), Some(other)) => to >= other,
        };
        // The same page again may end earlier, since names were created in it.
        self.directory == other.directory && self.after <= other.after && (reaches || self.after == other.after)
    }

    fn is_proven(&self) -> bool {
        self.created >= CREATED
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DirectoryPages {
    /// The newest last.
    pages: VecDeque<DirectoryPage>,
}

impl DirectoryPages {
    /// Adds a page, and drops what is older so that all of them have at most `most` paths.
    pub fn insert(&mut self, mut page: DirectoryPage, most: u64) {
        page.created = self.pages.iter().filter(|old| page.includes(old)).map(|old| old.created).sum::<usize>() / 2;
        self.pages.retain(|old| !page.includes(old));
        self.pages.push_back(page);
        let mut paths: usize = self.pages.iter().map(|page| page.paths.len()).sum();
        while self.pages.len() > PAGES || paths as u64 > most {
            paths -= self.pages.pop_front().map_or(0, |page| page.paths.len());
        }
    }

    /// This mount created or changed `path`; pages are valid for `valid`.
    pub fn on_put(&mut self, path: &Key, valid: Duration) {
        for page in self.pages.iter_mut().filter(|page| page.covers(path.as_bytes())) {
            if page.paths.insert(path.clone()) && page.learnt.elapsed() < valid {
                page.created += 1;
            }
        }
    }

    /// Drops the pages of the directories that `is_meant` names.
    pub fn forget(&mut self, is_meant: impl Fn(&Key) -> bool) {
        self.pages.retain(|page| !is_meant(&page.directory));
    }

    /// When the newest page was asked for that shows nothing at `path`.
    pub fn absent_since(&self, path: &[u8]) -> Option<Instant> {
        let page = self.newest(path)?;
        (!page.paths.contains(path)).then_some(page.learnt)
    }

    /// The key behind which a page of `directory` begins that is worth a request for `path`, which no page answers. What was learnt of the
    /// worth of a page is remembered for `recent`.
    pub fn page_for(&self, directory: &Key, path: &Key, recent: Duration) -> Option<Key> {
        let is_recent = |page: &&DirectoryPage| page.learnt.elapsed() < recent;
        match self.newest(path.as_bytes()).filter(is_recent) {
            Some(page) => page.is_proven().then(|| page.after.clone()),
            None => {
                let unproven = self.pages.iter().filter(is_recent).filter(|page| page.directory == *directory && !page.is_proven());
                (unproven.count() < UNPROVEN).then(|| before(path))
            }
        }
    }

    /// Whether [`refresh`](Self::refresh) has something to return.
    pub fn is_refresh_due(&self, directory: &[u8], age: Duration) -> bool {
        self.pages.iter().any(|page| page.directory.as_bytes() == directory && is_due(page, age))
    }

    /// The keys behind which the pages of `directory` begin that are older than `age` and worth being fetched again; each is returned once.
    pub fn refresh(&mut self, directory: &[u8], age: Duration) -> Vec<Key> {
        let due = self.pages.iter_mut().filter(|page| page.directory.as_bytes() == directory && is_due(page, age));
        due.map(|page| {
            page.is_refreshing = true;
            page.after.clone()
        })
        .collect()
    }

    fn newest(&self, path: &[u8]) -> Option<&DirectoryPage> {
        self.pages.iter().rev().find(|page| page.covers(path))
    }
}

fn is_due(page: &DirectoryPage, age: Duration) -> bool {
    page.is_proven() && !page.is_refreshing && page.learnt.elapsed() >= age
}

/// A key before `path` with few names between them: `path` without its last character.
fn before(path: &Key) -> Key {
    let bytes = path.as_bytes();
    let last = str::from_utf8(bytes).map_or(1, |path| path.chars().next_back().map_or(0, char::len_utf8));
    Key::from(&bytes[..bytes.len() - last])
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const RECENT: Duration = Duration::from_secs(60);

    /// A page of the names `names`, with all behind `after` and up to `to`.
    fn page(after: &str, to: Option<&str>, names: &[&str]) -> DirectoryPage {
        let paths = names.iter().map(|name| Key::from(format!("d/{name}"))).collect();
        DirectoryPage::new("d/".into(), (after.into(), to.map(Key::from)), paths, Instant::now())
    }

    fn insert(pages: &mut DirectoryPages, page: DirectoryPage) {
        pages.insert(page, 1000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_answers_the_names_in_its_range_and_no_others() {
        let mut pages = DirectoryPages::default();
        let asked = Instant::now();
        insert(&mut pages, page("d/c", Some("d/g"), &["d", "f"]));
        advance(SECOND).await;
        for (path, is_free) in [
            ("d/b", false),
            ("d/c", false),
            ("d/c-", true),
            ("d/d", false),
            ("d/e", true),
            ("d/f", false),
            ("d/f0", true),
            // Its directory may come behind the page.
            ("d/g", false),
            ("d/h", false),
            ("d/e/e", false),
            ("e", false),
        ] {
            assert_eq!(pages.absent_since(path.as_bytes()), is_free.then_some(asked), "{path}");
        }
        let newer = Instant::now();
        insert(&mut pages, page("d/", None, &[]));
        for path in ["d/b", "d/d", "d/zz"] {
            assert_eq!(pages.absent_since(path.as_bytes()), Some(newer), "{path}");
        }
        assert_eq!(pages.pages.len(), 1, "a page within the range of a newer one is dropped");
        pages.forget(|directory| *directory == "d/".into());
        assert_eq!(pages.absent_since(b"d/b"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_fetched_again_while_names_are_created_in_its_range() {
        let mut pages = DirectoryPages::default();
        insert(&mut pages, page("d/a", Some("d/z"), &["old"]));
        for (path, is_proven) in [("d/old", false), ("d/new", false), ("d/z", false), ("d/new", false), ("d/newer", true)] {
            pages.on_put(&path.into(), SECOND);
            advance(SECOND / 10).await;
            assert_eq!(pages.page_for(&"d/".into(), &"d/next".into(), RECENT), is_proven.then(|| "d/a".into()), "{path}");
        }
        assert_eq!(pages.refresh(b"d/", SECOND), Vec::<Key>::new(), "it is young");
        advance(SECOND / 2).await;
        assert!(pages.is_refresh_due(b"d/", SECOND) && !pages.is_refresh_due(b"e/", SECOND));
        assert_eq!(pages.refresh(b"d/", SECOND), [Key::from("d/a")]);
        assert!(!pages.is_refresh_due(b"d/", SECOND), "it is on its way");
        // It ends earlier now.
        insert(&mut pages, page("d/a", Some("d/y"), &["new", "newer", "old"]));
        assert_eq!(pages.pages.len(), 1);
        pages.on_put(&"d/other".into(), SECOND);
        advance(SECOND).await;
        assert_eq!(pages.refresh(b"d/", SECOND), [Key::from("d/a")], "half of what was created before, and one");
        insert(&mut pages, page("d/a", Some("d/y"), &[]));
        advance(SECOND).await;
        pages.on_put(&"d/too-late".into(), SECOND);
        assert_eq!(pages.refresh(b"d/", SECOND), Vec::<Key>::new(), "nothing was created while it was valid");
        assert_eq!(pages.page_for(&"d/".into(), &"d/next".into(), RECENT), None);
        advance(RECENT).await;
        assert_eq!(pages.page_for(&"d/".into(), &"d/next".into(), RECENT), Some("d/nex".into()), "that was long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn few_pages_are_fetched_before_one_proved_useful() {
        let mut pages = DirectoryPages::default();
        let next = |pages: &DirectoryPages| pages.page_for(&"d/".into(), &"d/next".into(), RECENT);
        for n in 0..UNPROVEN {
            assert_eq!(next(&pages), Some("d/nex".into()), "{n} pages");
            insert(&mut pages, page(&format!("d/{n}"), Some(&format!("d/{n}~")), &[]));
        }
        assert_eq!(next(&pages), None);
        assert!(pages.page_for(&"e/".into(), &"e/1".into(), RECENT).is_some(), "each directory has its own");
        for name in ["d/0-a", "d/0-b"] {
            pages.on_put(&name.into(), SECOND);
        }
        assert!(next(&pages).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn pages_and_their_paths_are_bounded() {
        let mut pages = DirectoryPages::default();
        for n in 0..2 * PAGES {
            let (after, to) = (format!("d/{n:04}"), format!("d/{n:04}~"));
            insert(&mut pages, page(&after, Some(&to), &[]));
        }
        assert_eq!(pages.pages.len(), PAGES);
        for n in 0..9 {
            pages.insert(page(&format!("d/{n}"), Some(&format!("d/{n}~")), &["a", "b", "c"]), 10);
        }
        assert_eq!(pages.pages.iter().map(|page| page.paths.len()).sum::<usize>(), 9);
    }

    #[test]
    fn a_page_begins_before_the_name() {
        for (path, expected) in [("d/file.12", "d/file.1"), ("d/x", "d/"), ("x", ""), ("d/\u{e9}\u{e8}", "d/\u{e9}")] {
            assert_eq!(before(&path.into()), Key::from(expected));
        }
        assert_eq!(before(&Key::from(&b"d/\xff\xfe"[..])), Key::from(&b"d/\xff"[..]));
    }
}
