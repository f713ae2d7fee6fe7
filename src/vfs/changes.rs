//! What this mount changes in the bucket, told to everything that believes something about it: stat cache, listings, inode table. It
//! changes nothing in the bucket itself. Invariant: after a call here no lookup and no listing that begins later shows what was before.

use tokio::time::Instant;

use super::fact::{Marker, What};
use super::inodes::Inode;
use super::listing::FileFacts;
use super::lookup::Names;
use super::stat_cache::split;
use crate::store::Key;

impl Names {
    /// `path` is a file now.
    pub(super) fn on_file(&self, path: &Key, facts: FileFacts) {
        self.cache.learn_name(path, What::File(facts), Instant::now());
        self.on_entry(path);
    }

    /// `path` (without `/`) is a directory now, with that marker object.
    pub(super) fn on_directory(&self, path: &Key, marker: Marker) {
        self.cache.learn_name(path, What::Directory(Some(marker)), Instant::now());
        self.on_entry(path);
    }

    /// `path` is something else now, and the store is to be asked what that is like.
    pub(super) fn on_unknown(&self, path: &Key) {
        self.cache.forget(path.as_bytes());
        self.on_entry(path);
    }

    /// `path` is nothing any more.
    pub(super) fn on_removed(&self, path: &Key) {
        self.cache.learn_name(path, What::Absent, Instant::now());
        self.on_entry(path);
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

    /// The entries of the directory that holds `path` changed.
    fn on_entry(&self, path: &Key) {
        let directory = directory_of(path);
        self.walks.lock().remove(&directory);
        self.cache.on_change(&directory);
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
