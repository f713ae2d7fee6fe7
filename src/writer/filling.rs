//! The bytes of one part while it is written and sent: a buffer as long as the part, into which they are copied, or what was received, where it
//! lies. Invariant: what was received is never changed, and overlaps nothing; who changes a byte has a buffer first.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::memory::{Buffer, Room};
use crate::store::Body;

/// See the module.
#[derive(Debug)]
pub(super) enum Filling {
    Buffer(Buffer),
    Received {
        /// By where in the part they begin.
        pieces: BTreeMap<usize, Bytes>,
        room: Room,
    },
}

impl From<Buffer> for Filling {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<Room> for Filling {
    fn from(room: Room) -> Self {
        Self::Received { pieces: BTreeMap::new(), room }
    }
}

impl Filling {
    /// What it takes of the share, and how many bytes there may be.
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Received { room, .. } => room.len(),
        }
    }

    /// The buffer, if there is one.
    pub fn buffer(&mut self) -> Option<&mut Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Received { .. } => None,
        }
    }

    /// Whether it takes what was received; otherwise it is copied into the buffer.
    pub fn takes_received(&self) -> bool {
        matches!(self, Self::Received { .. })
    }

    /// Whether nothing that was received is in `inside`. What was cut off may be.
    pub fn is_free(&self, inside: &Range<usize>) -> bool {
        self.slices(inside.clone()).is_empty()
    }

    /// Takes `bytes`, which nothing that is there overlaps, as those from `at` on.
    pub fn put(&mut self, at: usize, bytes: Bytes) {
        match self {
            Self::Buffer(buffer) => buffer.bytes_mut()[at..at + bytes.len()].copy_from_slice(&bytes),
            Self::Received { pieces, .. } => drop(pieces.insert(at, bytes)),
        }
    }

    /// What is there of `range`, with where it begins, in order. A buffer is there as a whole: what of it was written others know.
    pub fn slices(&self, range: Range<usize>) -> Vec<(usize, &[u8])> {
        match self {
            Self::Buffer(buffer) => vec![(range.start, &buffer.bytes()[range])],
            Self::Received { pieces, .. } => {
                let first = pieces.range(..=range.start).next_back().map_or(range.start, |(&at, _)| at);
                pieces.range(first..range.end).filter_map(|(&at, bytes)| inside(at, bytes, &range)).collect()
            }
        }
    }

    /// The first `len` bytes, all of which are there, for a request, without a copy.
    pub fn body(self: &Arc<Self>, len: usize) -> Body {
        match &**self {
            Self::Buffer(_) => Bytes::from_owner(Shared(Arc::clone(self))).slice(..len).into(),
            Self::Received { pieces, .. } => {
                let body: Body =
                    pieces.iter().filter(|&(&at, _)| at < len).map(|(&at, bytes)| bytes.slice(..bytes.len().min(len - at))).collect();
                assert_eq!(body.len(), len, "a part is sent when all of it is there");
                body
            }
        }
    }
}

fn inside<'a>(at: usize, bytes: &'a [u8], range: &Range<usize>) -> Option<(usize, &'a [u8])> {
    let (start, end) = (at.max(range.start), (at + bytes.len()).min(range.end));
    (start < end).then(|| (start, &bytes[start - at..end - at]))
}

struct Shared(Arc<Filling>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        match &*self.0 {
            Filling::Buffer(buffer) => buffer.bytes(),
            Filling::Received { .. } => unreachable!("pieces are shared one by one"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{self, Budget};
    use crate::units::ByteSize;
    use crate::writer::memory::Share;
    use crate::writer::parts::Limits;

    fn share() -> Arc<Share> {
        Share::new(Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) }), 1 << 20, &Limits::default())
    }

    fn joined(slices: &[(usize, &[u8])]) -> Vec<(usize, String)> {
        slices.iter().map(|(at, bytes)| (*at, String::from_utf8_lossy(bytes).into_owned())).collect()
    }

    #[test]
    fn what_was_received_is_found_where_it_was_put() {
        let mut filling = Filling::from(share().try_room(1 << 20).unwrap());
        assert_eq!((filling.len(), filling.takes_received(), filling.buffer().is_none()), (1 << 20, true, true));
        filling.put(4, Bytes::from_static(b"lass"));
        filling.put(20, Bytes::from_static(b"far"));
        assert!(!filling.is_free(&(7..9)) && !filling.is_free(&(0..5)) && filling.is_free(&(8..20)) && filling.is_free(&(0..4)));
        filling.put(0, Bytes::from_static(b"wind"));
        assert_eq!(joined(&filling.slices(2..22)), [(2, "nd".into()), (4, "lass".into()), (20, "fa".into())]);
        assert_eq!(joined(&filling.slices(5..7)), [(5, "as".into())]);
        assert_eq!(joined(&filling.slices(8..20)), []);
        let filling = Arc::new(filling);
        assert_eq!((filling.body(6).joined(), filling.body(8).pieces().len()), (Bytes::from_static(b"windla"), 2));
    }

    #[test]
    fn a_buffer_takes_what_was_received_as_a_copy() {
        let mut filling = Filling::from(share().try_buffer(100).unwrap());
        assert!(!filling.takes_received());
        filling.put(0, Bytes::from_static(b"windlass"));
        filling.buffer().unwrap().bytes_mut()[4..8].copy_from_slice(b"fall");
        assert_eq!(joined(&filling.slices(2..8)), [(2, "ndfall".into())]);
        assert_eq!(Arc::new(filling).body(8).joined(), "windfall");
    }
}
