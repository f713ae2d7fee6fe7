//! A request of the kernel, taken apart. Pure. Invariant: whatever bytes come, nothing panics; what is too short, lacks the end of a name or
//! names an operation that nobody here knows is told apart, because the kernel must get an answer to each.

use std::ffi::OsStr;
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::wire::{
    BatchForgetIn, CreateIn, FallocateIn, FlushIn, ForgetIn, ForgetOne, FsyncIn, GetxattrIn, InHeader, LinkIn, MkdirIn, MknodIn, OpenIn,
    ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, WriteIn, opcode,
};
use crate::vfs::{HandleId, Inode};
use crate::writer::Landing;

/// FUSE_UNIQUE_RESEND.
const RESENT: u64 = 1 << 63;

/// Who asks, and what about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// What the answer is to carry.
    pub unique: u64,
    pub ino: Inode,
    pub uid: u32,
    pub gid: u32,
    /// The thread, in the name space of who mounted; 0 when it has no number there.
    pub thread: u32,
}

/// What of a message is enough to answer it, whatever else it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub unique: u64,
    pub opcode: u32,
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation<'a> {
    Lookup {
        name: &'a OsStr,
    },
    Forget {
        lookups: u64,
    },
    /// Inodes and their lookups.
    ForgetMany(Vec<(Inode, u64)>),
    Getattr,
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    Mknod {
        name: &'a OsStr,
        mode: u32,
    },
    Mkdir {
        name: &'a OsStr,
        mode: u32,
    },
    Unlink {
        name: &'a OsStr,
    },
    Rmdir {
        name: &'a OsStr,
    },
    Rename {
        name: &'a OsStr,
        new_parent: Inode,
        new_name: &'a OsStr,
        flags: u32,
    },
    Link {
        name: &'a OsStr,
        /// The file that would get another name.
        of: Inode,
    },
    Open {
        flags: i32,
    },
    Read {
        handle: HandleId,
        offset: u64,
        size: u32,
    },
    Write {
        handle: HandleId,
        offset: u64,
        data: Payload<'a>,
    },
    Statfs,
    Release {
        handle: HandleId,
    },
    Fsync {
        handle: HandleId,
    },
    Setxattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: i32,
    },
    Getxattr {
        name: &'a OsStr,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a OsStr,
    },
    Flush {
        handle: HandleId,
    },
    Opendir,
    Readdir {
        handle: HandleId,
        offset: u64,
        size: u32,
    },
    Readdirplus {
        handle: HandleId,
        offset: u64,
        size: u32,
    },
    Releasedir {
        handle: HandleId,
    },
    Fsyncdir,
    Access,
    Create {
        name: &'a OsStr,
        mode: u32,
        flags: i32,
    },
    /// Who asked has got a signal.
    Interrupt,
    /// The mount is gone.
    Destroy,
    Fallocate {
        handle: HandleId,
        offset: u64,
        length: u64,
        mode: i32,
    },
    /// None of these.
    Unknown {
        opcode: u32,
    },
    /// Shorter than what it should be.
    Malformed {
        opcode: u32,
    },
}

/// What a WRITE brings.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    Lent(&'a [u8]),
    /// May be kept where it is.
    Received(&'a mut Landing),
}

impl Payload<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Received(landing) => landing.bytes(),
        }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Payload<'_> {}

impl Header {
    /// Whether the kernel asks again, because a daemon before this one took the request and did not answer it. That one may have done it, or
    /// a part of it.
    pub fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }

    /// The number that it had when it was asked for the first time.
    pub fn first_unique(&self) -> u64 {
        first_unique(self.unique)
    }
}

/// The number of a request without the mark of one that is asked again.
pub(super) fn first_unique(unique: u64) -> u64 {
    unique & !RESENT
}

impl Envelope {
    /// None without a whole header, which no kernel sends.
    pub fn read(message: &[u8]) -> Option<Self> {
        let (InHeader { unique, opcode, .. }, _) = InHeader::read_from_prefix(message).ok()?;
        Some(Self { unique, opcode })
    }

