//! Where the parts of an object lie: pure arithmetic. Two questions are answered: into which part a byte of a file falls that
//! is written front to back and whose size nobody knows, and how a file of known size is cut when much of it can be copied
//! inside the store. Invariant: every part but the last has at least the least size, and there are never too many.

use std::ops::Range;

use rangemap::RangeSet;
use serde::{Deserialize, Serialize};

use crate::store::{LARGEST_COPY, LARGEST_OBJECT, LARGEST_PART, LEAST_PART, MOST_PARTS};

/// What a store takes, and how much of a stream may be in memory. The default is what S3 and OSS take; tests shrink it to see many
/// parts in few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub least_part: u64,
    pub most_parts: u32,
    /// All parts but the last have one size: it does not grow while a file is written, and what is copied is copied part by part.
    pub equal_parts: bool,
    pub largest_object: u64,
    /// In one request; larger ones are copied part by part.
    pub largest_copy: u64,
    /// What is copied as one part: large enough that few requests copy much, small enough that one is done in seconds.
    pub copied_part: u64,
    /// How far behind the end of what is there without a hole a write may begin and still be part of a stream. The kernel makes
    /// several requests of one large write and sends them on several threads; 16 MiB are what it keeps in flight.
    pub ahead: u64,
    /// Bytes of sent parts that are kept in the process, in case they are wanted again: archives, images and checkpoints write
    /// their headers last.
    pub kept: u64,
    /// The same when they are of a file that is longer than [`kept`](Self::kept), beside first parts: it does not fit anyway, and memory that is
    /// taken anew costs more than memory that was just used.
    pub kept_of_long: u64,
    /// From so many bytes on what was received is kept where it lies instead of being copied: below that a part would be in many pieces.
    pub received: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            least_part: LEAST_PART,
            most_parts: MOST_PARTS,
            equal_parts: false,
            largest_object: LARGEST_OBJECT,
            largest_copy: LARGEST_COPY,
            copied_part: 1 << 30,
            ahead: 16 << 20,
            kept: 64 << 20,
            kept_of_long: 16 << 20,
            received: 256 << 10,
        }
    }
}

/// So many sizes of parts there are at most in one object; each is twice the one before.
const SIZES: u32 = 10;

/// The parts of a file that is written front to back: equal parts would either be too large for small files or too many for
/// large ones, so their size doubles with every tenth of the numbers there are, until one is as large as memory allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sizes {
    first: u64,
    largest: u64,
    most: u32,
}

impl Sizes {
    /// `largest` is what fits in memory.
    pub fn new(first: u64, largest: u64, limits: &Limits) -> Self {
        let first = first.clamp(limits.least_part, LARGEST_PART);
        let largest = if limits.equal_parts { first } else { largest.clamp(first, LARGEST_PART) };
        Self { first, largest, most: limits.most_parts }
    }

    /// Whether these, which another daemon wrote down, are sizes of parts at all, and none is larger than `largest`.
    pub fn is_valid(self, largest: u64) -> bool {
        0 < self.first && self.first <= self.largest && self.largest <= largest.min(LARGEST_PART) && (1..=MOST_PARTS).contains(&self.most)
    }

    /// Whether there may be a part `index`.
    pub fn holds(self, index: u32) -> bool {
        index < self.most
    }

    /// Parts of one size.
    fn group(self) -> u32 {
        (self.most / SIZES).max(1)
    }

    fn of_group(self, group: u32) -> u64 {
        self.first.checked_shl(group).filter(|size| size >> group == self.first).unwrap_or(self.largest).min(self.largest)
    }

    /// The bytes of the part `index`, counted from 0.
    pub fn range(self, index: u32) -> Range<u64> {
        let group = index / self.group();
        let before: u64 = (0..group).map(|g| self.of_group(g) * u64::from(self.group())).sum();
        let start = before + u64::from(index % self.group()) * self.of_group(group);
        start..start + self.of_group(group)
    }

    /// The part that a byte is in; none when the parts end before it.
    pub fn index(self, offset: u64) -> Option<u32> {
        let (mut start, mut index) = (0, 0);
        while index < self.most {
            let size = self.of_group(index / self.group());
            let count = self.group().min(self.most - index);
            let end = start + size * u64::from(count);
            if offset < end {
                return Some(index + u32::try_from((offset - start) / size).expect("less than the parts of a group"));
            }
            (start, index) = (end, index + count);
        }
        None
    }

