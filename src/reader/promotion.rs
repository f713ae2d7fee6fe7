//! When all of an object is worth having: it is small beside the memory, and is being read at random all over. Pure: reads and times
//! come as arguments, chunks to fetch as an answer.
//!
//! Isolated reads cost a round trip each, and who looks up embeddings or shuffles samples makes thousands of them. Once they have touched
//! a quarter of the chunks within a few seconds, in no order, the rest is fetched front to back beside them. Reads that only go forward
//! (columns of a table, every hundredth row) touch as many chunks and want little of each: of random ones half go backward.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Touches count for so long. One reader that waits 20 ms for each read makes 500 of them.
const WITHIN: Duration = Duration::from_secs(10);

/// One chunk in so many is to be touched.
const TOUCHED_OF: u64 = 4;

/// In an object of a few chunks so many at least, or all.
const LEAST_CHUNKS: u64 = 4;

/// Reads before anything is believed: two columns of a table of eight chunks are a dozen, and a pool of threads makes them in any order.
const LEAST_READS: u32 = 16;

/// One read in so many is to lie before the one that the same reader made before it.
const BACKWARD_OF: u32 = 3;

/// Fetches of the rest under way at a time: enough to be through soon, and few beside those that somebody waits for.
const AT_ONCE: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Promotion {
    /// Chunks that isolated reads touched, and when for the last time.
    touched: BTreeMap<u64, Instant>,
    /// Isolated reads since the first of those that count, and those of them that went backward.
    reads: u32,
    backward: u32,
    last: Option<Instant>,
    /// The next chunk to fetch, once it was decided to fetch all of them.
    next: Option<u64>,
    chunks: u64,
}

impl Promotion {
    /// An isolated read touched `chunk` of `chunks`; `backward`: it lies before the one of the same reader before it. True when this
    /// decides it.
    pub fn on_read(&mut self, now: Instant, chunk: u64, chunks: u64, backward: bool) -> bool {
        if self.next.is_some() {
            return false;
        }
        if self.last.replace(now).is_some_and(|last| now.duration_since(last) > WITHIN) {
            (self.reads, self.backward) = (0, 0);
        }
        self.touched.insert(chunk, now);
        self.reads = self.reads.saturating_add(1);
        self.backward = self.backward.saturating_add(backward.into());
        let enough = chunks.div_ceil(TOUCHED_OF).max(LEAST_CHUNKS).min(chunks);
        if self.reads < LEAST_READS || self.backward * BACKWARD_OF < self.reads || (self.touched.len() as u64) < enough {
            return false;
        }
        self.touched.retain(|_, &mut touched| now.duration_since(touched) <= WITHIN);
        if (self.touched.len() as u64) < enough {
            return false;
        }
        self.touched.clear();
        (self.next, self.chunks) = (Some(0), chunks);
        true
    }

    /// The chunk to fetch next when `under_way` fetches are; none when there is nothing to do now.
    pub fn poll_next(&self, under_way: usize) -> Option<u64> {
        self.next.filter(|&next| next < self.chunks && under_way < AT_ONCE)
    }

    /// Whether there may be something to do.
    pub fn is_under_way(&self) -> bool {
        self.next.is_some_and(|next| next < self.chunks)
    }

    /// There is no memory for the chunk that was named: it is all decided anew if reads go on like that.
    pub fn on_short(&mut self) {
        *self = Self::default();
    }

    /// What was missing of the chunk that was [named](Self::poll_next) is under way.
    pub fn on_started(&mut self) {
        self.next = self.next.map(|next| next + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads these chunks, `every` apart in time; the number of the read that decided it.
    fn decided(chunks: u64, every: Duration, reads: impl IntoIterator<Item = u64>) -> Option<usize> {
        let (mut promotion, mut now, mut before) = (Promotion::default(), Instant::now(), 0);
        let decides = |chunk: u64| {
            now += every;
            let backward = chunk < std::mem::replace(&mut before, chunk);
            promotion.on_read(now, chunk, chunks, backward)
        };
        reads.into_iter().map(decides).position(|decided| decided).map(|index| index + 1)
    }

    /// Chunks in no order.
    fn random(chunks: u64, reads: u64) -> impl Iterator<Item = u64> {
        (1..=reads).map(move |n| n * n * 7919 % 10_007 % chunks)
    }

    const FAST: Duration = Duration::from_millis(20);

    #[test]
    fn a_quarter_of_the_chunks_touched_at_random_decides_it() {
        // Chunks, and between which reads.
        for (chunks, least, most) in [(2, 16, 24), (8, 16, 24), (32, 16, 24), (100, 25, 40), (400, 100, 150)] {
            let at = decided(chunks, FAST, random(chunks, 1000)).expect("it is dense");
            assert!((least..=most).contains(&at), "{chunks} chunks: {at}");
        }
    }

    #[test]
    fn few_or_slow_or_ordered_reads_do_not() {
        assert_eq!(decided(100, FAST, random(100, 20)), None, "too few");
        assert_eq!(decided(8, FAST, [7, 7, 7, 2, 0, 1, 2, 5, 3, 4, 6, 5]), None, "two columns by several threads");
        assert_eq!(decided(400, Duration::from_millis(500), random(400, 2000)), None, "too slow");
        assert_eq!(decided(100, WITHIN * 2, random(100, 2000)), None, "far too slow");
        assert_eq!(decided(100, FAST, 0..100), None, "a sweep");
        assert_eq!(decided(100, FAST, (0..100).step_by(3).chain((0..100).step_by(3))), None, "two sweeps");
        assert_eq!(decided(100, FAST, (0..1000).map(|n| [5, 3, 5, 2][n % 4])), None, "always the same places");
    }

    #[test]
    fn it_is_decided_once_and_every_chunk_is_named_in_order_with_few_under_way() {
        let (mut promotion, now) = (Promotion::default(), Instant::now());
        assert!(!promotion.is_under_way() && promotion.poll_next(0).is_none());
        let decisions = random(40, 100).filter(|&chunk| promotion.on_read(now, chunk, 40, chunk % 2 == 0)).count();
        assert_eq!(decisions, 1);
        assert_eq!(promotion.poll_next(AT_ONCE), None);
        for chunk in 0..40 {
            assert!(promotion.is_under_way());
            assert_eq!(promotion.poll_next(AT_ONCE - 1), Some(chunk));
            promotion.on_started();
        }
        assert!(!promotion.is_under_way() && promotion.poll_next(0).is_none());
    }

    #[test]
    fn without_memory_it_is_decided_anew_by_as_many_reads() {
        let (mut promotion, now) = (Promotion::default(), Instant::now());
        let decide = |promotion: &mut Promotion| random(40, 100).position(|chunk| promotion.on_read(now, chunk, 40, chunk % 2 == 0));
        let first = decide(&mut promotion);
        promotion.on_started();
        promotion.on_short();
        assert!(first.is_some() && !promotion.is_under_way());
        assert_eq!(decide(&mut promotion), first);
    }
}
