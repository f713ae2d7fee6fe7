//! What a mount shows of itself and what can be changed while it runs: the virtual file, the metrics, live options. The built program on the
//! real /dev/fuse. Invariant: a test waits with a limit and leaves no mount, process or file.

#[path = "../mount_life/place.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod place;
#[path = "../support/mod.rs"]
mod support;

mod daemons;
mod live;
mod metrics;
mod own_files;
mod requests;

fn main() -> std::process::ExitCode {
    let trials = [own_files::trials(), metrics::trials(), live::trials(), requests::trials(), daemons::trials()];
    support::mounts::run(trials.into_iter().flatten().collect())
}
