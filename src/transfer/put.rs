//! A file or a stream into one object: one request, or the parts of an upload side by side. Invariant: the object appears whole or not at
//! all, and an upload that was begun is completed or aborted, also when it is stopped, unless a checkpoint goes on with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};

use super::bandwidth::{self, Bandwidth};
use super::gate::Gate;
use super::plan::{Parallel, Plan};
use super::sent::Sent;
use super::source::{Origin, Piece, Source};
use super::{Error, OnBytes, Result};
use crate::budget::Budget;
use crate::store::{self, Condition, ErrorKind, Headers, Key, ObjectStore, Part, PutRequest, Upload, UploadRequest};

/// One object to be made.
#[derive(Clone)]
pub struct Putting {
    pub store: Arc<dyn ObjectStore>,
    pub budget: Arc<Budget>,
    pub plan: Plan,
    /// The parts of a stream have one size, too.
    pub equal_parts: bool,
    pub parallel: Parallel,
    pub headers: Headers,
    /// Which bucket, for those who go on with it.
    pub location: String,
    pub checkpoints: Option<PathBuf>,
    /// None: as fast as it gets.
    pub bandwidth: Option<Arc<Bandwidth>>,
    /// Told of bytes that the store has.
    pub on_bytes: OnBytes,
    /// Turns true when it is to end early.
    pub stop: watch::Receiver<bool>,
}

impl fmt::Debug for Putting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Putting").field("plan", &self.plan).field("location", &self.location).finish_non_exhaustive()
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    pub bytes: u64,
    /// Of them, those that an earlier run had sent.
    pub resumed_bytes: u64,
    /// 0: it was one request.
    pub parts: u32,
}

/// Makes the object `key` out of `origin`, which `path` names.
///
/// # Errors
/// What store or disk answer, or [`Error::Stopped`]. Then nothing of it stays in the bucket but what a checkpoint knows of.
pub async fn put(how: &Putting, key: &Key, origin: Origin, path: &Path) -> Result<Put> {
    // What was read of a stream is gone.
    let again = if let Origin::File(file) = &origin { Some(Origin::File(Arc::clone(file))) } else { None };
    match (put_once(how, key, origin, path).await, again) {
        (Err(Error::Store(error)), Some(origin)) if error.kind == ErrorKind::ChecksumRefused => put_once(how, key, origin, path).await,
        (result, _) => result,
    }
}

