//! A buffer that one writer fills from the front while any number of readers use what is already there.
//! Invariant: bytes below `filled` never change again; bytes from `filled` on belong to the writer alone.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Memory;

struct Shared<M> {
    memory: M,
    len: usize,
    filled: AtomicUsize,
}

/// Splits `memory` into the half that fills it and the half that reads it; `len` bytes of it are used.
pub fn front<M: AsRef<Memory>>(memory: M, len: usize) -> (FrontWriter<M>, FrontReader<M>) {
    assert!(len <= memory.as_ref().len(), "the buffer is as long as what it shall hold");
    let shared = Arc::new(Shared { memory, len, filled: AtomicUsize::new(0) });
    (FrontWriter { shared: Arc::clone(&shared) }, FrontReader { shared })
}

/// The filling half. There is one per buffer and it is not `Clone`.
pub struct FrontWriter<M> {
    shared: Arc<Shared<M>>,
}

impl<M: AsRef<Memory>> FrontWriter<M> {
    /// The part that is not filled yet. Its content is unspecified.
    pub fn spare(&mut self) -> &mut [u8] {
        let filled = self.shared.filled.load(Ordering::Relaxed);
        let start = self.shared.memory.as_ref().start();
        // SAFETY: `len <= memory.len()` (checked in `front`) and `filled <= len` (checked in `advance`), so the slice
        // lies in the mapping, which is initialised (zero pages or earlier data). Readers only touch bytes below
        // `filled`, and this is the only writer and is borrowed mutably, so the slice is not aliased.
        unsafe { slice::from_raw_parts_mut(start.as_ptr().add(filled), self.shared.len - filled) }
    }

    /// The first `n` bytes of [`spare`](Self::spare), as they are now.
    pub fn written(&self, n: usize) -> &[u8] {
        let filled = self.shared.filled.load(Ordering::Relaxed);
        assert!(n <= self.shared.len - filled, "more bytes than the buffer holds");
        let start = self.shared.memory.as_ref().start();
        // SAFETY: the range lies in the mapping (`filled <= len <= memory.len()`, and just checked), which is initialised. Only
        // `spare` hands out a way to change it, which borrows this only writer mutably.
        unsafe { slice::from_raw_parts(start.as_ptr().add(filled), n) }
    }

    /// Publishes the first `n` bytes of [`spare`](Self::spare) to the readers.
    pub fn advance(&mut self, n: usize) {
        let filled = self.shared.filled.load(Ordering::Relaxed) + n;
        assert!(filled <= self.shared.len, "more bytes than the buffer holds");
        // Release pairs with Acquire in `filled`: who sees the new length sees the bytes.
        self.shared.filled.store(filled, Ordering::Release);
    }

    /// How many bytes are published.
    pub fn filled_len(&self) -> usize {
        self.shared.filled.load(Ordering::Relaxed)
    }
}

impl<M> fmt::Debug for FrontWriter<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontWriter").field("filled", &self.shared.filled).field("len", &self.shared.len).finish()
    }
}

/// The reading half.
pub struct FrontReader<M> {
    shared: Arc<Shared<M>>,
}

impl<M: AsRef<Memory>> FrontReader<M> {
    /// What is there by now.
    pub fn filled(&self) -> &[u8] {
        let filled = self.filled_len();
        // SAFETY: bytes below `filled` were written before the Release store that published them and are never
        // written again; the mapping lives as long as `shared`, which the returned borrow keeps alive.
        unsafe { slice::from_raw_parts(self.shared.memory.as_ref().start().as_ptr(), filled) }
    }

    /// How many bytes are there by now.
    pub fn filled_len(&self) -> usize {
        self.shared.filled.load(Ordering::Acquire)
    }
}

impl<M> Clone for FrontReader<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M> fmt::Debug for FrontReader<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontReader").field("filled", &self.shared.filled).field("len", &self.shared.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_what_was_published_and_nothing_else() {
        let (mut writer, reader) = front(Memory::map(4096).unwrap(), 10);
        assert_eq!(writer.spare().len(), 10);
        writer.spare()[..4].copy_from_slice(b"wind");
        assert_eq!(reader.filled(), b"");
        writer.advance(4);
        let seen = reader.filled();
        writer.spare()[..4].copy_from_slice(b"lass");
        assert_eq!(writer.written(4), b"lass");
        writer.advance(4);
        assert_eq!(seen, b"wind");
        assert_eq!(reader.clone().filled(), b"windlass");
        assert_eq!(writer.spare().len(), 2);
    }

    #[test]
    #[should_panic(expected = "more bytes than the buffer holds")]
    fn publishing_more_than_there_is_is_refused() {
        let (mut writer, _reader) = front(Memory::map(4096).unwrap(), 10);
        writer.advance(11);
    }

    #[test]
    #[should_panic(expected = "more bytes than the buffer holds")]
    fn looking_at_more_than_there_is_is_refused() {
        let (mut writer, _reader) = front(Memory::map(4096).unwrap(), 10);
        writer.advance(4);
        writer.written(7);
    }

    #[test]
    fn a_reader_on_another_thread_sees_every_published_byte() {
        let (mut writer, reader) = front(Memory::map(64 << 10).unwrap(), 64 << 10);
        let other = std::thread::spawn(move || {
            loop {
                let seen = reader.filled();
                assert!(seen.iter().enumerate().all(|(i, &b)| b == (i / 1000) as u8 + 1));
                if seen.len() == 64 << 10 {
                    return;
                }
            }
        });
        let mut round = 0;
        while !writer.spare().is_empty() {
            round += 1;
            let n = writer.spare().len().min(1000);
            writer.spare()[..n].fill(round);
            writer.advance(n);
        }
        other.join().unwrap();
    }
}
