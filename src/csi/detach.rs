//! Takes mounts away, also those that nobody answers for. Invariant: a call returns within [`PATIENCE`] and a little more, whatever the daemon does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use crate::{fuse, mountinfo};

/// How long a daemon may take to answer what the kernel asks at the end.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);

/// Where the kernel has a directory for each connection, named by the minor number of its device.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// How a mount answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// Somebody has its descriptors, whether they answer or not.
    Alive,
    /// Nobody has, and the kernel says so at once.
    Dead,
}

/// A mount of ours, and by what it is known again.
#[derive(Clone, Debug)]
pub struct Known {
    pub target: PathBuf,
    /// `major:minor`.
    pub device: String,
}

impl Known {
    /// Whether it is there and somebody has its descriptors.
    pub fn is_alive(&self) -> bool {
        let is_there = mountinfo::device_at(&self.target).is_some_and(|device| device.to_string() == self.device);
        is_there && probe(&self.target) == Probed::Alive
    }
}

/// Asks a mount whose descriptors are not here. Only the kernel knows whether anybody has them, and says it to whoever asks for anything: in a thread
/// of its own, which waits as long as the daemon does.
pub fn probe(target: &Path) -> Probed {
    let (send, receive) = mpsc::channel();
    let path = target.to_owned();
    let asking = thread::Builder::new().name("windlass-probe".into()).spawn(move || send.send(rustix::fs::statfs(&path).map(drop)));
    if asking.is_err() {
        return Probed::Alive;
    }
    match receive.recv_timeout(PATIENCE) {
        Ok(Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)) => Probed::Dead,
        Ok(_) | Err(_) => Probed::Alive,
    }
}

/// Takes a mount away from its place at once; whoever has a file open there keeps it a moment. When the kernel waits for a daemon longer than that,
/// the connection is ended.
///
/// # Errors
/// What umount2(2) says.
pub fn detach(target: &Path) -> io::Result<()> {
    let connection = mountinfo::device_at(target).map(|device| Path::new(CONNECTIONS).join(device.minor.to_string()));
    let (send, receive) = mpsc::channel();
    let path = target.to_owned();
    thread::Builder::new().name("windlass-detach".into()).spawn(move || send.send(fuse::unmount(&path, UnmountFlags::DETACH)))?;
    let end = Instant::now() + PATIENCE;
    let answer = receive.recv_timeout(PATIENCE);
    while connection.as_deref().is_some_and(Path::exists) && Instant::now() < end {
        thread::sleep(POLL);
    }
    if let Some(connection) = connection.filter(|connection| connection.exists()) {
        tracing::info!(target = %target.display(), "files are still open in a mount that is taken away: its connection is ended");
        abort(&connection);
    }
    match answer {
        Ok(result) => result,
        // The kernel lets the thread go now that the connection has ended, or when the daemon answers.
        Err(_) => receive.recv_timeout(PATIENCE).unwrap_or(Ok(())),
    }
}

/// Ends a connection: whoever waits for an answer gets an error.
fn abort(connection: &Path) {
    if let Err(error) = fs::write(connection.join("abort"), "1") {
        tracing::warn!(connection = %connection.display(), %error, "a connection cannot be ended");
    }
}

/// Makes [`CONNECTIONS`] visible: in a container it is an empty directory until the file system of this name is mounted there.
pub fn show_connections() {
    let is_there = mountinfo::at(Path::new(CONNECTIONS)).ok().flatten().is_some();
    if is_there || !Path::new(CONNECTIONS).exists() {
        return;
    }
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV | rustix::mount::MountFlags::NOEXEC;
    if let Err(error) = rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", flags, None) {
        tracing::info!(%error, "connections of FUSE cannot be seen here: one that does not end by itself is left to the kernel");
    }
}
