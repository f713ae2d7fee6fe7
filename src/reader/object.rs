//! One version of one object while it is open: its extents, its streams and their windows. Decides, under one short
//! lock and with the pure parts beside it, what a read starts, keeps and lets go; `fetch` does it.
//!
//! Invariants: extents are disjoint and made of whole pieces, which is what a disk keeps; an extent with a waiter is never let go; bytes are of this version only.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant};

use crate::budget::Lease;
use crate::store::{ETag, Key, ObjectMeta};

use super::disk::OnDisk;
use super::extent::{Extent, Filling};
use super::jumps::{Jumps, ReaderId};
use super::pace::Link;
use super::plan::{self, Reach};
use super::promotion::Promotion;
use super::runs::Runs;
use super::streams::{Pattern, StreamId, StreamTable, TABLE_SIZE};
use super::strides::{Guess, Strides};
use super::window::Window;
use super::{Holding, Options, PrefetchChunks, ReadError};

/// Rest of a body that is worth reading to keep the connection.
const DRAIN_BYTES: usize = 64 << 10;

/// Most of a run that is fetched with its first read, however long the ones before it were. Then its window takes over.
const SURE_CHUNKS: u64 = 4;

/// A reader that read within this time still needs what lies around its place.
const RECENT: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct Object {
    pub key: Key,
    pub etag: ETag,
    pub size: u64,
    /// What the disk has of it; none when nothing of it may be there.
    pub disk: Option<Arc<OnDisk>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    extents: BTreeMap<u64, Held>,
    streams: StreamTable,
    windows: Vec<Running>,
    jumps: Jumps,
    runs: Runs,
    strides: Strides,
    promotion: Promotion,
    /// What is under way of it.
    promoted: Vec<Arc<Extent>>,
    /// It takes so little of the memory that all of it may stay.
    fits: bool,
    handles: usize,
    /// When the last handle was closed, or when it was made.
    closed: Option<Instant>,
}

#[derive(Debug)]
struct Held {
    extent: Arc<Extent>,
    /// None: it was not fetched.
    fetch: Option<AbortHandle>,
    /// It was fetched for a window that is gone, and stays until memory is needed.
    stays: bool,
}

impl Held {
    /// Goes when no window wants it.
    fn is_windowed(&self) -> bool {
        self.extent.windowed && !self.stays && !self.extent.is_being_kept()
    }

    /// Ends its fetch, and with it the waiting for it.
    fn give_up(&self) {
        if let Some(fetch) = &self.fetch {
            fetch.abort();
        }
        self.extent.fail(ReadError::GivenUp);
    }
}

/// The window of a sequential stream.
#[derive(Debug)]
struct Running {
    stream: StreamId,
    window: Window,
    /// Start of the latest read.
    at: u64,
    /// Last byte of the farthest read: it may lie in the chunk after that of `at`, and the window runs ahead of it.
    front: u64,
    last_read: Instant,
}

impl Running {
    /// End of the chunks that may be prefetched now.
    fn window_end(&self, chunk: u64) -> u64 {
        (self.front / chunk + 1 + u64::from(self.window.depth())) * chunk
    }
}

/// What bounds a window: memory, and the path to the store.
pub(super) struct Limits {
    /// The stream's part of the memory.
    pub share: u64,
    /// The largest object of which all may be in memory.
    pub whole: u64,
    pub link: Link,
    /// Bytes that all sequential readers have taken so far.
    pub taken: u64,
}

/// What the object needs from the reader to act on its decisions.
pub(super) trait Fetches {
    /// Starts the GET of `extent` into `lease`.
    fn start(&self, extent: &Arc<Extent>, lease: Lease) -> AbortHandle;
    /// Memory, if there is some and nobody waits for it.
    fn memory(&self, len: usize) -> Option<Lease>;
    /// The next stamp of the order of use.
    fn stamp(&self) -> u64;
}

/// What a read needs that there is no memory for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    /// Whole pieces that hold all of the read. Some may be there.
    pub range: Range<u64>,
    /// Bytes of one GET.
    pub unit: u64,
    pub windowed: bool,
}

/// What a read found or started.
pub(super) struct Planned {
    /// The extents that hold or will hold the bytes, in order; none where something lacks.
    pub extents: Vec<Arc<Extent>>,
    pub lack: Option<Lack>,
    /// Bytes that were not prefetched because there was no memory.
    pub short_bytes: usize,
    /// The read began a stream.
    pub new_stream: bool,
    /// Bytes by which it moved its stream.
    pub moved: u64,
    /// What its window learned of the path; see [`Pace::stretch_by`](super::pace::Pace::stretch_by).
    pub lesson: Option<f64>,
}

