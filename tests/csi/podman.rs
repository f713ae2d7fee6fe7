//! The three of a pod in containers that podman and runc make: the driver privileged, the sidecar as user 65534 with a root that cannot be written, without
//! capabilities and under the seccomp profile, the application as another user. Nothing in them is ours but the program: namespaces, cgroups, mounts and
//! their propagation are those of the runtime. Invariant: containers, image and their files are gone with the test.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;

use libtest_mimic::{Completion, Trial};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::node::{Node, Pod};
use super::support::S3Server;
use super::support::mounts::{lacks, wait_until, why_not};
use super::support::network::Network;
use super::support::sandbox::no_sandbox;
use super::trio::{PORT, publish};

/// Where a sidecar has the emptyDir of its pod: not where the driver finds it on the node.
const MEETING: &str = "/run/windlass";

/// Where the application has the volume.
const DATA: &str = "/data";

/// What the application is made of.
const TOOLS: [&str; 6] = ["sh", "cat", "cmp", "head", "sync", "tail"];

/// runc as podman calls it. Where this machine has no CAP_SYS_RESOURCE, a limit that podman asks for cannot be set, and containers have ours.
const RUNTIME: &str = r#"#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
capabilities = next(line for line in open("/proc/self/status") if line.startswith("CapEff:"))
if "create" in words and not int(capabilities.split()[1], 16) >> 24 & 1:
    path = words[words.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        spec = json.load(file)
    spec["process"].pop("rlimits", None)
    with open(path, "w") as file:
        json.dump(spec, file)
os.execvp("runc", ["runc", *words])
"#;

pub fn trials() -> Vec<Trial> {
    vec![Trial::ignorable_test("driver_sidecar_and_application_in_containers_of_podman", || {
        let absent = || ["podman", "buildah", "runc"].into_iter().find_map(lacks);
        if let Some(reason) = why_not().or_else(no_sandbox).or_else(absent) {
            return Ok(Completion::ignored_with(reason));
        }
        match Podman::new() {
            Ok(podman) => trio(podman),
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        }
        Ok(Completion::Completed)
    })]
}

/// An image with the program, and what podman knows of containers made of it.
pub struct Podman(TempDir);

impl Podman {
    /// Builds the image. Why no container of it can be run here, otherwise.
    fn new() -> Result<Arc<Self>, String> {
        let made = Self(tempfile::Builder::new().prefix("podman").tempdir().expect("a temporary directory can be made"));
        fs::write(made.path("runtime"), RUNTIME).expect("it is ours");
        fs::set_permissions(made.path("runtime"), fs::Permissions::from_mode(0o755)).expect("it is ours");
        let root = made.path("context/root");
        install(Path::new(env!("CARGO_BIN_EXE_windlass")), &root.join("usr/local/bin/windlass"), &root);
        for tool in TOOLS {
            let found = Command::new("sh").args(["-c", "command -v \"$0\"", tool]).output().expect("there is a shell").stdout;
            let found = PathBuf::from(String::from_utf8(found).expect("it is text").trim());
            install(&found, &root.join("bin").join(tool), &root);
        }
        // Like the image of deploy/Dockerfile; without any, no TLS can be set up, and nothing is mounted.
        let certificates = Path::new("etc/ssl/certs/ca-certificates.crt");
        copy(&Path::new("/").join(certificates), &root.join(certificates));
        let recipe = "FROM scratch\nCOPY root/ /\nUSER 65534:65534\nENTRYPOINT [\"/usr/local/bin/windlass\"]\n";
        fs::write(made.path("context/Dockerfile"), recipe).expect("it is ours");
        let mut build = made.of_storage("buildah");
        build.args(["bud", "--isolation", "chroot", "--tag", "windlass"]).arg(made.path("context"));
        said(build.output().expect("buildah was found")).map_err(|error| format!("no image can be built here: {error}"))?;
        fs::remove_dir_all(made.path("context")).expect("it is ours");
        let version = made.run("probe", &["--network", "none"], &["--version"]).output().expect("podman was found");
        said(version).map_err(|error| format!("no container can be run here: {error}"))?;
        Ok(Arc::new(made))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// podman or buildah, with a storage of its own that needs no overlayfs.
    fn of_storage(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("--root").arg(self.path("storage")).arg("--runroot").arg(self.path("run")).args(["--storage-driver", "vfs"]);
        command
    }

    fn podman(&self) -> Command {
        let mut command = self.of_storage("podman");
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "none"]).arg("--runtime").arg(self.path("runtime"));
        command
    }

    /// A command that runs a container and says what the container says. `--init` is not there: the program is the first process.
    fn run(&self, name: &str, options: &[&str], words: &[&str]) -> Command {
        let mut command = self.podman();
        command.args(["run", "--rm", "--pull", "never", "--log-driver", "none", "--name", name]).arg("--pidfile").arg(self.path(name));
        command.args(options).arg("localhost/windlass").args(words);
        command
    }

    /// A driver for the node at `home`, as the DaemonSet of deploy/driver.yaml has it.
    pub fn driver(&self, home: &Path) -> Command {
        let _ = fs::remove_file(self.path("driver"));
        let shared = |name: &str, how: &str| format!("--volume={0}:{0}{how}", home.join(name).display());
        let volumes = [shared("csi", ""), shared("registry", ""), shared("kubelet", ":rshared")];
        let mut options = vec!["--user=0:0", "--privileged", "--network=none", "--env=AWS_EC2_METADATA_DISABLED=true"];
        options.extend(volumes.iter().map(String::as_str));
        self.run("driver", &options, &[])
    }

    /// The first process of a container that was started.
    pub fn pid(&self, name: &str) -> Pid {
        let read = || Pid::from_raw(fs::read_to_string(self.path(name)).ok()?.trim().parse().ok()?);
        wait_until("the container has a process", || read().is_some());
        read().expect("it was there")
    }

    /// Starts a container without any privilege.
    fn start(self: &Arc<Self>, name: &'static str, user: &str, options: &[&str], words: &[&str]) -> Container {
        let user = format!("--user={user}");
        let _ = fs::remove_file(self.path(name));
        let restricted =
            ["--interactive", &user, "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--security-opt=no-new-privileges"];
        let mut command = self.run(name, &[&restricted, options].concat(), words);
        let log = fs::File::create(self.path(&format!("{name}.log"))).expect("it is ours");
        command.stdin(Stdio::piped()).stdout(log.try_clone().expect("it is open")).stderr(log);
        let mut child = command.spawn().expect("podman was found");
        let input = child.stdin.take();
        let pid = self.pid(name);
        Container { podman: Arc::clone(self), name, child, input, pid }
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // By their names: nobody else's are in this storage.
        let _ = self.podman().args(["rm", "--all", "--force", "--time", "0"]).output();
        let _ = self.podman().args(["rmi", "--all", "--force"]).output();
    }
}

