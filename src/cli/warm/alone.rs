//! Warming without a mount: store, disk and reader in this process, for as long as it takes. Other mounts may use the disk meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admin::{InnerPath, Progress, Tally, Warmed, Warming, warm as warm_all};
use crate::budget::Budget;
use crate::cli::Failure;
use crate::cli::flags::DiskFlags;
use crate::cli::remote::{refused, runtime};
use crate::config::Preload;
use crate::metrics::Metrics;
use crate::reader::Reader;
use crate::spill::{Identity, Spill};
use crate::store::{self, Key, Location};
use crate::vfs::Names;

/// How often the disk is looked after and progress is told.
const EVERY: Duration = Duration::from_secs(1);

/// A read waits at most this much longer than the store may take with all its retries.
const BEYOND_REQUEST: Duration = Duration::from_secs(10);

/// Warms paths in a bucket that is written as `s3://bucket`.
pub fn warm(
    bucket: &str,
    config: Option<&str>,
    flags: &DiskFlags,
    paths: Vec<InnerPath>,
    how: Warming,
    on_progress: impl FnMut(Progress),
) -> Result<Warmed, Failure> {
    let preload = Preload::gather(&flags.input(config, vec![bucket.into()]))?;
    let location = Location::describe(&preload.store);
    let identity = Identity { endpoint: location.endpoint(), bucket: preload.store.bucket.clone() };
    let spill = Spill::open(&preload.directory, preload.bounds, identity).map_err(|error| {
        Failure::usage(format!("cannot use --spill-dir {}: {error}; name another directory", preload.directory.display()))
    })?;
    let runtime = runtime()?;
    let warmed = runtime.block_on(in_runtime(&preload, location, spill, paths, how, on_progress));
    // What nobody waits for any more would keep it.
    runtime.shutdown_background();
    warmed
}

async fn in_runtime(
    preload: &Preload,
    location: Location,
    spill: Spill,
    paths: Vec<InnerPath>,
    how: Warming,
    mut on_progress: impl FnMut(Progress),
) -> Result<Warmed, Failure> {
    let failed = |error: store::Error| refused("read", &location, &error);
    let metrics = Arc::new(Metrics::default());
    let store = store::open(&preload.store, Arc::clone(&metrics)).await.map_err(failed)?;
    let first = paths.first().map_or(&b""[..], InnerPath::as_bytes);
    store::probe(&store, &Key::from(first.strip_prefix(b"/").unwrap_or(first))).await.map_err(failed)?;
    let scanned = spill.clone();
    // Before that nothing is added.
    let _ = tokio::task::spawn_blocking(move || scanned.scan()).await;
    let budget = Budget::new(&preload.budget);
    let deadline = preload.store.request_timeout + BEYOND_REQUEST;
    let reader = Reader::with_spill(store.clone(), budget, metrics, preload.reader.clone(), deadline, spill.clone());
    let names = Names::new(store, preload.vfs.clone());
    let tally = Arc::new(Tally::default());
    let mut warming = Box::pin(warm_all(&names, &reader, paths, how, &tally));
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            warmed = &mut warming => return warmed.map_err(Failure::internal),
            _ = ticks.tick() => {
                reader.on_time();
                let spill = spill.clone();
                let _ = tokio::task::spawn_blocking(move || spill.on_time(Instant::now())).await;
                on_progress(tally.progress());
            }
        }
    }
}
