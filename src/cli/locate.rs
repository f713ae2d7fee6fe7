//! From a path that a person wrote to the daemon that answers for it and the path inside its mount. Invariant: nothing is asked of a FUSE
//! mount, so a dead or hung one holds nobody up: links are followed up to where such a mount begins, and not inside it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use super::{Failure, mount};
use crate::admin::{Client, Error, InnerPath};
use crate::config;
use crate::mountinfo::{self, Entry};

/// As many links as the kernel follows in one path.
const LINKS: usize = 40;

/// A path in a mount of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub mount: Entry,
    pub inner: InnerPath,
}

/// Finds the mount that holds `path`.
pub fn locate(path: &Path) -> Result<Located, Failure> {
    locate_among(&mounts()?, path)
}

/// The table of mounts as it is now.
pub fn mounts() -> Result<Vec<Entry>, Failure> {
    mountinfo::read().map_err(|error| Failure::internal(format!("cannot read /proc/self/mountinfo: {error}")))
}

/// The same for one path of many.
pub fn locate_among(table: &[Entry], path: &Path) -> Result<Located, Failure> {
    let absolute = std::path::absolute(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    locate_in(table, &absolute, |link| std::fs::read_link(link)).map_err(|reason| Failure::usage(format!("{}: {reason}", path.display())))
}

/// The same in a table of mounts.
fn locate_in(table: &[Entry], path: &Path, read_link: impl Fn(&Path) -> io::Result<PathBuf>) -> Result<Located, String> {
    let place = resolve(table, path, read_link)?;
    let Some(mount) = mountinfo::covering(table, &place) else { return Err("it is in no mount that can be seen from here".into()) };
    if !mount.is_ours() {
        return Err(format!(
            "it is not in a windlass mount, but on {} ({}): findmnt lists the mounts",
            mount.mount_point.display(),
            mount.kind
        ));
    }
    let below = place.strip_prefix(&mount.mount_point).map_err(|_| "it is not below its own mount point".to_owned())?;
    // A bind mount shows a part of the mount.
    let inner = mount.root.join(below);
    let inner = inner.strip_prefix("/").unwrap_or(&inner);
    Ok(Located { inner: InnerPath::from(inner.as_os_str().as_bytes()), mount: mount.clone() })
}

/// An absolute path without links, `.` and `..` as far as no FUSE mount is entered, and from there on without `.` and `..` alone.
fn resolve(table: &[Entry], path: &Path, read_link: impl Fn(&Path) -> io::Result<PathBuf>) -> Result<PathBuf, String> {
    let (mut done, mut links) = (PathBuf::from("/"), 0);
    let mut rest: VecDeque<OsString> = names(path);
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            done.pop();
            continue;
        }
        done.push(&name);
        // Also what is mounted in a FUSE mount is only reached through it.
        if done.ancestors().any(|place| mountinfo::covering(table, place).is_some_and(Entry::is_fuse)) {
            continue;
        }
        let Ok(target) = read_link(&done) else { continue };
        links += 1;
        if links > LINKS {
            return Err("too many links".into());
        }
        done.pop();
        if target.is_absolute() {
            done = PathBuf::from("/");
        }
        for name in names(&target).into_iter().rev() {
            rest.push_front(name);
        }
    }
    Ok(done)
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

/// A line to the daemon whose control socket is at `path`, or which serves the mount that holds it.
pub fn connect(path: &Path) -> Result<Client, Failure> {
    let located = match locate(path) {
        // Whoever looks at a file outside of our mounts waits for no daemon of ours.
        Err(_) if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket()) => {
            return Client::at(path).map_err(|error| Failure::internal(error.to_string()));
        }
        located => located?,
    };
    located.connect()
}

impl Located {
    /// A line to the daemon.
    pub fn connect(&self) -> Result<Client, Failure> {
        let (me, at) = (rustix::process::geteuid().as_raw(), self.mount.mount_point.display());
        // A descriptor's mount that says nothing of its owner can only be one's own.
        let owner = self.mount.owner().unwrap_or(me);
        if owner != me && me != 0 {
            return Err(Failure::usage(format!("{at}: mounted by user {owner}: only they and root can ask its daemon")));
        }
        let environment = if owner == me { mount::environment() } else { Vec::new() };
        let directories = config::socket_directories(owner, &environment);
        Client::connect(&directories, self.mount.device, owner).map_err(|error| match error {
            Error::Gone(_) => Failure::internal(format!("{at}: {error}: windlass umount {at} clears the mount")),
            Error::Missing(_) => Failure::internal(format!("{at}: {error}: the daemon is gone or has none (its log says why)")),
            error => Failure::internal(format!("{at}: {error}")),
        })
    }
}

/// What a daemon that was asked about `path` said no with.
pub fn refusal(path: &Path, error: &Error) -> Failure {
    Failure::internal(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
30 22 0:30 / /mnt/a rw - fuse.windlass s3://a rw,user_id=7
31 22 0:30 /deep/er /bound rw - fuse.windlass s3://a rw,user_id=7
32 22 0:32 / /mnt/other rw - fuse.sshfs host: rw
33 30 0:33 / /mnt/a/tmp rw - tmpfs tmpfs rw
34 22 0:34 / /mnt/my\\040data rw - fuse s3://b rw,user_id=0
";

    /// Links of a machine that is not there. Looking at a FUSE mount ends the test.
    fn link(path: &Path) -> io::Result<PathBuf> {
        assert!(!["/mnt/a", "/bound", "/mnt/other", "/mnt/my data"].iter().any(|mount| path.starts_with(mount)), "{}", path.display());
        let target = match path.to_str().expect("the test's are text") {
            "/data" => "/mnt/./a",
            "/home/me/models" => "../../mnt/a/models",
            "/loop" => "/loop",
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        Ok(target.into())
    }

    fn located(path: &str) -> Result<(String, String), String> {
        let found = locate_in(&mountinfo::parse(TABLE), Path::new(path), link)?;
        Ok((found.mount.device.to_string(), String::from_utf8(found.inner.as_bytes().to_vec()).unwrap()))
    }

    #[test]
    fn a_path_leads_to_a_mount_and_a_path_in_it() {
        for (path, device, inner) in [
            ("/mnt/a", "0:30", ""),
            ("/mnt/a/", "0:30", ""),
            ("/mnt/a/x//y/.", "0:30", "x/y"),
            ("/mnt/a/x/../z", "0:30", "z"),
            ("/mnt/a/../a/z", "0:30", "z"),
            ("/bound", "0:30", "deep/er"),
            ("/bound/x", "0:30", "deep/er/x"),
            ("/data/x", "0:30", "x"),
            ("/data/../a/x", "0:30", "x"),
            ("/home/me/models/7b", "0:30", "models/7b"),
            ("/mnt/my data/a b", "0:34", "a b"),
        ] {
            assert_eq!(located(path), Ok((device.to_owned(), inner.to_owned())), "{path}");
        }
    }

    #[test]
    fn what_is_in_no_mount_of_ours_is_told_with_what_it_is() {
        for (path, words) in [
            ("/", "/ (ext4)"),
            ("/mnt/abc", "/ (ext4)"),
            ("/mnt/other/x", "/mnt/other (fuse.sshfs)"),
            ("/mnt/a/tmp/x", "/mnt/a/tmp (tmpfs)"),
            ("/mnt/a/../..", "/ (ext4)"),
            ("/loop", "too many links"),
        ] {
            let said = located(path).expect_err("it is not ours");
            assert!(said.contains(words), "{path}: {said}");
        }
    }
}
