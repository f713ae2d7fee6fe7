//! A run of bytes of one object that one GET brings: a chunk, the rest of one, or a piece for an isolated read.
//! It is readable from the front while it fills. It does not fetch itself (see `fetch`).
//!
//! Invariant: a waiter is woken exactly once, by the bytes it needs, by the failure, or by being given up.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::budget::Lease;
use crate::store::RangeSink;
use crate::sys::{FrontReader, FrontWriter};

use super::ReadError;
use super::gate::Ticket;

/// See the module.
#[derive(Debug)]
pub(super) struct Extent {
    /// Which bytes of the object.
    pub range: Range<u64>,
    /// Belongs to windows: dropped when no stream wants it. Otherwise it stays until memory is needed.
    pub windowed: bool,
    front: OnceLock<FrontReader<Lease>>,
    failure: OnceLock<ReadError>,
    waiting: AtomicUsize,
    waiters: Mutex<Vec<(usize, oneshot::Sender<()>)>>,
    last_use: AtomicU64,
    ticket: AtomicU64,
}

impl Extent {
    pub fn new(range: Range<u64>, windowed: bool) -> Self {
        Self {
            range,
            windowed,
            front: OnceLock::new(),
            failure: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            waiters: Mutex::new(Vec::new()),
            last_use: AtomicU64::new(0),
            ticket: AtomicU64::new(0),
        }
    }

    pub fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Whether a reader waits for bytes of this extent.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes that are still to come.
    pub fn missing_bytes(&self) -> usize {
        self.len() - self.filled_len()
    }

    /// The place of its fetch in the queue of the gate; 0 when it does not queue.
    pub fn ticket(&self) -> Ticket {
        self.ticket.load(Ordering::SeqCst)
    }

    /// Sets the [`ticket`](Self::ticket).
    pub fn set_ticket(&self, ticket: Ticket) {
        self.ticket.store(ticket, Ordering::SeqCst);
    }

    pub fn last_use(&self) -> u64 {
        self.last_use.load(Ordering::Relaxed)
    }

    pub fn touch(&self, stamp: u64) {
        self.last_use.store(stamp, Ordering::Relaxed);
    }

    /// The bytes `part` (offsets inside the extent), if they are all there.
    pub fn bytes(&self, part: &Range<usize>) -> Option<&[u8]> {
        self.front.get()?.filled().get(part.clone())
    }

    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<&ReadError> {
        self.failure.get()
    }

    /// Announces a reader that is going to wait: from here on the extent is not let go and its fetch goes first.
    pub fn want(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    async fn wait_for(&self, len: usize) -> Result<(), ReadError> {
        loop {
            if self.filled_len() >= len {
                return Ok(());
            }
            if let Some(error) = self.failure() {
                return Err(error.clone());
            }
            let receiver = {
                let mut waiters = self.waiters.lock();
                // Pairs with the fence in `wake`: either we see the bytes, or `wake` sees us waiting and takes the lock.
                fence(Ordering::SeqCst);
                if self.filled_len() >= len || self.failure().is_some() {
                    continue;
                }
                let (sender, receiver) = oneshot::channel();
                waiters.push((len, sender));
                receiver
            };
            // An error means the sender is gone, and that only happens after it sent or with the extent itself.
            let _ = receiver.await;
        }
    }

    /// Ends the extent: waiters get `error`.
    pub fn fail(&self, error: ReadError) {
        let _ = self.failure.set(error);
        for (_, waiter) in self.waiters.lock().drain(..) {
            let _ = waiter.send(());
        }
    }

    fn filled_len(&self) -> usize {
        self.front.get().map_or(0, FrontReader::filled_len)
    }

    fn wake(&self) {
        fence(Ordering::SeqCst);
        if !self.is_wanted() {
            return;
        }
        let filled = self.filled_len();
        let mut waiters = self.waiters.lock();
        for index in (0..waiters.len()).rev() {
            if waiters[index].0 <= filled {
                let _ = waiters.swap_remove(index).1.send(());
            }
        }
    }
}

/// One reader that waits; dropping it takes the announcement back.
#[derive(Debug)]
pub(super) struct Waiting<'a>(&'a Extent);

impl Waiting<'_> {
    /// Waits until the first `len` bytes are there.
    pub async fn wait_for(&self, len: usize) -> Result<(), ReadError> {
        self.0.wait_for(len).await
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The store's side of an extent: takes the bytes and wakes who can go on.
pub(super) struct Filling<'a, F> {
    writer: FrontWriter<Lease>,
    extent: &'a Extent,
    on_first_byte: Option<F>,
}

impl<'a, F: FnOnce(Instant)> Filling<'a, F> {
    /// Gives `extent` the memory that its bytes will be in. `on_first_byte` hears when they begin to come.
    pub fn new(extent: &'a Extent, lease: Lease, on_first_byte: F) -> Self {
        let (writer, reader) = crate::sys::front(lease, extent.len());
        extent.front.set(reader).expect("an extent is filled once");
        Self { writer, extent, on_first_byte: Some(on_first_byte) }
    }
}

impl<F: FnOnce(Instant) + Send> RangeSink for Filling<'_, F> {
    fn spare(&mut self) -> &mut [u8] {
        self.writer.spare()
    }

    fn advance(&mut self, n: usize) {
        self.writer.advance(n);
        if let Some(hear) = self.on_first_byte.take() {
            hear(Instant::now());
        }
        self.extent.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Options};
    use crate::units::ByteSize;

    fn lease(len: usize) -> Lease {
        Budget::new(&Options { memory_limit: Some(ByteSize::mib(64)) }).try_lease(len).unwrap()
    }

    async fn wait(extent: &Extent, len: usize) -> Result<(), ReadError> {
        extent.want().wait_for(len).await
    }

    #[tokio::test]
    async fn a_reader_goes_on_as_soon_as_its_bytes_are_there() {
        let extent = Extent::new(100..200, true);
        let mut near = Box::pin(wait(&extent, 10));
        let mut far = Box::pin(wait(&extent, 100));
        assert!(futures::poll!(&mut near).is_pending());
        assert!(futures::poll!(&mut far).is_pending());
        let mut filling = Filling::new(&extent, lease(100), |_| {});
        filling.spare()[..50].fill(7);
        filling.advance(50);
        assert_eq!(near.await, Ok(()));
        assert!(futures::poll!(&mut far).is_pending());
        assert!(extent.is_wanted());
        assert_eq!(extent.bytes(&(0..50)), Some(&[7; 50][..]));
        assert_eq!(extent.bytes(&(0..51)), None);
        filling.advance(50);
        assert_eq!(far.await, Ok(()));
        assert!(extent.missing_bytes() == 0 && !extent.is_wanted());
    }

    #[tokio::test]
    async fn every_waiter_learns_of_a_failure() {
        let extent = Extent::new(0..10, true);
        let mut waits = Box::pin(wait(&extent, 10));
        assert!(futures::poll!(&mut waits).is_pending());
        extent.fail(ReadError::GivenUp);
        assert_eq!(waits.await, Err(ReadError::GivenUp));
        assert_eq!(wait(&extent, 1).await, Err(ReadError::GivenUp));
    }
}
