//! What a mount does, on one screen: rates and latencies of the last second (of all the time at the first look), what was found where, and
//! what is in use. Invariant: what the daemon does not tell is left out, not shown as nothing.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{HumanBytes, HumanDuration};

use super::{Looks, short};
use crate::metrics::{Reading, Spread};

/// The lines.
pub fn of(looks: Looks<'_>) -> String {
    let stats = looks.now;
    let uptime = HumanDuration(Duration::from_secs_f64(stats.uptime_seconds.max(0.0)));
    let mut text = format!("{} at {}: windlass {}, process {}, {uptime}\n", stats.source, stats.mountpoint, stats.windlass, stats.pid);
    let lines = [
        ("reads", bytes(looks, "read_bytes") + &count(looks, "read_seconds", "reads") + &times(looks, "read_seconds")),
        ("store", bytes(looks, "fetched_bytes") + &count(looks, "get_requests", "GETs") + &times(looks, "first_byte_seconds")),
        ("answers", answers(looks)),
        ("uploads", bytes(looks, "uploaded_bytes") + &count(looks, "put_requests", "requests")),
        ("window", window(looks)),
        ("memory", memory(looks)),
        ("disk", disk(looks)),
        ("network", network(looks)),
        ("trouble", trouble(looks)),
    ];
    for (name, line) in lines.iter().filter(|(_, line)| !line.is_empty()) {
        let _ = writeln!(text, "{}", format!("{name:<9}{line}").trim_end());
    }
    text
}

/// A counter of bytes: a second, or in all.
fn bytes(looks: Looks<'_>, name: &str) -> String {
    let shown = looks.rate(name).map_or_else(|| HumanBytes(looks.number(name)).to_string(), |rate| format!("{}/s", HumanBytes(rate)));
    format!("{shown:>14}")
}

fn count(looks: Looks<'_>, name: &str, what: &str) -> String {
    let shown = looks.rate(name).map_or_else(|| format!("{} {what}", looks.number(name)), |rate| format!("{rate} {what}/s"));
    format!("{shown:>18}")
}

/// Percentiles of the time between the looks, if there was anything.
fn times(looks: Looks<'_>, name: &str) -> String {
    let spread = |stats: &crate::admin::Stats| stats.histograms.get(name).map(Reading::spread);
    let all = spread(looks.now).unwrap_or_default();
    let Spread { count, p50_seconds, p90_seconds, p99_seconds, .. } = match looks.before.and_then(|(_, before)| spread(before)) {
        Some(before) => all.since(&before),
        None => all,
    };
    if count == 0 {
        return String::new();
    }
    let what = if name == "first_byte_seconds" { "first byte " } else { "" };
    format!("   {what}p50 {}  p90 {}  p99 {}", short(p50_seconds), short(p90_seconds), short(p99_seconds))
}

/// How requests ended, those that did.
fn answers(looks: Looks<'_>) -> String {
    let Some(now) = looks.now.counters.get("answered_requests") else { return String::new() };
    let before = looks.before.and_then(|(time, stats)| Some((time, stats.counters.get("answered_requests")?)));
    let ended = now.flat().into_iter().filter_map(|(labels, value)| {
        let all = value.number();
        let shown = match before {
            None => (all > 0).then(|| all.to_string()),
            Some((time, before)) => {
                let earlier = before.flat().into_iter().find(|(known, _)| *known == labels).map_or(0, |(_, value)| value.number());
                super::rate(all, earlier, time).filter(|rate| *rate > 0).map(|rate| format!("{rate}/s"))
            }
        };
        shown.map(|shown| format!("{} {shown}", labels.join(" ")))
    });
    let ended: Vec<_> = ended.collect();
    if ended.is_empty() { String::new() } else { format!("  {}", ended.join(", ")) }
}

fn window(looks: Looks<'_>) -> String {
    let added = |name| looks.rate(name).unwrap_or_else(|| looks.number(name));
    let found = match share(added("window_hits"), added("window_misses")) {
        Some(share) => format!("{share} of reads did not wait; "),
        None => String::new(),
    };
    let (streams, handles) = (looks.number("streams"), looks.number("handles"));
    let held = |name| HumanBytes(looks.number(name));
    format!("  {found}{streams} streams hold {}, {handles} open files {}", held("stream_held_bytes"), held("handle_held_bytes"))
}

