//! The log of requests: at `debug` one line for each request that was sent to a host, at `trace` its headers and those of the response before it.
//! Together with the line the request is counted. It sends nothing, and below `debug` it costs a comparison. Invariant: no line has a credential,
//! a key of an encryption, or a query, which may hold a signature.

use std::future::Future;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, Method, header};
use reqwest::Url;
use tokio::time::Instant;
use tracing::{Level, debug, enabled, trace};

use super::{Error, Key, Op, Result};
use crate::metrics::{Attempt, Metrics, RequestKind};

/// What a filter such as `windlass::requests=debug,info` names.
const TARGET: &str = "windlass::requests";

tokio::task_local! {
    /// Which attempt of its request a task sends, from 1.
    static ATTEMPT: usize;
}

/// Runs `attempt`, whose requests are logged as those of attempt `number`.
pub(super) async fn numbered<F: Future + Unpin>(number: usize, attempt: F) -> F::Output {
    if enabled!(target: TARGET, Level::DEBUG) { ATTEMPT.scope(number, attempt).await } else { attempt.await }
}

/// A request on its way to one host: counted, and a line in the log when it is dropped.
#[derive(Debug)]
pub(super) struct Sending {
    counted: Attempt,
    line: Option<Box<Line>>,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing<'a> {
    pub op: Op,
    pub method: &'a Method,
    pub bucket: &'a str,
    pub key: &'a Key,
    pub url: &'a Url,
    pub headers: &'a HeaderMap,
}

#[derive(Debug)]
struct Line {
    op: Op,
    method: Method,
    host: String,
    bucket: String,
    key: Key,
    range: Option<String>,
    attempt: usize,
    began: Instant,
    status: Option<u16>,
    bytes: u64,
    request_id: Option<String>,
    /// What ended it early.
    error: Option<String>,
    is_over: bool,
}

impl Sending {
    /// Counts a request that is sent now.
    pub fn new(metrics: &Arc<Metrics>, kind: RequestKind, outgoing: Outgoing<'_>) -> Self {
        let line = enabled!(target: TARGET, Level::DEBUG).then(|| Box::new(Line::new(outgoing)));
        if line.is_some() {
            trace!(target: TARGET, "> {} {} {}", outgoing.method, outgoing.url.path(), shown(outgoing.headers));
        }
        Self { counted: metrics.attempt(kind), line }
    }

    /// The head of the response has come.
    pub fn on_head(&mut self, status: u16, headers: &HeaderMap) {
        self.counted.on_head(status);
        if let Some(line) = &mut self.line {
            trace!(target: TARGET, "< {status} {}", shown(headers));
            let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            line.status = Some(status);
            line.request_id = text("x-amz-request-id").or_else(|| text("x-oss-request-id"));
        }
    }

    /// Bytes of a body, of the request or the response, that have been sent or have arrived.
    pub fn on_bytes(&mut self, bytes: u64) {
        if let Some(line) = &mut self.line {
            line.bytes += bytes;
        }
    }

    /// All of the response has come.
    pub fn on_end(&mut self) {
        self.counted.on_end();
        if let Some(line) = &mut self.line {
            line.is_over = true;
        }
    }

    /// No response will come, or no more of it.
    pub fn on_lost(&mut self, error: &Error) {
        self.counted.on_lost();
        if let Some(line) = &mut self.line {
            line.error = Some(error.message.clone());
        }
    }

    /// One of the two.
    pub fn on_result<T>(&mut self, result: &Result<T>) {
        match result {
            Ok(_) => self.on_end(),
            Err(error) => self.on_lost(error),
        }
    }
}

