//! Read modes and the disk behind them, through the real /dev/fuse from a real S3 server: what is asked of the server, what the disk
//! takes, and what a reader sees when the disk is full, damaged or gone.

#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../mount_reading/bytes.rs"]
mod bytes;
#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../support/spill.rs"]
mod spill;
#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod disk;
mod kept;
mod passthrough;
mod trouble;
mod warm;

fn main() -> std::process::ExitCode {
    let trials = [kept::trials(), passthrough::trials(), bounds::trials(), trouble::trials(), warm::trials()];
    support::mounts::run(trials.into_iter().flatten().collect())
}
