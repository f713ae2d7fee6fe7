//! Which threads belong to one process, from proc(5). The kernel names a request by its thread.

use std::path::PathBuf;

/// Whether the threads `one` and `other` are of one process, as far as can be told: a thread that is gone counts as one of any process, so
/// that what it wrote is not left for later, and so does number 0, which is that of all processes outside the PID namespace of the mount.
pub(super) fn same_process(one: u32, other: u32) -> bool {
    if one == other || one == 0 || other == 0 {
        return true;
    }
    // A process's directory is found under the number of any of its threads.
    let is_thread_of = |of: u32, thread: u32| PathBuf::from(format!("/proc/{of}/task/{thread}")).exists();
    is_thread_of(one, other) || !PathBuf::from(format!("/proc/{other}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_this_process_belong_together_and_init_does_not() {
        let thread = || rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let (here, there) =
            (thread(), std::thread::scope(|scope| scope.spawn(|| same_process(thread(), std::process::id())).join().unwrap()));
        assert!(same_process(here, std::process::id()) && there);
        assert!(!same_process(here, 1));
        assert!(same_process(here, u32::MAX));
    }
}
