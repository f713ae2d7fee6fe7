//! What the kernel keeps about a mount outside the FUSE protocol: its read-ahead, and the mount itself.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;

/// KiB of read-ahead. The kernel's 128 makes it read in 128 KiB pieces; from one READ (1 MiB) on more brings nothing.
pub(super) const READ_AHEAD_KIB: u32 = 1024;

/// Raises the read-ahead of the mount at `mountpoint`. Only root can; without it reads are smaller, not wrong.
pub fn set_read_ahead(mountpoint: &Path, kib: u32) {
    let Some(device) = device_of(mountpoint) else { return };
    let path = PathBuf::from(format!("/sys/class/bdi/{device}/read_ahead_kb"));
    match fs::write(&path, kib.to_string()) {
        Ok(()) => tracing::debug!(path = %path.display(), kib, "read-ahead set"),
        Err(error) => {
            tracing::info!(path = %path.display(), %error, "read-ahead stays at the kernel's default: buffered reads will be slower")
        }
    }
}

/// Major and minor version of the running kernel.
pub(super) fn version() -> (u32, u32) {
    version_of(&rustix::system::uname().release().to_string_lossy())
}

/// An unknown form is taken for the oldest kernel.
fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// `major:minor` of what is mounted at `mountpoint`, from proc_pid_mountinfo(5), which unlike stat(2) asks no daemon.
pub fn device_of(mountpoint: &Path) -> Option<String> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let wanted = escape(mountpoint.as_os_str().as_bytes());
    // The last line for a path is the mount on top.
    let mut devices = table.split(|&b| b == b'\n').filter_map(|line| {
        let mut fields = line.split(|&b| b == b' ');
        let device = fields.nth(2)?;
        (fields.nth(1)? == wanted).then_some(device)
    });
    devices.next_back().and_then(|device| String::from_utf8(device.to_vec()).ok())
}

/// As the kernel writes paths there: space, tab, newline and backslash in octal.
fn escape(path: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").bytes()),
            _ => escaped.push(byte),
        }
    }
    escaped
}

/// Unmounts by the system call where we may, else through fusermount3.
pub fn unmount(mountpoint: &Path, flags: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) => {}
        result => return result.map_err(Into::into),
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(flags.contains(UnmountFlags::DETACH).then_some("-z")).arg("--").arg(mountpoint);
    let output = command
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("fusermount3 (package fuse3) is needed to unmount without root: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if message.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_in_the_mount_table() {
        assert_eq!(escape(b"/mnt/my bucket\\x"), b"/mnt/my\\040bucket\\134x");
    }

    #[test]
    fn the_release_of_a_kernel_tells_its_version() {
        for (release, version) in [("6.1.0-13-amd64", (6, 1)), ("5.10.134-16.al8.x86_64", (5, 10)), ("4.19", (4, 19)), ("odd", (0, 0))] {
            assert_eq!(version_of(release), version, "{release}");
        }
    }

    #[test]
    fn the_root_has_a_device_and_a_plain_directory_has_none() {
        let device = device_of(Path::new("/")).unwrap();
        assert!(
            device.split_once(':').is_some_and(|(major, minor)| major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok()),
            "{device}"
        );
        assert_eq!(device_of(Path::new("/nowhere/at/all")), None);
    }
}
