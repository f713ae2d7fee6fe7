//! The content of one file that is being changed: a stream of parts as long as it is written front to back, a staged file from
//! then on. It knows no names and no handles. Invariant: bytes change under the gate, shared; what changes the whole (commit,
//! truncate, becoming staged) has the gate alone and runs to its end even if its caller leaves.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard, OwnedRwLockWriteGuard, RwLock, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::fate::Fate;
use super::landing::Landing;
use super::pace::Pace;
use super::staging::{Base, Left, Staged, blocking};
use super::stream::{Data, Step, Stream};
use super::{Interrupted, Shared, WriteError};
use crate::store::{Condition, ETag, Headers, Key, ObjectMeta};

/// What fallocate(2) asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Room, and the file is at least so long.
    Extend,
    /// Room.
    KeepSize,
    /// Zeros.
    Zero { keep_size: bool },
    /// Zeros that take no room, inside the file.
    Punch,
}

/// See the module. Dropping the last reference gives up what was not committed.
pub struct Content {
    pub(super) inner: Arc<Inner>,
}

/// Content that nothing changes, commits or saves while this lives: what the store has of it stays what it is, too.
#[must_use]
pub struct Frozen {
    inner: Arc<Inner>,
    gate: OwnedRwLockWriteGuard<()>,
}

/// The end of some content, where nobody else appends while this lives.
#[must_use]
#[derive(Debug)]
pub struct End {
    offset: u64,
    _appending: OwnedMutexGuard<()>,
}

