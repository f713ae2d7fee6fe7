//! Goes on with what was open for writing through the daemon before. What that one had staged is there, and so is what it had sent of a stream where
//! it could leave that; what is gone is lost, and each handle that wrote it says so. Invariants: nothing is committed here that its writer has not
//! closed; a file without a row is clean, because a row goes only when everything is in the store or each handle has a row that says "lost".

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use tokio::time::timeout;

use super::Inode;
use super::dirty_files::Fate;
use super::edits::{EditHandle, Edits};
use super::files::HandleId;
use super::record::{Answered, DirtyRow, EditRow};
use crate::store::Key;
use crate::writer::Content;

/// Handles that are restored at a time: each may need a request.
const AT_ONCE: usize = 64;

/// How long a store may take to say what an emptied object has besides its content: the mount serves nothing before.
const PATIENCE: Duration = Duration::from_secs(5);

impl Edits {
    /// See the module. For before the first request, and after the files that are only read. Uploads of what was closed go on in tasks of their own.
    pub async fn restore(self: &Arc<Self>) {
        let rows = self.names.record.edits();
        for (_, row) in &rows {
            self.names.dirty.open_handle(row.ino, row.may_write);
        }
        let lost = self.restore_files().await;
        if let Some(last) = rows.iter().map(|(handle, _)| handle.0).max() {
            self.files.number_from(HandleId(last + 1));
        }
        let restored = rows.into_iter().map(|(handle, row)| self.restore_handle(handle, row, &lost).boxed());
        stream::iter(restored.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).for_each(std::future::ready).await;
        for ino in lost.into_keys() {
            self.names.record.drop_dirty(ino);
        }
        for file in self.names.dirty.all().into_iter().filter(|file| !self.has_writers(file.ino)) {
            // Its last handle was closed, and the daemon ended before it had made an end of it.
            let edits = Arc::clone(self);
            tokio::spawn(async move { edits.end(&file).await });
        }
    }

    /// Returns the files whose bytes are gone.
    async fn restore_files(&self) -> HashMap<Inode, Key> {
        let rows = self.names.record.dirty();
        let owners: HashSet<u64> = rows.iter().map(|(ino, _)| ino.0).collect();
        let mut kept: HashMap<u64, Arc<Content>> = self.writer.take_over(&owners).await;
        let mut lost = HashMap::new();
        for (ino, row) in rows {
            let content = match kept.remove(&ino.0) {
                Some(content) => Some(content),
                None => self.begun_again(&row).await,
            };
            match content {
                Some(content) if row.fate != Fate::Lost => {
                    let file = self.names.dirty.of_row(ino, content, row);
                    if file.is_exclusive() {
                        file.content.require_absent();
                    }
                    if self.files.has_paged_readers(ino) {
                        file.on_paged_reader();
                    }
                    if self.names.dirty.insert(&file).is_err() {
                        tracing::error!(key = %file.key(), "two files of one name were being written: one of them is lost");
                        lost.insert(ino, file.key());
                    }
                }
                _ if row.fate == Fate::Saved => self.names.record.drop_dirty(ino),
                _ => {
                    tracing::error!(key = %row.key, "the daemon ended before this file was in the bucket: it has to be written again");
                    lost.insert(ino, row.key);
                }
            }
        }
        lost
    }

    /// What was made or emptied and not written to is as good as new.
    async fn begun_again(&self, row: &DirtyRow) -> Option<Arc<Content>> {
        let is_empty = !row.written && row.fate != Fate::Saved && row.fate != Fate::Lost;
        if !is_empty {
            return None;
        }
        let headers = match &row.committed {
            None => self.headers_for(&row.key),
            Some(_) => match timeout(PATIENCE, self.headers_to_keep(&row.key)).await {
                Ok(Ok(headers)) => headers,
                _ => {
                    tracing::warn!(key = %row.key, "the store does not answer: what the emptied object has besides its content is lost with that");
                    self.headers_for(&row.key)
                }
            },
        };
        Some(self.writer.create(row.key.clone(), headers))
    }

    async fn restore_handle(&self, handle: HandleId, row: EditRow, lost: &HashMap<Inode, Key>) {
        let (ino, direct) = (row.ino, row.direct);
        let reads_version = row.may_read && self.files.get(handle).is_err();
        let version = row.version.clone();
        let lost = lost.get(&ino).cloned().or_else(|| row.is_lost.then(|| self.names.key(ino).unwrap_or_else(|_| Key::root())));
        let file = match lost.filter(|_| row.may_write) {
            Some(key) => {
                self.names.record.lose_edit(handle);
                let content = self.writer.lost(key.clone(), self.headers_for(&key));
                Some(self.names.dirty.lost(ino, key, content))
            }
            None => self.names.dirty.get(ino),
        };
        if row.may_read
            && row.may_write
            && !row.appends
            && let Some(file) = &file
        {
            file.on_paged_reader();
        }
        self.open.write().insert(handle, Arc::new(EditHandle::from_row(row, file)));
        if !reads_version || self.names.is_being_written(ino) {
            return;
        }
        // It read what was being written, and is in the store by now.
        let version = match version {
            Some(version) => Some(version),
            None => self.names.fresh_object(ino).await.ok().map(|(meta, _)| meta),
        };
        if let Some(version) = version {
            self.files.read_as(handle, ino, direct, &version);
        }
    }

    /// Handles that the kernel was told of, or was about to be, when the daemon before ended.
    pub fn answered(&self) -> Vec<Answered> {
        let rows = self.names.record.edits();
        rows.into_iter().map(|(handle, EditRow { ino, told, .. })| Answered { handle, ino, told }).collect()
    }
}

impl super::Files {
    /// As [`Edits::answered`], of files that are only read.
    pub fn answered(&self) -> Vec<Answered> {
        self.rows().into_iter().map(|(handle, row)| Answered { handle, ino: row.ino, told: row.told }).collect()
    }
}

impl super::Names {
    /// The directories that the daemon before had open.
    pub fn open_directories(&self) -> Vec<(HandleId, super::DirectoryRow)> {
        self.record.directories()
    }

    /// What is written down of an open directory; none: it is closed.
    pub fn note_directory(&self, handle: HandleId, row: Option<&super::DirectoryRow>) {
        match row {
            Some(row) => self.record.put_directory(handle, row),
            None => self.record.drop_directory(handle),
        }
    }

    /// Whether what is open is written down.
    pub fn is_written_down(&self) -> bool {
        self.record.is_on()
    }
}
