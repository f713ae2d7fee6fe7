//! `bench fio`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::{Completion, Trial};
use rustix::process::{Pid, Signal, kill_process};

use crate::program::Said;
use crate::support::mounts::{self, Daemon, lacks, wait_until};
use crate::support::{Kind, S3Server};
use crate::{program, report, said, trial, windlass};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("every job is listed with its question", lists),
        trial("without fio that is said in one line", misses_fio),
        with_fio("jobs run in any directory, and what they wrote is removed", runs_anywhere),
        with_fio("files that are there are read, and never written", keeps_what_is_there),
        with_fio("an interrupted fio is ended and cleaned up after", is_interrupted),
        mounts::trial_with(&["fio"], "on a mount the daemon's part is shown", shows_the_daemon),
    ]
}

fn with_fio(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = lacks("fio") {
            return Ok(Completion::ignored_with(reason));
        }
        test();
        Ok(Completion::Completed)
    })
}

fn command(dir: &Path, args: &[&str]) -> Command {
    windlass(&[&["bench", "fio", dir.to_str().unwrap()], args].concat())
}

fn bench(dir: &Path, args: &[&str]) -> Said {
    said(command(dir, args))
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn lists() {
    let told = said(windlass(&["bench", "fio", "--list"])).succeeds();
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fio-jobs")).unwrap().count();
    assert_eq!(told.text().lines().count(), files);
    assert!(told.text().lines().all(|line| line.contains('?')), "{}", told.text());
}

fn misses_fio() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(dir.path(), &["small-files"]);
    command.env("PATH", "/nowhere");
    said(command).fails(2, &["fio is not installed"]);
    bench(dir.path(), &["sideways"]).fails(2, &["sideways", "--list"]);
}

fn runs_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("mine"), "not from here").unwrap();
    let told = bench(dir.path(), &["small-files", "random-write", "--size", "16MiB", "--json"]).succeeds();
    let json = report(&told);
    let rows = json["rows"].as_array().unwrap();
    let jobs: Vec<_> = rows.iter().map(|row| (row["job"].as_str().unwrap(), row["part"].as_str().unwrap())).collect();
    assert_eq!(jobs, [("small-files-write", "small"), ("small-files", "small"), ("random-write", "random")]);
    for row in rows {
        assert!(row["megabytes_per_second"].as_f64().unwrap() > 0.0 && row["operations_per_second"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["daemon_cpu_percent"].is_null() && row["daemon_peak_mib"].is_null(), "{row}");
    }
    assert!(json["daemon_pid"].is_null() && told.err.contains("removed"), "{}", told.err);
    assert_eq!(names(dir.path()), ["mine"]);
}

fn keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("fio_small");
    fs::create_dir(&folder).unwrap();
    bench(dir.path(), &["small-files-write"]).fails(2, &["fio_small is there already"]);
    // Without the files it says what fio says.
    bench(dir.path(), &["small-files"]).fails(1, &["small-files small", "fio failed"]);
    assert_eq!((names(dir.path()), names(&folder).len()), (vec!["fio_small".to_owned()], 0));
    bench(dir.path(), &["sequential-write", "--size", "1000TiB"]).fails(2, &["MiB are free"]);
    assert_eq!(names(dir.path()), ["fio_small"]);
}

fn is_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(dir.path(), &["small-files-write", "--size", "8GiB"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has_files = || names(dir.path()).first().is_some_and(|folder| !names(&dir.path().join(folder)).is_empty());
    wait_until("fio has begun", has_files);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    program::said(child.wait_with_output().unwrap()).fails(143, &["interrupted"]);
    assert_eq!(names(dir.path()), [""; 0]);
}

fn shows_the_daemon() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let json = report(&bench(mount.path(), &["small-files", "--size", "16MiB", "--json"]));
    assert_eq!(json["daemon_pid"].as_u64(), Some(mount.pid().into()));
    for row in json["rows"].as_array().unwrap() {
        assert!(row["daemon_peak_mib"].as_f64().is_some_and(|mib| mib > 1.0) && row["daemon_cpu_percent"].is_number(), "{row}");
    }
    assert_eq!((server.count(Kind::Put) >= 128, names(mount.path()).len()), (true, 0));
}
