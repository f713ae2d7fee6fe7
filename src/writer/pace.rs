//! How many parts of one file are sent at once when nobody has said: more, as long as they do not slow each other down. Pure: no clock.
//!
//! A connection to a cloud has a rate of its own, so what one writer gets is a question of how many there are; where the path or the
//! processors are the limit, more of them only take memory. There parts take longer the more there are, and what the path holds is its rate
//! times what a part takes when there are few. How long a part takes differs from one to the next as well, so it is turns that are
//! compared. Invariant: there are fewer than is usual only where parts arrive sooner than they are written.

use std::time::Duration;

use tokio::time::Instant;

/// So many are sent at once as long as nothing speaks for more.
const FIRST: usize = 16;

/// And so many to a store that is near: who has written one more finds that the first has arrived.
const FEW: usize = 8;

/// Parts that take so many times as long as in the best turn are on a full path.
const CROWDED: f64 = 1.5;

/// And so are those that take so many times as long as the fastest of the first ones, which were few.
const SHARED: f64 = 4.0;

/// As many times what a full path holds, so that it is seen when it holds more.
const HEADROOM: f64 = 1.25;

/// When this part of what is on its way has left before anything has arrived, the way is not narrow but long.
const LEFT: u64 = 4;

/// The best of so many turns is what the network takes: who shares processors and path with others is slower now and then.
const TURNS: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    at_once: usize,
    /// How many places there are.
    places: usize,
    /// None: there is a number.
    most: Option<usize>,
    /// What parts take.
    times: Option<Times>,
    /// Whether a part had arrived when one had to wait first.
    is_near: Option<bool>,
    /// Whether the path was seen to be full.
    is_full: bool,
    /// Bytes a second of the last turns.
    rates: [f64; TURNS],
    turns: usize,
    turn: Option<Turn>,
}

/// Seconds, of parts that are as long as the last one.
#[derive(Clone, Copy, Debug)]
struct Times {
    len: usize,
    /// The least of the first turn.
    fastest: f64,
    /// The mean of the best turn, once there was one.
    usual: Option<f64>,
}

/// As many parts as are sent at once, one after another.
#[derive(Debug)]
struct Turn {
    began: Instant,
    /// Bytes that the process had sent by then.
    sent: u64,
    parts: usize,
    bytes: usize,
    /// Seconds that they took, added up.
    took: f64,
    /// Whether who writes had to wait.
    is_held_back: bool,
    /// Whether other files were being sent, too.
    has_others: bool,
}

impl Turn {
    fn new(began: Instant, sent: u64) -> Self {
        Self { began, sent, parts: 0, bytes: 0, took: 0.0, is_held_back: false, has_others: false }
    }
}

impl Pace {
    /// `fixed` parts, or as many as turn out to be of use, up to `most`.
    pub fn new(fixed: Option<usize>, most: usize) -> Self {
        let at_once = fixed.unwrap_or(FEW).max(1);
        let most = if fixed.is_none() { Some(most.max(FIRST)) } else { None };
        Self { at_once, places: at_once, most, times: None, is_near: None, is_full: false, rates: [0.0; TURNS], turns: 0, turn: None }
    }

    /// How many parts may be sent at once.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// So many places are to be added.
    pub fn missing_places(&mut self) -> usize {
        let missing = self.at_once.saturating_sub(self.places);
        self.places += missing;
        missing
    }

    /// Whether the place of a part that has ended is to go.
    pub fn drops_place(&mut self) -> bool {
        let is_surplus = self.places > self.at_once;
        self.places -= usize::from(is_surplus);
        is_surplus
    }

    /// A part begins to be sent, and the process has `sent` so many bytes so far.
    pub fn on_begin(&mut self, now: Instant, sent: u64) {
        self.turn.get_or_insert_with(|| Turn::new(now, sent));
    }

