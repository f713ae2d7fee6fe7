//! What is in a map: whose bytes lie in the file beside it, and for each piece its checksum. It reads and writes no file.
//! Invariant: a slot that was torn, belongs to another piece or to another object does not name a piece.

use twox_hash::XxHash3_64;

use crate::store::{ETag, Key};

/// Unit of checksums: what an isolated random read fetches. The last piece of an object may be shorter.
pub const PIECE_BYTES: u64 = 128 << 10;
/// Pieces of a chunk.
pub(super) const CHUNK_PIECES: u64 = 32;
/// Unit of eviction, so that the index of 500 GB has 125,000 entries.
pub const CHUNK_BYTES: u64 = PIECE_BYTES * CHUNK_PIECES;

/// The last two digits are the version of the format.
const MAGIC: &[u8; 8] = b"spill 02";
/// Magic, length of the header with its checksum, size of the object.
const LENGTH_AT: usize = 8;
const SIZE_AT: usize = 16;
/// What the ledger was charged for this object, in which count, the bytes of its pieces, and whether the kernel was given its data. They
/// change, so the header's checksum does not cover them.
pub(super) const CHARGE_AT: u64 = 24;
pub(super) const CHARGE_BYTES: usize = 32;
const TEXTS_AT: usize = 56;
/// A key has at most 1024 bytes, the rest is short: what claims more is not ours.
const LONGEST: usize = 16 << 10;
pub(super) const SLOT_BYTES: u64 = 16;

/// Whose objects they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// As the store was asked, so that two stores with a bucket of the same name are told apart.
    pub endpoint: String,
    pub bucket: String,
}

/// The name of an object version's files. Two objects of the same name are told apart by their headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    pub key: u64,
    pub etag: u64,
}

impl Name {
    /// The fan-out directory.
    pub fn fan(self) -> u8 {
        (self.key >> 56) as u8
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (key, etag) = text.split_once('-')?;
        let number = |text: &str| (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
        let name = Self { key: number(key)?, etag: number(etag)? };
        // Capitals and signs are numbers too, but not our names.
        (name.to_string() == text).then_some(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{:016x}", self.key, self.etag)
    }
}

/// The part of a map that never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// As it is written, with a charge of 0.
    bytes: Vec<u8>,
    name: Name,
    size: u64,
    sum: u64,
    /// Before it: whose object it is. From there on: which version.
    etag_at: usize,
}

impl Header {
    pub fn new(identity: &Identity, key: &Key, etag: &ETag, size: u64) -> Self {
        let texts = [identity.endpoint.as_bytes(), identity.bucket.as_bytes(), key.as_bytes(), etag.as_str().as_bytes()];
        let mut bytes = vec![0; TEXTS_AT];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[SIZE_AT..SIZE_AT + 8].copy_from_slice(&size.to_le_bytes());
        for text in texts {
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text);
        }
        let etag_at = bytes.len() - etag.as_str().len() - 8;
        // Slots begin behind the checksum, aligned to their size.
        bytes.resize((bytes.len() + 8).next_multiple_of(SLOT_BYTES as usize) - 8, 0);
        let length = bytes.len() as u64 + 8;
        bytes[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&length.to_le_bytes());
        let sum = XxHash3_64::oneshot(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        Self { bytes, name: name_of(texts), size, sum, etag_at }
    }

    /// How long the header is that begins with `start`; none: it is not one.
    pub fn length(start: &[u8]) -> Option<usize> {
        let length = usize::try_from(number(start, LENGTH_AT)?).ok()?;
        let plausible = (TEXTS_AT + 8..=LONGEST).contains(&length) && length.is_multiple_of(SLOT_BYTES as usize);
        (start.starts_with(MAGIC) && plausible).then_some(length)
    }

    /// The header that `found` is, when it is one and undamaged.
    pub fn parse(found: &[u8]) -> Option<Self> {
        let length = Self::length(found)?;
        let mut bytes = found.get(..length)?.to_vec();
        bytes[CHARGE_AT as usize..CHARGE_AT as usize + CHARGE_BYTES].fill(0);
        let sum = number(&bytes, length - 8)?;
        if XxHash3_64::oneshot(&bytes[..length - 8]) != sum {
            return None;
        }
        let (mut texts, mut at) = ([&b""[..]; 4], TEXTS_AT);
        for text in &mut texts {
            let len = usize::try_from(number(&bytes, at)?).ok()?;
            *text = bytes.get(at + 8..(at + 8).checked_add(len)?)?;
            at += 8 + len;
        }
        let etag_at = at - texts[3].len() - 8;
        let (name, size) = (name_of(texts), number(&bytes, SIZE_AT)?);
        Some(Self { bytes, name, size, sum, etag_at })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn name(&self) -> Name {
        self.name
    }

    /// Whether both are of the same object.
    pub fn is_version_of(&self, other: &Self) -> bool {
        self.bytes[TEXTS_AT..self.etag_at] == other.bytes[TEXTS_AT..other.etag_at]
    }

    /// Whether it is of an object in the same bucket whose key begins with that of `prefix`.
    pub fn is_below(&self, prefix: &Self) -> bool {
        let (Some(own), Some(wanted)) = (self.place(), prefix.place()) else { return false };
        own[..2] == wanted[..2] && own[2].starts_with(wanted[2])
    }

    /// Endpoint, bucket and key.
    fn place(&self) -> Option<[&[u8]; 3]> {
        let (mut texts, mut at) = ([&b""[..]; 3], TEXTS_AT);
        for text in &mut texts {
            let len = usize::try_from(number(&self.bytes, at)?).ok()?;
            *text = self.bytes.get(at + 8..(at + 8).checked_add(len)?)?;
            at += 8 + len;
        }
        Some(texts)
    }

    /// The length of the object.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn pieces(&self) -> u64 {
        self.size.div_ceil(PIECE_BYTES)
    }

