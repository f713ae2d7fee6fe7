//! A node: the driver as a process, the kubelet's directory, and pods in it. Invariant: driver, mounts and directories are gone with the [`Node`].

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use super::kubelet::Kubelet;
use super::support::S3Server;
use super::support::mounts::wait_until;

/// The limit that holds for the whole machine.
pub const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

pub struct Node {
    home: TempDir,
    driver: Option<Child>,
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
        let home = tempfile::Builder::new().prefix("csi").tempdir().expect("a temporary directory can be made");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        for name in ["csi", "registry", "kubelet/pods"] {
            fs::create_dir_all(home.path().join(name)).expect("it is empty");
        }
        let place = home.path().to_str().expect("it is text");
        let flags = flags.iter().map(|flag| flag.replace("{home}", place)).collect();
        let environment = server.map(S3Server::client_env).unwrap_or_default();
        let limit = fs::read_to_string(PAGES_LIMIT).unwrap_or_default();
        let mut node = Self { home, driver: None, flags, environment, limit };
        node.begin();
        node
    }

    /// Starts the driver, and waits until it answers.
    pub fn begin(&mut self) {
        let said = self.log().len();
        let log = File::options().create(true).append(true).open(self.path("log")).expect("it can be written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.arg("csi").arg("--endpoint").arg(format!("unix://{}", self.socket().display())).args(["--node-id", "node-1"]);
        command.arg("--kubelet-dir").arg(self.path("kubelet")).arg("--registration-dir").arg(self.path("registry"));
        command.args(&self.flags).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("AWS_EC2_METADATA_DISABLED", "true").envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let _ = fs::remove_file(self.socket());
        self.driver = Some(command.spawn().expect("the program starts"));
        let socket = self.socket();
        wait_until("the driver listens", || UnixStream::connect(&socket).is_ok() || self.log()[said..].contains("cannot"));
        assert!(socket.exists(), "{}", self.log());
    }

    /// Ends the driver without a word, and waits until it is gone.
    pub fn kill(&mut self) {
        let mut driver = self.driver.take().expect("it runs");
        driver.kill().expect("it is our child");
        driver.wait().expect("it is our child");
    }

    /// The exit code of a driver that ends by itself.
    pub fn wait(&mut self) -> Option<i32> {
        self.driver.take().expect("it runs").wait().expect("it is our child").code()
    }

    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed()).expect("it runs");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is our child");
    }

    pub fn pid(&self) -> u32 {
        self.driver.as_ref().expect("it runs").id()
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
            let _ = driver.kill();
            let _ = driver.wait();
        }
        for line in self.mounts() {
            let at = line.split(' ').nth(4).expect("lines have so many fields");
            let _ = unmount(at, UnmountFlags::DETACH);
        }
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
