//! The hot path: one range GET, from a signed request to bytes in a sink. Both dialects use it; they only differ
//! in how they sign. It does not retry (see the retry decorator) and knows nothing of chunks. Invariant: a byte
//! reaches the sink only after status, Content-Range and ETag of its answer were found to be those asked for.
//!
//! Two clients send the requests: `plain` those that go over bare TCP, because it brings the bytes where they belong
//! without a copy, and reqwest all others: TLS, proxies, bodies whose length is not known.

mod promise;
mod response;
mod url;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, header};
use hyper_util::client::proxy::matcher::Matcher;
use moka::sync::Cache;
use tokio::time::{Instant, sleep, timeout};

use super::answer::{self, Answer};
use super::clock::StoreClock;
use super::credentials::Attempts;
use super::endpoint;
use super::leave::Clients;
use super::plain::{self, Failure};
use super::redirect::{self, AllowList, Course, Remembered, Target};
use super::request_log::{Outgoing, Sending};
use super::requests::{Tags, Voice, object_sum};
use super::signing::{Remembering, SignGet};
use super::{Dialect, Error, ErrorKind, Key, Op, Options, RangeRequest, RangeSink, Result};
use crate::metrics::{Metrics, RequestKind};
use promise::{Conditions, answered, check, is_other_version};
use response::{Response, Source};

pub use self::url::Urls;

/// An error document is a few hundred bytes; what is longer is not one.
const ERROR_BODY_LIMIT: usize = 64 << 10;

/// Time for which reqwest sends the requests to a host whose response `plain` could not read.
const ODD_FOR: Duration = Duration::from_mins(10);

const MOST_ODD_HOSTS: u64 = 64;

/// The HTTP client of the data path.
#[derive(Clone, Debug)]
pub(super) struct RangeClient {
    http: Clients,
    plain: plain::Client,
    /// Hosts with a recent response that `plain` could not read.
    library_only: Cache<String, ()>,
    answer_timeout: Duration,
    stall_timeout: Duration,
    bucket: String,
    allowed: AllowList,
    remembered: Remembered,
    tags: Arc<Tags>,
    dialect: Dialect,
    /// Sinks that want it hear the sum of the object.
    tells_sums: bool,
    clock: Arc<StoreClock>,
    metrics: Arc<Metrics>,
}

impl RangeClient {
    /// `http` comes from [`clients`](super::clients::clients).
    pub fn new(http: Clients, options: &Options, tags: Arc<Tags>, metrics: Arc<Metrics>) -> Self {
        let proxied = endpoint::goes_through_proxy(options.endpoint.as_deref());
        let proxies = if proxied { Matcher::from_env() } else { Matcher::builder().build() };
        Self {
            http,
            plain: plain::Client::new(proxies, options.connect_timeout, &options.exits, Arc::clone(&metrics)),
            library_only: Cache::builder().max_capacity(MOST_ODD_HOSTS).time_to_live(ODD_FOR).build(),
            answer_timeout: options.answer_timeout,
            stall_timeout: options.stall_timeout,
            bucket: options.bucket.clone(),
            allowed: AllowList::new(&options.redirect_hosts),
            remembered: Remembered::new(),
            tags,
            dialect: options.dialect,
            tells_sums: options.verify_reads,
            clock: Arc::default(),
            metrics,
        }
    }

    /// The same client; dates of refusals are recorded in `clock`.
    pub fn with_clock(self, clock: Arc<StoreClock>) -> Self {
        Self { clock, ..self }
    }

