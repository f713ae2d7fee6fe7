//! An endpoint that holds nothing and redirects every request, and the server behind it, which checks each signature. Every verb of the store is
//! carried out there, and only there.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass::metrics::Metrics;
use windlass::store::{
    Body, Condition, CopyRequest, ETag, Error, ErrorKind, Headers, Key, ListRequest, ObjectMeta, ObjectStore, Options, PartCopy,
    PutRequest, Retrying, Signature, UploadRequest, open,
};

use crate::promises::{fetch, whole};
use crate::stores::{Server, key, oss};
use crate::support::{Effect, Fault, Kind, S3Server};

pub const ALL: &[(&str, crate::Test)] = tests![
    every_request_is_redirected_and_signed_for_its_target,
    a_redirected_body_arrives_whole,
    a_stranger_is_sent_nothing_and_is_named,
    endless_redirects_of_every_request_end,
    a_bucket_in_another_region_is_no_redirect,
    oss_requests_are_redirected_to_allowed_hosts_only,
];

/// An endpoint that redirects everything to `target`, and a store that uses it and trusts `trusted`.
async fn redirecting(effect: Effect, trusted: &[&str]) -> (S3Server, Arc<Retrying>) {
    let front = S3Server::start();
    front.fault(Fault::new(effect));
    let redirect_hosts = trusted.iter().map(|host| host.trim_start_matches("http://").to_owned()).collect();
    let options = Options { redirect_hosts, ..front.store_options() };
    let store = open(&options, Arc::new(Metrics::default())).await.unwrap();
    (front, store)
}

fn put(name: &str, body: &[u8]) -> PutRequest {
    PutRequest { key: key(name), body: body.to_vec().into(), headers: Headers::default(), condition: Condition::Any }
}

fn listing() -> ListRequest {
    ListRequest { prefix: Key::root(), delimited: false, after: None, token: None, max_keys: 10, any_order: false }
}

/// Sends a request of every kind, none of which may fail.
async fn use_all(store: &dyn ObjectStore) {
    store.put(&put("a", b"content of a")).await.unwrap();
    let meta = store.head(&key("a")).await.unwrap();
    assert_eq!((meta.size, whole(store, &meta, 3..12).await), (12, b"tent of a".to_vec()));
    assert_eq!(store.details_to_keep(&key("a")).await.unwrap().meta.etag, meta.etag);
    let names = |page: windlass::store::ListPage| page.objects.into_iter().map(|object| object.key).collect::<Vec<_>>();
    assert_eq!(names(store.list(&listing()).await.unwrap()), [key("a")]);
    let (source, target, etag) = (key("a"), key("b"), meta.etag.clone());
    store.copy(&CopyRequest { source, etag, target, headers: None, condition: Condition::Any }).await.unwrap();

    let begin = |name| UploadRequest { key: key(name), headers: Headers::default(), has_copies: true };
    let upload = store.create_upload(&begin("c")).await.unwrap();
    let first = store.upload_part(&upload, 1, Body::from(vec![7; 5 << 20])).await.unwrap();
    let copied = PartCopy { source: key("a"), etag: meta.etag, range: 0..12 };
    let second = store.copy_part(&upload, 2, &copied).await.unwrap();
    assert_eq!(store.list_parts(&upload, 0).await.unwrap().parts.len(), 2);
    assert_eq!(store.list_uploads(&Key::root(), None).await.unwrap().uploads.len(), 1);
    store.complete_upload(&upload, &[first, second], &Condition::Any).await.unwrap();
    assert_eq!(store.head(&key("c")).await.unwrap().size, (5 << 20) + 12);
    let given_up = store.create_upload(&begin("d")).await.unwrap();
    store.abort_upload(&given_up).await.unwrap();
    store.delete(&key("a")).await.unwrap();
    let left = store.delete_many(&[key("b"), key("c")]).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(names(store.list(&listing()).await.unwrap()), []);
}

async fn every_request_is_redirected_and_signed_for_its_target() {
    for status in [301, 302, 307, 308] {
        let worker = S3Server::start();
        let (front, store) = redirecting(Effect::Moved(status, worker.endpoint()), &[&worker.endpoint()]).await;
        use_all(&*store).await;
        let kinds = |server: &S3Server, status| {
            let mut by_kind = BTreeMap::new();
            for request in server.requests().iter().filter(|request| request.status == status || status == 0) {
                *by_kind.entry(format!("{:?}", request.kind)).or_insert(0) += 1;
            }
            by_kind
        };
        // One request at each of the two, and no refusal on the way.
        assert_eq!(kinds(&front, status), kinds(&worker, 0));
        assert!(worker.requests().iter().all(|request| request.status != 403), "{:?}", worker.requests());
        for kind in [Kind::Get, Kind::Head, Kind::List, Kind::Put, Kind::Copy, Kind::Delete, Kind::DeleteMany, Kind::UploadPart] {
            assert!(worker.count(kind) > 0, "{kind:?}");
        }
    }
}

