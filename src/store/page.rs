//! One LIST request, from a signed URL to a page. Both dialects use it; they only differ in how they sign and in how they take
//! a refusal. It does not retry. Invariant: the next page's token is told early only out of an answer that is a success.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use reqwest::Response;
use tokio::time::{Instant, timeout};

use super::answer;
use super::clock::StoreClock;
use super::leave::Clients;
use super::listing::{self, ListingError, Tokens};
use super::redirect::{self, AllowList, Course, Target};
use super::request_log::{Outgoing, Sending};
use super::signing::{SignGet, SignedGet};
use super::{Error, ErrorKind, Key, ListPage, Op, Options, Result, Tell};
use crate::metrics::{Metrics, RequestKind};

/// A page of 1000 keys of 1 KiB, each byte percent-encoded, is below 4 MiB; what is longer is no listing.
const BODY_LIMIT: usize = 16 << 20;

/// A page of 1000 keys of usual length is a few hundred kilobytes; an answer may lack its length.
const USUAL_BODY: usize = 256 << 10;

/// Where a token is looked for before the whole page has come: what stands before the entries, whose prefix may be long.
const EARLY: usize = 16 << 10;

/// What came back.
#[derive(Debug)]
pub(super) enum Answered {
    Page(ListPage),
    /// A success whose body is no page.
    Unreadable(StatusCode, HeaderMap, ListingError),
    /// Anything but a success, with its body.
    Refused(StatusCode, HeaderMap, Vec<u8>),
}

/// The HTTP client of listings.
#[derive(Clone, Debug)]
pub(super) struct PageClient {
    http: Clients,
    bucket: String,
    answer_timeout: Duration,
    stall_timeout: Duration,
    tokens: Tokens,
    allowed: AllowList,
    clock: Arc<StoreClock>,
    metrics: Arc<Metrics>,
}

impl PageClient {
    /// `http` comes from [`clients`](super::clients::clients).
    pub fn new(http: Clients, options: &Options, tokens: Tokens, clock: Arc<StoreClock>, metrics: Arc<Metrics>) -> Self {
        let Options { answer_timeout, stall_timeout, .. } = *options;
        let allowed = AllowList::new(&options.redirect_hosts);
        Self { http, bucket: options.bucket.clone(), answer_timeout, stall_timeout, tokens, allowed, clock, metrics }
    }

    /// Sends `signed`, which `signer` made, to the endpoint and after its redirects, and reads the answer; `tell` gets the next page's token as
    /// soon as it has arrived.
    pub async fn get(&self, signer: &dyn SignGet, signed: &SignedGet, prefix: &Key, tell: &Tell<'_>) -> Result<Answered> {
        let mut course = Course::new(&self.allowed, &Method::GET, signed);
        let mut target = Target { url: signed.url.clone(), headers: signed.headers.clone() };
        loop {
            let answered = self.attempt(target.clone(), prefix, tell).await?;
            let Answered::Refused(status, headers, _) = &answered else { return Ok(answered) };
            let onward = course.next(&target.url, *status, headers);
            let Some(onward) = onward.map_err(|refused| refused.into_error(Op::List, prefix, *status))? else { return Ok(answered) };
            let headers = match onward.is_signed {
                true => signer.sign_redirected(Op::List, signed, prefix, &onward.url).await?,
                false => redirect::without_credentials(&signed.headers),
            };
            target = Target { url: onward.url, headers };
        }
    }

    async fn attempt(&self, target: Target, prefix: &Key, tell: &Tell<'_>) -> Result<Answered> {
        let (url, headers) = (&target.url, &target.headers);
        let outgoing = Outgoing { op: Op::List, method: &Method::GET, bucket: &self.bucket, key: prefix, url, headers };
        let mut sending = Sending::new(&self.metrics, RequestKind::List, outgoing);
        let answered = self.ask(target, prefix, &mut sending, tell).await;
        sending.on_result(&answered);
        answered
    }

    async fn ask(&self, target: Target, prefix: &Key, sending: &mut Sending, tell: &Tell<'_>) -> Result<Answered> {
        let began = Instant::now();
        let sent = self.http.next().get(target.url).headers(target.headers).send();
        let mut response = match timeout(self.answer_timeout, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(answer::transport(Op::List, prefix, &error)),
            Err(_) => return Err(Error::new(ErrorKind::Timeout, Op::List, prefix, format!("no answer for {:?}", self.answer_timeout))),
        };
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        sending.on_head(status.as_u16(), &headers);
        self.clock.record(&headers, began, Instant::now());
        if !status.is_success() {
            let body = self.body(&mut response, prefix, &|_| true).await?;
            sending.on_bytes(body.len() as u64);
            return Ok(Answered::Refused(status, headers, body));
        }
        let announce = |received: &[u8]| match listing::early_token(received, self.tokens) {
            Some(token) => {
                tell(&token);
                true
            }
            // The beginning of a page is short; a token that is not in it comes behind the entries.
            None => received.len() >= EARLY,
        };
        let body = self.body(&mut response, prefix, &announce).await?;
        sending.on_bytes(body.len() as u64);
        Ok(match listing::parse(&body, self.tokens) {
            Ok(page) => Answered::Page(page),
            Err(error) => Answered::Unreadable(status, headers, error),
        })
    }

    /// The whole body; `look` sees what has arrived so far, until it says that it has seen enough.
    async fn body(&self, response: &mut Response, prefix: &Key, look: &(dyn Fn(&[u8]) -> bool + Send + Sync)) -> Result<Vec<u8>> {
        let length = response.content_length().and_then(|length| usize::try_from(length).ok());
        let mut body = Vec::with_capacity(length.unwrap_or(USUAL_BODY).min(BODY_LIMIT));
        let mut seen = false;
        loop {
            match timeout(self.stall_timeout, response.chunk()).await {
                Ok(Ok(Some(piece))) if body.len() + piece.len() <= BODY_LIMIT => {
                    body.extend_from_slice(&piece);
                    if !seen && look(&body) {
                        seen = true;
                        // Whoever was told runs now and not after the page is parsed: a page may come in one piece.
                        tokio::task::yield_now().await;
                    }
                }
                Ok(Ok(Some(_))) => return Err(Error::new(ErrorKind::Malformed, Op::List, prefix, "the listing is too long")),
                Ok(Ok(None)) => return Ok(body),
                Ok(Err(error)) => return Err(answer::transport(Op::List, prefix, &error)),
                Err(_) => return Err(Error::new(ErrorKind::Timeout, Op::List, prefix, format!("no byte for {:?}", self.stall_timeout))),
            }
        }
    }
}
