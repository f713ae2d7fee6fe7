//! Open directories, and the two answers that list them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use zerocopy::IntoBytes;

use crate::vfs::{Answered, DirHandle, DirItem, DirPage, DirectoryRow, Error, HandleId, Inode, Names, Result, Told};

use super::convert::{entry_out, errno, file_type};
use super::filesystem::{Asker, Bucket};
use super::reply::{Data, Reply};
use super::wire::Dirent;

/// The open directories of a mount.
#[derive(Debug)]
pub(super) struct Directories {
    names: Arc<Names>,
    open: RwLock<HashMap<HandleId, Arc<Open>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Open {
    directory: DirHandle,
    /// As it is written down; none: nobody goes on after this process.
    row: Option<Mutex<DirectoryRow>>,
}

/// How a directory is listed.
pub(super) trait Listing: 'static {
    const NAME: &'static str;
    fn try_page(directory: &DirHandle, offset: u64) -> Option<Result<DirPage>>;
    fn page(directory: &DirHandle, offset: u64) -> impl Future<Output = Result<DirPage>> + Send;
    /// As much of the page as fits into an answer.
    fn fill(page: &DirPage, into: &mut Entries);
}

/// READDIR: names alone.
pub(super) enum Plain {}

/// READDIRPLUS: names with attributes.
pub(super) enum Plus {}

impl Directories {
    pub fn new(names: Arc<Names>) -> Arc<Self> {
        Arc::new(Self { names, open: RwLock::default(), next: AtomicU64::new(1) })
    }

    /// Opens a directory for the request `unique`, which is told `flags` of whether the kernel may keep the entries it has.
    pub fn open(&self, ino: Inode, unique: u64, flags: impl FnOnce(bool) -> u32) -> Result<(HandleId, u32)> {
        let directory = self.names.open_dir(ino)?;
        let flags = flags(directory.is_cached());
        let handle = HandleId(self.next.fetch_add(1, Ordering::Relaxed));
        let row = self.names.is_written_down().then(|| {
            let row = DirectoryRow { ino, told: Told { unique, flags, backing: 0 }, last: None };
            self.names.note_directory(handle, Some(&row));
            Mutex::new(row)
        });
        self.open.write().insert(handle, Arc::new(Open { directory, row }));
        Ok((handle, flags))
    }

    /// Opens again what the daemon before had open, where its reader was.
    pub fn restore(&self) -> Vec<Answered> {
        let mut answered = Vec::new();
        for (handle, row) in self.names.open_directories() {
            self.next.fetch_max(handle.0 + 1, Ordering::Relaxed);
            match self.names.open_dir(row.ino) {
                Ok(directory) => {
                    answered.push(Answered { handle, ino: row.ino, told: row.told });
                    let directory = directory.going_on_after(row.last.clone());
                    self.open.write().insert(handle, Arc::new(Open { directory, row: Some(Mutex::new(row)) }));
                }
                Err(error) => tracing::warn!(ino = row.ino.0, %error, "a directory that was open cannot be read on"),
            }
        }
        answered
    }

    pub fn release(&self, handle: HandleId) {
        self.open.write().remove(&handle);
        self.names.note_directory(handle, None);
    }

    /// Answers a listing of at most `size` bytes: at once when the entries are there, else from a task, in which it can be interrupted.
    pub fn read<L: Listing>(&self, handle: HandleId, offset: u64, size: u32, asker: Asker<'_>, bucket: &Bucket) {
        let Some(directory) = self.open.read().get(&handle).cloned() else {
            return asker.reply::<Data>().error(errno(L::NAME, &Error::BadHandle));
        };
        let reply = asker.reply();
        // What is known may still have more asked for.
        let _runtime = bucket.runtime.enter();
        match L::try_page(&directory.directory, offset) {
            Some(result) => directory.finish::<L>(result, size, (&self.names, handle), reply),
            None => {
                let reply = reply.interruptible(&bucket.waits, asker.header.thread);
                let names = Arc::clone(&self.names);
                bucket.runtime.spawn(async move {
                    let page = L::page(&directory.directory, offset).await;
                    directory.finish::<L>(page, size, (&names, handle), reply);
                });
            }
        }
    }
}

