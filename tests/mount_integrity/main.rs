//! Whose bytes are these: ordinary programs, many threads, other clients and kills at a real mount, and no byte that was acknowledged is lost,
//! no byte is shown that is not the file's. Every trial counts and compares; none asserts a time. `WINDLASS_TEST_SECONDS`, `WINDLASS_TEST_KILLS`,
//! `WINDLASS_TEST_FSX_OPS`, `WINDLASS_TEST_SEEDS` and `WINDLASS_TEST_THREADS` make them longer by hand.

#[path = "../support/mod.rs"]
mod support;

mod limit;
mod names;
mod own;
mod posix;
mod program;
mod random;
mod reopen;
mod sizes;
mod slow_link;
mod sqlite;
mod stress;
mod versions;

use std::time::Duration;

fn main() -> std::process::ExitCode {
    let trials = [
        sizes::trials(),
        own::trials(),
        reopen::trials(),
        sqlite::trials(),
        random::trials(),
        names::trials(),
        versions::trials(),
        posix::trials(),
        stress::trials(),
        slow_link::trials(),
    ];
    support::mounts::run(trials.into_iter().flatten().collect())
}

/// The number in the environment variable `name`, or `default`.
fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_default();
    if text.is_empty() { default } else { text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")) }
}

/// How long a trial goes on that looks for something rare.
fn duration(default_seconds: u64) -> Duration {
    Duration::from_secs(number("WINDLASS_TEST_SECONDS", default_seconds))
}
