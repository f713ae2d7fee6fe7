//! How far ahead one stream is fetched. Pure: the time comes as an argument.
//!
//! The window opens with the first read and doubles with the bytes that are read until it has N chunks. With
//! `prefetch-chunks=auto` N itself is a guess that is tested: when a reader still waits with N chunks in flight,
//! N is doubled, and kept only if more bytes per second came of it.

use std::time::Duration;

use tokio::time::Instant;

use super::PrefetchChunks;

/// Chunks ahead of the first read. Three GETs in flight already hide most of a round trip.
const FIRST_DEPTH: u32 = 2;

/// Bytes to read before the window doubles again, so that a reader of headers does not open it wide.
const DOUBLE_EVERY: u64 = 128 << 10;

/// Where `auto` starts.
const AUTO_START: u32 = 32;

/// Where `auto` ends, whatever the memory: 8 GiB/s at 100 ms with 4 MiB chunks is 200.
const AUTO_END: u32 = 256;

/// A larger window stays when throughput grew by this factor: where latency is the limit twice as many GETs bring
/// nearly twice as much, and a busy machine is noisy.
const WORTH_IT: f64 = 1.25;

/// Turns to wait before another attempt after one that brought nothing.
const REST_TURNS: u32 = 16;

/// The window of one stream.
#[derive(Clone, Debug)]
pub(super) struct Window {
    depth: u32,
    bound: u32,
    /// What was fetched for a wider window is kept until it was read.
    kept: u32,
    auto: Option<Auto>,
    unspent: u64,
}

#[derive(Clone, Debug)]
struct Auto {
    turn_started: Instant,
    turn_bytes: u64,
    waited: bool,
    rest: u32,
    /// Bound and throughput before the growth that is being tested.
    trial: Option<(u32, f64)>,
}

impl Window {
    pub fn new(chunks: PrefetchChunks, now: Instant) -> Self {
        let (bound, auto) = match chunks {
            PrefetchChunks::Fixed(bound) => (bound, None),
            PrefetchChunks::Auto => {
                let auto = Auto { turn_started: now, turn_bytes: 0, waited: false, rest: 0, trial: None };
                (AUTO_START, Some(auto))
            }
        };
        let depth = FIRST_DEPTH.min(bound);
        Self { depth, bound, kept: depth, auto, unspent: 0 }
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
    pub fn on_read(&mut self, now: Instant, moved: u64, chunk_bytes: u64) {
        self.unspent += moved;
        if self.unspent >= DOUBLE_EVERY {
            self.unspent = 0;
            self.depth = self.depth.saturating_mul(2).min(self.bound);
        }
        let full = self.depth == self.bound;
        if let Some(auto) = &mut self.auto {
            auto.turn_bytes += moved;
            // A turn lets every chunk of the window go by once, so that what was in flight is what is measured.
            if full && auto.turn_bytes >= u64::from(self.bound) * chunk_bytes {
                self.kept = self.depth;
                self.bound = auto.on_turn(now, self.bound);
                self.depth = self.depth.min(self.bound);
            }
        }
    }

    /// A read of the stream had to wait.
    pub fn on_wait(&mut self) {
        if let Some(auto) = &mut self.auto {
            auto.waited = true;
        }
    }
}

impl Auto {
    /// The bound for the next turn.
    fn on_turn(&mut self, now: Instant, bound: u32) -> u32 {
        let elapsed = now.duration_since(self.turn_started).max(Duration::from_micros(1));
        let rate = self.turn_bytes as f64 / elapsed.as_secs_f64();
        let waited = std::mem::take(&mut self.waited);
        (self.turn_started, self.turn_bytes) = (now, 0);
        if let Some((before, rate_before)) = self.trial.take()
            && rate < rate_before * WORTH_IT
        {
            self.rest = REST_TURNS;
            return before;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return bound;
        }
        if !waited || bound >= AUTO_END {
            return bound;
        }
        self.trial = Some((bound, rate));
        (bound * 2).min(AUTO_END)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 4 << 20;

    /// Reads one chunk a call for `turns` turns at `rate(bound)` bytes a second, waiting each time.
    fn run(window: &mut Window, mut now: Instant, turns: u32, rate: impl Fn(u32) -> f64) -> Instant {
        for _ in 0..turns {
            for _ in 0..window.bound {
                now += Duration::from_secs_f64(CHUNK as f64 / rate(window.bound));
                window.on_wait();
                window.on_read(now, CHUNK, CHUNK);
            }
        }
        now
    }

    #[test]
    fn the_window_doubles_with_what_is_read_up_to_its_bound() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Fixed(32), now);
        let depths: Vec<u32> = (0..6)
            .map(|_| {
                window.on_read(now, 1 << 20, CHUNK);
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
            window.on_read(now, 4096, CHUNK);
        }
        assert_eq!(window.depth(), 2);
        window.on_read(now, 4096, CHUNK);
        assert_eq!(window.depth(), 4);
    }

    #[test]
    fn a_fixed_bound_is_hard_and_zero_means_no_prefetch() {
        for bound in [0, 1, 3] {
            let mut window = Window::new(PrefetchChunks::Fixed(bound), Instant::now());
            run(&mut window, Instant::now(), 100, |_| 1e6);
            for _ in 0..10 {
                window.on_wait();
                window.on_read(Instant::now(), CHUNK, CHUNK);
            }
            assert_eq!(window.depth(), bound);
        }
    }

    #[test]
    fn auto_grows_while_more_in_flight_brings_more() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Auto, now);
        run(&mut window, now, 40, |bound| f64::from(bound) * 50e6);
        assert_eq!(window.depth(), AUTO_END);
    }

    #[test]
    fn auto_goes_back_when_growth_brought_nothing() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Auto, now);
        run(&mut window, now, 6, |bound| f64::from(bound.min(64)) * 50e6);
        assert_eq!(window.depth(), 64);
    }

    #[test]
    fn what_a_wider_window_brought_is_kept_until_it_was_read() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Auto, now);
        let mut narrowed = 0;
        let mut at = now;
        for _ in 0..600 {
            let before = window.depth();
            at = run_one(&mut window, at);
            if window.depth() < before {
                narrowed += 1;
                assert_eq!(window.kept(), before);
            }
        }
        assert!(narrowed > 0);
    }

    fn run_one(window: &mut Window, now: Instant) -> Instant {
        let now = now + Duration::from_millis(10);
        window.on_wait();
        window.on_read(now, CHUNK, CHUNK);
        now
    }

    #[test]
    fn auto_stays_where_it_is_when_nobody_waits() {
        let now = Instant::now();
        let mut window = Window::new(PrefetchChunks::Auto, now);
        for step in 0..1000 {
            window.on_read(now + Duration::from_millis(step), CHUNK, CHUNK);
        }
        assert_eq!(window.depth(), AUTO_START);
    }
}
