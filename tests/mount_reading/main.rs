//! Reading through the real /dev/fuse from a real S3 server: what only a kernel can show. Each trial mounts for itself;
//! what was fetched is counted at the server, and every byte that is read is compared.

mod bytes;
#[path = "../support/mod.rs"]
mod support;

mod faults;
mod names;
mod random;
mod readers;
mod sequential;
mod versions;

fn main() -> std::process::ExitCode {
    let trials = [sequential::trials(), random::trials(), readers::trials(), faults::trials(), versions::trials(), names::trials()];
    support::mounts::run(trials.into_iter().flatten().collect())
}
