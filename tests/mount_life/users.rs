//! Users without privilege: with fusermount3 they mount, without it they are told. Runs as root, who can become one; in a
//! mount namespace of its own, where /dev/fuse can be given to everybody as it is on other machines.

use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Completion, Trial};

use super::place::{Place, run, soon};
use super::support::mounts::why_not;
use super::support::{BUCKET, REGION, S3Server};

/// uid and gid of nobody; it has no name on some machines.
pub const NOBODY: &str = "65534";

/// What is run as nobody begins with this.
const DROP: [&str; 7] = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"];

/// Becomes a namespace with a /dev/fuse for everybody, then runs its arguments.
const GIVE_DEVICE: &str = r#"
set -e
node=$1; shift
mknod "$node" c 10 229
chmod 666 "$node"
mount --bind "$node" /dev/fuse
exec "$@"
"#;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_user_mounts_and_unmounts_through_fusermount3", &["fusermount3", "setpriv", "unshare"], with_fusermount),
        trial("a_user_without_fusermount3_is_told_to_install_it", &["setpriv", "unshare"], without_fusermount),
        trial("a_user_who_may_not_open_the_device_is_told_how", &["setpriv", "unshare"], without_device),
    ]
}

/// A test that only root can prepare.
pub fn trial(name: &str, programs: &'static [&'static str], test: fn()) -> Trial {
    Trial::ignorable_test(name, move || {
        Ok(match why_not().or_else(|| why_not_another_user(programs)) {
            Some(reason) => Completion::ignored_with(reason),
            None => {
                test();
                Completion::Completed
            }
        })
    })
}

fn why_not_another_user(programs: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can become another user or let one in".into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let lacks = |program: &&&str| !std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if let Some(program) = programs.iter().find(lacks) {
        return Some(format!("{program} is not installed"));
    }
    let place = Place::new();
    let said = run(in_namespace(&place, "probe", &["true"]));
    (said.code != Some(0)).then(|| format!("no namespace with a device of its own: {}", said.err.trim()))
}

/// The program where nobody can run it: the way to where it was built may be closed to others.
pub fn program_for_all(place: &Place) -> PathBuf {
    let path = place.beside("windlass");
    std::fs::hard_link(env!("CARGO_BIN_EXE_windlass"), &path)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_windlass"), &path).map(drop))
        .expect("there is room for a copy");
    path
}

pub fn in_namespace(place: &Place, node: &str, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", GIVE_DEVICE, "sh"]).arg(place.beside(node)).args(words);
    command
}

fn with_fusermount() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("file", "content");
    // The ready file lies beside the mount point.
    for path in [place.at.as_path(), place.at.parent().expect("it is not the root")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("we are root");
    }
    let script = r#"
        set -e
        program=$1 at=$2 source=$3; shift 3
        "$program" mount "$source" "$at" "$@"
        id -u
        grep " $at " /proc/self/mountinfo
        cat "$at/file"
        "$program" umount "$at"
        if grep " $at " /proc/self/mountinfo; then exit 1; fi
        "$program" mount "$source" "$at" "$@" --foreground --ready-file "$at.ready" &
        until test -e "$at.ready"; do sleep 0.05; done
        grep -q " $at " /proc/self/mountinfo
        kill "$!"
        wait "$!"
        if grep " $at " /proc/self/mountinfo; then exit 1; fi
        echo ended in order
    "#;
    let (program, endpoint) = (program_for_all(&place), server.endpoint());
    let text = |path: &std::path::Path| path.to_str().expect("it is text").to_owned();
    let (program, at, source) = (text(&program), text(&place.at), format!("s3://{BUCKET}"));
    let words = ["sh", "-c", script, "sh", &program, &at, &source, "--endpoint", &endpoint, "--region", REGION, "--path-style"];
    let mut command = in_namespace(&place, "fuse", &[&DROP[..], &words].concat());
    command.envs(server.client_env()).env("HOME", "/nonexistent");
    let said = run(command).succeeds();
    for word in ["mounted at", NOBODY, " - fuse.windlass ", "content", "is unmounted", "ended in order"] {
        assert!(said.out.contains(word), "{word:?} is missing in {}{}", said.out, said.err);
    }
    assert!(soon(|| place.pids().is_empty()), "the daemon ends with its mount");
}

fn refused_as_nobody(device: bool, words: &[&str]) {
    let (server, place) = (S3Server::start(), Place::new());
    let program = program_for_all(&place);
    let (program, at, source, endpoint) =
        (program.to_str().expect("text"), place.at.to_str().expect("text"), format!("s3://{BUCKET}"), server.endpoint());
    // PATH is emptied behind the programs that come before.
    let mount = ["env", "PATH=/nonexistent", program, "mount", &source, at, "--endpoint", &endpoint, "--region", REGION];
    let words_run = [&DROP[..], &mount].concat();
    let mut command = if device {
        in_namespace(&place, "fuse", &words_run)
    } else {
        let mut command = Command::new("unshare");
        let take = "mknod \"$1\" c 10 229 && chmod 600 \"$1\" && mount --bind \"$1\" /dev/fuse && shift && exec \"$@\"";
        command.args(["--mount", "sh", "-c", take, "sh"]).arg(place.beside("fuse")).args(&words_run);
        command
    };
    command.envs(server.client_env());
    let said = run(command);
    assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
    assert_eq!(said.err.lines().filter(|line| !line.contains("warning")).count(), 1, "{}", said.err);
    for word in words {
        assert!(said.err.contains(word), "{word:?} is missing in {}", said.err);
    }
    assert!(!place.is_mounted() && place.pids().is_empty());
}

fn without_fusermount() {
    refused_as_nobody(true, &["fusermount3 is missing", "install the package fuse3"]);
}

fn without_device() {
    refused_as_nobody(false, &["/dev/fuse", "chmod 666 /dev/fuse"]);
}
