//! `windlass doctor` on set-ups that are broken in one way each: it names the cause, in its place among the steps, with the fix and the exit
//! code. Invariant: a test leaves no mount, process or object.

#[path = "../mount_life/place.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod place;
#[path = "../support/mod.rs"]
mod support;
#[path = "../mount_life/wrong_server.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod wrong_server;

mod machine;
mod store;

use std::process::Command;

use place::{Said, program, run};
use support::{BUCKET, REGION, S3Server};

fn main() -> std::process::ExitCode {
    support::mounts::run([store::trials(), machine::trials()].into_iter().flatten().collect())
}

/// `windlass doctor` of a bucket at an endpoint, and nothing in the environment that could decide anything.
fn doctor(source: &str, endpoint: &str) -> Command {
    let mut command = program();
    command.arg("doctor").arg(source).args(["--endpoint", endpoint, "--region", REGION, "--path-style"]);
    command.args(["--connect-timeout", "20s", "--request-timeout", "40s"]);
    let alone = [("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_CONFIG_FILE", "/dev/null"), ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")];
    command.envs(alone).envs([("AWS_ACCESS_KEY_ID", support::ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", support::SECRET_KEY)]);
    command
}

fn doctor_of(server: &S3Server) -> Command {
    doctor(&format!("s3://{BUCKET}"), &server.endpoint())
}

/// The line of a step: its level and its words.
fn line(said: &Said, what: &str) -> Option<(String, String)> {
    said.out.lines().find_map(|line| {
        let (level, rest) = line.split_once(' ')?;
        let words = rest.trim_start().strip_prefix(what)?;
        words.starts_with(' ').then(|| (level.to_owned(), words.trim_start().to_owned()))
    })
}

/// Runs it: `what` fails with these words, everything named in `before` is in order, and nothing in `after` was looked at.
#[track_caller]
fn fails(command: Command, code: i32, what: &str, words: &[&str], before: &[&str], after: &[&str]) -> Said {
    let said = run(command);
    let (level, told) = line(&said, what).unwrap_or_else(|| panic!("nothing of {what} in\n{}{}", said.out, said.err));
    assert_eq!(level, "fail", "{}", said.out);
    for word in words {
        assert!(told.contains(word), "{word:?} is missing in {told}");
    }
    for step in before {
        assert_eq!(line(&said, step).map(|(level, _)| level).as_deref(), Some("ok"), "{step} in\n{}", said.out);
    }
    for step in after {
        assert_eq!(line(&said, step), None, "{}", said.out);
    }
    assert_eq!((said.code, said.err.as_str()), (Some(code), ""), "{}", said.out);
    assert!(!said.out.contains(support::SECRET_KEY), "{}", said.out);
    eprintln!("{what}: {told}");
    said
}
