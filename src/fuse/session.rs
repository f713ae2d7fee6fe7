//! The session with the kernel: attached by mounting, or over a descriptor that somebody else mounted.
//!
//! Invariant: what this process mounted it unmounts, by name and only while it is still there; a descriptor that was
//! passed in is served and never unmounted.

use std::fmt;
use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, SessionACL};
use rustix::mount::UnmountFlags;
use tokio::sync::watch;

use crate::sys::{HUGE_PAGE, Memory, Window};
use crate::vfs::{Expired, Inode};

use super::channel::Channel;
use super::filesystem::{Admitted, Asker, Bucket};
use super::init::{Agreed, Wishes, agree};
use super::interrupt::look_after;
use super::request::{Operation, decode};
use super::wire::{InHeader, WriteIn};
use super::{MAX_WRITE, Options, kernel};

/// More threads than cores lose half of the throughput of many parallel readers.
fn threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from).clamp(1, 16)
}

/// Room for the largest message: a WRITE, behind a page of its own (`fuse_dev_do_read` wants no less).
const MESSAGE_BYTES: usize = MAX_WRITE as usize + PAGE;

const PAGE: usize = 4096;

/// Where a message begins in its memory: so that what a WRITE brings, behind two headers, begins with a page and the kernel copies whole pages.
const LEAD: usize = PAGE - WRITE_HEADERS;

/// `struct fuse_in_header` and `struct fuse_write_in`.
const WRITE_HEADERS: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// A session whose threads answer the kernel.
pub struct Session {
    mountpoint: Option<PathBuf>,
    channel: Arc<Channel>,
    ended: watch::Receiver<bool>,
    /// What was agreed on over a descriptor.
    agreed: Option<Agreed>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("mountpoint", &self.mountpoint).finish_non_exhaustive()
    }
}

impl Session {
    /// Mounts what `bucket` makes at `mountpoint`, tunes the kernel's side of the mount and answers it from now on.
    pub(super) fn mount(
        bucket: impl FnOnce(Admitted) -> Bucket,
        wishes: Wishes,
        mountpoint: &Path,
        name: &str,
        options: &Options,
        read_only: bool,
    ) -> io::Result<Self> {
        let mountpoint = mountpoint.canonicalize()?;
        let config = config(name, options, read_only)?;
        let user = rustix::process::geteuid().as_raw();
        let admitted = match config.acl {
            SessionACL::All => Admitted::All,
            SessionACL::RootAndOwner => Admitted::UserAndRoot(user),
            SessionACL::Owner => Admitted::User(user),
        };
        // Dropped, it would unmount what is at the mount point then, which may be somebody else's; and fusermount3 unmounts when its end
        // of it closes.
        let session = ManuallyDrop::new(fuser::Session::new(wishes, &mountpoint, &config)?);
        let channel = session.as_fd().try_clone_to_owned().map(Channel::new);
        let session = channel.and_then(|channel| Self::run(channel, Vec::new(), bucket(admitted), Some(mountpoint.clone())));
        let session = session.inspect_err(|_| {
            // Nobody would ever answer there.
            let _ = kernel::unmount(&mountpoint, UnmountFlags::DETACH);
        })?;
        kernel::set_read_ahead(&mountpoint, kernel::READ_AHEAD_KIB.min(options.max_readahead >> 10));
        Ok(session)
    }

    /// Serves what `bucket` makes over a /dev/fuse descriptor that is mounted already, and over `clones` of it.
    pub(super) fn attach(bucket: impl FnOnce(Admitted) -> Bucket, wishes: Wishes, fd: OwnedFd, clones: Vec<OwnedFd>) -> io::Result<Self> {
        let channel = Channel::new(fd);
        let agreed = agree(&channel, wishes)?;
        // The mount options of who mounted it decide who may enter.
        let session = Self::run(channel, clones, bucket(Admitted::All), None)?;
        Ok(Self { agreed: Some(agreed), ..session })
    }

