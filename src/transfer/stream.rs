//! Bytes of one object in their order, fetched in parts ahead of whoever takes them: for standard output and other things that cannot be
//! written at an offset. Invariant: at most `ahead` parts are in memory, and nothing is handed over out of order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::bandwidth::{self, Bandwidth};
use super::{Error, Result};
use crate::budget::{Budget, Lease};
use crate::store::{Checking, Crc64, Details, Key, Mismatch, ObjectStore, Part, RangeRequest, RangeSink};
use crate::sys::Window;

/// How to fetch.
#[derive(Clone, Debug)]
pub struct Streaming {
    pub part_bytes: u64,
    /// Parts in memory, of which one is being taken.
    pub ahead: usize,
    /// None: as fast as it gets.
    pub bandwidth: Option<Arc<Bandwidth>>,
}

/// Hands the bytes of `range` to `take`, which may end it early by answering false, and checks them when they are the whole object and
/// the store keeps a sum of it.
///
/// # Errors
/// What the store or `take` answers, or that the sum is another one: then the bytes have been handed over already.
pub async fn stream(
    store: &Arc<dyn ObjectStore>,
    budget: &Arc<Budget>,
    details: &Details,
    range: Range<u64>,
    how: Streaming,
    mut take: impl FnMut(&[u8]) -> Result<bool>,
) -> Result<()> {
    let whole = range == (0..details.meta.size);
    let mut checking = details.sum.as_ref().filter(|_| whole).and_then(Checking::against);
    let mut starts = range.clone().step_by(usize::try_from(how.part_bytes).unwrap_or(usize::MAX).max(1));
    let mut fetching = VecDeque::new();
    loop {
        while fetching.len() < how.ahead.max(1)
            && let Some(start) = starts.next()
        {
            let range = start..range.end.min(start.saturating_add(how.part_bytes));
            let request = RangeRequest { key: details.meta.key.clone(), range, etag: details.meta.etag.clone() };
            // In the order of the parts, so that the one that is wanted first never waits for memory that others hold.
            let lease = budget.lease(length(&request.range)).await.map_err(Error::Memory)?;
            let fetching_one = fetch(Arc::clone(store), how.bandwidth.clone(), request, lease);
            fetching.push_back(Fetching(tokio::spawn(fetching_one)));
        }
        let Some(mut next) = fetching.pop_front() else { break };
        let filled = (&mut next.0).await.expect("a fetch does not panic, and nobody else aborts it")?;
        let bytes = filled.bytes();
        if let Some(checking) = &mut checking {
            tokio::task::block_in_place(|| checking.add(bytes));
        }
        // Whoever takes them may block for as long as a pipe is full.
        if !tokio::task::block_in_place(|| take(bytes))? {
            return Ok(());
        }
    }
    match checking.map(Checking::finish) {
        Some(Err(mismatch)) if mismatch.is_proof() => Err(Error::Checksum { key: details.meta.key.clone(), mismatch: mismatch.into() }),
        _ => Ok(()),
    }
}

/// Compares the sum of `parts`, in their order, with that of the store.
///
/// # Errors
/// [`Error::Checksum`] when it is another one.
pub fn check(crc: Crc64, parts: &[Part], key: &Key) -> Result<()> {
    match crc.polynomial.of_parts(parts) {
        Some(value) if value != crc.value => {
            let mismatch = Mismatch { expected: crc.into(), actual: Crc64 { value, ..crc }.into() };
            Err(Error::Checksum { key: key.clone(), mismatch: mismatch.into() })
        }
        _ => Ok(()),
    }
}

/// A part on its way. Dropped, it is not wanted any more.
struct Fetching(tokio::task::JoinHandle<Result<Filled>>);

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn fetch(store: Arc<dyn ObjectStore>, limit: Option<Arc<Bandwidth>>, request: RangeRequest, lease: Lease) -> Result<Filled> {
    let mut filled = Filled { memory: Window::new(lease, length(&request.range)), at: 0 };
    bandwidth::get_range(&*store, limit.as_deref(), &request, &mut filled).await?;
    Ok(filled)
}

/// A length in memory.
fn length(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).expect("parts fit in memory, or the budget says so")
}

/// Memory that fills from its front.
struct Filled {
    memory: Window<Lease>,
    at: usize,
}

impl Filled {
    fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.at]
    }
}

impl RangeSink for Filled {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.at..]
    }

    fn advance(&mut self, n: usize) {
        self.at += n;
    }
}
