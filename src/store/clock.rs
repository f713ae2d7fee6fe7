//! The clock of a store, learnt from the `Date` header of its responses (RFC 9110, section 6.6.1). The dates of objects and uploads are compared with
//! it, never with the clock of this machine, which may be off by any amount. Requests are signed with this machine's time until the store refuses it,
//! and then with the store's. Invariant: the time that is returned contains the store's own, as far as
//! both clocks have run at the same speed since the last response.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::{Error, ErrorKind, Op};

/// Dates in headers and listings are whole seconds, rounded down.
pub(super) const DATE_RESOLUTION: Duration = Duration::from_secs(1);

/// Difference in seconds above which a refusal may be the clock's: stores accept 15 minutes, and their dates are exact to seconds.
const LEAST_SKEW: u64 = 60;

/// A moment by the clock of a store, as exactly as its responses show it: usually to a second and a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTime {
    pub earliest: SystemTime,
    pub latest: SystemTime,
}

impl StoreTime {
    /// Whether what has `date`, in whole seconds, may have happened at this moment or later.
    pub fn may_be_before(&self, date: SystemTime) -> bool {
        date + DATE_RESOLUTION > self.earliest
    }

    /// Whether what has `date` may have happened at this moment or before.
    pub(super) fn may_be_after(&self, date: SystemTime) -> bool {
        date <= self.latest
    }
}

/// What the last response has told.
#[derive(Clone, Copy, Debug)]
struct Reading {
    date: SystemTime,
    sent: Instant,
    received: Instant,
}

/// Seconds that are added to this machine's time in signatures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Correction(i64);

impl Correction {
    pub fn apply(self, time: SystemTime) -> SystemTime {
        let seconds = Duration::from_secs(self.0.unsigned_abs());
        if self.0 < 0 { time - seconds } else { time + seconds }
    }

    /// The correction that makes `own` the same as `other`, to a second.
    fn between(own: SystemTime, other: SystemTime) -> Self {
        let seconds = |gap: Duration| i64::try_from(gap.as_secs()).unwrap_or(i64::MAX);
        match other.duration_since(own) {
            Ok(ahead) => Self(seconds(ahead)),
            Err(behind) => Self(-seconds(behind.duration())),
        }
    }
}

/// The clock of one store.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    last: Mutex<Option<Reading>>,
    /// Seconds of the [`Correction`].
    correction: AtomicI64,
}

