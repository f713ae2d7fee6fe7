//! Secrets stay in the process: nothing it says at any level, and nothing others can see of it, carries them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use libtest_mimic::Trial;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::place::{Place, run, soon};
use super::support::mounts::trial;
use super::support::{ACCESS_KEY, S3Server, SECRET_KEY};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("no_level_of_the_log_and_no_command_line_shows_a_secret", everywhere),
        trial("core_dumps_are_off_unless_they_are_asked_for", core_dumps),
        trial("profile_files_that_others_can_write_are_refused", profile_files),
        trial("a_umask_of_0_lets_others_write_to_nothing", umask),
    ]
}

/// What says that a whole request was printed, whatever of it the SDK of today blanks out by itself.
const REQUESTS: [&str; 2] = ["canonical_request", "transmitting request"];

/// Sent along and not looked at by the server.
const SESSION_TOKEN: &str = "the-session-token";

fn everywhere() {
    let server = S3Server::start();
    server.put("file", vec![7; 3 << 20]);
    let passwd = fs::read_to_string(server.passwd_file()).expect("it is ours");
    assert_eq!(passwd, format!("{ACCESS_KEY}:{SECRET_KEY}\n"));
    let levels = [
        "trace",
        "trace,aws_sigv4=trace,aws_sdk_s3=trace,aws_smithy_runtime=trace,hyper=trace,hyper_util=trace,reqwest=trace,rustls=trace,windlass=trace",
    ];
    for (level, format, by_file) in [(levels[0], "text", true), (levels[1], "text", false), (levels[1], "json", true)] {
        let place = Place::new();
        let log = place.beside("log");
        let mut command = place.mount(&server);
        command.args(["--log-level", level, "--log-format", format]).arg("--log-file").arg(&log);
        if !by_file {
            command.env("AWS_SESSION_TOKEN", SESSION_TOKEN);
        }
        if by_file {
            command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY").arg("--passwd-file").arg(server.passwd_file());
        }
        let said = run(command).succeeds();
        assert_eq!(place.read("file").len(), 3 << 20);
        let _ = fs::read(place.at.join("absent"));
        let line = fs::read(format!("/proc/{}/cmdline", place.daemon())).expect("it runs");
        place.umount().succeeds();
        assert!(soon(|| place.pids().is_empty()));

        let log = fs::read_to_string(log).expect("the daemon wrote a log");
        // Root's mount tells of its read-ahead at debug; a user's says nothing below info.
        assert!(!rustix::process::geteuid().is_root() || log.contains("DEBUG"), "the level was not taken: {log}");
        let line = String::from_utf8_lossy(&line);
        for (name, text) in [("log", log.as_str()), ("command line", &line), ("stdout", &said.out), ("stderr", &said.err)] {
            for secret in [SECRET_KEY, SESSION_TOKEN, "X-Amz-Signature", "Signature=", "AWS4-HMAC"].into_iter().chain(REQUESTS) {
                let at = text.lines().find(|line| line.contains(secret));
                assert!(at.is_none(), "{level} {format}: the {name} holds {secret}: {at:?}");
            }
        }
    }
    assert!(server.requests().iter().any(|request| request.authorization.is_some() || request.query.contains("X-Amz-Signature")));
}

/// The soft limit for the size of a core dump, as /proc/PID/limits says it.
fn core_limit(pid: i32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("the kernel has this limit");
    line.split_whitespace().next().expect("it has a value").to_owned()
}

fn core_dumps() {
    // What the daemon inherits: as much as may be.
    let limit = getrlimit(Resource::Core);
    setrlimit(Resource::Core, Rlimit { current: limit.maximum, ..limit }).expect("it is not more than the hard limit");
    let inherited = core_limit(std::process::id().cast_signed());
    let server = S3Server::start();
    server.put("file", "content");
    for (words, expected) in [(vec![], "0"), (vec!["--supervised"], "0"), (vec!["--core-dumps"], &*inherited)] {
        let place = Place::new();
        let mut command = place.mount(&server);
        command.args(&words);
        run(command).succeeds();
        assert_eq!(place.read("file"), b"content");
        let limits: Vec<_> = place.pids().into_iter().map(core_limit).collect();
        assert!(!limits.is_empty() && limits.iter().all(|limit| limit == expected), "{words:?}: {limits:?}, not {expected}");
        place.umount().succeeds();
    }
}

fn profile_files() {
    let server = S3Server::start();
    server.put("file", "content");
    let text = format!("[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n");
    for mode in [0o600, 0o644, 0o666] {
        let place = Place::new();
        let (file, log) = (place.write("credentials", &text, mode), place.beside("log"));
        let mount = |profile: Option<&str>| {
            let mut command = place.mount(&server);
            command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY").env("AWS_SHARED_CREDENTIALS_FILE", &file);
            command.args(profile.into_iter().flat_map(|name| ["--profile", name])).arg("--log-file").arg(&log);
            run(command)
        };
        let file = file.display();
        let absent = mount(Some("nosuch"));
        assert!(
            absent.code != Some(0) && absent.err.contains("the profile \"nosuch\" is not in ") && absent.err.contains("--profile"),
            "{}",
            absent.err
        );
        for profile in [None, Some("default")] {
            let said = mount(profile);
            if mode == 0o666 {
                let words = format!("the credentials file {file} can be written by others (mode 666): chmod 600 {file}");
                assert!(said.code != Some(0) && said.err.contains(&words) && said.err.lines().count() == 1, "{}", said.err);
                continue;
            }
            said.succeeds();
            assert_eq!(place.read("file"), b"content");
            place.umount().succeeds();
            assert!(soon(|| place.pids().is_empty()));
        }
        let log = fs::read_to_string(&log).unwrap_or_default();
        let warned = log.matches("can be read by others (mode 644)").count();
        // Once in each of the two mounts.
        assert_eq!(warned, if mode == 0o644 { 2 } else { 0 }, "{mode:o}: {log}");
    }
}

fn umask() {
    let (server, place) = (S3Server::start(), Place::new());
    let (log, socket) = (place.beside("log"), place.beside("metrics.sock"));
    let mut mount = place.mount(&server);
    mount.arg("--log-file").arg(&log).args(["--metrics-listen", &format!("unix:{}", socket.display())]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "umask 0; exec \"$@\"", "sh"]).arg(mount.get_program()).args(mount.get_args());
    command.env_clear().envs(mount.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(command).succeeds();
    for path in [log, socket] {
        let mode = fs::metadata(&path).expect("the mount made it").permissions().mode();
        assert_eq!(mode & 0o022, 0, "{}: {mode:o}", path.display());
    }
    place.umount().succeeds();
}
