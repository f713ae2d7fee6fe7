//! How long something took, how often, in fixed buckets of atomics: recording takes no lock, and any two spreads of the same process can
//! be subtracted. It keeps no single time. Invariant: the bounds are the same for everything and never change while the process lives.
//!
//! Why not hdrhistogram here: its recorders hand over their counts through a queue that somebody has to drain before a look, and
//! Prometheus wants fixed bounds anyway. Six buckets a decade: a percentile is told to within a half of it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::counter::line;
use super::{Metric, Reading, Spread, Type};

/// Parts of a decade: each is at most half as long again as the one before.
const MANTISSAS: [u64; 6] = [10, 15, 20, 30, 50, 70];

/// From 1 us, which a read from memory takes at the least, up to 10 s and a bit.
const DECADES: usize = 8;

/// How many bounds there are.
const LEN: usize = DECADES * MANTISSAS.len() + 1;

/// Upper bounds of the buckets, in nanoseconds, both ends of a bucket counted to the shorter one. What is longer is in one more bucket.
pub const BOUNDS: [u64; LEN] = bounds();

const fn bounds() -> [u64; LEN] {
    let (mut bounds, mut index, mut decade) = ([0; LEN], 0, 100);
    while index < LEN {
        bounds[index] = MANTISSAS[index % MANTISSAS.len()] * decade;
        index += 1;
        if index.is_multiple_of(MANTISSAS.len()) {
            decade *= 10;
        }
    }
    bounds
}

/// Counts of times. With more than one line threads record side by side.
#[derive(Debug)]
pub struct Histogram<const LINES: usize>([Line; LINES]);

#[derive(Debug)]
#[repr(align(128))]
struct Line {
    buckets: [AtomicU64; LEN + 1],
    nanoseconds: AtomicU64,
}

impl Default for Line {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| AtomicU64::new(0)), nanoseconds: AtomicU64::new(0) }
    }
}

impl<const LINES: usize> Default for Histogram<LINES> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Line::default()))
    }
}

impl<const LINES: usize> Histogram<LINES> {
    /// Something took `time`.
    pub fn record(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let line = if LINES == 1 { &self.0[0] } else { &self.0[line() % LINES] };
        line.buckets[bucket(nanoseconds)].fetch_add(1, Relaxed);
        line.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    /// All times so far.
    pub fn spread(&self) -> Spread {
        let mut counts = vec![0; LEN + 1];
        for line in &self.0 {
            for (count, bucket) in counts.iter_mut().zip(&line.buckets) {
                *count += bucket.load(Relaxed);
            }
        }
        let nanoseconds: u64 = self.0.iter().map(|line| line.nanoseconds.load(Relaxed)).sum();
        Spread::new(Duration::from_nanos(nanoseconds).as_secs_f64(), counts)
    }
}

impl<const LINES: usize> Metric for Histogram<LINES> {
    const TYPE: Type = Type::Histogram;

    fn read(&self) -> Reading {
        Reading::Spread(self.spread())
    }
}

fn bucket(nanoseconds: u64) -> usize {
    BOUNDS.partition_point(|&bound| bound < nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_round_and_rise() {
        assert_eq!(BOUNDS[..7], [1_000, 1_500, 2_000, 3_000, 5_000, 7_000, 10_000]);
        assert_eq!(BOUNDS.last(), Some(&100_000_000_000));
        assert!(BOUNDS.is_sorted());
    }

    #[test]
    fn a_time_is_in_the_first_bucket_that_holds_it() {
        for (nanoseconds, index) in [(0, 0), (1_000, 0), (1_001, 1), (1_500, 1), (100_000_000_000, LEN - 1), (u64::MAX, LEN)] {
            assert_eq!(bucket(nanoseconds), index, "{nanoseconds}");
        }
    }

    #[test]
    fn threads_that_record_together_lose_nothing() {
        let (one, many) = (Histogram::<1>::default(), Histogram::<16>::default());
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    for n in 1..=1000 {
                        one.record(Duration::from_micros(n));
                        many.record(Duration::from_micros(n));
                    }
                });
            }
        });
        for spread in [one.spread(), many.spread()] {
            assert_eq!(spread.count, 32_000);
            assert!((spread.sum_seconds - 32.0 * 0.500_5).abs() < 1e-9, "{}", spread.sum_seconds);
        }
    }
}
