//! The writers' share of the memory: buffers of parts that are being filled or sent, and sent ones that are kept in case their
//! bytes are wanted again. It does not know whose they are. Invariant: writers hold at most their share; what is kept goes
//! before anybody waits, and nobody waits for memory that only other waiting writers could give back.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use super::filling::Filling;
use super::kept::{Kept, Most};
use super::landing::{Landing, Landings};
use super::parts::Limits;
use crate::budget::{Budget, Lease, buffer_size};
use crate::reader::Reader;
use crate::store::ObjectMeta;
use crate::sys::Window;

/// Of the budget, for all writers together.
const SHARE: usize = 4;

/// A part is at most this part of the budget: two are in the share, one being filled while the other is sent.
const LARGEST_PART: usize = 8;

/// What a permit of the share stands for: the smallest buffer.
const UNIT: usize = 16 << 10;

/// Who waits for memory of the budget looks this often for something that readers can let go.
const RECLAIM_EVERY: Duration = Duration::from_millis(10);

/// With no part on its way, nothing written and nothing given back for so long, memory will not come from other writers.
const QUIET: Duration = Duration::from_millis(100);

/// The same when others do write, but so slowly that none of them filled a part.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    permits: Arc<Semaphore>,
    /// Of buffers that are smaller than a part: at least one part always has room beside all of them, or files that grow
    /// would wait for each other.
    small: Arc<Semaphore>,
    /// From so many bytes on a buffer is not small.
    part: usize,
    /// Files longer than this do not fit in what is kept.
    long: u64,
    most_kept: usize,
    most_kept_of_long: usize,
    kept: Mutex<Kept>,
    landings: Landings,
    sending: AtomicUsize,
    /// Writers that wait for memory.
    waiting: AtomicUsize,
    reader: OnceLock<Reader>,
    begin: Instant,
    /// Milliseconds since `begin`.
    last_written: AtomicU64,
    last_released: AtomicU64,
}

/// Memory of one part.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Goes before the permit, so that who gets the permit finds the memory.
    window: Window<Lease>,
    _room: Room,
}

/// A part of the share, for memory that is somewhere else or comes later.
#[derive(Debug)]
pub(super) struct Room {
    len: usize,
    _permits: Vec<OwnedSemaphorePermit>,
    share: Weak<Share>,
}

impl Buffer {
    pub fn len(&self) -> usize {
        self.window.len()
    }

    pub fn bytes(&self) -> &[u8] {
        self.window.bytes()
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.window.bytes_mut()
    }

    /// The first `len` bytes for a request, without a copy.
    pub fn body(self: &Arc<Self>, len: usize) -> Bytes {
        Bytes::from_owner(Body(Arc::clone(self))).slice(..len)
    }
}

impl Room {
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(share) = self.share.upgrade() {
            share.last_released.store(share.now(), Ordering::Relaxed);
        }
    }
}

