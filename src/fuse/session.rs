//! The session with the kernel: attached by mounting, or over a descriptor that somebody else mounted.
//!
//! Invariants: what this process mounted it unmounts, by name and only while it is still there; a descriptor that was
//! passed in is served and never unmounted. A thread that cannot read requests any more ends the session at once: requests that only it could
//! answer would never be answered.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
use super::reply::Owed;
use super::request::Operation;
use super::{MAX_WRITE, Options, kernel};

/// More threads than cores lose half of the throughput of many parallel readers.
fn thread_count() -> usize {
    thread::available_parallelism().map_or(2, usize::from).clamp(1, 16)
}

/// A session whose threads answer the kernel.
pub struct Session {
    mountpoint: Option<PathBuf>,
    channel: Arc<Channel>,
    threads: watch::Receiver<Threads>,
    pause: Arc<Pause>,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The kernel ended it: the mount is gone.
    Unmounted,
    /// A thread cannot read requests any more. The mount is still there, and perhaps answers no longer.
    Failed { reason: String },
}

/// What is known of the threads that answer.
#[derive(Debug, Default)]
struct Threads {
    /// Why the first one of them that could not go on has ended.
    failure: Option<String>,
    have_ended: bool,
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

/// Which form what is kept for the next daemon has; 2: rows of dirty files say what became of them.
const KEPT: u32 = 2;

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
        let (tell, pause) = (watch::Sender::<Threads>::default(), Arc::<Pause>::default());
        let (channel, mut threads) = (Arc::clone(&channels[0]), tell.subscribe());
        let session = Self { mountpoint, channel, threads: tell.subscribe(), pause: Arc::clone(&pause) };
        let waits = Arc::clone(&bucket.waits);
        bucket.runtime.spawn(async move {
            tokio::select! {
                () = look_after(waits) => {}
                _ = threads.wait_for(|threads| threads.have_ended) => {}
            }
        });
        // Dropped by the last of the threads.
        let served = Arc::new(Served { bucket, tell });
        // Each descriptor may be the only one by which some answer can be given, so all of them are read.
        for number in 0..thread_count().max(channels.len()) {
            let channel = Arc::clone(&channels[number % channels.len()]);
            let (served, pause) = (Arc::clone(&served), Arc::clone(&pause));
            let inbox = Inbox::new()?;
            let serve = move || served.watch(|bucket| serve(bucket, &channel, inbox, &pause));
            thread::Builder::new().name(format!("fuse-{number}")).spawn(serve)?;
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

    /// Waits until the kernel ends the session, or one of its threads cannot go on.
    pub async fn ended(&self) -> Ended {
        let mut threads = self.threads.clone();
        // An error means that no thread is left to tell.
        let ended = threads.wait_for(|threads| threads.have_ended || threads.failure.is_some()).await;
        match ended.ok().and_then(|threads| threads.failure.clone()) {
            Some(reason) => Ended::Failed { reason },
            None => Ended::Unmounted,
        }
    }

    /// Waits until no thread answers any more.
    async fn threads_end(&self) {
        let _ = self.threads.clone().wait_for(|threads| threads.have_ended).await;
    }

    /// Whether the mount is still there, and stays when this process ends.
    pub fn outlives(&self) -> bool {
        let threads = self.threads.borrow();
        self.mountpoint.is_none() && !threads.have_ended
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
        let is_gone = {
            let threads = self.threads.borrow();
            threads.have_ended && threads.failure.is_none()
        };
        if is_gone {
            return Ok(());
        }
        kernel::unmount(mountpoint, UnmountFlags::empty()).or_else(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => kernel::unmount(mountpoint, UnmountFlags::DETACH),
            _ => Err(error),
        })?;
        let _ = tokio::time::timeout(grace, self.threads_end()).await;
        Ok(())
    }
}

/// What the threads have in common.
#[derive(Debug)]
struct Served {
    bucket: Bucket,
    tell: watch::Sender<Threads>,
}

