//! The session with the kernel: attached by mounting, or over a descriptor that somebody else mounted.
//!
//! Invariant: what this process mounted it unmounts, by name and only while it is still there; a descriptor that was
//! passed in is served and never unmounted.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, SessionACL};
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::handover::Line;
use crate::mountinfo::{self, Device};
use crate::vfs::{Answered, Expired, Inode};

use super::before::Before;
use super::channel::Channel;
use super::filesystem::{Admitted, Asker, Bucket};
use super::inbox::Inbox;
use super::init::{Agreed, Asking, Wishes, agree};
use super::interrupt::look_after;
use super::pause::Pause;
use super::request::Operation;
use super::{MAX_WRITE, Options, kernel};

/// More threads than cores lose half of the throughput of many parallel readers.
fn threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from).clamp(1, 16)
}

/// A session whose threads answer the kernel.
pub struct Session {
    mountpoint: Option<PathBuf>,
    channel: Arc<Channel>,
    ended: watch::Receiver<bool>,
    pause: Arc<Pause>,
}

/// Who keeps the session for the daemon after this one.
#[derive(Clone, Copy, Debug)]
pub struct Keeping<'a> {
    pub line: &'a Line,
    /// What is served: another daemon can go on with nothing else.
    pub source: &'a str,
    /// What is written down of names and handles.
    pub memory: [BorrowedFd<'a>; 2],
}

/// What a daemon that ended has left.
#[derive(Debug)]
pub struct Left {
    /// Of /dev/fuse, each of which may have taken requests.
    devices: Vec<OwnedFd>,
    agreed: Agreed,
}

/// A session as its keeper has it. Another number is another form.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    source: String,
    agreed: Agreed,
    /// How many descriptors come with it: of the device, and of memory behind them.
    devices: usize,
    memory: usize,
}

const KEPT: u32 = 1;

