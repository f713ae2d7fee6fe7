//! A temporary directory to mount at, with the program's files beside it. Invariant: whatever was mounted or started
//! there ends with the [`Place`].

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::mounts::is_mount_point;
use crate::support::{BUCKET, REGION, S3Server};

/// What takes longer than this hangs, also on a machine that others keep busy.
const LIMIT: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(5);

pub struct Place {
    home: TempDir,
    /// The directory to mount at.
    pub at: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        // Some tests become another user.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        let at = home.path().join("mnt");
        fs::create_dir(&at).expect("it is empty");
        // The mount table shows paths without links.
        let at = at.canonicalize().expect("it was made just now");
        Self { home, at }
    }

    /// A path beside the mount point.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A file beside the mount point, which nobody but us can read.
    pub fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.beside(name);
        fs::write(&path, text).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        path
    }

    /// `windlass mount` of the server's bucket here.
    pub fn mount(&self, server: &S3Server) -> Command {
        let mut command = self.mount_from(&format!("s3://{BUCKET}"), &server.endpoint());
        command.envs(server.client_env());
        command
    }

    /// `windlass mount` without credentials, and with nothing in its environment that could decide anything.
    pub fn mount_from(&self, source: &str, endpoint: &str) -> Command {
        let mut command = program();
        command.arg("mount").arg(source).arg(&self.at).args(["--endpoint", endpoint, "--region", REGION, "--path-style"]);
        command.envs([
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_CONFIG_FILE", "/dev/null"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ]);
        command
    }

    pub fn is_mounted(&self) -> bool {
        is_mount_point(&self.at)
    }

    /// Reads a file through the mount, and never from the directory below it.
    #[track_caller]
    pub fn read(&self, name: &str) -> Vec<u8> {
        assert!(self.is_mounted(), "nothing is mounted");
        fs::read(self.at.join(name)).expect("it can be read")
    }

    /// Runs `windlass umount` here.
    pub fn umount(&self) -> Said {
        let mut command = program();
        command.arg("umount").arg(&self.at);
        run(command)
    }

    /// The processes that name this place in their command line: a daemon has no other owner.
    pub fn pids(&self) -> Vec<i32> {
        let home = self.home.path().to_str().expect("the test names it").as_bytes();
        let numbers = fs::read_dir("/proc").expect("it is mounted").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers
            .filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.windows(home.len()).any(|part| part == home)))
            .collect()
    }

    /// The daemon, when there is one.
    #[track_caller]
    pub fn daemon(&self) -> Pid {
        match self.pids()[..] {
            [pid] => Pid::from_raw(pid).expect("numbers of processes are positive"),
            ref pids => panic!("one daemon is expected here, and there are {pids:?}"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = program().arg("umount").arg("--lazy").arg(&self.at).output();
        }
        for pid in self.pids().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The built program with an empty environment.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.arg0("windlass").env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    command
}

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self
    }
}

/// Runs a program to its end; panics when it does not end in time. Its pipes must end with it too: a daemon that keeps
/// those of its caller would hang `$(windlass mount ...)`.
#[track_caller]
pub fn run(mut command: Command) -> Said {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let out = collect(child.stdout.take().expect("it was piped"));
    let err = collect(child.stderr.take().expect("it was piped"));
    let code = wait(&mut child);
    let text = |collected: std::sync::mpsc::Receiver<String>| collected.recv_timeout(LIMIT).expect("nobody holds its pipes");
    Said { code, out: text(out), err: text(err) }
}

fn collect(mut pipe: impl Read + Send + 'static) -> std::sync::mpsc::Receiver<String> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = pipe.read_to_string(&mut text);
        send.send(text)
    });
    receive
}

/// The exit code of a child, none when a signal ended it. What does not end in time is killed, and the test fails.
#[track_caller]
pub fn wait(child: &mut Child) -> Option<i32> {
    let status = within_limit(|| child.try_wait().expect("it is our child"));
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    status.expect("it ends in time").code()
}

/// Waits until something is so; whether it came to be in time.
pub fn soon(mut so: impl FnMut() -> bool) -> bool {
    within_limit(|| so().then_some(())).is_some()
}

fn within_limit<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + LIMIT;
    loop {
        match look() {
            None if Instant::now() < end => std::thread::sleep(POLL),
            found => return found,
        }
    }
}
