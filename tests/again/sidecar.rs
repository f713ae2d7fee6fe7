//! A mount that somebody else made and keeps: its daemon is killed, and the next one that connects goes on. Invariant: who keeps a mount has no
//! file of it open for writing: the process that it starts would close its copy of that in exec, and wait for the daemon that it is to become.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use windlass::handover::{Keeper, Message, Place, Report};

use crate::support::disturbed::{objects, while_reading};
use crate::support::keeper::Kept;
use crate::support::mounts::{PATIENCE, trial_as_root};
use crate::support::{BUCKET, REGION, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_mount_that_is_handed_over_outlives_its_daemons", outlives),
        trial_as_root("a_mount_ends_with_its_keeper", ends_with_its_keeper),
    ]
}

/// The mount, who keeps it, and the daemon that is there.
struct Handed<'a> {
    server: &'a S3Server,
    kept: &'a Kept,
    keeper: Arc<Mutex<Keeper>>,
}

struct Sidecar {
    child: Child,
    reports: Receiver<Report>,
    serving: std::thread::JoinHandle<()>,
}

impl<'a> Handed<'a> {
    fn new(server: &'a S3Server, kept: &'a Kept) -> Self {
        let mut descriptors: Vec<OwnedFd> = vec![kept.device().as_fd().try_clone_to_owned().unwrap()];
        descriptors.extend(kept.clones(3));
        let message = Message { bucket: format!("s3://{BUCKET}"), ..Message::default() };
        Self { server, kept, keeper: Arc::new(Mutex::new(Keeper::new(descriptors, message))) }
    }

    /// Starts a daemon, and waits until it answers.
    fn start(&self) -> Sidecar {
        let socket = self.kept.beside("mount.sock");
        let door = Place::of(&socket).unwrap().listen().unwrap();
        let log = File::options().append(true).create(true).open(self.kept.beside("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.arg("mount").arg(format!("--fd-socket=connect:{}", socket.display())).args(["--foreground", "--path-style"]);
        command.args(["--region", REGION, "--endpoint", &self.server.endpoint(), "--spill-dir"]).arg(self.kept.beside("disk"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(self.server.client_env());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let stream = door.accept().unwrap();
        let (tell, reports) = channel();
        let keeper = Arc::clone(&self.keeper);
        let serving = std::thread::spawn(move || keeper.lock().unwrap().serve(stream, |report| drop(tell.send(report))).unwrap());
        let words: Vec<Report> =
            std::iter::from_fn(|| reports.recv_timeout(PATIENCE).ok()).take_while(|report| *report != Report::Ready).collect();
        assert!(words.iter().all(|word| *word == Report::Session), "{words:?}\n{}", self.log());
        Sidecar { child, reports, serving }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.kept.beside("log")).unwrap_or_default()
    }
}

impl Sidecar {
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.serving.join().unwrap();
        assert!(self.reports.try_recv().is_err(), "it had said everything");
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
