//! A process as a sidecar of Kubernetes has it: uid 65534, no capability, no new privileges, a mount namespace of its own in which nothing can be
//! written but the directories that were named, no /dev/fuse, no HOME, and an environment that was given. Only root can make one. Invariant: the
//! process ends with its [`Sandboxed`].

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use libtest_mimic::{Completion, Trial};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::mounts::{PATIENCE, POLL, lacks, why_not};

/// Who runs in it.
pub const UID: u32 = 65534;

/// Becomes what it says above, then the program of its arguments. Mounts of FUSE are taken out of the namespace: a copy of one in there would
/// keep its session alive whatever becomes of the other.
const ENTER: &str = r#"
import ctypes, os, sys
count, *rest = sys.argv[1:]
writable, words = rest[:int(count)], rest[int(count):]
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
CLONE_NEWNS, MS_PRIVATE_REC, MS_BIND, MNT_DETACH_NOFOLLOW, RDONLY = 0x20000, 0x44000, 0x1000, 2 | 8, 1
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
call(libc.unshare(CLONE_NEWNS))
call(libc.mount(b"none", b"/", None, MS_PRIVATE_REC, None))
for line in open("/proc/self/mountinfo", "rb").read().splitlines():
    before, after = line.split(b" - ", 1)
    if after.split()[0].startswith(b"fuse"):
        path = before.split()[4].decode("unicode_escape").encode("latin1")
        call(libc.umount2(path, MNT_DETACH_NOFOLLOW))
for path in writable:
    call(libc.mount(path.encode(), path.encode(), None, MS_BIND, None))
call(libc.mount(b"none", b"/dev", b"tmpfs", 0, None))
os.umask(0)
for name, minor in [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)]:
    os.mknod("/dev/" + name, 0o20666, os.makedev(1, minor))
def attributes(path, flags, set, clear):
    words = (ctypes.c_uint64 * 4)(set, clear, 0, 0)
    call(libc.syscall(MOUNT_SETATTR, AT_FDCWD, path, flags, words, 32))
attributes(b"/", AT_RECURSIVE, RDONLY, 0)
for path in writable:
    attributes(path.encode(), 0, 0, RDONLY)
os.chdir("/")
drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs",
        "--bounding-set", "-all", "--inh-caps", "-all", "--ambient-caps", "-all", "--"]
os.execvp("setpriv", drop + words)
"#;

/// A test that needs a mount and a sandbox: ignored, with the reason, where there can be none.
pub fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = why_not().or_else(no_sandbox) {
            return Ok(Completion::ignored_with(reason));
        }
        test();
        Ok(Completion::Completed)
    })
}

/// Why there can be none here.
pub fn no_sandbox() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can make a sandbox".into());
    }
    ["python3", "setpriv"].into_iter().find_map(lacks)
}

/// The program, and what it may write to.
pub struct Sandbox {
    home: Arc<TempDir>,
    writable: Vec<PathBuf>,
    environment: Vec<(String, String)>,
}

impl Sandbox {
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        // The way to where it was built may be closed to others.
        let (built, here) = (env!("CARGO_BIN_EXE_windlass"), home.path().join("windlass"));
        fs::hard_link(built, &here).or_else(|_| fs::copy(built, &here).map(drop)).expect("there is room for a copy");
        Self { home: Arc::new(home), writable: Vec::new(), environment: Vec::new() }
    }

    /// Lets it write to `directory`, as an emptyDir of its pod.
    pub fn writable(mut self, directory: &Path) -> Self {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).expect("it is ours");
        self.writable.push(directory.canonicalize().expect("it is there"));
        self
    }

    /// Gives it variables; it has no others.
    pub fn envs<N: Into<String>, V: Into<String>>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self {
        self.environment.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// `windlass` with `words`, in the sandbox.
    pub fn command(&self, words: &[&str]) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // What looks for python3 and setpriv is not what is in the sandbox.
        let mut command = Command::new("python3");
        command.args(["-c", ENTER, &self.writable.len().to_string()]).args(&self.writable).arg("env").arg("-u").arg("PATH");
        command.arg(self.home.path().join("windlass")).args(words);
        command.env_clear().env("PATH", path).envs(self.environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command
    }

    /// Starts it.
    pub fn start(&self, words: &[&str]) -> Sandboxed {
        let mut child = self.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python3 was found");
        let said = Arc::new(Mutex::new(String::new()));
        let pipes: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("it was piped")), Box::new(child.stderr.take().expect("it was piped"))];
        let listening = pipes.map(|pipe| {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    *said.lock().expect("nobody panics with it") += &format!("{line}\n");
                }
            })
        });
        Sandboxed { child, said, listening, _home: Arc::clone(&self.home) }
    }
}

/// A process in a sandbox.
pub struct Sandboxed {
    child: Child,
    said: Arc<Mutex<String>>,
    /// They end with the pipes.
    listening: [JoinHandle<()>; 2],
    /// The program is in it.
    _home: Arc<TempDir>,
}

impl Sandboxed {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far, on stdout and stderr.
    pub fn said(&self) -> String {
        self.said.lock().expect("nobody panics with it").clone()
    }

    /// Waits until it has said something.
    #[track_caller]
    pub fn wait_for(&mut self, words: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.said().contains(words) {
            // Looked at first: what it said last is heard before the pipes end.
            let is_over = self.listening.iter().all(JoinHandle::is_finished);
            assert!(!is_over || self.said().contains(words), "it ended and did not say {words:?}:\n{}", self.said());
            assert!(Instant::now() < end, "it does not say {words:?}:\n{}", self.said());
            std::thread::sleep(POLL);
        }
    }

    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is our child and not waited for");
    }

    /// How it ended; panics when it does not.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            // All that it said is heard by then.
            if let Some(status) = self.child.try_wait().expect("it is our child")
                && self.listening.iter().all(JoinHandle::is_finished)
            {
                return status;
            }
            assert!(Instant::now() < end, "it does not end:\n{}", self.said());
            std::thread::sleep(POLL);
        }
    }

    /// Checks that it has nothing that it could mount with, and nowhere to write to but `writable`.
    #[track_caller]
    pub fn check_privilege(&self, writable: &[&Path]) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(value(set), "0000000000000000", "{set}");
        }
        assert!(value("Uid:").split_whitespace().all(|uid| uid == "65534") && value("NoNewPrivs:") == "1", "{status}");
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).expect("it runs");
        assert_ne!(namespace(&self.pid().to_string()), namespace("self"));
        assert!(!Path::new(&format!("/proc/{}/root/dev/fuse", self.pid())).exists(), "it has the device");
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).expect("it runs");
        for line in table.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            let is_writable = fields[5].split(',').any(|option| option == "rw");
            assert_eq!(is_writable, writable.iter().any(|path| Path::new(fields[4]) == *path), "{line}");
        }
        let environment = fs::read(format!("/proc/{}/environ", self.pid())).expect("it runs");
        assert!(!environment.split(|&b| b == 0).any(|variable| variable.starts_with(b"HOME=")));
    }
}

impl Drop for Sandboxed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- in the sandbox was said:\n{}---", self.said());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
