//! Decodes the kernel's requests, answers at once what is in memory, parks reads whose bytes are under way (who brings
//! them answers) and leaves the rest to a task of the runtime: a FUSE thread never waits for the network. Operations that would change the bucket are refused: the kernel refuses
//! most of them itself on a read-only mount, but whoever mounts for us (`/dev/fd/N`) may not have made it one.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{AccessFlags, BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags};
use fuser::{KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, Request, TimeOrNow};
use fuser::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::reader::ReadData;
use crate::vfs::{Entry, Error, Files, HandleId, Inode, Names, OpenFile, Opened, Read, Result};

use super::convert::{absent, attr, errno, ino};
use super::directories::Directories;

/// Requests the kernel may keep waiting in the background. With its default of 16, parallel small reads with a large
/// read-ahead drop to a sixth of their rate.
const MAX_BACKGROUND: u16 = 256;

/// The largest WRITE the kernel sends; it also sizes its READs, up to fs.fuse.max_pages_limit.
const MAX_WRITE: u32 = 1 << 20;

/// Inode numbers are never used again for another key, so one generation is enough.
const GENERATION: Generation = Generation(0);

/// The mounted bucket, as fuser wants it.
#[derive(Debug)]
pub(super) struct Bucket {
    pub names: Arc<Names>,
    pub files: Arc<Files>,
    pub directories: Arc<Directories>,
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
        ];
        // With this the kernel asks for attributes in the first reply only until it sees a lookup, and whoever reads all names
        // before the first stat (ls -l, filepath.Walk) pays a lookup a file. Right only where attributes cost a request each.
        let adaptive = (!self.names.listings_tell_attributes()).then_some(InitFlags::FUSE_READDIRPLUS_AUTO);
        for flag in wanted.into_iter().chain(adaptive) {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel does not know this");
            }
        }
        config.set_max_background(MAX_BACKGROUND).map_err(|least| io::Error::other(format!("max_background below {least}")))?;
        config.set_max_write(MAX_WRITE).map_err(|most| io::Error::other(format!("max_write above {most}")))?;
        Ok(())
    }

    fn destroy(&mut self) {
        self.ended.send_replace(true);
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
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
        if self.names.forget(ino(number), lookups) {
            self.files.forget(ino(number));
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let answer = |result: Result<_>, reply: ReplyAttr| match result {
            Ok((found, ttl)) => reply.attr(&ttl, &attr(&found)),
            Err(error) => reply.error(errno("getattr", &error)),
        };
        if let Some(old) = self.files.attributes_of_old(ino(number)) {
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

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(errno("open", &Error::ReadOnly));
        }
        let direct = flags.0 & libc::O_DIRECT != 0;
        match self.files.try_open(ino(number), direct) {
            Some(result) => opened(result, reply),
            None => {
                let files = Arc::clone(&self.files);
                self.runtime.spawn(async move { opened(files.open(ino(number), direct).await, reply) });
            }
        }
    }

    fn read(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = match self.files.get(HandleId(handle.0)) {
            Ok(file) => file,
            Err(error) => return reply.error(errno("read", &error)),
        };
        // Fetches that this starts are tasks of the runtime.
        let _runtime = self.runtime.enter();
        let read = file.begin(request.pid(), offset, size as usize);
        match file.ready(&read) {
            Some(data) => answer(&data, reply),
            None => {
                let (files, runtime) = (Arc::clone(&self.files), self.runtime.clone());
                OpenFile::park(read, move |read| match file.ready(&read) {
                    Some(data) => answer(&data, reply),
                    // It failed, or has to ask again: that may take requests of its own.
                    None => drop(runtime.spawn(finish(files, file, read, reply))),
                });
            }
        }
    }

    fn flush(&self, _request: &Request, _number: INodeNo, _handle: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        // Nothing to write back; ENOSYS spares the request at every further close.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.release(HandleId(handle.0));
        reply.ok();
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.directories.open(ino(number)) {
            Ok((handle, keep)) => {
                // The kernel keeps the entries of a listing as long as we believe it.
                let keep = if keep { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
                reply.opened(FileHandle(handle.0), FopenFlags::FOPEN_CACHE_DIR | keep);
            }
            Err(error) => reply.error(errno("opendir", &error)),
        }
    }

    fn readdir(&self, _request: &Request, _number: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.directories.read(HandleId(handle.0), offset, reply, &self.runtime);
    }

    fn readdirplus(&self, _request: &Request, _number: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        self.directories.read(HandleId(handle.0), offset, reply, &self.runtime);
    }

    fn releasedir(&self, _request: &Request, _number: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.directories.release(HandleId(handle.0));
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        // A bucket has no size. 1 EiB of 1 MiB blocks, all free, is what lets installers and df go on.
        const BLOCKS: u64 = 1 << 40;
        const INODES: u64 = 1 << 40;
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, INODES, INODES, MAX_WRITE, 255, MAX_WRITE);
    }

    fn getxattr(&self, _request: &Request, _number: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        // ENOSYS: the kernel answers EOPNOTSUPP from now on without asking.
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _request: &Request, _number: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _request: &Request, _number: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions itself (default_permissions).
        reply.error(Errno::ENOSYS);
    }

    fn setattr(
        &self,
        _request: &Request,
        _number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(read_only("setattr"));
    }

    fn mknod(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, _rdev: u32, reply: ReplyEntry) {
        reply.error(read_only("mknod"));
    }

    fn mkdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.error(read_only("mkdir"));
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(read_only("unlink"));
    }

    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(read_only("rmdir"));
    }

    fn symlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(read_only("symlink"));
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(read_only("rename"));
    }

    fn link(&self, _request: &Request, _number: INodeNo, _new_parent: INodeNo, _new_name: &OsStr, reply: ReplyEntry) {
        reply.error(errno("link", &Error::NoHardLinks));
    }

    fn create(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, _flags: i32, reply: ReplyCreate) {
        reply.error(read_only("create"));
    }

    fn setxattr(&self, _request: &Request, _number: INodeNo, _name: &OsStr, _value: &[u8], _flags: i32, _position: u32, reply: ReplyEmpty) {
        reply.error(read_only("setxattr"));
    }

    fn removexattr(&self, _request: &Request, _number: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(read_only("removexattr"));
    }
}

fn read_only(operation: &str) -> Errno {
    errno(operation, &Error::ReadOnly)
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

/// Answers a read that could not go the short way.
async fn finish(files: Arc<Files>, file: Arc<OpenFile>, read: Read, reply: ReplyData) {
    match files.finish(&file, read).await {
        Ok(data) => answer(&data, reply),
        Err(error) => reply.error(errno("read", &error)),
    }
}

fn opened(result: Result<Opened>, reply: ReplyOpen) {
    match result {
        Ok(opened) => {
            let keep = if opened.keep_pages { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
            reply.opened(FileHandle(opened.handle.0), keep);
        }
        Err(error) => reply.error(errno("open", &error)),
    }
}

/// One slice is one writev out of the chunk; a read that crosses chunks is put together first.
fn answer(data: &ReadData, reply: ReplyData) {
    let mut slices = data.slices();
    match (slices.next(), slices.next()) {
        (None, _) => reply.data(&[]),
        (Some(all), None) => reply.data(all),
        (Some(_), Some(_)) => reply.data(&data.slices().collect::<Vec<_>>().concat()),
    }
}
