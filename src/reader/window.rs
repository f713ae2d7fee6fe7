//! How far ahead one stream is fetched. Pure: the time comes as an argument.
//!
//! The window opens with the first read and grows with the bytes that are read, of which it is a multiple, until it has N chunks. With
//! `prefetch-chunks=auto` N follows the bandwidth-delay product: what the reader took per second lately, times what the fastest
//! GET takes, times a factor that readers find out (see `climb`). As long as the window is what holds the reader back this makes it grow
//! from turn to turn; where more GETs bring nothing (the reader, the machine or the path is the limit) it stays, and where they are not
//! needed it shrinks, because memory that was not just in use costs as much as the copy into it, and on virtual machines much more.

use std::time::Duration;

use tokio::time::Instant;

use super::PrefetchChunks;
use super::climb::{self, Climb};
use super::pace::Link;

/// Chunks ahead of the first read. Three GETs in flight already hide most of a round trip.
const FIRST_DEPTH: u32 = 2;

/// A stream has at most so many times ahead of it as it has read: one that ends soon has fetched little for nobody, however slow the path is.
const AHEAD: u64 = 16;

/// Where `auto` starts when nothing is known of the store.
const AUTO_START: u32 = 8;

/// With fewer chunks a reader waits at every seam.
const AUTO_LEAST: u32 = 5;

/// Where `auto` ends, whatever the memory: 8 GiB/s at 100 ms with 4 MiB chunks is 200.
const AUTO_END: u32 = 256;

/// Until readers have shown how fast they are, their windows together are those of so many bytes a second at most.
const HOPED_RATE: f64 = 4e9;

/// Until its first turn is over a stream may become so many times as fast as it is, the wait for its first byte left out; and until its second.
const HOPED: [f64; 2] = [64.0, 32.0];

/// Where a GET takes longer than this, as much less is hoped for: the rate is known after a few GETs all the same, and what was asked for in vain
/// takes the longer to arrive.
const QUICK_GET: Duration = Duration::from_millis(100);

/// Where GETs take so many times as long as the fastest the path is full: more of them share what there is with those that are needed first, and as
/// much less is hoped for.
const FULL: f64 = 2.0;
const LESS_WHERE_FULL: f64 = 8.0;

/// A turn takes as long as so many GETs.
const TURN_OF: f64 = 2.0;

/// The fastest of so many turns counts: one that was held up says little.
const TURNS: usize = 4;

/// The window of one stream.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// What it was bound by last.
    chunks: PrefetchChunks,
    depth: u32,
    bound: u32,
    /// What was fetched for a wider window is kept until it was read.
    kept: u32,
    /// Bytes read since `kept` was last moved.
    nearer: u64,
    auto: Option<Auto>,
    /// Bytes that the stream has read.
    read: u64,
}

#[derive(Clone, Debug)]
struct Auto {
    turn: Turn,
    /// Bytes to be read that were asked for with another bound, and are not measured.
    settling: u64,
    /// Bytes a second of the latest turns. The first turn of a stream opens the window and is not among them.
    rates: [f64; TURNS],
    turns: usize,
    climb: Climb,
    lesson: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    started: Instant,
    /// Bytes of this reader.
    bytes: u64,
    /// What all readers had taken when it began.
    taken: u64,
}

impl Window {
    pub fn new(chunks: PrefetchChunks, now: Instant) -> Self {
        let (bound, auto) = match chunks {
            PrefetchChunks::Fixed(bound) => (bound, None),
            PrefetchChunks::Auto => (AUTO_START, Some(Auto::new(now))),
        };
        let depth = FIRST_DEPTH.min(bound);
        Self { chunks, depth, bound, kept: depth, nearer: 0, auto, read: 0 }
    }

    /// Has another bound from the next read on. What was fetched for a wider one is kept until it was read.
    pub fn follow(&mut self, chunks: PrefetchChunks, now: Instant) {
        if self.chunks != chunks {
            let Self { bound, auto, .. } = Self::new(chunks, now);
            (self.chunks, self.bound, self.auto) = (chunks, bound, auto);
            self.depth = self.depth.max(FIRST_DEPTH.min(bound));
        }
    }

    /// Chunks to have in memory or in flight after the current one.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Chunks after the current one that are not let go: after a window was narrowed these are more than
    /// [`depth`](Self::depth) for a while.
    pub fn kept(&self) -> u32 {
        self.kept.max(self.depth)
    }

    /// By how much all windows should be wider, if the latest read brought that to light.
    pub fn lesson(&mut self) -> Option<f64> {
        self.auto.as_mut()?.lesson.take()
    }

