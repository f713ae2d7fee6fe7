//! The mounts of the mount-proxy, each with its daemon and its credentials: begun, published once more, ended. Invariants: a target has one daemon at
//! most; who hangs up, or waits longer than agreed, leaves none behind.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::RecvFlags;
use tempfile::TempDir;

use super::daemon::{Daemon, Ended};
use super::lines::{Client, line};
use super::request::{Mount, NOT_OURS};
use super::secrets::lay_out;
use super::watched::Watched;

/// How often is looked whether a mount serves, or nobody waits for it any more.
const LOOK: Duration = Duration::from_millis(50);

/// How long a daemon that is given up may take to end by itself.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why nothing is mounted any more.
const ENDING: &str = "the mount-proxy ends";

/// How long an orderly end may take: a daemon stores what was written, at most for its drain-timeout.
const DRAINED: Duration = Duration::from_secs(30);

/// The clients in whose place requests are served.
#[derive(Clone, Debug)]
pub struct Drivers(Vec<Client>);

impl Drivers {
    /// Those of this name.
    ///
    /// # Errors
    /// The first name that is none.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let one = |name: &str| Client::of(name).ok_or_else(|| format!("driver {name}: known are ossfs and ossfs2"));
        names.into_iter().map(one).collect::<Result<_, _>>().map(Self)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Volumes {
    drivers: Drivers,
    ending: AtomicBool,
    by_target: Mutex<BTreeMap<String, Arc<Volume>>>,
}

/// A target that was asked for.
#[derive(Debug)]
struct Volume {
    /// One request at a time.
    state: Mutex<State>,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct State {
    /// None: nothing is mounted.
    served: Option<Served>,
    tried: bool,
}

#[derive(Debug)]
struct Served {
    daemon: Daemon,
    /// Its credentials: they go with it.
    home: TempDir,
}

impl Volumes {
    /// None yet.
    pub fn new(drivers: Drivers) -> Self {
        Self { drivers, ending: AtomicBool::new(false), by_target: Mutex::default() }
    }

    /// Mounts, and returns when the mount answers; what is mounted already gets the credentials of the request.
    ///
    /// # Errors
    /// Why it does not answer, in words for people. Nothing is left mounted.
    pub fn mount(&self, request: &Mount, asker: &UnixStream, deadline: Instant) -> Result<(), String> {
        let known = Client::of(&request.fstype).filter(|client| self.drivers.0.contains(client));
        let client = known.ok_or_else(|| format!("fstype {:?} not supported", request.fstype))?;
        if self.ending.load(Relaxed) {
            return Err(ENDING.into());
        }
        if request.overlay {
            return Err("overlay: windlass puts none over its mount; leave it out".into());
        }
        if request.target.is_empty() {
            return Err("empty mount target".into());
        }
        if let Some(flags) = request.mount_flags.as_ref().filter(|flags| !flags.is_empty()) {
            tracing::warn!(?flags, "mountFlags have no effect, as in the driver's own mount-proxy");
        }
        let volume = self.volume(request);
        let Some(mut state) = volume.state.try_lock_until(deadline) else {
            return Err(format!("another request for {} takes too long", request.target));
        };
        let secrets = request.secrets.clone().unwrap_or_default();
        if let Some(served) = state.served.as_ref().filter(|served| served.daemon.ended(Duration::ZERO).is_none()) {
            // Published once more: with new tokens, of which the daemon takes notice by itself.
            lay_out(served.home.path(), client, &secrets).map_err(|error| format!("prepare credential files failed: {error}"))?;
            tracing::debug!(target = request.target, "it is mounted: its credentials are up to date");
            return Ok(());
        }
        if std::mem::replace(&mut state.tried, true) {
            volume.watched.lock().on_retry();
        }
        let started = start(client, request, &secrets).and_then(|served| match self.wait(&served, client, asker, deadline) {
            Ok(()) => Ok(served),
            Err(reason) => {
                served.daemon.stop(LAST_WORDS);
                Err(reason)
            }
        });
        match started {
            Ok(served) if self.ending.load(Relaxed) => {
                served.daemon.stop(DRAINED);
                Err(ENDING.into())
            }
            Ok(served) => {
                volume.watched.lock().on_mounted();
                watch(served.daemon.clone(), request.target.clone(), Arc::clone(&volume));
                state.served = Some(served);
                tracing::info!(source = request.source, target = request.target, client = client.name(), "mounted");
                Ok(())
            }
            Err(reason) => {
                volume.watched.lock().on_failed(&reason);
                Err(reason)
            }
        }
    }

    fn volume(&self, request: &Mount) -> Arc<Volume> {
        let mut volumes = self.by_target.lock();
        let made = || Arc::new(Volume { state: Mutex::default(), watched: Mutex::new(Watched::new(&request.metrics_path)) });
        Arc::clone(volumes.entry(request.target.clone()).or_insert_with(made))
    }

    /// Waits until the mount answers.
    fn wait(&self, served: &Served, client: Client, asker: &UnixStream, deadline: Instant) -> Result<(), String> {
        loop {
            if let Some(ended) = served.daemon.ended(LOOK) {
                return Err(how_it_ended(client, &ended));
            }
            if ready_file(served.home.path()).exists() {
                return Ok(());
            }
            if has_hung_up(asker) {
                return Err("request cancelled".into());
            }
            if Instant::now() >= deadline || self.ending.load(Relaxed) {
                return Err(format!("{} does not answer: context deadline exceeded", client.name()));
            }
        }
    }

