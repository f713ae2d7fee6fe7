//! How many GETs are in flight, and who goes next: a share of the places is kept for readers that wait, and among
//! those that queue, they go first. (With one queue for both, a miss would wait behind hundreds of prefetches.) After an
//! overload [`ObjectStore::most_requests`] lowers the number of places, so that an admitted GET does not queue in the store.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::store::ObjectStore;

/// Places for GETs.
#[derive(Debug)]
pub(super) struct Gate {
    store: Arc<dyn ObjectStore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Places when the endpoint keeps up.
    most: usize,
    in_flight: usize,
    tickets: u64,
    demand: VecDeque<Queued>,
    prefetch: VecDeque<Queued>,
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
    /// A gate for `most` GETs of `store`, a quarter of them kept for readers that wait.
    pub fn new(store: Arc<dyn ObjectStore>, most: usize) -> Arc<Self> {
        let state = State { most: most.max(1), in_flight: 0, tickets: 0, demand: VecDeque::new(), prefetch: VecDeque::new() };
        Arc::new(Self { store, state: Mutex::new(state) })
    }

    /// Places now, and those of them that prefetches may fill.
    fn places(&self, most: usize) -> (usize, usize) {
        let total = most.min(self.store.most_requests()).max(1);
        (total, total - (total / 4).min(total - 1))
    }

    /// There are `most` places from now on. When they are fewer, GETs that are in flight go on, and none follows until they are.
    pub fn resize(self: &Arc<Self>, most: usize) {
        self.state.lock().most = most.max(1);
        self.admit();
    }

    /// Places when the endpoint keeps up.
    pub fn most(&self) -> usize {
        self.state.lock().most
    }

    /// Places now.
    pub fn allowed(&self) -> usize {
        self.places(self.most()).0
    }

    /// Whether a prefetch would go at once.
    pub fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.prefetch.is_empty() && state.demand.is_empty() && state.in_flight < self.places(state.most).1
    }

    /// GETs in flight now.
    #[cfg(test)]
    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight
    }

    /// Asks for a place.
    pub fn enter(self: &Arc<Self>, demand: bool) -> Entry {
        let mut state = self.state.lock();
        let (total, for_prefetch) = self.places(state.most);
        let bound = if demand { total } else { for_prefetch };
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
        let (total, for_prefetch) = self.places(state.most);
        let queued = if state.in_flight >= total {
            None
        } else if let Some(queued) = state.demand.pop_front() {
            Some(queued)
        } else if state.in_flight < for_prefetch {
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
    use crate::store::memory::{Memory, Plan};

    fn gate(most: usize) -> Arc<Gate> {
        Gate::new(Arc::new(Memory::new(Plan::default())), most)
    }

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
        let gate = gate(4);
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
        let gate = gate(1);
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
        let gate = gate(4);
        let _places: Vec<_> = (0..3).map(|_| now(gate.enter(false))).collect();
        let (ticket, mut prefetch) = later(gate.enter(false));
        gate.promote(ticket);
        assert!(prefetch.try_recv().is_ok());
    }

    #[test]
    fn places_that_are_added_are_taken_at_once_and_those_taken_away_when_they_are_free() {
        let gate = gate(2);
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
        let gate = gate(1);
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
