//! The atomics and locks that sources of src/vfs take from their `sync`, as those of shuttle: each use of one is a place where another thread may go on.

use std::sync::Arc;

use shuttle::sync::{Condvar, RwLockReadGuard, RwLockWriteGuard};

pub use shuttle::sync::MutexGuard;
pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const NOT_POISONED: &str = "a thread that panics ends the schedule";

/// As that of parking_lot: a lock is never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect(NOT_POISONED)
    }
}

/// As that of parking_lot, too.
#[derive(Debug, Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(NOT_POISONED)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect(NOT_POISONED)
    }
}

/// As the mutex of tokio, but a thread that waits is blocked, and any of those that wait may be the next.
#[derive(Debug, Default)]
pub struct TurnMutex<T> {
    is_taken: Mutex<bool>,
    released: Condvar,
    value: T,
}

#[derive(Debug)]
pub struct OwnedTurnGuard<T>(Arc<TurnMutex<T>>);

impl<T> TurnMutex<T> {
    #[allow(clippy::unused_async, reason = "it blocks, as every other wait in a model")]
    pub async fn lock_owned(self: Arc<Self>) -> OwnedTurnGuard<T> {
        let mut is_taken = self.is_taken.lock();
        while *is_taken {
            is_taken = self.released.wait(is_taken).expect(NOT_POISONED);
        }
        *is_taken = true;
        drop(is_taken);
        OwnedTurnGuard(self)
    }

    /// The value, while the lock is free.
    pub fn try_lock(&self) -> Result<&T, ()> {
        if *self.is_taken.lock() { Err(()) } else { Ok(&self.value) }
    }
}

impl<T> Drop for OwnedTurnGuard<T> {
    fn drop(&mut self) {
        *self.0.is_taken.lock() = false;
        self.0.released.notify_all();
    }
}
