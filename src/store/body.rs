//! The body of a request that sends an object or a part: bytes that may lie in several places and leave one piece after another. Invariant:
//! no piece is empty, and clones share the bytes.

use bytes::Bytes;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Body {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Body {
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, in their order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// All bytes beside each other: a copy, unless they lie so.
    pub fn joined(&self) -> Bytes {
        match &self.pieces[..] {
            [] => Bytes::new(),
            [one] => one.clone(),
            pieces => pieces.concat().into(),
        }
    }
}

impl FromIterator<Bytes> for Body {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let pieces: Vec<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let len = pieces.iter().map(Bytes::len).sum();
        Self { pieces, len }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::from_iter([bytes])
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_where_they_are_and_are_joined_when_somebody_asks() {
        let whole = Bytes::from_static(b"windlass");
        let body: Body = [whole.slice(..4), Bytes::new(), whole.slice(4..)].into_iter().collect();
        assert_eq!((body.len(), body.is_empty(), body.pieces().len()), (8, false, 2));
        assert!(body.clone().pieces().iter().zip(body.pieces()).all(|(one, other)| one.as_ptr() == other.as_ptr()));
        assert_eq!(body.joined(), whole);
        assert_eq!(Body::from(whole.clone()).joined().as_ptr(), whole.as_ptr());
        assert!(Body::from("").is_empty() && Body::default().joined().is_empty());
    }
}
