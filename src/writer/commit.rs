//! Commits of content that streams. All of it has the content alone. Invariant: on an error
//! the bucket has the version from before; what is still at hand is kept for the next try.

use std::sync::Arc;
use std::time::SystemTime;

use super::content::{Inner, Kind, State};
use super::fate::Verdict;
use super::interrupted::caught;
use super::memory::Buffer;
use super::stream::Outcome;
use super::upload::Uploading;
use super::writing::Flight;
use super::{Interrupted, WriteError};
use crate::store::{self, Condition, Headers, ObjectMeta, PutRequest, Written};

/// How a stream is committed.
enum Way {
    /// In one request.
    Whole,
    /// The upload that is under way, or a new one.
    Parts,
    /// The upload that is under way has another key or other headers, and bytes that only it has: it becomes an object, which is
    /// then copied.
    Aside(Arc<Uploading>),
    /// Nothing but headers or the key are new: the object that is there is copied.
    Saved,
}

impl State {
    /// The condition as it is about others: what this content put there is what should be there.
    fn about_others(&self, condition: Condition) -> Condition {
        let condition = match (condition, &self.replaces) {
            (Condition::Any, _) if self.must_be_new => Condition::Absent,
            (Condition::Any, Some(replaces)) => replaces.clone(),
            (condition, _) => condition,
        };
        let Some(object) = self.object.as_ref().filter(|object| object.key == self.key) else { return condition };
        match condition {
            Condition::Any => Condition::Any,
            Condition::Absent => Condition::Is(object.etag.clone()),
            Condition::Is(etag) if self.known.contains(&etag) => Condition::Is(object.etag.clone()),
            Condition::Is(etag) => Condition::Is(etag),
        }
    }

    /// The store has `size` bytes of this under its key.
    pub fn on_saved(&mut self, meta: &ObjectMeta, headers: &Headers) {
        self.known.push(meta.etag.clone());
        self.object = Some(meta.clone());
        if meta.key == self.key {
            self.must_be_new = false;
            self.replaces = self.replaces.take().map(|_| Condition::Is(meta.etag.clone()));
        }
        // Headers that were set meanwhile are for the next commit.
        self.unsaved = self.headers != *headers;
    }
}

impl Inner {
    pub async fn commit(self: &Arc<Self>, condition: Condition) -> Result<Option<ObjectMeta>, WriteError> {
        {
            let state = &mut *self.state.lock();
            match state.fate.of_commit() {
                Verdict::Nothing => return Ok(None),
                Verdict::Refuse(error) => {
                    // The upload of what was handed over goes on in another daemon.
                    if !state.fate.is_handed_over()
                        && let Kind::Streaming(stream) = &mut state.kind
                        && let Some(upload) = stream.upload.take()
                    {
                        upload.give_up(&self.shared);
                    }
                    return Err(error);
                }
                Verdict::Store if !state.unsaved => return Ok(state.untold.take()),
                Verdict::Store => {}
            }
        }
        let meta = self.save(condition).await?;
        self.state.lock().untold = None;
        Ok(Some(meta))
    }

    pub async fn save(self: &Arc<Self>, condition: Condition) -> Result<ObjectMeta, WriteError> {
        self.arrive().await;
        let (way, about_others) = {
            let state = &mut *self.state.lock();
            let about_others = state.about_others(condition.clone());
            (self.way(state), about_others)
        };
        match way {
            None => self.save_staged(&about_others).await,
            Some(Way::Whole) => self.save_whole(about_others).await,
            Some(Way::Parts) => self.save_parts(about_others).await,
            Some(Way::Saved) => {
                self.edit_object(false);
                self.save_staged(&about_others).await
            }
            Some(Way::Aside(upload)) => {
                self.save_aside(&upload, about_others).await?;
                let about_others = self.state.lock().about_others(condition);
                self.save_staged(&about_others).await
            }
        }
    }

    fn way(&self, state: &mut State) -> Option<Way> {
        let Kind::Streaming(stream) = &mut state.kind else { return None };
        if stream.saved {
            return Some(Way::Saved);
        }
        // What failed before is tried again.
        stream.failure = None;
        let is_small = state.size <= stream.first_part();
        let fits = stream.upload.as_ref().is_none_or(|upload| upload.key == state.key && upload.headers == state.headers);
        if is_small || !fits {
            if stream.reopen(&self.shared.share) {
                if let Some(upload) = stream.upload.take() {
                    upload.give_up(&self.shared);
                }
            } else if let Some(upload) = stream.upload.clone().filter(|_| !fits) {
                return Some(Way::Aside(upload));
            } else {
                return Some(Way::Parts);
            }
        }
        Some(if is_small { Way::Whole } else { Way::Parts })
    }