impl Open {
    /// Answers with as much of a page as fits; `of` is where it is written down how far that is.
    fn finish<L: Listing>(&self, result: Result<DirPage>, size: u32, of: (&Names, HandleId), reply: Reply<Data>) {
        // First: what goes into an answer counts as looked up.
        let Some(reply) = reply.claim() else { return };
        match result {
            Ok(page) => {
                let mut entries = Entries::new(size);
                L::fill(&page, &mut entries);
                if let (Some(row), Some(last)) = (&self.row, entries.last()) {
                    let mut row = row.lock();
                    row.last = Some(last);
                    of.0.note_directory(of.1, Some(&row));
                }
                reply.data(entries.bytes());
            }
            Err(error) => reply.error(errno(L::NAME, &error)),
        }
    }
}

impl Listing for Plain {
    const NAME: &'static str = "readdir";

    fn try_page(directory: &DirHandle, offset: u64) -> Option<Result<DirPage>> {
        directory.try_read(offset)
    }

    async fn page(directory: &DirHandle, offset: u64) -> Result<DirPage> {
        directory.read(offset).await
    }

    fn fill(page: &DirPage, into: &mut Entries) {
        page.fill(|item| into.add(&[], &item));
    }
}

impl Listing for Plus {
    const NAME: &'static str = "readdirplus";

    fn try_page(directory: &DirHandle, offset: u64) -> Option<Result<DirPage>> {
        directory.try_read_plus(offset)
    }

    async fn page(directory: &DirHandle, offset: u64) -> Result<DirPage> {
        directory.read_plus(offset).await
    }

    fn fill(page: &DirPage, into: &mut Entries) {
        page.fill_plus(|item, entry| into.add(entry_out(entry).as_bytes(), &item));
    }
}

/// Entries as they go to the kernel, each on a multiple of eight bytes.
#[derive(Debug)]
pub(super) struct Entries {
    bytes: Vec<u8>,
    most: usize,
    /// Of the last one: what follows it, and where its name is.
    last: Option<(u64, Range<usize>)>,
}

impl Entries {
    /// At most `most` bytes of them.
    pub fn new(most: u32) -> Self {
        Self { bytes: Vec::with_capacity(most as usize), most: most as usize, last: None }
    }

    /// What was added.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where to read on after the last one, and its name.
    fn last(&self) -> Option<(u64, Vec<u8>)> {
        let (next_offset, name) = self.last.clone()?;
        Some((next_offset, self.bytes[name].to_vec()))
    }

    /// Adds one, with what comes before its name. True: it did not fit.
    pub fn add(&mut self, before: &[u8], item: &DirItem<'_>) -> bool {
        let Ok(name_len) = u32::try_from(item.name.len()) else { return true };
        let entry = Dirent { ino: item.ino.0, next_offset: item.next_offset, name_len, kind: file_type(item.kind) >> 12 };
        let end = self.bytes.len() + before.len() + size_of::<Dirent>() + item.name.len();
        if end.next_multiple_of(8) > self.most {
            return true;
        }
        for part in [before, entry.as_bytes(), item.name] {
            self.bytes.extend_from_slice(part);
        }
        self.last = Some((item.next_offset, end - item.name.len()..end));
        self.bytes.resize(end.next_multiple_of(8), 0);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Kind;

    #[test]
    fn entries_are_padded_and_end_where_the_answer_does() {
        let mut entries = Entries::new(24 + 8 + 24 + 16);
        let item = |name: &'static str, next_offset| DirItem { ino: Inode(7), next_offset, kind: Kind::Directory, name: name.as_bytes() };
        assert!(!entries.add(&[], &item("12345678", 1)) && !entries.add(&[], &item("123456789", 2)));
        assert!(entries.add(&[], &item("", 3)));
        assert_eq!(entries.bytes.len(), 24 + 8 + 24 + 16);
        let expected = Dirent { ino: 7, next_offset: 2, name_len: 9, kind: 4 };
        assert_eq!(entries.bytes[32..56], *expected.as_bytes());
        assert_eq!(entries.bytes[56..], *b"123456789\0\0\0\0\0\0\0");
    }
}
