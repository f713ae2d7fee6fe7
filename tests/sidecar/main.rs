//! A daemon without any privilege that serves what somebody else has mounted: how the mount reaches it, what it refuses, and how it ends.
//! Invariant: a test waits with a limit and leaves no mount, process or file.

#[path = "../support/mod.rs"]
mod support;

mod descriptors;
mod handed_over;

fn main() -> std::process::ExitCode {
    let trials = [handed_over::trials(), descriptors::trials()];
    support::mounts::run(trials.into_iter().flatten().collect())
}
