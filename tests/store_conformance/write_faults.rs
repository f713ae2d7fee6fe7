//! What goes wrong between a store and us while we write, done by our S3 and OSS servers: refused, broken before anything was
//! done, done without an answer. Afterwards the write was done once or is an error, and no upload is left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sha2::Digest;
use windlass::metrics::Metrics;
use windlass::store::{
    Condition, CopyRequest, ETag, ErrorKind, Headers, ListRequest, ObjectStore, Op, Options, Part, PartCopy, PutRequest, Quirks, Retrying,
    Signature, Sse, Support, Upload, UploadChecksum, UploadRequest, open,
};

use crate::promises::content;
use crate::stores::{Server, key, oss, s3};
use crate::support::flipping::{Flipping, MARK};
use crate::support::oss_write::OssEffect;
use crate::support::{Effect, Fault, Habits, Kind, Refusing, S3Server};

pub const ALL: &[(&str, crate::Test)] = tests![
    every_write_survives_every_fault_and_is_done_once,
    a_store_that_stays_down_leaves_the_old_object_and_no_upload,
    a_checksum_that_differs_is_an_error,
    an_endpoint_without_checksums_is_written_without,
    a_silent_endpoint_that_damages_bodies_is_found_out,
    tags_that_are_no_md5s_are_found_out_and_left_alone,
    multipart_with_part_checksums_completes_where_they_must_be,
    an_upload_whose_checksums_are_refused_late_is_begun_anew,
    a_chosen_checksum_goes_with_every_body,
    each_upload_checksum_meets_each_kind_of_server,
    payloads_without_tls_are_signed_until_checksums_are,
    bodies_carry_md5_where_no_checksum_is_acknowledged,
    weak_tags_are_read_copied_and_replaced_like_strong_ones,
    an_endpoint_without_conditions_is_looked_at_before,
    an_endpoint_that_took_a_condition_is_never_written_without,
    what_a_provider_is_known_to_lack_is_never_tried,
    the_source_of_a_copied_part_is_compared_afterwards_where_the_store_cannot,
    a_condition_that_a_provider_compares_is_never_left_out,
    an_error_that_comes_after_success_is_tried_again,
    a_body_that_does_not_move_is_given_up,
    options_are_said_with_every_write,
    who_pays_is_said_with_every_request,
    writes_and_bytes_are_counted,
];

/// Which server, and what it can do to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Busy,
    Failed,
    Broken,
    Lost,
}

const HARMS: [Harm; 4] = [Harm::Busy, Harm::Failed, Harm::Broken, Harm::Lost];
const WRITES: [Op; 9] =
    [Op::Put, Op::CreateUpload, Op::UploadPart, Op::CopyPart, Op::CompleteUpload, Op::AbortUpload, Op::ListUploads, Op::Copy, Op::Delete];

struct Bench {
    server: Server,
    store: Arc<Retrying>,
    metrics: Arc<Metrics>,
}

impl Bench {
    async fn s3(change: impl FnOnce(Options) -> Options) -> Self {
        Self::of(s3(), change).await
    }

    async fn oss(change: impl FnOnce(Options) -> Options) -> Self {
        Self::of(oss(windlass::store::Signature::V4).await, change).await
    }

    async fn of((server, options): (Server, Options), change: impl FnOnce(Options) -> Options) -> Self {
        let metrics = Arc::new(Metrics::default());
        let store = open(&change(options), metrics.clone()).await.unwrap();
        Self { server, store, metrics }
    }

    fn harm(&self, op: Op, harm: Harm, times: usize) {
        match &self.server {
            Server::Ours(_, server) => {
                let effect = match harm {
                    Harm::Busy => Effect::Status(503),
                    Harm::Failed => Effect::Status(500),
                    Harm::Broken => Effect::Broken,
                    Harm::Lost => Effect::Lost,
                };
                server.fault(Fault::new(effect).kind(kind(op)).first(times));
            }
            Server::Oss(server) => {
                let effect = match harm {
                    Harm::Busy => OssEffect::Status(503, "ServiceUnavailable"),
                    Harm::Failed => OssEffect::Status(500, "InternalError"),
                    Harm::Broken => OssEffect::Broken,
                    Harm::Lost => OssEffect::Lost,
                };
                server.fault(op, effect, times);
            }
            _ => unreachable!("only our servers misbehave on demand"),
        }
    }

    fn count(&self, op: Op) -> usize {
        match &self.server {
            Server::Ours(_, server) => server.count(kind(op)),
            Server::Oss(server) => server.count(op),
            _ => unreachable!("only our servers count"),
        }
    }

    fn uploads(&self) -> usize {
        match &self.server {
            Server::Ours(_, server) => server.uploads(),
            Server::Oss(server) => server.uploads(),
            _ => unreachable!("only our servers tell"),
        }
    }

    async fn put(&self, name: &str, body: &[u8], condition: Condition) -> Result<ETag, ErrorKind> {
        let request = PutRequest { key: key(name), body: body.to_vec().into(), headers: Headers::default(), condition };
        self.store.put(&request).await.map(|written| written.etag).map_err(|error| error.kind)
    }

    async fn read(&self, name: &str) -> Vec<u8> {
        let meta = self.store.head(&key(name)).await.unwrap();
        crate::promises::whole(&*self.store, &meta, 0..meta.size).await
    }

