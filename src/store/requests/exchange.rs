//! How a request leaves and what comes back: signed, sent, followed through redirects, measured and logged, in one way for both dialects and for
//! both makers of requests, our own and the vendor's client. One attempt a call, and another where other credentials sign it. Invariant: a body is
//! sent as it was given, without a copy, and with its length.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use reqwest::{Response, Url};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout, timeout_at};

use super::body::{Leaving, Watched};
use super::headers::Names;
use crate::metrics::{Metrics, RequestKind};
use crate::store::answer;
use crate::store::clock::StoreClock;
use crate::store::credentials::{Attempts, Edition};
use crate::store::leave::Clients;
use crate::store::redirect::{self, AllowList, Course, Target};
use crate::store::request_log::{Outgoing, Sending};
use crate::store::signing::SignedGet;
use crate::store::{Body, Error, ErrorKind, Key, Op, Options, Result};

/// No document is longer: 1000 unfinished uploads with keys of 1 KiB, each byte percent-encoded, are half of it.
const BODY_LIMIT: usize = 8 << 20;

/// Longest wait for the response after the last byte of a body, as a multiple of the stall timeout: the store makes the object durable meanwhile.
const STALLS_TO_STORE: u32 = 4;

/// A request before it is signed. The key is empty when it is about the bucket.
#[derive(Debug)]
pub(in crate::store) struct Unsigned<'a> {
    pub op: Op,
    pub method: Method,
    pub key: &'a Key,
    pub query: &'a [(&'a str, String)],
    pub headers: &'a HeaderMap,
    /// SHA-256 of the body, when it is to be signed.
    pub payload: Option<[u8; 32]>,
}

/// What of a request is a dialect's own.
#[async_trait]
pub(in crate::store) trait Voice: fmt::Debug + Send + Sync {
    /// The URL, and the headers that are to be sent: those given and those of the signature.
    async fn sign(&self, unsigned: &Unsigned<'_>) -> Result<SignedGet>;

    /// The headers for a trusted host that the request was redirected to, after `signed` had gone elsewhere. As they stand for signatures that do
    /// not cover host and path of the URL (OSS); those that do sign again.
    async fn sign_again(&self, _unsigned: &Unsigned<'_>, signed: &SignedGet, _target: &Url) -> Result<HeaderMap> {
        Ok(signed.headers.clone())
    }

    /// After the answer to a request that `by` signed, which is an error or none: whether another signature may help.
    async fn again(&self, attempts: &mut Attempts, by: Option<Edition>, error: Option<&Error>) -> bool;

    /// The clock whose time is signed: what has a response records its date there.
    fn clock(&self) -> &Arc<StoreClock>;

    /// Whether the payload is to be under the signature: only where TLS does not protect it.
    fn signs_payloads(&self) -> bool;

    /// The error that an answer without success is.
    fn refused(&self, op: Op, key: &Key, status: u16, headers: &HeaderMap, body: &[u8]) -> Error;
}

/// Sends the requests of one bucket, or of an account.
#[derive(Debug)]
pub(super) struct Exchange {
    bucket: String,
    http: Clients,
    voice: Arc<dyn Voice>,
    allowed: AllowList,
    names: Arc<Names>,
    answer_timeout: Duration,
    stall_timeout: Duration,
    metrics: Arc<Metrics>,
}

/// One request.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub op: Op,
    pub method: Method,
    pub key: &'a Key,
    pub query: Vec<(&'a str, String)>,
    pub headers: HeaderMap,
    pub body: Body,
    /// SHA-256 of the body, where it is known already.
    pub payload: Option<[u8; 32]>,
}

impl<'a> Call<'a> {
    pub fn new(op: Op, method: Method, key: &'a Key) -> Self {
        Self { op, method, key, query: Vec::new(), headers: HeaderMap::new(), body: Body::default(), payload: None }
    }

