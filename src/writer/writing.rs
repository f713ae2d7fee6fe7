//! Writes into a content, and parts on their way to the store. Invariant: a write is done as a whole or has to be tried again; a
//! part counts as on its way from the moment it leaves its slot until its [`Flight`] ends, which it does whatever becomes of its task.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::time::Instant;

use super::content::{Inner, Kind, State};
use super::filling::Filling;
use super::memory::{Buffer, Sending, Shortage};
use super::stream::{Data, Outcome, Step};
use super::upload::{Running, Uploading};
use super::{Interrupted, WriteError};
use crate::store::Body;

/// So many parts may wait for a place while as many are sent as may be at once: the next one is at hand when one has arrived.
const READY: usize = 2;

/// Bytes that have left their slot. Dropped before it has landed, because its task panicked, was cancelled or never ran, it puts them back:
/// what waits for the part would never go on. Not to be dropped under the lock of the state.
#[derive(Debug)]
pub(super) struct Flight {
    inner: Arc<Inner>,
    index: u32,
    filling: Option<Arc<Filling>>,
}

impl Flight {
    pub fn new(inner: &Arc<Inner>, index: u32, filling: Arc<Filling>) -> Self {
        Self { inner: Arc::clone(inner), index, filling: Some(filling) }
    }

    /// Ends it: `state` is that of its content.
    pub fn land(mut self, state: &mut State, outcome: Outcome) {
        self.put_back(state, outcome);
    }

    fn put_back(&mut self, state: &mut State, outcome: Outcome) {
        if let Some(filling) = self.filling.take()
            && let Kind::Streaming(stream) = &mut state.kind
        {
            stream.on_sent(self.index, filling, outcome, &self.inner.shared.share);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.filling.is_some() {
            let inner = Arc::clone(&self.inner);
            self.put_back(&mut inner.state.lock(), Outcome::Stopped);
        }
        self.inner.changed.notify_waiters();
    }
}

/// A part that is to be sent.
#[derive(Debug)]
pub(super) struct Departure {
    upload: Arc<Uploading>,
    running: Running,
    sending: Sending,
    flight: Flight,
    body: Body,
    index: u32,
}

impl Inner {
    /// One attempt to write. Calls `sure` when it is certain to be done, before the bytes are copied: whoever asks for anything of this content from
    /// then on waits until they are.
    pub fn write_now(
        self: &Arc<Self>,
        offset: u64,
        data: Data<'_>,
        room: &mut Option<Buffer>,
        sure: impl FnOnce(),
    ) -> Result<Step, WriteError> {
        let mut departures = Vec::new();
        let step = self.write_locked(&mut self.state.lock(), offset, data, room, sure, &mut departures);
        self.depart(departures);
        step
    }

    fn write_locked(
        self: &Arc<Self>,
        state: &mut State,
        offset: u64,
        data: Data<'_>,
        room: &mut Option<Buffer>,
        sure: impl FnOnce(),
        departures: &mut Vec<Departure>,
    ) -> Result<Step, WriteError> {
        let mut leaving = Vec::new();
        state.fate.check_takes_bytes()?;
        let Kind::Streaming(stream) = &mut state.kind else { return Ok(Step::Stage) };
        if let Some(error) = stream.failure.take() {
            let is_anew = error.refuses_checksum() && !stream.is_busy() && stream.reopen(&self.shared.share);
            if is_anew {
                // The next part begins another upload.
                if let Some(upload) = stream.upload.take() {
                    upload.give_up(&self.shared);
                }
            } else {
                let waits = error.refuses_checksum() && stream.is_busy();
                stream.failure = Some(error.clone());
                if waits {
                    return Ok(Step::Wait);
                }
                // What this write brings is missing from now on.
                state.fate.fail(&error);
                return Err(error);
            }
        }
        let end = offset + data.bytes().len() as u64;
        if state.fate.is_unwanted() && end > stream.first_part() {
            return Ok(Step::Stage);
        }
        let most_leaving = state.pace.at_once() + READY;
        let step = stream.write(offset, data, (&self.shared.share, &self.shared.options.limits, most_leaving), room, sure);
        match step {
            Step::Done => {
                state.size = state.size.max(end);
                state.unsaved = true;
                leaving = stream.leave_whole(state.size);
            }
            Step::Room(_) => {
                stream.leave_reopened();
                // Where it will end: so that a whole first part does not stay, and its memory with it.
                leaving = stream.leave_whole(state.size.max(end));
            }
            Step::Wait | Step::Stage => {}
        }
        if !state.fate.is_unwanted() {
            departures.extend(leaving.into_iter().map(|(index, filling, len)| self.send(state, index, filling, len)));
        }
        Ok(step)
    }