/// Gaps that there was no memory for, in order.
struct Short(Vec<Range<u64>>);

impl Short {
    /// Of the first one.
    fn bytes(&self) -> usize {
        self.0.first().map_or(0, |gap| (gap.end - gap.start) as usize)
    }

    /// Whether a read of `pieces` needs some of it; then all that it needs is looked at again, because what is there now may go meanwhile.
    fn lack_of(&self, pieces: &Range<u64>, unit: u64, windowed: bool) -> Option<Lack> {
        let end = self.0.iter().rfind(|gap| gap.start < pieces.end && pieces.start < gap.end)?.end;
        Some(Lack { range: pieces.start..end.max(pieces.end), unit, windowed })
    }
}

/// Something that can be let go, for the reader to choose from when memory is short.
pub(super) struct Spare {
    pub extent: Arc<Extent>,
    /// It belongs to a window.
    pub windowed: bool,
    /// Bytes between it and the stream that wants it; none when no stream does.
    pub distance: Option<u64>,
}

impl Object {
    pub fn new(meta: &ObjectMeta, disk: Option<Arc<OnDisk>>) -> Self {
        // Not open yet, and left if it never will be.
        let state = State { closed: Some(Instant::now()), ..State::default() };
        Self { key: meta.key.clone(), etag: meta.etag.clone(), size: meta.size, disk, state: Mutex::new(state) }
    }

    /// Another handle reads it.
    pub fn on_open(&self) {
        self.state.lock().handles += 1;
    }

    /// Starts the GET of all of a small object before anyone reads it.
    pub fn fetch_whole(&self, fetches: &impl Fetches) {
        let mut state = self.state.lock();
        if self.size == 0 || !state.extents.is_empty() {
            return;
        }
        if let Some(lease) = fetches.memory(self.size as usize) {
            state.start(0..self.size, true, lease, fetches);
        }
    }

    /// `content` is all of it. For one that was not open yet, and is left as one that was closed at `closed`.
    pub fn hold(&self, content: &[u8], lease: Lease, closed: Instant) {
        let extent = Arc::new(Extent::new(0..self.size, true));
        let mut filling = Filling::new(&extent, lease);
        filling.spare()[..content.len()].copy_from_slice(content);
        filling.advance(content.len());
        let mut state = self.state.lock();
        state.closed = Some(closed);
        state.extents.insert(0, Held { extent, fetch: None, stays: false });
    }

    /// Whether there are handles of it.
    pub fn is_open(&self) -> bool {
        self.state.lock().handles > 0
    }

    /// All of it in one extent.
    pub fn whole(&self) -> Option<Arc<Extent>> {
        let state = self.state.lock();
        let extent = &state.extents.get(&0)?.extent;
        (extent.range == (0..self.size) && extent.missing_bytes() == 0).then(|| Arc::clone(extent))
    }

    /// A handle was closed. With the last one everything goes but the pieces of random reads: who opens the object again
    /// soon will read among them again.
    pub fn on_close(&self, handle: u64, options: &Options) -> Closed {
        let mut state = self.state.lock();
        state.handles -= 1;
        state.runs.on_close(handle);
        if state.handles > 0 {
            state.strides.on_close(handle);
            let left = state.jumps.on_close(handle, Instant::now());
            return Closed { cancelled: state.abandon(&left, true, options), is_empty: false };
        }
        state.streams.clear();
        state.windows.clear();
        state.jumps = Jumps::default();
        state.strides = Strides::default();
        state.promotion = Promotion::default();
        state.promoted.clear();
        state.closed = Some(Instant::now());
        let goes = state.extents.values().filter(|held| held.is_windowed() || held.extent.missing_bytes() > 0);
        let goes = goes.map(|held| held.extent.range.start).collect();
        Closed { cancelled: state.let_go(goes), is_empty: state.extents.is_empty() }
    }

    /// Whether nobody has had it open for `idle`.
    pub fn is_left(&self, now: Instant, idle: Duration) -> bool {
        let state = self.state.lock();
        state.handles == 0 && state.closed.is_none_or(|closed| now.duration_since(closed) >= idle || state.extents.is_empty())
    }

