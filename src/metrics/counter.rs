//! Numbers that only grow. Nothing is ordered by them. Invariant: an addition is never lost, whoever adds at the same time.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::{Metric, Reading, Type};

/// Lines of a number that many threads count at once: as many as FUSE threads at most.
pub(super) const LINES: usize = 16;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Metric for Counter {
    const TYPE: Type = Type::Counter;

    fn read(&self) -> Reading {
        Reading::Number(self.get())
    }
}

/// A [`Counter`] that every read of every thread counts: each has a line of the cache to itself, so that they do not wait for each other.
#[derive(Debug, Default)]
pub struct Sharded([Line; LINES]);

/// Two lines of the cache of most processors, which fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(Counter);

impl Sharded {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0[line() % LINES].0.add(n);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|line| line.0.get()).sum()
    }
}

impl Metric for Sharded {
    const TYPE: Type = Type::Counter;

    fn read(&self) -> Reading {
        Reading::Number(self.get())
    }
}

/// The largest of the numbers so far. Most are not larger, and only look.
#[derive(Debug, Default)]
pub struct Largest(AtomicU64);

impl Largest {
    /// One more number.
    pub fn record(&self, n: u64) {
        if self.0.load(Relaxed) < n {
            self.0.fetch_max(n, Relaxed);
        }
    }

    /// The largest, 0 before the first.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Metric for Largest {
    const TYPE: Type = Type::Gauge;

    fn read(&self) -> Reading {
        Reading::Number(self.get())
    }
}

/// A number of this thread, from 0 on in the order in which threads count something for the first time.
pub(super) fn line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const NONE: usize = usize::MAX;
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(NONE) };
    }
    MINE.with(|mine| match mine.get() {
        NONE => {
            mine.set(NEXT.fetch_add(1, Relaxed));
            mine.get()
        }
        line => line,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_count_together_lose_nothing() {
        let (one, many) = (Counter::default(), Sharded::default());
        std::thread::scope(|scope| {
            for _ in 0..2 * LINES {
                scope.spawn(|| {
                    for n in 0..1000 {
                        one.add(n);
                        many.add(n);
                    }
                });
            }
        });
        let sum = 2 * LINES as u64 * 999 * 500;
        assert_eq!((one.get(), many.get()), (sum, sum));
    }

    #[test]
    fn the_largest_stays() {
        let largest = Largest::default();
        for n in [3, 7, 5] {
            largest.record(n);
        }
        assert_eq!(largest.get(), 7);
    }

    #[test]
    fn a_thread_keeps_its_line_and_the_next_has_another() {
        let mine = line();
        assert_eq!(line(), mine);
        assert_ne!(std::thread::spawn(line).join().unwrap(), mine);
    }
}