    pub fn with(self, query: impl Into<Vec<(&'a str, String)>>) -> Self {
        Self { query: query.into(), ..self }
    }

    pub fn headed(self, headers: HeaderMap) -> Self {
        Self { headers, ..self }
    }

    pub fn bearing(self, body: Body) -> Self {
        Self { body, ..self }
    }

    /// The store works before it answers, and may send blanks meanwhile.
    fn is_long(&self) -> bool {
        matches!(self.op, Op::Copy | Op::CopyPart | Op::CompleteUpload)
    }
}

/// A success.
#[derive(Debug)]
pub(super) struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Exchange {
    pub fn new(http: Clients, options: &Options, voice: Arc<dyn Voice>, names: Arc<Names>, metrics: Arc<Metrics>) -> Self {
        Self {
            bucket: options.bucket.clone(),
            http,
            voice,
            allowed: AllowList::new(&options.redirect_hosts),
            names,
            answer_timeout: options.answer_timeout,
            stall_timeout: options.stall_timeout,
            metrics,
        }
    }

    /// Sends `call` and reads its answer; anything but a success is an error.
    pub async fn send(&self, call: &Call<'_>) -> Result<Reply> {
        if matches!(call.method, Method::PUT | Method::DELETE) && call.key.as_bytes().is_empty() {
            // It would be a request about the bucket itself.
            return Err(Error::new(ErrorKind::Invalid, call.op, call.key, "no object has an empty key"));
        }
        let mut headers = call.headers.clone();
        self.names.pay(&mut headers);
        let payload = call.payload.or_else(|| self.hash_of_document(call));
        let unsigned = Unsigned { op: call.op, method: call.method.clone(), key: call.key, query: &call.query, headers: &headers, payload };
        let mut attempts = Attempts::new(self.voice.clock());
        loop {
            let signed = self.voice.sign(&unsigned).await?;
            let by = signed.by;
            let result = self.follow(call, &unsigned, signed).await;
            if !self.voice.again(&mut attempts, by, result.as_ref().err()).await {
                return result;
            }
        }
    }

    /// The hash that signs a small body of which no sums were made: a document, or none.
    fn hash_of_document(&self, call: &Call<'_>) -> Option<[u8; 32]> {
        let is_document = matches!(call.op, Op::CompleteUpload | Op::Delete) || call.body.is_empty();
        let is_signed = is_document && matches!(call.method, Method::PUT | Method::POST) && self.voice.signs_payloads();
        is_signed.then(|| Sha256::digest(call.body.joined()).into())
    }

    /// Sends the request to the endpoint and after its redirects, up to the first response that is none.
    async fn follow(&self, call: &Call<'_>, unsigned: &Unsigned<'_>, signed: SignedGet) -> Result<Reply> {
        let mut course = Course::new(&self.allowed, &call.method, &signed);
        let mut target = Target { url: signed.url.clone(), headers: signed.headers.clone() };
        loop {
            let (status, headers, body) = self.attempt(call, target.clone()).await?;
            let onward = course.next(&target.url, status, &headers);
            let Some(onward) = onward.map_err(|refused| refused.into_error(call.op, call.key, status))? else {
                if status.is_success() {
                    return Ok(Reply { status: status.as_u16(), headers, body });
                }
                return Err(self.voice.refused(call.op, call.key, status.as_u16(), &headers, &body));
            };
            let headers = match onward.is_signed {
                true => self.voice.sign_again(unsigned, &signed, &onward.url).await?,
                false => redirect::without_credentials(&signed.headers),
            };
            target = Target { url: onward.url, headers };
        }
    }

    /// Sends the request to one host and reads all of its answer.
    pub async fn attempt(&self, call: &Call<'_>, mut target: Target) -> Result<(StatusCode, HeaderMap, Vec<u8>)> {
        if matches!(call.method, Method::PUT | Method::POST) {
            // Also of an empty body: there are stores that insist on it.
            target.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(call.body.len()));
        }
        let (url, headers) = (&target.url, &target.headers);
        let outgoing = Outgoing { op: call.op, method: &call.method, bucket: &self.bucket, key: call.key, url, headers };
        let mut sending = Sending::new(&self.metrics, kind_of(call.op), outgoing);
        let answered = self.answered(call, target, &mut sending).await;
        sending.on_result(&answered);
        answered
    }

