//! The edge of the kernel: the only module that names fuser. It decodes requests and sends replies; what they mean
//! is decided in `vfs`.

mod convert;
mod directories;
mod filesystem;
mod kernel;
mod options;
mod session;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::vfs::{Files, Names};

pub use kernel::unmount;
pub use options::Options;
pub use session::Session;

use directories::Directories;
use filesystem::Bucket;

/// Mounts the tree of `names` and `files` at `mountpoint` under `name` (the first column of the mount table). What
/// cannot be answered from memory runs on `runtime`.
///
/// # Errors
/// What mount(2) or fusermount3 said.
pub fn mount(
    names: Arc<Names>,
    files: Arc<Files>,
    runtime: Handle,
    mountpoint: &Path,
    name: &str,
    options: &Options,
) -> io::Result<Session> {
    Session::mount(bucket(names, files, runtime), mountpoint, name, options)
}

/// Serves the same tree over a /dev/fuse descriptor that is mounted already. Needs no privilege.
///
/// # Errors
/// When the descriptor does not speak FUSE, or is not mounted.
pub fn attach(names: Arc<Names>, files: Arc<Files>, runtime: Handle, fd: OwnedFd) -> io::Result<Session> {
    Session::attach(bucket(names, files, runtime), fd)
}

fn bucket(names: Arc<Names>, files: Arc<Files>, runtime: Handle) -> Bucket {
    let directories = Directories::new(Arc::clone(&names));
    Bucket { names, files, directories, runtime, ended: watch::Sender::new(false) }
}
