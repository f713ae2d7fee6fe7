//! How many requests at a time make a transfer as fast as it gets: starts with few, doubles while that pays, and stays one step back when
//! it does not. Pure: time and bytes come as arguments. Invariant: it grows to its bound at most, and ends.

/// See the module.
#[derive(Clone, Debug)]
pub struct Knee {
    requests: usize,
    most: usize,
    /// Requests and bytes a second that were good last.
    good: Option<(usize, f64)>,
    /// Seconds and bytes since there are so many requests.
    seconds: f64,
    bytes: u64,
    /// How long it took until the first bytes had come, once they have: what more requests bring is not seen sooner.
    delay: Option<f64>,
    is_done: bool,
}

/// Enough for a link of a home, and a thirtieth of what a data centre takes.
const FIRST: usize = 8;

/// More requests that gain less than this gain nothing.
const GAIN: f64 = 1.02;

/// Twice the requests that bring so much more are wanted, however short the look was: noise is less.
const CLEAR_GAIN: f64 = 1.5;

/// How long to look before more requests are said to gain nothing: through the slow start of their connections, and a few times as long as
/// bytes take to come.
const LONG_LOOK: f64 = 0.25;
const DELAYS: f64 = 3.0;

impl Knee {
    /// Begins low.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { requests: FIRST.min(most), most, good: None, seconds: 0.0, bytes: 0, delay: None, is_done: FIRST >= most }
    }

    /// How many requests at a time there should be.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Nothing will change any more.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// So much was moved since the last look, with as many requests as there should be.
    pub fn on_look(&mut self, seconds: f64, bytes: u64) {
        if self.is_done {
            return;
        }
        self.seconds += seconds;
        self.bytes += bytes;
        let Some(delay) = self.delay else {
            // Counted from here, lumps are neither missed nor counted twice.
            if self.bytes > 0 {
                self.delay = Some(self.seconds);
                (self.seconds, self.bytes) = (0.0, 0);
            }
            return;
        };
        let rate = self.bytes as f64 / self.seconds;
        match self.good {
            // Before that there is nothing to compare with.
            None if self.seconds < delay || self.bytes == 0 => {}
            None => self.grow(rate),
            Some((_, good)) if rate >= good * CLEAR_GAIN => self.grow(rate),
            Some(_) if self.seconds < LONG_LOOK.max(delay * DELAYS) => {}
            Some((_, good)) if rate >= good * GAIN => self.grow(rate),
            Some((before, _)) => {
                self.requests = before;
                self.is_done = true;
            }
        }
    }

    fn grow(&mut self, rate: f64) {
        self.good = Some((self.requests, rate));
        self.is_done = self.requests == self.most;
        self.requests = (self.requests * 2).min(self.most);
        (self.seconds, self.bytes) = (0.0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: f64 = 0.025;
    const LOOKS_A_SECOND: u64 = 40;

    /// A store that moves so much a second for so many requests: how many it settles at, how long that takes, and what was moved of what the
    /// best number could have.
    fn settle(most: usize, latency: f64, rate: impl Fn(usize) -> u64) -> (usize, f64, f64) {
        let (mut knee, mut time, mut moved) = (Knee::new(most), 0.0, 0);
        // Requests that were there before, and when the others began.
        let (mut before, mut since) = (0, 0.0);
        while !knee.is_done() {
            let now = knee.requests();
            time += LOOK;
            let is_flowing = time - since > latency;
            let bytes = rate(if is_flowing { now } else { before }) / LOOKS_A_SECOND;
            moved += bytes;
            knee.on_look(LOOK, bytes);
            if knee.requests() != now {
                (before, since) = (now, time);
            }
            assert!(knee.requests() <= most && time < 100.0, "{knee:?}");
        }
        let best = (1..=most).map(&rate).max().unwrap_or(0);
        (knee.requests(), time, moved as f64 / (best as f64 * time))
    }

    /// 90 MB/s a connection behind a link of so many MB/s.
    fn link(limit: u64) -> impl Fn(usize) -> u64 {
        move |n| (n as u64 * 90).min(limit) * 1_000_000
    }

    #[test]
    fn it_stops_where_more_requests_gain_less_than_two_percent() {
        for latency in [0.001, 0.02, 0.045, 0.4] {
            for (limit, expected) in [(100, 8), (700, 8), (1000, 16), (2000, 32), (3000, 64), (1_000_000, 256)] {
                // The rate before is seen as less while new requests are waited for: at most one step too far.
                let found = settle(256, latency, link(limit)).0;
                assert!(found == expected || found == 2 * expected && latency > 0.02, "{found} for {limit} after {latency}");
            }
        }
    }

    #[test]
    fn it_is_quick_where_gains_are_clear() {
        // Three doublings, a look or two each, then the long look that finds that nothing more is gained.
        let (_, time, share) = settle(256, 0.02, link(3000));
        assert!(time < 0.7 && share > 0.9, "{time} {share}");
    }

    #[test]
    fn it_goes_back_when_more_requests_make_it_slower() {
        let crowded = |n: usize| if n <= 16 { n as u64 * 1_000_000 } else { 10_000_000 };
        assert_eq!(settle(256, 0.0, crowded).0, 16);
        assert_eq!(settle(256, 0.0, |n| if n == 16 { 8_152_000 } else { n.min(8) as u64 * 1_000_000 }).0, 8);
        assert_eq!(settle(16, 0.0, |n| if n == 16 { 8_240_000 } else { n as u64 * 1_000_000 }).0, 16);
    }

    #[test]
    fn what_comes_in_lumps_is_not_taken_for_an_end() {
        // Parts that take a second each and are counted when they are done.
        let (mut knee, mut time) = (Knee::new(64), 0.0_f64);
        while !knee.is_done() && time < 100.0 {
            let before = time;
            time += LOOK;
            let lump = if time.floor() > before.floor() { knee.requests() as u64 * (16 << 20) } else { 0 };
            knee.on_look(LOOK, lump);
        }
        assert_eq!(knee.requests(), 64);
    }

    #[test]
    fn it_keeps_to_its_bound() {
        for most in [0, 1, 3, 4, 5, 100, 256] {
            assert_eq!(settle(most, 0.0, link(1_000_000)).0, most.max(1), "{most}");
        }
    }
}
