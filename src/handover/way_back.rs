//! How a daemon finds a keeper that began anew in place of the one that handed the mount over: where it listens, and what it is given. Invariant:
//! descriptors go to nobody but the user that the first keeper ran as, whoever listens there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Uid;
use serde_json::Value;

use super::{Link, Place, user_of};

/// See the module. Its descriptors are the daemon's own once more, and close with the process.
#[derive(Clone, Debug)]
pub struct WayBack {
    place: PathBuf,
    devices: Arc<Vec<OwnedFd>>,
    pub(super) session: Option<Value>,
    kept: Arc<Vec<OwnedFd>>,
}

impl WayBack {
    /// To whoever will listen at `place`, with descriptors of /dev/fuse, the session where another daemon left one, and what belongs to that.
    pub fn new(place: PathBuf, devices: Vec<OwnedFd>, session: Option<Value>, kept: Vec<OwnedFd>) -> Self {
        Self { place, devices: Arc::new(devices), session, kept: Arc::new(kept) }
    }

    /// What the daemon itself wants to be kept from now on.
    pub(super) fn keep(&mut self, session: &Value, kept: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.kept = Arc::new(kept.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?);
        self.session = Some(session.clone());
        Ok(())
    }

    /// Descriptors of the device.
    pub(super) fn devices(&self) -> usize {
        self.devices.len()
    }

    /// All of them, those of the device first.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.devices.iter().chain(&*self.kept).map(AsFd::as_fd).collect()
    }

    /// Connects, when somebody of the user `keeper` listens there.
    pub(super) fn connect(&self, keeper: Uid) -> io::Result<Link> {
        let stream = Place::of(&self.place)?.connect()?;
        let found = user_of(&stream)?;
        if found != keeper {
            let words = format!("user {} listens there, and the mount came from user {}", found.as_raw(), keeper.as_raw());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
        }
        Ok(Link::new(stream))
    }
}
