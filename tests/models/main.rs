//! Models that explore schedules: sources of src/vfs with the atomics and locks of a scheduler, between a kernel, a store and other clients that are played
//! here. Each schedule is one run of some threads in an order that is chosen at random; `MODEL_SCHEDULES` says how many there are, and a failure prints how
//! to see that one again. Invariant: each promise of a model has a fault that breaks it, and the model finds that.

mod dirty;
mod mount;
mod reading;
mod record;
mod sync;
mod writer;

#[path = "../../src/vfs/dirty_files.rs"]
#[allow(dead_code, clippy::clone_on_copy, reason = "a model does not need all of it, and its errors are smaller")]
mod dirty_files;

#[path = "../../src/vfs/versions.rs"]
#[allow(dead_code, unused_imports, reason = "its own tests cannot run under this scheduler, and a model does not need all of it")]
mod versions;

/// Where the sources look for the store.
mod store {
    #[allow(unused_imports, reason = "for the tests of what is included")]
    pub use windlass::store::{Condition, ETag, Key, ObjectMeta};
}

/// Where the sources look for options.
mod options {
    pub use windlass::vfs::Conflict;
}

/// Where the sources look for inodes.
mod inodes {
    pub use windlass::vfs::Inode;
}

/// Where the sources look for what stat shows.
mod listing {
    use std::time::SystemTime;

    use crate::store::ETag;

    #[allow(dead_code, reason = "no model asks for them")]
    #[derive(Debug)]
    pub struct FileFacts {
        pub size: u64,
        pub etag: ETag,
        pub modified: SystemTime,
        pub extra: Option<()>,
    }
}

use inodes::Inode;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    Busy,
    Exists,
    Unlinked,
    NotFound,
    Write(writer::WriteError),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<writer::WriteError> for Error {
    fn from(error: writer::WriteError) -> Self {
        Self::Write(error)
    }
}

fn main() -> std::process::ExitCode {
    let mut arguments = libtest_mimic::Arguments::from_args();
    // Each explores on one thread, and a panic that is expected prints a lot.
    arguments.test_threads.get_or_insert(2);
    let trials = reading::trials().into_iter().chain(dirty::trials()).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
