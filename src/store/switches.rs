//! What of a store can be switched while it is used. It sends nothing. Invariant: a switch holds for every request that begins after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The switches of one store. Clones are the same.
#[derive(Clone, Debug)]
pub struct Switches {
    hedge: Arc<AtomicBool>,
}

impl Switches {
    /// As it begins.
    pub fn new(hedge: bool) -> Self {
        Self { hedge: Arc::new(AtomicBool::new(hedge)) }
    }

    /// Whether slow data GETs are helped by extra ones.
    pub fn hedges(&self) -> bool {
        self.hedge.load(Ordering::Relaxed)
    }

    /// Has them helped, or not.
    pub fn set_hedge(&self, hedge: bool) {
        self.hedge.store(hedge, Ordering::Relaxed);
    }
}

impl Default for Switches {
    fn default() -> Self {
        Self::new(true)
    }
}
