//! Brings whole objects to the disk before anybody reads them. Reads through windows like any reader, so what others fetch at the
//! same time is fetched once. Invariant: what is on the disk already is not asked for again.

use std::ops::Range;

use crate::store::ObjectMeta;

use super::disk::Put;
use super::{ObjectHandle, ReadError, Reader};

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Bytes that were read from the store, or from memory, and are on the disk now.
    pub brought_bytes: u64,
    /// Bytes that were there before.
    pub there_bytes: u64,
}

/// Why an object is not all on the disk.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WarmError {
    /// What is read does not go to a disk.
    #[error("this reads direct: nothing is kept on a disk")]
    Direct,
    /// Bounds, or a disk that does not work; the log says which.
    #[error("the disk takes no more")]
    NoRoom,
    /// Nobody could tell later of which version it would be.
    #[error("the store gives it no etag, so nothing of it can be kept")]
    NoEtag,
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Reader {
    /// Has all of an object on the disk. `hear` is told of every few MiB that are there now.
    ///
    /// # Errors
    /// See [`WarmError`]. What was brought until then stays.
    pub async fn warm(&self, meta: &ObjectMeta, hear: &(dyn Fn(u64) + Send + Sync)) -> Result<Warmed, WarmError> {
        if meta.size == 0 {
            return Ok(Warmed::default());
        }
        if meta.etag.as_str().is_empty() {
            return Err(WarmError::NoEtag);
        }
        let handle = self.handle(meta);
        let disk = handle.object.disk.clone().ok_or(WarmError::Direct)?;
        // Before the first read: what is fetched ahead comes to the disk by itself.
        let brought_bytes = len(&disk.missing(0..meta.size).await);
        let step = self.0.options.chunk_size.as_u64();
        for start in (0..meta.size).step_by(step as usize) {
            let chunk = start..(start + step).min(meta.size);
            for range in disk.missing(chunk.clone()).await {
                bring(&handle, range.start, (range.end - range.start) as usize).await?;
            }
            hear(chunk.end - chunk.start);
        }
        Ok(Warmed { brought_bytes, there_bytes: meta.size - brought_bytes })
    }
}

fn len(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

async fn bring(handle: &ObjectHandle, offset: u64, len: usize) -> Result<(), WarmError> {
    let disk = handle.object.disk.as_ref().ok_or(WarmError::Direct)?;
    let data = handle.read(0, offset, len).await?;
    for (extent, part) in &data.parts {
        let range = extent.range.start + part.start as u64..extent.range.start + part.end as u64;
        if disk.put(extent, range).await == Put::Refused {
            return Err(WarmError::NoRoom);
        }
    }
    Ok(())
}
