//! What a GET takes when nothing is in its way: the time part of the bandwidth-delay product. Pure.
//!
//! The least of what was seen lately counts, because everything else (more GETs than the path carries, a busy
//! machine) only adds. So that a queue of our own making is not taken for the path in the end, windows are halved for a
//! moment before old observations are forgotten; the GETs of that moment see the path as it is.

use std::time::Duration;

use tokio::time::Instant;

use super::climb;

/// Observations count for one to two of these, at least.
const EPOCH: Duration = Duration::from_secs(10);

/// GETs of an epoch, one after another. On a slow link a window that is too wide makes each GET take longer than [`EPOCH`]: the time that a GET
/// takes by itself would be forgotten, and the window would keep its width for good.
const GETS_OF_EPOCH: u32 = 16;

/// The last part of an epoch, in which windows are halved: several round trips of a distant store.
const PROBE: Duration = Duration::from_millis(300);

/// Of the factor of windows, what is left of it after an epoch in which nobody changed it.
const FORGOTTEN: f64 = 0.9;

/// Smaller bodies say nothing of the bandwidth of a connection.
const TELLING_BYTES: u64 = 512 << 10;

/// A GET of a chunk takes about so many times its first-byte latency where nothing better is known: stores in the
/// cloud answer after 15 to 30 ms and send 4 MiB in 40 to 50.
const TIMES_LATENCY: u32 = 3;

/// With less in a GET requests would cost more than they save.
const LEAST_UNIT: u64 = 1 << 20;

/// Programs that compute between their reads are not paused readers.
const MIN_PAUSE: Duration = Duration::from_secs(1);

const MIB: f64 = 1_048_576.0;

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    epoch_started: Instant,
    before: Seen,
    now: Seen,
    /// See [`climb`](super::climb).
    stretch: f64,
    /// Of the latest GETs, how many times as long as the fastest they took: a mean in which each is a thirty-second.
    usual: f64,
    /// What the latest GETs took: a mean in which each is an eighth.
    mean: Duration,
}

/// The least times of an epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    latency: Option<Duration>,
    /// For a mebibyte, after the first byte.
    transfer: Option<Duration>,
}

/// What windows go by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Link {
    pub latency: Option<Duration>,
    transfer: Option<Duration>,
    /// Windows are to be halved now.
    pub is_probed: bool,
    /// Sequential readers that share the path.
    pub readers: usize,
    /// How much wider than rate and time ask for their windows are.
    pub stretch: f64,
    /// What a GET took lately against the fastest, at least 1.
    pub usual: f64,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self { epoch_started: now, before: Seen::default(), now: Seen::default(), stretch: climb::LEAN, usual: 1.0, mean: Duration::ZERO }
    }

    fn epoch(&self) -> Duration {
        EPOCH.max(self.mean * GETS_OF_EPOCH)
    }

    /// Until the GETs of the wide window have ended.
    fn probe(&self) -> Duration {
        PROBE.max(self.mean)
    }

    /// One of the readers found that windows should be so many times as wide.
    pub fn stretch_by(&mut self, factor: f64) {
        self.stretch = (self.stretch * factor).clamp(climb::LEAN, climb::MOST);
    }

    /// The first byte of a GET came after `latency`.
    pub fn on_first_byte(&mut self, now: Instant, latency: Duration) {
        if now.duration_since(self.epoch_started) >= self.epoch() {
            self.epoch_started = now;
            self.before = Seen { latency: self.now.latency.or(self.before.latency), transfer: self.now.transfer.or(self.before.transfer) };
            self.now = Seen::default();
            // Readers that are too short to find out that less would do inherit it from longer ones.
            self.stretch_by(FORGOTTEN);
        }
        self.now.latency = Some(least(self.now.latency, latency));
    }

    /// A GET of `bytes` has ended after `whole`.
    pub fn on_end(&mut self, whole: Duration, bytes: u64) {
        let Some(latency) = self.now.latency.or(self.before.latency) else { return };
        if bytes >= TELLING_BYTES {
            // Not after its own first byte: when that is noticed late, much of the body is there already.
            self.mean = if self.mean.is_zero() { whole } else { (self.mean * 7 + whole) / 8 };
            let transfer = whole.saturating_sub(latency).mul_f64(MIB / bytes as f64);
            self.now.transfer = Some(least(self.now.transfer, transfer));
            let link = self.link(self.epoch_started, 1);
            if let Some(fastest) = link.time_of(bytes) {
                let times = (whole.as_secs_f64() / fastest.as_secs_f64().max(1e-6)).max(1.0);
                self.usual += (times - self.usual) / 32.0;
            }
        }
    }

    /// What is known at `now`, for one of `readers`.
    pub fn link(&self, now: Instant, readers: usize) -> Link {
        let age = now.duration_since(self.epoch_started);
        let both = |a: Option<Duration>, b: Option<Duration>| a.map_or(b, |a| Some(least(b, a)));
        Link {
            latency: both(self.before.latency, self.now.latency),
            transfer: both(self.before.transfer, self.now.transfer),
            is_probed: (self.epoch() - self.probe()..self.epoch()).contains(&age),
            readers,
            stretch: self.stretch,
            usual: self.usual,
        }
    }
}

