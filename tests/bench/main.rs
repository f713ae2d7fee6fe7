//! `windlass bench` as people run it: the built program against a real store on loopback, in directories and on mounts. What is compared are
//! counts, and numbers with each other; never how fast this machine is.

#[path = "../support/mod.rs"]
mod support;

mod files;
mod fio;
mod get;
mod net;
mod read;

fn main() -> std::process::ExitCode {
    let trials = [read::trials(), get::trials(), net::trials(), files::trials(), fio::trials()];
    support::mounts::run(trials.into_iter().flatten().collect())
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
