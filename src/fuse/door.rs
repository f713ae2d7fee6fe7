//! What an open is answered with: a handle of ours, or a file of the disk that the kernel reads itself. It opens nothing. Invariant: a handle
//! that the kernel was not told of is given up.

use std::sync::Arc;

use fuser::{Errno, FileHandle, ReplyCreate, ReplyOpen};
use tokio::runtime::Handle;

use crate::spill::Whole;
use crate::vfs::{Access, Edits, Entry, Files, HandleId, Inode, Names, Opened, Result};

use super::backing::Backings;
use super::convert::{attr, errno, open_flags};
use super::filesystem::{Bucket, GENERATION};

/// What an open is answered with: perhaps a file of the disk.
#[derive(Clone)]
pub(super) struct Door {
    names: Arc<Names>,
    pub files: Arc<Files>,
    edits: Option<Arc<Edits>>,
    backings: Option<Arc<Backings>>,
    runtime: Handle,
}

impl Door {
    pub fn open(&self, ino: Inode, result: Result<Opened>, access: Access, reply: ReplyOpen) {
        match (result, &self.backings) {
            (Err(error), _) => reply.error(errno("open", &error)),
            (Ok(opened), None) => reply.opened(FileHandle(opened.handle.0), open_flags(&opened, access.write)),
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

    fn reply(&self, ino: Inode, opened: &Opened, writes: bool, whole: Option<Whole>, reply: ReplyOpen) {
        let Some(backings) = &self.backings else { return };
        if let Some(reply) = backings.reply(ino, opened, writes, whole, reply) {
            self.give_up(ino, opened.handle, move || reply.error(Errno::ESTALE));
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

    pub fn create(&self, entry: &Entry, opened: &Opened, reply: ReplyCreate) {
        match &self.backings {
            Some(backings) => {
                if let Some(reply) = backings.reply_created(entry, opened, reply) {
                    let (names, ino) = (Arc::clone(&self.names), entry.attr.ino);
                    self.give_up(ino, opened.handle, move || {
                        names.forget(ino, 1);
                        reply.error(Errno::ESTALE);
                    });
                }
            }
            None => {
                let handle = FileHandle(opened.handle.0);
                reply.created(&entry.ttl, &attr(&entry.attr), GENERATION, handle, open_flags(opened, true));
            }
        }
    }
}

impl Bucket {
    pub(super) fn door(&self) -> Door {
        Door {
            names: Arc::clone(&self.names),
            files: Arc::clone(&self.files),
            edits: self.edits.clone(),
            backings: self.backings.clone(),
            runtime: self.runtime.clone(),
        }
    }
}
