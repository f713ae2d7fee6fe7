//! Where control sockets lie: in a directory that only the user of the mount can enter, under the number of the mount's device, which
//! every process reads in /proc/self/mountinfo without asking the mount. It reads no environment. Invariant: no socket is made or used in a
//! directory that somebody else could have filled.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::mountinfo::Device;

/// Permission bits of others and of the group.
const OF_OTHERS: u32 = 0o077;

/// The name of the socket of a mount.
pub(super) fn socket_name(device: Device) -> String {
    format!("{}-{}.sock", device.major, device.minor)
}

/// The name of the socket of who keeps it.
fn keeper_name(device: Device) -> String {
    format!("{}-{}.keeper", device.major, device.minor)
}

/// The directories in which the sockets of a user's mounts may lie, the best first. `runtime` is that user's $XDG_RUNTIME_DIR, which a
/// daemon that was started from elsewhere may not have seen.
pub fn directories(uid: u32, runtime: Option<&Path>) -> Vec<PathBuf> {
    let in_tmp = PathBuf::from(format!("/tmp/windlass-{uid}"));
    if uid == 0 {
        return vec!["/run/windlass".into(), in_tmp];
    }
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let mut parents: Vec<&Path> = runtime.into_iter().filter(|path| path.is_absolute()).collect();
    if !parents.contains(&usual.as_path()) {
        parents.push(&usual);
    }
    parents.into_iter().map(|parent| parent.join("windlass")).chain([in_tmp]).collect()
}

/// Where who keeps `device` for the user `uid` listens: in the first of `directories` that can be used.
///
/// # Errors
/// Why none of them can.
pub fn keeper_place(directories: &[PathBuf], device: Device, uid: u32) -> io::Result<PathBuf> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in directories {
        match prepare(directory, uid) {
            Ok(()) => return Ok(directory.join(keeper_name(device))),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The socket of who keeps `device` for the user `uid`; none: nobody does.
pub fn keeper_of(directories: &[PathBuf], device: Device, uid: u32) -> Option<PathBuf> {
    let trusted = directories.iter().filter(|directory| check(directory, uid).is_ok());
    trusted.map(|directory| directory.join(keeper_name(device))).find(|path| path.exists())
}

/// Makes the directory, or finds it as it has to be.
pub(super) fn prepare(directory: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check(directory, uid),
    }
}

/// Whether nobody but `uid`, and root, can have put something there.
pub(super) fn check(directory: &Path, uid: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !found.is_dir() {
        return refuse("it is not a directory".into());
    }
    if found.uid() != uid {
        return refuse(format!("it belongs to user {}", found.uid()));
    }
    if found.mode() & OF_OTHERS != 0 {
        return refuse(format!("others can enter it (mode {:04o}): chmod 700 {}", found.mode() & 0o7777, directory.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn every_user_has_places_of_their_own() {
        let places = |uid, runtime: Option<&str>| {
            let found = directories(uid, runtime.map(Path::new));
            found.into_iter().map(|path| path.into_os_string().into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(places(0, Some("/run/user/0")), ["/run/windlass", "/tmp/windlass-0"]);
        assert_eq!(places(7, None), ["/run/user/7/windlass", "/tmp/windlass-7"]);
        assert_eq!(places(7, Some("/run/user/7")), ["/run/user/7/windlass", "/tmp/windlass-7"]);
        assert_eq!(places(7, Some("/x")), ["/x/windlass", "/run/user/7/windlass", "/tmp/windlass-7"]);
        assert_eq!(places(7, Some("relative")), ["/run/user/7/windlass", "/tmp/windlass-7"]);
    }

    #[test]
    fn a_directory_is_made_for_its_user_alone_and_refused_when_it_is_not() {
        let home = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let (own, open, link, file) =
            (home.path().join("own"), home.path().join("open"), home.path().join("link"), home.path().join("file"));
        prepare(&own, uid).unwrap();
        prepare(&own, uid).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o711)).unwrap();
        symlink(&own, &link).unwrap();
        fs::write(&file, "").unwrap();
        for (path, uid, why) in [
            (&open, uid, "chmod 700"),
            (&link, uid, "not a directory"),
            (&file, uid, "not a directory"),
            (&own, uid + 1, "belongs to user"),
        ] {
            assert!(prepare(path, uid).unwrap_err().to_string().contains(why), "{}", path.display());
        }
    }
}