/// A container that is running.
struct Container {
    podman: Arc<Podman>,
    name: &'static str,
    /// podman, which ends as the container does.
    child: Child,
    input: Option<ChildStdin>,
    /// The first process, as the test sees it.
    pid: Pid,
}

impl Container {
    fn said(&self) -> String {
        fs::read_to_string(self.podman.path(&format!("{}.log", self.name))).unwrap_or_default()
    }

    fn status(&self) -> String {
        fs::read_to_string(format!("/proc/{}/status", self.pid.as_raw_nonzero())).expect("it runs")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("it runs");
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        wait_until("the container ends", || self.has_ended());
        self.child.wait().expect("it is our child")
    }

    /// Lets an application go on that reads a line.
    fn tell(&mut self) {
        self.input.as_mut().expect("it is open").write_all(b"go on\n").expect("it runs");
    }

    #[track_caller]
    fn wait_for(&self, words: &str) {
        wait_until(words, || self.said().contains(words) || self.has_ended());
        assert!(self.said().contains(words), "{} ended and did not say {words:?}:\n{}", self.name, self.said());
    }

    fn has_ended(&self) -> bool {
        !Path::new(&format!("/proc/{}", self.pid.as_raw_nonzero())).exists()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- in the container {} was said:\n{}---", self.name, self.said());
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.podman.podman().args(["rm", "--force", "--time", "0", self.name]).output();
            let _ = self.child.wait();
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("it has one")).expect("it is ours");
    fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// Copies a program and the libraries that it is linked with.
fn install(program: &Path, to: &Path, root: &Path) {
    copy(program, to);
    let list = Command::new("ldd").arg(program).output().expect("libc has it").stdout;
    for library in String::from_utf8(list).expect("it is text").split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(library), &root.join(&library[1..]));
    }
}

/// What a program said last when it failed.
fn said(output: Output) -> Result<(), String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(text.lines().last().unwrap_or("it said nothing").to_owned()) }
}