    /// Who writes parts of `len` bytes has to wait for one to arrive, while parts of other files are being sent or not. The process has `sent` so
    /// many bytes so far.
    pub fn on_held_back(&mut self, len: u64, sent: u64, has_others: bool) {
        let Some(turn) = &mut self.turn else { return };
        turn.is_held_back = true;
        turn.has_others |= has_others;
        let is_first = self.times.is_none() && self.at_once == FIRST && !turn.has_others;
        if is_first && sent.saturating_sub(turn.sent) >= FIRST as u64 * len / LEFT {
            self.at_once = self.most.map_or(FIRST, |most| most.min(2 * FIRST));
        }
    }

    /// A part has left that has to wait for a place.
    pub fn on_waiting(&mut self) {
        if self.most.is_some() && self.is_near.is_none() {
            self.is_near = Some(self.times.is_some());
            if self.times.is_none() {
                self.at_once = FIRST;
            }
        }
    }

    /// What is sent from now on is all at hand: there is nobody who waits, and nothing to be found out.
    pub fn on_staged(&mut self) {
        if self.most.is_some() {
            self.at_once = self.at_once.max(FIRST);
        }
    }

    /// Nothing is on its way any more: what comes next is no part of this turn.
    pub fn on_idle(&mut self) {
        self.turn = None;
    }

