//! Which bytes of an object: `A-B`, `A-` or `-B`, as people write them. Pure. Invariant: what is resolved lies inside the object.

use std::ops::Range;
use std::str::FromStr;

/// Bytes of an object whose size is not known yet. Both ends are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// `A-B`
    FromTo(u64, u64),
    /// `A-`
    From(u64),
    /// `-B`: which bytes that is depends on whom one asks.
    Last(u64),
}

/// What `-B` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Last {
    /// The last B bytes, as in HTTP.
    #[default]
    Bytes,
    /// Bytes 0 to B, as in ossutil.
    Offset,
}

/// Why a text or a span is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    #[error("must be A-B, A- or -B with whole numbers of bytes, both ends counted, for example 0-99")]
    Form,
    #[error("ends before it begins")]
    Backward,
    #[error("begins at byte {0}, but the object has {1} bytes")]
    Outside(u64, u64),
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let (first, last) = text.split_once('-').ok_or(SpanError::Form)?;
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|_| digits).ok_or(SpanError::Form)
        };
        match (first, last) {
            ("", last) => number(last).map(Self::Last),
            (first, "") => number(first).map(Self::From),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                if first <= last { Ok(Self::FromTo(first, last)) } else { Err(SpanError::Backward) }
            }
        }
    }
}

impl Span {
    /// The bytes of an object of `size` bytes. What reaches beyond its end stops there.
    ///
    /// # Errors
    /// [`SpanError::Outside`] when it begins beyond the end.
    pub fn resolve(self, size: u64, last: Last) -> Result<Range<u64>, SpanError> {
        let (first, end) = match (self, last) {
            (Self::FromTo(first, last), _) => (first, last.saturating_add(1)),
            (Self::From(first), _) => (first, size),
            (Self::Last(n), Last::Bytes) => return Ok(size.saturating_sub(n)..size),
            (Self::Last(n), Last::Offset) => (0, n.saturating_add(1)),
        };
        if first >= size { Err(SpanError::Outside(first, size)) } else { Ok(first..end.min(size)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_count_both_ends_and_stop_at_the_end_of_the_object() {
        for (text, http, ossutil) in [
            ("3-9", 3..10, 3..10),
            ("0-0", 0..1, 0..1),
            ("3-", 3..100, 3..100),
            ("99-", 99..100, 99..100),
            ("-9", 91..100, 0..10),
            ("-0", 100..100, 0..1),
            ("-1000", 0..100, 0..100),
            ("90-18446744073709551615", 90..100, 90..100),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.resolve(100, Last::Bytes), span.resolve(100, Last::Offset)), (Ok(http), Ok(ossutil)), "{text}");
        }
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in ["", "-", "5", "a-b", "1-2-3", "+1-2", " 1-2", "1-2 ", "--5", "99999999999999999999-"] {
            assert_eq!(text.parse::<Span>(), Err(SpanError::Form), "{text}");
        }
        assert_eq!("9-3".parse::<Span>(), Err(SpanError::Backward));
    }

    #[test]
    fn a_span_that_begins_behind_the_end_is_an_error() {
        for (span, size) in [(Span::From(100), 100), (Span::FromTo(100, 200), 100), (Span::From(0), 0)] {
            let Err(SpanError::Outside(_, found)) = span.resolve(size, Last::Bytes) else { panic!("{span:?} of {size}") };
            assert_eq!(found, size);
        }
        assert_eq!(Span::Last(5).resolve(0, Last::Bytes), Ok(0..0));
    }
}
