//! The log of requests: which lines one read makes, and what no level shows.

use std::fs;
use std::io::Write;
use std::path::Path;

use libtest_mimic::Trial;

use super::support::mounts::{Daemon, trial};
use super::support::{Effect, Fault, Kind, S3Server, SECRET_KEY};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("the_requests_of_one_cat_are_those_in_the_readme", one_cat),
        trial("every_attempt_is_a_line_and_its_number", attempts),
        trial("headers_are_logged_at_trace_without_credentials", headers),
    ]
}

/// The lines of requests, each without what differs from run to run, in the order of their text: some are sent at the same time.
fn lines(text: &str) -> Vec<String> {
    let differs = |word: &&str| !["host=", "bucket=", "ms=", "request_id="].iter().any(|name| word.starts_with(name));
    let requests = text.lines().filter_map(|line| line.split_once(" DEBUG windlass::requests: ").map(|(_, fields)| fields));
    let mut lines: Vec<String> = requests.map(|fields| fields.split(' ').filter(differs).collect::<Vec<_>>().join(" ")).collect();
    lines.sort();
    lines
}

fn one_cat() {
    let server = S3Server::start();
    server.put_synthetic("dir/file", 300_000);
    let mount = Daemon::new(&server).arg("--log-level", "windlass::requests=debug,info").start();
    let before = mount.log().len();
    assert_eq!(fs::read(mount.join("dir/file")).expect("it is there").len(), 300_000);
    mount.wait_for_log(|log| log[before..].contains("op=GET"));
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("it is part of the sources");
    let log = mount.log();
    assert_eq!(lines(&log[before..]), lines(&readme), "{}", &log[before..]);
    // As many as the server saw.
    assert_eq!(lines(&log).len(), server.requests().len(), "{log}");
}

fn attempts() {
    let server = S3Server::start();
    server.put_synthetic("file", 5000);
    server.fault(Fault::new(Effect::Status(503)).kind(Kind::Get).first(1));
    server.fault(Fault::new(Effect::Truncate(1000)).kind(Kind::Get).nth(2));
    let mount = Daemon::new(&server).arg("--log-level", "debug").start();
    fs::read(mount.join("file")).expect("the third attempt brings it");
    mount.wait_for_log(|log| log.contains("attempt=3"));
    let gets: Vec<String> = lines(&mount.log()).into_iter().filter(|line| line.contains("op=GET")).collect();
    assert_eq!(gets.len(), 3, "{gets:?}");
    let of = |attempt: usize| gets.iter().find(|line| line.contains(&format!("attempt={attempt}"))).expect("it is a line");
    for (line, words) in [of(1), of(2), of(3)].into_iter().zip([
        // The GET of a whole object has no range.
        ["status=503", "attempt=1", "key=\"file\""],
        ["bytes=1000", "attempt=2", "error=\"short body: got 1000 of 5000 bytes\""],
        ["bytes=4000", "attempt=3", "range=\"1000-4999\""],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
    }
}

fn headers() {
    let server = S3Server::start();
    server.put_synthetic("file", 5000);
    let token = "a-session-token";
    server.keyring().admit("session", SECRET_KEY, Some(token));
    let daemon = Daemon::new(&server).arg("--log-level", "trace").env("AWS_ACCESS_KEY_ID", "session").env("AWS_SESSION_TOKEN", token);
    let mount = daemon.start();
    fs::read(mount.join("file")).expect("it is there");
    fs::File::create(mount.join("new")).and_then(|mut file| file.write_all(b"content")).expect("it is stored");
    mount.wait_for_log(|log| log.contains("op=PUT"));
    let log = mount.log();
    assert!(
        log.contains("> GET /") && log.contains("> PUT /") && log.contains("authorization: ********") && log.contains("< 200 "),
        "{log}"
    );
    assert!(log.contains("x-amz-security-token: ********") && log.contains("x-amz-date: "), "{log}");
    for secret in [SECRET_KEY, token, "Signature=", "AWS4-HMAC"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}
