//! Composition root: store, reader, vfs and FUSE session of one mount, in this order up and in the other order down.
//! It decides nothing about reads or names. Invariant: whoever gets a [`Mounted`] has a mount that answers; whoever
//! gets an [`Error`] has nothing left behind.

mod ending;
mod leaving;
mod listening;
mod live;

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;

use crate::admin::{CounterFiles, Health, Listen, Listener, Observer, Pages, Server, Subject};
use crate::budget::Budget;
use crate::config::{MountTarget, Settings};
use crate::fuse::{self, Keeping, Left, Session, Tree};
use crate::handover::{Line, Wish};
use crate::metrics::Metrics;
use crate::reader::{ReadMode, Reader};
use crate::signals::Signals;
use crate::spill::{Bounds, Identity, Spill};
use crate::store::{self, ErrorKind, Key, Location, ObjectStore, Switches};
use crate::vfs::{Edits, Files, Lost, Names};
use crate::writer::Writer;
use ending::{names_of, whereabouts};
use live::LiveOptions;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to end, or unmounted: [`unmount`](Mounted::unmount) is what comes next.
    Over,
    /// Another daemon goes on: [`leave`](Mounted::leave) is what comes next.
    Left,
}

/// Why there is no mount, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bucket cannot be used.
    #[error("cannot mount {location}: {}{}", attempt(.source), advice(.source))]
    Store { location: Box<Location>, source: Box<store::Error> },
    /// The directory cannot be mounted on.
    #[error("cannot mount at {target}: {source}{}", mount_advice(.source))]
    Mount { target: PathBuf, source: io::Error },
    /// The descriptor that was passed in cannot be served.
    #[error("cannot serve /dev/fd/{number}: {reason}")]
    Descriptor { number: RawFd, reason: String },
    /// What the daemon before left cannot be gone on from.
    #[error("cannot go on with the mount at {target} where the daemon before ended: {reason}; windlass umount --lazy and mount again")]
    Resume { target: MountTarget, reason: String },
    /// The disk cannot be used.
    #[error("cannot keep what is read in {dir}: {source}; name another spill-dir, or read with read-mode=direct")]
    Spill { dir: PathBuf, source: io::Error },
    /// Nobody could look at the metrics.
    #[error("cannot serve metrics at {place}: {source}; name another address or path with --metrics-listen")]
    Listen { place: Listen, source: io::Error },
    /// Nobody could ask the mount where it was wanted.
    #[error("cannot open the control socket {path}: {source}; name another path with --control-socket")]
    Control { path: PathBuf, source: io::Error },
    /// The mount is still there.
    #[error("cannot unmount: {0}; see who uses it with \"fuser -vm MOUNTPOINT\", then: windlass umount --lazy MOUNTPOINT")]
    Unmount(io::Error),
    /// The mount ended while files were being written.
    #[error("files that were written are not in the bucket: {}{}; --drain-timeout gives the store more time", names_of(.0), whereabouts(.0))]
    NotWritten(Vec<Lost>),
    /// The process could not be set up.
    #[error("cannot {what}: {source}")]
    Process { what: &'static str, source: io::Error },
}

impl Error {
    /// The code the process ends with: 3 for credentials, 4 for bucket or endpoint, 2 for bad arguments, 5 when files did
    /// not reach the bucket, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Store { source, .. } => match source.kind {
                ErrorKind::AccessDenied | ErrorKind::BadCredentials | ErrorKind::NoCredentials => 3,
                ErrorKind::Invalid => 2,
                _ => 4,
            },
            Self::Descriptor { .. } | Self::Spill { .. } | Self::Listen { .. } | Self::Control { .. } => 2,
            Self::NotWritten(_) => 5,
            Self::Mount { .. } | Self::Resume { .. } | Self::Unmount(_) | Self::Process { .. } => 1,
        }
    }
}

/// What the store said, with the request only when it was for a prefix and not for the whole bucket.
fn attempt(error: &store::Error) -> String {
    if error.key == Key::root() { error.reason().to_string() } else { error.to_string() }
}

