//! By how much a window has to be wider than rate and least time of a GET ask for. Pure: no clock.
//!
//! Where every GET takes as long as the fastest, a little more than the product is enough. Stores are not like that: the first byte comes after 15 ms or
//! after 100, and because a reader takes the bytes in order, the slowest GET of a window holds it back. A window of the product alone is then what
//! limits the rate, the product of that lower rate asks for a still narrower one, and so on. From outside, a rate that the window limits
//! and one that reader, machine or path limit look the same, until the window is changed: so it is, now and then, and what all readers
//! together get is compared.

/// The least factor: room to grow, and for the GET in a few hundred that is asked for a second time. With 1.25 a store of which 0.5 % of the GETs take a
/// second gave two thirds of what it gives with 1.5.
pub(super) const LEAN: f64 = 1.5;

/// The most: the slowest of a hundred GETs takes seldom more than ten times as long as the fastest.
pub(super) const MOST: f64 = 16.0;

/// A bound that changed by less says nothing.
const TELLING: f64 = 0.15;

/// Of what a narrower window would cost if it were the limit, and of what a wider one would bring.
const LOST: f64 = 0.5;
const GAINED: f64 = 0.4;

/// A step to a narrower window and to a wider one.
const NARROWER: f64 = 0.8;
const WIDER: f64 = 1.4;

/// Turns without a change until a narrower window is tried, and a wider one. Each is doubled when it was tried in vain.
const NARROWER_AFTER: u32 = 4;
const WIDER_AFTER: u32 = 12;
const AT_MOST_AFTER: u32 = 128;

/// So many turns that were worse are no accident.
const WORSE: u32 = 3;

/// So few chunks take so little memory that more of them can be tried often.
const CHEAP: u32 = 12;
const CHEAP_AFTER: u32 = 16;

/// What one reader knows.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    /// A window, and what all readers got with it.
    seen: Option<(u32, f64)>,
    /// The same of the best turn since it was last gone back to, and how many turns with a narrower window were worse one after another.
    best: (u32, f64),
    worse: u32,
    narrower: Patience,
    wider: Patience,
}

#[derive(Clone, Debug)]
struct Patience {
    left: u32,
    pause: u32,
    least: u32,
}

impl Patience {
    fn new(least: u32) -> Self {
        Self { left: least, pause: least, least }
    }

    /// Whether it is time to try.
    fn is_over(&mut self) -> bool {
        let over = self.left == 0;
        self.left = if over { self.pause } else { self.left - 1 };
        over
    }

    fn on_vain(&mut self, most: u32) {
        self.pause = (self.pause * 2).min(most);
        self.left = self.pause;
    }

    fn on_success(&mut self) {
        (self.left, self.pause) = (0, self.least);
    }
}

impl Climb {
    pub fn new() -> Self {
        Self { seen: None, best: (0, 0.0), worse: 0, narrower: Patience::new(NARROWER_AFTER), wider: Patience::new(WIDER_AFTER) }
    }

    /// In a turn with a window of `bound` all `readers` together got `rate` bytes a second. What the factor of all of them, `stretch` now, is to be
    /// multiplied by.
    pub fn on_turn(&mut self, bound: u32, rate: f64, readers: usize, stretch: f64) -> f64 {
        if let Some(factor) = self.back(bound, rate, readers) {
            return factor;
        }
        let Some((from, before)) = self.seen else {
            self.seen = Some((bound, rate));
            return 1.0;
        };
        let ratio = f64::from(bound) / f64::from(from.max(1));
        let expected = expected(ratio, readers);
        let came = rate / before.max(1.0) - 1.0;
        if ratio <= 1.0 - TELLING {
            self.seen = Some((bound, rate));
            if came < expected * LOST {
                self.narrower.on_vain(AT_MOST_AFTER);
                self.wider.on_success();
                // To where it was. What limited then may have been the window, too, which is tried next.
                return 1.0 / ratio;
            }
            self.narrower.on_success();
            return 1.0;
        }
        if ratio >= 1.0 + TELLING {
            if came < expected * GAINED {
                self.wider.on_vain(if from <= CHEAP { CHEAP_AFTER } else { AT_MOST_AFTER });
                // What the way back brings says nothing new.
                self.seen = None;
                return 1.0 / ratio;
            }
            self.seen = Some((bound, rate));
            self.wider.on_success();
            return 1.0;
        }
        if bound == from {
            self.seen = Some((bound, f64::midpoint(before, rate)));
        }
        if stretch > LEAN && self.narrower.is_over() {
            return NARROWER;
        }
        match self.wider.is_over() {
            true if bound <= CHEAP => WIDER * WIDER,
            true => WIDER,
            false => 1.0,
        }
    }

