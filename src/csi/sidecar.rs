//! The sidecar of a pod: finds the volumes that the driver has published to it, and has a daemon of its own serve each. Reads no option of theirs and
//! talks to no bucket. Invariants: a daemon that ends is started again while its volume is published, later each time it did not last; no
//! daemon is left when this ends; all daemons have equal shares of one budget of memory, which change when a volume comes or goes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::admin::{self, Client, Done};
use crate::config;
use crate::process::Process;
use crate::signals::Ending;
use crate::units::ByteSize;

/// How often is looked for volumes that came and went.
const LOOK: Duration = Duration::from_millis(200);

/// Between a daemon's end and its next beginning: doubled from the first to the last, and the first again after one that lasted.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];
const LASTED: Duration = Duration::from_secs(60);

/// Where a daemon serves its pages, in the directory of its volume.
pub(super) const PAGES: &str = "pages.sock";

/// Where a daemon is told its share of the memory.
const CONTROL: &str = "control.sock";

/// The smallest share: two parts of a file that is written, or four chunks. With so many volumes that the budget does not hold these, all of them have it.
const SMALLEST_SHARE: ByteSize = ByteSize::mib(16);

/// Options of the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What all daemons together may take as their `memory-limit`. One that has a limit of its own, by the attributes of its volume or by `words`, keeps it.
    pub memory_limit: ByteSize,
    /// The pod's emptyDir.
    pub directory: PathBuf,
    /// The program that serves.
    pub program: PathBuf,
    /// Words for each daemon besides its own.
    pub words: Vec<String>,
}

/// A volume that is published to the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Volume {
    pub directory: PathBuf,
    /// Which socket it is: a volume that is published anew has another one.
    identity: (u64, u64),
}

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its mount has gone, or a signal has asked for the end: exit code 0.
    InOrder,
    Code(u8),
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(0), _) => Self::InOrder,
            (Some(code), _) => Self::Code(u8::try_from(code).unwrap_or(1)),
            // As a shell shows it.
            (None, signal) => Self::Code(signal.and_then(|signal| u8::try_from(128 + signal).ok()).unwrap_or(1)),
        }
    }
}

/// When a daemon begins anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BackOff(Option<Duration>);

impl BackOff {
    /// How long to wait after one that ran for `ran`.
    fn after(&mut self, ran: Duration) -> Duration {
        let last = self.0.filter(|_| ran < LASTED);
        let next = last.map_or(BACK_OFF[0], |last| (last * 2).min(BACK_OFF[1]));
        self.0 = Some(next);
        next
    }
}

/// What each of `volumes` daemons has of the memory, in whole MiB.
fn share(memory_limit: ByteSize, volumes: usize) -> ByteSize {
    let equal = memory_limit.as_u64() / volumes.max(1) as u64;
    ByteSize::mib(equal >> 20).max(SMALLEST_SHARE)
}

/// Tells the daemon that listens at `socket` its share; returns its memory limit, which is another one where it has one of its own, or cannot do with so
/// little.
fn give(socket: &Path, share: ByteSize) -> Result<String, admin::Error> {
    let set = admin::Command::Set { name: admin::MEMORY_SHARE.into(), value: share.to_string() };
    match Client::at(socket)?.ask(&set, |_| {})? {
        Done::Options(mut options) => Ok(options.remove(admin::MEMORY_SHARE).unwrap_or_default()),
        _ => Ok(String::new()),
    }
}

/// Volumes that are there now.
pub fn volumes(directory: &Path) -> Vec<Volume> {
    let volume = |directory: PathBuf| Some(Volume { identity: socket(&directory, "mount.sock")?, directory });
    let mut found: Vec<Volume> = entries(directory).filter_map(volume).collect();
    found.sort();
    found
}

/// Directories of those that are there, or whose daemon is: a driver that makes room for another one takes its socket along.
pub fn directories(directory: &Path) -> Vec<PathBuf> {
    let is_volume = |directory: &PathBuf| ["mount.sock", PAGES].iter().any(|name| socket(directory, name).is_some());
    let mut found: Vec<PathBuf> = entries(directory).filter(is_volume).collect();
    found.sort();
    found
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Which socket has this name.
fn socket(directory: &Path, name: &str) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(directory.join(name)).ok().filter(|found| found.file_type().is_socket())?;
    Some((found.dev(), found.ino()))
}

