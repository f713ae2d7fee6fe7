//! What a metric says when it is looked at, on its way to people and programs. Pure. Invariant: what one end wrote the other reads as the
//! same, whatever names and labels it has.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::histogram::BOUNDS;

const NANOSECONDS: f64 = 1e9;

/// The value of a metric. In JSON a number, an object of a spread, or an object of values by the values of a label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reading {
    Number(u64),
    Spread(Spread),
    By(BTreeMap<String, Self>),
}

/// How often something took how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub count: u64,
    pub sum_seconds: f64,
    pub p50_seconds: f64,
    pub p90_seconds: f64,
    pub p99_seconds: f64,
    pub p999_seconds: f64,
    /// Pairs of an upper bound in nanoseconds and how many were in that bucket; those that hold nothing are left out. What has no bound
    /// has the largest number there is.
    pub bucket_nanoseconds: Vec<(u64, u64)>,
}

impl Spread {
    /// The spread of `counts`, one for each of [`BOUNDS`] and one more.
    pub(super) fn new(sum_seconds: f64, counts: Vec<u64>) -> Self {
        let bounds = BOUNDS.iter().copied().chain([u64::MAX]);
        Self::of(sum_seconds, bounds.zip(counts).filter(|(_, count)| *count > 0).collect())
    }

    fn of(sum_seconds: f64, bucket_nanoseconds: Vec<(u64, u64)>) -> Self {
        let count = bucket_nanoseconds.iter().map(|(_, count)| count).sum();
        let at = |part| percentile(&bucket_nanoseconds, count, part);
        let [p50_seconds, p90_seconds, p99_seconds, p999_seconds] = [0.5, 0.9, 0.99, 0.999].map(at);
        Self { count, sum_seconds, p50_seconds, p90_seconds, p99_seconds, p999_seconds, bucket_nanoseconds }
    }

    /// How many were in the bucket with this bound.
    fn within(&self, bound: u64) -> u64 {
        self.bucket_nanoseconds.iter().find(|(known, _)| *known == bound).map_or(0, |(_, count)| *count)
    }

    /// What came after `before`, an earlier look at the same.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let added = self.bucket_nanoseconds.iter().map(|&(bound, count)| (bound, count.saturating_sub(before.within(bound))));
        Self::of((self.sum_seconds - before.sum_seconds).max(0.0), added.filter(|(_, count)| *count > 0).collect())
    }

    /// Those of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let bounds: BTreeSet<u64> =
            [self, other].into_iter().flat_map(|spread| &spread.bucket_nanoseconds).map(|(bound, _)| *bound).collect();
        let both = bounds.into_iter().map(|bound| (bound, self.within(bound) + other.within(bound)));
        Self::of(self.sum_seconds + other.sum_seconds, both.collect())
    }
}

/// The time that `part` of all took at the most, in seconds, as far as the buckets tell: those of one are taken to lie in it side by side.
fn percentile(buckets: &[(u64, u64)], count: u64, part: f64) -> f64 {
    let wanted = part * count as f64;
    let mut before = 0.0;
    for &(bound, count) in buckets {
        let here = count as f64;
        if before + here >= wanted && here > 0.0 {
            let index = BOUNDS.partition_point(|&known| known < bound);
            let lower = index.checked_sub(1).map_or(0, |lower| BOUNDS[lower]);
            // Of what lies beyond the last bound only that is known.
            let width = if index == BOUNDS.len() { 0.0 } else { (bound - lower) as f64 };
            return (lower as f64 + width * (wanted - before) / here) / NANOSECONDS;
        }
        before += here;
    }
    0.0
}

impl Reading {
    /// The number, when it is one; of values by labels their sum.
    pub fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Spread(spread) => spread.count,
            Self::By(values) => values.values().map(Self::number).sum(),
        }
    }

    /// The spread; of values by labels that of all of them.
    pub fn spread(&self) -> Spread {
        match self {
            Self::Number(_) => Spread::default(),
            Self::Spread(spread) => spread.clone(),
            Self::By(values) => values.values().fold(Spread::default(), |all, value| all.and(&value.spread())),
        }
    }

    /// The values by themselves, each with the values of its labels.
    pub fn flat(&self) -> Vec<(Vec<&str>, &Self)> {
        match self {
            Self::By(values) => {
                let deeper = values.iter().flat_map(|(label, value)| {
                    value.flat().into_iter().map(move |(labels, value)| ([vec![label.as_str()], labels].concat(), value))
                });
                deeper.collect()
            }
            value => vec![(Vec::new(), value)],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Histogram;
    use super::*;

    fn spread(milliseconds: impl IntoIterator<Item = u64>) -> Spread {
        let histogram = Histogram::<1>::default();
        milliseconds.into_iter().for_each(|ms| histogram.record(Duration::from_millis(ms)));
        histogram.spread()
    }

    #[test]
    fn percentiles_lie_in_the_bucket_of_the_sorted_times() {
        let mut times: Vec<u64> = (0..10_000_u64).map(|n| 1 + n * n % 7919).collect();
        let spread = spread(times.iter().copied());
        times.sort_unstable();
        let told = [spread.p50_seconds, spread.p90_seconds, spread.p99_seconds, spread.p999_seconds];
        for (index, told) in [5_000, 9_000, 9_900, 9_990].into_iter().zip(told) {
            let exact = times[index] as f64 / 1000.0;
            assert!(told <= exact * 1.5 && exact <= told * 1.5, "{index}: {told} for {exact}");
        }
        assert_eq!(self::spread([]).p99_seconds, 0.0);
    }

    #[test]
    fn what_came_between_two_looks_is_their_difference() {
        let (before, after) = (spread([1; 90]), spread([1; 90].into_iter().chain([1000; 10])));
        let between = after.since(&before);
        assert_eq!((between.count, between.bucket_nanoseconds.len()), (10, 1));
        assert!((between.sum_seconds - 10.0).abs() < 1e-9 && between.p50_seconds > 0.7 && between.p50_seconds <= 1.0, "{between:?}");
        assert_eq!(before.and(&between).count, 100);
        assert_eq!(before.since(&after).count, 0, "another daemon under the same number");
    }

    #[test]
    fn what_takes_for_ever_is_told_as_longer_than_the_last_bound() {
        let spread = spread([1_000_000]);
        assert_eq!((spread.count, spread.p50_seconds), (1, 100.0));
    }

    #[test]
    fn a_reading_is_read_as_it_was_written() {
        let by = |entries: [(&str, Reading); 2]| Reading::By(entries.map(|(label, value)| (label.to_owned(), value)).into());
        let reading =
            by([("get", by([("2xx", Reading::Number(3)), ("none", Reading::Number(1))])), ("put", Reading::Spread(spread([5, 7])))]);
        let text = serde_json::to_string(&reading).unwrap();
        let read: Reading = serde_json::from_str(&text).unwrap();
        // The last digit of a fraction may be lost on the way.
        assert_eq!(read.flat()[1], reading.flat()[1], "{text}");
        assert_eq!(read.spread().bucket_nanoseconds, reading.spread().bucket_nanoseconds, "{text}");
        assert_eq!((read.number(), read.spread().count), (6, 2));
        let flat: Vec<_> = reading.flat().into_iter().map(|(labels, value)| (labels.join(" "), value.number())).collect();
        assert_eq!(flat, [("get 2xx".to_owned(), 3), ("get none".to_owned(), 1), ("put".to_owned(), 2)]);
    }
}
