//! Requests whose askers are being killed: they are answered, so that the process ends at once and not when the store does. The kernel's
//! own word for it (FUSE_INTERRUPT) is not used: it comes for every signal, also for those that a program handles and goes on after, and a
//! read of a file is not to fail because of them (signal(7)); and for direct reads, which it sends in the background, it does not come.
//! A process that the PID namespace of the mount cannot see, as those of a pod's other containers, has no number in its requests: it waits for the answer.
//! Invariant: a request is given up only when who asked is being killed.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::reply::Interruptible;

/// How often is looked, and at what has waited so long.
const LOOK: Duration = Duration::from_millis(250);

/// Answers requests that no caller waits for any more, as long as it is polled.
pub(super) async fn look_after(waits: Arc<Interruptible>) {
    loop {
        sleep(LOOK).await;
        for (unique, thread) in waits.since(Instant::now() - LOOK) {
            if is_dying(thread) {
                tracing::debug!(unique, thread, "who asked is being killed");
                waits.interrupt(unique);
            }
        }
    }
}

/// Whether SIGKILL is on its way to a thread: a signal that ends a process becomes one for each of its threads (`complete_signal`).
fn is_dying(thread: u32) -> bool {
    let Ok(status) = fs::read_to_string(PathBuf::from(format!("/proc/{thread}/status"))) else { return false };
    has_kill(&status)
}

/// From proc_pid_status(5): signals that wait for the thread, and for its process.
fn has_kill(status: &str) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let pending = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pending_kill_counts() {
        let status = |own: u64, shared: u64| format!("Name:\tcat\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{:016x}\n", 1 << 8);
        assert!(has_kill(&status(1 << 8, 0)) && has_kill(&status(0, 1 << 8 | 1 << 14)));
        // SIGURG, by which Go moves its threads, SIGTERM that is handled, SIGUSR1.
        for other in [0, 1 << 22, 1 << 14, 1 << 9] {
            assert!(!has_kill(&status(other, other)));
        }
        assert!(!has_kill("") && !has_kill("SigPnd:\tx"));
        assert!(!is_dying(std::process::id()) && !is_dying(0));
    }
}
