//! How a mount gets its session and its names: from the beginning, over a descriptor that somebody else mounted, or where another daemon ended.
//! Invariant: what others mounted stays mounted when it cannot be served.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::runtime::Runtime;

use super::{Error, Given};
use crate::config::{MountTarget, Settings};
use crate::fuse::{self, Keeping, Left, Session, Tree};
use crate::store::ObjectStore;
use crate::vfs::Names;

/// The session: of a mount that is made, of one that was handed over, or of one where another daemon ended.
pub(super) fn attach(
    settings: &Settings,
    tree: Tree,
    runtime: &Runtime,
    (given, left): (Given, Option<Left>),
    memory: Option<&[OwnedFd; 2]>,
) -> Result<Session, Error> {
    let handle = runtime.handle().clone();
    let source = settings.source.to_string();
    let memory = memory.map(|[inodes, record]| [inodes.as_fd(), record.as_fd()]);
    let keeping = given.line.as_deref().zip(memory).map(|(line, memory)| Keeping { line, source: &source, memory });
    match (&settings.mountpoint, left) {
        (target, Some(left)) => {
            let path = if let MountTarget::Directory(path) = target { Some(&**path) } else { None };
            let gone = |error: io::Error| Error::Resume { target: target.clone(), reason: error.to_string() };
            fuse::resume(tree, handle, left, path, &settings.fuse).map_err(gone)
        }
        (MountTarget::Directory(path), None) => fuse::mount(tree, handle, path, &source, &settings.fuse, keeping)
            .map_err(|source| Error::Mount { target: path.clone(), source }),
        (MountTarget::Fd(number), None) => {
            let refuse = |reason: String| Error::Descriptor { number: *number, reason };
            let fd = fuse::adopt(*number).map_err(|flaw| refuse(flaw.to_string()))?;
            fuse::attach(tree, handle, fd, given.clones, &settings.fuse, keeping).map_err(|error| refuse(error.to_string()))
        }
    }
}

/// What the daemon before left, with the memory of its names; none: there was none.
pub(super) fn left(settings: &Settings, given: &mut Given) -> Result<Option<(Left, [OwnedFd; 2])>, Error> {
    let Some(session) = &given.session else { return Ok(None) };
    let refuse = |reason: String| Error::Resume { target: settings.mountpoint.clone(), reason };
    let mut devices = Vec::new();
    if let MountTarget::Fd(number) = settings.mountpoint {
        devices.push(fuse::adopt(number).map_err(|flaw| refuse(flaw.to_string()))?);
    }
    devices.append(&mut given.clones);
    Left::of(session, &settings.source.to_string(), devices, std::mem::take(&mut given.kept)).map(Some).map_err(refuse)
}

/// The names, written down where another daemon may go on.
pub(super) fn names(
    settings: &Settings,
    store: Arc<dyn ObjectStore>,
    memory: Option<[OwnedFd; 2]>,
    is_kept: bool,
) -> Result<Arc<Names>, Error> {
    let options = settings.vfs.clone();
    match memory {
        Some(memory) => Names::load(store, options, memory)
            .map_err(|error| Error::Resume { target: settings.mountpoint.clone(), reason: format!("what it wrote down: {error}") }),
        None if is_kept && fuse::can_resume() => Names::lasting(store, options).map_err(Error::process("write down what is open")),
        None => Ok(Names::new(store, options)),
    }
}