fn memory(looks: Looks<'_>) -> String {
    let part = |name| HumanBytes(looks.number(name));
    let (used, limit, peak) = (part("budget_leased_bytes"), part("budget_limit_bytes"), part("budget_peak_bytes"));
    let waiting = match looks.number("budget_waiting") {
        0 => String::new(),
        n => format!("; {n} wait for memory"),
    };
    format!("  {used} of {limit} in use, {peak} at the most{waiting}")
}

fn disk(looks: Looks<'_>) -> String {
    let Some(held) = looks.now.gauges.get("spill_bytes").map(Reading::number) else { return String::new() };
    let added = |name| looks.rate(name).unwrap_or_else(|| looks.number(name));
    let found =
        share(added("spill_read_bytes"), added("spill_missed_bytes")).map(|share| format!("{share} of what was looked for was there; "));
    format!("  {}{} held, {} chunks evicted", found.unwrap_or_default(), HumanBytes(held), looks.number("spill_evicted_chunks"))
}

fn network(looks: Looks<'_>) -> String {
    let number = |name| looks.number(name);
    let (open, opened, asked) = (number("connections_open"), number("connections_opened"), number("requests_in_flight"));
    format!("  {open} connections open, {opened} opened so far; {asked} requests in flight")
}

fn trouble(looks: Looks<'_>) -> String {
    let number = |name| looks.number(name);
    let (retries, throttled, hedged) = (number("retries"), number("throttled"), number("hedged_requests"));
    let panics = match number("panics") {
        0 => String::new(),
        n => format!("; {n} panics: the log has them"),
    };
    format!(
        "  {retries} retries, {throttled} times asked to slow down, {hedged} hedged GETs, {} fetches given up{panics}",
        number("cancelled_fetches")
    )
}

/// The part of `some` in both, for people.
fn share(some: u64, others: u64) -> Option<String> {
    let all = some + others;
    (all > 0).then(|| format!("{:.1} %", some as f64 * 100.0 / all as f64))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::stats;
    use super::*;
    use crate::metrics::{Metrics, RequestKind};

    #[test]
    fn the_first_look_shows_all_and_the_next_what_was_added() {
        let first = stats(&[("read_bytes", 1 << 30), ("window_hits", 90), ("window_misses", 10)]);
        let text = of(Looks { now: &first, before: None });
        assert!(text.starts_with("s3://bucket at /mnt: ") && text.contains("1.00 GiB") && text.contains("90.0 % of reads"), "{text}");
        assert!(!text.contains("disk"), "there is none: {text}");
        let second = stats(&[("read_bytes", 3 << 30), ("window_hits", 91), ("window_misses", 11)]);
        let text = of(Looks { now: &second, before: Some((Duration::from_secs(1), &first)) });
        assert!(text.contains("2.00 GiB/s") && text.contains("50.0 % of reads"), "{text}");
    }

    #[test]
    fn latencies_and_answers_are_those_of_the_time_between() {
        let metrics: std::sync::Arc<Metrics> = std::sync::Arc::default();
        let look = || {
            let mut stats = stats(&[]);
            for (row, reading) in metrics.read() {
                let map = if row.kind == crate::metrics::Type::Histogram { &mut stats.histograms } else { &mut stats.counters };
                map.insert(row.name.to_owned(), reading);
            }
            stats
        };
        metrics.read_seconds.record(Duration::from_secs(20));
        metrics.attempt(RequestKind::Get).on_head(200);
        let first = look();
        for _ in 0..10 {
            metrics.read_seconds.record(Duration::from_millis(2));
        }
        metrics.attempt(RequestKind::Get).on_head(503);
        let second = look();
        let text = of(Looks { now: &second, before: Some((Duration::from_secs(1), &first)) });
        assert!(text.contains("10 reads/s") && !text.contains(" s  p90"), "{text}");
        assert!(text.contains("get 5xx 1/s") && !text.contains("get 2xx"), "{text}");
    }
}
