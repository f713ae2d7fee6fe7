//! What the commands do to a mount. It knows no socket. Invariant: what waits for the kernel or looks through all that is known runs on a
//! thread of its own, and nothing waits for it but the answer.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::protocol::{Command, Done, InnerPath, Stats};
use super::warm::{Tally, warm};
use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::reader::Reader;
use crate::spill::Spill;
use crate::vfs::{Expired, Names};

/// Longest wait for the kernel to drop names: it waits for whoever looks something up in the same directory, which takes requests.
const KERNEL: Duration = Duration::from_secs(60);

/// How often it is looked whether the disk is counted.
const COUNTING: Duration = Duration::from_millis(50);

/// Has the kernel drop what it believes. Blocks.
pub type Forget = Box<dyn Fn(&Expired) + Send + Sync>;

/// The mount that is asked.
pub struct Subject {
    pub names: Arc<Names>,
    pub metrics: Arc<Metrics>,
    pub budget: Arc<Budget>,
    pub reader: Reader,
    /// None: nothing goes to a disk.
    pub spill: Option<Spill>,
    pub source: String,
    pub data_host: Option<String>,
    pub mountpoint: String,
    pub began: Instant,
    pub forget: Forget,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("source", &self.source).field("mountpoint", &self.mountpoint).finish_non_exhaustive()
    }
}

/// Does what `command` asks for, and keeps `tally` of how far it has come. Errors are words for people. Dropping the future ends what takes
/// long.
pub(super) async fn answer(subject: &Arc<Subject>, command: Command, tally: &Arc<Tally>) -> Result<Done, String> {
    match command {
        Command::Refresh { path, recursive } => refresh(subject, path, recursive).await,
        Command::Stats {} => Ok(Done::Stats(Box::new(stats(subject).await))),
        Command::Warm { paths, how } => {
            // A mount that began just now takes nothing before it knows what is there.
            while subject.spill.as_ref().is_some_and(Spill::is_counting) {
                tokio::time::sleep(COUNTING).await;
            }
            warm(&subject.names, &subject.reader, paths, how, tally).await.map(Done::Warmed)
        }
        Command::Evict { path } => evict(subject, path).await,
    }
}

async fn refresh(subject: &Arc<Subject>, path: InnerPath, recursive: bool) -> Result<Done, String> {
    let subject = Arc::clone(subject);
    let forgetting = tokio::task::spawn_blocking(move || {
        let expired =
            subject.names.expire_path(path.as_bytes(), recursive).map_err(|_| format!("{path:?} cannot be a path in the mount"))?;
        (subject.forget)(&expired);
        Ok(Done::Refreshed { kernel_entries: (expired.inodes.len() + expired.entries.len()) as u64 })
    });
    match tokio::time::timeout(KERNEL, forgetting).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(format!("the daemon failed: {error}")),
        Err(_) => Err(format!("the kernel was busy in that directory for {KERNEL:?} and may believe old names a little longer")),
    }
}

async fn evict(subject: &Arc<Subject>, path: InnerPath) -> Result<Done, String> {
    let spill = subject.spill.clone().ok_or("this mount keeps nothing on a disk")?;
    let key = subject.names.path_at(path.as_bytes()).map_err(|_| format!("{path:?} cannot be a path in the mount"))?;
    let evicting = tokio::task::spawn_blocking(move || match spill.forget(&key) {
        // Nothing of an object of that name: then it may be a directory.
        0 => spill.forget_below(&if key.is_prefix() { key } else { key.join(b"/") }),
        bytes => bytes,
    });
    evicting.await.map(|bytes| Done::Evicted { bytes }).map_err(|error| format!("the daemon failed: {error}"))
}

async fn stats(subject: &Subject) -> Stats {
    let Subject { names, metrics, budget, .. } = subject;
    // The account of the disk is in a file.
    let spill = subject.spill.clone().map(|spill| tokio::task::spawn_blocking(move || spill.stats()));
    let spill = match spill {
        Some(looking) => looking.await.ok(),
        None => None,
    };
    let of_spill = spill.map(|spill| [("spill_bytes", spill.bytes), ("spill_objects", spill.objects)]);
    let counted = spill.map(|spill| {
        [("spill_evicted_chunks", spill.evictions), ("spill_damaged_pieces", spill.damaged), ("spill_dropped_pieces", spill.dropped)]
    });
    let gauges = [
        ("budget_limit_bytes", budget.limit() as u64),
        ("budget_leased_bytes", budget.leased_bytes() as u64),
        ("budget_peak_bytes", budget.peak_bytes() as u64),
        ("kernel_inodes", names.known_inodes() as u64),
        ("hidden_objects", names.hidden_objects() as u64),
    ];
    let owned = |(name, value): (&str, u64)| (name.to_owned(), value);
    Stats {
        windlass: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        source: subject.source.clone(),
        data_host: subject.data_host.clone(),
        mountpoint: subject.mountpoint.clone(),
        uptime_seconds: subject.began.elapsed().as_secs_f64(),
        counters: metrics.all().into_iter().chain(counted.into_iter().flatten()).map(owned).collect(),
        gauges: gauges.into_iter().chain(of_spill.into_iter().flatten()).map(owned).collect(),
    }
}
