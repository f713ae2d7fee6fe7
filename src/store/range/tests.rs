//! The range path against raw sockets on the loopback interface that answer what a test tells them to.

use std::ops::Range;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::clients::client_builder;
use super::super::leave::Exit;
use super::super::signing::SignedGet;
use super::super::wire::{Fake, Reply};
use super::*;
use crate::store::ETag;

const ETAG: &str = "\"v1\"";

/// Signs as a dialect does: a header that must not travel, and the host it was made for.
struct TestSigner(Url);

#[async_trait]
impl SignGet for TestSigner {
    async fn sign_get(&self, _: &Key) -> Result<SignedGet> {
        let headers = [("authorization", "signed-for-endpoint"), ("x-amz-date", "now"), ("x-oss-security-token", "t")];
        let headers = headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Ok(SignedGet { url: self.0.clone(), headers: HeaderMap::from_iter(headers), by: None })
    }

    async fn sign_redirected(&self, _: Op, _: &SignedGet, _: &Key, target: &Url) -> Result<HeaderMap> {
        let value = HeaderValue::try_from(format!("signed-for-{}", target.port().unwrap())).unwrap();
        Ok(HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
    }
}

struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl RangeSink for Buffer {
    fn spare(&mut self) -> &mut [u8] {
        // At most three bytes at a time: pieces must be split.
        let end = self.bytes.len().min(self.filled + 3);
        &mut self.bytes[self.filled..end]
    }

    fn advance(&mut self, n: usize) {
        self.filled += n;
    }
}

struct Outcome {
    result: Result<()>,
    bytes: String,
}

fn client(options: &Options) -> RangeClient {
    let metrics = Arc::default();
    let http = Clients::build(&options.exits, || client_builder(options, &metrics).no_proxy());
    RangeClient::new(http.unwrap(), options, Arc::default(), metrics)
}

fn options() -> Options {
    Options { answer_timeout: Duration::from_millis(200), stall_timeout: Duration::from_millis(200), ..Options::default() }
}

async fn get(client: &RangeClient, server: &Fake, range: Range<u64>) -> Outcome {
    let mut sink = Buffer { bytes: vec![0; (range.end - range.start) as usize], filled: 0 };
    let request = RangeRequest { key: Key::from("k"), range, etag: ETag::from(ETAG) };
    let result = client.get(&TestSigner(server.url("/b/k")), &request, &mut sink).await;
    sink.bytes.truncate(sink.filled);
    Outcome { result, bytes: String::from_utf8(sink.bytes).unwrap() }
}

async fn get_once(reply: Reply, range: Range<u64>) -> Outcome {
    let server = Fake::start(vec![reply]).await;
    get(&client(&options()), &server, range).await
}

fn partial(first: u64, last: u64, etag: &str, body: &str) -> String {
    let length = last - first + 1;
    format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/100\r\nETag: {etag}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn redirect_to(url: &Url) -> Reply {
    Reply::Keep(format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n"))
}

fn kind(outcome: &Outcome) -> ErrorKind {
    outcome.result.as_ref().unwrap_err().kind
}

#[tokio::test]
async fn a_range_arrives_and_the_connection_is_used_again() {
    let server = Fake::start(vec![Reply::Keep(partial(10, 19, ETAG, "abcdefghij")), Reply::Keep(partial(20, 22, ETAG, "xyz"))]).await;
    let client = client(&options());
    let first = get(&client, &server, 10..20).await;
    first.result.unwrap();
    assert_eq!(first.bytes, "abcdefghij");
    assert_eq!(get(&client, &server, 20..23).await.bytes, "xyz");

    let heads = server.heads();
    for line in [
        "get /b/k http/1.1",
        "range: bytes=10-19",
        "if-match: \"v1\"",
        "accept-encoding: identity",
        "authorization: signed-for-endpoint",
        concat!("user-agent: windlass/", env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!(heads[0].lines().filter(|l| *l == line).count(), 1, "{line} in {}", heads[0]);
    }
    assert_eq!(server.connections(), 1);
    assert_eq!((client.metrics.get_requests.get(), client.metrics.fetched_bytes.get()), (2, 13));
}

#[tokio::test]
async fn a_range_leaves_from_the_address_that_was_chosen() {
    let server = Fake::start(vec![Reply::Keep(partial(10, 12, ETAG, "abc"))]).await;
    let exit = std::net::IpAddr::from([127, 0, 0, 4]);
    let client = client(&Options { exits: vec![Exit::Address(exit)], ..options() });
    assert_eq!(get(&client, &server, 10..13).await.bytes, "abc");
    assert_eq!(server.peers(), [exit]);
}

#[tokio::test]
async fn a_whole_object_may_come_as_200() {
    let whole = format!("HTTP/1.1 200 OK\r\nETag: {ETAG}\r\nContent-Length: 4\r\n\r\nabcd");
    let outcome = get_once(Reply::Keep(whole.clone()), 0..4).await;
    outcome.result.unwrap();
    assert_eq!(outcome.bytes, "abcd");
    // A server that ignores Range and sends more, or from the start, is not believed.
    for range in [0..3, 1..4] {
        let outcome = get_once(Reply::Keep(whole.clone()), range).await;
        assert_eq!((kind(&outcome), outcome.bytes.as_str()), (ErrorKind::Malformed, ""));
    }
}

#[tokio::test]
async fn a_wrong_answer_never_reaches_the_sink() {
    let body = "abcdefghij";
    let no_etag = format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-19/100\r\nContent-Length: 10\r\n\r\n{body}");
    let no_range = format!("HTTP/1.1 206 Partial Content\r\nETag: {ETAG}\r\nContent-Length: 10\r\n\r\n{body}");
    let short_total = partial(10, 19, ETAG, body).replace("/100", "/15");
    let long = partial(10, 19, ETAG, body).replace("Content-Length: 10", "Content-Length: 11");
    for (reply, expected) in [
        (partial(11, 20, ETAG, body), ErrorKind::Corrupt),
        (partial(10, 18, ETAG, "abcdefghi"), ErrorKind::Corrupt),
        (partial(10, 19, "\"v2\"", body), ErrorKind::Replaced),
        // Another version, too short for the range, of a store that ignores If-Match.
        (partial(10, 18, "\"v2\"", "abcdefghi"), ErrorKind::Replaced),
        (no_etag, ErrorKind::Malformed),
        (no_range, ErrorKind::Corrupt),
        (short_total, ErrorKind::Corrupt),
        (long, ErrorKind::Corrupt),
    ] {
        let outcome = get_once(Reply::Keep(reply.clone()), 10..20).await;
        assert_eq!((kind(&outcome), outcome.bytes.as_str()), (expected, ""), "{reply}");
    }
}

#[tokio::test]
async fn a_body_that_ends_early_is_corrupt_and_its_beginning_is_kept() {
    let outcome = get_once(Reply::Close(partial(10, 19, ETAG, "abcd")), 10..20).await;
    let error = outcome.result.unwrap_err();
    assert_eq!((error.kind, outcome.bytes.as_str()), (ErrorKind::Corrupt, "abcd"));
    assert_eq!(error.message, "short body: got 4 of 10 bytes");
}

#[tokio::test]
async fn a_chunked_body_is_counted_too() {
    let head =
        format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/100\r\nETag: {ETAG}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let exact = Reply::Keep(format!("{head}5\r\nabcde\r\n5\r\nfghij\r\n0\r\n\r\n"));
    let short = Reply::Keep(format!("{head}5\r\nabcde\r\n0\r\n\r\n"));
    let long = Reply::Keep(format!("{head}b\r\nabcdefghijk\r\n0\r\n\r\n"));
    // The first answer of this kind is left, and the library asks again; from then on it is the only one to ask.
    let server = Fake::start(vec![exact.clone(), exact, short, long]).await;
    let client = client(&options());
    let exact = get(&client, &server, 0..10).await;
    exact.result.unwrap();
    assert_eq!(exact.bytes, "abcdefghij");
    let short = get(&client, &server, 0..10).await;
    assert_eq!((kind(&short), short.bytes.as_str()), (ErrorKind::Corrupt, "abcde"));
    let long = get(&client, &server, 0..10).await;
    assert_eq!(kind(&long), ErrorKind::Corrupt);
    assert_eq!(server.heads().len(), 4);
}

#[tokio::test]
async fn a_chunked_200_longer_than_the_range_means_that_there_are_no_ranges() {
    let whole = format!("HTTP/1.1 200 OK\r\nETag: {ETAG}\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nabcdefghijk\r\n0\r\n\r\n");
    let server = Fake::start(vec![Reply::Keep(whole.clone()), Reply::Keep(whole)]).await;
    let outcome = get(&client(&options()), &server, 0..10).await;
    assert_eq!((kind(&outcome), outcome.bytes.as_str()), (ErrorKind::Malformed, ""));
}

#[tokio::test]
async fn silence_is_a_timeout_before_and_inside_the_body() {
    let before = get_once(Reply::Stall(String::new()), 0..10).await;
    assert_eq!((kind(&before), before.bytes.as_str()), (ErrorKind::Timeout, ""));
    let inside = get_once(Reply::Stall(partial(0, 9, ETAG, "abc")), 0..10).await;
    assert_eq!((kind(&inside), inside.bytes.as_str()), (ErrorKind::Timeout, "abc"));
    let error = inside.result.unwrap_err();
    assert!(error.message.contains("after 3 of 10 bytes"), "{error}");
}

#[tokio::test]
async fn refusals_are_translated() {
    let refusal = |status: &str, headers: &str, body: &str| {
        Reply::Keep(format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()))
    };
    let gone = "<Error><Code>NoSuchKey</Code><Message>gone</Message><RequestId>R7</RequestId></Error>";
    for (reply, expected) in [
        (refusal("404 Not Found", "", gone), ErrorKind::NotFound),
        (refusal("412 Precondition Failed", "", ""), ErrorKind::Replaced),
        (refusal("416 Range Not Satisfiable", "Content-Range: bytes */5\r\n", ""), ErrorKind::Replaced),
        (refusal("416 Range Not Satisfiable", "ETag: \"v2\"\r\n", ""), ErrorKind::Replaced),
        (refusal("416 Range Not Satisfiable", "ETag: \"v1\"\r\n", ""), ErrorKind::RangeNotSatisfiable),
        (refusal("503 Slow Down", "", "<Error><Code>SlowDown</Code></Error>"), ErrorKind::Throttled),
        (refusal("301 Moved", "x-amz-bucket-region: eu-west-1\r\n", ""), ErrorKind::WrongEndpoint),
        (refusal("301 Moved", "x-amz-bucket-region: eu-west-1\r\nLocation: http://127.0.0.1:1/\r\n", ""), ErrorKind::WrongEndpoint),
        (refusal("304 Not Modified", "", ""), ErrorKind::WrongEndpoint),
    ] {
        assert_eq!(kind(&get_once(reply, 0..10).await), expected);
    }
    let outcome = get_once(refusal("404 Not Found", "", gone), 0..10).await;
    assert_eq!(outcome.result.unwrap_err().to_string(), "GET \"k\": gone (HTTP 404, NoSuchKey, request id R7)");
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_a_connect_error() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut sink = Buffer { bytes: vec![0; 10], filled: 0 };
    let request = RangeRequest { key: Key::from("k"), range: 0..10, etag: ETag::from(ETAG) };
    let url = Url::parse(&format!("http://{closed}/b/k?X-Amz-Signature=secret")).unwrap();
    let error = client(&options()).get(&TestSigner(url), &request, &mut sink).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Connect);
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_presigned_redirect_keeps_the_range_drops_the_signature_and_is_remembered() {
    let target = Fake::start(vec![Reply::Keep(partial(0, 2, ETAG, "abc")), Reply::Keep(partial(3, 5, ETAG, "def"))]).await;
    let endpoint = Fake::start(vec![redirect_to(&target.url("/cached/k?node=1&Signature=s"))]).await;
    let client = client(&options());
    assert_eq!(get(&client, &endpoint, 0..3).await.bytes, "abc");
    assert_eq!(get(&client, &endpoint, 3..6).await.bytes, "def");
    assert_eq!((endpoint.heads().len(), target.heads().len()), (1, 2));
    for (head, range) in target.heads().iter().zip(["range: bytes=0-2", "range: bytes=3-5"]) {
        assert!(
            head.starts_with("get /cached/k?node=1&signature=s ") && head.contains(range) && head.contains("if-match: \"v1\""),
            "{head}"
        );
        assert!(!head.contains("authorization") && !head.contains("x-amz-") && !head.contains("x-oss-"), "{head}");
    }
    assert_eq!(client.metrics.get_requests.get(), 3);
}

#[tokio::test]
async fn a_stranger_without_a_signature_of_its_own_is_sent_nothing() {
    let target = Fake::start(vec![Reply::Keep(partial(0, 2, ETAG, "abc"))]).await;
    let endpoint = Fake::start(vec![redirect_to(&target.url("/k"))]).await;
    let error = get(&client(&options()), &endpoint, 0..3).await.result.unwrap_err();
    assert!(error.message.contains("--redirect-hosts") && error.message.contains(&target.address().to_string()), "{error}");
    assert_eq!((error.kind, target.connections()), (ErrorKind::WrongEndpoint, 0));
}

#[tokio::test]
async fn a_host_on_the_allow_list_gets_a_signature_of_its_own() {
    let target = Fake::start(vec![Reply::Keep(partial(0, 2, ETAG, "abc")), Reply::Keep(partial(0, 2, ETAG, "abc"))]).await;
    let endpoint = Fake::start(vec![redirect_to(&target.url("/k")), redirect_to(&target.url("/k?X-Amz-Signature=1"))]).await;
    let allowed = Options { redirect_hosts: vec!["127.0.0.1".into()], ..options() };
    get(&client(&allowed), &endpoint, 0..3).await.result.unwrap();
    let signed = format!("authorization: signed-for-{}", target.address().port());
    assert!(target.heads()[0].contains(&signed), "{}", target.heads()[0]);
    // A presigned target must not get a second signature.
    get(&client(&allowed), &endpoint, 0..3).await.result.unwrap();
    assert!(!target.heads()[1].contains("authorization"), "{}", target.heads()[1]);
}

#[tokio::test]
async fn a_remembered_target_that_fails_is_forgotten() {
    let gone = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_owned();
    let target = Fake::start(vec![Reply::Keep(partial(0, 2, ETAG, "abc")), Reply::Keep(gone)]).await;
    let direct = [Reply::Keep(partial(3, 5, ETAG, "def")), Reply::Keep(partial(6, 8, ETAG, "ghi"))];
    let endpoint = Fake::start([redirect_to(&target.url("/k?Signature=s"))].into_iter().chain(direct).collect()).await;
    let client = client(&options());
    for (range, bytes) in [(0..3, "abc"), (3..6, "def"), (6..9, "ghi")] {
        let outcome = get(&client, &endpoint, range).await;
        outcome.result.unwrap();
        assert_eq!(outcome.bytes, bytes);
    }
    assert_eq!((endpoint.heads().len(), target.heads().len()), (3, 2));
}

#[tokio::test]
async fn endless_redirects_end() {
    let again = Reply::Keep("HTTP/1.1 308 Permanent Redirect\r\nLocation: /b/k\r\nContent-Length: 0\r\n\r\n".into());
    let server = Fake::start(vec![again; 20]).await;
    let outcome = get(&client(&options()), &server, 0..3).await;
    assert_eq!((kind(&outcome), server.heads().len()), (ErrorKind::WrongEndpoint, 6));
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}/b/k", listener.local_addr().unwrap())).unwrap();
    let client = client(&Options { stall_timeout: Duration::from_secs(30), ..Options::default() });
    let fetch = tokio::spawn(async move {
        let mut sink = Buffer { bytes: vec![0; 10], filled: 0 };
        let request = RangeRequest { key: Key::from("k"), range: 0..10, etag: ETag::from(ETAG) };
        client.get(&TestSigner(url), &request, &mut sink).await
    });
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = vec![0; 4096];
    assert!(stream.read(&mut head).await.unwrap() > 0);
    stream.write_all(partial(0, 9, ETAG, "abc").as_bytes()).await.unwrap();
    fetch.abort();
    assert!(fetch.await.unwrap_err().is_cancelled());
    let closed = timeout(Duration::from_secs(10), stream.read(&mut head)).await.expect("the connection is closed");
    assert!(matches!(closed, Ok(0) | Err(_)));
}
