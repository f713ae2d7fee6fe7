//! What stat(2) shows, made from a key, facts of the store and the options. It knows neither fuser nor the cache.

use std::time::{Duration, SystemTime};

use super::inodes::{Inode, Kind};
use super::{Options, fact::Marker, listing::FileFacts};

/// Permissions of a symbolic link: nobody looks at them (`path_resolution(7)`).
const LINK_MODE: u16 = 0o777;

/// Attributes of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Inode,
    pub kind: Kind,
    pub size: u64,
    pub modified: SystemTime,
    pub accessed: SystemTime,
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
        let posix = facts.extra.as_ref().map(|extra| extra.posix).unwrap_or_default();
        let modified = posix.modified.unwrap_or(facts.modified);
        let (size, perm) = match facts.link() {
            Some(target) => (target.len() as u64, LINK_MODE),
            None => (facts.size, posix.mode.unwrap_or(options.file_mode & !options.umask)),
        };
        Self {
            ino,
            kind: facts.kind(),
            size,
            modified,
            accessed: posix.accessed.unwrap_or(modified),
            uid: posix.uid.unwrap_or(options.uid),
            gid: posix.gid.unwrap_or(options.gid),
            perm,
            nlink: 1,
        }
    }

    /// `nlink` is 1, which tree walkers read as "not counted": with 2 some would take it that there are no
    /// subdirectories. Counting them (each has a `..`)
    /// would take a listing for every stat, and walkers get the kind of each entry from readdir.
    /// `time`: what a directory without a marker shows.
    pub(super) fn directory(options: &Options, ino: Inode, marker: Option<&Marker>, time: SystemTime) -> Self {
        let posix = marker.map(|marker| marker.posix).unwrap_or_default();
        let modified = posix.modified.unwrap_or(marker.map_or(time, |marker| marker.modified));
        Self {
            ino,
            kind: Kind::Directory,
            size: 0,
            modified,
            accessed: posix.accessed.unwrap_or(modified),
            uid: posix.uid.unwrap_or(options.uid),
            gid: posix.gid.unwrap_or(options.gid),
            perm: posix.mode.unwrap_or(options.dir_mode & !options.umask),
            nlink: 1,
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
        let facts = FileFacts { size: 3, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH, extra: None };
        let file = Attr::file(&options, Inode(9), &facts);
        assert_eq!((file.perm, file.nlink, file.size, file.uid, file.gid), (0o640, 1, 3, 7, 8));
        let directory = Attr::directory(&options, Inode(9), None, SystemTime::UNIX_EPOCH);
        assert_eq!((directory.perm, directory.nlink, directory.kind), (0o750, 1, Kind::Directory));
    }
}
