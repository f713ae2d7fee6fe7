//! Commits of staged content: what the object has already is copied inside the store, the rest is sent from the file. It has the
//! content alone. Invariant: a part is either a range of the one version that is edited or bytes that were put together here.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};

use super::access::blocking;
use super::fetch::Fill;
use super::{Base, Layout};
use crate::store::{self, Condition, CopyRequest, ErrorKind, Headers, Key, ObjectMeta, Part, PartCopy, PutRequest, Written};
use crate::writer::change::delete_temporary;
use crate::writer::commit::meta;
use crate::writer::content::Inner;
use crate::writer::interrupted::caught;
use crate::writer::memory::Buffer;
use crate::writer::parts::{Cut, Piece};
use crate::writer::upload::Uploading;
use crate::writer::{Interrupted, WriteError};

/// What is committed.
struct Whole {
    key: Key,
    headers: Headers,
    size: u64,
    base: Option<Base>,
    layout: Layout,
    condition: Condition,
}

/// Why an attempt ended.
enum Failure {
    /// The store does not copy; everything can be sent instead.
    NoCopies,
    Other(WriteError),
}

impl<E: Into<WriteError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

impl Whole {
    /// Whether it is the object that is there, byte for byte.
    fn is_object(&self) -> bool {
        let size = self.base.as_ref().map(|base| base.meta.size);
        size == Some(self.size) && self.layout.base_end() == self.size && self.layout.dirty().is_empty()
    }
}

impl Inner {
    pub async fn save_staged(self: &Arc<Self>, condition: &Condition) -> Result<ObjectMeta, WriteError> {
        self.seal_file().await?;
        let whole = {
            let (key, headers, size) = {
                let state = self.state.lock();
                (state.key.clone(), state.headers.clone(), state.size)
            };
            let (base, layout) = self.staged(|staged, _| (staged.base.clone(), staged.layout.clone()))?;
            Whole { key, headers, size, base, layout, condition: condition.clone() }
        };
        let (mut may_copy, mut is_anew) = (!self.shared.copies_refused.load(Relaxed), false);
        let written = loop {
            match self.send_whole(&whole, may_copy).await {
                Ok(written) => break written,
                Err(Failure::NoCopies) if may_copy => {
                    self.shared.copies_refused.store(true, Relaxed);
                    may_copy = false;
                }
                Err(Failure::NoCopies) => {
                    unreachable!("without copies nothing of an object is asked for, which is all that answers this")
                }
                Err(Failure::Other(error)) if error.refuses_checksum() && !is_anew => is_anew = true,
                Err(Failure::Other(error)) => return Err(error),
            }
        };
        let meta = meta(&whole.key, whole.size, written);
        self.on_staged_saved(whole, meta.clone()).await;
        Ok(meta)
    }

    async fn on_staged_saved(self: &Arc<Self>, whole: Whole, meta: ObjectMeta) {
        let file = self.if_staged(|staged, _| {
            staged.layout.on_saved(whole.size);
            staged.base = Some(Base { meta: meta.clone(), temporary: false });
            staged.file.clone()
        });
        self.state.lock().on_saved(&meta, &whole.headers);
        if let Some(Base { meta: old, temporary: true }) = whole.base {
            // Before anybody is told: nobody shall see it under its old name then.
            let deleted = caught(async {
                delete_temporary(&*self.shared.store, &old).await;
                Ok(())
            });
            if let Err(error) = deleted.await {
                tracing::warn!(key = %old.key, %error, "an object that was moved stays under its old name too");
            }
        }
        if let Some(file) = file.flatten()
            && let Err(error) = blocking(move || file.undescribe()).await
        {
            tracing::warn!(%error, "the description of a staged file that was uploaded stays");
        }
    }

    async fn send_whole(self: &Arc<Self>, whole: &Whole, may_copy: bool) -> Result<Written, Failure> {
        let limits = &self.shared.options.limits;
        if may_copy && whole.is_object() && whole.size <= limits.largest_copy {
            return self.copy_whole(whole).await;
        }
        if whole.size <= self.shared.sizes.range(0).end {
            let body = self.assemble(&(0..whole.size)).await?;
            let request = PutRequest { key: whole.key.clone(), body, headers: whole.headers.clone(), condition: whole.condition.clone() };
            let _sending = self.shared.share.on_send();
            let _place = self.places.acquire().await;
            let _of_all = self.shared.places.acquire().await;
            let written = self.shared.store.put(&request).await.map_err(WriteError::from)?;
            self.shared.share.on_stored(&meta(&request.key, whole.size, written.clone()), &request.body);
            return Ok(written);
        }
        let cut = Cut {
            size: whole.size,
            dirty: whole.layout.dirty(),
            clean_end: if may_copy && whole.base.is_some() { whole.layout.base_end() } else { 0 },
            part: self.shared.options.part_size.as_u64(),
            largest: self.shared.share.largest_part() as u64,
        };
        let pieces = cut.pieces(limits).ok_or(Failure::Other(WriteError::TooLarge))?;
        let has_copies = pieces.iter().any(|piece| matches!(piece, Piece::Copy(_)));
        let begin = if has_copies { Uploading::with_copies } else { Uploading::new };
        let upload = begin(&self.shared, whole.key.clone(), whole.headers.clone());
        // What was begun is given up also after a panic.
        let sent = AssertUnwindSafe(self.send_pieces(whole, &upload, pieces)).catch_unwind().await;
        let result = sent.unwrap_or_else(|_| Err(Failure::Other(Interrupted::Panicked.into())));
        if result.is_err() {
            upload.give_up(&self.shared);
        }
        result
    }

