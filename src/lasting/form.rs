//! How a row is written: numbers and texts one after another. A field that a later version adds comes last; who reads a row that ends before it
//! finds a zero, or nothing. Not serde: an open writes two rows, and the text of JSON costs more than all else that is done for it.

/// A row that is being written.
#[derive(Debug, Default)]
pub struct Form(Vec<u8>);

impl Form {
    /// The row so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a number.
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    /// Adds bytes with their length.
    #[must_use]
    pub fn text(self, bytes: &[u8]) -> Self {
        let mut form = self.number(bytes.len() as u64);
        form.0.extend_from_slice(bytes);
        form
    }
}

/// A row that is being read.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a>(pub &'a [u8]);

impl<'a> Source<'a> {
    /// The next number; 0 behind the end.
    pub fn number(&mut self) -> u64 {
        let Some((number, rest)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return 0;
        };
        self.0 = rest;
        u64::from_le_bytes(*number)
    }

    /// The next bytes; none behind the end.
    pub fn text(&mut self) -> &'a [u8] {
        let len = usize::try_from(self.number()).unwrap_or(usize::MAX).min(self.0.len());
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written_and_missing_ones_are_empty() {
        let form = Form::default().number(7).text(b"abc").text(b"").number(u64::MAX);
        let mut row = Source(form.bytes());
        assert_eq!((row.number(), row.text(), row.text(), row.number()), (7, &b"abc"[..], &b""[..], u64::MAX));
        assert_eq!((row.number(), row.text()), (0, &b""[..]));
        let mut cut = Source(&[9, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((cut.text(), cut.number()), (&[1, 2][..], 0));
    }
}