    /// Files a read of `read` (not empty, inside the object) at `now` and starts what it makes worth fetching. Returns also how
    /// many fetches were given up.
    pub fn on_read(
        &self,
        who: ReaderId,
        read: &Range<u64>,
        now: Instant,
        limits: &Limits,
        options: &Options,
        fetches: &impl Fetches,
    ) -> (Planned, usize) {
        let chunk = options.chunk_size.as_u64();
        let backward = chunk * u64::from(options.backward_chunks);
        let mut state = self.state.lock();
        state.fits = self.size <= limits.whole;
        let capacity = TABLE_SIZE.max(2 * state.handles);
        let observed = state.streams.on_read(read, backward, capacity);
        let (stream, run) = observed.run;
        // A read beyond a hole may belong to it, or begin something else near by.
        if !matches!(observed.pattern, Pattern::Sequential { moved: 0, .. }) {
            state.runs.on_read(who, stream, &run);
        }
        let mut ended: Vec<StreamId> = observed.ended.into_iter().collect();
        ended.extend(state.jumps.on_read(who, read.start, observed.pattern, now));
        if state.jumps.somebody_is_away() {
            ended.extend(state.jumps.on_time(now));
        }
        let mut cancelled = if ended.is_empty() { 0 } else { state.abandon(&ended, true, options) };
        let (mut new_stream, mut took, mut lesson) = (false, 0, None);
        let mut guess = Guess::default();
        let (want, unit, stream) = match observed.pattern {
            Pattern::Isolated => {
                guess = state.strides.on_read(who, read, chunk, self.size);
                // Whoever has a habit is served by that, and a read of what is here asks for nothing.
                let may_promote =
                    state.fits && guess.reads.is_empty() && guess.chunks.is_none() && options.prefetch_chunks != PrefetchChunks::Fixed(0);
                if may_promote && !state.holds(&plan::pieces(read, self.size)) {
                    let decided = state.promotion.on_read(now, read.start / chunk, self.size.div_ceil(chunk), guess.backward);
                    if decided {
                        tracing::debug!(key = %self.key, "it is read at random all over: fetching all of it");
                    }
                }
                let sure = state.runs.sure().filter(|_| options.prefetch_chunks != PrefetchChunks::Fixed(0)).unwrap_or(0);
                let end = read.start + sure.min(chunk * SURE_CHUNKS).min(limits.share / 2);
                if end > read.end {
                    // Most likely it begins a run. Somebody waits for all of it.
                    (plan::pieces(&(read.start..end), self.size), limits.link.unit(chunk), None)
                } else {
                    (self.isolated(&state, read, chunk), chunk, None)
                }
            }
            Pattern::Sequential { stream, moved } => {
                new_stream = !state.windows.iter().any(|running| running.stream == stream);
                let (crossed, reach) = state.advance(stream, read, moved, now, limits, options);
                (took, lesson) = (moved, state.running(stream).window.lesson());
                if crossed {
                    cancelled += state.sweep(options) + state.cancel_queued(now, limits.link.pause(chunk), options);
                }
                let front = state.running(stream).front;
                let border = state.streams.border(stream).unwrap_or(self.size);
                let expected = state.runs.expected(stream, run.end - run.start).filter(|_| run.start > 0);
                let border = border.min(expected.map_or(self.size, |bytes| run.start + bytes));
                let window = plan::window(read, front, reach, border.max(read.end));
                (plan::pieces(&window, self.size), reach.unit, Some(stream))
            }
        };
        let mut short = state.fetch_missing(&want, unit, stream.is_some(), fetches);
        let lack = short.as_ref().and_then(|short| short.lack_of(&plan::pieces(read, self.size), unit, stream.is_some()));
        for range in guess.chunks.into_iter().chain(guess.reads.iter().map(|read| plan::pieces(read, self.size))) {
            if short.is_some() {
                break;
            }
            short = state.fetch_missing(&range, chunk, false, fetches);
        }
        if state.promotion.is_under_way() && short.is_none() {
            state.promote(self.size, chunk, fetches);
        }
        let extents = if lack.is_none() { state.covering(read, fetches.stamp()) } else { Vec::new() };
        (Planned { extents, lack, short_bytes: short.map_or(0, |short| short.bytes()), new_stream, moved: took, lesson }, cancelled)
    }

