//! Who mounts and hands over: a mount of FUSE that nobody serves yet, and the end of the line where its daemon is spoken to. Only root can.
//! Invariant: the mount goes with the [`Kept`], whether or not somebody serves it.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use tempfile::TempDir;
use windlass::handover::{Door, Link, Message, Place};
use windlass::sys;

use super::mounts::{PATIENCE, POLL, is_mount_point};

/// A mount and its descriptor.
pub struct Kept {
    device: Mutex<Option<Arc<OwnedFd>>>,
    directory: PathBuf,
    home: TempDir,
}

impl Kept {
    /// Mounts at a directory of its own. Whoever looks into it waits until somebody serves it.
    pub fn mount() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let directory = home.path().canonicalize().expect("it was made just now").join("mnt");
        fs::create_dir(&directory).expect("it is empty");
        let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").expect("it was looked at before").into();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", device.as_raw_fd());
        let options = CString::new(options).expect("there is no zero in it");
        mount("windlass", &directory, "fuse.windlass", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str()).expect("root may mount");
        Self { device: Mutex::new(Some(Arc::new(device))), directory, home }
    }

    pub fn path(&self) -> &Path {
        assert!(is_mount_point(&self.directory), "not mounted any more");
        &self.directory
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn device(&self) -> Arc<OwnedFd> {
        self.device.lock().expect("nobody panics with it").clone().expect("it was not let go")
    }

    /// Leaves the mount to the daemon alone: without it nobody waits for an answer any more. As long as it is kept, they do.
    pub fn let_go(&self) {
        self.device.lock().expect("nobody panics with it").take();
    }

    /// A place beside the mount point.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// More descriptors of the same session.
    pub fn clones(&self, count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| sys::another_fuse_device(self.device().as_fd()).expect("it is mounted")).collect()
    }

    /// Where the kernel keeps what it reads ahead.
    fn read_ahead_file(&self) -> PathBuf {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel shows its mounts");
        let line = table.lines().find(|line| line.split(' ').nth(4) == self.directory.to_str()).expect("it is mounted");
        PathBuf::from(format!("/sys/class/bdi/{}/read_ahead_kb", line.split(' ').nth(2).expect("every line has it")))
    }

    pub fn set_read_ahead(&self, kib: u32) {
        fs::write(self.read_ahead_file(), kib.to_string()).expect("we are root");
    }

    pub fn read_ahead(&self) -> u32 {
        fs::read_to_string(self.read_ahead_file()).expect("it is mounted").trim().parse().expect("it is a number")
    }

    /// Takes it away from everybody.
    pub fn unmount(&self) {
        unmount(&self.directory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).expect("it is mounted");
    }

    /// Sends the descriptor, `clones` of it and what is to be served.
    pub fn hand_over(&self, link: &Link, message: &Message, clones: &[OwnedFd]) {
        let device = self.device();
        let descriptors: Vec<_> = std::iter::once(device.as_fd()).chain(clones.iter().map(AsFd::as_fd)).collect();
        link.send(message, &descriptors).expect("somebody reads it");
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if is_mount_point(&self.directory) {
            let _ = unmount(&self.directory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

/// Listens for a daemon at `path`; its directory may be as deep as it likes.
pub fn listen(path: &Path) -> Door {
    let door = Place::of(path).and_then(Place::listen).expect("its directory is there and nobody else listens");
    door.permit(0o666).expect("it is ours");
    door.socket().set_nonblocking(true).expect("it is a socket");
    door
}

/// The daemon that connects.
#[track_caller]
pub fn accept(door: &Door) -> Link {
    let end = Instant::now() + PATIENCE;
    loop {
        match door.accept() {
            Ok(stream) => return Link::new(stream),
            Err(error) => assert!(error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < end, "nobody connects: {error}"),
        }
        std::thread::sleep(POLL);
    }
}

/// The next thing that the daemon says, besides what another one would need to go on; none when it is gone.
#[track_caller]
pub fn hear(link: &mut Link) -> Option<(Value, Vec<OwnedFd>)> {
    loop {
        let said: Option<(Value, _)> = link.receive(Some(PATIENCE + Duration::from_secs(30))).expect("it says something in time");
        if said.as_ref().is_none_or(|(what, _)| what.get("session").is_none()) {
            return said;
        }
    }
}
