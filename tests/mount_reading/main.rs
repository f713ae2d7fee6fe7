//! Reading through the real /dev/fuse from a real S3 server: what only a kernel can show. Each trial mounts for itself;
//! what was fetched is counted at the server, and every byte that is read is compared.

mod bytes;
#[path = "../support/mod.rs"]
mod support;

mod faults;
mod killed;
mod models;
mod names;
mod random;
mod readers;
mod sequential;
mod versions;

fn main() -> std::process::ExitCode {
    let places = [sequential::trials(), random::trials(), models::trials()];
    let trials = places.into_iter().chain([readers::trials(), faults::trials(), killed::trials(), versions::trials(), names::trials()]);
    support::mounts::run(trials.flatten().collect())
}
