//! The read window: turns reads of one object into parallel range GETs that run ahead of the reader.
//!
//! [`Reader`] is one per process, [`ObjectHandle`] one per open file. A read goes down in two steps: [`begin`]
//! (synchronous, a few microseconds: finds or starts the extents) and, when bytes are still on their way, [`finish`].
//! What decides is pure (`streams`, `jumps`, `runs`, `strides`, `promotion`, `window`, `plan`); `object` holds the state, `fetch` acts.
//!
//! Invariant: a handle reads the one version it was opened with.
//!
//! [`begin`]: ObjectHandle::begin
//! [`finish`]: Pending::finish

mod climb;
mod disk;
mod extent;
mod fetch;
mod gate;
mod jumps;
mod live;
mod object;
mod options;
mod pace;
mod plan;
mod promotion;
mod runs;
mod streams;
mod strides;
mod turn;
mod warm;
mod window;
mod written;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::budget::Budget;
use crate::metrics::{Metrics, Sharded};
use crate::spill::{Spill, Whole};
use crate::store::{self, ETag, Key, ObjectMeta, ObjectStore};

pub use jumps::ReaderId;
pub use live::Holding;
pub use options::{Options, PrefetchChunks, ReadMode};
pub use warm::{WarmError, Warmed};

use disk::Disk;
use extent::{Extent, IN_FLIGHT, Waiting};
use fetch::Fetcher;
use gate::Gate;
use object::{Lack, Limits, Object, Spare};
use pace::Pace;
use turn::{Admitted, Turn};
use written::Written;

/// Most GETs in flight when nobody chose: twice what ossfs 1 uses, enough for 10 GB/s at 90 MB/s a connection.
const AUTO_CONCURRENCY: usize = 128;

/// Most bytes that wait to be written to the disk: memory beyond what reading takes is memory that the kernel has to clear first.
const MOST_UNWRITTEN: u64 = 256 << 20;

/// Memory of the budget for each of them. A connection holds up to 1 MiB in HTTP buffers that the budget does not
/// see; so they stay within an eighth of it.
const BUDGET_PER_GET: usize = 8 << 20;

/// A stream that was read within this time has a share of the memory.
const ACTIVE: Duration = Duration::from_secs(2);

/// An object that takes at most one part in so many of the memory may be there as a whole.
const WHOLE_OF: usize = 4;

/// How long a count of the active streams is believed.
const COUNT_EVERY: Duration = Duration::from_millis(50);

/// A stream nobody read for this long gives its window back; its reader starts over when it returns.
const IDLE: Duration = Duration::from_secs(60);

/// Pieces of random reads outlive the last handle of their object by this: programs open a file for every batch.
const KEPT: Duration = Duration::from_secs(10);

/// Why a read failed. Cloneable, because one fetch serves many readers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The store failed, after all retries.
    #[error(transparent)]
    Store(store::Error),
    /// The fetch was given up because its stream was left; asking again starts over. Never leaves this module.
    #[error("the fetch was given up")]
    GivenUp,
    /// No memory could be had.
    #[error("no memory for a chunk: {0}")]
    Memory(Arc<str>),
    /// The bytes did not arrive in time.
    #[error("no data within {0:?}")]
    Deadline(Duration),
}

impl PartialEq for ReadError {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Store(a), Self::Store(b)) => a.kind == b.kind,
            (Self::Memory(a), Self::Memory(b)) => a == b,
            (Self::Deadline(a), Self::Deadline(b)) => a == b,
            (Self::GivenUp, Self::GivenUp) => true,
            _ => false,
        }
    }
}

