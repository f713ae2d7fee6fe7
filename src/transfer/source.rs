//! Where the bytes of an upload come from: the parts of a file, or a stream cut into parts as it comes. Invariant: a part is read only when
//! there is memory for it, and the parts of a file are those of one version of it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::plan::{Plan, stream_part_bytes};
use super::{Error, Result};
use crate::budget::{Budget, Lease};
use crate::store::MOST_PARTS;
use crate::sys::Window;

/// Where the bytes come from.
pub enum Origin {
    /// At their offsets.
    File(Arc<File>),
    /// Nobody knows how many.
    Stream(Box<dyn Read + Send>),
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub size: u64,
    modified: (i64, i64),
    inode: (u64, u64),
}

impl Version {
    pub fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { size: found.len(), modified: (found.mtime(), found.mtime_nsec()), inode: (found.dev(), found.ino()) })
    }
}

/// A part that was read.
pub(super) struct Piece {
    /// From 1.
    pub number: u32,
    pub body: Bytes,
}

/// See the module.
pub(super) struct Source {
    /// None while it is read, and for ever when that was given up.
    origin: Option<Origin>,
    path: PathBuf,
    /// Of the part that was read last.
    number: u32,
    is_at_end: bool,
    part_bytes: u64,
    /// Of a stream.
    largest: u64,
    /// The file as it was, and which of its parts need not be read.
    file: Option<(Arc<File>, Version)>,
    there: Vec<u32>,
}

impl Source {
    pub fn open(origin: Origin, path: &Path, plan: &Plan, budget: &Budget) -> Result<Self> {
        let file = match &origin {
            Origin::File(file) => Some((Arc::clone(file), Version::of(file).map_err(Error::local("read", path))?)),
            Origin::Stream(_) => None,
        };
        // Half of the memory: one part is sent while the next is read.
        let largest = (budget.limit() as u64 / 2).max(plan.part_bytes);
        let (origin, part_bytes) = (Some(origin), plan.part_bytes);
        Ok(Self { origin, path: path.to_owned(), number: 0, is_at_end: false, part_bytes, largest, file, there: Vec::new() })
    }

    /// Of a file.
    pub fn version(&self) -> Option<Version> {
        self.file.as_ref().map(|(_, version)| *version)
    }

    /// The parts of a stream do not grow.
    pub fn keep_part_size(&mut self) {
        self.largest = self.part_bytes;
    }

    /// These parts need not be read.
    pub fn skip(&mut self, there: Vec<u32>) {
        self.there = there;
    }

    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// The next part, once there is memory for it; none after the last.
    pub async fn next(&mut self, budget: &Arc<Budget>) -> Result<Option<Piece>> {
        loop {
            if self.is_at_end {
                return Ok(None);
            }
            self.number += 1;
            let at = u64::from(self.number - 1) * self.part_bytes;
            let size = match &self.file {
                Some((_, version)) => {
                    let left = version.size.saturating_sub(at);
                    self.is_at_end = left <= self.part_bytes;
                    if self.there.contains(&self.number) {
                        continue;
                    }
                    left.min(self.part_bytes)
                }
                None => stream_part_bytes(self.number - 1, self.part_bytes, self.largest),
            };
            return self.read(budget, size, at).await;
        }
    }

    async fn read(&mut self, budget: &Arc<Budget>, size: u64, at: u64) -> Result<Option<Piece>> {
        let failed = || Error::local("read", &self.path);
        if self.number > MOST_PARTS {
            return Err(failed()(io::Error::other("it does not fit into 10,000 parts: raise --part-size or --max-memory")));
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let mut memory = Window::new(budget.lease(size).await.map_err(Error::Memory)?, size);
        let mut origin = self.origin.take().expect("only a read that was given up keeps it");
        // A pipe may be silent for ever: whoever waits for this read is free to stop.
        let reading = tokio::task::spawn_blocking(move || {
            let read = fill(&mut origin, memory.bytes_mut(), at);
            (origin, memory, read)
        });
        let (origin, memory, read) = reading.await.expect("a read does not panic");
        let read = read.map_err(failed())?;
        self.is_at_end |= self.file.is_none() && read < size;
        self.origin = Some(origin);
        let body = Bytes::from_owner(Body(memory)).slice(..read);
        // A stream that ended where a part did has no more, except that nothing at all is an empty object.
        Ok((read > 0 || self.number == 1).then_some(Piece { number: self.number, body }))
    }

    /// What was read is what is there.
    pub fn check(&self) -> Result<()> {
        let Some((file, version)) = &self.file else { return Ok(()) };
        let failed = || Error::local("read", &self.path);
        if Version::of(file).map_err(failed())? != *version {
            return Err(failed()(io::Error::other("it changed meanwhile: run it again")));
        }
        Ok(())
    }
}

/// Fills the buffer, and tells how far; less is the end.
fn fill(origin: &mut Origin, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let stream = match origin {
        Origin::File(file) => return file.read_exact_at(buffer, at).map(|()| buffer.len()),
        Origin::Stream(stream) => stream,
    };
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Memory of a part for as long as a request needs it.
struct Body(Window<Lease>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget;
    use crate::units::ByteSize;

    const PART: u64 = 16 << 10;

    /// The sizes of the parts of a stream that is a little longer than a thousand of the first.
    async fn sizes(equal_parts: bool) -> Vec<u64> {
        let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) });
        let plan = Plan { parts: 1, part_bytes: PART, requests: 1, buffer_bytes: PART, beside: 0 };
        let stream = Origin::Stream(Box::new(io::repeat(7).take(1003 * PART)));
        let mut source = Source::open(stream, Path::new("-"), &plan, &budget).unwrap();
        if equal_parts {
            source.keep_part_size();
        }
        let mut sizes = Vec::new();
        while let Some(piece) = source.next(&budget).await.unwrap() {
            sizes.push(piece.body.len() as u64);
        }
        sizes
    }

    #[tokio::test]
    async fn parts_of_a_stream_grow_unless_all_must_be_equal() {
        assert_eq!(sizes(false).await, [[PART; 1000].as_slice(), &[2 * PART, PART]].concat());
        assert_eq!(sizes(true).await, [PART; 1003]);
    }
}
