//! The decorator that sends a failed request again. It decides when and how often, never what: the inner store does
//! one attempt a call. Invariant: a resumed range goes on at the byte after the last one that reached the sink, on
//! the same version, so the sink sees every byte once.
//!
//! The delays come from retry-policies because its `Jitter::Full` is what the name says, uniform in 0..delay; backon
//! adds its jitter on top of the delay (delay..2 x delay), which keeps the clients of a burst together.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use retry_policies::policies::ExponentialBackoff;
use retry_policies::{Jitter, RetryDecision, RetryPolicy};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::{Error, ErrorKind, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Op, Options, RangeRequest, RangeSink, Result, Tell};
use crate::metrics::Metrics;

/// The first delay is up to this: about the round trip that failed.
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// Delays grow up to this: a store that recovers is noticed within it.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// How long and how often to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Attempts after the first, without progress between them.
    pub retries: usize,
    /// From the first attempt of a request to its end.
    pub request_timeout: Duration,
    /// Longest attempt of a HEAD or LIST. Ranges may be long; their stalls are noticed where the bytes arrive.
    pub attempt_timeout: Duration,
}

impl From<&Options> for Policy {
    fn from(options: &Options) -> Self {
        // An attempt may have to connect first, and its answer is small.
        let attempt_timeout = options.connect_timeout + options.stall_timeout;
        Self { retries: options.retries, request_timeout: options.request_timeout, attempt_timeout }
    }
}

/// An [`ObjectStore`] whose requests are sent again when that may help.
#[derive(Debug)]
pub struct Retrying {
    inner: Arc<dyn ObjectStore>,
    policy: Policy,
    metrics: Arc<Metrics>,
}

impl Retrying {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn ObjectStore>, policy: Policy, metrics: Arc<Metrics>) -> Self {
        Self { inner, policy, metrics }
    }

    /// How long and how often requests are tried.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The same store under another policy.
    #[must_use]
    pub fn under(&self, policy: Policy) -> Self {
        Self { inner: self.inner.clone(), policy, metrics: self.metrics.clone() }
    }
}

#[async_trait]
impl ObjectStore for Retrying {
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let mut attempts = Attempts::start(self.policy);
        loop {
            match attempts.bounded(Op::Head, key, self.inner.head(key)).await {
                Ok(meta) => return Ok(meta),
                Err(error) => attempts.pause_after(error, &self.metrics).await?,
            }
        }
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.list_telling(request, &|_| {}).await
    }

    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        let mut attempts = Attempts::start(self.policy);
        loop {
            match attempts.bounded(Op::List, &request.prefix, self.inner.list_telling(request, tell)).await {
                Ok(page) => return Ok(page),
                Err(error) => attempts.pause_after(error, &self.metrics).await?,
            }
        }
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let mut attempts = Attempts::start(self.policy);
        let mut rest = request.clone();
        loop {
            attempts.total += 1;
            let mut counted = Counted { sink: &mut *sink, bytes: 0 };
            let result = match timeout_at(attempts.deadline, self.inner.get_range(&rest, &mut counted)).await {
                Ok(result) => result,
                Err(_) => Err(attempts.out_of_time(Op::Get, &request.key)),
            };
            let arrived = counted.bytes;
            let Err(error) = result else { return Ok(()) };
            rest.range.start += arrived;
            if rest.range.is_empty() {
                // What failed came after the last byte: a connection that could not be closed properly.
                return Ok(());
            }
            if arrived > 0 {
                attempts.on_progress();
            }
            attempts.pause_after(error, &self.metrics).await?;
        }
    }
}

/// Passes bytes on and counts them.
struct Counted<'a> {
    sink: &'a mut dyn RangeSink,
    bytes: u64,
}

impl RangeSink for Counted<'_> {
    fn spare(&mut self) -> &mut [u8] {
        self.sink.spare()
    }

    fn advance(&mut self, n: usize) {
        self.bytes += n as u64;
        self.sink.advance(n);
    }
}

/// The attempts of one request.
struct Attempts {
    policy: Policy,
    backoff: ExponentialBackoff,
    deadline: Instant,
    /// All begun so far, for messages.
    total: usize,
    /// Failures since the last progress; these are what is limited.
    failed: u32,
    last: Option<Error>,
}

impl Attempts {
    fn start(policy: Policy) -> Self {
        let retries = u32::try_from(policy.retries).unwrap_or(u32::MAX);
        let backoff = ExponentialBackoff::builder()
            .retry_bounds(FIRST_DELAY, LONGEST_DELAY)
            .jitter(Jitter::Full)
            .base(2)
            .build_with_max_retries(retries);
        Self { policy, backoff, deadline: Instant::now() + policy.request_timeout, total: 0, failed: 0, last: None }
    }

    /// One attempt of a request with a small answer.
    async fn bounded<T>(&mut self, op: Op, key: &Key, attempt: impl Future<Output = Result<T>>) -> Result<T> {
        self.total += 1;
        let attempt_end = Instant::now() + self.policy.attempt_timeout;
        match timeout_at(attempt_end.min(self.deadline), attempt).await {
            Ok(result) => result,
            Err(_) if attempt_end < self.deadline => {
                Err(Error::new(ErrorKind::Timeout, op, key, format!("no answer for {:?}", self.policy.attempt_timeout)))
            }
            Err(_) => Err(self.out_of_time(op, key)),
        }
    }

    /// Bytes arrived: the store is alive, failures are counted from here.
    fn on_progress(&mut self) {
        self.failed = 0;
    }

    /// Waits until the next attempt, or gives the error back when there is none.
    async fn pause_after(&mut self, error: Error, metrics: &Metrics) -> Result<()> {
        if error.kind == ErrorKind::Throttled {
            metrics.throttled.add(1);
        }
        if !error.kind.is_retryable() {
            return Err(error);
        }
        let now = Instant::now();
        if now >= self.deadline {
            // `out_of_time` already told of the attempts before.
            return Err(error);
        }
        let decision = self.backoff.should_retry(SystemTime::now(), self.failed);
        let RetryDecision::Retry { execute_after } = decision else {
            return Err(match self.total {
                1 => error,
                n => Error { message: format!("{}, given up after {n} attempts", error.message), ..error },
            });
        };
        self.failed += 1;
        // The policy speaks in wall-clock time; only the distance is of interest.
        let delay = execute_after.duration_since(SystemTime::now()).unwrap_or_default();
        debug!(%error, attempt = self.total, ?delay, "request failed, trying again");
        let (op, key) = (error.op, error.key.clone());
        self.last = Some(error);
        if now + delay >= self.deadline {
            return Err(self.out_of_time(op, &key));
        }
        sleep(delay).await;
        metrics.retries.add(1);
        Ok(())
    }

    fn out_of_time(&self, op: Op, key: &Key) -> Error {
        let timeout = self.policy.request_timeout;
        let Some(last) = &self.last else {
            return Error::new(ErrorKind::Timeout, op, key, format!("not done within {timeout:?}"));
        };
        // The facts of the last answer stay: its status and request id are what its support will ask for.
        let message = format!("not done within {timeout:?} in {} attempts, last: {}", self.total, last.message);
        Error { kind: ErrorKind::Timeout, op, key: key.clone(), message, ..last.clone() }
    }
}

#[cfg(test)]
mod tests;
