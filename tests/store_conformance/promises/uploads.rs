//! Multipart uploads: whole or not at all.

use std::time::{Duration, SystemTime};

use windlass::store::{Condition, ErrorKind, ObjectStore, Part, PartCopy, Unfinished, Upload};

use super::writes::{headers, put, read};
use super::{content, head};
use crate::stores::{Bucket, Kind, key};

async fn begin(bucket: &Bucket, name: &str) -> Upload {
    bucket.store.create_upload(&key(name), &headers("text/plain", &[("mode", "33188")])).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn send(bucket: &Bucket, upload: &Upload, number: u32, body: &[u8]) -> Part {
    let part = bucket.store.upload_part(upload, number, body.to_vec().into()).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((part.number, part.size), (number, body.len() as u64));
    part
}

pub async fn parts_become_one_object_in_their_order(bucket: Bucket) {
    let least = bucket.kind.least_part();
    let bodies = [content(1, least), content(2, least + 7), content(3, 5)];
    let upload = begin(&bucket, "d/a").await;
    let mut parts = Vec::new();
    for number in [3, 1, 2] {
        parts.push(send(&bucket, &upload, number, &bodies[number as usize - 1]).await);
    }
    assert_eq!(bucket.store.head(&key("d/a")).await.unwrap_err().kind, ErrorKind::NotFound);
    parts.sort_by_key(|part| part.number);
    let written = bucket.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    assert!(read(&bucket, "d/a").await == bodies.concat());
    let details = bucket.store.details(&key("d/a")).await.unwrap();
    if bucket.kind != Kind::S3sFs {
        assert_eq!((details.headers, details.meta.etag), (headers("text/plain", &[("mode", "33188")]), written.etag));
    }
    if let Some(crc64) = details.crc64 {
        assert_eq!(Some(crc64.value), crc64.polynomial.of_parts(&parts));
    }
    if bucket.kind.forgets_uploads() {
        let again = bucket.store.complete_upload(&upload, &parts, &Condition::Any).await;
        assert_eq!(again.unwrap_err().kind, ErrorKind::NotFound);
    }
}

pub async fn a_part_that_is_sent_again_replaces_the_one_before(bucket: Bucket) {
    let upload = begin(&bucket, "a").await;
    send(&bucket, &upload, 1, b"wrong").await;
    let part = send(&bucket, &upload, 1, b"right").await;
    bucket.store.complete_upload(&upload, &[part], &Condition::Any).await.unwrap();
    assert_eq!(read(&bucket, "a").await, b"right");
}

pub async fn parts_may_be_copied_from_objects(bucket: Bucket) {
    let least = bucket.kind.least_part();
    let source = content(7, 2 * least);
    put(&bucket, "source", &source).await;
    let etag = head(&bucket, "source").await.etag;
    let upload = begin(&bucket, "a").await;
    let range = 3..3 + least as u64;
    let copied = PartCopy { source: key("source"), etag, range: range.clone() };
    let first = bucket.store.copy_part(&upload, 1, &copied).await.unwrap();
    assert_eq!((first.number, first.size, first.crc64), (1, least as u64, None));
    let second = send(&bucket, &upload, 2, b"the end").await;
    if bucket.kind.checks_sources() {
        let stale = PartCopy { etag: "\"0123456789abcdef0123456789abcdef\"".into(), ..copied };
        assert_eq!(bucket.store.copy_part(&upload, 3, &stale).await.unwrap_err().kind, ErrorKind::Replaced);
    }
    bucket.store.complete_upload(&upload, &[first, second], &Condition::Any).await.unwrap();
    assert!(read(&bucket, "a").await == [&source[range.start as usize..range.end as usize], b"the end"].concat());
}

pub async fn an_upload_replaces_only_what_its_condition_allows(bucket: Bucket) {
    let there = put(&bucket, "a", b"there").await.etag;
    let upload = begin(&bucket, "a").await;
    let parts = [send(&bucket, &upload, 1, b"new").await];
    let refused = bucket.store.complete_upload(&upload, &parts, &Condition::Absent).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(read(&bucket, "a").await, b"there");
    bucket.store.complete_upload(&upload, &parts, &Condition::Is(there)).await.unwrap();
    assert_eq!(read(&bucket, "a").await, b"new");
}

pub async fn an_aborted_upload_leaves_nothing(bucket: Bucket) {
    let upload = begin(&bucket, "a").await;
    let part = send(&bucket, &upload, 1, b"gone").await;
    bucket.store.abort_upload(&upload).await.unwrap();
    if bucket.kind.forgets_uploads() {
        bucket.store.abort_upload(&upload).await.unwrap();
        let late = bucket.store.upload_part(&upload, 2, "late".into()).await;
        assert_eq!(late.unwrap_err().kind, ErrorKind::NotFound);
    }
    assert!(bucket.store.complete_upload(&upload, &[part], &Condition::Any).await.is_err());
    assert_eq!(bucket.store.head(&key("a")).await.unwrap_err().kind, ErrorKind::NotFound);
}

pub async fn the_parts_of_an_upload_are_listed(bucket: Bucket) {
    let upload = begin(&bucket, "d/a").await;
    let mut sent = Vec::new();
    for number in [4, 1, 7, 2, 9] {
        sent.push(send(&bucket, &upload, number, format!("part {number}").as_bytes()).await);
    }
    sent.sort_by_key(|part| part.number);
    let (mut found, mut after) = (Vec::new(), Some(0));
    while let Some(number) = after {
        let page = bucket.store.list_parts(&upload, number).await.unwrap();
        found.extend(page.parts);
        after = page.next;
    }
    let facts = |part: &Part| (part.number, part.etag.clone(), part.size);
    assert_eq!(found.iter().map(facts).collect::<Vec<_>>(), sent.iter().map(facts).collect::<Vec<_>>());
    bucket.store.abort_upload(&upload).await.unwrap();
    if bucket.kind.forgets_uploads() {
        assert_eq!(bucket.store.list_parts(&upload, 0).await.unwrap_err().kind, ErrorKind::NotFound);
    }
}

pub async fn unfinished_uploads_are_listed(bucket: Bucket) {
    let before = SystemTime::now() - Duration::from_secs(2);
    let mut begun = Vec::new();
    for name in ["d/a", "d/b +%", "d/b +%", "d/中", "d/e", "e"] {
        begun.push(begin(&bucket, name).await);
    }
    let finished = begin(&bucket, "d/f").await;
    let part = send(&bucket, &finished, 1, b"x").await;
    bucket.store.complete_upload(&finished, &[part], &Condition::Any).await.unwrap();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = bucket.store.list_uploads(&key("d/"), after.as_ref()).await.unwrap();
        found.extend(page.uploads);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // moto says the same date of all.
    let now = |upload: &Unfinished| (before..SystemTime::now() + Duration::from_secs(2)).contains(&upload.initiated);
    assert!(bucket.kind == Kind::Moto || found.iter().all(now), "{found:?}");
    let mut found: Vec<_> = found.into_iter().map(|upload| (upload.key, upload.id)).collect();
    let mut expected: Vec<_> = begun
        .iter()
        .filter(|upload| upload.key.as_bytes().starts_with(b"d/"))
        .map(|upload| (upload.key.clone(), upload.id.clone()))
        .collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}
