//! Access modes of profile files, which other programs write: which of them other users can read or write.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::Missing;

/// Checks the modes of profile files, and warns of them once.
#[derive(Debug, Default)]
pub(in crate::store) struct ProfileFiles {
    has_warned: AtomicBool,
}

impl ProfileFiles {
    /// Warns about those of `paths` that others can read.
    ///
    /// # Errors
    /// One that others can write is no source of keys.
    pub fn check(&self, paths: impl IntoIterator<Item = PathBuf>) -> Result<(), Missing> {
        for path in paths {
            // Not a device such as /dev/null, which says that there is none.
            let Some(found) = fs::metadata(&path).ok().filter(fs::Metadata::is_file) else { continue };
            let mode = found.permissions().mode() & 0o777;
            let path = path.display();
            let fix = format!("chmod 600 {path}");
            match exposure(mode) {
                Exposure::None => {}
                Exposure::Readable if self.has_warned.swap(true, Relaxed) => {}
                Exposure::Readable => tracing::warn!("the credentials file {path} can be read by others (mode {mode:o}): {fix}"),
                Exposure::Writable => {
                    return Err(Missing::new(format!("the credentials file {path} can be written by others (mode {mode:o}): {fix}")));
                }
            }
        }
        Ok(())
    }
}

/// What others can do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exposure {
    None,
    Readable,
    Writable,
}

/// Less strict than for files of this program: other programs make these, and read them with any mode.
fn exposure(mode: u32) -> Exposure {
    match mode {
        mode if mode & 0o022 != 0 => Exposure::Writable,
        mode if mode & 0o044 != 0 => Exposure::Readable,
        _ => Exposure::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_can_write_is_no_source_of_keys() {
        for (mode, expected) in [
            (0o600, Exposure::None),
            (0o400, Exposure::None),
            (0o640, Exposure::Readable),
            (0o644, Exposure::Readable),
            (0o666, Exposure::Writable),
            (0o620, Exposure::Writable),
        ] {
            assert_eq!(exposure(mode), expected, "{mode:o}");
        }
    }
}
