//! The units that benches speak in, one each for a thing, and how many decimals of it mean something. Pure. Invariant: the unit of a
//! figure here is the one in the names that it is used with.

use std::time::Duration;

use super::report::{Cell, Name};
use super::times::Times;

/// A rate of the network, in powers of ten as links are sold.
pub fn gbit(bytes_per_second: f64) -> Cell {
    Cell::number(bytes_per_second * 8.0 / 1e9, 3)
}

/// A rate of files and disks.
pub fn megabytes(bytes_per_second: f64) -> Cell {
    Cell::number(bytes_per_second / 1e6, 1)
}

/// How long the whole took.
pub fn seconds(time: Duration) -> Cell {
    Cell::number(time.as_secs_f64(), 3)
}

/// How long one of many took.
pub fn milliseconds(time: Option<Duration>) -> Cell {
    time.map_or(Cell::Unknown, |time| Cell::number(time.as_secs_f64() * 1e3, 3))
}

/// A part of a hundred.
pub fn percent(part: f64, whole: f64) -> Cell {
    Cell::number(100.0 * part / whole, 1)
}

/// The names of what [`tail`] gives.
pub const TAIL: [Name; 5] = [
    Name { shown: "p50 ms", key: "p50_milliseconds" },
    Name { shown: "p90 ms", key: "p90_milliseconds" },
    Name { shown: "p99 ms", key: "p99_milliseconds" },
    Name { shown: "p99.9 ms", key: "p99_9_milliseconds" },
    Name { shown: "max ms", key: "max_milliseconds" },
];

/// Percentiles and the longest, in milliseconds.
pub fn tail(times: &Times) -> [Cell; 5] {
    [times.at(0.5), times.at(0.9), times.at(0.99), times.at(0.999), times.longest()].map(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_unit_of_their_name() {
        assert_eq!(gbit(12.5e9), Cell::Number(100.0, 3));
        assert_eq!(megabytes(2_940_000_000.0), Cell::Number(2940.0, 1));
        assert_eq!(seconds(Duration::from_micros(14_880_600)), Cell::Number(14.881, 3));
        assert_eq!(milliseconds(Some(Duration::from_nanos(1_234_567))), Cell::Number(1.235, 3));
        assert_eq!(percent(53.8, 100.0), Cell::Number(53.8, 1));
        assert_eq!(percent(1.0, 0.0), Cell::Unknown);
    }

    #[test]
    fn the_tail_is_in_the_order_of_its_names() {
        let mut times = Times::default();
        (1..=1000).for_each(|ms| times.record(Duration::from_millis(ms)));
        for ((cell, name), expected) in tail(&times).into_iter().zip(TAIL).zip([500.0, 900.0, 990.0, 999.0, 1000.0]) {
            let Cell::Number(found, 3) = cell else { panic!("{name:?}") };
            assert!((found - expected).abs() <= expected / 1000.0, "{name:?}: {found}");
        }
        assert_eq!(tail(&Times::default()), [const { Cell::Unknown }; 5]);
    }
}
