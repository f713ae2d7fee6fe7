//! `csi-sanity`, the project's own tests of a driver: https://github.com/kubernetes-csi/csi-test. It looks at what is mounted, so somebody who answers
//! runs beside it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libtest_mimic::Trial;
use windlass::handover::Place;

use super::daemon::Daemon;
use super::node::{Node, Pod};
use super::support::mounts::{lacks, trial_unless};
use super::support::{ACCESS_KEY, BUCKET, REGION, S3Server, SECRET_KEY};

pub fn trials() -> Vec<Trial> {
    let why_not = || lacks("csi-sanity").or_else(|| (!rustix::process::geteuid().is_root()).then(|| "only root may mount a volume".into()));
    vec![trial_unless(why_not, "csi_sanity_finds_nothing", sanity)]
}

/// Serves whatever is mounted for the pod, one mount after the other, until it is told to stop.
fn serve_all(pod: &Pod, server: &S3Server, done: &AtomicBool) {
    let socket = pod.directory.join("mount.sock");
    while !done.load(Relaxed) {
        if socket.exists() && Place::of(&socket).is_ok() {
            // Its mount may be gone by now, and then it ends at once.
            if let Some(daemon) = Daemon::try_serve(pod, server) {
                daemon.wait();
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn write(node: &Node, name: &str, text: &str) -> PathBuf {
    let path = node.path(name);
    fs::write(&path, text).expect("it is ours");
    path
}

fn sanity() {
    let (server, node) = (S3Server::start(), Node::start(&[]));
    let pod = node.pod("1", "sanity");
    // csi-sanity mounts at "target" in a directory that it makes.
    let directory = pod.target.parent().expect("it has one").to_owned();
    fs::remove_dir_all(&directory).expect("it is empty");
    let secrets = format!("  akId: {ACCESS_KEY}\n  akSecret: {SECRET_KEY}\n");
    let calls = ["CreateVolumeSecret", "DeleteVolumeSecret", "ControllerValidateVolumeCapabilitiesSecret", "NodePublishVolumeSecret"];
    let secrets: String = calls.iter().map(|call| format!("{call}:\n{secrets}")).collect();
    let parameters = format!("bucket: {BUCKET}\nendpoint: {}\nregion: {REGION}\n", server.endpoint());
    let (secrets, parameters) = (write(&node, "secrets.yaml", &secrets), write(&node, "parameters.yaml", &parameters));
    let done = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| serve_all(&pod, &server, &done));
        let mut command = Command::new("csi-sanity");
        command.arg("--csi.endpoint").arg(node.socket()).arg("--csi.mountdir").arg(&directory);
        command.arg("--csi.stagingdir").arg(node.path("staging")).arg("--csi.secrets").arg(secrets);
        command.arg("--csi.testvolumeparameters").arg(parameters).args(["--ginkgo.no-color", "--ginkgo.timeout", "5m"]);
        let output = command.output();
        done.store(true, Relaxed);
        output
    });
    let said = String::from_utf8_lossy(&output.expect("it was found").stdout).into_owned();
    let result = said.lines().find(|line| line.contains(" Passed ")).unwrap_or_default();
    println!("csi-sanity: {result}");
    let count =
        |word: &str| result.split('|').find_map(|part| part.trim_end().strip_suffix(word)?.rsplit([' ', '-']).nth(1)?.parse::<u32>().ok());
    assert_eq!(count("Failed"), Some(0), "{said}");
    assert!(count("Passed").is_some_and(|passed| passed > 25), "{said}");
    assert_eq!(node.mounts(), Vec::<String>::new());
}
