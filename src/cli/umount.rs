//! `windlass umount`: takes a mount away, also a dead one. Never looks into the mount, because a dead one answers
//! every question with ENOTCONN and a hung one with nothing. Invariant: only FUSE mounts are touched.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::Failure;
use crate::mountinfo;

/// Unmount directories, also those that a killed daemon left behind.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directories.
    #[arg(required = true, value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Detach at once; open files stay readable until they are closed.
    #[arg(short = 'z', visible_short_alias = 'l', long)]
    pub lazy: bool,
    /// Abort requests that are under way (root only).
    #[arg(short, long)]
    pub force: bool,
}

/// Unmounts one after the other; the first failure ends it.
pub fn run(args: &Args) -> Result<(), Failure> {
    for directory in &args.directories {
        let path = mountinfo::resolve(directory);
        check(directory, &path)?;
        if rustix::process::geteuid().is_root() {
            by_system_call(&path, args)?
        } else {
            by_fusermount(&path, args)?
        }
        super::print(format!("windlass: {} is unmounted\n", path.display()).as_bytes())?;
    }
    Ok(())
}

fn check(directory: &Path, path: &Path) -> Result<(), Failure> {
    let entry = mountinfo::at(path).map_err(|e| Failure::internal(format!("cannot read /proc/self/mountinfo: {e}")))?;
    match entry {
        Some(entry) if entry.is_fuse() => Ok(()),
        Some(entry) => Err(Failure::usage(format!("{}: is a {} mount, not a FUSE mount: use umount", directory.display(), entry.kind))),
        None => Err(Failure::usage(format!("{}: nothing is mounted here (findmnt lists the mounts)", directory.display()))),
    }
}

fn by_system_call(path: &Path, args: &Args) -> Result<(), Failure> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, args.lazy);
    flags.set(UnmountFlags::FORCE, args.force);
    unmount(path, flags).map_err(|error| {
        Failure::internal(match error {
            Errno::BUSY => busy(path),
            Errno::PERM => format!("{}: no permission to unmount: the process lacks CAP_SYS_ADMIN", path.display()),
            other => format!("{}: cannot unmount: {}", path.display(), std::io::Error::from(other)),
        })
    })
}

fn by_fusermount(path: &Path, args: &Args) -> Result<(), Failure> {
    if args.force {
        return Err(Failure::usage("--force is for root; --lazy detaches the mount without it"));
    }
    let program = fusermount().ok_or_else(|| Failure::usage("fusermount3 is missing: install the package fuse3, or run this as root"))?;
    let mut command = Command::new(program);
    command.arg("-u").args(args.lazy.then_some("-z")).arg("--").arg(path);
    let output = command.output().map_err(|e| Failure::internal(format!("cannot run fusermount3: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Failure::internal(if said.contains("busy") { busy(path) } else { said }))
}

fn busy(path: &Path) -> String {
    let path = path.display();
    format!("{path}: still in use: close the files and leave the directory (fuser -vm {path} shows who), or add --lazy")
}

/// The program that unmounts for users without privilege.
pub fn fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let names = ["fusermount3", "fusermount"];
    names.iter().find_map(|name| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file()))
}