impl Line {
    fn new(outgoing: Outgoing<'_>) -> Self {
        let Outgoing { op, method, bucket, key, url, headers } = outgoing;
        let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")).map(str::to_owned);
        Self {
            op,
            method: method.clone(),
            host: super::redirect::authority(url),
            bucket: bucket.to_owned(),
            key: key.clone(),
            range,
            attempt: ATTEMPT.try_with(|number| *number).unwrap_or(1),
            began: Instant::now(),
            status: None,
            bytes: 0,
            request_id: None,
            error: None,
            is_over: false,
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Self { op, method, host, bucket, key, range, attempt, began, status, bytes, request_id, .. } = self;
        let error = self.error.as_deref().or((!self.is_over).then_some("given up"));
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        // As text, which is quoted with its odd characters escaped: a key may hold the end of a line.
        let key = key.to_string();
        // Fields without a value are left out.
        debug!(
            target: TARGET,
            %op, %method, host, bucket, key, range, status, bytes, ms, attempt, request_id, error, "request"
        );
    }
}

/// Headers for people, without credentials, encryption keys and queries.
fn shown(headers: &HeaderMap) -> String {
    let value = |name: &HeaderName, value: &http::HeaderValue| match name {
        _ if value.is_sensitive() || is_secret(name) => "********".to_owned(),
        _ if *name == header::LOCATION => String::from_utf8_lossy(value.as_bytes()).split('?').next().unwrap_or_default().to_owned(),
        _ => String::from_utf8_lossy(value.as_bytes()).into_owned(),
    };
    headers.iter().map(|(name, text)| format!("{name}: {}", value(name, text))).collect::<Vec<_>>().join("; ")
}

fn is_secret(name: &HeaderName) -> bool {
    let known = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE, header::SET_COOKIE];
    // Tokens of sessions, and the keys of SSE-C with their MD5s, of both vendors.
    let part = |word| name.as_str().contains(word);
    known.contains(name) || ["token", "customer-key", "secret", "signature", "credential"].into_iter().any(part)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::logging::Page;
    use crate::store::ErrorKind;

    /// What is logged at `level` of a GET in its second attempt, which ends with `error` or well.
    async fn logged(level: Level, error: Option<&Error>) -> String {
        let page = Page::default();
        let writer = page.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).without_time();
        let _guard = tracing::subscriber::set_default(subscriber.with_writer(move || writer.clone()).finish());
        let request = [
            ("range", "bytes=0-99"),
            ("authorization", "hunter2"),
            ("x-amz-security-token", "hunter2"),
            ("x-amz-s3session-token", "hunter2"),
            ("x-oss-server-side-encryption-customer-key", "hunter2"),
            ("x-amz-server-side-encryption-customer-key-md5", "hunter2"),
            ("x-amz-date", "20240229T235959Z"),
        ];
        let response = [("x-amz-request-id", "R7"), ("location", "http://h/k?X-Amz-Signature=hunter2"), ("etag", "\"e\"")];
        let map = |all: &[(&'static str, &'static str)]| -> HeaderMap {
            all.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
        };
        let (key, url, headers) = (Key::from("dir/k"), Url::parse("http://h:81/b/dir/k?X-Amz-Signature=hunter2").unwrap(), map(&request));
        let sent = std::pin::pin!(async {
            let outgoing = Outgoing { op: Op::Get, method: &Method::GET, bucket: "b", key: &key, url: &url, headers: &headers };
            let mut sending = Sending::new(&Arc::default(), RequestKind::Get, outgoing);
            if let Some(error) = error {
                return sending.on_lost(error);
            }
            sending.on_head(206, &map(&response));
            sending.on_bytes(100);
            sending.on_end();
        });
        numbered(2, sent).await;
        page.text()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_one_line_at_debug_and_none_below() {
        assert_eq!(logged(Level::INFO, None).await, "");
        let expected = "DEBUG windlass::requests: request op=GET method=GET host=\"h:81\" bucket=\"b\" key=\"dir/k\" range=\"0-99\" status=206 \
                        bytes=100 ms=0 attempt=2 request_id=\"R7\"\n";
        assert_eq!(logged(Level::DEBUG, None).await, expected);
        let lost = Error::new(ErrorKind::Timeout, Op::Get, &Key::from("dir/k"), "no answer for 5s");
        let expected = "DEBUG windlass::requests: request op=GET method=GET host=\"h:81\" bucket=\"b\" key=\"dir/k\" range=\"0-99\" \
                        bytes=0 ms=0 attempt=2 error=\"no answer for 5s\"\n";
        assert_eq!(logged(Level::DEBUG, Some(&lost)).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn headers_are_shown_at_trace_without_secrets() {
        let text = logged(Level::TRACE, None).await;
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("x-amz-date: 20240229T235959Z") && text.contains("location: http://h/k;") && text.contains("etag"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
