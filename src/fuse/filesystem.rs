//! Decodes the kernel's requests, answers at once what is in memory and leaves the rest to a task of the runtime: a FUSE thread never waits
//! for the network. Reads are in `reading`, what changes the bucket is in `changing`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{AccessFlags, BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags};
use fuser::{KernelConfig, LockOwner, OpenFlags, RenameFlags, Request, TimeOrNow, WriteFlags};
use fuser::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::vfs::{Edits, Entry, Error, Files, HandleId, Inode, Names, NewAttributes, Result, SetAttributes};

use super::backing::Backings;
use super::changing::{access, allocation, caller, permissions, time};
use super::convert::{absent, attr, errno, ino};
use super::directories::Directories;
use super::own_files::OwnFiles;

/// Requests the kernel may keep waiting in the background. With its default of 16, parallel small reads with a large
/// read-ahead drop to a sixth of their rate.
const MAX_BACKGROUND: u16 = 256;

/// The largest WRITE the kernel sends; it also sizes its READs, up to fs.fuse.max_pages_limit.
const MAX_WRITE: u32 = 1 << 20;

/// Inode numbers are never used again for another key, so one generation is enough.
pub(super) const GENERATION: Generation = Generation(0);

/// The mounted bucket, as fuser wants it.
#[derive(Debug)]
pub(super) struct Bucket {
    pub names: Arc<Names>,
    pub files: Arc<Files>,
    pub directories: Arc<Directories>,
    /// None: mounted read-only.
    pub edits: Option<Arc<Edits>>,
    /// None: nothing is kept on a disk that the kernel could read from.
    pub backings: Option<Arc<Backings>>,
    pub own: OwnFiles,
    pub metrics: Arc<Metrics>,
    pub runtime: Handle,
    /// Becomes true when the session ends.
    pub ended: watch::Sender<bool>,
}