    /// How long a piece is.
    pub fn piece_len(&self, piece: u64) -> usize {
        (self.size - piece * PIECE_BYTES).min(PIECE_BYTES) as usize
    }

    /// Where the slot of `piece` lies in the map.
    pub fn slot_at(&self, piece: u64) -> u64 {
        self.bytes.len() as u64 + piece * SLOT_BYTES
    }

    /// The slot of `piece`, whose content has the checksum `sum`.
    pub fn slot(&self, piece: u64, sum: u64) -> [u8; SLOT_BYTES as usize] {
        let mut slot = [0; SLOT_BYTES as usize];
        slot[..8].copy_from_slice(&sum.to_le_bytes());
        slot[8..].copy_from_slice(&self.tag(piece, sum).to_le_bytes());
        slot
    }

    /// The checksums in the slots of the pieces from `first` on; none for a piece that is not there.
    pub fn sums(&self, first: u64, slots: &[u8]) -> Vec<Option<u64>> {
        let read = |(piece, slot): (u64, &[u8])| {
            let (sum, tag) = (number(slot, 0)?, number(slot, 8)?);
            (tag == self.tag(piece, sum)).then_some(sum)
        };
        (first..).zip(slots.chunks_exact(SLOT_BYTES as usize)).map(read).collect()
    }

    fn tag(&self, piece: u64, sum: u64) -> u64 {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes[8..16].copy_from_slice(&piece.to_le_bytes());
        bytes[16..].copy_from_slice(&self.sum.to_le_bytes());
        XxHash3_64::oneshot(&bytes)
    }
}

/// The checksum of a piece.
pub(super) fn checksum(piece: &[u8]) -> u64 {
    XxHash3_64::oneshot(piece)
}

fn name_of([endpoint, bucket, key, etag]: [&[u8]; 4]) -> Name {
    let hash = |texts: &[&[u8]]| {
        let prefixed: Vec<u8> = texts.iter().flat_map(|text| [&(text.len() as u64).to_le_bytes()[..], text].concat()).collect();
        XxHash3_64::oneshot(&prefixed)
    };
    Name { key: hash(&[endpoint, bucket, key]), etag: hash(&[etag]) }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(eight.try_into().expect("eight bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bucket: &str, key: &str) -> Header {
        let identity = Identity { endpoint: "http://store".into(), bucket: bucket.into() };
        Header::new(&identity, &key.into(), &"\"etag\"".into(), 3 * PIECE_BYTES + 5)
    }

    #[test]
    fn a_header_is_read_as_it_was_written_whatever_was_charged() {
        let written = header("bucket", "a/key");
        let mut bytes = written.bytes().to_vec();
        bytes[CHARGE_AT as usize] = 77;
        bytes.extend_from_slice(b"slots");
        assert_eq!(Header::parse(&bytes), Some(written.clone()));
        assert_eq!((written.pieces(), written.piece_len(0), written.piece_len(3)), (4, PIECE_BYTES as usize, 5));
        assert!(written.slot_at(0).is_multiple_of(SLOT_BYTES));
    }

    #[test]
    fn a_header_with_any_other_byte_is_none() {
        let written = header("bucket", "a/key");
        for at in (0..written.bytes().len()).filter(|at| !(24..56).contains(at)) {
            let mut bytes = written.bytes().to_vec();
            bytes[at] ^= 0x20;
            assert_eq!(Header::parse(&bytes), None, "{at}");
        }
        assert_eq!(Header::parse(&written.bytes()[..60]), None);
        assert_eq!(Header::parse(b""), None);
    }

    #[test]
    fn where_one_text_ends_makes_another_name() {
        assert_ne!(header("bucket", "a/key").name(), header("bucketa", "/key").name());
        assert_eq!(header("bucket", "a/key").name(), header("bucket", "a/key").name());
    }

    #[test]
    fn a_name_is_read_as_it_is_shown_and_nothing_else_is() {
        let name = Name { key: 0xab00_0000_0000_0001, etag: 7 };
        assert_eq!((Name::parse(&name.to_string()), name.fan()), (Some(name), 0xab));
        for text in ["", "-", "ab-cd", "AB00000000000001-0000000000000007", "+b00000000000001-0000000000000007"] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_slot_of_another_piece_or_object_names_nothing() {
        let (ours, theirs) = (header("bucket", "a"), header("bucket", "b"));
        let slots = [ours.slot(4, 11), ours.slot(4, 11), theirs.slot(6, 11), [0; 16]].concat();
        assert_eq!(ours.sums(4, &slots), [Some(11), None, None, None]);
        let mut torn = ours.slot(4, 11);
        torn[8..].fill(0);
        assert_eq!(ours.sums(4, &torn), [None]);
    }
}