impl End {
    /// Where the content ends.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// What tasks hold on to.
pub(super) struct Inner {
    pub shared: Arc<Shared>,
    pub gate: Arc<RwLock<()>>,
    /// Held from the look at where the content ends until what is appended is there. Taken before the gate.
    pub appending: Arc<tokio::sync::Mutex<()>>,
    /// The order of changes to the staged file; only held on threads that may block.
    pub io: parking_lot::RwLock<()>,
    pub state: Mutex<State>,
    /// A part arrived or failed, a piece was fetched.
    pub changed: Notify,
    /// Requests of this file at once.
    pub places: Arc<Semaphore>,
    /// One buffer beyond the share, for a holder that gives it back without needing another.
    pub spare: Arc<Semaphore>,
}

#[derive(Debug)]
pub(super) struct State {
    pub key: Key,
    pub headers: Headers,
    pub size: u64,
    pub kind: Kind,
    pub pace: Pace,
    pub unsaved: bool,
    /// There must be no object under the key before the first save.
    pub must_be_new: bool,
    /// What a save under the key may replace, apart from what this content put there itself. None: anything.
    pub replaces: Option<Condition>,
    pub fate: Fate,
    /// Versions of the object that were this content: the one that was edited, and each that was committed. The last is there now,
    /// if nobody else has written.
    pub known: Vec<ETag>,
    /// Where the last read of staged bytes ended, and how far ahead of it was fetched.
    pub read_to: (u64, u64),
    /// What is there under the key as far as this content knows.
    pub object: Option<ObjectMeta>,
    /// What is there under another key, for a moment.
    pub aside: Option<ObjectMeta>,
    /// A commit that no caller asked for, which the next one reports.
    pub untold: Option<ObjectMeta>,
    /// What its owner knows it by.
    pub owner: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Streaming(Stream),
    Staged(Staged),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("state", &self.inner.state).finish_non_exhaustive()
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("state", &self.inner.state).finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Content {
    pub(super) fn new(shared: &Arc<Shared>, state: State) -> Arc<Self> {
        let inner = Inner {
            shared: Arc::clone(shared),
            gate: Arc::default(),
            appending: Arc::default(),
            io: parking_lot::RwLock::new(()),
            state: Mutex::new(state),
            changed: Notify::new(),
            places: Arc::new(Semaphore::new(shared.options.pace().at_once())),
            spare: Arc::new(Semaphore::new(1)),
        };
        Arc::new(Self { inner: Arc::new(inner) })
    }

    pub(super) fn empty(shared: &Arc<Shared>, key: Key, headers: Headers) -> Arc<Self> {
        let kind = Kind::Streaming(shared.stream());
        Self::new(shared, State::new(key, headers, kind, shared))
    }

    pub(super) fn of_object(shared: &Arc<Shared>, base: ObjectMeta, headers: Headers) -> Arc<Self> {
        let (key, size, known) = (base.key.clone(), base.size, vec![base.etag.clone()]);
        let object = Some(base.clone());
        // An empty file that is appended to is written front to back.
        let kind = if size == 0 {
            Kind::Streaming(shared.stream())
        } else {
            Kind::Staged(Staged::of_object(Base { meta: base, temporary: false }))
        };
        Self::new(shared, State { size, unsaved: false, known, object, ..State::new(key, headers, kind, shared) })
    }

    /// Content of which nothing is left: who writes, reads or commits is told so.
    pub(super) fn lost(shared: &Arc<Shared>, key: Key, headers: Headers) -> Arc<Self> {
        let content = Self::empty(shared, key, headers);
        content.inner.state.lock().fate = Fate::Lost;
        content
    }

    /// Names who has it, for a daemon that finds its staged file.
    pub fn belong_to(&self, owner: u64) {
        self.inner.state.lock().owner = Some(owner);
    }

    /// The size as written so far.
    pub fn size(&self) -> u64 {
        self.inner.state.lock().size
    }

    /// The end of what was written so far, for who appends.
    pub async fn end(&self) -> End {
        let appending = Arc::clone(&self.inner.appending).lock_owned().await;
        End { offset: self.size(), _appending: appending }
    }

    /// [`end`](Self::end) where that need not be waited for.
    pub fn try_end(&self) -> Option<End> {
        let appending = Arc::clone(&self.inner.appending).try_lock_owned().ok()?;
        Some(End { offset: self.size(), _appending: appending })
    }

    /// Has the bytes from `from` on follow those of `base`, another version of the object, in place of those before `from`. The next commit replaces
    /// that version. False: not all of these bytes are here, and nothing has changed.
    ///
    /// # Errors
    /// See [`WriteError`]. It is whole then, behind the one version or the other.
    pub async fn append_to(&self, from: u64, base: ObjectMeta, headers: Headers) -> Result<bool, WriteError> {
        // No append looks for the end between here and there.
        let appending = Arc::clone(&self.inner.appending).lock_owned().await;
        self.inner
            .alone(move |inner| async move {
                let _appending = appending;
                inner.append_to(from, base, headers).await
            })
            .await
    }

    /// Whether a commit has something to send, to tell or to refuse: also when it was created and never committed.
    pub fn is_dirty(&self) -> bool {
        let state = self.inner.state.lock();
        state.fate.is_dirty(state.unsaved || state.untold.is_some())
    }

    /// Whether it was discarded with bytes that the store lacks.
    pub fn is_given_up(&self) -> bool {
        let state = self.inner.state.lock();
        state.fate.is_unwanted() && state.unsaved
    }

    /// Whether it will never be stored although its writers were answered: each write, truncate, allocate and commit is refused.
    pub fn is_lost(&self) -> bool {
        self.inner.state.lock().fate.is_lost()
    }

    /// Whether it is new and nothing was written to it yet: its size is all there is.
    pub fn is_blank(&self) -> bool {
        let state = self.inner.state.lock();
        state.unsaved && state.fate.check_is_here().is_ok() && matches!(&state.kind, Kind::Streaming(stream) if stream.is_blank())
    }

    /// Whether it is a staged file by now, which any number of handles can write to.
    pub fn is_staged(&self) -> bool {
        matches!(self.inner.state.lock().kind, Kind::Staged(_))
    }

    /// What the store has of it under its key, as far as it is known here: also after a commit that no caller asked for.
    pub fn stored(&self) -> Option<ObjectMeta> {
        self.inner.state.lock().object.clone()
    }

    /// The key that the next commit writes to.
    pub fn key(&self) -> Key {
        self.inner.state.lock().key.clone()
    }

    /// A write that needs nothing that has to be waited for: it is done, or was refused. None: use [`write`](Self::write). Starts
    /// uploads as tasks of the current runtime. Calls `sure` once it is certain to be done, before the bytes are copied, so that who wrote need not
    /// wait for that; reads, commits and questions do.
    pub fn try_write(&self, offset: u64, data: &[u8], sure: impl FnOnce()) -> Option<Result<(), WriteError>> {
        self.try_write_data(offset, Data::Lent(data), sure)
    }

    /// [`try_write`](Self::try_write) of what `landing` received, which is kept where it is if that spares a copy.
    pub fn try_write_received(&self, offset: u64, landing: &mut Landing, sure: impl FnOnce()) -> Option<Result<(), WriteError>> {
        self.try_write_data(offset, Data::Received(landing), sure)
    }

    fn try_write_data(&self, offset: u64, data: Data<'_>, sure: impl FnOnce()) -> Option<Result<(), WriteError>> {
        let _gate = self.inner.gate.try_read().ok()?;
        let len = data.bytes().len();
        if len == 0 {
            sure();
            return Some(self.inner.state.lock().fate.check_is_here());
        }
        if let Err(error) = self.inner.end_of(offset, len as u64) {
            return Some(Err(error));
        }
        match self.inner.write_now(offset, data, &mut None, sure) {
            Ok(Step::Done) => Some(Ok(())),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Writes `data` at `offset`. A writer that is ahead of the network waits here.
    ///
    /// # Errors
    /// See [`WriteError`]. Without room on the disk the content stays what it was.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), WriteError> {
        self.write_parts(offset, data.len(), |part| Data::Lent(&data[part])).await
    }

    /// [`write`](Self::write) of what a [`Landing`] received and kept.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn write_kept(&self, offset: u64, data: Bytes) -> Result<(), WriteError> {
        self.write_parts(offset, data.len(), |part| Data::Kept(data.slice(part))).await
    }

    async fn write_parts<'a>(&self, offset: u64, len: usize, data: impl Fn(Range<usize>) -> Data<'a>) -> Result<(), WriteError> {
        self.inner.end_of(offset, len as u64)?;
        self.inner.state.lock().fate.check_is_here()?;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let rest = len - done;
            // Part by part: so that the ones before have left when memory for the next is waited for.
            let part = if self.inner.is_staged() { rest } else { self.inner.shared.len_in_part(at, rest) };
            self.inner.write_waiting(at, || data(done..done + part)).await?;
            done += part;
        }
        Ok(())
    }