    /// Writes what each call of `data` tells anew.
    pub async fn write_waiting<'a>(self: &Arc<Self>, offset: u64, data: impl Fn() -> Data<'a>) -> Result<(), WriteError> {
        let mut granted = None;
        loop {
            let gate = Arc::clone(&self.gate).read_owned().await;
            let mut room: Option<Buffer> = granted.take();
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.write_now(offset, data(), &mut room, || {})? {
                Step::Done => return Ok(()),
                Step::Wait => {
                    if !self.lets_more_leave(offset) {
                        changed.await;
                    }
                }
                Step::Room(len) => {
                    // What was got but not used is too small.
                    drop(room);
                    match self.shared.share.buffer_or_stuck(len).await {
                        Ok(buffer) => granted = Some(buffer),
                        Err(Shortage::Failed(error)) => return Err(WriteError::Memory(Arc::new(error))),
                        Err(Shortage::Stuck) => {
                            drop(gate);
                            self.become_staged().await?;
                        }
                    }
                }
                Step::Stage => {
                    if self.is_staged() {
                        return self.staged_write(offset, data().bytes(), gate).await;
                    }
                    drop(gate);
                    self.become_staged().await?;
                }
            }
        }
    }

    /// A part that has left its slot, for [`Self::depart`] once the lock of the state is given back.
    pub fn send(self: &Arc<Self>, state: &mut State, index: u32, filling: Arc<Filling>, len: usize) -> Departure {
        let (key, headers) = (state.key.clone(), state.headers.clone());
        let stream = state.stream();
        let leaving = stream.leaving();
        let upload = Arc::clone(stream.upload.get_or_insert_with(|| Uploading::new(&self.shared, key, headers)));
        let (running, sending) = (upload.run(), self.shared.share.on_send());
        state.pace.on_begin(Instant::now(), self.shared.metrics.uploaded_bytes.get());
        if leaving > state.pace.at_once() {
            state.pace.on_waiting();
            self.places.add_permits(state.pace.missing_places());
        }
        Departure { upload, running, sending, body: filling.body(len), flight: Flight::new(self, index, filling), index }
    }

    /// Starts to send parts. Where the runtime has ended they are put back.
    pub fn depart(self: &Arc<Self>, departures: Vec<Departure>) {
        for departure in departures {
            drop(self.shared.background.spawn(Arc::clone(self).send_part(departure)));
        }
    }

    async fn send_part(self: Arc<Self>, departure: Departure) {
        let Departure { upload, running, sending, flight, body, index } = departure;
        let len = body.len();
        let place = self.places.acquire().await.expect("it is never closed");
        let of_all = self.shared.places.acquire().await;
        let began = Instant::now();
        let result = AssertUnwindSafe(upload.send(index + 1, body)).catch_unwind().await;
        let (now, took) = (Instant::now(), began.elapsed());
        drop((of_all, running, sending));
        let outcome = match result {
            Ok(Ok(Some(part))) => Outcome::Part(part),
            Ok(Ok(None)) => Outcome::Stopped,
            Ok(Err(error)) => Outcome::Failed(error.into()),
            Err(_) => Outcome::Failed(Interrupted::Panicked.into()),
        };
        {
            let state = &mut *self.state.lock();
            let has_arrived = matches!(outcome, Outcome::Part(_));
            flight.land(state, outcome);
            if let Kind::Streaming(stream) = &mut state.kind {
                let own = stream.leaving();
                if has_arrived {
                    state.pace.on_sent(len, took, (now, self.shared.metrics.uploaded_bytes.get()), self.shared.share.sending() > own);
                }
                if own == 0 {
                    state.pace.on_idle();
                }
            }
            if state.pace.drops_place() {
                place.forget();
            }
            self.places.add_permits(state.pace.missing_places());
        }
        self.changed.notify_waiters();
    }

    /// Who writes at `offset` is held back: whether there may be more on their way than before.
    fn lets_more_leave(&self, offset: u64) -> bool {
        let state = &mut *self.state.lock();
        let Kind::Streaming(stream) = &state.kind else { return false };
        let has_others = self.shared.share.sending() > stream.leaving();
        state.pace.on_held_back(self.shared.part_len(offset), self.shared.metrics.uploaded_bytes.get(), has_others);
        let missing = state.pace.missing_places();
        self.places.add_permits(missing);
        missing > 0
    }

    /// Waits until nothing of the stream is on its way. Under the gate, alone.
    pub async fn arrive(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let is_busy = match &self.state.lock().kind {
                Kind::Streaming(stream) => stream.is_busy(),
                Kind::Staged(_) => false,
            };
            if !is_busy {
                return;
            }
            changed.await;
        }
    }
}
