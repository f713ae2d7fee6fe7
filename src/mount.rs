//! Composition root: store, reader, vfs and FUSE session of one mount, in this order up and in the other order down.
//! It decides nothing about reads or names. Invariant: whoever gets a [`Mounted`] has a mount that answers; whoever
//! gets an [`Error`] has nothing left behind.

mod ending;
mod live;

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::MissedTickBehavior;

use crate::admin::{CounterFiles, Health, Listen, Listener, Observer, Pages, Server, Subject};
use crate::budget::Budget;
use crate::config::{MountTarget, Settings};
use crate::fuse::{self, Session, Tree};
use crate::handover::Line;
use crate::metrics::Metrics;
use crate::reader::{ReadMode, Reader};
use crate::signals::Signals;
use crate::spill::{Bounds, Identity, Spill};
use crate::store::{self, ErrorKind, Key, Location, Switches};
use crate::vfs::{Edits, Files, Names};
use crate::writer::Writer;
use live::LiveOptions;

/// Housekeeping: streams that were left, idle memory.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

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
    control: Option<Server>,
    /// What it serves over HTTP.
    pages: Option<Pages>,
    health: Arc<Health>,
    /// What it writes into files for those who look there.
    counters: Option<CounterFiles>,
    signals: Signals,
    unmounted: bool,
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
    /// The disk cannot be used.
    #[error("cannot keep what is read in {dir}: {source}; name another spill-dir, or read with read-mode=direct")]
    Spill { dir: PathBuf, source: io::Error },
    /// Nobody could look at the metrics.
    #[error("cannot serve metrics at {place}: {source}; name another address or path with --metrics-listen")]
    Listen { place: Listen, source: io::Error },
    /// The mount is still there.
    #[error("cannot unmount: {0}; see who uses it with \"fuser -vm MOUNTPOINT\", then: windlass umount --lazy MOUNTPOINT")]
    Unmount(io::Error),
    /// The mount ended while files were being written.
    #[error("files that were being written are not in the bucket: {}; --drain-timeout gives writers more time", list(.0))]
    NotWritten(Vec<Key>),
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
            Self::Descriptor { .. } | Self::Spill { .. } | Self::Listen { .. } => 2,
            Self::NotWritten(_) => 5,
            Self::Mount { .. } | Self::Unmount(_) | Self::Process { .. } => 1,
        }
    }
}

/// The first few of `keys`.
fn list(keys: &[Key]) -> String {
    const SHOWN: usize = 10;
    let mut text: Vec<String> = keys.iter().take(SHOWN).map(ToString::to_string).collect();
    text.extend((keys.len() > SHOWN).then(|| format!("and {} more", keys.len() - SHOWN)));
    text.join(", ")
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
pub fn start_with(settings: &Settings, given: Given) -> Result<Mounted, Error> {
    let process = |what| move |source| Error::Process { what, source };
    let runtime = Builder::new_multi_thread().enable_all().thread_name("windlass-io").build().map_err(process("start the runtime"))?;
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
    let budget = Budget::new(&settings.budget);
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
    let names = Names::new(store.clone(), settings.vfs.clone());
    let files = Files::new(Arc::clone(&names), reader.clone());
    let edits = (!settings.read_only).then(|| {
        let _runtime = runtime.enter();
        let scope = format!("{location} {}", settings.vfs.prefix);
        let writer = Writer::new(store.clone(), Arc::clone(&budget), Arc::clone(&metrics), settings.writer.clone(), &scope);
        if let Some(spill) = &spill {
            writer.share_room(spill.guard());
        }
        writer.take_room_from(&reader);
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
    let tree = Tree { names, files: Arc::clone(&files), edits: edits.clone(), observer: Arc::clone(&observer) };
    let session = Arc::new(attach(settings, tree, &runtime, given)?);
    let drain = settings.drain_timeout;
    let mut mounted = Mounted {
        runtime: Some(runtime),
        session,
        edits,
        drain,
        observer,
        private,
        control: None,
        pages,
        health,
        counters: None,
        signals,
        unmounted: false,
    };
    mounted.keep_house(files);
    mounted.wait_for_answer(&settings.mountpoint)?;
    mounted.control = mounted.listen(settings, store.switches().clone());
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

fn attach(settings: &Settings, tree: Tree, runtime: &Runtime, given: Given) -> Result<Session, Error> {
    let handle = runtime.handle().clone();
    match &settings.mountpoint {
        MountTarget::Directory(path) => fuse::mount(tree, handle, path, &settings.source.to_string(), &settings.fuse)
            .map_err(|source| Error::Mount { target: path.clone(), source }),
        MountTarget::Fd(number) => {
            let refuse = |reason: String| Error::Descriptor { number: *number, reason };
            let fd = fuse::adopt(*number).map_err(|flaw| refuse(flaw.to_string()))?;
            if given.session.is_some() {
                return Err(refuse("another daemon has served it, and this version cannot go on from there".into()));
            }
            fuse::attach(tree, handle, fd, given.clones, &settings.fuse).map_err(|error| refuse(error.to_string()))
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

    /// Opens the control socket. A mount works without it.
    fn listen(&self, settings: &Settings, switches: Switches) -> Option<Server> {
        let Some(device) = self.session.device().and_then(|device| device.parse().ok()) else {
            tracing::info!("no control socket: this kernel does not tell what is mounted over a descriptor");
            return None;
        };
        let session = Arc::clone(&self.session);
        let subject = Subject {
            observer: Arc::clone(&self.observer),
            forget: Box::new(move |expired| session.forget(expired)),
            live: Box::new(LiveOptions::new(settings, Arc::clone(&self.observer), switches)),
        };
        match Server::start(&settings.admin.directories, device, Arc::new(subject), self.runtime().handle()) {
            Ok(server) => Some(server),
            Err(error) => {
                tracing::warn!(%error, "no control socket: windlass stats, refresh, warm, evict and ctl cannot ask this mount");
                None
            }
        }
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
