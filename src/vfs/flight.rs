//! Single flight: many callers that want the same thing share one future. It remembers nothing after the answer.
//! Invariant: the future lives as long as any of its callers, so one that is dropped takes nothing from the others
//! and the last one that is dropped cancels the request. If it panics each of them does: none waits any longer.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

use crate::store::Key;

/// What is shared; none: it panicked. A panic inside of [`Shared`] would wake only the caller that it happened to.
type Flight<T> = Shared<BoxFuture<'static, Option<T>>>;

/// Each with the number of its start.
type Board<T> = Mutex<HashMap<Key, (u64, WeakShared<BoxFuture<'static, Option<T>>>)>>;

/// What is being asked for just now, by key.
#[derive(Debug)]
pub struct Flights<T: Clone> {
    flights: Arc<Board<T>>,
    started: AtomicU64,
}

impl<T: Clone> Default for Flights<T> {
    fn default() -> Self {
        Self { flights: Arc::default(), started: AtomicU64::new(0) }
    }
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    /// Joins the flight for `key`, or starts it with the future that `start` makes. To make sure that nobody asks
    /// twice, the future looks into the cache first and fills it before it ends.
    pub fn join<F, S>(&self, key: &Key, start: S) -> impl Future<Output = T> + Send + 'static + use<T, F, S>
    where
        F: Future<Output = T> + Send + 'static,
        S: FnOnce() -> F,
    {
        let flight = self.flight(key, start);
        // The panic was logged where it happened.
        async move { flight.await.unwrap_or_else(|| resume_unwind(Box::new("a request that is shared panicked"))) }
    }

    fn flight<F>(&self, key: &Key, start: impl FnOnce() -> F) -> Flight<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(key).and_then(|(_, flight)| flight.upgrade()) {
            return flight;
        }
        let id = self.started.fetch_add(1, Relaxed);
        let landing = Landing { flights: self.flights.clone(), key: key.clone(), id };
        let future = start();
        let flight = async move {
            let _landing = landing;
            AssertUnwindSafe(future).catch_unwind().await.ok()
        }
        .boxed()
        .shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(key.clone(), (id, weak));
        }
        flight
    }

    /// Whoever asks for one of these keys from now on starts a flight of its own; those that are under way answer who joined them.
    pub fn abandon(&self, is_one: impl Fn(&Key) -> bool) {
        self.flights.lock().retain(|key, _| !is_one(key));
    }
}

/// Takes a flight off the list when it ends or is given up.
struct Landing<T: Clone> {
    flights: Arc<Board<T>>,
    key: Key,
    id: u64,
}

impl<T: Clone> Drop for Landing<T> {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        // A flight that was given up may have a successor on the list already.
        if flights.get(&self.key).is_some_and(|(id, _)| *id == self.id) {
            flights.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    fn counted(runs: &Arc<AtomicU64>) -> impl Future<Output = u64> + Send + 'static {
        let runs = runs.clone();
        async move {
            sleep(Duration::from_secs(1)).await;
            runs.fetch_add(1, Relaxed) + 1
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_share_a_future_and_survive_the_first_of_them() {
        let (flights, runs) = (Flights::default(), Arc::new(AtomicU64::new(0)));
        let key = Key::from("a");
        let mut first = Box::pin(flights.join(&key, || counted(&runs)));
        let second = flights.join(&key, || counted(&runs));
        assert!(futures::poll!(&mut first).is_pending());
        drop(first);
        assert_eq!(second.await, 1);
        assert_eq!(flights.join(&key, || counted(&runs)).await, 2, "an answer is not kept");
        assert!(flights.flights.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn panic_in_a_flight_reaches_every_caller() {
        let (flights, runs) = (Flights::default(), Arc::new(AtomicU64::new(0)));
        let key = Key::from("a");
        let fail = || async {
            sleep(Duration::from_secs(1)).await;
            resume_unwind(Box::new("a defect"))
        };
        let callers = [0; 3].map(|_| tokio::spawn(flights.join(&key, fail)));
        for caller in callers {
            let ended = tokio::time::timeout(Duration::from_secs(60), caller).await.expect("no caller waits for ever");
            assert!(ended.is_err_and(|error| error.is_panic()));
        }
        assert_eq!(flights.join(&key, || counted(&runs)).await, 1, "the next caller asks anew");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_joins_a_flight_that_was_abandoned() {
        let (flights, runs) = (Flights::default(), Arc::new(AtomicU64::new(0)));
        let (a, b) = (Key::from("a"), Key::from("b"));
        let [first, other] = [&a, &b].map(|key| tokio::spawn(flights.join(key, || counted(&runs))));
        tokio::task::yield_now().await;
        flights.abandon(|key| *key == a);
        let (second, joined) = (flights.join(&a, || counted(&runs)), flights.join(&b, || counted(&runs)));
        let answers = (first.await.expect("it ends"), second.await, other.await.expect("it ends"), joined.await);
        assert!(answers.0 != answers.1 && answers.2 == answers.3, "{answers:?}");
        assert_eq!(runs.load(Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_caller_that_is_dropped_cancels_the_request() {
        let (flights, runs) = (Flights::default(), Arc::new(AtomicU64::new(0)));
        let mut only = Box::pin(flights.join(&Key::from("a"), || counted(&runs)));
        assert!(futures::poll!(&mut only).is_pending());
        drop(only);
        assert!(flights.flights.lock().is_empty());
        sleep(Duration::from_secs(2)).await;
        assert_eq!(runs.load(Relaxed), 0);
    }
}