    fn run(channel: Channel, clones: Vec<OwnedFd>, bucket: Bucket, mountpoint: Option<PathBuf>) -> io::Result<Self> {
        let channel = Arc::new(channel);
        let ended = watch::Sender::new(false);
        let session = Self { mountpoint, channel: Arc::clone(&channel), ended: ended.subscribe(), agreed: None };
        bucket.runtime.spawn(look_after(Arc::clone(&bucket.waits), ended.subscribe()));
        // Dropped by the last of the threads.
        let served = Arc::new((bucket, End(ended)));
        let mut clones = clones.into_iter().map(Channel::new);
        for number in 0..threads() {
            // Every thread gets a descriptor of its own: one that came in, or a new one where /dev/fuse can be opened. Inside a container
            // without the device the others share one.
            let mut own = || clones.next().map_or_else(|| channel.another(), Ok);
            let channel = if number == 0 { Arc::clone(&channel) } else { own().map_or_else(|_| Arc::clone(&channel), Arc::new) };
            let served = Arc::clone(&served);
            // Of huge pages: the kernel looks up every page that it writes to.
            let memory = Window::new(Memory::map((LEAD + MESSAGE_BYTES).next_multiple_of(HUGE_PAGE))?, LEAD + MESSAGE_BYTES);
            thread::Builder::new().name(format!("fuse-{number}")).spawn(move || serve(&served.0, &channel, memory))?;
        }
        Ok(session)
    }

    /// Waits until the kernel ends the session: somebody unmounted it.
    pub async fn ended(&self) {
        // An error means that the file system was dropped without destroy, which is an end as well.
        let _ = self.ended.clone().wait_for(|&ended| ended).await;
    }

    /// The device of what is mounted, as `major:minor`. None for a descriptor where the kernel does not tell of what: where that is mounted
    /// this process cannot see.
    pub fn device(&self) -> Option<String> {
        match &self.mountpoint {
            Some(mountpoint) => kernel::device_of(mountpoint),
            None => self.channel.mounted_as(),
        }
    }

    /// What was agreed on with the kernel, where that was not fuser's business.
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// Drops the kernel's attributes of inodes, and names that it believes to be there or not. Waits for lookups in the same directories
    /// that are under way; must not be called from a thread that answers the kernel.
    pub fn forget(&self, expired: &Expired) {
        self.invalidate_attributes(&expired.inodes);
        for (parent, name) in &expired.entries {
            if let Err(error) = self.channel.invalidate_entry(*parent, name) {
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
            if let Err(error) = self.channel.invalidate_inode(ino, offset) {
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

/// Says that the session ended when nobody serves it any more.
#[derive(Debug)]
struct End(watch::Sender<bool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Answers requests until the mount is gone.
fn serve(bucket: &Bucket, channel: &Arc<Channel>, mut memory: Window<Memory>) {
    let message = &mut memory.bytes_mut()[LEAD..];
    loop {
        let len = match channel.receive(message) {
            Ok(Some(len)) => len,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "cannot read requests of the kernel");
                return;
            }
        };
        match decode(&message[..len]) {
            Some((header, operation)) => {
                // Without what is written: a megabyte is no line of a log.
                match &operation {
                    Operation::Write { handle, offset, data } => tracing::trace!(?header, ?handle, offset, len = data.len(), "write"),
                    operation => tracing::trace!(?header, ?operation, "request"),
                }
                bucket.on_request(Asker { header, channel }, operation);
            }
            None => tracing::error!(len, "the kernel sent less than a header"),
        }
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
    Ok(config)
}

/// What makes the mount table say `fuse.windlass`. fuser mounts as type `fuse` and drops a subtype unless fusermount3
/// mounts, but the kernel takes it as an option since it reads them through its fs_context (fs/fuse/inode.c, 5.5).
fn subtype() -> MountOption {
    if kernel::version() >= (5, 5) { MountOption::CUSTOM("subtype=windlass".into()) } else { MountOption::Subtype("windlass".into()) }
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
