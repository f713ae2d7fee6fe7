//! Files that are open for writing and whose name this mount has removed, or given to another file: they go on for who has them open, and
//! are never committed. What somebody else removed is not among them: a write to that is an error, so that nothing is dropped unasked.
//!
//! Invariant: a dirty file that is begun here has no name.

use std::sync::Arc;

use super::attr::Attr;
use super::dirty_files::{Beginning, DirtyFile};
use super::edits::Edits;
use super::fact::What;
use super::listing::FileFacts;
use super::{Inode, Result};
use crate::store::{Headers, ObjectMeta};

impl Edits {
    /// The dirty file of `ino`, whose name this mount has removed: what is written is for its open handles alone. What of `version`
    /// is not in memory is gone with the object.
    pub(super) async fn begin_nameless(&self, ino: Inode, version: &ObjectMeta) -> Result<Arc<DirtyFile>> {
        if let Some(file) = self.names.dirty.get(ino) {
            return Ok(file);
        }
        let content = self.writer.edit(version.clone(), Headers::default());
        content.discard().await;
        for (mut at, data) in self.files.in_memory(ino, &version.etag) {
            for slice in data.slices() {
                content.write(at, slice).await?;
                at += slice.len() as u64;
            }
        }
        self.insert(ino, version.key.clone(), content, Beginning::Nameless, Some(version.clone())).map(|(file, _)| file)
    }

    /// The attributes of a file that was removed, or replaced by a rename, while it is open for writing and before anything was written.
    pub fn attributes_of_removed(&self, ino: Inode) -> Option<Attr> {
        if !self.has_writers(ino) || !self.names.is_removed(ino) || self.names.is_being_written(ino) {
            return None;
        }
        let open = self.open.read();
        let version = open.values().filter(|edit| edit.ino == ino).find_map(|edit| edit.version.as_ref())?;
        let attr = self.names.attr(ino, version.key.as_bytes(), &What::File(FileFacts::from(version)))?;
        Some(Attr { nlink: 0, ..attr })
    }
}