    /// Bytes at `offset`, fewer only at the end.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes, WriteError> {
        loop {
            let range = {
                let state = self.inner.state.lock();
                state.fate.check_is_here()?;
                let end = offset.saturating_add(len as u64).min(state.size);
                if offset >= end {
                    return Ok(Bytes::new());
                }
                let range = offset..end;
                match &state.kind {
                    Kind::Streaming(stream) => match stream.read(&range) {
                        Some(bytes) => return Ok(bytes.into()),
                        None => None,
                    },
                    Kind::Staged(_) => Some(range),
                }
            };
            match range {
                Some(range) => {
                    if let Some(bytes) = self.inner.staged_read(range).await? {
                        return Ok(bytes);
                    }
                }
                None => self.inner.become_staged().await?,
            }
        }
    }

    /// Makes the file `size` bytes long.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn truncate(&self, size: u64) -> Result<(), WriteError> {
        self.inner.end_of(size, 0)?;
        self.inner.alone(move |inner| async move { inner.truncate(size).await }).await
    }

    /// What fallocate(2) does.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn allocate(&self, offset: u64, len: u64, how: Allocate) -> Result<(), WriteError> {
        let end = self.inner.end_of(offset, len)?;
        self.inner.alone(move |inner| async move { inner.allocate(offset..end, how).await }).await
    }

    /// Puts everything into the store and returns what the object is now; none when there is nothing new. A condition is about
    /// what others did: the versions that this content put there itself meet it.
    ///
    /// # Errors
    /// Then the store has the version from before, the upload is aborted, and the next commit tries again from what is still
    /// here, or returns the same error.
    pub async fn commit(&self, condition: Condition) -> Result<Option<ObjectMeta>, WriteError> {
        self.inner.alone(move |inner| async move { inner.commit(condition).await }).await
    }

    /// Puts all of it into the store under `key`, where nothing may be, and takes no bytes of the object that is edited for it unless it has to: that may
    /// have been replaced. From then on it is the content of `key`.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub async fn save_as(&self, key: Key) -> Result<Option<ObjectMeta>, WriteError> {
        let save = async move |inner: Arc<Inner>| {
            let apart = Arc::clone(&inner);
            blocking::<_, std::io::Error>(move || apart.part_from_object()).await?;
            inner.rename(key, None).await?;
            inner.commit(Condition::Absent).await
        };
        self.inner.alone(save).await
    }

    /// Until the first save of this content has succeeded, each save under its key fails with [`ErrorKind::Replaced`] if there is an object: also
    /// a save that a read or a write of sent bytes needs, and a commit with [`Condition::Any`]. For a file that is created; another key, which
    /// [`set_key`](Self::set_key) or [`Frozen::rename`] gives it, ends it.
    ///
    /// [`ErrorKind::Replaced`]: crate::store::ErrorKind::Replaced
    pub fn require_absent(&self) {
        let state = &mut *self.inner.state.lock();
        state.must_be_new = state.object.is_none();
    }

    /// From now on each save under its key, also one that a read or a write of sent bytes needs, and a commit with [`Condition::Any`], fails with
    /// [`ErrorKind::Replaced`] unless `condition` holds, or what is there is what this content put there. Another key, which
    /// [`Frozen::rename`] gives it, ends it.
    ///
    /// [`ErrorKind::Replaced`]: crate::store::ErrorKind::Replaced
    pub fn replace_only(&self, condition: Condition) {
        self.inner.state.lock().replaces = Some(condition);
    }

    /// Waits until no change, commit or save of it is under way, and keeps them away while the result lives. Reads that need no other bytes go on.
    pub async fn freeze(&self) -> Frozen {
        let gate = Arc::clone(&self.inner.gate).write_owned().await;
        Frozen { inner: Arc::clone(&self.inner), gate }
    }

    /// As [`freeze`](Self::freeze) followed by [`Frozen::rename`] to `key`.
    pub async fn set_key(&self, key: Key) {
        self.freeze().await.rename(key, None).await;
    }

    /// What is stored beside the content from the next commit on. If it is new, there is something to commit.
    pub fn set_headers(&self, headers: Headers) {
        let state = &mut *self.inner.state.lock();
        state.unsaved |= state.headers != headers;
        state.headers = headers;
    }

    /// What is stored beside the content.
    pub fn headers(&self) -> Headers {
        self.inner.state.lock().headers.clone()
    }

    /// The mount ends, and this is not in the store: what is staged stays on the disk for the next one, where that can find it, and goes
    /// otherwise. A commit that is under way is not waited for, and the disk no longer than `patience`. What `is_whole`, and was about to be
    /// committed, the next mount may upload.
    pub async fn leave_on_disk(&self, is_whole: bool, patience: Duration) -> Left {
        self.inner.leave_on_disk(is_whole, patience).await
    }

    /// Leaves it to the daemon that goes on with this mount, with what the store has of it so far: nothing is completed or aborted, and what
    /// only memory has is written to the staging directory. True: [`Writer::take_over`](super::Writer::take_over) of that daemon finds it, or there
    /// is nothing that the store lacks, as [`is_dirty`](Self::is_dirty) tells; from then on it can only be discarded or given up here. False: nothing
    /// has changed, because the changes of this writer are not written down, it is a stream and no staging directory was named that outlives the
    /// daemon, the content has no owner or nothing whole, a commit or what is on its way did not come to its end within `patience`, or the disk
    /// failed, which is logged. The disk is waited for.
    pub async fn hand_over(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let Ok(gate) = timeout_at(until, Arc::clone(&self.inner.gate).write_owned()).await else { return false };
        match self.inner.alone_with(gate, move |inner| async move { inner.hand_over(until).await }).await {
            Ok(is_handed_over) => is_handed_over,
            Err(error) => {
                tracing::warn!(key = %self.key(), %error, "a file that is open for writing could not be left to the next daemon");
                false
            }
        }
    }

    /// Whether its bytes stay on the disk when it is let go.
    pub fn stays(&self) -> bool {
        self.inner.stays()
    }

    /// As [`freeze`](Self::freeze) followed by [`Frozen::discard`].
    pub async fn discard(&self) {
        self.freeze().await.discard().await;
    }

    /// The bytes will never be stored: aborts the upload, and from then on each write, truncate, allocate, read and commit returns
    /// [`WriteError::Lost`], for as long as the content lives. Staged bytes stay on the disk if [`leave_on_disk`](Self::leave_on_disk) has said
    /// so, and are removed otherwise. Waits for a commit that is under way: if the store has all of the content then, nothing is lost and
    /// nothing changes. [`is_lost`](Self::is_lost) tells.
    pub async fn give_up(&self) {
        self.freeze().await.give_up().await;
    }
}