    async fn answered(&self, call: &Call<'_>, target: Target, sending: &mut Sending) -> Result<(StatusCode, HeaderMap, Vec<u8>)> {
        let sent = Instant::now();
        let leaving = Leaving::new(self.metrics.clone());
        let exchanged = self.exchange(call, target, &leaving).await;
        sending.on_bytes(leaving.bytes() as u64);
        let mut response = exchanged?;
        self.voice.clock().record(response.headers(), sent, Instant::now());
        let status = response.status();
        sending.on_head(status.as_u16(), response.headers());
        let headers = std::mem::take(response.headers_mut());
        let body = self.document(call, &mut response).await?;
        sending.on_bytes(body.len() as u64);
        Ok((status, headers, body))
    }

    /// The head of the answer. Silence is measured from the last piece of the body that left.
    async fn exchange(&self, call: &Call<'_>, target: Target, leaving: &Leaving) -> Result<Response> {
        let request = self.http.next().request(call.method.clone(), target.url).headers(target.headers);
        let request = if call.body.is_empty() {
            request
        } else {
            request.body(reqwest::Body::wrap(Watched::new(call.body.clone(), leaving.clone())))
        };
        let answer = match () {
            () if call.is_long() || call.body.is_empty() => self.answer_timeout,
            () => self.stall_timeout * STALLS_TO_STORE,
        };
        let mut sent = std::pin::pin!(request.send());
        loop {
            let due = || leaving.last() + if leaving.is_over(call.body.len()) { answer } else { self.stall_timeout };
            match timeout_at(due(), &mut sent).await {
                Ok(result) => return result.map_err(|error| answer::transport(call.op, call.key, &error)),
                Err(_) if due() > Instant::now() => {}
                Err(_) => {
                    let (left, total) = (leaving.bytes(), call.body.len());
                    let message = match left {
                        left if left < total => {
                            format!("{left} of {total} bytes were sent and then nothing moved for {:?}", self.stall_timeout)
                        }
                        _ => format!("no answer for {answer:?}"),
                    };
                    return Err(Error::new(ErrorKind::Timeout, call.op, call.key, message));
                }
            }
        }
    }

    async fn document(&self, call: &Call<'_>, response: &mut Response) -> Result<Vec<u8>> {
        let silence = if call.is_long() { self.answer_timeout } else { self.stall_timeout };
        let mut body = Vec::new();
        loop {
            match timeout(silence, response.chunk()).await {
                Ok(Ok(Some(piece))) if body.len() + piece.len() <= BODY_LIMIT => body.extend_from_slice(&piece),
                Ok(Ok(Some(_))) => return Err(Error::new(ErrorKind::Malformed, call.op, call.key, "the answer is too long")),
                Ok(Ok(None)) => return Ok(body),
                Ok(Err(error)) => return Err(answer::transport(call.op, call.key, &error)),
                Err(_) => return Err(Error::new(ErrorKind::Timeout, call.op, call.key, format!("no byte for {silence:?}"))),
            }
        }
    }
}

/// What a request counts as.
fn kind_of(op: Op) -> RequestKind {
    match op {
        Op::Head => RequestKind::Head,
        Op::Get => RequestKind::Get,
        Op::List | Op::ListUploads | Op::ListParts => RequestKind::List,
        Op::Put | Op::CreateUpload | Op::UploadPart | Op::CompleteUpload => RequestKind::Put,
        Op::Copy | Op::CopyPart | Op::Rename => RequestKind::Copy,
        Op::Delete | Op::AbortUpload => RequestKind::Delete,
    }
}