    async fn save_whole(self: &Arc<Self>, condition: Condition) -> Result<ObjectMeta, WriteError> {
        let size = self.state.lock().size;
        let mut request = {
            let state = self.state.lock();
            PutRequest { key: state.key.clone(), body: bytes::Bytes::new(), headers: state.headers.clone(), condition }
        };
        let mut sent = None;
        if size > 0 {
            self.seal(0, size as usize).await?;
            let left = self.state.lock().stream().leave(0, size as usize);
            let (index, filling, len) = left.expect("sealing has just filled it, and all that was sent was reopened before");
            request.body = filling.body(len).joined();
            sent = Some(Flight::new(self, index, filling));
        }
        let result = {
            let _sending = self.shared.share.on_send();
            let _place = self.places.acquire().await;
            let _of_all = self.shared.places.acquire().await;
            let put = caught(async { Ok(self.shared.store.put(&request).await?) });
            let result = put.await.map(|written| meta(&request.key, size, written));
            if let Ok(meta) = &result {
                self.shared.share.on_stored(meta, &request.body);
            }
            // The slot's memory is its own again.
            drop(std::mem::take(&mut request.body));
            result
        };
        let state = &mut *self.state.lock();
        if let Some(flight) = sent {
            flight.land(state, if result.is_ok() { Outcome::Object } else { Outcome::Stopped });
        }
        let meta = result?;
        state.stream().on_saved();
        state.on_saved(&meta, &request.headers);
        Ok(meta)
    }

    /// Zeros where nothing was written.
    async fn seal(self: &Arc<Self>, index: u32, len: usize) -> Result<(), WriteError> {
        let mut room: Option<Buffer> = None;
        loop {
            let size = {
                match self.state.lock().stream().seal(index, len, &self.shared.share, &mut room) {
                    Ok(()) => return Ok(()),
                    Err(size) => size,
                }
            };
            let buffer = self.shared.share.buffer_to_send(size, &self.spare).await;
            room = Some(buffer.map_err(|error| WriteError::Memory(Arc::new(error)))?);
        }
    }

    async fn save_parts(self: &Arc<Self>, condition: Condition) -> Result<ObjectMeta, WriteError> {
        let mut is_anew = false;
        loop {
            match caught(self.complete_parts(condition.clone())).await {
                Ok((meta, headers)) => {
                    self.state.lock().on_saved(&meta, &headers);
                    return Ok(meta);
                }
                Err(error) => {
                    let is_here = self.take_back(&error).await;
                    if !is_here || !error.refuses_checksum() || is_anew {
                        return Err(error);
                    }
                    is_anew = true;
                }
            }
        }
    }

    /// Sends the parts that are left and makes the object.
    async fn complete_parts(self: &Arc<Self>, condition: Condition) -> Result<(ObjectMeta, Headers), WriteError> {
        let (size, lengths) = {
            let state = &mut *self.state.lock();
            let size = state.size;
            (size, state.stream().lengths(size))
        };
        let count = lengths.len();
        for (index, len) in lengths {
            self.seal(index, len).await?;
            let departure = {
                let state = &mut *self.state.lock();
                let left = state.stream().leave(index, len);
                left.map(|(index, filling, len)| self.send(state, index, filling, len))
            };
            self.depart(Vec::from_iter(departure));
        }
        self.arrive().await;
        let (upload, parts) = {
            let state = &mut *self.state.lock();
            let stream = state.stream();
            if let Some(error) = stream.failure.take() {
                return Err(error);
            }
            (stream.upload.clone(), stream.sent_parts())
        };
        // A part whose task was cancelled is back in its slot: without it the object would be shorter.
        let Some(upload) = upload.filter(|_| parts.len() == count) else { return Err(Interrupted::Ending.into()) };
        let written = upload.complete(&parts, &condition).await?;
        self.state.lock().stream().on_saved();
        Ok((meta(&upload.key, size, written), upload.headers.clone()))
    }

    /// After a failure: the upload goes, and what of its bytes is still here waits for the next commit. Tells whether that is all of them.
    async fn take_back(&self, error: &WriteError) -> bool {
        if let Kind::Streaming(stream) = &mut self.state.lock().kind
            && let Some(upload) = stream.upload.take()
        {
            upload.give_up(&self.shared);
        }
        self.arrive().await;
        let state = &mut *self.state.lock();
        if let Kind::Streaming(stream) = &mut state.kind {
            stream.failure = None;
            if !stream.reopen(&self.shared.share) {
                state.fate.fail(error);
                return false;
            }
        }
        true
    }

    /// Has the upload that is under way become an object, which is edited from then on. Under another key it is no more than a
    /// place to copy from, and nothing that is there is overwritten.
    async fn save_aside(self: &Arc<Self>, upload: &Uploading, condition: Condition) -> Result<(), WriteError> {
        let is_moved = upload.key != self.state.lock().key;
        let condition = if is_moved { Condition::Absent } else { condition };
        let (meta, headers) = match caught(self.complete_parts(condition)).await {
            Ok(done) => done,
            Err(error) => {
                self.take_back(&error).await;
                return Err(error);
            }
        };
        {
            let state = &mut *self.state.lock();
            let object = state.object.take();
            state.on_saved(&meta, &headers);
            state.unsaved = true;
            if is_moved {
                // It is not there under the key of the content.
                state.aside = Some(meta);
                state.object = object;
            }
        }
        self.edit_object(is_moved);
        Ok(())
    }
}

/// What a commit made. The store's own date is asked for by nobody; it differs by what the request took.
pub(super) fn meta(key: &store::Key, size: u64, written: Written) -> ObjectMeta {
    ObjectMeta { key: key.clone(), size, etag: written.etag, modified: SystemTime::now() }
}
