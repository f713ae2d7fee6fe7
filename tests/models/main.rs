//! Models that explore schedules: sources of src/vfs with the atomics and locks of a scheduler, between a kernel, a store and other clients that are played
//! here. Each schedule is one run of some threads in an order that is chosen at random; `MODEL_SCHEDULES` says how many there are, and a failure prints how
//! to see that one again. Invariant: each promise of a model has a fault that breaks it, and the model finds that.

mod mount;
mod reading;
mod sync;

#[path = "../../src/vfs/versions.rs"]
#[allow(dead_code, unused_imports, reason = "its own tests cannot run under this scheduler, and a model does not need all of it")]
mod versions;

/// Where the sources look for the store.
mod store {
    #[allow(unused_imports, reason = "for the tests of what is included")]
    pub use windlass::store::{ETag, Key, ObjectMeta};
}

use windlass::vfs::Inode;

fn main() -> std::process::ExitCode {
    let mut arguments = libtest_mimic::Arguments::from_args();
    // Each explores on one thread, and a panic that is expected prints a lot.
    arguments.test_threads.get_or_insert(2);
    libtest_mimic::run(&arguments, reading::trials()).exit_code()
}
