//! The CRC-64 of an object as stores keep it: two polynomials, and the sum of a whole out of the sums of its parts. Nothing
//! here reads a header. Invariant: the sum of the parts is the sum of their content one after another.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest, checksum, checksum_combine};

use super::{Body, Part};

/// Which CRC-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polynomial {
    /// `x-oss-hash-crc64ecma` of OSS, known as CRC-64/XZ.
    Ecma,
    /// `x-amz-checksum-crc64nvme` of S3.
    Nvme,
}

/// The CRC-64 of an object, in the polynomial of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc64 {
    pub polynomial: Polynomial,
    pub value: u64,
}

impl Polynomial {
    fn algorithm(self) -> CrcAlgorithm {
        match self {
            Self::Ecma => CrcAlgorithm::Crc64Xz,
            Self::Nvme => CrcAlgorithm::Crc64Nvme,
        }
    }

    /// The sum of `content`.
    pub fn of(self, content: &[u8]) -> u64 {
        checksum(self.algorithm(), content)
    }

    /// The sum of all of `body`.
    pub fn of_body(self, body: &Body) -> u64 {
        match body.pieces() {
            [one] => self.of(one),
            pieces => {
                let mut sum = self.summing();
                pieces.iter().for_each(|piece| sum.add(piece));
                sum.value()
            }
        }
    }

    /// A sum of what comes piece by piece.
    pub fn summing(self) -> Summing {
        Summing(Digest::new(self.algorithm()))
    }

    /// The sum of an object that consists of `parts`, when all their sums are known.
    pub fn of_parts(self, parts: &[Part]) -> Option<u64> {
        let algorithm = self.algorithm();
        parts.iter().try_fold(checksum(algorithm, b""), |sum, part| Some(checksum_combine(algorithm, sum, part.crc64?, part.size)))
    }
}

/// As its publishers name it.
impl fmt::Display for Polynomial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ecma => "CRC-64/XZ",
            Self::Nvme => "CRC-64/NVME",
        })
    }
}

/// See [`Polynomial::summing`].
#[derive(Clone, Debug)]
pub struct Summing(Digest);

impl Summing {
    /// What comes next.
    pub fn add(&mut self, content: &[u8]) {
        self.0.update(content);
    }

    /// The sum of all of it.
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(polynomial: Polynomial, content: &[u8]) -> Part {
        Part { number: 1, etag: "\"p\"".into(), size: content.len() as u64, crc64: Some(polynomial.of(content)), crc32c: None }
    }

    #[test]
    fn sums_are_those_of_the_published_check_value() {
        assert_eq!(Polynomial::Ecma.of(b"123456789"), 0x995d_c9bb_df19_39fa);
        assert_eq!(Polynomial::Nvme.of(b"123456789"), 0xae8b_1486_0a79_9888);
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        for polynomial in [Polynomial::Ecma, Polynomial::Nvme] {
            let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
            for cuts in [&[0, 400_000][..], &[0, 1, 400_000], &[0, 70_000, 70_000, 333_333, 400_000]] {
                let parts: Vec<Part> = cuts.windows(2).map(|cut| part(polynomial, &content[cut[0]..cut[1]])).collect();
                assert_eq!(polynomial.of_parts(&parts), Some(polynomial.of(&content)), "{cuts:?}");
            }
        }
    }

    #[test]
    fn a_sum_can_grow_piece_by_piece() {
        for polynomial in [Polynomial::Ecma, Polynomial::Nvme] {
            let mut summing = polynomial.summing();
            summing.add(b"1234");
            summing.add(b"56789");
            assert_eq!(summing.value(), polynomial.of(b"123456789"));
        }
    }

    #[test]
    fn one_unknown_part_makes_the_whole_unknown() {
        let known = part(Polynomial::Nvme, b"a");
        assert_eq!(Polynomial::Nvme.of_parts(&[known.clone(), Part { crc64: None, ..known }]), None);
    }
}