    /// Whether the kernel waits for an answer.
    pub fn is_answered(self) -> bool {
        !matches!(self.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT)
    }
}

impl Operation<'_> {
    /// The names that it is about; `ino` is the inode of its header.
    pub fn names(&self, ino: Inode) -> [Option<(Inode, &OsStr)>; 2] {
        match *self {
            Self::Lookup { name }
            | Self::Symlink { name, .. }
            | Self::Mknod { name, .. }
            | Self::Mkdir { name, .. }
            | Self::Unlink { name }
            | Self::Rmdir { name }
            | Self::Create { name, .. }
            | Self::Link { name, .. } => [Some((ino, name)), None],
            Self::Rename { name, new_parent, new_name, .. } => [Some((ino, name)), Some((new_parent, new_name))],
            _ => [None, None],
        }
    }

    /// Whether the kernel waits for an answer.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::Forget { .. } | Self::ForgetMany(_) | Self::Interrupt)
    }

    /// Whether the kernel may ask for it in nobody's name, or for somebody who was let in before: page reads and writes, and what ends
    /// handles and inodes.
    pub fn is_for_anybody(&self) -> bool {
        matches!(
            self,
            Self::Destroy
                | Self::Read { .. }
                | Self::Write { .. }
                | Self::Readdir { .. }
                | Self::Readdirplus { .. }
                | Self::Fsync { .. }
                | Self::Fsyncdir
                | Self::Release { .. }
                | Self::Releasedir { .. }
        ) || !self.is_answered()
    }
}

/// Takes a message apart; none without a whole header, which no kernel sends.
pub(super) fn decode(message: &[u8]) -> Option<(Header, Operation<'_>)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    let InHeader { opcode, unique, ino, uid, gid, thread, extensions_len, .. } = header;
    // What follows the arguments (groups, security contexts) is in units of eight bytes, and not asked for.
    let len = body.len().saturating_sub(usize::from(extensions_len) * 8);
    let operation = operation(opcode, Arguments(&body[..len])).unwrap_or(Operation::Malformed { opcode });
    Some((Header { unique, ino: Inode(ino), uid, gid, thread }, operation))
}

/// Whether `head` is all that comes before what a WRITE brings.
pub(super) fn is_write(head: &[u8]) -> bool {
    InHeader::read_from_prefix(head).is_ok_and(|(header, body)| header.opcode == opcode::WRITE && body.len() >= size_of::<WriteIn>())
}

/// A WRITE of which the headers are `head`, and what it brings in `landing`, where `len` bytes came.
pub(super) fn decode_received<'a>(head: &[u8], landing: &'a mut Landing, len: usize) -> Option<(Header, Operation<'a>)> {
    let (InHeader { opcode, unique, ino, uid, gid, thread, .. }, body) = InHeader::read_from_prefix(head).ok()?;
    let operation = match Arguments(body).take::<WriteIn>() {
        Some(WriteIn { fh, offset, size, .. }) if size as usize <= len => {
            landing.on_received(size as usize);
            Operation::Write { handle: HandleId(fh), offset, data: Payload::Received(landing) }
        }
        _ => Operation::Malformed { opcode },
    };
    Some((Header { unique, ino: Inode(ino), uid, gid, thread }, operation))
}