    async fn begin(&self, name: &str) -> (Upload, Vec<Part>) {
        let upload = self.store.create_upload(&UploadRequest::new(&key(name), &Headers::default())).await.unwrap();
        let mut parts = Vec::new();
        for number in 1..=2 {
            parts.push(self.store.upload_part(&upload, number, content(number as u8, 70_000).into()).await.unwrap());
        }
        (upload, parts)
    }
}

fn kind(op: Op) -> Kind {
    match op {
        Op::Head => Kind::Head,
        Op::List => Kind::List,
        Op::Get => Kind::Get,
        Op::Put => Kind::Put,
        Op::CreateUpload => Kind::CreateUpload,
        Op::UploadPart => Kind::UploadPart,
        Op::CopyPart => Kind::CopyPart,
        Op::CompleteUpload => Kind::CompleteUpload,
        Op::AbortUpload => Kind::AbortUpload,
        Op::ListUploads => Kind::ListUploads,
        Op::ListParts => Kind::ListParts,
        Op::Copy | Op::Rename => Kind::Copy,
        Op::Delete => Kind::Delete,
    }
}

/// Everything that can be written, each with the condition that a second attempt would break.
async fn write_all(bench: &Bench) {
    let (store, source) = (&bench.store, content(9, 50_000));
    let etag = bench.put("source", &source, Condition::Absent).await.unwrap();
    let copy = CopyRequest { source: key("source"), etag: etag.clone(), target: key("copy"), headers: None, condition: Condition::Absent };
    store.copy(&copy).await.unwrap();
    assert_eq!(bench.read("copy").await, source);
    let (upload, mut parts) = bench.begin("whole").await;
    let range = PartCopy { source: key("source"), etag, range: 10..40_010 };
    parts.push(store.copy_part(&upload, 3, &range).await.unwrap());
    let written = store.complete_upload(&upload, &parts, &Condition::Absent).await.unwrap();
    assert_eq!(written.etag, store.head(&key("whole")).await.unwrap().etag);
    assert!(bench.read("whole").await == [&content(1, 70_000), &content(2, 70_000), &source[10..40_010]].concat());
    let (dropped, _) = bench.begin("dropped").await;
    store.list_uploads(&key(""), None).await.unwrap();
    store.abort_upload(&dropped).await.unwrap();
    store.put_symlink(&key("link"), b"source", &Headers::default(), &Condition::Absent).await.unwrap();
    assert_eq!(store.details(&key("link")).await.unwrap().symlink.unwrap(), b"source");
    for name in ["source", "copy", "whole", "link"] {
        store.delete(&key(name)).await.unwrap();
        assert_eq!(store.head(&key(name)).await.unwrap_err().kind, ErrorKind::NotFound);
    }
    store.settle().await;
    assert_eq!(bench.uploads(), 0, "an upload is left");
}

async fn every_write_survives_every_fault_and_is_done_once() {
    let mut combinations = BTreeMap::new();
    for op in WRITES {
        for harm in HARMS {
            for bench in [Bench::s3(|options| options).await, Bench::oss(|options| options).await] {
                bench.harm(op, harm, 2);
                write_all(&bench).await;
                // A lost answer is found out at the second attempt, unless the harm comes again.
                let harmed = if harm == Harm::Lost { 1 } else { 2 };
                assert!(bench.metrics.retries.get() >= harmed, "{op} {harm:?}");
                *combinations.entry(format!("{harm:?}")).or_insert(0) += 1;
            }
        }
    }
    println!("combinations of operation and fault, on two servers: {combinations:?}");
    assert_eq!(combinations.values().sum::<usize>(), WRITES.len() * HARMS.len() * 2);
}

async fn a_store_that_stays_down_leaves_the_old_object_and_no_upload() {
    for harm in [Harm::Busy, Harm::Failed, Harm::Broken] {
        // One that is busy, or silent after it had answered, is asked for as long as there is time.
        let once = |options| Options { retries: 1, request_timeout: Duration::from_secs(2), ..options };
        let most = if harm == Harm::Failed { 2 } else { usize::MAX };
        for bench in [Bench::s3(once).await, Bench::oss(once).await] {
            bench.put("a", b"old", Condition::Any).await.unwrap();
            for op in [Op::Put, Op::CreateUpload, Op::CompleteUpload, Op::Copy] {
                bench.harm(op, harm, usize::MAX);
            }
            let kind = bench.put("a", b"new", Condition::Any).await.unwrap_err();
            assert!(matches!(kind, ErrorKind::Timeout | ErrorKind::Unavailable), "{kind:?}");
            assert!(bench.store.create_upload(&UploadRequest::new(&key("a"), &Headers::default())).await.is_err());
            assert_eq!(bench.read("a").await, b"old");
            bench.store.settle().await;
            assert_eq!(bench.uploads(), 0);
            assert!((2..=most).contains(&bench.count(Op::CreateUpload)));
        }
    }
    // Every answer lost: uploads were begun, and none stays.
    for bench in
        [Bench::s3(|options| Options { retries: 2, ..options }).await, Bench::oss(|options| Options { retries: 2, ..options }).await]
    {
        bench.harm(Op::CreateUpload, Harm::Lost, usize::MAX);
        assert!(bench.store.create_upload(&UploadRequest::new(&key("a"), &Headers::default())).await.is_err());
        bench.store.settle().await;
        assert_eq!((bench.uploads(), bench.count(Op::CreateUpload)), (0, 3));
    }
}

