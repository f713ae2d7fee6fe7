//! SQLite, whose own check of a database says whether every page is the one that it wrote: with every kind of journal, on a new database and
//! on one that was there before the mount, and with writers that are killed.

use std::path::Path;

use libtest_mimic::Trial;

use crate::limit::trial_with;
use crate::number;
use crate::program::Program;
use crate::support::mounts::Daemon;
use crate::support::{S3Server, python};

const SCRIPT: &str = include_str!("sqlite.py");

/// A log without shared memory is for one connection alone.
const MODES: [(&str, &[&str]); 6] = [
    ("delete", &["alone", "beside-reader"]),
    ("truncate", &["alone", "beside-reader"]),
    ("persist", &["alone", "beside-reader"]),
    ("memory", &["alone", "beside-reader"]),
    ("wal", &["alone"]),
    ("off", &["alone", "beside-reader"]),
];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (mode, companies) in MODES {
        for is_new in [true, false] {
            let database = if is_new { "new" } else { "existing" };
            let name = format!("sqlite_journal_{mode}_on_{database}_database_is_intact");
            trials.push(trial_with(&["python3"], &name, move || in_mode(mode, companies, is_new)));
        }
    }
    trials.push(trial_with(&["python3"], "sqlite_writer_killed_at_any_point_leaves_it_intact", kills));
    trials
}

fn sqlite(verb: &str, path: &Path) -> Program {
    Program::python(SCRIPT).arg(verb).arg(path)
}

/// The object, in a file of this machine.
#[track_caller]
fn fetch(server: &S3Server, key: &str, to: &Path) {
    let (content, _) = server.stored(key).unwrap_or_else(|| panic!("{key} is not in the bucket"));
    std::fs::write(to, content).expect("there is room");
}

fn in_mode(mode: &str, companies: &[&str], is_new: bool) {
    let (server, place) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    let local = place.path().join("local.db");
    if !is_new {
        sqlite("create", &local).succeeds();
    }
    let names: Vec<String> = companies.iter().map(|company| format!("{company}.db")).collect();
    if !is_new {
        let database = std::fs::read(&local).expect("it was made just now");
        names.iter().for_each(|name| drop(server.put(name, database.clone())));
    }
    let mount = Daemon::new(&server).start();
    let mut wrong = Vec::new();
    for (name, company) in names.iter().zip(companies) {
        let worked = sqlite("work", &mount.join(name)).arg(mode).arg(company).ends();
        if !worked.status.success() {
            wrong.push(format!("{name} through the mount: {}", last_line(&worked.said())));
        }
        fetch(&server, name, &local);
        let checked = sqlite("check", &local).ends();
        if !checked.status.success() {
            wrong.push(format!("{name} in the bucket: {}", last_line(&checked.said())));
        }
        if server.stored(&format!("{name}-wal")).is_some() {
            wrong.push(format!("{name}-wal is left in the bucket"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn last_line(text: &str) -> &str {
    text.trim().lines().last().unwrap_or("it failed without a word")
}

fn kills() {
    let (server, place) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    let (mut mount, count) = (Daemon::new(&server).start(), number("WINDLASS_TEST_KILLS", 10));
    let limit = std::time::Duration::from_secs(240 + 10 * count);
    for seed in [1, 2] {
        let name = format!("killed-{seed}.db");
        let kills = (count / 2).max(1);
        eprintln!("{}", sqlite("kill", &mount.join(&name)).arg(kills.to_string()).arg(seed.to_string()).limit(limit).succeeds().trim());
    }
    // All of it is in the bucket with the daemon gone, too.
    mount.signal(rustix::process::Signal::TERM);
    assert_eq!(mount.wait().code(), Some(0), "{}", mount.log());
    for seed in [1, 2] {
        let local = place.path().join("killed.db");
        fetch(&server, &format!("killed-{seed}.db"), &local);
        let checked = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('pragma integrity_check').fetchone()[0])";
        assert_eq!(python::run(checked, &[&local]), "ok");
    }
}
