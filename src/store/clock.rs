//! The clock of a store, learnt from the `Date` header of its responses (RFC 9110, section 6.6.1). The dates of objects and uploads are compared with
//! it, never with the clock of this machine, which may be off by any amount. Invariant: the time that is returned contains the store's own, as far as
//! both clocks have run at the same speed since the last response.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Dates in headers and listings are whole seconds, rounded down.
pub(super) const DATE_RESOLUTION: Duration = Duration::from_secs(1);

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

/// The clock of one store.
#[derive(Debug, Default)]
pub(super) struct StoreClock(Mutex<Option<Reading>>);

impl StoreClock {
    /// Reads the date of a response to a request that was sent at `sent`.
    pub fn record(&self, headers: &HeaderMap, sent: Instant, received: Instant) {
        let date = headers.get(header::DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
        if let Some(date) = date {
            *self.0.lock() = Some(Reading { date, sent, received });
        }
    }

    /// The store's time at `at`; `None` before the first response with a date.
    pub fn at(&self, at: Instant) -> Option<StoreTime> {
        let Reading { date, sent, received } = (*self.0.lock())?;
        Some(StoreTime { earliest: shifted(date, received, at), latest: shifted(date + DATE_RESOLUTION, sent, at) })
    }
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

    #[test]
    fn a_date_is_compared_with_the_second_that_it_stands_for() {
        let time = StoreTime { earliest: at(10, 500), latest: at(11, 0) };
        let dates = [9, 10, 11, 12].map(|second| at(second, 0));
        assert_eq!(dates.map(|date| time.may_be_before(date)), [false, true, true, true]);
        assert_eq!(dates.map(|date| time.may_be_after(date)), [true, true, true, false]);
    }
}