async fn a_checksum_that_differs_is_an_error() {
    let bench = Bench::s3(|options| Options { retries: 1, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { wrong_checksums: true, ..Habits::default() });
    assert_eq!(bench.put("a", b"body", Condition::Any).await, Err(ErrorKind::Corrupt));
    let upload = bench.store.create_upload(&UploadRequest::new(&key("b"), &Headers::default())).await.unwrap();
    assert!(upload.checksum.is_some());
    assert_eq!(bench.store.upload_part(&upload, 1, "part".into()).await.unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!((bench.count(Op::Put), bench.count(Op::UploadPart)), (2, 2), "it is tried again");

    let bench = Bench::oss(|options| options).await;
    let Server::Oss(server) = &bench.server else { unreachable!("it is OSS") };
    for op in [Op::Put, Op::UploadPart] {
        server.fault(op, OssEffect::WrongSum, 1);
    }
    bench.put("a", b"body", Condition::Any).await.unwrap();
    let (upload, parts) = bench.begin("b").await;
    assert_eq!((bench.count(Op::Put), bench.count(Op::UploadPart)), (2, 3));
    server.fault(Op::CompleteUpload, OssEffect::WrongSum, 1);
    // What the store says at last is what counts: the object there has the sum of its parts.
    bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    assert_eq!(bench.count(Op::CompleteUpload), 2);
}

async fn an_endpoint_without_checksums_is_written_without() {
    let bench = Bench::s3(|options| options).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { no_checksums: true, ..Habits::default() });
    write_all(&bench).await;
    assert_eq!(bench.metrics.retries.get(), 0);
    let summed: Vec<Kind> = server
        .requests()
        .iter()
        .filter(|request| request.amz.contains_key("x-amz-checksum-crc64nvme"))
        .map(|request| request.kind)
        .collect();
    assert_eq!(summed, [Kind::Put], "it is asked once");
}

fn marked(seed: u8) -> Vec<u8> {
    [&content(seed, 40_000)[..], MARK, &content(seed, 1000)].concat()
}

async fn a_silent_endpoint_that_damages_bodies_is_found_out() {
    let server = S3Server::start_anonymous();
    server.behave(Habits { silent_checksums: true, ..Habits::default() });
    let proxy = Flipping::start(([127, 0, 0, 1], server.port()).into());
    let options = || Options { endpoint: Some(proxy.endpoint()), retries: 2, signature: Signature::None, ..server.store_options() };
    let request = |name: &str, condition| PutRequest { key: key(name), body: marked(1).into(), headers: Headers::default(), condition };
    // The very first body, each time it is sent: what the tags are has to be found out.
    let store = open(&options(), Arc::default()).await.unwrap();
    proxy.flip_requests(usize::MAX);
    assert_eq!(store.put(&request("a", Condition::Absent)).await.unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(
        (server.count(Kind::Put), server.count(Kind::CreateUpload), server.uploads()),
        (3, 1, 0),
        "asked once, and nothing is left of it"
    );
    // What the first attempt left there does not stop the second.
    proxy.flip_requests(1);
    store.put(&request("b", Condition::Absent)).await.unwrap();
    assert!(server.stored("b").unwrap().0 == marked(1));
    assert_eq!(store.put(&request("b", Condition::Absent)).await.unwrap_err().kind, ErrorKind::Replaced, "others are still in the way");
    let store = open(&options(), Arc::default()).await.unwrap();
    let upload = store.create_upload(&UploadRequest::new(&key("c"), &Headers::default())).await.unwrap();
    assert!(upload.checksum.is_none());
    proxy.flip_requests(1);
    let part = store.upload_part(&upload, 1, marked(2).into()).await.unwrap();
    store.complete_upload(&upload, &[part], &Condition::Any).await.unwrap();
    assert!(server.stored("c").unwrap().0 == marked(2));
    assert_eq!(server.uploads(), 0);
}

async fn tags_that_are_no_md5s_are_found_out_and_left_alone() {
    let bench = Bench::s3(|options| options).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { silent_checksums: true, odd_tags: true, ..Habits::default() });
    for name in ["a", "b", "c"] {
        bench.put(name, &content(1, 1000), Condition::Absent).await.unwrap();
    }
    let (upload, parts) = bench.begin("d").await;
    bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    assert_eq!((bench.count(Op::Put), bench.count(Op::CreateUpload), bench.count(Op::AbortUpload)), (3, 2, 1), "it is asked once");
    assert_eq!((bench.metrics.retries.get(), bench.uploads()), (0, 0));
    // Encrypted with somebody's key: no tag is an MD5, and nobody asks.
    let bench = Bench::s3(|options| Options { sse: Sse::Kms, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { silent_checksums: true, odd_tags: true, ..Habits::default() });
    bench.put("a", b"body", Condition::Absent).await.unwrap();
    assert_eq!((bench.count(Op::Put), bench.count(Op::CreateUpload)), (1, 0));
}

async fn multipart_with_part_checksums_completes_where_they_must_be() {
    let bench = Bench::s3(|options| options).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { wants_part_sums: true, ..Habits::default() });
    let etag = bench.put("source", &content(9, 50_000), Condition::Any).await.unwrap();
    let (upload, parts) = bench.begin("b").await;
    bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    assert_eq!(bench.read("b").await.len(), 140_000);
    let request = UploadRequest { has_copies: true, ..UploadRequest::new(&key("a"), &Headers::default()) };
    let upload = bench.store.create_upload(&request).await.unwrap();
    let mut parts = Vec::new();
    for number in 1..=2 {
        parts.push(bench.store.upload_part(&upload, number, content(number as u8, 70_000).into()).await.unwrap());
    }
    let range = PartCopy { source: key("source"), etag, range: 10..40_010 };
    parts.push(bench.store.copy_part(&upload, 3, &range).await.unwrap());
    bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    assert_eq!(bench.read("a").await.len(), 180_000);
}

async fn an_upload_whose_checksums_are_refused_late_is_begun_anew() {
    for (refusing, sent) in [(Refusing::Parts, 0), (Refusing::Completion, 2)] {
        let bench = Bench::s3(|options| options).await;
        let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
        server.behave(Habits { refuses_sums: Some(refusing), ..Habits::default() });
        let upload = bench.store.create_upload(&UploadRequest::new(&key("a"), &Headers::default())).await.unwrap();
        let mut parts = Vec::new();
        let mut refused = None;
        for number in 1..=2 {
            match bench.store.upload_part(&upload, number, content(number as u8, 70_000).into()).await {
                Ok(part) => parts.push(part),
                Err(error) => refused = Some(error.kind),
            }
        }
        assert_eq!(parts.len(), sent, "{refusing:?}");
        if refused.is_none() {
            refused = bench.store.complete_upload(&upload, &parts, &Condition::Any).await.err().map(|error| error.kind);
        }
        assert_eq!(refused, Some(ErrorKind::ChecksumRefused), "{refusing:?}");
        let (upload, parts) = bench.begin("a").await;
        bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
        assert_eq!(bench.read("a").await.len(), 140_000, "{refusing:?}");
    }
}

async fn a_chosen_checksum_goes_with_every_body() {
    let crc64 = Some("x-amz-checksum-crc64nvme");
    for (checksum, header, md5) in [
        (UploadChecksum::Auto, crc64, false),
        (UploadChecksum::Crc64Nvme, crc64, false),
        (UploadChecksum::Crc32c, Some("x-amz-checksum-crc32c"), false),
        (UploadChecksum::Md5, None, true),
        (UploadChecksum::None, None, false),
    ] {
        let bench = Bench::s3(|options| Options { upload_checksum: checksum, ..options }).await;
        let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
        bench.put("a", b"body", Condition::Any).await.unwrap();
        let (upload, parts) = bench.begin("b").await;
        bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
        assert_eq!(bench.read("b").await.len(), 140_000);
        for request in server.of_kind(Kind::Put).into_iter().chain(server.of_kind(Kind::UploadPart)) {
            let sums: Vec<&str> = request.amz.keys().map(String::as_str).filter(|name| name.starts_with("x-amz-checksum-")).collect();
            assert_eq!((sums, request.content_md5.is_some()), (Vec::from_iter(header), md5), "{checksum:?}");
        }
        let [begun] = &server.of_kind(Kind::CreateUpload)[..] else { unreachable!("one was begun") };
        assert_eq!(begun.amz.contains_key("x-amz-checksum-algorithm"), header.is_some(), "{checksum:?}");
    }
    // What somebody chose is not changed behind their back.
    let bench = Bench::s3(|options| Options { upload_checksum: UploadChecksum::Crc64Nvme, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { no_checksums: true, ..Habits::default() });
    assert_eq!(bench.put("a", b"body", Condition::Any).await, Err(ErrorKind::Invalid));
    assert_eq!(bench.count(Op::Put), 1);
}

/// Which sums each body came with, in the order of the requests, and how the server answered them.
fn sums_sent(server: &S3Server, kind: Kind) -> String {
    let of = |request: &crate::support::Request| {
        let sums = request.amz.keys().filter_map(|name| name.strip_prefix("x-amz-checksum-"));
        let sums: Vec<&str> = sums.chain(request.content_md5.iter().map(|_| "md5")).collect();
        format!("{}:{}", if sums.is_empty() { "none".into() } else { sums.join("+") }, request.status)
    };
    server.of_kind(kind).iter().map(of).collect::<Vec<_>>().join(" ")
}

async fn each_upload_checksum_meets_each_kind_of_server() {
    use UploadChecksum::{Auto, Crc32c, Crc64Nvme, Md5, None};
    let refuses = Habits { no_checksums: true, ..Habits::default() };
    let ignores = Habits { silent_checksums: true, ..Habits::default() };
    let echoes = Habits::default();
    let requires = Habits { requires_checksums: true, ..Habits::default() };
    let echoes_another = Habits { wrong_checksums: true, ..Habits::default() };
    let (invalid, corrupt) = (Some(ErrorKind::Invalid), Some(ErrorKind::Corrupt));
    // The sums of two small objects, of the request that begins an upload and of its first part; and how each of the four ended.
    for (habits, checksum, sums, failure) in [
        // Under `auto` a refusal is learned from; another choice is never changed.
        (refuses, Auto, ["crc64nvme:400 md5:200 md5:200", "none:200", "md5:200"], Option::None),
        (refuses, Crc64Nvme, ["crc64nvme:400 crc64nvme:400", "algorithm+type:400", ""], invalid),
        (refuses, Crc32c, ["crc32c:400 crc32c:400", "algorithm:400", ""], invalid),
        (refuses, Md5, ["md5:200 md5:200", "none:200", "md5:200"], Option::None),
        (refuses, None, ["none:200 none:200", "none:200", "none:200"], Option::None),
        (ignores, Auto, ["crc64nvme:200 crc64nvme+md5:200", "algorithm+type:200", "md5:200"], Option::None),
        (ignores, Crc64Nvme, ["crc64nvme:200 crc64nvme:200", "algorithm+type:200", "crc64nvme:200"], Option::None),
        (ignores, Crc32c, ["crc32c:200 crc32c:200", "algorithm:200", "crc32c:200"], Option::None),
        (ignores, Md5, ["md5:200 md5:200", "none:200", "md5:200"], Option::None),
        (ignores, None, ["none:200 none:200", "none:200", "none:200"], Option::None),
        (echoes, Auto, ["crc64nvme:200 crc64nvme:200", "algorithm+type:200", "crc64nvme:200"], Option::None),
        (echoes, Crc64Nvme, ["crc64nvme:200 crc64nvme:200", "algorithm+type:200", "crc64nvme:200"], Option::None),
        (echoes, Crc32c, ["crc32c:200 crc32c:200", "algorithm:200", "crc32c:200"], Option::None),
        (echoes, Md5, ["md5:200 md5:200", "none:200", "md5:200"], Option::None),
        (echoes, None, ["none:200 none:200", "none:200", "none:200"], Option::None),
        (requires, Auto, ["crc64nvme:200 crc64nvme:200", "algorithm+type:200", "crc64nvme:200"], Option::None),
        (requires, Crc64Nvme, ["crc64nvme:200 crc64nvme:200", "algorithm+type:200", "crc64nvme:200"], Option::None),
        (requires, Crc32c, ["crc32c:200 crc32c:200", "algorithm:200", "crc32c:200"], Option::None),
        (requires, Md5, ["md5:200 md5:200", "none:200", "md5:200"], Option::None),
        (requires, None, ["none:400 none:400", "none:200", "none:400"], invalid),
        // A sum that is another one is a damaged body: each is sent twice, as with one retry.
        (echoes_another, Auto, [&["crc64nvme:200"; 4].join(" "), "algorithm+type:200", "crc64nvme:200 crc64nvme:200"], corrupt),
        (echoes_another, Crc64Nvme, [&["crc64nvme:200"; 4].join(" "), "algorithm+type:200", "crc64nvme:200 crc64nvme:200"], corrupt),
        (echoes_another, Crc32c, [&["crc32c:200"; 4].join(" "), "algorithm:200", "crc32c:200 crc32c:200"], corrupt),
        (echoes_another, Md5, ["md5:200 md5:200", "none:200", "md5:200"], Option::None),
        (echoes_another, None, ["none:200 none:200", "none:200", "none:200"], Option::None),
    ] {
        let bench = Bench::s3(|options| Options { upload_checksum: checksum, retries: 1, ..options }).await;
        let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
        server.behave(habits);
        let row = format!("{checksum:?}, {habits:?}");
        for body in [b"one", b"two"] {
            assert_eq!(bench.put("a", body, Condition::Any).await.err(), failure, "{row}");
        }
        let upload = bench.store.create_upload(&UploadRequest::new(&key("b"), &Headers::default())).await;
        let part = match &upload {
            Ok(upload) => bench.store.upload_part(upload, 1, content(1, 70_000).into()).await,
            Err(error) => Err(error.clone()),
        };
        assert_eq!(part.as_ref().err().map(|error| error.kind), failure, "{row}");
        if let (Ok(upload), Ok(part)) = (upload, part) {
            bench.store.complete_upload(&upload, &[part], &Condition::Any).await.unwrap();
            assert!(bench.read("a").await == b"two" && bench.read("b").await == content(1, 70_000), "{row}");
        }
        assert_eq!([Kind::Put, Kind::CreateUpload, Kind::UploadPart].map(|kind| sums_sent(server, kind)), sums, "{row}");
    }
}

async fn payloads_without_tls_are_signed_until_checksums_are() {
    let bench = Bench::s3(|options| options).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    let hashes = |kind| server.of_kind(kind).iter().map(|request| request.amz["x-amz-content-sha256"].clone()).collect::<Vec<_>>();
    let unsigned = "UNSIGNED-PAYLOAD";
    let own = |body: &[u8]| hex::encode(sha2::Sha256::digest(body));
    bench.put("a", b"one", Condition::Any).await.unwrap();
    bench.put("a", b"two", Condition::Any).await.unwrap();
    assert_eq!(hashes(Kind::Put), [own(b"one"), unsigned.to_owned()], "the header with the checksum is signed, and the store looks at it");
    assert!(server.of_kind(Kind::Put)[1].authorization.as_ref().unwrap().contains("x-amz-checksum-crc64nvme"));
    let (upload, parts) = bench.begin("b").await;
    bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    assert_eq!(hashes(Kind::CreateUpload), [own(b"")]);
    assert!(hashes(Kind::CompleteUpload)[0] != unsigned);
    server.behave(Habits { silent_checksums: true, ..Habits::default() });
    bench.put("a", b"three", Condition::Any).await.unwrap();
    bench.put("a", b"four", Condition::Any).await.unwrap();
    assert_eq!(hashes(Kind::Put)[2..], [unsigned.to_owned(), own(b"four")], "from when the store stopped looking at it");
}

async fn bodies_carry_md5_where_no_checksum_is_acknowledged() {
    let md5s = |server: &S3Server, kind| server.of_kind(kind).iter().map(|request| request.content_md5.is_some()).collect::<Vec<_>>();
    for (habits, puts, parts) in [
        (Habits::default(), [false, false], [false, false]),
        (Habits { silent_checksums: true, ..Habits::default() }, [false, true], [true, true]),
    ] {
        let bench = Bench::s3(|options| options).await;
        let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
        server.behave(habits);
        for body in [b"one", b"two"] {
            bench.put("a", body, Condition::Any).await.unwrap();
        }
        bench.begin("b").await;
        assert_eq!((md5s(server, Kind::Put), md5s(server, Kind::UploadPart)), (puts.to_vec(), parts.to_vec()), "{habits:?}");
    }
    // Refused sums are replaced at once.
    let bench = Bench::s3(|options| options).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { no_checksums: true, ..Habits::default() });
    bench.put("a", b"body", Condition::Any).await.unwrap();
    assert_eq!(md5s(server, Kind::Put), [false, true]);
}

async fn weak_tags_are_read_copied_and_replaced_like_strong_ones() {
    for looks in [true, false] {
        let bench = Bench::s3(|options| Options { retries: 0, ..options }).await;
        let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
        server.behave(Habits { weak_tags: true, ..Habits::default() });
        server.put("a", content(1, 70_000));
        // The version comes from a HEAD or from a listing, of which each request is the first that learns of the mark.
        let meta = async |name: &str| {
            let store = open(&server.store_options(), Arc::default()).await.unwrap();
            let list = ListRequest { prefix: key(name), delimited: false, after: None, token: None, max_keys: 1, any_order: false };
            let meta = match looks {
                true => store.head(&key(name)).await.unwrap(),
                false => store.list(&list).await.unwrap().objects.remove(0),
            };
            assert_eq!(meta.etag.is_weak(), looks);
            (store, meta)
        };
        let (store, a) = meta("a").await;
        assert!(crate::promises::whole(&*store, &a, 10..70_000).await == content(1, 70_000)[10..]);
        let (store, a) = meta("a").await;
        let copy = |etag: ETag| CopyRequest { source: key("a"), etag, target: key("b"), headers: None, condition: Condition::Absent };
        store.copy(&copy(a.etag.clone())).await.unwrap();
        let (store, a) = meta("a").await;
        let upload = store.create_upload(&UploadRequest::new(&key("c"), &Headers::default())).await.unwrap();
        let part = PartCopy { source: key("a"), etag: a.etag.clone(), range: 0..70_000 };
        let parts = [store.copy_part(&upload, 1, &part).await.unwrap(), store.upload_part(&upload, 2, "end".into()).await.unwrap()];
        store.complete_upload(&upload, &parts, &Condition::Absent).await.unwrap();
        let (store, b) = meta("b").await;
        let put = |etag: &ETag| PutRequest {
            key: key("b"),
            body: "new".into(),
            headers: Headers::default(),
            condition: Condition::Is(etag.clone()),
        };
        store.put(&put(&b.etag)).await.unwrap();
        // Another version is as much another one as with strong tags.
        let (store, a) = meta("a").await;
        server.put("a", content(2, 70_000));
        assert_eq!(crate::promises::fetch(&*store, &a, 0..10).await.1.unwrap_err().kind, ErrorKind::Replaced);
        assert_eq!(store.copy(&CopyRequest { target: key("d"), ..copy(a.etag.clone()) }).await.unwrap_err().kind, ErrorKind::Replaced);
        assert_eq!(store.copy_part(&upload, 1, &part).await.unwrap_err().kind, ErrorKind::Replaced);
        let (store, _) = meta("b").await;
        assert_eq!(store.put(&put(&b.etag)).await.unwrap_err().kind, ErrorKind::Replaced);
        assert_eq!(bench.read("b").await, b"new");
        assert_eq!(bench.read("c").await, [&content(1, 70_000)[..], b"end"].concat());
    }
}

async fn an_endpoint_without_conditions_is_looked_at_before() {
    let bench = Bench::s3(|options| options).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { no_conditions: true, ..Habits::default() });
    let etag = bench.put("a", b"one", Condition::Absent).await.unwrap();
    assert_eq!(bench.put("a", b"two", Condition::Absent).await, Err(ErrorKind::Replaced));
    bench.put("a", b"three", Condition::Is(etag.clone())).await.unwrap();
    assert_eq!(bench.put("a", b"four", Condition::Is(etag)).await, Err(ErrorKind::Replaced));
    // One of each kind refused with its condition, then one for each that may be.
    assert_eq!((bench.count(Op::Put), server.count(Kind::Head)), (4, 4));
    assert_eq!(bench.read("a").await, b"three");
}

