//! The test server keeps its own promises: what other tests count and inject is checked here with a plain client.

mod support;

use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, ETAG, IF_MATCH, RANGE};
use reqwest::{Client, Response, StatusCode};
use support::{BUCKET, Effect, Fault, Kind, S3Server};

fn client() -> Client {
    Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build().unwrap()
}

async fn get(server: &S3Server, key: &str, range: &str) -> reqwest::Result<Response> {
    client().get(format!("{}/{BUCKET}/{key}", server.endpoint())).header(RANGE, range).send().await
}

#[tokio::test]
async fn ranges_and_conditions_are_honoured_and_logged() {
    let server = S3Server::start_anonymous();
    let content = server.put_synthetic("dir/big", 5 << 20);
    let answer = get(&server, "dir/big", "bytes=1048570-3145727").await.unwrap();
    assert_eq!(answer.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(answer.headers()[CONTENT_RANGE], "bytes 1048570-3145727/5242880");
    let etag = answer.headers()[ETAG].clone();
    assert!(content.matches(1_048_570, &answer.bytes().await.unwrap()));
    server.put_synthetic("dir/big", 5 << 20);
    let url = format!("{}/{BUCKET}/dir/big", server.endpoint());
    let refused = client().get(url).header(IF_MATCH, &etag).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::PRECONDITION_FAILED);
    assert!(server.until(|requests| requests.iter().all(|r| r.finished)).await);
    let [first, second] = &server.requests()[..] else { panic!("two requests") };
    assert_eq!((first.kind, first.key.as_str(), first.status), (Kind::Get, "dir/big", 206));
    assert_eq!((first.range.clone(), first.bytes_sent), (Some(1_048_570..3_145_728), 2_097_158));
    assert_eq!((second.if_match.as_deref(), second.status), (etag.to_str().ok(), 412));
    assert!(!first.aborted && !second.aborted && first.remote_port != second.remote_port);
}