    /// A part of `len` bytes has arrived that `took` so long, while parts of other files were being sent or not. The process has `sent` so many
    /// bytes so far.
    pub fn on_sent(&mut self, len: usize, took: Duration, (now, sent): (Instant, u64), has_others: bool) {
        let (Some(most), Some(turn)) = (self.most, &mut self.turn) else { return };
        let took = took.as_secs_f64();
        turn.parts += 1;
        turn.bytes += len;
        turn.took += took;
        turn.has_others |= has_others;
        let mut times = self.times.filter(|times| times.len == len).unwrap_or(Times { len, fastest: took, usual: None });
        if times.usual.is_none() {
            times.fastest = times.fastest.min(took);
        }
        self.times = Some(times);
        if turn.parts < self.at_once {
            return;
        }
        let rate = turn.bytes as f64 / now.duration_since(turn.began).as_secs_f64();
        let mean = turn.took / turn.parts as f64;
        let (is_held_back, has_others) = (turn.is_held_back, turn.has_others);
        self.turn = Some(Turn::new(now, sent));
        let usual = times.usual.map_or(mean, |usual| usual.min(mean));
        self.times = Some(Times { usual: Some(usual), ..times });
        if has_others {
            // Each file gets its own, and all together no more than there may be.
            (self.at_once, self.rates) = (FIRST, [0.0; TURNS]);
        } else if is_held_back {
            self.rates[self.turns % TURNS] = rate;
            self.turns += 1;
            let is_shared = mean > times.fastest * SHARED;
            self.is_full |= is_shared || mean > usual * CROWDED;
            let held = self.rates.iter().copied().fold(0.0, f64::max) * if is_shared { times.fastest } else { usual } / len as f64;
            let wanted = if self.is_full { held * HEADROOM } else { self.at_once as f64 * 2.0 };
            let least = if is_shared && self.is_near == Some(true) { FEW } else { FIRST };
            self.at_once = (least..most).find(|&n| n as f64 >= wanted).unwrap_or(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 8 << 20;

    /// Turns over a path where `n` parts at once take `took(n)` seconds: how many were sent at once in each.
    fn turns(pace: &mut Pace, count: usize, took: impl Fn(usize) -> f64) -> Vec<usize> {
        let mut now = Instant::now();
        // The first one leaves alone, and arrives before the others when it takes less time than they do to be written.
        pace.on_begin(now, 0);
        if took(1) > 0.02 {
            pace.on_waiting();
        }
        pace.on_sent(PART, Duration::from_secs_f64(took(1)), (now, 0), false);
        pace.on_waiting();
        let turn = |_| {
            let at_once = pace.at_once();
            pace.on_held_back(PART as u64, 0, false);
            let took = Duration::from_secs_f64(took(at_once));
            now += took;
            let begun = pace.turn.as_ref().map_or(0, |turn| turn.parts);
            (begun..at_once).for_each(|_| pace.on_sent(PART, took, (now, 0), false));
            at_once
        };
        (0..count).map(turn).collect()
    }

    fn auto() -> Pace {
        Pace::new(None, 64)
    }

    #[test]
    fn connections_with_a_rate_of_their_own_become_as_many_as_may_be() {
        assert_eq!(turns(&mut auto(), 5, |_| 0.113), [16, 32, 64, 64, 64]);
    }

    #[test]
    fn where_the_path_is_full_there_are_a_few_more_than_it_holds() {
        assert_eq!(turns(&mut auto(), 40, |n| n as f64 * 0.006), [8; 40]);
        assert_eq!(turns(&mut auto(), 6, |n| 0.125 * (n as f64 / 20.0).max(1.0)), [16, 32, 25, 25, 25, 25]);
        // Full from the first part on.
        assert_eq!(turns(&mut auto(), 6, |n| n.max(16) as f64), [16, 32, 20, 20, 20, 20]);
    }

    #[test]
    fn when_much_has_left_and_nothing_arrived_there_are_more_at_once() {
        for (sent, has_others, expected) in [(33 << 20, false, 32), (31 << 20, false, 16), (33 << 20, true, 16)] {
            let mut pace = auto();
            pace.on_begin(Instant::now(), 5);
            pace.on_waiting();
            assert_eq!(pace.at_once(), 16);
            pace.on_held_back(PART as u64, 5 + sent, has_others);
            assert_eq!(pace.at_once(), expected);
        }
        let mut pace = auto();
        let now = Instant::now();
        pace.on_begin(now, 0);
        pace.on_sent(PART, Duration::from_millis(2), (now, 0), false);
        pace.on_waiting();
        pace.on_held_back(PART as u64, 1 << 30, false);
        assert_eq!(pace.at_once(), 8);
        pace.on_staged();
        assert_eq!(pace.at_once(), 16);
    }

    #[test]
    fn parts_that_differ_do_not_look_like_a_full_path() {
        let mut pace = auto();
        let mut now = Instant::now();
        pace.on_begin(now, 0);
        for _ in 0..8 {
            pace.on_held_back(PART as u64, 0, false);
            now += Duration::from_millis(100);
            // From 60 to 240 ms.
            (0..pace.at_once() as u64).for_each(|n| pace.on_sent(PART, Duration::from_millis(60 + n * 36 % 181), (now, 0), false));
        }
        assert_eq!(pace.at_once(), 64);
    }

    #[test]
    fn three_bad_turns_change_nothing_and_a_fourth_does() {
        let mut pace = auto();
        turns(&mut pace, 4, |_| 0.1);
        pace.on_idle();
        assert_eq!(turns(&mut pace, 3, |_| 1.0), [64; 3]);
        pace.on_idle();
        assert_eq!(turns(&mut pace, 3, |_| 1.0), [64, 16, 16]);
    }

    #[test]
    fn a_writer_who_does_not_wait_and_files_beside_others_get_no_more() {
        let mut pace = auto();
        let now = Instant::now();
        pace.on_begin(now, 0);
        for n in 1..=64 {
            pace.on_sent(PART, Duration::from_millis(100), (now + Duration::from_millis(10 * n), 0), false);
        }
        assert_eq!(pace.at_once(), 8);
        pace.on_idle();
        assert_eq!(turns(&mut pace, 4, |_| 0.1), [8, 16, 32, 64]);
        assert_eq!((pace.missing_places(), pace.missing_places(), pace.drops_place()), (56, 0, false));
        for n in 1..=64 {
            pace.on_sent(PART, Duration::from_millis(100), (now + Duration::from_secs(100 + n), 0), n == 7);
        }
        assert_eq!((pace.at_once(), (0..100).filter(|_| pace.drops_place()).count()), (16, 48));
    }

    #[test]
    fn a_number_stays() {
        assert_eq!(turns(&mut Pace::new(Some(5), 64), 20, |_| 0.1), [5; 20]);
        assert_eq!(turns(&mut Pace::new(Some(0), 64), 3, |_| 0.1), [1; 3]);
        let mut pace = Pace::new(Some(5), 64);
        pace.on_staged();
        assert_eq!(pace.at_once(), 5);
    }
}
