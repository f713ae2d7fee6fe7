//! What stat(2) shows, made from a key, facts of the store and the options. It knows neither fuser nor the cache.

use std::time::{Duration, SystemTime};

use super::inodes::{Inode, Kind};
use super::{Options, listing::FileFacts};

/// Attributes of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Inode,
    pub kind: Kind,
    pub size: u64,
    pub modified: SystemTime,
    pub uid: u32,
    pub gid: u32,
    /// Permission bits, `umask` taken away.
    pub perm: u16,
    pub nlink: u32,
}

/// A name that was found: its attributes, and how long the kernel may believe both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub attr: Attr,
    pub ttl: Duration,
}

impl Attr {
    pub(super) fn file(options: &Options, ino: Inode, facts: &FileFacts) -> Self {
        Self {
            ino,
            kind: Kind::File,
            size: facts.size,
            modified: facts.modified,
            uid: options.uid,
            gid: options.gid,
            perm: options.file_mode & !options.umask,
            nlink: 1,
        }
    }

    /// `nlink` is the entry in the parent and the `.`. Subdirectories, which have a `..` each, are not counted: that
    /// would take a listing for every stat, and walkers get the kind of each entry from readdir.
    pub(super) fn directory(options: &Options, ino: Inode, modified: SystemTime) -> Self {
        Self {
            ino,
            kind: Kind::Directory,
            size: 0,
            modified,
            uid: options.uid,
            gid: options.gid,
            perm: options.dir_mode & !options.umask,
            nlink: 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ETag;

    #[test]
    fn modes_are_those_of_the_options_less_the_umask() {
        let options = Options { uid: 7, gid: 8, file_mode: 0o666, dir_mode: 0o777, umask: 0o027, ..Options::default() };
        let facts = FileFacts { size: 3, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH };
        let file = Attr::file(&options, Inode(9), &facts);
        assert_eq!((file.perm, file.nlink, file.size, file.uid, file.gid), (0o640, 1, 3, 7, 8));
        let directory = Attr::directory(&options, Inode(9), SystemTime::UNIX_EPOCH);
        assert_eq!((directory.perm, directory.nlink, directory.kind), (0o750, 2, Kind::Directory));
    }
}