/// The likely fix, as the end of the line. Where the message itself tells it there is nothing to add.
pub fn advice(error: &store::Error) -> &'static str {
    match error.kind {
        ErrorKind::NoSuchBucket | ErrorKind::NotFound => "; check the bucket's name and that it lives at this endpoint",
        ErrorKind::AccessDenied => "; the key needs permission to list the bucket and to get its objects",
        ErrorKind::BadCredentials => "; check key id, secret and token, and that the clock of this machine is right",
        ErrorKind::Connect => "; check --endpoint (name, port, http or https) and the network",
        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Throttled => {
            "; check that the endpoint is up and can be reached from here"
        }
        ErrorKind::Corrupt => {
            "; check that --endpoint is where the store itself answers, and that it speaks this protocol (s3:// or oss://)"
        }
        ErrorKind::NoCredentials | ErrorKind::WrongEndpoint => "",
        ErrorKind::Replaced | ErrorKind::RangeNotSatisfiable | ErrorKind::Invalid => "",
    }
}

fn mount_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; mounting without root needs fusermount3 (package fuse3), and /dev/fuse must exist (modprobe fuse)",
        io::ErrorKind::PermissionDenied => "; run as root, or install fuse3 and check the permissions of /dev/fuse and of the directory",
        _ => "",
    }
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
    let left = left(settings, &mut given)?;
    let process = |what| move |source| Error::Process { what, source };
    let budget = Budget::new(&settings.budget);
    let threads = workers(budget.limit());
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().thread_name("windlass-io").build();
    let runtime = runtime.map_err(process("start the runtime"))?;
    let listener = settings.admin.metrics.as_ref().map(listen).transpose()?;
    let (health, port) = (Arc::new(Health::default()), listener.as_ref().and_then(Listener::port));
    // From the beginning: probes ask before the bucket has answered.
    let pages = listener.map(|listener| serve_pages(listener, &health, &runtime)).transpose()?;
    let location = Location::describe(&settings.store);
    let store_error = |source| Error::Store { location: Box::new(location.clone()), source: Box::new(source) };
    let metrics = Arc::new(Metrics::default());
    let prefix = Key::from(settings.vfs.prefix.as_str());
    let store = runtime.block_on(async {
        let store = store::open(&settings.store, Arc::clone(&metrics)).await?;
        store::probe(&store, &prefix).await?;
        Ok(store)
    });
    let store = store.map_err(store_error)?;
    let deadline = settings.store.request_timeout + BEYOND_REQUEST;
    let private = private_directory(settings)?;
    let spill = open_spill(settings, &location, private.as_ref())?;
    let reader = {
        let _runtime = runtime.enter();
        let (store, budget, metrics, options) = (store.clone(), Arc::clone(&budget), Arc::clone(&metrics), settings.reader.clone());
        match spill.clone().filter(|_| options.mode != ReadMode::Direct) {
            Some(spill) => Reader::with_spill(store, budget, metrics, options, deadline, spill),
            None => Reader::new(store, budget, metrics, options, deadline),
        }
    };
    let (left, memory) = left.unzip();
    let names = names(settings, store.clone(), memory, given.line.is_some())?;
    let files = Files::new(Arc::clone(&names), reader.clone());
    let edits = (!settings.read_only).then(|| {
        let _runtime = runtime.enter();
        let scope = format!("{location} {}", settings.vfs.prefix);
        let writer = Writer::new(store.clone(), Arc::clone(&budget), Arc::clone(&metrics), settings.writer.clone(), &scope);
        if let Some(spill) = &spill {
            writer.share_room(spill.guard());
        }
        writer.take_room_from(&reader);
        if names.is_written_down() {
            writer.write_down_changes();
        }
        Edits::new(Arc::clone(&names), Arc::clone(&files), store.clone(), writer)
    });
    let observer = Arc::new(Observer {
        names: Arc::clone(&names),
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
    health.on_observer(Arc::clone(&observer));
    // From before there is something to unmount: whoever reads the ready line may send a signal at once.
    let signals = {
        let _runtime = runtime.enter();
        // The terminal of a mount in the foreground may be closed.
        let signals = Signals::listen().and_then(Signals::with_hangup).map_err(process("listen for signals"))?;
        if settings.ignores_sigterm { signals.without_terminate() } else { signals }
    };
    if left.is_some() {
        let _runtime = runtime.enter();
        files.restore();
        if let Some(edits) = &edits {
            runtime.block_on(edits.restore());
        }
    }
    let tree = Tree { names, files: Arc::clone(&files), edits: edits.clone(), observer: Arc::clone(&observer) };
    let memory = tree.names.memory().map_err(process("keep what is open"))?;
    let wishes = listening::wishes(given.line.clone()).map_err(process("listen to the keeper of the mount"))?;
    let line = given.line.clone();
    let session = Arc::new(attach(settings, tree, &runtime, (given, left), memory.as_ref())?);
    let drain = settings.drain_timeout;
    let mut mounted = Mounted {
        runtime: Some(runtime),
        session,
        edits,
        drain,
        observer,
        private,
        control: Vec::new(),
        pages,
        health,
        counters: None,
        signals,
        unmounted: false,
        line,
        wishes,
    };
    mounted.keep_house(files);
    mounted.wait_for_answer(&settings.mountpoint)?;
    mounted.control = mounted.listen(settings, store.switches().clone())?;
    mounted.counters = mounted.write_counters(settings);
    mounted.health.on_ready();
    if let Some(edits) = mounted.edits.clone() {
        // Beside the mount: it may have to upload much.
        mounted.runtime().spawn(async move { edits.recover().await });
    }
    Ok(mounted)
}

/// Serves what can be looked at over HTTP.
fn serve_pages(listener: Listener, health: &Arc<Health>, runtime: &Runtime) -> Result<Pages, Error> {
    let place = listener.place.clone();
    tracing::info!(%place, "metrics are served at /metrics");
    Pages::start(listener, Arc::clone(health), runtime.handle()).map_err(|source| Error::Listen { place, source })
}

/// Threads of the runtime: one a core, and fewer where the memory is small. What they use of their stacks and of the allocator is not in the
/// budget, and a container of 256 MiB may see 128 cores.
fn workers(memory: usize) -> usize {
    thread::available_parallelism().map_or(2, usize::from).min((memory / MEMORY_OF_WORKER).max(2))
}

fn listen(place: &Listen) -> Result<Listener, Error> {
    Listener::bind(place).map_err(|source| Error::Listen { place: place.clone(), source })
}

/// A place for what is read where nobody named one, as ossfs has it without use_cache: it goes with the mount.
fn private_directory(settings: &Settings) -> Result<Option<TempDir>, Error> {
    if settings.reader.mode == ReadMode::Direct || settings.writer.staging.dir.is_some() {
        return Ok(None);
    }
    let made = tempfile::Builder::new().prefix("windlass-").tempdir();
    made.map(Some).map_err(|source| Error::Spill { dir: std::env::temp_dir(), source })
}

/// The disk: for what is read, and so that what is staged counts together with what other mounts keep there.
fn open_spill(settings: &Settings, location: &Location, private: Option<&TempDir>) -> Result<Option<Spill>, Error> {
    let options = &settings.writer.staging;
    let Some(dir) = options.dir.as_deref().or(private.map(TempDir::path)) else { return Ok(None) };
    let bounds = Bounds { max: options.max, ensure_free: options.ensure_free, free_ratio: options.free_ratio };
    let identity = Identity { endpoint: location.endpoint(), bucket: settings.store.bucket.clone() };
    match Spill::open(dir, bounds, identity) {
        Ok(spill) => Ok(Some(spill)),
        // Who changes nothing in the middle of files needs no disk.
        Err(error) if settings.reader.mode == ReadMode::Direct => {
            tracing::warn!(dir = %dir.display(), %error, "nothing can be staged here: only files that are written front to back can be written");
            Ok(None)
        }
        Err(source) => Err(Error::Spill { dir: dir.to_owned(), source }),
    }
}

fn attach(
    settings: &Settings,
    tree: Tree,
    runtime: &Runtime,
    (given, left): (Given, Option<Left>),
    memory: Option<&[OwnedFd; 2]>,
) -> Result<Session, Error> {
    let handle = runtime.handle().clone();
    let source = settings.source.to_string();
    let memory = memory.map(|[inodes, record]| [inodes.as_fd(), record.as_fd()]);
    let keeping = given.line.as_deref().zip(memory).map(|(line, memory)| Keeping { line, source: &source, memory });
    match (&settings.mountpoint, left) {
        (target, Some(left)) => {
            let path = if let MountTarget::Directory(path) = target { Some(&**path) } else { None };
            let gone = |error: io::Error| Error::Resume { target: target.clone(), reason: error.to_string() };
            fuse::resume(tree, handle, left, path, &settings.fuse).map_err(gone)
        }
        (MountTarget::Directory(path), None) => fuse::mount(tree, handle, path, &source, &settings.fuse, keeping)
            .map_err(|source| Error::Mount { target: path.clone(), source }),
        (MountTarget::Fd(number), None) => {
            let refuse = |reason: String| Error::Descriptor { number: *number, reason };
            let fd = fuse::adopt(*number).map_err(|flaw| refuse(flaw.to_string()))?;
            fuse::attach(tree, handle, fd, given.clones, &settings.fuse, keeping).map_err(|error| refuse(error.to_string()))
        }
    }
}

/// What the daemon before left, with the memory of its names; none: there was none.
fn left(settings: &Settings, given: &mut Given) -> Result<Option<(Left, [OwnedFd; 2])>, Error> {
    let Some(session) = &given.session else { return Ok(None) };
    let refuse = |reason: String| Error::Resume { target: settings.mountpoint.clone(), reason };
    let mut devices = Vec::new();
    if let MountTarget::Fd(number) = settings.mountpoint {
        devices.push(fuse::adopt(number).map_err(|flaw| refuse(flaw.to_string()))?);
    }
    devices.append(&mut given.clones);
    Left::of(session, &settings.source.to_string(), devices, std::mem::take(&mut given.kept)).map(Some).map_err(refuse)
}

/// The names, written down where another daemon may go on.
fn names(settings: &Settings, store: Arc<dyn ObjectStore>, memory: Option<[OwnedFd; 2]>, is_kept: bool) -> Result<Arc<Names>, Error> {
    let options = settings.vfs.clone();
    match memory {
        Some(memory) => Names::load(store, options, memory)
            .map_err(|error| Error::Resume { target: settings.mountpoint.clone(), reason: format!("what it wrote down: {error}") }),
        None if is_kept && fuse::can_resume() => {
            Names::lasting(store, options).map_err(|source| Error::Process { what: "write down what is open", source })
        }
        None => Ok(Names::new(store, options)),
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

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("only drop takes the runtime")
    }

    /// The tasks that belong to the mount itself; they end with its runtime.
    fn keep_house(&self, files: Arc<Files>) {
        if let Some(spill) = self.observer.spill.clone() {
            self.runtime().spawn(keep_disk(spill));
        }
        let reader = self.observer.reader.clone();
        self.runtime().spawn(async move {
            let mut ticks = tokio::time::interval(HOUSEKEEPING);
            loop {
                ticks.tick().await;
                reader.on_time();
            }
        });
        let session = Arc::clone(&self.session);
        self.runtime().spawn(async move {
            loop {
                let changes = files.next_changes().await;
                let inodes = changes.inodes.clone();
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
        });
    }

    /// Opens the control sockets. A mount works without the one that nobody asked for.
    fn listen(&self, settings: &Settings, switches: Switches) -> Result<Vec<Server>, Error> {
        let session = Arc::clone(&self.session);
        let subject = Arc::new(Subject {
            observer: Arc::clone(&self.observer),
            forget: Box::new(move |expired| session.forget(expired)),
            live: Box::new(LiveOptions::new(settings, Arc::clone(&self.observer), switches)),
        });
        let mut servers = Vec::new();
        if let Some(path) = &settings.admin.socket {
            let failed = |source| Error::Control { path: path.clone(), source };
            servers.push(Server::at(path, Arc::clone(&subject), self.runtime().handle()).map_err(failed)?);
        }
        let Some(device) = self.session.device() else {
            tracing::info!("no control socket that the mount point leads to: this kernel does not tell what is mounted over a descriptor");
            return Ok(servers);
        };
        match Server::start(&settings.admin.directories, device, subject, self.runtime().handle()) {
            Ok(server) => servers.push(server),
            Err(error) if servers.is_empty() => {
                tracing::warn!(%error, "no control socket: windlass stats, refresh, warm, evict and ctl cannot ask this mount");
            }
            Err(error) => tracing::debug!(%error, "no control socket that the mount point leads to"),
        }
        Ok(servers)
    }

    /// Writes counters into files, when somebody wants them there.
    fn write_counters(&self, settings: &Settings) -> Option<CounterFiles> {
        let wanted = settings.admin.files.as_ref()?;
        let Some(directory) = wanted.find(&self.observer.mountpoint) else {
            tracing::warn!(
                "metrics-dir=auto: no directory below /var/run/ossfs has a mount_point_info with this mount point: no counters are written"
            );
            return None;
        };
        tracing::info!(directory = %directory.display(), "counters are written into files");
        Some(CounterFiles::start(directory, Arc::clone(&self.observer), self.runtime().handle()))
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

/// Looks through the disk once, then keeps it inside its bounds.
async fn keep_disk(spill: Spill) {
    let first = spill.clone();
    let _ = tokio::task::spawn_blocking(move || first.scan()).await;
    let mut ticks = tokio::time::interval(HOUSEKEEPING);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let spill = spill.clone();
        let _ = tokio::task::spawn_blocking(move || spill.on_time(std::time::Instant::now())).await;
    }
}
