//! A reader that runs: what it holds, and what of its options can be changed meanwhile. Invariant: a change holds for every read that begins
//! after it; nothing that is under way is given up for it.

use std::sync::atomic::Ordering;

use super::{Options, PrefetchChunks, Reader, Shared, concurrency};

/// What is in memory, or on its way there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Sequential readers with a window.
    pub streams: usize,
    /// Bytes of their windows.
    pub stream_bytes: u64,
    /// Open files.
    pub handles: usize,
    /// Bytes of everything else that is kept for them.
    pub handle_bytes: u64,
}

/// `auto` as a number: no window is that wide.
const AUTO: u32 = u32::MAX;

pub(super) fn in_number(chunks: PrefetchChunks) -> u32 {
    match chunks {
        PrefetchChunks::Auto => AUTO,
        PrefetchChunks::Fixed(chunks) => chunks,
    }
}

impl Shared {
    /// The options as they are now.
    pub(super) fn options(&self) -> Options {
        let prefetch_chunks = match self.prefetch_chunks.load(Ordering::Relaxed) {
            AUTO => PrefetchChunks::Auto,
            chunks => PrefetchChunks::Fixed(chunks),
        };
        Options { prefetch_chunks, backward_chunks: self.backward_chunks.load(Ordering::Relaxed), ..self.options.clone() }
    }
}

impl Reader {
    /// The options as they are now, without `prefetch_concurrency`: see [`concurrency`](Self::concurrency).
    pub fn options(&self) -> Options {
        self.0.options()
    }

    /// What all open objects hold.
    pub fn holding(&self) -> Holding {
        self.0.open_objects().iter().map(|object| object.holding()).fold(Holding::default(), |all, one| Holding {
            streams: all.streams + one.streams,
            stream_bytes: all.stream_bytes + one.stream_bytes,
            handles: all.handles + one.handles,
            handle_bytes: all.handle_bytes + one.handle_bytes,
        })
    }

    /// How far windows run ahead from their next read on.
    pub fn set_prefetch_chunks(&self, chunks: PrefetchChunks) {
        self.0.prefetch_chunks.store(in_number(chunks), Ordering::Relaxed);
    }

    /// How many chunks are kept behind a reader, from its next chunk on.
    pub fn set_backward_chunks(&self, chunks: u32) {
        self.0.backward_chunks.store(chunks, Ordering::Relaxed);
    }

    /// GETs in flight at most, when the store keeps up.
    pub fn concurrency(&self) -> usize {
        self.0.gate.most()
    }

    /// The same, and what the store can do now.
    pub fn gets_allowed(&self) -> usize {
        self.0.gate.allowed()
    }

    /// Bounds the GETs in flight; none: by the memory.
    pub fn set_concurrency(&self, most: Option<usize>) {
        self.0.gate.resize(concurrency(&self.0.budget, most));
    }
}
