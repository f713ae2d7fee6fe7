//! Requests that change the bucket. A write whose bytes fit into memory is answered by the FUSE thread; everything else
//! becomes a task of the runtime. On a read-only mount all of it is refused: the kernel refuses most itself, but whoever mounts for us
//! (`/dev/fd/N`) may not have made it read-only.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::vfs::{
    Acknowledge, AttributeChange, Caller, Edits, Entry, Error, HandleId, Inode, Names, Only, Result, SetAttributes, UserAttributes,
};
use crate::writer::Allocate;

use super::convert::{attr_out, entry_out, errno, refuse};
use super::filesystem::{Asker, Bucket};
use super::process::same_process;
use super::reply::{Data, Empty, Reply};
use super::request::{Header, Payload};
use super::wire::{AttrOut, EntryOut, GetxattrOut, WriteOut};

pub(super) fn caller(header: Header) -> Caller {
    Caller { uid: header.uid, gid: header.gid, thread: header.thread }
}

impl Bucket {
    /// What may change the bucket, or the refusal of a read-only mount.
    pub(super) fn edits(&self) -> Result<Arc<Edits>> {
        self.edits.clone().ok_or(Error::ReadOnly)
    }

    fn made_before(&self, asker: Asker<'_>) -> MadeBefore {
        MadeBefore { again: asker.header.is_resent(), names: Arc::clone(&self.names) }
    }

    /// Runs an operation as a task and answers with what it came to; on a read-only mount with the refusal, at once.
    fn change<T, A, F>(&self, name: &'static str, reply: Reply<A>, operation: impl FnOnce(Arc<Edits>) -> F, answer: fn(T, Reply<A>))
    where
        T: Send + 'static,
        A: 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match self.edits() {
            Err(error) => reply.error(errno(name, &error)),
            Ok(edits) => {
                let operation = operation(edits);
                self.runtime.spawn(async move {
                    match operation.await {
                        Ok(done) => answer(done, reply),
                        Err(error) => refuse(name, &error, reply),
                    }
                });
            }
        }
    }

    /// [`change`](Self::change) without a result.
    fn empty<F>(&self, name: &'static str, reply: Reply<Empty>, operation: impl FnOnce(Arc<Edits>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        self.change(name, reply, operation, |(), reply| reply.done());
    }

