//! Takes mounts away, also those that nobody answers for. Invariant: a call returns within [`PATIENCE`] and a little more, whatever the daemon does.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::mount::UnmountFlags;

use crate::fuse;
use crate::mountinfo::{self, Entry};

/// How long a daemon may take to answer what the kernel asks at the end.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);

/// Where the kernel has a directory for each connection, named by the minor number of its device.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// What is written to in that directory to end the connection.
const ABORT: &str = "abort";

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

    /// Whether it is in the mount table, also below another mount.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn is_mounted(&self) -> io::Result<bool> {
        Ok(mountinfo::read()?.iter().any(|entry| entry.mount_point == self.target && entry.device.to_string() == self.device))
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
    let connection = Connection::open(Path::new(CONNECTIONS), || mountinfo::at(target).ok().flatten());
    let path = target.to_owned();
    detach_within(PATIENCE, connection.as_ref(), move || fuse::unmount(&path, UnmountFlags::DETACH))
}

/// Unmounts, and aborts the connection if it has not ended after `patience`.
fn detach_within(
    patience: Duration,
    connection: Option<&Connection>,
    unmount: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let (send, receive) = mpsc::channel();
    thread::Builder::new().name("windlass-detach".into()).spawn(move || send.send(unmount()))?;
    let end = Instant::now() + patience;
    let answer = receive.recv_timeout(PATIENCE);
    while connection.is_some_and(Connection::exists) && Instant::now() < end {
        thread::sleep(POLL);
    }
    if let Some(connection) = connection.filter(|connection| connection.exists()) {
        let target = connection.target.display();
        tracing::info!(%target, "files are still open in a mount that is taken away: its connection is ended");
        if let Err(error) = connection.abort() {
            tracing::warn!(%target, %error, "a connection cannot be ended");
        }
    }
    match answer {
        Ok(result) => result,
        // The kernel lets the thread go now that the connection has ended, or when the daemon answers.
        Err(_) => receive.recv_timeout(PATIENCE).unwrap_or(Ok(())),
    }
}

/// A connection of FUSE: its directory in fusectl, held open. Its path is no name for it, because the kernel gives the number of a connection that has ended to the
/// next mount, which may be that of another pod. The directory that was opened is never that of another connection: it is empty once its own has ended
/// (fs/fuse/control.c).
#[derive(Debug)]
struct Connection {
    /// Where it was mounted, for the log.
    target: PathBuf,
    directory: OwnedFd,
}

impl Connection {
    /// Opens the connection of the mount that `entry` reads from the mount table. None where there is no mount, or its connection cannot be seen.
    fn open(connections: &Path, entry: impl Fn() -> Option<Entry>) -> Option<Self> {
        let found = entry()?;
        let path = connections.join(found.device.minor.to_string());
        let directory = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        // The number was that of this mount all the time if the mount is still there.
        (entry()? == found).then_some(Self { target: found.mount_point, directory })
    }

    fn exists(&self) -> bool {
        rustix::fs::statat(&self.directory, ABORT, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Ends the connection: requests that wait for an answer fail.
    fn abort(&self) -> io::Result<()> {
        let file = rustix::fs::openat(&self.directory, ABORT, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        File::from(file).write_all(b"1")
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    /// A mount with the connection 45.
    fn entry(mount: u32) -> Entry {
        let line = format!("{mount} 22 0:45 / /mnt rw - fuse.windlass s3://data rw");
        mountinfo::parse(line.as_bytes()).remove(0)
    }

    /// What fusectl shows of a connection.
    fn show(connections: &Path) -> PathBuf {
        let abort = connections.join("45/abort");
        fs::create_dir(connections.join("45")).unwrap();
        fs::write(&abort, "").unwrap();
        abort
    }

    #[test]
    fn connection_that_gets_a_reused_number_is_not_aborted() {
        let dir = tempfile::tempdir().unwrap();
        let (connections, abort) = (dir.path().to_owned(), show(dir.path()));
        let connection = Connection::open(dir.path(), || Some(entry(30)));
        let unmount = move || {
            fs::remove_dir_all(connections.join("45"))?;
            show(&connections);
            Ok(())
        };
        detach_within(Duration::ZERO, connection.as_ref(), unmount).unwrap();
        assert_eq!(fs::read_to_string(abort).unwrap(), "");
    }

    #[test]
    fn connection_that_stays_after_the_unmount_is_aborted() {
        let dir = tempfile::tempdir().unwrap();
        let abort = show(dir.path());
        let connection = Connection::open(dir.path(), || Some(entry(30)));
        detach_within(Duration::ZERO, connection.as_ref(), || Ok(())).unwrap();
        assert_eq!(fs::read_to_string(abort).unwrap(), "1");
    }

    #[test]
    fn connection_is_unknown_when_its_mount_is_replaced_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        show(dir.path());
        let mounts = Cell::new(30);
        let replaced = || Some(entry(mounts.replace(mounts.get() + 1)));
        assert!(Connection::open(dir.path(), replaced).is_none());
        assert!(Connection::open(dir.path(), || None).is_none());
    }
}
