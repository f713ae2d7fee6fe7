//! The disk of a mount: where it lies, and the task that keeps it inside its bounds. What is on it is the business of the spill. Invariant: a mount
//! has a disk only where somebody named one or its reads need one.

use std::time::Instant;

use tempfile::TempDir;
use tokio::time::MissedTickBehavior;

use super::{Error, HOUSEKEEPING};
use crate::config::Settings;
use crate::reader::ReadMode;
use crate::spill::{Bounds, Identity, Spill};
use crate::store::Location;

/// A place for what is read where nobody named one, as ossfs has it without use_cache: it goes with the mount.
pub(super) fn private_directory(settings: &Settings) -> Result<Option<TempDir>, Error> {
    if settings.reader.mode == ReadMode::Direct || settings.writer.staging.dir.is_some() {
        return Ok(None);
    }
    let made = tempfile::Builder::new().prefix("windlass-").tempdir();
    made.map(Some).map_err(|source| Error::Spill { dir: std::env::temp_dir(), source })
}

/// The disk: for what is read, and so that what is staged counts together with what other mounts keep there.
pub(super) fn open_spill(
    settings: &Settings,
    location: &Location,
    private: Option<&TempDir>,
    notes: &mut Vec<String>,
) -> Result<Option<Spill>, Error> {
    let options = &settings.writer.staging;
    let Some(dir) = options.dir.as_deref().or(private.map(TempDir::path)) else { return Ok(None) };
    let bounds = Bounds { max: options.max, ensure_free: options.ensure_free, free_ratio: options.free_ratio };
    let identity = Identity { endpoint: location.endpoint(), bucket: settings.store.bucket.clone() };
    match Spill::open(dir, bounds, identity) {
        Ok(spill) => Ok(Some(spill)),
        // Who changes nothing in the middle of files needs no disk.
        Err(error) if settings.reader.mode == ReadMode::Direct => {
            let dir = dir.display();
            notes.push(format!(
                "cannot use spill-dir {dir}: {error}; only files that are written front to back can be written: name another"
            ));
            Ok(None)
        }
        Err(source) => Err(Error::Spill { dir: dir.to_owned(), source }),
    }
}

/// Looks through the disk once, then keeps it inside its bounds.
pub(super) async fn keep_disk(spill: Spill) {
    let first = spill.clone();
    let _ = tokio::task::spawn_blocking(move || first.scan()).await;
    let mut ticks = tokio::time::interval(HOUSEKEEPING);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let spill = spill.clone();
        let _ = tokio::task::spawn_blocking(move || spill.on_time(Instant::now())).await;
    }
}
