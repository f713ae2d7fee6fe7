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
use fuser::{Errno, FileAttr, FileHandle, FopenFlags, INodeNo, OpenAccMode, OpenFlags};
use fuser::{ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::admin::Observer;
use crate::vfs::{Attr, Inode, Kind, Names, OWN_DIRECTORY};

use super::convert::{attr, file_type, ino, number};
use super::filesystem::GENERATION;

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
    open: Arc<Mutex<HashMap<u64, Bytes>>>,
    next: AtomicU64,
}

impl OwnFiles {
    pub fn new(names: Arc<Names>, observer: Arc<Observer>) -> Self {
        Self { observer, names, open: Arc::default(), next: AtomicU64::new(1) }
    }

    /// Whether an inode is one of these.
    pub fn has(&self, number: INodeNo) -> bool {
        ino(number) >= STATS
    }

    /// Whether a name in a directory can only mean one of these, or nothing.
    pub fn has_name(&self, parent: INodeNo, name: &OsStr) -> bool {
        ino(parent) == DIRECTORY || ino(parent) == Inode::ROOT && name.as_bytes() == OWN_DIRECTORY
    }

    pub fn lookup(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = match ino(parent) {
            Inode::ROOT => Some(DIRECTORY),
            _ => (name == NAME).then_some(STATS),
        };
        match found {
            Some(found) => reply.entry(&BELIEVED, &self.attr(found), GENERATION),
            None => reply.error(Errno::ENOENT),
        }
    }

    pub fn getattr(&self, number: INodeNo, reply: ReplyAttr) {
        reply.attr(&BELIEVED, &self.attr(ino(number)));
    }

    /// Belongs to whom the root does. The size is that of files whose length nobody knows before they are read, as in /proc.
    fn attr(&self, ino: Inode) -> FileAttr {
        let root = self.names.try_getattr(Inode::ROOT).and_then(Result::ok).map(|(root, _)| root);
        let (uid, gid) = root.as_ref().map_or((0, 0), |root| (root.uid, root.gid));
        let time = root.map_or(SystemTime::UNIX_EPOCH, |root| root.modified);
        let (kind, perm) = if ino == DIRECTORY { (Kind::Directory, 0o555) } else { (Kind::File, 0o444) };
        attr(&Attr { ino, kind, size: 0, modified: time, accessed: time, uid, gid, perm, nlink: 1 })
    }

    /// Takes a look.
    pub fn open(&self, flags: OpenFlags, runtime: &Handle, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY || flags.0 & libc::O_TRUNC != 0 {
            return reply.error(Errno::EACCES);
        }
        if self.open.lock().len() >= MOST_OPEN {
            return reply.error(Errno::ENFILE);
        }
        let (observer, open, handle) = (Arc::clone(&self.observer), Arc::clone(&self.open), self.next.fetch_add(1, Ordering::Relaxed));
        runtime.spawn(async move {
            let text = observer.stats().await.to_line();
            open.lock().insert(handle, text.into());
            // Past the kernel's pages, which would end at the size that is shown.
            reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
        });
    }

    pub fn read(&self, handle: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        let Some(text) = self.open.lock().get(&handle.0).cloned() else { return reply.error(Errno::EBADF) };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        reply.data(&text[from..(from + size as usize).min(text.len())]);
    }

    pub fn release(&self, handle: FileHandle, reply: ReplyEmpty) {
        self.open.lock().remove(&handle.0);
        reply.ok();
    }

    pub fn opendir(&self, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    pub fn readdir(&self, offset: u64, mut reply: ReplyDirectory) {
        for (next, ino, kind, name) in entries(offset) {
            if reply.add(number(ino), next, file_type(kind), OsStr::new(name)) {
                break;
            }
        }
        reply.ok();
    }

    pub fn readdirplus(&self, offset: u64, mut reply: ReplyDirectoryPlus) {
        for (next, ino, kind, name) in entries(offset) {
            let attr = match kind {
                // Of what is above nothing is told: an attribute without an inode is none to the kernel.
                Kind::Directory => FileAttr { ino: number(ino), ..self.attr(DIRECTORY) },
                _ => self.attr(ino),
            };
            if reply.add(number(ino), next, OsStr::new(name), &BELIEVED, &attr, GENERATION) {
                break;
            }
        }
        reply.ok();
    }
}

/// The entries of the directory from `offset` on, each with the offset after it.
fn entries(offset: u64) -> impl Iterator<Item = (u64, Inode, Kind, &'static str)> {
    let all = [(1, DIRECTORY, Kind::Directory, "."), (2, Inode::ROOT, Kind::Directory, ".."), (3, STATS, Kind::File, NAME)];
    all.into_iter().skip(usize::try_from(offset).unwrap_or(usize::MAX))
}
