//! How far a mount has come, for who asks before there is anything to look at. Invariant: it is ready only while requests of programs are answered
//! and may change the bucket.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::observer::Observer;

/// How far a mount has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is no mount to serve yet.
    Waiting,
    /// The bucket has not answered yet, or the kernel.
    Beginning,
    Ready,
    /// What was written is on its way, and nothing new is taken.
    Ending,
}

/// What there is to show before there is a mount.
#[derive(Debug)]
pub struct Waiting;

/// See the module.
#[derive(Debug, Default)]
pub struct Health {
    stage: AtomicU8,
    observer: OnceLock<Arc<Observer>>,
}

impl Health {
    /// There is something to look at.
    pub fn on_observer(&self, observer: Arc<Observer>) {
        // A mount has one.
        let _ = self.observer.set(observer);
    }

    /// The bucket and the mount answer.
    pub fn on_ready(&self) {
        self.stage.store(1, Relaxed);
    }

    /// The mount is about to go.
    pub fn on_ending(&self) {
        self.stage.store(2, Relaxed);
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Relaxed) {
            0 => Stage::Beginning,
            1 => Stage::Ready,
            _ => Stage::Ending,
        }
    }

    pub(super) fn observer(&self) -> Option<&Arc<Observer>> {
        self.observer.get()
    }
}