/// The reader of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn ObjectStore>,
    budget: Arc<Budget>,
    metrics: Arc<Metrics>,
    /// Those of the beginning; see [`Shared::options`].
    options: Options,
    /// What of them may change meanwhile; see `live`.
    prefetch_chunks: AtomicU32,
    backward_chunks: AtomicU32,
    deadline: Duration,
    disk: Option<Arc<Disk>>,
    runtime: Handle,
    gate: Arc<Gate>,
    objects: Mutex<HashMap<(Key, ETag), Arc<Object>>>,
    active: Mutex<(Instant, usize)>,
    pace: Mutex<Pace>,
    /// Bytes that sequential readers have taken.
    taken: AtomicU64,
    /// Bytes that came from the store.
    arrived: Sharded,
    stamps: AtomicU64,
    handles: AtomicU64,
    turn: Turn,
    written: Written,
}

impl Reader {
    /// A reader of `store`. Its fetches run on the runtime that this is called in; a read that got no bytes within
    /// `deadline` fails.
    pub fn new(store: Arc<dyn ObjectStore>, budget: Arc<Budget>, metrics: Arc<Metrics>, options: Options, deadline: Duration) -> Self {
        Self::over(store, budget, metrics, options, deadline, None)
    }

    /// The same, with a disk for what the mode of `options` keeps there.
    pub fn with_spill(
        store: Arc<dyn ObjectStore>,
        budget: Arc<Budget>,
        metrics: Arc<Metrics>,
        options: Options,
        deadline: Duration,
        spill: Spill,
    ) -> Self {
        let disk = Disk::new(spill, options.mode, (budget.limit() as u64 / 4).min(MOST_UNWRITTEN), Arc::clone(&metrics));
        Self::over(store, budget, metrics, options, deadline, Some(disk))
    }

    fn over(
        store: Arc<dyn ObjectStore>,
        budget: Arc<Budget>,
        metrics: Arc<Metrics>,
        options: Options,
        deadline: Duration,
        disk: Option<Arc<Disk>>,
    ) -> Self {
        let options = options.aligned();
        let gate = Gate::new(Arc::clone(&store), concurrency(&budget, options.prefetch_concurrency));
        Self(Arc::new(Shared {
            store,
            budget,
            metrics,
            prefetch_chunks: AtomicU32::new(live::in_number(options.prefetch_chunks)),
            backward_chunks: AtomicU32::new(options.backward_chunks),
            options,
            deadline,
            disk,
            runtime: Handle::current(),
            gate,
            objects: Mutex::default(),
            active: Mutex::new((Instant::now(), 0)),
            pace: Mutex::new(Pace::new(Instant::now())),
            taken: AtomicU64::new(0),
            arrived: Sharded::default(),
            stamps: AtomicU64::new(0),
            handles: AtomicU64::new(0),
            turn: Turn::default(),
            written: Written::default(),
        }))
    }

    /// Opens one version of an object. A small one (up to a chunk) is asked for at once.
    pub fn open(&self, meta: &ObjectMeta) -> ObjectHandle {
        let handle = self.handle(meta);
        handle.fetch_small();
        handle
    }

    /// Opens one version of an object of which perhaps nothing will be read: a small one is asked for with the first read.
    pub fn open_quietly(&self, meta: &ObjectMeta) -> ObjectHandle {
        let handle = self.handle(meta);
        handle.is_quiet.store(true, Ordering::Relaxed);
        handle
    }

    /// Opens one version of an object and asks for nothing yet.
    fn handle(&self, meta: &ObjectMeta) -> ObjectHandle {
        let shared = &self.0;
        let key = (meta.key.clone(), meta.etag.clone());
        let object = {
            let mut objects = shared.objects.lock();
            let object = objects.entry(key).or_insert_with(|| Arc::new(shared.object(meta)));
            object.on_open();
            Arc::clone(object)
        };
        let id = shared.handles.fetch_add(1, Ordering::Relaxed) + 1;
        ObjectHandle { id, object, shared: Arc::clone(shared), is_quiet: AtomicBool::new(false) }
    }

    /// Returns when all that was read for a disk is on it, or was left out.
    pub async fn written(&self) {
        if let Some(disk) = &self.0.disk {
            disk.written().await;
        }
    }