    /// [`change`](Self::change) that makes an entry.
    fn entry<F>(&self, name: &'static str, reply: Reply<EntryOut>, operation: impl FnOnce(Arc<Edits>) -> F)
    where
        F: Future<Output = Result<Entry>> + Send + 'static,
    {
        self.change(name, reply, operation, |made, reply| reply.ok(&entry_out(&made)));
    }

    pub(super) fn write(&self, asker: Asker<'_>, handle: HandleId, offset: u64, mut data: Payload<'_>) {
        let edits = match self.edits() {
            Ok(edits) => edits,
            Err(error) => return asker.reply::<WriteOut>().error(errno("write", &error)),
        };
        let size = u32::try_from(data.bytes().len()).expect("a WRITE is at most max_write");
        let metrics = Arc::clone(&self.metrics);
        let answer = move |result: Result<()>, reply: Reply<WriteOut>| match result {
            Ok(()) => {
                metrics.written_bytes.add(u64::from(size));
                reply.ok(&WriteOut { size, padding: 0 });
            }
            Err(error) => refuse("write", &error, reply),
        };
        // Uploads that this starts are tasks of the runtime.
        let _runtime = self.runtime.enter();
        let thread = asker.header.thread;
        if asker.header.is_resent() {
            let (data, reply) = (data.bytes().to_vec(), asker.reply());
            self.runtime.spawn(async move { answer(edits.write_again(handle, offset, &data, thread).await, reply) });
            return;
        }
        // The writer goes on while the bytes are copied, and the next WRITE is received meanwhile.
        let sure = || answer(Ok(()), asker.reply());
        let written = match &mut data {
            Payload::Lent(bytes) => edits.try_write(handle, offset, bytes, thread, sure),
            Payload::Received(landing) => edits.try_write_received(handle, offset, landing, thread, sure),
        };
        match written {
            Some(Ok(Acknowledge::Done)) => {}
            Some(Ok(Acknowledge::AfterPages(ino))) => {
                let reply = asker.reply();
                self.runtime.spawn(async move {
                    edits.drop_pages(ino).await;
                    answer(Ok(()), reply);
                });
            }
            Some(Err(error)) => answer(Err(error), asker.reply()),
            None => {
                // Not to be interrupted: bytes of a process that was killed would land after those of the next one.
                let reply = asker.reply();
                match data {
                    Payload::Lent(bytes) => {
                        let data = bytes.to_vec();
                        self.runtime.spawn(async move { answer(edits.write(handle, offset, &data, thread).await, reply) });
                    }
                    Payload::Received(landing) => {
                        let data = landing.keep();
                        self.runtime.spawn(async move { answer(edits.write_kept(handle, offset, data, thread).await, reply) });
                    }
                }
            }
        }
    }

    /// Whether a read of `ino` is of what is being written.
    pub(super) fn reads_dirty(&self, ino: Inode) -> bool {
        self.edits.as_ref().is_some_and(|edits| edits.reads_dirty(ino))
    }

    pub(super) fn flush_handle(&self, asker: Asker<'_>, handle: HandleId) {
        // Handles that only read have nothing to write back.
        if self.edits.as_ref().is_none_or(|edits| !edits.knows(handle)) {
            return asker.reply::<Empty>().done();
        }
        let thread = asker.header.thread;
        self.empty("flush", asker.reply(), |edits| async move { edits.flush(handle, thread, &same_process).await });
    }

    pub(super) fn fsync(&self, asker: Asker<'_>, handle: HandleId) {
        let ino = asker.ino();
        let Some(edits) = self.edits.as_ref().filter(|edits| edits.knows(handle) || edits.reads_dirty(ino)) else {
            return asker.reply::<Empty>().done();
        };
        let is_known = edits.knows(handle);
        self.empty("fsync", self.patient(asker), |edits| async move {
            if is_known { edits.fsync(handle).await } else { edits.fsync_inode(ino).await }
        });
    }

    pub(super) fn release(&self, ino: Inode, handle: HandleId, reply: Reply<Empty>) {
        // First: when nobody reads a version any more the next one may take its inode, and must not find the file of this one there.
        if let Some(backing) = self.backings.as_ref().and_then(|backings| backings.on_release(handle)) {
            self.runtime.spawn_blocking(move || drop(backing));
        }
        self.files.release(handle);
        match self.edits.clone().filter(|edits| edits.knows(handle) || edits.reads_dirty(ino)) {
            None => reply.done(),
            Some(edits) => {
                self.runtime.spawn(async move {
                    edits.release(handle).await;
                    edits.on_released(ino).await;
                    reply.done();
                });
            }
        }
    }

    pub(super) fn allocate(&self, asker: Asker<'_>, handle: HandleId, offset: u64, length: u64, mode: i32) {
        match allocation(mode) {
            Err(error) => asker.reply::<Empty>().error(errno("fallocate", &error)),
            Ok(how) => self.empty("fallocate", asker.reply(), |edits| async move { edits.allocate(handle, offset, length, how).await }),
        }
    }

    pub(super) fn set_attributes(&self, asker: Asker<'_>, handle: Option<HandleId>, set: SetAttributes) {
        let ino = asker.ino();
        if set.size.is_some() && handle.is_none() && self.backings.as_ref().is_some_and(|backings| backings.has_file(ino)) {
            // Its readers go on with the file of the disk; the kernel looks the name up again and gets another inode.
            self.files.retire(ino);
            return asker.reply::<AttrOut>().error(errno("setattr", &Error::Retired));
        }
        let change = |edits: Arc<Edits>| async move { edits.set_attributes(ino, handle, set).await };
        self.change("setattr", asker.reply::<AttrOut>(), change, |(found, ttl), reply| reply.ok(&attr_out(&found, ttl)));
    }

    pub(super) fn make_file(&self, asker: Asker<'_>, name: &OsStr, mode: u16) {
        let (caller, parent, name) = (caller(asker.header), asker.ino(), name.to_owned());
        let made_before = self.made_before(asker);
        self.entry("mknod", asker.reply(), |edits| async move {
            let made = edits.make_file(parent, name.as_bytes(), mode, caller).await;
            made_before.or_there(made, parent, &name).await
        });
    }

    pub(super) fn make_directory(&self, asker: Asker<'_>, name: &OsStr, mode: u16) {
        let (caller, parent, name) = (caller(asker.header), asker.ino(), name.to_owned());
        let made_before = self.made_before(asker);
        self.entry("mkdir", asker.reply(), |edits| async move {
            let made = edits.mkdir(parent, name.as_bytes(), mode, caller).await;
            made_before.or_there(made, parent, &name).await
        });
    }

    pub(super) fn unlink(&self, asker: Asker<'_>, name: &OsStr) {
        let (parent, name) = (asker.ino(), name.to_owned());
        let again = asker.header.is_resent();
        self.empty("unlink", asker.reply(), move |edits| async move { done_before(again, edits.unlink(parent, name.as_bytes()).await) });
    }

    pub(super) fn rmdir(&self, asker: Asker<'_>, name: &OsStr) {
        let (parent, name) = (asker.ino(), name.to_owned());
        let again = asker.header.is_resent();
        self.empty("rmdir", asker.reply(), move |edits| async move { done_before(again, edits.rmdir(parent, name.as_bytes()).await) });
    }

    pub(super) fn rename(&self, asker: Asker<'_>, name: &OsStr, to: (Inode, &OsStr), flags: u32) {
        // Exchange would need two names to change at once, whiteouts are for overlay file systems.
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return asker.reply::<Empty>().error(errno("rename", &Error::Invalid));
        }
        let no_replace = flags & libc::RENAME_NOREPLACE != 0;
        let (from, name, to, new_name) = (asker.ino(), name.to_owned(), to.0, to.1.to_owned());
        let made_before = self.made_before(asker);
        self.empty("rename", asker.reply(), |edits| async move {
            match edits.rename(from, name.as_bytes(), to, new_name.as_bytes(), no_replace).await {
                Err(Error::NotFound) => made_before.find(to, &new_name).await,
                renamed => renamed,
            }
        });
    }

