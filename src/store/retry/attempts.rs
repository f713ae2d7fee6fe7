//! The attempts of one request: how long each may take, whether another one follows and after which delay. It sends nothing.
//! Invariant: no attempt begins behind the deadline.
//!
//! The delays come from retry-policies because its `Jitter::Full` is what the name says, uniform in 0..delay; backon
//! adds its jitter on top of the delay (delay..2 x delay), which keeps the clients of a burst together.

use std::time::{Duration, SystemTime};

use retry_policies::policies::ExponentialBackoff;
use retry_policies::{Jitter, RetryDecision, RetryPolicy};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::Policy;
use crate::metrics::Metrics;
use crate::store::{Error, ErrorKind, Key, Op, Result};

/// The first delay is up to this: about the round trip that failed.
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// Delays grow up to this: a store that recovers is noticed within it.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// A body that comes or is sent more slowly than this, in bytes per second and all attempts together, is given up.
const SLOWEST: u64 = 128 << 10;

/// How much longer than others a copy or the end of an upload may take: 5 GiB inside the store are not moved in a minute.
const LONG: u32 = 10;

/// How long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Its question and answer are small.
    Short,
    /// It sends, or brings, this many bytes. That they move is watched where they leave, or arrive.
    Body(u64),
    /// The store works for a while before it answers.
    Long,
}

/// When those attempts began and ended of which it is not known what the store did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Doubt {
    pub from: SystemTime,
    pub to: SystemTime,
}

impl Doubt {
    /// The time of both.
    pub fn and(self, before: Option<Self>) -> Self {
        Self { from: before.map_or(self.from, |before| before.from.min(self.from)), ..self }
    }
}

/// Whether a request that failed so may have been carried out: it was sent, and no clear answer came.
pub(super) fn is_ambiguous(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Malformed)
}

/// The attempts of one request.
pub(super) struct Attempts {
    backoff: ExponentialBackoff,
    deadline: Instant,
    /// From the first attempt to the deadline.
    whole: Duration,
    /// Longest attempt; none when something else notices that it stands still.
    attempt: Option<Duration>,
    /// All begun so far, for messages.
    total: usize,
    /// Failures since the last progress; these are what is limited.
    failed: u32,
    last: Option<Error>,
}

impl Attempts {
    pub fn start(policy: Policy, limit: Limit) -> Self {
        let retries = u32::try_from(policy.retries).unwrap_or(u32::MAX);
        let backoff = ExponentialBackoff::builder()
            .retry_bounds(FIRST_DELAY, LONGEST_DELAY)
            .jitter(Jitter::Full)
            .base(2)
            .build_with_max_retries(retries);
        let (whole, attempt) = match limit {
            Limit::Short => (policy.request_timeout, Some(policy.attempt_timeout)),
            Limit::Body(bytes) => (policy.request_timeout + Duration::from_secs(bytes / SLOWEST), None),
            Limit::Long => (policy.request_timeout * LONG, None),
        };
        Self { backoff, deadline: Instant::now() + whole, whole, attempt, total: 0, failed: 0, last: None }
    }

    /// One attempt.
    pub async fn bounded<T>(&mut self, op: Op, key: &Key, attempt: impl Future<Output = Result<T>>) -> Result<T> {
        self.total += 1;
        let bound = self.attempt.map(|longest| (longest, Instant::now() + longest)).filter(|&(_, end)| end < self.deadline);
        match timeout_at(bound.map_or(self.deadline, |(_, end)| end), attempt).await {
            Ok(result) => result,
            Err(_) => Err(match bound {
                Some((longest, _)) => Error::new(ErrorKind::Timeout, op, key, format!("no answer for {longest:?}")),
                None => self.out_of_time(op, key),
            }),
        }
    }

    /// Bytes arrived: the store is alive, failures are counted from here.
    pub fn on_progress(&mut self) {
        self.failed = 0;
    }

    /// Waits until the next attempt, or gives the error back when there is none.
    pub async fn pause_after(&mut self, error: Error, metrics: &Metrics) -> Result<()> {
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
        let is_same_again = error.kind == ErrorKind::Malformed
            && self.last.as_ref().is_some_and(|last| (last.kind, &last.message) == (error.kind, &error.message));
        let execute_after = match decision {
            RetryDecision::Retry { execute_after } if !is_same_again => execute_after,
            _ => {
                return Err(match self.total {
                    1 => error,
                    n => Error { message: format!("{}, given up after {n} attempts", error.message), ..error },
                });
            }
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
        let timeout = self.whole;
        let Some(last) = &self.last else {
            return Error::new(ErrorKind::Timeout, op, key, format!("not done within {timeout:?}"));
        };
        // The facts of the last answer stay: its status and request id are what its support will ask for.
        let message = format!("not done within {timeout:?} in {} attempts, last: {}", self.total, last.message);
        Error { kind: ErrorKind::Timeout, op, key: key.clone(), message, ..last.clone() }
    }
}