async fn a_redirected_body_arrives_whole() {
    let worker = S3Server::start();
    let (front, store) = redirecting(Effect::Redirect(worker.endpoint()), &[&worker.endpoint()]).await;
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    store.put(&put("k", &content)).await.unwrap();
    assert!(worker.stored("k").unwrap().0 == content && front.stored("k").is_none());
    // Each got the body once.
    let sent = |server: &S3Server| server.of_kind(Kind::Put).iter().map(|put| put.content_length).sum::<u64>();
    assert_eq!((sent(&front), sent(&worker)), (3_000_000, 3_000_000));
}

/// The errors of a request of every kind; each must fail.
async fn fail_all(store: &dyn ObjectStore) -> Vec<Error> {
    let meta = ObjectMeta { key: key("k"), size: 100, etag: ETag::from("\"e\""), modified: std::time::SystemTime::UNIX_EPOCH };
    let upload = windlass::store::Upload { key: key("k"), id: "u".into(), checksum: None, acl: None };
    let part = windlass::store::Part { number: 1, etag: ETag::from("\"e\""), size: 1, crc64: None, crc32c: None };
    let (headers, condition) = (Some(Headers::default()), Condition::Any);
    let copy = CopyRequest { source: key("k"), etag: meta.etag.clone(), target: key("l"), headers, condition };
    vec![
        fetch(store, &meta, 0..100).await.1.unwrap_err(),
        store.head(&key("k")).await.unwrap_err(),
        store.details_to_keep(&key("k")).await.unwrap_err(),
        store.list(&listing()).await.unwrap_err(),
        store.put(&put("k", b"secret content")).await.unwrap_err(),
        store.create_upload(&UploadRequest { key: key("k"), headers: Headers::default(), has_copies: false }).await.unwrap_err(),
        store.upload_part(&upload, 1, Body::from(vec![7; 1000])).await.unwrap_err(),
        store.complete_upload(&upload, &[part], &Condition::Any).await.unwrap_err(),
        store.copy(&copy).await.unwrap_err(),
        store.delete_many(&[key("k"), key("l")]).await.unwrap_err(),
        store.delete(&key("k")).await.unwrap_err(),
    ]
}

async fn a_stranger_is_sent_nothing_and_is_named() {
    // It would serve everyone.
    let stranger = S3Server::start_anonymous();
    stranger.put_synthetic("k", 100);
    let (_front, store) = redirecting(Effect::Redirect(stranger.endpoint()), &["127.0.0.1:1"]).await;
    let named = stranger.endpoint().replace("http://", "");
    for error in fail_all(&*store).await {
        let text = error.to_string();
        assert_eq!((error.kind, error.status), (ErrorKind::WrongEndpoint, Some(307)), "{text}");
        assert!(text.contains(&named) && text.contains("--redirect-hosts") && !text.contains("region"), "{text}");
    }
    assert_eq!(stranger.requests().len(), 0);
}

async fn endless_redirects_of_every_request_end() {
    let front = S3Server::start();
    front.fault(Fault::new(Effect::Redirect(front.endpoint())));
    let store = open(&front.store_options(), Arc::new(Metrics::default())).await.unwrap();
    let errors = fail_all(&*store).await;
    for error in &errors {
        assert_eq!(error.kind, ErrorKind::WrongEndpoint);
        assert!(error.message.contains("more than 5 redirects"), "{error}");
    }
    // No loop is tried twice. `details_to_keep` asks for tags and access list too.
    let asked = front.requests().into_iter().filter(|request| !request.query.contains("tagging") && !request.query.contains("acl"));
    let asked = asked.filter(|request| !request.query.contains("ownershipControls")).count();
    assert_eq!(asked, 6 * errors.len());
}

async fn a_bucket_in_another_region_is_no_redirect() {
    let worker = S3Server::start();
    let (front, store) = redirecting(Effect::Elsewhere(worker.endpoint(), "eu-west-1".into()), &[&worker.endpoint()]).await;
    for error in
        [store.head(&key("k")).await.unwrap_err(), store.put(&put("k", b"x")).await.unwrap_err(), store.list(&listing()).await.unwrap_err()]
    {
        assert_eq!(error.kind, ErrorKind::WrongEndpoint);
        assert!(error.message.contains("set --region eu-west-1"), "{error}");
    }
    assert_eq!((front.requests().len(), worker.requests().len()), (3, 0));
}

async fn oss_requests_are_redirected_to_allowed_hosts_only() {
    for signature in [Signature::V4, Signature::V1] {
        let ((worker, options), front) = (oss(signature).await, S3Server::start());
        let Server::Oss(worker) = worker else { unreachable!("it is an OSS server") };
        front.fault(Fault::new(Effect::Redirect(format!("http://{}", worker.address))));
        let options = Options { endpoint: Some(front.endpoint()), ..options };
        let store = open(&options, Arc::new(Metrics::default())).await.unwrap();
        for error in fail_all(&*store).await {
            assert!(error.message.contains("--redirect-hosts"), "{error}");
        }
        let before = worker.counts();
        assert_eq!((before.signature.as_str(), before.refused, before.get), ("", 0, 0));
        let options = Options { redirect_hosts: vec![worker.address.to_string()], ..options };
        use_all(&*open(&options, Arc::new(Metrics::default())).await.unwrap()).await;
        assert_eq!(worker.counts().refused, 0, "{signature:?}");
    }
}
