//! Limits the concurrent requests to an endpoint and the share of retries among them: one controller for requests of every kind, updated
//! after every attempt. Invariants: simultaneous refusals count as one; at least [`LEAST`] requests may be in flight at any time; a waiting
//! request takes an added place at once.
//!
//! The limit follows AIMD as in TCP (RFC 5681): halved after a refusal, raised while there is none. tower's retry budget allows retries for
//! a fifth of the requests and ten a second.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tower::retry::budget::{Budget, TpsBudget};
use tracing::debug;

use crate::store::{Error, ErrorKind, Result};

/// Initial limit, above the concurrency of all readers and writers of a process.
const MOST: usize = 4096;

/// Lower bound of the limit, however overloaded the endpoint is.
const LEAST: usize = 4;

/// Refusals within this time belong to requests that were in flight together.
const ONE_EVENT: Duration = Duration::from_secs(1);

/// A round of attempts without a refusal raises the limit by one place in this many: from [`LEAST`] to 100 in 17 rounds.
const GROWTH: usize = 4;

/// The controller of one endpoint.
pub(super) struct Load {
    places: Semaphore,
    state: Mutex<State>,
    repeats: TpsBudget,
}

#[derive(Debug)]
struct State {
    allowed: usize,
    /// Places that were taken away while a request was in them: they are not given back.
    owed: usize,
    under_way: usize,
    /// Attempts that were not refused since `allowed` was changed.
    passed: usize,
    /// When places were last taken away.
    narrowed: Option<Instant>,
    has_answered: bool,
}

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.lock().fmt(f)
    }
}

/// A place at the endpoint; dropping it lets the next request go.
#[derive(Debug)]
pub(super) struct Place<'a> {
    load: &'a Load,
    permit: Option<SemaphorePermit<'a>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.load.state.lock();
        state.under_way -= 1;
        if state.owed > 0
            && let Some(permit) = self.permit.take()
        {
            state.owed -= 1;
            permit.forget();
        }
    }
}

impl Place<'_> {
    /// The endpoint has answered, or begun to.
    pub fn on_answer(&self) {
        self.load.state.lock().has_answered = true;
    }

    /// How the attempt ended. One that is dropped before tells nothing.
    pub fn on_end<T>(&self, result: &Result<T>) {
        if result.as_ref().map_or_else(|error| error.status.is_some() && !error.is_silence(), |_| true) {
            self.on_answer();
        }
        match result {
            Err(error) if is_overload(error) => self.load.narrow(Instant::now()),
            // Nothing arrived there, or the answer is not the endpoint's.
            Err(Error { kind: ErrorKind::Connect | ErrorKind::NoCredentials, .. }) => {}
            _ => self.load.on_pass(),
        }
    }
}

/// Whether the endpoint has more to do than it can: it says so, or nothing.
fn is_overload(error: &Error) -> bool {
    error.asks_to_slow_down() || error.kind == ErrorKind::Timeout
}

impl Load {
    pub fn new() -> Arc<Self> {
        let state = State { allowed: MOST, owed: 0, under_way: 0, passed: 0, narrowed: None, has_answered: false };
        Arc::new(Self { places: Semaphore::new(MOST), state: Mutex::new(state), repeats: TpsBudget::default() })
    }

    /// Requests that may be under way now.
    pub fn allowed(&self) -> usize {
        self.state.lock().allowed
    }

    /// Whether the endpoint has answered anything.
    pub fn has_answered(&self) -> bool {
        self.state.lock().has_answered
    }

