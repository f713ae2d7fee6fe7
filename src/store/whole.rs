//! A range in memory of its own, for what is small and read whole. It is outside the budget. Invariant: what the store did not send is zeros.

use super::RangeSink;

/// See the module.
#[derive(Debug)]
pub(super) struct Whole {
    pub content: Vec<u8>,
    pub filled: usize,
}

impl Whole {
    /// Room for `len` bytes.
    pub fn new(len: u64) -> Self {
        Self { content: vec![0; len as usize], filled: 0 }
    }
}

impl RangeSink for Whole {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.content[self.filled..]
    }

    fn advance(&mut self, n: usize) {
        self.filled += n;
    }
}