/// The daemons of all volumes.
#[derive(Debug)]
pub struct Daemons {
    options: Options,
    running: JoinSet<(Volume, End, Duration)>,
    /// The processes of those that run, for signals.
    processes: HashMap<Volume, Process>,
    /// What begins anew, and when.
    waiting: HashMap<Volume, Instant>,
    back_off: HashMap<Volume, BackOff>,
    /// What the daemons that run have of the memory.
    shares: HashMap<Volume, ByteSize>,
    giving: JoinSet<(Volume, ByteSize, Result<String, admin::Error>)>,
}

impl Daemons {
    pub fn new(options: Options) -> Self {
        let (processes, waiting, back_off, shares) = Default::default();
        Self { options, running: JoinSet::new(), processes, waiting, back_off, shares, giving: JoinSet::new() }
    }

    /// Serves until `end` says why it ends; then asks all daemons to end and waits for what they have to store. What the worst of them ended with.
    pub async fn serve(&mut self, mut end: impl AsyncFnMut() -> Ending) -> End {
        let mut look = tokio::time::interval(LOOK);
        let ending = loop {
            tokio::select! {
                ending = end() => break ending,
                _ = look.tick() => self.look(),
                Some(given) = self.giving.join_next() => self.on_given(given.expect("a daemon is asked without a panic")),
                Some(ended) = self.running.join_next() => self.on_end(ended.expect("waiting for a process does not panic")),
            }
        };
        tracing::info!(signal = ending.name(), daemons = self.processes.len(), "ending");
        self.signal(Signal::TERM);
        let mut worst = 0;
        while !self.running.is_empty() {
            tokio::select! {
                // Who is asked again does not wait for what is to be stored.
                _ = end() => self.signal(Signal::TERM),
                Some(ended) = self.running.join_next() => {
                    let (volume, end, _) = ended.expect("waiting for a process does not panic");
                    self.processes.remove(&volume);
                    if let End::Code(code) = end {
                        tracing::error!(volume = %volume.directory.display(), code, "a daemon has ended badly");
                        worst = worst.max(code);
                    }
                }
            }
        }
        if worst == 0 { End::InOrder } else { End::Code(worst) }
    }

    /// Begins what came, and what is due.
    fn look(&mut self) {
        let there = volumes(&self.options.directory);
        let is_there = |volume: &Volume| there.contains(volume);
        self.waiting.retain(|volume, _| is_there(volume));
        self.back_off.retain(|volume, _| is_there(volume));
        // Also those of a driver that has gone and taken its sockets along: their daemons go on.
        let directories: HashSet<&Path> = there.iter().chain(self.shares.keys()).map(|volume| volume.directory.as_path()).collect();
        let share = share(self.options.memory_limit, directories.len());
        self.give(share);
        let now = Instant::now();
        for volume in there {
            let is_due = self.waiting.get(&volume).is_none_or(|at| *at <= now);
            // Its daemon finds a driver that began anew, and thereby has another socket, by itself.
            let is_served = self.processes.keys().any(|other| other.directory == volume.directory);
            if is_due && !is_served {
                self.waiting.remove(&volume);
                self.begin(volume, share);
            }
        }
    }

    /// Has the daemons that run take `share`. One that does not listen yet is asked at the next look.
    fn give(&mut self, share: ByteSize) {
        if !self.giving.is_empty() {
            return;
        }
        for (volume, _) in self.shares.iter().filter(|(_, has)| **has != share) {
            let volume = volume.clone();
            self.giving.spawn_blocking(move || {
                let done = give(&volume.directory.join(CONTROL), share);
                (volume, share, done)
            });
        }
    }

    fn on_given(&mut self, (volume, share, done): (Volume, ByteSize, Result<String, admin::Error>)) {
        // It may have ended meanwhile.
        let Some(has) = self.shares.get_mut(&volume) else { return };
        match done {
            Ok(limit) => tracing::info!(volume = %volume.directory.display(), %share, limit, "a daemon has another share of the memory"),
            Err(error @ admin::Error::Answer(_)) => {
                tracing::warn!(volume = %volume.directory.display(), %error, "a daemon keeps its share of the memory");
            }
            Err(error) => return tracing::debug!(volume = %volume.directory.display(), %error, "a daemon cannot be asked yet"),
        }
        *has = share;
    }

    fn begin(&mut self, volume: Volume, share: ByteSize) {
        match start(self.command(&volume, share)) {
            Ok((mut child, process)) => {
                tracing::info!(volume = %volume.directory.display(), pid = process.pid().as_raw_nonzero(), "a daemon begins");
                self.processes.insert(volume.clone(), process);
                self.shares.insert(volume.clone(), share);
                let began = Instant::now();
                self.running.spawn(async move {
                    let end = wait(&mut child).await;
                    (volume, end, began.elapsed())
                });
            }
            Err(error) => {
                tracing::error!(program = %self.options.program.display(), %error, "no daemon can be started");
                self.again(volume, Duration::ZERO);
            }
        }
    }

