//! HEAD, names, and what is counted.

use std::time::SystemTime;

use windlass::store::{ErrorKind, Key, ListRequest, ObjectStore, Op, probe};

use super::{content, fetch, head, whole};
use crate::stores::{Bucket, Kind, key};

/// Characters that are escaped differently in URLs, in signatures and in XML, or mean something there.
const ODD: [&str; 16] = [
    "plain",
    "sp ace/plus+/pct%41",
    "100%",
    "%2F",
    "中文/文件.txt",
    "emoji\u{1f600}",
    "e\u{301}",
    "quotes'\"`",
    "q?x=y&z#h",
    "tilde~_-.!*()",
    "@:;,=$[]{}|\\^<>",
    "..a/.b",
    " lead and trail ",
    "&amp;",
    "+",
    "uploads",
];

/// What a store of names may hold and a file system may not.
const NO_PATHS: [&str; 7] = ["a", "a/b", "a//b", "/lead", "marker/", "marker/x/", "new\nline"];

pub async fn head_tells_size_version_and_date(bucket: Bucket) {
    bucket.put("dir/a", "some content").await;
    bucket.put("dir/b", "other content").await;
    let (a, b) = (head(&bucket, "dir/a").await, head(&bucket, "dir/b").await);
    assert_eq!((a.key.clone(), a.size, b.size), (key("dir/a"), 12, 13));
    assert!(a.modified > SystemTime::UNIX_EPOCH);
    assert!(a.etag.as_str().len() > 2 && a.etag.as_str().starts_with('"') && a.etag.as_str().ends_with('"'), "{}", a.etag);
    assert_ne!(a.etag, b.etag);
    assert_eq!(head(&bucket, "dir/a").await, a, "nothing changed");
    bucket.put("dir/a", "same length!").await;
    assert_ne!(head(&bucket, "dir/a").await.etag, a.etag, "another version");
}

pub async fn an_empty_object_is_an_object(bucket: Bucket) {
    bucket.put("empty", "").await;
    assert_eq!(head(&bucket, "empty").await.size, 0);
    let request = ListRequest { prefix: Key::root(), delimited: true, after: None, token: None, max_keys: 10, any_order: false };
    let page = bucket.store.list(&request).await.unwrap();
    assert_eq!(page.objects.iter().map(|o| (o.key.clone(), o.size)).collect::<Vec<_>>(), [(key("empty"), 0)]);
}

pub async fn what_is_not_there_is_not_found(bucket: Bucket) {
    bucket.put("there", "x").await;
    let mut missing = head(&bucket, "there").await;
    missing.key = key("not there");
    let error = bucket.store.head(&missing.key).await.unwrap_err();
    assert_eq!((error.kind, error.op, &error.key), (ErrorKind::NotFound, Op::Head, &missing.key), "{error}");
    let (received, result) = fetch(&*bucket.store, &missing, 0..1).await;
    let error = result.unwrap_err();
    assert_eq!((error.kind, error.op, &error.key), (ErrorKind::NotFound, Op::Get, &missing.key), "{error}");
    assert!(received.is_empty());
    assert_eq!(bucket.metrics.retries.get(), 0, "asking again does not help");
}

pub async fn a_name_above_objects_is_no_object(bucket: Bucket) {
    bucket.put("dir/below", "x").await;
    for name in ["dir", "dir/", "dir/below/"] {
        assert_eq!(bucket.store.head(&key(name)).await.unwrap_err().kind, ErrorKind::NotFound, "{name}");
    }
}

pub async fn odd_keys_are_listed_and_read_as_they_are(bucket: Bucket) {
    read_back(&bucket, &ODD).await;
}

pub async fn keys_that_are_no_paths_are_listed_and_read_as_they_are(bucket: Bucket) {
    // moto's routes match no path with a line feed; it answers with a page of HTML.
    let names: Vec<&str> = NO_PATHS.into_iter().filter(|name| bucket.kind != Kind::Moto || !name.contains('\n')).collect();
    read_back(&bucket, &names).await;
}

async fn read_back(bucket: &Bucket, names: &[&str]) {
    for name in names {
        bucket.put(name, format!("content of {name}")).await;
    }
    let request = ListRequest { prefix: Key::root(), delimited: false, after: None, token: None, max_keys: 1000, any_order: false };
    let listed: Vec<Key> = bucket.store.list(&request).await.unwrap().objects.into_iter().map(|object| object.key).collect();
    let mut expected: Vec<Key> = names.iter().map(|name| key(name)).collect();
    expected.sort();
    assert_eq!(listed, expected);
    for name in names {
        let meta = head(bucket, name).await;
        let content = format!("content of {name}").into_bytes();
        assert_eq!(meta.size, content.len() as u64, "{name}");
        assert_eq!(whole(&*bucket.store, &meta, 0..meta.size).await, content, "{name}");
        let below = ListRequest { prefix: key(name), ..request.clone() };
        let found = bucket.store.list(&below).await.unwrap().objects;
        assert!(found.iter().any(|object| object.key == key(name)), "{name} as a prefix finds {found:?}");
    }
}

pub async fn a_bucket_that_is_not_there_is_told_as_such(bucket: Bucket) {
    probe(&bucket.store, &Key::root()).await.expect("an empty bucket is there");
    let missing = bucket.missing().await;
    let error = probe(&missing, &Key::root()).await.unwrap_err();
    // Without a session of it there is no request to answer.
    let status = (bucket.kind != Kind::Directory).then_some(404);
    assert_eq!((error.kind, error.status), (ErrorKind::NoSuchBucket, status), "{error}");
}

pub async fn requests_and_bytes_are_counted(bucket: Bucket) {
    bucket.put("a", content(1, 50_000)).await;
    let meta = head(&bucket, "a").await;
    whole(&*bucket.store, &meta, 0..20_000).await;
    whole(&*bucket.store, &meta, 49_999..50_000).await;
    let request = ListRequest { prefix: Key::root(), delimited: true, after: None, token: None, max_keys: 10, any_order: false };
    bucket.store.list(&request).await.unwrap();
    bucket.store.list(&request).await.unwrap();
    bucket.store.head(&key("missing")).await.unwrap_err();
    if let Some(seen) = bucket.counted() {
        assert_eq!(seen, (2, 2, 2), "what the store saw");
    }
    let m = &bucket.metrics;
    assert_eq!(m.retries.get(), 0);
    if bucket.kind.is_remote() {
        // The store in memory keeps a log instead, which was looked at above.
        // To open a session counts as a listing.
        let lists = if bucket.kind == Kind::Directory { 3 } else { 2 };
        assert_eq!((m.head_requests.get(), m.list_requests.get(), m.get_requests.get()), (2, lists, 2), "what we counted");
        assert_eq!(m.fetched_bytes.get(), 20_001);
    }
}
