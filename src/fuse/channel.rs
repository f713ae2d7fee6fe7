//! One descriptor of /dev/fuse: a message in, a message out. It knows no operation. Invariant: an answer leaves by the descriptor that its
//! request came in by, since the kernel looks for the request there (`fuse_dev_do_write`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::size_of;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use zerocopy::IntoBytes;

use super::device::mounted_as;
use super::wire::{NotifyEntry, NotifyInode, OutHeader, notify};
use crate::sys;
use crate::vfs::Inode;

/// See the module.
#[derive(Debug)]
pub(super) struct Channel {
    device: OwnedFd,
}

impl Channel {
    pub fn new(device: OwnedFd) -> Self {
        Self { device }
    }

    /// The number of the device that is mounted over it, where the kernel tells.
    pub fn mounted_as(&self) -> Option<String> {
        mounted_as(self.device.as_fd())
    }

    /// Another descriptor of the same connection, so that threads do not meet at one.
    ///
    /// # Errors
    /// When /dev/fuse cannot be opened, as in a container that was given nothing but a descriptor.
    pub fn another(&self) -> io::Result<Self> {
        sys::another_fuse_device(self.device.as_fd()).map(Self::new)
    }

    /// Waits until there is a message, at most for `time`; whether there is one, or the end of them.
    pub fn has_message(&self, time: Duration) -> io::Result<bool> {
        Ok(sys::readiness(self.device.as_fd(), time)? != sys::Readiness::Nothing)
    }

    /// Waits for a message; none when the mount is gone.
    pub fn receive(&self, message: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive_parts(&mut [IoSliceMut::new(message)])
    }

    /// The same, of which `parts` get one piece after another.
    pub fn receive_parts(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::readv(&self.device, parts) {
                // No message is empty: this is no connection with the kernel, and reading it again would not end.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => return Ok(Some(len)),
                Err(rustix::io::Errno::NODEV) => return Ok(None),
                // Who asked was interrupted before we had it (ENOENT); a signal of ours.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers the request `unique` with an errno, 0 for none, and the bytes of `parts` one after another, which leave in one call without being
    /// put together.
    pub fn answer(&self, unique: u64, errno: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.send(unique, -errno, parts)
    }

    /// Has the kernel drop attributes of an inode and, unless `offset` is negative, its pages from there on. Waits for reads of them that are
    /// under way.
    pub fn invalidate_inode(&self, ino: Inode, offset: i64) -> io::Result<()> {
        let what = NotifyInode { ino: ino.0, offset, len: 0 };
        known(self.send(0, notify::INVAL_INODE, &[IoSlice::new(what.as_bytes())]))
    }

    /// Has the kernel forget what it knows of a name. Waits for lookups in that directory that are under way.
    pub fn invalidate_entry(&self, parent: Inode, name: &[u8]) -> io::Result<()> {
        let name_len = u32::try_from(name.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidFilename))?;
        let what = NotifyEntry { parent: parent.0, name_len, flags: 0 };
        known(self.send(0, notify::INVAL_ENTRY, &[IoSlice::new(what.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])]))
    }

    /// Has the kernel ask again for everything that was taken and not answered (Linux 6.9), by whatever descriptor of the connection.
    pub fn resend(&self) -> io::Result<()> {
        self.send(0, notify::RESEND, &[])
    }

    /// Another owner of the same descriptor.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }

    /// Has the kernel know `file`, for opens that are answered with the number that this gives.
    pub fn register(&self, file: impl AsFd) -> io::Result<u32> {
        sys::open_fuse_backing(self.device.as_fd(), file.as_fd())
    }

    /// Has the kernel forget a file when nobody has it open.
    pub fn unregister(&self, id: u32) -> io::Result<()> {
        sys::close_fuse_backing(self.device.as_fd(), id)
    }

    fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> io::Result<()> {
        /// With more than that an answer is put together first; no answer has so many.
        const MOST: usize = 16;
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: u32::try_from(len).expect("answers are as long as the kernel asked"), error, unique };
        if parts.len() > MOST {
            let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            return self.send(unique, error, &[IoSlice::new(&all)]);
        }
        let mut message = [IoSlice::new(&[]); MOST + 1];
        message[0] = IoSlice::new(header.as_bytes());
        message[1..=parts.len()].copy_from_slice(parts);
        // The kernel takes a message whole or not at all.
        rustix::io::writev(&self.device, &message[..=parts.len()])?;
        Ok(())
    }
}

/// What the kernel has forgotten by itself needs no word of ours.
fn known(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
