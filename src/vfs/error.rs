//! What an operation on the mounted tree can fail with, and the one table that turns it into an errno. It does not
//! log and does not retry. Invariant: both matches are exhaustive, so a new kind of error does not compile until
//! someone has decided what a program will see.

use std::io;

use crate::reader::ReadError;
use crate::store::{self, ErrorKind};
use crate::writer::{Interrupted, WriteError};

/// Why an operation of the kernel failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("no such file or directory")]
    NotFound,
    #[error("not a directory")]
    NotADirectory,
    #[error("is a directory")]
    IsADirectory,
    #[error("a name is longer than 255 bytes")]
    NameTooLong,
    /// The kernel speaks of an inode that it was never told of, or has forgotten.
    #[error("the inode is not known any more")]
    UnknownInode,
    /// The version of the object that a handle reads is gone.
    #[error("the object changed while it was open")]
    Stale(#[source] store::Error),
    /// The name stands for another inode now: the kernel looks it up again when an open says so (`do_filp_open`).
    #[error("the name stands for another inode now")]
    Retired,
    /// What is open has no name any more, and nothing of it was changed while it had one.
    #[error("the file was removed or replaced while it was open")]
    Unlinked,
    /// The kernel speaks of a handle that is not open.
    #[error("the handle is not open")]
    BadHandle,
    #[error("mounted read-only")]
    ReadOnly,
    #[error("objects have no hard links")]
    NoHardLinks,
    #[error("objects cannot be devices, sockets or pipes")]
    NoSpecialFiles,
    #[error("the root of this mount holds buckets, which are not created, removed, renamed or marked here: use the tools of the store")]
    RootOfBuckets,
    #[error("the other name is in another bucket")]
    OtherBucket,
    #[error("bad argument")]
    Invalid,
    #[error("there is something of that name")]
    Exists,
    #[error("the directory is not empty")]
    NotEmpty,
    /// Another inode of the same name is being written.
    #[error("the file is being written")]
    Busy,
    #[error("not supported")]
    Unsupported,
    #[error("there is no such extended attribute")]
    NoAttribute,
    #[error("an object cannot keep so many bytes of attributes")]
    NoRoomForAttributes,
    /// Another program has written something there that only it knows.
    #[error("the extended attributes that the object has cannot be read")]
    UnreadableAttributes,
    #[error("more than {0} objects would have to be renamed")]
    TooMany(usize),
    #[error("the mount is about to end")]
    Ending,
    #[error("what was written did not reach the store")]
    Write(#[from] WriteError),
    #[error("the store did not do what was asked of it")]
    Store(#[from] store::Error),
    #[error("the bytes did not arrive")]
    Read(#[from] ReadError),
}

/// The result of an operation on the mounted tree.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the daemon that goes on with this mount answers in place of this one.
    pub fn is_left(&self) -> bool {
        matches!(self, Self::Write(WriteError::Interrupted(Interrupted::HandedOver)))
    }

    /// What a program sees.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::NotADirectory => libc::ENOTDIR,
            Self::IsADirectory => libc::EISDIR,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::UnknownInode | Self::Stale(_) | Self::Retired | Self::Unlinked => libc::ESTALE,
            Self::BadHandle => libc::EBADF,
            Self::ReadOnly => libc::EROFS,
            Self::NoHardLinks => libc::EOPNOTSUPP,
            Self::NoSpecialFiles | Self::RootOfBuckets => libc::EPERM,
            // As between two mounts: mv(1) copies then.
            Self::OtherBucket => libc::EXDEV,
            Self::Invalid => libc::EINVAL,
            Self::Exists => libc::EEXIST,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::Busy => libc::EBUSY,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::NoAttribute => libc::ENODATA,
            Self::NoRoomForAttributes => libc::ENOSPC,
            Self::UnreadableAttributes => libc::EIO,
            Self::TooMany(_) => libc::EMFILE,
            Self::Ending => libc::ESHUTDOWN,
            Self::Write(WriteError::Store(error)) => store_errno(error),
            Self::Write(WriteError::Disk { source }) => source.raw_os_error().unwrap_or(match source.kind() {
                io::ErrorKind::StorageFull => libc::ENOSPC,
                _ => libc::EIO,
            }),
            Self::Write(WriteError::Memory(_)) => libc::ENOMEM,
            Self::Write(WriteError::TooLarge) => libc::EFBIG,
            Self::Write(WriteError::Lost | WriteError::Interrupted(_)) => libc::EIO,
            Self::Write(WriteError::Stale(_)) => libc::ESTALE,
            Self::Store(error) | Self::Read(ReadError::Store(error)) => store_errno(error),
            Self::Read(ReadError::Deadline(_) | ReadError::GivenUp) => libc::EIO,
            Self::Read(ReadError::Memory(_)) => libc::ENOMEM,
        }
    }
}

