//! Goes on with what was open for writing through the daemon before. What that one had staged is there; what it was streaming to the store is
//! not, and whoever writes it is told so at the next fsync or close. Invariant: nothing is committed here that its writer has not closed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::drafts::Draft;
use super::edits::{EditHandle, Edits};
use super::files::HandleId;
use super::record::{Answered, DraftRow, EditRow};
use crate::writer::Content;

impl Edits {
    /// See the module. For before the first request, and after the files that are only read.
    pub async fn restore(&self) {
        let rows = self.names.record.edits();
        for (_, row) in rows.iter().filter(|(_, row)| row.may_write) {
            *self.writers.lock().entry(row.ino).or_default() += 1;
        }
        self.restore_drafts().await;
        for (handle, row) in rows {
            self.files.number_from(HandleId(handle.0 + 1));
            self.restore_handle(handle, row).await;
        }
    }

    async fn restore_drafts(&self) {
        let rows = self.names.record.drafts();
        let owners: HashSet<u64> = rows.iter().map(|(ino, _)| ino.0).collect();
        let mut staged: HashMap<u64, Arc<Content>> = self.writer.take_over(&owners).await;
        for (ino, row) in rows {
            let content = staged.remove(&ino.0);
            let is_staged = content.is_some();
            let has_writers = self.has_writers(ino);
            match self.content_of(&row, content).filter(|_| has_writers || row.dirty) {
                Some(content) => {
                    if !is_staged && row.dirty {
                        tracing::error!(key = %row.key, "the daemon ended while it streamed this file to the store: it has to be written again");
                    }
                    let draft = self.names.drafts.insert(Draft::from_row(ino, content, row));
                    if !has_writers {
                        // Its last handle was closed, and the daemon ended before it had made an end of it.
                        self.end(&draft).await;
                    }
                }
                None => self.names.record.drop_draft(ino),
            }
        }
    }

    /// None: there is nothing new in it, so that the first write begins it again.
    fn content_of(&self, row: &DraftRow, staged: Option<Arc<Content>>) -> Option<Arc<Content>> {
        let headers = self.headers_for(&row.key);
        match staged {
            Some(content) => Some(content),
            None if row.dirty => Some(self.writer.lost(row.key.clone(), headers)),
            // Made or emptied, and not written to: as good as new.
            None if row.committed.is_none() || row.replaces => Some(self.writer.create(row.key.clone(), headers)),
            None => None,
        }
    }

    async fn restore_handle(&self, handle: HandleId, row: EditRow) {
        let (ino, direct) = (row.ino, row.direct);
        let reads_version = row.may_read && self.files.get(handle).is_err();
        let version = row.version.clone();
        let draft = self.names.drafts.get(ino).filter(|draft| row.may_write || !draft.is_hidden_from_readers());
        let is_written = draft.is_some();
        self.open.write().insert(handle, Arc::new(EditHandle::from_row(row, draft)));
        if !reads_version || is_written {
            return;
        }
        // It read what was being written, and is in the store by now.
        let version = match version {
            Some(version) => Some(version),
            None => self.names.fresh_object(ino).await.ok(),
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
