//! Between our words and the structures of the protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::reply::Reply;
use super::wire::{self, AttrOut, CreateOut, EntryOut, OpenOut, SetattrIn, open_flags, valid};
use crate::vfs::{Attr, Entry, Error, HandleId, Kind, NewAttributes, Opened, SetAttributes};

/// Block size that stat(2) recommends for reading: one READ of the kernel.
const PREFERRED_IO: u32 = 1 << 20;

/// Bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

const NANOS: u32 = 1_000_000_000;

/// The bits of a mode that say what it is.
pub(super) fn file_type(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
    }
}

pub(super) fn attr(attr: &Attr) -> wire::Attr {
    let ((atime, atime_nanos), (mtime, mtime_nanos)) = (since_epoch(attr.accessed), since_epoch(attr.modified));
    wire::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime,
        mtime,
        ctime: mtime,
        atime_nanos,
        mtime_nanos,
        ctime_nanos: mtime_nanos,
        mode: file_type(attr.kind) | u32::from(attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        block_size: PREFERRED_IO,
        flags: 0,
    }
}

pub(super) fn attr_out(of: &Attr, ttl: Duration) -> AttrOut {
    AttrOut { valid: ttl.as_secs(), valid_nanos: ttl.subsec_nanos(), dummy: 0, attr: attr(of) }
}

pub(super) fn entry_out(entry: &Entry) -> EntryOut {
    found(entry.attr.ino.0, entry.ttl, attr(&entry.attr))
}

/// For a name that does not exist, which the kernel may remember: inode 0.
pub(super) fn absent_out(ttl: Duration) -> EntryOut {
    found(0, ttl, wire::Attr::default())
}

/// Inode numbers are never used again for another key, so one generation is enough.
fn found(ino: u64, ttl: Duration, attr: wire::Attr) -> EntryOut {
    let (secs, nanos) = (ttl.as_secs(), ttl.subsec_nanos());
    EntryOut { ino, generation: 0, entry_valid: secs, attr_valid: secs, entry_valid_nanos: nanos, attr_valid_nanos: nanos, attr }
}

/// An open file. `flushes`: it wants to know of every close.
pub(super) fn open_out(opened: &Opened, flushes: bool) -> OpenOut {
    let set = |flag, is_set| if is_set { flag } else { 0 };
    let flags =
        set(open_flags::KEEP_CACHE, opened.keep_pages) | set(open_flags::DIRECT_IO, opened.direct) | set(open_flags::NOFLUSH, !flushes);
    OpenOut { fh: opened.handle.0, flags, backing_id: 0 }
}

pub(super) fn create_out(entry: &Entry, opened: &Opened) -> CreateOut {
    CreateOut { entry: entry_out(entry), open: open_out(opened, true) }
}

pub(super) fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & PERMISSIONS).expect("twelve bits")
}

/// What chmod(2), utimensat(2), ftruncate(2) and their kin ask for, and the handle that they go by.
pub(super) fn set_attributes(set: &SetattrIn) -> (Option<HandleId>, SetAttributes) {
    let given = |flag| set.valid & flag != 0;
    let time = |flag, now, secs, nanos| given(flag).then(|| if given(now) { SystemTime::now() } else { time(secs, nanos) });
    let attributes = SetAttributes {
        size: given(valid::SIZE).then_some(set.size),
        own: NewAttributes {
            mode: given(valid::MODE).then(|| permissions(set.mode)),
            uid: given(valid::UID).then_some(set.uid),
            gid: given(valid::GID).then_some(set.gid),
            modified: time(valid::MTIME, valid::MTIME_NOW, set.mtime, set.mtime_nanos),
            accessed: time(valid::ATIME, valid::ATIME_NOW, set.atime, set.atime_nanos),
        },
    };
    (given(valid::FH).then_some(HandleId(set.fh)), attributes)
}

/// Seconds, which are negative before 1970, and nanoseconds after them.
fn since_epoch(time: SystemTime) -> (u64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs(), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let borrowed = u64::from(before.subsec_nanos() > 0);
            (0u64.wrapping_sub(before.as_secs() + borrowed), (NANOS - before.subsec_nanos()) % NANOS)
        }
    }
}

/// The other way; what the clock cannot show is 1970.
fn time(secs: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_secs(secs.unsigned_abs());
    let from = if secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    from.and_then(|time| time.checked_add(Duration::from_nanos(nanos.into()))).unwrap_or(UNIX_EPOCH)
}

/// The errno of an error, which is logged here because here it ends. What is part of everyday life is not.
pub(super) fn errno(operation: &str, error: &Error) -> i32 {
    let number = error.errno();
    match number {
        libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ENAMETOOLONG | libc::EROFS | libc::EEXIST | libc::ENOTEMPTY | libc::ENODATA => {
            tracing::debug!(operation, %error, "refused")
        }
        _ if matches!(error, Error::Retired | Error::OtherBucket) => tracing::debug!(operation, %error, "refused"),
        _ => tracing::warn!(operation, errno = number, error = %Chain(error), "failed"),
    }
    number
}

/// Answers `error`, or nothing where another daemon does.
pub(super) fn refuse<A>(operation: &str, error: &Error, reply: Reply<A>) {
    if error.is_left() {
        tracing::debug!(operation, "left to the next daemon");
        reply.leave();
    } else {
        reply.error(errno(operation, error));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_both_sides_of_1970_go_there_and_back() {
        for (secs, nanos) in [(0, 0), (1_700_000_000, 5), (-1, 0), (-1, NANOS - 1), (-2, 1), (i64::from(i32::MIN), 7)] {
            let (back, back_nanos) = since_epoch(time(secs, nanos));
            assert_eq!((back.cast_signed(), back_nanos), (secs, nanos));
        }
        assert_eq!(time(i64::MAX, u32::MAX), UNIX_EPOCH);
    }

    #[test]
    fn only_what_is_marked_as_given_is_set() {
        let none = SetattrIn {
            valid: 0,
            padding: 0,
            fh: 1,
            size: 2,
            lock_owner: 3,
            atime: 4,
            mtime: 5,
            ctime: 6,
            atime_nanos: 7,
            mtime_nanos: 8,
            ctime_nanos: 9,
            mode: 0o100_640,
            unused4: 0,
            uid: 10,
            gid: 11,
            unused5: 0,
        };
        assert_eq!(set_attributes(&none), (None, SetAttributes::default()));
        let (handle, set) = set_attributes(&SetattrIn { valid: valid::FH | valid::SIZE | valid::MODE | valid::MTIME | valid::UID, ..none });
        assert_eq!(handle, Some(HandleId(1)));
        assert_eq!((set.size, set.own.mode, set.own.uid, set.own.gid), (Some(2), Some(0o640), Some(10), None));
        assert_eq!((set.own.modified, set.own.accessed), (Some(time(5, 8)), None));
        let (_, now) = set_attributes(&SetattrIn { valid: valid::ATIME | valid::ATIME_NOW, ..none });
        assert!(now.own.accessed.is_some_and(|accessed| accessed > time(4, 7)) && now.own.modified.is_none());
    }
}
