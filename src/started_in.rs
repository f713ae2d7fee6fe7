//! The directory that relative paths of a command line are below: the one where the program was started, also after it has left that, and for the
//! daemons that a supervisor starts later. Paths are resolved as text: the directory may be gone by then.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Tells a daemon where its supervisor was started: the number of the supervisor, so that nothing that inherits it takes it up, and the path.
const VARIABLE: &str = "WINDLASS_STARTED_IN";

/// Set once it is left.
static LEFT: OnceLock<PathBuf> = OnceLock::new();

/// Goes to `/`, so that the directory can be removed and its file system unmounted.
///
/// # Errors
/// What the system says.
pub fn leave() -> io::Result<()> {
    if let Ok(directory) = env::current_dir() {
        LEFT.get_or_init(|| directory);
    }
    env::set_current_dir("/")
}

/// What a process that this one starts has in its environment; none when it finds out by itself.
pub fn variable() -> Option<(&'static str, OsString)> {
    let mut value = OsString::from(format!("{} ", std::process::id()));
    value.push(LEFT.get()?);
    Some((VARIABLE, value))
}

/// `path` as it was meant.
///
/// # Errors
/// It is empty, or the directory cannot be found out.
pub fn absolute(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref();
    if path.as_os_str().is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let told = || env::var_os(VARIABLE).and_then(|value| told_by(parent_id(), &value));
    match LEFT.get().cloned().or_else(told) {
        Some(directory) => std::path::absolute(directory.join(path)),
        None => std::path::absolute(path),
    }
}

fn told_by(parent: u32, value: &OsStr) -> Option<PathBuf> {
    let directory = value.as_bytes().strip_prefix(format!("{parent} ").as_bytes())?;
    Some(OsString::from_vec(directory.to_vec()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_that_was_told_takes_it_up() {
        assert_eq!(told_by(7, OsStr::new("7 /a b")), Some("/a b".into()));
        assert_eq!(told_by(8, OsStr::new("7 /a b")), None);
    }

    #[test]
    fn paths_are_below_where_the_program_was_started() {
        assert_eq!(absolute("a/b").unwrap(), env::current_dir().unwrap().join("a/b"));
        assert_eq!(absolute("/a").unwrap(), Path::new("/a"));
        assert!(absolute("").is_err());
    }
}
