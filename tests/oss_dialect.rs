//! The OSS dialect over HTTP, against a server that checks every signature by the vendor's rules.

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use reqsign_core::time::Timestamp;
use support::oss_read::etag;
use support::oss_server::{OssServer, Setup};
use support::oss_sign::Signee;
use tempfile::TempDir;
use windlass::metrics::Metrics;
use windlass::store::{
    Condition, CopyRequest, CredentialOptions, Dialect, ETag, Error, ErrorKind, Headers, Key, ListPage, ListRequest, ObjectStore, Op,
    Options, Part, PartCopy, PutRequest, RangeRequest, RangeSink, Signature, Upload, UploadRequest, open,
};

const BOTH: [Signature; 2] = [Signature::V4, Signature::V1];

const TOKEN: &str = "CAISexampleTOKEN+/==with/specials&more=";

/// Keys that are easily encoded twice, not at all, or normalised away.
const ODD_KEYS: [&str; 18] = [
    "a",
    "dir/file.bin",
    "sp ace/plus+/pct%41",
    "100%",
    "%2F",
    "中文/文件.txt",
    "emoji\u{1f600}",
    "a//b",
    "/lead",
    "q?x=y&z#h",
    "tilde~_-.!*'()",
    "new\nline",
    "e\u{301}",
    "dir/",
    "@:;,=$[]{}|\\^`\"<>",
    "..a/.b",
    "uploads",
    "data/data",
];

fn setup() -> Setup {
    Setup {
        bucket: "data".into(),
        who: Signee { id: "LTAI5tEXAMPLEKEYID".into(), secret: "EXAMPLEsecret0001".into(), region: "cn-hangzhou".into() },
        token: None,
        public: false,
        objects: ODD_KEYS.iter().map(|key| (key.as_bytes().to_vec(), format!("content of {key}").into_bytes())).collect(),
        redirect_to: None,
    }
}

/// A server and what is needed to reach it.
struct Bench {
    server: OssServer,
    dir: TempDir,
}

impl Bench {
    async fn start(setup: Setup) -> Self {
        let token = setup.token.as_ref().map(|token| format!(":{token}")).unwrap_or_default();
        let line = format!("{}:{}:{}{token}\n", setup.bucket, setup.who.id, setup.who.secret);
        let bench = Self { server: OssServer::start(setup).await, dir: tempfile::tempdir().unwrap() };
        bench.passwd(&line);
        bench
    }

    fn passwd(&self, text: &str) {
        let path = self.dir.path().join("passwd");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn options(&self, signature: Signature) -> Options {
        Options {
            dialect: Dialect::Oss,
            bucket: "data".into(),
            endpoint: Some(format!("http://{}", self.server.address)),
            region: Some("cn-hangzhou".into()),
            signature,
            credentials: CredentialOptions { passwd_file: Some(self.dir.path().join("passwd")), ..CredentialOptions::default() },
            retries: 0,
            ..Options::default()
        }
    }

    async fn store(&self, signature: Signature) -> Arc<dyn ObjectStore> {
        connect(&self.options(signature)).await
    }
}

async fn connect(options: &Options) -> Arc<dyn ObjectStore> {
    open(options, Arc::new(Metrics::default())).await.unwrap()
}

/// A sink of its own making.
struct Bytes {
    buffer: Vec<u8>,
    filled: usize,
}

impl RangeSink for Bytes {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..]
    }

    fn advance(&mut self, n: usize) {
        self.filled += n;
    }
}

async fn get(store: &dyn ObjectStore, key: &str, range: std::ops::Range<u64>, tag: &str) -> Result<Vec<u8>, windlass::store::Error> {
    let mut sink = Bytes { buffer: vec![0; (range.end - range.start) as usize], filled: 0 };
    let request = RangeRequest { key: Key::from(key), range, etag: ETag::from(tag) };
    store.get_range(&request, &mut sink).await?;
    assert_eq!(sink.filled, sink.buffer.len());
    Ok(sink.buffer)
}

