//! How a keeper whose daemons are not trusted knows its mount again in what they give. It keeps nothing. Invariant: nothing is asked of a file system
//! that a daemon chose, beside what the device itself is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Error;

/// See the module.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The device of the mount, `major:minor`.
    pub device: String,
    /// That of what is mounted over a descriptor; none where the kernel does not tell. Fails for what is not of /dev/fuse, or not mounted.
    pub look: fn(BorrowedFd<'_>) -> Result<Option<String>, String>,
}

impl Proof {
    /// Whether all descriptors are shown to be of this mount.
    ///
    /// # Errors
    /// When one of them is not.
    pub(super) fn check_devices(&self, devices: &[OwnedFd]) -> Result<bool, Error> {
        let mut shown = true;
        for descriptor in devices {
            match (self.look)(descriptor.as_fd()).map_err(Error::Stranger)? {
                Some(found) if found == self.device => {}
                Some(found) => return Err(Error::Stranger(format!("a descriptor is of the mount {found}, not {}", self.device))),
                None => shown = false,
            }
        }
        Ok(shown)
    }

    /// What is kept for a daemon is memory (memfd_create(2)). To close anything else may take as long as a stranger likes: it may be a file of
    /// a mount that nobody serves.
    ///
    /// # Errors
    /// When it is something else.
    pub(super) fn check_kept(&self, kept: &[OwnedFd]) -> Result<(), Error> {
        if kept.iter().any(|descriptor| rustix::fs::fcntl_get_seals(descriptor).is_err()) {
            return Err(Error::Stranger("what it wants to be kept is not memory".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Stands in for the kernel: an empty file is of no device, else its length tells.
    fn look(descriptor: BorrowedFd<'_>) -> Result<Option<String>, String> {
        match rustix::fs::fstat(descriptor).unwrap().st_size {
            0 => Err("it is not /dev/fuse".to_owned()),
            1 => Ok(None),
            len => Ok(Some(format!("0:{len}"))),
        }
    }

    fn file(len: u64) -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        file.into()
    }

    #[test]
    fn every_descriptor_has_to_be_of_the_mount() {
        let proof = Proof { device: "0:40".into(), look };
        let said =
            |lens: &[u64]| proof.check_devices(&lens.iter().map(|len| file(*len)).collect::<Vec<_>>()).map_err(|error| error.to_string());
        assert_eq!((said(&[40, 40]), said(&[40, 1])), (Ok(true), Ok(false)));
        assert!(said(&[40, 0]).unwrap_err().contains("not /dev/fuse"));
        assert!(said(&[1, 41]).unwrap_err().contains("0:41"));
    }

    #[test]
    fn only_memory_is_kept() {
        let proof = Proof { device: "0:40".into(), look };
        let memory = || memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        proof.check_kept(&[memory(), memory()]).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(proof.check_kept(&[memory(), null.into()]).unwrap_err().to_string().contains("not memory"));
    }
}
