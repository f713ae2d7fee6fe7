//! A daemon for what the driver mounts: takes the descriptors as a sidecar does, and has the built program serve the first of them.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};
use windlass::handover::{Link, Message, Place};

use super::node::Pod;
use super::support::mounts::{PATIENCE, wait_until};
use super::support::{KilledAtEnd, REGION, S3Server};

pub struct Daemon {
    child: Child,
    link: Link,
    pub message: Message,
    pub descriptors: Vec<OwnedFd>,
    socket: PathBuf,
}

/// Takes what the driver gives.
pub fn take(pod: &Pod) -> (Link, Message, Vec<OwnedFd>) {
    let socket = pod.directory.join("mount.sock");
    wait_until("there is a socket to knock at", || socket.exists());
    let mut link = Link::new(Place::of(&socket).and_then(|place| place.connect()).expect("the driver listens"));
    let (message, descriptors) = link.receive::<Message>(Some(PATIENCE)).expect("it is a message").expect("it comes");
    (link, message, descriptors)
}

/// Says to a driver that began anew that its mount is served by who has these descriptors.
pub fn resume_at(socket: &Path, descriptors: &[BorrowedFd<'_>]) -> Link {
    let connected = std::cell::RefCell::new(None);
    wait_until("the new driver listens", || {
        connected.replace(Place::of(socket).and_then(|place| place.connect()).ok());
        connected.borrow().is_some()
    });
    let link = Link::new(connected.take().expect("it was waited for"));
    link.send(&json!({"resume": {"devices": descriptors.len()}, "ready": true}), descriptors).expect("the driver listens");
    link
}

impl Daemon {
    /// Takes the mount and serves it; returns when it answers.
    pub fn serve(pod: &Pod, server: &S3Server) -> Self {
        let mut daemon = Self::begin(take(pod), pod, server);
        let ready = pod.meeting.join("test-ready");
        wait_until("the daemon answers", || ready.exists());
        assert!(daemon.child.try_wait().expect("it is our child").is_none());
        daemon.say(&json!({"ready": true}), &[]);
        daemon
    }

    /// Serves a mount that may be gone before it answers.
    pub fn try_serve(pod: &Pod, server: &S3Server) -> Option<Self> {
        let socket = pod.directory.join("mount.sock");
        let mut link = Link::new(Place::of(&socket).and_then(|place| place.connect()).ok()?);
        let (message, descriptors) = link.receive::<Message>(Some(PATIENCE)).ok()??;
        (!descriptors.is_empty()).then(|| Self::begin((link, message, descriptors), pod, server))
    }

    fn begin((link, message, descriptors): (Link, Message, Vec<OwnedFd>), pod: &Pod, server: &S3Server) -> Self {
        let ready = pod.meeting.join("test-ready");
        let log = pod.meeting.join("test-log");
        let _ = std::fs::remove_file(&ready);
        let mut command = Command::new("sh");
        // The descriptor comes as the standard input, which a mount cannot be told of.
        command.args(["-c", "exec \"$@\" 3<&0 0</dev/null", "sh", env!("CARGO_BIN_EXE_windlass"), "mount", &message.bucket, "/dev/fd/3"]);
        command
            .args(["--foreground", "--path-style", "--region", REGION, "--endpoint", &server.endpoint()])
            .arg("--ready-file")
            .arg(&ready);
        command.args(message.args.iter().map(String::as_str));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(server.client_env());
        let first = descriptors[0].try_clone().expect("there is room for one more");
        let said = File::create(&log).expect("it can be written");
        let child = command.stdin(Stdio::from(first)).stdout(Stdio::null()).stderr(said).spawn().expect("the shell starts");
        Self { child, link, message, descriptors, socket: pod.directory.join("mount.sock") }
    }

    pub fn say(&self, word: &Value, descriptors: &[BorrowedFd<'_>]) {
        self.link.send(word, descriptors).expect("the driver listens");
    }

    /// Tells a driver that began anew that the mount is served, and gives it the descriptors back.
    pub fn resume(&mut self) {
        let borrowed: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
        self.link = resume_at(&self.socket, &borrowed);
    }

    /// The same at the socket of another pod; what the driver makes of it.
    pub fn resume_for(&self, pod: &Pod) -> Link {
        let borrowed: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
        resume_at(&pod.directory.join("mount.sock"), &borrowed)
    }

    /// Ends as a sidecar does whose container is killed.
    pub fn kill(mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// Waits for its end after the mount has gone.
    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().expect("it is our child")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that looks at a path, and how it ended once it has.
pub struct Looker(KilledAtEnd);

impl Looker {
    pub fn at(path: &Path) -> Self {
        let child = Command::new("stat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(KilledAtEnd(child.expect("coreutils are installed")))
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.0.try_wait().expect("it is our child").is_some()
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.0.0.wait().expect("it is our child")
    }
}
