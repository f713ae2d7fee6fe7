//! Whether what was read of an object is what the store says that the object is: the sum that it tells, and the one that is made of the bytes as they
//! come. It reads no header and sends nothing.
//!
//! A CRC costs 0.1 ns a byte and is taken where the store has one. The MD5 that many ETags are costs 1.6 and is what is left for objects that were
//! written without a checksum. No answer says whether its tag is an MD5. One that was seen to be the MD5 of its content, read or written, shows
//! what the tags of the bucket are; until then, two reads that agree with each other and not with the tag are taken for right.

use std::fmt;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest as Crc};
use md5::{Digest, Md5};
use sha2::Sha256;

use super::requests::Tags;
use super::{Crc64, Error, ErrorKind, Key, ObjectStore, Op, Polynomial, RangeRequest, RangeSink, Result};

/// The sum of a whole object as its store tells it.
#[derive(Clone, Debug)]
pub struct ObjectSum(Told);

#[derive(Clone, Debug)]
enum Told {
    Crc64(Crc64),
    Crc32c(u32),
    Crc32(u32),
    Sha256([u8; 32]),
    /// What the ETag may be.
    Md5([u8; 16], Arc<Tags>),
}

impl ObjectSum {
    /// `x-amz-checksum-crc32c`.
    pub(super) fn crc32c(bytes: [u8; 4]) -> Self {
        Self(Told::Crc32c(u32::from_be_bytes(bytes)))
    }

    /// `x-amz-checksum-crc32`.
    pub(super) fn crc32(bytes: [u8; 4]) -> Self {
        Self(Told::Crc32(u32::from_be_bytes(bytes)))
    }

    /// `x-amz-checksum-sha256`.
    pub(super) fn sha256(bytes: [u8; 32]) -> Self {
        Self(Told::Sha256(bytes))
    }

    /// What an ETag may be.
    pub(super) fn md5(bytes: [u8; 16], tags: Arc<Tags>) -> Self {
        Self(Told::Md5(bytes, tags))
    }
}

impl From<Crc64> for ObjectSum {
    fn from(crc: Crc64) -> Self {
        Self(Told::Crc64(crc))
    }
}

impl PartialEq for ObjectSum {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for ObjectSum {}

impl fmt::Display for ObjectSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Told::Crc64(crc) => write!(f, "{} {:016x}", crc.polynomial, crc.value),
            Told::Crc32c(sum) => write!(f, "CRC-32C {sum:08x}"),
            Told::Crc32(sum) => write!(f, "CRC-32 {sum:08x}"),
            Told::Sha256(sum) => write!(f, "SHA-256 {}", hex::encode(sum)),
            Told::Md5(sum, _) => write!(f, "MD5 {}", hex::encode(sum)),
        }
    }
}

enum Making {
    Crc64(Polynomial, super::Summing),
    Crc32c(Crc),
    Crc32(Crc),
    Sha256(Box<Sha256>),
    Md5(Box<Md5>, Arc<Tags>),
}

/// Makes the sum of the bytes of an object, from the first to the last, and compares it with the one that was told.
pub struct Checking {
    told: ObjectSum,
    making: Making,
}

impl fmt::Debug for Checking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checking").field("told", &self.told).finish_non_exhaustive()
    }
}

/// The sum that was told, and the one of what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub expected: ObjectSum,
    pub actual: ObjectSum,
}

impl Mismatch {
    /// Whether it shows nothing but that the tags of the bucket are no MD5s: the bytes were the same when they came the time before.
    pub fn is_of_the_tag(&self, before: &Self) -> bool {
        match &self.expected.0 {
            Told::Md5(_, tags) if self == before && !tags.are_md5s() => {
                tags.record(false);
                true
            }
            _ => false,
        }
    }

    /// Whether the content is wrong without doubt: what was told is a checksum, or the tag of a bucket whose tags were seen to be MD5s.
    pub fn is_proof(&self) -> bool {
        !matches!(&self.expected.0, Told::Md5(_, tags) if !tags.are_md5s())
    }

    /// As an error of the store layer.
    pub fn into_error(self, key: &Key) -> Error {
        let message = format!("the content that was read has {}, the store tells {}", self.actual, self.expected);
        Error::new(ErrorKind::Corrupt, Op::Get, key, message)
    }
}

impl Checking {
    /// Begins. None where nothing can be compared: the tags of the bucket are known to be no MD5s.
    pub fn against(told: &ObjectSum) -> Option<Self> {
        let making = match &told.0 {
            Told::Crc64(crc) => Making::Crc64(crc.polynomial, crc.polynomial.summing()),
            Told::Crc32c(_) => Making::Crc32c(Crc::new(CrcAlgorithm::Crc32Iscsi)),
            Told::Crc32(_) => Making::Crc32(Crc::new(CrcAlgorithm::Crc32IsoHdlc)),
            Told::Sha256(_) => Making::Sha256(Box::default()),
            Told::Md5(_, tags) if tags.are_not_md5s() => return None,
            Told::Md5(_, tags) => Making::Md5(Box::default(), tags.clone()),
        };
        Some(Self { told: told.clone(), making })
    }

    /// What comes next.
    pub fn add(&mut self, bytes: &[u8]) {
        match &mut self.making {
            Making::Crc64(_, sum) => sum.add(bytes),
            Making::Crc32c(sum) | Making::Crc32(sum) => sum.update(bytes),
            Making::Sha256(sum) => sum.update(bytes),
            Making::Md5(sum, _) => sum.update(bytes),
        }
    }

