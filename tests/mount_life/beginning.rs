//! How a mount begins: as a daemon that returns when it answers, and as the helper of mount(8).

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;

use rustix::process::{Pid, Signal, kill_process};

use super::place::{Place, program, run, soon};
use super::support::mounts::trial;
use super::support::{BUCKET, REGION, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_daemon_returns_when_the_mount_answers_and_goes_with_it", daemon),
        trial("relative_paths_are_below_where_the_daemon_was_started", relative),
        trial("an_entry_of_fstab_mounts_through_the_helper", fstab),
        trial("a_second_mount_at_the_same_place_is_refused", second),
        trial("a_mount_with_a_bad_option_leaves_nothing", bad_options),
    ]
}

fn daemon() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("dir/file", "content");
    let (ready, log) = (place.beside("ready"), place.beside("log"));
    let systemd = UnixDatagram::bind(place.beside("notify")).expect("the directory is ours");
    let mut command = place.mount(&server);
    command.arg("--ready-file").arg(&ready).arg("--log-file").arg(&log).env("NOTIFY_SOCKET", place.beside("notify"));

    let said = run(command).succeeds();
    assert_eq!(place.read("dir/file"), b"content");
    assert_eq!(said.out, format!("windlass: s3://{BUCKET} mounted at {} (endpoint {})\n", place.at.display(), server.endpoint()));
    assert_eq!(fs::read_to_string(&ready).expect("the mount is ready"), said.out);
    let daemon = place.daemon();
    assert_eq!(fs::read_link(format!("/proc/{daemon}/cwd")).expect("it runs"), std::path::Path::new("/"));
    let told = received(&systemd);
    for word in ["READY=1", &format!("MAINPID={daemon}"), &format!("STATUS={}", said.out.trim_end())] {
        assert!(told.lines().any(|line| line == word), "{word} is missing in {told}");
    }

    place.umount().succeeds();
    assert!(!place.is_mounted());
    assert!(soon(|| place.pids().is_empty()), "the daemon is still there");
    assert!(!ready.exists());
    assert!(received(&systemd).contains("STOPPING=1"));
    let log = fs::read_to_string(&log).expect("the daemon wrote a log");
    assert!(log.contains(" mounted ") && log.contains(" unmounted "), "{log}");
}

/// The daemon leaves the directory where it was started, and a supervisor starts others later.
fn relative() {
    for supervised in [false, true] {
        let (server, place) = (S3Server::start(), Place::new());
        server.put("dir/file", "content");
        place.write("windlass.toml", &format!("supervised = {supervised}\nlog-file = \"daemon.log\"\n"), 0o600);
        let mut command = program();
        command.args(["mount", &format!("s3://{BUCKET}"), "mnt", "--config", "windlass.toml", "--ready-file", "ready"]);
        command.args(["--endpoint", &server.endpoint(), "--region", REGION, "--path-style", "--control-socket", "control.sock"]);
        // By which the daemons are found.
        command.arg("--termination-log").arg(place.beside("why"));
        command.current_dir(place.beside(".")).envs(server.client_env()).env("AWS_EC2_METADATA_DISABLED", "true");

        // Nobody holds the pipes of the caller: `said=$(windlass mount ... 2>&1)` returns.
        let said = run(command).succeeds();
        assert!(said.out.contains(&format!(" mounted at {} ", place.at.display())), "{}", said.out);
        assert_eq!(place.read("dir/file"), b"content");
        let log = || fs::read_to_string(place.beside("daemon.log")).unwrap_or_default();
        let mounts = || log().matches(" mounted ").count();
        assert!(place.beside("ready").exists() && place.beside("control.sock").exists() && mounts() == 1, "{}", log());
        if supervised {
            let [supervisor, daemon] = place.pids()[..] else { panic!("a supervisor and a daemon: {:?}", place.pids()) };
            assert!(supervisor < daemon);
            kill_process(Pid::from_raw(daemon).expect("it runs"), Signal::KILL).expect("it runs");
            assert!(soon(|| mounts() == 2), "{}", log());
            assert_eq!(place.read("dir/file"), b"content");
        }
        place.umount().succeeds();
        assert!(soon(|| place.pids().is_empty()), "the daemon is still there");
        assert!(!place.beside("ready").exists());
    }
}

/// The next message for the service manager.
fn received(socket: &UnixDatagram) -> String {
    socket.set_read_timeout(Some(Duration::from_secs(120))).expect("it is not zero");
    let mut message = [0; 1024];
    let length = socket.recv(&mut message).expect("a message comes");
    String::from_utf8_lossy(&message[..length]).into_owned()
}

fn fstab() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("sub/file", "content");
    let helper = place.beside("mount.windlass");
    symlink(env!("CARGO_BIN_EXE_windlass"), &helper).expect("the directory is ours");
    let passwd = server.passwd_file().display();
    let options =
        format!("rw,_netdev,nofail,noatime,url={},region={REGION},path_style,passwd_file={passwd},uid=7,umask=022", server.endpoint());
    let mut command = Command::new(helper);
    command.env_clear().arg(format!("s3://{BUCKET}/sub")).arg(&place.at).args(["-o", &options]);

    run(command).succeeds();
    assert_eq!(place.read("file"), b"content");
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel shows its mounts");
    let line = table.lines().find(|line| line.contains(place.at.to_str().expect("it is text"))).expect("it is mounted");
    assert!(line.contains(&format!(" - fuse.windlass s3://{BUCKET}/sub ")), "{line}");
    assert!(line.contains(" rw,") && line.contains("noatime"), "{line}");
    place.umount().succeeds();
    assert!(soon(|| place.pids().is_empty()));
}

fn second() {
    let (server, place) = (S3Server::start(), Place::new());
    server.put("file", "content");
    run(place.mount(&server)).succeeds();
    let said = run(place.mount(&server));
    assert_eq!(said.code, Some(2), "{}", said.err);
    for word in ["already mounted", &format!("s3://{BUCKET}"), &format!("windlass umount {}", place.at.display())] {
        assert!(said.err.contains(word), "{word:?} is missing in {}", said.err);
    }
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    assert_eq!(place.read("file"), b"content");
    place.umount().succeeds();
    assert!(!place.is_mounted(), "the second one left a mount of its own");
}

fn bad_options() {
    let (server, place) = (S3Server::start(), Place::new());
    for (option, fix) in [("chunk-sise=4", "chunk-size"), ("chunk-size=33", "1MiB..32MiB"), ("free-space-ratio=101", "0..100")] {
        let (mut flag, mut word) = (place.mount(&server), place.mount(&server));
        flag.arg(format!("--{option}"));
        word.args(["-o", option]);
        for command in [flag, word] {
            let said = run(command);
            assert_eq!(said.code, Some(2), "{option}: {}", said.err);
            assert!(said.err.contains(fix), "{option}: {}", said.err);
            assert!(!place.is_mounted() && place.pids().is_empty(), "{option}");
        }
    }
    assert_eq!(server.requests().len(), 0, "bad options are told before the store is asked");
}