    /// As [`get`](Self::get), and again when it was refused and other keys may be let in.
    pub async fn get_again(&self, signer: &(impl SignGet + Voice), request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let mut attempts = Attempts::new(signer.clock());
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
        let is_whole = self.tells_sums && request.range.start == 0 && sink.wants_sum();
        let conditions = Conditions::new(request, !self.tags.are_weak(), is_whole)?;
        if let Some(target) = self.remembered.get(&request.key) {
            if let Ok(response) = self.send(&target, &conditions, &request.key).await
                && check(response.status(), response.headers(), response.content_length(), request).is_ok()
            {
                self.tell_sum(is_whole, &response, sink);
                return self.copy(response, request, sink).await.inspect_err(|_| self.remembered.forget(&request.key));
            }
            self.remembered.forget(&request.key);
        }
        let sent = Instant::now();
        let response = self.follow(signer, &conditions, &request.key).await?;
        if let Some(etag) = response.headers().get(header::ETAG).and_then(|value| value.to_str().ok()) {
            self.tags.on_header(etag);
        }
        if !response.status().is_success() {
            self.clock.record(response.headers(), sent, Instant::now());
            return Err(self.refusal(response, request).await);
        }
        check(response.status(), response.headers(), response.content_length(), request)?;
        self.tell_sum(is_whole, &response, sink);
        self.copy(response, request, sink).await.inspect_err(|_| self.remembered.forget(&request.key))
    }

    fn tell_sum(&self, is_whole: bool, response: &Response, sink: &mut dyn RangeSink) {
        if is_whole && let Some(sum) = object_sum(self.dialect, response.headers(), &self.tags) {
            sink.on_sum(&sum);
        }
    }

    /// Sends the request to the endpoint and after its redirects, up to the first answer that is none.
    async fn follow(&self, signer: &dyn SignGet, conditions: &Conditions, key: &Key) -> Result<Response> {
        let signed = signer.sign_get(key).await?;
        let mut course = Course::new(&self.allowed, &Method::GET, &signed);
        let mut target = Target { url: signed.url.clone(), headers: signed.headers.clone() };
        let mut is_redirected = false;
        loop {
            let mut response = self.send(&target, conditions, key).await?;
            let status = response.status();
            let onward = match course.next(&target.url, status, response.headers()) {
                Ok(Some(onward)) => Ok(onward),
                Err(refused) => Err(refused.into_error(Op::Get, key, status)),
                Ok(None) => {
                    if is_redirected && status.is_success() {
                        self.remembered.insert(key, target);
                    }
                    return Ok(response);
                }
            };
            // Read to its end, so that the next request finds the connection.
            let _ = timeout(self.stall_timeout, response.document()).await;
            response.finish();
            let onward = onward?;
            let headers = match onward.is_signed {
                true => signer.sign_redirected(Op::Get, &signed, key, &onward.url).await?,
                false => redirect::without_credentials(&signed.headers),
            };
            target = Target { url: onward.url, headers };
            is_redirected = true;
        }
    }

    async fn send(&self, target: &Target, conditions: &Conditions, key: &Key) -> Result<Response> {
        let mut headers = target.headers.clone();
        headers.extend(conditions.0.clone());
        let mut attempt = self.sending(target, &headers, key);
        let sent = async {
            let host = target.url.host_str().unwrap_or_default();
            if self.plain.takes(&target.url) && !self.library_only.contains_key(host) {
                let response = self.plain.get(&target.url, &headers).await.map_err(|failure| lost(key, &failure))?;
                if response.left().is_some() || !response.status().is_success() {
                    return Ok(Source::Plain(response));
                }
                self.library_only.insert(host.to_owned(), ());
                attempt.on_head(response.status().as_u16(), response.headers());
                attempt = self.sending(target, &headers, key);
            }
            let sent = self.http.next().get(target.url.clone()).headers(headers).send().await;
            sent.map(Source::Library).map_err(|error| answer::transport(Op::Get, key, &error))
        };
        let silent = |_| Error::new(ErrorKind::Timeout, Op::Get, key, format!("no answer for {:?}", self.answer_timeout));
        match timeout(self.answer_timeout, sent).await.map_err(silent).flatten() {
            Ok(source) => Ok(Response::new(source, attempt)),
            Err(error) => {
                attempt.on_lost(&error);
                Err(error)
            }
        }
    }

    fn sending(&self, target: &Target, headers: &HeaderMap, key: &Key) -> Sending {
        let outgoing = Outgoing { op: Op::Get, method: &Method::GET, bucket: &self.bucket, key, url: &target.url, headers };
        Sending::new(&self.metrics, RequestKind::Get, outgoing)
    }