/// A proxy, or one server of a cluster, may refuse a condition that the others compare. A HEAD before the write is no substitute there: a write
/// by another client between the two would be lost.
async fn an_endpoint_that_took_a_condition_is_never_written_without() {
    let bench = Bench::s3(|options| Options { retries: 1, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    let etag = bench.put("a", b"zero", Condition::Absent).await.unwrap();
    let etag = bench.put("a", b"one", Condition::Is(etag)).await.unwrap();
    // One refusal is repeated with its condition.
    server.fault(Fault::new(Effect::Status(501)).kind(Kind::Put).first(1));
    let etag = bench.put("a", b"two", Condition::Is(etag)).await.unwrap();
    assert_eq!((bench.count(Op::Put), server.count(Kind::Head)), (4, 0));
    // A refusal that stays is an error, for writes and for deletes.
    let other = bench.put("b", b"other", Condition::Any).await.unwrap();
    bench.store.delete_version(&key("b"), &other).await.unwrap();
    server.fault(Fault::new(Effect::Status(501)).kind(Kind::Put));
    server.fault(Fault::new(Effect::Status(501)).kind(Kind::Delete));
    assert_eq!(bench.put("a", b"three", Condition::Is(etag.clone())).await, Err(ErrorKind::Unavailable));
    assert_eq!(bench.store.delete_version(&key("a"), &etag).await.unwrap_err().kind, ErrorKind::Unavailable);
    server.clear_faults();
    assert_eq!((server.count(Kind::Head), bench.metrics.refused_features.get()), (0, 0));
    assert_eq!(bench.put("a", b"four", Condition::Is("\"other\"".into())).await, Err(ErrorKind::Replaced), "conditions are still sent");
    assert_eq!(bench.read("a").await, b"two");
    // A condition that was refused with 412 was compared too.
    let bench = Bench::s3(|options| Options { retries: 0, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    assert_eq!(bench.put("a", b"one", Condition::Is("\"other\"".into())).await, Err(ErrorKind::Replaced));
    server.behave(Habits { no_conditions: true, ..Habits::default() });
    assert_eq!(bench.put("a", b"one", Condition::Is("\"other\"".into())).await, Err(ErrorKind::Unavailable));
}

/// Each of these would be tried first of a store of which nothing is known; conditions that are ignored would not even be found out.
async fn the_source_of_a_copied_part_is_compared_afterwards_where_the_store_cannot() {
    for conditional_part_copies in [true, false] {
        let quirks = Quirks { conditional_part_copies, ..Quirks::LEARNED };
        let bench = Bench::s3(|options| Options { quirks, ..options }).await;
        let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
        let old = bench.put("source", &content(1, 50_000), Condition::Any).await.unwrap();
        let new = bench.put("source", &content(2, 50_000), Condition::Any).await.unwrap();
        let (upload, mut parts) = bench.begin("a").await;
        let part = |etag: ETag| PartCopy { source: key("source"), etag, range: 0..50_000 };
        let refused = bench.store.copy_part(&upload, 3, &part(old)).await;
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Replaced, "{conditional_part_copies}");
        let heads = bench.count(Op::Head);
        parts.push(bench.store.copy_part(&upload, 3, &part(new)).await.unwrap());
        assert_eq!(bench.count(Op::Head) - heads, usize::from(!conditional_part_copies));
        bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
        assert!(bench.read("a").await.ends_with(&content(2, 50_000)));
        let conditions = server.of_kind(Kind::CopyPart);
        let conditions = conditions.iter().filter(|request| request.amz.contains_key("x-amz-copy-source-if-match")).count();
        assert_eq!(conditions > 0, conditional_part_copies);
    }
}

async fn what_a_provider_is_known_to_lack_is_never_tried() {
    let quirks = Quirks {
        crc64nvme: false,
        conditional_writes: Support::No,
        conditional_deletes: Support::No,
        object_acls: false,
        object_tags: false,
        ..Quirks::LEARNED
    };
    let bench = Bench::s3(|options| Options { quirks, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    server.behave(Habits { no_checksums: true, silent_conditions: true, ..Habits::default() });
    let etag = bench.put("a", b"one", Condition::Absent).await.unwrap();
    let other = ETag::from("\"other\"");
    assert_eq!(bench.put("a", b"two", Condition::Absent).await, Err(ErrorKind::Replaced));
    assert_eq!(bench.put("a", b"two", Condition::Is(other.clone())).await, Err(ErrorKind::Replaced));
    assert_eq!(bench.store.delete_version(&key("a"), &other).await.unwrap_err().kind, ErrorKind::Replaced);
    let (upload, parts) = bench.begin("a").await;
    let completed = bench.store.complete_upload(&upload, &parts, &Condition::Absent).await;
    assert_eq!(completed.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(bench.read("a").await, b"one");
    bench.store.details_to_keep(&key("a")).await.unwrap();
    bench.put("a", b"three", Condition::Is(etag)).await.unwrap();
    // Each refused request would be one more, and a header.
    assert_eq!((bench.count(Op::Put), bench.metrics.refused_features.get()), (2, 0));
    for request in server.requests() {
        let asks = ["acl", "tagging", "ownershipControls"].into_iter().find(|query| request.query.contains(query));
        let sum = request.amz.keys().find(|name| name.starts_with("x-amz-checksum-") && name.as_str() != "x-amz-checksum-mode");
        assert_eq!((asks, sum), (None, None), "{request:?}");
        if matches!(request.kind, Kind::Put | Kind::UploadPart) {
            assert!(request.content_md5.is_some(), "{request:?}");
        }
    }
}

async fn a_condition_that_a_provider_compares_is_never_left_out() {
    let quirks = Quirks { conditional_writes: Support::Yes, conditional_deletes: Support::Yes, ..Quirks::LEARNED };
    let bench = Bench::s3(|options| Options { quirks, retries: 0, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    let etag = bench.put("a", b"one", Condition::Any).await.unwrap();
    server.behave(Habits { no_conditions: true, ..Habits::default() });
    assert_eq!(bench.put("b", b"two", Condition::Absent).await, Err(ErrorKind::Unavailable));
    assert_eq!(bench.store.delete_version(&key("a"), &etag).await.unwrap_err().kind, ErrorKind::Unavailable);
    let (upload, parts) = bench.begin("b").await;
    let completed = bench.store.complete_upload(&upload, &parts, &Condition::Absent).await;
    assert_eq!(completed.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!((server.count(Kind::Head), server.stored("b").is_none()), (0, true));
}

async fn an_error_that_comes_after_success_is_tried_again() {
    let bench = Bench::s3(|options| options).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    let (upload, parts) = bench.begin("a").await;
    server.behave(Habits { late_error: true, ..Habits::default() });
    bench.store.complete_upload(&upload, &parts, &Condition::Absent).await.unwrap();
    let answers: Vec<u16> = server.of_kind(Kind::CompleteUpload).iter().map(|request| request.status).collect();
    assert_eq!(answers, [200, 200]);
    assert_eq!(bench.read("a").await.len(), 140_000);
}

async fn a_body_that_does_not_move_is_given_up() {
    let stall = Duration::from_secs(1);
    let bench = Bench::s3(|options| Options { stall_timeout: stall, retries: 0, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    // It reads nothing meanwhile; no pair of sockets holds so much.
    server.fault(Fault::new(Effect::Delay(Duration::from_secs(60))).kind(Kind::Put));
    let request = PutRequest { key: key("a"), body: vec![1; 64 << 20].into(), headers: Headers::default(), condition: Condition::Any };
    let error = bench.store.put(&request).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(error.message.contains("bytes were sent and then nothing moved"), "{error}");
    assert!(bench.metrics.uploaded_bytes.get() < 64 << 20);
}

async fn options_are_said_with_every_write() {
    let said = |options| Options {
        sse: Sse::Kms,
        sse_key_id: Some("key-1".into()),
        storage_class: Some("STANDARD_IA".into()),
        acl: Some("bucket-owner-full-control".into()),
        ..options
    };
    let bench = Bench::s3(said).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    let etag = bench.put("a", b"body", Condition::Any).await.unwrap();
    let copy = CopyRequest { source: key("a"), etag, target: key("b"), headers: None, condition: Condition::Any };
    bench.store.copy(&copy).await.unwrap();
    let (upload, parts) = bench.begin("c").await;
    bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    for name in ["a", "b", "c"] {
        let about = server.stored(name).unwrap().1;
        let facts = [about.encryption, about.storage_class, about.acl];
        assert_eq!(facts, ["aws:kms", "STANDARD_IA", "bucket-owner-full-control"].map(|fact| Some(fact.to_owned())), "{name}");
    }
    for kind in [Kind::Put, Kind::Copy, Kind::CreateUpload] {
        assert_eq!(server.of_kind(kind)[0].amz["x-amz-server-side-encryption-aws-kms-key-id"], "key-1");
    }
    assert_eq!(bench.store.details(&key("a")).await.unwrap().storage_class.as_deref(), Some("STANDARD_IA"));

    let bench =
        Bench::oss(|options| Options { sse: Sse::Aes256, storage_class: Some("IA".into()), acl: Some("private".into()), ..options }).await;
    let Server::Oss(server) = &bench.server else { unreachable!("it is OSS") };
    bench.put("a", b"body", Condition::Any).await.unwrap();
    let (upload, parts) = bench.begin("c").await;
    bench.store.complete_upload(&upload, &parts, &Condition::Any).await.unwrap();
    for name in ["a", "c"] {
        let stored = server.stored(name);
        assert_eq!((stored["x-oss-server-side-encryption"].as_str(), stored["x-oss-storage-class"].as_str()), ("AES256", "IA"), "{name}");
        assert_eq!(stored["x-oss-object-acl"], "private", "{name}");
    }
}

async fn who_pays_is_said_with_every_request() {
    let bench = Bench::s3(|options| Options { requester_pays: true, ..options }).await;
    let Server::Ours(_, server) = &bench.server else { unreachable!("it is ours") };
    write_all(&bench).await;
    let list = windlass::store::ListRequest { prefix: key(""), delimited: true, after: None, token: None, max_keys: 10, any_order: false };
    bench.store.list(&list).await.unwrap();
    let requests = server.requests();
    assert!(requests.len() > 20);
    for request in requests {
        assert_eq!(request.amz.get("x-amz-request-payer").map(String::as_str), Some("requester"), "{:?}", request.kind);
    }
    // The OSS server would refuse a signature that does not cover it.
    write_all(&Bench::oss(|options| Options { requester_pays: true, ..options }).await).await;
}

async fn writes_and_bytes_are_counted() {
    for bench in [Bench::s3(|options| options).await, Bench::oss(|options| options).await] {
        let etag = bench.put("a", &content(1, 300_000), Condition::Any).await.unwrap();
        let copy = CopyRequest { source: key("a"), etag, target: key("b"), headers: None, condition: Condition::Any };
        bench.store.copy(&copy).await.unwrap();
        let (upload, parts) = bench.begin("c").await;
        assert_eq!(bench.metrics.uploaded_bytes.get(), 300_000 + 2 * 70_000);
        bench.store.abort_upload(&upload).await.unwrap();
        bench.store.delete(&key("a")).await.unwrap();
        let metrics = &bench.metrics;
        assert_eq!((metrics.put_requests.get(), metrics.copy_requests.get(), metrics.delete_requests.get()), (4, 1, 2));
        assert_eq!(parts.len(), 2);
    }
}
