//! A descriptor of /dev/fuse that a privileged parent opened and mounted, served by a process without any privilege in a
//! mount namespace of its own, as sidecars of Kubernetes do.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use super::place::{Place, soon, wait};
use super::support::{BUCKET, REGION, S3Server};
use super::users::{self, NOBODY};

/// The parent. Its child gets its namespace before the mount is made: a copy of the mount in there would keep the session
/// alive whatever the parent does. Prints the child's pid, unmounts when told to, and ends with the child's exit code.
const PARENT: &str = r#"
import ctypes, os, sys
program, at, source, *rest = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
CLONE_NEWNS, MS_PRIVATE_REC, MS_RDONLY_NOSUID_NODEV = 0x20000, 0x44000, 7
fuse = os.open("/dev/fuse", os.O_RDWR)
(answer, go), (parted, part) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    call(libc.unshare(CLONE_NEWNS))
    call(libc.mount(b"none", b"/", None, MS_PRIVATE_REC, None))
    os.write(part, b"x")
    os.read(answer, 1)
    if fuse != 3:
        os.dup2(fuse, 3)
    os.set_inheritable(3, True)
    drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs",
            "--bounding-set", "-all", "--inh-caps", "-all", "--ambient-caps", "-all", "--"]
    os.execvp("setpriv", drop + [program, "mount", source, "/dev/fd/3", "--foreground"] + rest)
os.read(parted, 1)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions" % fuse
call(libc.mount(source.encode(), at.encode(), b"fuse.windlass", MS_RDONLY_NOSUID_NODEV, options.encode()))
os.close(fuse)
os.write(go, b"x")
print("child", child, flush=True)
if sys.stdin.readline().strip() == "umount":
    call(libc.umount2(at.encode(), 0))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xff)
"#;

pub fn trials() -> Vec<Trial> {
    const PROGRAMS: &[&str] = &["python3", "setpriv", "unshare"];
    vec![
        users::trial("a_passed_descriptor_is_served_without_privilege_until_sigterm", PROGRAMS, until_sigterm),
        users::trial("a_passed_descriptor_is_served_until_the_parent_unmounts", PROGRAMS, until_unmounted),
    ]
}

/// The parent with its child, who serves.
struct Sidecar {
    parent: Child,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
    daemon: Pid,
}

impl Sidecar {
    fn start(server: &S3Server, place: &Place) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", PARENT]).arg(users::program_for_all(place)).arg(&place.at).arg(format!("s3://{BUCKET}"));
        command.args(["--endpoint", &server.endpoint(), "--region", REGION, "--path-style"]).envs(server.client_env());
        let mut parent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 was found");
        let mut lines = BufReader::new(parent.stdout.take().expect("it was piped"));
        let stdin = parent.stdin.take().expect("it was piped");
        let mut both = [String::new(), String::new()];
        for line in &mut both {
            lines.read_line(line).expect("it is text");
        }
        // The ready line comes from the child and the other one from the parent, in either order.
        let ready = format!("windlass: s3://{BUCKET} mounted at /dev/fd/3 (endpoint {})\n", server.endpoint());
        assert!(both.contains(&ready), "{both:?}");
        let pid = both.iter().find_map(|line| line.strip_prefix("child ")?.trim().parse().ok()).and_then(Pid::from_raw);
        Self { parent, stdin, lines, daemon: pid.expect("the parent names its child") }
    }

    /// Whether the daemon has nothing that it could mount with.
    fn check_privilege(&self) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon)).expect("it runs");
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(value(set), "0000000000000000", "{set}");
        }
        assert!(value("Uid:").split_whitespace().all(|uid| uid == NOBODY) && value("NoNewPrivs:") == "1", "{status}");
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).expect("it runs");
        assert_ne!(namespace(&self.daemon.to_string()), namespace("self"));
    }

    fn end(mut self, word: &str) -> Option<i32> {
        writeln!(self.stdin, "{word}").expect("the parent waits for a word");
        let code = wait(&mut self.parent);
        let mut rest = String::new();
        assert_eq!(self.lines.read_line(&mut rest).expect("it is text"), 0, "{rest}");
        code
    }
}

fn serve(end: fn(Sidecar, &Place) -> Option<i32>) {
    let (server, place) = (S3Server::start(), Place::new());
    let content = server.put_synthetic("dir/file", 20 << 20);
    server.put("small", "content");
    let sidecar = Sidecar::start(&server, &place);
    sidecar.check_privilege();
    assert_eq!(place.read("small"), b"content");
    let bytes = place.read("dir/file");
    assert!(bytes.len() == 20 << 20 && content.matches(0, &bytes));
    let written = fs::write(place.at.join("new"), "x").expect_err("whoever mounted it made it read-only");
    assert_eq!(written.raw_os_error(), Some(libc::EROFS));
    assert_eq!(end(sidecar, &place), Some(0));
    assert!(soon(|| place.pids().is_empty()));
}

fn until_sigterm() {
    serve(|sidecar, place| {
        kill_process(sidecar.daemon, Signal::TERM).expect("it runs");
        let code = sidecar.end("wait");
        assert!(place.is_mounted(), "whoever mounted unmounts");
        assert_eq!(fs::read(place.at.join("small")).expect_err("nobody serves").raw_os_error(), Some(libc::ENOTCONN));
        code
    });
}

fn until_unmounted() {
    serve(|sidecar, place| {
        let code = sidecar.end("umount");
        assert!(!place.is_mounted());
        code
    });
}
