//! What lies on /dev/fuse, byte for byte, as include/uapi/linux/fuse.h has it (7.40). Numbers and layouts only. Invariant: a structure here
//! has the size that the kernel reads or writes; the tests at the end hold it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a request asks for.
pub(super) mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
}

/// What the answer to an open tells the kernel to do with the file.
pub(super) mod open_flags {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Which fields of [`SetattrIn`] are meant.
pub(super) mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// What is said without being asked: the number stands where an answer has its errno.
pub(super) mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const RESEND: i32 = 7;
}

/// Structures that come from the kernel or go there, laid out as C does.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(super) struct $name { $(pub $field: $type,)* }
    )*};
}

// What comes from the kernel.
structures! {
    /// Before every request.
    InHeader { len: u32, opcode: u32, unique: u64, ino: u64, uid: u32, gid: u32, thread: u32, extensions_len: u16, padding: u16, }
    /// What a kernel before 7.36 sends; later ones send more flags behind it.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    ForgetIn { lookups: u64, }
    ForgetOne { ino: u64, lookups: u64, }
    BatchForgetIn { count: u32, dummy: u32, }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64, atime_nanos: u32, mtime_nanos: u32,
        ctime_nanos: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { new_parent: u64, }
    Rename2In { new_parent: u64, flags: u32, padding: u32, }
    LinkIn { of: u64, }
    OpenIn { flags: i32, open_flags: u32, }
    CreateIn { flags: i32, mode: u32, umask: u32, open_flags: u32, }
    /// Of READ, READDIR and READDIRPLUS.
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// The bytes follow.
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// Of RELEASE and RELEASEDIR.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// Of FSYNC and FSYNCDIR.
    FsyncIn { fh: u64, flags: u32, padding: u32, }
    /// Of GETXATTR and LISTXATTR.
    GetxattrIn { size: u32, padding: u32, }
    /// Without FUSE_SETXATTR_EXT, which is not asked for.
    SetxattrIn { size: u32, flags: i32, }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: i32, padding: u32, }
}

// What goes to the kernel.
structures! {
    /// Before every answer.
    OutHeader { len: u32, error: i32, unique: u64, }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, unused: [u32; 6],
    }
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32,
        nlink: u32, uid: u32, gid: u32, rdev: u32, block_size: u32, flags: u32,
    }
    EntryOut {
        ino: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nanos: u32, attr_valid_nanos: u32, attr: Attr,
    }
    AttrOut { valid: u64, valid_nanos: u32, dummy: u32, attr: Attr, }
    OpenOut { fh: u64, flags: u32, backing_id: u32, }
    CreateOut { entry: EntryOut, open: OpenOut, }
    WriteOut { size: u32, padding: u32, }
    StatfsOut {
        blocks: u64, free_blocks: u64, available_blocks: u64, files: u64, free_files: u64, block_size: u32, name_len: u32, fragment_size: u32,
        padding: u32, spare: [u32; 6],
    }
    GetxattrOut { size: u32, padding: u32, }
    /// The name follows, and zeros to a multiple of eight.
    Dirent { ino: u64, next_offset: u64, name_len: u32, kind: u32, }
    NotifyInode { ino: u64, offset: i64, len: i64, }
    /// The name follows, and a zero.
    NotifyEntry { parent: u64, name_len: u32, flags: u32, }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        // From fs/fuse and include/uapi/linux/fuse.h, 6.18, counted by hand.
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<InitIn>(), 16),
            (size_of::<InitOut>(), 64),
            (size_of::<SetattrIn>(), 88),
            (size_of::<ReadIn>(), 40),
            (size_of::<WriteIn>(), 40),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<OpenOut>(), 16),
            (size_of::<CreateOut>(), 144),
            (size_of::<StatfsOut>(), 80),
            (size_of::<Dirent>(), 24),
            (size_of::<NotifyInode>(), 24),
            (size_of::<NotifyEntry>(), 16),
            (size_of::<ReleaseIn>(), 24),
            (size_of::<FlushIn>(), 24),
            (size_of::<FallocateIn>(), 32),
            (size_of::<CreateIn>(), 16),
        ];
        for (at, (is, should)) in sizes.into_iter().enumerate() {
            assert_eq!(is, should, "number {at}");
        }
    }
}
