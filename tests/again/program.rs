//! A mount that is supervised, and the daemon behind it.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::S3Server;
use crate::support::disturbed::too_old;
use crate::support::mounts::{Daemon, Mount, trial_unless, wait_until};

/// A test that kills a daemon under its readers.
pub fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    trial_unless(too_old, name, test)
}

/// See the module. Dropped, both processes are gone.
pub struct Supervised {
    pub mount: Mount,
}

impl Supervised {
    pub fn start(daemon: Daemon<'_>) -> Self {
        Self { mount: daemon.flag("--supervised").start() }
    }

    pub fn of(server: &S3Server) -> Self {
        Self::start(Daemon::new(server))
    }

    pub fn join(&self, path: &str) -> PathBuf {
        self.mount.join(path)
    }

    /// The daemon; none while another one is being started.
    pub fn daemon(&self) -> Option<u32> {
        let supervisor = self.mount.pid().to_string();
        let processes = fs::read_dir("/proc").expect("the kernel shows processes");
        let mut pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        // Behind the name, which is in brackets: the state, then the parent (proc_pid_stat(5)).
        pids.find(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            fields.first().is_some_and(|state| *state != "Z") && fields.get(1) == Some(&&*supervisor)
        })
    }

    /// Kills the daemon as the kernel does when memory runs out, and returns which it was.
    pub fn kill(&self) -> u32 {
        let pid = self.daemon().expect("a daemon runs");
        kill_process(pid_of(pid), Signal::KILL).expect("it runs");
        pid
    }

    /// Kills it, and waits until another one is there.
    pub fn replace(&self) {
        let old = self.kill();
        wait_until("another daemon", || self.daemon().is_some_and(|pid| pid != old));
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // The daemon first, or its supervisor would start another one when that is killed; then the mount takes the supervisor along.
        let _ = kill_process(pid_of(self.mount.pid()), Signal::STOP);
        if let Some(pid) = self.daemon() {
            let _ = kill_process(pid_of(pid), Signal::KILL);
        }
    }
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).expect("it is a process")
}
