//! Looks at the mount point and at FUSE before anything is started, so that a mistake is answered at once and with its
//! fix. Mounts nothing. Invariant: a mount that may be dead is asked for nothing before the table of mounts said what
//! it is.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::thread::CapabilitySet;

use super::Failure;
use crate::config::{MountTarget, Settings};
use crate::{fuse, mountinfo};

/// Refuses what the mount would stumble over.
pub fn check(settings: &Settings) -> Result<(), Failure> {
    if let Some(file) = &settings.ready_file {
        check_parent(file)?;
    }
    match &settings.mountpoint {
        MountTarget::Fd(fd) => check_descriptor(*fd),
        MountTarget::Directory(path) => {
            check_directory(path, settings.fuse.nonempty)?;
            check_device()?;
            check_privilege(settings.fuse.allow_other || settings.fuse.allow_root, settings.fuse.auto_unmount)
        }
    }
}

fn check_parent(file: &Path) -> Result<(), Failure> {
    let parent = file.parent().unwrap_or(Path::new("/"));
    if parent.is_dir() { Ok(()) } else { Err(Failure::usage(format!("ready-file {}: there is no such directory", file.display()))) }
}

fn check_descriptor(number: RawFd) -> Result<(), Failure> {
    fuse::check(number).map_err(|flaw| Failure::usage(format!("mount point /dev/fd/{number}: {flaw}")))
}

fn check_directory(path: &Path, nonempty: bool) -> Result<(), Failure> {
    let fail = |reason: String| Err(Failure::usage(format!("mount point {}: {reason}", path.display())));
    let real = mountinfo::resolve(path);
    // Other file systems may be mounted over: an empty volume of Kubernetes is one.
    if let Some(entry) = mountinfo::at(&real).ok().flatten().filter(mountinfo::Entry::is_fuse) {
        let kind =
            if entry.is_ours() { format!("windlass mount of {}", entry.source) } else { format!("{} of {}", entry.kind, entry.source) };
        return fail(match pulse(&real) {
            Pulse::Dead => format!("a dead {kind} was left behind here: run windlass umount {}", path.display()),
            Pulse::Alive => format!("already mounted ({kind}): run windlass umount {} first, or take another directory", path.display()),
            Pulse::Silent => format!("a {kind} is here and does not answer: run windlass umount --lazy {}", path.display()),
        });
    }
    let entries = match std::fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return fail(format!("does not exist: mkdir -p {}", path.display())),
        Err(e) => return fail(e.to_string()),
        Ok(facts) if !facts.is_dir() => return fail("is not a directory: give an empty directory".into()),
        Ok(_) => std::fs::read_dir(path),
    };
    match entries.map(|mut entries| entries.next().is_some()) {
        Ok(true) if !nonempty => fail("is not empty: take an empty directory, or add --nonempty to hide what is in it".into()),
        Ok(_) => Ok(()),
        Err(e) => fail(format!("cannot be read: {e}")),
    }
}

/// Whether somebody answers for a mount.
enum Pulse {
    Alive,
    Dead,
    /// Nothing came back in time.
    Silent,
}

/// Asks a FUSE mount with statfs(2), which the kernel never answers from its cache. A daemon that hangs holds the
/// asking thread for ever, so it is a thread that nobody waits for.
fn pulse(path: &Path) -> Pulse {
    let (send, receive) = mpsc::channel();
    let path = PathBuf::from(path);
    std::thread::spawn(move || send.send(rustix::fs::statvfs(&path).err()));
    match receive.recv_timeout(Duration::from_secs(2)) {
        Ok(Some(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)) => Pulse::Dead,
        Ok(_) => Pulse::Alive,
        Err(_) => Pulse::Silent,
    }
}

pub fn check_device() -> Result<(), Failure> {
    let fail = |reason: String| Err(Failure::usage(format!("/dev/fuse: {reason}")));
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        // A container may have something else there.
        Ok(file) if !fuse::is_fuse(&file) => fail("it is not the device of FUSE: start the container with --device /dev/fuse".into()),
        Ok(_) => Ok(()),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound) || e.raw_os_error() == Some(libc::ENODEV) => {
            fail("this kernel has no FUSE here: run modprobe fuse, or start the container with --device /dev/fuse".into())
        }
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            fail("may not be opened: run chmod 666 /dev/fuse as root, or start the container with --device /dev/fuse".into())
        }
        Err(e) => fail(e.to_string()),
    }
}

/// Without root the mount is made by the setuid program of the distribution.
pub fn check_privilege(for_others: bool, auto_unmount: bool) -> Result<(), Failure> {
    let missing = super::umount::fusermount().is_none();
    if rustix::process::geteuid().is_root() {
        if missing && auto_unmount {
            return Err(Failure::usage("fusermount3 is missing, and auto-unmount is done by it: install the package fuse3"));
        }
        return check_capability(capability_is_out_of_reach());
    }
    if missing {
        return Err(Failure::usage("fusermount3 is missing, and only root can mount without it: install the package fuse3"));
    }
    let permitted = |text: String| text.lines().any(|line| line.trim() == "user_allow_other");
    if for_others && !std::fs::read_to_string("/etc/fuse.conf").is_ok_and(permitted) {
        return Err(Failure::usage("allow-other and allow-root need the line user_allow_other in /etc/fuse.conf when root does not mount"));
    }
    Ok(())
}

/// Whether neither this process nor a setuid program that it starts can have CAP_SYS_ADMIN: root in a container.
fn capability_is_out_of_reach() -> bool {
    let has = rustix::thread::capabilities(None).map(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    let can_have = || rustix::thread::capability_is_in_bounding_set(CapabilitySet::SYS_ADMIN);
    // What the kernel does not tell is left to the mount itself.
    !has.unwrap_or(true) && !can_have().unwrap_or(true)
}

fn check_capability(is_out_of_reach: bool) -> Result<(), Failure> {
    if !is_out_of_reach {
        return Ok(());
    }
    Err(Failure::usage(
        "root without the capability CAP_SYS_ADMIN cannot mount: start the container with --cap-add SYS_ADMIN --device /dev/fuse \
         (and --security-opt apparmor=unconfined where AppArmor forbids mounts), or pass a descriptor that was mounted outside: /dev/fd/N",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path, nonempty: bool) -> String {
        check_directory(path, nonempty).map_or_else(|failure| failure.message, |()| "accepted".into())
    }

    #[test]
    fn each_bad_directory_is_answered_with_its_fix() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, full, file) = (dir.path().join("empty"), dir.path().join("full"), dir.path().join("full/file"));
        std::fs::create_dir(&empty).unwrap();
        std::fs::create_dir(&full).unwrap();
        std::fs::write(&file, "x").unwrap();
        assert_eq!(refusal(&empty, false), "accepted");
        assert_eq!(refusal(&full, true), "accepted");
        assert!(refusal(&full, false).contains("--nonempty"));
        assert!(refusal(&file, false).contains("is not a directory"));
        assert!(refusal(&dir.path().join("absent"), false).contains("mkdir -p"));
    }

    #[test]
    fn root_without_the_capability_hears_how_a_container_gets_it() {
        assert!(check_capability(false).is_ok());
        assert!(check_capability(true).unwrap_err().message.contains("--cap-add SYS_ADMIN --device /dev/fuse"));
    }
}