    /// What a read finds and needs now, after an extent of it was given up: missing bytes are asked for again.
    pub fn again(&self, read: &Range<u64>, options: &Options, fetches: &impl Fetches) -> (Vec<Arc<Extent>>, Option<Lack>) {
        let (mut state, unit, pieces) = (self.state.lock(), options.chunk_size.as_u64(), plan::pieces(read, self.size));
        let short = state.fetch_missing(&pieces, unit, false, fetches);
        match short.and_then(|short| short.lack_of(&pieces, unit, false)) {
            None => (state.covering(read, fetches.stamp()), None),
            lack => (Vec::new(), lack),
        }
    }

    /// The extents that hold bytes of `read` now, and what is missing of `lack`.
    pub fn held_and_missing(&self, read: &Range<u64>, lack: &Lack, stamp: u64) -> (Vec<Arc<Extent>>, Vec<Range<u64>>) {
        let state = self.state.lock();
        (state.covering(read, stamp), plan::missing(state.held(&lack.range), &lack.range, lack.unit))
    }

    /// Starts the GET of `range` into `lease` unless somebody else did.
    pub fn start(&self, range: &Range<u64>, windowed: bool, lease: Lease, fetches: &impl Fetches) {
        let mut state = self.state.lock();
        if state.held(range).next().is_none() {
            state.start(range.clone(), windowed, lease, fetches);
        }
    }

    /// Takes a failed extent out, so that the next read asks the store again.
    pub fn remove(&self, extent: &Arc<Extent>) {
        let mut state = self.state.lock();
        if state.extents.get(&extent.range.start).is_some_and(|held| Arc::ptr_eq(&held.extent, extent)) {
            state.extents.remove(&extent.range.start);
        }
    }

    /// Streams that were read within `recent` of `now`.
    pub fn active_streams(&self, now: Instant, recent: Duration) -> usize {
        let state = self.state.lock();
        let counts = |running: &&Running| now.duration_since(running.last_read) < recent && state.jumps.is_in_use(running.stream);
        state.windows.iter().filter(counts).count()
    }

    /// What could be let go without disturbing a reader that waits.
    pub fn spares(&self) -> Vec<Spare> {
        let state = self.state.lock();
        // What is on its way to the disk would free nothing.
        let idle = state.extents.values().filter(|held| !held.extent.is_wanted() && !held.extent.is_being_kept());
        let spare = |held: &Held| {
            let (extent, windowed) = (&held.extent, held.is_windowed());
            let ahead = state.windows.iter().filter(|running| running.at < extent.range.end);
            let distance = windowed.then(|| ahead.map(|running| extent.range.start.saturating_sub(running.at)).min()).flatten();
            Spare { extent: Arc::clone(extent), windowed, distance }
        };
        idle.map(spare).collect()
    }

    /// Lets go of `extents`; returns how many were still on their way.
    pub fn drop_extents(&self, starts: Vec<u64>) -> usize {
        self.state.lock().let_go(starts)
    }

    /// Ends the streams whose readers went away or that were not read for `idle`, and cancels the queued prefetches of those that were not read
    /// for `pause`.
    pub fn on_time(&self, now: Instant, idle: Duration, pause: Duration, options: &Options) -> usize {
        let mut state = self.state.lock();
        let left = state.jumps.on_time(now);
        let mut cancelled = if left.is_empty() { 0 } else { state.abandon(&left, true, options) };
        cancelled += state.cancel_queued(now, pause, options);
        let forgotten = state.windows.iter().filter(|running| now.duration_since(running.last_read) >= idle).map(|running| running.stream);
        let forgotten: Vec<_> = forgotten.collect();
        cancelled + if forgotten.is_empty() { 0 } else { state.abandon(&forgotten, false, options) }
    }

    /// What it holds now.
    pub fn holding(&self) -> Holding {
        let state = self.state.lock();
        let bytes = |windowed| {
            let held = state.extents.values().filter(|held| held.is_windowed() == windowed);
            held.map(|held| held.extent.len() as u64).sum()
        };
        Holding { streams: state.windows.len(), stream_bytes: bytes(true), handles: state.handles, handle_bytes: bytes(false) }
    }

    /// Lets reads go on that were parked before `since`.
    pub fn expire(&self, since: Instant) {
        let extents: Vec<_> = self.state.lock().extents.values().map(|held| Arc::clone(&held.extent)).collect();
        for extent in extents {
            extent.expire(since);
        }
    }

