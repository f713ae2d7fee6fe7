//! Composition root: store, reader, vfs and FUSE session of one mount, in this order up and in the other order down.
//! It decides nothing about reads or names. Invariant: whoever gets a [`Mounted`] has a mount that answers; whoever
//! gets an [`Error`] has nothing left behind.

mod attaching;
mod disk;
mod ending;
mod error;
mod leaving;
mod listening;
mod live;
mod outside;

use std::io;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::admin::{CounterFiles, Health, Listener, Observer, Pages, Server};
use crate::budget::Budget;
use crate::config::{MountTarget, Settings};
use crate::fuse::{Session, Tree};
use crate::handover::{Line, Wish};
use crate::metrics::Metrics;
use crate::reader::{ReadMode, Reader};
use crate::signals::Signals;
use crate::spill::Spill;
use crate::store::{self, Key, Location, ObjectStore, Switches};
use crate::vfs::{Edits, Files};
use crate::writer::Writer;
use attaching::{attach, left, names};
use disk::{keep_disk, open_spill, private_directory};
use outside::{bind_pages, serve_pages};

pub use error::{Consequence, Error, NOT_TLS, UNTRUSTED, advice, exit_code, refusal};

/// Housekeeping: streams that were left, idle memory.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Budget for which there is one thread of the runtime.
const MEMORY_OF_WORKER: usize = 8 << 20;

/// A mount that does not answer within this time does not work.
const ANSWER: Duration = Duration::from_secs(5);

/// A read waits at most this much longer than the store may take with all its retries.
const BEYOND_REQUEST: Duration = Duration::from_secs(10);

/// A mount that answers. Dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    runtime: Option<Runtime>,
    session: Arc<Session>,
    /// None: mounted read-only.
    edits: Option<Arc<Edits>>,
    /// How long writers are waited for at the end.
    drain: Duration,
    /// What it is made of, to be looked at.
    observer: Arc<Observer>,
    /// The directory of the spill where nobody named one.
    private: Option<TempDir>,
    /// Where it can be asked while it lives.
    control: Vec<Server>,
    /// What it serves over HTTP.
    pages: Option<Pages>,
    health: Arc<Health>,
    /// What it writes into files for those who look there.
    counters: Option<CounterFiles>,
    signals: Signals,
    /// What its user may not expect of it, see [`notes`](Mounted::notes).
    notes: Vec<String>,
    unmounted: bool,
    /// Who keeps it for the daemon after this one.
    line: Option<Arc<Line>>,
    /// What that one wishes.
    wishes: UnboundedReceiver<Wish>,
}

/// What somebody who mounted has handed over, besides the descriptor that the settings name.
#[derive(Debug, Default)]
pub struct Given {
    /// Clones of the descriptor, one for a thread.
    pub clones: Vec<OwnedFd>,
    /// What the daemon before agreed on with the kernel, where there was one.
    pub session: Option<Value>,
    /// What it had kept for the next.
    pub kept: Vec<OwnedFd>,
    /// Who keeps all of it.
    pub line: Option<Arc<Line>>,
}

/// Why a mount serves no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to end, or unmounted: [`unmount`](Mounted::unmount) is what comes next.
    Over,
    /// Another daemon goes on: [`leave`](Mounted::leave) is what comes next.
    Left,
    /// It cannot answer any more: [`fail`](Mounted::fail) is what comes next.
    Failed { reason: String },
}

/// Mounts what `settings` name and returns when the mount answers.
///
/// # Errors
/// Why it does not, with the likely fix. Nothing is left mounted.
pub fn start(settings: &Settings) -> Result<Mounted, Error> {
    start_with(settings, Given::default())
}

