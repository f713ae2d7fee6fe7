//! The attempts of one request: how long each may take, whether another one follows and after which delay. It sends nothing.
//! Invariant: no attempt begins behind the deadline.
//!
//! The delays come from retry-policies because its `Jitter::Full` is what the name says, uniform in 0..delay; backon
//! adds its jitter on top of the delay (delay..2 x delay), which keeps the clients of a burst together.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use retry_policies::policies::ExponentialBackoff;
use retry_policies::{Jitter, RetryDecision, RetryPolicy};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::Policy;
use super::load::Load;
use crate::metrics::Metrics;
use crate::store::{Error, ErrorKind, Key, Op, Result, request_log};

/// The first delay is up to this: about the round trip that failed.
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// Delays grow up to this: a store that recovers is noticed within it.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// The longest delay that a store may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(30);

/// A body that is sent more slowly than this, in bytes per second and all attempts together, is given up. (Sixty-four parts at a time over
/// 10 Mbit/s have more.)
const SLOWEST: u64 = 16 << 10;

/// Bytes of a body that restart its request timeout: one byte a second is not progress.
const LEAST_PROGRESS: u64 = 64 << 10;

/// How much longer than others a copy or the end of an upload may take: 5 GiB inside the store are not moved in a minute.
const LONG: u32 = 10;

/// How long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Its question and answer are small.
    Short,
    /// It sends this many bytes. That they move is watched where they leave.
    Sent(u64),
    /// It brings bytes. That they move is watched where they arrive, from the first one on.
    Brought,
    /// The store works for a while before it answers.
    Long,
}

/// When those attempts began and ended of which it is not known what the store did, and how many they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Doubt {
    pub from: Instant,
    pub to: Instant,
    pub attempts: usize,
}

impl Doubt {
    /// Both together.
    pub fn and(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        Self { from: self.from.min(other.from), to: self.to.max(other.to), attempts: self.attempts + other.attempts }
    }
}

/// Whether a request that failed so may have been carried out: it was sent, and no clear answer came.
pub(super) fn is_ambiguous(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Malformed)
}

/// The attempts of one request.
pub(super) struct Attempts<'l> {
    load: &'l Load,
    backoff: ExponentialBackoff,
    retries: u32,
    deadline: Instant,
    /// From the first attempt to the deadline, or from the last progress.
    whole: Duration,
    /// Bytes that had arrived then.
    mark: u64,
    limit: Limit,
    /// Longest wait of the first attempt for its response.
    patience: Duration,
    /// Attempts that timed out without a response; each adds one `patience` to the wait of the next.
    unanswered: u32,
    /// All begun so far, for messages.
    total: usize,
    /// Failures since the last progress: the delays grow with them.
    failed: u32,
    /// Those of them that are limited.
    counted: u32,
    last: Option<Error>,
}

impl<'l> Attempts<'l> {
    pub fn start(policy: Policy, limit: Limit, load: &'l Load) -> Self {
        let backoff = ExponentialBackoff::builder()
            .retry_bounds(FIRST_DELAY, LONGEST_DELAY)
            .jitter(Jitter::Full)
            .base(2)
            .build_with_max_retries(u32::MAX);
        let whole = match limit {
            Limit::Short | Limit::Brought => policy.request_timeout,
            Limit::Sent(bytes) => policy.request_timeout + Duration::from_secs(bytes / SLOWEST),
            Limit::Long => policy.request_timeout * LONG,
        };
        Self {
            load,
            backoff,
            retries: u32::try_from(policy.retries).unwrap_or(u32::MAX),
            deadline: Instant::now() + whole,
            whole,
            mark: 0,
            limit,
            patience: policy.attempt_timeout,
            unanswered: 0,
            total: 0,
            failed: 0,
            counted: 0,
            last: None,
        }
    }

