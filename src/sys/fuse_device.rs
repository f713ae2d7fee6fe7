//! The controls of /dev/fuse (include/uapi/linux/fuse.h): more descriptors of a connection, and files that the kernel reads by itself.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// FUSE_DEV_IOC_CLONE: `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
/// FUSE_DEV_IOC_BACKING_OPEN: `_IOW(229, 1, struct fuse_backing_map)`.
const BACKING_OPEN: libc::Ioctl = 0x4010_e501;
/// FUSE_DEV_IOC_BACKING_CLOSE: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// A new descriptor of the connection of `device`.
///
/// # Errors
/// When /dev/fuse cannot be opened, or `device` is no connection.
pub fn another_fuse_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let new = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let source = device.as_raw_fd();
    // SAFETY: the call reads one number, which lives until it returns; both descriptors are open.
    answer(unsafe { libc::ioctl(new.as_raw_fd(), CLONE, &raw const source) })?;
    Ok(new.into())
}

/// Has the kernel know `file` under the number that this gives, until it is [closed](close_fuse_backing).
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN, ENOTTY before Linux 6.9, ELOOP for files of stacked file systems.
pub fn open_fuse_backing(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the call reads the structure, which lives until it returns; both descriptors are open.
    let id = answer(unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) })?;
    Ok(id.cast_unsigned())
}

/// Has the kernel forget the file `id` once nobody has it open.
///
/// # Errors
/// When it does not know it.
pub fn close_fuse_backing(device: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    // SAFETY: the call reads one number, which lives until it returns; the descriptor is open.
    answer(unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) }).map(drop)
}

fn answer(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_no_connection_is_refused() {
        let file = File::open("/dev/null").unwrap();
        assert!(another_fuse_device(file.as_fd()).is_err());
        assert!(open_fuse_backing(file.as_fd(), file.as_fd()).is_err());
        assert!(close_fuse_backing(file.as_fd(), 0).is_err());
    }
}
