//! How much may be moved a second, by all transfers together: whoever wants to move bytes waits until their time has come. Invariant: from
//! the beginning to any moment, no more is asked for than that many seconds allow.
//!
//! What is spaced are the requests, not the reads of their bodies: a body that we read slowly fills the buffers of every socket first, looks
//! like a connection that stalls to us and like a dead client to the store. So a range is asked for in slices, each as fast as the line takes
//! it once its time has come, and neither stalls nor late answers are measured otherwise than without a limit.

use std::time::Duration;

use leaky_bucket::RateLimiter;

use crate::store::{self, ObjectStore, RangeRequest, RangeSink};
use crate::units::ByteSize;

/// Of a second: what a slice takes. Longer ones come in bursts that others on the line feel, shorter ones are only more requests.
const SLICES: u64 = 4;

/// A request costs about as much as so many bytes.
const LEAST_SLICE: u64 = 64 << 10;

/// How often room for more bytes is made. A tick comes about a millisecond late, and with it all that follow: ticks of 10 ms gave 0.88 of what was asked
/// for.
const TICK: Duration = Duration::from_millis(100);
const TICKS: u64 = 10;

/// The limit of a process.
#[derive(Debug)]
pub struct Bandwidth {
    limiter: RateLimiter,
    slice_bytes: u64,
}

impl Bandwidth {
    /// So much a second, but at least 100 bytes.
    pub fn new(per_second: ByteSize) -> Self {
        let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let slice_bytes = (per_second.as_u64() / SLICES).max(LEAST_SLICE);
        let refill = (per_second.as_u64() / TICKS).max(1);
        // Nothing is saved up: who was idle before must not be faster afterwards.
        let limiter = RateLimiter::builder().initial(0).max(count(refill)).refill(count(refill)).interval(TICK).fair(true).build();
        Self { limiter, slice_bytes }
    }

    /// Waits until so many bytes may be moved. In the order of those who wait.
    pub async fn take(&self, bytes: u64) {
        self.limiter.acquire(usize::try_from(bytes).unwrap_or(usize::MAX)).await;
    }
}

/// As much as `bandwidth` allows, if there is one.
pub(super) async fn take(bandwidth: Option<&Bandwidth>, bytes: u64) {
    if let Some(bandwidth) = bandwidth {
        bandwidth.take(bytes).await;
    }
}

/// [`ObjectStore::get_range`] inside of `bandwidth`, if there is one.
pub(super) async fn get_range(
    store: &dyn ObjectStore,
    bandwidth: Option<&Bandwidth>,
    request: &RangeRequest,
    sink: &mut dyn RangeSink,
) -> store::Result<()> {
    let Some(bandwidth) = bandwidth else { return store.get_range(request, sink).await };
    let mut slice = request.clone();
    while slice.range.start < request.range.end {
        slice.range.end = request.range.end.min(slice.range.start.saturating_add(bandwidth.slice_bytes));
        let bytes = slice.range.end - slice.range.start;
        bandwidth.take(bytes).await;
        store.get_range(&slice, &mut Slice { sink: &mut *sink, missing: bytes }).await?;
        slice.range.start = slice.range.end;
    }
    Ok(())
}

/// The sink of a whole range, for a slice of it.
struct Slice<'a> {
    sink: &'a mut dyn RangeSink,
    missing: u64,
}

impl RangeSink for Slice<'_> {
    fn spare(&mut self) -> &mut [u8] {
        let missing = usize::try_from(self.missing).unwrap_or(usize::MAX);
        let spare = self.sink.spare();
        let len = spare.len().min(missing);
        &mut spare[..len]
    }

    fn advance(&mut self, n: usize) {
        self.missing -= n as u64;
        self.sink.advance(n);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::store::memory::Memory;

    struct Collected(Vec<u8>, usize);

    impl RangeSink for Collected {
        fn spare(&mut self) -> &mut [u8] {
            &mut self.0[self.1..]
        }

        fn advance(&mut self, n: usize) {
            self.1 += n;
        }
    }

    /// Ranges of an object fetched side by side; how long that took.
    async fn fetch(per_second: u64, ranges: Vec<std::ops::Range<u64>>) -> Duration {
        let store = Arc::new(Memory::default());
        let content: Vec<u8> = (0..8_000_000_u32).map(|at| (at % 251) as u8).collect();
        let etag = store.put("k", content.clone());
        let bandwidth = Arc::new(Bandwidth::new(ByteSize::bytes(per_second)));
        let began = Instant::now();
        let fetching = ranges.into_iter().map(|range| {
            let (store, bandwidth, expected) =
                (store.clone(), bandwidth.clone(), content[range.start as usize..range.end as usize].to_vec());
            let request = RangeRequest { key: "k".into(), range, etag: etag.clone() };
            async move {
                let mut sink = Collected(vec![0; expected.len()], 0);
                get_range(&*store, Some(&bandwidth), &request, &mut sink).await.unwrap();
                assert!(sink.0 == expected && sink.1 == expected.len());
            }
        });
        futures::future::join_all(fetching).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_take_the_time_that_they_should_also_side_by_side() {
        for (per_second, count, each, seconds) in
            [(1_000_000, 1, 4_000_000, 4), (1_000_000, 8, 1_000_000, 8), (4_000_000, 64, 125_000, 2), (100_000, 2, 50_000, 1)]
        {
            let ranges = (0..count).map(|n| n * each..(n + 1) * each).collect();
            let expected = Duration::from_secs(seconds);
            assert_eq!(fetch(per_second, ranges).await, expected, "{per_second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_idle_is_not_faster_afterwards() {
        let bandwidth = Bandwidth::new(ByteSize::bytes(1_000_000));
        bandwidth.take(500_000).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        let began = Instant::now();
        bandwidth.take(1_000_000).await;
        // One tick is there.
        assert_eq!(began.elapsed(), Duration::from_millis(900));
    }
}
