//! What is open, written down as it changes for the daemon that goes on with this mount: files, handles that write, what they have changed,
//! open directories, and attributes that the bucket does not keep. It opens nothing. Without a keeper of the mount nothing is written. Invariant: a handle is written down before the kernel
//! is told of it, and until the kernel has closed it.

mod attributes;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::dirty_files::Fate;
use super::files::HandleId;
use super::inodes::Inode;
use crate::lasting::{Form, Rows, Source, Table};
use crate::store::{ETag, Key, ObjectMeta};

const FILE: Table = 1;
const EDIT: Table = 2;
const DIRTY: Table = 3;
const DIRECTORY: Table = 4;

/// Handles take a few hundred bytes each: there is room for more than a million.
const ROOM: usize = 512 << 20;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Record(Option<Arc<Book>>);

#[derive(Debug)]
struct Book {
    rows: Rows,
    /// Of the versions of an inode that are open the last one written down counts.
    order: AtomicU64,
    /// Bytes of the rows of attributes, and whether there were too many.
    attributes: AtomicUsize,
    is_full: AtomicBool,
}

/// What the kernel was told of a handle. When the answer did not arrive it asks again, under the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub unique: u64,
    pub flags: u32,
    pub backing: u32,
}

/// A handle that the kernel was told of by the daemon before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    pub handle: HandleId,
    pub ino: Inode,
    pub told: Told,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileRow {
    pub ino: Inode,
    pub direct: bool,
    pub told: Told,
    pub meta: ObjectMeta,
}

/// A handle that may write, or reads what is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EditRow {
    pub ino: Inode,
    pub may_read: bool,
    pub may_write: bool,
    pub direct: bool,
    /// Writes go to the end of the file (O_APPEND).
    pub appends: bool,
    /// What was written through it is lost.
    pub is_lost: bool,
    pub opened_by: u32,
    pub told: Told,
    pub version: Option<ObjectMeta>,
}

/// A file that is being changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DirtyRow {
    pub key: Key,
    pub committed: Option<ObjectMeta>,
    pub exclusive: bool,
    pub fate: Fate,
    /// Bytes were written since it was made or emptied.
    pub written: bool,
}

/// Fates as they are written down.
const FATES: [Fate; 5] = [Fate::Saved, Fate::Dirty, Fate::Failed, Fate::Unwanted, Fate::Lost];

/// An open directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRow {
    pub ino: Inode,
    pub told: Told,
    /// The last entry that was given, if any was: where to read on after it, and its name.
    pub last: Option<(u64, Vec<u8>)>,
}

impl Record {
    /// Writes down from now on.
    pub fn new() -> io::Result<Self> {
        Ok(Self::of(Rows::new(ROOM)?, 0))
    }

    /// What another process wrote down.
    pub fn load(file: OwnedFd) -> io::Result<Self> {
        let rows = Rows::load(file)?;
        let last = rows.all(FILE).iter().map(|(_, row)| Source(row).number()).max().unwrap_or(0);
        Ok(Self::of(rows, last))
    }

    fn of(rows: Rows, last: u64) -> Self {
        let attributes = AtomicUsize::new(Self::bytes_of_attributes(&rows));
        Self(Some(Arc::new(Book { rows, order: AtomicU64::new(last + 1), attributes, is_full: AtomicBool::new(false) })))
    }

    /// Whether anything is written down.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The memory, for who keeps it.
    pub fn file(&self) -> io::Result<Option<OwnedFd>> {
        self.0.as_ref().map(|book| book.rows.file()).transpose()
    }

    pub fn put_file(&self, handle: HandleId, row: &FileRow) {
        if let Some(book) = &self.0 {
            let order = book.order.fetch_add(1, Ordering::Relaxed);
            let form = Form::default().number(order).number(row.ino.0).number(row.direct.into());
            book.rows.put(FILE, handle.0, version(told(form, row.told), Some(&row.meta)).bytes());
        }
    }

    /// In the order in which they were written down.
    pub fn files(&self) -> Vec<(HandleId, FileRow)> {
        let mut found: Vec<_> = self.rows(FILE).into_iter().filter_map(|(handle, row)| read_file(handle, Source(&row))).collect();
        found.sort_by_key(|(order, _, _)| *order);
        found.into_iter().map(|(_, handle, row)| (handle, row)).collect()
    }

