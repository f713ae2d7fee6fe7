//! What stat(2) shows, made from a key, facts of the store and the options. It knows neither fuser nor the cache.

use std::time::{Duration, SystemTime};

use super::inodes::{Inode, Kind};
use super::options::Forced;
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

    /// Replaces what the options force, whatever is kept or was set.
    pub(super) fn impose(&mut self, options: &Options) {
        let Forced { uid, gid, mode } = options.forced;
        if uid {
            self.uid = options.uid;
        }
        if gid {
            self.gid = options.gid;
        }
        let own = match self.kind {
            Kind::Directory => options.root_mode.filter(|_| self.ino == Inode::ROOT).or(mode.then_some(options.dir_mode)),
            Kind::File => mode.then_some(options.file_mode),
            Kind::Symlink => None,
        };
        if let Some(own) = own {
            self.perm = own & !options.umask;
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
    #[test]
    fn forced_attributes_replace_stored_ones_but_not_those_of_links() {
        let stored = Attr {
            ino: Inode(9),
            kind: Kind::File,
            size: 3,
            modified: SystemTime::UNIX_EPOCH,
            accessed: SystemTime::UNIX_EPOCH,
            uid: 1000,
            gid: 1001,
            perm: 0o600,
            nlink: 1,
        };
        let shown = |attr: &Attr, options: &Options| {
            let mut attr = attr.clone();
            attr.impose(options);
            (attr.uid, attr.gid, attr.perm)
        };
        let options = Options { uid: 7, gid: 8, file_mode: 0o777, dir_mode: 0o777, umask: 0o022, ..Options::default() };
        assert_eq!(shown(&stored, &options), (1000, 1001, 0o600));
        let forced = Options { forced: Forced { uid: true, gid: false, mode: true }, ..options.clone() };
        assert_eq!(shown(&stored, &forced), (7, 1001, 0o755));
        assert_eq!(shown(&Attr { kind: Kind::Symlink, ..stored.clone() }, &forced), (7, 1001, 0o600));
        let closed = Options { root_mode: Some(0o700), ..options };
        let directory = Attr { kind: Kind::Directory, ..stored };
        assert_eq!(shown(&directory, &closed).2, 0o600);
        assert_eq!(shown(&Attr { ino: Inode::ROOT, ..directory }, &closed).2, 0o700);
    }
}