    /// The way back to the best turn, when it went down little by little.
    fn back(&mut self, bound: u32, rate: f64, readers: usize) -> Option<f64> {
        let (wide, most) = self.best;
        let ratio = f64::from(bound) / f64::from(wide.max(1));
        if rate > most {
            (self.best, self.worse) = ((bound, rate), 0);
            return None;
        }
        let is_worse = ratio <= 1.0 - TELLING && rate / most - 1.0 < expected(ratio, readers) * LOST;
        self.worse = if is_worse { self.worse + 1 } else { 0 };
        if self.worse < WORSE {
            return None;
        }
        // If it is the reader who is slower now, this is not tried again.
        (self.best, self.worse, self.seen) = ((bound, rate), 0, None);
        self.narrower.on_vain(AT_MOST_AFTER);
        self.wider.on_success();
        Some(1.0 / ratio)
    }
}

/// What a window that is `ratio` times as wide brings of what all `readers` get, if windows are the limit and this one is one of theirs.
fn expected(ratio: f64, readers: usize) -> f64 {
    (ratio - 1.0) / readers.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of one reader who gets `rate(bound)`; a window of `product` chunks at the factor 1.
    fn climb(climb: &mut Climb, stretch: &mut f64, product: f64, rate: impl Fn(u32) -> f64, turns: usize) -> Vec<u32> {
        let turn = |_| {
            let bound = (1..1000).find(|&bound| f64::from(bound) >= product * *stretch).expect("products are small");
            *stretch = (*stretch * climb.on_turn(bound, rate(bound), 1, *stretch)).clamp(LEAN, MOST);
            bound
        };
        (0..turns).map(turn).collect()
    }

    #[test]
    fn a_wider_window_that_brings_nothing_is_given_up_at_once_and_tried_less_and_less() {
        let (mut state, mut stretch) = (Climb::new(), LEAN);
        let bounds = climb(&mut state, &mut stretch, 40.0, |_| 1e9, 400);
        let tries: Vec<usize> = (1..400).filter(|&turn| bounds[turn] > bounds[turn - 1]).collect();
        assert_eq!((tries.len(), bounds.iter().max(), stretch), (5, Some(&84), LEAN));
        assert!(tries.iter().all(|&turn| bounds[turn + 1] == 60));
        assert!(tries.windows(3).all(|three| three[2] - three[1] > three[1] - three[0]));
    }

    #[test]
    fn a_wider_window_that_brings_more_stays() {
        let (mut state, mut stretch) = (Climb::new(), LEAN);
        let bounds = climb(&mut state, &mut stretch, 20.0, |bound| f64::from(bound.min(90)), 200);
        assert!(bounds[150..].iter().filter(|&&bound| bound >= 75).count() >= 45, "{:?}", &bounds[150..]);
    }

    #[test]
    fn a_narrower_window_that_costs_is_given_up() {
        let (mut state, mut stretch) = (Climb::new(), 4.0);
        let bounds = climb(&mut state, &mut stretch, 20.0, f64::from, 20);
        assert!(bounds.contains(&64) && bounds[10..].iter().all(|&bound| bound >= 64), "{bounds:?}");
    }

    #[test]
    fn what_goes_down_step_by_step_goes_back_to_where_it_was() {
        let mut state = Climb::new();
        let factors: Vec<f64> = [100, 90, 81, 73, 66].map(|bound| state.on_turn(bound, f64::from(bound), 1, 2.0)).into();
        assert!(factors.iter().any(|&factor| (1.2..1.6).contains(&factor)), "{factors:?}");
        // One of many readers says little.
        let mut state = Climb::new();
        assert_eq!(state.on_turn(100, 1e9, 16, 2.0), 1.0);
        assert_eq!(state.on_turn(50, 0.99e9, 16, 2.0), 1.0);
    }
}