async fn put_once(how: &Putting, key: &Key, origin: Origin, path: &Path) -> Result<Put> {
    let mut stopped = how.stop.clone();
    // Whoever could say so is gone: it is not to be stopped any more.
    let stop = async {
        if stopped.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::pin!(stop);
    let mut source = block_in_place(|| Source::open(origin, path, &how.plan, &how.budget))?;
    if how.equal_parts {
        source.keep_part_size();
    }
    let mut sent = block_in_place(|| checkpoint(how, key, &source, path))?;
    let resumed = match &mut sent {
        Some(sent) => sent.resume(&*how.store, key).await?,
        None => None,
    };
    if let Some((_, there)) = &resumed {
        source.skip(there.iter().map(|part| part.number).collect());
    }
    let first =
        tokio::select! { first = source.next(&how.budget) => first?, () = &mut stop => return Err(Error::Stopped { is_kept: false }) };
    let (upload, there) = match (resumed, first.as_ref()) {
        (Some(resumed), _) => resumed,
        (None, Some(piece)) if source.is_at_end() && sent.is_none() => {
            source.check()?;
            return tokio::select! { put = whole(how, key, piece) => put, () = &mut stop => Err(Error::Stopped { is_kept: false }) };
        }
        // Not given up before it is answered: nobody would know the upload that came of it.
        (None, _) => (how.store.create_upload(&UploadRequest::new(key, &how.headers)).await?, Vec::new()),
    };
    let ended = send_all(how, &upload, there, first, &mut source, sent.as_mut(), stop).await;
    let is_kept = ended.as_ref().is_err_and(|error| sent.is_some() && is_resumable(error));
    if ended.is_err() && !is_kept {
        // What failed is told; that this failed too changes nothing that can be done.
        let _ = how.store.abort_upload(&upload).await;
    }
    if let Some(sent) = sent.filter(|_| !is_kept) {
        sent.remove();
    }
    how.store.settle().await;
    ended.map_err(|error| match error {
        Error::Stopped { .. } => Error::Stopped { is_kept },
        error => error,
    })
}

/// Only what is sent in parts can be gone on with, and only a file is the same in the next run.
fn checkpoint(how: &Putting, key: &Key, source: &Source, path: &Path) -> Result<Option<Sent>> {
    let (Some(dir), Some(version)) = (&how.checkpoints, source.version()) else { return Ok(None) };
    if version.size <= how.plan.part_bytes {
        return Ok(None);
    }
    Sent::open(dir, &how.location, key, version, how.plan.part_bytes, path).map(Some)
}

/// Whether the next run may have more luck with the same upload.
fn is_resumable(error: &Error) -> bool {
    match error {
        Error::Store(error) => !matches!(
            error.kind,
            ErrorKind::NotFound | ErrorKind::Replaced | ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::ChecksumRefused
        ),
        // The file changed, or cannot be read.
        Error::Local { .. } | Error::Checksum { .. } => false,
        Error::Stopped { .. } | Error::Memory(_) => true,
    }
}

async fn whole(how: &Putting, key: &Key, piece: &Piece) -> Result<Put> {
    let bytes = piece.body.len() as u64;
    bandwidth::take(how.bandwidth.as_deref(), bytes).await;
    let (headers, condition) = (how.headers.clone(), Condition::Any);
    how.store.put(&PutRequest { key: key.clone(), body: piece.body.clone(), headers, condition }).await?;
    (how.on_bytes)(bytes);
    Ok(Put { bytes, resumed_bytes: 0, parts: 0 })
}

/// Sends the parts that are not there, and makes the object of all.
async fn send_all(
    how: &Putting,
    upload: &Upload,
    there: Vec<Part>,
    first: Option<Piece>,
    source: &mut Source,
    mut sent: Option<&mut Sent>,
    stop: impl Future<Output = ()>,
) -> Result<Put> {
    if let Some(sent) = sent.as_mut().filter(|_| there.is_empty()) {
        sent.begin(upload)?;
    }
    let resumed_bytes = there.iter().map(|part| part.size).sum();
    (how.on_bytes)(resumed_bytes);
    let mut running = JoinSet::new();
    let sending = send(how, upload, first, source, &mut running, |part| sent.as_mut().map_or(Ok(()), |sent| sent.add(part)));
    let done = tokio::select! { done = sending => done, () = stop => Err(Error::Stopped { is_kept: false }) };
    // A part that arrives after the abort would be kept for ever.
    running.shutdown().await;
    let mut parts = there;
    parts.extend(done?);
    source.check()?;
    parts.sort_unstable_by_key(|part| part.number);
    how.store.complete_upload(upload, &parts, &Condition::Any).await?;
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    Ok(Put { bytes: parts.iter().map(|part| part.size).sum(), resumed_bytes, parts: count })
}

/// Sends parts, as many at a time as there should be.
async fn send(
    how: &Putting,
    upload: &Upload,
    first: Option<Piece>,
    source: &mut Source,
    running: &mut JoinSet<store::Result<Part>>,
    mut sent: impl FnMut(&Part) -> Result<()>,
) -> Result<Vec<Part>> {
    let gate = Gate::new(how.parallel, how.plan.requests);
    let sending = async {
        let (mut parts, mut next) = (Vec::new(), first);
        loop {
            tokio::select! {
                permit = gate.enter(), if next.is_some() => {
                    let Some(piece) = next.take() else { continue };
                    let (how, upload, moved) = (how.clone(), upload.clone(), gate.moved());
                    running.spawn(async move {
                        bandwidth::take(how.bandwidth.as_deref(), piece.body.len() as u64).await;
                        let part = how.store.upload_part(&upload, piece.number, piece.body.into()).await?;
                        *moved.lock() += part.size;
                        (how.on_bytes)(part.size);
                        drop(permit);
                        Ok(part)
                    });
                    // Those that run give their memory back meanwhile.
                    next = source.next(&how.budget).await?;
                }
                Some(part) = running.join_next() => {
                    let part = part.expect("a request does not panic, and nobody else aborts it")?;
                    sent(&part)?;
                    parts.push(part);
                }
                else => return Ok(parts),
            }
        }
    };
    tokio::select! { sent = sending => sent, () = gate.watch() => unreachable!("it watches for ever") }
}
