//! For how long things are believed, which may be changed while they are. It believes nothing. Invariant: a fact keeps the deadline it was
//! born with; a listing, which has none, goes by what is said now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lifetimes of what is known.
#[derive(Debug)]
pub struct Ttls {
    /// Of attributes and listings.
    pub believed: Ttl,
    /// Of the absence of a name.
    pub absent: Ttl,
}

/// A lifetime, in whole milliseconds.
#[derive(Debug)]
pub struct Ttl(AtomicU64);

impl Ttl {
    pub fn new(ttl: Duration) -> Self {
        Self(AtomicU64::new(milliseconds(ttl)))
    }

    /// As it is now.
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// As it is from now on.
    pub fn set(&self, ttl: Duration) {
        self.0.store(milliseconds(ttl), Ordering::Relaxed);
    }
}

fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}
