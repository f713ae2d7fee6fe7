//! A mount as a process of its own: this program, started once more. Its stderr goes on to ours, and the end of it is kept for those who ask why
//! it failed. Invariant: a signal goes to the process that was started and to no other, also when that has ended.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::process::Signal;

use crate::process::Process;

/// How much of stderr is kept: the last error is one line.
const KEPT: usize = 16 << 10;

/// How a process ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub status: ExitStatus,
    /// The end of what it said on stderr.
    pub said: String,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Daemon {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    process: Process,
    ended: Mutex<Option<Ended>>,
    end: Condvar,
}

impl Daemon {
    /// Starts `windlass` with `args`; with an environment of its own, where one is given.
    ///
    /// # Errors
    /// When there is no process or thread to be had.
    pub fn start<A: AsRef<OsStr>>(args: &[A], environment: Option<&[(String, String)]>) -> io::Result<Self> {
        let mut command = Command::new(program()?);
        // The name that we were started under may be that of another program.
        command.arg0("windlass").args(args).stdin(Stdio::null()).stderr(Stdio::piped());
        if let Some(variables) = environment {
            command.env_clear().envs(variables.iter().map(|(name, value)| (name, value)));
        }
        let (mut child, process) = Process::spawn(&mut command)?;
        let stderr = child.stderr.take().expect("it was piped");
        let shared = Arc::new(Shared { process, ended: Mutex::new(None), end: Condvar::new() });
        let waited = Arc::clone(&shared);
        std::thread::Builder::new().name("daemon".into()).spawn(move || {
            let said = pass_on(stderr);
            match child.wait() {
                Ok(status) => *waited.ended.lock() = Some(Ended { status, said }),
                Err(error) => unreachable!("a child that nobody else waits for: {error}"),
            }
            waited.end.notify_all();
        })?;
        Ok(Self { shared })
    }

    /// How it ended, when it does within `patience`.
    pub fn ended(&self, patience: Duration) -> Option<Ended> {
        let mut ended = self.shared.ended.lock();
        if ended.is_none() {
            self.shared.end.wait_for(&mut ended, patience);
        }
        ended.clone()
    }

    /// Waits for its end.
    pub fn wait(&self) -> Ended {
        loop {
            if let Some(ended) = self.ended(Duration::from_secs(3600)) {
                return ended;
            }
        }
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.send(Signal::TERM);
    }

    /// Asks it to end, and does not ask any more after `patience`.
    pub fn stop(&self, patience: Duration) {
        self.send(Signal::TERM);
        if self.ended(patience).is_none() {
            self.send(Signal::KILL);
        }
    }

    fn send(&self, signal: Signal) {
        if let Err(error) = self.shared.process.send(signal) {
            tracing::warn!(%error, "cannot send a signal to a mount");
        }
    }
}

/// This program, also after its file was replaced.
fn program() -> io::Result<OsString> {
    let path = std::env::current_exe()?;
    // What procfs shows of a file that is gone ends in " (deleted)".
    Ok(if path.exists() { path.into_os_string() } else { "/proc/self/exe".into() })
}

/// Copies stderr to ours until its end, and returns the last of it.
fn pass_on(stderr: ChildStderr) -> String {
    let (mut lines, mut line, mut kept) = (BufReader::new(stderr), Vec::new(), Vec::new());
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // Nobody may be reading ours.
        let _ = io::stderr().write_all(&line);
        kept.append(&mut line);
        if kept.len() > KEPT {
            kept.drain(..kept.len() - KEPT);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}