struct Body(Arc<Buffer>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Why there is no buffer.
#[derive(Debug)]
pub(super) enum Shortage {
    /// Waiting for other writers is of no use.
    Stuck,
    Failed(io::Error),
}

impl Share {
    /// The share of `budget`, for parts of `part` bytes or more. Of what was sent so much is kept as `limits` say.
    pub fn new(budget: Arc<Budget>, part: usize, limits: &Limits) -> Arc<Self> {
        let budget_share = whole(&budget, limits);
        let all = budget_share / UNIT;
        let part = part.min(largest_part(&budget));
        Arc::new(Self {
            budget,
            permits: Arc::new(Semaphore::new(all)),
            small: Arc::new(Semaphore::new(all.saturating_sub(units(part) as usize).max(1))),
            part,
            long: limits.kept,
            most_kept: usize::try_from(limits.kept).unwrap_or(usize::MAX).min(budget_share / 2),
            most_kept_of_long: usize::try_from(limits.kept_of_long).unwrap_or(usize::MAX),
            kept: Mutex::default(),
            landings: Landings::default(),
            sending: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            reader: OnceLock::new(),
            begin: Instant::now(),
            last_written: AtomicU64::new(0),
            last_released: AtomicU64::new(0),
        })
    }

    /// The largest part that memory allows.
    pub fn largest_part(&self) -> usize {
        largest_part(&self.budget)
    }

    /// A buffer of `len` bytes that can be had now.
    pub fn try_buffer(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        let permits = loop {
            match self.try_permits(len) {
                Some(permits) => break permits,
                None => self.let_one_go()?,
            }
        };
        let lease = loop {
            match self.budget.try_lease(len) {
                Some(lease) => break lease,
                None => self.let_one_go()?,
            }
        };
        Some(self.buffer(lease, len, permits))
    }

    /// Room for `len` bytes that were received somewhere, as long as there is as much again: for a buffer, when something is written into them.
    pub fn try_room(self: &Arc<Self>, len: usize) -> Option<Room> {
        let spare = self.try_permits(len)?;
        let permits = self.try_permits(len)?;
        drop(spare);
        Some(self.room(len, permits))
    }

    /// Memory to receive into, where there is some to spare.
    pub fn landing(&self) -> Option<Landing> {
        if self.waiting.load(Ordering::Relaxed) > 0 { None } else { self.landings.open(&self.budget) }
    }

    fn try_permits(&self, len: usize) -> Option<Vec<OwnedSemaphorePermit>> {
        let mut permits = Vec::with_capacity(2);
        if len < self.part {
            permits.push(Arc::clone(&self.small).try_acquire_many_owned(units(len)).ok()?);
        }
        permits.push(Arc::clone(&self.permits).try_acquire_many_owned(units(len)).ok()?);
        Some(permits)
    }

    /// A buffer of `len` bytes, as soon as there is one. Who waits goes after those who waited before.
    pub async fn buffer_or_stuck(self: &Arc<Self>, len: usize) -> Result<Buffer, Shortage> {
        if let Some(buffer) = self.try_buffer(len) {
            return Ok(buffer);
        }
        let _waiting = self.wait();
        let permits = tokio::select! {
            biased;
            permits = self.permits(len) => permits,
            () = self.stuck() => return Err(Shortage::Stuck),
        };
        // What the share has readers may hold; they give way.
        let lease = self.lease(len).await.map_err(Shortage::Failed)?;
        Ok(self.buffer(lease, len, permits))
    }

    /// A buffer for someone who gives it back without needing another one first. Where the share does not have it, the holder of
    /// `spare` takes it from the rest of the budget: so everyone gets on, however many files hold half-filled parts.
    pub async fn buffer_to_send(self: &Arc<Self>, len: usize, spare: &Arc<Semaphore>) -> io::Result<Buffer> {
        if let Some(buffer) = self.try_buffer(len) {
            return Ok(buffer);
        }
        tokio::select! {
            biased;
            buffer = self.wait_for(len) => buffer,
            permit = Arc::clone(spare).acquire_owned() => {
                let lease = self.lease(len).await?;
                Ok(self.buffer(lease, len, Vec::from_iter(permit)))
            }
        }
    }

    async fn wait_for(self: &Arc<Self>, len: usize) -> io::Result<Buffer> {
        let _waiting = self.wait();
        let permits = self.permits(len).await;
        let lease = self.lease(len).await?;
        Ok(self.buffer(lease, len, permits))
    }

    /// As long as somebody waits nothing is kept.
    fn wait(&self) -> Counted<'_> {
        let waiting = Counted::new(&self.waiting);
        while self.let_one_go().is_some() {}
        waiting
    }

    async fn permits(&self, len: usize) -> Vec<OwnedSemaphorePermit> {
        let mut permits = Vec::with_capacity(2);
        if len < self.part {
            permits.push(Arc::clone(&self.small).acquire_many_owned(units(len)).await.expect("the share is never closed"));
        }
        permits.push(Arc::clone(&self.permits).acquire_many_owned(units(len)).await.expect("the share is never closed"));
        permits
    }

    /// Memory of the budget, if it must be out of what readers can spare.
    async fn lease(&self, len: usize) -> io::Result<Lease> {
        let mut lease = std::pin::pin!(self.budget.lease(len));
        loop {
            tokio::select! {
                biased;
                lease = &mut lease => return lease,
                () = async {
                    if let Some(reader) = self.reader.get() {
                        reader.make_room(len);
                    }
                    sleep(RECLAIM_EVERY).await;
                } => {}
            }
        }
    }

    /// See [`Writer::take_room_from`](super::Writer::take_room_from).
    pub fn take_room_from(&self, reader: &Reader) {
        // A second reader is none: there is one per mount.
        let _ = self.reader.set(reader.clone());
    }

    /// The store has taken `content` as `meta`.
    pub fn on_stored(&self, meta: &ObjectMeta, content: &[u8]) {
        if let Some(reader) = self.reader.get() {
            reader.keep_written(meta, content);
        }
    }

    fn buffer(self: &Arc<Self>, lease: Lease, len: usize, permits: Vec<OwnedSemaphorePermit>) -> Buffer {
        Buffer { window: Window::new(lease, len), _room: self.room(len, permits) }
    }

    fn room(self: &Arc<Self>, len: usize, permits: Vec<OwnedSemaphorePermit>) -> Room {
        Room { len, _permits: permits, share: Arc::downgrade(self) }
    }

    /// Returns when no writer will give anything back soon.
    async fn stuck(&self) {
        loop {
            let (now, released) = (self.now(), self.last_released.load(Ordering::Relaxed));
            let written = self.last_written.load(Ordering::Relaxed);
            let quiet = (released.max(written) + millis(QUIET)).min(released + millis(PATIENCE));
            if quiet <= now && self.sending.load(Ordering::Relaxed) == 0 {
                return;
            }
            let again = if quiet > now { quiet } else { now + millis(QUIET) };
            sleep_until(self.begin + Duration::from_millis(again)).await;
        }
    }

    /// Somebody wrote into a part.
    pub fn on_written(&self) {
        self.last_written.store(self.now(), Ordering::Relaxed);
    }

    /// How many parts and small files are on their way.
    pub fn sending(&self) -> usize {
        self.sending.load(Ordering::Relaxed)
    }

    /// A part is on its way until this is dropped.
    pub fn on_send(self: &Arc<Self>) -> Sending {
        self.sending.fetch_add(1, Ordering::Relaxed);
        Sending(Arc::clone(self))
    }

    /// Keeps what was sent of a file that is `size` bytes long by now, as long as that is cheap. What is returned finds it as long as it is kept.
    pub fn keep(&self, buffer: Arc<Filling>, is_first: bool, size: u64) -> Weak<Filling> {
        let weak = Arc::downgrade(&buffer);
        if !self.budget.is_short() && self.waiting.load(Ordering::Relaxed) == 0 {
            let most = Most { all: self.most_kept, others: if size > self.long { self.most_kept_of_long } else { usize::MAX } };
            // Dropped outside the lock: it may wake others.
            let gone = self.kept.lock().keep(buffer, is_first, most);
            drop(gone);
        }
        weak
    }

    /// Takes back what is kept no longer for its owner to use.
    pub fn take(&self, weak: &Weak<Filling>) -> Option<Arc<Filling>> {
        let buffer = weak.upgrade()?;
        self.forget(weak);
        Some(buffer)
    }

    /// Its owner does not want it any more.
    pub fn forget(&self, weak: &Weak<Filling>) {
        let found = self.kept.lock().take(weak);
        drop(found);
    }

    fn let_one_go(&self) -> Option<()> {
        let gone = self.kept.lock().pop();
        gone.map(drop)
    }

    /// Bytes of the share that are taken.
    #[cfg(test)]
    fn held_bytes(&self) -> usize {
        (self.budget.limit() / SHARE / UNIT - self.permits.available_permits()) * UNIT
    }

    fn now(&self) -> u64 {
        millis(self.begin.elapsed())
    }
}

