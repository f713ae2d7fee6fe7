//! The file of a unix socket. It listens to nothing. Invariant: it goes with its owner, unless somebody has put another one there meanwhile.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A socket in the file system that was made just now.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode number of the file that was made.
    identity: (u64, u64),
}

impl SocketFile {
    /// That at `path`.
    pub fn of(path: PathBuf) -> io::Result<Self> {
        let found = fs::symlink_metadata(&path)?;
        Ok(Self { path, identity: (found.dev(), found.ino()) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(file = %self.path.display(), %error, "a socket stays behind");
        }
    }
}