    /// Unmounts, and returns when the daemon has ended.
    ///
    /// # Errors
    /// When it is no mount of ours, or somebody uses it.
    pub fn unmount(&self, target: &str, deadline: Instant) -> Result<(), String> {
        if target.is_empty() {
            return Err("empty unmount target".into());
        }
        let not_ours = || format!("{NOT_OURS}: {target}");
        let volume = self.by_target.lock().get(target).cloned().ok_or_else(not_ours)?;
        let Some(mut state) = volume.state.try_lock_until(deadline) else {
            return Err(format!("another request for {target} takes too long"));
        };
        let served = state.served.as_ref().ok_or_else(not_ours)?;
        if served.daemon.ended(Duration::ZERO).is_none() {
            unmount(target, UnmountFlags::NOFOLLOW).map_err(|error| format!("unmount {target}: {}", io::Error::from(error)))?;
            let patience = deadline.saturating_duration_since(Instant::now());
            let ended = served.daemon.ended(patience).ok_or_else(|| format!("unmount {target}: its daemon does not end"))?;
            if !ended.status.success() {
                return Err(format!("unmount {target}: {}", ended.said.trim()));
            }
        }
        state.served = None;
        state.tried = false;
        Ok(())
    }

    /// Takes no more requests, and lets the daemons end: each unmounts when what was written is stored.
    pub fn end(&self) {
        self.ending.store(true, Relaxed);
        let volumes: Vec<_> = std::mem::take(&mut *self.by_target.lock()).into_values().collect();
        let daemons: Vec<_> =
            volumes.iter().filter_map(|volume| volume.state.lock().served.as_ref().map(|served| served.daemon.clone())).collect();
        daemons.iter().for_each(Daemon::terminate);
        let end = Instant::now() + DRAINED;
        for daemon in &daemons {
            if daemon.ended(end.saturating_duration_since(Instant::now())).is_none() {
                daemon.stop(Duration::ZERO);
            }
        }
        for volume in volumes {
            volume.watched.lock().on_end();
            volume.state.lock().served = None;
        }
    }
}

/// The daemon of a mount, with its credentials.
fn start(client: Client, request: &Mount, secrets: &BTreeMap<String, String>) -> Result<Served, String> {
    let on = |what: &'static str| move |error: io::Error| format!("{what} failed: {error}");
    clear(Path::new(&request.target)).map_err(on("check mountpoint"))?;
    let home = tempfile::Builder::new().prefix("windlass-mount-").tempdir().map_err(on("prepare credential files"))?;
    let credentials = lay_out(home.path(), client, secrets).map_err(on("prepare credential files"))?;
    let mut words = line(client, request, &credentials);
    let mut ours = |name: &str, path: &Path| words.push(format!("--{name}={}", path.display()));
    ours("ready-file", &ready_file(home.path()));
    if !request.metrics_path.is_empty() && asks_for_metrics(request) {
        // Behind -o, where the option stands: there it outranks flags.
        words.extend(["-o".to_owned(), format!("metrics_dir={}", request.metrics_path)]);
    }
    tracing::debug!(?words, "starting");
    let daemon = Daemon::start(&words, None).map_err(|error| format!("start {} failed: {error}", client.name()))?;
    Ok(Served { daemon, home })
}

/// A directory to mount at: made when it is not there, and freed of what a daemon left that died.
fn clear(target: &Path) -> io::Result<()> {
    // Attributes of its root the kernel may still know; this it asks for.
    match rustix::fs::statfs(target) {
        Err(Errno::NOTCONN) => {
            tracing::warn!(target = %target.display(), "a dead mount is taken away");
            Ok(unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
        }
        Err(Errno::NOENT) => fs::create_dir_all(target),
        found => Ok(found.map(drop)?),
    }
}

fn asks_for_metrics(request: &Mount) -> bool {
    let options = request.options.iter().flatten().flat_map(|list| list.split(','));
    options.filter_map(|word| word.trim().strip_prefix("use_metrics")).any(|value| matches!(value, "" | "=true" | "=1"))
}

fn ready_file(home: &Path) -> PathBuf {
    home.join("ready")
}

/// Tells those who look when it dies.
fn watch(daemon: Daemon, target: String, volume: Arc<Volume>) {
    let watching = std::thread::Builder::new().name("watch".into()).spawn(move || {
        let ended = daemon.wait();
        if ended.status.success() {
            tracing::info!(target, "unmounted");
        } else {
            tracing::error!(target, status = %ended.status, "the daemon of a mount ended badly");
            volume.watched.lock().on_failed(&format!("{}, with stderr: {}", ended.status, ended.said.trim()));
        }
    });
    if let Err(error) = watching {
        tracing::warn!(%error, "nobody will tell when this mount ends");
    }
}

fn how_it_ended(client: Client, ended: &Ended) -> String {
    let said = ended.said.trim();
    let with = if said.is_empty() { String::new() } else { format!(", with stderr: {said}") };
    format!("{} exited: {}{with}", client.name(), ended.status)
}

/// Whether nobody waits for the answer any more.
fn has_hung_up(asker: &UnixStream) -> bool {
    let mut byte = [0; 1];
    matches!(rustix::net::recv(asker, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((_, 0)))
}
