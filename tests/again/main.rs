//! A mount that outlives its daemon: the daemon is killed, or makes room for a newer program, while programs read, write and list. Invariant: a
//! test waits with a limit and leaves no mount, process or file.

#[path = "../support/mod.rs"]
mod support;

mod drains;
mod endings;
mod names;
mod outages;
mod program;
mod reading;
mod sidecar;
mod upgrade;
mod writing;

fn main() -> std::process::ExitCode {
    let trials = [
        drains::trials(),
        endings::trials(),
        reading::trials(),
        sidecar::trials(),
        writing::trials(),
        names::trials(),
        outages::trials(),
        upgrade::trials(),
    ];
    support::mounts::run_side_by_side(3, trials.into_iter().flatten().collect())
}
