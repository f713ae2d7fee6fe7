//! A journal that is played: rows of dirty files and of handles in a map. Each row that is written is one step, as in the memory that outlives a daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use shuttle::thread::yield_now;

use crate::Inode;
use crate::dirty_files::Fate;
use crate::store::{Key, ObjectMeta};

#[derive(Clone, Debug, Default)]
pub struct Record(Option<Arc<Mutex<Rows>>>);

/// What a daemon that goes on finds.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub dirty: BTreeMap<u64, DirtyRow>,
    pub edits: BTreeMap<u64, EditRow>,
}

#[derive(Clone, Debug)]
pub struct DirtyRow {
    pub key: Key,
    pub committed: Option<ObjectMeta>,
    pub exclusive: bool,
    pub fate: Fate,
    pub written: bool,
}

/// An open handle.
#[derive(Clone, Copy, Debug)]
pub struct EditRow {
    pub ino: u64,
    pub is_lost: bool,
}

impl Record {
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub fn put_dirty(&self, ino: Inode, row: &DirtyRow) {
        self.change(|rows| {
            rows.dirty.insert(ino.0, row.clone());
        });
    }

    pub fn drop_dirty(&self, ino: Inode) {
        self.change(|rows| {
            rows.dirty.remove(&ino.0);
        });
    }

    pub fn put_edit(&self, handle: u64, row: EditRow) {
        self.change(|rows| {
            rows.edits.insert(handle, row);
        });
    }

    /// Reads the row, then writes it, as the journal does.
    pub fn lose_edit(&self, handle: u64) {
        if let Some(row) = self.rows().edits.get(&handle) {
            self.put_edit(handle, EditRow { is_lost: true, ..*row });
        }
    }

    pub fn drop_edit(&self, handle: u64) {
        self.change(|rows| {
            rows.edits.remove(&handle);
        });
    }

    /// A copy, with no step of another thread within it.
    pub fn rows(&self) -> Rows {
        self.0.as_ref().map(|rows| rows.lock().clone()).unwrap_or_default()
    }

    fn change(&self, change: impl FnOnce(&mut Rows)) {
        if let Some(rows) = &self.0 {
            yield_now();
            change(&mut rows.lock());
            yield_now();
        }
    }
}
