//! Content that is computed instead of stored: any object of any size, verifiable at any offset.
//!
//! One block of pseudo-random bytes repeats for ever, entered at a place that depends on the seed. Its length is a
//! prime just above 1 MiB, so no two chunks, parts or pages (all multiples of powers of two) hold the same bytes:
//! data that lands at the wrong offset is seen. Slices are cut from the block without a copy.

use std::ops::Range;
use std::sync::OnceLock;

use bytes::Bytes;

use crate::store::Key;

/// The smallest prime above 2^20.
const PERIOD: u64 = 1_048_583;

/// The content of one version of a synthetic object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    seed: u64,
}

impl Synthetic {
    /// The content that belongs to a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed: mix(seed) % PERIOD }
    }

    /// The content of version `version` of `key`. Different versions differ at practically every offset.
    pub fn of(key: &Key, version: u64) -> Self {
        // FNV-1a: stable over releases and platforms, which std's hashers do not promise.
        let hash = key.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self::new(hash ^ mix(version))
    }

    /// The bytes of `range`, in pieces cut from the one block.
    pub fn pieces(self, range: Range<u64>) -> impl Iterator<Item = Bytes> + Send {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let from = ((at % PERIOD) + self.seed) % PERIOD;
            let len = (PERIOD - from).min(range.end - at);
            at += len;
            Some(block().slice(from as usize..(from + len) as usize))
        })
    }

    /// Writes the bytes that start at `offset` into `buf`.
    pub fn fill(self, offset: u64, buf: &mut [u8]) {
        let mut at = 0;
        for piece in self.pieces(offset..offset + buf.len() as u64) {
            buf[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
    }

    /// Whether `bytes` are the content that starts at `offset`.
    pub fn matches(self, offset: u64, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.pieces(offset..offset + bytes.len() as u64).all(|piece| {
            let (here, after) = rest.split_at(piece.len());
            rest = after;
            here == piece
        })
    }
}

/// The block that all synthetic content is cut from.
fn block() -> &'static Bytes {
    static BLOCK: OnceLock<Bytes> = OnceLock::new();
    BLOCK.get_or_init(|| {
        let words = (0..PERIOD.div_ceil(8)).flat_map(|i| mix(i).to_le_bytes());
        words.take(PERIOD as usize).collect::<Vec<u8>>().into()
    })
}

/// The output function of SplitMix64.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(content: Synthetic, range: Range<u64>) -> Vec<u8> {
        content.pieces(range).flatten().collect()
    }

    #[test]
    fn any_range_is_a_slice_of_the_whole() {
        let content = Synthetic::new(7);
        let whole = take(content, 0..3_000_000);
        for range in [0..1, 1_048_570..1_048_600, 2_000_000..3_000_000] {
            assert_eq!(take(content, range.clone()), &whole[range.start as usize..range.end as usize]);
        }
        let mut buf = vec![0; 100_000];
        content.fill(1_000_000, &mut buf);
        assert_eq!(buf, &whole[1_000_000..1_100_000]);
    }

    #[test]
    fn bytes_at_the_wrong_place_or_of_another_version_are_noticed() {
        let content = Synthetic::of(&"a".into(), 1);
        let mut chunk = vec![0; 1 << 16];
        content.fill(4 << 20, &mut chunk);
        assert!(content.matches(4 << 20, &chunk));
        for wrong in [0_u64, 1 << 20, 8 << 20, 1 << 30] {
            assert!(!content.matches(wrong, &chunk), "offset {wrong}");
        }
        assert!(!Synthetic::of(&"a".into(), 2).matches(4 << 20, &chunk));
        assert!(!Synthetic::of(&"b".into(), 1).matches(4 << 20, &chunk));
        chunk[40_000] ^= 1;
        assert!(!content.matches(4 << 20, &chunk));
    }

    #[test]
    fn it_works_beyond_any_real_size() {
        let content = Synthetic::new(1);
        let mut buf = [0; 64];
        content.fill(u64::MAX - 100, &mut buf);
        assert!(content.matches(u64::MAX - 100, &buf));
    }
}
