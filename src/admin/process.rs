//! What the kernel tells of this process, under the names that the client libraries of Prometheus have for it
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>). Invariant: what cannot be read is left out, and nothing fails.

use std::fs;

/// Clock ticks of a second in /proc (proc_pid_stat(5)): the kernel shows 100 to programs on every architecture that this program is built for.
const TICKS_PER_SECOND: f64 = 100.0;

/// A reading of all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Process {
    pub cpu_seconds: Option<f64>,
    /// Since 1970.
    pub start_time_seconds: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_fds: Option<u64>,
    pub max_fds: Option<u64>,
}

impl Process {
    pub fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            // One of them is that of the directory which is read.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|entries| (entries.count() as u64).saturating_sub(1)),
            ..Self::parse(&text("/proc/self/stat"), &text("/proc/self/status"), &text("/proc/self/limits"), &text("/proc/stat"))
        }
    }

    fn parse(stat: &str, status: &str, limits: &str, machine: &str) -> Self {
        // The name of the program may hold anything, also blanks and parentheses. Fields are numbered as in proc_pid_stat(5).
        let fields: Vec<&str> = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        let seconds = |number: usize| Some(fields.get(number - 3)?.parse::<u64>().ok()? as f64 / TICKS_PER_SECOND);
        let bytes = |name: &str| Some(number_after(status, name)? << 10);
        Self {
            cpu_seconds: seconds(14).zip(seconds(15)).map(|(user, system)| user + system),
            start_time_seconds: number_after(machine, "btime").zip(seconds(22)).map(|(boot, since)| boot as f64 + since),
            resident_bytes: bytes("VmRSS:"),
            virtual_bytes: bytes("VmSize:"),
            open_fds: None,
            max_fds: number_after(limits, "Max open files"),
        }
    }
}

/// The number behind the words that a line begins with.
fn number_after(text: &str, words: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(words))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_manual_page() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 150 0 0 20 0 5 0 1000 9 1 18446744073709551615";
        let status = "Name:\ta b\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\n";
        let limits = "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 4096                 files\n";
        let read = Process::parse(stat, status, limits, "cpu  1 2 3\nbtime 1700000000\n");
        let expected = Process {
            cpu_seconds: Some(4.0),
            start_time_seconds: Some(1_700_000_010.0),
            resident_bytes: Some(512 << 10),
            virtual_bytes: Some(2 << 20),
            open_fds: None,
            max_fds: Some(1024),
        };
        assert_eq!(read, expected);
        assert_eq!(Process::parse("", "", "Max open files unlimited", ""), Process::default());
        let own = Process::read();
        assert!(own.open_fds.unwrap() >= 3 && own.resident_bytes.unwrap() > 1 << 20 && own.cpu_seconds.is_some(), "{own:?}");
    }
}
