//! How many GETs are in flight, and who goes next: a share of the places is kept for readers that wait, and among
//! those that queue, they go first. (With one queue for both, a miss would wait behind hundreds of prefetches.)

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Places for GETs.
#[derive(Debug)]
pub(super) struct Gate {
    total: usize,
    reserved: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
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
        let next = {
            let mut state = self.0.state.lock();
            state.in_flight -= 1;
            self.0.next(&mut state)
        };
        // Outside the lock: if the fetch went away in between, its place comes back through here.
        if let Some((queued, place)) = next {
            let _ = queued.sender.send(place);
        }
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
        let total = total.max(1);
        Arc::new(Self { total, reserved: (total / 4).min(total - 1), state: Mutex::default() })
    }

    /// GETs in flight now.
    #[cfg(test)]
    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight
    }

    /// Asks for a place.
    pub fn enter(self: &Arc<Self>, demand: bool) -> Entry {
        let mut state = self.state.lock();
        let bound = if demand { self.total } else { self.total - self.reserved };
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
        let granted = {
            let mut state = self.state.lock();
            let Some(index) = state.prefetch.iter().position(|queued| queued.ticket == ticket) else { return };
            let queued = state.prefetch.remove(index).expect("the index was just found");
            state.demand.push_back(queued);
            self.next(&mut state)
        };
        if let Some((queued, place)) = granted {
            let _ = queued.sender.send(place);
        }
    }

    fn next(self: &Arc<Self>, state: &mut State) -> Option<(Queued, Place)> {
        // Fetches that were given up leave their tickets behind.
        state.demand.retain(|queued| !queued.sender.is_closed());
        let queued = if state.in_flight >= self.total {
            None
        } else if let Some(queued) = state.demand.pop_front() {
            Some(queued)
        } else if state.in_flight < self.total - self.reserved {
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
