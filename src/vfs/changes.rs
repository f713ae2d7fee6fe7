//! What this mount changes in the bucket, told to everything that believes something about it: stat cache, listings, inode table. It
//! changes nothing in the bucket itself. Invariant: after a call here no lookup and no listing that begins later shows what was before.

use std::sync::Arc;

use tokio::time::Instant;

use super::fact::{Listing, Marker, What};
use super::inodes::Inode;
use super::listing::{DirEntry, FileFacts};
use super::lookup::Names;
use super::stat_cache::{Change, split};
use crate::store::Key;

impl Names {
    /// `path` is a file now.
    pub(super) fn on_file(&self, path: &Key, facts: FileFacts) {
        self.cache.learn_name(path, What::File(facts.clone()), Instant::now());
        let name_start = split(path.as_bytes()).0.len();
        self.on_entry(path, Change::Put(DirEntry::file(path.clone(), name_start, facts)));
    }

    /// `path` (without `/`) is a directory now, with that marker object.
    pub(super) fn on_directory(&self, path: &Key, marker: Marker) {
        self.cache.learn_name(path, What::Directory(Some(marker)), Instant::now());
        let name_start = split(path.as_bytes()).0.len();
        self.on_entry(path, Change::Put(DirEntry::directory(path.join(b"/"), name_start)));
    }

    /// `path` is something else now, and the store is to be asked what that is like.
    pub(super) fn on_unknown(&self, path: &Key) {
        self.cache.forget(path.as_bytes());
        self.on_entry(path, Change::Unknown);
    }

    /// `path` is nothing any more.
    pub(super) fn on_removed(&self, path: &Key) {
        self.cache.learn_name(path, What::Absent, Instant::now());
        // What was hidden by what is gone is seen now.
        let change = if self.hidden.may_have(path) { Change::Unknown } else { Change::Gone(path.clone()) };
        self.on_entry(path, change);
        self.own.forget(path.as_bytes());
    }

    /// An entry of the name `path` was made, removed or renamed: the directory that holds it shows it, as POSIX asks for. Its attributes in
    /// the store, if it has any there, stay as they are.
    pub(super) fn on_entry_changed(&self, path: &Key) {
        let directory = directory_of(path);
        let bytes = directory.as_bytes();
        self.own.touch(Key::from(bytes.strip_suffix(b"/").unwrap_or(bytes)));
    }

    /// The name of `ino` goes to another inode when there is one again; the kernel goes on with `ino` while it is open.
    pub(super) fn on_unlinked(&self, path: &Key) {
        let mut inodes = self.inodes.lock();
        let ino = inodes.number(path);
        if inodes.knows(ino) {
            inodes.remove_name(ino);
        }
    }

    /// `directory` (which ends in `/`) had no entry at `asked`. What this mount has put there since is in it.
    pub(super) fn on_empty(&self, directory: &Key, asked: Instant) {
        self.cache
            .learn_listing(directory, Arc::new(Listing::whole(Vec::new(), asked, self.cache.carries(directory.as_bytes()) == Some(true))));
    }

    /// All entries of `directory` (which ends in `/`) changed.
    pub(super) fn on_entries(&self, directory: &Key) {
        self.on_change(directory, Change::Unknown);
    }

    /// `path` changed in the directory that holds it.
    fn on_entry(&self, path: &Key, change: Change) {
        self.on_change(&directory_of(path), change);
    }

    fn on_change(&self, directory: &Key, change: Change) {
        self.walks.lock().remove(directory);
        self.cache.on_change(directory, change);
    }

    /// The inode of `path`, if the kernel knows it.
    pub(super) fn known_inode(&self, path: &Key) -> Option<Inode> {
        let inodes = self.inodes.lock();
        let ino = inodes.number(path);
        inodes.knows(ino).then_some(ino)
    }
}

/// The directory that holds `path`, with its `/`.
pub(super) fn directory_of(path: &Key) -> Key {
    let bytes = path.as_bytes();
    Key::from(split(bytes.strip_suffix(b"/").unwrap_or(bytes)).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_lies_in_the_directory_above_it() {
        for (path, directory) in [("a", ""), ("a/", ""), ("a/b", "a/"), ("a/b/", "a/"), ("a/b/c", "a/b/")] {
            assert_eq!(directory_of(&Key::from(path)), Key::from(directory));
        }
    }
}
