//! Requests at a time, fixed or as the knee decides. It measures and lets in; it decides nothing. Invariant: no more are let in than there
//! should be, except for those that were in before that became less.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::knee::Knee;
use super::plan::Parallel;

/// How often `auto` looks: what is clear is seen at once, see [`Knee`].
const LOOK: Duration = Duration::from_millis(25);

/// Lets as many requests in as there should be.
#[derive(Debug)]
pub(super) struct Gate {
    permits: Arc<Semaphore>,
    moved: Arc<Mutex<u64>>,
    knee: Option<Knee>,
}

impl Gate {
    pub fn new(parallel: Parallel, most: usize) -> Self {
        let knee = (parallel == Parallel::Auto).then(|| Knee::new(most));
        let first = knee.as_ref().map_or(most, Knee::requests);
        Self { permits: Arc::new(Semaphore::new(first)), moved: Arc::default(), knee }
    }

    /// To be told of bytes as they are moved.
    pub fn moved(&self) -> Arc<Mutex<u64>> {
        Arc::clone(&self.moved)
    }

    pub async fn enter(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.permits).acquire_owned().await.expect("nobody closes it")
    }

    /// Measures and decides, for as long as it is awaited.
    pub async fn watch(&self) {
        let mut knee = self.knee.clone();
        while let Some(knee) = knee.as_mut().filter(|knee| !knee.is_done()) {
            let (from, before) = (Instant::now(), *self.moved.lock());
            tokio::time::sleep(LOOK).await;
            let (moved, requests) = (*self.moved.lock() - before, knee.requests());
            knee.on_look(from.elapsed().as_secs_f64(), moved);
            if knee.requests() >= requests {
                self.permits.add_permits(knee.requests() - requests);
            } else if let Ok(less) = self.permits.acquire_many(u32::try_from(requests - knee.requests()).unwrap_or(u32::MAX)).await {
                less.forget();
            }
        }
        std::future::pending().await
    }
}
