//! The edge of the kernel. fuser mounts and agrees with it on how they speak (over a descriptor that somebody else mounted that is done in
//! `init`); from then on the threads here read its requests (`session`),
//! take them apart (`request`, `wire`), and answer (`reply`). What they mean is decided in `vfs`.
//!
//! fuser's own loop is not used: a reply there cannot be given when who waits for it is killed, a read across chunks is put together before
//! it is answered, and every descriptor begins with a new agreement, which a daemon that goes on for another must not.

mod backing;
mod before;
mod changing;
mod channel;
mod convert;
mod device;
mod directories;
mod door;
mod filesystem;
mod inbox;
mod init;
mod interrupt;
mod kernel;
mod options;
mod own_files;
mod pause;
mod process;
mod reading;
mod reply;
mod request;
mod session;
mod wire;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::admin::Observer;
use crate::vfs::{Edits, Files, Names};

pub use device::{Flaw, adopt, check, is_fuse, mounted_over};
pub use init::Agreed;
pub use kernel::{can_resume, set_read_ahead, unmount};
pub use options::Options;
pub use session::{Ended, Keeping, Left, Session};

use before::Before;
use directories::Directories;
use filesystem::{Admitted, Bucket};
use init::Wishes;
use own_files::OwnFiles;

/// The largest WRITE the kernel sends; it also sizes its READs, up to fs.fuse.max_pages_limit.
const MAX_WRITE: u32 = 1 << 20;

/// The most that a READ is of, as far as `fs.fuse.max_pages_limit` allows.
const LONGEST_READ: u32 = 16 << 20;

/// So many of the longest READs fit in the memory.
const READS_IN_MEMORY: usize = 64;

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
pub fn mount(
    tree: Tree,
    runtime: Handle,
    mountpoint: &Path,
    name: &str,
    options: &Options,
    keeping: Option<Keeping<'_>>,
) -> io::Result<Session> {
    let (wishes, read_only) = (tree.wishes(options), tree.edits.is_none());
    Session::mount(|admitted| tree.serve(admitted, runtime), wishes, mountpoint, name, (options, read_only), keeping)
}

/// Serves the same tree over a /dev/fuse descriptor that is mounted already, and over `clones` of it, one for a thread. Needs no privilege.
///
/// # Errors
/// When the descriptor does not speak FUSE, is not mounted, or somebody else serves it.
pub fn attach(
    tree: Tree,
    runtime: Handle,
    fd: OwnedFd,
    clones: Vec<OwnedFd>,
    options: &Options,
    keeping: Option<Keeping<'_>>,
) -> io::Result<Session> {
    let wishes = tree.wishes(options);
    Session::attach(|admitted| tree.serve(admitted, runtime), wishes, (fd, clones), keeping)
}

/// Goes on with a session of a daemon that ended: with `left` of it, and a tree that was loaded from its memory. What that one mounted at
/// `mountpoint` is unmounted by this one.
///
/// # Errors
/// When the mount is gone.
pub fn resume(tree: Tree, runtime: Handle, left: Left, mountpoint: Option<&Path>, options: &Options) -> io::Result<Session> {
    let (files, edits) = (Arc::clone(&tree.files), tree.edits.clone());
    let answered = files.answered().into_iter().chain(edits.iter().flat_map(|edits| edits.answered())).collect();
    Session::resume(|admitted| tree.serve(admitted, runtime), left, mountpoint, options, answered)
}

/// Bytes of the longest READ that the kernel is to make of a mount with so much memory: all of them are in memory at once, beside those of others.
pub fn longest_read(memory_limit: usize) -> u32 {
    let share = memory_limit / READS_IN_MEMORY;
    if share >= LONGEST_READ as usize { LONGEST_READ } else { MAX_WRITE.max(1 << share.max(1).ilog2()) }
}

impl Tree {
    fn wishes(&self, options: &Options) -> Wishes {
        let longest_read = longest_read(self.observer.budget.limit());
        Wishes {
            listings_tell_attributes: self.names.listings_tell_attributes(),
            passthrough: self.files.may_be_on_disk(),
            max_readahead: options.max_readahead.min(longest_read),
            longest_read,
        }
    }

    fn serve(self, admitted: Admitted, runtime: Handle) -> Bucket {
        let Self { names, files, edits, observer } = self;
        let metrics = Arc::clone(&observer.metrics);
        let own = OwnFiles::new(Arc::clone(&names), observer);
        let directories = Directories::new(Arc::clone(&names));
        let backings = files.may_be_on_disk().then(Arc::default);
        Bucket {
            names,
            files,
            directories,
            edits,
            backings,
            own,
            metrics,
            runtime,
            admitted,
            waits: Arc::default(),
            before: Before::default(),
        }
    }
}