    /// Runs one attempt. `arrived` returns the body bytes of all attempts so far.
    pub async fn bounded<T>(
        &mut self,
        op: Op,
        key: &Key,
        arrived: impl Fn() -> u64,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (load, before) = (self.load, arrived());
        let Ok(place) = timeout_at(self.deadline, load.enter()).await else { return Err(self.out_of_time(op, key)) };
        if self.total == 0 {
            load.on_first();
        }
        self.total += 1;
        let attempt = pin!(attempt);
        let attempt = request_log::numbered(self.total, attempt);
        let result = self.in_time(op, key, &arrived, attempt).await;
        place.on_end(&result);
        if arrived() > before {
            // The store is alive, failures are counted from here.
            place.on_answer();
            (self.failed, self.counted) = (0, 0);
        }
        self.on_progress(arrived());
        result
    }

    async fn in_time<T>(&mut self, op: Op, key: &Key, arrived: &impl Fn() -> u64, attempt: impl Future<Output = Result<T>>) -> Result<T> {
        let (mut attempt, before) = (pin!(attempt), arrived());
        // A store with a slow first byte would otherwise fail every attempt in the same way.
        let patience = self.patience * (self.unanswered + 1);
        let answered_by = Instant::now() + patience;
        if matches!(self.limit, Limit::Short | Limit::Brought) && answered_by < self.deadline {
            match timeout_at(answered_by, &mut attempt).await {
                Ok(result) => return result,
                Err(_) if arrived() > before => {}
                Err(_) => {
                    self.unanswered += 1;
                    return Err(Error::new(ErrorKind::Timeout, op, key, format!("no answer for {patience:?}")));
                }
            }
        }
        loop {
            match timeout_at(self.deadline, &mut attempt).await {
                Ok(result) => return result,
                Err(_) if self.on_progress(arrived()) => {}
                Err(_) => return Err(self.out_of_time(op, key)),
            }
        }
    }

    /// Restarts the deadline after [`LEAST_PROGRESS`] bytes. Returns whether it did.
    fn on_progress(&mut self, arrived: u64) -> bool {
        let is_progress = arrived - self.mark >= LEAST_PROGRESS;
        if is_progress {
            (self.mark, self.deadline) = (arrived, Instant::now() + self.whole);
        }
        is_progress
    }

    /// Waits until the next attempt, or gives the error back when there is none.
    pub async fn pause_after(&mut self, error: Error, metrics: &Metrics) -> Result<()> {
        if error.asks_to_slow_down() {
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
        // The messages need not be the same: that of an expired certificate contains the time.
        let is_same_again = error.is_persistent() && self.last.as_ref().is_some_and(Error::is_persistent);
        // Throttling ends, and so does the outage of an endpoint that had responded before: the deadline alone limits these.
        let is_passing = error.asks_to_slow_down() || (error.is_silence() && self.load.has_answered());
        let is_limited = !is_passing || self.retries == 0;
        if is_same_again || (is_limited && self.counted >= self.retries) {
            return Err(match self.total {
                1 => error,
                n => Error { message: format!("{}, given up after {n} attempts", error.message), ..error },
            });
        }
        let delay = Duration::from_secs(error.retry_after.unwrap_or_default().into()).min(LONGEST_ASKED) + self.delay();
        self.failed += 1;
        self.counted += u32::from(is_limited);
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

    /// From a failure to the next attempt.
    fn delay(&self) -> Duration {
        let failed = if self.load.may_repeat() { self.failed } else { u32::MAX - 1 };
        match self.backoff.should_retry(SystemTime::now(), failed) {
            // The policy speaks in wall-clock time; only the distance is of interest.
            RetryDecision::Retry { execute_after } => execute_after.duration_since(SystemTime::now()).unwrap_or_default(),
            RetryDecision::DoNotRetry => LONGEST_DELAY,
        }
    }

    fn out_of_time(&self, op: Op, key: &Key) -> Error {
        let timeout = self.whole;
        let Some(last) = &self.last else {
            return Error::new(ErrorKind::Timeout, op, key, format!("not done within {timeout:?}"));
        };
        // The facts of the last answer stay: its status and request id are what its support will ask for.
        let message = format!("not done within {timeout:?} in {} attempts, last: {}", self.total, last.message);
        Error { kind: ErrorKind::Timeout, op, key: key.clone(), message, ..last.clone() }
    }
}
