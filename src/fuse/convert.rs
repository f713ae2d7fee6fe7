//! Between our words and fuser's.

use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, FopenFlags, INodeNo};

use crate::vfs::{Attr, Error, Inode, Kind, Opened};

/// Block size that stat(2) recommends for reading: one READ of the kernel.
const PREFERRED_IO: u32 = 1 << 20;

pub(super) fn ino(number: INodeNo) -> Inode {
    Inode(number.0)
}

pub(super) fn number(ino: Inode) -> INodeNo {
    INodeNo(ino.0)
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
    }
}

pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: number(attr.ino),
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime: attr.accessed,
        mtime: attr.modified,
        ctime: attr.modified,
        crtime: attr.modified,
        kind: file_type(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: PREFERRED_IO,
        flags: 0,
    }
}

/// What a lookup answers for a name that does not exist, when the kernel may remember that: inode 0.
pub(super) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// How the kernel is to treat an open file. `flushes`: it wants to know of every close.
pub(super) fn open_flags(opened: &Opened, flushes: bool) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_pages);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct);
    flags.set(FopenFlags::FOPEN_NOFLUSH, !flushes);
    flags
}

/// The errno of an error, which is logged here because here it ends. What is part of everyday life is not.
pub(super) fn errno(operation: &str, error: &Error) -> Errno {
    let number = error.errno();
    match number {
        libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ENAMETOOLONG | libc::EROFS | libc::EEXIST | libc::ENOTEMPTY | libc::ENODATA => {
            tracing::debug!(operation, %error, "refused")
        }
        _ if matches!(error, Error::Retired) => tracing::debug!(operation, %error, "refused"),
        _ => tracing::warn!(operation, errno = number, error = %Chain(error), "failed"),
    }
    Errno::from_i32(number)
}

/// An error with its causes on one line.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
