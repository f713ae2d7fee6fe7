//! The hot path: one range GET, from a signed request to bytes in a sink. Both dialects use it; they only differ
//! in how they sign. It does not retry (see the retry decorator) and knows nothing of chunks. Invariant: a byte
//! reaches the sink only after status, Content-Range and ETag of its answer were found to be those asked for.
//!
//! Two clients send the requests: `plain` those that go over bare TCP, because it brings the bytes where they belong
//! without a copy, and reqwest all others: TLS, proxies, bodies whose length is not known.

mod response;
mod url;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper_util::client::proxy::matcher::Matcher;
use parking_lot::Mutex;
use reqwest::Url;
use tokio::time::{Instant, sleep, timeout};

use super::answer::{self, Answer};
use super::connecting::Counting;
use super::credentials::{Attempts, Edition};
use super::endpoint;
use super::leave::Clients;
use super::plain::{self, Failure};
use super::redirect::{self, AllowList, MAX_HOPS, Remembered, Target};
use super::requests::Voice;
use super::{ETag, Error, ErrorKind, Key, Op, Options, RangeRequest, RangeSink, Result};
use crate::metrics::{Metrics, RequestKind};
use response::{Response, Source};

pub use self::url::Urls;

/// Connections kept per host: above every concurrency that the reader reaches, so that none is reopened while reads go on.
pub(super) const IDLE_CONNECTIONS: usize = 512;

/// Below what stores and load balancers keep (S3 about 20 s idle, OSS 60 s): a request on a connection that the
/// other side is closing costs a retry.
pub(super) const IDLE_FOR: Duration = Duration::from_secs(15);

/// An error document is a few hundred bytes; what is longer is not one.
const ERROR_BODY_LIMIT: usize = 64 << 10;

/// A GET of a whole object, signed; Range and If-Match are added by the range path and are not part of the
/// signature, so one of these serves many ranges of the object until it expires.
#[derive(Clone, Debug)]
pub(super) struct SignedGet {
    pub url: Url,
    pub headers: HeaderMap,
    /// Which keys signed it; none: nobody's.
    pub by: Option<Edition>,
}

/// How a dialect signs data GETs.
#[async_trait]
pub(super) trait SignGet: Send + Sync {
    async fn sign_get(&self, key: &Key) -> Result<SignedGet>;

    /// The headers for a trusted host that `signed` was redirected to. As it stands for signatures that do not
    /// cover host and path of the URL (OSS); those that do sign again.
    async fn sign_redirected(&self, signed: &SignedGet, _key: &Key, _target: &Url) -> Result<HeaderMap> {
        Ok(signed.headers.clone())
    }
}

/// A signer that remembers which keys it signed with last, for one GET.
struct Remembering<'a> {
    signer: &'a dyn SignGet,
    by: Mutex<Option<Edition>>,
}

impl<'a> Remembering<'a> {
    fn new(signer: &'a dyn SignGet) -> Self {
        Self { signer, by: Mutex::default() }
    }

    /// None as long as nothing was signed.
    fn by(&self) -> Option<Edition> {
        *self.by.lock()
    }
}

#[async_trait]
impl SignGet for Remembering<'_> {
    async fn sign_get(&self, key: &Key) -> Result<SignedGet> {
        let signed = self.signer.sign_get(key).await?;
        *self.by.lock() = signed.by;
        Ok(signed)
    }

    async fn sign_redirected(&self, signed: &SignedGet, key: &Key, target: &Url) -> Result<HeaderMap> {
        self.signer.sign_redirected(signed, key, target).await
    }
}

/// The HTTP clients of a dialect.
pub(super) fn clients(options: &Options, metrics: &Arc<Metrics>) -> reqwest::Result<Clients> {
    Clients::build(&options.exits, || client_builder(options, metrics))
}

/// The settings that they share.
pub(super) fn client_builder(options: &Options, metrics: &Arc<Metrics>) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder().connector_layer(Counting(Arc::clone(metrics)));
    let builder = if endpoint::goes_through_proxy(options.endpoint.as_deref()) { builder } else { builder.no_proxy() };
    builder
        .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
        // Redirects are followed below, where it is known which headers may go along.
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        // One stream of HTTP/2 is limited by its window and all share one connection; ranges want several.
        .http1_only()
        .tcp_nodelay(true)
        .connect_timeout(options.connect_timeout)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .pool_idle_timeout(IDLE_FOR)
}

