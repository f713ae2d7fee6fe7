//! `windlass stats`: what a daemon counts and holds, for people or as JSON, once or every second. It only asks and prints.

mod summary;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Failure;
use super::locate::{connect, refusal};
use crate::admin::{Command, Done, Stats};

/// Show what a mount does: rates, latencies, what was found in memory and on the disk, memory, connections, retries.
///
/// Counters grow from the beginning of the mount; names say the unit. For example: windlass stats --watch /mnt/data
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount, or any path in it; or the path of its --control-socket.
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// One JSON object; with --watch one a line.
    #[arg(long)]
    json: bool,
    /// Again every second, with what was added in that second, until it is interrupted or the mount ends.
    #[arg(short, long)]
    watch: bool,
    /// Every name with its value, also with --watch.
    #[arg(short, long)]
    all: bool,
}

const EVERY: Duration = Duration::from_secs(1);

/// Clears the screen and begins at its top (ECMA-48 CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[J";

/// Two looks, and the time between them.
#[derive(Clone, Copy, Debug)]
struct Looks<'a> {
    now: &'a Stats,
    before: Option<(Duration, &'a Stats)>,
}

/// Asks and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut client = connect(&args.mountpoint)?;
    let mut before: Option<(Instant, Stats)> = None;
    loop {
        let now = Instant::now();
        let stats = match client.ask(&Command::Stats {}, |_| {}) {
            Ok(Done::Stats(stats)) => *stats,
            Ok(_) => return Err(Failure::internal(format!("{}: the daemon answered something else", args.mountpoint.display()))),
            Err(error) => return Err(refusal(&args.mountpoint, &error)),
        };
        if args.json {
            super::print(&stats.to_line())?;
        } else {
            let looks = Looks { now: &stats, before: before.as_ref().map(|(then, stats)| (now.duration_since(*then), stats)) };
            let clear = if args.watch && std::io::stdout().is_terminal() { CLEAR } else { "" };
            let all = if args.all || !args.watch { format!("\n{}", table::of(looks)) } else { String::new() };
            super::print(format!("{clear}{}{all}", summary::of(looks)).as_bytes())?;
        }
        if !args.watch {
            return Ok(());
        }
        before = Some((now, stats));
        std::thread::sleep(EVERY.saturating_sub(now.elapsed()));
    }
}

impl Looks<'_> {
    /// A number by its name; 0 when the daemon does not tell it.
    fn number(&self, name: &str) -> u64 {
        number(self.now, name)
    }

    /// What was added to a counter a second; none at the first look.
    fn rate(&self, name: &str) -> Option<u64> {
        let (time, before) = self.before?;
        rate(self.number(name), number(before, name), time)
    }
}

fn number(stats: &Stats, name: &str) -> u64 {
    let known = [&stats.counters, &stats.gauges, &stats.histograms].into_iter().find_map(|readings| readings.get(name));
    known.map_or(0, crate::metrics::Reading::number)
}

/// What was added a second.
fn rate(now: u64, before: u64, time: Duration) -> Option<u64> {
    let added = u128::from(now.saturating_sub(before)) * 1000;
    u64::try_from(added.checked_div(time.as_millis())?).ok()
}

/// A time for people.
fn short(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Reading;

    use super::*;

    /// A look at a daemon with these counters.
    pub(super) fn stats(counters: &[(&str, u64)]) -> Stats {
        Stats {
            source: "s3://bucket".into(),
            mountpoint: "/mnt".into(),
            uptime_seconds: 61.5,
            counters: counters.iter().map(|&(name, value)| (name.to_owned(), Reading::Number(value))).collect(),
            gauges: [("budget_leased_bytes".to_owned(), Reading::Number(3 << 20))].into(),
            ..Stats::default()
        }
    }

    #[test]
    fn a_rate_is_what_was_added_in_the_time_between() {
        assert_eq!(rate(9, 3, Duration::from_secs(2)), Some(3));
        assert_eq!(rate(7, 3, Duration::ZERO), None);
        assert_eq!(rate(3, 7, Duration::from_secs(1)), Some(0), "another daemon with the same number");
    }

    #[test]
    fn times_are_short() {
        for (seconds, shown) in [(0.0, "0 us"), (0.000_012, "12 us"), (0.0031, "3.1 ms"), (0.99, "990.0 ms"), (2.5, "2.50 s")] {
            assert_eq!(short(seconds), shown);
        }
    }
}
