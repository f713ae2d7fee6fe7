//! Options that are changed while they are in use: each is looked at by what it does, not by what is said of it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use libtest_mimic::Trial;
use serde_json::Value;

use super::place::{Said, program, run, soon};
use super::support::mounts::{Daemon, Mount, trial};
use super::support::{Effect, Fault, Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("the_log_tells_more_and_less_from_then_on", log_level),
        trial("windows_run_ahead_as_far_as_they_are_told", prefetch_chunks),
        trial("requests_in_flight_are_as_many_as_may_be", prefetch_concurrency),
        trial("memory_is_given_back_when_its_limit_shrinks", memory_limit),
        trial("what_is_learnt_from_then_on_is_believed_as_long_as_was_said", ttls),
        trial("what_can_be_changed_is_listed_and_everything_else_is_refused_by_name", refused),
    ]
}

const MIB: u64 = 1 << 20;

fn ctl(args: &[&str], mount: &Path) -> Said {
    let mut command = program();
    command.arg("ctl").args(args).arg(mount);
    run(command)
}

#[track_caller]
fn set(name: &str, value: &str, mount: &Mount) {
    let said = ctl(&["set", name, value], mount.path()).succeeds();
    assert!(said.out.contains(&format!("{name} = {value}")), "{}", said.out);
}

fn gauge(mount: &Mount, name: &str) -> u64 {
    sum(mount, &[name])
}

/// Several, as they are in one moment.
fn sum(mount: &Mount, names: &[&str]) -> u64 {
    let text = fs::read_to_string(mount.join(".windlass/stats")).expect("it is there");
    let stats: Value = serde_json::from_str(&text).expect("it is JSON");
    names.iter().map(|&name| stats["gauges"][name].as_u64().unwrap_or_else(|| panic!("{name} is no gauge: {text}"))).sum()
}

fn log_level() {
    let server = S3Server::start();
    for name in ["one", "two", "three"] {
        server.put(name, "content");
    }
    let mount = Daemon::new(&server).start();
    let again = "request failed, trying again";
    let fail_once = |name: &str| {
        server.clear_faults();
        server.fault(Fault::new(Effect::Status(500)).kind(Kind::Get).key(name).nth(1));
        assert_eq!(fs::read(mount.join(name)).expect("after a retry"), b"content");
    };
    fail_once("one");
    assert!(!mount.log().contains(again), "{}", mount.log());
    set("log-level", "debug", &mount);
    fail_once("two");
    mount.wait_for_log(|log| log.matches(again).count() == 1);
    set("log-level", "warn", &mount);
    fail_once("three");
    assert_eq!(mount.log().matches(again).count(), 1, "{}", mount.log());
    let said = ctl(&["set", "log-level", "loud"], mount.path());
    assert!(said.code == Some(2) && said.err.contains("windlass::reader=debug"), "{}", said.err);
}

fn open(mount: &Mount, name: &str) -> File {
    // Past the kernel's pages, so that only what is read here is read.
    File::options().read(true).custom_flags(libc::O_DIRECT).open(mount.join(name)).expect("there")
}

/// The end of what was asked for of an object.
fn asked(server: &S3Server, key: &str) -> u64 {
    let gets = server.of_kind(Kind::Get).into_iter().filter(|get| get.key == key);
    gets.filter_map(|get| get.range).map(|range| range.end).max().unwrap_or(0)
}

fn read(file: &File, mib: u64) {
    file.read_exact_at(&mut vec![0; MIB as usize], mib * MIB).expect("it can be read");
}

fn prefetch_chunks() {
    let server = S3Server::start();
    for name in ["none", "some"] {
        server.put_synthetic(name, 64 * MIB);
    }
    let mount = Daemon::new(&server).arg("--chunk-size", "1MiB").start();
    set("prefetch-chunks", "0", &mount);
    let file = open(&mount, "none");
    for mib in 0..8 {
        read(&file, mib);
        assert_eq!(asked(&server, "none"), (mib + 1) * MIB, "nothing ahead");
    }
    set("prefetch-chunks", "16", &mount);
    for mib in 8..16 {
        read(&file, mib);
    }
    assert!(server.wait_for(|_| asked(&server, "none") == 32 * MIB), "{}", asked(&server, "none"));
    let file = open(&mount, "some");
    set("prefetch-chunks", "2", &mount);
    for mib in 0..8 {
        read(&file, mib);
    }
    assert!(server.wait_for(|_| asked(&server, "some") == 10 * MIB), "{}", asked(&server, "some"));
}