/// The HTTP client of the data path.
#[derive(Clone, Debug)]
pub(super) struct RangeClient {
    http: Clients,
    plain: plain::Client,
    /// The store sends ranges in a form that `plain` does not read.
    library_only: Arc<AtomicBool>,
    stall_timeout: Duration,
    allowed: AllowList,
    remembered: Remembered,
    metrics: Arc<Metrics>,
}

impl RangeClient {
    /// `http` comes from [`clients`].
    pub fn new(http: Clients, options: &Options, metrics: Arc<Metrics>) -> Self {
        let proxied = endpoint::goes_through_proxy(options.endpoint.as_deref());
        let proxies = if proxied { Matcher::from_env() } else { Matcher::builder().build() };
        Self {
            http,
            plain: plain::Client::new(proxies, options.connect_timeout, &options.exits, Arc::clone(&metrics)),
            library_only: Arc::default(),
            stall_timeout: options.stall_timeout,
            allowed: AllowList::new(&options.redirect_hosts),
            remembered: Remembered::new(),
            metrics,
        }
    }

    /// As [`get`](Self::get), and again when it was refused and other keys may be let in.
    pub async fn get_again(&self, signer: &(impl SignGet + Voice), request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let mut attempts = Attempts::new();
        loop {
            let remembering = Remembering::new(signer);
            let result = self.get(&remembering, request, sink).await;
            // A refusal comes instead of bytes: the sink is as it was.
            if !signer.again(&mut attempts, remembering.by(), result.as_ref().err()).await {
                return result;
            }
        }
    }

