//! What is wrong with this machine: made so in a mount namespace, by limits, or by what the program is given.

use std::process::Command;

use libtest_mimic::{Completion, Trial};

use super::fails;
use super::place::{Place, run};
use super::support::mounts::lacks;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("without_the_device_of_fuse_it_says_so", &["unshare", "sh", "mount"], without_device),
        trial("without_fusermount3_a_user_is_told_to_install_it", &["setpriv"], without_fusermount),
        trial("a_low_limit_of_open_files_is_told", &["sh"], open_files),
        trial("a_full_disk_is_told", &["unshare", "sh", "mount"], full_disk),
    ]
}

/// A test that only root can prepare.
fn trial(name: &str, programs: &'static [&'static str], test: fn()) -> Trial {
    Trial::ignorable_test(name, move || {
        let no_root = || (!rustix::process::geteuid().is_root()).then(|| "only root can break this machine".to_owned());
        let no_namespace = || {
            let made = !programs.contains(&"unshare")
                || Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
            (!made).then(|| "no mount namespace can be made here".to_owned())
        };
        if let Some(reason) = programs.iter().find_map(|program| lacks(program)).or_else(no_root).or_else(no_namespace) {
            return Ok(Completion::ignored_with(reason));
        }
        test();
        Ok(Completion::Completed)
    })
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// In a mount namespace of its own, after `script`.
fn after(script: &str, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("set -e; {script}; exec \"$@\""), "sh", PROGRAM]).args(words);
    command
}

fn without_device() {
    // Everything else that programs need of /dev is there.
    let script = "mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9";
    fails(after(script, &["doctor"]), 2, "fuse device", &["/dev/fuse", "modprobe fuse", "--device /dev/fuse"], &["kernel"], &[]);
    let other = "touch /dev/shm/windlass-no-device 2> /dev/null || true; mount --bind /dev/null /dev/fuse";
    fails(after(other, &["doctor"]), 2, "fuse device", &["not the device of FUSE"], &["kernel"], &[]);
}

fn without_fusermount() {
    let place = Place::new();
    let program = place.beside("windlass");
    std::fs::hard_link(PROGRAM, &program).or_else(|_| std::fs::copy(PROGRAM, &program).map(drop)).expect("there is room for a copy");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--", "env", "PATH=/nonexistent"]).arg(&program).arg("doctor");
    let said = run(command);
    let told = said.out.lines().find(|line| line.starts_with("fail") && line.contains("fusermount3")).unwrap_or_default();
    assert!(told.contains("missing") && told.contains("install the package fuse3"), "{}{}", said.out, said.err);
    assert_eq!(said.code, Some(2), "{}", said.out);
}

fn open_files() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$@\"", "sh", PROGRAM, "doctor"]);
    fails(command, 2, "open files", &["ulimit -n is 64", "LimitNOFILE"], &["kernel"], &[]);
    // What a shell begins with is not all that it may have.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 64; ulimit -H -n 3000; exec \"$@\"", "sh", PROGRAM, "doctor"]);
    let said = run(command);
    assert!(said.out.contains("ulimit -n is 3000"), "{}{}", said.out, said.err);
}

fn full_disk() {
    let place = Place::new();
    let at = place.at.to_str().expect("text");
    let script = format!("mount -t tmpfs -o size=1m none {at}");
    let words = ["doctor", "s3://bucket-of-nobody", "--endpoint", "http://127.0.0.1:1", "--spill-dir", at, "--connect-timeout", "1s"];
    fails(after(&script, &words), 2, "disk", &[at, "it is full", "--spill-dir"], &["kernel"], &["HTTP"]);
}
