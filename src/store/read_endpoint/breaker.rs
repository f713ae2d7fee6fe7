//! When to leave a server alone that fails. Pure: it is told what happened and when, and sends nothing. Invariant: while it fails at most
//! one request a pause is sent to see whether it is back, and one success brings all of them back.

use std::time::Duration;

use tokio::time::Instant;

/// One failure says something of one request; so many in a row, with no success between them, say it of the server.
const IN_A_ROW: u32 = 5;

/// The first pause: a restart takes a few seconds.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Pauses double up to this: a server that comes back is noticed within it.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Counts failures.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Grows whenever requests before and after are to be told apart.
    round: u64,
    failures: u32,
    pause: Option<Pause>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

/// The permission to send one request, to be given back with its result. One that is not given back, because nobody waits for the
/// result any more, does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(u64);

impl Breaker {
    /// Whether a request may be sent now.
    pub fn turn(&mut self, now: Instant) -> Option<Turn> {
        if let Some(pause) = &mut self.pause {
            if now < pause.until {
                return None;
            }
            // This one goes to see; the others wait for its result, or for the next pause to end.
            pause.until = now + pause.length;
            self.round += 1;
        }
        Some(Turn(self.round))
    }

    /// True when this ends a pause.
    pub fn on_success(&mut self, turn: Turn) -> bool {
        if turn.0 != self.round {
            return false;
        }
        self.failures = 0;
        self.pause.take().is_some()
    }

    /// The pause that this begins. What was sent before the last pause began says nothing new.
    pub fn on_failure(&mut self, turn: Turn, now: Instant) -> Option<Duration> {
        if turn.0 != self.round {
            return None;
        }
        self.failures += 1;
        let length = match self.pause {
            Some(pause) => (pause.length * 2).min(LONGEST_PAUSE),
            None if self.failures < IN_A_ROW => return None,
            None => FIRST_PAUSE,
        };
        self.pause = Some(Pause { until: now + length, length });
        self.round += 1;
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// One that has failed until the first pause began, and when that was.
    fn broken() -> (Breaker, Instant) {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        let pauses: Vec<_> = (0..IN_A_ROW).map(|_| breaker.turn(now).and_then(|turn| breaker.on_failure(turn, now))).collect();
        assert_eq!(pauses, [None, None, None, None, Some(FIRST_PAUSE)]);
        (breaker, now)
    }

    #[test]
    fn failures_with_successes_between_them_are_no_row() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for n in 0..100 {
            let turn = breaker.turn(now).expect("never broken");
            if n % IN_A_ROW == 0 {
                assert!(!breaker.on_success(turn));
            } else {
                assert_eq!(breaker.on_failure(turn, now), None);
            }
        }
    }

    #[test]
    fn after_each_pause_one_goes_to_see_and_pauses_grow() {
        let (mut breaker, mut now) = broken();
        for seconds in [5, 10, 20, 40, 60, 60] {
            let pause = SECOND * seconds;
            assert_eq!(breaker.turn(now + pause - Duration::from_millis(1)), None);
            now += pause;
            let turn = breaker.turn(now).expect("the pause is over");
            assert_eq!(breaker.turn(now), None, "only one goes");
            assert_eq!(breaker.on_failure(turn, now), Some((pause * 2).min(LONGEST_PAUSE)));
        }
    }

    #[test]
    fn one_success_brings_all_back_and_forgets_the_failures() {
        let (mut breaker, now) = broken();
        let turn = breaker.turn(now + FIRST_PAUSE).expect("the pause is over");
        assert!(breaker.on_success(turn));
        let turns: Vec<_> = (1..IN_A_ROW).map(|_| breaker.turn(now + FIRST_PAUSE).expect("it is back")).collect();
        assert!(turns.into_iter().all(|turn| breaker.on_failure(turn, now + FIRST_PAUSE).is_none()), "counted from nothing");
    }

    #[test]
    fn results_of_requests_from_before_the_pause_change_nothing() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        let turns: Vec<_> = (0..64).map(|_| breaker.turn(now).expect("not broken yet")).collect();
        let pauses = turns.iter().filter_map(|&turn| breaker.on_failure(turn, now)).count();
        assert_eq!(pauses, 1, "64 at a time are one outage");
        assert!(!breaker.on_success(turns[0]));
        assert_eq!(breaker.turn(now), None);
    }

    #[test]
    fn who_went_to_see_and_never_came_back_is_followed_by_another() {
        let (mut breaker, now) = broken();
        assert!(breaker.turn(now + FIRST_PAUSE).is_some());
        assert_eq!(breaker.turn(now + FIRST_PAUSE * 2 - SECOND), None);
        assert!(breaker.turn(now + FIRST_PAUSE * 2).is_some());
    }
}
