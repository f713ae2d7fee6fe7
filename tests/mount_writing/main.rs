//! Writing through the real /dev/fuse into a real S3 server: what only a kernel, and programs that know nothing of us, can show. Each trial
//! mounts for itself; what reached the bucket is looked at in the server, or through a second mount that has seen nothing.

#[path = "../support/mod.rs"]
mod support;

mod look;
mod model;
mod names;
mod programs;
mod staging;
mod streaming;

fn main() -> std::process::ExitCode {
    let trials = [streaming::trials(), names::trials(), staging::trials(), model::trials(), programs::trials()];
    support::mounts::run(trials.into_iter().flatten().collect())
}
