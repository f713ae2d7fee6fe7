//! What the process counts and holds, and the one table of its names, which `stats`, Prometheus, the virtual file and README share.
//! Lock-free and cheap enough for the hot path: what many threads count at once lies in a line of its own for each. It prints nothing.
//! Invariants: what is counted here is shown; a name ends in its unit.

mod counter;
mod histogram;
mod operations;
mod reading;
mod requests;

pub use counter::{Counter, Largest, Sharded};
pub use histogram::{BOUNDS, Histogram};
pub use operations::{Call, Operations};
pub use reading::{Reading, Spread};
pub use requests::{Answers, Attempt, Latencies, RequestKind};

/// What a metric is to those who read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Only grows.
    Counter,
    /// Is so now.
    Gauge,
    /// How long something took, how often.
    Histogram,
}

/// A line of the table of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: &'static str,
    pub kind: Type,
    /// What its values are told apart by.
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl Row {
    /// The unit that its name ends in.
    pub fn unit(&self) -> Option<&'static str> {
        ["bytes", "seconds"].into_iter().find(|unit| self.name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')))
    }

    /// What it is called in Prometheus.
    pub fn in_prometheus(&self) -> String {
        let suffix = if self.kind == Type::Counter { "_total" } else { "" };
        format!("{PREFIX}_{}{suffix}", self.name)
    }
}

/// What all names begin with in Prometheus, where those of other programs stand beside them.
pub const PREFIX: &str = "windlass";

/// Something that has a value and a kind.
trait Metric {
    const TYPE: Type;
    const LABELS: &'static [&'static str] = &[];
    fn read(&self) -> Reading;
}

/// A number that others count, as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count(pub u64);

/// Something that is so now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge(pub u64);

impl Metric for Count {
    const TYPE: Type = Type::Counter;

    fn read(&self) -> Reading {
        Reading::Number(self.0)
    }
}

impl Metric for Gauge {
    const TYPE: Type = Type::Gauge;

    fn read(&self) -> Reading {
        Reading::Number(self.0)
    }
}

/// Declares metrics, and with them their lines of the table: one that is left out would never be shown.
macro_rules! metrics {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[doc = $doc:literal])+ pub $metric:ident: $kind:ty,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[doc = $doc])+ pub $metric: $kind,)+ }

        impl $name {
            /// Their lines of the table.
            pub const ROWS: &[Row] = &[$(Row {
                name: stringify!($metric),
                kind: <$kind as Metric>::TYPE,
                labels: <$kind as Metric>::LABELS,
                help: concat!($($doc),+).trim_ascii(),
            },)+];

            /// All of them as they are now, in the order of the lines.
            pub fn read(&self) -> Vec<(&'static Row, Reading)> {
                let readings = [$(self.$metric.read(),)+];
                Self::ROWS.iter().zip(readings).collect()
            }
        }
    };
}

metrics! {
/// What the process did since it started.
pub struct Metrics {
    /// Bytes answered to read(2).
    pub read_bytes: Sharded,
    /// Reads answered from memory without waiting.
    pub window_hits: Sharded,
    /// Reads that had to wait for bytes.
    pub window_misses: Sharded,
    /// Time from a READ of the kernel to its answer.
    pub read_seconds: Histogram<16>,
    /// The longest READ of the kernel.
    pub longest_read_bytes: Largest,
    /// Bytes taken from write(2).
    pub written_bytes: Sharded,
    /// What programs asked for beside reads, by the name of the call.
    pub operations: Operations,
    /// Bytes that arrived in bodies of data GETs.
    pub fetched_bytes: Sharded,
    /// Bytes of bodies that left in requests, each attempt counted.
    pub uploaded_bytes: Counter,
    /// HEAD requests sent, each attempt counted.
    pub head_requests: Counter,
    /// LIST requests sent, each attempt counted.
    pub list_requests: Counter,
    /// Data GETs sent, each attempt counted.
    pub get_requests: Counter,
    /// Requests that write an object, a part or a link, or begin or end an upload, each attempt counted.
    pub put_requests: Counter,
    /// Copies inside the store, of objects and of parts, each attempt counted.
    pub copy_requests: Counter,
    /// DELETEs of objects and of unfinished uploads, each attempt counted.
    pub delete_requests: Counter,
    /// Requests that ended, by class of the status; none: no answer, or not all of it; cancelled: nobody waited for an answer any more.
    pub answered_requests: Answers,
    /// Time from a request, of which the answer came whole, to its last byte.
    pub request_seconds: Latencies,
    /// Time from a data GET to the head of its answer.
    pub first_byte_seconds: Histogram<1>,
    /// Attempts after the first of a request.
    pub retries: Counter,
    /// Answers that asked to slow down.
    pub throttled: Counter,
    /// Times that the endpoint took no checksum, no condition or no request for many deletes, and was written to without for a while.
    pub refused_features: Counter,
    /// Data GETs sent beside or after one that was late.
    pub hedged_requests: Counter,
    /// Fetches given up because nobody wanted their bytes any more.
    pub cancelled_fetches: Counter,
    /// Ranges that the read endpoint answered.
    pub read_endpoint_requests: Counter,
    /// Ranges that the endpoint answered, or the rest of which, because the read endpoint did not or was left alone after it had failed.
    pub read_endpoint_fallbacks: Counter,
    /// Connections to stores that were opened.
    pub connections_opened: Counter,
    /// Files that were not stored under their name because another client had written there since they were opened.
    pub write_conflicts: Counter,
    /// Times that what was appended to a file was appended to a newer version of it, which another client had written.
    pub appended_again: Counter,
    /// Bytes written to staging files by those who change files.
    pub staged_bytes: Counter,
    /// Bytes of objects that were read from the disk instead of the store.
    pub spill_read_bytes: Counter,
    /// Bytes of objects that were written to the disk.
    pub spill_written_bytes: Counter,
    /// Bytes of objects that were not written to the disk because it is slower than the store.
    pub spill_skipped_bytes: Counter,
}
}

