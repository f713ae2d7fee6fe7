//! Directories out of a listing without delimiter, which goes through all that is below a prefix. Pure. Invariant: a directory is given
//! out once, with everything that is in it, when the listing has passed it; of one that was not seen from its start on nothing is.

use tokio::time::Instant;

use crate::store::{Key, ListPage, ObjectMeta};
use crate::vfs::stat_cache::split;

/// A directory as a LIST with delimiter would have told it, in one page.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub directory: Key,
    pub page: ListPage,
    /// When the first of it was asked for.
    pub learnt: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flat {
    /// Only what is behind this was seen.
    after: Key,
    /// The directories that the last key is in, each in the one before it.
    open: Vec<Listed>,
    last: Option<Key>,
    /// Keys and prefixes of directories that are open.
    held: usize,
}

impl Flat {
    /// Of a listing of the keys below `top`, which is empty or ends in `/`, and behind `after`; asked for at `learnt`.
    pub fn new(top: &Key, after: Key, learnt: Instant) -> Self {
        Self { after, open: vec![Listed::new(top.clone(), learnt)], last: None, held: 0 }
    }

    /// The last key that came.
    pub fn position(&self) -> Option<&Key> {
        self.last.as_ref()
    }

    /// Entries of directories that have not been passed yet.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes the next page in, which was asked for at `learnt`, and gives out the directories that were passed with it; all that are left
    /// after the last page. None: the store does not keep the order, so that nothing can be said.
    pub fn on_page(&mut self, page: ListPage, learnt: Instant) -> Option<Vec<Listed>> {
        let mut passed = Vec::new();
        for object in page.objects {
            // A store that cannot begin behind a key begins with the first one.
            if object.key <= self.after {
                continue;
            }
            if self.last.as_ref().is_some_and(|last| *last >= object.key) {
                return None;
            }
            self.last = Some(object.key.clone());
            self.on_object(object, learnt, &mut passed)?;
        }
        if page.next.is_none() {
            while let Some(directory) = self.open.pop() {
                self.close(directory, &mut passed);
            }
        }
        Some(passed)
    }

    fn on_object(&mut self, object: ObjectMeta, learnt: Instant, passed: &mut Vec<Listed>) -> Option<()> {
        let key = object.key.as_bytes();
        let (directory, _) = split(key);
        while let Some(left) = self.open.pop_if(|open| !directory.starts_with(open.directory.as_bytes())) {
            self.close(left, passed);
        }
        loop {
            let innermost = self.open.last_mut()?;
            let start = innermost.directory.as_bytes().len();
            let Some(slash) = directory[start..].iter().position(|&byte| byte == b'/') else {
                innermost.page.objects.push(object);
                self.held += 1;
                return Some(());
            };
            let below = Key::from(&directory[..=start + slash]);
            innermost.page.prefixes.push(below.clone());
            self.held += 1;
            self.open.push(Listed::new(below, learnt));
        }
    }

    fn close(&mut self, directory: Listed, passed: &mut Vec<Listed>) {
        self.held -= directory.page.objects.len() + directory.page.prefixes.len();
        if !self.after.as_bytes().starts_with(directory.directory.as_bytes()) {
            passed.push(directory);
        }
    }
}

impl Listed {
    fn new(directory: Key, learnt: Instant) -> Self {
        Self { directory, page: ListPage::default(), learnt }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;
    use crate::store::ETag;

    fn page<'a>(keys: impl IntoIterator<Item = &'a str>, is_last: bool) -> ListPage {
        let object = |key: &str| ObjectMeta { key: key.into(), size: 1, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH };
        let next = (!is_last).then(|| "more".to_owned());
        ListPage { objects: keys.into_iter().map(object).collect(), next, ..ListPage::default() }
    }

    /// Directories with the names in them, in the order in which they came.
    fn names(listed: &[Listed]) -> Vec<(String, Vec<String>)> {
        let name = |listed: &Listed| {
            let objects = listed.page.objects.iter().map(|object| object.key.to_string());
            (listed.directory.to_string(), objects.chain(listed.page.prefixes.iter().map(ToString::to_string)).collect())
        };
        listed.iter().map(name).collect()
    }

    fn pair(directory: &str, names: &[&str]) -> (String, Vec<String>) {
        (directory.into(), names.iter().map(ToString::to_string).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_comes_out_when_the_listing_has_passed_it() {
        let now = Instant::now();
        let mut flat = Flat::new(&"t/".into(), "t/a.".into(), now);
        let first = flat.on_page(page(["t/a.txt", "t/a/", "t/a/1", "t/a/b/2", "t/a/b/3"], false), now).unwrap();
        assert!(first.is_empty() && flat.held() == 7);
        let second = flat.on_page(page(["t/a/c/4", "t/d/5"], false), now).unwrap();
        assert_eq!(
            names(&second),
            [pair("t/a/b/", &["t/a/b/2", "t/a/b/3"]), pair("t/a/c/", &["t/a/c/4"]), pair("t/a/", &["t/a/", "t/a/1", "t/a/b/", "t/a/c/"])]
        );
        let last = flat.on_page(page(["t/e"], true), now).unwrap();
        // Not the top: the listing did not begin at its start.
        assert_eq!((names(&last), flat.held()), (vec![pair("t/d/", &["t/d/5"])], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn keys_before_the_start_are_passed_over_and_disorder_ends_it() {
        let now = Instant::now();
        let mut flat = Flat::new(&Key::root(), "b.".into(), now);
        let passed = flat.on_page(page(["a/1", "b-", "b.", "b/1", "c"], false), now).unwrap();
        assert_eq!(names(&passed), [pair("b/", &["b/1"])]);
        assert!(flat.on_page(page(["b/2"], true), now).is_none());
    }

    proptest! {
        #[test]
        fn each_directory_has_what_a_listing_with_delimiter_has(
            keys in prop::collection::btree_set("t/[ab/.]{1,7}", 1..60), after in "t/[ab.]{0,2}", sizes in prop::collection::vec(1_usize..9, 1..60),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _entered = runtime.enter();
            let seen: Vec<&str> = keys.iter().map(String::as_str).filter(|key| **key > *after).collect();
            let mut expected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for key in &seen {
                for (slash, _) in key.match_indices('/') {
                    let directory = &key[..=slash];
                    let rest = &key[slash + 1..];
                    let name = rest.find('/').map_or(*key, |end| &key[..slash + 2 + end]);
                    if !after.starts_with(directory) {
                        expected.entry(directory.into()).or_default().insert(name.into());
                    }
                }
            }
            let (mut flat, mut found, mut at) = (Flat::new(&"t/".into(), Key::from(&*after), Instant::now()), Vec::new(), 0);
            for size in sizes.into_iter().chain([seen.len()]) {
                let end = (at + size).min(seen.len());
                found.extend(names(&flat.on_page(page(seen[at..end].iter().copied(), end == seen.len()), Instant::now()).unwrap()));
                at = end;
                if at == seen.len() {
                    break;
                }
            }
            prop_assert_eq!(found.len(), expected.len());
            let found: BTreeMap<String, BTreeSet<String>> = found.into_iter().map(|(directory, names)| (directory, names.into_iter().collect())).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