fn prefetch_concurrency() {
    let server = S3Server::start();
    server.put_synthetic("file", 64 * MIB);
    let daemon = Daemon::new(&server).arg("--chunk-size", "1MiB").arg("--prefetch-chunks", "16");
    let mount = daemon.arg("--prefetch-concurrency", "1").arg("--stall-timeout", "5s").start();
    // The first answers stop in the middle until something is asked for again.
    server.fault(Fault::new(Effect::Stall(1000, None)).kind(Kind::Get).first(4));
    let file = open(&mount, "file");
    let reading = std::thread::spawn(move || read(&file, 0));
    assert!(server.wait_for(|requests| requests.iter().any(|request| request.kind == Kind::Get)));
    assert_eq!((server.count(Kind::Get), gauge(&mount, "requests_in_flight")), (1, 1), "the others queue");
    set("prefetch-concurrency", "8", &mount);
    assert!(server.wait_for(|requests| requests.iter().filter(|request| request.kind == Kind::Get).count() >= 3), "they went at once");
    reading.join().expect("it is read in the end");
}

fn memory_limit() {
    let server = S3Server::start();
    server.put_synthetic("file", 256 * MIB);
    let daemon = Daemon::new(&server).arg("--chunk-size", "1MiB").arg("--prefetch-chunks", "200").arg("--memory-limit", "512MiB");
    let mount = daemon.start();
    let file = open(&mount, "file");
    for mib in 0..12 {
        read(&file, mib);
    }
    assert!(soon(|| gauge(&mount, "budget_leased_bytes") > 150 * MIB), "{}", gauge(&mount, "budget_leased_bytes"));
    let said = ctl(&["set", "memory-limit", "64MiB"], mount.path());
    assert!(said.code == Some(2) && said.err.contains("at least 128MiB"), "{}", said.err);
    set("memory-limit", "128MiB", &mount);
    let in_use = || sum(&mount, &["budget_leased_bytes", "budget_pooled_bytes"]);
    assert!(soon(|| in_use() <= 128 * MIB), "{}", in_use());
    for mib in 12..256 {
        read(&file, mib);
        assert!(mib % 16 != 0 || in_use() <= 128 * MIB, "{}", in_use());
    }
    assert_eq!(gauge(&mount, "budget_limit_bytes"), 128 * MIB);
}

fn ttls() {
    let server = S3Server::start();
    server.put("old", "1");
    server.put("new", "1");
    let mount = Daemon::new(&server).arg("--stat-cache-ttl", "3600s").arg("--negative-ttl", "3600s").start();
    let size = |name| fs::metadata(mount.join(name)).expect("there").len();
    assert!((size("old"), mount.join("early").exists()) == (1, false));
    set("stat-cache-ttl", "0s", &mount);
    set("negative-ttl", "0s", &mount);
    assert!((size("new"), mount.join("late").exists()) == (1, false));
    for name in ["old", "new", "early", "late"] {
        server.put(name, "longer");
    }
    assert_eq!((size("old"), size("new")), (1, 6), "what was learnt before keeps its time");
    assert_eq!((mount.join("early").exists(), mount.join("late").exists()), (false, true));
    drop(mount);
    let mount = Daemon::new(&server).arg("--stat-cache-ttl", "0s").start();
    let said = ctl(&["set", "stat-cache-ttl", "5s"], mount.path());
    assert!(said.code == Some(2) && said.err.contains("without a metadata cache"), "{}", said.err);
}

fn refused() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).flag("--hedge=true").start();
    let shown = ctl(&["get"], mount.path()).succeeds().out;
    let listed: Vec<_> = shown.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
    let live: std::collections::BTreeSet<_> =
        windlass::config::OPTIONS.iter().filter(|spec| spec.fixed.is_none()).map(|spec| spec.name).collect();
    assert_eq!(listed.iter().copied().collect::<std::collections::BTreeSet<_>>(), live);
    let json: Value = serde_json::from_str(&ctl(&["get", "--json"], mount.path()).succeeds().out).expect("it is JSON");
    assert_eq!(json["hedge"].as_str(), Some("true"));
    set("hedge", "false", &mount);
    set("backward-chunks", "3", &mount);
    for (name, value, words) in [
        ("chunk-size", "8MiB", &["chunk-size cannot be changed while it is mounted", "mount it again"][..]),
        ("endpoint", "http://x", &["endpoint cannot be changed"]),
        ("read-only", "true", &["read-only cannot be changed", "kernel"]),
        ("prefetch-chunks", "many", &["prefetch-chunks=many", "0..4096"]),
        ("prefech-chunks", "1", &["did you mean prefetch-chunks"]),
        ("memory-limit", "1", &["memory-limit=1"]),
    ] {
        let said = ctl(&["set", name, value], mount.path());
        assert_eq!((said.code, said.err.lines().count()), (Some(2), 1), "{name}: {}", said.err);
        assert!(words.iter().all(|word| said.err.contains(word)), "{name}: {}", said.err);
    }
    let after = ctl(&["get"], mount.path()).succeeds().out;
    assert_eq!(after, shown.replace("hedge = true", "hedge = false").replace("backward-chunks = 1", "backward-chunks = 3"));
}