fn listing(prefix: &str, delimited: bool, max_keys: u16) -> ListRequest {
    ListRequest { prefix: Key::from(prefix), delimited, after: None, token: None, max_keys, any_order: false }
}

async fn list_all(store: &dyn ObjectStore, mut request: ListRequest) -> Vec<ListPage> {
    let mut pages = Vec::new();
    loop {
        let page = store.list(&request).await.unwrap();
        request.token = page.next.clone();
        pages.push(page);
        if request.token.is_none() {
            return pages;
        }
    }
}

/// Every key by HEAD, GET and LIST.
async fn read_everything(store: &dyn ObjectStore) {
    let listed = list_all(store, listing("", false, 5)).await;
    let listed: BTreeMap<Key, u64> = listed.into_iter().flat_map(|page| page.objects).map(|meta| (meta.key, meta.size)).collect();
    assert_eq!(listed.len(), ODD_KEYS.len());
    for key in ODD_KEYS {
        let content = format!("content of {key}").into_bytes();
        let meta = store.head(&Key::from(key)).await.unwrap();
        assert_eq!((meta.size, meta.etag.as_str()), (content.len() as u64, etag(&content).as_str()), "{key}");
        assert_eq!(listed[&Key::from(key)], meta.size, "{key}");
        assert_eq!(get(store, key, 0..meta.size, meta.etag.as_str()).await.unwrap(), content, "{key}");
    }
}

#[tokio::test]
async fn odd_keys_are_read_with_both_signatures() {
    for (signature, name) in BOTH.into_iter().zip(["V4", "V1"]) {
        let bench = Bench::start(setup()).await;
        read_everything(&*bench.store(signature).await).await;
        let counts = bench.server.counts();
        assert_eq!((counts.refused, counts.virtual_host, counts.signature.as_str()), (0, 0, name));
        assert_eq!((counts.head, counts.get, counts.list), (ODD_KEYS.len(), ODD_KEYS.len(), ODD_KEYS.len().div_ceil(5)));
    }
}

/// In path style too the resource is signed as /bucket/key, and once.
#[tokio::test]
async fn a_bucket_named_like_the_beginning_of_its_host_is_signed_like_any_other() {
    for signature in BOTH {
        let bench = Bench::start(Setup { bucket: "127".into(), ..setup() }).await;
        read_everything(&*connect(&Options { bucket: "127".into(), ..bench.options(signature) }).await).await;
        assert_eq!((bench.server.counts().refused, bench.server.counts().virtual_host), (0, 0));
    }
}

#[tokio::test]
async fn temporary_credentials_send_their_token() {
    for signature in BOTH {
        let mut setup = Setup { token: Some(TOKEN.into()), ..setup() };
        setup.who.id = "STS.NEXAMPLEKEYID".into();
        let bench = Bench::start(setup).await;
        read_everything(&*bench.store(signature).await).await;
        bench.server.change(|setup| setup.token = Some("another".into()));
        let error = bench.store(signature).await.head(&Key::from("a")).await.unwrap_err();
        assert_eq!((error.kind, error.code.as_deref()), (ErrorKind::BadCredentials, Some("InvalidSecurityToken")));
    }
}

#[tokio::test]
async fn public_buckets_are_read_without_a_signature() {
    let bench = Bench::start(Setup { public: true, ..setup() }).await;
    let anonymous = Options { credentials: CredentialOptions::default(), region: None, ..bench.options(Signature::None) };
    read_everything(&*connect(&anonymous).await).await;
    assert_eq!(bench.server.counts().signature, "none");
    bench.server.change(|setup| setup.public = false);
    let error = connect(&anonymous).await.list(&listing("", true, 1)).await.unwrap_err();
    assert_eq!((error.kind, error.op, error.status), (ErrorKind::AccessDenied, Op::List, Some(403)));
}