impl Frozen {
    /// The name is gone. Nothing is committed any more, a commit returns none; reads and writes go on. Aborts the upload.
    pub async fn discard(self) {
        self.inner.finish_or_log(self.gate, "discarding it", |inner| async move { inner.discard().await }).await;
    }

    /// See [`Content::give_up`].
    async fn give_up(self) {
        self.inner.finish_or_log(self.gate, "giving it up", |inner| async move { inner.give_up().await }).await;
    }

    /// Has the next commit write to `key`. What is edited is still read, and copied, from the object where it was, unless that was moved by a copy
    /// inside the store and is `moved` now, with the same bytes.
    pub async fn rename(self, key: Key, moved: Option<ObjectMeta>) {
        self.inner.finish_or_log(self.gate, "another name", |inner| async move { inner.rename(key, moved).await }).await;
    }

    /// As [`Content::set_headers`]; a daemon that takes it over knows of them.
    pub async fn set_headers(self, headers: Headers) {
        self.inner.finish_or_log(self.gate, "other metadata", |inner| async move { inner.set_headers(headers).await }).await;
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        if let Ok(_gate) = self.inner.gate.try_write() {
            return self.inner.leave();
        }
        // After the commit that is still under way.
        let inner = Arc::clone(&self.inner);
        self.inner.shared.background.spawn(async move {
            let _gate = inner.gate.write().await;
            inner.leave();
        });
    }
}

