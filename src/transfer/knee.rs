//! How many requests at a time make a transfer as fast as it gets: starts with few, doubles while that pays, and stays one step back when
//! it does not. Pure: throughput comes as an argument. Invariant: it grows to its bound at most, and ends.

/// See the module.
#[derive(Clone, Debug)]
pub struct Knee {
    requests: usize,
    most: usize,
    /// Requests and bytes a second that were good last.
    good: Option<(usize, f64)>,
    is_done: bool,
}

/// Enough for a link of a home, and a sixteenth of what a data centre takes.
const FIRST: usize = 4;

/// More requests that gain less than this gain nothing.
const GAIN: f64 = 1.02;

impl Knee {
    /// Begins low.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { requests: FIRST.min(most), most, good: None, is_done: FIRST >= most }
    }

    /// How many requests at a time there should be.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Nothing will change any more.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// So much was moved a second with as many requests as there should be.
    pub fn on_sample(&mut self, bytes_per_second: f64) {
        if self.is_done {
            return;
        }
        match self.good {
            Some((before, good)) if bytes_per_second < good * GAIN => {
                self.requests = before;
                self.is_done = true;
            }
            _ => {
                self.good = Some((self.requests, bytes_per_second));
                self.is_done = self.requests == self.most;
                self.requests = (self.requests * 2).min(self.most);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it settles at when `n` requests move `rate(n)`, and how many samples that takes.
    fn settle(most: usize, rate: impl Fn(usize) -> f64) -> (usize, usize) {
        let mut knee = Knee::new(most);
        for samples in 0.. {
            if knee.is_done() {
                return (knee.requests(), samples);
            }
            knee.on_sample(rate(knee.requests()));
            assert!(knee.requests() <= most && samples < 100);
        }
        unreachable!("the samples do not end")
    }

    #[test]
    fn it_stops_where_more_requests_gain_less_than_two_percent() {
        // 90 MB/s a connection behind a link of so much.
        let link = |limit: f64| move |n: usize| (n as f64 * 90e6).min(limit);
        for (limit, expected) in [(100e6, 4), (300e6, 4), (700e6, 8), (1e9, 16), (3e9, 64), (1e12, 256)] {
            assert_eq!(settle(256, link(limit)).0, expected, "{limit}");
        }
    }

    #[test]
    fn it_goes_back_when_more_requests_make_it_slower() {
        let crowded = |n: usize| if n <= 16 { n as f64 } else { 10.0 };
        assert_eq!(settle(256, crowded), (16, 4));
        assert_eq!(settle(256, |n| if n == 8 { 4.0 * 1.019 } else { n as f64 }).0, 4);
        assert_eq!(settle(8, |n| if n == 8 { 4.0 * 1.03 } else { n as f64 }).0, 8);
    }

    #[test]
    fn it_keeps_to_its_bound() {
        for most in [0, 1, 3, 4, 5, 100, 256] {
            assert_eq!(settle(most, |n| n as f64).0, most.max(1), "{most}");
        }
    }
}
