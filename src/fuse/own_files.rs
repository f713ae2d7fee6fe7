//! What a mount shows of itself: the file `stats` in the directory `.windlass` of its root, which no listing of the root names. The bucket is
//! not asked for anything here, and what it has under that name cannot be reached. Invariants: a handle reads the one look that was taken
//! when it was opened; nothing here can be changed, also not by root.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use zerocopy::IntoBytes;

use crate::admin::Observer;
use crate::vfs::{Attr, DirItem, Entry, HandleId, Inode, Kind, Names, OWN_DIRECTORY, Result};

use super::changing::attribute;
use super::convert::{attr_out, entry_out};
use super::directories::Entries;
use super::filesystem::Asker;
use super::reply::{Data, Empty, Reply};
use super::request::Operation;
use super::wire::{EntryOut, OpenOut, open_flags};

const DIRECTORY: Inode = Inode(u64::MAX);
const STATS: Inode = Inode::RESERVED;
const NAME: &str = "stats";

/// What is shown of them does not change.
const BELIEVED: Duration = Duration::from_secs(60);

/// Looks that are open at a time, a few kilobytes each.
const MOST_OPEN: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct OwnFiles {
    observer: Arc<Observer>,
    names: Arc<Names>,
    open: Arc<Mutex<HashMap<HandleId, Bytes>>>,
    next: AtomicU64,
}

impl OwnFiles {
    pub fn new(names: Arc<Names>, observer: Arc<Observer>) -> Self {
        Self { observer, names, open: Arc::default(), next: AtomicU64::new(1) }
    }

    /// Whether an inode is one of these.
    pub fn has(&self, ino: Inode) -> bool {
        ino >= STATS
    }

    /// Whether an operation is about one of these, or about a name that can only mean one of them or nothing.
    pub fn has_to_answer(&self, ino: Inode, operation: &Operation<'_>) -> bool {
        let is_own = |(parent, name): (Inode, &OsStr)| parent == DIRECTORY || parent == Inode::ROOT && name.as_bytes() == OWN_DIRECTORY;
        match operation {
            // What is answered for all of a mount alike.
            Operation::Statfs | Operation::Access => false,
            Operation::Link { of, .. } if self.has(*of) => true,
            operation => self.has(ino) || operation.names(ino).into_iter().flatten().any(is_own),
        }
    }

    pub fn on_request(&self, asker: Asker<'_>, operation: &Operation<'_>, runtime: &Handle) {
        match *operation {
            Operation::Forget { .. } => {}
            Operation::Lookup { name } => self.lookup(asker.ino(), name, asker.reply()),
            Operation::Getattr => {
                asker.reply().ok(&attr_out(&self.attr(asker.ino()), BELIEVED));
            }
            Operation::Open { flags } => self.open(flags, runtime, asker.reply()),
            Operation::Read { handle, offset, size } => self.read(handle, offset, size, asker.reply()),
            Operation::Release { handle } => {
                self.open.lock().remove(&handle);
                asker.reply::<Empty>().done();
            }
            Operation::Opendir => {
                asker.reply().ok(&OpenOut::default());
            }
            Operation::Readdir { offset, size, .. } => self.list(offset, size, false, asker.reply()),
            Operation::Readdirplus { offset, size, .. } => self.list(offset, size, true, asker.reply()),
            Operation::Flush { .. } | Operation::Fsync { .. } | Operation::Fsyncdir | Operation::Releasedir { .. } => {
                asker.reply::<Empty>().done();
            }
            Operation::Getxattr { .. } => asker.reply::<Data>().error(libc::ENODATA),
            Operation::Listxattr { size } => attribute(Ok(Vec::new()), size, asker.reply()),
            Operation::Readlink => asker.reply::<Data>().error(libc::EINVAL),
            _ => asker.reply::<Empty>().error(libc::EACCES),
        }
    }

    fn lookup(&self, parent: Inode, name: &OsStr, reply: Reply<EntryOut>) {
        let found = match parent {
            Inode::ROOT => Some(DIRECTORY),
            _ => (name == NAME).then_some(STATS),
        };
        match found {
            Some(found) => reply.ok(&entry_out(&self.entry(found))),
            None => reply.error(libc::ENOENT),
        }
    }

    fn entry(&self, ino: Inode) -> Entry {
        Entry { attr: self.attr(ino), ttl: BELIEVED }
    }

    /// Belongs to whom the root does. The size is that of files whose length nobody knows before they are read, as in /proc.
    fn attr(&self, ino: Inode) -> Attr {
        let root = self.names.try_getattr(Inode::ROOT).and_then(Result::ok).map(|(root, _)| root);
        let (uid, gid) = root.as_ref().map_or((0, 0), |root| (root.uid, root.gid));
        let time = root.map_or(SystemTime::UNIX_EPOCH, |root| root.modified);
        let (kind, perm) = if ino == DIRECTORY { (Kind::Directory, 0o555) } else { (Kind::File, 0o444) };
        Attr { ino, kind, size: 0, modified: time, accessed: time, uid, gid, perm, nlink: 1 }
    }

    /// Takes a look.
    fn open(&self, flags: i32, runtime: &Handle, reply: Reply<OpenOut>) {
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            return reply.error(libc::EACCES);
        }
        if self.open.lock().len() >= MOST_OPEN {
            return reply.error(libc::ENFILE);
        }
        let (observer, open, handle) = (Arc::clone(&self.observer), Arc::clone(&self.open), self.next.fetch_add(1, Ordering::Relaxed));
        runtime.spawn(async move {
            let text = observer.stats().await.to_line();
            open.lock().insert(HandleId(handle), text.into());
            // Past the kernel's pages, which would end at the size that is shown.
            reply.ok(&OpenOut { fh: handle, flags: open_flags::DIRECT_IO | open_flags::NOFLUSH, backing_id: 0 });
        });
    }

    fn read(&self, handle: HandleId, offset: u64, size: u32, reply: Reply<Data>) {
        let Some(text) = self.open.lock().get(&handle).cloned() else { return reply.error(libc::EBADF) };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        reply.data(&text[from..(from + size as usize).min(text.len())]);
    }

    /// The entries from `offset` on, each with the offset after it.
    fn list(&self, offset: u64, size: u32, with_attributes: bool, reply: Reply<Data>) {
        let all = [(DIRECTORY, Kind::Directory, "."), (Inode::ROOT, Kind::Directory, ".."), (STATS, Kind::File, NAME)];
        let mut entries = Entries::new(size);
        for ((ino, kind, name), next_offset) in all.into_iter().zip(1..).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let item = DirItem { ino, next_offset, kind, name: name.as_bytes() };
            // Of what is above the kernel takes nothing from here (`fuse_direntplus_link`).
            let told = entry_out(&self.entry(if ino == Inode::ROOT { DIRECTORY } else { ino }));
            if entries.add(if with_attributes { told.as_bytes() } else { &[] }, &item) {
                break;
            }
        }
        reply.data(entries.bytes());
    }
}
