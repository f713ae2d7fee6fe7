//! How a mount ends: by signals, from outside, under load, and by a kill that leaves it to the next one.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use super::place::{Place, program, run, soon, wait};
use super::support::mounts::{Daemon, trial};
use super::support::{BUCKET, Effect, Fault, Kind, S3Server};
use super::users;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("each_signal_unmounts_and_ends_in_order", signals),
        trial("an_unmount_from_outside_ends_the_daemon_in_order", from_outside),
        trial("sigterm_under_load_unmounts_and_ends_in_order", under_load),
        trial("sigterm_while_the_mount_begins_leaves_nothing", at_once),
        trial("sigterm_waits_for_a_rename_of_a_directory", while_renaming),
        trial("what_a_killed_daemon_leaves_is_named_and_cleared", killed),
        users::trial("with_auto_unmount_a_killed_daemon_leaves_nothing", &["fusermount3", "unshare"], killed_with_auto_unmount),
        trial("umount_says_who_keeps_a_mount_busy_and_can_detach_it", busy),
    ]
}

fn signals() {
    let server = S3Server::start();
    server.put("file", "content");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut mount = Daemon::new(&server).start();
        assert_eq!(std::fs::read(mount.join("file")).expect("it is mounted"), b"content");
        mount.signal(signal);
        assert_eq!(mount.wait().code(), Some(0), "{signal:?}: {}", mount.log());
        assert!(!mount.is_mounted(), "{signal:?}");
        assert!(!mount.log().contains("ERROR"), "{}", mount.log());
    }
}

fn from_outside() {
    let server = S3Server::start();
    server.put("file", "content");
    let mut mount = Daemon::new(&server).start();
    let mut umount = program();
    umount.arg("umount").arg(mount.path());
    run(umount).succeeds();
    assert_eq!(mount.wait().code(), Some(0), "{}", mount.log());
    assert!(!mount.is_mounted());
}

/// A thread that reads a file through a mount for as long as that works.
fn reader(path: PathBuf, flags: i32) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut file = File::options().read(true).custom_flags(flags).open(path).expect("it is mounted");
        let (mut piece, mut total) = (vec![0; 1 << 20], 0);
        while let Ok(n @ 1..) = file.read(&mut piece) {
            total += n as u64;
        }
        total
    })
}

/// Four readers wait for a store that sends a MiB a second when the signal comes, and none of them is done for an hour.
fn under_load() {
    let server = S3Server::start();
    for i in 0..4 {
        server.put_synthetic(&format!("file{i}"), 4 << 30);
    }
    server.fault(Fault::new(Effect::Bandwidth(1 << 20)).kind(Kind::Get));
    let place = Place::new();
    let mut daemon = foreground(&place, &server);
    assert!(soon(|| place.beside("ready").exists()) && place.is_mounted(), "it mounts");
    let flags = [0, libc::O_DIRECT, 0, libc::O_DIRECT];
    let readers: Vec<_> = flags.into_iter().enumerate().map(|(i, flags)| reader(place.at.join(format!("file{i}")), flags)).collect();
    let all_are_read =
        |requests: &[super::support::Request]| (0..4).all(|i| requests.iter().any(|r| r.key == format!("file{i}") && r.bytes_sent > 0));
    assert!(server.wait_for(all_are_read), "the readers begin");

    let told = Instant::now();
    kill_process(Pid::from_child(&daemon), Signal::TERM).expect("it is our child");
    assert_eq!(wait(&mut daemon), Some(0));
    eprintln!("SIGTERM with four readers: ended after {:?}", told.elapsed());
    assert!(!place.is_mounted());
    for reader in readers {
        assert!(reader.join().expect("a reader gets an error, not a signal") < 4 << 30);
    }
}

