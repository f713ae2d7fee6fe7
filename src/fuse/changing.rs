//! Requests that change the bucket, decoded. A write whose bytes fit into memory is answered by the FUSE thread; everything else
//! becomes a task of the runtime. On a read-only mount all of it is refused: the kernel refuses most itself, but whoever mounts for us
//! (`/dev/fd/N`) may not have made it read-only.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use fuser::{Errno, ReplyData};
use fuser::{
    FileHandle, INodeNo, OpenAccMode, RenameFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr,
    Request, TimeOrNow,
};

use crate::vfs::{Access, Caller, Edits, Entry, Error, HandleId, Inode, Result, SetAttributes};
use crate::writer::Allocate;

use super::convert::{attr, errno, ino};
use super::filesystem::{Bucket, GENERATION};
use super::process::same_process;

/// Bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), thread: request.pid() }
}

pub(super) fn access(flags: i32) -> Access {
    let mode = fuser::OpenFlags(flags).acc_mode();
    Access {
        read: mode != OpenAccMode::O_WRONLY,
        write: mode != OpenAccMode::O_RDONLY,
        truncate: flags & libc::O_TRUNC != 0 && mode != OpenAccMode::O_RDONLY,
        exclusive: flags & libc::O_EXCL != 0,
        direct: flags & libc::O_DIRECT != 0,
    }
}

impl Bucket {
    /// What may change the bucket, or the refusal of a read-only mount.
    pub(super) fn edits(&self) -> Result<Arc<Edits>> {
        self.edits.clone().ok_or(Error::ReadOnly)
    }

    /// Runs an operation as a task and answers with what it came to; on a read-only mount with the refusal, at once.
    fn change<T, R, F>(&self, name: &'static str, reply: R, operation: impl FnOnce(Arc<Edits>) -> F, answer: fn(Result<T, Errno>, R))
    where
        T: Send + 'static,
        R: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match self.edits() {
            Err(error) => answer(Err(errno(name, &error)), reply),
            Ok(edits) => {
                let operation = operation(edits);
                self.runtime.spawn(async move { answer(operation.await.map_err(|error| errno(name, &error)), reply) });
            }
        }
    }

