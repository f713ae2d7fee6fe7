//! One object into one file: parts fetched side by side, each written to its place, checked, and only then given its name. Invariant: all
//! requests are for the one version that was told.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinSet, block_in_place};

use super::bandwidth::{self, Bandwidth};
use super::fetched::Fetched;
use super::gate::Gate;
use super::landing::{Landed, Landing, piece};
use super::plan::{Parallel, Plan};
use super::stream::check;
use super::target::{Target, keep_names};
use super::{Error, OnBytes, Result};
use crate::budget::Budget;
use crate::store::{
    self, Checking, Crc64, Details, ErrorKind, Mismatch, ObjectMeta, ObjectStore, ObjectSum, Op, Part, Polynomial, RangeRequest,
};
use crate::sys::Window;

/// Bytes of a file that are read back at once.
const READ_BACK: usize = 1 << 20;

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
    /// The directory that the file is made in, held open; a link in its place is replaced. Without it the path is opened, and what a link at its
    /// end leads to is replaced.
    pub directory: Option<Arc<OwnedFd>>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sum {
    None,
    Known(Crc64),
    /// One that cannot be put together out of those of parts.
    Told(ObjectSum),
    /// Not known yet: the sum of an object that takes one request comes with it.
    Unknown,
    /// There is one of that kind. It is asked for while the bytes come.
    Ask(Polynomial),
}