impl State {
    /// The stream of content that streams.
    pub fn stream(&mut self) -> &mut Stream {
        match &mut self.kind {
            Kind::Streaming(stream) => stream,
            Kind::Staged(_) => unreachable!("a stream becomes a staged file only under the gate, alone, and the caller has that"),
        }
    }

    fn new(key: Key, headers: Headers, kind: Kind, shared: &Shared) -> Self {
        Self {
            key,
            headers,
            size: 0,
            kind,
            pace: shared.options.pace(),
            unsaved: true,
            must_be_new: false,
            replaces: None,
            fate: Fate::Wanted,
            known: Vec::new(),
            read_to: (0, 0),
            object: None,
            aside: None,
            untold: None,
            owner: None,
        }
    }
}

impl Inner {
    /// Does what needs the content alone. It goes on to its end if the caller leaves, and a drain waits for it.
    ///
    /// # Errors
    /// Those of `work`, and [`Interrupted`] when it panicked or its runtime ends.
    pub async fn alone<T: Send + 'static, F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F + Send) -> Result<T, WriteError>
    where
        F: Future<Output = Result<T, WriteError>> + Send + 'static,
    {
        let gate = Arc::clone(&self.gate).write_owned().await;
        self.alone_with(gate, work).await
    }

    /// As [`Self::alone`], with the gate.
    async fn alone_with<T: Send + 'static, F>(
        self: &Arc<Self>,
        gate: OwnedRwLockWriteGuard<()>,
        work: impl FnOnce(Arc<Self>) -> F + Send,
    ) -> Result<T, WriteError>
    where
        F: Future<Output = Result<T, WriteError>> + Send + 'static,
    {
        let work = work(Arc::clone(self));
        let task = self.shared.background.spawn(async move {
            let result = work.await;
            drop(gate);
            result
        });
        let Some(task) = task else { return Err(Interrupted::Ending.into()) };
        task.await.unwrap_or_else(|error| Err(Interrupted::from(error).into()))
    }

    /// As [`Self::alone_with`], for work without a result: why it did not come to its end is logged.
    async fn finish_or_log<F>(self: &Arc<Self>, gate: OwnedRwLockWriteGuard<()>, what: &str, work: impl FnOnce(Arc<Self>) -> F + Send)
    where
        F: Future<Output = Result<(), WriteError>> + Send + 'static,
    {
        if let Err(error) = self.alone_with(gate, work).await {
            tracing::error!(key = %self.state.lock().key, %error, "a file that is open for writing: {what} failed");
        }
    }

    pub fn is_staged(&self) -> bool {
        matches!(self.state.lock().kind, Kind::Staged(_))
    }

    pub fn end_of(&self, offset: u64, len: u64) -> Result<u64, WriteError> {
        offset.checked_add(len).filter(|&end| end <= self.shared.options.limits.largest_object).ok_or(WriteError::TooLarge)
    }

    pub async fn become_staged(self: &Arc<Self>) -> Result<(), WriteError> {
        self.alone(|inner| async move { inner.stage().await }).await
    }

    /// The content was let go. What is staged goes with the last thread that works on it.
    fn leave(&self) {
        let state = &mut *self.state.lock();
        match &mut state.kind {
            Kind::Streaming(stream) => {
                let mut old = std::mem::replace(stream, self.shared.stream());
                if state.fate.is_handed_over() {
                    // The upload goes on, and the description of it stays.
                    (old.upload, old.handed_over) = (None, None);
                }
                self.let_go(Kind::Streaming(old));
            }
            Kind::Staged(staged) => {
                // What is left for another mount may take bytes from it.
                let stays = staged.file.as_ref().is_some_and(|file| file.stays());
                if let Some(Base { meta, .. }) = staged.base.take_if(|base| base.temporary && !stays) {
                    self.delete_in_background(meta);
                }
            }
        }
    }
}
