//! The memory of the process: every buffer that grows with traffic is leased here, and goes back here.
//!
//! Invariant: leased and pooled memory together never exceed the limit. A reader that waits ([`Budget::lease`])
//! goes before every prefetch ([`Budget::try_lease`]), and waiting readers are served in the order they came.

mod limit;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use limit::{Allowance, Bound, available, from_files as default_limit};

use crate::sys::Memory;
use crate::units::ByteSize;

/// Options of the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Upper bound of all leased memory; none: a quarter of what the cgroups and the machine leave.
    pub memory_limit: Option<ByteSize>,
}

/// The least that lets a reader with the largest chunk make progress beside a second one.
pub const SMALLEST_LIMIT: ByteSize = ByteSize::mib(64);

/// Buffers below this are rounded up to a power of two, above it to whole huge pages.
const HUGE_CLASS: usize = 2 << 20;
const SMALLEST_CLASS: usize = 16 << 10;

/// The one budget of a process.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicUsize,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    leased: usize,
    pooled: usize,
    peak: usize,
    /// Free buffers by class, the most recently used last.
    free: BTreeMap<usize, Vec<(Memory, Instant)>>,
    waiting: VecDeque<(usize, oneshot::Sender<io::Result<Lease>>)>,
}

/// A buffer on loan. It returns to the budget when it is dropped.
#[derive(Debug)]
pub struct Lease {
    memory: Option<Memory>,
    budget: Arc<Budget>,
}

impl AsRef<Memory> for Lease {
    fn as_ref(&self) -> &Memory {
        self.memory.as_ref().expect("only drop takes the memory out")
    }
}

impl AsMut<Memory> for Lease {
    fn as_mut(&mut self) -> &mut Memory {
        self.memory.as_mut().expect("only drop takes the memory out")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let memory = self.memory.take().expect("only drop takes the memory out");
        Budget::give_back(&self.budget, memory);
    }
}

/// What is in use of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// On loan, rounded up to buffer sizes.
    pub leased_bytes: usize,
    /// The most that was ever on loan at once.
    pub peak_bytes: usize,
    /// What came back and is kept for the next.
    pub pooled_bytes: usize,
    /// How many wait for memory.
    pub waiting: usize,
}