    async fn copy_whole(&self, whole: &Whole) -> Result<Written, Failure> {
        let base = &whole.base.as_ref().expect("it is the object").meta;
        let request = CopyRequest {
            source: base.key.clone(),
            etag: base.etag.clone(),
            target: whole.key.clone(),
            headers: Some(whole.headers.clone()),
            condition: whole.condition.clone(),
        };
        let is_any = whole.condition == Condition::Any;
        self.shared.store.copy(&request).await.map_err(|error| match error.kind {
            // With a condition the store does not say whether source or target is another.
            ErrorKind::Replaced if !is_any => Failure::Other(WriteError::Store(error)),
            _ => of_copy(error),
        })
    }

    async fn send_pieces(self: &Arc<Self>, whole: &Whole, upload: &Arc<Uploading>, pieces: Vec<Piece>) -> Result<Written, Failure> {
        upload.begin().await?;
        let at_once = {
            let pace = &mut self.state.lock().pace;
            pace.on_staged();
            self.places.add_permits(pace.missing_places());
            pace.at_once()
        };
        let numbered = (1..).zip(pieces);
        let sent = futures::stream::iter(numbered).map(async |(number, piece)| {
            let result = self.send_piece(whole, upload, number, piece).await;
            if result.is_err() {
                upload.stop();
            }
            result
        });
        // All of them end here, also after an error: what runs on other threads needs the content to itself.
        let sent: Vec<_> = sent.buffer_unordered(at_once).collect().await;
        let parts: Result<Vec<Option<Part>>, Failure> = sent.into_iter().collect();
        let mut parts: Vec<Part> = parts?.into_iter().flatten().collect();
        parts.sort_by_key(|part| part.number);
        Ok(upload.complete(&parts, &whole.condition).await?)
    }

    /// None: another one failed.
    async fn send_piece(
        self: &Arc<Self>,
        whole: &Whole,
        upload: &Arc<Uploading>,
        number: u32,
        piece: Piece,
    ) -> Result<Option<Part>, Failure> {
        let _running = upload.run();
        if upload.is_stopped() {
            return Ok(None);
        }
        Ok(match piece {
            Piece::Copy(range) => {
                let base = &whole.base.as_ref().expect("only bytes of an object are copied").meta;
                let source = PartCopy { source: base.key.clone(), etag: base.etag.clone(), range };
                let _place = self.places.acquire().await;
                let _of_all = self.shared.places.acquire().await;
                upload.copy(number, &source).await.map_err(of_copy)?
            }
            Piece::Send(range) => {
                let body = self.assemble(&range).await?;
                let _sending = self.shared.share.on_send();
                let _place = self.places.acquire().await;
                let _of_all = self.shared.places.acquire().await;
                upload.send(number, body.into()).await?
            }
        })
    }

    /// The bytes of `range`, from wherever they are, in one piece.
    async fn assemble(self: &Arc<Self>, range: &std::ops::Range<u64>) -> Result<Bytes, WriteError> {
        let len = (range.end - range.start) as usize;
        if len == 0 {
            return Ok(Bytes::new());
        }
        let buffer = self.shared.share.buffer_to_send(len, &self.spare).await;
        let buffer = buffer.map_err(|error| WriteError::Memory(Arc::new(error)))?;
        let (mut buffer, missing): (Buffer, _) = self.collect(range, buffer).await?;
        let base = self.staged(|staged, _| staged.base.clone())?;
        for run in missing {
            let base = base.as_ref().expect("only what an object has is missing, and a commit has the content alone");
            let (at, end) = ((run.start - range.start) as usize, (run.end - range.start) as usize);
            let mut sink = Fill { buffer, at, end };
            self.get(&base.meta, &run, &mut sink).await?;
            buffer = sink.buffer;
        }
        Ok(Arc::new(buffer).body(len))
    }
}

/// An error of a copy inside the store.
fn of_copy(error: store::Error) -> Failure {
    let unknown = error.kind == ErrorKind::Invalid || error.status == Some(501) || error.code.as_deref() == Some("NotImplemented");
    if unknown { Failure::NoCopies } else { Failure::Other(WriteError::of_base(error)) }
}
