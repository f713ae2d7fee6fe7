//! Changes of the whole content besides commits: its size, holes, an empty start, and that nobody wants it any more. All of it has
//! the content alone. Invariant: a change that fails has changed nothing.

use std::ops::Range;
use std::sync::Arc;

use super::WriteError;
use super::content::{Allocate, Inner, Kind};
use super::staging::{Base, Staged, blocking};
use crate::store::{ErrorKind, Headers, Key, ObjectMeta, ObjectStore};

impl Inner {
    pub async fn truncate(self: &Arc<Self>, size: u64) -> Result<(), WriteError> {
        self.state.lock().fate.check_is_here()?;
        if size == 0 {
            return self.start_over().await;
        }
        self.arrive().await;
        {
            let state = &mut *self.state.lock();
            if let Kind::Streaming(stream) = &mut state.kind {
                let in_memory = match size.cmp(&state.size) {
                    std::cmp::Ordering::Equal => return Ok(()),
                    std::cmp::Ordering::Less => stream.truncate(size, &self.shared.share),
                    std::cmp::Ordering::Greater => stream.may_grow_to(size, &self.shared.share),
                };
                if in_memory {
                    (state.size, state.unsaved) = (size, true);
                    return Ok(());
                }
            }
        }
        self.stage().await?;
        self.staged_truncate(size).await
    }

    /// An empty file is a new stream, whatever it was before.
    async fn start_over(self: &Arc<Self>) -> Result<(), WriteError> {
        let inner = Arc::clone(self);
        blocking(move || {
            // Reads of what was staged are without the gate.
            let _io = inner.io.write();
            let state = &mut *inner.state.lock();
            if state.size == 0 && !state.fate.is_broken() && matches!(state.kind, Kind::Streaming(_)) {
                return Ok(());
            }
            state.unsaved |= state.fate.start_over() || state.size > 0;
            let old = std::mem::replace(&mut state.kind, Kind::Streaming(inner.shared.stream()));
            state.size = 0;
            if let Kind::Staged(Staged { file: Some(file), .. }) = &old {
                // What a mount that ends had left of it is no longer the content.
                file.stay(false);
            }
            inner.let_go(old);
            Ok(())
        })
        .await
    }

    /// Ends what only `kind` needed.
    pub fn let_go(&self, kind: Kind) {
        match kind {
            Kind::Streaming(mut stream) => {
                if let Some(upload) = stream.upload.take() {
                    upload.give_up(&self.shared);
                }
                stream.clear(&self.shared.share);
                if let Some(file) = stream.handed_over.take() {
                    file.stay(false);
                }
            }
            Kind::Staged(Staged { base: Some(Base { meta, temporary: true }), .. }) => self.delete_in_background(meta),
            Kind::Staged(_) => {}
        }
    }

    pub fn delete_in_background(&self, object: ObjectMeta) {
        let store = Arc::clone(&self.shared.store);
        self.shared.background.spawn(async move { delete_temporary(&*store, &object).await });
    }

    pub async fn allocate(self: &Arc<Self>, range: Range<u64>, how: Allocate) -> Result<(), WriteError> {
        self.state.lock().fate.check_is_here()?;
        if range.is_empty() {
            return Ok(());
        }
        self.arrive().await;
        {
            let state = &mut *self.state.lock();
            if let Kind::Streaming(stream) = &mut state.kind {
                match how {
                    // Streams take no room on any disk.
                    Allocate::KeepSize => return Ok(()),
                    Allocate::Extend if range.end <= state.size => return Ok(()),
                    Allocate::Extend if stream.may_grow_to(range.end, &self.shared.share) => {
                        (state.size, state.unsaved) = (range.end, true);
                        return Ok(());
                    }
                    Allocate::Punch | Allocate::Zero { keep_size: true } if range.start >= state.size => return Ok(()),
                    _ => {}
                }
            }
        }
        self.stage().await?;
        self.staged_allocate(range, how).await
    }

    /// See [`Frozen::rename`](super::Frozen::rename).
    pub async fn rename(self: &Arc<Self>, key: Key, moved: Option<ObjectMeta>) -> Result<(), WriteError> {
        {
            let state = &mut *self.state.lock();
            // What is under the other name may be replaced.
            state.must_be_new &= state.key == key && moved.is_none();
            state.replaces = None;
            state.key = key;
            if let Some(meta) = moved {
                state.known.push(meta.etag.clone());
                state.object = Some(meta.clone());
                // What is to be told of is where it is now.
                state.untold = state.untold.take().map(|_| meta.clone());
                if let Kind::Staged(Staged { base: Some(base), .. }) = &mut state.kind
                    && base.meta.size == meta.size
                {
                    base.meta = meta;
                }
            }
            if let Kind::Streaming(_) = state.kind {
                return Ok(());
            }
        }
        // A daemon that takes it over commits to this key, and reads what is not staged from where it is now.
        self.describe_again().await
    }

    pub async fn set_headers(self: &Arc<Self>, headers: Headers) -> Result<(), WriteError> {
        {
            let state = &mut *self.state.lock();
            state.unsaved |= state.headers != headers;
            state.headers = headers;
            if let Kind::Streaming(_) = state.kind {
                return Ok(());
            }
        }
        self.describe_again().await
    }

    pub async fn discard(self: &Arc<Self>) -> Result<(), WriteError> {
        let upload = {
            let state = &mut *self.state.lock();
            state.fate.discard();
            match &mut state.kind {
                Kind::Streaming(stream) => stream.upload.take(),
                Kind::Staged(_) => None,
            }
        };
        if let Some(upload) = upload {
            upload.give_up(&self.shared);
            self.arrive().await;
        }
        let file = match &mut self.state.lock().kind {
            Kind::Staged(staged) => staged.file.clone(),
            Kind::Streaming(stream) => {
                // What is gone is gone; a read of it will say so.
                stream.failure = None;
                stream.reopen(&self.shared.share);
                stream.handed_over.take()
            }
        };
        if let Some(file) = file {
            // Neither a crash nor the end of the mount leaves it.
            file.stay(false);
            blocking(move || file.undescribe()).await?;
        }
        Ok(())
    }

    pub async fn give_up(self: &Arc<Self>) -> Result<(), WriteError> {
        let file = {
            let state = &mut *self.state.lock();
            if !state.fate.is_unwanted() && !state.fate.is_dirty(state.unsaved) {
                return Ok(());
            }
            state.fate.give_up();
            match &mut state.kind {
                Kind::Streaming(stream) => {
                    let old = std::mem::replace(stream, self.shared.stream());
                    self.let_go(Kind::Streaming(old));
                    None
                }
                Kind::Staged(staged) => staged.file.clone(),
            }
        };
        // A part that was on its way finds that its slot is gone.
        self.changed.notify_waiters();
        if let Some(file) = file.filter(|file| !file.stays()) {
            blocking(move || file.undescribe()).await?;
        }
        Ok(())
    }
}

/// Deletes an object that only was a place to copy from, unless somebody has written under its name since.
pub(super) async fn delete_temporary(store: &dyn ObjectStore, object: &ObjectMeta) {
    let gone = match store.head(&object.key).await {
        Ok(there) if there.etag != object.etag => Ok(()),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        Ok(_) | Err(_) => store.delete(&object.key).await,
    };
    if let Err(error) = gone {
        tracing::warn!(%error, "an object that was moved stays under its old name too");
    }
}
