//! Everything at once, in a bucket that fails now and then: what was acknowledged is what is seen at once, what is read back at the end, and what
//! the bucket has.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::limit::{trial_with, watched};
use crate::program::Program;
use crate::support::mounts::Daemon;
use crate::support::{Effect, Fault, S3Server};
use crate::{duration, number};

pub fn trials() -> Vec<Trial> {
    vec![trial_with(&["python3"], "stress_with_faults_keeps_every_acknowledged_state", stress)]
}

/// One request in a hundred: two kinds of errors that a store answers, and two of connections that are cut.
fn misbehave(server: &S3Server, seed: u64) {
    let effects = [Effect::Status(500), Effect::Status(503), Effect::Broken, Effect::Reset(0)];
    for (n, effect) in (0..).zip(effects) {
        server.fault(Fault::new(effect).chance(0.0025, 4 * seed + n));
    }
}

fn stress() {
    let (server, place) = (S3Server::start(), tempfile::tempdir().expect("a temporary directory can be made"));
    let mut mount = Daemon::new(&server).start();
    let (time, threads, seed) = (duration(60), number("WINDLASS_TEST_THREADS", 32), number("WINDLASS_TEST_SEED", 1));
    let result = place.path().join("result.json");
    misbehave(&server, seed);
    let program = Program::python(include_str!("stress.py")).arg(mount.path()).arg(time.as_secs().to_string());
    let program = program.arg(threads.to_string()).arg(seed.to_string()).arg(&result).limit(time + Duration::from_secs(100));
    let ended = watched(&mount, || program.ends());
    server.clear_faults();
    eprintln!("{}", ended.said().trim());
    assert!(!mount.log().contains("panicked"), "seed {seed}: a thread of the daemon panicked; {}", ended.said());
    assert!(mount.is_mounted(), "seed {seed}: nothing is mounted any more; {}", ended.said());
    assert!(ended.status.success(), "seed {seed}: {}\n{}", ended.status, ended.said());
    // With the daemon gone the bucket has all of it.
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait().code(), Some(0), "seed {seed}: {}", mount.log());
    let known: Value = serde_json::from_slice(&fs::read(result).expect("it was written")).expect("it is JSON");
    let mut wrong = Vec::new();
    for (key, may) in known["own"].as_object().expect("it is an object") {
        let stored = server.stored(key).map(|(stored, _)| (stored.len() as u64, hex::encode(Sha256::digest(&stored))));
        let stored = stored.map_or(Value::Null, |(size, sum)| Value::from(vec![Value::from(size), Value::from(sum)]));
        if !may.as_array().expect("it is a list").contains(&stored) {
            wrong.push(format!("{key} is stored as {stored}, and may be one of {may}"));
        }
    }
    for key in known["shared"].as_array().expect("it is a list").iter().filter_map(Value::as_str) {
        let whole = server.stored(key).is_some_and(|(stored, _)| is_whole(&stored));
        if !whole {
            wrong.push(format!("{key} has no whole content"));
        }
    }
    assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    assert!(known["counts"]["look"].as_u64() > Some(200), "{}", known["counts"]);
}

/// A head of four words, the last two of which are the size and the sum of what follows.
fn is_whole(content: &[u8]) -> bool {
    let Some(end) = content.iter().position(|&byte| byte == b'\n') else { return false };
    let (head, body) = (String::from_utf8_lossy(&content[..end]), &content[end + 1..]);
    let words: Vec<&str> = head.split(' ').collect();
    words.len() == 4 && words[2] == body.len().to_string() && words[3] == hex::encode(Sha256::digest(body))
}
