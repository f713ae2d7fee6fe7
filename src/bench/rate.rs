//! How fast bytes came: in the best second and from end to end. Pure: instants are arguments. Invariant: the peak is never below the mean,
//! because no mean of seconds is above the best of them.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes of each second since the beginning.
#[derive(Clone, Debug)]
pub struct Rate {
    began: Instant,
    bins: Vec<u64>,
    bytes: u64,
}

/// What it came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    pub bytes: u64,
    pub took: Duration,
    /// Bytes a second in the best second.
    pub peak: f64,
}

impl Rate {
    /// Begins with nothing.
    pub fn new(began: Instant) -> Self {
        Self { began, bins: Vec::new(), bytes: 0 }
    }

    /// So many bytes came.
    pub fn on_bytes(&mut self, at: Instant, bytes: u64) {
        let bin = usize::try_from(at.saturating_duration_since(self.began).as_secs()).unwrap_or(usize::MAX);
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += bytes;
        self.bytes += bytes;
    }

    /// All have come.
    pub fn end(&self, at: Instant) -> Speed {
        let took = at.saturating_duration_since(self.began);
        // The second that was not over says nothing: a few bytes in its first millisecond would look like a record.
        let whole = usize::try_from(took.as_secs()).unwrap_or(usize::MAX).min(self.bins.len());
        let best = self.bins[..whole].iter().copied().max().unwrap_or(0);
        let speed = Speed { bytes: self.bytes, took, peak: best as f64 };
        Speed { peak: speed.peak.max(speed.mean()), ..speed }
    }
}

impl Speed {
    /// Bytes a second from the beginning to the end.
    pub fn mean(&self) -> f64 {
        if self.took.is_zero() { 0.0 } else { self.bytes as f64 / self.took.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(pieces: &[(u64, u64)], end_ms: u64) -> Speed {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut rate = Rate::new(began);
        for &(ms, bytes) in pieces {
            rate.on_bytes(at(ms), bytes);
        }
        rate.end(at(end_ms))
    }

    #[test]
    fn the_peak_is_the_best_whole_second() {
        // Ramp-up, full speed, tail: what end to end hides.
        let found = speed(&[(0, 10), (500, 10), (1000, 100), (1999, 100), (2000, 30), (3100, 900)], 3200);
        assert_eq!((found.bytes, found.took, found.peak), (1150, Duration::from_millis(3200), 1150.0 / 3.2));
        let found = speed(&[(0, 10), (1000, 100), (1999, 100), (2000, 30)], 3000);
        assert_eq!((found.peak, found.mean()), (200.0, 80.0));
    }

    #[test]
    fn what_takes_less_than_a_second_has_one_rate() {
        let found = speed(&[(0, 50), (200, 50)], 250);
        assert_eq!((found.peak, found.mean()), (400.0, 400.0));
    }

    #[test]
    fn bytes_at_the_edge_of_a_second_belong_to_the_next_one() {
        assert_eq!(speed(&[(999, 7), (1000, 5)], 2000).peak, 7.0);
        assert_eq!(speed(&[(999, 5), (1000, 7)], 2000).peak, 7.0);
    }

    #[test]
    fn a_pause_is_a_second_without_bytes() {
        let found = speed(&[(0, 100), (5000, 100)], 6000);
        assert_eq!((found.peak, found.bytes), (100.0, 200));
    }

    #[test]
    fn nothing_in_no_time_is_no_rate() {
        let found = speed(&[], 0);
        assert_eq!((found.bytes, found.peak, found.mean()), (0, 0.0, 0.0));
    }
}
