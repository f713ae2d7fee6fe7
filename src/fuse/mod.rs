//! The edge of the kernel: the only module that names fuser. It decodes requests and sends replies; what they mean
//! is decided in `vfs`.

mod backing;
mod changing;
mod convert;
mod directories;
mod door;
mod filesystem;
mod kernel;
mod options;
mod own_files;
mod process;
mod reading;
mod session;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::admin::Observer;
use crate::vfs::{Edits, Files, Names};

pub use kernel::unmount;
pub use options::Options;
pub use session::Session;

use directories::Directories;
use filesystem::Bucket;
use own_files::OwnFiles;

/// What a session serves.
#[derive(Clone, Debug)]
pub struct Tree {
    pub names: Arc<Names>,
    pub files: Arc<Files>,
    /// None: it is read-only.
    pub edits: Option<Arc<Edits>>,
    /// What it shows of itself.
    pub observer: Arc<Observer>,
}

/// Mounts `tree` at `mountpoint` under `name` (the first column of the mount table). What cannot be answered from memory runs on
/// `runtime`.
///
/// # Errors
/// What mount(2) or fusermount3 said.
pub fn mount(tree: Tree, runtime: Handle, mountpoint: &Path, name: &str, options: &Options) -> io::Result<Session> {
    Session::mount(bucket(tree, runtime), mountpoint, name, options)
}

/// Serves the same tree over a /dev/fuse descriptor that is mounted already. Needs no privilege.
///
/// # Errors
/// When the descriptor does not speak FUSE, or is not mounted.
pub fn attach(tree: Tree, runtime: Handle, fd: OwnedFd) -> io::Result<Session> {
    Session::attach(bucket(tree, runtime), fd)
}

fn bucket(tree: Tree, runtime: Handle) -> Bucket {
    let Tree { names, files, edits, observer } = tree;
    let metrics = Arc::clone(&observer.metrics);
    let own = OwnFiles::new(Arc::clone(&names), observer);
    let directories = Directories::new(Arc::clone(&names));
    let backings = files.may_be_on_disk().then(Arc::default);
    Bucket { names, files, directories, edits, backings, own, metrics, runtime, ended: watch::Sender::new(false) }
}
