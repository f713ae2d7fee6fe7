//! Command lines and messages with which other people's drivers start ossfs, ossfs2, s3fs and mount-s3, unchanged, each named with the source it was
//! taken from: what settings they come to, and that they mount and read, by the built program on a real /dev/fuse against servers of the tests.
//! Invariant: no line is rewritten for us; only addresses and paths are those of the test.

#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../mount_life/place.rs"]
mod place;
#[path = "../support/mod.rs"]
mod support;

mod fuse;
mod mountpoint;
mod oss;
mod ossfs;
mod ossfs2;
mod pod;
mod proxy;
mod s3fs;
mod unknown;

fn main() -> std::process::ExitCode {
    let trials =
        [ossfs::trials(), ossfs2::trials(), s3fs::trials(), mountpoint::trials(), proxy::trials(), pod::trials(), unknown::trials()];
    support::mounts::run(trials.into_iter().flatten().collect())
}
