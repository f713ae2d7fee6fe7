//! A node: the driver as a process, the kubelet's directory, and pods in it. Invariant: driver, mounts and directories are gone with the [`Node`].
//!
//! The driver has PID and mount namespaces of its own, as its container has them: what it mounts below the kubelet's directory is seen on the node, and
//! what is mounted there is seen by the driver (`mountPropagation: Bidirectional`). It has no user namespace: Kubernetes refuses one for privileged
//! containers, and the kernel lets only root of the first one mount /dev/fuse for all pods. It has the network of the node, which is that of the
//! store: only volumes of a StorageClass need one, and its sockets belong to file systems.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::kubelet::Kubelet;
use super::podman::Podman;
use super::support::S3Server;
use super::support::mounts::wait_until;
use super::support::sandbox::first_process;

/// The limit that holds for the whole machine.
pub const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// Becomes the program of its arguments in a mount namespace where only the first of them is seen elsewhere, and without the other mounts of FUSE: a copy
/// of one would keep its session alive.
const ENTER: &str = r#"
import ctypes, os, sys
home, *words = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
MS_PRIVATE, MNT_DETACH_NOFOLLOW = 0x40000, 2 | 8
def call(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
others = []
for line in open("/proc/self/mountinfo", "rb").read().splitlines():
    before, after = line.split(b" - ", 1)
    path = before.split()[4].decode("unicode_escape").encode("latin1")
    if not (path + b"/").startswith(home.encode() + b"/"):
        others.append((path, after.split()[0].startswith(b"fuse")))
for path, _ in others:
    # One that another mount hides, or that somebody has just taken away, is of no interest.
    libc.mount(None, path, None, MS_PRIVATE, None)
for path, is_fuse in others:
    if is_fuse:
        call(libc.umount2(path, MNT_DETACH_NOFOLLOW))
os.execv(words[0], words)
"#;

/// The process of a driver.
struct Driver {
    /// unshare(1).
    child: Child,
    /// The driver itself, as the test sees it.
    pid: Pid,
}

impl Driver {
    fn kill(&mut self) {
        kill_process(self.pid, Signal::KILL).expect("it is not waited for");
        self.child.wait().expect("it is our child");
    }
}

pub struct Node {
    home: TempDir,
    driver: Option<Driver>,
    /// What the driver runs in; namespaces of our own where it is nothing.
    podman: Option<Arc<Podman>>,
    flags: Vec<String>,
    /// Where the stores' own libraries find keys.
    environment: Vec<(&'static str, String)>,
    limit: String,
}

/// One volume of one pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its emptyDir.
    pub meeting: PathBuf,
    /// The directory of the volume in it.
    pub directory: PathBuf,
    pub target: PathBuf,
    pub uid: String,
}

impl Node {
    pub fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, None)
    }

    /// A driver with keys of its own.
    pub fn start_with(flags: &[&str], server: Option<&S3Server>) -> Self {
        Self::start_as(flags, server, None)
    }

    /// A driver in a container.
    pub fn start_in(podman: &Arc<Podman>, flags: &[&str]) -> Self {
        Self::start_as(flags, None, Some(Arc::clone(podman)))
    }

    fn start_as(flags: &[&str], server: Option<&S3Server>, podman: Option<Arc<Podman>>) -> Self {
        let home = tempfile::Builder::new().prefix("csi").tempdir().expect("a temporary directory can be made");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        for name in ["csi", "registry", "kubelet/pods"] {
            fs::create_dir_all(home.path().join(name)).expect("it is empty");
        }
        mount_bind(home.path(), home.path()).expect("we are root");
        mount_change(home.path(), MountPropagationFlags::SHARED).expect("it is a mount");
        let place = home.path().to_str().expect("it is text");
        let flags = flags.iter().map(|flag| flag.replace("{home}", place)).collect();
        let environment = server.map(S3Server::client_env).unwrap_or_default();
        let limit = fs::read_to_string(PAGES_LIMIT).unwrap_or_default();
        let mut node = Self { home, driver: None, podman, flags, environment, limit };
        node.begin();
        node
    }

    /// Starts the driver, and waits until it answers.
    pub fn begin(&mut self) {
        let said = self.log().len();
        let log = File::options().create(true).append(true).open(self.path("log")).expect("it can be written");
        let mut command = match &self.podman {
            Some(podman) => podman.driver(self.home.path()),
            None => self.unshared(),
        };
        command.arg("csi").arg("--endpoint").arg(format!("unix://{}", self.socket().display())).args(["--node-id", "node-1"]);
        command.arg("--kubelet-dir").arg(self.path("kubelet")).arg("--registration-dir").arg(self.path("registry")).args(&self.flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let _ = fs::remove_file(self.socket());
        let child = command.spawn().expect("it is installed");
        let pid = match &self.podman {
            Some(podman) => podman.pid("driver"),
            None => first_process(&child),
        };
        self.driver = Some(Driver { child, pid });
        let socket = self.socket();
        wait_until("the driver listens", || UnixStream::connect(&socket).is_ok() || self.log()[said..].contains("cannot"));
        assert!(socket.exists(), "{}", self.log());
    }

    fn unshared(&self) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "unchanged", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["python3", "-c", ENTER]).arg(self.home.path()).arg(env!("CARGO_BIN_EXE_windlass"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("AWS_EC2_METADATA_DISABLED", "true").envs(self.environment.iter().cloned());
        command
    }

    /// Ends the driver without a word, and waits until it is gone.
    pub fn kill(&mut self) {
        self.driver.take().expect("it runs").kill();
    }

    /// The exit code of a driver that ends by itself.
    pub fn wait(&mut self) -> Option<i32> {
        self.driver.take().expect("it runs").child.wait().expect("it is our child").code()
    }

    pub fn terminate(&self) {
        let driver = self.driver.as_ref().expect("it runs");
        kill_process(driver.pid, Signal::TERM).expect("it is not waited for");
    }

    pub fn pid(&self) -> u32 {
        self.driver.as_ref().expect("it runs").pid.as_raw_nonzero().get().cast_unsigned()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("csi/csi.sock")
    }

    pub fn kubelet(&self) -> Kubelet {
        Kubelet::connect(&self.socket())
    }

    /// A pod with an emptyDir for its sidecar, as kubelet prepares it.
    pub fn pod(&self, uid: &str, volume: &str) -> Pod {
        let volumes = self.path("kubelet/pods").join(uid).join("volumes");
        let meeting = volumes.join("kubernetes.io~empty-dir/windlass");
        let target = volumes.join("kubernetes.io~csi").join(volume).join("mount");
        fs::create_dir_all(&meeting).expect("it is ours");
        fs::set_permissions(&meeting, fs::Permissions::from_mode(0o777)).expect("it is ours");
        fs::create_dir_all(target.parent().expect("it has one")).expect("it is ours");
        Pod { directory: meeting.join(volume), meeting, target, uid: uid.to_owned() }
    }

    /// What is mounted below the kubelet's directory, line by line.
    pub fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
        let below = self.path("kubelet").to_str().expect("it is text").to_owned();
        table.lines().filter(|line| line.contains(&below)).map(str::to_owned).collect()
    }

    /// Descriptors of the driver: what they are, without numbers of sockets.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            // Not one that has ended by itself: its number may be that of another process.
            if matches!(driver.child.try_wait(), Ok(None)) {
                driver.kill();
            }
        }
        for line in self.mounts() {
            let at = line.split(' ').nth(4).expect("lines have so many fields");
            let _ = unmount(at, UnmountFlags::DETACH);
        }
        let _ = unmount(self.home.path(), UnmountFlags::DETACH);
        if std::thread::panicking() {
            eprintln!("the driver said:\n{}", self.log());
        }
        let limit = fs::read_to_string(PAGES_LIMIT).unwrap_or_default();
        let _ = fs::write(PAGES_LIMIT, self.limit.trim());
        assert!(std::thread::panicking() || limit == self.limit, "max_pages_limit is {limit}, and was {}", self.limit);
    }
}

/// The mount table's line of a target.
pub fn mounted(target: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
    let wanted = target.to_str().expect("it is text");
    table.lines().find(|line| line.split(' ').nth(4) == Some(wanted)).map(str::to_owned)
}
