//! How many parts of one file are sent at once when nobody has said: a few more each time, while that makes the file faster. Pure: no clock.
//!
//! A connection to a cloud has a rate of its own, so what one writer gets is a question of how many there are; where the path or the
//! processors are the limit, more of them only take memory. The two are told apart by the parts themselves: on a full path they slow
//! each other down, and take longer than the first ones, which were few, did. Invariant: nobody waits longer than with as many as there
//! are in any case.

use std::time::Duration;

use tokio::time::Instant;

/// So many are sent at once in any case.
pub(super) const FIRST: usize = 16;

/// Of what a step would bring if each part took as long as before, so much is enough to stay.
const GAINED: f64 = 0.4;

/// Parts that take so many times as long as the fastest one are on a full path.
const CROWDED: f64 = 2.0;

/// So many turns pass until a step that brought nothing is tried again, and twice as many each time.
const PATIENCE: u32 = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    at_once: usize,
    /// How many places there are.
    places: usize,
    /// None: there is a number.
    most: Option<usize>,
    /// Of all parts that are as long as the last one.
    fastest: Option<(usize, Duration)>,
    /// What an earlier turn had, and got a second, while this one has more.
    before: Option<(usize, f64)>,
    /// The parts that are more are only beginning to be sent.
    is_settling: bool,
    patience: u32,
    /// Turns to wait.
    rest: u32,
    turn: Option<Turn>,
}

/// As many parts as are sent at once, one after another.
#[derive(Debug)]
struct Turn {
    began: Instant,
    parts: usize,
    bytes: usize,
    /// What they took, added up.
    took: Duration,
    /// Whether who writes had to wait.
    is_held_back: bool,
    /// Whether other files were being sent, too.
    has_others: bool,
}

impl Turn {
    fn new(began: Instant) -> Self {
        Self { began, parts: 0, bytes: 0, took: Duration::ZERO, is_held_back: false, has_others: false }
    }
}

impl Pace {
    /// `fixed` parts, or as many as turn out to be of use, up to `most`.
    pub fn new(fixed: Option<usize>, most: usize) -> Self {
        let at_once = fixed.unwrap_or(FIRST).max(1);
        let most = if fixed.is_none() { Some(most) } else { None };
        Self { at_once, places: at_once, most, fastest: None, before: None, is_settling: false, patience: PATIENCE, rest: 0, turn: None }
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

    /// A part begins to be sent.
    pub fn on_begin(&mut self, now: Instant) {
        self.turn.get_or_insert_with(|| Turn::new(now));
    }

    /// Who writes has to wait for a part to arrive.
    pub fn on_held_back(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.is_held_back = true;
        }
    }

    /// Nothing is on its way any more: what comes next is no part of this turn.
    pub fn on_idle(&mut self) {
        self.turn = None;
    }

    /// A part of `len` bytes has arrived that `took` so long, while parts of other files were being sent or not.
    pub fn on_sent(&mut self, len: usize, took: Duration, now: Instant, has_others: bool) {
        let (Some(most), Some(turn)) = (self.most, &mut self.turn) else { return };
        turn.parts += 1;
        turn.bytes += len;
        turn.took += took;
        turn.has_others |= has_others;
        let fastest = self.fastest.filter(|&(of, _)| of == len).map_or(took, |(_, fastest)| fastest.min(took));
        self.fastest = Some((len, fastest));
        if turn.parts < self.at_once {
            return;
        }
        let rate = turn.bytes as f64 / now.duration_since(turn.began).as_secs_f64();
        let is_crowded = turn.took.as_secs_f64() / turn.parts as f64 > CROWDED * fastest.as_secs_f64();
        let (is_held_back, has_others) = (turn.is_held_back, turn.has_others);
        self.turn = Some(Turn::new(now));
        self.at_once = if has_others {
            // Each file gets its own, and all together no more than there may be.
            (self.before, self.is_settling) = (None, false);
            FIRST
        } else {
            self.step(rate, is_held_back, is_crowded).min(most.max(FIRST))
        };
    }

