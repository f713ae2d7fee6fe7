//! The dialect against s3s-fs over the loopback interface, and against scripted answers that it cannot give.

mod addresses;
mod documents;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::super::wire::{Fake, Reply};
use super::super::{
    Condition, CopyRequest, CredentialOptions, Dialect, ETag, Headers, ListRequest, Part, PutRequest, RangeRequest, Upload,
};
use super::*;
use crate::store::buckets::Account as _;
use crate::store::whole::Whole;

/// An S3 server over a temporary directory, and a password file for it beside.
struct Server {
    directory: TempDir,
    endpoint: String,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("data")).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(&root).unwrap());
        builder.set_auth(SimpleAuth::from_single("test", "testsecret"));
        let service = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            let mut served = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = service.clone();
                served.spawn(async move {
                    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        let server = Self { directory, endpoint, task };
        server.passwd("passwd", "data:test:testsecret\n");
        server
    }

    fn passwd(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn put(&self, key: &str, content: &[u8]) {
        let path = self.path("root/data").join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    async fn store(&self, passwd: &str, bucket: &str) -> Arc<dyn ObjectStore> {
        store(&self.endpoint, &self.path(passwd), bucket, Arc::default()).await
    }
}

async fn store(endpoint: &str, passwd: &Path, bucket: &str, metrics: Arc<Metrics>) -> Arc<dyn ObjectStore> {
    let credentials = CredentialOptions { passwd_file: Some(passwd.to_owned()), ..CredentialOptions::default() };
    let options = Options {
        dialect: Dialect::S3,
        bucket: bucket.into(),
        endpoint: Some(endpoint.into()),
        region: Some("us-east-1".into()),
        credentials,
        answer_timeout: Duration::from_secs(2),
        stall_timeout: Duration::from_secs(2),
        ..Options::default()
    };
    connect(&options, metrics).await.unwrap()
}

/// Credentials from a command.
fn process(endpoint: &str, command: &str) -> Options {
    Options {
        bucket: "data".into(),
        endpoint: Some(endpoint.into()),
        region: Some("us-east-1".into()),
        credentials: CredentialOptions { process: Some(command.into()), ..CredentialOptions::default() },
        ..Options::default()
    }
}

/// A dialect without credentials before a scripted server.
async fn scripted(replies: &[String]) -> (Fake, Arc<dyn ObjectStore>) {
    answering(replies.iter().cloned().map(Reply::Close).collect()).await
}

async fn answering(replies: Vec<Reply>) -> (Fake, Arc<dyn ObjectStore>) {
    let server = Fake::start(replies).await;
    let options = Options {
        bucket: "data".into(),
        endpoint: Some(server.address().to_string()),
        region: Some("us-east-1".into()),
        signature: Signature::None,
        answer_timeout: Duration::from_millis(300),
        stall_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let store = connect(&options, Arc::default()).await.unwrap();
    (server, store)
}

async fn read(store: &dyn ObjectStore, key: &str, etag: &ETag, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
    let mut sink = Whole::new(range.end - range.start);
    store.get_range(&RangeRequest { key: Key::from(key), range, etag: etag.clone() }, &mut sink).await?;
    assert_eq!(sink.filled, sink.content.len());
    Ok(sink.content)
}

fn listing(prefix: &str, token: Option<String>, max_keys: u16) -> ListRequest {
    ListRequest { prefix: Key::from(prefix), delimited: true, after: None, token, max_keys, any_order: false }
}

const ODD_KEYS: [&str; 7] = ["plain", "a b", "a+b", "100%41", "ümläut/日本", "q?x=y&z#h", "tilde~!*'()"];

#[tokio::test]
async fn objects_are_found_listed_and_read_whatever_their_keys() {
    let server = Server::start().await;
    let metrics = Arc::new(Metrics::default());
    let store = store(&server.endpoint, &server.path("passwd"), "data", metrics.clone()).await;
    for key in ODD_KEYS {
        let content: Vec<u8> = key.bytes().cycle().take(3000).collect();
        server.put(key, &content);
        let meta = store.head(&Key::from(key)).await.unwrap();
        assert_eq!((meta.size, meta.key), (3000, Key::from(key)));
        assert_eq!(read(&*store, key, &meta.etag, 1000..1500).await.unwrap(), content[1000..1500], "{key}");
        assert_eq!(read(&*store, key, &meta.etag, 0..3000).await.unwrap(), content, "{key}");
    }
    let page = store.list(&listing("", None, 1000)).await.unwrap();
    let mut names: Vec<Key> = page.objects.into_iter().map(|object| object.key).chain(page.prefixes).collect();
    names.sort();
    let mut expected: Vec<Key> = ODD_KEYS.iter().map(|key| Key::from(key.split_inclusive('/').next().unwrap())).collect();
    expected.sort();
    assert_eq!(names, expected);
    let (heads, lists, gets) = (metrics.head_requests.get(), metrics.list_requests.get(), metrics.get_requests.get());
    assert_eq!((heads, lists, gets, metrics.fetched_bytes.get()), (7, 1, 14, 7 * 3500));
}

#[tokio::test]
async fn a_listing_goes_on_where_the_page_before_stopped() {
    let server = Server::start().await;
    for n in 0..7 {
        server.put(&format!("dir/{n}"), b"x");
    }
    let store = server.store("passwd", "data").await;
    let (mut token, mut sizes, mut keys) = (None, Vec::new(), Vec::new());
    loop {
        let page = store.list(&listing("dir/", token, 3)).await.unwrap();
        sizes.push(page.objects.len());
        keys.extend(page.objects.into_iter().map(|object| object.key));
        token = page.next;
        if token.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [3, 3, 1]);
    assert_eq!(keys, (0..7).map(|n| Key::from(format!("dir/{n}"))).collect::<Vec<_>>());
    assert!(store.list(&listing("nothing/", None, 10)).await.unwrap().objects.is_empty());
}

#[tokio::test]
async fn a_replaced_object_is_noticed_although_the_server_ignores_if_match() {
    let server = Server::start().await;
    server.put("k", b"first version");
    let store = server.store("passwd", "data").await;
    let old = store.head(&Key::from("k")).await.unwrap().etag;
    server.put("k", b"other version");
    assert_eq!(read(&*store, "k", &old, 0..5).await.unwrap_err().kind, ErrorKind::Replaced);
    // A listing without tags must not read unconditionally.
    assert_eq!(read(&*store, "k", &ETag::from(""), 0..5).await.unwrap_err().kind, ErrorKind::Replaced);
}

#[tokio::test]
async fn what_is_missing_or_forbidden_is_told_apart() {
    let server = Server::start().await;
    server.put("k", b"content");
    server.passwd("wrong", "test:othersecret\n");
    server.passwd("unknown", "nobody:testsecret\n");
    let (good, etag) = (server.store("passwd", "data").await, ETag::from("\"e\""));
    assert_eq!(good.head(&Key::from("missing")).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(read(&*good, "missing", &etag, 0..5).await.unwrap_err().kind, ErrorKind::NotFound);
    server.passwd("any", "test:testsecret\n");
    let elsewhere = server.store("any", "nosuch").await;
    assert_eq!(elsewhere.list(&listing("", None, 1)).await.unwrap_err().kind, ErrorKind::NoSuchBucket);
    for passwd in ["wrong", "unknown"] {
        let store = server.store(passwd, "data").await;
        for error in [store.list(&listing("", None, 1)).await.unwrap_err(), read(&*store, "k", &etag, 0..5).await.unwrap_err()] {
            assert_eq!((error.kind, error.status), (ErrorKind::BadCredentials, Some(403)), "{passwd}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}

#[tokio::test]
async fn rotated_credentials_are_taken_up_at_the_first_refusal() {
    let server = Server::start().await;
    server.put("k", b"content");
    let etag = server.store("passwd", "data").await.head(&Key::from("k")).await.unwrap().etag;
    for op in [Op::Head, Op::List, Op::Get, Op::Put] {
        // The source gives the old secret first and the new one from then on.
        let script = server.path("credentials.sh");
        let flag = server.path(&format!("asked-{op}"));
        let json = |secret: &str| format!(r#"echo '{{"Version":1,"AccessKeyId":"test","SecretAccessKey":"{secret}"}}'"#);
        let (old, new, flag) = (json("oldsecret"), json("testsecret"), flag.display());
        fs::write(&script, format!("if test -e {flag}; then {new}; else touch {flag}; {old}; fi\n")).unwrap();
        let store = connect(&process(&server.endpoint, &format!("sh {}", script.display())), Arc::default()).await.unwrap();
        match op {
            Op::Head => assert_eq!(store.head(&Key::from("k")).await.unwrap().size, 7),
            Op::List => assert_eq!(store.list(&listing("", None, 10)).await.unwrap().objects.len(), 1),
            Op::Get => assert_eq!(read(&*store, "k", &etag, 0..7).await.unwrap(), b"content"),
            _ => {
                let (headers, condition) = (Headers::default(), Condition::Any);
                let body = b"written".to_vec().into();
                store.put(&PutRequest { key: Key::from("new"), body, headers, condition }).await.unwrap();
                assert_eq!(store.head(&Key::from("new")).await.unwrap().size, 7);
            }
        }
        assert!(server.path(&format!("asked-{op}")).exists());
    }
}

#[tokio::test]
async fn credentials_that_cannot_be_had_say_why() {
    let server = Server::start().await;
    let missing = server.store("no-such-file", "data").await;
    let error = missing.list(&listing("", None, 1)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoCredentials);
    assert!(error.message.contains("no-such-file"), "{error}");
    assert_eq!(error.message.matches("No such file").count(), 1, "{error}");
    let from_data_path = read(&*missing, "k", &ETag::from("\"e\""), 0..5).await.unwrap_err();
    assert_eq!(from_data_path.kind, ErrorKind::NoCredentials);

    let failing = connect(&process(&server.endpoint, "exit 3"), Arc::default()).await.unwrap();
    assert_eq!(failing.list(&listing("", None, 1)).await.unwrap_err().kind, ErrorKind::NoCredentials);
    let json = r#"echo '{"Version":1,"AccessKeyId":"test","SecretAccessKey":"testsecret"}'"#;
    let working = connect(&process(&server.endpoint, json), Arc::default()).await.unwrap();
    working.list(&listing("", None, 1)).await.unwrap();
}

#[tokio::test]
async fn a_head_without_a_body_is_still_understood() {
    let head = |status: &str, headers: &str| format!("HTTP/1.1 {status}\r\n{headers}x-amz-request-id: R9\r\nContent-Length: 0\r\n\r\n");
    for (reply, kind) in [
        (head("404 Not Found", ""), ErrorKind::NotFound),
        (head("403 Forbidden", ""), ErrorKind::AccessDenied),
        (head("301 Moved Permanently", "x-amz-bucket-region: eu-west-1\r\n"), ErrorKind::WrongEndpoint),
        (head("400 Bad Request", "x-amz-bucket-region: eu-west-1\r\n"), ErrorKind::WrongEndpoint),
        (head("400 Bad Request", "x-amz-bucket-region: us-east-1\r\n"), ErrorKind::Invalid),
        (head("503 Slow Down", ""), ErrorKind::Throttled),
        (head("500 Internal Server Error", ""), ErrorKind::Unavailable),
    ] {
        let (server, store) = scripted(&[reply]).await;
        let error = store.head(&Key::from("k")).await.unwrap_err();
        assert_eq!((error.kind, error.request_id.as_deref()), (kind, Some("R9")), "{error}");
        assert_eq!(server.heads().len(), 1, "one attempt a call");
        assert!(kind != ErrorKind::WrongEndpoint || error.message.contains("eu-west-1"), "{error}");
    }
    let (_server, incomplete) = scripted(&["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".into()]).await;
    assert_eq!(incomplete.head(&Key::from("k")).await.unwrap_err().kind, ErrorKind::Malformed);
}

#[tokio::test]
async fn a_refused_time_is_replaced_by_that_of_the_store() {
    for minutes in [-20_i64, 20] {
        let gap = Duration::from_secs(60 * minutes.unsigned_abs());
        let store_time = if minutes < 0 { SystemTime::now() - gap } else { SystemTime::now() + gap };
        let date = httpdate::fmt_http_date(store_time);
        let refused = |body: &str| {
            format!("HTTP/1.1 403 Forbidden\r\nConnection: close\r\nDate: {date}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        };
        let skewed = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>";
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"e\"\r\nContent-Length: 4\r\n\r\n".to_owned();
        let part = "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Range: bytes 0-3/4\r\nETag: \"e\"\r\nContent-Length: 4\r\n\r\nabcd";
        let page = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
        let page = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{page}", page.len());
        let gone = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n".to_owned();
        // The refusal of a HEAD has no body; all others say what is wrong.
        for (op, refusal, success) in [
            (Op::Head, refused(""), head.clone()),
            (Op::Get, refused(skewed), part.into()),
            (Op::List, refused(skewed), page),
            (Op::Delete, refused(skewed), gone),
        ] {
            let server = Fake::start([refusal, success, head.clone()].into_iter().map(Reply::Close).collect()).await;
            let json = r#"echo '{"Version":1,"AccessKeyId":"test","SecretAccessKey":"testsecret"}'"#;
            let store = connect(&process(&server.address().to_string(), json), Arc::default()).await.unwrap();
            match op {
                Op::Head => assert_eq!(store.head(&Key::from("k")).await.unwrap().size, 4),
                Op::Get => assert_eq!(read(&*store, "k", &ETag::from("\"e\""), 0..4).await.unwrap(), b"abcd"),
                Op::List => assert!(store.list(&listing("", None, 10)).await.unwrap().objects.is_empty()),
                _ => store.delete(&Key::from("k")).await.unwrap(),
            }
            store.head(&Key::from("k")).await.unwrap();
            let signed: Vec<i64> = server.heads().iter().map(|head| minutes_from_now(head)).collect();
            let corrected = |found: i64| (found - minutes).abs() <= 1;
            assert!(signed[0].abs() <= 1 && corrected(signed[1]) && corrected(signed[2]), "{op}: {signed:?}");
        }
    }
}

/// Minutes between now and the time in the signature of a request.
fn minutes_from_now(head: &str) -> i64 {
    let stamp = head.lines().find_map(|line| line.strip_prefix("x-amz-date: ")).unwrap().to_ascii_uppercase();
    let signed: jiff::Timestamp =
        format!("{}-{}-{}T{}:{}:{}Z", &stamp[..4], &stamp[4..6], &stamp[6..8], &stamp[9..11], &stamp[11..13], &stamp[13..15])
            .parse()
            .unwrap();
    (signed.as_second() - jiff::Timestamp::now().as_second()) / 60
}

/// What the next attempt meets again is [`ErrorKind::Malformed`], which is repeated once, and not [`ErrorKind::Corrupt`].
#[tokio::test]
async fn a_server_that_is_no_store_is_malformed_for_every_request() {
    let page = "<html>welcome</html>";
    let html = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{page}", page.len());
    let odd = "HTTP/1.1 999 Odd\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned();
    let ssh = "SSH-2.0-OpenSSH_9.9\r\n\r\n".to_owned();
    let etag = ETag::from("\"e\"");
    for reply in [html, odd, ssh] {
        let (_server, store) = scripted(&vec![reply.clone(); 12]).await;
        let upload = Upload { key: "k".into(), id: "u".into(), checksum: None, acl: None };
        let part = Part { number: 1, etag: etag.clone(), size: 1, crc64: None, crc32c: None };
        let put = PutRequest { key: "k".into(), body: "b".into(), headers: Headers::default(), condition: Condition::Any };
        let copy = CopyRequest {
            source: "s".into(),
            etag: etag.clone(),
            target: "k".into(),
            headers: Some(Headers::default()),
            condition: Condition::Any,
        };
        let errors = [
            store.head(&"k".into()).await.unwrap_err(),
            read(&*store, "k", &etag, 5..9).await.unwrap_err(),
            store.list(&listing("", None, 10)).await.unwrap_err(),
            store.put(&put).await.unwrap_err(),
            store.copy(&copy).await.unwrap_err(),
            store.complete_upload(&upload, &[part], &Condition::Any).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind, ErrorKind::Malformed, "{reply}: {error}");
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_is_named_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // As web servers answer to what is no request line to them.
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read_u8().await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    let options = Options {
        bucket: "data".into(),
        endpoint: Some(format!("https://{address}")),
        signature: Signature::None,
        region: Some("us-east-1".into()),
        ..Options::default()
    };
    let store = connect(&options, Arc::default()).await.unwrap();
    let error = store.head(&Key::from("k")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotTls, "{error}");
    let error = read(&*store, "k", &ETag::from("\"e\""), 0..5).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotTls, "{error}");
    server.abort();
}

#[tokio::test]
async fn broken_connections_and_silence_are_retryable() {
    let (_server, cut) = scripted(&[String::new()]).await;
    let error = cut.head(&Key::from("k")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");

    let server =
        Fake::start(vec![Reply::Stall(String::new()), Reply::Stall("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<List".into())]).await;
    let options = Options {
        bucket: "data".into(),
        endpoint: Some(server.address().to_string()),
        signature: Signature::None,
        region: Some("us-east-1".into()),
        answer_timeout: Duration::from_millis(300),
        stall_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let silent = connect(&options, Arc::default()).await.unwrap();
    let before = silent.head(&Key::from("k")).await.unwrap_err();
    assert_eq!(before.kind, ErrorKind::Timeout, "{before}");
    let inside = silent.list(&listing("", None, 10)).await.unwrap_err();
    assert!(inside.kind.is_retryable(), "{inside:?}");
}

#[tokio::test]
async fn a_key_that_xml_cannot_say_is_asked_for_in_url_encoding() {
    let list = |encoding: &str, key: &str| {
        let body = format!(
            "<ListBucketResult><IsTruncated>false</IsTruncated>{encoding}<Contents><Key>{key}</Key><Size>1</Size>\
             <ETag>\"e\"</ETag><LastModified>2024-02-29T23:59:59.000Z</LastModified></Contents></ListBucketResult>"
        );
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let encoded = list("<EncodingType>url</EncodingType>", "x%01+y");
    let (server, store) = scripted(&[list("", "x\u{1}y"), encoded.clone(), encoded]).await;
    for _ in 0..2 {
        let page = store.list(&listing("", None, 10)).await.unwrap();
        assert_eq!(page.objects[0].key, Key::from("x\u{1} y"));
    }
    let asked: Vec<bool> = server.heads().iter().map(|head| head.contains("encoding-type=url")).collect();
    assert_eq!(asked, [false, true, true], "only the first page is asked for twice");
    assert!(!server.heads()[0].contains("authorization"));
}

#[tokio::test]
async fn the_address_follows_the_style() {
    use crate::store::Quirks;
    let address = |endpoint: Option<&str>, path_style, region: &str| Options {
        bucket: "data".into(),
        endpoint: endpoint.map(str::to_owned),
        region: Some(region.into()),
        path_style,
        signature: Signature::None,
        ..Options::default()
    };
    let provided = |path_style, options| Options { quirks: Quirks { path_style, ..Quirks::LEARNED }, ..options };
    for (options, base) in [
        (address(Some("127.0.0.1:9000"), None, "r"), "http://127.0.0.1:9000/data"),
        (address(Some("s3.example.com"), None, "r"), "https://data.s3.example.com"),
        (address(Some("http://s3.example.com:8080"), Some(true), "r"), "http://s3.example.com:8080/data"),
        (address(Some("http://localhost:9000"), Some(false), "r"), "http://data.localhost:9000"),
        (address(None, None, "eu-west-1"), "https://data.s3.eu-west-1.amazonaws.com"),
        (address(None, Some(true), "cn-north-1"), "https://s3.cn-north-1.amazonaws.com.cn/data"),
        // What the options say wins over what the provider wants.
        (provided(Some(true), address(Some("s3.example.com"), None, "r")), "https://s3.example.com/data"),
        (provided(Some(true), address(Some("s3.example.com"), Some(false), "r")), "https://data.s3.example.com"),
        (provided(Some(false), address(Some("http://localhost:9000"), None, "r")), "http://data.localhost:9000"),
        (provided(Some(false), address(Some("127.0.0.1:9000"), None, "r")), "http://127.0.0.1:9000/data"),
    ] {
        let store = connect(&options, Arc::default()).await.unwrap();
        assert!(format!("{store:?}").contains(&format!("{base:?}")), "{store:?} is not at {base}");
    }
}

#[tokio::test]
async fn the_region_of_a_provider_stands_in_for_none() {
    use crate::store::Quirks;
    let of = async |region: Option<&str>, quirks| {
        let options = Options { region: region.map(str::to_owned), quirks, ..Options::default() };
        super::region(&options, true).await.unwrap().to_string()
    };
    let known = Quirks { region: Some("auto"), ..Quirks::LEARNED };
    assert_eq!([of(None, Quirks::LEARNED).await, of(None, known).await, of(Some("r"), known).await], ["us-east-1", "auto", "r"]);
}

/// The first line of each request for the buckets of an account that got `answers`, each a status and a document, and what came of them.
async fn bucket_names(answers: &[(&str, String)]) -> (Vec<String>, Result<Vec<String>>) {
    let reply = |(status, body): &(&str, String)| {
        Reply::Close(format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    };
    let server = Fake::start(answers.iter().map(reply).collect()).await;
    let options = Options {
        endpoint: Some(server.address().to_string()),
        region: Some("us-east-1".into()),
        signature: Signature::None,
        ..Options::default()
    };
    let names = S3Account::connect(&options, Arc::default()).await.unwrap().list_buckets().await;
    (server.heads().iter().filter_map(|head| head.lines().next().map(str::to_owned)).collect(), names)
}

fn bucket_page(name: &str, token: &str) -> (&'static str, String) {
    let bucket = format!("<Buckets><Bucket><Name>{name}</Name></Bucket></Buckets>");
    ("200 OK", format!("<ListAllMyBucketsResult>{bucket}<ContinuationToken>{token}</ContinuationToken></ListAllMyBucketsResult>"))
}

#[tokio::test]
async fn buckets_that_must_be_asked_for_by_pages_are() {
    let refused = || ("400 Bad Request", "<Error><Code>InvalidRequest</Code><Message>too many</Message></Error>".to_owned());
    let (requests, names) = bucket_names(&[refused(), bucket_page("one", "t1"), bucket_page("two", "")]).await;
    assert_eq!(names.unwrap(), ["one", "two"]);
    assert!(!requests[0].contains("max-buckets") && requests[1].contains("max-buckets=1000"), "{requests:?}");
    assert!(!requests[1].contains("continuation-token") && requests[2].contains("continuation-token=t1"), "{requests:?}");
    // A refusal of a page is one, and one of another kind is not asked about again.
    let (requests, names) = bucket_names(&[refused(), refused()]).await;
    assert_eq!((requests.len(), names.unwrap_err().kind), (2, ErrorKind::Invalid));
    let denied = ("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>".to_owned());
    let (requests, names) = bucket_names(&[denied]).await;
    assert_eq!((requests.len(), names.unwrap_err().kind), (1, ErrorKind::AccessDenied));
}
