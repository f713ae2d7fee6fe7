//! What the kernel asks for, operation by operation: answers at once what is in memory and leaves the rest to a task of the runtime: a FUSE
//! thread never waits for the network. Reads are in `reading`, opens end in `door`, what changes the bucket is in `changing`, and what the
//! mount shows of itself in `own_files`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::metrics::{Call, Metrics};
use crate::vfs::{Edits, Entry, Error, Files, HandleId, Inode, Names, Result};
use crate::writer::Landing;

use super::MAX_WRITE;
use super::backing::Backings;
use super::before::Before;
use super::convert::{absent_out, attr_out, entry_out, errno, permissions, set_attributes};
use super::directories::{Directories, Plain, Plus};
use super::door::access;
use super::own_files::OwnFiles;
use super::reply::{Empty, Interruptible, Owed, Reply};
use super::request::{Header, Operation};
use super::wire::{AttrOut, EntryOut, OpenOut, StatfsOut, open_flags, valid};

/// Who may use the mount, beside what the kernel checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    All,
    /// This user, and root.
    UserAndRoot(u32),
    /// This user alone.
    User(u32),
}

impl Admitted {
    fn admits(self, uid: u32) -> bool {
        match self {
            Self::All => true,
            Self::UserAndRoot(user) => uid == user || uid == 0,
            Self::User(user) => uid == user,
        }
    }
}

/// The mounted bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    pub names: Arc<Names>,
    pub files: Arc<Files>,
    pub directories: Arc<Directories>,
    /// None: mounted read-only.
    pub edits: Option<Arc<Edits>>,
    /// None: nothing is kept on a disk that the kernel could read from.
    pub backings: Option<Arc<Backings>>,
    /// What the mount shows of itself.
    pub own: OwnFiles,
    pub metrics: Arc<Metrics>,
    pub runtime: Handle,
    pub admitted: Admitted,
    /// Requests that wait for the store, and whose askers may die meanwhile.
    pub waits: Arc<Interruptible>,
    /// What the daemon before this one may have answered.
    pub before: Before,
}

/// The caller of a request, and the answer that is owed to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub header: Header,
    pub owed: &'a Owed<'a>,
}

impl Asker<'_> {
    /// The one reply that this request gets.
    pub fn reply<A>(self) -> Reply<A> {
        self.owed.reply()
    }

    pub fn ino(self) -> Inode {
        self.header.ino
    }
}

impl Bucket {
    /// Answers a request, now or from a task.
    pub fn on_request(&self, asker: Asker<'_>, operation: Operation<'_>) {
        if !operation.is_for_anybody() && !self.admitted.admits(asker.header.uid) {
            return asker.reply::<Empty>().error(libc::EACCES);
        }
        if self.own.has_to_answer(asker.ino(), &operation) {
            return self.own.on_request(asker, &operation, &self.runtime);
        }
        if let Some(call) = call(&operation) {
            self.metrics.operations.count(call);
        }
        match operation {
            Operation::Lookup { name } => self.lookup(asker, name),
            Operation::Forget { lookups } => self.forget(asker.ino(), lookups),
            Operation::ForgetMany(forgets) => forgets.into_iter().for_each(|(ino, lookups)| self.forget(ino, lookups)),
            Operation::Getattr => self.getattr(asker),
            Operation::Readlink => self.read_link(asker),
            Operation::Open { flags } => self.open(asker, access(flags)),
            Operation::Read { handle, offset, size } => self.read(asker, handle, offset, size),
            Operation::Release { handle } => self.release(asker.ino(), handle, asker.reply()),
            Operation::Flush { handle } => self.flush(asker, handle),
            Operation::Statfs => statfs(asker.reply()),
            Operation::Getxattr { name, size } => self.get_xattr(asker, name, size),
            Operation::Listxattr { size } => self.list_xattrs(asker, size),
            // The kernel checks permissions itself (default_permissions).
            Operation::Access => asker.reply::<Empty>().error(libc::ENOSYS),
            Operation::Opendir => self.opendir(asker),
            Operation::Readdir { handle, offset, size } => self.directories.read::<Plain>(handle, offset, size, asker, self),
            Operation::Readdirplus { handle, offset, size } => {
                self.directories.read::<Plus>(handle, offset, size, asker, self);
            }
            Operation::Releasedir { handle } => {
                self.directories.release(handle);
                asker.reply::<Empty>().done();
            }
            // Names are in the store when the operation that made them returns.
            Operation::Fsyncdir => asker.reply::<Empty>().done(),
            // It has no answer; see `interrupt`.
            Operation::Interrupt => {}
            Operation::Destroy => asker.reply::<Empty>().done(),
            Operation::Unknown { opcode } => {
                tracing::debug!(opcode, "the kernel asks for something that there is not");
                asker.reply::<Empty>().error(libc::ENOSYS);
            }
            Operation::Malformed { opcode } => {
                tracing::error!(opcode, "a request of the kernel is shorter than it says");
                asker.reply::<Empty>().error(libc::EIO);
            }
            change => self.on_change(asker, change),
        }
    }

