//! A buffer of one owner who writes anywhere in it, and lends it for reading. Invariant: whoever holds a `Window` is
//! the only one who can reach its memory, so Rust's own rules for `&` and `&mut` are all that is needed.

use std::fmt;
use std::slice;

use super::Memory;

/// The first `len` bytes of a mapping. What was not written yet is unspecified: zeros, or what the last user left.
pub struct Window<M> {
    memory: M,
    len: usize,
}

impl<M: AsRef<Memory> + AsMut<Memory>> Window<M> {
    /// A window over all of `memory` that is used. That `M` can be borrowed mutably shows that nobody shares it.
    pub fn new(mut memory: M, len: usize) -> Self {
        assert!(len <= memory.as_mut().len(), "the buffer is as long as what it shall hold");
        Self { memory, len }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the window shows nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        let memory = self.memory.as_ref();
        assert!(self.len <= memory.len(), "a mapping does not shrink");
        // SAFETY: the range lies in the mapping (just checked), which is initialised (zero pages or earlier data) and lives
        // as long as `self`. Only `bytes_mut` writes to it, and that borrows the window mutably.
        unsafe { slice::from_raw_parts(memory.start().as_ptr(), self.len) }
    }

    /// All bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let memory = self.memory.as_mut();
        assert!(self.len <= memory.len(), "a mapping does not shrink");
        // SAFETY: as above. The mutable borrow of the window is the only way to the memory: it was handed over by value, and
        // `AsMut` keeps types out that share it (`Arc`, `&`).
        unsafe { slice::from_raw_parts_mut(memory.start().as_ptr(), self.len) }
    }
}

impl<M> fmt::Debug for Window<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_anywhere_is_read_there() {
        let mut window = Window::new(Memory::map(4096).unwrap(), 100);
        window.bytes_mut()[90..].fill(7);
        window.bytes_mut()[..10].fill(1);
        assert_eq!((window.len(), window.is_empty()), (100, false));
        assert_eq!(window.bytes()[..10], [1; 10]);
        assert_eq!(window.bytes()[10..90], [0; 80]);
        assert_eq!(window.bytes()[90..], [7; 10]);
    }

    #[test]
    fn a_window_goes_to_other_threads_and_back() {
        let mut window = Window::new(Memory::map(64 << 10).unwrap(), 64 << 10);
        window.bytes_mut().fill(3);
        let shared = std::sync::Arc::new(window);
        let readers: Vec<_> =
            (0..4).map(|_| shared.clone()).map(|w| std::thread::spawn(move || w.bytes().iter().all(|&b| b == 3))).collect();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap()));
        let mut window = std::sync::Arc::into_inner(shared).unwrap();
        window.bytes_mut()[0] = 4;
        assert_eq!(window.bytes()[..2], [4, 3]);
    }

    #[test]
    #[should_panic(expected = "as long as what it shall hold")]
    fn a_window_is_not_larger_than_its_memory() {
        let _ = Window::new(Memory::map(4096).unwrap(), 4097);
    }
}