    pub fn put_edit(&self, handle: HandleId, row: &EditRow) {
        if let Some(book) = &self.0 {
            let flags = [row.may_read, row.may_write, row.direct, row.appends, row.is_lost]
                .into_iter()
                .zip(0..)
                .map(|(is, bit)| u64::from(is) << bit)
                .sum();
            let form = Form::default().number(row.ino.0).number(flags).number(row.opened_by.into());
            book.rows.put(EDIT, handle.0, version(told(form, row.told), row.version.as_ref()).bytes());
        }
    }

    pub fn edits(&self) -> Vec<(HandleId, EditRow)> {
        self.rows(EDIT).into_iter().map(|(handle, row)| (HandleId(handle), read_edit(&row))).collect()
    }

    /// What was written through `handle` is lost.
    pub fn lose_edit(&self, handle: HandleId) {
        if let Some(book) = &self.0
            && let Some(row) = book.rows.get(EDIT, handle.0)
        {
            self.put_edit(handle, &EditRow { is_lost: true, ..read_edit(&row) });
        }
    }

    /// The kernel has closed it.
    pub fn drop_handle(&self, handle: HandleId) {
        if let Some(book) = &self.0 {
            book.rows.delete(FILE, handle.0);
            book.rows.delete(EDIT, handle.0);
        }
    }

    pub fn put_dirty(&self, ino: Inode, row: &DirtyRow) {
        if let Some(book) = &self.0 {
            let fate = FATES.iter().position(|fate| *fate == row.fate).expect("all fates are there") as u64;
            let form = Form::default().number(fate).number(row.exclusive.into()).number(row.written.into()).text(row.key.as_bytes());
            book.rows.put(DIRTY, ino.0, version(form, row.committed.as_ref()).bytes());
        }
    }

    pub fn dirty(&self) -> Vec<(Inode, DirtyRow)> {
        let read = |(ino, row): (u64, Box<[u8]>)| {
            let mut row = Source(&row);
            // A fate of a newer version than this: nothing is claimed of the bytes.
            let fate = usize::try_from(row.number()).ok().and_then(|fate| FATES.get(fate).copied()).unwrap_or(Fate::Lost);
            let (exclusive, written, key) = (row.number() != 0, row.number() != 0, Key::from(row.text()));
            (Inode(ino), DirtyRow { key, committed: read_version(&mut row), exclusive, fate, written })
        };
        self.rows(DIRTY).into_iter().map(read).collect()
    }

    /// It is over.
    pub fn drop_dirty(&self, ino: Inode) {
        if let Some(book) = &self.0 {
            book.rows.delete(DIRTY, ino.0);
        }
    }

    pub fn put_directory(&self, handle: HandleId, row: &DirectoryRow) {
        if let Some(book) = &self.0 {
            let (offset, name) = row.last.as_ref().map_or((0, &[][..]), |(offset, name)| (*offset, name));
            let form = told(Form::default().number(row.ino.0), row.told).number(offset).text(name);
            book.rows.put(DIRECTORY, handle.0, form.bytes());
        }
    }

    pub fn directories(&self) -> Vec<(HandleId, DirectoryRow)> {
        let read = |(handle, row): (u64, Box<[u8]>)| {
            let mut row = Source(&row);
            let (ino, told) = (Inode(row.number()), read_told(&mut row));
            let (offset, name) = (row.number(), row.text().to_vec());
            (HandleId(handle), DirectoryRow { ino, told, last: (offset > 0).then_some((offset, name)) })
        };
        self.rows(DIRECTORY).into_iter().map(read).collect()
    }

    pub fn drop_directory(&self, handle: HandleId) {
        if let Some(book) = &self.0 {
            book.rows.delete(DIRECTORY, handle.0);
        }
    }

    fn rows(&self, table: Table) -> Vec<(u64, Box<[u8]>)> {
        self.0.as_ref().map_or_else(Vec::new, |book| book.rows.all(table))
    }
}

fn read_file(handle: u64, mut row: Source<'_>) -> Option<(u64, HandleId, FileRow)> {
    let (order, ino, direct) = (row.number(), Inode(row.number()), row.number() != 0);
    let told = read_told(&mut row);
    Some((order, HandleId(handle), FileRow { ino, direct, told, meta: read_version(&mut row)? }))
}

