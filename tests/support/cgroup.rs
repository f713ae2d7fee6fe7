//! A cgroup with a limit of memory: a real one, made below the one that the test runs in and removed again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A cgroup of our own with a limit.
pub struct Cgroup {
    pub path: PathBuf,
    is_first_version: bool,
}

impl Cgroup {
    /// Below our own cgroup where the first version is mounted, else below the root of the second, which lets only leaves have processes.
    pub fn make(limit: u64) -> Result<Self, String> {
        let ours = fs::read_to_string("/proc/self/cgroup").map_err(|error| format!("no cgroups here: {error}"))?;
        let first = ours.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| path.trim_start_matches('/'));
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("windlass-test-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let (parent, file) = match first {
            Some(path) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            None => (PathBuf::from("/sys/fs/cgroup"), "memory.max"),
        };
        if first.is_none() {
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let made = Self { path: parent.join(name), is_first_version: first.is_some() };
        let failed = |error: std::io::Error| format!("no cgroup with a limit can be made at {}: {error}", made.path.display());
        fs::create_dir(&made.path).map_err(failed)?;
        fs::write(made.path.join(file), limit.to_string()).map_err(failed)?;
        Ok(made)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap_or_default()
    }

    /// How often something was killed here for want of memory.
    pub fn kills(&self) -> u64 {
        let text = self.read(if self.is_first_version { "memory.oom_control" } else { "memory.events" });
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|number| number.trim().parse().ok()).expect("the kernel counts them")
    }

    /// What is there now that cannot be given back, the file system's cache being the rest.
    pub fn anonymous(&self) -> u64 {
        let (file, word) = if self.is_first_version { ("memory.stat", "rss ") } else { ("memory.stat", "anon ") };
        let text = self.read(file);
        text.lines().find_map(|line| line.strip_prefix(word)).and_then(|number| number.trim().parse().ok()).expect("the kernel counts it")
    }
}

/// A command that runs `program` in the cgroup at `path`, where there is one.
pub fn command_in(path: Option<&Path>, program: &str) -> Command {
    let Some(path) = path else { return Command::new(program) };
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo 0 > \"$0/cgroup.procs\" && exec \"$@\""]).arg(path).arg(program);
    shell
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes ended before; the kernel needs a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
