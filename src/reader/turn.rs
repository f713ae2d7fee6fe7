//! Memory for reads that need more than there is: one read at a time waits for it, in the order they came. Invariant: a read that waits for memory
//! while it keeps some from others has the turn; all others either keep nothing, or have the memory for all of their bytes and come to
//! an end. So no two reads ever wait for each other's memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::extent::{Extent, Waiting};
use super::fetch::{Fetcher, memory_for};
use super::object::{Lack, Object};
use super::{ReadError, Shared};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Turn {
    lock: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
}

impl Turn {
    /// Whether somebody waits for it or has it: nobody else is to take memory at once.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// What a read that got its memory keeps until it is answered.
#[derive(Debug)]
pub(super) struct Admitted {
    pub extents: Vec<Arc<Extent>>,
    /// Nobody takes them back before.
    pub wanted: Vec<Waiting>,
}

/// Waits for the turn and then for the memory of all that `lack` says.
///
/// # Errors
/// When it can never have as much.
pub(super) async fn admit(shared: &Arc<Shared>, object: &Arc<Object>, read: &Range<u64>, lack: &Lack) -> Result<Admitted, ReadError> {
    let _counted = Counted::new(&shared.turn);
    let _turn = shared.turn.lock.lock().await;
    let mut before = Vec::new();
    loop {
        let (extents, missing) = object.held_and_missing(read, lack, shared.stamp());
        // Those of the last time are wanted until these are.
        let wanted: Vec<Waiting> = extents.iter().map(Extent::want).collect();
        drop(std::mem::replace(&mut before, wanted));
        let Some(gap) = missing.first() else { return Ok(Admitted { extents, wanted: before }) };
        let needed = extents.iter().map(|extent| extent.len()).sum::<usize>()
            + missing.iter().map(|gap| (gap.end - gap.start) as usize).sum::<usize>();
        let limit = shared.budget.limit();
        if needed > limit {
            return Err(ReadError::Memory(format!("a read needs {needed} bytes, memory-limit is {limit}: raise it").into()));
        }
        let lease = memory_for(shared, (gap.end - gap.start) as usize).await?;
        object.start(gap, lack.windowed, lease, &Fetcher { shared, object });
    }
}

struct Counted<'a>(&'a Turn);

impl<'a> Counted<'a> {
    fn new(turn: &'a Turn) -> Self {
        turn.waiting.fetch_add(1, Ordering::Relaxed);
        Self(turn)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
