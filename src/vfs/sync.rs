//! The atomics and locks of what is decided among threads here. Invariant: such a file takes them from its neighbour `sync` alone, so that the models
//! (tests/models) can give it those of a scheduler that explores interleavings.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

pub(super) use parking_lot::{Mutex, MutexGuard, RwLock};
// A lock that is held across requests.
pub(super) use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard as OwnedTurnGuard};
