//! A descriptor of /dev/fuse that somebody else opened and mounted: whether it can be served. It serves nothing. Invariant: what passes here is a
//! connection with the kernel that was there a moment ago, and waits when nothing is there to be read.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{FileType, OFlags};

use crate::sys::{self, Readiness};

/// Why a descriptor cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    #[error("no such descriptor: the parent must open /dev/fuse, mount it and leave it open across exec")]
    Closed,
    #[error("the descriptor is {0}, not /dev/fuse: pass the one that was mounted")]
    Other(String),
    #[error("it is not open for reading and writing: open /dev/fuse with O_RDWR")]
    OneWay,
    #[error("nothing is mounted with it, or not any more: mount it (mount(2) with fd=N) before it is passed, and keep it open until then")]
    NotMounted,
    #[error("it cannot be looked at: {0}")]
    Io(#[from] io::Error),
}

/// Whether the descriptor `number` of this process can be served.
///
/// # Errors
/// What is wrong with it.
pub fn check(number: RawFd) -> Result<(), Flaw> {
    check_open(sys::duplicate(number).map_err(|_| Flaw::Closed)?.as_fd())
}

/// A descriptor of our own for what a parent left open as `number`; programs that are started from here on do not get it.
///
/// # Errors
/// What is wrong with it.
pub fn adopt(number: RawFd) -> Result<OwnedFd, Flaw> {
    let device = sys::adopt(number).map_err(|_| Flaw::Closed)?;
    check_open(device.as_fd())?;
    wait_when_empty(device.as_fd())?;
    Ok(device)
}

/// Whether it is the device 10:229 (Documentation/admin-guide/devices.txt of the kernel). Its path tells less: it is what the device was called
/// in the mount namespace of who opened it.
pub fn is_fuse(descriptor: impl AsFd) -> bool {
    rustix::fs::fstat(descriptor).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev)) == (10, 229)
    })
}

fn check_open(device: BorrowedFd<'_>) -> Result<(), Flaw> {
    if !is_fuse(device) {
        let path = fs::read_link(format!("/proc/self/fd/{}", device.as_raw_fd()));
        return Err(Flaw::Other(path.map_or_else(|_| "something else".into(), |path| path.display().to_string())));
    }
    if !rustix::fs::fcntl_getfl(device).map_err(io::Error::from)?.contains(OFlags::RDWR) {
        return Err(Flaw::OneWay);
    }
    // The kernel says so of a device that was never mounted as well as of one whose mount is gone (`fuse_dev_poll`).
    if sys::readiness(device, std::time::Duration::ZERO)? == Readiness::Broken {
        return Err(Flaw::NotMounted);
    }
    Ok(())
}

/// The device that is mounted over a descriptor that came from anybody, `major:minor`; none where the kernel does not tell.
///
/// # Errors
/// What is wrong with it.
pub fn mounted_over(device: BorrowedFd<'_>) -> Result<Option<String>, Flaw> {
    check_open(device)?;
    Ok(mounted_as(device))
}

/// Who opened it may have asked for reads that do not wait; those who serve would turn without a rest.
fn wait_when_empty(device: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(device)?;
    if flags.contains(OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(device, flags - OFlags::NONBLOCK)?;
    }
    Ok(())
}

/// The number of the device that is mounted over `device`, as stat(2) shows it there. Kernels before 6.12 do not tell.
pub(super) fn mounted_as(device: BorrowedFd<'_>) -> Option<String> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).ok()?;
    let number: u64 = facts.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()?;
    // As the kernel keeps it: 20 bits of the minor number below those of the major one (`include/linux/kdev_t.h`).
    Some(format!("{}:{}", number >> 20, number & 0xf_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_mounted_device_is_told_apart() {
        let file = tempfile::tempfile().unwrap();
        let said = |number| check(number).unwrap_err().to_string();
        assert!(said(file.as_raw_fd()).contains("not /dev/fuse"));
        let null = fs::File::open("/dev/null").unwrap();
        assert!(said(null.as_raw_fd()).contains("/dev/null, not /dev/fuse"));
        assert!(said(900_000).contains("no such descriptor"));
    }
}
