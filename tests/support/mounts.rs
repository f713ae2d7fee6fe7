//! The built program, mounted for real: a daemon in the foreground at a temporary directory, which a test reads through
//! as any program would. Invariant: whatever happens to the test, the mount, the daemon and the directory are gone
//! with the [`Mount`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Trial};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use super::cgroup::command_in;
use super::s3_server::{BUCKET, REGION, S3Server};

/// Longest wait for a mount to answer or a daemon to end, and how often to look: what takes longer hangs, also on a machine that others keep busy.
pub const PATIENCE: Duration = Duration::from_secs(240);
pub const POLL: Duration = Duration::from_millis(5);

/// A test that needs a mount: ignored, with the reason, where nobody can mount.
pub fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    trial_with(&[], name, test)
}

/// A test that mounts other file systems too.
pub fn trial_as_root(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        let no_root = || (!rustix::process::geteuid().is_root()).then(|| "only root may mount a disk".to_owned());
        if let Some(reason) = why_not().or_else(no_root) {
            return Ok(Completion::ignored_with(reason));
        }
        test();
        Ok(Completion::Completed)
    })
}

/// A test that needs a mount and other programs.
pub fn trial_with(programs: &'static [&'static str], name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    trial_unless(|| programs.iter().find_map(|program| lacks(program)), name, test)
}

/// A test that needs a mount and more: `lacks` says what is not there.
pub fn trial_unless(lacks: impl FnOnce() -> Option<String> + Send + 'static, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = why_not().or_else(lacks) {
            return Ok(Completion::ignored_with(reason));
        }
        test();
        Ok(Completion::Completed)
    })
}

/// Why nothing can be mounted here.
pub fn why_not() -> Option<String> {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Err(error) => return Some(format!("/dev/fuse: {error}")),
        Ok(_) if rustix::process::geteuid().is_root() => {}
        Ok(_) => return lacks("fusermount3"),
    }
    // In a container the device may be there while mounting is not allowed.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    let may_mount = capabilities.and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|bits| bits & CAP_SYS_ADMIN != 0);
    (!may_mount).then(|| "no CAP_SYS_ADMIN: root may not mount here".into())
}