#[tokio::test]
async fn unsigned_requests_are_refused_unless_the_bucket_is_public() {
    let server = S3Server::start();
    server.put("a", "1");
    assert_eq!(get(&server, "a", "bytes=0-0").await.unwrap().status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_client_that_gives_up_is_seen() {
    let server = S3Server::start_anonymous();
    server.put_synthetic("big", 1 << 30);
    let mut answer = get(&server, "big", "bytes=0-1073741823").await.unwrap();
    assert!(!answer.chunk().await.unwrap().unwrap().is_empty());
    assert!(!server.requests()[0].aborted);
    drop(answer);
    assert!(server.until(|requests| requests[0].aborted).await);
    assert!(server.requests()[0].bytes_sent < 100 << 20);
}

#[tokio::test]
async fn faults_happen_to_the_requests_they_are_for() {
    let server = S3Server::start_anonymous();
    let content = server.put_synthetic("a", 1 << 20);
    server.put("b", "b");
    server.fault(Fault::new(Effect::Status(503)).kind(Kind::Get).key("a").nth(1));
    server.fault(Fault::new(Effect::Truncate(100_000)).key("a").nth(2));
    server.fault(Fault::new(Effect::Reset(300_000)).key("a").nth(3));
    server.fault(Fault::new(Effect::WrongRange).key("a").nth(4));
    server.fault(Fault::new(Effect::WrongETag("\"x\"".into())).key("a").nth(5));
    let fetch = || get(&server, "a", "bytes=0-1048575");
    assert_eq!(get(&server, "b", "bytes=0-0").await.unwrap().text().await.unwrap(), "b");
    let slow_down = fetch().await.unwrap();
    assert_eq!(slow_down.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(slow_down.text().await.unwrap().contains("<Code>SlowDown</Code>"));
    for cut_at in [100_000, 300_000] {
        let mut answer = fetch().await.unwrap();
        let mut got = Vec::new();
        let error = loop {
            match answer.chunk().await {
                Ok(piece) => got.extend(piece.expect("the body does not end well")),
                Err(error) => break error,
            }
        };
        assert!(error.is_body() || error.is_decode(), "{error:?}");
        // A reset may overtake what was sent before it.
        assert!(got.len() <= cut_at, "{} of {cut_at}", got.len());
        assert!(content.matches(0, &got));
    }
    assert_eq!(fetch().await.unwrap().headers()[CONTENT_RANGE], "bytes 1-1/2");
    assert_eq!(fetch().await.unwrap().headers()[ETAG], "\"x\"");
    assert!(content.matches(0, &fetch().await.unwrap().bytes().await.unwrap()));
    assert!(server.until(|r| r.len() == 7 && r.iter().filter(|r| r.finished).count() >= 3).await);
    let cut: Vec<_> = server.of_kind(Kind::Get)[2..4].iter().map(|r| (r.bytes_sent, r.finished, r.aborted)).collect();
    assert_eq!(cut, [(100_000, false, false), (300_000, false, false)]);
}

#[tokio::test]
async fn stalls_delays_and_pacing_hold_bytes_back() {
    let server = S3Server::start_anonymous();
    let content = server.put_synthetic("a", 1 << 20);
    server.fault(Fault::new(Effect::Stall(1000, None)).nth(1));
    server.fault(Fault::new(Effect::Stall(1000, Some(Duration::from_millis(20)))).nth(2));
    server.fault(Fault::new(Effect::Delay(Duration::from_millis(20))).nth(2));
    server.fault(Fault::new(Effect::Bandwidth(50 << 20)).nth(2));
    let mut answer = get(&server, "a", "bytes=0-1048575").await.unwrap();
    let mut got = 0;
    while got < 1000 {
        got += answer.chunk().await.unwrap().unwrap().len();
    }
    assert_eq!(got, 1000);
    assert!(tokio::time::timeout(Duration::from_millis(50), answer.chunk()).await.is_err());
    drop(answer);
    assert!(server.until(|requests| requests[0].aborted).await);
    let start = std::time::Instant::now();
    assert!(content.matches(0, &get(&server, "a", "bytes=0-1048575").await.unwrap().bytes().await.unwrap()));
    assert!(start.elapsed() >= Duration::from_millis(40), "a lower bound holds on any machine");
}

#[tokio::test]
async fn a_redirect_leads_to_the_same_key_elsewhere() {
    let (server, other) = (S3Server::start_anonymous(), S3Server::start_anonymous());
    other.put("d/a b", "there");
    server.fault(Fault::new(Effect::Redirect(other.endpoint())));
    let answer = get(&server, "d/a%20b?x=1", "bytes=0-4").await.unwrap();
    assert_eq!(answer.status(), StatusCode::TEMPORARY_REDIRECT);
    let target = answer.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(target, format!("{}/{BUCKET}/d/a%20b?x=1", other.endpoint()));
    assert_eq!(client().get(target).send().await.unwrap().text().await.unwrap(), "there");
    assert_eq!(other.requests()[0].key, "d/a b");
}

#[tokio::test]
async fn a_listing_of_100_000_keys_is_pages_of_1000() {
    let server = S3Server::start_anonymous();
    for i in 0..100_000 {
        server.put_synthetic(&format!("d/{i:06}"), 1);
    }
    let url = format!("{}/{BUCKET}?list-type=2&prefix=d%2F&delimiter=%2F&encoding-type=url", server.endpoint());
    let (mut token, mut keys) = (String::new(), 0);
    loop {
        let page = client().get(format!("{url}{token}")).send().await.unwrap().text().await.unwrap();
        keys += page.matches("<Contents>").count();
        let Some((_, rest)) = page.split_once("<NextContinuationToken>") else { break };
        token = format!("&continuation-token={}", rest.split_once('<').unwrap().0);
    }
    assert_eq!((keys, server.count(Kind::List)), (100_000, 100));
    assert_eq!(server.requests()[99].key, "d/");
}
