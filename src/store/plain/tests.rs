//! What the connection does with answers of every shape, against a scripted socket.

use super::*;
use crate::store::wire::{Fake, Reply};

fn client() -> Client {
    Client::new(Matcher::builder().build(), Duration::from_secs(1), &[], Arc::default())
}

fn with_body(status: &str, headers: &str, body: &str) -> Reply {
    Reply::Keep(format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()))
}

async fn get(client: &Client, server: &Fake) -> Result<Response, Failure> {
    client.get(&server.url("/b/k?x=1"), &HeaderMap::new()).await
}

/// Reads the body as a range is read and gives the connection back.
async fn body(mut response: Response) -> String {
    let (mut bytes, mut at) = (vec![0; 64], 0);
    loop {
        match response.read(&mut bytes[at..]).await.unwrap() {
            0 => break,
            n => at += n,
        }
    }
    response.finish();
    String::from_utf8(bytes[..at].to_vec()).unwrap()
}

#[tokio::test]
async fn one_connection_serves_request_after_request() {
    let server =
        Fake::start(vec![with_body("200 OK", "", "one"), with_body("206 Partial Content", "", ""), with_body("200 OK", "", "two")]).await;
    let client = client();
    assert_eq!(body(get(&client, &server).await.unwrap()).await, "one");
    assert_eq!(body(get(&client, &server).await.unwrap()).await, "");
    assert_eq!(body(get(&client, &server).await.unwrap()).await, "two");
    assert_eq!(server.connections(), 1);
    let host = format!("host: {}", server.address());
    assert!(server.heads()[0].starts_with("get /b/k?x=1 http/1.1\r\n") && server.heads()[0].contains(&host));
}

#[tokio::test]
async fn what_is_not_at_its_end_is_not_used_again() {
    let half_read = with_body("200 OK", "", "one");
    let trailing = Reply::Keep("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nonemore".into());
    for (reply, read) in [
        (half_read.clone(), false),
        (trailing, true),
        (with_body("200 OK", "Connection: close\r\n", "one"), true),
        (Reply::Keep("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\none".into()), true),
    ] {
        let server = Fake::start(vec![reply, with_body("200 OK", "", "two")]).await;
        let client = client();
        let response = get(&client, &server).await.unwrap();
        match read {
            true => assert_eq!(body(response).await, "one"),
            false => response.finish(),
        }
        assert_eq!(body(get(&client, &server).await.unwrap()).await, "two");
        assert_eq!(server.connections(), 2);
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_costs_nothing() {
    let server =
        Fake::start(vec![Reply::Close("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none".into()), with_body("200 OK", "", "two")]).await;
    let client = client();
    assert_eq!(body(get(&client, &server).await.unwrap()).await, "one");
    assert_eq!(body(get(&client, &server).await.unwrap()).await, "two");
    assert_eq!(server.heads().len(), 2);
}

#[tokio::test]
async fn interim_answers_are_passed_over() {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none";
    let server = Fake::start(vec![Reply::Keep(interim.into())]).await;
    assert_eq!(body(get(&client(), &server).await.unwrap()).await, "one");
}

#[tokio::test]
async fn a_document_comes_in_every_framing() {
    let chunked = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n<Err\r\n5;x=y\r\nor/>!\r\n0\r\n\r\n";
    let until_close = "HTTP/1.1 404 Not Found\r\n\r\n<Error/>!";
    for (reply, connections) in
        [(with_body("404 Not Found", "", "<Error/>!"), 1), (Reply::Keep(chunked.into()), 1), (Reply::Close(until_close.into()), 2)]
    {
        let server = Fake::start(vec![reply, with_body("200 OK", "", "two")]).await;
        let client = client();
        let mut response = get(&client, &server).await.unwrap();
        assert_eq!(response.document(1000).await, b"<Error/>!");
        response.finish();
        assert_eq!(body(get(&client, &server).await.unwrap()).await, "two");
        assert_eq!(server.connections(), connections);
    }
    let server = Fake::start(vec![with_body("404 Not Found", "", "<Error/>!")]).await;
    assert_eq!(get(&client(), &server).await.unwrap().document(3).await, b"<Er");
    // A length that is no number of bytes when others are added to it.
    let endless = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nffffffffffffffff\r\nand so on";
    let server = Fake::start(vec![Reply::Stall(endless.into())]).await;
    assert_eq!(get(&client(), &server).await.unwrap().document(1000).await, b"a");
}

#[tokio::test]
async fn what_is_no_http_or_leaves_its_end_open_is_refused() {
    for text in [
        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\none",
        "HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\none",
    ] {
        let server = Fake::start(vec![Reply::Close(text.into())]).await;
        assert!(matches!(get(&client(), &server).await, Err(Failure::NotHttp)), "{text}");
    }
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "a: b\r\n".repeat(90)) + &"c".repeat(70_000);
    let server = Fake::start(vec![Reply::Stall(endless)]).await;
    assert!(matches!(get(&client(), &server).await, Err(Failure::NotHttp)));
}

#[tokio::test]
async fn an_answer_of_unknown_length_is_left_to_others() {
    let server = Fake::start(vec![Reply::Keep("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into())]).await;
    assert_eq!(get(&client(), &server).await.unwrap().left(), None);
}

#[test]
fn only_bare_http_without_a_proxy_is_taken() {
    let url = |text: &str| Url::parse(text).unwrap();
    let proxied =
        Client::new(Matcher::builder().http("http://proxy:3128").no("127.0.0.1").build(), Duration::from_secs(1), &[], Arc::default());
    for (text, direct, through_proxy) in [
        ("http://store:9000/b/k", true, false),
        ("http://127.0.0.1:9000/b/k", true, true),
        ("https://store/b/k", false, false),
        ("http://key:secret@store/b/k", false, false),
    ] {
        assert_eq!((client().takes(&url(text)), proxied.takes(&url(text))), (direct, through_proxy), "{text}");
    }
}

#[test]
fn a_peer_is_connected_to_by_its_bare_name() {
    for (text, host, authority) in [
        ("http://store/b", "store", "store"),
        ("http://store:9000/b", "store", "store:9000"),
        ("http://[::1]:9000/b", "::1", "[::1]:9000"),
        ("http://[::1]/b", "::1", "[::1]"),
    ] {
        let peer = Peer::of(&Url::parse(text).unwrap()).unwrap();
        assert_eq!((peer.host(), peer.authority.as_str()), (host, authority));
    }
}
