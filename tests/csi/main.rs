//! The driver of Kubernetes, by the built program: a kubelet of the test's own asks it over its socket, and daemons take what it mounts. Needs root
//! and /dev/fuse. Invariant: a test waits with a limit and leaves no mount, process or file, and the machine's limits as they were.

#[path = "../support/mod.rs"]
mod support;

mod daemon;
mod ending;
mod kinds;
mod kubelet;
mod memory;
mod node;
mod podman;
mod publishing;
mod restarts;
mod sanity;
mod secrets;
mod successors;
mod trio;

fn main() -> std::process::ExitCode {
    let volumes = [publishing::trials(), kinds::trials(), secrets::trials(), ending::trials()];
    let lives = [restarts::trials(), trio::trials(), successors::trials(), memory::trials(), sanity::trials(), podman::trials()];
    support::mounts::run(volumes.into_iter().chain(lives).flatten().collect())
}
