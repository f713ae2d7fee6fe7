//! A file or a stream into one object: one request, or the parts of an upload side by side. Invariant: the object appears whole or not at
//! all, and an upload that was begun is completed or aborted, also when it is stopped.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::gate::Gate;
use super::plan::{Parallel, Plan, stream_part_bytes};
use super::{Error, OnBytes, Result};
use crate::budget::{Budget, Lease};
use crate::store::{self, Condition, Headers, Key, MOST_PARTS, ObjectStore, Part, PutRequest, Upload};
use crate::sys::Window;

/// One object to be made.
#[derive(Clone)]
pub struct Putting {
    pub store: Arc<dyn ObjectStore>,
    pub budget: Arc<Budget>,
    pub plan: Plan,
    pub parallel: Parallel,
    pub headers: Headers,
    /// Told of bytes that the store has.
    pub on_bytes: OnBytes,
}

impl fmt::Debug for Putting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Putting").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Where the bytes come from.
pub enum Origin {
    /// So many, at their offsets.
    File(Arc<File>, u64),
    /// Nobody knows how many.
    Stream(Box<dyn Read + Send>),
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file, len) => f.debug_tuple("File").field(file).field(len).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    pub bytes: u64,
    /// 0: it was one request.
    pub parts: u32,
}

/// Makes the object `key` out of `origin`, which `path` names. Ends early when `stop` does.
///
/// # Errors
/// What store or disk answer, or [`Error::Stopped`]. Then nothing of it stays in the bucket.
pub async fn put(how: &Putting, key: &Key, origin: Origin, path: &Path, stop: impl Future<Output = ()>) -> Result<Put> {
    tokio::pin!(stop);
    let mut source = Source::new(origin, path, how);
    let first = tokio::select! { first = source.next(how) => first?.unwrap_or_default(), () = &mut stop => return Err(Error::Stopped) };
    if source.is_at_end() {
        source.check()?;
        let bytes = first.len() as u64;
        let request = PutRequest { key: key.clone(), body: first, headers: how.headers.clone(), condition: Condition::Any };
        tokio::select! { put = how.store.put(&request) => put?, () = &mut stop => return Err(Error::Stopped) };
        (how.on_bytes)(bytes);
        return Ok(Put { bytes, parts: 0 });
    }
    // Not given up before it is answered: nobody would know the upload that came of it.
    let upload = how.store.create_upload(key, &how.headers).await?;
    let mut running = JoinSet::new();
    let sent = tokio::select! {
        sent = send(how, &upload, first, &mut source, &mut running) => sent,
        () = &mut stop => Err(Error::Stopped),
    };
    // A part that arrives after the abort would be kept for ever.
    running.shutdown().await;
    let completed = match sent {
        Ok(parts) => complete(how, &upload, &parts).await,
        Err(error) => Err(error),
    };
    if completed.is_err() {
        // What failed is told; that this failed too changes nothing that can be done.
        let _ = how.store.abort_upload(&upload).await;
    }
    how.store.settle().await;
    completed
}

async fn complete(how: &Putting, upload: &Upload, parts: &[Part]) -> Result<Put> {
    how.store.complete_upload(upload, parts, &Condition::Any).await?;
    let parts_sent = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    Ok(Put { bytes: parts.iter().map(|part| part.size).sum(), parts: parts_sent })
}