/// Nothing is known.
impl Default for Link {
    fn default() -> Self {
        Self { latency: None, transfer: None, is_probed: false, readers: 1, stretch: climb::LEAN, usual: 1.0 }
    }
}

impl Link {
    /// The time of a GET of `bytes`, from the request to the last byte.
    pub fn time_of(&self, bytes: u64) -> Option<Duration> {
        let latency = self.latency?;
        let transfer = |transfer: Duration| transfer.mul_f64(bytes as f64 / MIB);
        Some(self.transfer.map_or(latency * TIMES_LATENCY, |per_mib| latency + transfer(per_mib)))
    }

    /// Time without a read after which a reader of chunks of `chunk` bytes counts as paused: two GETs as they are now, each about three round
    /// trips, and at least a second.
    pub fn pause(&self, chunk: u64) -> Duration {
        let time = self.time_of(chunk).unwrap_or_default().mul_f64(self.usual);
        (time * 2).max(MIN_PAUSE)
    }

    /// The bytes of a GET of which about half the time is its latency: with more of them at once what is read in parallel would be there hardly
    /// sooner. A part of `chunk`.
    pub fn unit(&self, chunk: u64) -> u64 {
        let half = self.latency.zip(self.transfer).map(|(latency, per_mib)| (latency.as_nanos() << 20) / per_mib.as_nanos().max(1));
        let most = chunk.max(LEAST_UNIT);
        let unit = half.map_or(chunk, |bytes| 1 << u64::try_from(bytes).unwrap_or(most).clamp(LEAST_UNIT, most).ilog2());
        if chunk.is_multiple_of(unit) { unit } else { chunk }
    }

    #[cfg(test)]
    pub fn probed(self) -> Self {
        Self { is_probed: true, ..self }
    }
}

