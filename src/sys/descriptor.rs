//! Descriptors: those that a parent process left open for us under an agreed number, whether there is something to read, and their end with
//! what the kernel says to it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

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

/// [`duplicate`], after which programs that this process starts find neither of the two.
///
/// # Errors
/// EBADF when nothing is open under that number.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    let copy = duplicate(number)?;
    // SAFETY: F_SETFD touches no memory and closes nothing; that the number is open was shown just now.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(copy)
}

/// What who reads from a descriptor would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Nothing yet.
    Nothing,
    Something,
    /// Nobody is at the other end, or nobody ever was.
    Broken,
}

/// Waits until there is something to read from `descriptor`, at most for `time`.
///
/// # Errors
/// When it cannot be waited for.
pub fn readiness(descriptor: BorrowedFd<'_>, time: Duration) -> io::Result<Readiness> {
    let mut wanted = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the call reads and writes one structure, which lives until it returns.
    if unsafe { libc::poll(&raw mut wanted, 1, milliseconds) } < 0 {
        let error = io::Error::last_os_error();
        // A signal of ours: whoever waits looks again.
        return if error.kind() == io::ErrorKind::Interrupted { Ok(Readiness::Nothing) } else { Err(error) };
    }
    Ok(match wanted.revents {
        0 => Readiness::Nothing,
        events if events & (libc::POLLERR | libc::POLLNVAL) != 0 => Readiness::Broken,
        _ => Readiness::Something,
    })
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
    use std::io::Write;
    use std::os::fd::AsFd;

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
    fn a_pipe_is_ready_when_something_is_in_it_and_broken_without_readers() {
        let (read, mut write) = io::pipe().unwrap();
        let look = |fd: BorrowedFd<'_>| readiness(fd, Duration::ZERO).unwrap();
        assert_eq!(look(read.as_fd()), Readiness::Nothing);
        write.write_all(b"x").unwrap();
        assert_eq!(look(read.as_fd()), Readiness::Something);
        drop(read);
        assert_eq!(look(write.as_fd()), Readiness::Broken);
    }

    #[test]
    fn what_is_adopted_is_kept_from_children() {
        let file = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let copy = adopt(file.as_raw_fd()).unwrap();
        for fd in [file.as_fd(), copy.as_fd()] {
            assert_eq!(rustix::io::fcntl_getfd(fd).unwrap(), rustix::io::FdFlags::CLOEXEC);
        }
    }

    #[test]
    fn a_closed_number_is_an_error() {
        assert_eq!(duplicate(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(adopt(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