fn operation(code: u32, mut args: Arguments<'_>) -> Option<Operation<'_>> {
    Some(match code {
        opcode::LOOKUP => Operation::Lookup { name: args.name()? },
        opcode::FORGET => Operation::Forget { lookups: args.take::<ForgetIn>()?.lookups },
        opcode::BATCH_FORGET => Operation::ForgetMany(args.forgets()?),
        opcode::GETATTR => Operation::Getattr,
        opcode::SETATTR => Operation::Setattr(args.take()?),
        opcode::READLINK => Operation::Readlink,
        opcode::SYMLINK => Operation::Symlink { name: args.name()?, target: args.name()? },
        opcode::MKNOD => args.take::<MknodIn>().and_then(|with| Some(Operation::Mknod { name: args.name()?, mode: with.mode }))?,
        opcode::MKDIR => args.take::<MkdirIn>().and_then(|with| Some(Operation::Mkdir { name: args.name()?, mode: with.mode }))?,
        opcode::UNLINK => Operation::Unlink { name: args.name()? },
        opcode::RMDIR => Operation::Rmdir { name: args.name()? },
        opcode::RENAME => {
            let RenameIn { new_parent } = args.take()?;
            args.rename(new_parent, 0)?
        }
        opcode::RENAME2 => {
            let Rename2In { new_parent, flags, .. } = args.take()?;
            args.rename(new_parent, flags)?
        }
        opcode::LINK => {
            let LinkIn { of } = args.take()?;
            Operation::Link { name: args.name()?, of: Inode(of) }
        }
        opcode::OPEN => Operation::Open { flags: args.take::<OpenIn>()?.flags },
        opcode::CREATE => {
            let CreateIn { flags, mode, .. } = args.take()?;
            Operation::Create { name: args.name()?, mode, flags }
        }
        opcode::READ => {
            let (handle, offset, size) = args.read()?;
            Operation::Read { handle, offset, size }
        }
        opcode::READDIR => {
            let (handle, offset, size) = args.read()?;
            Operation::Readdir { handle, offset, size }
        }
        opcode::READDIRPLUS => {
            let (handle, offset, size) = args.read()?;
            Operation::Readdirplus { handle, offset, size }
        }
        opcode::WRITE => {
            let WriteIn { fh, offset, size, .. } = args.take()?;
            Operation::Write { handle: HandleId(fh), offset, data: Payload::Lent(args.bytes(size)?) }
        }
        opcode::STATFS => Operation::Statfs,
        opcode::RELEASE => Operation::Release { handle: HandleId(args.take::<ReleaseIn>()?.fh) },
        opcode::RELEASEDIR => Operation::Releasedir { handle: HandleId(args.take::<ReleaseIn>()?.fh) },
        opcode::FLUSH => Operation::Flush { handle: HandleId(args.take::<FlushIn>()?.fh) },
        opcode::FSYNC => Operation::Fsync { handle: HandleId(args.take::<FsyncIn>()?.fh) },
        opcode::FSYNCDIR => Operation::Fsyncdir,
        opcode::SETXATTR => {
            let SetxattrIn { size, flags } = args.take()?;
            Operation::Setxattr { name: args.name()?, value: args.bytes(size)?, flags }
        }
        opcode::REMOVEXATTR => Operation::Removexattr { name: args.name()? },
        opcode::LISTXATTR => Operation::Listxattr { size: args.take::<GetxattrIn>()?.size },
        opcode::GETXATTR => {
            let GetxattrIn { size, .. } = args.take()?;
            Operation::Getxattr { name: args.name()?, size }
        }
        opcode::OPENDIR => Operation::Opendir,
        opcode::ACCESS => Operation::Access,
        opcode::INTERRUPT => Operation::Interrupt,
        opcode::DESTROY => Operation::Destroy,
        opcode::FALLOCATE => {
            let FallocateIn { fh, offset, length, mode, .. } = args.take()?;
            Operation::Fallocate { handle: HandleId(fh), offset, length, mode }
        }
        opcode => Operation::Unknown { opcode },
    })
}

/// What follows the header.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Option<T> {
        let (taken, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(taken)
    }

    /// Up to a zero.
    fn name(&mut self) -> Option<&'a OsStr> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(OsStr::from_bytes(name))
    }

    fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        self.0.get(..len as usize)
    }

    fn read(&mut self) -> Option<(HandleId, u64, u32)> {
        let ReadIn { fh, offset, size, .. } = self.take()?;
        Some((HandleId(fh), offset, size))
    }

    fn rename(&mut self, new_parent: u64, flags: u32) -> Option<Operation<'a>> {
        Some(Operation::Rename { name: self.name()?, new_parent: Inode(new_parent), new_name: self.name()?, flags })
    }

    fn forgets(&mut self) -> Option<Vec<(Inode, u64)>> {
        let BatchForgetIn { count, .. } = self.take()?;
        let count = count as usize;
        if self.0.len() / size_of::<ForgetOne>() < count {
            return None;
        }
        (0..count).map(|_| self.take::<ForgetOne>().map(|one| (Inode(one.ino), one.lookups))).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    pub fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(size_of::<InHeader>() + body.len()).unwrap();
        let header = InHeader { len, opcode, unique: 7, ino: 3, uid: 1, gid: 2, thread: 9, extensions_len: 0, padding: 0 };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn requests_are_taken_apart() {
        let read = ReadIn { fh: 5, offset: 1 << 40, size: 4096, read_flags: 0, lock_owner: 0, flags: 0, padding: 0 };
        let write = WriteIn { fh: 6, offset: 10, size: 3, write_flags: 0, lock_owner: 0, flags: 0, padding: 0 };
        let forgets = [ForgetOne { ino: 4, lookups: 1 }, ForgetOne { ino: 5, lookups: 2 }];
        let cases = [
            (opcode::LOOKUP, b"name\0".to_vec(), Operation::Lookup { name: OsStr::new("name") }),
            (opcode::READ, read.as_bytes().to_vec(), Operation::Read { handle: HandleId(5), offset: 1 << 40, size: 4096 }),
            (
                opcode::WRITE,
                [write.as_bytes(), b"abc"].concat(),
                Operation::Write { handle: HandleId(6), offset: 10, data: Payload::Lent(b"abc") },
            ),
            (
                opcode::RENAME2,
                [Rename2In { new_parent: 8, flags: 1, padding: 0 }.as_bytes(), b"a\0b\0"].concat(),
                Operation::Rename { name: OsStr::new("a"), new_parent: Inode(8), new_name: OsStr::new("b"), flags: 1 },
            ),
            (
                opcode::BATCH_FORGET,
                [BatchForgetIn { count: 2, dummy: 0 }.as_bytes(), forgets.as_bytes()].concat(),
                Operation::ForgetMany(vec![(Inode(4), 1), (Inode(5), 2)]),
            ),
            (
                opcode::SETXATTR,
                [SetxattrIn { size: 2, flags: 1 }.as_bytes(), b"user.a\0b\0"].concat(),
                Operation::Setxattr { name: OsStr::new("user.a"), value: b"b\0", flags: 1 },
            ),
            (opcode::SYMLINK, b"name\0target\0".to_vec(), Operation::Symlink { name: OsStr::new("name"), target: OsStr::new("target") }),
            (47, vec![1; 50], Operation::Unknown { opcode: 47 }),
        ];
        for (opcode, body, expected) in cases {
            let message = message(opcode, &body);
            let (header, operation) = decode(&message).unwrap();
            assert_eq!(header, Header { unique: 7, ino: Inode(3), uid: 1, gid: 2, thread: 9 });
            assert_eq!(operation, expected);
        }
    }

    #[test]
    fn what_is_too_short_is_told_apart() {
        let huge = BatchForgetIn { count: u32::MAX, dummy: 0 };
        let long = WriteIn { fh: 6, offset: 10, size: 4, write_flags: 0, lock_owner: 0, flags: 0, padding: 0 };
        for (opcode, body) in [
            (opcode::LOOKUP, b"no end".to_vec()),
            (opcode::READ, vec![0; 39]),
            (opcode::BATCH_FORGET, huge.as_bytes().to_vec()),
            (opcode::WRITE, [long.as_bytes(), b"abc"].concat()),
            (opcode::SETXATTR, [SetxattrIn { size: 4, flags: 0 }.as_bytes(), b"user.a\0abc"].concat()),
            (opcode::SYMLINK, b"one\0".to_vec()),
        ] {
            let message = message(opcode, &body);
            assert_eq!(decode(&message).unwrap().1, Operation::Malformed { opcode });
        }
        assert!(decode(&[0; 39]).is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(opcode in 0u32..60, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let message = message(opcode, &body);
            let (_, operation) = decode(&message).unwrap();
            prop_assert!(operation.is_answered() || operation.is_for_anybody());
        }
    }
}
