//! A process as a sidecar of Kubernetes has it: uid 65534, no capability, no new privileges, the first process of its PID namespace, a network and a user
//! namespace of its own, a mount namespace of its own in which nothing can be written but the directories that were named, no /dev/fuse, no HOME, and
//! an environment that was given. Only root can make one. Invariant: the process ends with its [`Sandboxed`].
//!
//! The user namespace is that of a pod with `hostUsers: false`: what it writes belongs to 65534 all the same, by idmapped mounts (mount_setattr(2)).
//! Where the file system of the directories has none (overlayfs), neither has a pod; the process is in the user namespace of the test then.

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

use super::cgroup::command_in;
use super::mounts::{PATIENCE, POLL, lacks, wait_until, why_not};
use super::network::Network;

/// Who runs in it.
pub const UID: u32 = 65534;

/// The first user of the pod's user namespace as the test sees it: kubelet gives each pod 65536 users, beginning with a multiple of that.
const FIRST_USER: u32 = 7 << 16;

/// Becomes what it says above, then the program of its arguments. Mounts of FUSE are taken out of the namespace: a copy of one in there would
/// keep its session alive whatever becomes of the other.
const ENTER: &str = r#"
import ctypes, errno, os, sys
first, count, *rest = sys.argv[1:]
writable, words = rest[:int(count)], rest[int(count):]
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
CLONE_NEWNS, CLONE_NEWUSER, MS_PRIVATE_REC, MNT_DETACH_NOFOLLOW = 0x20000, 0x10000000, 0x44000, 2 | 8
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR, AT_FDCWD = 428, 429, 442, -100
AT_RECURSIVE, AT_EMPTY_PATH, OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 0x8000, 0x1000, 1, 4
RDONLY, IDMAP = 1, 0x100000
call(libc.unshare(CLONE_NEWNS))
call(libc.mount(b"none", b"/", None, MS_PRIVATE_REC, None))
for line in open("/proc/self/mountinfo", "rb").read().splitlines():
    before, after = line.split(b" - ", 1)
    if after.split()[0].startswith(b"fuse"):
        path = before.split()[4].decode("unicode_escape").encode("latin1")
        call(libc.umount2(path, MNT_DETACH_NOFOLLOW))
call(libc.mount(b"proc", b"/proc", b"proc", 0, None))
def user_namespace():
    """A namespace belongs to a process at first, and then to the descriptor."""
    (ready, tell), (over, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        call(libc.unshare(CLONE_NEWUSER))
        os.write(tell, b".")
        os.close(end)
        os.read(over, 1)
        os._exit(0)
    os.read(ready, 1)
    for kind in ["uid_map", "gid_map"]:
        with open(f"/proc/{child}/{kind}", "w") as file:
            file.write(f"0 {first} 65536")
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    os.close(end)
    os.waitpid(child, 0)
    return namespace
def attributes(at, path, flags, set, clear, namespace=0):
    words = (ctypes.c_uint64 * 4)(set, clear, 0, namespace)
    call(libc.syscall(MOUNT_SETATTR, at, path, flags, words, 32))
namespace = user_namespace()
for path in writable:
    tree = call(libc.syscall(OPEN_TREE, AT_FDCWD, path.encode(), OPEN_TREE_CLONE))
    try:
        if namespace is not None:
            attributes(tree, b"", AT_EMPTY_PATH, IDMAP, 0, namespace)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        namespace = None
    call(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, path.encode(), MOVE_MOUNT_F_EMPTY_PATH))
    os.close(tree)
call(libc.mount(b"none", b"/dev", b"tmpfs", 0, None))
os.umask(0)
for name, minor in [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)]:
    os.mknod("/dev/" + name, 0o20666, os.makedev(1, minor))
attributes(AT_FDCWD, b"/", AT_RECURSIVE, RDONLY, 0)
for path in writable:
    attributes(AT_FDCWD, path.encode(), 0, 0, RDONLY)
os.chdir("/")
if namespace is not None:
    call(libc.setns(namespace, CLONE_NEWUSER))
    # The user that it was has no number in there, and would lose its capabilities in the next exec.
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
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
    ["python3", "setpriv", "unshare"].into_iter().find_map(lacks)
}

/// The program, and what it may write to.
pub struct Sandbox {
    home: Arc<TempDir>,
    network: Arc<Network>,
    writable: Vec<PathBuf>,
    environment: Vec<(String, String)>,
    cgroup: Option<PathBuf>,
}

impl Sandbox {
    pub fn new(network: &Arc<Network>) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        // The way to where it was built may be closed to others.
        let (built, here) = (env!("CARGO_BIN_EXE_windlass"), home.path().join("windlass"));
        fs::hard_link(built, &here).or_else(|_| fs::copy(built, &here).map(drop)).expect("there is room for a copy");
        Self { home: Arc::new(home), network: Arc::clone(network), writable: Vec::new(), environment: Vec::new(), cgroup: None }
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

    /// Starts it inside a cgroup.
    pub fn in_cgroup(mut self, path: Option<&Path>) -> Self {
        self.cgroup = path.map(Path::to_owned);
        self
    }

    /// `windlass` with `words`, in the sandbox.
    fn command(&self, words: &[&str]) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // What looks for python3 and setpriv is not what is in the sandbox.
        let mut command = command_in(self.cgroup.as_deref(), "unshare");
        command.args(["--pid", "--fork", "python3", "-c", ENTER, &FIRST_USER.to_string(), &self.writable.len().to_string()]);
        command.args(&self.writable).arg("env").arg("-u").arg("PATH");
        command.arg(self.home.path().join("windlass")).args(words);
        command.env_clear().env("PATH", path).envs(self.environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command
    }

    /// Starts it.
    pub fn start(&self, words: &[&str]) -> Sandboxed {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.network.within(|| command.spawn()).expect("unshare was found");
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
        let first = first_process(&child);
        Sandboxed { child, first, said, listening, _home: Arc::clone(&self.home) }
    }
}

/// Waits until unshare(1) has started the first process of its PID namespace, and returns which it is. unshare ends as that one ends.
pub fn first_process(unshare: &Child) -> Pid {
    let list = format!("/proc/{0}/task/{0}/children", unshare.id());
    let first = || fs::read_to_string(&list).expect("it is our child").trim().parse().ok().and_then(Pid::from_raw);
    wait_until("the namespace has a process", || first().is_some());
    first().expect("it was there")
}

/// A process in a sandbox.
pub struct Sandboxed {
    /// unshare(1).
    child: Child,
    /// The process itself, as the test sees it.
    first: Pid,
    said: Arc<Mutex<String>>,
    /// They end with the pipes.
    listening: [JoinHandle<()>; 2],
    /// The program is in it.
    _home: Arc<TempDir>,
}

impl Sandboxed {
    pub fn pid(&self) -> u32 {
        self.first.as_raw_nonzero().get().cast_unsigned()
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
        kill_process(self.first, signal).expect("it runs");
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
        let namespace = |pid: &str, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("it runs");
        let has_own = |kind| namespace(&self.pid().to_string(), kind) != namespace("self", kind);
        let uid = if has_own("user") { FIRST_USER + UID } else { UID }.to_string();
        assert!(value("Uid:").split_whitespace().all(|found| found == uid) && value("NoNewPrivs:") == "1", "{status}");
        assert!(["mnt", "net", "pid"].into_iter().all(has_own));
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
        // Not one that has ended: its number may be that of another process.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(self.first, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
