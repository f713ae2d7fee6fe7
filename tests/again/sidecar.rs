//! A mount that somebody else made and keeps: its daemon is killed, and the next one that connects goes on. Invariant: who keeps a mount has no
//! file of it open for writing: the process that it starts would close its copy of that in exec, and wait for the daemon that it is to become.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process_group};
use windlass::handover::{Keeper, Message, Place, Report};

use crate::support::cgroup::command_in;
use crate::support::disturbed::{objects, while_reading};
use crate::support::keeper::Kept;
use crate::support::mounts::{PATIENCE, POLL, trial_as_root};
use crate::support::{BUCKET, REGION, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_mount_that_is_handed_over_outlives_its_daemons", outlives),
        trial_as_root("a_mount_ends_with_its_keeper", ends_with_its_keeper),
    ]
}

/// The mount, who keeps it, and the daemon that is there.
pub struct Handed<'a> {
    server: &'a S3Server,
    kept: &'a Kept,
    keeper: Arc<Mutex<Keeper>>,
    words: Vec<String>,
    cgroup: Option<PathBuf>,
}

/// A daemon of it. Dropped, it is gone.
pub struct Sidecar {
    child: Child,
    reports: Receiver<Report>,
    serving: Option<std::thread::JoinHandle<()>>,
}

impl<'a> Handed<'a> {
    pub fn new(server: &'a S3Server, kept: &'a Kept) -> Self {
        let mut descriptors: Vec<OwnedFd> = vec![kept.device().as_fd().try_clone_to_owned().unwrap()];
        descriptors.extend(kept.clones(3));
        let message = Message { bucket: format!("s3://{BUCKET}"), ..Message::default() };
        Self { server, kept, keeper: Arc::new(Mutex::new(Keeper::new(descriptors, message))), words: Vec::new(), cgroup: None }
    }

    /// Its daemons get `words` too.
    pub fn with(self, words: &[&str]) -> Self {
        Self { words: words.iter().map(|word| (*word).to_owned()).collect(), ..self }
    }

    /// Its daemons run inside a cgroup.
    pub fn in_cgroup(self, path: &Path) -> Self {
        Self { cgroup: Some(path.to_owned()), ..self }
    }

    /// Starts a daemon, and waits until it answers.
    pub fn start(&self) -> Sidecar {
        let socket = self.kept.beside("mount.sock");
        let mut command = command_in(self.cgroup.as_deref(), env!("CARGO_BIN_EXE_windlass"));
        command.arg("mount").arg(format!("--fd-socket=connect:{}", socket.display())).arg("--foreground").args(self.options());
        self.start_at(&socket, command)
    }

    /// Options of each daemon in addition to where its mount comes from.
    pub fn options(&self) -> Vec<String> {
        let disk = format!("--spill-dir={}", self.kept.beside("disk").display());
        let place = ["--path-style".to_owned(), format!("--region={REGION}"), format!("--endpoint={}", self.server.endpoint()), disk];
        place.into_iter().chain(self.words.iter().cloned()).collect()
    }

    /// Starts `command`, whose daemon connects to `socket`.
    pub fn start_at(&self, socket: &Path, mut command: Command) -> Sidecar {
        let door = Place::of(socket).unwrap().listen().unwrap();
        let log = File::options().append(true).create(true).open(self.kept.beside("log")).unwrap();
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(self.server.client_env());
        // Faults of the store keep requests waiting on purpose.
        command.env("WINDLASS_HEDGE", "false").env("WINDLASS_STALL_TIMEOUT", "60s");
        // A sidecar has a daemon of its own, which is to end with it.
        command.process_group(0);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let stream = door.accept().unwrap();
        let (tell, reports) = channel();
        let keeper = Arc::clone(&self.keeper);
        let serving = std::thread::spawn(move || keeper.lock().unwrap().serve(stream, |report| drop(tell.send(report))).unwrap());
        let words: Vec<Report> =
            std::iter::from_fn(|| reports.recv_timeout(PATIENCE).ok()).take_while(|report| *report != Report::Ready).collect();
        assert!(words.iter().all(|word| *word == Report::Session), "{words:?}\n{}", self.log());
        Sidecar { child, reports, serving: Some(serving) }
    }

    pub fn path(&self) -> &Path {
        self.kept.path()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.kept.beside("log")).unwrap_or_default()
    }
}

impl Sidecar {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// How it ended, once its keeper has heard everything.
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "the daemon does not end");
            std::thread::sleep(POLL);
        };
        if let Some(serving) = self.serving.take() {
            serving.join().unwrap();
        }
        status
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.wait();
        assert!(self.reports.try_recv().is_err(), "it had said everything");
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // One that was waited for has no process any more, and its number may belong to another process.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn outlives() {
    let (server, kept) = (S3Server::start(), Kept::mount());
    let contents = objects(&server);
    let handed = Handed::new(&server, &kept);
    let daemon = Mutex::new(Some(handed.start()));
    let number = fs::metadata(kept.join("data/3")).unwrap().ino();
    let replace = || {
        let mut daemon = daemon.lock().unwrap();
        daemon.take().expect("one is there").kill();
        *daemon = Some(handed.start());
    };
    while_reading(kept.path(), &contents, 0, &[&replace, &replace, &replace]);
    assert_eq!(fs::metadata(kept.join("data/3")).unwrap().ino(), number);
    daemon.lock().unwrap().take().expect("one is there").kill();
}

fn ends_with_its_keeper() {
    let (server, kept) = (S3Server::start(), Kept::mount());
    let contents = objects(&server);
    let handed = Handed::new(&server, &kept);
    let daemon = handed.start();
    let file = File::open(kept.join("data/0")).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(contents[0].matches(0, &bytes));
    daemon.kill();
    assert!(handed.keeper.lock().unwrap().can_go_on());
    let reader = std::thread::spawn(move || file.read_exact_at(&mut [0; 4096], 20 << 20).unwrap_err().raw_os_error());
    drop(handed);
    // The last descriptor is that of who mounted.
    drop(kept);
    assert!(matches!(reader.join().unwrap(), Some(libc::ENOTCONN | libc::ECONNABORTED)));
}