    /// [`change`](Self::change) without a result.
    pub(super) fn empty<F>(&self, name: &'static str, reply: ReplyEmpty, operation: impl FnOnce(Arc<Edits>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        self.change(name, reply, operation, |result, reply| match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }

    /// [`change`](Self::change) that makes an entry.
    pub(super) fn entry<F>(&self, name: &'static str, reply: ReplyEntry, operation: impl FnOnce(Arc<Edits>) -> F)
    where
        F: Future<Output = Result<Entry>> + Send + 'static,
    {
        self.change(name, reply, operation, |result, reply| match result {
            Ok(made) => reply.entry(&made.ttl, &attr(&made.attr), GENERATION),
            Err(errno) => reply.error(errno),
        });
    }

    pub(super) fn open_for_writing(&self, caller: Caller, ino: Inode, access: Access, reply: ReplyOpen) {
        let (door, edits) = (self.door(), self.edits());
        match edits {
            Err(error) => reply.error(errno("open", &error)),
            Ok(edits) => {
                self.runtime.spawn(async move { door.open(ino, edits.open(ino, access, caller).await, access, reply) });
            }
        }
    }

    pub(super) fn create_file(&self, caller: Caller, parent: Inode, name: OsString, mode: u32, access: Access, reply: ReplyCreate) {
        let door = self.door();
        match self.edits() {
            Err(error) => reply.error(errno("create", &error)),
            Ok(edits) => {
                self.runtime.spawn(async move {
                    match edits.create(parent, name.as_bytes(), permissions(mode), access, caller).await {
                        Ok((entry, opened)) => door.create(&entry, &opened, reply),
                        Err(error) => reply.error(errno("create", &error)),
                    }
                });
            }
        }
    }

    pub(super) fn write_at(&self, thread: u32, handle: HandleId, offset: u64, data: &[u8], reply: ReplyWrite) {
        let edits = match self.edits() {
            Ok(edits) => edits,
            Err(error) => return reply.error(errno("write", &error)),
        };
        let len = u32::try_from(data.len()).expect("a WRITE is at most max_write");
        let answer = move |result: Result<()>, reply: ReplyWrite| match result {
            Ok(()) => reply.written(len),
            Err(error) => reply.error(errno("write", &error)),
        };
        // Uploads that this starts are tasks of the runtime.
        let _runtime = self.runtime.enter();
        match edits.try_write(handle, offset, data, thread) {
            Some(result) => answer(result, reply),
            None => {
                let data = data.to_vec();
                self.runtime.spawn(async move { answer(edits.write(handle, offset, &data, thread).await, reply) });
            }
        }
    }

    /// A read of what is being written; false: it is none.
    pub(super) fn reads_draft(&self, handle: HandleId, ino: Inode) -> bool {
        self.edits.as_ref().is_some_and(|edits| edits.reads_draft(handle, ino))
    }

    pub(super) fn read_draft(&self, handle: HandleId, ino: Inode, offset: u64, len: u32, reply: ReplyData) {
        let (metrics, began) = (Arc::clone(&self.metrics), Instant::now());
        let read = |edits: Arc<Edits>| async move {
            let read = edits.read(handle, ino, offset, len as usize).await;
            metrics.read_seconds.record(began.elapsed());
            read
        };
        self.change("read", reply, read, |result, reply| match result {
            Ok(data) => reply.data(&data),
            Err(errno) => reply.error(errno),
        });
    }

    pub(super) fn flush_handle(&self, thread: u32, handle: HandleId, reply: ReplyEmpty) {
        // Handles that only read have nothing to write back.
        if self.edits.as_ref().is_none_or(|edits| !edits.knows(handle)) {
            return reply.ok();
        }
        self.empty("flush", reply, |edits| async move { edits.flush(handle, thread, &same_process).await });
    }

    pub(super) fn release_handle(&self, handle: HandleId, reply: ReplyEmpty) {
        // First: when nobody reads a version any more the next one may take its inode, and must not find the file of this one there.
        if let Some(backing) = self.backings.as_ref().and_then(|backings| backings.on_release(handle)) {
            self.runtime.spawn_blocking(move || drop(backing));
        }
        self.files.release(handle);
        match self.edits.clone().filter(|edits| edits.knows(handle)) {
            None => reply.ok(),
            Some(edits) => {
                self.runtime.spawn(async move {
                    edits.release(handle).await;
                    reply.ok();
                });
            }
        }
    }

    pub(super) fn set_attributes(&self, ino: Inode, handle: Option<FileHandle>, set: SetAttributes, reply: ReplyAttr) {
        let handle = handle.map(|handle| HandleId(handle.0));
        let change = |edits: Arc<Edits>| async move { edits.set_attributes(ino, handle, set).await };
        self.change("setattr", reply, change, |result, reply| match result {
            Ok((found, ttl)) => reply.attr(&ttl, &attr(&found)),
            Err(errno) => reply.error(errno),
        });
    }

    pub(super) fn rename_entry(&self, from: (INodeNo, OsString), to: (INodeNo, OsString), flags: RenameFlags, reply: ReplyEmpty) {
        // Exchange would need two names to change at once, whiteouts are for overlay file systems.
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(errno("rename", &Error::Invalid));
        }
        let no_replace = flags.contains(RenameFlags::RENAME_NOREPLACE);
        self.empty("rename", reply, |edits| async move {
            edits.rename(ino(from.0), from.1.as_bytes(), ino(to.0), to.1.as_bytes(), no_replace).await
        });
    }

    pub(super) fn make_link(&self, parent: Inode, name: OsString, target: &Path, reply: ReplyEntry) {
        let target: PathBuf = target.to_owned();
        self.entry("symlink", reply, |edits| async move { edits.symlink(parent, name.as_bytes(), &target).await });
    }

    pub(super) fn read_link(&self, ino: Inode, reply: ReplyData) {
        let names = Arc::clone(&self.names);
        self.runtime.spawn(async move {
            match names.read_link(ino).await {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno("readlink", &error)),
            }
        });
    }

    pub(super) fn get_xattr(&self, ino: Inode, name: OsString, size: u32, reply: ReplyXattr) {
        if !self.names.may_have_attribute(ino, name.as_bytes()) {
            return reply.error(Errno::from_i32(libc::ENODATA));
        }
        let names = Arc::clone(&self.names);
        self.runtime.spawn(async move { attributes(names.extended_attribute(ino, name.as_bytes()).await, size, reply) });
    }
}

/// A value as getxattr(2) wants it: first its length, then itself.
fn attributes(value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::from_i32(libc::ERANGE)),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno("getxattr", &error)),
    }
}

pub(super) fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & PERMISSIONS).expect("twelve bits")
}

pub(super) fn time(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

/// What fallocate(2) asks for, where it is something that objects can do.
pub(super) fn allocation(mode: i32) -> Result<Allocate> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 if keep_size => Ok(Allocate::KeepSize),
        0 => Ok(Allocate::Extend),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(Allocate::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Allocate::Zero { keep_size }),
        _ => Err(Error::Unsupported),
    }
}
