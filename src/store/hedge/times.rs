//! How long GETs take lately, and how many extra ones are still allowed. Pure but for the instants that it is given. Invariant:
//! what is said of a hundredth of the GETs comes from enough of them, and a few slow ones by chance do not decide it.

use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

/// One request in so many may be an extra one.
pub(super) const ONE_IN: u64 = 50;

/// Fewer GETs of a size say nothing of their hundredth.
const TELLING_GETS: u64 = 16;

/// GETs after which the older half of the observations is forgotten.
const GENERATION: u64 = 2000;

/// The percentile is looked up again after so many GETs.
const LOOK_EVERY: u64 = 16;

/// How long GETs of about one size take.
#[derive(Debug, Default)]
pub(super) struct Class {
    pub first: Times,
    pub whole: Times,
}

/// How long something took lately, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Times {
    before: Option<Histogram<u32>>,
    now: Option<Histogram<u32>>,
    seen: u64,
    /// What 99 of 100 take, as far as it is known (see [`least_p99`]).
    pub p99: Option<Duration>,
}

/// What extra requests are still allowed.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    pub gets: u64,
    extra: u64,
    pub quiet_until: Option<Instant>,
}

impl Times {
    pub fn record(&mut self, time: Duration) {
        // Two digits of any time below a minute: 10 KiB.
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 2).expect("the bounds are valid");
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.now.get_or_insert_with(histogram).saturating_record(micros);
        self.seen += 1;
        if self.seen.is_multiple_of(GENERATION / 2) {
            self.before = self.now.take();
        }
        if self.seen >= TELLING_GETS && self.seen.is_multiple_of(LOOK_EVERY) {
            let mut all = self.before.clone().unwrap_or_else(histogram);
            if let Some(now) = &self.now {
                all.add(now).expect("both have the same bounds");
            }
            self.p99 = Some(Duration::from_micros(least_p99(&all)));
        }
    }
}

/// The least that the 99th percentile may be, two standard deviations of its rank below where it seems to be. The slowest
/// of 64 GETs is their 99th percentile, and were it the delay before an extra request, then one slow GET among the first
/// would have all later ones waited for as long. Taking it too low costs requests that the allowance bounds.
fn least_p99(times: &Histogram<u32>) -> u64 {
    let gets = times.len() as f64;
    let slower = gets / 100.0;
    let left_out = (slower + 2.0 * slower.sqrt()).ceil();
    // Half a rank keeps the product that the histogram rounds up on this side of the next one.
    times.value_at_quantile((gets - left_out - 0.5) / gets)
}

impl Allowance {
    pub fn take(&mut self, now: Instant) -> bool {
        let quiet = self.quiet_until.is_some_and(|until| now < until);
        let allowed = !quiet && (self.extra + 1) * ONE_IN <= self.gets;
        self.extra += u64::from(allowed);
        allowed
    }
}