    /// The stream read `moved` new bytes, before which all streams together had `taken` so many.
    pub fn on_read(&mut self, now: Instant, moved: u64, chunk_bytes: u64, link: &Link, taken: u64) {
        if let Some(auto) = &mut self.auto {
            self.bound = auto.on_read(now, moved, chunk_bytes, link, (self.bound, taken));
        }
        // With each chunk that is read, the farthest that was fetched lies one chunk nearer.
        self.nearer += moved;
        self.kept = self.kept.max(self.depth).saturating_sub((self.nearer / chunk_bytes) as u32);
        self.nearer %= chunk_bytes;
        self.read += moved;
        self.depth = u32::try_from(AHEAD.saturating_mul(self.read) / chunk_bytes).unwrap_or(u32::MAX).max(FIRST_DEPTH);
        let probed = self.auto.is_some() && link.is_probed;
        self.depth = self.depth.min(if probed { (self.bound / 2).max(AUTO_LEAST) } else { self.bound });
    }
}

impl Auto {
    fn new(now: Instant) -> Self {
        let turn = Turn { started: now, bytes: 0, taken: 0 };
        Self { turn, settling: 0, rates: [0.0; TURNS], turns: 0, climb: Climb::new(), lesson: None }
    }

    /// The bound from here on.
    fn on_read(&mut self, now: Instant, moved: u64, chunk_bytes: u64, link: &Link, (bound, taken): (u32, u64)) -> u32 {
        let Some(time) = link.time_of(chunk_bytes) else { return bound };
        let chunks = |rate: f64, stretch: f64| {
            let chunks = (rate * stretch * time.as_secs_f64() / chunk_bytes as f64).ceil();
            (AUTO_LEAST..AUTO_END).find(|&n| f64::from(n) >= chunks).unwrap_or(AUTO_END)
        };
        let next_turn = Turn { started: now, bytes: 0, taken: taken + moved };
        if self.settling > 0 || link.is_probed {
            self.settling = self.settling.saturating_sub(moved);
            if link.is_probed {
                // What comes now is that of a half.
                self.settling = self.settling.max(u64::from(bound) * chunk_bytes);
            }
            self.turn = next_turn;
            return bound;
        }
        self.turn.bytes += moved;
        let elapsed = now.duration_since(self.turn.started);
        // In a turn every GET that was in flight ends and one more after it, so that what the window let through is what is measured; a
        // reader that is slower than its window shows it as soon.
        let over = self.turn.bytes >= u64::from(AUTO_LEAST) * chunk_bytes && elapsed >= time.mul_f64(TURN_OF * link.usual);
        let a_second = |bytes: u64, elapsed: Duration| bytes as f64 / elapsed.max(Duration::from_micros(1)).as_secs_f64();
        let hoped = |times: f64| {
            let times = times * (QUICK_GET.as_secs_f64() / time.as_secs_f64()).min(1.0);
            let times = if link.usual < FULL { times } else { times / LESS_WHERE_FULL };
            let first = a_second(self.turn.bytes, elapsed.saturating_sub(link.latency.unwrap_or_default()));
            chunks((first * times).min(HOPED_RATE / link.readers.max(1) as f64), link.stretch / climb::LEAN)
        };
        if !over {
            return if self.turns == 0 { hoped(HOPED[0]) } else { bound };
        }
        let all = (taken + moved).saturating_sub(self.turn.taken).max(self.turn.bytes);
        let (own, all, hoped) = (a_second(self.turn.bytes, elapsed), a_second(all, elapsed), hoped(HOPED[1]));
        self.turn = next_turn;
        self.turns += 1;
        if self.turns == 1 {
            return bound.min(hoped);
        }
        self.rates[self.turns % TURNS] = own;
        let factor = self.climb.on_turn(bound, all, link.readers, link.stretch);
        // All readers may find the same at the same time.
        let factor = factor.powf(1.0 / link.readers.max(1) as f64);
        self.lesson = Some(factor).filter(|&factor| factor != 1.0);
        let fastest = self.rates.iter().copied().fold(0.0, f64::max);
        let next = chunks(fastest, (link.stretch * factor).clamp(climb::LEAN, climb::MOST));
        if next != bound {
            self.settling = u64::from(bound.max(next)) * chunk_bytes;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::pace::Pace;
    use super::*;

    const CHUNK: u64 = 4 << 20;

    /// A path on which a GET of a chunk takes `whole`.
    fn link(now: Instant, whole: Duration) -> Link {
        let mut pace = Pace::new(now);
        pace.on_first_byte(now, whole / 3);
        pace.on_end(whole, CHUNK);
        pace.link(now, 1)
    }

    /// Reads one chunk a call for `chunks` chunks at `rate(bound)` bytes a second.
    fn run(window: &mut Window, mut now: Instant, chunks: u32, link: &Link, rate: impl Fn(u32) -> f64) -> Instant {
        for _ in 0..chunks {
            now += Duration::from_secs_f64(CHUNK as f64 / rate(window.depth()));
            window.on_read(now, CHUNK, CHUNK, link, 0);
        }
        now
    }

    /// The depths of a window before each of `chunks` chunks, on a path of which the fastest GET takes `time` and that gives `rate(depth)`.
    fn follow(time: Duration, rate: impl Fn(u32) -> f64, chunks: usize) -> Vec<u32> {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        pace.on_first_byte(now, time / 3);
        pace.on_end(time, CHUNK);
        let (start, mut window) = (now, Window::new(PrefetchChunks::Auto, now));
        let mut depths = Vec::new();
        for chunk in 0..chunks as u64 {
            depths.push(window.depth());
            now += Duration::from_secs_f64(CHUNK as f64 / rate(window.depth()));
            window.on_read(now, CHUNK, CHUNK, &pace.link(start, 1), chunk * CHUNK);
            if let Some(factor) = window.lesson() {
                pace.stretch_by(factor);
            }
        }
        depths
    }

    #[test]
    fn the_window_is_a_multiple_of_what_was_read_up_to_its_bound() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Fixed(32), now);
        let depths: Vec<u32> = (0..6)
            .map(|_| {
                window.on_read(now, 1 << 20, CHUNK, &Link::default(), 0);
                window.depth()
            })
            .collect();
        assert_eq!(depths, [4, 8, 12, 16, 20, 24]);
    }