impl Served {
    /// Runs what a thread does, and tells at once when it could not go on.
    fn watch(&self, serve: impl FnOnce(&Bucket) -> io::Result<()>) {
        let failure = match catch_unwind(AssertUnwindSafe(|| serve(&self.bucket))) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("cannot read requests of the kernel: {error}"),
            Err(_) => "a thread that reads requests of the kernel panicked".to_owned(),
        };
        tracing::error!(failure, "a thread of the mount has ended");
        self.tell.send_modify(|threads| {
            threads.failure.get_or_insert(failure);
        });
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.tell.send_modify(|threads| threads.have_ended = true);
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
    let missing = if may { thread_count().saturating_sub(1 + came.len()) } else { 0 };
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
fn serve(bucket: &Bucket, channel: &Arc<Channel>, mut inbox: Inbox, pause: &Pause) -> io::Result<()> {
    while let Some(len) = inbox.receive(channel, |len| bucket.landing(len))? {
        pause.wait();
        handle(&mut inbox, len, channel, |asker, operation| bucket.on_request(asker, operation));
    }
    Ok(())
}

/// Handles the message of `len` bytes in `inbox`. A panic ends that request alone: it gets EIO, and the thread goes on with the next one.
fn handle(inbox: &mut Inbox, len: usize, channel: &Arc<Channel>, on_request: impl FnOnce(Asker<'_>, Operation<'_>)) {
    let Some(envelope) = inbox.envelope(len) else {
        return tracing::error!(len, "the kernel sent less than a header");
    };
    // Outside of what may panic: it answers when nothing in there did.
    let owed = Owed::new(envelope, channel);
    // What the request has left in locks is as if an error had been returned there. Only the memory of this thread may be in between.
    let handled = catch_unwind(AssertUnwindSafe(|| {
        let Some((header, operation)) = inbox.decode(len) else { return };
        // Without what is written: a megabyte is no line of a log.
        match &operation {
            Operation::Write { handle, offset, data } => {
                tracing::trace!(?header, ?handle, offset, len = data.bytes().len(), "write")
            }
            operation => tracing::trace!(?header, ?operation, "request"),
        }
        on_request(Asker { header, owed: &owed }, operation);
    }));
    if handled.is_err() {
        // The panic itself is logged where it happens.
        inbox.reset();
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

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use futures::FutureExt;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use tokio::runtime::Handle;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::admin::Observer;
    use crate::budget::{self, Budget};
    use crate::fuse::Tree;
    use crate::fuse::reply::{Data, Empty, Reply};
    use crate::fuse::request::tests::message;
    use crate::fuse::wire::opcode;
    use crate::metrics::Metrics;
    use crate::reader::{self, Reader};
    use crate::store::memory::Memory;
    use crate::units::ByteSize;
    use crate::vfs::{self, Files, Names};

    /// The kernel's end of a connection, and a channel over ours: messages come whole, as over /dev/fuse.
    fn connection() -> (OwnedFd, Arc<Channel>) {
        let (kernel, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        (kernel, Arc::new(Channel::new(ours)))
    }

    /// Errors of the answers that have come, all of them to the request of `message`.
    fn answers(kernel: &OwnedFd) -> Vec<i32> {
        let mut answer = [0; 64];
        let mut errors = Vec::new();
        while let Ok(len) = rustix::io::read(kernel, &mut answer) {
            assert!(len >= 16 && answer[8..16] == 7u64.to_ne_bytes(), "{:?}", &answer[..len]);
            errors.push(i32::from_ne_bytes(answer[4..8].try_into().unwrap()));
        }
        errors
    }

    /// Answers of one request that `on_request` handles, and of one that comes after it on the same thread.
    fn handled(opcode: u32, body: &[u8], on_request: impl FnOnce(Asker<'_>, Operation<'_>)) -> [Vec<i32>; 2] {
        let (kernel, channel) = connection();
        let mut inbox = Inbox::new().unwrap();
        let mut ask = |message: &[u8], on_request: &mut dyn FnMut(Asker<'_>, Operation<'_>)| {
            send(&kernel, message, SendFlags::empty()).unwrap();
            let len = inbox.receive(&channel, |_| None).unwrap().unwrap();
            handle(&mut inbox, len, &channel, on_request);
            answers(&kernel)
        };
        let mut on_request = Some(on_request);
        let first = ask(&message(opcode, body), &mut |asker, operation| on_request.take().unwrap()(asker, operation));
        let next = ask(&message(opcode::STATFS, &[]), &mut |asker, operation| {
            assert_eq!(operation, Operation::Statfs);
            asker.reply::<Empty>().done();
        });
        [first, next]
    }

    /// A panic that no hook prints.
    fn defect() {
        resume_unwind(Box::new("a defect"));
    }

    #[test]
    fn panicking_request_gets_eio_once_and_the_next_is_handled() {
        let eio = -libc::EIO;
        assert_eq!(handled(opcode::ACCESS, &[], |_, _| defect()), [vec![eio], vec![0]]);
        let replied = |asker: Asker<'_>, _: Operation<'_>| {
            let _reply: Reply<Data> = asker.reply();
            defect();
        };
        assert_eq!(handled(opcode::ACCESS, &[], replied), [vec![eio], vec![0]]);
        let answered = |asker: Asker<'_>, _: Operation<'_>| {
            asker.reply::<Empty>().error(libc::ENOENT);
            defect();
        };
        assert_eq!(handled(opcode::ACCESS, &[], answered), [vec![-libc::ENOENT], vec![0]]);
        assert_eq!(handled(opcode::LOOKUP, b"name\0", |_, _| {}), [vec![eio], vec![0]], "it is forgotten");
    }

    #[test]
    fn panicking_request_without_answer_gets_none() {
        for opcode in [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT] {
            assert_eq!(handled(opcode, &[0; 16], |_, _| defect()), [vec![], vec![0]]);
        }
    }

    /// A file system of an empty bucket.
    fn tree() -> Tree {
        let (store, metrics) = (Arc::new(Memory::default()), Arc::new(Metrics::default()));
        let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) });
        let options = reader::Options::default();
        let reader = Reader::new(Arc::clone(&store) as _, Arc::clone(&budget), Arc::clone(&metrics), options, Duration::from_secs(70));
        let names = Names::new(store, vfs::Options::default());
        let observer = Observer {
            names: Arc::clone(&names),
            metrics,
            budget,
            reader: reader.clone(),
            spill: None,
            source: String::new(),
            data_host: None,
            mountpoint: String::new(),
            began: std::time::Instant::now(),
            port: None,
        };
        Tree { files: Files::new(Arc::clone(&names), reader), names, edits: None, observer: Arc::new(observer) }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn device_that_cannot_be_read_ends_the_session_as_failed() {
        let (kernel, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None).unwrap();
        let ask = |opcode, body: &[u8]| {
            send(&kernel, &message(opcode, body), SendFlags::empty()).unwrap();
        };
        ask(opcode::INIT, [7u32, 40, 1 << 17, 0].as_bytes());
        let session = crate::fuse::attach(tree(), Handle::current(), ours, Vec::new(), &Options::default(), None).unwrap();
        let mut answer = [0; 256];
        assert!(rustix::io::read(&kernel, &mut answer).unwrap() > 16, "it agrees");
        ask(opcode::ACCESS, &[0; 8]);
        assert_eq!(rustix::io::read(&kernel, &mut answer).unwrap(), 16);
        assert_eq!(i32::from_ne_bytes(answer[4..8].try_into().unwrap()), -libc::ENOSYS);
        assert!(session.ended().now_or_never().is_none());
        // No longer a connection with a kernel.
        drop(kernel);
        let ended = tokio::time::timeout(Duration::from_secs(240), session.ended()).await.unwrap();
        let Ended::Failed { reason } = ended else { panic!("nothing was unmounted") };
        assert!(reason.starts_with("cannot read requests of the kernel: "), "{reason}");
        tokio::time::timeout(Duration::from_secs(240), session.threads_end()).await.unwrap();
        assert_eq!(session.ended().await, Ended::Failed { reason });
    }
}
