//! pjdfstest, a suite of what POSIX asks of a file system (`cargo install pjdfstest`). tests/data/pjdfstest.txt lists what passes: it may only grow.
//! Not run are tests of what objects cannot be: FIFOs, devices, sockets and hard links.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use libtest_mimic::{Completion, Trial};

use super::program::Program;
use super::support::S3Server;
use super::support::mounts::{Daemon, lacks, why_not};

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, flags: &'static [&'static str]| {
        Trial::ignorable_test(name, move || {
            let no_root = || (!rustix::process::geteuid().is_root()).then(|| "only root can become other users".to_owned());
            if let Some(reason) = why_not().or_else(no_root).or_else(|| lacks("pjdfstest")) {
                return Ok(Completion::ignored_with(reason));
            }
            passes_what_it_passed(flags);
            Ok(Completion::Completed)
        })
    };
    vec![trial("pjdfstest_passes_what_is_listed", &[]), trial("pjdfstest_with_posix_attributes_passes_what_is_listed", &[POSIX_ATTRIBUTES])]
}

/// A name a line; behind it the flag without which it does not pass.
const PASSING: &str = include_str!("../data/pjdfstest.txt");
const POSIX_ATTRIBUTES: &str = "--posix-attributes";

/// Users that every Debian has.
const CONFIGURATION: &str = "[features]\nposix_fallocate = {}\nutime_now = {}\nutimensat = {}\n[settings]\nnaptime = 0.02\n\
    [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"], [\"games\", \"games\"]]\n";

/// Groups of tests that are there for what objects cannot be.
const GROUPS: [&str; 3] = ["link", "mkfifo", "mknod"];
const KINDS: [&str; 4] = ["fifo", "char", "block", "socket"];

fn is_of_objects(name: &str) -> bool {
    let mut parts = name.split("::");
    !GROUPS.contains(&parts.next().unwrap_or_default()) && !parts.any(|part| KINDS.contains(&part))
}

fn passes_what_it_passed(flags: &[&str]) {
    let listed = PASSING.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let expected: BTreeSet<&str> = listed
        .filter_map(|line| match line.split_once(' ') {
            None => Some(line),
            Some((name, flag)) => flags.contains(&flag).then_some(name),
        })
        .collect();
    let (server, home) = (S3Server::start(), tempfile::tempdir().expect("there is a disk"));
    let configuration = home.path().join("pjdfstest.toml");
    fs::write(&configuration, CONFIGURATION).expect("there is room");
    let mount = flags.iter().fold(Daemon::new(&server).flag("--allow-other"), |daemon, flag| daemon.flag(flag)).start();
    // Other users come by.
    let around = mount.path().parent().expect("it is below a directory");
    fs::set_permissions(around, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let program = Program::new("pjdfstest").arg("-c").arg(&configuration).arg("-p").arg(mount.path());
    let ended = program.limit(Duration::from_secs(600)).ends();
    let said = ended.said();
    let outcome = |line: &str, word: &str| line.strip_suffix(word).map(|name| name.trim_end().to_owned());
    let passed: BTreeSet<String> = said.lines().filter_map(|line| outcome(line, " ok")).filter(|name| is_of_objects(name)).collect();
    assert!(!passed.is_empty(), "{said}");
    let new: Vec<&str> = passed.iter().map(String::as_str).filter(|name| !expected.contains(name)).collect();
    if !new.is_empty() {
        eprintln!("with {flags:?} these pass as well: add them to tests/data/pjdfstest.txt\n{}", new.join("\n"));
    }
    let missing: Vec<&&str> = expected.iter().filter(|name| !passed.contains(**name)).collect();
    assert!(missing.is_empty(), "with {flags:?} these passed once: {missing:#?}");
}
