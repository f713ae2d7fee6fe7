//! How many GETs are in flight, and who goes next: a share of the places is kept for readers that wait, and among
//! those that queue, they go first. (With one queue for both, a miss would wait behind hundreds of prefetches.) When the
//! store asks to slow down there are fewer places for a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// However much the store asks to slow down, so many GETs go on.
const LEAST: usize = 4;

/// Refusals within this time are for GETs that were in flight together.
const ONE_EVENT: Duration = Duration::from_secs(1);

/// Places for GETs.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Places when the store keeps up.
    most: usize,
    total: usize,
    /// GETs that ended since `total` was changed, or since one was refused.
    ended: usize,
    /// Answers that asked to slow down.
    throttled: u64,
    /// When the places were last halved.
    cut: Option<Instant>,
    in_flight: usize,
    tickets: u64,
    demand: VecDeque<Queued>,
    prefetch: VecDeque<Queued>,
}

impl State {
    /// The places that prefetches may fill.
    fn for_prefetch(&self) -> usize {
        self.total - (self.total / 4).min(self.total - 1)
    }
}

#[derive(Debug)]
struct Queued {
    ticket: u64,
    sender: oneshot::Sender<Place>,
}

/// A place in the queue, to be promoted by.
pub(super) type Ticket = u64;

/// Permission for one GET; dropping it lets the next one go.
#[derive(Debug)]
pub(super) struct Place(Arc<Gate>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.state.lock().in_flight -= 1;
        self.0.admit();
    }
}

/// The answer to a request for a place.
#[derive(Debug)]
pub(super) enum Entry {
    Now(Place),
    Later(Ticket, oneshot::Receiver<Place>),
}

impl Gate {
    /// A gate for `total` GETs, a quarter of them kept for readers that wait.
    pub fn new(total: usize) -> Arc<Self> {
        let most = total.max(1);
        let queues = (VecDeque::new(), VecDeque::new());
        let state =
            State { most, total: most, ended: 0, throttled: 0, cut: None, in_flight: 0, tickets: 0, demand: queues.0, prefetch: queues.1 };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// A GET has ended at `now`; `throttled` answers have asked to slow down so far. When there are new ones the places
    /// are halved; after that one is added for each round of GETs that were left in peace.
    pub fn on_end(self: &Arc<Self>, throttled: u64, now: Instant) {
        let mut state = self.state.lock();
        state.ended += 1;
        if throttled > state.throttled {
            (state.throttled, state.ended) = (throttled, 0);
            if state.cut.is_none_or(|cut| now.duration_since(cut) >= ONE_EVENT) {
                (state.total, state.cut) = ((state.total / 2).max(LEAST.min(state.most)), Some(now));
            }
        } else if state.ended >= state.total {
            (state.total, state.ended) = ((state.total + 1).min(state.most), 0);
            drop(state);
            self.admit();
        }
    }

    /// There are `most` places from now on. When they are fewer, GETs that are in flight go on, and none follows until they are.
    pub fn resize(self: &Arc<Self>, most: usize) {
        {
            let mut state = self.state.lock();
            state.most = most.max(1);
            (state.total, state.ended) = (state.most, 0);
        }
        self.admit();
    }

    /// Places when the store keeps up.
    pub fn most(&self) -> usize {
        self.state.lock().most
    }

    /// Whether a prefetch would go at once.
    pub fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.prefetch.is_empty() && state.demand.is_empty() && state.in_flight < state.for_prefetch()
    }

