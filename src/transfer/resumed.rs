//! Files that an earlier run may have left under a predictable name: the checkpoint of a transfer and its unfinished file. Invariant: what is gone on with
//! was left by this user, and nothing is written through a link.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

/// Another process may create and remove the file meanwhile.
const TRIES: usize = 8;

/// Opens `directory` for the names in it.
pub(super) fn open_directory(directory: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Creates the file `name` in `directory`, where there is none.
pub(super) fn create(directory: impl AsFd, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<File> {
    let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, mode)?.into())
}

/// Opens the file `name` in `directory` with what an earlier run left in it, or creates it. A link, and what another user may have put there, is replaced by
/// a new file.
pub(super) fn open_or_create(directory: impl AsFd, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<File> {
    for _ in 0..TRIES {
        match create(&directory, name, flags, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created,
        }
        // Without NONBLOCK the open of a FIFO would wait for another process.
        let found = openat(&directory, name, flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        match found {
            Ok(file) if is_own(&file)? => return Ok(file.into()),
            Err(Errno::NOENT) => continue,
            Ok(_) | Err(Errno::LOOP | Errno::ACCESS | Errno::PERM | Errno::NXIO) => {}
            Err(error) => return Err(error.into()),
        }
        match unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Whether a file is one that this user made, with no other name.
fn is_own(file: &OwnedFd) -> io::Result<bool> {
    let found = fstat(file)?;
    let is_file = FileType::from_raw_mode(found.st_mode).is_file();
    Ok(is_file && found.st_uid == rustix::process::geteuid().as_raw() && found.st_nlink == 1)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_file_that_this_user_left_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let (at, directory) = (|name: &str| dir.path().join(name), open_directory(dir.path()).unwrap());
        let open = |name: &str| open_or_create(&directory, OsStr::new(name), OFlags::APPEND, Mode::from_raw_mode(0o600));
        fs::write(at("victim"), "mine").unwrap();
        symlink("victim", at("symbolic")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        fs::hard_link(at("victim"), at("hard")).unwrap();
        rustix::fs::mkfifoat(CWD, at("fifo"), Mode::RWXU).unwrap();
        let mut planted = vec!["symbolic", "dangling", "hard", "fifo"];
        if rustix::process::geteuid().is_root() {
            fs::write(at("foreign"), "theirs").unwrap();
            std::os::unix::fs::chown(at("foreign"), Some(65534), None).unwrap();
            planted.push("foreign");
        }
        for name in planted {
            for text in ["a", "aa"] {
                open(name).unwrap().write_all(b"a").unwrap();
                assert_eq!(fs::read_to_string(at(name)).unwrap(), text, "{name}");
            }
        }
        assert!(fs::read(at("victim")).unwrap() == b"mine" && !at("nowhere").exists());
    }
}