    pub(super) fn make_link(&self, asker: Asker<'_>, name: &OsStr, target: &OsStr) {
        let (parent, name, target) = (asker.ino(), name.to_owned(), PathBuf::from(target));
        let made_before = self.made_before(asker);
        self.entry("symlink", asker.reply(), |edits| async move {
            let made = edits.symlink(parent, name.as_bytes(), &target).await;
            made_before.or_there(made, parent, &name).await
        });
    }

    pub(super) fn read_link(&self, asker: Asker<'_>) {
        let (names, ino, reply) = (Arc::clone(&self.names), asker.ino(), self.patient::<Data>(asker));
        self.runtime.spawn(async move {
            match names.read_link(ino).await {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno("readlink", &error)),
            }
        });
    }

    pub(super) fn get_xattr(&self, asker: Asker<'_>, name: &OsStr, size: u32) {
        let ino = asker.ino();
        if let Some(known) = self.names.try_extended_attribute(ino, name.as_bytes()) {
            return attribute(known, size, asker.reply());
        }
        let (names, name, reply) = (Arc::clone(&self.names), name.to_owned(), self.patient(asker));
        self.runtime.spawn(async move { attribute(names.extended_attribute(ino, name.as_bytes()).await, size, reply) });
    }

    pub(super) fn list_xattrs(&self, asker: Asker<'_>, size: u32) {
        if !self.names.keeps_user_attributes() {
            // The kernel answers EOPNOTSUPP from now on without asking.
            return asker.reply::<Data>().error(libc::ENOSYS);
        }
        let names_of = |all: Result<UserAttributes>| all.map(|all| all.names());
        let ino = asker.ino();
        if let Some(known) = self.names.try_user_attributes(ino) {
            return attribute(names_of(known), size, asker.reply());
        }
        let (names, reply) = (Arc::clone(&self.names), self.patient(asker));
        self.runtime.spawn(async move { attribute(names_of(names.user_attributes(ino).await), size, reply) });
    }

    pub(super) fn set_xattr(&self, asker: Asker<'_>, name: &OsStr, value: &[u8], flags: i32) {
        let only = match flags {
            libc::XATTR_CREATE => Only::IfAbsent,
            libc::XATTR_REPLACE => Only::IfPresent,
            _ => Only::Always,
        };
        let done = |changed| if matches!(changed, Err(Error::Exists)) { Ok(()) } else { changed };
        self.change_xattr("setxattr", asker, name, AttributeChange::Set { value: value.to_vec(), only }, done);
    }

    pub(super) fn remove_xattr(&self, asker: Asker<'_>, name: &OsStr) {
        let done = |changed| if matches!(changed, Err(Error::NoAttribute)) { Ok(()) } else { changed };
        self.change_xattr("removexattr", asker, name, AttributeChange::Remove, done);
    }

    /// `done_before`: what it came to where the daemon before this one may have made the change already.
    fn change_xattr(
        &self,
        operation: &'static str,
        asker: Asker<'_>,
        name: &OsStr,
        change: AttributeChange,
        done_before: fn(Result<()>) -> Result<()>,
    ) {
        let (ino, name, again) = (asker.ino(), name.to_owned(), asker.header.is_resent());
        let change = |edits: Arc<Edits>| async move {
            let changed = edits.change_user_attribute(ino, (name.as_bytes(), &change)).await;
            if again { done_before(changed) } else { changed }
        };
        self.change(operation, asker.reply::<Empty>(), change, |(), reply| reply.done());
    }
}

