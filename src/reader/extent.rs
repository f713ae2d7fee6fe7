//! A run of bytes of one object that one GET brings: a chunk, the rest of one, or a piece for an isolated read.
//! It is readable from the front while it fills. It does not fetch itself (see `fetch`).
//!
//! Invariant: a waiter is woken exactly once, by the bytes it needs, by the failure, by being given up, or when its time is over.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::budget::Lease;
use crate::spill::Summing;
use crate::store::RangeSink;
use crate::sys::{FrontReader, FrontWriter};

use super::ReadError;
use super::gate::Ticket;

/// The fetch has a place among the GETs in flight. The gate numbers its tickets from 1.
pub(super) const IN_FLIGHT: Ticket = 0;

/// The fetch has not reached the gate yet.
const NO_TICKET: Ticket = Ticket::MAX;

/// The fetch was cancelled before it sent a request, and sends none.
const CANCELLED: Ticket = Ticket::MAX - 1;

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
    /// Those that bring it to the disk.
    keepers: AtomicUsize,
    waiters: Mutex<Vec<Waiter>>,
    last_use: AtomicU64,
    ticket: AtomicU64,
}

/// See [`Extent::on_keep`].
#[derive(Debug)]
pub(super) struct Keeper(Arc<Extent>);

impl Keeper {
    pub fn extent(&self) -> &Extent {
        &self.0
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.keepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What goes on when bytes are there, or never will be.
pub(super) type Continuation = Box<dyn FnOnce() + Send>;

/// A reader that goes on when the first `len` bytes are there.
struct Waiter {
    len: usize,
    wake: Wake,
}

enum Wake {
    /// Goes on in its own task, and counts itself among those that wait.
    Task(oneshot::Sender<()>),
    /// Goes on right where the bytes arrive, while they are in the processor's cache. Counted as waiting until then.
    Parked(Instant, Continuation),
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Extent {
    pub fn new(range: Range<u64>, windowed: bool) -> Self {
        Self {
            range,
            windowed,
            front: OnceLock::new(),
            failure: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            keepers: AtomicUsize::new(0),
            waiters: Mutex::new(Vec::new()),
            last_use: AtomicU64::new(0),
            ticket: AtomicU64::new(NO_TICKET),
        }
    }

    pub fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Whether a reader waits for bytes of this extent.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// It is on its way to the disk as long as what this gives lives.
    pub fn on_keep(self: &Arc<Self>) -> Keeper {
        self.keepers.fetch_add(1, Ordering::Relaxed);
        Keeper(Arc::clone(self))
    }

    /// Whether it is all here and on its way to the disk: its memory goes when it is there, and whoever asks for it before finds it here
    /// alone.
    pub fn is_being_kept(&self) -> bool {
        self.keepers.load(Ordering::Relaxed) > 0 && self.missing_bytes() == 0
    }

    /// Bytes that are still to come.
    pub fn missing_bytes(&self) -> usize {
        self.len() - self.filled_len()
    }

    /// Whether its fetch has no place among the GETs in flight yet.
    pub fn is_queued(&self) -> bool {
        !matches!(self.ticket(), IN_FLIGHT | CANCELLED) && self.filled_len() == 0
    }

    /// The place of its fetch in the queue of the gate, [`IN_FLIGHT`], [`NO_TICKET`] or [`CANCELLED`].
    pub fn ticket(&self) -> Ticket {
        self.ticket.load(Ordering::SeqCst)
    }

    /// Sets the [`ticket`](Self::ticket). `false`: the fetch was cancelled, and must send no request.
    #[must_use]
    pub fn set_ticket(&self, ticket: Ticket) -> bool {
        let unless_cancelled = |before| (before != CANCELLED).then_some(ticket);
        self.ticket.fetch_update(Ordering::SeqCst, Ordering::SeqCst, unless_cancelled).is_ok()
    }

    /// Cancels its fetch if that has sent no request. `false`: it has, and its bytes are paid for. (Its task may be on the way from the queue to
    /// the request on another thread: aborting that would ask for the same bytes twice.)
    #[must_use]
    pub fn cancel_queued(&self) -> bool {
        let unless_in_flight = |before| (before != IN_FLIGHT).then_some(CANCELLED);
        self.ticket.fetch_update(Ordering::SeqCst, Ordering::SeqCst, unless_in_flight).is_ok()
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
    pub fn want(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(Arc::clone(self))
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
                waiters.push(Waiter { len, wake: Wake::Task(sender) });
                receiver
            };
            // An error means the sender is gone, and that only happens after it sent or with the extent itself.
            let _ = receiver.await;
        }
    }

    /// Has `then` run when the first `len` bytes are there, the extent has failed, or [`expire`](Self::expire) finds it
    /// too old: at once and here if that is so already. Until then the extent is wanted.
    pub fn park(&self, len: usize, then: Continuation) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        {
            let mut waiters = self.waiters.lock();
            // As in `wait_for`.
            fence(Ordering::SeqCst);
            if self.filled_len() < len && self.failure().is_none() {
                waiters.push(Waiter { len, wake: Wake::Parked(Instant::now(), then) });
                return;
            }
        }
        self.resume(Wake::Parked(Instant::now(), then));
    }

    /// Ends the extent: waiters get `error`.
    pub fn fail(&self, error: ReadError) {
        let _ = self.failure.set(error);
        self.resume_if(|_| true);
    }

    /// Lets those go on that were parked before `since`.
    pub fn expire(&self, since: Instant) {
        if self.is_wanted() {
            self.resume_if(|waiter| matches!(waiter.wake, Wake::Parked(parked, _) if parked < since));
        }
    }

    fn resume_if(&self, may_go_on: impl Fn(&Waiter) -> bool) {
        // Outside the lock: what goes on may come back here.
        let ready: Vec<Waiter> = self.waiters.lock().extract_if(.., |waiter| may_go_on(waiter)).collect();
        for waiter in ready {
            self.resume(waiter.wake);
        }
    }

    fn resume(&self, wake: Wake) {
        match wake {
            Wake::Task(sender) => {
                let _ = sender.send(());
            }
            Wake::Parked(_, then) => {
                // What goes on there belongs to one reader: if it panics, the others still get their bytes.
                let _ = catch_unwind(AssertUnwindSafe(then));
                self.waiting.fetch_sub(1, Ordering::SeqCst);
            }
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
        self.resume_if(|waiter| waiter.len <= filled);
    }
}

/// One reader that waits; dropping it takes the announcement back.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Extent>);

impl Waiting {
    /// Waits until the first `len` bytes are there.
    pub async fn wait_for(&self, len: usize) -> Result<(), ReadError> {
        self.0.wait_for(len).await
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The store's side of an extent: takes the bytes and wakes who can go on.
#[derive(Debug)]
pub(super) struct Filling {
    writer: FrontWriter<Lease>,
    extent: Arc<Extent>,
}

impl Filling {
    /// Gives `extent` the memory that its bytes will be in.
    pub fn new(extent: &Arc<Extent>, lease: Lease) -> Self {
        let (writer, reader) = crate::sys::front(lease, extent.len());
        extent.front.set(reader).expect("an extent is filled once");
        Self { writer, extent: Arc::clone(extent) }
    }

    /// The bytes of the object that are still to come.
    pub fn missing(&self) -> Range<u64> {
        self.extent.range.start + self.writer.filled_len() as u64..self.extent.range.end
    }

    /// Room for the bytes that come next.
    pub fn spare(&mut self) -> &mut [u8] {
        self.writer.spare()
    }

    /// The first `n` bytes of [`spare`](Self::spare) are there.
    pub fn advance(&mut self, n: usize) {
        self.advance_and_sum(n, None);
    }

    fn advance_and_sum(&mut self, n: usize, summing: Option<&mut Summing>) {
        self.writer.advance(n);
        // Before the reader goes on, who would push the bytes out of the processor's cache.
        if let Some(summing) = summing
            && let Some(bytes) = self.extent.bytes(&(0..self.writer.filled_len()))
        {
            summing.on_bytes(self.extent.range.start, bytes);
        }
        self.extent.wake();
    }

    /// A sink for the next `len` bytes, of which `summing` makes checksums. `on_bytes` hears how many have come.
    pub fn next<F: FnMut(usize)>(&mut self, len: usize, summing: Option<Summing>, on_bytes: F) -> Next<'_, F> {
        Next { filling: self, left: len, summing, on_bytes }
    }
}

/// What one answer of the store fills.
pub(super) struct Next<'a, F> {
    filling: &'a mut Filling,
    left: usize,
    summing: Option<Summing>,
    on_bytes: F,
}

impl<F> Next<'_, F> {
    /// The checksums of what came.
    pub fn sums(self) -> Option<Summing> {
        self.summing
    }
}

impl<F: FnMut(usize) + Send> RangeSink for Next<'_, F> {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.filling.spare()[..self.left]
    }

    fn advance(&mut self, n: usize) {
        self.left -= n;
        // Before the reader goes on, which may be here.
        (self.on_bytes)(n);
        self.filling.advance_and_sum(n, self.summing.as_mut());
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

    async fn wait(extent: &Arc<Extent>, len: usize) -> Result<(), ReadError> {
        extent.want().wait_for(len).await
    }

    #[test]
    fn a_fetch_is_cancelled_or_sends_its_request_and_never_both() {
        for queued in [NO_TICKET, 7] {
            let cancelled = Extent::new(0..100, true);
            assert!(cancelled.set_ticket(queued) && cancelled.is_queued());
            assert!(cancelled.cancel_queued());
            assert!(!cancelled.is_queued() && !cancelled.set_ticket(8) && !cancelled.set_ticket(IN_FLIGHT));
            let sent = Extent::new(0..100, true);
            assert!(sent.set_ticket(queued) && sent.set_ticket(IN_FLIGHT));
            assert!(!sent.cancel_queued() && !sent.is_queued());
        }
    }

    #[tokio::test]
    async fn a_reader_goes_on_as_soon_as_its_bytes_are_there() {
        let extent = Arc::new(Extent::new(100..200, true));
        let mut near = Box::pin(wait(&extent, 10));
        let mut far = Box::pin(wait(&extent, 100));
        assert!(futures::poll!(&mut near).is_pending());
        assert!(futures::poll!(&mut far).is_pending());
        let mut filling = Filling::new(&extent, lease(100));
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
    async fn a_parked_reader_goes_on_where_the_bytes_arrive() {
        let extent = Arc::new(Extent::new(0..100, true));
        let seen = Arc::new(Mutex::new(Vec::new()));
        for len in [10, 60, 100] {
            let (extent, seen) = (Arc::clone(&extent), Arc::clone(&seen));
            extent.clone().park(len, Box::new(move || seen.lock().push((len, extent.bytes(&(0..len)).is_some(), extent.is_wanted()))));
        }
        let mut filling = Filling::new(&extent, lease(100));
        filling.advance(9);
        assert_eq!(*seen.lock(), []);
        filling.advance(51);
        assert_eq!(*seen.lock(), [(10, true, true), (60, true, true)]);
        extent.expire(Instant::now() - std::time::Duration::from_secs(60));
        assert_eq!(seen.lock().len(), 2);
        extent.fail(ReadError::GivenUp);
        assert_eq!(seen.lock()[2..], [(100, false, true)]);
        assert!(!extent.is_wanted());
        let late = Arc::clone(&seen);
        extent.park(100, Box::new(move || late.lock().push((0, false, false))));
        assert_eq!(seen.lock().len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_parked_reader_goes_on_when_its_time_is_over() {
        let extent = Extent::new(0..100, true);
        let seen = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&seen);
        extent.park(100, Box::new(move || count.store(count.load(Ordering::SeqCst) + 1, Ordering::SeqCst)));
        extent.expire(Instant::now());
        assert_eq!(seen.load(Ordering::SeqCst), 0);
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        extent.expire(Instant::now());
        extent.expire(Instant::now());
        assert_eq!((seen.load(Ordering::SeqCst), extent.is_wanted()), (1, false));
    }

    #[tokio::test]
    async fn every_waiter_learns_of_a_failure() {
        let extent = Arc::new(Extent::new(0..10, true));
        let mut waits = Box::pin(wait(&extent, 10));
        assert!(futures::poll!(&mut waits).is_pending());
        extent.fail(ReadError::GivenUp);
        assert_eq!(waits.await, Err(ReadError::GivenUp));
        assert_eq!(wait(&extent, 1).await, Err(ReadError::GivenUp));
    }
}
