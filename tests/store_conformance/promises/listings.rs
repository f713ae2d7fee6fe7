//! Pages: whole, in order, and whatever their size.

use std::collections::BTreeSet;

use windlass::store::{Key, ListPage, ListRequest, ObjectStore};

use super::head;
use crate::stores::{Bucket, key};

/// Around the byte of `/`: `-` and `.` come before it, `0` after it. Prefixes and objects interleave.
const NAMES: [&str; 17] = [
    "a-b",
    "a.b",
    "a/1",
    "a/2",
    "a0",
    "b/-/x",
    "b/0",
    "b/c/1",
    "b/c/2",
    "b/c/d/e",
    "b/d",
    "b0/x",
    "c",
    "d/only/one/below",
    "é",
    "中/文",
    "~",
];

async fn all_pages(bucket: &Bucket, prefix: &str, delimited: bool, max_keys: u16) -> Vec<ListPage> {
    let mut request = ListRequest { prefix: key(prefix), delimited, after: None, token: None, max_keys, any_order: false };
    let mut pages = Vec::new();
    loop {
        let page = bucket.store.list(&request).await.unwrap_or_else(|error| panic!("page {} of {max_keys}: {error}", pages.len()));
        request.token = page.next.clone();
        pages.push(page);
        assert!(pages.len() <= NAMES.len() + 1, "the listing does not end");
        if request.token.is_none() {
            return pages;
        }
    }
}

/// Objects and prefixes that a scan of the names finds.
fn expected(prefix: &str, delimited: bool) -> (Vec<Key>, Vec<Key>) {
    let (mut objects, mut prefixes) = (BTreeSet::new(), BTreeSet::new());
    for name in NAMES.iter().filter(|name| name.starts_with(prefix)) {
        match name[prefix.len()..].find('/').filter(|_| delimited) {
            Some(slash) => prefixes.insert(key(&name[..=prefix.len() + slash])),
            None => objects.insert(key(name)),
        };
    }
    (objects.into_iter().collect(), prefixes.into_iter().collect())
}

pub async fn a_listing_begins_behind_any_key(bucket: Bucket) {
    filled(&bucket).await;
    // One that is there, one that is not, the one that stands before what is below a name, and one behind all.
    for after in ["a/1", "a/10", "b.", "zz"] {
        for prefix in ["", "b/"] {
            let mut request =
                ListRequest { prefix: key(prefix), delimited: false, after: Some(key(after)), token: None, max_keys: 3, any_order: false };
            let mut found = Vec::new();
            loop {
                let page = bucket.store.list(&request).await.unwrap_or_else(|error| panic!("{prefix:?} behind {after}: {error}"));
                found.extend(page.objects.into_iter().map(|object| object.key));
                request.token = page.next;
                if request.token.is_none() {
                    break;
                }
            }
            let mut expected: Vec<Key> =
                NAMES.iter().filter(|name| name.starts_with(prefix) && **name > after).map(|name| key(name)).collect();
            expected.sort();
            assert_eq!(found, expected, "{prefix:?} behind {after}");
        }
    }
}

async fn check(bucket: &Bucket, prefix: &str, delimited: bool, max_keys: u16) {
    let pages = all_pages(bucket, prefix, delimited, max_keys).await;
    for page in &pages {
        assert!(page.objects.len() + page.prefixes.len() <= usize::from(max_keys), "a page of at most {max_keys}");
    }
    let objects: Vec<Key> = pages.iter().flat_map(|page| &page.objects).map(|object| object.key.clone()).collect();
    let prefixes: Vec<Key> = pages.iter().flat_map(|page| page.prefixes.clone()).collect();
    assert_eq!((objects, prefixes), expected(prefix, delimited), "prefix {prefix:?}, delimited {delimited}, pages of {max_keys}");
}

async fn filled(bucket: &Bucket) {
    for name in NAMES {
        bucket.put(name, name).await;
    }
}

pub async fn pages_of_any_size_hold_every_key_once_and_in_order(bucket: Bucket) {
    filled(&bucket).await;
    for max_keys in [1, 2, 3, 5, 17, 1000] {
        for (prefix, delimited) in [("", false), ("", true), ("b/", true), ("b/c/", false)] {
            check(&bucket, prefix, delimited, max_keys).await;
        }
    }
    assert_eq!(all_pages(&bucket, "", false, 3).await.len(), NAMES.len().div_ceil(3), "pages are full but the last");
}

pub async fn a_prefix_may_end_inside_a_name(bucket: Bucket) {
    filled(&bucket).await;
    for prefix in ["a", "b", "d/on", "中"] {
        check(&bucket, prefix, true, 2).await;
        check(&bucket, prefix, false, 2).await;
    }
}

pub async fn nothing_below_a_prefix_is_an_empty_page(bucket: Bucket) {
    for seeded in [false, true] {
        if seeded {
            filled(&bucket).await;
        }
        for delimited in [true, false] {
            for prefix in ["none/", "a/none", "zzz"] {
                let pages = all_pages(&bucket, prefix, delimited, 5).await;
                assert!(pages.len() == 1 && pages[0].objects.is_empty() && pages[0].prefixes.is_empty(), "{prefix}: {pages:?}");
            }
        }
    }
}

pub async fn a_listing_agrees_with_head(bucket: Bucket) {
    filled(&bucket).await;
    let pages = all_pages(&bucket, "", false, 1000).await;
    assert_eq!(pages[0].objects.len(), NAMES.len());
    for listed in &pages[0].objects {
        let head = head(&bucket, listed.key.to_str().unwrap()).await;
        assert_eq!((listed.size, listed.key.as_bytes().len() as u64), (head.size, head.size));
        // s3s-fs lists no tags: then it must be clear that there is none, so that the reader asks.
        assert!(listed.etag == head.etag || (bucket.kind.is_directory_tree() && listed.etag.as_str().is_empty()), "{listed:?} {head:?}");
        // HTTP dates have seconds, those of listings may have more.
        let seconds = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(seconds(listed.modified), seconds(head.modified), "{}", listed.key);
    }
}