    /// Whether anything is kept on a disk.
    pub fn has_disk(&self) -> bool {
        self.0.disk.is_some()
    }

    /// Fetches a small object that will probably be opened soon. What nobody opens goes after ten seconds; when memory or
    /// places for GETs are short nothing happens. False: there is no place now, and may be one soon.
    pub fn expect(&self, meta: &ObjectMeta) -> bool {
        let shared = &self.0;
        if meta.size == 0 || meta.size > shared.options.chunk_size.as_u64() {
            return true;
        }
        if !shared.gate.has_room() {
            return false;
        }
        let object = {
            let mut objects = shared.objects.lock();
            let Entry::Vacant(free) = objects.entry((meta.key.clone(), meta.etag.clone())) else { return true };
            Arc::clone(free.insert(Arc::new(shared.object(meta))))
        };
        object.fetch_whole(&Fetcher { shared, object: &object });
        true
    }

    /// Lets go of what can be spared until `bytes` are free, for somebody who waits for them.
    pub fn make_room(&self, bytes: usize) {
        self.0.reclaim(bytes);
    }

    /// Housekeeping, about once a second: ends streams whose readers are gone and gives idle memory back.
    pub fn on_time(&self) {
        let (now, options) = (Instant::now(), self.0.options());
        let pause = self.0.pace.lock().link(now, 1).pause(options.chunk_size.as_u64());
        for object in self.0.open_objects() {
            let cancelled = object.on_time(now, IDLE, pause, &options);
            self.0.metrics.cancelled_fetches.add(cancelled as u64);
            if let Some(since) = now.checked_sub(self.0.deadline) {
                object.expire(since);
            }
        }
        // The map is locked meanwhile, so that nobody opens an object between its end and its removal.
        self.0.objects.lock().retain(|_, object| !object.is_left(now, KEPT));
        self.0.budget.trim(Duration::from_secs(5));
    }
}

/// GETs in flight at most, for who chose and for who did not.
fn concurrency(budget: &Budget, chosen: Option<usize>) -> usize {
    chosen.unwrap_or_else(|| (budget.limit() / BUDGET_PER_GET).clamp(8, AUTO_CONCURRENCY))
}

impl Shared {
    fn object(&self, meta: &ObjectMeta) -> Object {
        Object::new(meta, self.disk.as_ref().and_then(|disk| disk.object(meta)))
    }

    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed)
    }

    fn open_objects(&self) -> Vec<Arc<Object>> {
        self.objects.lock().values().cloned().collect()
    }

    /// What bounds the window of one stream: three quarters of the memory over the streams that are being read, and what
    /// is known of the path to the store.
    fn limits(&self, now: Instant) -> Limits {
        let known = *self.active.lock();
        let mut streams = known.1;
        if now.duration_since(known.0) >= COUNT_EVERY {
            // Not under the lock: objects lock themselves to count.
            streams = self.open_objects().iter().map(|object| object.active_streams(now, ACTIVE)).sum();
            *self.active.lock() = (now, streams);
        }
        let share = (self.budget.limit() as u64 / 4 * 3) / streams.max(1) as u64;
        Limits {
            share,
            whole: (self.budget.limit() / WHOLE_OF) as u64,
            link: self.pace.lock().link(now, streams),
            taken: self.taken.load(Ordering::Relaxed),
        }
    }

    /// Frees at least `need` bytes if that much can be spared: isolated pieces first, then what lies behind streams,
    /// then what is farthest ahead of them.
    fn reclaim(&self, need: usize) {
        let freed = self.reclaim_pieces();
        if freed >= need {
            return;
        }
        let objects = self.open_objects();
        let mut spares = spares(&objects, |spare| spare.windowed);
        spares.sort_by_key(|(_, spare)| std::cmp::Reverse(spare.distance.unwrap_or(u64::MAX)));
        self.let_go(&spares, need - freed);
    }

    /// Frees a sixteenth of the budget from isolated pieces, the least recently used first; returns the bytes. That
    /// much at a time, so that a full budget is not searched for every piece.
    fn reclaim_pieces(&self) -> usize {
        let objects = self.open_objects();
        let mut spares = spares(&objects, |spare| !spare.windowed);
        // Looked at once each: reads go on meanwhile and move it.
        spares.sort_by_cached_key(|(_, spare)| spare.extent.last_use());
        self.let_go(&spares, self.budget.limit() / 16)
    }

    fn let_go(&self, spares: &[(&Arc<Object>, Spare)], goal: usize) -> usize {
        let mut freed = 0;
        for (object, spare) in spares {
            if freed >= goal {
                break;
            }
            freed += spare.extent.len();
            let cancelled = object.drop_extents(vec![spare.extent.range.start]);
            self.metrics.cancelled_fetches.add(cancelled as u64);
        }
        freed
    }
}

