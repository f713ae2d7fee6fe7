//! `windlass stats`: what a daemon counts, as a table or as JSON, once or every second. It only prints. Invariant: every counter and gauge
//! that the daemon tells is shown, also those that this program does not know.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanDuration};

use super::Failure;
use super::locate::{locate, refusal};
use crate::admin::{Command, Done, Stats};

/// Show what a mount has done: requests, bytes, what was found in memory, retries, memory in use.
///
/// Counters grow from the beginning of the mount; names say the unit. For example: windlass stats --json /mnt/data
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount, or any path in it.
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// One JSON object; with --watch one a line.
    #[arg(long)]
    json: bool,
    /// Again every second, with what was added in that second, until it is interrupted or the mount ends.
    #[arg(short, long)]
    watch: bool,
}

const EVERY: Duration = Duration::from_secs(1);

/// Clears the screen and begins at its top (ECMA-48 CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[J";

/// What comes first, in this order; everything else follows by name.
const FIRST: &[&str] = &[
    "read_bytes",
    "window_hits",
    "window_misses",
    "fetched_bytes",
    "get_requests",
    "head_requests",
    "list_requests",
    "put_requests",
    "uploaded_bytes",
    "retries",
    "throttled",
];

/// Asks and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut client = locate(&args.mountpoint)?.connect()?;
    let mut before: Option<(Instant, Stats)> = None;
    loop {
        let now = Instant::now();
        let stats = match client.ask(&Command::Stats {}, |_| {}) {
            Ok(Done::Stats(stats)) => *stats,
            Ok(_) => return Err(Failure::internal(format!("{}: the daemon answered something else", args.mountpoint.display()))),
            Err(error) => return Err(refusal(&args.mountpoint, &error)),
        };
        let text = if args.json {
            let json = serde_json::to_string(&stats).map_err(|error| Failure::internal(error.to_string()))?;
            format!("{json}\n")
        } else {
            let since = before.as_ref().map(|(then, stats)| (now.duration_since(*then), stats));
            let clear = if args.watch && std::io::stdout().is_terminal() { CLEAR } else { "" };
            format!("{clear}{}", table(&stats, since))
        };
        super::print(text.as_bytes())?;
        if !args.watch {
            return Ok(());
        }
        before = Some((now, stats));
        std::thread::sleep(EVERY.saturating_sub(now.elapsed()));
    }
}

/// The table; with `since` also what was added a second.
fn table(stats: &Stats, since: Option<(Duration, &Stats)>) -> String {
    let mut text = String::new();
    let uptime = HumanDuration(Duration::from_secs_f64(stats.uptime_seconds.max(0.0)));
    let _ = writeln!(text, "{} at {}: windlass {}, process {}, {uptime}", stats.source, stats.mountpoint, stats.windlass, stats.pid);
    for name in ordered(stats) {
        let value = stats.counters[name];
        let added = since.and_then(|(time, before)| rate(value, *before.counters.get(name)?, time));
        line(&mut text, name, value, added);
    }
    for (name, value) in &stats.gauges {
        line(&mut text, name, *value, None);
    }
    text
}

/// The names of the counters in the order in which they are shown.
fn ordered(stats: &Stats) -> Vec<&str> {
    let first = FIRST.iter().copied().filter(|name| stats.counters.contains_key(*name));
    let others = stats.counters.keys().map(String::as_str).filter(|name| !FIRST.contains(name));
    first.chain(others).collect()
}

/// What was added a second.
fn rate(now: u64, before: u64, time: Duration) -> Option<u64> {
    let added = u128::from(now.saturating_sub(before)) * 1000;
    u64::try_from(added.checked_div(time.as_millis())?).ok()
}

fn line(text: &mut String, name: &str, value: u64, rate: Option<u64>) {
    let is_bytes = name.ends_with("_bytes");
    let shown = if is_bytes { HumanBytes(value).to_string() } else { value.to_string() };
    let rate = rate.map_or_else(String::new, |rate| if is_bytes { format!("{}/s", HumanBytes(rate)) } else { format!("{rate}/s") });
    let _ = writeln!(text, "{}", format!("{name:<26}{shown:>14}{rate:>16}").trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(counters: &[(&str, u64)]) -> Stats {
        Stats {
            source: "s3://bucket".into(),
            mountpoint: "/mnt".into(),
            uptime_seconds: 61.5,
            counters: counters.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
            gauges: [("budget_leased_bytes".to_owned(), 3 << 20)].into(),
            ..Stats::default()
        }
    }

    #[test]
    fn everything_that_is_told_is_shown_with_its_unit() {
        let text = table(&stats(&[("retries", 3), ("read_bytes", 5 << 30), ("a_new_one", 12)]), None);
        let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines,
            [vec!["read_bytes", "5.00", "GiB"], vec!["retries", "3"], vec!["a_new_one", "12"], vec!["budget_leased_bytes", "3.00", "MiB"]]
        );
        assert!(text.starts_with("s3://bucket at /mnt: "), "{text}");
    }

    #[test]
    fn a_rate_is_what_was_added_in_the_time_between() {
        let before = stats(&[("read_bytes", 1 << 20), ("retries", 9)]);
        let text = table(&stats(&[("read_bytes", 5 << 20), ("retries", 9), ("new", 1)]), Some((Duration::from_secs(2), &before)));
        assert!(text.contains("2.00 MiB/s") && text.contains("0/s"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("new") && line.ends_with('1')), "{text}");
        assert_eq!(rate(7, 3, Duration::ZERO), None);
        assert_eq!(rate(3, 7, Duration::from_secs(1)), Some(0), "another daemon with the same number");
    }
}
