//! Where the bytes of a bench go: into one piece of memory, over and over, so that nothing but their coming is measured, and what whoever asked does with each stretch. Invariant: a
//! request of any length holds that piece and no more.

use std::sync::Arc;

use crate::budget::{Budget, Lease};
use crate::store::RangeSink;
use crate::sys::Window;
use crate::transfer::{Error, Result};

/// What a request hands over at once: less is more system calls, more gains nothing.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// Memory for the requests of one worker.
#[derive(Debug)]
pub(super) struct Piece(Window<Lease>);

impl Piece {
    /// As soon as the budget has it.
    pub async fn lease(budget: &Arc<Budget>, bytes: u64) -> Result<Self> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Self(Window::new(budget.lease(bytes).await.map_err(Error::Memory)?, bytes)))
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }

    /// A sink for `len` bytes that shows each stretch that came.
    pub fn away<F: FnMut(&[u8]) + Send>(&mut self, len: u64, on_bytes: F) -> Away<'_, F> {
        Away { piece: self, missing: len, on_bytes }
    }
}

/// See the module.
pub(super) struct Away<'a, F> {
    piece: &'a mut Piece,
    missing: u64,
    on_bytes: F,
}

impl<F: FnMut(&[u8]) + Send> RangeSink for Away<'_, F> {
    fn spare(&mut self) -> &mut [u8] {
        let memory = self.piece.bytes_mut();
        let len = usize::try_from(self.missing).unwrap_or(usize::MAX).min(memory.len());
        &mut memory[..len]
    }

    fn advance(&mut self, n: usize) {
        self.missing -= n as u64;
        (self.on_bytes)(&self.piece.0.bytes()[..n]);
    }
}
