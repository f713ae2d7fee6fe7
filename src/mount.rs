//! Composition root: store, reader, vfs and FUSE session of one mount.

use crate::config::Settings;

/// A mount that answers.
#[derive(Debug)]
pub struct Mounted;

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    /// The code the process ends with.
    pub fn exit_code(&self) -> u8 {
        1
    }
}

/// Mounts and returns when the mount answers.
///
/// # Errors
/// When the bucket cannot be reached or the directory cannot be mounted.
pub fn start(settings: &Settings) -> Result<Mounted, Error> {
    Err(Error(format!("cannot mount {}: the layers below are not joined yet", settings.source)))
}

impl Mounted {
    /// Serves until a signal or an unmount from outside.
    ///
    /// # Errors
    /// When the session breaks.
    pub fn serve_until_signal(self) -> Result<(), Error> {
        Ok(())
    }
}
