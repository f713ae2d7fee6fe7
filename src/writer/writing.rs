//! Writes into a content, and parts on their way to the store. Invariant: a write is done as a whole or has to be tried again; a
//! part counts as on its way from the moment it leaves its slot until its task has told what became of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::time::Instant;

use super::WriteError;
use super::content::{Inner, Kind, State};
use super::filling::Filling;
use super::memory::{Buffer, Sending, Shortage};
use super::stream::{Data, Outcome, Step};
use super::upload::{Running, Uploading};
use crate::store::{self, ErrorKind, Op};

/// So many parts may wait for a place while as many are sent as may be at once: the next one is at hand when one has arrived.
const READY: usize = 2;

/// What is said of a part whose task ended as it never should.
const DEFECT: &str = "windlass failed while it was sent, which is a defect; the log tells where";

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
        let mut leaving = Vec::new();
        let state = &mut *self.state.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let Kind::Streaming(stream) = &mut state.kind else { return Ok(Step::Stage) };
        if let Some(error) = &stream.failure {
            // What this write brings is missing from now on.
            state.broken = Some(error.clone());
            return Err(error.clone());
        }
        let end = offset + data.bytes().len() as u64;
        if state.discarded && end > stream.first_part() {
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
        if !state.discarded {
            for (index, filling, len) in leaving {
                self.send(state, index, filling, len);
            }
        }
        Ok(step)
    }

    /// Writes what each call of `data` tells anew.
    pub async fn write_waiting<'a>(self: &Arc<Self>, offset: u64, data: impl Fn() -> Data<'a>) -> Result<(), WriteError> {
        let mut granted = None;
        loop {
            let gate = self.gate.read().await;
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
                        return self.staged_write(offset, data().bytes()).await;
                    }
                    drop(gate);
                    self.become_staged().await?;
                }
            }
        }
    }

    /// Starts to send a part that has left its slot.
    pub fn send(self: &Arc<Self>, state: &mut State, index: u32, filling: Arc<Filling>, len: usize) {
        let Kind::Streaming(stream) = &mut state.kind else { unreachable!("only streams send parts by themselves") };
        let leaving = stream.leaving();
        let (key, headers) = (&state.key, &state.headers);
        let upload = stream.upload.get_or_insert_with(|| Uploading::new(&self.shared, key.clone(), headers.clone()));
        let (running, sending) = (upload.run(), self.shared.share.on_send());
        state.pace.on_begin(Instant::now(), self.shared.metrics.uploaded_bytes.get());
        if leaving > state.pace.at_once() {
            state.pace.on_waiting();
            self.places.add_permits(state.pace.missing_places());
        }
        let task = Arc::clone(self).send_part(Arc::clone(upload), running, sending, index, filling, len);
        self.shared.background.spawn(task).map(drop).expect("who writes is in a runtime");
    }

    async fn send_part(
        self: Arc<Self>,
        upload: Arc<Uploading>,
        running: Running,
        sending: Sending,
        index: u32,
        filling: Arc<Filling>,
        len: usize,
    ) {
        let place = self.places.acquire().await.expect("it is never closed");
        let of_all = self.shared.places.acquire().await;
        let began = Instant::now();
        // Whoever waits for this part would wait for ever.
        let result = AssertUnwindSafe(async { upload.send(index + 1, filling.body(len)).await }).catch_unwind().await;
        let (now, took) = (Instant::now(), began.elapsed());
        drop((of_all, running, sending));
        let outcome = match result {
            Ok(Ok(Some(part))) => Outcome::Part(part),
            Ok(Ok(None)) => Outcome::Stopped,
            Ok(Err(error)) => Outcome::Failed(error.into()),
            Err(_) => Outcome::Failed(store::Error::new(ErrorKind::Unavailable, Op::UploadPart, &upload.key, DEFECT).into()),
        };
        {
            let state = &mut *self.state.lock();
            if let Kind::Streaming(stream) = &mut state.kind {
                let has_arrived = matches!(outcome, Outcome::Part(_));
                stream.on_sent(index, filling, outcome, &self.shared.share);
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
