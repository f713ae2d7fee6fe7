//! Checksums of pieces, made while their bytes come: just then they are in the processor's cache, and reading them from memory again
//! costs more than the sum itself. Pure. Invariant: a sum is of a whole piece, and of bytes that were there when it was made.

use std::ops::Range;

use super::format::{PIECE_BYTES, checksum};

/// See the module.
#[derive(Debug)]
pub struct Summing {
    /// The length of the object, where its last piece ends.
    size: u64,
    first: u64,
    sums: Vec<u64>,
}

impl Summing {
    /// For bytes of an object of `size` that come from `start` on.
    pub(super) fn new(size: u64, start: u64) -> Self {
        Self { size, first: start.div_ceil(PIECE_BYTES), sums: Vec::new() }
    }

    /// More is there: `bytes` are all that came, those of the object from `offset` on.
    pub fn on_bytes(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        loop {
            let start = (self.first + self.sums.len() as u64) * PIECE_BYTES;
            let piece_end = (start + PIECE_BYTES).min(self.size);
            if start < offset || start >= piece_end || piece_end > end {
                return;
            }
            self.sums.push(checksum(&bytes[(start - offset) as usize..(piece_end - offset) as usize]));
        }
    }

    /// The sums of `pieces`, if all of them were made.
    pub(super) fn of(&self, pieces: &Range<u64>) -> Option<&[u64]> {
        let from = usize::try_from(pieces.start.checked_sub(self.first)?).ok()?;
        self.sums.get(from..from + (pieces.end - pieces.start) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = PIECE_BYTES as usize;

    #[test]
    fn whole_pieces_are_summed_however_their_bytes_come() {
        let bytes: Vec<u8> = (0..4 * PIECE + 77).map(|at| (at / 3) as u8).collect();
        let size = bytes.len() as u64;
        let expected: Vec<u64> = bytes.chunks(PIECE).map(checksum).collect();
        for step in [1000, PIECE, 3 * PIECE, bytes.len()] {
            // From within the first piece on: that one is not whole.
            let mut summing = Summing::new(size, 10);
            for end in (10..bytes.len()).step_by(step).chain([bytes.len()]) {
                summing.on_bytes(10, &bytes[10..end]);
            }
            assert_eq!(summing.of(&(1..5)), Some(&expected[1..]), "{step}");
            assert_eq!((summing.of(&(3..4)), summing.of(&(0..2)), summing.of(&(4..6))), (Some(&expected[3..4]), None, None));
        }
    }

    #[test]
    fn a_piece_that_is_not_all_there_has_no_sum() {
        let bytes = vec![1; 2 * PIECE - 1];
        let mut summing = Summing::new(10 * PIECE_BYTES, 3 * PIECE_BYTES);
        summing.on_bytes(3 * PIECE_BYTES, &bytes);
        assert_eq!(summing.of(&(3..4)), Some(&[checksum(&bytes[..PIECE])][..]));
        assert_eq!(summing.of(&(3..5)), None);
    }
}
