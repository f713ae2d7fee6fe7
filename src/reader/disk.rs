//! The reader's side of the spill: what of an object is on the disk and is read from there, and what the store sent goes there behind
//! the readers' backs. It decides nothing about eviction or room. Invariant: no reader waits for a write, and nothing that goes
//! wrong on the disk is an error of a read: the store is asked instead.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::ReadMode;
use super::extent::{Extent, Filling, Keeper};
use super::plan;
use crate::metrics::Metrics;
use crate::spill::{Added, Addition, PIECE_BYTES, Spill, SpillObject, Summing, Way, Whole};
use crate::store::{Key, ObjectMeta};

/// Bytes that wait to be written are counted in these.
const UNIT: u64 = 64 << 10;

/// Objects that are written to at once. A disk gains little from more, and each holds a thread.
const WRITES: usize = 8;

/// Parts of one object that are written at once: what came while the ones before were written.
const AT_ONCE: usize = 8;

/// What is read from the disk before who waits for it is told.
const STEP: u64 = 1 << 20;

/// How often, and how many times, a piece that another process is about to write is looked at.
const LOOK: Duration = Duration::from_millis(5);
const LOOKS: usize = 20;

/// What keeps the objects of one bucket on a disk.
#[derive(Debug)]
pub(super) struct Disk {
    spill: Spill,
    mode: ReadMode,
    /// All of `room`.
    units: u32,
    /// Memory that is held only because it is not written yet.
    room: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    runtime: Handle,
}

impl Disk {
    /// At most `memory` bytes wait to be written.
    pub fn new(spill: Spill, mode: ReadMode, memory: u64, metrics: Arc<Metrics>) -> Arc<Self> {
        let units = u32::try_from(memory / UNIT).unwrap_or(u32::MAX >> 4).max(1);
        let room = Arc::new(Semaphore::new(units as usize));
        Arc::new(Self { spill, mode, units, room, turns: Arc::new(Semaphore::new(WRITES)), metrics, runtime: Handle::current() })
    }

    /// Returns when nothing waits to be written.
    pub async fn written(&self) {
        drop(self.room.acquire_many(self.units).await);
    }

    /// Drops what is kept of an object.
    pub async fn forget(&self, key: &Key) {
        self.written().await;
        let (spill, key) = (self.spill.clone(), key.clone());
        // A runtime that shuts down has no reader for it.
        let _ = tokio::task::spawn_blocking(move || spill.forget(&key)).await;
    }

    fn units(&self, len: u64) -> u32 {
        u32::try_from(len.div_ceil(UNIT)).map_or(self.units, |units| units.min(self.units))
    }

    /// One version of an object; what is left of other versions of it goes.
    pub fn object(self: &Arc<Self>, meta: &ObjectMeta) -> Option<Arc<OnDisk>> {
        if meta.size == 0 {
            return None;
        }
        Some(Arc::new(OnDisk {
            disk: Arc::clone(self),
            spilled: self.spill.object(&meta.key, &meta.etag, meta.size),
            size: meta.size,
            there: AtomicU64::new(0),
            looking: Mutex::default(),
            queue: Mutex::default(),
            good: AtomicU64::new(0),
            looked: AtomicBool::new(false),
        }))
    }
}

/// One version of an object as far as it is on the disk.
#[derive(Debug)]
pub(super) struct OnDisk {
    disk: Arc<Disk>,
    spilled: SpillObject,
    size: u64,
    /// Bytes that were found good on the disk, or put there, since it was opened.
    good: AtomicU64,
    /// All of it is being looked through, or was.
    looked: AtomicBool,
    /// Bytes of it on the disk when it was last looked, where a threshold bounds them. Those on their way there count too.
    there: AtomicU64,
    looking: Mutex<()>,
    queue: Mutex<Queue>,
}

/// What waits to be written of one object. Its files take turns, so one task writes, all that came meanwhile at once.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Kept>,
    is_written: bool,
}

/// A part of an extent on its way to the disk.
#[derive(Debug)]
struct Kept {
    /// Its memory is held until it is written.
    keeper: Keeper,
    range: Range<u64>,
    sums: Option<Summing>,
    _room: OwnedSemaphorePermit,
    /// Bytes that were [taken](OnDisk::takes) for it.
    taken: u64,
    /// Who wants to know what became of it.
    told: Option<oneshot::Sender<Added>>,
}

impl Kept {
    fn bytes(&self) -> &[u8] {
        let (extent, range) = (self.keeper.extent(), &self.range);
        let part = (range.start - extent.range.start) as usize..(range.end - extent.range.start) as usize;
        extent.bytes(&part).expect("the store has sent it")
    }
}

