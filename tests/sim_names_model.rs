//! Random buckets against a model of the promised tree: every directory is listed and every name looked up, before
//! and after the cache has seen it, and both always say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use windlass::store::Op;
use windlass::store::memory::{Memory, Plan};
use windlass::vfs::{Error, Inode, Kind, Names, Options};

/// What a mount of the keys shows: the entries of each directory, by its path without the last `/`.
type Tree = BTreeMap<String, BTreeMap<String, Kind>>;

fn tree(keys: &BTreeSet<String>) -> Tree {
    let mut tree = Tree::from([(String::new(), BTreeMap::new())]);
    for key in keys {
        let mut directory = String::new();
        for (name, is_last) in key.split('/').enumerate().map(|(i, name)| (name, i == key.matches('/').count())) {
            if matches!(name, "" | "." | "..") {
                break;
            }
            let kind = if is_last { Kind::File } else { Kind::Directory };
            let entry = tree.entry(directory.clone()).or_default().entry(name.to_owned()).or_insert(kind);
            if kind == Kind::File {
                break;
            }
            *entry = Kind::Directory;
            directory = if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
            tree.entry(directory.clone()).or_default();
        }
    }
    tree
}

async fn directory(names: &Names, path: &str) -> Inode {
    let mut ino = Inode::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        ino = names.lookup(ino, name.as_bytes()).await.expect("a directory of the model").attr.ino;
    }
    ino
}

async fn ls(names: &Arc<Names>, ino: Inode) -> Vec<(String, Kind)> {
    let handle = names.open_dir(ino).expect("a directory");
    let (mut seen, mut offset) = (Vec::new(), 2);
    loop {
        let page = handle.read_plus(offset).await.expect("listed");
        if page.is_empty() {
            return seen;
        }
        page.fill_plus(|item, entry| {
            assert_eq!((item.ino, item.kind), (entry.attr.ino, entry.attr.kind));
            seen.push((String::from_utf8_lossy(item.name).into_owned(), item.kind));
            offset = item.next_offset;
            false
        });
    }
}

/// Lookups of `candidates` in a directory must find what the model has, and nothing else.
async fn check_lookups(names: &Names, ino: Inode, entries: &BTreeMap<String, Kind>, candidates: &[&str]) {
    for name in candidates.iter().copied().chain(entries.keys().map(String::as_str)) {
        let found = match names.lookup(ino, name.as_bytes()).await {
            Ok(entry) => Some(entry.attr.kind),
            Err(Error::NotFound) => None,
            Err(error) => panic!("{name}: {error}"),
        };
        assert_eq!(found, entries.get(name).copied(), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn listings_and_lookups_show_the_promised_tree(
        keys in prop::collection::btree_set("[ab./-]{1,7}", 0..25),
        ls_first in any::<bool>(),
        stat_cache_size in prop::sample::select(vec![0u64, 3, 1000]),
        readdir_optimize in any::<bool>(),
    ) {
        let store = Memory::new(Plan::default());
        for key in &keys {
            store.put(key.as_str(), "content");
        }
        let tree = tree(&keys);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let names = Names::new(Arc::new(store.clone()), Options { stat_cache_size, readdir_optimize, ..Options::default() });
            for (path, entries) in &tree {
                let ino = directory(&names, path).await;
                let candidates = ["a", "b", "ab", "a-", "a.", "-", "b.b"];
                if ls_first {
                    let listed = ls(&names, ino).await;
                    assert_eq!(listed.len(), entries.len(), "no name twice");
                    assert_eq!(&BTreeMap::from_iter(listed), entries, "{path}");
                }
                check_lookups(&names, ino, entries, &candidates).await;
                assert_eq!(&BTreeMap::from_iter(ls(&names, ino).await), entries, "{path}");
                check_lookups(&names, ino, entries, &candidates).await;
            }
            if stat_cache_size == 1000 && ls_first && readdir_optimize {
                assert_eq!(store.count(Op::Head), 0, "listings told everything");
            }
        });
    }
}
