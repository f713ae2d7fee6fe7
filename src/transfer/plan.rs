//! How an object is cut, and how much of it is under way at once. Pure. Invariant: what is under way never needs more memory than was
//! allowed, and every byte is in one part.

use std::ops::Range;
use std::str::FromStr;

use crate::store::{LEAST_PART, MOST_PARTS};

/// Requests at a time for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallel {
    /// As many as make it faster: see [`Knee`](super::Knee).
    Auto,
    Fixed(u16),
}

impl FromStr for Parallel {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(n) if (1..=MOST).contains(&n) => Ok(Self::Fixed(n)),
            _ => Err(PlanError::Parallel),
        }
    }
}

/// As many as ossutil takes.
const MOST: u16 = 10_000;

/// What `auto` may grow to. Beyond it lies no store that one connection more makes faster, and a machine runs out of ports and files.
const MOST_AUTO: u64 = 256;

/// A request hands over its bytes in pieces of this size: less is more system calls, more gains nothing.
pub const PIECE_BYTES: u64 = 1 << 20;

/// What a person asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub parallel: Parallel,
    pub part_bytes: u64,
    /// An object below this is one request.
    pub threshold_bytes: u64,
    pub max_memory_bytes: u64,
}

/// What will be under way at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Parts of the object.
    pub parts: u64,
    pub part_bytes: u64,
    /// Requests at a time.
    pub requests: usize,
    /// Memory of each.
    pub buffer_bytes: u64,
    /// Buffers that are filled while all requests have theirs.
    pub beside: u64,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("must be auto or 1..10000")]
    Parallel,
    #[error("--max-memory {0} does not hold one buffer of {1} bytes")]
    Memory(u64, u64),
}

impl Asked {
    /// The same for uploads inside of so many bytes a second: a part leaves as fast as the line takes it once its time has come, so that it is
    /// no more than a second of it, as far as stores take parts that small.
    #[must_use]
    pub fn within(self, bytes_per_second: u64) -> Self {
        let part_bytes = self.part_bytes.min(bytes_per_second.max(LEAST_PART));
        Self { part_bytes, threshold_bytes: self.threshold_bytes.min(part_bytes), ..self }
    }
}

impl Plan {
    /// The plan for `len` bytes, of which every request holds `buffer` of a part.
    ///
    /// # Errors
    /// [`PlanError::Memory`].
    fn with(asked: &Asked, len: u64, part_bytes: u64, buffer_bytes: u64) -> Result<Self, PlanError> {
        let parts = len.div_ceil(part_bytes);
        let fitting = asked.max_memory_bytes / buffer_bytes;
        if fitting == 0 {
            return Err(PlanError::Memory(asked.max_memory_bytes, buffer_bytes));
        }
        let wanted = match asked.parallel {
            Parallel::Auto => MOST_AUTO,
            Parallel::Fixed(n) => n.into(),
        };
        let requests = wanted.min(fitting).min(parts.max(1));
        Ok(Self { parts, part_bytes, requests: usize::try_from(requests).unwrap_or(usize::MAX), buffer_bytes, beside: 0 })
    }

    /// For bytes that are written where they belong: a request holds one piece of its part.
    ///
    /// # Errors
    /// When not even one request fits into the memory.
    pub fn at_offsets(asked: &Asked, len: u64) -> Result<Self, PlanError> {
        let part_bytes = if len < asked.threshold_bytes { len.max(1) } else { asked.part_bytes };
        Self::with(asked, len, part_bytes, PIECE_BYTES.min(part_bytes.next_power_of_two().max(LEAST_BUFFER)))
    }

    /// For bytes that are handed over in their order: a request holds all of its part.
    ///
    /// # Errors
    /// When not even one part fits into the memory.
    pub fn in_order(asked: &Asked, len: u64) -> Result<Self, PlanError> {
        let part_bytes = asked.part_bytes.min(len.max(1));
        Self::with(asked, len, part_bytes, buffer_of(part_bytes))
    }

    /// For bytes that are sent, so many if that is known: a request holds all of its part, and one more part is read meanwhile.
    ///
    /// # Errors
    /// When not even one part fits into the memory.
    pub fn upload(asked: &Asked, len: Option<u64>) -> Result<Self, PlanError> {
        if let Some(len) = len.filter(|&len| len < asked.threshold_bytes && buffer_of(len) <= asked.max_memory_bytes) {
            return Self::with(asked, len, len.max(1), buffer_of(len));
        }
        let least = len.map_or(0, |len| len.div_ceil(MOST_PARTS.into()).next_multiple_of(1 << 20));
        let part_bytes = asked.part_bytes.max(least);
        let buffer_bytes = buffer_of(part_bytes);
        let mut plan = Self::with(asked, len.unwrap_or(u64::MAX), part_bytes, buffer_bytes)?;
        let beside = usize::try_from(asked.max_memory_bytes / buffer_bytes).unwrap_or(usize::MAX).saturating_sub(1);
        plan.requests = plan.requests.min(beside.max(1));
        // With memory for one alone, it is read when that was sent.
        plan.beside = u64::from(beside > 0 && plan.parts > 1);
        Ok(plan)
    }

    /// All memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        self.buffer_bytes * (self.requests as u64 + self.beside)
    }

    /// The parts of `range`, in their order.
    pub fn cut(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(self.part_bytes));
            parts.push(at..end);
            at = end;
        }
        parts
    }
}

