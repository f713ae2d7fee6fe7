//! One object into one file: parts fetched side by side, each written to its place, checked, and only then given its name. Invariant: all
//! requests are for the one version that was told.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinSet, block_in_place};

use super::bandwidth::{self, Bandwidth};
use super::fetched::Fetched;
use super::gate::Gate;
use super::landing::{Landing, piece};
use super::plan::{Parallel, Plan};
use super::stream::check;
use super::target::{Target, keep_names};
use super::{Error, OnBytes, Result};
use crate::budget::Budget;
use crate::store::{self, Crc64, Details, ErrorKind, ObjectMeta, ObjectStore, Op, Part, Polynomial, RangeRequest};
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
    /// None: as fast as it gets.
    pub bandwidth: Option<Arc<Bandwidth>>,
    /// Told of bytes that were written.
    pub on_bytes: OnBytes,
    /// Directories with new names, which whoever has them all makes survive a crash. None: each does so itself.
    pub named: Option<Arc<Mutex<BTreeSet<PathBuf>>>>,
}

impl fmt::Debug for Getting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Getting").field("plan", &self.plan).field("location", &self.location).finish_non_exhaustive()
    }
}

/// One version of an object.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub meta: ObjectMeta,
    pub sum: Sum,
}

/// The sum that the store keeps of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    None,
    Known(Crc64),
    /// There is one of that kind. It is asked for while the bytes come.
    Ask(Polynomial),
}

impl From<&Details> for Wanted {
    fn from(details: &Details) -> Self {
        Self { meta: details.meta.clone(), sum: details.crc64.map_or(Sum::None, Sum::Known) }
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
pub async fn get(how: &Getting, wanted: &Wanted, range: Range<u64>, path: &Path) -> Result<Got> {
    let meta = &wanted.meta;
    // Nothing has no sum to be compared.
    let sum = if range == (0..meta.size) && !range.is_empty() { wanted.sum } else { Sum::None };
    let parts = how.plan.cut(range.clone());
    // What is one request is not gone on with.
    let checkpoints = how.checkpoints.as_ref().filter(|_| parts.len() > 1);
    // Of what nobody compares no sum is made.
    let polynomial = sum.polynomial().or_else(|| checkpoints.map(|_| Polynomial::Nvme));
    let open = |dir: &PathBuf| {
        let polynomial = polynomial.unwrap_or(Polynomial::Nvme);
        Fetched::open(dir, &how.location, meta, range.clone(), how.plan.part_bytes, polynomial, path)
    };
    let mut fetched = block_in_place(|| checkpoints.map(open).transpose())?;
    let name = fetched.as_ref().map(|fetched| &*fetched.name);
    let target = block_in_place(|| Target::open(path, range.end - range.start, name))?;
    if let Some(fetched) = &mut fetched {
        block_in_place(|| fetched.verify(&target.file, range.start, &parts));
    }
    let done = fetched.as_ref().map(|fetched| fetched.done.clone()).unwrap_or_default();
    let resumed_bytes = done.keys().map(|&index| parts[index].end - parts[index].start).sum();
    (how.on_bytes)(resumed_bytes);
    let mut sums: Vec<Option<u64>> = (0..parts.len()).map(|index| done.get(&index).copied()).collect();
    let missing: Vec<_> = (0..parts.len()).filter(|index| !done.contains_key(index)).map(|index| (index, parts[index].clone())).collect();
    let landed = |index: usize, sum: Option<u64>| {
        sums[index] = sum;
        fetched.as_mut().zip(sum).map_or(Ok(()), |(fetched, sum)| fetched.add(index, sum))
    };
    let fetching = fetch_all(how, meta, (&target.file, path), missing, range.start, polynomial, landed);
    let ((), crc, ()) = tokio::try_join!(fetching, sum.value(&*how.store, meta), target.reserve())?;
    let sums: Vec<Part> = parts.iter().zip(sums).map(|(part, sum)| Part { crc64: sum, ..piece(part.end - part.start, 0) }).collect();
    if let Some(Err(error)) = crc.map(|crc| check(crc, &sums, &meta.key)) {
        // What is wrong is not to be gone on with.
        target.discard();
        fetched.into_iter().for_each(Fetched::remove);
        return Err(error);
    }
    block_in_place(|| {
        target.finish(meta.modified, |directory| match &how.named {
            None => keep_names(directory),
            Some(named) => {
                named.lock().insert(directory.to_owned());
                Ok(())
            }
        })
    })?;
    fetched.into_iter().for_each(Fetched::remove);
    Ok(Got { bytes: range.end - range.start, resumed_bytes, is_checked: crc.is_some() })
}

impl Sum {
    fn polynomial(self) -> Option<Polynomial> {
        match self {
            Self::None => None,
            Self::Known(crc) => Some(crc.polynomial),
            Self::Ask(polynomial) => Some(polynomial),
        }
    }

    async fn value(self, store: &dyn ObjectStore, meta: &ObjectMeta) -> Result<Option<Crc64>> {
        let polynomial = match self {
            Self::None => return Ok(None),
            Self::Known(crc) => return Ok(Some(crc)),
            Self::Ask(polynomial) => polynomial,
        };
        let details = store.details(&meta.key).await?;
        if details.meta.etag != meta.etag {
            return Err(store::Error::new(ErrorKind::Replaced, Op::Head, &meta.key, "it was listed as another version").into());
        }
        Ok(details.crc64.filter(|crc| crc.polynomial == polynomial))
    }
}

/// Fetches parts, as many at a time as the plan or the knee says, and tells the sum of each.
async fn fetch_all(
    how: &Getting,
    meta: &ObjectMeta,
    (file, path): (&Arc<File>, &Path),
    parts: Vec<(usize, Range<u64>)>,
    origin: u64,
    polynomial: Option<Polynomial>,
    mut landed: impl FnMut(usize, Option<u64>) -> Result<()>,
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
                    let request = RangeRequest { key: meta.key.clone(), range: part, etag: meta.etag.clone() };
                    running.spawn(fetch(how.clone(), request, landing, index, path.to_owned(), permit));
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
    how: Getting,
    request: RangeRequest,
    mut landing: Landing,
    index: usize,
    path: PathBuf,
    permit: OwnedSemaphorePermit,
) -> Result<(usize, Option<u64>)> {
    let stop = landing.stop();
    let fetched = tokio::select! {
        fetched = bandwidth::get_range(&*how.store, how.bandwidth.as_deref(), &request, &mut landing) => fetched,
        () = stop.notified() => Ok(()),
    };
    let written = landing.finish();
    drop(permit);
    fetched?;
    Ok((index, written.map_err(Error::local("write", path))?))
}
