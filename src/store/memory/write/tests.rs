//! Changes of the simulated store: what is in it after each request, whole or failed.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::store::memory::{Bandwidth, Latency, Outcome, Plan, Rule};
use crate::store::{ObjectStore, SYMLINK_SIZE};

fn headers(name: &str, value: &str) -> Headers {
    Headers { content_type: Some("text/plain".into()), metadata: [(name.to_owned(), value.to_owned())].into(), ..Headers::default() }
}

fn put(key: &str, body: &'static str, condition: Condition) -> PutRequest {
    PutRequest { key: key.into(), body: Bytes::from_static(body.as_bytes()), headers: headers("a", "1"), condition }
}

fn copy(source: &str, etag: &ETag, target: &str) -> CopyRequest {
    CopyRequest { source: source.into(), etag: etag.clone(), target: target.into(), headers: None, condition: Condition::Any }
}

async fn uploaded(store: &Memory, key: &str, bodies: &[&'static str]) -> (Upload, Vec<Part>) {
    let upload = store.create_upload(&UploadRequest::new(&key.into(), &headers("of", "upload"))).await.unwrap();
    let mut parts = Vec::new();
    for (i, body) in bodies.iter().enumerate() {
        parts.push(store.upload_part(&upload, i as u32 + 1, Bytes::from_static(body.as_bytes()).into()).await.unwrap());
    }
    (upload, parts)
}

#[tokio::test]
async fn conditions_protect_what_is_there() {
    let store = Memory::default();
    let first = store.answer_put(&put("a", "one", Condition::Absent)).await.unwrap();
    assert_eq!(store.answer_put(&put("a", "two", Condition::Absent)).await.unwrap_err().kind, ErrorKind::Replaced);
    let second = store.answer_put(&put("a", "three", Condition::Is(first.etag.clone()))).await.unwrap();
    assert_eq!(store.answer_put(&put("a", "four", Condition::Is(first.etag))).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!((store.content("a").unwrap(), store.meta("a").unwrap().etag), ("three".into(), second.etag));
    let gone = Condition::Is(store.meta("a").unwrap().etag);
    ObjectStore::delete(&store, &"a".into()).await.unwrap();
    assert_eq!(store.answer_put(&put("a", "five", gone)).await.unwrap_err().kind, ErrorKind::Replaced);
    ObjectStore::delete(&store, &"a".into()).await.unwrap();
    assert_eq!(store.keys(), []);
}

#[tokio::test]
async fn parts_become_an_object_in_the_order_of_their_numbers() {
    let store = Memory::default();
    store.put("s", "0123456789");
    let source = store.meta("s").unwrap();
    let (upload, mut parts) = uploaded(&store, "a", &["one ", "two "]).await;
    let copied = PartCopy { source: "s".into(), etag: source.etag.clone(), range: 2..5 };
    parts.push(store.copy_part(&upload, 3, &copied).await.unwrap());
    parts[1] = store.upload_part(&upload, 2, "TWO ".into()).await.unwrap();
    assert_eq!((parts[1].crc64, parts[2].crc64, parts[2].size), (Some(Polynomial::Nvme.of(b"TWO ")), None, 3));
    assert!(store.meta("a").is_none());
    assert_eq!(store.uploads().len(), 1);
    let written = store.complete_upload(&upload, &parts, &Condition::Absent).await.unwrap();
    assert!(written.etag.as_str().ends_with("-3\""), "{}", written.etag);
    assert_eq!(store.content("a").unwrap(), "one TWO 234");
    assert_eq!(store.headers("a").unwrap(), headers("of", "upload"));
    assert_eq!(store.uploads(), []);
    let again = store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap_err();
    assert_eq!((again.kind, again.code.as_deref()), (ErrorKind::NotFound, Some("NoSuchUpload")));
    let stale = PartCopy { etag: "\"x\"".into(), ..copied };
    let (upload, _) = uploaded(&store, "b", &[]).await;
    assert_eq!(store.copy_part(&upload, 1, &stale).await.unwrap_err().kind, ErrorKind::Replaced);
    let outside = PartCopy { etag: source.etag, range: 5..11, source: "s".into() };
    assert_eq!(store.copy_part(&upload, 1, &outside).await.unwrap_err().kind, ErrorKind::Invalid);
}

#[tokio::test]
async fn what_is_not_an_object_is_refused_and_the_upload_stays() {
    let store = Memory::default();
    let (upload, parts) = uploaded(&store, "a", &["123", "45"]).await;
    let swapped = [parts[1].clone(), parts[0].clone()];
    let unknown = [Part { etag: "\"x\"".into(), ..parts[0].clone() }];
    for (parts, code) in [(&swapped[..], "InvalidPartOrder"), (&unknown, "InvalidPart"), (&[], "MalformedXML")] {
        let error = store.complete_upload(&upload, parts, &Condition::Any).await.unwrap_err();
        assert_eq!((error.kind, error.code.as_deref()), (ErrorKind::Invalid, Some(code)));
    }
    store.set_least_part(4);
    assert_eq!(store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap_err().code.as_deref(), Some("EntityTooSmall"));
    store.set_least_part(3);
    store.put("a", "");
    assert_eq!(store.complete_upload(&upload, &parts, &Condition::Absent).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(store.uploads().len(), 1);
    store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
}

#[tokio::test]
async fn uploads_are_listed_page_by_page_until_they_are_aborted() {
    let store = Memory::default();
    for i in 0..1200 {
        uploaded(&store, &format!("d/{:04}", i / 2), &[]).await;
    }
    let (other, _) = uploaded(&store, "e", &[]).await;
    let first = store.list_uploads(&"d/".into(), None).await.unwrap();
    let rest = store.list_uploads(&"d/".into(), first.next.as_ref()).await.unwrap();
    assert_eq!((first.uploads.len(), rest.uploads.len(), rest.next), (1000, 200, None));
    let all: Vec<Unfinished> = first.uploads.into_iter().chain(rest.uploads).collect();
    assert!(all.is_sorted_by(|a, b| (&a.key, &a.id) < (&b.key, &b.id)));
    for upload in all {
        store.abort_upload(&Upload { key: upload.key, id: upload.id, checksum: None, acl: None }).await.unwrap();
    }
    assert_eq!(store.uploads().iter().map(|upload| upload.id.clone()).collect::<Vec<_>>(), std::slice::from_ref(&other.id));
    store.abort_upload(&other).await.unwrap();
    store.abort_upload(&other).await.unwrap();
    assert_eq!(store.upload_part(&other, 1, Body::default()).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn copies_keep_headers_unless_others_are_given_and_the_version_of_the_source() {
    let store = Memory::default();
    let first = store.answer_put(&put("a", "one", Condition::Any)).await.unwrap();
    ObjectStore::copy(&store, &copy("a", &first.etag, "b")).await.unwrap();
    assert_eq!((store.content("b").unwrap(), store.headers("b").unwrap()), ("one".into(), headers("a", "1")));
    store.copy(&CopyRequest { headers: Some(headers("b", "2")), ..copy("a", &first.etag, "a") }).await.unwrap();
    assert_eq!(store.headers("a").unwrap(), headers("b", "2"));
    assert_eq!(store.copy(&copy("a", &first.etag, "c")).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(store.copy(&copy("x", &first.etag, "c")).await.unwrap_err().kind, ErrorKind::NotFound);
    let large = store.put_synthetic("large", LARGEST_COPY + 1);
    assert_eq!(store.copy(&copy("large", &large, "c")).await.unwrap_err().kind, ErrorKind::Invalid);
    let large = store.put_synthetic("large", LARGEST_COPY);
    store.copy(&copy("large", &large, "c")).await.unwrap();
    assert_eq!(store.synthetic("c"), store.synthetic("large"));
}

#[tokio::test]
async fn details_tell_headers_checksum_and_links() {
    let store = Memory::default();
    store.answer_put(&put("a", "one", Condition::Any)).await.unwrap();
    store.set_storage_class("a", "GLACIER");
    let details = store.details(&"a".into()).await.unwrap();
    assert_eq!((details.headers.metadata, details.storage_class.as_deref()), (headers("a", "1").metadata, Some("GLACIER")));
    assert_eq!((details.crc64, details.symlink), (Some(nvme(b"one")), None));
    store.put_symlink(&"l".into(), b"../a b", &headers("mode", "41471"), &Condition::Absent).await.unwrap();
    assert_eq!(store.meta("l").unwrap().size, SYMLINK_SIZE);
    store.put("foreign", "../there\n");
    store.set_headers("foreign", headers("mode", "41471"));
    store.set_checksums(false);
    assert_eq!(store.details(&"l".into()).await.unwrap().symlink, Some(b"../a b".to_vec()));
    let details = store.details(&"foreign".into()).await.unwrap();
    assert_eq!((details.symlink, details.crc64), (Some(b"../there".to_vec()), None));
    assert_eq!(store.details(&"none".into()).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_a_timeout_after_the_change() {
    let store = Memory::default();
    store.fault(Rule::new(Fault::Lost).op(Op::Put).nth(1));
    store.fault(Rule::new(Fault::Error(ErrorKind::Unavailable)).op(Op::Put).nth(2));
    assert_eq!(store.answer_put(&put("a", "one", Condition::Absent)).await.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(store.content("a").unwrap(), "one");
    assert_eq!(store.answer_put(&put("a", "two", Condition::Any)).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(store.content("a").unwrap(), "one");
    store.fault(Rule::new(Fault::Lost).op(Op::CreateUpload));
    assert_eq!(store.create_upload(&UploadRequest::new(&"a".into(), &Headers::default())).await.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(store.uploads().len(), 1);
    store.fault(Rule::new(Fault::Lost).op(Op::Head));
    assert_eq!(store.head(&"a".into()).await.unwrap_err().kind, ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_its_time_and_one_that_is_cut_changes_nothing() {
    let bandwidth = Bandwidth { per_connection: Some(1 << 20), total: None };
    let store = Memory::new(Plan { first_byte: Latency::Fixed(Duration::from_millis(20)), bandwidth, ..Plan::default() });
    let (upload, _) = uploaded(&store, "a", &[]).await;
    let start = Instant::now();
    store.upload_part(&upload, 7, vec![1; 3 << 20].into()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(3020));
    assert_eq!((store.sent_bytes(), store.requests()[1].number), (3 << 20, Some(7)));
    store.fault(Rule::new(Fault::Truncate { after: 1000 }).op(Op::Put));
    let large = PutRequest { body: vec![1; 1 << 20].into(), ..put("b", "", Condition::Any) };
    assert_eq!(store.answer_put(&large).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert!(store.meta("b").is_none());
    assert_eq!(store.requests()[2].sent, 1000);
    let dropped = tokio::time::timeout(Duration::from_millis(520), store.upload_part(&upload, 8, vec![1; 3 << 20].into()));
    assert!(dropped.await.is_err());
    assert_eq!((store.requests()[3].outcome, store.requests()[3].sent), (Outcome::Cancelled, 512 << 10));
}
