//! Content that a daemon which ends leaves open for the one that goes on with its mount. A staged file is described as after each change. Of a
//! stream the description says what the upload has, and the data file has what only memory had, each byte at its place. It decides nothing about
//! names. Invariant: a stream is completed from the parts that its description names, or not at all; once it is in the memory of another daemon the
//! description is gone, since it would be wrong after the next write.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::{Instant, timeout_at};

use super::access::blocking;
use super::journal::{Described, Entry, StreamEntry};
use super::{Layout, StagedFile};
use crate::store::{Key, ObjectMeta};
use crate::writer::content::{Content, Inner, Kind};
use crate::writer::stage::fill;
use crate::writer::stream::Stream;
use crate::writer::upload::Uploading;
use crate::writer::{Shared, WriteError};

impl Inner {
    /// See [`Content::hand_over`]. Under the gate, alone.
    pub async fn hand_over(self: &Arc<Self>, until: Instant) -> Result<bool, WriteError> {
        {
            let state = &mut *self.state.lock();
            if state.fate.is_wanted() && !state.unsaved {
                // No caller here is to learn of it any more.
                state.untold = None;
                return Ok(true);
            }
            if state.fate.is_handed_over() {
                return Ok(true);
            }
            let area = &self.shared.area;
            let is_found = if matches!(state.kind, Kind::Staged(_)) { area.is_written_down() } else { area.is_found() };
            if !is_found || state.owner.is_none() || !state.fate.is_wanted() {
                return Ok(false);
            }
        }
        if timeout_at(until, self.arrive()).await.is_err() {
            return Ok(false);
        }
        let is_saved = matches!(&self.state.lock().kind, Kind::Streaming(stream) if stream.saved);
        if is_saved {
            // Only headers or the key are new: it is an edit of the object.
            self.edit_object(false);
        }
        if self.is_staged() {
            self.hand_over_staged().await?
        } else {
            self.hand_over_stream().await?
        }
        self.state.lock().fate.hand_over();
        Ok(true)
    }

    async fn hand_over_staged(self: &Arc<Self>) -> Result<(), WriteError> {
        let inner = Arc::clone(self);
        Ok(blocking::<_, io::Error>(move || {
            let _io = inner.io.write();
            let file = inner.file_to_fill()?;
            file.describe(&inner.entry(false)?, false)?;
            file.stay(true);
            Ok(())
        })
        .await?)
    }

    async fn hand_over_stream(self: &Arc<Self>) -> Result<(), WriteError> {
        let inner = Arc::clone(self);
        Ok(blocking::<_, io::Error>(move || {
            let held = inner.state.lock().stream().open_parts();
            let (layout, file) = fill(inner.shared.area.create()?, &held)?;
            let entry = inner.stream_entry(&layout);
            file.describe(&entry, false)?;
            file.stay(true);
            inner.state.lock().stream().handed_over = Some(Arc::new(file));
            Ok(())
        })
        .await?)
    }

    fn stream_entry(&self, layout: &Layout) -> Entry {
        let state = &mut *self.state.lock();
        let (size, owner) = (state.size, state.owner);
        let stream = state.stream();
        let upload = stream.upload.as_ref().and_then(|uploading| Some((uploading.begun()?, &uploading.headers)));
        let stream = Some(StreamEntry::new(stream.sizes(), upload, &stream.sent_parts()));
        Entry::new(Described {
            scope: &self.shared.scope,
            key: &state.key,
            headers: &state.headers,
            size,
            etag: state.object.as_ref().filter(|object| object.key == state.key).map(|object| &object.etag),
            must_be_new: state.must_be_new,
            base: None,
            layout,
            sealed: false,
            owner,
            stream,
        })
    }
}

/// The content that `file` and its description, which `stream` is a part of, were left for. They go.
pub(super) fn restore(shared: &Arc<Shared>, key: Key, entry: &Entry, stream: &StreamEntry, file: StagedFile) -> io::Result<Arc<Content>> {
    let restored = restore_stream(shared, entry, stream, &file);
    // Without the bytes that are in it nothing can be made of the upload: it stays until it is aborted.
    file.stay(restored.is_err());
    let restored = restored?;
    let content = Content::empty(shared, key.clone(), entry.headers());
    {
        let state = &mut *content.inner.state.lock();
        (state.size, state.owner, state.must_be_new) = (entry.size, entry.owner, entry.must_be_new);
        state.known.extend(entry.etag());
        // The size of an object that is replaced is never used.
        state.object = entry.etag().map(|etag| ObjectMeta { key, size: 0, etag, modified: SystemTime::now() });
        state.kind = Kind::Streaming(restored);
    }
    Ok(content)
}

fn restore_stream(shared: &Arc<Shared>, entry: &Entry, stream: &StreamEntry, file: &StagedFile) -> io::Result<Stream> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "parts that this daemon cannot have, or its memory does not hold");
    let sizes = stream.sizes;
    if sizes != shared.sizes && !sizes.is_valid(shared.share.largest_part() as u64) || sizes.count(entry.size).is_none() {
        return Err(invalid());
    }
    let upload = stream.upload()?.map(|(upload, headers)| Uploading::restore(shared, upload, headers));
    let mut restored = Stream::restore(sizes, upload, stream.parts()).ok_or_else(invalid)?;
    for run in entry.layout().present().iter() {
        if run.end > entry.size {
            return Err(invalid());
        }
        restored.restore_bytes(run, &shared.share, |offset, into| file.read(offset, into))?;
    }
    Ok(restored)
}