/// Copies half of a file of its own, which `/own` is for, and keeps it open over what happens to the sidecar; then the rest. `sync` makes the error of the
/// close that of its own call. Then it reads the same way.
const APPLICATION: &str = r#"
set -e
cd "$0"
head -c 20971520 /dev/urandom > /own/source
exec 3> file
head -c 10485760 /own/source >&3
echo half is written
read -r answer
tail -c +10485761 /own/source >&3
sync file
exec 3>&-
cmp /own/source file
echo all is stored
exec 4< file
head -c 1000 <&4 > /own/read
echo half is read
read -r answer
cat <&4 >> /own/read
cmp -n 1000 /own/source /own/read
cat file | cmp - /own/source
echo more >> file
sync file
echo all is read
"#;

/// A sidecar that has found its volume and serves it.
fn sidecar(podman: &Arc<Podman>, pod: &Pod, network: &Arc<Network>) -> Container {
    // The namespace of the pod, in which the store is.
    let namespace = format!("--network=ns:/proc/{}/fd/{}", std::process::id(), network.as_fd().as_raw_fd());
    let meeting = format!("--volume={}:{MEETING}", pod.meeting.display());
    let options = [&namespace, &meeting, "--memory=256m", "--env=AWS_EC2_METADATA_DISABLED=true"];
    let listen = format!("127.0.0.1:{PORT}");
    let disk = format!("--spill-dir={MEETING}/disk");
    let container =
        podman.start("sidecar", "65534:65534", &options, &["sidecar", "--dir", MEETING, "--listen", &listen, "--", "--path-style", &disk]);
    let is_ready = || network.page(PORT, "/readyz").is_some_and(|(status, _)| status == 200);
    wait_until("the sidecar serves", || container.has_ended() || is_ready());
    assert!(!container.has_ended(), "{}", container.said());
    container
}

fn trio(podman: Arc<Podman>) {
    let server = S3Server::start();
    let mut node = Node::start_in(&podman, &["--sidecar-dir", MEETING]);
    let pod = node.pod("1", "data");
    publish(&node, "v", &pod, &server);
    let network = Arc::new(Network::with_store(&server));
    let mut serving = sidecar(&podman, &pod, &network);
    let status = serving.status();
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!(value("CapEff:").and(value("CapBnd:")), Some("0000000000000000"), "{status}");
    assert_eq!([value("NoNewPrivs:"), value("Seccomp:")], [Some("1"), Some("2")], "{status}");
    assert!(value("NSpid:").expect("kernels tell").ends_with("\t1"), "it has a PID namespace: {status}");

    let volume = format!("--volume={}:{DATA}:rslave", pod.target.display());
    let options = [&volume, "--entrypoint=/bin/sh", "--tmpfs=/own:rw,mode=1777", "--network=none"];
    let mut application = podman.start("application", "1000:1000", &options, &["-c", APPLICATION, DATA]);
    application.wait_for("half is written");
    // As when its node is drained, and it is started again.
    serving.signal(Signal::TERM);
    let _ = serving.wait();
    drop(serving);
    let serving = sidecar(&podman, &pod, &network);
    application.tell();
    application.wait_for("half is read");
    let source = fs::read(format!("/proc/{}/root/own/source", application.pid.as_raw_nonzero())).expect("it runs");
    assert!(server.stored("file").expect("it was synced").0 == source, "what is stored");
    // As when memory runs out, after the driver has been replaced.
    node.kill();
    node.begin();
    let kubelet = node.kubelet();
    wait_until("the driver has what its successor needs", || {
        let is_served = |message: &str| message.contains("a sidecar serves it");
        kubelet.condition("v", &pod).is_ok_and(|condition| !condition.abnormal && is_served(&condition.message))
    });
    serving.signal(Signal::KILL);
    drop(serving);
    let mut serving = sidecar(&podman, &pod, &network);
    application.tell();
    assert_eq!(application.wait().code(), Some(0), "{}", application.said());
    assert!(application.said().contains("all is read"));
    assert!(server.stored("file").expect("it was synced").0 == [&source[..], b"more\n"].concat(), "what is stored");

    node.kubelet().unpublish("v", &pod).expect("it is published");
    assert_eq!(node.mounts(), Vec::<String>::new());
    serving.signal(Signal::TERM);
    assert_eq!(serving.wait().code(), Some(0), "{}", serving.said());
    node.terminate();
    assert_eq!(node.wait(), Some(0));
}