    fn command(&self, volume: &Volume, share: ByteSize) -> Command {
        let mut command = Command::new(&self.options.program);
        let at = |name: &str| volume.directory.join(name);
        command.args(["mount", "--foreground", "--fd-socket"]).arg(format!("connect:{}", at("mount.sock").display()));
        // Its directory may have a longer name than addresses of sockets.
        command.arg("--error-file").arg(at("error.json")).arg(format!("--metrics-listen=unix:/proc/self/cwd/{PAGES}"));
        command.arg("--control-socket").arg(at(CONTROL));
        command.env(config::MEMORY_SHARE, share.to_string());
        command.args(&self.options.words).current_dir(&volume.directory).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn on_end(&mut self, (volume, end, ran): (Volume, End, Duration)) {
        self.processes.remove(&volume);
        self.shares.remove(&volume);
        match end {
            // Its mount is gone, and so is its socket in a moment; else another process has asked the daemon to end, and the volume needs one.
            End::InOrder => tracing::info!(volume = %volume.directory.display(), "a daemon has ended in order"),
            End::Code(code) => tracing::warn!(volume = %volume.directory.display(), code, "a daemon has ended"),
        }
        self.again(volume, ran);
    }

    fn again(&mut self, volume: Volume, ran: Duration) {
        let pause = self.back_off.entry(volume.clone()).or_default().after(ran);
        self.waiting.insert(volume, Instant::now() + pause);
    }

    fn signal(&self, signal: Signal) {
        for (volume, process) in &self.processes {
            if let Err(error) = process.send(signal) {
                tracing::warn!(volume = %volume.directory.display(), %error, "cannot ask a daemon to end");
            }
        }
    }
}

/// A process that is dropped here on an error is killed, as the command says.
fn start(mut command: Command) -> io::Result<(Child, Process)> {
    let child = command.spawn()?;
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it has not been waited for");
    let process = Process::of_child(pid)?;
    Ok((child, process))
}

async fn wait(child: &mut Child) -> End {
    match child.wait().await {
        Ok(status) => status.into(),
        Err(error) => {
            tracing::error!(%error, "a daemon cannot be waited for");
            End::Code(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn who_does_not_last_begins_later_each_time() {
        let mut back_off = BackOff::default();
        let pauses: Vec<u128> = (0..9).map(|_| back_off.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(back_off.after(LASTED), BACK_OFF[0]);
    }

    #[test]
    fn a_volume_is_a_directory_with_a_socket_and_another_one_with_another_socket() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a", "none", "file"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("file/mount.sock"), "").unwrap();
        let listen = |name: &str| UnixListener::bind(dir.path().join(name).join("mount.sock")).unwrap();
        let _sockets = [listen("a"), listen("b")];
        let found = volumes(dir.path());
        assert_eq!(found.iter().map(|volume| volume.directory.file_name().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
        fs::rename(dir.path().join("a/mount.sock"), dir.path().join("a/old")).unwrap();
        let _another = listen("a");
        assert_ne!(volumes(dir.path())[0], found[0]);
        assert!(volumes(Path::new("/nowhere")).is_empty());
        let _pages = UnixListener::bind(dir.path().join("none").join(PAGES)).unwrap();
        fs::remove_file(dir.path().join("b/mount.sock")).unwrap();
        assert_eq!(volumes(dir.path()).len(), 1);
        assert_eq!(directories(dir.path()), [dir.path().join("a"), dir.path().join("none")]);
    }

    #[test]
    fn the_memory_is_divided_as_long_as_each_daemon_can_work_with_its_share() {
        let shares: Vec<u64> = [0, 1, 2, 3, 4, 8].map(|volumes| share(ByteSize::mib(64), volumes).as_u64() >> 20).into();
        assert_eq!(shares, [64, 64, 32, 21, 16, 16]);
        assert_eq!(share(ByteSize::gib(4), 8), ByteSize::mib(512));
    }

    #[test]
    fn an_end_is_a_code() {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(End::from(ExitStatus::from_raw(0)), End::InOrder);
        assert_eq!(End::from(ExitStatus::from_raw(5 << 8)), End::Code(5));
        assert_eq!(End::from(ExitStatus::from_raw(9)), End::Code(137));
    }

    /// A program that writes what it was called with, and ends with the code that a file says. It is a shell, which finds what it is to do in the
    /// directory of its volume, under the first word that it is called with: a file that was just written can be read, but may not be a program
    /// yet, as long as a process that another test starts has it open too.
    fn stand_in(volume: &Path) -> PathBuf {
        let script = "trap 'exit 3' TERM\ntest -e once && trap '' TERM\necho \"$0 $@\" >> words\ntest -e once && exit 0\ntest -e stays && while :; do sleep 0.01; done\ntouch once\nexit 4\n";
        fs::write(volume.join("mount"), script).unwrap();
        "/bin/sh".into()
    }

    #[tokio::test]
    async fn daemon_that_fails_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("pod/data");
        fs::create_dir_all(&volume).unwrap();
        let _socket = UnixListener::bind(volume.join("mount.sock")).unwrap();
        let options = Options {
            directory: dir.path().join("pod"),
            program: stand_in(&volume),
            words: vec!["--log-level=debug".into()],
            memory_limit: SMALLEST_SHARE,
        };
        let mut daemons = Daemons::new(options);
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut told = Some(told);
        let end = daemons.serve(async || match told.as_mut() {
            Some(receiver) => {
                receiver.await.unwrap();
                told = None;
                Ending::Terminate
            }
            None => std::future::pending().await,
        });
        let looking = async {
            let has_begun_twice = || fs::read_to_string(volume.join("words")).is_ok_and(|words| words.lines().count() >= 2);
            while !has_begun_twice() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tell.send(()).unwrap();
        };
        let (end, ()) = tokio::join!(end, looking);
        assert_eq!(end, End::InOrder);
        let words = fs::read_to_string(volume.join("words")).unwrap();
        assert!(
            words.contains(&format!("mount --foreground --fd-socket connect:{}/mount.sock", volume.display()))
                && words.contains("--log-level=debug")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn daemon_that_ends_in_order_is_started_while_its_volume_is_there() {
        let (_dir, volume, _socket, options) = pod_with_a_volume();
        // Its daemon ends at once, with exit code 0.
        fs::write(volume.join("once"), "").unwrap();
        let mut daemons = Daemons::new(options);
        for _ in 0..3 {
            daemons.look();
            assert_eq!(daemons.processes.len(), 1);
            let ended = daemons.running.join_next().await.unwrap().unwrap();
            assert_eq!(ended.1, End::InOrder);
            daemons.on_end(ended);
            daemons.look();
            assert_eq!(daemons.processes.len(), 0, "the next one begins after a pause");
            tokio::time::advance(BACK_OFF[1]).await;
        }
        fs::remove_file(volume.join("mount.sock")).unwrap();
        daemons.look();
        assert_eq!(daemons.processes.len(), 0, "the volume is not published any more");
    }

    /// With a daemon that stays.
    fn pod_with_a_volume() -> (tempfile::TempDir, PathBuf, UnixListener, Options) {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("pod/data");
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join("stays"), "").unwrap();
        let socket = UnixListener::bind(volume.join("mount.sock")).unwrap();
        let options =
            Options { directory: dir.path().join("pod"), program: stand_in(&volume), words: Vec::new(), memory_limit: SMALLEST_SHARE };
        (dir, volume, socket, options)
    }

    #[tokio::test]
    async fn a_driver_that_began_anew_is_left_to_the_daemon_that_runs() {
        let (_dir, volume, _socket, options) = pod_with_a_volume();
        let mut daemons = Daemons::new(options);
        daemons.look();
        let running = |daemons: &Daemons| daemons.processes.values().map(Process::pid).collect::<Vec<_>>();
        let first = running(&daemons);
        fs::rename(volume.join("mount.sock"), volume.join("before")).unwrap();
        let _another = UnixListener::bind(volume.join("mount.sock")).unwrap();
        daemons.look();
        assert_eq!(running(&daemons), first);
        daemons.signal(Signal::KILL);
        let ended = daemons.running.join_next().await.unwrap().unwrap();
        daemons.on_end(ended);
        daemons.look();
        assert_eq!(daemons.processes.len(), 1, "and another one is begun at once for the new socket");
    }

    #[tokio::test]
    async fn the_worst_of_the_daemons_is_what_it_ends_with() {
        let (_dir, volume, _socket, options) = pod_with_a_volume();
        let mut times = 0;
        let end = async || {
            times += 1;
            if times > 1000 {
                std::future::pending::<()>().await;
            }
            while !volume.join("words").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // It has to hear the signal before it is asked a second time.
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ending::Terminate
        };
        assert_eq!(Daemons::new(options).serve(end).await, End::Code(3));
    }
}