/// The signal comes while a directory is renamed over a slow store, then again with a store that does not answer any more.
fn while_renaming() {
    const FILES: usize = 100;
    for is_silent in [false, true] {
        let server = S3Server::start();
        (0..FILES).for_each(|n| drop(server.put(&format!("old/{n}"), format!("content {n}"))));
        let slow = if is_silent { Duration::from_secs(3600) } else { Duration::from_millis(300) };
        server.fault(Fault::new(Effect::Delay(slow)).kind(Kind::Copy));
        let mut mount = Daemon::new(&server).arg("--drain-timeout", "3s").start();
        let (from, to) = (mount.join("old"), mount.join("new"));
        let rename = std::thread::spawn(move || std::fs::rename(from, to));
        assert!(server.wait_for(|requests| requests.iter().any(|request| request.kind == Kind::Copy)), "it begins");
        mount.signal(Signal::TERM);
        mount.wait();
        assert!(!mount.is_mounted());
        let renamed = rename.join().expect("it gets an answer");
        let is_there = |directory: &str, n: usize| {
            server.stored(&format!("{directory}/{n}")).is_some_and(|(content, _)| content == format!("content {n}"))
        };
        if is_silent {
            assert!(renamed.is_err());
            assert!((0..FILES).all(|n| is_there("old", n)), "nothing is lost");
            assert!(mount.log().contains("the mount ends in the middle of a rename"), "{}", mount.log());
        } else {
            assert!((0..FILES).all(|n| is_there("new", n) && !is_there("old", n)), "it comes to its end");
        }
    }
}

/// Whether a beginning mount has come as far as a stage.
type Reached = fn(&S3Server, &Place) -> bool;

/// The signal finds the process before the store was asked, while it is asked, and as soon as there is a mount.
fn at_once() {
    let server = S3Server::start();
    server.fault(Fault::new(Effect::Delay(Duration::from_millis(100))).kind(Kind::List).first(1));
    let stages: [(&str, Reached); 3] =
        [("started", |_, _| true), ("asking", |server, _| server.count(Kind::List) > 0), ("mounted", |_, place| place.is_mounted())];
    for (stage, reached) in [stages[1], stages[0], stages[2], stages[2], stages[2]] {
        server.reset_log();
        let place = Place::new();
        let mut child = foreground(&place, &server);
        assert!(soon(|| reached(&server, &place)), "{stage}");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it is our child");
        let code = wait(&mut child);
        assert!(!place.is_mounted(), "{stage}: left mounted");
        // Without a mount there is nothing to end in order, and the signal does what it does to any program.
        assert!(code == Some(0) || code.is_none() && stage != "mounted", "{stage}: {code:?}");
    }
}

/// A mount in the foreground that begins; its [`Place`] ends it in any case.
fn foreground(place: &Place, server: &S3Server) -> Child {
    let mut command = place.mount(server);
    command.arg("--foreground").arg("--log-file").arg(place.beside("log")).arg("--ready-file").arg(place.beside("ready"));
    command.stdout(Stdio::null()).spawn().expect("the program starts")
}

fn killed() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("file", "content");
    run(place.mount(&server)).succeeds();
    assert_eq!(place.read("file"), b"content");
    kill_process(place.daemon(), Signal::KILL).expect("it runs");
    assert!(soon(|| place.pids().is_empty()));
    assert!(place.is_mounted(), "a kill leaves the mount");

    let said = run(place.mount(&server));
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    for word in ["dead windlass mount", &format!("s3://{BUCKET}"), &format!("windlass umount {}", place.at.display())] {
        assert!(said.err.contains(word), "{word:?} is missing in {}", said.err);
    }
    place.umount().succeeds();
    assert!(!place.is_mounted());
    run(place.mount(&server)).succeeds();
    assert_eq!(place.read("file"), b"content");
    place.umount().succeeds();
}

fn killed_with_auto_unmount() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("file", "content");
    let mut command = place.mount(&server);
    command.args(["--auto-unmount", "--allow-root"]);
    run(command).succeeds();
    assert_eq!(place.read("file"), b"content");
    let of_program = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("windlass"));
    // fusermount3 stays beside the daemon and names the place as well.
    let daemon = place.pids().into_iter().find(of_program).and_then(Pid::from_raw);
    kill_process(daemon.expect("it runs"), Signal::KILL).expect("it is ours");
    assert!(soon(|| !place.is_mounted()), "fusermount3 unmounts");
    assert!(soon(|| place.pids().is_empty()));
}

fn busy() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("file", "content");
    run(place.mount(&server)).succeeds();
    assert!(place.is_mounted());
    let mut open = File::open(place.at.join("file")).expect("it is there");
    let said = place.umount();
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("still in use") && said.err.contains("--lazy"), "{}", said.err);
    assert_eq!(place.read("file"), b"content", "it goes on");

    let mut lazy = program();
    lazy.args(["umount", "--lazy"]).arg(&place.at);
    run(lazy).succeeds();
    assert!(!place.is_mounted());
    let mut text = String::new();
    open.read_to_string(&mut text).expect("open files stay readable");
    assert_eq!(text, "content");
    drop(open);
    assert!(soon(|| place.pids().is_empty()), "the daemon ends with the last file");
}
