//! How far and how wide reads run ahead.

use std::fmt;
use std::str::FromStr;

use crate::units::ByteSize;

/// N of the window `[current - backward, current + N]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchChunks {
    /// What the reader takes per second times what a GET takes, and a half more, as far as memory allows.
    #[default]
    Auto,
    /// A hard bound.
    Fixed(u32),
}

impl fmt::Display for PrefetchChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(n) => write!(f, "{n}"),
        }
    }
}

impl FromStr for PrefetchChunks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Fixed).map_err(|_| format!("\"{text}\" is neither a number of chunks nor auto"))
    }
}

/// Whether what is read stays on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// In memory only.
    #[default]
    Direct,
    /// All of it.
    Cached,
    /// So much of each object; what comes after is read direct.
    Hybrid(ByteSize),
}

/// Options of the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// An object that is one GET is compared with the sum that the store tells of it before any of its bytes is read.
    pub verify_reads: bool,
    /// Unit of prefetch: 1 MiB to 32 MiB. Rounded up to whole pieces of 128 KiB.
    pub chunk_size: ByteSize,
    /// How many chunks are fetched ahead.
    pub prefetch_chunks: PrefetchChunks,
    /// How many chunks behind the reader are kept.
    pub backward_chunks: u32,
    /// Whether what is read stays on a disk.
    pub mode: ReadMode,
    /// GETs in flight in the process; none: as many as the memory limit carries, at most 128.
    pub prefetch_concurrency: Option<usize>,
}

impl Options {
    /// With chunks of whole pieces: what lies in two chunks could not be kept on a disk.
    pub(super) fn aligned(self) -> Self {
        let chunk = self.chunk_size.as_u64().max(1).next_multiple_of(super::plan::PIECE_BYTES);
        Self { chunk_size: ByteSize::bytes(chunk), ..self }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            verify_reads: true,
            chunk_size: ByteSize::mib(4),
            prefetch_chunks: PrefetchChunks::Auto,
            backward_chunks: 1,
            mode: ReadMode::Direct,
            prefetch_concurrency: None,
        }
    }
}
