//! Multipart uploads: whole or not at all.

use std::time::Duration;

use tokio::time::Instant;
use windlass::store::{
    Condition, ErrorKind, Headers, ObjectStore, Options, Part, PartCopy, PutRequest, Unfinished, Upload, UploadChecksum, UploadRequest,
};

use super::writes::{headers, put, read};
use super::{content, head};
use crate::stores::{Bucket, Kind, key};
use crate::support::flipping::MARK;

async fn begin(bucket: &Bucket, name: &str) -> Upload {
    bucket
        .store
        .create_upload(&UploadRequest::new(&key(name), &headers("text/plain", &[("mode", "33188")])))
        .await
        .unwrap_or_else(|error| panic!("{error}"))
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

/// A body with a place where it can be damaged.
fn marked(seed: u8, length: usize) -> Vec<u8> {
    let mut body = content(seed, length);
    body[length / 2..length / 2 + MARK.len()].copy_from_slice(MARK);
    body
}

pub async fn upload_with_a_flipped_bit_is_never_a_success(bucket: Bucket) {
    let (proxy, store) = bucket.through_flips().await;
    let request = |name: &str, body: &[u8], condition| PutRequest {
        key: key(name),
        body: body.to_vec().into(),
        headers: Headers::default(),
        condition,
    };
    let small = marked(1, 3000);
    // Also the first write of all, of which nothing is known, and also when what the first attempt left there is in the way.
    for (name, condition) in [("one", Condition::Any), ("two", Condition::Absent)] {
        proxy.flip_requests(1);
        let condition = if bucket.kind.is_conditional() { condition } else { Condition::Any };
        store.put(&request(name, &small, condition)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(read(&bucket, name).await == small, "{name}");
    }
    assert_eq!(proxy.flipped(), 2);
    let large = [marked(2, bucket.kind.least_part()), marked(3, 5000)];
    let upload = store.create_upload(&UploadRequest::new(&key("parts"), &Headers::default())).await.unwrap();
    let mut parts = Vec::new();
    for (body, number) in large.iter().zip(1..) {
        proxy.flip_requests(1);
        parts.push(store.upload_part(&upload, number, body.clone().into()).await.unwrap_or_else(|error| panic!("part {number}: {error}")));
    }
    assert_eq!(proxy.flipped(), 4);
    store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    assert!(read(&bucket, "parts").await == large.concat());
    // A line that damages everything: as often as may be, and then an error.
    proxy.flip_requests(usize::MAX);
    let error = store.put(&request("three", &small, Condition::Any)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    let upload = store.create_upload(&UploadRequest::new(&key("parts"), &Headers::default())).await.unwrap();
    let error = store.upload_part(&upload, 1, large[1].clone().into()).await.unwrap_err();
    // s3s-fs says that something went wrong.
    assert!(error.kind == ErrorKind::Corrupt || bucket.kind == Kind::S3sFs, "{error}");
    assert_eq!(proxy.flipped(), 10, "three attempts each");
    store.abort_upload(&upload).await.unwrap();
}

pub async fn every_checksum_that_may_be_chosen_is_taken(bucket: Bucket) {
    use UploadChecksum::{Auto, Crc32c, Crc64Nvme, Md5, None};
    // Directory buckets take no Content-MD5 of a part, and say so at once.
    let all = [Auto, Crc64Nvme, Crc32c, None, Md5];
    for &checksum in &all[..if bucket.kind == Kind::Directory { 4 } else { 5 }] {
        let store = bucket.with(|options| Options { upload_checksum: checksum, ..options }).await;
        let (name, bodies) = (format!("{checksum:?}"), [content(1, bucket.kind.least_part()), content(2, 5000)]);
        let request =
            PutRequest { key: key("small"), body: bodies[1].clone().into(), headers: Headers::default(), condition: Condition::Any };
        store.put(&request).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(read(&bucket, "small").await == bodies[1], "{name}");
        let upload = store.create_upload(&UploadRequest::new(&key(&name), &Headers::default())).await.unwrap();
        let mut parts = Vec::new();
        for (body, number) in bodies.iter().zip(1..) {
            let part = store.upload_part(&upload, number, body.clone().into()).await;
            parts.push(part.unwrap_or_else(|error| panic!("{name}, part {number}: {error}")));
        }
        store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(read(&bucket, &name).await == bodies.concat(), "{name}");
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
    let request = UploadRequest { has_copies: true, ..UploadRequest::new(&key("a"), &Headers::default()) };
    let upload = bucket.store.create_upload(&request).await.unwrap();
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
    let before = Instant::now();
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
    let time_of_store = |at| bucket.store.time_at(at).expect("its responses have dates");
    let (from, to) = (time_of_store(before), time_of_store(Instant::now()));
    // moto says the same date of all.
    let now = |upload: &Unfinished| {
        let initiated = upload.initiated.expect("it is told");
        initiated + Duration::from_secs(1) > from.earliest && initiated <= to.latest
    };
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