metrics! {
/// What the process counts, whatever it serves.
pub struct ProcessCounts {
    /// Panics, which are defects: the request or task ends with an error, and the log has the place and the backtrace.
    pub panics: Count,
}
}

metrics! {
/// What the disk counts, where there is one.
pub struct DiskCounts {
    /// Bytes of objects that were looked for on the disk in vain.
    pub spill_missed_bytes: Count,
    /// Chunks that were evicted from the disk.
    pub spill_evicted_chunks: Count,
    /// Pieces on the disk that were not what had been written.
    pub spill_damaged_pieces: Count,
    /// Pieces for which there was no room on the disk, or which could not be written.
    pub spill_dropped_pieces: Count,
}
}

metrics! {
/// What is so now.
pub struct Now {
    /// Time since the mount began.
    pub uptime_seconds: Gauge,
    /// Bound of all memory that grows with traffic.
    pub budget_limit_bytes: Gauge,
    /// Memory in use out of that.
    pub budget_leased_bytes: Gauge,
    /// The most that ever was in use at once.
    pub budget_peak_bytes: Gauge,
    /// Memory that was in use and is kept for whoever comes next.
    pub budget_pooled_bytes: Gauge,
    /// Readers that wait for memory.
    pub budget_waiting: Gauge,
    /// Memory of the windows of sequential readers, what is still on its way included.
    pub stream_held_bytes: Gauge,
    /// Memory of everything else that is kept for open files: pieces of random reads, small files, what a reader may come back to.
    pub handle_held_bytes: Gauge,
    /// Sequential readers that have a window.
    pub streams: Gauge,
    /// Files that are open for reading.
    pub handles: Gauge,
    /// Requests that have no answer yet, or not all of it.
    pub requests_in_flight: Gauge,
    /// Data GETs at a time at most: fewer for a while after the store was overloaded.
    pub gets_allowed: Gauge,
    /// TCP connections of the process to others.
    pub connections_open: Gauge,
    /// Inodes that the kernel knows.
    pub kernel_inodes: Gauge,
    /// Objects that were found hidden by a directory of the same name.
    pub hidden_objects: Gauge,
}
}

metrics! {
/// What the disk holds, where there is one.
pub struct DiskNow {
    /// Room on the disk that chunks take, those of other mounts on the same directory included.
    pub spill_bytes: Gauge,
    /// Versions of objects on the disk, as far as this mount knows.
    pub spill_objects: Gauge,
}
}

/// The table of names.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [Metrics::ROWS, ProcessCounts::ROWS, DiskCounts::ROWS, Now::ROWS, DiskNow::ROWS].into_iter().flatten()
}

/// The line of a name, when this program knows it.
pub fn row(name: &str) -> Option<&'static Row> {
    rows().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_metric_is_listed_under_its_name_with_what_it_is() {
        let metrics = Metrics::default();
        metrics.read_bytes.add(7);
        let all = metrics.read();
        let of = |name: &str| all.iter().find(|(row, _)| row.name == name).map(|(_, reading)| reading.clone());
        assert_eq!((of("read_bytes"), of("retries")), (Some(Reading::Number(7)), Some(Reading::Number(0))));
        assert_eq!(row("read_bytes").map(|row| (row.kind, row.help)), Some((Type::Counter, "Bytes answered to read(2).")));
        assert_eq!(row("answered_requests").map(|row| row.labels), Some(&["kind", "status"][..]));
    }

    #[test]
    fn a_name_ends_in_its_unit_and_stands_for_one_thing() {
        let names: BTreeSet<_> = rows().map(|row| row.name).collect();
        assert_eq!(names.len(), rows().count());
        for row in rows() {
            assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", row.name);
            assert!(row.help.ends_with('.') && !row.help.contains("  "), "{}: {}", row.name, row.help);
            assert!(row.kind != Type::Histogram || row.unit() == Some("seconds"), "{}", row.name);
        }
        assert_eq!(row("read_bytes").unwrap().in_prometheus(), "windlass_read_bytes_total");
        assert_eq!(row("read_seconds").unwrap().in_prometheus(), "windlass_read_seconds");
        assert_eq!(row("streams").unwrap().unit(), None);
    }
}
