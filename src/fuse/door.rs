//! Opens, from the request to the answer: from the reader, through the writer, or as a file of the disk that the kernel reads by itself.
//! Invariant: a handle that was made and is not told to the kernel is given back.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::spill::Whole;
use crate::vfs::{Access, Edits, Entry, Files, HandleId, Inode, Names, Opened, Result, Told};

use super::backing::Backings;
use super::before::Answer;
use super::changing::caller;
use super::convert::{create_out, entry_out, open_out, refuse};
use super::filesystem::{Asker, Bucket};
use super::reply::Reply;
use super::wire::{CreateOut, OpenOut};

/// What the flags of open(2) ask for.
pub(super) fn access(flags: i32) -> Access {
    let mode = flags & libc::O_ACCMODE;
    Access {
        read: mode != libc::O_WRONLY,
        write: mode != libc::O_RDONLY,
        truncate: flags & libc::O_TRUNC != 0 && mode != libc::O_RDONLY,
        exclusive: flags & libc::O_EXCL != 0,
        direct: flags & libc::O_DIRECT != 0,
        append: flags & libc::O_APPEND != 0 && mode != libc::O_RDONLY,
    }
}

impl Bucket {
    pub(super) fn open(&self, asker: Asker<'_>, access: Access) {
        if let Some(before) = self.before.take(asker.header) {
            return asker.reply().ok(&before.out());
        }
        let ino = asker.ino();
        if access.write || self.names.is_being_written(ino) {
            return self.open_for_writing(asker, access);
        }
        let door = self.door();
        match self.files.try_open(ino, access.direct) {
            Some(result) => door.open(ino, result, access, asker.reply()),
            None => {
                let reply = self.patient(asker);
                self.runtime.spawn(async move {
                    let result = door.files.open(ino, access.direct).await;
                    match reply.claim() {
                        Some(reply) => door.open(ino, result, access, reply),
                        None => drop(result.map(|opened| door.files.release(opened.handle))),
                    }
                });
            }
        }
    }

    fn open_for_writing(&self, asker: Asker<'_>, access: Access) {
        let (door, ino, caller, reply) = (self.door(), asker.ino(), caller(asker.header), asker.reply());
        match self.edits() {
            Err(error) => refuse("open", &error, reply),
            Ok(edits) => {
                self.runtime.spawn(async move { door.open(ino, edits.open(ino, access, caller).await, access, reply) });
            }
        }
    }

    pub(super) fn create(&self, asker: Asker<'_>, name: &OsStr, mode: u16, access: Access) {
        if let Some(before) = self.before.take(asker.header) {
            return self.created_before(before, asker.reply());
        }
        let (door, parent, caller, reply) = (self.door(), asker.ino(), caller(asker.header), asker.reply());
        match self.edits() {
            Err(error) => refuse("create", &error, reply),
            Ok(edits) => {
                let name = name.to_owned();
                self.runtime.spawn(async move {
                    match edits.create(parent, name.as_bytes(), mode, access, caller).await {
                        Ok((entry, opened)) => door.create(&entry, &opened, reply),
                        Err(error) => refuse("create", &error, reply),
                    }
                });
            }
        }
    }

    /// The lookup that goes with it was counted by the daemon that made it.
    fn created_before(&self, before: Answer, reply: Reply<CreateOut>) {
        let names = Arc::clone(&self.names);
        self.runtime.spawn(async move {
            match names.getattr(before.0.ino).await {
                Ok((attr, ttl)) => reply.ok(&CreateOut { entry: entry_out(&Entry { attr, ttl }), open: before.out() }),
                Err(error) => refuse("create", &error, reply),
            }
        });
    }

    fn door(&self) -> Door {
        Door {
            names: Arc::clone(&self.names),
            files: Arc::clone(&self.files),
            edits: self.edits.clone(),
            backings: self.backings.clone(),
            runtime: self.runtime.clone(),
        }
    }
}

/// What an open is answered with: perhaps a file of the disk.
#[derive(Clone)]
struct Door {
    names: Arc<Names>,
    files: Arc<Files>,
    edits: Option<Arc<Edits>>,
    backings: Option<Arc<Backings>>,
    runtime: Handle,
}

impl Door {
    fn open(&self, ino: Inode, result: Result<Opened>, access: Access, reply: Reply<OpenOut>) {
        match (result, &self.backings) {
            (Err(error), _) => refuse("open", &error, reply),
            (Ok(opened), None) => {
                let out = open_out(&opened, access.write);
                self.on_told(reply.first_unique(), &out);
                reply.ok(&out);
            }
            (Ok(opened), Some(backings)) => {
                // O_DIRECT on a file of the disk would want aligned memory, and bytes from the disk each time: these come from us.
                let opened = Opened { direct: opened.direct || access.direct, ..opened };
                if !access.write && backings.may_begin(ino, &opened) && self.files.may_be_whole(opened.handle) {
                    // It is looked at on the disk.
                    let door = self.clone();
                    self.runtime.spawn_blocking(move || {
                        let whole = door.files.whole(opened.handle);
                        door.reply(ino, &opened, false, whole, reply);
                    });
                } else {
                    self.reply(ino, &opened, access.write, None, reply);
                }
            }
        }
    }

    fn reply(&self, ino: Inode, opened: &Opened, writes: bool, whole: Option<Whole>, reply: Reply<OpenOut>) {
        let Some(backings) = &self.backings else { return };
        let unique = reply.first_unique();
        if let Some(reply) = backings.reply(ino, opened, writes, whole, reply, |out| self.on_told(unique, out)) {
            self.give_up(ino, opened.handle, move || reply.error(libc::ESTALE));
        }
    }

    /// The kernel looks the name up again and gets another inode.
    fn give_up(&self, ino: Inode, handle: HandleId, tell: impl FnOnce() + Send + 'static) {
        self.files.retire(ino);
        let (files, edits) = (Arc::clone(&self.files), self.edits.clone());
        self.runtime.spawn(async move {
            files.release(handle);
            if let Some(edits) = edits {
                edits.release(handle).await;
            }
            tell();
        });
    }

    fn create(&self, entry: &Entry, opened: &Opened, reply: Reply<CreateOut>) {
        let unique = reply.first_unique();
        match &self.backings {
            Some(backings) => {
                if let Some(reply) = backings.reply_created(entry, opened, reply, |out| self.on_told(unique, out)) {
                    let (names, ino) = (Arc::clone(&self.names), entry.attr.ino);
                    self.give_up(ino, opened.handle, move || {
                        names.forget(ino, 1);
                        reply.error(libc::ESTALE);
                    });
                }
            }
            None => {
                let out = create_out(entry, opened);
                self.on_told(unique, &out.open);
                reply.ok(&out);
            }
        }
    }

    /// The kernel is about to be told of a handle, by the answer to `unique`.
    fn on_told(&self, unique: u64, out: &OpenOut) {
        let (handle, told) = (HandleId(out.fh), Told { unique, flags: out.flags, backing: out.backing_id });
        self.files.on_told(handle, told);
        if let Some(edits) = &self.edits {
            edits.on_told(handle, told);
        }
    }
}