    /// The ranges in memory or on their way, in order.
    pub fn resident(&self) -> Vec<Range<u64>> {
        self.state.lock().extents.values().map(|held| held.extent.range.clone()).collect()
    }

    /// An isolated read fetches its pieces; a chunk of which half is there already is being read densely, and the rest of
    /// it comes as one GET: so no chunk costs more than twice what was read of it.
    fn isolated(&self, state: &State, read: &Range<u64>, chunk: u64) -> Range<u64> {
        let first = read.start / chunk * chunk;
        let around = first..(first + chunk).min(self.size);
        let pieces = plan::pieces(read, self.size);
        if pieces.end > around.end || plan::covered(state.held(&around), &around) * 2 < around.end - around.start {
            return pieces;
        }
        let before = state.held(&around).filter(|have| have.start <= read.start).last().map_or(around.start, |have| have.end);
        let after = state.held(&around).find(|have| have.start > read.start).map_or(around.end, |have| have.start);
        pieces.start.min(before.max(around.start))..pieces.end.max(after.min(around.end))
    }
}

/// What closing a handle did.
pub(super) struct Closed {
    pub cancelled: usize,
    /// Nobody has it open, and there is nothing to keep for whoever opens it next.
    pub is_empty: bool,
}

impl State {
    /// The held ranges that touch `within`, in order.
    fn held<'a>(&'a self, within: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'a> {
        self.touching(within).map(|held| held.extent.range.clone())
    }

    /// Whether all of `range` is in memory or on its way.
    fn holds(&self, range: &Range<u64>) -> bool {
        plan::covered(self.held(range), range) == range.end - range.start
    }

    fn touching<'a>(&'a self, within: &Range<u64>) -> impl Iterator<Item = &'a Held> + use<'a> {
        let start = within.start;
        let before = self.extents.range(..start).next_back().map(|(_, held)| held);
        before.into_iter().filter(move |held| held.extent.range.end > start).chain(self.extents.range(within.clone()).map(|(_, held)| held))
    }

    fn running(&mut self, stream: StreamId) -> &mut Running {
        self.windows.iter_mut().find(|running| running.stream == stream).expect("a sequential read has opened its window")
    }

    /// Moves a stream's window; says whether the stream entered another chunk, and how far it may run ahead.
    fn advance(
        &mut self,
        stream: StreamId,
        read: &Range<u64>,
        moved: u64,
        now: Instant,
        limits: &Limits,
        options: &Options,
    ) -> (bool, Reach) {
        let chunk = options.chunk_size.as_u64();
        if !self.windows.iter().any(|running| running.stream == stream) {
            let window = Window::new(options.prefetch_chunks, now);
            self.windows.push(Running { stream, window, at: read.start, front: read.start, last_read: now });
        }
        let running = self.running(stream);
        running.last_read = now;
        running.front = running.front.max(read.end - 1);
        let before = running.at;
        if moved > 0 {
            running.at = running.at.max(read.start);
            running.window.follow(options.prefetch_chunks, now);
            running.window.on_read(now, moved, chunk, &limits.link, limits.taken);
        }
        (before / chunk != running.at / chunk, plan::reach(running.window.depth(), chunk, limits.share))
    }

    /// Starts what is missing of `want` as far as there is memory. Returns what had to be left out.
    fn fetch_missing(&mut self, want: &Range<u64>, unit: u64, windowed: bool, fetches: &impl Fetches) -> Option<Short> {
        let gaps = plan::missing(self.held(want), want, unit);
        for (index, gap) in gaps.iter().enumerate() {
            let Some(lease) = fetches.memory((gap.end - gap.start) as usize) else { return Some(Short(gaps[index..].to_vec())) };
            self.start(gap.clone(), windowed, lease, fetches);
        }
        None
    }

    /// Goes on with fetching all of the object, as far as there is memory that nobody else has.
    fn promote(&mut self, size: u64, chunk: u64, fetches: &impl Fetches) {
        self.promoted.retain(|extent| extent.missing_bytes() > 0 && extent.failure().is_none());
        while let Some(next) = self.promotion.poll_next(self.promoted.len()) {
            let whole = next * chunk..((next + 1) * chunk).min(size);
            for gap in plan::missing(self.held(&whole), &whole, chunk) {
                let Some(lease) = fetches.memory((gap.end - gap.start) as usize) else { return self.promotion.on_short() };
                let extent = self.start(gap, false, lease, fetches);
                self.promoted.push(extent);
            }
            self.promotion.on_started();
        }
    }

    fn start(&mut self, range: Range<u64>, windowed: bool, lease: Lease, fetches: &impl Fetches) -> Arc<Extent> {
        let extent = Arc::new(Extent::new(range, windowed));
        let fetch = fetches.start(&extent, lease);
        self.extents.insert(extent.range.start, Held { extent: Arc::clone(&extent), fetch: Some(fetch), stays: false });
        extent
    }

    fn covering(&self, read: &Range<u64>, stamp: u64) -> Vec<Arc<Extent>> {
        let extents = self.touching(read).map(|held| &held.extent);
        extents.inspect(|extent| extent.touch(stamp)).cloned().collect()
    }

    /// Forgets `streams` and lets go of what only they wanted. Who `may_come_back` finds what was fetched of an object that fits.
    fn abandon(&mut self, streams: &[StreamId], may_come_back: bool, options: &Options) -> usize {
        self.streams.remove(streams);
        let before = self.windows.len();
        self.windows.retain(|running| !streams.contains(&running.stream));
        if self.windows.len() == before {
            return 0;
        }
        if may_come_back && self.fits {
            // As one does who reads a header, an index at the end and then the rest.
            for held in self.extents.values_mut().filter(|held| held.extent.missing_bytes() == 0) {
                held.stays = true;
            }
        }
        self.sweep(options)
    }

    /// Cancels prefetches that wait for a place and that no active stream has in its window: after the window has narrowed, or while the reader
    /// pauses. Those in flight go on, because their bytes are paid for.
    fn cancel_queued(&mut self, now: Instant, pause: Duration, options: &Options) -> usize {
        let queued = |held: &Held| held.is_windowed() && held.extent.is_queued();
        if !self.extents.values().any(queued) {
            return 0;
        }
        let chunk = options.chunk_size.as_u64();
        let active = self.windows.iter().filter(|running| now.duration_since(running.last_read) < pause);
        let ends: Vec<(u64, u64)> = active.map(|running| (running.at, running.window_end(chunk))).collect();
        let wanted = |range: &Range<u64>| ends.iter().any(|&(at, end)| at < range.end && range.start < end);
        let unwanted = self.extents.values().filter(|held| queued(held) && !wanted(&held.extent.range));
        let starts: Vec<u64> = unwanted.map(|held| held.extent.range.start).collect();
        let mut cancelled = 0;
        for start in starts {
            let Some(held) = self.extents.get(&start) else { continue };
            if held.extent.is_wanted() || !held.extent.cancel_queued() {
                continue;
            }
            held.give_up();
            self.extents.remove(&start);
            cancelled += 1;
        }
        cancelled
    }

    /// Lets go of the extents that lie in no stream's window.
    fn sweep(&mut self, options: &Options) -> usize {
        let chunk = options.chunk_size.as_u64();
        let backward = u64::from(options.backward_chunks);
        let deepest = self.windows.iter().map(|running| running.window.kept()).max().unwrap_or(0);
        let streams = self.windows.iter().map(|running| (running.at, running.front, running.window.kept()));
        let readers = self.jumps.places(Instant::now(), RECENT).map(|at| (at, at, deepest));
        let window = |(at, front, depth): (u64, u64, u32)| {
            (at / chunk).saturating_sub(backward) * chunk..(front / chunk + 1 + u64::from(depth)) * chunk
        };
        let kept: Vec<Range<u64>> = streams.chain(readers).map(window).collect();
        let wanted = |range: &Range<u64>| kept.iter().any(|keep| keep.start < range.end && range.start < keep.end);
        let outside = self.extents.values().filter(|held| held.is_windowed() && !wanted(&held.extent.range));
        let starts = outside.map(|held| held.extent.range.start).collect();
        self.let_go(starts)
    }

    fn let_go(&mut self, starts: Vec<u64>) -> usize {
        let mut cancelled = 0;
        for start in starts {
            let Some(held) = self.extents.get(&start) else { continue };
            if held.extent.is_wanted() && self.handles > 0 {
                continue;
            }
            // A body that is nearly here is left to arrive: closing its connection would cost more than the rest.
            if held.extent.missing_bytes() > DRAIN_BYTES && held.extent.failure().is_none() {
                cancelled += 1;
                held.give_up();
            }
            self.extents.remove(&start);
        }
        cancelled
    }
}
