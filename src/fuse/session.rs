//! The session with the kernel: attached by mounting, or over a descriptor that somebody else mounted.
//!
//! Invariant: what this process mounted it unmounts, by name and only while it is still there; a descriptor that was
//! passed in is served and never unmounted.

use std::ffi::OsStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, Notifier, SessionACL};
use rustix::mount::UnmountFlags;
use tokio::sync::watch;

use crate::vfs::{Expired, Inode};

use super::Options;
use super::convert::number;
use super::filesystem::Bucket;
use super::kernel;

/// More threads than cores lose half of the throughput of many parallel readers.
fn threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from).clamp(1, 16)
}

/// A session whose threads answer the kernel.
#[derive(Debug)]
pub struct Session {
    mountpoint: Option<PathBuf>,
    notifier: Notifier,
    ended: watch::Receiver<bool>,
}

impl Session {
    /// Mounts `bucket` at `mountpoint`, tunes the kernel's side of the mount and answers it from now on.
    pub(super) fn mount(bucket: Bucket, mountpoint: &Path, name: &str, options: &Options) -> io::Result<Self> {
        let mountpoint = mountpoint.canonicalize()?;
        let ended = bucket.ended.subscribe();
        let config = config(name, options, bucket.edits.is_none())?;
        let session = fuser::Session::new(bucket, &mountpoint, &config)?;
        let session = Self::run(session, Some(mountpoint.clone()), ended)?;
        kernel::set_read_ahead(&mountpoint);
        Ok(session)
    }

    /// Serves `bucket` over a /dev/fuse descriptor that is mounted already.
    pub(super) fn attach(bucket: Bucket, fd: OwnedFd) -> io::Result<Self> {
        let mut config = Config::default();
        // The mount options of who mounted it decide who may enter.
        config.acl = SessionACL::All;
        set_threads(&mut config);
        let ended = bucket.ended.subscribe();
        Self::run(fuser::Session::from_fd(bucket, fd, SessionACL::All, config)?, None, ended)
    }

    fn run(session: fuser::Session<Bucket>, mountpoint: Option<PathBuf>, ended: watch::Receiver<bool>) -> io::Result<Self> {
        let notifier = session.notifier();
        // Dropped, this would unmount what is at the mount point then, which may be somebody else's.
        let _threads = ManuallyDrop::new(session.spawn()?);
        Ok(Self { mountpoint, notifier, ended })
    }

    /// Waits until the kernel ends the session: somebody unmounted it.
    pub async fn ended(&self) {
        // An error means that the file system was dropped without destroy, which is an end as well.
        let _ = self.ended.clone().wait_for(|&ended| ended).await;
    }

    /// The device of what was mounted here, as `major:minor`. None for a descriptor: where that is mounted this process cannot see.
    pub fn device(&self) -> Option<String> {
        self.mountpoint.as_deref().and_then(kernel::device_of)
    }

    /// Drops the kernel's attributes of inodes, and names that it believes to be there or not. Waits for lookups in the same directories
    /// that are under way; must not be called from a thread that answers the kernel.
    pub fn forget(&self, expired: &Expired) {
        self.invalidate_attributes(&expired.inodes);
        for (parent, name) in &expired.entries {
            if let Err(error) = self.notifier.inval_entry(number(*parent), OsStr::from_bytes(name)) {
                tracing::debug!(parent = parent.0, %error, "could not drop a name");
            }
        }
    }

    /// Drops the kernel's attributes of `inodes`. Must not be called from a thread that answers the kernel.
    pub fn invalidate_attributes(&self, inodes: &[Inode]) {
        // A negative offset leaves the pages alone (`fuse_reverse_inval_inode`).
        self.invalidate(inodes, -1);
    }

    /// Drops the kernel's pages and attributes of `inodes`. Waits for reads of them that are under way.
    pub fn invalidate_pages(&self, inodes: &[Inode]) {
        self.invalidate(inodes, 0);
    }

    fn invalidate(&self, inodes: &[Inode], offset: i64) {
        for &ino in inodes {
            // ENOENT: the kernel has forgotten it already.
            if let Err(error) = self.notifier.inval_inode(number(ino), offset, 0) {
                tracing::debug!(ino = ino.0, %error, "could not invalidate an inode");
            }
        }
    }

    /// Unmounts, if it was mounted here. When files are still open the mount point is freed at once and the session
    /// lives on until `grace` is over or the files are closed.
    ///
    /// # Errors
    /// When the mount is still there afterwards.
    pub async fn unmount(&self, grace: Duration) -> io::Result<()> {
        let Some(mountpoint) = &self.mountpoint else { return Ok(()) };
        if *self.ended.borrow() {
            return Ok(());
        }
        kernel::unmount(mountpoint, UnmountFlags::empty()).or_else(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => kernel::unmount(mountpoint, UnmountFlags::DETACH),
            _ => Err(error),
        })?;
        let _ = tokio::time::timeout(grace, self.ended()).await;
        Ok(())
    }
}

fn config(name: &str, options: &Options, read_only: bool) -> io::Result<Config> {
    let mut config = Config::default();
    config.acl = match (options.allow_other, options.allow_root) {
        (true, _) => SessionACL::All,
        (false, true) => SessionACL::RootAndOwner,
        (false, false) => SessionACL::Owner,
    };
    let fixed = [MountOption::FSName(name.to_owned()), subtype(), MountOption::DefaultPermissions];
    config.mount_options.extend(fixed);
    config.mount_options.push(if read_only { MountOption::RO } else { MountOption::RW });
    if options.auto_unmount {
        config.mount_options.push(MountOption::AutoUnmount);
    }
    for flag in &options.mount_flags {
        config.mount_options.push(mount_flag(flag)?);
    }
    set_threads(&mut config);
    Ok(config)
}

/// What makes the mount table say `fuse.windlass`. fuser mounts as type `fuse` and drops a subtype unless fusermount3
/// mounts, but the kernel takes it as an option since it reads them through its fs_context (fs/fuse/inode.c, 5.5).
fn subtype() -> MountOption {
    if kernel::version() >= (5, 5) { MountOption::CUSTOM("subtype=windlass".into()) } else { MountOption::Subtype("windlass".into()) }
}

/// Every thread gets a descriptor of its own where /dev/fuse can be opened; inside a container without the device
/// they share the one that was passed in.
fn set_threads(config: &mut Config) {
    config.n_threads = Some(threads());
    config.clone_fd = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
}

fn mount_flag(flag: &str) -> io::Result<MountOption> {
    Ok(match flag {
        "suid" => MountOption::Suid,
        "nosuid" => MountOption::NoSuid,
        "dev" => MountOption::Dev,
        "nodev" => MountOption::NoDev,
        "exec" => MountOption::Exec,
        "noexec" => MountOption::NoExec,
        "atime" => MountOption::Atime,
        "noatime" => MountOption::NoAtime,
        "sync" => MountOption::Sync,
        "async" => MountOption::Async,
        "dirsync" => MountOption::DirSync,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("\"{flag}\" is not a mount flag"))),
    })
}
