//! Programs that work in a mount. Invariant: a program that does not end in time is killed with all its children, and the test fails with
//! everything that it printed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::NamedTempFile;

use crate::support::mounts::POLL;
use crate::support::python;

/// Longest run of a program that has no limit of its own: more means that it hangs, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// A program and its arguments, before it is started.
pub struct Program {
    command: Command,
    limit: Duration,
    /// Where its script is, which is there as long as it runs.
    script: Option<NamedTempFile>,
}

/// What a program printed, and how it ended.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Program {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self { command: Command::new(program), limit: LIMIT, script: None }
    }

    /// Python with a script, in a file of its own: it may start itself again.
    pub fn python(script: &str) -> Self {
        let mut file = NamedTempFile::with_suffix(".py").expect("a temporary file can be made");
        file.write_all(script.as_bytes()).expect("there is room");
        let program = Self::new(python::path()).arg(file.path());
        Self { script: Some(file), ..program }
    }

    /// A shell that ends at the first command that fails.
    pub fn shell(script: &str) -> Self {
        Self::new("sh").arg("-e").arg("-c").arg(script).arg("sh")
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Runs it to its end.
    #[track_caller]
    pub fn ends(mut self) -> Ended {
        // Files, not pipes: these need no reader while it runs.
        let (stdout, stderr) = (tempfile::tempfile().expect("there is room"), tempfile::tempfile().expect("there is room"));
        let copy = |file: &File| Stdio::from(file.try_clone().expect("there are descriptors left"));
        self.command.stdin(Stdio::null()).stdout(copy(&stdout)).stderr(copy(&stderr)).process_group(0);
        let mut group = Group(self.command.spawn().expect("the program starts"));
        let status = group.wait(self.limit);
        drop((group, self.script.take()));
        let ended = |status| Ended { status, stdout: text(stdout), stderr: text(stderr) };
        match status {
            Some(status) => ended(status),
            None => panic!("{:?} does not end:\n{}", self.command.get_program(), ended(ExitStatus::default()).said()),
        }
    }

    /// Runs it to its end, which must be a good one, and returns what it printed.
    #[track_caller]
    pub fn succeeds(self) -> String {
        let ended = self.ends();
        assert!(ended.status.success(), "{}\n{}", ended.status, ended.said());
        ended.stdout
    }
}

impl Ended {
    pub fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// A process that leads a group, which is gone with this.
pub struct Group(pub Child);

impl Group {
    pub fn kill(&self) {
        // ESRCH: all of them have ended.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
    }

    /// None when it goes on longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                return Some(status);
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

fn text(mut file: File) -> String {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}
