//! `windlass upgrade`: another program serves, and nobody notices.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Output};

use libtest_mimic::Trial;

use crate::program::{Supervised, trial};
use crate::support::S3Server;
use crate::support::disturbed::{objects, while_reading};
use crate::support::mounts::Daemon;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("an_upgrade_under_sixteen_readers_and_a_writer_is_not_noticed", unnoticed),
        trial("an_upgrade_waits_for_files_that_stream_and_gives_up", waits),
        trial("a_program_that_does_not_serve_is_taken_back", taken_back),
        trial("what_nobody_supervises_cannot_be_upgraded", alone),
        trial("sigterm_ends_a_supervised_mount_in_order", sigterm),
    ]
}

fn upgrade(mount: &Supervised, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.arg("upgrade").args(arguments).arg(mount.mount.path()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn unnoticed() {
    let (server, disk) = (S3Server::start(), tempfile::tempdir().unwrap());
    let contents = objects(&server);
    server.put("doc", vec![1; 1 << 20]);
    let mount = Supervised::start(Daemon::new(&server).arg("--spill-dir", disk.path().to_str().unwrap()));
    let file = File::options().write(true).open(mount.join("doc")).unwrap();
    file.write_all_at(&[2; 1000], 5000).unwrap();
    let first = mount.daemon().unwrap();
    let change = || {
        let output = upgrade(&mount, &[]);
        assert!(output.status.success(), "{}\n{}", stderr(&output), mount.mount.log());
    };
    while_reading(mount.mount.path(), &contents, 0, &[&change, &change]);
    assert_ne!(mount.daemon().unwrap(), first);
    file.write_all_at(&[3; 1000], 9000).unwrap();
    windlass::sys::close(file.into()).unwrap();
    let mut expected = vec![1; 1 << 20];
    expected[5000..6000].fill(2);
    expected[9000..10_000].fill(3);
    assert!(server.stored("doc").unwrap().0 == expected);
}

fn waits() {
    let server = S3Server::start();
    let mount = Supervised::of(&server);
    let mut file = File::create(mount.join("stream")).unwrap();
    file.write_all(&vec![7; 12 << 20]).unwrap();
    let first = mount.daemon().unwrap();
    let output = upgrade(&mount, &["--wait", "0"]);
    assert!(!output.status.success() && stderr(&output).contains("files are being written: stream"), "{}", stderr(&output));
    assert_eq!(mount.daemon().unwrap(), first);
    file.write_all(b"end").unwrap();
    windlass::sys::close(file.into()).unwrap();
    assert_eq!(server.stored("stream").unwrap().0.len(), (12 << 20) + 3);
    assert!(upgrade(&mount, &[]).status.success());
    assert_ne!(mount.daemon().unwrap(), first);
}

fn taken_back() {
    let (server, home) = (S3Server::start(), tempfile::tempdir().unwrap());
    server.put("file", "content");
    let mount = Supervised::of(&server);
    let file = File::open(mount.join("file")).unwrap();
    let broken = home.path().join("windlass");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo windlass 9 && exit 0\nexit 7\n";
    fs::write(&broken, script).unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let output = upgrade(&mount, &["--binary", broken.to_str().unwrap()]);
    assert!(!output.status.success() && stderr(&output).contains("exit code 7; the one before goes on"), "{}", stderr(&output));
    let mut bytes = [0; 7];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"content");
    let no_program = upgrade(&mount, &["--binary", "/bin/true"]);
    assert!(no_program.status.code() == Some(2) && stderr(&no_program).contains("no windlass"), "{}", stderr(&no_program));
}

fn alone() {
    let server = S3Server::start();
    let mount = Daemon::new(&server).start();
    let output = Command::new(env!("CARGO_BIN_EXE_windlass")).arg("upgrade").arg(mount.path()).output().unwrap();
    let said = stderr(&output);
    assert!(output.status.code() == Some(2) && said.contains("nobody supervises") && said.contains("--supervised"), "{said}");
}

fn sigterm() {
    let server = S3Server::start();
    let mut mount = Supervised::of(&server);
    fs::write(mount.join("file"), "content").unwrap();
    mount.mount.signal(rustix::process::Signal::TERM);
    assert_eq!(mount.mount.wait().code(), Some(0), "{}", mount.mount.log());
    assert!(!mount.mount.is_mounted());
    assert_eq!(server.stored("file").unwrap().0, "content");
}