    /// Memory to receive writes of so many bytes into, where there is some.
    pub fn landing(&self, len: usize) -> Option<Landing> {
        self.edits.as_ref()?.landing(len)
    }

    /// A reply to something that may take long: it is answered when who asked is killed.
    pub fn patient<A>(&self, asker: Asker<'_>) -> Reply<A> {
        asker.reply().interruptible(&self.waits, asker.header.thread)
    }

    fn lookup(&self, asker: Asker<'_>, name: &OsStr) {
        let parent = asker.ino();
        // A name that is known may still have listings of what comes next asked for.
        let _runtime = self.runtime.enter();
        match self.names.try_lookup(parent, name.as_bytes()) {
            Some(result) => entry(&self.names, parent, name, result, asker.reply()),
            None => {
                let (names, name, reply) = (Arc::clone(&self.names), name.to_owned(), self.patient::<EntryOut>(asker));
                self.runtime.spawn(async move {
                    let result = names.lookup(parent, name.as_bytes()).await;
                    match reply.claim() {
                        Some(reply) => entry(&names, parent, &name, result, reply),
                        // The kernel counts no lookup that it was not told of.
                        None => drop(result.map(|found| names.forget(found.attr.ino, 1))),
                    }
                });
            }
        }
    }

    fn forget(&self, ino: Inode, lookups: u64) {
        if !self.own.has(ino) {
            self.names.forget(ino, lookups);
        }
    }

    fn getattr(&self, asker: Asker<'_>) {
        let ino = asker.ino();
        let answer = |result: Result<_>, reply: Reply<AttrOut>| match result {
            Ok((found, ttl)) => reply.ok(&attr_out(&found, ttl)),
            Err(error) => reply.error(errno("getattr", &error)),
        };
        let of_open = move |files: &Files, edits: Option<&Edits>| {
            files.attributes_of_open(ino).or_else(|| edits?.attributes_of_removed(ino)).map(|attr| (attr, Duration::ZERO))
        };
        if let Some(found) = of_open(&self.files, self.edits.as_deref()) {
            return answer(Ok(found), asker.reply());
        }
        match self.names.try_getattr(ino) {
            Some(result) => answer(result, asker.reply()),
            None => {
                let (names, files, edits, reply) =
                    (Arc::clone(&self.names), Arc::clone(&self.files), self.edits.clone(), self.patient(asker));
                self.runtime.spawn(async move {
                    let found = names.getattr(ino).await;
                    // The store may have told of another version than the one that is being read.
                    answer(of_open(&files, edits.as_deref()).map_or(found, Ok), reply);
                });
            }
        }
    }

    fn flush(&self, asker: Asker<'_>, handle: HandleId) {
        if self.edits.is_none() {
            // Nothing to write back; ENOSYS spares the request at every further close.
            return asker.reply::<Empty>().error(libc::ENOSYS);
        }
        self.flush_handle(asker, handle);
    }

    fn opendir(&self, asker: Asker<'_>) {
        if let Some(before) = self.before.take(asker.header) {
            return asker.reply().ok(&before.out());
        }
        let reply = asker.reply::<OpenOut>();
        // The kernel keeps the entries of a listing as long as we believe it.
        let flags = |keep| open_flags::CACHE_DIR | if keep { open_flags::KEEP_CACHE } else { 0 };
        match self.directories.open(asker.ino(), asker.header.first_unique(), flags) {
            Ok((handle, flags)) => reply.ok(&OpenOut { fh: handle.0, flags, backing_id: 0 }),
            Err(error) => reply.error(errno("opendir", &error)),
        }
    }