/// Whoever writes what waits; when it ends early, as with the runtime, nothing waits any more.
struct Writing {
    on_disk: Arc<OnDisk>,
    is_through: bool,
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_through {
            // Let go of behind the lock: it may let others go on.
            let _left = std::mem::take(&mut *self.on_disk.queue.lock());
        }
    }
}

/// Whether bytes came to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    Kept,
    /// There is no room, or the disk does not work.
    Refused,
}

impl OnDisk {
    /// Fills the next bytes of an extent from the disk. What comes then has to be asked of the store; none when the extent is full.
    pub async fn fill(self: &Arc<Self>, filling: Filling) -> (Filling, Option<Range<u64>>) {
        let this = Arc::clone(self);
        blocking(move || {
            let mut filling = filling;
            let before = filling.missing().start;
            let next = this.fill_here(&mut filling);
            this.on_good(filling.missing().start - before);
            // Here, where files may be looked at: `keep` comes after this.
            this.look_how_much();
            (filling, next)
        })
        .await
    }

    fn fill_here(&self, filling: &mut Filling) -> Option<Range<u64>> {
        loop {
            let missing = filling.missing();
            if missing.is_empty() {
                return None;
            }
            let there = self.spilled.present(&missing).into_iter().next();
            match there {
                None => return Some(missing),
                Some(run) if run.start > missing.start => return Some(missing.start..run.start),
                Some(run) => {
                    // Not all at once: who waits for the first bytes goes on with them.
                    let end = run.end.min((run.start / STEP + 1) * STEP);
                    let len = (end - run.start) as usize;
                    let read = self.spilled.read(run.start, &mut filling.spare()[..len]);
                    self.disk.metrics.spill_read_bytes.add(read as u64);
                    filling.advance(read);
                    if read < len {
                        // Damaged, or gone meanwhile.
                        let at = filling.missing().start;
                        return Some(at..((at / PIECE_BYTES + 1) * PIECE_BYTES).min(missing.end));
                    }
                }
            }
        }
    }

    /// Makes the checksums of what the store is about to send from `start` on, if that is to be [kept](Self::keep).
    pub fn summing(&self, start: u64) -> Option<Summing> {
        let wants = match self.disk.mode {
            ReadMode::Direct => false,
            ReadMode::Cached => true,
            ReadMode::Hybrid(threshold) => self.there.load(Ordering::Relaxed) < threshold.as_u64(),
        };
        if wants { self.spilled.summing(start) } else { None }
    }

    /// Has `range` of `extent`, which the store sent, written behind the reader's back, with the checksums `sums` as far as they were made.
    /// When more waits than memory has room for it is left out: it will be fetched again.
    pub fn keep(self: &Arc<Self>, extent: &Arc<Extent>, range: Range<u64>, sums: Option<Summing>) {
        let len = range.end - range.start;
        if !self.takes(len) {
            return;
        }
        let Ok(room) = Arc::clone(&self.disk.room).try_acquire_many_owned(self.disk.units(len)) else {
            self.came(len);
            self.disk.metrics.spill_skipped_bytes.add(len);
            return;
        };
        self.queue(Kept { keeper: extent.on_keep(), range, sums, _room: room, taken: len, told: None });
    }

    /// Has `range` of `extent` written, whatever the mode says, and waits for that.
    pub async fn put(self: &Arc<Self>, extent: &Arc<Extent>, range: Range<u64>) -> Put {
        for _ in 0..LOOKS {
            let units = self.disk.units(range.end - range.start);
            let room = Arc::clone(&self.disk.room).acquire_many_owned(units).await.expect("it is never closed");
            let (tell, told) = oneshot::channel();
            self.queue(Kept { keeper: extent.on_keep(), range: range.clone(), sums: None, _room: room, taken: 0, told: Some(tell) });
            if told.await.is_ok_and(|added| added.dropped == 0) {
                return Put::Kept;
            }
            // Perhaps only because somebody else is at it: then it may be there now.
            tokio::time::sleep(LOOK).await;
        }
        Put::Refused
    }