fn least(a: Option<Duration>, b: Duration) -> Duration {
    a.map_or(b, |a| a.min(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn get(pace: &mut Pace, now: Instant, first: Duration, whole: Duration, bytes: u64) {
        pace.on_first_byte(now, first);
        pace.on_end(whole, bytes);
    }

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        let now = Instant::now();
        assert_eq!(Pace::new(now).link(now, 1).time_of(4 * MIB), None);
    }

    #[test]
    fn the_latency_alone_gives_a_guess_and_a_body_the_answer() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        get(&mut pace, now, ms(20), ms(21), 128 << 10);
        assert_eq!(pace.link(now, 1).time_of(4 * MIB), Some(ms(60)));
        get(&mut pace, now, ms(30), ms(60), 4 * MIB);
        assert_eq!(pace.link(now, 1).time_of(4 * MIB), Some(ms(60)));
        get(&mut pace, now, ms(20), ms(40), 4 * MIB);
        assert_eq!(pace.link(now, 1).time_of(8 * MIB), Some(ms(60)));
    }

    #[test]
    fn what_is_read_at_once_is_cut_where_the_transfer_takes_as_long_as_the_latency() {
        let now = Instant::now();
        let unit = |first, whole, chunk| {
            let mut pace = Pace::new(now);
            get(&mut pace, now, ms(first), ms(whole), 4 * MIB);
            pace.link(now, 1).unit(chunk)
        };
        assert_eq!(Pace::new(now).link(now, 1).unit(4 * MIB), 4 * MIB);
        // 20 ms and 90 MB/s; 20 ms and 180 MB/s; a near one; a slow one.
        assert_eq!(
            [unit(20, 66, 8 * MIB), unit(20, 43, 8 * MIB), unit(1, 5, 8 * MIB), unit(100, 101, 8 * MIB)].map(|unit| unit / MIB),
            [1, 2, 1, 8]
        );
        assert_eq!((unit(20, 66, 5 << 17), unit(20, 66, 3 * MIB / 2)), (5 << 17, 3 * MIB / 2));
    }

    #[test]
    fn old_observations_are_forgotten_after_a_probe() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        get(&mut pace, now, ms(10), ms(20), 4 * MIB);
        assert!(!pace.link(now + EPOCH - PROBE - ms(1), 1).is_probed);
        assert!(pace.link(now + EPOCH - PROBE, 1).is_probed);
        for epoch in 1..=2 {
            assert_eq!(pace.link(now, 1).time_of(4 * MIB), Some(ms(20)));
            get(&mut pace, now + EPOCH * epoch, ms(50), ms(100), 4 * MIB);
        }
        assert_eq!(pace.link(now + EPOCH * 2, 1).time_of(4 * MIB), Some(ms(100)));
        assert!(!pace.link(now + EPOCH * 2, 1).is_probed);
    }

    #[test]
    fn slow_gets_make_the_epoch_longer() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        get(&mut pace, now, ms(50), ms(1200), 4 * MIB);
        for second in 1..200 {
            get(&mut pace, now + Duration::from_secs(second), ms(50), ms(16_000), 4 * MIB);
        }
        assert_eq!(pace.link(now + EPOCH * 20, 1).time_of(4 * MIB), Some(ms(1200)));
        assert!(pace.link(now + Duration::from_secs(250), 1).is_probed);
        for second in [260, 520] {
            get(&mut pace, now + Duration::from_secs(second), ms(50), ms(16_000), 4 * MIB);
        }
        assert_eq!(pace.link(now, 1).time_of(4 * MIB), Some(ms(16_000)));
    }

    #[test]
    fn wide_windows_are_forgotten_in_the_end() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        assert_eq!(pace.link(now, 1).stretch, climb::LEAN);
        pace.stretch_by(100.0);
        assert_eq!(pace.link(now, 1).stretch, climb::MOST);
        for epoch in 1..=10 {
            get(&mut pace, now + EPOCH * epoch, ms(10), ms(20), 4 * MIB);
        }
        assert!((5.0..6.0).contains(&pace.link(now, 1).stretch));
        for epoch in 11..=30 {
            get(&mut pace, now + EPOCH * epoch, ms(10), ms(20), 4 * MIB);
        }
        assert_eq!(pace.link(now, 1).stretch, climb::LEAN);
    }

    #[test]
    fn what_gets_usually_take_is_a_mean_over_the_fastest() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        for _ in 0..200 {
            get(&mut pace, now, ms(20), ms(40), 4 * MIB);
        }
        assert!((pace.link(now, 1).usual - 1.0).abs() < 0.01);
        for _ in 0..200 {
            get(&mut pace, now, ms(20), ms(80), 4 * MIB);
        }
        assert!((pace.link(now, 1).usual - 2.0).abs() < 0.01);
    }

    #[test]
    fn a_pause_forgets_nothing_that_is_not_replaced() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        get(&mut pace, now, ms(10), ms(20), 4 * MIB);
        get(&mut pace, now + EPOCH * 100, ms(15), ms(16), 1000);
        assert_eq!(pace.link(now + EPOCH * 100, 1).time_of(4 * MIB), Some(ms(20)));
    }
}