/// Counts as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See [`Share::on_send`].
#[derive(Debug)]
pub(super) struct Sending(Arc<Share>);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.last_released.store(self.0.now(), Ordering::Relaxed);
        self.0.sending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What writers may have of the memory: their part of it, and of little memory as much as a stream needs, one part that is filled beside one that is sent.
fn whole(budget: &Budget, limits: &Limits) -> usize {
    let two_parts = usize::try_from(limits.least_part).unwrap_or(usize::MAX).saturating_mul(2);
    (budget.limit() / SHARE).max(two_parts.min(budget.limit()))
}

/// Parts of up to `part` bytes of which writers' memory holds two.
pub(super) fn fitting_part(part: u64, budget: &Budget, limits: &Limits) -> u64 {
    let half = whole(budget, limits) as u64 / 2;
    part.min(half).max(limits.least_part)
}

fn largest_part(budget: &Budget) -> usize {
    (budget.limit() / LARGEST_PART).max(UNIT)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn units(len: usize) -> u32 {
    u32::try_from(buffer_size(len) / UNIT).expect("parts are below 64 TiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Options;
    use crate::units::ByteSize;

    const MIB: usize = 1 << 20;

    fn share() -> Arc<Share> {
        Share::new(Budget::new(&Options { memory_limit: Some(ByteSize::mib(64)) }), 4 * MIB, &Limits::default())
    }

    #[tokio::test(start_paused = true)]
    async fn writers_get_their_share_and_not_more() {
        let share = share();
        let small: Vec<_> = std::iter::from_fn(|| share.try_buffer(MIB)).collect();
        assert_eq!((small.len(), share.held_bytes()), (12, 12 * MIB));
        // Small buffers leave room for a part.
        let part = share.try_buffer(4 * MIB).unwrap();
        assert!(share.try_buffer(4 * MIB).is_none() && share.held_bytes() == 16 * MIB);
        drop((small, part));
        assert_eq!((share.held_bytes(), share.budget.leased_bytes()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_goes_before_anybody_waits_and_first_parts_go_last() {
        let share = share();
        let keep = |first| share.keep(Arc::new(share.try_buffer(2 * MIB).unwrap().into()), first, 64 << 20);
        let (head, tail) = (keep(true), keep(false));
        let kept: Vec<_> = (0..2).map(|_| keep(false)).collect();
        // Half of the share is kept at most.
        assert!(share.held_bytes() == 8 * MIB && head.upgrade().is_some() && tail.upgrade().is_some());
        keep(false);
        assert!(head.upgrade().is_some() && tail.upgrade().is_none() && kept[0].upgrade().is_some());
        let all: Vec<_> = std::iter::from_fn(|| share.try_buffer(2 * MIB)).collect();
        assert_eq!(all.len(), 6);
        assert!(head.upgrade().is_none() && kept[1].upgrade().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_file_that_does_not_fit_the_first_part_and_the_last_ones_are_kept() {
        let budget = Budget::new(&Options { memory_limit: Some(ByteSize::gib(1)) });
        let share = Share::new(budget, 8 * MIB, &Limits::default());
        let mut size = 0;
        let mut parts = || {
            size += 8 << 20;
            share.keep(Arc::new(share.try_buffer(8 * MIB).unwrap().into()), size == 8 << 20, size)
        };
        let parts: Vec<Vec<_>> = (0..2).map(|_| (0..8).map(|_| parts()).collect()).collect();
        let there = |parts: &[Weak<Filling>]| -> Vec<bool> { parts.iter().map(|part| part.upgrade().is_some()).collect() };
        assert_eq!(there(&parts[0]), [true, false, false, false, false, false, false, false]);
        assert_eq!(there(&parts[1]), [false, false, false, false, false, false, true, true]);
        assert_eq!(share.held_bytes(), 24 * MIB);
        // Another file, which fits, is kept as a whole from then on.
        let short: Vec<_> = (0..3).map(|_| share.keep(Arc::new(share.try_buffer(8 * MIB).unwrap().into()), false, 24 << 20)).collect();
        assert_eq!((there(&short), share.held_bytes()), (vec![true; 3], 48 * MIB));
        // Until the long one goes on.
        share.keep(Arc::new(share.try_buffer(8 * MIB).unwrap().into()), false, 1 << 30);
        assert_eq!((there(&short), share.held_bytes()), (vec![false, false, true], 24 * MIB));
    }

    #[tokio::test(start_paused = true)]
    async fn room_for_what_was_received_leaves_as_much_for_a_buffer_and_takes_no_memory() {
        let share = share();
        let rooms: Vec<_> = std::iter::from_fn(|| share.try_room(4 * MIB)).collect();
        assert_eq!((rooms.len(), share.held_bytes(), share.budget.leased_bytes()), (3, 12 * MIB, 0));
        assert!(share.try_buffer(4 * MIB).is_some());
        drop(rooms);
        assert_eq!(share.held_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_back_is_not_kept_any_more() {
        let share = share();
        let weak = share.keep(Arc::new(share.try_buffer(MIB).unwrap().into()), true, 1);
        let taken = share.take(&weak).unwrap();
        assert_eq!((Arc::strong_count(&taken), share.kept.lock().bytes()), (1, 0));
        drop(taken);
        assert!(share.take(&weak).is_none() && share.held_bytes() == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_waits_while_something_is_on_its_way_and_not_for_those_that_wait_too() {
        let share = share();
        let held: Vec<_> = std::iter::from_fn(|| share.try_buffer(8 * MIB)).collect();
        let sending = share.on_send();
        let mut waits = Box::pin(share.buffer_or_stuck(MIB));
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut waits).await.is_err());
        drop(sending);
        let start = Instant::now();
        assert!(matches!(waits.await, Err(Shortage::Stuck)));
        assert!(start.elapsed() <= QUIET + Duration::from_millis(1), "{:?}", start.elapsed());
        // The next one knows at once.
        assert!(matches!(share.buffer_or_stuck(MIB).await, Err(Shortage::Stuck)));
        assert_eq!(start.elapsed(), start.elapsed().min(QUIET * 2));
        drop(held);
        assert!(share.buffer_or_stuck(MIB).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_gets_on_beside_a_full_share_with_one_buffer_at_a_time() {
        let share = share();
        let held: Vec<_> = std::iter::from_fn(|| share.try_buffer(8 * MIB)).collect();
        let spare = Arc::new(Semaphore::new(1));
        let first = share.buffer_to_send(8 * MIB, &spare).await.unwrap();
        let mut second = Box::pin(share.buffer_to_send(8 * MIB, &spare));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        second.await.unwrap();
        drop(held);
    }
}