/// [`start`] with what was handed over.
///
/// # Errors
/// As [`start`]. What is mounted by others stays so.
pub fn start_with(settings: &Settings, mut given: Given) -> Result<Mounted, Error> {
    let (left, memory) = left(settings, &mut given)?.unzip();
    let (budget, metrics) = (Budget::new(&settings.budget), Arc::new(Metrics::default()));
    let runtime = runtime(budget.limit())?;
    let listener = settings.admin.metrics.as_ref().map(bind_pages).transpose()?;
    let (health, port) = (Arc::new(Health::default()), listener.as_ref().and_then(Listener::port));
    // From the beginning: probes ask before the bucket has answered.
    let pages = listener.map(|listener| serve_pages(listener, &health, &runtime)).transpose()?;
    let location = Location::describe(&settings.store);
    let mut notes = Vec::new();
    let (store, switches) = open_store(settings, &location, &metrics, &runtime, left.is_some(), &mut notes)?;
    let private = private_directory(settings)?;
    let spill = open_spill(settings, &location, private.as_ref(), &mut notes)?;
    let reader = reader(settings, &runtime, &store, &budget, &metrics, spill.clone());
    let names = names(settings, Arc::clone(&store), memory, given.line.is_some())?;
    let files = Files::new(Arc::clone(&names), reader.clone());
    let observer = Arc::new(Observer {
        names,
        metrics,
        budget,
        reader,
        spill,
        source: settings.source.to_string(),
        data_host: location.data_host().map(str::to_owned),
        mountpoint: settings.mountpoint.to_string(),
        began: Instant::now(),
        port,
    });
    let edits = (!settings.read_only).then(|| edits(settings, &runtime, &store, &location, &files, &observer));
    health.on_observer(Arc::clone(&observer));
    // From before there is something to unmount: whoever reads the ready line may send a signal at once.
    let signals = signals(settings, &runtime)?;
    if left.is_some() {
        let _runtime = runtime.enter();
        files.restore();
        if let Some(edits) = &edits {
            runtime.block_on(edits.restore());
        }
    }
    let tree =
        Tree { names: Arc::clone(&observer.names), files: Arc::clone(&files), edits: edits.clone(), observer: Arc::clone(&observer) };
    let memory = tree.names.memory().map_err(Error::process("keep what is open"))?;
    let wishes = listening::wishes(given.line.clone()).map_err(Error::process("listen to the keeper of the mount"))?;
    let line = given.line.clone();
    let session = Arc::new(attach(settings, tree, &runtime, (given, left), memory.as_ref())?);
    let mut mounted = Mounted {
        runtime: Some(runtime),
        session,
        edits,
        drain: settings.drain_timeout,
        observer,
        private,
        control: Vec::new(),
        pages,
        health,
        counters: None,
        signals,
        notes,
        unmounted: false,
        line,
        wishes,
    };
    mounted.keep_house(files);
    mounted.wait_for_answer(&settings.mountpoint)?;
    mounted.control = mounted.open_sockets(settings, switches)?;
    mounted.counters = mounted.write_counters(settings);
    mounted.health.on_ready();
    if let Some(edits) = mounted.edits.clone() {
        // Beside the mount: it may have to upload much.
        mounted.runtime().spawn(async move { edits.recover().await });
    }
    Ok(mounted)
}

/// One thread a core, and fewer where the `memory` is small. What they use of their stacks and of the allocator is not in the budget, and a
/// container of 256 MiB may see 128 cores.
fn runtime(memory: usize) -> Result<Runtime, Error> {
    let threads = thread::available_parallelism().map_or(2, usize::from).min((memory / MEMORY_OF_WORKER).max(2));
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().thread_name("windlass-io").build();
    runtime.map_err(Error::process("start the runtime"))
}

/// The bucket, once it has answered, and what can be switched about it. Where a daemon has served before, `goes_on`, nobody waits for the bucket: what
/// is in memory can be read, and the rest waits as it would have without another daemon.
fn open_store(
    settings: &Settings,
    location: &Location,
    metrics: &Arc<Metrics>,
    runtime: &Runtime,
    goes_on: bool,
    notes: &mut Vec<String>,
) -> Result<(Arc<dyn ObjectStore>, Switches), Error> {
    let prefix = Key::from(settings.vfs.prefix.as_str());
    let failed = |source| Error::Store { location: Box::new(location.clone()), source: Box::new(source) };
    let store = runtime.block_on(store::open(&settings.store, Arc::clone(metrics))).map_err(failed)?;
    if goes_on {
        let (store, location, buckets) = (Arc::clone(&store), location.clone(), settings.store.buckets.clone());
        runtime.spawn(async move {
            let probed = match &buckets {
                Some(buckets) => store::probe_buckets(&store, buckets).await.map(|_| ()),
                None => store::probe(&store, &prefix).await.map(|_| ()),
            };
            if let Err(error) = probed {
                tracing::warn!(%location, %error, "the mount goes on, but the bucket does not answer");
            }
        });
    } else if let Some(buckets) = &settings.store.buckets {
        notes.extend(runtime.block_on(store::probe_buckets(&store, buckets)).map_err(failed)?);
    } else if !runtime.block_on(store::probe(&store, &prefix)).map_err(failed)? && !prefix.as_bytes().is_empty() {
        // Not refused: the first file that is written makes it.
        notes.push(format!("there is no object below the prefix of {}: the mount is empty until one is written", settings.source));
    }
    let switches = store.switches().clone();
    Ok((store, switches))
}

/// What reads, from the disk too when its mode is so.
fn reader(
    settings: &Settings,
    runtime: &Runtime,
    store: &Arc<dyn ObjectStore>,
    budget: &Arc<Budget>,
    metrics: &Arc<Metrics>,
    spill: Option<Spill>,
) -> Reader {
    let _runtime = runtime.enter();
    let deadline = settings.store.request_timeout + BEYOND_REQUEST;
    let (store, budget, metrics, options) = (Arc::clone(store), Arc::clone(budget), Arc::clone(metrics), settings.reader.clone());
    match spill.filter(|_| options.mode != ReadMode::Direct) {
        Some(spill) => Reader::with_spill(store, budget, metrics, options, deadline, spill),
        None => Reader::new(store, budget, metrics, options, deadline),
    }
}