    /// How many there should be after a turn that had `rate` bytes a second.
    fn step(&mut self, rate: f64, is_held_back: bool, is_crowded: bool) -> usize {
        if std::mem::take(&mut self.is_settling) {
            return self.at_once;
        }
        if let Some((fewer, less)) = self.before.take() {
            let expected = self.at_once as f64 / fewer as f64 - 1.0;
            if rate / less - 1.0 < expected * GAINED {
                self.rest = self.patience;
                self.patience = self.patience.saturating_mul(2);
                return fewer;
            }
            self.patience = PATIENCE;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return self.at_once;
        }
        if !is_held_back || is_crowded {
            return self.at_once;
        }
        (self.before, self.is_settling) = (Some((self.at_once, rate)), true);
        self.at_once + self.at_once.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 8 << 20;

    /// Turns over a path where `n` parts at once take `took(n)` seconds: how many were sent at once in each.
    fn turns(pace: &mut Pace, count: usize, took: impl Fn(usize) -> f64) -> Vec<usize> {
        let mut now = Instant::now();
        // The first one leaves alone.
        pace.on_begin(now);
        pace.on_sent(PART, Duration::from_secs_f64(took(1)), now, false);
        let turn = |_| {
            let at_once = pace.at_once();
            pace.on_held_back();
            let took = Duration::from_secs_f64(took(at_once));
            now += took;
            let begun = pace.turn.as_ref().map_or(0, |turn| turn.parts);
            (begun..at_once).for_each(|_| pace.on_sent(PART, took, now, false));
            at_once
        };
        (0..count).map(turn).collect()
    }

    fn auto() -> Pace {
        Pace::new(None, 64)
    }

    #[test]
    fn connections_with_a_rate_of_their_own_become_as_many_as_may_be() {
        assert_eq!(turns(&mut auto(), 10, |_| 0.113), [16, 24, 24, 36, 36, 54, 54, 64, 64, 64]);
    }

    #[test]
    fn on_a_full_path_nothing_is_tried() {
        assert_eq!(turns(&mut auto(), 40, |n| n as f64 * 0.006), [16; 40]);
    }

    #[test]
    fn what_brings_nothing_is_taken_back_and_tried_less_and_less() {
        // The path is full with 16, and parts are not twice as slow with half as many again.
        let seen = turns(&mut auto(), 60, |n| 0.1 * (n as f64 / 16.0).max(1.0));
        let tries: Vec<usize> = (0..60).filter(|&turn| seen[turn] > FIRST).collect();
        assert_eq!(tries, [1, 2, 12, 13, 31, 32]);
        assert!(seen.iter().all(|&at_once| at_once == 16 || at_once == 24), "{seen:?}");
    }

    #[test]
    fn a_writer_who_does_not_wait_and_files_beside_others_get_no_more() {
        let mut pace = auto();
        let now = Instant::now();
        pace.on_begin(now);
        for n in 1..=64 {
            pace.on_sent(PART, Duration::from_millis(100), now + Duration::from_millis(10 * n), false);
        }
        assert_eq!(pace.at_once(), 16);
        pace.on_idle();
        assert_eq!(turns(&mut pace, 8, |_| 0.1)[6..], [54, 64]);
        assert_eq!((pace.missing_places(), pace.missing_places(), pace.drops_place()), (48, 0, false));
        for n in 1..=64 {
            pace.on_sent(PART, Duration::from_millis(100), now + Duration::from_secs(100 + n), n == 7);
        }
        assert_eq!((pace.at_once(), (0..100).filter(|_| pace.drops_place()).count()), (16, 48));
    }

    #[test]
    fn a_number_stays() {
        assert_eq!(turns(&mut Pace::new(Some(5), 64), 20, |_| 0.1), [5; 20]);
        assert_eq!(turns(&mut Pace::new(Some(0), 64), 3, |_| 0.1), [1; 3]);
    }
}