fn spares(objects: &[Arc<Object>], of: impl Fn(&Spare) -> bool) -> Vec<(&Arc<Object>, Spare)> {
    let all = objects.iter().flat_map(|object| object.spares().into_iter().map(move |spare| (object, spare)));
    all.filter(|(_, spare)| of(spare)).collect()
}

/// One open file.
#[derive(Debug)]
pub struct ObjectHandle {
    id: u64,
    object: Arc<Object>,
    shared: Arc<Shared>,
    /// Nothing was asked for when it was opened.
    is_quiet: AtomicBool,
}

impl ObjectHandle {
    /// Has all of a small object asked for, up to a chunk.
    fn fetch_small(&self) {
        if self.size() <= self.shared.options.chunk_size.as_u64() {
            self.object.fetch_whole(&Fetcher { shared: &self.shared, object: &self.object });
        }
    }

    /// The length of the object.
    pub fn size(&self) -> u64 {
        self.object.size
    }

    /// The object it reads.
    pub fn key(&self) -> &Key {
        &self.object.key
    }

    /// The version it reads.
    pub fn etag(&self) -> &ETag {
        &self.object.etag
    }

    /// The file on the disk that holds all of the object, for the kernel to read from.
    pub fn whole(&self) -> Option<Whole> {
        self.object.disk.as_ref()?.whole()
    }

    /// Whether [`whole`](Self::whole) is worth asking, which looks at the disk.
    pub fn may_be_whole(&self) -> bool {
        self.object.disk.as_ref().is_some_and(|disk| disk.may_be_whole())
    }

    /// The first step of a read of `len` bytes at `offset` by `thread`: finds or starts what it needs and what comes
    /// after it. What lies past the end of the object is cut off.
    pub fn begin(&self, thread: u32, offset: u64, len: usize) -> Pending {
        let read = offset.min(self.object.size)..offset.saturating_add(len as u64).min(self.object.size);
        let (shared, object, began) = (&self.shared, &self.object, Instant::now());
        if read.is_empty() {
            return Pending::new(read, (Vec::new(), None), began, shared, object);
        }
        if self.is_quiet.load(Ordering::Relaxed) && self.is_quiet.swap(false, Ordering::Relaxed) {
            self.fetch_small();
        }
        let who = ReaderId { handle: self.id, thread };
        let (planned, cancelled) = object.on_read(who, &read, began, &shared.limits(began), &shared.options(), &Fetcher { shared, object });
        shared.metrics.cancelled_fetches.add(cancelled as u64);
        if planned.new_stream {
            shared.active.lock().1 += 1;
        }
        if planned.moved > 0 {
            shared.taken.fetch_add(planned.moved, Ordering::Relaxed);
        }
        if let Some(factor) = planned.lesson {
            shared.pace.lock().stretch_by(factor);
        }
        if planned.short_bytes > 0 {
            // Pieces of earlier random reads make room for a window; other windows do not.
            shared.reclaim_pieces();
        }
        Pending::new(read, (planned.extents, planned.lack), began, shared, object)
    }

