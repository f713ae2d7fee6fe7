use tokio::net::TcpListener;

use super::super::whole::Whole;
use super::super::wire::{Fake, Reply};
use super::super::{CredentialOptions, ETag, Quirks, RangeRequest, Signature};
use super::*;

fn options() -> Options {
    Options {
        bucket: "data".into(),
        endpoint: Some("127.0.0.1:1".into()),
        signature: Signature::None,
        credentials: CredentialOptions::default(),
        ..Options::default()
    }
}

#[test]
fn bucket_names_follow_the_published_rules() {
    for good in ["abc", "a-b.c1", "0bucket", &"x".repeat(63)] {
        assert_eq!(check_bucket(true, good), Ok(()), "{good}");
    }
    for bad in ["", "ab", &"x".repeat(64), "Upper", "under_score", "a/b", "-abc", "abc-", ".abc", "a..b", "10.0.0.1", "ümlaut"] {
        assert!(check_bucket(true, bad).is_err(), "{bad}");
    }
    assert_eq!(check_bucket(false, "a-b1"), Ok(()));
    assert!(check_bucket(false, "a.b").is_err());
    let dots = |dialect, dotted_buckets| {
        has_dots(&Options { dialect, quirks: Quirks { dotted_buckets, ..Quirks::LEARNED }, ..Options::default() })
    };
    assert_eq!([dots(Dialect::S3, true), dots(Dialect::S3, false), dots(Dialect::Oss, true)], [true, false, false]);
}

#[tokio::test]
async fn what_cannot_be_right_fails_before_anything_is_sent() {
    for (options, word) in [
        (Options { bucket: "Bad_Name".into(), ..options() }, "Bad_Name"),
        (Options { endpoint: Some("ftp://host".into()), ..options() }, "http or https"),
        (Options { signature: Signature::V1, ..options() }, "v1"),
    ] {
        let error = open(&options, Arc::default()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_probe_of_a_closed_port_names_the_cause() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let metrics = Arc::new(Metrics::default());
    let store = open(&Options { endpoint: Some(closed.to_string()), ..options() }, metrics.clone()).await.unwrap();
    let error = probe(&store, &Key::root()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Connect, "{error}");
    assert!(error.message.to_lowercase().contains("refused"), "{error}");
    assert_eq!((metrics.list_requests.get(), metrics.retries.get()), (4, 3));
}

#[tokio::test]
async fn a_probe_tries_no_more_often_and_no_longer_than_the_options_say() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    for (retries, attempts) in [(0, 1), (1, 2), (3, 4), (10, 4)] {
        let metrics = Arc::new(Metrics::default());
        let store = open(&Options { endpoint: Some(closed.clone()), retries, ..options() }, metrics.clone()).await.unwrap();
        assert_eq!(probe(&store, &Key::root()).await.unwrap_err().kind, ErrorKind::Connect);
        assert_eq!(metrics.list_requests.get(), attempts, "{retries} retries");
    }
    let hasty = Options { endpoint: Some(closed), request_timeout: Duration::ZERO, ..options() };
    let metrics = Arc::new(Metrics::default());
    let store = open(&hasty, metrics.clone()).await.unwrap();
    probe(&store, &Key::root()).await.unwrap_err();
    assert_eq!(metrics.list_requests.get(), 1, "no time is left for a second attempt");
}

#[test]
fn a_location_is_described_for_people() {
    assert_eq!(Location::describe(&options()).to_string(), "s3://data (endpoint http://127.0.0.1:1)");
    let oss = Options { dialect: Dialect::Oss, endpoint: None, region: Some("cn-hangzhou".into()), ..options() };
    assert_eq!(Location::describe(&oss).to_string(), "oss://data (region cn-hangzhou)");
    let secret = Options { endpoint: Some("http://k:secret@h".into()), ..options() };
    assert_eq!(Location::describe(&secret).to_string(), "s3://data");
}

#[tokio::test]
async fn faults_on_the_way_are_not_seen_by_the_reader() {
    let slow_down = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n".to_owned();
    let partial = |first: u64, body: &str| {
        let length = 10 - first;
        format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-9/10\r\nETag: \"e\"\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let server = Fake::start(vec![
        Reply::Keep(slow_down.clone()),
        Reply::Keep(slow_down),
        Reply::Close(partial(0, "abcd")),
        Reply::Close(String::new()),
        Reply::Stall(partial(4, "ef")),
        Reply::Close(partial(0, "ABCDEFGHIJ")),
        Reply::Keep(partial(6, "ghij")),
    ])
    .await;
    let options = Options {
        endpoint: Some(server.address().to_string()),
        region: Some("us-east-1".into()),
        answer_timeout: Duration::from_millis(300),
        stall_timeout: Duration::from_millis(300),
        ..options()
    };
    let metrics = Arc::new(Metrics::default());
    let store = open(&options, metrics.clone()).await.unwrap();
    let request = RangeRequest { key: Key::from("k"), range: 0..10, etag: ETag::from("\"e\"") };
    let mut sink = Whole::new(10);
    store.get_range(&request, &mut sink).await.unwrap();
    assert_eq!(sink.content, b"abcdefghij");

    let starts: Vec<String> =
        server.heads().iter().map(|head| head.lines().find(|l| l.starts_with("range:")).unwrap().to_owned()).collect();
    assert_eq!(starts, [0, 0, 0, 4, 4, 6, 6].map(|first| format!("range: bytes={first}-9")));
    assert!(server.heads().iter().all(|head| head.contains("if-match: \"e\"")));
    assert_eq!((metrics.get_requests.get(), metrics.retries.get(), metrics.fetched_bytes.get()), (7, 6, 10));
}