impl From<&Details> for Wanted {
    fn from(details: &Details) -> Self {
        let sum = match (details.crc64, &details.sum) {
            (_, None) => Sum::None,
            (Some(crc), Some(_)) => Sum::Known(crc),
            (None, Some(sum)) => Sum::Told(sum.clone()),
        };
        Self { meta: details.meta.clone(), sum }
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
/// What store or disk answer, or that the sum is another one, also when it was all fetched once more. Then nothing is under that name that was not
/// there before.
pub async fn get(how: &Getting, wanted: &Wanted, range: Range<u64>, path: &Path) -> Result<Got> {
    match get_once(how, wanted, range.clone(), path, None).await {
        Err(Error::Checksum { key, mismatch }) => {
            tracing::warn!(%key, expected = %mismatch.expected, actual = %mismatch.actual, "what arrived is not the object, fetching it again");
            get_once(how, wanted, range, path, Some(&mismatch)).await
        }
        result => result,
    }
}

async fn get_once(how: &Getting, wanted: &Wanted, range: Range<u64>, path: &Path, before: Option<&Mismatch>) -> Result<Got> {
    let meta = &wanted.meta;
    let is_one_part = range.end - range.start <= how.plan.part_bytes;
    // Nothing has no sum to be compared.
    let sum = match &wanted.sum {
        _ if range != (0..meta.size) || range.is_empty() => Sum::None,
        // The slices of a limited fetch are several requests.
        Sum::Unknown if !is_one_part || how.bandwidth.is_some() => details_of(&*how.store, meta).await?,
        sum => sum.clone(),
    };
    let whole = sum == Sum::Unknown;
    // What is one request is not gone on with.
    let checkpoints = how.checkpoints.as_ref().filter(|_| !is_one_part);
    // Of what nobody compares no sum is made.
    let polynomial = sum.polynomial().or_else(|| checkpoints.map(|_| Polynomial::Nvme));
    let open = |dir: &PathBuf| {
        let polynomial = polynomial.unwrap_or(Polynomial::Nvme);
        Fetched::open(dir, &how.location, meta, range.clone(), how.plan.part_bytes, polynomial, path)
    };
    let mut fetched = block_in_place(|| checkpoints.map(open).transpose())?;
    let name = fetched.as_ref().map(|fetched| &*fetched.name);
    let target = block_in_place(|| Target::open(path, range.end - range.start, name, how.directory.as_ref()))?;
    // Only for a size that the disk has room for: a store may report any.
    let parts = how.plan.cut(range.clone());
    if let Some(fetched) = &mut fetched {
        block_in_place(|| fetched.verify(&target.file, range.start, &parts));
    }
    let done = fetched.as_ref().map(|fetched| fetched.done.clone()).unwrap_or_default();
    let resumed_bytes = done.keys().map(|&index| parts[index].end - parts[index].start).sum();
    (how.on_bytes)(resumed_bytes);
    let mut sums: Vec<Option<u64>> = (0..parts.len()).map(|index| done.get(&index).copied()).collect();
    let missing: Vec<_> = (0..parts.len()).filter(|index| !done.contains_key(index)).map(|index| (index, parts[index].clone())).collect();
    let mut checked = None;
    let landed = |index: usize, landed: Landed| {
        sums[index] = landed.sum;
        checked = landed.checked;
        fetched.as_mut().zip(landed.sum).map_or(Ok(()), |(fetched, sum)| fetched.add(index, sum))
    };
    let fetching = fetch_all(how, meta, (&target.file, path), missing, range.start, Wants { polynomial, whole }, landed);
    let ((), crc, ()) = tokio::try_join!(fetching, sum.value(&*how.store, meta), target.reserve())?;
    if let Sum::Told(told) = &sum {
        checked = check_file(&target.file, told).await.map_err(Error::local("read", path))?;
    }
    let sums: Vec<Part> = parts.iter().zip(sums).map(|(part, sum)| Part { crc64: sum, ..piece(part.end - part.start, 0) }).collect();
    let wrong = match &checked {
        Some(Err(mismatch)) if !before.is_some_and(|before| mismatch.is_of_the_tag(before)) => {
            Err(Error::Checksum { key: meta.key.clone(), mismatch: Box::new(mismatch.clone()) })
        }
        _ => crc.map_or(Ok(()), |crc| check(crc, &sums, &meta.key)),
    };
    if let Err(error) = wrong {
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
    Ok(Got { bytes: range.end - range.start, resumed_bytes, is_checked: crc.is_some() || checked == Some(Ok(())) })
}

impl Sum {
    fn polynomial(&self) -> Option<Polynomial> {
        match self {
            Self::None | Self::Told(_) | Self::Unknown => None,
            Self::Known(crc) => Some(crc.polynomial),
            Self::Ask(polynomial) => Some(*polynomial),
        }
    }

    async fn value(&self, store: &dyn ObjectStore, meta: &ObjectMeta) -> Result<Option<Crc64>> {
        let polynomial = match self {
            Self::None | Self::Told(_) | Self::Unknown => return Ok(None),
            Self::Known(crc) => return Ok(Some(*crc)),
            Self::Ask(polynomial) => *polynomial,
        };
        match details_of(store, meta).await? {
            Self::Known(crc) if crc.polynomial == polynomial => Ok(Some(crc)),
            _ => Ok(None),
        }
    }
}

/// What a HEAD tells of the sum of a version that was listed.
async fn details_of(store: &dyn ObjectStore, meta: &ObjectMeta) -> Result<Sum> {
    let details = store.details(&meta.key).await?;
    if details.meta.etag != meta.etag {
        return Err(store::Error::new(ErrorKind::Replaced, Op::Head, &meta.key, "it was listed as another version").into());
    }
    Ok(Wanted::from(&details).sum)
}

/// Compares all of a file that was just written, which is in the page cache, with a sum that only grows from its front.
async fn check_file(file: &Arc<File>, told: &ObjectSum) -> io::Result<Option<Result<(), Mismatch>>> {
    let Some(mut checking) = Checking::against(told) else { return Ok(None) };
    let file = Arc::clone(file);
    let reading = tokio::task::spawn_blocking(move || {
        let (mut buffer, mut at) = (vec![0; READ_BACK], 0);
        loop {
            match file.read_at(&mut buffer, at)? {
                0 => return Ok(Some(checking.finish())),
                n => {
                    checking.add(&buffer[..n]);
                    at += n as u64;
                }
            }
        }
    });
    reading.await.map_err(io::Error::other)?
}

/// What is wanted of the bytes as they come.
#[derive(Clone, Copy)]
struct Wants {
    polynomial: Option<Polynomial>,
    /// The one part is all of the object, and its answer tells the sum.
    whole: bool,
}

/// Fetches parts, as many at a time as the plan or the knee says, and tells the sum of each.
async fn fetch_all(
    how: &Getting,
    meta: &ObjectMeta,
    (file, path): (&Arc<File>, &Path),
    parts: Vec<(usize, Range<u64>)>,
    origin: u64,
    wants: Wants,
    mut landed: impl FnMut(usize, Landed) -> Result<()>,
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
                    let landing = Landing::new(Arc::clone(file), Window::new(lease, len), part.start - origin, size, wants.polynomial, on_bytes);
                    let landing = if wants.whole { landing.checked() } else { landing };
                    let request = RangeRequest { key: meta.key.clone(), range: part, etag: meta.etag.clone() };
                    running.spawn(fetch(how.clone(), request, landing, index, path.to_owned(), permit));
                }
                Some(done) = running.join_next() => {
                    let (index, part) = done.expect("a fetch does not panic, and nobody else aborts it")?;
                    landed(index, part)?;
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
) -> Result<(usize, Landed)> {
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