    /// Both steps of a read.
    ///
    /// # Errors
    /// As [`Pending::finish`].
    pub async fn read(&self, thread: u32, offset: u64, len: usize) -> Result<ReadData, ReadError> {
        let pending = self.begin(thread, offset, len);
        match pending.ready() {
            Some(data) => Ok(data),
            None => pending.finish().await,
        }
    }

    /// The ranges of the object that are in memory or on their way, in order.
    pub fn resident(&self) -> Vec<Range<u64>> {
        self.object.resident()
    }
}

impl Drop for ObjectHandle {
    fn drop(&mut self) {
        // The map is locked over the count, so that nobody opens the object between its end and its removal.
        let mut objects = self.shared.objects.lock();
        let closed = self.object.on_close(self.id, &self.shared.options());
        if closed.is_empty {
            objects.remove(&(self.object.key.clone(), self.object.etag.clone()));
        }
        self.shared.metrics.cancelled_fetches.add(closed.cancelled as u64);
    }
}

/// A read whose extents are known.
#[derive(Debug)]
pub struct Pending {
    read: Range<u64>,
    /// None where something lacks: who waits for memory keeps none from others.
    extents: Vec<Arc<Extent>>,
    lack: Option<Lack>,
    /// Those that it had to wait for the memory of.
    wanted: Vec<Waiting>,
    began: Instant,
    /// Start of the wait, and the value of [`Shared::arrived`] at that time.
    waits_since: Option<(Instant, u64)>,
    shared: Arc<Shared>,
    object: Arc<Object>,
}

impl Pending {
    fn new(read: Range<u64>, found: (Vec<Arc<Extent>>, Option<Lack>), began: Instant, shared: &Arc<Shared>, object: &Arc<Object>) -> Self {
        let ((extents, lack), shared, object) = (found, Arc::clone(shared), Arc::clone(object));
        Self { read, extents, lack, wanted: Vec::new(), began, waits_since: None, shared, object }
    }

    /// When it began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The bytes, if they are all there.
    pub fn ready(&self) -> Option<ReadData> {
        let has_waited = self.waits_since.is_some();
        // Who reports a failure may hold locks that answering and letting the handle go would need.
        if has_waited && self.extents.iter().any(|extent| extent.failure().is_some()) {
            return None;
        }
        let data = self.collect()?;
        if !has_waited {
            self.shared.metrics.window_hits.add(1);
        }
        self.shared.metrics.read_bytes.add(data.len() as u64);
        Some(data)
    }

    /// Has `then` called when bytes that were missing are there, by whoever brings them, or never will be: then
    /// [`ready`](Self::ready) says nothing, and [`finish`](Self::finish) why. No thread waits meanwhile.
    pub fn park(mut self, then: impl FnOnce(Self) + Send + 'static) {
        let (since, _) = self.note_miss();
        if self.lack.is_none() {
            return self.park_admitted(then);
        }
        let (runtime, until) = (self.shared.runtime.clone(), since + self.shared.deadline);
        runtime.spawn(async move {
            // What fails here fails again in `finish`, which says so.
            match tokio::time::timeout_at(until, self.admit()).await {
                Ok(Ok(())) => self.park_admitted(then),
                Ok(Err(_)) | Err(_) => then(self),
            }
        });
    }

    fn park_admitted(self, then: impl FnOnce(Self) + Send + 'static) {
        let Some((extent, len)) = self.first_missing() else { return then(self) };
        let shared = Arc::clone(&self.shared);
        extent.park(len, Box::new(move || then(self)));
        let ticket = extent.ticket();
        if ticket != IN_FLIGHT {
            shared.gate.promote(ticket);
        }
    }

