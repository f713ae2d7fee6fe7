//! Signals to who waits for a store that does not answer: what ends a process ends it at once, and what it handles does not disturb its
//! reads.

use std::cell::RefCell;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::bytes::{BOTH, KIB, MIB, open, read_and_compare};
use crate::support::mounts::{Daemon, trial, trial_with, wait_until};
use crate::support::{Effect, Fault, Kind, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        // Through the kernel's pages a reader waits for those, not for us, and can be killed anyway.
        trial("who_waits_for_bytes_can_be_killed", || killed(Kind::Get, &["dd", "iflag=direct", "bs=64k"], "if=", "d/file")),
        trial("who_waits_for_a_listing_can_be_killed", || killed(Kind::List, &["ls"], "", "other")),
        trial("who_waits_for_a_name_can_be_killed", || killed(Kind::List, &["cat"], "", "d/unknown")),
        trial_with(&["perl"], "a_signal_that_is_handled_does_not_end_a_read", a_signal_that_is_handled_does_not_end_a_read),
    ]
}

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

/// A program with a path in the mount, which waits for the store.
fn waiting(server: &S3Server, kind: Kind, command: &mut Command) -> Child {
    server.reset_log();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the store is asked", || server.count(kind) > 0);
    child
}

/// `before` comes before the path in the same word.
fn killed(kind: Kind, program: &[&str], before: &str, path: &str) {
    let server = S3Server::start();
    server.put_synthetic("d/file", MIB);
    server.put_synthetic("other/file", MIB);
    let content = server.put_synthetic("beside/file", MIB);
    let mount = Daemon::new(&server).arg("--stall-timeout", "10min").arg("--request-timeout", "10min").start();
    // What is known of the way there is not asked for again.
    std::fs::metadata(mount.join("d/file")).unwrap();
    server.fault(Fault::new(Effect::Delay(NEVER)).kind(kind));
    let word = format!("{before}{}", mount.join(path).display());
    let mut child = waiting(&server, kind, Command::new(program[0]).args(&program[1..]).arg(word));
    child.kill().unwrap();
    let child = RefCell::new(child);
    wait_until("it ends", || child.borrow_mut().try_wait().unwrap().is_some());
    assert_eq!(child.into_inner().wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    assert!(server.of_kind(kind).iter().all(|request| request.status == 0), "the store has not answered");
    // Others go on.
    server.clear_faults();
    read_and_compare(&open(&mount.join("beside/file"), BOTH[0]), content, 0..MIB, 256 * KIB);
}

fn a_signal_that_is_handled_does_not_end_a_read() {
    let server = S3Server::start();
    server.put("file", vec![b'x'; 100]);
    let mount = Daemon::new(&server).start();
    server.fault(Fault::new(Effect::Delay(Duration::from_millis(1500))).kind(Kind::Get));
    // Sees an interrupted read, where most programs would ask again by themselves.
    const READ: &str = r#"$SIG{USR1} = sub { print "signal " }; open(F, "<", $ARGV[0]) or die; $| = 1; print "ready ";
        my $n = sysread(F, my $bytes, 1000); print defined $n ? "read $n" : "failed: $!";"#;
    let mut perl = Command::new("perl");
    let child = waiting(&server, Kind::Get, perl.args(["-e", READ]).arg(mount.join("file")));
    let pid = Pid::from_child(&child);
    // Often, since the first ones may come before it waits.
    let mut asked = 0;
    while server.of_kind(Kind::Get).iter().all(|get| get.status == 0) {
        kill_process(pid, Signal::USR1).unwrap();
        asked += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(asked > 3 && said.contains("signal ") && said.ends_with("read 100"), "{said}");
}
