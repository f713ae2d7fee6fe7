use http::{HeaderMap, Method};

use super::super::address::Scheme;
use super::super::{http_clients, store};
use super::*;
use crate::store::credentials::Attempts;
use crate::store::requests::{Unsigned, Voice};
use crate::store::signing::{SignGet, SignedGet};
use crate::store::wire::{Fake, Reply};
use crate::store::{Condition, Error, Key, ListRequest, ObjectMeta, ObjectStore, Op, RenameRequest};

fn answer(status: &str, body: &str) -> Reply {
    Reply::Close(format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

/// A session that does not end during a test.
fn opened(token: &str) -> Reply {
    let keys = format!("<AccessKeyId>SESSION</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>{token}</SessionToken>");
    answer(
        "200 OK",
        &format!(
            "<CreateSessionResult><Credentials>{keys}<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>"
        ),
    )
}

fn refused(status: &str, code: &str) -> Reply {
    answer(status, &format!("<Error><Code>{code}</Code><Message>it said {code}</Message></Error>"))
}

fn account() -> Arc<Rotating> {
    let keys = Keys { id: "AKID".into(), secret: "secret".into(), token: Some("of-sts".into()), expires: None, from: "a test".into() };
    Rotating::new(Box::new(keys))
}

fn at(server: &Fake) -> (Options, Address) {
    let scheme = Scheme::Session { service: "s3express".into(), region: "us-west-2".into() };
    let address = Address { base: server.url("/data--usw2-az1--x-s3").to_string(), scheme };
    (Options { bucket: "data--usw2-az1--x-s3".into(), endpoint: Some(server.address().to_string()), ..Options::default() }, address)
}

fn signer_at(server: &Fake) -> Signer {
    let ((options, address), metrics) = (at(server), Arc::default());
    signer(&options, address, account(), &http_clients(&options, &metrics).unwrap(), &metrics)
}

/// Key id, and the header of the token with the token.
fn signed_by(signed: &SignedGet) -> (String, Vec<String>) {
    let authorization = signed.headers["authorization"].to_str().unwrap();
    let id = authorization.split_once("Credential=").unwrap().1.split('/').next().unwrap();
    let tokens = signed.headers.iter().filter(|(name, _)| name.as_str().ends_with("-token"));
    (id.to_owned(), tokens.map(|(name, value)| format!("{name} {}", value.to_str().unwrap())).collect())
}

#[tokio::test]
async fn sessions_sign_all_but_copies_and_one_serves_them() {
    let server = Fake::start(vec![opened("one")]).await;
    let signer = signer_at(&server);
    let (key, headers) = (Key::from("d/k"), HeaderMap::new());
    let request = |op, method| Unsigned { op, method, key: &key, query: &[], headers: &headers, payload: None };
    let by_session = ("SESSION".to_owned(), vec!["x-amz-s3session-token one".to_owned()]);
    let by_account = ("AKID".to_owned(), vec!["x-amz-security-token of-sts".to_owned()]);
    assert_eq!(signed_by(&signer.sign_get(&key).await.unwrap()), by_session);
    assert_eq!(signed_by(&signer.sign_list(&Key::root(), &[("list-type", "2")]).await.unwrap()), by_session);
    for op in [Op::Head, Op::Put, Op::CreateUpload, Op::UploadPart, Op::CompleteUpload, Op::AbortUpload, Op::Delete] {
        assert_eq!(signed_by(&signer.sign(&request(op, Method::PUT)).await.unwrap()), by_session, "{op:?}");
    }
    for op in [Op::Copy, Op::CopyPart] {
        assert_eq!(signed_by(&signer.sign(&request(op, Method::PUT)).await.unwrap()), by_account, "{op:?}");
    }
    // Keys of the account that are refused are no reason for another session.
    let copy = signer.sign(&request(Op::Copy, Method::PUT)).await.unwrap();
    let refusal = Error::new(ErrorKind::BadCredentials, Op::Copy, &key, "refused");
    assert!(!signer.again(&mut Attempts::new(signer.clock()), copy.by, Some(&refusal)).await);
    let heads = server.heads();
    let [head] = &heads[..] else { panic!("{heads:?}") };
    assert!(head.starts_with("get /data--usw2-az1--x-s3?session http/1.1\r\n"), "{head}");
    for line in ["x-amz-create-session-mode: readwrite\r\n", "x-amz-security-token: of-sts\r\n", "/us-west-2/s3express/aws4_request"] {
        assert!(head.contains(line), "{line}: {head}");
    }
    assert!(!head.contains("x-amz-s3session-token"), "{head}");
}

#[tokio::test]
async fn a_refused_session_is_replaced_once() {
    let page = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k</Key><Size>1</Size><ETag>\"e\"</ETag>\
                <LastModified>2024-01-29T18:53:01.000Z</LastModified></Contents></ListBucketResult>";
    for code in ["InvalidToken", "ExpiredToken", "InvalidAccessKeyId"] {
        let refusal = refused("403 Forbidden", code);
        let script = vec![opened("one"), refusal.clone(), opened("two"), answer("200 OK", page), refusal.clone(), refusal];
        let server = Fake::start(script).await;
        let ((options, address), metrics) = (at(&server), Arc::default());
        let http = http_clients(&options, &metrics).unwrap();
        let store = store(&options, address, Some(account()), Tags::default(), http, metrics).unwrap();
        let request = ListRequest { prefix: Key::root(), delimited: true, after: None, token: None, max_keys: 1000, any_order: false };
        assert_eq!(store.list(&request).await.unwrap().objects.len(), 1, "{code}");
        let tokens: Vec<Option<String>> = server
            .heads()
            .iter()
            .map(|head| head.lines().find_map(|line| line.strip_prefix("x-amz-s3session-token: ")).map(str::to_owned))
            .collect();
        assert_eq!(tokens, [None, Some("one".into()), None, Some("two".into())], "{code}");
    }
}

#[tokio::test]
async fn an_account_that_may_only_read_gets_a_session_that_reads() {
    let denied = || refused("403 Forbidden", "AccessDenied");
    let server = Fake::start(vec![denied(), opened("reads")]).await;
    let signer = signer_at(&server);
    assert_eq!(signed_by(&signer.sign_get(&Key::from("k")).await.unwrap()).1, ["x-amz-s3session-token reads"]);
    let modes = |server: &Fake| {
        let mode = |head: &String| head.lines().find_map(|line| line.strip_prefix("x-amz-create-session-mode: ").map(str::to_owned));
        server.heads().iter().filter_map(mode).collect::<Vec<_>>()
    };
    assert_eq!(modes(&server), ["readwrite", "readonly"]);

    let server = Fake::start(vec![denied(), denied()]).await;
    let error = signer_at(&server).sign_get(&Key::from("k")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoCredentials);
    let expected = "cannot open a session of the directory bucket data--usw2-az1--x-s3 (s3express:CreateSession): it said AccessDenied";
    assert_eq!(error.message, expected);
}

#[tokio::test]
async fn a_session_is_asked_for_again_after_a_passing_failure_only() {
    let server = Fake::start(vec![refused("503 Service Unavailable", "SlowDown"), opened("one")]).await;
    assert!(signer_at(&server).sign_get(&Key::from("k")).await.is_ok());
    assert_eq!(server.heads().len(), 2);
    let server = Fake::start(vec![refused("404 Not Found", "NoSuchBucket")]).await;
    assert!(signer_at(&server).sign_get(&Key::from("k")).await.unwrap_err().message.ends_with("it said NoSuchBucket"));
    assert_eq!(server.heads().len(), 1);
}

/// Whatever is found where an object was moved to, the move is done, and an object of another client is not taken for the one that was moved.
#[tokio::test]
async fn renamed_object_is_known_by_size_and_date() {
    let head = |etag: &str, size: u64, date: &str| {
        Reply::To(
            "head ",
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"{etag}\"\r\nContent-Length: {size}\r\nLast-Modified: {date}\r\n\r\n"),
        )
    };
    let (then, now) = ("Thu, 29 Feb 2024 00:00:01 GMT", "Thu, 29 Feb 2024 00:00:09 GMT");
    let modified = httpdate::parse_http_date(then).unwrap() + Duration::from_millis(700);
    for (found, etag) in [
        (head("old", 5, then), "\"old\""),
        (head("new", 5, then), "\"new\""),
        (head("theirs", 44, then), "\"old\""),
        (head("theirs", 5, now), "\"old\""),
        (Reply::To("head ", "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n".to_owned()), "\"old\""),
        (Reply::To("head ", "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n".to_owned()), "\"old\""),
    ] {
        let server = Fake::start(vec![
            opened("one"),
            Reply::To("?renameobject", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned()),
            found,
        ])
        .await;
        let ((options, address), metrics) = (at(&server), Arc::default());
        let http = http_clients(&options, &metrics).unwrap();
        let store = store(&options, address, Some(account()), Tags::default(), http, metrics).unwrap();
        let source = ObjectMeta { key: "from".into(), size: 5, etag: "\"old\"".into(), modified };
        let request = RenameRequest { source, target: "to".into(), condition: Condition::Absent, token: "t".into() };
        let moved = store.rename(&request).await.unwrap().expect("there is such a request");
        assert_eq!(moved.etag.as_str(), etag);
        let sent = &server.heads()[1];
        for line in [
            "put /data--usw2-az1--x-s3/to?renameobject",
            "x-amz-rename-source: from\r\n",
            "x-amz-rename-source-if-match: \"old\"",
            "if-none-match: *",
            "x-amz-client-token: t\r\n",
        ] {
            assert!(sent.contains(line), "{line}: {sent}");
        }
    }
}