impl Left {
    /// Sorts what came from a keeper: the session as it was told, what is of /dev/fuse, and what is not, which is the memory of the names.
    ///
    /// # Errors
    /// In words for people: when it is of another version or another source, or not complete.
    pub fn of(session: &Value, source: &str, devices: Vec<OwnedFd>, memory: Vec<OwnedFd>) -> Result<(Self, [OwnedFd; 2]), String> {
        let kept = Kept::deserialize(session).map_err(|error| format!("what it left cannot be read: {error}"))?;
        if kept.version != KEPT {
            return Err(format!("what it left has version {} and not {KEPT}", kept.version));
        }
        if kept.source != source {
            return Err(format!("it served {} and not {source}", kept.source));
        }
        if kept.agreed.max_write > MAX_WRITE {
            return Err(format!("it agreed on writes of {} bytes, for which there is no room here", kept.agreed.max_write));
        }
        let memory = <[OwnedFd; 2]>::try_from(memory).map_err(|memory| format!("it left {} descriptors of memory", memory.len()))?;
        if devices.is_empty() {
            return Err("it left no descriptor of /dev/fuse".into());
        }
        Ok((Self { devices, agreed: kept.agreed }, memory))
    }
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
        (options, read_only): (&Options, bool),
        keeping: Option<Keeping<'_>>,
    ) -> io::Result<Self> {
        let mountpoint = mountpoint.canonicalize()?;
        let config = config(name, options, read_only)?;
        let agreed = Arc::default();
        let asking = Asking { wishes, agreed: Arc::clone(&agreed) };
        // Dropped, it would unmount what is at the mount point then, which may be somebody else's; and fusermount3 unmounts when its end
        // of it closes.
        let mount = ManuallyDrop::new(fuser::Session::new(asking, &mountpoint, &config)?);
        let begin = || {
            let first = Channel::new(mount.as_fd().try_clone_to_owned()?);
            let channels = with_clones(first, Vec::new(), true);
            if let Some(keeping) = keeping {
                keep(keeping, agreed.get().copied().unwrap_or_default(), &channels, true)?;
            }
            Self::run(channels, bucket(admitted(options)), Some(mountpoint.clone()))
        };
        let session = begin().inspect_err(|_| {
            // Nobody would ever answer there.
            let _ = kernel::unmount(&mountpoint, UnmountFlags::DETACH);
        })?;
        kernel::set_read_ahead(&mountpoint, kernel::READ_AHEAD_KIB.min(options.max_readahead >> 10));
        Ok(session)
    }

    /// Serves what `bucket` makes over a /dev/fuse descriptor that is mounted already, and over clones of it.
    pub(super) fn attach(
        bucket: impl FnOnce(Admitted) -> Bucket,
        wishes: Wishes,
        (fd, clones): (OwnedFd, Vec<OwnedFd>),
        keeping: Option<Keeping<'_>>,
    ) -> io::Result<Self> {
        let first = Channel::new(fd);
        let agreed = agree(&first, wishes)?;
        // What is taken by a descriptor that nobody keeps is lost with this process, and whoever asked gets an error.
        let channels = with_clones(first, clones, keeping.is_none());
        if let Some(keeping) = keeping {
            keep(keeping, agreed, &channels, false)?;
        }
        // The mount options of who mounted it decide who may enter.
        Self::run(channels, bucket(Admitted::All), None)
    }

    /// Goes on where another daemon ended.
    pub(super) fn resume(
        bucket: impl FnOnce(Admitted) -> Bucket,
        left: Left,
        mountpoint: Option<&Path>,
        options: &Options,
        mut answered: Vec<Answered>,
    ) -> io::Result<Self> {
        let mountpoint = mountpoint.map(Path::canonicalize).transpose()?;
        let mut channels = left.devices.into_iter().map(Channel::new).map(Arc::new);
        let first = channels.next().expect("there is one, or it would not have been taken for complete");
        let mut bucket = bucket(if mountpoint.is_some() { admitted(options) } else { Admitted::All });
        if let Some(backings) = bucket.backings.as_ref().filter(|_| left.agreed.passes_through()) {
            backings.restore(&answered, &first);
        }
        answered.extend(bucket.directories.restore());
        bucket.before = Before::new(answered);
        // Before anything is taken here: what this daemon has taken would come again, too.
        first.resend()?;
        Self::run(std::iter::once(first).chain(channels).collect(), bucket, mountpoint)
    }

    fn run(channels: Vec<Arc<Channel>>, bucket: Bucket, mountpoint: Option<PathBuf>) -> io::Result<Self> {
        let (ended, pause) = (watch::Sender::new(false), Arc::<Pause>::default());
        let channel = Arc::clone(&channels[0]);
        let session = Self { mountpoint, channel, ended: ended.subscribe(), pause: Arc::clone(&pause) };
        bucket.runtime.spawn(look_after(Arc::clone(&bucket.waits), ended.subscribe()));
        // Dropped by the last of the threads.
        let served = Arc::new((bucket, End(ended)));
        // Each descriptor may be the only one by which some answer can be given, so all of them are read.
        for number in 0..threads().max(channels.len()) {
            let channel = Arc::clone(&channels[number % channels.len()]);
            let (served, pause) = (Arc::clone(&served), Arc::clone(&pause));
            let inbox = Inbox::new()?;
            thread::Builder::new().name(format!("fuse-{number}")).spawn(move || serve(&served.0, &channel, inbox, &pause))?;
        }
        Ok(session)
    }

    /// Takes no more requests, until it is [resumed](Self::unpause). What was taken meanwhile waits.
    pub fn pause(&self) {
        self.pause.set(true);
    }

    /// Goes on.
    pub fn unpause(&self) {
        self.pause.set(false);
    }

    /// Waits until the kernel ends the session: somebody unmounted it.
    pub async fn ended(&self) {
        // An error means that the file system was dropped without destroy, which is an end as well.
        let _ = self.ended.clone().wait_for(|&ended| ended).await;
    }

    /// The device of what is mounted, None for a descriptor where the kernel does not tell of what: where that is mounted
    /// this process cannot see.
    pub fn device(&self) -> Option<Device> {
        match &self.mountpoint {
            Some(mountpoint) => mountinfo::device_at(mountpoint),
            None => self.channel.mounted_as()?.parse().ok(),
        }
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

fn admitted(options: &Options) -> Admitted {
    let user = rustix::process::geteuid().as_raw();
    match acl(options) {
        SessionACL::All => Admitted::All,
        SessionACL::RootAndOwner => Admitted::UserAndRoot(user),
        SessionACL::Owner => Admitted::User(user),
    }
}

/// A descriptor for every thread: those that came in, and new ones where that `may` be and /dev/fuse can be opened, which in a container without
/// the device it cannot.
fn with_clones(first: Channel, clones: Vec<OwnedFd>, may: bool) -> Vec<Arc<Channel>> {
    let came: Vec<Channel> = clones.into_iter().map(Channel::new).collect();
    let missing = if may { threads().saturating_sub(1 + came.len()) } else { 0 };
    let new: Vec<Channel> = (0..missing).map_while(|_| first.another().ok()).collect();
    std::iter::once(first).chain(came).chain(new).map(Arc::new).collect()
}

/// Gives the keeper what a daemon needs that goes on after this one; with the `devices` when they are made here.
fn keep(keeping: Keeping<'_>, agreed: Agreed, channels: &[Arc<Channel>], devices: bool) -> io::Result<()> {
    if !agreed.resends() {
        tracing::info!("this kernel does not ask again what a daemon that died had taken (it takes Linux 6.9): a restart loses the mount");
        return Ok(());
    }
    let devices: Vec<OwnedFd> = channels.iter().filter(|_| devices).map(|channel| channel.share()).collect::<io::Result<_>>()?;
    let kept = Kept { version: KEPT, source: keeping.source.to_owned(), agreed, devices: devices.len(), memory: keeping.memory.len() };
    let session = serde_json::to_value(&kept).map_err(io::Error::other)?;
    let descriptors: Vec<BorrowedFd<'_>> = devices.iter().map(AsFd::as_fd).chain(keeping.memory).collect();
    if let Err(error) = keeping.line.keep(&session, &descriptors) {
        tracing::warn!(%error, "the keeper of this mount cannot be told what another daemon needs");
    }
    Ok(())
}

/// Answers requests until the mount is gone.
fn serve(bucket: &Bucket, channel: &Arc<Channel>, mut inbox: Inbox, pause: &Pause) {
    loop {
        let len = match inbox.receive(channel, |len| bucket.landing(len)) {
            Ok(Some(len)) => len,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "cannot read requests of the kernel");
                return;
            }
        };
        pause.wait();
        match inbox.decode(len) {
            Some((header, operation)) => {
                // Without what is written: a megabyte is no line of a log.
                match &operation {
                    Operation::Write { handle, offset, data } => {
                        tracing::trace!(?header, ?handle, offset, len = data.bytes().len(), "write")
                    }
                    operation => tracing::trace!(?header, ?operation, "request"),
                }
                bucket.on_request(Asker { header, channel }, operation);
            }
            None => tracing::error!(len, "the kernel sent less than a header"),
        }
    }
}

fn acl(options: &Options) -> SessionACL {
    match (options.allow_other, options.allow_root) {
        (true, _) => SessionACL::All,
        (false, true) => SessionACL::RootAndOwner,
        (false, false) => SessionACL::Owner,
    }
}

fn config(name: &str, options: &Options, read_only: bool) -> io::Result<Config> {
    let mut config = Config::default();
    config.acl = acl(options);
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
