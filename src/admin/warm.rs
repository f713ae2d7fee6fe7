//! Brings what is below some paths to the disk, or what is known of it into memory: walks by the listings and reads several objects at once
//! through the reader's own windows, so that whoever reads them at the same time costs no second request. Invariants: what is on the disk
//! already is not asked for again, so that it can be ended and begun anew at any time; dropping the future ends it; memory holds the names of
//! a bounded number of objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::protocol::{InnerPath, Progress, Warmed, Warming};
use crate::reader::{ReadError, Reader, WarmError};
use crate::store::{ErrorKind, Key, ObjectMeta};
use crate::vfs::{Error, Names};

/// Objects that are found ahead of those that are being brought, so that it can be said how much there is.
const AHEAD: usize = 10_000;

/// Failures that are told with their reason.
const TOLD: usize = 10;

/// Objects at once at most, whoever asks for more: each holds a window of the budget.
const MOST_AT_ONCE: usize = 256;

/// What was done until now, for who looks on.
#[derive(Debug, Default)]
pub struct Tally {
    found_objects: AtomicU64,
    found_bytes: AtomicU64,
    objects: AtomicU64,
    bytes: AtomicU64,
    there_bytes: AtomicU64,
    failed_objects: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Tally {
    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress {
            found_objects: self.found_objects.load(Relaxed),
            found_bytes: self.found_bytes.load(Relaxed),
            objects: self.objects.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            there_bytes: self.there_bytes.load(Relaxed),
            failed_objects: self.failed_objects.load(Relaxed),
        }
    }

    fn on_failure(&self, key: &Key, reason: &str) {
        self.failed_objects.fetch_add(1, Relaxed);
        let mut failures = self.failures.lock();
        if failures.len() < TOLD {
            failures.push(format!("{key}: {reason}"));
        }
    }
}

/// Warms what is at or below `paths`, and keeps `tally` of it.
///
/// # Errors
/// When nothing can be kept here, or no more, in words for people. What fails object by object is in what it returns.
pub async fn warm(names: &Arc<Names>, reader: &Reader, paths: Vec<InnerPath>, how: Warming, tally: &Arc<Tally>) -> Result<Warmed, String> {
    if !how.metadata_only && !reader.has_disk() {
        return Err("it reads direct (--read-mode), so there is no disk to fill; --metadata-only fills its metadata cache".into());
    }
    let job = Arc::new(Job { names: Arc::clone(names), reader: reader.clone(), how, tally: Arc::clone(tally), stop: Mutex::default() });
    let (found, objects) = mpsc::channel(AHEAD);
    let objects = futures::stream::unfold(objects, |mut objects| async move { objects.recv().await.map(|key| (key, objects)) });
    let at_once = how.parallel.clamp(1, MOST_AT_ONCE);
    let bringing = objects.for_each_concurrent(at_once, |key| Arc::clone(&job).on_found(key));
    let (is_full, ()) = tokio::join!(Arc::clone(&job).find(paths, found), bringing);
    let stop = job.stop.lock().take();
    match stop {
        Some(reason) => Err(reason),
        None => Ok(Warmed { progress: tally.progress(), failures: tally.failures.lock().clone(), is_full: is_full? }),
    }
}

/// What all of it shares.
struct Job {
    names: Arc<Names>,
    reader: Reader,
    how: Warming,
    tally: Arc<Tally>,
    /// Why nothing more can be kept at all.
    stop: Mutex<Option<String>>,
}

enum Failure {
    /// Nothing more can be kept at all.
    NoRoom,
    Object(String),
}

impl Job {
    /// Sends the objects at or below `paths` to `found`. True: it ended at the bound of bytes.
    async fn find(self: Arc<Self>, paths: Vec<InnerPath>, found: mpsc::Sender<Key>) -> Result<bool, String> {
        let tally = &self.tally;
        for path in paths {
            let mut tree = self.names.tree(path.as_bytes()).map_err(|_| format!("{path:?} cannot be a path in the bucket"))?;
            while let Some((key, size)) = tree.next().await {
                let size = match size {
                    Ok(size) => size,
                    Err(error) => {
                        tally.on_failure(&key, &chain(&error));
                        continue;
                    }
                };
                if self.how.max_bytes.is_some_and(|most| tally.found_bytes.load(Relaxed).saturating_add(size) > most) {
                    return Ok(true);
                }
                tally.found_objects.fetch_add(1, Relaxed);
                tally.found_bytes.fetch_add(size, Relaxed);
                if self.stop.lock().is_some() || found.send(key).await.is_err() {
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    async fn on_found(self: Arc<Self>, key: Key) {
        // What was found before the disk refused is drained.
        if self.stop.lock().is_some() {
            return;
        }
        match self.bring(&key).await {
            Ok(()) => {
                self.tally.objects.fetch_add(1, Relaxed);
            }
            Err(Failure::NoRoom) => *self.stop.lock() = Some(format!("{key}: the disk takes no more (its bounds, or the log, say why)")),
            Err(Failure::Object(reason)) => self.tally.on_failure(&key, &reason),
        }
    }

    async fn bring(&self, key: &Key) -> Result<(), Failure> {
        let failed = |error: Error| Failure::Object(chain(&error));
        let meta = self.names.object(key, !self.how.metadata_only).await.map_err(failed)?;
        if self.how.metadata_only {
            return Ok(());
        }
        let mut brought = read(&self.reader, &meta, &self.tally).await;
        if matches!(&brought, Err(WarmError::Read(ReadError::Store(error))) if error.kind == ErrorKind::Replaced) {
            // Since it was listed.
            let meta = self.names.object_now(key).await.map_err(failed)?;
            brought = read(&self.reader, &meta, &self.tally).await;
        }
        brought.map_err(|error| match error {
            WarmError::NoRoom => Failure::NoRoom,
            // Which object it was is said anyway.
            WarmError::Read(ReadError::Store(error)) => Failure::Object(error.reason().to_string()),
            error => Failure::Object(chain(&error)),
        })
    }
}

async fn read(reader: &Reader, meta: &ObjectMeta, tally: &Tally) -> Result<(), WarmError> {
    let heard = AtomicU64::new(0);
    let hear = |bytes| {
        heard.fetch_add(bytes, Relaxed);
        tally.bytes.fetch_add(bytes, Relaxed);
    };
    // Only what became whole counts in the end.
    let warmed = reader.warm(meta, &hear).await.inspect_err(|_| {
        tally.bytes.fetch_sub(heard.load(Relaxed), Relaxed);
    })?;
    tally.there_bytes.fetch_add(warmed.there_bytes, Relaxed);
    Ok(())
}

/// An error with its reasons on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(reason) = next {
        let words = reason.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = reason.source();
    }
    text
}
