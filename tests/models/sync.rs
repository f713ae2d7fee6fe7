//! The atomics and locks that sources of src/vfs take from their `sync`, as those of shuttle: each use of one is a place where another thread may go on.

pub use shuttle::sync::MutexGuard;
pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// As that of parking_lot: a lock is never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("a thread that panics ends the schedule")
    }
}