/// The part of a stream of unknown length that comes after so many: as large as asked for in the first thousand of ten thousand parts,
/// twice that in the second, until one is as large as the memory allows.
pub(super) fn stream_part_bytes(before: u32, first: u64, largest: u64) -> u64 {
    let doubled = before / (MOST_PARTS / 10);
    first.checked_shl(doubled).filter(|size| size >> doubled == first).unwrap_or(largest).min(largest).max(first)
}

/// Memory for so many bytes: the budget hands out powers of two, then whole huge pages.
fn buffer_of(bytes: u64) -> u64 {
    if bytes < HUGE { bytes.next_power_of_two().max(LEAST_BUFFER) } else { bytes.next_multiple_of(HUGE) }
}

/// Least buffer of the budget, and the multiple that large ones are of.
const LEAST_BUFFER: u64 = 16 << 10;
const HUGE: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn asked(parallel: Parallel, memory: u64) -> Asked {
        Asked { parallel, part_bytes: 16 * MIB, threshold_bytes: 100 * MIB, max_memory_bytes: memory }
    }

    #[test]
    fn an_object_below_the_threshold_is_one_request_and_above_it_parts() {
        for (len, parts, requests) in [(0, 0, 1), (1, 1, 1), (100 * MIB - 1, 1, 1), (100 * MIB, 7, 7), (1024 * MIB, 64, 32)] {
            let plan = Plan::at_offsets(&asked(Parallel::Fixed(32), 256 * MIB), len).unwrap();
            assert_eq!((plan.parts, plan.requests), (parts, requests), "{len}");
        }
    }

    #[test]
    fn memory_bounds_what_is_under_way() {
        for (parallel, memory) in [(Parallel::Auto, 16), (Parallel::Fixed(10_000), 16), (Parallel::Fixed(3), 16), (Parallel::Auto, 4096)] {
            for len in [1, 5 * MIB, 5000 * MIB, 1 << 40] {
                let asked = asked(parallel, memory * MIB);
                for plan in [Plan::at_offsets(&asked, len).unwrap(), Plan::in_order(&asked, len).unwrap()] {
                    assert!(plan.memory_bytes() <= memory * MIB && plan.requests >= 1, "{plan:?}");
                }
            }
        }
        assert_eq!(Plan::in_order(&asked(Parallel::Auto, 8 * MIB), 64 * MIB), Err(PlanError::Memory(8 * MIB, 16 * MIB)));
    }

    #[test]
    fn every_byte_is_in_one_part() {
        let plan = Plan::at_offsets(&asked(Parallel::Auto, 256 * MIB), 200 * MIB).unwrap();
        for range in [0..200 * MIB, 5..5, 7..7 + 100 * MIB, 16 * MIB..17 * MIB] {
            let parts = plan.cut(range.clone());
            assert_eq!(parts.iter().map(|part| part.end - part.start).sum::<u64>(), range.end - range.start);
            assert!(parts.windows(2).all(|two| two[0].end == two[1].start) && parts.iter().all(|part| part.end - part.start <= 16 * MIB));
        }
    }

    #[test]
    fn an_upload_never_has_too_many_parts_and_reads_one_beside_those_it_sends() {
        let asked = asked(Parallel::Auto, 512 * MIB);
        for (len, part, parts, requests) in [
            (0, 1, 0, 1),
            (5 * MIB, 5 * MIB, 1, 1),
            (100 * MIB, 16 * MIB, 7, 7),
            (160_000 * MIB, 16 * MIB, 10_000, 31),
            (200_000 * MIB, 20 * MIB, 10_000, 24),
        ] {
            let plan = Plan::upload(&asked, Some(len)).unwrap();
            assert_eq!((plan.part_bytes, plan.parts, plan.requests), (part, parts, requests), "{len}");
        }
        assert_eq!(Plan::upload(&asked, Some(160_000 * MIB)).unwrap().memory_bytes(), 512 * MIB);
        // What is one request by its size, but not by its memory.
        assert_eq!(Plan::upload(&Asked { max_memory_bytes: 64 * MIB, ..asked }, Some(99 * MIB)).unwrap().parts, 7);
        assert_eq!(Plan::upload(&Asked { max_memory_bytes: 8 * MIB, ..asked }, None), Err(PlanError::Memory(8 * MIB, 16 * MIB)));
    }

    #[test]
    fn a_slow_line_gets_the_smallest_parts_that_stores_take() {
        let asked = asked(Parallel::Auto, 512 * MIB);
        for (per_second, part, threshold) in [(1, 5, 5), (10 * MIB, 10, 10), (1000 * MIB, 16, 16)] {
            let slow = asked.within(per_second);
            assert_eq!((slow.part_bytes, slow.threshold_bytes), (part * MIB, threshold * MIB), "{per_second}");
        }
    }

    #[test]
    fn parts_of_a_stream_grow_until_memory_ends_them() {
        let size = |before| stream_part_bytes(before, 16 * MIB, 256 * MIB) / MIB;
        assert_eq!([0, 999, 1000, 1999, 2000, 4000, 9999].map(size), [16, 16, 32, 32, 64, 256, 256]);
        assert_eq!(stream_part_bytes(9999, 16 * MIB, 8 * MIB), 16 * MIB);
        let all: u64 = (0..MOST_PARTS).map(|before| stream_part_bytes(before, 16 * MIB, u64::MAX)).sum();
        assert!(all > 5 << 40, "{all}");
    }

    #[test]
    fn parallel_is_auto_or_a_number() {
        assert_eq!(("auto".parse(), "10000".parse()), (Ok(Parallel::Auto), Ok(Parallel::Fixed(10_000))));
        for text in ["0", "10001", "", "many", "-1"] {
            assert_eq!(text.parse::<Parallel>(), Err(PlanError::Parallel), "{text}");
        }
    }
}