    async fn copy(&self, mut response: Response, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let mut got = 0;
        let copied = match &mut response.source {
            Source::Plain(source) => self.receive(source, request, sink, &mut got).await,
            Source::Library(source) => self.copy_pieces(source, request, sink, &mut got).await,
        };
        response.on_bytes(got);
        match &copied {
            Ok(()) => response.finish(),
            Err(error) => response.on_lost(error),
        }
        copied
    }

    /// Has the body, whose length was checked, written into the sink. `got` is how much of it has come, also when that fails.
    async fn receive(&self, response: &mut plain::Response, request: &RangeRequest, sink: &mut dyn RangeSink, got: &mut u64) -> Result<()> {
        let wanted = request.range.end - request.range.start;
        let mut stalled = pin!(sleep(self.stall_timeout));
        while *got < wanted {
            let read = tokio::select! {
                biased;
                read = response.read(sink.spare()) => read,
                () = &mut stalled => return Err(self.stall(request, *got)),
            };
            let n = match read {
                Ok(0) => return Err(short(request, *got)),
                Ok(n) => n,
                Err(error) => {
                    let mut error = lost(&request.key, &Failure::Lost(error));
                    error.message = format!("{} after {got} of {wanted} bytes", error.message);
                    return Err(error);
                }
            };
            *got += n as u64;
            self.metrics.fetched_bytes.add(n as u64);
            sink.advance(n);
            stalled.as_mut().reset(Instant::now() + self.stall_timeout);
        }
        Ok(())
    }

    /// Copies the body into the sink. A byte too many or too few is an error of its own: HTTP framing alone does
    /// not show it when the length is unknown.
    async fn copy_pieces(
        &self,
        response: &mut reqwest::Response,
        request: &RangeRequest,
        sink: &mut dyn RangeSink,
        got: &mut u64,
    ) -> Result<()> {
        let (wanted, status) = (request.range.end - request.range.start, response.status());
        loop {
            let piece = match timeout(self.stall_timeout, response.chunk()).await {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) if *got == wanted => return Ok(()),
                Ok(Ok(None)) => return Err(short(request, *got)),
                Ok(Err(error)) if ended_early(&error) => return Err(short(request, *got)),
                Ok(Err(error)) => {
                    let mut error = answer::transport(Op::Get, &request.key, &error);
                    error.message = format!("{} after {got} of {wanted} bytes", error.message);
                    return Err(error);
                }
                Err(_) => return Err(self.stall(request, *got)),
            };
            self.metrics.fetched_bytes.add(piece.len() as u64);
            if piece.len() as u64 > wanted - *got {
                let message = format!("long body: more than {wanted} bytes");
                // A server without range support sends the object from its beginning, each time.
                let kind = if status == StatusCode::OK { ErrorKind::Malformed } else { ErrorKind::Corrupt };
                return Err(answered(kind, &request.key, status, message));
            }
            *got += piece.len() as u64;
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

/// Whether the connection closed before the promised length.
fn ended_early(error: &reqwest::Error) -> bool {
    let eof = |io: &std::io::Error| io.kind() == std::io::ErrorKind::UnexpectedEof;
    answer::causes(error).any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(eof))
}

fn short(request: &RangeRequest, got: u64) -> Error {
    corrupt(request, format!("short body: got {got} of {} bytes", request.range.end - request.range.start))
}

/// The error of a request that got no answer, or not all of it.
fn lost(key: &Key, failure: &Failure) -> Error {
    let kind = match failure {
        Failure::Connect(_) => ErrorKind::Connect,
        Failure::Lost(_) => ErrorKind::Unavailable,
        Failure::NotHttp => ErrorKind::Malformed,
    };
    Error::new(kind, Op::Get, key, failure.to_string())
}

fn corrupt(request: &RangeRequest, message: String) -> Error {
    Error::new(ErrorKind::Corrupt, Op::Get, &request.key, message)
}

#[cfg(test)]
mod tests;
