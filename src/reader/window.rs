//! How far ahead one stream is fetched. Pure: the time comes as an argument.
//!
//! The window opens with the first read and doubles with the bytes that are read until it has N chunks. With
//! `prefetch-chunks=auto` N follows the bandwidth-delay product: what the reader took per second lately, times what a
//! GET takes, and some more. As long as the window is what holds the reader back this makes it grow from turn to turn;
//! where more GETs bring nothing (the reader, the machine or the path is the limit) it stays, and where they are not
//! needed it shrinks, because memory that was not just in use costs as much as the copy into it.

use std::time::Duration;

use tokio::time::Instant;

use super::PrefetchChunks;
use super::pace::Link;

/// Chunks ahead of the first read. Three GETs in flight already hide most of a round trip.
const FIRST_DEPTH: u32 = 2;

/// Bytes to read before the window doubles again, so that a reader of headers does not open it wide.
const DOUBLE_EVERY: u64 = 128 << 10;

/// Where `auto` starts when nothing is known of the store.
const AUTO_START: u32 = 8;

/// With fewer chunks a reader waits at every seam.
const AUTO_LEAST: u32 = 5;

/// Where `auto` ends, whatever the memory: 8 GiB/s at 100 ms with 4 MiB chunks is 200.
const AUTO_END: u32 = 256;

/// Until readers have shown how fast they are, they are taken to read so many bytes a second together.
const HOPED_RATE: f64 = 4e9;

/// Bytes in flight over those that rate and time of a GET ask for: room to grow, and for GETs that are slower than
/// the fastest.
const ROOM: f64 = 1.5;

/// A turn takes as long as so many GETs.
const TURN_OF: u32 = 2;

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
    unspent: u64,
}

#[derive(Clone, Debug)]
struct Auto {
    turn_started: Instant,
    turn_bytes: u64,
    /// Bytes a second of the latest turns. The first turn of a stream opens the window and is not among them.
    rates: [f64; TURNS],
    turns: usize,
}

impl Window {
    pub fn new(chunks: PrefetchChunks, now: Instant) -> Self {
        let (bound, auto) = match chunks {
            PrefetchChunks::Fixed(bound) => (bound, None),
            PrefetchChunks::Auto => (AUTO_START, Some(Auto { turn_started: now, turn_bytes: 0, rates: [0.0; TURNS], turns: 0 })),
        };
        let depth = FIRST_DEPTH.min(bound);
        Self { chunks, depth, bound, kept: depth, nearer: 0, auto, unspent: 0 }
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

    /// The stream read `moved` new bytes.
    pub fn on_read(&mut self, now: Instant, moved: u64, chunk_bytes: u64, link: &Link) {
        if let Some(auto) = &mut self.auto {
            self.bound = auto.on_read(now, moved, chunk_bytes, link, self.bound);
        }
        // With each chunk that is read, the farthest that was fetched lies one chunk nearer.
        self.nearer += moved;
        self.kept = self.kept.max(self.depth).saturating_sub((self.nearer / chunk_bytes) as u32);
        self.nearer %= chunk_bytes;
        self.unspent += moved;
        if self.unspent >= DOUBLE_EVERY {
            self.unspent = 0;
            self.depth = self.depth.saturating_mul(2);
        }
        let probed = self.auto.is_some() && link.is_probed;
        self.depth = self.depth.min(if probed { (self.bound / 2).max(AUTO_LEAST) } else { self.bound });
    }
}

impl Auto {
    /// The bound from here on.
    fn on_read(&mut self, now: Instant, moved: u64, chunk_bytes: u64, link: &Link, bound: u32) -> u32 {
        self.turn_bytes += moved;
        let Some(time) = link.time_of(chunk_bytes) else { return bound };
        let chunks = |rate: f64| {
            let chunks = (rate * time.as_secs_f64() / chunk_bytes as f64).ceil();
            (AUTO_LEAST..AUTO_END).find(|&n| f64::from(n) >= chunks).unwrap_or(AUTO_END)
        };
        let elapsed = now.duration_since(self.turn_started);
        // In a turn every GET that was in flight ends and one more after it, so that what the window let through is what is measured; a
        // reader that is slower than its window shows it as soon.
        let over = self.turn_bytes >= u64::from(AUTO_LEAST) * chunk_bytes && elapsed >= time * TURN_OF;
        if !over {
            return if self.turns == 0 { chunks(HOPED_RATE / link.readers.max(1) as f64) } else { bound };
        }
        if self.turns > 0 {
            self.rates[self.turns % TURNS] = self.turn_bytes as f64 / elapsed.max(Duration::from_micros(1)).as_secs_f64();
        }
        self.turns += 1;
        (self.turn_started, self.turn_bytes) = (now, 0);
        let fastest = self.rates.iter().copied().fold(0.0, f64::max);
        if fastest > 0.0 { chunks(fastest * ROOM) } else { bound }
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
            window.on_read(now, CHUNK, CHUNK, link);
        }
        now
    }

    #[test]
    fn the_window_doubles_with_what_is_read_up_to_its_bound() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Fixed(32), now);
        let depths: Vec<u32> = (0..6)
            .map(|_| {
                window.on_read(now, 1 << 20, CHUNK, &Link::default());
                window.depth()
            })
            .collect();
        assert_eq!(depths, [4, 8, 16, 32, 32, 32]);
    }

    #[test]
    fn small_reads_open_it_by_bytes_not_by_calls() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Fixed(32), now);
        for _ in 0..31 {
            window.on_read(now, 4096, CHUNK, &Link::default());
        }
        assert_eq!(window.depth(), 2);
        window.on_read(now, 4096, CHUNK, &Link::default());
        assert_eq!(window.depth(), 4);
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
                window.on_read(now, 128 << 10, CHUNK, &link);
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
                window.on_read(now, 128 << 10, CHUNK, &link(now, Duration::from_millis(whole)));
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
            window.on_read(now, 128 << 10, CHUNK, &shared);
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
        let now = Instant::now();
        let time = Duration::from_millis(100);
        // 40 chunks fill the path.
        let path = |depth: u32| f64::from(depth.min(40)) * CHUNK as f64 / time.as_secs_f64();
        let mut window = Window::new(PrefetchChunks::Auto, now);
        run(&mut window, now, 5000, &link(now, time), path);
        // The path itself rounds up.
        assert!((60..=61).contains(&window.depth()), "{}", window.depth());
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
        window.on_read(now, 128 << 10, CHUNK, &normal.probed());
        assert_eq!(window.depth(), before / 2);
        window.on_read(now, 128 << 10, CHUNK, &normal);
        assert_eq!(window.depth(), before);
    }
}
