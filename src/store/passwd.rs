//! Password files as ossfs and s3fs use them.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Credentials of one line.
pub(super) struct PasswdEntry {
    pub access_key_id: String,
    pub access_key_secret: String,
    pub security_token: Option<String>,
}

impl fmt::Debug for PasswdEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswdEntry").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// Why a password file gives no credentials.
#[derive(Debug, thiserror::Error)]
pub(super) enum PasswdError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} can be read by others: run chmod 600 {}", .0.display(), .0.display())]
    Exposed(PathBuf),
    #[error("{} has no line for bucket \"{bucket}\": write bucket:key:secret or key:secret", path.display())]
    NoEntry { path: PathBuf, bucket: String },
}

/// The line for `bucket`, else the line for all.
pub(super) fn read(path: &Path, bucket: &str) -> Result<PasswdEntry, PasswdError> {
    let io = |source| PasswdError::Io { path: path.to_owned(), source };
    if fs::metadata(path).map_err(io)?.mode() & 0o007 != 0 {
        return Err(PasswdError::Exposed(path.to_owned()));
    }
    let text = fs::read_to_string(path).map_err(io)?;
    let mut default = None;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let entry =
            |id: &str, secret: &str| PasswdEntry { access_key_id: id.into(), access_key_secret: secret.into(), security_token: None };
        match line.split(':').collect::<Vec<_>>()[..] {
            [name, id, secret] if name == bucket => return Ok(entry(id, secret)),
            [id, secret] => default = default.or(Some(entry(id, secret))),
            _ => {}
        }
    }
    default.ok_or_else(|| PasswdError::NoEntry { path: path.to_owned(), bucket: bucket.to_owned() })
}