/// What is asked for again because the daemon before took it may have been done by that one without an answer.
struct MadeBefore {
    again: bool,
    names: Arc<Names>,
}

impl MadeBefore {
    /// What was to be made, or what is there because that one made it.
    async fn or_there(self, made: Result<Entry>, parent: Inode, name: &OsStr) -> Result<Entry> {
        match made {
            Err(Error::Exists) if self.again => self.names.lookup(parent, name.as_bytes()).await,
            made => made,
        }
    }

    /// Whether a name is there that was to get what another one, which is gone, stood for.
    async fn find(self, parent: Inode, name: &OsStr) -> Result<()> {
        if !self.again {
            return Err(Error::NotFound);
        }
        let found = self.names.lookup(parent, name.as_bytes()).await?;
        self.names.forget(found.attr.ino, 1);
        Ok(())
    }
}

/// What is gone already was removed by the daemon before.
fn done_before(again: bool, removed: Result<()>) -> Result<()> {
    match removed {
        Err(Error::NotFound) if again => Ok(()),
        removed => removed,
    }
}

/// A value as getxattr(2) and listxattr(2) want it: first its length, then itself.
pub(super) fn attribute(value: Result<Vec<u8>>, size: u32, reply: Reply<Data>) {
    match value {
        Ok(value) if size == 0 => {
            let len = GetxattrOut { size: u32::try_from(value.len()).unwrap_or(u32::MAX), padding: 0 };
            reply.data(len.as_bytes());
        }
        Ok(value) if value.len() > size as usize => reply.error(libc::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno("getxattr", &error)),
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