    /// Fetches `request` into `sink`: one attempt. The target that the object was redirected to last time is tried
    /// first; whatever it answers but the bytes, the endpoint is asked again at once.
    pub async fn get(&self, signer: &dyn SignGet, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let conditions = Conditions::new(request)?;
        if let Some(target) = self.remembered.get(&request.key) {
            if let Ok(response) = self.send(&target, &conditions, &request.key).await
                && check(&response, request).is_ok()
            {
                return self.copy(response, request, sink).await.inspect_err(|_| self.remembered.forget(&request.key));
            }
            self.remembered.forget(&request.key);
        }
        let response = self.follow(signer, &conditions, &request.key).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, request).await);
        }
        check(&response, request)?;
        self.copy(response, request, sink).await.inspect_err(|_| self.remembered.forget(&request.key))
    }

    /// Sends the request to the endpoint and after its redirects, up to the first answer that is none.
    async fn follow(&self, signer: &dyn SignGet, conditions: &Conditions, key: &Key) -> Result<Response> {
        let signed = signer.sign_get(key).await?;
        let mut target = Target { url: signed.url.clone(), headers: signed.headers.clone() };
        for hop in 0..=MAX_HOPS {
            let mut response = self.send(&target, conditions, key).await?;
            let status = response.status();
            if !redirect::leads_elsewhere(status, response.headers()) {
                if hop > 0 && status.is_success() {
                    self.remembered.insert(key, target);
                }
                return Ok(response);
            }
            let answer = response.headers().clone();
            // Read to its end, so that the next request finds the connection.
            let _ = timeout(self.stall_timeout, response.document()).await;
            response.finish();
            let url = redirect::location(&target.url, &answer)
                .map_err(|refused| answered(ErrorKind::Invalid, key, status, refused.to_string()))?;
            let headers = if self.allowed.trusts(&signed.url, &url) && !redirect::is_presigned(&url) {
                signer.sign_redirected(&signed, key, &url).await?
            } else {
                let mut headers = signed.headers.clone();
                redirect::strip_credentials(&mut headers);
                headers
            };
            target = Target { url, headers };
        }
        Err(Error::new(ErrorKind::Invalid, Op::Get, key, format!("more than {MAX_HOPS} redirects")))
    }

    async fn send(&self, target: &Target, conditions: &Conditions, key: &Key) -> Result<Response> {
        let mut headers = target.headers.clone();
        headers.extend(conditions.0.clone());
        let mut attempt = self.metrics.attempt(RequestKind::Get);
        let sent = async {
            if !self.library_only.load(Ordering::Relaxed) && self.plain.takes(&target.url) {
                let response = self.plain.get(&target.url, &headers).await.map_err(|failure| lost(key, &failure))?;
                if response.left().is_some() || !response.status().is_success() {
                    return Ok(Source::Plain(response));
                }
                self.library_only.store(true, Ordering::Relaxed);
                attempt.on_head(response.status().as_u16());
                attempt = self.metrics.attempt(RequestKind::Get);
            }
            let sent = self.http.next().get(target.url.clone()).headers(headers).send().await;
            sent.map(Source::Library).map_err(|error| answer::transport(Op::Get, key, &error))
        };
        let in_time = timeout(self.stall_timeout, sent).await;
        match in_time
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Timeout, Op::Get, key, format!("no answer for {:?}", self.stall_timeout))))
        {
            Ok(source) => Ok(Response::new(source, attempt)),
            Err(error) => {
                attempt.on_lost();
                Err(error)
            }
        }
    }

    async fn copy(&self, mut response: Response, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let copied = match &mut response.source {
            Source::Plain(source) => self.receive(source, request, sink).await,
            Source::Library(source) => self.copy_pieces(source, request, sink).await,
        };
        match &copied {
            Ok(()) => response.finish(),
            Err(_) => response.on_lost(),
        }
        copied
    }

    /// Has the body, whose length was checked, written into the sink.
    async fn receive(&self, response: &mut plain::Response, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let wanted = request.range.end - request.range.start;
        let mut stalled = pin!(sleep(self.stall_timeout));
        let mut got = 0_u64;
        while got < wanted {
            let read = tokio::select! {
                biased;
                read = response.read(sink.spare()) => read,
                () = &mut stalled => return Err(self.stall(request, got)),
            };
            let n = match read {
                Ok(0) => return Err(short(request, got)),
                Ok(n) => n,
                Err(error) => {
                    let mut error = lost(&request.key, &Failure::Lost(error));
                    error.message = format!("{} after {got} of {wanted} bytes", error.message);
                    return Err(error);
                }
            };
            got += n as u64;
            self.metrics.fetched_bytes.add(n as u64);
            sink.advance(n);
            stalled.as_mut().reset(Instant::now() + self.stall_timeout);
        }
        Ok(())
    }

    /// Copies the body into the sink. A byte too many or too few is an error of its own: HTTP framing alone does
    /// not show it when the length is unknown.
    async fn copy_pieces(&self, response: &mut reqwest::Response, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let wanted = request.range.end - request.range.start;
        let mut got = 0_u64;
        loop {
            let piece = match timeout(self.stall_timeout, response.chunk()).await {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) if got == wanted => return Ok(()),
                Ok(Ok(None)) => return Err(short(request, got)),
                Ok(Err(error)) if ended_early(&error) => return Err(short(request, got)),
                Ok(Err(error)) => {
                    let mut error = answer::transport(Op::Get, &request.key, &error);
                    error.message = format!("{} after {got} of {wanted} bytes", error.message);
                    return Err(error);
                }
                Err(_) => return Err(self.stall(request, got)),
            };
            self.metrics.fetched_bytes.add(piece.len() as u64);
            if piece.len() as u64 > wanted - got {
                return Err(corrupt(request, format!("long body: more than {wanted} bytes")));
            }
            got += piece.len() as u64;
            super::pour(&piece, sink);
        }
    }

    fn stall(&self, request: &RangeRequest, got: u64) -> Error {
        let wanted = request.range.end - request.range.start;
        let message = format!("no byte for {:?} after {got} of {wanted} bytes", self.stall_timeout);
        Error::new(ErrorKind::Timeout, Op::Get, &request.key, message)
    }

    /// The error that an answer without the bytes is.
    async fn refusal(&self, response: Response, request: &RangeRequest) -> Error {
        let is_other = is_other_version(response.headers(), request);
        let mut error = self.refused(response, &request.key).await;
        if error.kind == ErrorKind::RangeNotSatisfiable && is_other {
            error.kind = ErrorKind::Replaced;
            "the object was replaced by a shorter one".clone_into(&mut error.message);
        }
        error
    }

    /// The error that any answer without success is.
    async fn refused(&self, mut response: Response, key: &Key) -> Error {
        let body = timeout(self.stall_timeout, response.document()).await.unwrap_or_default();
        let error = Answer::new(response.status().as_u16(), response.headers(), &body).into_error(Op::Get, key);
        response.finish();
        error
    }
}

/// The headers that make a GET of an object a GET of one range of one version.
struct Conditions(Vec<(HeaderName, HeaderValue)>);