fn read_edit(row: &[u8]) -> EditRow {
    let mut row = Source(row);
    let (ino, flags, opened_by) = (Inode(row.number()), row.number(), row.number() as u32);
    let told = read_told(&mut row);
    let [may_read, may_write, direct, appends, is_lost] = [1, 2, 4, 8, 16].map(|bit| flags & bit != 0);
    EditRow { ino, may_read, may_write, direct, appends, is_lost, opened_by, told, version: read_version(&mut row) }
}

fn told(form: Form, told: Told) -> Form {
    form.number(told.unique).number(told.flags.into()).number(told.backing.into())
}

fn read_told(row: &mut Source<'_>) -> Told {
    Told { unique: row.number(), flags: row.number() as u32, backing: row.number() as u32 }
}

fn version(form: Form, meta: Option<&ObjectMeta>) -> Form {
    let Some(meta) = meta else { return form.number(0) };
    let since = meta.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    let form = form.number(1).text(meta.key.as_bytes()).number(meta.size).text(meta.etag.as_str().as_bytes());
    form.number(since.as_secs()).number(since.subsec_nanos().into())
}

fn read_version(row: &mut Source<'_>) -> Option<ObjectMeta> {
    if row.number() == 0 {
        return None;
    }
    let (key, size) = (Key::from(row.text()), row.number());
    let etag = ETag::from(std::str::from_utf8(row.text()).ok()?);
    let modified: SystemTime = UNIX_EPOCH + Duration::new(row.number(), u32::try_from(row.number()).unwrap_or(0));
    Some(ObjectMeta { key, size, etag, modified })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_open_is_read_as_it_was_written() {
        let record = Record::new().unwrap();
        let modified = UNIX_EPOCH + Duration::new(1_700_000_000, 5);
        let meta = |key: &str| ObjectMeta { key: Key::from(key), size: 7, etag: ETag::from("\"e\""), modified };
        let told = Told { unique: 12, flags: 3, backing: 4 };
        let file = |key| FileRow { ino: Inode(9), direct: true, told, meta: meta(key) };
        let edit = |version| EditRow {
            ino: Inode(8),
            may_read: true,
            may_write: false,
            direct: true,
            appends: true,
            is_lost: false,
            opened_by: 77,
            told,
            version,
        };
        let dirty = |committed| DirtyRow { key: Key::from("d"), committed, exclusive: false, fate: Fate::Lost, written: true };
        let directory = |last| DirectoryRow { ino: Inode(3), told, last };
        record.put_file(HandleId(1), &file("old"));
        record.put_file(HandleId(2), &file("b"));
        record.put_file(HandleId(1), &file("new"));
        record.put_edit(HandleId(2), &edit(None));
        record.put_edit(HandleId(4), &edit(Some(meta("x"))));
        record.put_dirty(Inode(8), &dirty(None));
        record.put_dirty(Inode(9), &dirty(Some(meta("y"))));
        record.put_directory(HandleId(1), &directory(None));
        record.put_directory(HandleId(2), &directory(Some((5, b"name\xff".to_vec()))));
        let again = Record::load(record.file().unwrap().unwrap()).unwrap();
        assert_eq!(again.files(), [(HandleId(2), file("b")), (HandleId(1), file("new"))], "by when they were written");
        assert_eq!(again.edits(), [(HandleId(2), edit(None)), (HandleId(4), edit(Some(meta("x"))))]);
        assert_eq!(again.dirty(), [(Inode(8), dirty(None)), (Inode(9), dirty(Some(meta("y"))))]);
        let expected = [(HandleId(1), directory(None)), (HandleId(2), directory(Some((5, b"name\xff".to_vec()))))];
        assert_eq!(again.directories(), expected);
        again.lose_edit(HandleId(2));
        assert_eq!(again.edits()[0], (HandleId(2), EditRow { is_lost: true, ..edit(None) }));
        again.drop_handle(HandleId(2));
        again.drop_dirty(Inode(8));
        again.drop_directory(HandleId(1));
        assert_eq!((record.files().len(), again.files().len(), again.edits().len()), (2, 1, 1));
        assert_eq!((again.dirty().len(), again.directories().len()), (1, 1));
    }
}
