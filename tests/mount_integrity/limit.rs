//! Trials that end: a daemon which answers no more is killed, so that requests that wait in the kernel fail, and the trial fails.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::number;
use crate::support::mounts::{self, Mount};

/// Longest trial, besides what it was asked to go on: more means that something hangs, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// How often a log is looked at, and how long everything may still go on by itself after it has told of a panic.
const LOOK: Duration = Duration::from_millis(200);
const AFTER_PANIC: Duration = Duration::from_secs(2);

/// A trial as that of [`mounts`], with a limit.
pub fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    mounts::trial(name, move || limited(test))
}

/// A trial as that of [`mounts`], with a limit.
pub fn trial_with(programs: &'static [&'static str], name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    mounts::trial_with(programs, name, move || limited(test))
}

/// Kills all children when `test` takes too long.
fn limited(test: impl FnOnce()) {
    let more = number("WINDLASS_TEST_SECONDS", 0) + 10 * number("WINDLASS_TEST_KILLS", 0) + number("WINDLASS_TEST_FSX_OPS", 0) / 10;
    let limit = LIMIT + Duration::from_secs(more);
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the trial does not end: all that it started is killed");
                children().into_iter().for_each(kill);
            }
        });
        // Its end is that of the sender, also in a panic.
        let _end = end;
        test();
    });
}

/// Runs `test`, in which a daemon whose log tells of a panic is killed: a request that a dead thread has taken is never answered.
pub fn watched<T>(mount: &Mount, test: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if mount.log().contains("panicked") {
                    let _ = (0..AFTER_PANIC.as_millis() / LOOK.as_millis()).find(|_| {
                        std::thread::sleep(LOOK);
                        is_over.load(Ordering::Relaxed)
                    });
                    if !is_over.load(Ordering::Relaxed) {
                        mount.signal(Signal::KILL);
                    }
                    return;
                }
                std::thread::sleep(LOOK);
            }
        });
        let _over = Over(&is_over);
        test()
    })
}

fn kill(child: Pid) {
    // ESRCH: it has just ended.
    let _ = kill_process(child, Signal::KILL);
}

/// The processes that this one has started and not waited for.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").expect("the kernel shows our threads");
    let lists = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let text: String = lists.collect::<Vec<_>>().join(" ");
    text.split_whitespace().filter_map(|number| Pid::from_raw(number.parse().ok()?)).collect()
}