fn store_errno(error: &store::Error) -> i32 {
    match error.kind {
        ErrorKind::NotFound => libc::ENOENT,
        // A range is only asked for inside the size we were told, so an object that cannot satisfy it is another version.
        ErrorKind::Replaced | ErrorKind::RangeNotSatisfiable => libc::ESTALE,
        ErrorKind::AccessDenied | ErrorKind::BadCredentials | ErrorKind::NoCredentials => libc::EACCES,
        ErrorKind::Invalid if error.code.as_deref() == Some("KeyTooLongError") => libc::ENAMETOOLONG,
        ErrorKind::Invalid if error.code.as_deref() == Some("MetadataTooLarge") => libc::ENOSPC,
        // What cannot even be asked for, such as a name that is no UTF-8.
        ErrorKind::Invalid if error.status.is_none() => libc::EINVAL,
        // The program asked for nothing wrong: the store does not do what the mount wants of it.
        ErrorKind::Invalid => libc::EIO,
        // A bucket that vanished is a fault of the mount: ENOENT would make programs believe that their file was deleted.
        ErrorKind::NoSuchBucket | ErrorKind::WrongEndpoint | ErrorKind::ChecksumRefused => libc::EIO,
        // EIO for a timeout too: ETIMEDOUT is a word of sockets that few programs expect of a file.
        ErrorKind::Throttled
        | ErrorKind::Unavailable
        | ErrorKind::Connect
        | ErrorKind::Timeout
        | ErrorKind::Corrupt
        | ErrorKind::Malformed
        | ErrorKind::Untrusted
        | ErrorKind::NotTls => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::store::{Key, Op};

    #[test]
    fn programs_see_the_errno_that_the_semantics_promise() {
        let table = [
            (ErrorKind::NotFound, libc::ENOENT),
            (ErrorKind::Replaced, libc::ESTALE),
            (ErrorKind::AccessDenied, libc::EACCES),
            (ErrorKind::NoCredentials, libc::EACCES),
            (ErrorKind::Throttled, libc::EIO),
            (ErrorKind::Timeout, libc::EIO),
            (ErrorKind::NoSuchBucket, libc::EIO),
        ];
        for (kind, errno) in table {
            let error = Error::from(store::Error::new(kind, Op::Head, &Key::from("a"), "it"));
            assert_eq!(error.errno(), errno, "{kind:?}");
        }
        assert_eq!(Error::ReadOnly.errno(), libc::EROFS);
        let invalid = store::Error::new(ErrorKind::Invalid, Op::Copy, &Key::from("a/"), "it");
        let refused = store::Error { status: Some(400), code: Some("DirectoryObjectContainsData".into()), ..invalid.clone() };
        let too_long = store::Error { code: Some("KeyTooLongError".into()), ..refused.clone() };
        assert_eq!([invalid, refused, too_long].map(|error| Error::from(error).errno()), [libc::EINVAL, libc::EIO, libc::ENAMETOOLONG]);
        assert_eq!(Error::NoHardLinks.errno(), libc::EOPNOTSUPP);
    }

    #[test]
    fn the_chain_names_operation_and_key_once() {
        let error = Error::from(store::Error::new(ErrorKind::Timeout, Op::List, &Key::from("a/"), "no byte for 5 s"));
        assert!(!error.to_string().contains("LIST"));
        assert!(error.source().expect("a cause").to_string().contains("LIST \"a/\""));
    }
}