    /// All has come.
    ///
    /// # Errors
    /// Both sums, when they differ.
    pub fn finish(self) -> Result<(), Mismatch> {
        let actual = match self.making {
            Making::Crc64(polynomial, sum) => Told::Crc64(Crc64 { polynomial, value: sum.value() }),
            // The upper half of a CRC-32 is empty.
            Making::Crc32c(sum) => Told::Crc32c(sum.finalize() as u32),
            Making::Crc32(sum) => Told::Crc32(sum.finalize() as u32),
            Making::Sha256(sum) => Told::Sha256((*sum).finalize().into()),
            Making::Md5(sum, tags) => Told::Md5((*sum).finalize().into(), tags),
        };
        let actual = ObjectSum(actual);
        if actual == self.told {
            if let Told::Md5(_, tags) = &actual.0 {
                tags.record(true);
            }
            return Ok(());
        }
        Err(Mismatch { expected: self.told, actual })
    }
}

/// Fetches all of an object into `room`, which is as long as the range, and compares it with the sum that the store tells. When they differ it
/// is fetched once more. `on_first_byte` hears when bytes begin to come.
///
/// # Errors
/// As [`ObjectStore::get_range`], and [`ErrorKind::Corrupt`] when the sums differ again. Then what is in `room` is not to be used.
pub async fn get_checked(
    store: &dyn ObjectStore,
    request: &RangeRequest,
    room: &mut [u8],
    mut on_bytes: impl FnMut(usize) + Send,
) -> Result<()> {
    let mut before: Option<Mismatch> = None;
    loop {
        let mut sink = Checked { room: &mut *room, filled: 0, checking: None, on_bytes: &mut on_bytes };
        store.get_range(request, &mut sink).await?;
        let Some(Err(mismatch)) = sink.checking.map(Checking::finish) else { return Ok(()) };
        match before {
            None => {
                tracing::debug!(key = %request.key, expected = %mismatch.expected, actual = %mismatch.actual, "what was read is not the object, reading it again");
                before = Some(mismatch);
            }
            Some(before) if mismatch.is_of_the_tag(&before) => return Ok(()),
            Some(_) => {
                tracing::error!(key = %request.key, expected = %mismatch.expected, actual = %mismatch.actual, "what was read twice is not the object that the store tells of");
                return Err(mismatch.into_error(&request.key));
            }
        }
    }
}

/// A sink that makes the sum of what comes.
struct Checked<'a, F> {
    room: &'a mut [u8],
    filled: usize,
    checking: Option<Checking>,
    on_bytes: &'a mut F,
}

impl<F: FnMut(usize) + Send> RangeSink for Checked<'_, F> {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.room[self.filled..]
    }

    fn advance(&mut self, n: usize) {
        (self.on_bytes)(n);
        if let Some(checking) = &mut self.checking {
            checking.add(&self.room[self.filled..self.filled + n]);
        }
        self.filled += n;
    }

    fn wants_sum(&self) -> bool {
        true
    }

    fn on_sum(&mut self, sum: &ObjectSum) {
        // An answer that came before and broke off told the same.
        if self.filled == 0 {
            self.checking = Checking::against(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(sum: &ObjectSum, content: &[u8]) -> Result<(), Mismatch> {
        let mut checking = Checking::against(sum).unwrap();
        content.chunks(4).for_each(|piece| checking.add(piece));
        checking.finish()
    }

    #[test]
    fn sums_are_those_of_the_published_check_values() {
        let tags = Arc::new(Tags::default());
        let hash = |text: &str| hex::decode(text).unwrap();
        let md5: [u8; 16] = hash("25f9e794323b453885f5181f1b624d0b").try_into().unwrap();
        let sha256: [u8; 32] = hash("15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225").try_into().unwrap();
        for sum in [
            ObjectSum::from(Crc64 { polynomial: Polynomial::Nvme, value: 0xae8b_1486_0a79_9888 }),
            ObjectSum::from(Crc64 { polynomial: Polynomial::Ecma, value: 0x995d_c9bb_df19_39fa }),
            ObjectSum::crc32c(0xe306_9283_u32.to_be_bytes()),
            ObjectSum::crc32(0xcbf4_3926_u32.to_be_bytes()),
            ObjectSum::sha256(sha256),
            ObjectSum::md5(md5, tags.clone()),
        ] {
            assert_eq!(finish(&sum, b"123456789"), Ok(()), "{sum}");
            assert_eq!(finish(&sum, b"123456788").unwrap_err().expected, sum);
        }
        assert!(tags.are_md5s());
    }

    #[test]
    fn a_tag_is_no_md5_when_two_reads_agree_and_no_tag_was_one() {
        let tags = Arc::new(Tags::default());
        let sum = ObjectSum::md5([7; 16], tags.clone());
        let (first, second, other) = (finish(&sum, b"a").unwrap_err(), finish(&sum, b"a").unwrap_err(), finish(&sum, b"b").unwrap_err());
        assert!(!other.is_of_the_tag(&first), "the bytes differ");
        assert!(second.is_of_the_tag(&first) && tags.are_not_md5s());
        assert!(Checking::against(&sum).is_none(), "it is not made again");
        tags.record(true);
        assert!(!second.is_of_the_tag(&first), "where tags are MD5s the object is damaged");
        let crc = ObjectSum::crc32([0; 4]);
        assert!(!finish(&crc, b"a").unwrap_err().is_of_the_tag(&finish(&crc, b"a").unwrap_err()));
    }
}
