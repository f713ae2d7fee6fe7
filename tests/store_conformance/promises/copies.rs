//! Copies inside the store.

use windlass::store::{Condition, CopyRequest, ETag, ErrorKind, ObjectStore};

use super::writes::{headers, put, read};
use super::{content, head};
use crate::stores::{Bucket, key};

fn request(source: &str, etag: &ETag, target: &str) -> CopyRequest {
    CopyRequest { source: key(source), etag: etag.clone(), target: key(target), headers: None, condition: Condition::Any }
}

pub async fn a_copy_has_content_and_headers_of_its_source(bucket: Bucket) {
    let body = content(3, 300_000);
    let etag = put(&bucket, "d/a", &body).await.etag;
    let copied = bucket.store.copy(&request("d/a", &etag, "e/b")).await.unwrap();
    assert!(read(&bucket, "e/b").await == body && read(&bucket, "d/a").await == body);
    let details = bucket.store.details(&key("e/b")).await.unwrap();
    assert_eq!((details.headers, details.meta.etag), (headers("text/plain", &[("mode", "33188")]), copied.etag.clone()));
    let new = headers("text/html", &[("mode", "33261"), ("mtime", "1700000000.5")]);
    let onto_itself = CopyRequest { headers: Some(new.clone()), ..request("e/b", &copied.etag, "e/b") };
    bucket.store.copy(&onto_itself).await.unwrap();
    assert_eq!(bucket.store.details(&key("e/b")).await.unwrap().headers, new);
    assert!(read(&bucket, "e/b").await == body);
}

pub async fn a_copy_of_a_link_is_a_link(bucket: Bucket) {
    let store = &bucket.store;
    let etag = store.put_symlink(&key("l"), b"nowhere", &headers("text/plain", &[]), &Condition::Any).await.unwrap().etag;
    store.copy(&request("l", &etag, "m")).await.unwrap();
    let mut changed = store.details(&key("l")).await.unwrap().headers;
    changed.metadata.insert("uid".into(), "1000".into());
    store.copy(&CopyRequest { headers: Some(changed), ..request("l", &etag, "n") }).await.unwrap();
    for name in ["m", "n"] {
        assert_eq!(store.details(&key(name)).await.unwrap().symlink.unwrap(), b"nowhere", "{name}");
    }
}

pub async fn a_copy_of_another_version_is_refused(bucket: Bucket) {
    let old = put(&bucket, "a", b"one").await.etag;
    put(&bucket, "a", b"two").await;
    assert_eq!(bucket.store.copy(&request("a", &old, "b")).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(bucket.store.head(&key("b")).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(bucket.store.copy(&request("none", &old, "b")).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(bucket.store.copy(&request("a", &ETag::from(""), "b")).await.unwrap_err().kind, ErrorKind::Replaced);
}

pub async fn a_copy_replaces_only_what_its_condition_allows(bucket: Bucket) {
    let etag = put(&bucket, "a", b"one").await.etag;
    let there = put(&bucket, "b", b"two").await.etag;
    let absent = CopyRequest { condition: Condition::Absent, ..request("a", &etag, "b") };
    assert_eq!(bucket.store.copy(&absent).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(read(&bucket, "b").await, b"two");
    bucket.store.copy(&CopyRequest { target: key("c"), ..absent }).await.unwrap();
    bucket.store.copy(&CopyRequest { condition: Condition::Is(there.clone()), ..request("a", &etag, "b") }).await.unwrap();
    assert_eq!(head(&bucket, "b").await.size, 3);
    assert_eq!(read(&bucket, "b").await, b"one");
    let late = CopyRequest { condition: Condition::Is(there), ..request("a", &etag, "b") };
    assert_eq!(bucket.store.copy(&late).await.unwrap_err().kind, ErrorKind::Replaced);
}