#[tokio::test]
async fn credentials_that_the_store_does_not_know_are_told_as_such() {
    for signature in BOTH {
        let bench = Bench::start(setup()).await;
        for (line, code) in [("LTAI5tEXAMPLEKEYID:wrong", "SignatureDoesNotMatch"), ("LTAIother:EXAMPLEsecret0001", "InvalidAccessKeyId")] {
            bench.passwd(line);
            let store = bench.store(signature).await;
            let key = Key::from("a");
            for error in [
                store.head(&key).await.unwrap_err(),
                store.list(&listing("", false, 1)).await.unwrap_err(),
                get(&*store, "a", 0..1, "\"E\"").await.unwrap_err(),
            ] {
                assert_eq!((error.kind, error.code.as_deref()), (ErrorKind::BadCredentials, Some(code)), "{error}");
                assert!(error.request_id.is_some() && !error.to_string().contains("EXAMPLEsecret"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_wrong_region_is_refused_by_v4_only() {
    let bench = Bench::start(setup()).await;
    let elsewhere = |signature| Options { region: Some("cn-beijing".into()), ..bench.options(signature) };
    let error = connect(&elsewhere(Signature::V4)).await.head(&Key::from("a")).await.unwrap_err();
    assert!(error.code.as_deref() == Some("InvalidArgument") && error.message.contains("region"), "{error}");
    assert!(connect(&elsewhere(Signature::V1)).await.head(&Key::from("a")).await.is_ok());
}

#[tokio::test]
async fn a_credentials_file_that_others_can_read_fails_before_anything_is_sent() {
    let bench = Bench::start(setup()).await;
    let path = bench.dir.path().join("passwd");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = open(&bench.options(Signature::V4), Arc::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoCredentials);
    assert!(error.message.contains(&format!("chmod 600 {}", path.display())), "{error}");
    assert_eq!(bench.server.counts(), Default::default());
}

#[tokio::test]
async fn what_is_not_there_is_told_by_its_name() {
    let bench = Bench::start(setup()).await;
    let store = bench.store(Signature::V4).await;
    assert_eq!(store.head(&Key::from("none")).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(get(&*store, "none", 0..1, "\"E\"").await.unwrap_err().kind, ErrorKind::NotFound);
    assert!(store.list(&listing("none/", true, 10)).await.unwrap().objects.is_empty());
    let other = Options { bucket: "other".into(), ..bench.options(Signature::V4) };
    bench.passwd("LTAI5tEXAMPLEKEYID:EXAMPLEsecret0001");
    let other = connect(&other).await;
    assert_eq!(other.head(&Key::from("a")).await.unwrap_err().kind, ErrorKind::NoSuchBucket);
    assert_eq!(other.list(&listing("", true, 1)).await.unwrap_err().kind, ErrorKind::NoSuchBucket);
}

#[tokio::test]
async fn names_that_cannot_be_said_are_refused_before_anything_is_sent() {
    let bench = Bench::start(setup()).await;
    let store = bench.store(Signature::V4).await;
    for key in [&b"a/../b"[..], b".", b"\xff\xfe"] {
        assert_eq!(store.head(&Key::from(key)).await.unwrap_err().kind, ErrorKind::Invalid);
    }
    let request = ListRequest { prefix: Key::from(&b"\xff/"[..]), ..listing("", true, 1) };
    assert_eq!(store.list(&request).await.unwrap_err().kind, ErrorKind::Invalid);
    let counts = bench.server.counts();
    assert_eq!(counts.head + counts.list + counts.refused, 0);
}

#[tokio::test]
async fn three_thousand_keys_come_in_pages_and_in_order() {
    for signature in BOTH {
        let objects = (0..3000).map(|n| (format!("many/{n:05} +%.bin").into_bytes(), vec![b'x'; n % 7])).collect();
        let bench = Bench::start(Setup { objects, ..setup() }).await;
        let store = bench.store(signature).await;
        let pages = list_all(&*store, listing("many/", true, 1000)).await;
        assert_eq!(pages.iter().map(|page| page.objects.len()).collect::<Vec<_>>(), [1000, 1000, 1000]);
        let listed = pages.iter().flat_map(|page| &page.objects).enumerate();
        for (n, meta) in listed {
            assert_eq!((meta.key.to_str().unwrap(), meta.size), (format!("many/{n:05} +%.bin").as_str(), n as u64 % 7));
        }
        assert_eq!(bench.server.counts().list, 3);
        assert_eq!(store.list(&listing("", true, 1000)).await.unwrap().prefixes, [Key::from("many/")]);
    }
}

#[tokio::test]
async fn ranges_of_one_version_share_a_signature_and_a_new_version_is_noticed() {
    for signature in BOTH {
        let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        let bench = Bench::start(Setup { objects: [(b"big".to_vec(), content.clone())].into(), ..setup() }).await;
        let store = bench.store(signature).await;
        let tag = etag(&content);
        for start in (0..100_000).step_by(30_000) {
            let end = (start + 30_000).min(100_000);
            assert_eq!(get(&*store, "big", start..end, &tag).await.unwrap(), content[start as usize..end as usize]);
        }
        bench.server.change(|setup| drop(setup.objects.insert(b"big".to_vec(), vec![1; 100_000])));
        assert_eq!(get(&*store, "big", 0..10, &tag).await.unwrap_err().kind, ErrorKind::Replaced);
        assert_eq!(bench.server.counts().get, 5);
    }
}

#[tokio::test]
async fn redirects_carry_the_signature_to_allowed_hosts_only() {
    for signature in BOTH {
        let (bench, cache) = (Bench::start(setup()).await, OssServer::start(setup()).await);
        bench.server.change(|setup| setup.redirect_to = Some(cache.address));
        let tag = etag(b"content of sp ace/plus+/pct%41");
        let key = "sp ace/plus+/pct%41";
        let error = get(&*bench.store(signature).await, key, 0..7, &tag).await.unwrap_err();
        // It is sent nothing, not even without a signature.
        assert_eq!((error.kind, cache.counts().signature.as_str()), (ErrorKind::WrongEndpoint, ""));
        let trusting = Options { redirect_hosts: vec![cache.address.to_string()], ..bench.options(signature) };
        assert_eq!(get(&*connect(&trusting).await, key, 0..7, &tag).await.unwrap(), b"content");
        assert_eq!((cache.counts().get, bench.server.counts().redirected), (1, 2));
    }
}

#[tokio::test]
async fn links_without_a_tag_are_links() {
    let bench = Bench::start(setup()).await;
    bench.server.have_bare_links();
    let store = bench.store(Signature::V4).await;
    let link = |name: &'static str, target: &'static [u8]| {
        let store = &store;
        async move { store.put_symlink(&Key::from(name), target, &Headers::default(), &Condition::Any).await.unwrap().etag }
    };
    for target in [&b"a"[..], b"nowhere"] {
        let etag = link("link", target).await;
        let found = store.details(&Key::from("link")).await.unwrap();
        assert_eq!((found.symlink.as_deref(), &found.meta.etag), (Some(target), &etag));
        // HEAD follows the link where it leads to an object.
        assert_eq!(store.head(&Key::from("link")).await.unwrap().etag, etag);
        let listed = store.list(&listing("link", false, 5)).await.unwrap();
        assert_eq!(listed.objects.len(), 1);
        let (source, copied) = (Key::from("link"), Key::from("copy"));
        let copy = CopyRequest { source, etag: etag.clone(), target: copied, headers: None, condition: Condition::Any };
        store.copy(&copy).await.unwrap();
        assert_eq!(store.details(&Key::from("copy")).await.unwrap().symlink.as_deref(), Some(target));
        let other = link("link", b"other").await;
        assert_eq!(store.delete_version(&Key::from("link"), &etag).await.unwrap_err().kind, ErrorKind::Replaced);
        store.delete_version(&Key::from("link"), &other).await.unwrap();
    }
}

#[tokio::test]
async fn a_refused_time_is_replaced_by_that_of_the_store() {
    for signature in BOTH {
        let bench = Bench::start(setup()).await;
        let store = bench.store(signature).await;
        let tag = etag(b"content of a");
        assert_eq!(get(&*store, "a", 0..7, &tag).await.unwrap(), b"content");
        bench.server.set_clock_ahead(Duration::from_secs(20 * 60));
        // The kept signature is of the other time.
        assert_eq!(get(&*store, "a", 8..10, &tag).await.unwrap(), b"of");
        assert_eq!(bench.server.counts().refused, 1);
        read_everything(&*store).await;
        store.delete(&Key::from("a")).await.unwrap();
        assert_eq!(bench.server.counts().refused, 1);
        for first in [Op::Head, Op::List] {
            let refused = bench.server.counts().refused;
            let store = bench.store(signature).await;
            match first {
                Op::Head => drop(store.head(&Key::from("dir/")).await.unwrap()),
                _ => drop(store.list(&listing("", false, 5)).await.unwrap()),
            }
            assert_eq!(bench.server.counts().refused - refused, 1);
        }
    }
}

#[tokio::test]
async fn a_kept_signature_whose_token_ended_is_made_anew() {
    for signature in BOTH {
        let mut setup = Setup { token: Some("one".into()), ..setup() };
        setup.who.id = "STS.NEXAMPLEKEYID".into();
        let bench = Bench::start(setup).await;
        let path = bench.dir.path().join("credentials.json");
        let write = |token: &str| {
            let end = (Timestamp::now() + Duration::from_secs(60)).format_rfc3339_zulu();
            let (id, secret) = ("STS.NEXAMPLEKEYID", "EXAMPLEsecret0001");
            let json = format!(r#"{{"AccessKeyId":"{id}","AccessKeySecret":"{secret}","SecurityToken":"{token}","Expiration":"{end}"}}"#);
            std::fs::write(&path, json).unwrap();
        };
        write("one");
        let process = Some(format!("cat '{}'", path.display()));
        let credentials = CredentialOptions { process, ..CredentialOptions::default() };
        let store = connect(&Options { credentials, ..bench.options(signature) }).await;
        let tag = etag(b"content of a");
        assert_eq!(get(&*store, "a", 0..7, &tag).await.unwrap(), b"content");
        bench.server.change(|setup| setup.token = Some("two".into()));
        write("two");
        assert_eq!(get(&*store, "a", 8..10, &tag).await.unwrap(), b"of");
        assert_eq!((bench.server.counts().get, bench.server.counts().refused), (2, 1));
    }
}

/// What can be asked of a bucket.
const ASKED: [Op; 11] = [
    Op::Head,
    Op::List,
    Op::Get,
    Op::Put,
    Op::CreateUpload,
    Op::UploadPart,
    Op::CopyPart,
    Op::CompleteUpload,
    Op::AbortUpload,
    Op::Copy,
    Op::Delete,
];

async fn ask(store: &dyn ObjectStore, op: Op, upload: &Upload, part: &Part) -> Result<(), Error> {
    let (source, target, tag) = (Key::from("a"), Key::from("made"), ETag::from(etag(b"content of a").as_str()));
    let (headers, condition) = (Headers::default(), Condition::Any);
    match op {
        Op::Head => store.head(&source).await.map(drop),
        Op::List => store.list(&listing("", false, 1)).await.map(drop),
        Op::Get => get(store, "a", 0..7, tag.as_str()).await.map(drop),
        Op::Put => store.put(&PutRequest { key: target, body: "new".into(), headers, condition }).await.map(drop),
        Op::CreateUpload => store.create_upload(&UploadRequest::new(&target, &headers)).await.map(drop),
        Op::UploadPart => store.upload_part(upload, 2, "more".into()).await.map(drop),
        Op::CopyPart => store.copy_part(upload, 2, &PartCopy { source, etag: tag, range: 0..7 }).await.map(drop),
        Op::CompleteUpload => store.complete_upload(upload, std::slice::from_ref(part), &condition).await.map(drop),
        Op::AbortUpload => store.abort_upload(upload).await,
        // With its headers it is one request; without, what they are is asked for first.
        Op::Copy => store.copy(&CopyRequest { source, etag: tag, target, headers: Some(headers), condition }).await.map(drop),
        Op::Delete => store.delete(&target).await,
        Op::ListUploads | Op::ListParts => unreachable!("only the orphans of a crash are listed"),
        Op::Rename => unreachable!("OSS has no such request"),
    }
}

/// Whose keys were changed in their file is let in with the new ones, long before the file would be read again.
#[tokio::test]
async fn what_is_refused_is_sent_once_more_with_the_credentials_of_now() {
    for signature in BOTH {
        let bench = Bench::start(setup()).await;
        let refused = || bench.server.counts().refused;
        for (n, op) in ASKED.into_iter().enumerate() {
            let store = bench.store(signature).await;
            let upload = store.create_upload(&UploadRequest::new(&Key::from("upload"), &Headers::default())).await.unwrap();
            let part = store.upload_part(&upload, 1, "content".into()).await.unwrap();
            let before = refused();
            bench.server.change(|setup| setup.who.id = format!("LTAIrotated{n}"));
            bench.passwd(&format!("LTAIrotated{n}:EXAMPLEsecret0001"));
            ask(&*store, op, &upload, &part).await.unwrap_or_else(|error| panic!("{op}: {error}"));
            assert_eq!(refused(), before + 1, "{op}");
            store.head(&Key::from("a")).await.unwrap();
            assert_eq!(refused(), before + 1, "{op}: the new ones are kept");

            bench.passwd("LTAInobody:EXAMPLEsecret0001");
            let store = bench.store(signature).await;
            let error = ask(&*store, op, &upload, &part).await.unwrap_err();
            assert_eq!((error.kind, refused()), (ErrorKind::BadCredentials, before + 2), "{op}: not again with the same");
            bench.passwd(&format!("LTAIrotated{n}:EXAMPLEsecret0001"));
        }
    }
}

/// The bucket as a label of the host needs a name that resolves; a proxy resolves for us. Proxies are taken from the
/// environment, which is only safe to set for another process: this very program, running the test below.
#[tokio::test]
async fn the_bucket_may_stand_in_the_host_and_requests_may_go_through_a_proxy() {
    for signature in ["v4", "v1"] {
        let bench = Bench::start(setup()).await;
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "read_everything_in_virtual_host_style", "--ignored"])
            .env("http_proxy", format!("http://{}", bench.server.address))
            .env_remove("no_proxy")
            .env_remove("NO_PROXY")
            .env("TEST_PASSWD", bench.dir.path().join("passwd"))
            .env("TEST_SIGNATURE", signature)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let status = tokio::task::spawn_blocking(move || { child }.wait()).await.unwrap().unwrap();
        let counts = bench.server.counts();
        assert!(status.success(), "{counts:?}");
        assert_eq!((counts.refused, counts.get), (0, ODD_KEYS.len()));
        assert_eq!(counts.virtual_host, counts.get + counts.head + counts.list);
    }
}

#[tokio::test]
#[ignore = "run by the test of virtual-host style, in an environment with a proxy"]
async fn read_everything_in_virtual_host_style() {
    let options = Options {
        dialect: Dialect::Oss,
        bucket: "data".into(),
        endpoint: Some("http://oss-cn-hangzhou.example.com".into()),
        region: Some("cn-hangzhou".into()),
        signature: if std::env::var("TEST_SIGNATURE").unwrap() == "v1" { Signature::V1 } else { Signature::V4 },
        credentials: CredentialOptions { passwd_file: std::env::var_os("TEST_PASSWD").map(Into::into), ..CredentialOptions::default() },
        retries: 0,
        ..Options::default()
    };
    read_everything(&*connect(&options).await).await;
}