    /// GETs in flight now.
    #[cfg(test)]
    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight
    }

    /// Asks for a place.
    pub fn enter(self: &Arc<Self>, demand: bool) -> Entry {
        let mut state = self.state.lock();
        let bound = if demand { state.total } else { state.for_prefetch() };
        let queue_empty = if demand { state.demand.is_empty() } else { state.demand.is_empty() && state.prefetch.is_empty() };
        if queue_empty && state.in_flight < bound {
            state.in_flight += 1;
            return Entry::Now(Place(Arc::clone(self)));
        }
        state.tickets += 1;
        let ticket = state.tickets;
        let (sender, receiver) = oneshot::channel();
        let queue = if demand { &mut state.demand } else { &mut state.prefetch };
        queue.push_back(Queued { ticket, sender });
        Entry::Later(ticket, receiver)
    }

    /// A reader now waits for a queued prefetch: it goes with the demands.
    pub fn promote(self: &Arc<Self>, ticket: Ticket) {
        {
            let mut state = self.state.lock();
            let Some(index) = state.prefetch.iter().position(|queued| queued.ticket == ticket) else { return };
            let queued = state.prefetch.remove(index).expect("the index was just found");
            state.demand.push_back(queued);
        }
        self.admit();
    }

    /// Lets as many in as there are places for.
    fn admit(self: &Arc<Self>) {
        loop {
            let next = self.next(&mut self.state.lock());
            // Outside the lock: if the fetch went away in between, its place comes back through here.
            let Some((queued, place)) = next else { return };
            let _ = queued.sender.send(place);
        }
    }

    fn next(self: &Arc<Self>, state: &mut State) -> Option<(Queued, Place)> {
        // Fetches that were given up leave their tickets behind.
        state.demand.retain(|queued| !queued.sender.is_closed());
        let queued = if state.in_flight >= state.total {
            None
        } else if let Some(queued) = state.demand.pop_front() {
            Some(queued)
        } else if state.in_flight < state.for_prefetch() {
            std::iter::from_fn(|| state.prefetch.pop_front()).find(|queued| !queued.sender.is_closed())
        } else {
            None
        }?;
        state.in_flight += 1;
        Some((queued, Place(Arc::clone(self))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(entry: Entry) -> Place {
        match entry {
            Entry::Now(place) => place,
            Entry::Later(..) => panic!("had to queue"),
        }
    }

    fn later(entry: Entry) -> (Ticket, oneshot::Receiver<Place>) {
        match entry {
            Entry::Now(_) => panic!("went in"),
            Entry::Later(ticket, receiver) => (ticket, receiver),
        }
    }

    #[test]
    fn a_quarter_is_kept_for_readers_that_wait() {
        let gate = Gate::new(4);
        let mut places: Vec<_> = (0..3).map(|_| now(gate.enter(false))).collect();
        let (_, mut prefetch) = later(gate.enter(false));
        places.push(now(gate.enter(true)));
        let (_, mut demand) = later(gate.enter(true));
        places.pop();
        assert!(demand.try_recv().is_ok());
        assert!(prefetch.try_recv().is_err());
        drop(places);
        assert!(prefetch.try_recv().is_ok());
        assert_eq!(gate.in_flight(), 0);
    }

    #[test]
    fn a_prefetch_that_somebody_waits_for_goes_first() {
        let gate = Gate::new(1);
        let place = now(gate.enter(false));
        let (_, mut first) = later(gate.enter(false));
        let (ticket, mut second) = later(gate.enter(false));
        gate.promote(ticket);
        drop(place);
        assert!(second.try_recv().is_ok());
        assert!(first.try_recv().is_ok());
    }

    #[test]
    fn a_promoted_prefetch_uses_a_reserved_place_at_once() {
        let gate = Gate::new(4);
        let _places: Vec<_> = (0..3).map(|_| now(gate.enter(false))).collect();
        let (ticket, mut prefetch) = later(gate.enter(false));
        gate.promote(ticket);
        assert!(prefetch.try_recv().is_ok());
    }

    #[test]
    fn a_store_that_asks_to_slow_down_gets_half_and_then_one_more_a_round() {
        let (gate, mut now) = (Gate::new(64), Instant::now());
        let total = |gate: &Gate| gate.state.lock().total;
        // Those that were in flight are refused as well: that is one and the same event.
        (1..=64).for_each(|throttled| gate.on_end(throttled, now));
        assert_eq!(total(&gate), 32);
        now += ONE_EVENT;
        gate.on_end(65, now);
        assert_eq!(total(&gate), 16);
        (0..16).for_each(|_| gate.on_end(65, now));
        assert_eq!(total(&gate), 17);
        (0..64 * 64).for_each(|_| gate.on_end(65, now));
        assert_eq!(total(&gate), 64);
        for throttled in 66..100 {
            now += ONE_EVENT;
            gate.on_end(throttled, now);
        }
        assert_eq!(total(&gate), LEAST);
    }

    #[test]
    fn after_throttling_as_many_are_in_flight_again_as_before() {
        let (gate, mut at) = (Gate::new(64), Instant::now());
        let mut places: VecDeque<_> = (0..48).map(|_| now(gate.enter(false))).collect();
        let mut waiting: VecDeque<_> = (0..10_000).map(|_| later(gate.enter(false)).1).collect();
        // One GET after the other ends, and is followed by those that are let in.
        let mut end = |gate: &Arc<Gate>, throttled, at| {
            gate.on_end(throttled, at);
            drop(places.pop_front());
            while let Some(place) = waiting.front_mut().and_then(|place| place.try_recv().ok()) {
                waiting.pop_front();
                places.push_back(place);
            }
            places.len()
        };
        for throttled in 1..100 {
            at += ONE_EVENT;
            end(&gate, throttled, at);
        }
        assert_eq!(gate.state.lock().total, LEAST);
        let in_flight = (0..5000).map(|_| end(&gate, 99, at)).max();
        assert_eq!((gate.state.lock().total, in_flight), (64, Some(48)));
    }

    #[test]
    fn places_that_are_added_are_taken_at_once_and_those_taken_away_when_they_are_free() {
        let gate = Gate::new(2);
        let mut places = vec![now(gate.enter(true)), now(gate.enter(true))];
        let mut waiting: Vec<_> = (0..3).map(|_| later(gate.enter(true)).1).collect();
        gate.resize(4);
        places.extend(waiting.iter_mut().filter_map(|place| place.try_recv().ok()));
        assert_eq!((places.len(), gate.in_flight(), gate.most()), (4, 4, 4));
        gate.resize(1);
        places.truncate(1);
        assert!(waiting[2].try_recv().is_err(), "one is in flight, and that is all");
        places.clear();
        assert!(waiting[2].try_recv().is_ok());
    }

    #[test]
    fn fetches_that_were_given_up_leave_no_place_behind() {
        let gate = Gate::new(1);
        let place = now(gate.enter(true));
        for _ in 0..3 {
            drop(later(gate.enter(false)));
        }
        let (_, mut last) = later(gate.enter(false));
        drop(place);
        drop(last.try_recv().unwrap());
        assert_eq!(gate.in_flight(), 0);
        now(gate.enter(true));
    }
}