    #[test]
    fn small_reads_open_it_by_bytes_not_by_calls() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Fixed(32), now);
        for _ in 0..191 {
            window.on_read(now, 4096, CHUNK, &Link::default(), 0);
        }
        assert_eq!(window.depth(), 2);
        window.on_read(now, 4096, CHUNK, &Link::default(), 0);
        assert_eq!(window.depth(), 3);
    }

    #[test]
    fn a_fixed_bound_is_hard_and_zero_means_no_prefetch() {
        let now = Instant::now();
        for bound in [0, 1, 3] {
            let mut window = Window::new(PrefetchChunks::Fixed(bound), now);
            run(&mut window, now, 1000, &link(now, Duration::from_millis(60)), |_| 1e6);
            assert_eq!(window.depth(), bound);
        }
    }

    #[test]
    fn a_bound_that_is_changed_holds_from_the_next_read_on() {
        let now = Instant::now();
        let link = link(now, Duration::from_millis(60));
        let mut window = Window::new(PrefetchChunks::Fixed(32), now);
        let under = |window: &mut Window, chunks| {
            for _ in 0..10 {
                window.follow(chunks, now);
                window.on_read(now, CHUNK, CHUNK, &link, 0);
            }
            window.depth()
        };
        assert_eq!(under(&mut window, PrefetchChunks::Fixed(32)), 32);
        assert_eq!(under(&mut window, PrefetchChunks::Fixed(1)), 1);
        assert!(window.kept() > 1, "what was fetched is not thrown away");
        assert_eq!(under(&mut window, PrefetchChunks::Auto), 58);
        assert_eq!(under(&mut window, PrefetchChunks::Fixed(0)), 0);
        assert_eq!(under(&mut window, PrefetchChunks::Fixed(8)), 8);
    }

    #[test]
    fn a_distant_store_is_given_many_at_once_and_a_near_one_few() {
        let now = Instant::now();
        for (whole, depth) in [(60, 58), (10, 10), (1, AUTO_LEAST)] {
            let mut window = Window::new(PrefetchChunks::Auto, now);
            for _ in 0..10 {
                window.on_read(now, CHUNK, CHUNK, &link(now, Duration::from_millis(whole)), 0);
            }
            assert_eq!(window.depth(), depth);
        }
    }

    #[test]
    fn readers_that_begin_together_share_what_is_hoped_for() {
        let now = Instant::now();
        let mut shared = link(now, Duration::from_millis(60));
        shared.readers = 4;
        let mut window = Window::new(PrefetchChunks::Auto, now);
        for _ in 0..10 {
            window.on_read(now, CHUNK, CHUNK, &shared, 0);
        }
        assert_eq!(window.depth(), 15);
    }

    #[test]
    fn it_grows_while_more_in_flight_brings_more() {
        let now = Instant::now();
        let time = Duration::from_millis(200);
        let mut window = Window::new(PrefetchChunks::Auto, now);
        run(&mut window, now, 5000, &link(now, time), |depth| f64::from(depth) * CHUNK as f64 / time.as_secs_f64());
        assert_eq!(window.depth(), AUTO_END);
    }

    #[test]
    fn it_settles_at_the_bandwidth_delay_product_and_a_half() {
        // 40 chunks fill the path.
        let depths = follow(Duration::from_millis(100), |depth| f64::from(depth.min(40)) * CHUNK as f64 / 0.1, 20_000);
        // What is tried now and then is given up at once. The path itself rounds up.
        let settled = &depths[200..];
        let tried = settled.iter().filter(|&&depth| depth > 61).count();
        assert!(settled.iter().all(|&depth| depth <= 86) && tried < settled.len() / 15, "{tried}, {:?}", settled.iter().max());
        assert!(depths[2000..].iter().all(|&depth| depth >= 60));
    }

    #[test]
    fn where_gets_take_very_different_times_the_slowest_make_the_window() {
        // The fastest GET takes 56 ms, and one that holds a reader back 156, up to what the machine can do.
        let path = |depth: u32| (f64::from(depth) * CHUNK as f64 / 0.156).min(2e9);
        let depths = follow(Duration::from_millis(56), path, 10_000);
        let reached = |n: usize| depths[..n].iter().map(|&depth| path(depth)).sum::<f64>() / n as f64;
        assert!(reached(512) > 1e9 && reached(4096) > 1.6e9 && reached(10_000) > 1.8e9, "{} {}", reached(512), reached(10_000));
        // 75 are needed.
        assert!(
            depths[2000..].iter().all(|&depth| (50..=150).contains(&depth)),
            "{:?} {:?}",
            depths[2000..].iter().min(),
            depths[2000..].iter().max()
        );
    }

    #[test]
    fn a_path_that_is_wider_than_was_hoped_is_filled() {
        // 10 GB/s with 60 ms.
        let depths = follow(Duration::from_millis(60), |depth| (f64::from(depth) * CHUNK as f64 / 0.065).min(10e9), 10_000);
        assert!(depths[9000..].iter().all(|&depth| depth > 140), "{:?}", depths[9000..].iter().min());
    }

    #[test]
    fn a_slow_reader_gives_the_memory_back() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Auto, now);
        run(&mut window, now, 1000, &link(now, Duration::from_millis(60)), |_| 50e6);
        assert_eq!((window.depth(), window.kept()), (AUTO_LEAST, AUTO_LEAST));
    }

    #[test]
    fn a_reader_that_is_slower_than_was_hoped_is_known_after_two_turns() {
        let now = Instant::now();
        let time = Duration::from_millis(60);
        let mut window = Window::new(PrefetchChunks::Auto, now);
        let rate = 250e6;
        run(&mut window, now, 4, &link(now, time), |_| rate);
        assert!(window.depth() > 15, "four are hoped for what 4 GB/s need");
        // Two turns of two GETs are 15 chunks; a GET's time and a half of what it reads is 22.5 MB.
        run(&mut window, now + Duration::from_millis(70), 15, &link(now, time), |_| rate);
        assert_eq!(window.depth(), 6);
    }

    #[test]
    fn what_a_wider_window_brought_is_kept_until_it_was_read() {
        let now = Instant::now();
        let near = link(now, Duration::from_millis(60));
        let mut window = Window::new(PrefetchChunks::Auto, now);
        let (mut at, mut narrowed, mut farthest) = (now, 0, 0);
        for chunk in 0..600 {
            let before = window.depth();
            farthest = farthest.max(chunk + before);
            at = run(&mut window, at, 1, &near, |_| 100e6);
            narrowed += u32::from(window.depth() < before);
            // The next read is of the chunk after this one.
            assert!(chunk + 1 + window.kept() >= farthest, "{chunk} {farthest} {}", window.kept());
        }
        assert!(narrowed > 0);
    }

    #[test]
    fn a_probe_halves_it_for_its_time() {
        let now = Instant::now();
        let normal = link(now, Duration::from_millis(60));
        let mut window = Window::new(PrefetchChunks::Auto, now);
        run(&mut window, now, 8, &normal, |_| 1e9);
        let before = window.depth();
        window.on_read(now, 128 << 10, CHUNK, &normal.probed(), 0);
        assert_eq!(window.depth(), before / 2);
        window.on_read(now, 128 << 10, CHUNK, &normal, 0);
        assert_eq!(window.depth(), before);
    }
}