impl StoreClock {
    /// Reads the date of a response to a request that was sent at `sent`.
    pub fn record(&self, headers: &HeaderMap, sent: Instant, received: Instant) {
        let date = headers.get(header::DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
        if let Some(date) = date {
            *self.last.lock() = Some(Reading { date, sent, received });
        }
    }

    /// The store's time at `at`; `None` before the first response with a date.
    pub fn at(&self, at: Instant) -> Option<StoreTime> {
        let Reading { date, sent, received } = (*self.last.lock())?;
        Some(StoreTime { earliest: shifted(date, received, at), latest: shifted(date + DATE_RESOLUTION, sent, at) })
    }

    /// The correction of signatures that are made now.
    pub fn correction(&self) -> Correction {
        Correction(self.correction.load(Relaxed))
    }

    /// Takes over the store's time when `error`, whose date has been recorded, refuses that of this machine. Returns the correction from now on
    /// when it is another one than `used`, which the refused request was signed with, or an earlier one: the request may succeed with it.
    pub fn correct(&self, error: &Error, used: Correction, own: SystemTime, at: Instant) -> Option<Correction> {
        if !may_be_skewed(error) {
            return None;
        }
        let corrected = Correction::between(own, self.at(at)?.earliest);
        if corrected.0.abs_diff(self.correction().0) > LEAST_SKEW {
            self.correction.store(corrected.0, Relaxed);
            let (seconds, side) = (corrected.0.unsigned_abs(), if corrected.0 > 0 { "behind" } else { "ahead of" });
            warn!("the clock of this machine is {seconds} s {side} the store's: requests are signed with the store's time; set the clock");
        }
        Some(self.correction()).filter(|now| *now != used)
    }
}

/// Whether a refusal may be about the time in the signature. The response to a HEAD has no body that says so.
fn may_be_skewed(error: &Error) -> bool {
    let is_silent = error.op == Op::Head && error.kind == ErrorKind::AccessDenied && error.code.is_none();
    // Both vendors have this code.
    is_silent || error.code.as_deref() == Some("RequestTimeTooSkewed")
}

/// The time at `at` of a clock that shows `date` at `shown`.
pub(super) fn shifted(date: SystemTime, shown: Instant, at: Instant) -> SystemTime {
    if at >= shown { date + (at - shown) } else { date - (shown - at) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn at(seconds: u64, millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 + seconds) + Duration::from_millis(millis)
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_the_store_lies_between_request_and_response() {
        let clock = StoreClock::default();
        let sent = Instant::now();
        assert_eq!(clock.at(sent), None);
        let received = sent + Duration::from_millis(200);
        clock.record(&HeaderMap::new(), sent, received);
        assert_eq!(clock.at(sent), None, "not every response has a date");
        clock.record(&HeaderMap::from_iter([(header::DATE, HeaderValue::from_static(DATE))]), sent, received);
        // The date was made between the two, and stands for the second that it begins.
        assert_eq!(clock.at(received), Some(StoreTime { earliest: at(0, 0), latest: at(1, 200) }));
        let later = received + Duration::from_secs(60);
        assert_eq!(clock.at(later), Some(StoreTime { earliest: at(60, 0), latest: at(61, 200) }));
        let before = sent - Duration::from_secs(60);
        assert_eq!(clock.at(before).expect("it has a date").latest, at(0, 0) - Duration::from_secs(59));
    }

    fn skewed(op: Op, code: Option<&str>) -> Error {
        Error { code: code.map(str::to_owned), status: Some(403), ..Error::new(ErrorKind::AccessDenied, op, &"k".into(), "") }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_time_is_corrected_for_every_request_that_was_signed_with_it() {
        let (now, own, none) = (Instant::now(), at(0, 0) - Duration::from_secs(1200), Correction::default());
        let refusals = [skewed(Op::Get, Some("RequestTimeTooSkewed")), skewed(Op::Head, None)];
        for error in refusals {
            let clock = StoreClock::default();
            assert_eq!(clock.correct(&error, none, own, now), None, "without a date nothing is known");
            clock.record(&HeaderMap::from_iter([(header::DATE, HeaderValue::from_static(DATE))]), now, now);
            // Two requests were under way.
            assert_eq!(clock.correct(&error, none, own, now), Some(Correction(1200)));
            assert_eq!(clock.correct(&error, none, own + Duration::from_secs(2), now), Some(Correction(1200)));
            assert_eq!(clock.correct(&error, Correction(1200), own, now), None, "the time was not the reason");
            assert_eq!(Correction(1200).apply(own), at(0, 0));
            // This machine's clock is set.
            assert_eq!(clock.correct(&error, Correction(1200), at(0, 0), now), Some(none));
        }
        let clock = StoreClock::default();
        clock.record(&HeaderMap::from_iter([(header::DATE, HeaderValue::from_static(DATE))]), now, now);
        for other in [skewed(Op::Head, Some("AccessDenied")), skewed(Op::Get, None)] {
            assert_eq!(clock.correct(&other, none, own, now), None);
        }
        let ahead = at(0, 0) + Duration::from_secs(1200);
        let correction = clock.correct(&skewed(Op::Head, None), none, ahead, now).unwrap();
        assert_eq!(correction.apply(ahead), at(0, 0));
    }

    #[test]
    fn a_date_is_compared_with_the_second_that_it_stands_for() {
        let time = StoreTime { earliest: at(10, 500), latest: at(11, 0) };
        let dates = [9, 10, 11, 12].map(|second| at(second, 0));
        assert_eq!(dates.map(|date| time.may_be_before(date)), [false, true, true, true]);
        assert_eq!(dates.map(|date| time.may_be_after(date)), [true, true, true, false]);
    }
}
