//! Descriptors: those that a parent process left open for us under an agreed number, and their end with what the kernel says to it.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// A descriptor of our own for the file that is open as `number`.
///
/// # Errors
/// EBADF when nothing is open under that number.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC touches no memory; any number is allowed and a closed one is an error.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Closes it and says what came of that, which dropping does not: network file systems store at close what was written.
///
/// # Errors
/// What close(2) says. The descriptor is gone in every case.
pub fn close(descriptor: OwnedFd) -> io::Result<()> {
    // SAFETY: the number was owned by `descriptor`, which gave it up and closes it no more.
    let closed = unsafe { libc::close(descriptor.into_raw_fd()) };
    if closed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_open_number_gives_a_descriptor_of_its_own() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let copy = duplicate(file.as_raw_fd()).unwrap();
        assert_ne!(copy.as_raw_fd(), file.as_raw_fd());
    }

    #[test]
    fn what_is_closed_is_gone() {
        let copy = duplicate(std::fs::File::open("/dev/null").unwrap().as_raw_fd()).unwrap();
        // A pipe shows at one end that the other one is closed.
        let (mut read, write) = io::pipe().unwrap();
        close(write.into()).unwrap();
        assert_eq!(io::Read::read(&mut read, &mut [0]).unwrap(), 0);
        close(copy).unwrap();
    }

    #[test]
    fn a_closed_number_is_an_error() {
        assert_eq!(duplicate(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