    /// How many parts hold a file of `size` bytes, which they can.
    pub fn count(self, size: u64) -> Option<u32> {
        if size == 0 { Some(0) } else { self.index(size - 1).map(|index| index + 1) }
    }
}

/// One part of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// As it is in the object that is edited.
    Copy(Range<u64>),
    Send(Range<u64>),
}

/// How a file of known size becomes parts.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    pub size: u64,
    /// What differs from the object that is edited.
    pub dirty: &'a RangeSet<u64>,
    /// Where bytes of that object end; 0 when there is nothing to copy.
    pub clean_end: u64,
    /// Of parts that are sent.
    pub part: u64,
    /// The most that `part` may grow to.
    pub largest: u64,
}

impl Cut<'_> {
    /// The parts in their order; none when no size of parts makes few enough of them.
    pub fn pieces(&self, limits: &Limits) -> Option<Vec<Piece>> {
        let mut part = self.part.clamp(limits.least_part, LARGEST_PART);
        let largest = self.largest.clamp(part, LARGEST_PART);
        loop {
            let pieces = self.pieces_of(part, limits);
            if pieces.len() <= limits.most_parts as usize {
                return Some(pieces);
            }
            if part == largest {
                return None;
            }
            part = (part * 2).min(largest);
        }
    }

    /// Wholly clean stretches of the largest copy become one part, the others are cut into small ones.
    fn pieces_of(&self, part: u64, limits: &Limits) -> Vec<Piece> {
        // A whole number of parts, so that no short one comes before the last.
        let stretch = if limits.equal_parts { part } else { (limits.copied_part / part).max(1) * part };
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < self.size {
            let whole = at..self.size.min(at + stretch);
            at = whole.end;
            if self.is_clean(&whole) {
                pieces.push(Piece::Copy(whole));
            } else {
                self.cut_finely(whole, part, &mut pieces);
            }
            if pieces.len() > limits.most_parts as usize {
                break;
            }
        }
        pieces
    }

    fn cut_finely(&self, whole: Range<u64>, part: u64, pieces: &mut Vec<Piece>) {
        let first = pieces.len();
        let mut at = whole.start;
        while at < whole.end {
            let piece = at..whole.end.min(at + part);
            at = piece.end;
            if !self.is_clean(&piece) {
                pieces.push(Piece::Send(piece));
            } else if let Some(Piece::Copy(before)) = pieces[first..].last_mut() {
                before.end = piece.end;
            } else {
                pieces.push(Piece::Copy(piece));
            }
        }
    }

    fn is_clean(&self, range: &Range<u64>) -> bool {
        range.end <= self.clean_end && !self.dirty.overlaps(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn ten_thousand_parts_hold_the_largest_object() {
        let sizes = Sizes::new(8 * MIB, 4 << 30, &Limits::default());
        assert!(sizes.count(LARGEST_OBJECT).unwrap() <= MOST_PARTS);
        let last = sizes.range(MOST_PARTS - 1);
        assert!(last.end >= LARGEST_OBJECT && last.end - last.start <= LARGEST_PART);
    }

    #[test]
    fn parts_lie_side_by_side_and_know_their_bytes() {
        for (first, largest) in [(8 * MIB, 64 * MIB), (5 * MIB, u64::MAX), (8 * MIB, 0)] {
            let sizes = Sizes::new(first, largest, &Limits::default());
            let mut end = 0;
            for index in 0..MOST_PARTS {
                let range = sizes.range(index);
                assert_eq!(range.start, end);
                assert!(range.end - range.start >= LEAST_PART && range.end - range.start <= largest.clamp(first, LARGEST_PART));
                assert_eq!((sizes.index(range.start), sizes.index(range.end - 1)), (Some(index), Some(index)));
                end = range.end;
            }
            assert_eq!((sizes.index(end), sizes.count(end), sizes.count(end + 1)), (None, Some(MOST_PARTS), None));
        }
    }

    #[test]
    fn parts_are_never_smaller_than_the_store_takes_them() {
        let sizes = Sizes::new(1, 1, &Limits::default());
        assert_eq!(sizes.range(0), 0..LEAST_PART);
        assert_eq!((sizes.count(0), sizes.count(1), sizes.count(LEAST_PART + 1)), (Some(0), Some(1), Some(2)));
    }

    #[test]
    fn equal_parts_do_not_grow_and_are_copied_one_by_one() {
        let limits = Limits { equal_parts: true, ..small() };
        let sizes = Sizes::new(10, 80, &limits);
        assert!((0..20).all(|index| sizes.range(index).end - sizes.range(index).start == 10));
        let cut = |size, largest| Cut { size, dirty: &set(&[55..56, 56..57]), clean_end: 90, part: 10, largest }.pieces(&limits).unwrap();
        let lengths = |pieces: &[Piece]| -> Vec<u64> {
            pieces.iter().map(|(Piece::Copy(range) | Piece::Send(range))| range.end - range.start).collect()
        };
        let pieces = cut(125, 10);
        assert_eq!(lengths(&pieces), [[10; 12].as_slice(), &[5]].concat());
        assert_eq!(pieces.iter().filter(|piece| matches!(piece, Piece::Send(_))).count(), 5, "{pieces:?}");
        // Too many of them are fewer and larger ones, of one size again.
        assert_eq!(lengths(&cut(390, 80)), [[20; 19].as_slice(), &[10]].concat());
    }

    fn set(ranges: &[Range<u64>]) -> RangeSet<u64> {
        ranges.iter().cloned().collect()
    }

    fn small() -> Limits {
        Limits { least_part: 10, most_parts: 20, copied_part: 40, ..Limits::default() }
    }

    #[test]
    fn clean_stretches_are_copied_and_the_rest_is_sent() {
        let dirty = set(&[55..56, 56..57]);
        let cut = Cut { size: 125, dirty: &dirty, clean_end: 125, part: 10, largest: 10 };
        let pieces = cut.pieces(&small()).unwrap();
        let expected = [
            Piece::Copy(0..40),
            Piece::Copy(40..50),
            Piece::Send(50..60),
            Piece::Copy(60..80),
            Piece::Copy(80..120),
            Piece::Copy(120..125),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn what_is_behind_the_old_end_is_sent() {
        let cut = Cut { size: 60, dirty: &set(&[]), clean_end: 45, part: 10, largest: 10 };
        assert_eq!(cut.pieces(&small()).unwrap(), [Piece::Copy(0..40), Piece::Send(40..50), Piece::Send(50..60)]);
    }

    #[test]
    fn too_many_parts_grow_until_they_are_few_enough_or_too_large() {
        let cut = |size, largest| Cut { size, dirty: &set(&[]), clean_end: 0, part: 10, largest }.pieces(&small());
        assert_eq!(cut(800, 80).unwrap().len(), 20);
        assert_eq!(cut(801, 80).unwrap(), (0..11).map(|i| Piece::Send(i * 80..801.min((i + 1) * 80))).collect::<Vec<_>>());
        assert_eq!(cut(1601, 80), None);
        assert_eq!(cut(801, 40), None);
    }

    #[test]
    fn pieces_of_any_edit_cover_the_file_and_are_large_enough() {
        use proptest::prelude::*;
        let edits = proptest::collection::vec((0u64..2000, 1u64..50), 0..6);
        proptest!(|(size in 1u64..2000, clean_end in 0u64..2000, edits in edits)| {
            let dirty: RangeSet<u64> = edits.into_iter().map(|(at, len)| at..at + len).collect();
            let limits = Limits { most_parts: 100, ..small() };
            let cut = Cut { size, dirty: &dirty, clean_end, part: 10, largest: 80 };
            let pieces = cut.pieces(&limits).unwrap();
            let mut end = 0;
            for piece in &pieces {
                let (Piece::Copy(range) | Piece::Send(range)) = piece;
                prop_assert_eq!(range.start, end);
                prop_assert!(range.end == size || range.end - range.start >= limits.least_part);
                if let Piece::Copy(range) = piece {
                    prop_assert!(range.end <= clean_end && !dirty.overlaps(range));
                }
                end = range.end;
            }
            prop_assert_eq!(end, size);
            prop_assert!(pieces.len() <= 100);
        });
    }
}