/// Sends all parts, as many at a time as there should be.
async fn send(
    how: &Putting,
    upload: &Upload,
    first: Bytes,
    source: &mut Source,
    running: &mut JoinSet<store::Result<Part>>,
) -> Result<Vec<Part>> {
    let gate = Gate::new(how.parallel, how.plan.requests);
    let sending = async {
        let mut parts = Vec::new();
        let (mut next, mut number) = (Some(first), 0);
        loop {
            tokio::select! {
                permit = gate.enter(), if next.is_some() => {
                    let Some(body) = next.take() else { continue };
                    number += 1;
                    let (store, upload, told, moved) = (Arc::clone(&how.store), upload.clone(), Arc::clone(&how.on_bytes), gate.moved());
                    running.spawn(async move {
                        let part = store.upload_part(&upload, number, body).await?;
                        *moved.lock() += part.size;
                        told(part.size);
                        drop(permit);
                        Ok(part)
                    });
                    // Those that run give their memory back meanwhile.
                    next = source.next(how).await?;
                }
                Some(part) = running.join_next() => parts.push(part.expect("a request does not panic, and nobody else aborts it")?),
                else => break,
            }
        }
        source.check()?;
        parts.sort_unstable_by_key(|part: &Part| part.number);
        Ok(parts)
    };
    tokio::select! { sent = sending => sent, () = gate.watch() => unreachable!("it watches for ever") }
}

/// Bytes in the order of their parts.
struct Source {
    /// None while it is read, and for ever when that was given up.
    origin: Option<Origin>,
    path: PathBuf,
    at: u64,
    parts: u32,
    is_at_end: bool,
    largest: u64,
    /// The file as it was.
    file: Option<(Arc<File>, u64, Option<SystemTime>)>,
}

impl Source {
    fn new(origin: Origin, path: &Path, how: &Putting) -> Self {
        let file = match &origin {
            Origin::File(file, len) => Some((Arc::clone(file), *len, file.metadata().and_then(|found| found.modified()).ok())),
            Origin::Stream(_) => None,
        };
        // Half of the memory: one part is sent while the next is read.
        let largest = (how.budget.limit() as u64 / 2).max(how.plan.part_bytes);
        Self { origin: Some(origin), path: path.to_owned(), at: 0, parts: 0, is_at_end: false, largest, file }
    }

    fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// The next part, once there is memory for it; none after the last.
    async fn next(&mut self, how: &Putting) -> Result<Option<Bytes>> {
        if self.is_at_end {
            return Ok(None);
        }
        let failed = || Error::local("read", &self.path);
        if self.parts >= MOST_PARTS {
            return Err(failed()(io::Error::other("it does not fit into 10,000 parts: raise --part-size or --max-memory")));
        }
        let size = match self.file {
            Some((_, len, _)) => how.plan.part_bytes.min(len - self.at),
            None => stream_part_bytes(self.parts, how.plan.part_bytes, self.largest),
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let mut memory = Window::new(how.budget.lease(size).await.map_err(Error::Memory)?, size);
        let mut origin = self.origin.take().expect("only a read that was given up keeps it");
        let at = self.at;
        // A pipe may be silent for ever: whoever waits for this read is free to stop.
        let reading = tokio::task::spawn_blocking(move || {
            let read = fill(&mut origin, memory.bytes_mut(), at);
            (origin, memory, read)
        });
        let (origin, memory, read) = reading.await.expect("a read does not panic");
        let (read, ended) = read.map_err(failed())?;
        self.at += read as u64;
        self.parts += 1;
        self.is_at_end = ended;
        self.origin = Some(origin);
        Ok((read > 0).then(|| Bytes::from_owner(Body(memory)).slice(..read)))
    }

    /// What was read is what is there.
    fn check(&self) -> Result<()> {
        let Some((file, len, modified)) = &self.file else { return Ok(()) };
        let failed = || Error::local("read", &self.path);
        let found = file.metadata().map_err(failed())?;
        if found.len() != *len || found.modified().ok() != *modified {
            return Err(failed()(io::Error::other("it changed meanwhile: run it again")));
        }
        Ok(())
    }
}

/// Fills the buffer, and tells how far and whether that was the last of it.
fn fill(origin: &mut Origin, buffer: &mut [u8], at: u64) -> io::Result<(usize, bool)> {
    let stream = match origin {
        Origin::File(file, len) => {
            file.read_exact_at(buffer, at)?;
            return Ok((buffer.len(), at + buffer.len() as u64 >= *len));
        }
        Origin::Stream(stream) => stream,
    };
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Ok((filled, true)),
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((filled, false))
}

/// Memory of a part for as long as a request needs it.
struct Body(Window<Lease>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}
