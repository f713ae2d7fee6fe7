//! Counters of the whole process. Lock-free, cheap enough for the hot path, read by `stats`, `demo`, the log and tests. Invariant: what
//! is counted here is shown; a counter has its unit in its name.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares the counters, and with them the list of their names: one that is left out of the list would never be shown.
macro_rules! counters {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $counter:ident: $kind:ty,)+ }) => {
        $(#[$about])*
        pub struct $name { $($(#[$doc])* pub $counter: $kind,)+ }

        impl $name {
            /// Every counter by its name, as it is now.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($counter), self.$counter.get()),)+]
            }
        }
    };
}

counters! {
/// What the process did since it started.
#[derive(Debug, Default)]
pub struct Metrics {
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
    /// Attempts after the first of a request.
    pub retries: Counter,
    /// Data GETs sent beside or after one that was late.
    pub hedged_requests: Counter,
    /// Ranges that the read endpoint answered.
    pub read_endpoint_requests: Counter,
    /// Ranges that the endpoint answered, or the rest of which, because the read endpoint did not or was left alone after it had failed.
    pub read_endpoint_fallbacks: Counter,
    /// Connections to stores that were opened.
    pub connections_opened: Counter,
    /// Answers that asked to slow down.
    pub throttled: Counter,
    /// Bytes that arrived in bodies of data GETs.
    pub fetched_bytes: Counter,
    /// Bytes of bodies that left in requests, each attempt counted.
    pub uploaded_bytes: Counter,
    /// Bytes answered to read(2).
    pub read_bytes: Counter,
    /// Reads answered from memory without waiting.
    pub window_hits: Counter,
    /// Reads that had to wait for bytes.
    pub window_misses: Counter,
    /// Bytes written to staging files by those who change files.
    pub staged_bytes: Counter,
    /// Bytes of objects that were read from the disk instead of the store.
    pub spill_read_bytes: Counter,
    /// Bytes of objects that were written to the disk.
    pub spill_written_bytes: Counter,
    /// Bytes of objects that were not written to the disk because it is slower than the store.
    pub spill_skipped_bytes: Counter,
    /// Fetches given up because nobody wanted their bytes any more.
    pub cancelled_fetches: Counter,
}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_listed_under_its_name() {
        let metrics = Metrics::default();
        metrics.read_bytes.add(7);
        let all = metrics.all();
        assert!(all.contains(&("read_bytes", 7)) && all.contains(&("retries", 0)));
        assert_eq!(all.iter().map(|(_, value)| value).sum::<u64>(), 7);
    }
}