impl Filesystem for Bucket {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            // Several lookups and listings in one directory at a time.
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Direct reads longer than one READ are sent side by side.
            InitFlags::FUSE_ASYNC_DIO,
            // Attributes with the names: the listing told them anyway.
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            // We say when pages are stale; the kernel need not guess from mtime, which stores round to seconds.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            // O_TRUNC comes with the open: one request, and no moment in which the file is empty and somebody else's.
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            // Setuid bits are taken away here; without it the kernel asks for an extended attribute before every write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        // With this the kernel asks for attributes in the first reply only until it sees a lookup, and whoever reads all names
        // before the first stat (ls -l, filepath.Walk) pays a lookup a file. Right only where attributes cost a request each.
        let adaptive = (!self.names.listings_tell_attributes()).then_some(InitFlags::FUSE_READDIRPLUS_AUTO);
        for flag in wanted.into_iter().chain(adaptive) {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel does not know this");
            }
        }
        if self.backings.is_some() && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() {
            // Files on plain file systems; with more the mount itself could not lie under an overlay.
            config.set_max_stack_depth(1).map_err(|most| io::Error::other(format!("max_stack_depth above {most}")))?;
        }
        config.set_max_background(MAX_BACKGROUND).map_err(|least| io::Error::other(format!("max_background below {least}")))?;
        config.set_max_write(MAX_WRITE).map_err(|most| io::Error::other(format!("max_write above {most}")))?;
        Ok(())
    }

    fn destroy(&mut self) {
        self.ended.send_replace(true);
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if self.own.has_name(parent, name) {
            return self.own.lookup(parent, name, reply);
        }
        let parent = ino(parent);
        match self.names.try_lookup(parent, name.as_bytes()) {
            Some(result) => entry(&self.names, parent, name, result, reply),
            None => {
                let (names, name) = (Arc::clone(&self.names), name.to_owned());
                self.runtime.spawn(async move {
                    let result = names.lookup(parent, name.as_bytes()).await;
                    entry(&names, parent, &name, result, reply);
                });
            }
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        if !self.own.has(number) && self.names.forget(ino(number), lookups) {
            self.files.forget(ino(number));
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        if self.own.has(number) {
            return self.own.getattr(number, reply);
        }
        let answer = |result: Result<_>, reply: ReplyAttr| match result {
            Ok((found, ttl)) => reply.attr(&ttl, &attr(&found)),
            Err(error) => reply.error(errno("getattr", &error)),
        };
        let removed = || self.edits.as_ref()?.attributes_of_removed(ino(number));
        if let Some(old) = self.files.attributes_of_old(ino(number)).or_else(removed) {
            return reply.attr(&Duration::ZERO, &attr(&old));
        }
        match self.names.try_getattr(ino(number)) {
            Some(result) => answer(result, reply),
            None => {
                let names = Arc::clone(&self.names);
                self.runtime.spawn(async move { answer(names.getattr(ino(number)).await, reply) });
            }
        }
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.own.has(number) {
            return self.own.open(flags, &self.runtime, reply);
        }
        let access = access(flags.0);
        if access.write || self.names.is_being_written(ino(number)) {
            return self.open_for_writing(caller(request), ino(number), access, reply);
        }
        let door = self.door();
        match self.files.try_open(ino(number), access.direct) {
            Some(result) => door.open(ino(number), result, access, reply),
            None => {
                self.runtime.spawn(async move {
                    let result = door.files.open(ino(number), access.direct).await;
                    door.open(ino(number), result, access, reply);
                });
            }
        }
    }

    fn read(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.own.has(number) {
            return self.own.read(handle, offset, size, reply);
        }
        self.read_handle(request.pid(), ino(number), HandleId(handle.0), offset, size, reply);
    }

    fn flush(&self, request: &Request, number: INodeNo, handle: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        if self.own.has(number) {
            return reply.ok();
        }
        if self.edits.is_none() {
            // Nothing to write back; ENOSYS spares the request at every further close.
            return reply.error(Errno::ENOSYS);
        }
        self.flush_handle(request.pid(), HandleId(handle.0), reply);
    }

    fn release(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if self.own.has(number) {
            return self.own.release(handle, reply);
        }
        self.release_handle(HandleId(handle.0), reply);
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.own.has(number) {
            return self.own.opendir(reply);
        }
        match self.directories.open(ino(number)) {
            Ok((handle, keep)) => {
                // The kernel keeps the entries of a listing as long as we believe it.
                let keep = if keep { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
                reply.opened(FileHandle(handle.0), FopenFlags::FOPEN_CACHE_DIR | keep);
            }
            Err(error) => reply.error(errno("opendir", &error)),
        }
    }

    fn readdir(&self, _request: &Request, number: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        if self.own.has(number) {
            return self.own.readdir(offset, reply);
        }
        self.directories.read(HandleId(handle.0), offset, reply, &self.runtime);
    }

    fn readdirplus(&self, _request: &Request, number: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        if self.own.has(number) {
            return self.own.readdirplus(offset, reply);
        }
        self.directories.read(HandleId(handle.0), offset, reply, &self.runtime);
    }

    fn releasedir(&self, _request: &Request, number: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        if self.own.has(number) {
            return reply.ok();
        }
        self.directories.release(HandleId(handle.0));
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        // A bucket has no size. 1 EiB of 1 MiB blocks, all free, is what lets installers and df go on.
        const BLOCKS: u64 = 1 << 40;
        const INODES: u64 = 1 << 40;
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, INODES, INODES, MAX_WRITE, 255, MAX_WRITE);
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if self.own.has(number) {
            return reply.error(Errno::from_i32(libc::ENODATA));
        }
        self.get_xattr(ino(number), name.to_owned(), size, reply);
    }

    fn listxattr(&self, _request: &Request, _number: INodeNo, _size: u32, reply: ReplyXattr) {
        // What there is are facts of the store, each worth a request: not listed, so that cp -a does not copy them. ENOSYS: the kernel
        // answers EOPNOTSUPP from now on without asking.
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _request: &Request, _number: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions itself (default_permissions).
        reply.error(Errno::ENOSYS);
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if self.own.has(number) {
            return reply.error(Errno::EACCES);
        }
        let own = NewAttributes { mode: mode.map(permissions), uid, gid, modified: mtime.map(time), accessed: atime.map(time) };
        self.set_attributes(ino(number), handle, SetAttributes { size, own }, reply);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        if self.own.has(number) {
            return reply.error(Errno::EINVAL);
        }
        self.read_link(ino(number), reply);
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, _rdev: u32, reply: ReplyEntry) {
        if self.own.has_name(parent, name) {
            return reply.error(Errno::EACCES);
        }
        if mode & libc::S_IFMT != libc::S_IFREG {
            return reply.error(errno("mknod", &Error::NoSpecialFiles));
        }
        let (caller, parent, name) = (caller(request), ino(parent), name.to_owned());
        self.entry("mknod", reply, |edits| async move { edits.make_file(parent, name.as_bytes(), permissions(mode), caller).await });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        if self.own.has_name(parent, name) {
            return reply.error(Errno::EACCES);
        }
        let (caller, parent, name) = (caller(request), ino(parent), name.to_owned());
        self.entry("mkdir", reply, |edits| async move { edits.mkdir(parent, name.as_bytes(), permissions(mode), caller).await });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if self.own.has_name(parent, name) {
            return reply.error(Errno::EACCES);
        }
        let (parent, name) = (ino(parent), name.to_owned());
        self.empty("unlink", reply, |edits| async move { edits.unlink(parent, name.as_bytes()).await });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if self.own.has_name(parent, name) {
            return reply.error(Errno::EACCES);
        }
        let (parent, name) = (ino(parent), name.to_owned());
        self.empty("rmdir", reply, |edits| async move { edits.rmdir(parent, name.as_bytes()).await });
    }

    fn symlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        if self.own.has_name(parent, name) {
            return reply.error(Errno::EACCES);
        }
        self.make_link(ino(parent), name.to_owned(), target, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if self.own.has_name(parent, name) || self.own.has_name(new_parent, new_name) {
            return reply.error(Errno::EACCES);
        }
        self.rename_entry((parent, name.to_owned()), (new_parent, new_name.to_owned()), flags, reply);
    }

    fn link(&self, _request: &Request, number: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        if self.own.has(number) || self.own.has_name(new_parent, new_name) {
            return reply.error(Errno::EACCES);
        }
        reply.error(errno("link", &Error::NoHardLinks));
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, flags: i32, reply: ReplyCreate) {
        if self.own.has_name(parent, name) {
            return reply.error(Errno::EACCES);
        }
        self.create_file(caller(request), ino(parent), name.to_owned(), mode, access(flags), reply);
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.own.has(number) {
            return reply.error(Errno::EACCES);
        }
        self.write_at(request.pid(), HandleId(handle.0), offset, data, reply);
    }

    fn fsync(&self, _request: &Request, number: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if self.own.has(number) {
            return reply.ok();
        }
        if self.edits.as_ref().is_none_or(|edits| !edits.knows(HandleId(handle.0))) {
            return reply.ok();
        }
        self.empty("fsync", reply, |edits| async move { edits.fsync(HandleId(handle.0)).await });
    }

    fn fsyncdir(&self, _request: &Request, _number: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        // Names are in the store when the operation that made them returns.
        reply.ok();
    }

    fn fallocate(&self, _request: &Request, number: INodeNo, handle: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        if self.own.has(number) {
            return reply.error(Errno::EACCES);
        }
        match allocation(mode) {
            Err(error) => reply.error(errno("fallocate", &error)),
            Ok(how) => {
                self.empty("fallocate", reply, |edits| async move { edits.allocate(HandleId(handle.0), offset, length, how).await });
            }
        }
    }

    fn setxattr(&self, _request: &Request, number: INodeNo, _name: &OsStr, _value: &[u8], _flags: i32, _position: u32, reply: ReplyEmpty) {
        if self.own.has(number) {
            return reply.error(Errno::EACCES);
        }
        reply.error(self.no_attributes("setxattr"));
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        if self.own.has(number) {
            return reply.error(Errno::EACCES);
        }
        reply.error(self.no_attributes("removexattr"));
    }
}

impl Bucket {
    /// Why an extended attribute cannot be set.
    fn no_attributes(&self, operation: &str) -> Errno {
        errno(operation, if self.edits.is_some() { &Error::Unsupported } else { &Error::ReadOnly })
    }
}

/// Replies to a lookup. Absence is told in a way that the kernel may remember for as long as we do.
fn entry(names: &Names, parent: Inode, name: &OsStr, result: Result<Entry>, reply: ReplyEntry) {
    match result {
        Ok(found) => reply.entry(&found.ttl, &attr(&found.attr), GENERATION),
        Err(Error::NotFound) => {
            let ttl = names.absent_for(parent, name.as_bytes());
            if ttl.is_zero() { reply.error(Errno::ENOENT) } else { reply.entry(&ttl, &absent(), GENERATION) }
        }
        Err(error) => reply.error(errno("lookup", &error)),
    }
}