/// Runs the program in its arguments with a filter of system calls (seccomp(2)): readv(2) into two pieces of memory fails with EIO. The daemon reads
/// requests of the kernel so after a large write, and nothing else.
const UNREADABLE: &str = r#"
import ctypes, os, struct, sys
readv = {"x86_64": 19, "aarch64": 65}[os.uname().machine]
EQUAL, LOAD, RETURN = 0x15, 0x20, 0x06
NUMBER, THIRD = 0, 32
ERRNO, ALLOW = 0x50000, 0x7fff0000
program = [(LOAD, 0, 0, NUMBER), (EQUAL, 0, 3, readv), (LOAD, 0, 0, THIRD), (EQUAL, 0, 1, 2), (RETURN, 0, 0, ERRNO | 5), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
given = Filter(len(program), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(given), 0, 0) != 0:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Why no daemon can be [unreadable](Daemon::unreadable) here.
pub fn no_filter() -> Option<String> {
    let is_known = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    let no_root = || (!rustix::process::geteuid().is_root()).then(|| "only root may filter system calls".to_owned());
    (!is_known).then(|| "the number of readv(2) is not known here".to_owned()).or_else(no_root).or_else(|| lacks("python3"))
}

/// capabilities(7).
const CAP_SYS_ADMIN: u64 = 1 << 21;

pub fn lacks(program: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    (!found).then(|| format!("{program} is not installed"))
}

/// Runs trials one after the other unless the command line asks for more at a time: each has a daemon, a server and
/// readers of its own to keep the machine busy.
pub fn run(trials: Vec<Trial>) -> std::process::ExitCode {
    run_side_by_side(1, trials)
}

/// Runs `threads` trials at a time. For trials that mostly wait and share nothing.
pub fn run_side_by_side(threads: usize, trials: Vec<Trial>) -> std::process::ExitCode {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Looks until something is so that follows by itself.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not so after {PATIENCE:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// The command line of a mount, before it is started.
pub struct Daemon<'a> {
    /// Whose environment it gets.
    server: Option<&'a S3Server>,
    source: String,
    endpoint: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    cgroup: Option<PathBuf>,
    is_unreadable: bool,
    is_at_aws: bool,
}

impl<'a> Daemon<'a> {
    pub fn new(server: &'a S3Server) -> Self {
        Self { server: Some(server), ..Self::of(&format!("s3://{BUCKET}"), &server.endpoint()) }
    }

    /// Mounts `source` of any server, with nothing in the environment but what [`env`](Self::env) adds.
    pub fn of(source: &str, endpoint: &str) -> Self {
        let (source, endpoint) = (source.to_owned(), endpoint.to_owned());
        Self {
            server: None,
            source,
            endpoint,
            arguments: Vec::new(),
            environment: Vec::new(),
            cgroup: None,
            is_unreadable: false,
            is_at_aws: false,
        }
    }

    /// Mounts `source` at the address that it has by itself.
    pub fn at_aws(source: &str) -> Self {
        Self { is_at_aws: true, ..Self::of(source, "") }
    }

    pub fn env(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.environment.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Reaches the server at another address, such as that of a relay.
    pub fn through(self, endpoint: &str) -> Self {
        Self { endpoint: endpoint.to_owned(), ..self }
    }

    /// Starts it inside a cgroup.
    pub fn in_cgroup(mut self, path: &Path) -> Self {
        self.cgroup = Some(path.to_owned());
        self
    }

    /// After a write of a megabyte it cannot read requests of the kernel any more.
    pub fn unreadable(self) -> Self {
        Self { is_unreadable: true, ..self }
    }

    /// Mounts only the keys below this prefix.
    pub fn prefix(self, prefix: &str) -> Self {
        Self { source: format!("s3://{BUCKET}/{prefix}"), ..self }
    }

    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Adds an argument that takes no value, or has it behind `=`.
    pub fn flag(mut self, flag: &str) -> Self {
        self.arguments.push(flag.to_owned());
        self
    }

    /// The same with several.
    pub fn flags(self, flags: &[&str]) -> Self {
        flags.iter().fold(self, |daemon, flag| daemon.flag(flag))
    }

    /// Mounts, and panics with the daemon's words when that fails.
    #[track_caller]
    pub fn start(self) -> Mount {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let directory = home.path().join("mnt");
        fs::create_dir(&directory).expect("it is empty");
        // The mount table shows paths without links.
        let directory = directory.canonicalize().expect("it was made just now");
        let log = File::create(home.path().join("log")).expect("it can be written");
        let child = self.command(&directory, &home.path().join("ready")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut mount = Mount { child: child.expect("the program starts"), directory, home };
        mount.wait_until_ready();
        mount
    }

    /// Tries to mount, and returns what the program says instead.
    #[track_caller]
    pub fn refused(self) -> String {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let output = self.command(home.path(), &home.path().join("ready")).stdin(Stdio::null()).output().expect("the program starts");
        assert!(!output.status.success(), "it mounted");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn command(&self, directory: &Path, ready: &Path) -> Command {
        let program = env!("CARGO_BIN_EXE_windlass");
        let mut command = match &self.cgroup {
            None if self.is_unreadable => {
                let mut python = Command::new("python3");
                python.args(["-c", UNREADABLE]).arg(program);
                python
            }
            cgroup => command_in(cgroup.as_deref(), program),
        };
        command.arg("mount").arg(&self.source).arg(directory).arg("--foreground");
        if !self.is_at_aws {
            command.args(["--path-style", "--region", REGION, "--endpoint", &self.endpoint]);
        }
        command.arg("--ready-file").arg(ready).args(&self.arguments);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("AWS_EC2_METADATA_DISABLED", "true");
        // Tests count requests: on a machine that is busy enough some are late, and would be sent twice.
        command.env("WINDLASS_HEDGE", "false").env("WINDLASS_STALL_TIMEOUT", "60s").env("WINDLASS_DRAIN_TIMEOUT", "10min");
        if self.cgroup.is_none() {
            // By itself it takes a share of the memory that others leave, and fetches again what it had no room to keep.
            command.env("WINDLASS_MEMORY_LIMIT", "1GiB");
        }
        command.envs(self.server.map(S3Server::client_env).unwrap_or_default()).envs(self.environment.iter().cloned());
        command
    }
}

/// A mount that answers, and the process behind it.
pub struct Mount {
    child: Child,
    directory: PathBuf,
    home: TempDir,
}

impl Mount {
    /// Where it is mounted. Looks at the mount table first, so that no test reads an empty directory instead.
    #[track_caller]
    pub fn path(&self) -> &Path {
        assert!(self.is_mounted(), "not mounted any more:\n{}", self.log());
        &self.directory
    }

    /// A path inside.
    #[track_caller]
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path().join(path)
    }

    pub fn is_mounted(&self) -> bool {
        is_mount_point(&self.directory)
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the daemon said so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// The most memory the daemon ever held.
    #[track_caller]
    pub fn peak_rss_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the daemon runs");
        let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")).map(str::trim);
        kib.and_then(|kib| kib.parse::<u64>().ok()).expect("the kernel shows it in kB") << 10
    }

    /// Waits until the daemon has said something.
    #[track_caller]
    pub fn wait_for_log(&self, shows: impl Fn(&str) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !shows(&self.log()) {
            assert!(Instant::now() < end, "the daemon does not say it:\n{}", self.log());
            std::thread::sleep(POLL);
        }
    }

    /// Sends a signal to the daemon.
    #[track_caller]
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the daemon is our child and not waited for");
    }

    /// How the daemon ended; panics when it does not.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the daemon is our child") {
                return status;
            }
            assert!(Instant::now() < end, "the daemon does not end:\n{}", self.log());
            std::thread::sleep(POLL);
        }
    }

    #[track_caller]
    fn wait_until_ready(&mut self) {
        let (ready, end) = (self.home.path().join("ready"), Instant::now() + PATIENCE);
        while !ready.exists() {
            if let Some(status) = self.child.try_wait().expect("the daemon is our child") {
                panic!("the daemon ended with {status}:\n{}", self.log());
            }
            assert!(Instant::now() < end, "the mount does not answer:\n{}", self.log());
            std::thread::sleep(POLL);
        }
        assert!(self.is_mounted(), "ready, and not mounted:\n{}", self.log());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the daemon said:\n{}---", self.log());
        }
        // First the name, so that nobody enters; then the daemon, which ends what still waits inside.
        if self.is_mounted() {
            let _ = detach(&self.directory);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.is_mounted() {
            let _ = detach(&self.directory);
        }
    }
}

/// Whether something is mounted at exactly this path, from a table that asks no daemon.
pub fn is_mount_point(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel shows its mounts");
    table.lines().any(|line| line.split(' ').nth(4).map(OsStr::new) == Some(path.as_os_str()))
}

fn detach(path: &Path) -> io::Result<()> {
    if unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {
        return Ok(());
    }
    Command::new("fusermount3").args(["-u", "-z", "--"]).arg(path).stderr(Stdio::null()).status().map(drop)
}
