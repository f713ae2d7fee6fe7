//! GETs of whole objects, as many at a time as asked, over and over for a time: what a loader of a data set or a web tier asks of a store.
//! Invariant: it ends when its time is over, whatever the store does; what was under way then counts with its bytes, not as a GET.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::away::Piece;
use super::rate::{Rate, Speed};
use super::times::Times;
use crate::budget::{self, Budget};
use crate::store::{self, ObjectMeta, ObjectStore, RangeRequest, Urls};
use crate::transfer::{Error, Result};
use crate::units::ByteSize;

/// Memory of one request: a socket rarely has more at once.
const PIECE: u64 = 128 << 10;

/// Whoever was refused waits so long: a store that is down is not to be flooded.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// So many failures before the first success mean that there will be none.
const HOPELESS: u64 = 20;

/// What is asked for, again and again in this order.
#[derive(Debug)]
pub enum Targets {
    /// As they stand.
    Urls(Box<Urls>),
    /// Signed; none of them empty.
    Objects(Arc<dyn ObjectStore>, Vec<ObjectMeta>),
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Gets {
    pub speed: Speed,
    /// Of the GETs that came to their end.
    pub times: Times,
    pub failed: u64,
    pub first_failure: Option<String>,
}

impl Gets {
    /// GETs a second.
    pub fn operations(&self) -> f64 {
        if self.speed.took.is_zero() { 0.0 } else { self.times.count() as f64 / self.speed.took.as_secs_f64() }
    }
}

/// What all workers write into.
struct Tally {
    rate: Rate,
    times: Times,
    failed: u64,
    first_failure: Option<store::Error>,
}

impl Targets {
    /// How many different ones.
    pub fn len(&self) -> usize {
        match self {
            Self::Urls(urls) => urls.len(),
            Self::Objects(_, objects) => objects.len(),
        }
    }

    /// Whether there is nothing to ask for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    async fn get(&self, index: usize, piece: &mut Piece, mut on_bytes: impl FnMut(u64) + Send) -> store::Result<()> {
        match self {
            Self::Urls(urls) => urls.get(index, piece.bytes_mut(), on_bytes).await,
            Self::Objects(store, objects) => {
                let ObjectMeta { key, size, etag, .. } = objects[index].clone();
                let mut away = piece.away(size, |bytes| on_bytes(bytes.len() as u64));
                store.get_range(&RangeRequest { key, range: 0..size, etag }, &mut away).await
            }
        }
    }
}

/// Asks with `concurrency` GETs at a time until `time` is over.
///
/// # Errors
/// When there is no memory, or every GET fails.
pub async fn gets(targets: Arc<Targets>, concurrency: usize, time: Duration) -> Result<Gets> {
    let memory = ByteSize::bytes(concurrency as u64 * PIECE);
    let budget = Budget::new(&budget::Options { memory_limit: Some(memory) });
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let tally = Arc::new(Mutex::new(Tally { rate: Rate::new(began), times: Times::default(), failed: 0, first_failure: None }));
    // Dropped, it aborts what is under way.
    let mut running = JoinSet::new();
    for _ in 0..concurrency {
        let piece = Piece::lease(&budget, PIECE).await?;
        running.spawn(work(Arc::clone(&targets), Arc::clone(&next), Arc::clone(&tally), piece));
    }
    // A worker ends only without hope.
    let gave_up = timeout(time, running.join_next()).await.is_ok();
    let ended = Instant::now();
    running.shutdown().await;
    let mut tally = tally.lock();
    let speed = tally.rate.end(ended);
    match tally.first_failure.take() {
        Some(error) if gave_up || tally.times.count() == 0 => Err(Error::Store(error)),
        failure => {
            let first_failure = failure.map(|error| error.to_string());
            Ok(Gets { speed, times: tally.times.clone(), failed: tally.failed, first_failure })
        }
    }
}

async fn work(targets: Arc<Targets>, next: Arc<AtomicUsize>, tally: Arc<Mutex<Tally>>, mut piece: Piece) {
    loop {
        let index = next.fetch_add(1, Relaxed) % targets.len();
        let began = Instant::now();
        let got = targets.get(index, &mut piece, |n| tally.lock().rate.on_bytes(Instant::now(), n)).await;
        match got {
            Ok(()) => tally.lock().times.record(began.elapsed()),
            Err(error) => {
                let is_hopeless = {
                    let mut tally = tally.lock();
                    tally.failed += 1;
                    tally.first_failure.get_or_insert(error);
                    tally.times.count() == 0 && tally.failed >= HOPELESS
                };
                if is_hopeless {
                    return;
                }
                sleep(AFTER_FAILURE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;
    use crate::store::memory::{Fault, Latency, Memory, Plan, Rule};

    /// A bucket of three objects of 1 MiB whose answers take 50 ms.
    fn bucket() -> (Memory, Arc<Targets>) {
        let memory = Memory::new(Plan { first_byte: Latency::Fixed(Duration::from_millis(50)), ..Plan::default() });
        let objects = ["a", "b", "c"].map(|key| {
            memory.put_synthetic(key, 1 << 20);
            memory.meta(key).unwrap()
        });
        (memory.clone(), Arc::new(Targets::Objects(Arc::new(memory), objects.into())))
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_in_time_and_counts_what_came_to_its_end() {
        let (memory, targets) = bucket();
        let found = gets(targets, 4, Duration::from_millis(1020)).await.unwrap();
        assert_eq!((found.times.count(), found.failed, found.speed.bytes, memory.max_in_flight()), (80, 0, 80 << 20, 4));
        assert_eq!((found.speed.took, memory.in_flight()), (Duration::from_millis(1020), 0));
        assert!((found.operations() - 80.0 / 1.02).abs() < 1e-6 && found.times.at(0.99).unwrap().as_millis() == 50, "{found:?}");
        let asked = |key: &str| memory.requests().iter().filter(|request| request.key == key.into()).count();
        assert_eq!([asked("a"), asked("b"), asked("c")], [28, 28, 28]);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_counted_and_told() {
        let (memory, targets) = bucket();
        memory.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).key("b"));
        let found = gets(targets, 3, Duration::from_secs(1)).await.unwrap();
        assert!(found.failed > 0 && found.times.count() > 2 * found.failed - 3, "{found:?}");
        assert!(found.first_failure.unwrap().contains("\"b\""));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_answers_nothing_ends_it_early() {
        let (memory, targets) = bucket();
        memory.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)));
        let began = Instant::now();
        let failed = gets(targets, 3, Duration::from_secs(3600)).await;
        assert!(matches!(failed, Err(Error::Store(error)) if error.kind == ErrorKind::AccessDenied));
        assert!(began.elapsed() < Duration::from_secs(2) && memory.requests().len() < 25);
    }
}
