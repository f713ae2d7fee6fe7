//! One object into one file: parts fetched side by side, each written to its place, checked, and only then given its name. Invariant: all
//! requests are for the one version whose details were told.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinSet, block_in_place};

use super::checkpoint::{Checkpoint, Identity, name_of};
use super::gate::Gate;
use super::landing::{Landing, piece};
use super::plan::{Parallel, Plan};
use super::stream::check;
use super::target::Target;
use super::{Error, OnBytes, Result};
use crate::budget::Budget;
use crate::store::{Details, ObjectStore, Part, Polynomial, RangeRequest};
use crate::sys::Window;

/// One object on its way to one file.
#[derive(Clone)]
pub struct Getting {
    pub store: Arc<dyn ObjectStore>,
    pub budget: Arc<Budget>,
    pub plan: Plan,
    pub parallel: Parallel,
    /// Which bucket, for those who go on with it.
    pub location: String,
    pub checkpoints: Option<PathBuf>,
    /// Told of bytes that were written.
    pub on_bytes: OnBytes,
}

impl fmt::Debug for Getting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Getting").field("plan", &self.plan).field("location", &self.location).finish_non_exhaustive()
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// Of the file.
    pub bytes: u64,
    /// Of them, those that an earlier run had brought.
    pub resumed_bytes: u64,
    /// The store keeps a sum of the object, and it is that of the file.
    pub is_checked: bool,
}

/// Brings `range` of the object to `path`.
///
/// # Errors
/// What store or disk answer, or that the sum is another one. Then nothing is under that name that was not there before.
pub async fn get(how: &Getting, details: &Details, range: Range<u64>, path: &Path) -> Result<Got> {
    let crc = details.crc64.filter(|_| range == (0..details.meta.size));
    let polynomial = crc.map_or(Polynomial::Nvme, |crc| crc.polynomial);
    let parts = how.plan.cut(range.clone());
    let (target, mut checkpoint) = open(how, details, &range, path, polynomial)?;
    if let Some(checkpoint) = &mut checkpoint {
        block_in_place(|| checkpoint.verify(&target.file, range.start, &parts, polynomial));
    }
    let done = checkpoint.as_ref().map(|checkpoint| checkpoint.done.clone()).unwrap_or_default();
    let length = |index: &usize| parts[*index].end - parts[*index].start;
    let resumed_bytes = done.keys().map(length).sum();
    (how.on_bytes)(resumed_bytes);
    let mut sums: Vec<Option<u64>> = (0..parts.len()).map(|index| done.get(&index).copied()).collect();
    let missing: Vec<_> = (0..parts.len()).filter(|index| !done.contains_key(index)).map(|index| (index, parts[index].clone())).collect();
    let landed = |index: usize, sum: u64| {
        sums[index] = Some(sum);
        checkpoint.as_mut().map_or(Ok(()), |checkpoint| checkpoint.add(index, sum))
    };
    fetch_all(how, details, (&target.file, path), missing, range.start, polynomial, landed).await?;
    let sums: Vec<Part> = parts.iter().zip(sums).map(|(part, sum)| Part { crc64: sum, ..piece(part.end - part.start, 0) }).collect();
    if let Some(Err(error)) = crc.map(|crc| check(crc, &sums, details)) {
        // What is wrong is not to be gone on with.
        target.discard();
        checkpoint.into_iter().for_each(Checkpoint::remove);
        return Err(error);
    }
    block_in_place(|| target.finish(details.meta.modified))?;
    checkpoint.into_iter().for_each(Checkpoint::remove);
    Ok(Got { bytes: range.end - range.start, resumed_bytes, is_checked: crc.is_some() })
}

fn open(how: &Getting, details: &Details, range: &Range<u64>, path: &Path, polynomial: Polynomial) -> Result<(Target, Option<Checkpoint>)> {
    let len = range.end - range.start;
    let Some(dir) = &how.checkpoints else { return Ok((block_in_place(|| Target::open(path, len, None))?, None)) };
    let target = std::path::absolute(path).map_err(Error::local("write", path))?;
    let identity = Identity {
        source: format!("{}/{}", how.location, details.meta.key),
        target,
        etag: details.meta.etag.as_str().to_owned(),
        range: range.clone(),
        part_bytes: how.plan.part_bytes,
        ecma: polynomial == Polynomial::Ecma,
    };
    let checkpoint = block_in_place(|| Checkpoint::open(dir, &identity))?;
    let name = name_of(&identity.source, &identity.target);
    Ok((block_in_place(|| Target::open(path, len, Some(&name)))?, Some(checkpoint)))
}

/// Fetches parts, as many at a time as the plan or the knee says, and tells the sum of each.
async fn fetch_all(
    how: &Getting,
    details: &Details,
    (file, path): (&Arc<File>, &Path),
    parts: Vec<(usize, Range<u64>)>,
    origin: u64,
    polynomial: Polynomial,
    mut landed: impl FnMut(usize, u64) -> Result<()>,
) -> Result<()> {
    let gate = Gate::new(how.parallel, how.plan.requests);
    let fetching = async {
        // Dropped, it aborts what is under way.
        let mut running = JoinSet::new();
        let mut parts = parts.into_iter();
        let mut next = parts.next();
        loop {
            tokio::select! {
                permit = gate.enter(), if next.is_some() => {
                    let Some((index, part)) = next.take() else { continue };
                    next = parts.next();
                    let len = usize::try_from(how.plan.buffer_bytes.min(part.end - part.start)).unwrap_or(usize::MAX);
                    let lease = how.budget.lease(len).await.map_err(Error::Memory)?;
                    let (moved, told) = (gate.moved(), Arc::clone(&how.on_bytes));
                    let on_bytes: OnBytes = Arc::new(move |n| {
                        *moved.lock() += n;
                        told(n);
                    });
                    let size = part.end - part.start;
                    let landing = Landing::new(Arc::clone(file), Window::new(lease, len), part.start - origin, size, polynomial, on_bytes);
                    let request = RangeRequest { key: details.meta.key.clone(), range: part, etag: details.meta.etag.clone() };
                    running.spawn(fetch(Arc::clone(&how.store), request, landing, index, path.to_owned(), permit));
                }
                Some(done) = running.join_next() => {
                    let (index, sum) = done.expect("a fetch does not panic, and nobody else aborts it")?;
                    landed(index, sum)?;
                }
                else => return Ok(()),
            }
        }
    };
    tokio::select! { done = fetching => done, () = gate.watch() => unreachable!("it watches for ever") }
}

async fn fetch(
    store: Arc<dyn ObjectStore>,
    request: RangeRequest,
    mut landing: Landing,
    index: usize,
    path: PathBuf,
    permit: OwnedSemaphorePermit,
) -> Result<(usize, u64)> {
    let stop = landing.stop();
    let fetched = tokio::select! {
        fetched = store.get_range(&request, &mut landing) => fetched,
        () = stop.notified() => Ok(()),
    };
    let written = landing.finish();
    drop(permit);
    fetched?;
    Ok((index, written.map_err(Error::local("write", path))?))
}