impl Budget {
    /// A budget with the given limit, or one that fits the machine.
    pub fn new(options: &Options) -> Arc<Self> {
        let limit = options.memory_limit.unwrap_or_else(limit::detect);
        Arc::new(Self { limit: AtomicUsize::new(limit.as_usize()), pool: Mutex::default() })
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit; none: what fits the machine. Where more is on loan than that, nothing more is lent until enough came back, so it
    /// must hold the largest buffer that anybody asks for.
    pub fn set_limit(self: &Arc<Self>, limit: Option<ByteSize>) {
        let ready = {
            let mut pool = self.pool.lock();
            self.limit.store(limit.unwrap_or_else(limit::detect).as_usize(), Ordering::Relaxed);
            make_room(&mut pool, self.limit());
            self.serve(&mut pool)
        };
        send(ready);
    }

    /// Bytes on loan now, rounded up to buffer sizes.
    pub fn leased_bytes(&self) -> usize {
        self.pool.lock().leased
    }

    /// What is in use, as it is in one moment.
    pub fn usage(&self) -> Usage {
        let pool = self.pool.lock();
        Usage { leased_bytes: pool.leased, peak_bytes: pool.peak, pooled_bytes: pool.pooled, waiting: pool.waiting.len() }
    }

    /// Whether a reader is waiting for memory.
    pub fn is_short(&self) -> bool {
        !self.pool.lock().waiting.is_empty()
    }

    /// A buffer of at least `len` bytes if it can be had at once and no reader waits for one.
    pub fn try_lease(self: &Arc<Self>, len: usize) -> Option<Lease> {
        let mut pool = self.pool.lock();
        if !pool.waiting.is_empty() {
            return None;
        }
        self.grant(&mut pool, buffer_size(len))?.ok()
    }

    /// A buffer of at least `len` bytes, as soon as there is one. Dropping the future gives up the place in the queue.
    ///
    /// # Errors
    /// When the kernel refuses the mapping, or `len` is more than the whole budget.
    pub async fn lease(self: &Arc<Self>, len: usize) -> io::Result<Lease> {
        let class = buffer_size(len);
        let limit = self.limit();
        if class > limit {
            return Err(io::Error::other(format!("a buffer of {class} bytes is more than the memory limit of {limit} bytes")));
        }
        let receiver = {
            let mut pool = self.pool.lock();
            if pool.waiting.is_empty()
                && let Some(lease) = self.grant(&mut pool, class)
            {
                return lease;
            }
            let (sender, receiver) = oneshot::channel();
            pool.waiting.push_back((class, sender));
            receiver
        };
        receiver.await.expect("the budget outlives its waiters and answers each")
    }

    /// Gives pooled buffers that nobody used for `idle` back to the kernel.
    pub fn trim(&self, idle: Duration) {
        let now = Instant::now();
        let mut unused = Vec::new();
        let mut pool = self.pool.lock();
        let pool = &mut *pool;
        for list in pool.free.values_mut() {
            // The oldest are at the front.
            let keep_from = list.partition_point(|(_, since)| now.duration_since(*since) >= idle);
            unused.extend(list.drain(..keep_from));
        }
        pool.pooled -= unused.iter().map(|(memory, _)| memory.len()).sum::<usize>();
        // `unused` is unmapped after the lock is gone: locals drop in reverse order of declaration.
    }

    /// None: does not fit now.
    fn grant(self: &Arc<Self>, pool: &mut Pool, class: usize) -> Option<io::Result<Lease>> {
        let limit = self.limit();
        if pool.leased + class > limit {
            return None;
        }
        let memory = match pool.free.get_mut(&class).and_then(Vec::pop) {
            Some((memory, _)) => {
                pool.pooled -= class;
                memory
            }
            None => {
                make_room(pool, limit.saturating_sub(class));
                match Memory::map(class) {
                    Ok(memory) => memory,
                    Err(error) => return Some(Err(error)),
                }
            }
        };
        pool.leased += class;
        pool.peak = pool.peak.max(pool.leased);
        Some(Ok(Lease { memory: Some(memory), budget: Arc::clone(self) }))
    }

    fn give_back(budget: &Arc<Self>, memory: Memory) {
        let ready = {
            let mut pool = budget.pool.lock();
            pool.leased -= memory.len();
            pool.pooled += memory.len();
            pool.free.entry(memory.len()).or_default().push((memory, Instant::now()));
            // The limit may be lower than when it was lent.
            make_room(&mut pool, budget.limit());
            budget.serve(&mut pool)
        };
        send(ready);
    }

    /// Takes out of the queue who can be served now.
    fn serve(self: &Arc<Self>, pool: &mut Pool) -> Vec<Served> {
        let mut ready = Vec::new();
        while let Some((class, _)) = pool.waiting.front() {
            let class = *class;
            let Some(lease) = self.grant(pool, class) else { break };
            let (_, sender) = pool.waiting.pop_front().expect("the front was just there");
            ready.push((sender, lease));
        }
        ready
    }
}

/// A waiter and what it waited for.
type Served = (oneshot::Sender<io::Result<Lease>>, io::Result<Lease>);

/// Outside the lock: a waiter that gave up drops its lease right here, which comes back in.
fn send(ready: Vec<Served>) {
    for (sender, lease) in ready {
        let _ = sender.send(lease);
    }
}

/// Unmaps pooled buffers, the largest first, until leased and pooled together are at most `bound`.
fn make_room(pool: &mut Pool, bound: usize) {
    while pool.leased + pool.pooled > bound {
        let Some(mut largest) = pool.free.last_entry() else { return };
        match largest.get_mut().pop() {
            Some((memory, _)) => pool.pooled -= memory.len(),
            None => {
                largest.remove();
            }
        }
    }
}

/// The buffer size that serves `len` bytes: what a lease of that many takes out of the budget.
pub fn buffer_size(len: usize) -> usize {
    if len <= HUGE_CLASS { len.next_power_of_two().max(SMALLEST_CLASS) } else { len.next_multiple_of(HUGE_CLASS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: ByteSize) -> Arc<Budget> {
        Budget::new(&Options { memory_limit: Some(limit) })
    }

    #[test]
    fn buffers_come_in_few_sizes() {
        for (len, size) in [(1, 16 << 10), (100_000, 128 << 10), (1 << 20, 1 << 20), (3 << 20, 4 << 20), (5 << 20, 6 << 20)] {
            assert_eq!(buffer_size(len), size, "{len}");
        }
    }

    #[test]
    fn leased_and_pooled_memory_stay_below_the_limit() {
        let budget = budget(ByteSize::mib(8));
        let small: Vec<_> = std::iter::from_fn(|| budget.try_lease(1 << 20)).collect();
        assert_eq!(small.len(), 8);
        drop(small);
        assert_eq!((budget.leased_bytes(), budget.pool.lock().pooled), (0, 8 << 20));
        let large = budget.try_lease(4 << 20).unwrap();
        assert_eq!((budget.leased_bytes(), budget.pool.lock().pooled), (4 << 20, 4 << 20));
        drop(large);
        assert_eq!(budget.usage().peak_bytes, 8 << 20);
    }

    #[tokio::test]
    async fn waiting_readers_go_before_prefetch_and_in_order() {
        let budget = budget(ByteSize::mib(8));
        let all = budget.try_lease(8 << 20).unwrap();
        let mut first = tokio_test_task(budget.lease(6 << 20));
        let mut second = tokio_test_task(budget.lease(1 << 20));
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        assert!(budget.is_short());
        drop(all);
        assert!(!budget.is_short());
        let held = (first.await.unwrap(), second.await.unwrap());
        assert!(budget.try_lease(2 << 20).is_none());
        assert!(budget.try_lease(1 << 20).is_some());
        drop(held);
        assert_eq!(budget.leased_bytes(), 0);
    }

    #[tokio::test]
    async fn a_reader_that_gives_up_blocks_nobody() {
        let budget = budget(ByteSize::mib(2));
        let all = budget.try_lease(2 << 20).unwrap();
        let mut gone = tokio_test_task(budget.lease(1 << 20));
        assert!(futures::poll!(&mut gone).is_pending());
        drop(gone);
        let mut waits = tokio_test_task(budget.lease(2 << 20));
        assert!(futures::poll!(&mut waits).is_pending());
        drop(all);
        assert!(waits.await.is_ok());
        assert_eq!(budget.leased_bytes(), 0);
    }

    #[tokio::test]
    async fn a_limit_that_shrinks_is_kept_as_soon_as_enough_came_back_and_one_that_grows_serves_who_waits() {
        let budget = budget(ByteSize::mib(8));
        let mut held: Vec<_> = (0..4).map(|_| budget.try_lease(2 << 20).unwrap()).collect();
        budget.set_limit(Some(ByteSize::mib(4)));
        assert_eq!((budget.limit(), budget.leased_bytes()), (4 << 20, 8 << 20));
        held.pop();
        held.pop();
        assert!(budget.try_lease(1 << 20).is_none(), "what came back is not lent again");
        assert_eq!(budget.usage().pooled_bytes, 0, "nor kept");
        let mut waits = tokio_test_task(budget.lease(4 << 20));
        assert!(futures::poll!(&mut waits).is_pending());
        assert_eq!(budget.usage().waiting, 1);
        budget.set_limit(Some(ByteSize::mib(8)));
        assert!(waits.await.is_ok());
        drop(held);
        assert_eq!((budget.leased_bytes(), budget.usage().waiting), (0, 0));
    }

    #[tokio::test]
    async fn more_than_the_whole_budget_is_an_error_at_once() {
        let error = budget(ByteSize::mib(2)).lease(4 << 20).await.unwrap_err();
        assert!(error.to_string().contains("memory limit"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_buffers_go_back_to_the_kernel() {
        let budget = budget(ByteSize::mib(8));
        drop(budget.try_lease(2 << 20));
        tokio::time::advance(Duration::from_secs(5)).await;
        drop(budget.try_lease(1 << 20));
        budget.trim(Duration::from_secs(5));
        assert_eq!(budget.pool.lock().pooled, 1 << 20);
        budget.trim(Duration::ZERO);
        assert_eq!(budget.pool.lock().pooled, 0);
    }

    fn tokio_test_task<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
        Box::pin(future)
    }
}