    fn on_change(&self, asker: Asker<'_>, operation: Operation<'_>) {
        match operation {
            Operation::Setattr(set) => {
                let (handle, set) = set_attributes(&set);
                self.set_attributes(asker, handle, set);
            }
            Operation::Symlink { name, target } => self.make_link(asker, name, target),
            Operation::Mknod { name, mode } if mode & libc::S_IFMT == libc::S_IFREG => self.make_file(asker, name, permissions(mode)),
            Operation::Mknod { .. } => asker.reply::<EntryOut>().error(errno("mknod", &Error::NoSpecialFiles)),
            Operation::Mkdir { name, mode } => self.make_directory(asker, name, permissions(mode)),
            Operation::Unlink { name } => self.unlink(asker, name),
            Operation::Rmdir { name } => self.rmdir(asker, name),
            Operation::Rename { name, new_parent, new_name, flags } => self.rename(asker, name, (new_parent, new_name), flags),
            Operation::Link { .. } => asker.reply::<EntryOut>().error(errno("link", &Error::NoHardLinks)),
            Operation::Create { name, mode, flags } => self.create(asker, name, permissions(mode), access(flags)),
            Operation::Write { handle, offset, data } => self.write(asker, handle, offset, data),
            Operation::Fsync { handle } => self.fsync(asker, handle),
            Operation::Fallocate { handle, offset, length, mode } => self.allocate(asker, handle, offset, length, mode),
            Operation::Setxattr { name, value, flags } => self.set_xattr(asker, name, value, flags),
            Operation::Removexattr { name } => self.remove_xattr(asker, name),
            other => unreachable!("{other:?} changes nothing"),
        }
    }
}

/// As which call it is counted. Reads are, where they are answered.
fn call(operation: &Operation<'_>) -> Option<Call> {
    Some(match operation {
        Operation::Mkdir { .. } => Call::Mkdir,
        Operation::Rmdir { .. } => Call::Rmdir,
        Operation::Unlink { .. } => Call::Unlink,
        Operation::Opendir => Call::Opendir,
        Operation::Readdir { .. } | Operation::Readdirplus { .. } => Call::Readdir,
        Operation::Write { .. } => Call::Write,
        Operation::Flush { .. } => Call::Flush,
        Operation::Fsync { .. } => Call::Fsync,
        Operation::Release { .. } => Call::Release,
        Operation::Create { .. } => Call::Create,
        Operation::Open { .. } => Call::Open,
        Operation::Access => Call::Access,
        Operation::Rename { .. } => Call::Rename,
        Operation::Setattr(set) if set.valid & valid::SIZE != 0 => Call::Truncate,
        Operation::Setattr(set) if set.valid & valid::MODE != 0 => Call::Chmod,
        Operation::Setattr(set) if set.valid & (valid::UID | valid::GID) != 0 => Call::Chown,
        _ => return None,
    })
}

fn statfs(reply: Reply<StatfsOut>) {
    // A bucket has no size. 1 EiB of 1 MiB blocks, all free, is what lets installers and df go on.
    const BLOCKS: u64 = 1 << 40;
    const INODES: u64 = 1 << 40;
    reply.ok(&StatfsOut {
        blocks: BLOCKS,
        free_blocks: BLOCKS,
        available_blocks: BLOCKS,
        files: INODES,
        free_files: INODES,
        block_size: MAX_WRITE,
        name_len: 255,
        fragment_size: MAX_WRITE,
        ..StatfsOut::default()
    });
}

/// Replies to a lookup. Absence is told in a way that the kernel may remember for as long as we do.
fn entry(names: &Names, parent: Inode, name: &OsStr, result: Result<Entry>, reply: Reply<EntryOut>) {
    match result {
        Ok(found) => reply.ok(&entry_out(&found)),
        Err(Error::NotFound) => {
            let ttl = names.absent_for(parent, name.as_bytes());
            if ttl.is_zero() { reply.error(libc::ENOENT) } else { reply.ok(&absent_out(ttl)) }
        }
        Err(error) => reply.error(errno("lookup", &error)),
    }
}
