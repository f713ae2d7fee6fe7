//! What the demo measured, as a table for people. Pure. Invariant: every number in it was counted; what was not
//! measured is a dash.

use std::fmt;
use std::time::Duration;

use crate::demo::Reading;
use crate::metrics::Metrics;

/// The counters of a mount at one moment, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub get: u64,
    pub head: u64,
    pub list: u64,
    pub fetched_bytes: u64,
    pub hits: u64,
    pub misses: u64,
}

impl Counts {
    /// The counters now.
    pub fn of(metrics: &Metrics) -> Self {
        Self {
            get: metrics.get_requests.get(),
            head: metrics.head_requests.get(),
            list: metrics.list_requests.get(),
            fetched_bytes: metrics.fetched_bytes.get(),
            hits: metrics.window_hits.get(),
            misses: metrics.window_misses.get(),
        }
    }

    /// What came after `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            get: self.get - before.get,
            head: self.head - before.head,
            list: self.list - before.list,
            fetched_bytes: self.fetched_bytes - before.fetched_bytes,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
        }
    }
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub reading: Reading,
    pub counts: Counts,
    /// The most memory held until its end.
    pub peak_bytes: u64,
}

/// The whole.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub large: Column,
    pub small: Column,
    /// From the mount to the end: also the requests that belong to neither.
    pub total: Column,
}

type Cell = fn(&Column) -> String;

const ROWS: [(&str, Cell); 12] = [
    ("files", |c| c.reading.files.to_string()),
    ("bytes, all verified", |c| mib(c.reading.bytes)),
    ("time", |c| format!("{:.2} s", c.reading.took.as_secs_f64())),
    ("throughput", |c| with(rate(c.reading.bytes as f64 / 1e6, c.reading.took), 0, " MB/s")),
    // One file is no rate.
    ("files/s", |c| with(rate(c.reading.files as f64, c.reading.took).filter(|_| c.reading.files > 1), 0, "")),
    ("requests: GET", |c| c.counts.get.to_string()),
    ("requests: HEAD", |c| c.counts.head.to_string()),
    ("requests: LIST", |c| c.counts.list.to_string()),
    ("bytes fetched", |c| mib(c.counts.fetched_bytes)),
    ("bytes fetched / read", |c| with(ratio(c.counts.fetched_bytes, c.reading.bytes), 3, "")),
    ("window hits", |c| with(ratio(100 * c.counts.hits, c.counts.hits + c.counts.misses), 0, " %")),
    ("memory held (peak)", |c| mib(c.peak_bytes)),
];

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<22}{:>14}{:>16}{:>14}", "", "large object", "small objects", "together")?;
        for (name, cell) in ROWS {
            writeln!(f, "{name:<22}{:>14}{:>16}{:>14}", cell(&self.large), cell(&self.small), cell(&self.total))?;
        }
        Ok(())
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn rate(amount: f64, took: Duration) -> Option<f64> {
    (!took.is_zero()).then(|| amount / took.as_secs_f64())
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn with(number: Option<f64>, decimals: usize, unit: &str) -> String {
    number.map_or_else(|| "-".into(), |number| format!("{number:.decimals$}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(files: u64, bytes: u64, millis: u64, counts: Counts) -> Column {
        Column { reading: Reading { files, bytes, took: Duration::from_millis(millis) }, counts, peak_bytes: 3 << 20 }
    }

    #[test]
    fn each_row_shows_what_was_counted_and_a_dash_for_what_was_not() {
        let end = Counts { get: 130, head: 2, list: 5, fetched_bytes: 600 << 20, hits: 30, misses: 70 };
        let start = Counts { get: 2, list: 1, fetched_bytes: 88 << 20, ..Counts::default() };
        let large = column(1, 512 << 20, 500, end.since(start));
        let total = Column { reading: Reading { files: 1001, ..large.reading }, ..large };
        let text = Table { large, small: column(0, 0, 0, Counts::default()), total }.to_string();
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
        let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name} in {text}"))[1..].to_vec();
        assert_eq!(rows[0], ["large object", "small objects", "together"]);
        assert_eq!(row("throughput"), ["1074 MB/s", "-", "1074 MB/s"]);
        assert_eq!(row("files/s"), ["-", "-", "2002"]);
        assert_eq!(row("requests: GET"), ["128", "0", "128"]);
        assert_eq!(row("requests: LIST"), ["4", "0", "4"]);
        assert_eq!(row("bytes fetched / read"), ["1.000", "-", "1.000"]);
        assert_eq!(row("window hits"), ["30 %", "-", "30 %"]);
        assert_eq!(row("memory held (peak)"), ["3.0 MiB", "3.0 MiB", "3.0 MiB"]);
        assert_eq!(rows.len(), ROWS.len() + 1);
    }
}
