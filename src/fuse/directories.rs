//! Open directories, and the two replies that list them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{Generation, ReplyDirectory, ReplyDirectoryPlus};
use parking_lot::RwLock;
use tokio::runtime::Handle;

use crate::vfs::{DirHandle, DirPage, Error, HandleId, Inode, Names, Result};

use super::convert::{attr, errno, file_type, number};

/// The open directories of a mount.
#[derive(Debug)]
pub(super) struct Directories {
    names: Arc<Names>,
    open: RwLock<HashMap<HandleId, Arc<DirHandle>>>,
    next: AtomicU64,
}

/// A reply that lists a directory: with attributes or without.
pub(super) trait Listing: Sized + Send + 'static {
    fn try_page(directory: &DirHandle, offset: u64) -> Option<Result<DirPage>>;
    fn page(directory: &DirHandle, offset: u64) -> impl Future<Output = Result<DirPage>> + Send;
    /// Puts as much of the page into the reply as fits, and sends it.
    fn send(self, page: &DirPage);
    fn refuse(self, error: &Error);
}

impl Directories {
    pub fn new(names: Arc<Names>) -> Arc<Self> {
        Arc::new(Self { names, open: RwLock::default(), next: AtomicU64::new(1) })
    }

    /// Opens a directory; says also whether the kernel may keep the entries it has.
    pub fn open(&self, ino: Inode) -> Result<(HandleId, bool)> {
        let directory = self.names.open_dir(ino)?;
        let keep = directory.is_cached();
        let handle = HandleId(self.next.fetch_add(1, Ordering::Relaxed));
        self.open.write().insert(handle, Arc::new(directory));
        Ok((handle, keep))
    }

    pub fn release(&self, handle: HandleId) {
        self.open.write().remove(&handle);
    }

    /// Answers a listing: at once when the entries are there, else from a task.
    pub fn read<L: Listing>(&self, handle: HandleId, offset: u64, reply: L, runtime: &Handle) {
        let Some(directory) = self.open.read().get(&handle).cloned() else { return reply.refuse(&Error::BadHandle) };
        match L::try_page(&directory, offset) {
            Some(result) => finish(result, reply),
            None => {
                runtime.spawn(async move { finish(L::page(&directory, offset).await, reply) });
            }
        }
    }
}

fn finish<L: Listing>(result: Result<DirPage>, reply: L) {
    match result {
        Ok(page) => reply.send(&page),
        Err(error) => reply.refuse(&error),
    }
}

impl Listing for ReplyDirectory {
    fn try_page(directory: &DirHandle, offset: u64) -> Option<Result<DirPage>> {
        directory.try_read(offset)
    }

    async fn page(directory: &DirHandle, offset: u64) -> Result<DirPage> {
        directory.read(offset).await
    }

    fn send(mut self, page: &DirPage) {
        page.fill(|item| self.add(number(item.ino), item.next_offset, file_type(item.kind), OsStr::from_bytes(item.name)));
        self.ok();
    }

    fn refuse(self, error: &Error) {
        self.error(errno("readdir", error));
    }
}

impl Listing for ReplyDirectoryPlus {
    fn try_page(directory: &DirHandle, offset: u64) -> Option<Result<DirPage>> {
        directory.try_read_plus(offset)
    }

    async fn page(directory: &DirHandle, offset: u64) -> Result<DirPage> {
        directory.read_plus(offset).await
    }

    fn send(mut self, page: &DirPage) {
        page.fill_plus(|item, entry| {
            self.add(number(item.ino), item.next_offset, OsStr::from_bytes(item.name), &entry.ttl, &attr(&entry.attr), Generation(0))
        });
        self.ok();
    }

    fn refuse(self, error: &Error) {
        self.error(errno("readdirplus", error));
    }
}
