//! Bytes of the object that is edited, brought when they are wanted. Invariant: they land only where nobody has written and
//! before the point where the file was cut, and only when the object still is the one they were asked from.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};

use super::access::blocking;
use super::changes::Change;
use crate::store::{ETag, ObjectMeta, RangeRequest, RangeSink};
use crate::writer::WriteError;
use crate::writer::content::Inner;
use crate::writer::memory::Buffer;

/// What is fetched at once. A request costs tens of milliseconds; so much more arrives in a few.
const PIECE: u64 = 1 << 20;

/// Pieces of one read that are fetched at the same time.
const AT_ONCE: usize = 16;

/// A piece that only its owner fetches.
struct Claim {
    inner: Arc<Inner>,
    piece: Range<u64>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.inner.if_staged(|staged, _| staged.fetching.remove(self.piece.clone()));
        self.inner.changed.notify_waiters();
    }
}

impl Inner {
    /// Brings what is missing of `range` into the file. Where the disk has no room for it, what is `wanted` of it is returned.
    pub async fn fetch(self: &Arc<Self>, range: &Range<u64>, wanted: &Range<u64>) -> Result<Vec<(u64, Bytes)>, WriteError> {
        let mut aside = Vec::new();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (complete, claimed) = self.claim(range, wanted, &aside);
            if complete {
                if !aside.is_empty() {
                    // What is fetched ahead would find no room either.
                    self.state.lock().read_to = (0, 0);
                }
                return Ok(aside);
            }
            if claimed.is_empty() {
                // Somebody else is bringing all of it.
                changed.await;
                continue;
            }
            let claims = claimed.into_iter().map(|piece| Claim { inner: Arc::clone(self), piece });
            let pieces = futures::stream::iter(claims).map(|claim| self.fetch_piece(claim, wanted)).buffer_unordered(AT_ONCE);
            aside.extend(pieces.try_filter_map(|piece| std::future::ready(Ok(piece))).try_collect::<Vec<_>>().await?);
        }
    }

    /// Whether nothing that is wanted is missing, and else the pieces of `range` that are for the caller to fetch.
    fn claim(&self, range: &Range<u64>, wanted: &Range<u64>, aside: &[(u64, Bytes)]) -> (bool, Vec<Range<u64>>) {
        let look = self.if_staged(|staged, summary| {
            let missing = |range: &Range<u64>| {
                let range = range.start..range.end.min(*summary.size);
                let mut missing = if range.start < range.end { staged.layout.missing(&range) } else { Vec::new() };
                missing.retain(|run| !aside.iter().any(|(offset, bytes)| *offset <= run.start && run.end <= offset + bytes.len() as u64));
                missing
            };
            let mut claimed = Vec::new();
            if missing(wanted).is_empty() {
                return (true, claimed);
            }
            let missing = missing(range);
            for run in &missing {
                for start in (run.start / PIECE * PIECE..run.end).step_by(PIECE as usize) {
                    let piece = start..(start + PIECE).min(staged.layout.base_end());
                    if !staged.fetching.overlaps(&piece) {
                        staged.fetching.insert(piece.clone());
                        claimed.push(piece);
                    }
                }
            }
            (false, claimed)
        });
        // Of a stream nothing is with the object alone.
        look.unwrap_or((true, Vec::new()))
    }

    async fn fetch_piece(self: &Arc<Self>, claim: Claim, wanted: &Range<u64>) -> Result<Option<(u64, Bytes)>, WriteError> {
        let look = self.if_staged(|staged, _| staged.base.clone().map(|base| (base, staged.layout.missing(&claim.piece))));
        let Some((base, missing)) = look.flatten() else { return Ok(None) };
        let Some((first, last)) = missing.first().zip(missing.last()) else { return Ok(None) };
        let range = first.start..last.end;
        let length = (range.end - range.start) as usize;
        let buffer = self.shared.share.buffer_to_send(length, &self.spare).await.map_err(|error| WriteError::Memory(Arc::new(error)))?;
        let mut sink = Fill { buffer, at: 0, end: length };
        if let Err(error) = self.get(&base.meta, &range, &mut sink).await {
            drop(sink);
            if let WriteError::Stale(_) = error {
                // A commit or a rename that is under way may be what has replaced or moved it, and will say so.
                let _settled = self.gate.read().await;
            }
            let is_there = |now: &ObjectMeta| now.etag == base.meta.etag && now.key == base.meta.key;
            let is_same = self.if_staged(|staged, _| staged.base.as_ref().is_some_and(|now| is_there(&now.meta)));
            return if is_same == Some(true) { Err(error) } else { Ok(None) };
        }
        let (inner, etag) = (Arc::clone(self), base.meta.etag);
        let (buffer, landed) = blocking::<_, WriteError>(move || {
            let landed = inner.land(&range, &sink.buffer, &etag);
            Ok(((range, sink.buffer), landed))
        })
        .await?;
        let (range, buffer) = buffer;
        match landed {
            Ok(()) => Ok(None),
            // A full disk must not fail a read.
            Err(_) => {
                let want = wanted.start.max(range.start)..wanted.end.min(range.end);
                if want.is_empty() {
                    return Ok(None);
                }
                let inside = (want.start - range.start) as usize..(want.end - range.start) as usize;
                Ok(Some((want.start, Bytes::copy_from_slice(&buffer.bytes()[inside]))))
            }
        }
    }

    fn land(&self, range: &Range<u64>, buffer: &Buffer, etag: &ETag) -> io::Result<()> {
        let _io = self.io.write();
        let gaps = self.if_staged(|staged, _| {
            let is_same = staged.base.as_ref().is_some_and(|base| base.meta.etag == *etag);
            if is_same { staged.layout.missing(range) } else { Vec::new() }
        });
        for gap in gaps.into_iter().flatten() {
            let bytes = &buffer.bytes()[(gap.start - range.start) as usize..(gap.end - range.start) as usize];
            let file = self.file_to_fill()?;
            file.write(gap.start, bytes, bytes.len() as u64)?;
            file.note(&Change::Fetch(gap.clone()))?;
            self.staged(|staged, _| staged.layout.on_fetched(&gap))?;
        }
        Ok(())
    }

    /// Bytes of one version of an object.
    pub(in crate::writer) async fn get(&self, base: &ObjectMeta, range: &Range<u64>, sink: &mut dyn RangeSink) -> Result<(), WriteError> {
        let request = RangeRequest { key: base.key.clone(), range: range.clone(), etag: base.etag.clone() };
        self.shared.store.get_range(&request, sink).await.map_err(WriteError::of_base)
    }
}

/// Fills a stretch of a buffer.
pub(in crate::writer) struct Fill {
    pub buffer: Buffer,
    pub at: usize,
    pub end: usize,
}

impl RangeSink for Fill {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.at..self.end]
    }

    fn advance(&mut self, n: usize) {
        self.at += n;
    }
}
