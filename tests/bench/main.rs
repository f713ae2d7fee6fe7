//! `windlass bench` as people run it: the built program against a real store on loopback, in directories and on mounts. What is compared are
//! counts, and numbers with each other; never how fast this machine is.

#[path = "../transfer/program.rs"]
mod program;
#[path = "../support/mod.rs"]
mod support;

mod files;
mod fio;
mod get;
mod net;
mod read;

use std::process::{Command, Stdio};

use program::Said;

fn main() -> std::process::ExitCode {
    let trials = [read::trials(), get::trials(), net::trials(), files::trials(), fio::trials()];
    support::mounts::run(trials.into_iter().flatten().collect())
}

/// The program without a server, and nothing in its environment that could decide anything.
fn windlass(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

/// Runs it to its end.
fn said(mut command: Command) -> Said {
    program::said(command.output().expect("the program starts"))
}

/// The report that it printed.
#[track_caller]
fn report(said: &Said) -> serde_json::Value {
    assert_eq!(said.code, 0, "{}", said.err);
    program::json(said).remove(0)
}

/// A test that needs nothing.
fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> libtest_mimic::Trial {
    libtest_mimic::Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// The names of a report's numbers: facts, and those of its rows.
fn keys(json: &serde_json::Value) -> std::collections::BTreeSet<String> {
    let object = |value: &serde_json::Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let rows = json["rows"].as_array().into_iter().flatten().flat_map(object);
    object(json).into_iter().filter(|key| key != "rows" && key != "bench").chain(rows).collect()
}