impl Conditions {
    fn new(request: &RangeRequest) -> Result<Self> {
        let Range { start, end } = request.range;
        if request.etag.as_str().is_empty() {
            // Listings of some stores tell no version; whoever meets this asks for the attributes, as for a replaced object.
            return Err(Error::new(ErrorKind::Replaced, Op::Get, &request.key, "the listing told no version of the object"));
        }
        let etag = HeaderValue::from_str(request.etag.as_str())
            .map_err(|_| Error::new(ErrorKind::Invalid, Op::Get, &request.key, "the etag cannot be sent as a header"))?;
        let range = HeaderValue::try_from(format!("bytes={start}-{}", end - 1)).expect("digits are valid in a header");
        let identity = HeaderValue::from_static("identity");
        Ok(Self(vec![(header::RANGE, range), (header::IF_MATCH, etag), (header::ACCEPT_ENCODING, identity)]))
    }
}

/// Whether the head of an answer promises exactly the bytes that were asked for.
fn check(response: &Response, request: &RangeRequest) -> Result<()> {
    let Range { start, end } = request.range;
    let (status, headers) = (response.status(), response.headers());
    let etag = headers.get(header::ETAG).and_then(|value| value.to_str().ok());
    // Stores exist that accept If-Match and ignore it. This comes first: the Content-Range of another version may differ too,
    // and asking again does not help.
    if etag.is_some_and(|etag| !same_version(etag, &request.etag)) {
        return Err(answered(ErrorKind::Replaced, &request.key, status, "the object was replaced".to_owned()));
    }
    match status {
        StatusCode::PARTIAL_CONTENT => {
            let text = headers.get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or("none");
            if content_range(text).is_none_or(|(first, last, total)| first != start || last != end - 1 || total.is_some_and(|t| t < end)) {
                let message = format!("asked for bytes {start}-{}, the answer has Content-Range {text:?}", end - 1);
                return Err(answered(ErrorKind::Corrupt, &request.key, status, message));
            }
        }
        // Some servers answer a range that is the whole object without a 206.
        StatusCode::OK if start == 0 => {}
        status => {
            let message = format!("asked for bytes {start}-{}, the answer is not partial", end - 1);
            return Err(answered(ErrorKind::Corrupt, &request.key, status, message));
        }
    }
    if etag.is_none() {
        return Err(answered(ErrorKind::Corrupt, &request.key, status, "the answer has no ETag".to_owned()));
    }
    match response.content_length() {
        Some(length) if length != end - start => {
            let message = format!("asked for {} bytes, the answer has {length}", end - start);
            Err(answered(ErrorKind::Corrupt, &request.key, status, message))
        }
        _ => Ok(()),
    }
}

/// First byte, last byte and size of the object, of `bytes 0-9/100`; the size may be `*`.
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?, total))
}

/// Whether two spellings name one version: listings of some stores leave the quotes out.
fn same_version(answer: &str, asked: &ETag) -> bool {
    answer.trim().trim_matches('"') == asked.as_str().trim_matches('"')
}

/// Whether a 416 comes from another version: it says so, or the object is now too short for a range that lay inside it.
fn is_other_version(headers: &HeaderMap, request: &RangeRequest) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match (text(header::ETAG), text(header::CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes */")?.parse::<u64>().ok())) {
        (Some(etag), _) => !same_version(etag, &request.etag),
        (None, Some(total)) => total < request.range.end,
        (None, None) => false,
    }
}

/// Whether the connection closed before the promised length.
fn ended_early(error: &reqwest::Error) -> bool {
    let eof = |io: &std::io::Error| io.kind() == std::io::ErrorKind::UnexpectedEof;
    answer::causes(error).any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(eof))
}

fn answered(kind: ErrorKind, key: &Key, status: StatusCode, message: String) -> Error {
    Error { status: Some(status.as_u16()), ..Error::new(kind, Op::Get, key, message) }
}

fn short(request: &RangeRequest, got: u64) -> Error {
    corrupt(request, format!("short body: got {got} of {} bytes", request.range.end - request.range.start))
}

/// The error of a request that got no answer, or not all of it.
fn lost(key: &Key, failure: &Failure) -> Error {
    let kind = match failure {
        Failure::Connect(_) => ErrorKind::Connect,
        Failure::Lost(_) => ErrorKind::Unavailable,
        Failure::NotHttp => ErrorKind::Corrupt,
    };
    Error::new(kind, Op::Get, key, failure.to_string())
}

fn corrupt(request: &RangeRequest, message: String) -> Error {
    Error::new(ErrorKind::Corrupt, Op::Get, &request.key, message)
}

#[cfg(test)]
mod tests;