/// What writes, beside the reader that `observer` sees.
fn edits(
    settings: &Settings,
    runtime: &Runtime,
    store: &Arc<dyn ObjectStore>,
    location: &Location,
    files: &Arc<Files>,
    observer: &Observer,
) -> Arc<Edits> {
    let _runtime = runtime.enter();
    let Observer { names, metrics, budget, reader, spill, .. } = observer;
    let scope = format!("{location} {}", settings.vfs.prefix);
    let writer = Writer::new(Arc::clone(store), Arc::clone(budget), Arc::clone(metrics), settings.writer.clone(), &scope);
    if let Some(spill) = spill {
        writer.share_room(spill.guard());
    }
    writer.take_room_from(reader);
    if names.is_written_down() {
        writer.write_down_changes();
    }
    Edits::new(Arc::clone(names), Arc::clone(files), Arc::clone(store), writer)
}

fn signals(settings: &Settings, runtime: &Runtime) -> Result<Signals, Error> {
    let _runtime = runtime.enter();
    // The terminal of a mount in the foreground may be closed.
    let signals = Signals::listen().and_then(Signals::with_hangup).map_err(Error::process("listen for signals"))?;
    Ok(if settings.ignores_sigterm { signals.without_terminate() } else { signals })
}

/// Runs a task that the mount needs as long as it lives, and again after a panic.
async fn keep_going<F: Future<Output = ()>>(task: impl Fn() -> F) {
    while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
        // One that panics each time is not to fill the log.
        tokio::time::sleep(HOUSEKEEPING).await;
    }
}

/// Tells the kernel of files that changed.
async fn tell_kernel(session: Arc<Session>, files: Arc<Files>) {
    loop {
        let mut changes = files.next_changes().await;
        let inodes = changes.inodes.clone();
        let awaited = std::mem::take(&mut changes.awaited_pages);
        if !awaited.is_empty() {
            for (ino, dropped) in awaited {
                let pages = Arc::clone(&session);
                // One each: a page that is being read keeps those of its inode waiting.
                tokio::task::spawn_blocking(move || {
                    pages.invalidate_pages(&[ino]);
                    // The request may have been given up.
                    let _ = dropped.send(());
                });
            }
        }
        let attributes = Arc::clone(&session);
        if let Err(error) = tokio::task::spawn_blocking(move || attributes.invalidate_attributes(&inodes)).await {
            tracing::warn!(%error, "could not tell the kernel of changed files");
        }
        files.told(&changes);
        if !changes.old_pages.is_empty() {
            // Not awaited: the kernel may wait for a page whose read waits for the next change to be told.
            let pages = Arc::clone(&session);
            tokio::task::spawn_blocking(move || pages.invalidate_pages(&changes.old_pages));
        }
    }
}

impl Mounted {
    /// The counters of this mount.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.observer.metrics
    }

    /// The memory of this mount.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.observer.budget
    }

    /// What its user may not expect and should know, such as a prefix with no object below it.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("only drop takes the runtime")
    }

    /// The tasks that belong to the mount itself; they end with its runtime.
    fn keep_house(&self, files: Arc<Files>) {
        if let Some(spill) = self.observer.spill.clone() {
            self.runtime().spawn(keep_disk(spill));
        }
        let reader = self.observer.reader.clone();
        self.runtime().spawn(keep_going(move || {
            let reader = reader.clone();
            async move {
                let mut ticks = tokio::time::interval(HOUSEKEEPING);
                loop {
                    ticks.tick().await;
                    reader.on_time();
                }
            }
        }));
        let session = Arc::clone(&self.session);
        self.runtime().spawn(keep_going(move || tell_kernel(Arc::clone(&session), Arc::clone(&files))));
    }

    /// Asks the mount for its root, as the first user will.
    fn wait_for_answer(&self, target: &MountTarget) -> Result<(), Error> {
        let MountTarget::Directory(path) = target else { return Ok(()) };
        let question = path.clone();
        let answer = self
            .runtime()
            .block_on(async { tokio::time::timeout(ANSWER, tokio::task::spawn_blocking(move || std::fs::metadata(question))).await });
        let failed = |source| Error::Mount { target: path.clone(), source };
        match answer {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err(error))) => Err(failed(error)),
            Ok(Err(error)) => Err(failed(io::Error::other(error))),
            Err(_) => Err(failed(io::Error::new(io::ErrorKind::TimedOut, format!("the mount did not answer within {ANSWER:?}")))),
        }
    }
}
