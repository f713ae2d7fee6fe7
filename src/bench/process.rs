//! What a process took of the machine, from proc(5): its processor time, and the most memory it held. Invariant: a process that is gone or
//! belongs to somebody else is no error, but nothing is said of it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Ticks of the processor times in /proc, which are the same on every architecture (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// A process to be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub u32);

impl Process {
    fn file(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }

    /// Processor time of all its threads since it began, in user and kernel mode.
    pub fn cpu(self) -> Option<Duration> {
        cpu(&fs::read_to_string(self.file("stat")).ok()?)
    }

    /// Has the kernel forget the peak of its memory; whether it did (only the owner and root may).
    pub fn forget_peak(self) -> bool {
        fs::write(self.file("clear_refs"), "5").is_ok()
    }

    /// The most memory it held, since it began or the peak was forgotten.
    pub fn peak_bytes(self) -> Option<u64> {
        peak_bytes(&fs::read_to_string(self.file("status")).ok()?)
    }
}

/// Fields 14 and 15 (utime and stime) of proc_pid_stat(5); the second one is a name in which anything may stand.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
}

/// `VmHWM` of proc_pid_status(5).
fn peak_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_any_name() {
        let stat = "77 (a) 9 (b) S 1 77 77 0 -1 4194560 1107 0 0 0 250 50 0 0 20 0 9 0 1234 99 1";
        assert_eq!(cpu(stat), Some(Duration::from_secs(3)));
        assert_eq!(cpu("77 (a) S 1"), None);
    }

    #[test]
    fn the_peak_is_read_in_bytes() {
        assert_eq!(peak_bytes("Name:\ta\nVmPeak:\t 9 kB\nVmHWM:\t  2048 kB\n"), Some(2 << 20));
        assert_eq!(peak_bytes("Name:\ta\n"), None);
    }

    #[test]
    fn of_this_process_something_is_known_and_of_none_nothing() {
        let this = Process(std::process::id());
        assert!(this.cpu().is_some() && this.peak_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(this.forget_peak());
        // Larger than any number of a process.
        let none = Process(u32::MAX);
        assert_eq!((none.cpu(), none.peak_bytes(), none.forget_peak()), (None, None, false));
    }
}
