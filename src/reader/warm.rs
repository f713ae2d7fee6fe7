//! Brings whole objects to the disk before anybody reads them. Reads through windows like any reader, so what others fetch at the
//! same time is fetched once. Invariant: what is on the disk already is not asked for again.

use std::ops::Range;

use crate::store::{Checking, Mismatch, ObjectMeta};

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
    /// Has all of an object on the disk. Calls `hear` for every few MiB that are there now. An object that is brought whole is compared with the sum
    /// that the store tells of it, and brought once more when they differ.
    ///
    /// # Errors
    /// See [`WarmError`]. What was brought until then stays, unless it is wrong.
    pub async fn warm(&self, meta: &ObjectMeta, hear: &(dyn Fn(u64) + Send + Sync)) -> Result<Warmed, WarmError> {
        let mut before: Option<Mismatch> = None;
        loop {
            let (warmed, mismatch) = self.warm_once(meta, hear).await?;
            let Some(mismatch) = mismatch else { return Ok(warmed) };
            if before.as_ref().is_some_and(|before| mismatch.is_of_the_tag(before)) {
                return Ok(warmed);
            }
            if let Some(disk) = &self.0.disk {
                disk.forget(&meta.key).await;
            }
            if before.is_some() {
                let Mismatch { expected, actual } = &mismatch;
                tracing::error!(key = %meta.key, %expected, %actual, "what was read twice is not the object that the store tells of");
                return Err(WarmError::Read(ReadError::Store(mismatch.into_error(&meta.key))));
            }
            before = Some(mismatch);
        }
    }

    /// The sum to compare an object with that is brought in several chunks; one of a single chunk is compared where it is fetched.
    async fn sum_of(&self, meta: &ObjectMeta, missing: &[Range<u64>]) -> Option<Checking> {
        let is_whole = missing.iter().map(|range| range.end - range.start).sum::<u64>() == meta.size;
        if !self.0.options.verify_reads || !is_whole || meta.size <= self.0.options.chunk_size.as_u64() {
            return None;
        }
        // Without an answer nothing is compared; the reads tell what is wrong with the store.
        let details = self.0.store.details(&meta.key).await.ok().filter(|details| details.meta.etag == meta.etag)?;
        details.sum.as_ref().and_then(Checking::against)
    }

    async fn warm_once(&self, meta: &ObjectMeta, hear: &(dyn Fn(u64) + Send + Sync)) -> Result<(Warmed, Option<Mismatch>), WarmError> {
        if meta.size == 0 {
            return Ok((Warmed::default(), None));
        }
        if meta.etag.as_str().is_empty() {
            return Err(WarmError::NoEtag);
        }
        let handle = self.handle(meta);
        let disk = handle.object.disk.clone().ok_or(WarmError::Direct)?;
        // Before the first read: what is fetched ahead comes to the disk by itself.
        let missing = disk.missing(0..meta.size).await;
        let (brought_bytes, mut checking) = (len(&missing), self.sum_of(meta, &missing).await);
        if brought_bytes == meta.size {
            // In one request, which is compared with the sum that its answer tells.
            handle.fetch_small();
        }
        let step = self.0.options.chunk_size.as_u64();
        for start in (0..meta.size).step_by(step as usize) {
            let chunk = start..(start + step).min(meta.size);
            // What came to the disk by itself meanwhile is read as well where all of it is compared.
            let ranges = if checking.is_some() { vec![chunk.clone()] } else { disk.missing(chunk.clone()).await };
            for range in ranges {
                bring(&handle, range.start, (range.end - range.start) as usize, checking.as_mut()).await?;
            }
            hear(chunk.end - chunk.start);
        }
        let mismatch = checking.and_then(|checking| checking.finish().err());
        Ok((Warmed { brought_bytes, there_bytes: meta.size - brought_bytes }, mismatch))
    }
}

fn len(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

async fn bring(handle: &ObjectHandle, offset: u64, len: usize, mut checking: Option<&mut Checking>) -> Result<(), WarmError> {
    let disk = handle.object.disk.as_ref().ok_or(WarmError::Direct)?;
    let data = handle.read(0, offset, len).await?;
    for (extent, part) in &data.parts {
        let range = extent.range.start + part.start as u64..extent.range.start + part.end as u64;
        if let (Some(checking), Some(bytes)) = (checking.as_deref_mut(), extent.bytes(part)) {
            checking.add(bytes);
        }
        if disk.put(extent, range).await == Put::Refused {
            return Err(WarmError::NoRoom);
        }
    }
    Ok(())
}
