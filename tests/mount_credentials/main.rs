//! Keys that are replaced while a mount is read, by the built program on a real /dev/fuse, against servers that check every signature and
//! token services that check every token. Invariant: sixteen readers read on, right and without an error, whatever happens to the keys.

#[path = "../support/mod.rs"]
mod support;

mod clouds;
mod readers;
mod roles;
mod secrets;
mod tokens;

fn main() -> std::process::ExitCode {
    support::mounts::run_side_by_side(3, [secrets::trials(), tokens::trials(), roles::trials()].into_iter().flatten().collect())
}
