//! Core dumps of processes that hold credentials and data of a bucket: off, unless the user asks for them. Two settings of the kernel are needed. The size
//! limit is ignored where core dumps go to a program (`core_pattern` with `|`), as systemd-coredump installs it; the dumpable attribute covers both, and
//! execve(2) resets it, so that each process sets it for itself.
//!
//! A process that is not dumpable is not traced by other processes of its user either, which therefore cannot read its memory. Its own access to
//! `/proc/self` is the same as before (proc_fd_permission and ptrace_may_access in the kernel admit the thread group), except for files of mode 0600 such as
//! `/proc/self/mem`, which it does not use.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use super::Failure;
use crate::config::Settings;

/// Turns core dumps off unless `settings` ask for them.
pub fn follow(settings: &Settings) -> Result<(), Failure> {
    if settings.core_dumps {
        return Ok(());
    }
    forbid().map_err(|error| Failure::internal(format!("cannot turn core dumps off: {error}; --core-dumps leaves them on")))
}

fn forbid() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // The hard limit stays: a program that this process starts may raise its own limit.
    setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn a_process_that_forbids_core_dumps_is_not_dumpable_and_has_no_limit_for_them() {
        let before = getrlimit(Resource::Core);
        forbid().unwrap();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        assert_eq!(getrlimit(Resource::Core), Rlimit { current: Some(0), ..before });
        set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
        setrlimit(Resource::Core, before).unwrap();
    }
}
