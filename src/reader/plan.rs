//! Which bytes to fetch, to keep and to let go. Pure arithmetic on ranges.

use std::ops::Range;

/// Isolated reads fetch whole pieces of this size: small enough not to waste, large enough to serve the neighbours.
pub(super) const PIECE_BYTES: u64 = 128 << 10;

/// Below this a GET costs more in requests than it saves in memory.
const SMALLEST_UNIT: u64 = 256 << 10;

/// How a stream may run ahead with its share of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// Bytes of one GET.
    pub unit: u64,
    /// Whole units after the one that is being read.
    pub ahead: u64,
}

/// Fits a window of `depth` chunks into `share` bytes: first fewer chunks, then smaller ones.
pub(super) fn reach(depth: u32, chunk_bytes: u64, share: u64) -> Reach {
    let chunks = share / chunk_bytes;
    if chunks >= 3 {
        // One is being read and one is kept behind it.
        return Reach { unit: chunk_bytes, ahead: u64::from(depth).min(chunks - 2) };
    }
    if chunks == 2 {
        return Reach { unit: chunk_bytes, ahead: u64::from(depth).min(1) };
    }
    let unit = if share < 2 * SMALLEST_UNIT { SMALLEST_UNIT } else { 1 << (share / 2).ilog2() };
    Reach { unit: unit.min(chunk_bytes), ahead: u64::from(depth).min(1) }
}

/// What a sequential stream wants after a read of `read`: from the read to the end of its window, which lies before
/// `border`.
pub(super) fn window(read: &Range<u64>, at: u64, reach: Reach, border: u64) -> Range<u64> {
    let unit = reach.unit;
    let start = read.start / PIECE_BYTES * PIECE_BYTES;
    let current = at.max(read.end - 1) / unit;
    start..((current + 1 + reach.ahead) * unit).min(border)
}

/// What an isolated read fetches: the pieces that it touches.
pub(super) fn pieces(read: &Range<u64>, size: u64) -> Range<u64> {
    read.start / PIECE_BYTES * PIECE_BYTES..read.end.next_multiple_of(PIECE_BYTES).min(size)
}

/// The parts of `want` that no range of `held` covers, cut at multiples of `unit`. `held` are disjoint ranges in order.
pub(super) fn missing(held: impl Iterator<Item = Range<u64>>, want: &Range<u64>, unit: u64) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut at = want.start;
    for have in held.chain(std::iter::once(want.end..want.end)) {
        let until = have.start.min(want.end);
        while at < until {
            let cut = ((at / unit + 1) * unit).min(until);
            gaps.push(at..cut);
            at = cut;
        }
        at = at.max(have.end);
    }
    gaps
}

/// How many bytes of `within` the ranges of `held` cover.
pub(super) fn covered(held: impl Iterator<Item = Range<u64>>, within: &Range<u64>) -> u64 {
    held.map(|have| have.end.min(within.end).saturating_sub(have.start.max(within.start))).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_window_gets_fewer_chunks_and_then_smaller_ones() {
        for (depth, share, unit, ahead) in [
            (32, 4096 * MIB, 4 * MIB, 32),
            (32, 64 * MIB, 4 * MIB, 14),
            (32, 12 * MIB, 4 * MIB, 1),
            (32, 8 * MIB, 4 * MIB, 1),
            (32, 7 * MIB, 2 * MIB, 1),
            (32, MIB, MIB / 2, 1),
            (32, 1000, MIB / 4, 1),
            (0, 4096 * MIB, 4 * MIB, 0),
        ] {
            assert_eq!(reach(depth, 4 * MIB, share), Reach { unit, ahead }, "{share}");
        }
    }

    #[test]
    fn a_window_ends_with_a_whole_unit_or_the_object() {
        let reach = Reach { unit: 4 * MIB, ahead: 2 };
        assert_eq!(window(&(0..MIB), 0, reach, 100 * MIB), 0..12 * MIB);
        assert_eq!(window(&(4 * MIB..5 * MIB), 4 * MIB, reach, 100 * MIB), 4 * MIB..16 * MIB);
        assert_eq!(window(&(96 * MIB..97 * MIB), 96 * MIB, reach, 100 * MIB), 96 * MIB..100 * MIB);
    }

    #[test]
    fn a_small_isolated_read_fetches_at_most_two_pieces() {
        assert_eq!(pieces(&(300_000..304_096), 10 * MIB), 262_144..393_216);
        assert_eq!(pieces(&(131_000..135_096), 10 * MIB), 0..262_144);
        assert_eq!(pieces(&(10 * MIB - 5..10 * MIB - 1), 10 * MIB - 1).end, 10 * MIB - 1);
    }

    proptest! {
        #[test]
        fn held_and_missing_together_are_what_is_wanted(
            marks in proptest::collection::btree_set(0u64..1000, 0..20), start in 0u64..1000, len in 1u64..500, unit in 1u64..200,
        ) {
            let marks: Vec<u64> = marks.into_iter().collect();
            let held: Vec<Range<u64>> = marks.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            let want = start..start + len;
            let gaps = missing(held.iter().cloned(), &want, unit);
            let is_held = |at: u64| held.iter().any(|have| have.contains(&at));
            for at in want.clone() {
                prop_assert_eq!(gaps.iter().filter(|gap| gap.contains(&at)).count(), usize::from(!is_held(at)));
            }
            for gap in &gaps {
                prop_assert!(gap.start < gap.end && want.start <= gap.start && gap.end <= want.end);
                prop_assert_eq!(gap.start / unit, (gap.end - 1) / unit);
            }
            let total: u64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
            prop_assert_eq!(covered(held.iter().cloned(), &want) + total, len);
        }
    }
}
