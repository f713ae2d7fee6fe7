//! The life of a mount, by the built program on a real /dev/fuse: how it begins, what refuses to begin, how it ends, and
//! who may do it. What reads bring is not looked at beyond one file. Invariant: a test waits with a limit and leaves no
//! mount, process or file.

#[path = "../support/mod.rs"]
mod support;

mod beginning;
mod control;
mod descriptor;
mod ending;
mod failures;
mod mistakes;
mod place;
mod read_only;
mod refusals;
mod secrets;
mod users;
mod wrong_server;

fn main() -> std::process::ExitCode {
    let trials = [
        beginning::trials(),
        refusals::trials(),
        mistakes::trials(),
        ending::trials(),
        failures::trials(),
        read_only::trials(),
        descriptor::trials(),
        users::trials(),
        secrets::trials(),
        control::trials(),
    ];
    support::mounts::run(trials.into_iter().flatten().collect())
}