    /// Waits for a place.
    pub async fn enter(&self) -> Place<'_> {
        let permit = self.places.acquire().await.expect("the places are never closed");
        self.state.lock().under_way += 1;
        Place { load: self, permit: Some(permit) }
    }

    /// A request is about to be sent for the first time.
    pub fn on_first(&self) {
        self.repeats.deposit();
    }

    /// Whether a failed request may be sent again soon; it counts as sent. If not, it is sent again after a longer delay.
    pub fn may_repeat(&self) -> bool {
        self.repeats.withdraw()
    }

    fn narrow(&self, now: Instant) {
        let mut state = self.state.lock();
        state.passed = 0;
        // So few requests do not overload an endpoint: a lower limit would not help.
        if state.under_way <= LEAST || state.narrowed.is_some_and(|at| now.duration_since(at) < ONE_EVENT) {
            return;
        }
        state.narrowed = Some(now);
        let allowed = (state.under_way / 2).max(LEAST).min(state.allowed);
        let taken = state.allowed - allowed;
        state.allowed = allowed;
        state.owed += taken - self.places.forget_permits(taken);
        debug!(allowed, "the endpoint is overloaded, fewer requests at a time");
    }

    fn on_pass(&self) {
        let mut state = self.state.lock();
        state.passed += 1;
        // An unused limit says nothing about a higher one.
        if state.passed < state.allowed || state.under_way < state.allowed / 2 || state.allowed >= MOST {
            return;
        }
        state.passed = 0;
        let added = (state.allowed / GROWTH).max(1).min(MOST - state.allowed);
        state.allowed += added;
        let paid = added.min(state.owed);
        state.owed -= paid;
        self.places.add_permits(added - paid);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures::FutureExt;
    use proptest::prelude::*;
    use tokio::task::unconstrained;

    use super::*;
    use crate::store::{Key, Op};

    fn ended(kind: ErrorKind) -> Result<()> {
        Err(Error::new(kind, Op::Get, &Key::from("k"), "as told"))
    }

    /// Lets in as many of `waiting` as there are places for.
    fn fill<'a>(load: &'a Load, inside: &mut VecDeque<Place<'a>>, waiting: &mut usize) {
        while *waiting > 0
            && let Some(place) = unconstrained(load.enter()).now_or_never()
        {
            *waiting -= 1;
            inside.push_back(place);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_halve_what_is_under_way_once_for_all_that_were_there_together() {
        let load = Load::new();
        let (mut inside, mut waiting) = (VecDeque::new(), 64);
        fill(&load, &mut inside, &mut waiting);
        inside.iter().for_each(|place| place.on_end(&ended(ErrorKind::Throttled)));
        assert_eq!(load.allowed(), 32);
        tokio::time::advance(ONE_EVENT).await;
        inside.truncate(32);
        inside[0].on_end(&ended(ErrorKind::Timeout));
        assert_eq!(load.allowed(), 16);
        for _ in 0..9 {
            tokio::time::advance(ONE_EVENT).await;
            inside[0].on_end(&ended(ErrorKind::Throttled));
            inside.truncate(load.allowed());
        }
        assert_eq!(load.allowed(), LEAST);
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_alone_leaves_the_places_to_others() {
        let load = Load::new();
        let place = load.enter().await;
        place.on_end(&ended(ErrorKind::Timeout));
        place.on_end(&ended(ErrorKind::Throttled));
        assert_eq!(load.allowed(), MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_from_the_endpoint_changes_nothing() {
        let load = Load::new();
        let place = load.enter().await;
        for kind in [ErrorKind::Connect, ErrorKind::NotFound, ErrorKind::Unavailable, ErrorKind::Corrupt] {
            place.on_end(&ended(kind));
        }
        assert_eq!(load.allowed(), MOST);
    }

    /// The former limit rose without admitting the waiting requests.
    #[tokio::test(start_paused = true)]
    async fn after_refusals_as_many_are_under_way_again_as_before() {
        let load = Load::new();
        let (mut inside, mut waiting) = (VecDeque::new(), 128);
        fill(&load, &mut inside, &mut waiting);
        for _ in 0..20 {
            tokio::time::advance(ONE_EVENT).await;
            inside[0].on_end(&ended(ErrorKind::Throttled));
            inside.truncate(load.allowed());
        }
        assert_eq!((load.allowed(), inside.len()), (LEAST, LEAST));
        let (mut rounds, mut waiting) = (0, 100_000);
        while inside.len() < 100 {
            rounds += 1;
            for _ in 0..inside.len() {
                let place = inside.pop_front().unwrap();
                place.on_end(&Result::Ok(()));
                drop(place);
                fill(&load, &mut inside, &mut waiting);
            }
            fill(&load, &mut inside, &mut waiting);
        }
        assert!(rounds <= 17, "{rounds} rounds");
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Ask(usize),
        End,
        Cancel,
        Refuse,
        Wait,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (1..40_usize).prop_map(Step::Ask),
            12 => Just(Step::End),
            2 => Just(Step::Cancel),
            2 => Just(Step::Refuse),
            1 => Just(Step::Wait),
        ];
        proptest::collection::vec(step, 1..400)
    }

    proptest! {
        /// No request is admitted above the limit, and no place stays free while a request waits.
        #[test]
        fn places_are_neither_lost_nor_made(steps in steps()) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let load = Load::new();
                let (mut inside, mut waiting) = (VecDeque::<Place<'_>>::new(), 0);
                for step in steps {
                    match step {
                        Step::Ask(more) => waiting += more,
                        Step::Wait => tokio::time::advance(ONE_EVENT).await,
                        Step::End => {
                            if let Some(place) = inside.pop_front() {
                                place.on_end(&Result::Ok(()));
                            }
                        }
                        Step::Cancel => drop(inside.pop_front()),
                        Step::Refuse => {
                            if let Some(place) = inside.pop_front() {
                                place.on_end(&ended(ErrorKind::Throttled));
                            }
                        }
                    }
                    let before = inside.len();
                    fill(&load, &mut inside, &mut waiting);
                    let allowed = load.allowed();
                    prop_assert!(inside.len() == before || inside.len() <= allowed);
                    prop_assert!(waiting == 0 || inside.len() >= allowed, "{} wait, {} of {allowed} are inside", waiting, inside.len());
                    prop_assert!(allowed >= LEAST);
                }
                Ok(())
            })?;
        }
    }
}
