//! GETs of addresses as they stand: public ones, or signed by somebody else. No bucket, no version, no retry; redirects are followed as for
//! ranges. Invariant: nothing that proves who we are is sent, because nothing here knows it.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, header};
use reqwest::Url;
use tokio::time::timeout;

use super::promise::Conditions;
use super::response::Source;
use super::{RangeClient, lost};
use crate::metrics::Metrics;
use crate::store::answer;
use crate::store::clients::clients;
use crate::store::plain::Failure;
use crate::store::signing::{SignGet, SignedGet};
use crate::store::{Error, ErrorKind, Key, Op, Options, Result};

/// Addresses, and the connections to where they lead.
#[derive(Debug)]
pub struct Urls {
    client: RangeClient,
    urls: Vec<Url>,
}

/// Signs nothing.
struct AsItStands(Url);

#[async_trait]
impl SignGet for AsItStands {
    async fn sign_get(&self, _key: &Key) -> Result<SignedGet> {
        Ok(SignedGet { url: self.0.clone(), headers: HeaderMap::new(), by: None })
    }
}

impl Urls {
    /// Makes ready to ask for them. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a text that is no http or https address. The text is not repeated, as it may be signed.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>, metrics: Arc<Metrics>) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::Get, &Key::root(), message);
        let parse = |(n, text): (usize, &str)| {
            let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
            url.ok_or_else(|| invalid(format!("the {}. address does not begin with http:// or https:// and a host", n + 1)))
        };
        let urls: Vec<Url> = texts.into_iter().enumerate().map(parse).collect::<Result<_>>()?;
        // Whether a proxy is asked is decided by where the first one leads: they are of one store.
        let endpoint = urls.first().map(|url| url.origin().ascii_serialization());
        let options = Options { endpoint, ..Options::default() };
        let http = clients(&options, &metrics);
        let http = http.map_err(|error| invalid(format!("cannot set up TLS: {}", answer::innermost(&error))))?;
        Ok(Self { client: RangeClient::new(http, &options, Arc::default(), metrics), urls })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.urls.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.urls.is_empty()
    }

    /// The host of the first one.
    pub fn host(&self) -> Option<&str> {
        self.urls.first()?.host_str()
    }

    /// Fetches one to its end and throws it away, through `memory`; `on_bytes` is told of each stretch that came.
    ///
    /// # Errors
    /// What the other side answers when it is no success, and that the body was shorter than it said.
    pub async fn get(&self, index: usize, memory: &mut [u8], mut on_bytes: impl FnMut(u64) + Send) -> Result<()> {
        let url = &self.urls[index];
        // Without the query, which may be a signature.
        let shown = Key::from(url.path());
        let as_it_is = Conditions(vec![(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
        let mut response = self.client.follow(&AsItStands(url.clone()), &as_it_is, &shown).await?;
        if !response.status().is_success() {
            return Err(self.client.refused(response, &shown).await);
        }
        let stall = self.client.stall_timeout;
        loop {
            let silent = |_| Error::new(ErrorKind::Timeout, Op::Get, &shown, format!("no byte for {stall:?}"));
            match timeout(stall, next(&mut response.source, memory, &shown)).await.map_err(silent).flatten() {
                Ok(0) => break,
                Ok(n) => {
                    response.on_bytes(n as u64);
                    on_bytes(n as u64);
                }
                Err(error) => {
                    response.on_lost(&error);
                    return Err(error);
                }
            }
        }
        response.finish();
        Ok(())
    }
}

/// How many bytes came next; 0 is the end of a body that is whole.
async fn next(source: &mut Source, memory: &mut [u8], key: &Key) -> Result<usize> {
    match source {
        Source::Plain(response) => {
            let n = response.read(memory).await.map_err(|error| lost(key, &Failure::Lost(error)))?;
            match response.left() {
                Some(left) if n == 0 && left > 0 => {
                    Err(Error::new(ErrorKind::Corrupt, Op::Get, key, format!("short body: {left} bytes are missing")))
                }
                _ => Ok(n),
            }
        }
        Source::Library(response) => loop {
            match response.chunk().await.map_err(|error| answer::transport(Op::Get, key, &error))? {
                Some(piece) if piece.is_empty() => {}
                piece => return Ok(piece.map_or(0, |piece| piece.len())),
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::wire::{Fake, Reply};

    async fn get(server: &Fake, metrics: &Arc<Metrics>, times: usize) -> Vec<Result<u64>> {
        let url = server.url("/b/k?X-Amz-Signature=secret").to_string();
        let urls = Urls::new([&*url], Arc::clone(metrics)).unwrap();
        let mut all = Vec::new();
        for _ in 0..times {
            let mut bytes = 0;
            let got = urls.get(0, &mut [0; 4], |n| bytes += n).await;
            all.push(got.map(|()| bytes));
        }
        all
    }

    fn answer(status: &str, body: &str) -> Reply {
        Reply::Keep(format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    }

    #[tokio::test]
    async fn bodies_of_any_framing_are_taken_whole_over_connections_that_are_counted() {
        let chunked = Reply::Keep("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n".into());
        let server = Fake::start(vec![answer("200 OK", "123456789"), answer("200 OK", ""), chunked.clone(), chunked]).await;
        let metrics = Arc::new(Metrics::default());
        let all = get(&server, &metrics, 3).await;
        assert!(matches!(all[..], [Ok(9), Ok(0), Ok(6)]), "{all:?}");
        // The library asked again for the one whose length is not known.
        assert_eq!((metrics.connections_opened.get(), server.connections() as u64), (2, 2));
        let head = &server.heads()[0];
        assert!(
            head.starts_with("get /b/k?x-amz-signature=secret ") && !head.contains("range:") && !head.contains("authorization"),
            "{head}"
        );
    }

    #[tokio::test]
    async fn a_redirect_is_followed_and_keeps_its_connection() {
        let target = Fake::start(vec![answer("200 OK", "there"), answer("200 OK", "there")]).await;
        let moved = || {
            let body = "<Error/>";
            Reply::Keep(format!("HTTP/1.1 307 Moved\r\nLocation: {}\r\nContent-Length: {}\r\n\r\n{body}", target.url("/x"), body.len()))
        };
        let server = Fake::start(vec![moved(), moved()]).await;
        let metrics = Arc::new(Metrics::default());
        let all = get(&server, &metrics, 2).await;
        assert!(matches!(all[..], [Ok(5), Ok(5)]), "{all:?}");
        assert_eq!((server.connections(), target.connections(), metrics.connections_opened.get()), (1, 1, 2));
        assert_eq!(server.heads().len(), 2);
    }

    #[tokio::test]
    async fn refusals_and_short_bodies_are_errors_without_the_signature() {
        let short = Reply::Close("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123".into());
        let server = Fake::start(vec![answer("404 Not Found", ""), answer("403 Forbidden", ""), short]).await;
        let all = get(&server, &Arc::default(), 3).await;
        let kinds: Vec<_> = all.iter().map(|got| got.as_ref().unwrap_err().kind).collect();
        assert_eq!(kinds, [ErrorKind::NotFound, ErrorKind::AccessDenied, ErrorKind::Corrupt]);
        assert!(all.iter().all(|got| !got.as_ref().unwrap_err().to_string().contains("secret")));
    }

    #[test]
    fn what_is_no_address_is_refused_by_its_place() {
        for text in ["", "s3://b/k", "host/k", "http://", "ftp://h/k?sig=secret"] {
            let error = Urls::new(["http://h/k", text], Arc::default()).unwrap_err();
            assert!(
                error.kind == ErrorKind::Invalid && error.to_string().contains("2. address") && !error.to_string().contains("secret"),
                "{error}"
            );
        }
    }
}
