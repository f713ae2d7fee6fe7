//! Every name with its value, a line each. Invariant: everything that the daemon tells is shown, also what this program does not know.

use std::fmt::Write;

use indicatif::HumanBytes;

use super::{Looks, rate, short};
use crate::metrics::{Reading, Spread, rows};

/// The table; from the second look on also what was added a second.
pub fn of(looks: Looks<'_>) -> String {
    let mut text = String::new();
    for (name, reading) in &in_order(looks) {
        for (labels, value) in reading.flat() {
            let name = [vec![*name], labels].concat().join(" ");
            match value {
                Reading::Spread(spread) => time(&mut text, &name, spread),
                // Of what is told apart by labels most never happens.
                value if reading.flat().len() > 1 && value.number() == 0 => {}
                value => line(&mut text, &name, value.number(), added(looks, &name, value.number())),
            }
        }
    }
    text
}

/// As in the table of names, then what is not in it.
fn in_order(looks: Looks<'_>) -> Vec<(&str, &Reading)> {
    let told = || [&looks.now.counters, &looks.now.histograms, &looks.now.gauges].into_iter().flatten();
    let known = rows().filter_map(|row| told().find(|(name, _)| **name == row.name));
    let others = told().filter(|(name, _)| rows().all(|row| row.name != name.as_str()));
    known.chain(others).map(|(name, reading)| (name.as_str(), reading)).collect()
}

fn added(looks: Looks<'_>, name: &str, now: u64) -> Option<u64> {
    let (time, before) = looks.before?;
    let mut words = name.split(' ');
    let reading = before.counters.get(words.next()?)?;
    let labels: Vec<_> = words.collect();
    let before = reading.flat().into_iter().find(|(known, _)| *known == labels).map(|(_, value)| value.number())?;
    rate(now, before, time)
}

fn line(text: &mut String, name: &str, value: u64, rate: Option<u64>) {
    let is_bytes = name.ends_with("_bytes");
    let shown = if is_bytes { HumanBytes(value).to_string() } else { value.to_string() };
    let rate = rate.map_or_else(String::new, |rate| if is_bytes { format!("{}/s", HumanBytes(rate)) } else { format!("{rate}/s") });
    let _ = writeln!(text, "{}", format!("{name:<28}{shown:>14}{rate:>16}").trim_end());
}

fn time(text: &mut String, name: &str, spread: &Spread) {
    if spread.count > 0 {
        let part = |label, seconds| format!("{label} {:<10}", short(seconds));
        let parts = [part("p50", spread.p50_seconds), part("p90", spread.p90_seconds), part("p99", spread.p99_seconds)];
        let _ = writeln!(text, "{}", format!("{name:<28}{:>14}  {}", spread.count, parts.concat()).trim_end());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::stats;
    use super::*;

    fn lines(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    #[test]
    fn everything_that_is_told_is_shown_with_its_unit() {
        let mut stats = stats(&[("retries", 3), ("read_bytes", 5 << 30), ("a_new_one", 12)]);
        let by = [("2xx".to_owned(), Reading::Number(4)), ("5xx".to_owned(), Reading::Number(0))].into();
        stats.counters.insert("answered_requests".into(), Reading::By([("get".to_owned(), Reading::By(by))].into()));
        let text = of(Looks { now: &stats, before: None });
        assert_eq!(
            lines(&text),
            [
                vec!["read_bytes", "5.00", "GiB"],
                vec!["answered_requests", "get", "2xx", "4"],
                vec!["retries", "3"],
                vec!["budget_leased_bytes", "3.00", "MiB"],
                vec!["a_new_one", "12"],
            ]
        );
    }

    #[test]
    fn rates_stand_beside_what_they_are_of() {
        let before = stats(&[("read_bytes", 1 << 20), ("retries", 9)]);
        let now = stats(&[("read_bytes", 5 << 20), ("retries", 9), ("new", 1)]);
        let text = of(Looks { now: &now, before: Some((Duration::from_secs(2), &before)) });
        assert!(text.contains("2.00 MiB/s") && text.contains("0/s"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("new") && line.ends_with('1')), "{text}");
    }
}
