//! How long something took each time, and which part of the times lies below what. Pure. Invariant: percentiles are within a thousandth of
//! the sample that they stand for; mean and maximum are exact.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Digits that are kept: 1.234 ms and 1.235 ms are two times.
const DIGITS: u8 = 3;

/// A hundred days, beyond which the histogram would grow for nothing.
const LARGEST: u64 = 1 << 53;

/// Times of one kind.
#[derive(Clone, Debug)]
pub struct Times {
    nanoseconds: Histogram<u64>,
    total: Duration,
    longest: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let nanoseconds = Histogram::new(DIGITS).expect("three digits are valid");
        Self { nanoseconds, total: Duration::ZERO, longest: Duration::ZERO }
    }
}

impl Times {
    /// It took so long once more.
    pub fn record(&mut self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(LARGEST);
        self.nanoseconds.record(nanoseconds).expect("it grows with what is recorded");
        self.total += time;
        self.longest = self.longest.max(time);
    }

    /// Takes those of another one over.
    pub fn add(&mut self, other: &Self) {
        self.nanoseconds.add(&other.nanoseconds).expect("it grows with what is added");
        self.total += other.total;
        self.longest = self.longest.max(other.longest);
    }

    /// How often.
    pub fn count(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// The time that a part of all, such as 0.99, did not exceed; none when there is none.
    pub fn at(&self, part: f64) -> Option<Duration> {
        // The histogram answers with the end of its bucket, which may lie beyond what was ever recorded.
        (self.count() > 0).then(|| Duration::from_nanos(self.nanoseconds.value_at_quantile(part)).min(self.longest))
    }

    /// The mean of all.
    pub fn mean(&self) -> Option<Duration> {
        let count = self.count();
        (count > 0).then(|| Duration::from_secs_f64(self.total.as_secs_f64() / count as f64))
    }

    /// The longest.
    pub fn longest(&self) -> Option<Duration> {
        (self.count() > 0).then_some(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARTS: [f64; 7] = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0];

    /// The sample that the part stands for.
    fn raw(sorted: &[u64], part: f64) -> u64 {
        let rank = (1..sorted.len()).find(|&rank| rank as f64 >= part * sorted.len() as f64);
        sorted[rank.unwrap_or(sorted.len()) - 1]
    }

    fn times(samples: &[u64]) -> Times {
        let mut times = Times::default();
        samples.iter().for_each(|&ns| times.record(Duration::from_nanos(ns)));
        times
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_raw_samples(samples in prop::collection::vec(1_u64..100_000_000_000, 1..2000)) {
            let times = times(&samples);
            let mut sorted = samples.clone();
            sorted.sort_unstable();
            for part in PARTS {
                let (found, raw) = (times.at(part).unwrap().as_nanos() as f64, raw(&sorted, part) as f64);
                prop_assert!((found - raw).abs() <= raw / 1000.0, "{part}: {found} is not {raw}");
            }
            let exact = samples.iter().sum::<u64>() as f64 / samples.len() as f64 / 1e9;
            prop_assert!((times.mean().unwrap().as_secs_f64() - exact).abs() <= exact * 1e-6 + 1e-9);
            prop_assert_eq!(times.longest().unwrap().as_nanos() as u64, *sorted.last().unwrap());
        }
    }

    #[test]
    fn a_long_tail_shows_where_it_begins() {
        // One in a thousand is late.
        let samples: Vec<u64> = (0..10_000).map(|i| if i % 1000 == 999 { 1_000_000_000 } else { 1_000_000 + i }).collect();
        let times = times(&samples);
        let ms = |part| times.at(part).unwrap().as_millis();
        assert_eq!([ms(0.5), ms(0.99), ms(0.999), ms(0.9991)], [1, 1, 1, 1000]);
    }

    #[test]
    fn what_was_recorded_apart_adds_up() {
        let (mut first, second) = (times(&[1_000, 2_000]), times(&[5_000_000_000]));
        first.add(&second);
        assert_eq!((first.count(), first.longest()), (3, Some(Duration::from_secs(5))));
        assert_eq!(first.mean(), Some(Duration::from_secs_f64(5.000_003 / 3.0)));
    }

    #[test]
    fn no_samples_have_no_percentile() {
        let none = Times::default();
        assert_eq!((none.at(0.5), none.mean(), none.longest()), (None, None, None));
    }
}