    /// The first extent that lacks bytes of the read, and how many of its bytes are wanted.
    fn first_missing(&self) -> Option<(Arc<Extent>, usize)> {
        let wanted = self.extents.iter().map(|extent| (extent, (self.read.end.min(extent.range.end) - extent.range.start) as usize));
        wanted.filter(|(extent, len)| extent.bytes(&(0..*len)).is_none()).map(|(extent, len)| (Arc::clone(extent), len)).next()
    }

    fn note_miss(&mut self) -> (Instant, u64) {
        *self.waits_since.get_or_insert_with(|| {
            self.shared.metrics.window_misses.add(1);
            (Instant::now(), self.shared.arrived.get())
        })
    }

    /// The second step: waits for the bytes.
    ///
    /// # Errors
    /// The error of the store after its retries, or [`ReadError::Deadline`] when the reader received no byte at all within the deadline.
    /// While bytes of other extents arrive, this read has a place in the queue or a share of a slow link; the store limits how slow a
    /// request may be.
    pub async fn finish(mut self) -> Result<ReadData, ReadError> {
        let (since, mut arrived) = self.note_miss();
        let (shared, deadline) = (Arc::clone(&self.shared), self.shared.deadline);
        let (mut until, mut wait) = (since + deadline, pin!(self.wait()));
        let data = loop {
            let before = arrived;
            match tokio::time::timeout_at(until, &mut wait).await {
                Ok(data) => break data?,
                Err(_) => (until, arrived) = (Instant::now() + deadline, shared.arrived.get()),
            }
            if arrived == before {
                return Err(ReadError::Deadline(deadline));
            }
        };
        shared.metrics.read_bytes.add(data.len() as u64);
        Ok(data)
    }

    /// Has memory for all that it needs.
    async fn admit(&mut self) -> Result<(), ReadError> {
        if let Some(lack) = &self.lack {
            let Admitted { extents, wanted } = turn::admit(&self.shared, &self.object, &self.read, lack).await?;
            (self.extents, self.wanted, self.lack) = (extents, wanted, None);
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<ReadData, ReadError> {
        loop {
            self.admit().await?;
            match self.wait_for_extents().await {
                Ok(()) => {}
                Err(ReadError::GivenUp) => self.ask_again(),
                Err(error) => return Err(error),
            }
            if let Some(data) = self.collect() {
                return Ok(data);
            }
        }
    }

    async fn wait_for_extents(&self) -> Result<(), ReadError> {
        for extent in &self.extents {
            let waiting = extent.want();
            let ticket = extent.ticket();
            if ticket != IN_FLIGHT {
                self.shared.gate.promote(ticket);
            }
            waiting.wait_for((self.read.end.min(extent.range.end) - extent.range.start) as usize).await?;
        }
        Ok(())
    }

    fn ask_again(&mut self) {
        let fetcher = Fetcher { shared: &self.shared, object: &self.object };
        // First: who waits for memory keeps none.
        (self.extents, self.wanted) = Default::default();
        (self.extents, self.lack) = self.object.again(&self.read, &self.shared.options(), &fetcher);
    }

    fn collect(&self) -> Option<ReadData> {
        let mut parts = Vec::with_capacity(self.extents.len());
        let mut at = self.read.start;
        for extent in &self.extents {
            let end = self.read.end.min(extent.range.end);
            let part = (at - extent.range.start) as usize..(end - extent.range.start) as usize;
            extent.bytes(&part)?;
            parts.push((Arc::clone(extent), part));
            at = end;
        }
        (at == self.read.end).then_some(ReadData { parts })
    }
}

/// The bytes of a read, borrowed from the chunks they lie in.
#[derive(Debug)]
pub struct ReadData {
    parts: Vec<(Arc<Extent>, Range<usize>)>,
}

impl ReadData {
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|(_, part)| part.len()).sum()
    }

    /// Whether there are none: the read began at or past the end.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, a slice per chunk.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|(extent, part)| extent.bytes(part).expect("they were there when the read was collected"))
    }
}
