//! What the kernel keeps about a mount outside the FUSE protocol: its read-ahead, and the mount itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;

use crate::mountinfo;

/// KiB of read-ahead. The kernel's 128 makes it read in 128 KiB pieces; from one READ (1 MiB) on more brings nothing.
pub(super) const READ_AHEAD_KIB: u32 = 1024;

/// Raises the read-ahead of the mount at `mountpoint`. Only root can; without it reads are smaller, not wrong.
pub fn set_read_ahead(mountpoint: &Path, kib: u32) {
    let Some(device) = mountinfo::device_at(mountpoint) else { return };
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

/// Whether a daemon can go on where another one ended: the kernel asks again for what that one had taken (FUSE_NOTIFY_RESEND, Linux 6.9).
/// Before that, whoever waited for an answer of that one would wait for ever.
pub fn can_resume() -> bool {
    version() >= (6, 9)
}

/// An unknown form is taken for the oldest kernel.
fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
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
    fn the_release_of_a_kernel_tells_its_version() {
        for (release, version) in [("6.1.0-13-amd64", (6, 1)), ("5.10.134-16.al8.x86_64", (5, 10)), ("4.19", (4, 19)), ("odd", (0, 0))] {
            assert_eq!(version_of(release), version, "{release}");
        }
    }
}