    fn queue(self: &Arc<Self>, kept: Kept) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(kept);
        if !std::mem::replace(&mut queue.is_written, true) {
            let writing = Writing { on_disk: Arc::clone(self), is_through: false };
            self.disk.runtime.spawn(write_all(writing));
        }
    }

    /// Those that came first, in the order of the object; none when nothing waits, and then nobody writes.
    fn next(&self) -> Option<Vec<Kept>> {
        let mut queue = self.queue.lock();
        let ready = queue.waiting.len().min(AT_ONCE);
        queue.is_written = ready > 0;
        let mut next: Vec<_> = queue.waiting.drain(..ready).collect();
        next.sort_by_key(|kept| kept.range.start);
        (ready > 0).then_some(next)
    }

    /// The parts of `range` that are not on the disk.
    pub async fn missing(self: &Arc<Self>, range: Range<u64>) -> Vec<Range<u64>> {
        let this = Arc::clone(self);
        blocking(move || {
            let there = this.spilled.present(&range);
            plan::missing(there.into_iter(), &range, u64::MAX)
        })
        .await
    }

    /// Whether [`whole`](Self::whole) is worth asking, which looks at the disk.
    pub fn may_be_whole(&self) -> bool {
        self.spilled.was_verified()
    }

    /// The file that holds all of the object, found undamaged by this process, for the kernel to read from.
    pub fn whole(&self) -> Option<Whole> {
        self.spilled.whole()
    }

    /// So many bytes of it were found good on the disk, or put there. When that was all of it, it is looked through once more, as it
    /// is then, for [`whole`](Self::whole): whoever reads the file itself checks nothing.
    fn on_good(self: &Arc<Self>, bytes: u64) {
        let good = self.good.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if bytes == 0 || good < self.size || self.looked.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = Arc::clone(self);
        self.disk.runtime.spawn_blocking(move || {
            if !this.spilled.is_whole() || !this.spilled.verify() {
                this.good.store(0, Ordering::Relaxed);
                this.looked.store(false, Ordering::Relaxed);
            }
        });
    }

    fn write(self: &Arc<Self>, parts: Vec<Kept>) {
        // Only when the next one would find no room: copying into pages costs what a disk that nearly follows would need, since their
        // write-back takes from the same disk and the same cores.
        let falls_behind =
            parts.iter().any(|kept| self.disk.room.available_permits() < self.disk.units(kept.bytes().len() as u64) as usize);
        let way = if falls_behind { Way::Pages } else { Way::Straight };
        let additions: Vec<_> =
            parts.iter().map(|kept| Addition { offset: kept.range.start, bytes: kept.bytes(), summing: kept.sums.as_ref() }).collect();
        let added = self.spilled.add_all(way, &additions);
        let kept = added.iter().map(|added| added.kept).sum();
        self.disk.metrics.spill_written_bytes.add(kept);
        self.on_good(kept);
        self.look_how_much();
        for (part, added) in parts.into_iter().zip(added) {
            self.came(part.taken);
            if let Some(tell) = part.told {
                // Whoever asked may be gone.
                let _ = tell.send(added);
            }
        }
    }

    /// Whether `len` bytes more are to be kept. They count from here on.
    fn takes(&self, len: u64) -> bool {
        let there = self.there.load(Ordering::Relaxed);
        match self.disk.mode {
            ReadMode::Direct => false,
            ReadMode::Cached => true,
            ReadMode::Hybrid(threshold) => self.spilled.coming().is_some_and(|coming| {
                let fits = |bytes: u64| (there.saturating_add(bytes) < threshold.as_u64()).then(|| bytes + len);
                coming.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
            }),
        }
    }

    /// Bytes that were [taken](Self::takes) are on the disk, or will not be.
    fn came(&self, len: u64) {
        if let (ReadMode::Hybrid(_), Some(coming)) = (self.disk.mode, self.spilled.coming()) {
            coming.fetch_sub(len, Ordering::Relaxed);
        }
    }

    /// Looks how much is on the disk, where a threshold bounds it: others add to it, and it is evicted.
    fn look_how_much(&self) {
        if matches!(self.disk.mode, ReadMode::Hybrid(_)) {
            // One after the other, so that no older look comes last.
            let _turn = self.looking.lock();
            self.there.store(self.spilled.bytes_on_disk(), Ordering::Relaxed);
        }
    }
}

/// Writes what waits, until nothing does.
async fn write_all(mut writing: Writing) {
    let on_disk = Arc::clone(&writing.on_disk);
    loop {
        let _turn = on_disk.disk.turns.acquire().await.expect("it is never closed");
        let Some(parts) = on_disk.next() else { break };
        let this = Arc::clone(&on_disk);
        blocking(move || this.write(parts)).await;
    }
    writing.is_through = true;
}

/// Does `work` where it may wait for a disk. When the runtime ends before it came to that nobody goes on.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => std::future::pending().await,
    }
}
