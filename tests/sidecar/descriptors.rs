//! Descriptors that cannot be served: each is told apart, on one line, with exit code 2.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use libtest_mimic::Trial;
use windlass::handover::Message;

use super::handed_over::{Shared, message, serve, started};
use super::support::S3Server;
use super::support::keeper::{Kept, accept, hear, listen};
use super::support::network::Network;
use super::support::sandbox::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("numbers_without_a_mounted_device_are_told_apart", numbers),
        trial("what_comes_over_the_socket_is_looked_at_as_well", over_the_socket),
        trial("a_session_that_somebody_serves_is_not_served_twice", served_already),
    ]
}

fn numbers() {
    let refuses = |number: u32, word: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(["mount", "s3://bucket", &format!("/dev/fd/{number}"), "--foreground", "--region", "us-east-1"]);
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(&format!("/dev/fd/{number}")) && said.contains(word), "{said}");
    };
    refuses(1, "above 2");
    refuses(1025, "no such descriptor");
}

/// What is said of a descriptor that comes first.
#[track_caller]
fn refused(descriptor: &OwnedFd, words: &str) {
    let server = S3Server::start();
    let shared = Shared::new(Network::with_store(&server));
    let door = listen(&shared.socket());
    let socket = format!("connect:{}", shared.socket().display());
    let mut daemon = shared.sandbox().start(&["mount", "--foreground", "--fd-socket", &socket]);
    let mut link = accept(&door);
    link.send(&message(&server), &[descriptor.as_fd()]).expect("somebody reads it");
    let (heard, _) = hear(&mut link).expect("it says why");
    assert!(heard["failed"]["message"].as_str().is_some_and(|said| said.contains(words)), "{heard}");
    assert_eq!(daemon.wait().code(), Some(2));
}

fn over_the_socket() {
    let device = |read: bool| File::options().read(true).write(!read).open("/dev/fuse").expect("it is there").into();
    refused(&File::open("/dev/null").expect("it is there").into(), "/dev/null, not /dev/fuse");
    refused(&device(true), "not open for reading and writing");
    let both = File::options().read(true).write(true).open("/dev/fuse").expect("it is there");
    refused(&both.into(), "nothing is mounted with it");
    let gone = Kept::mount();
    let descriptor = gone.device().try_clone().expect("there is room");
    gone.unmount();
    refused(&descriptor, "nothing is mounted with it, or not any more");

    let (shared, message) = (Shared::new(Network::new()), Message { bucket: "s3://bucket".into(), ..Message::default() });
    let door = listen(&shared.socket());
    let socket = format!("connect:{}", shared.socket().display());
    let mut daemon = shared.sandbox().start(&["mount", "--foreground", "--fd-socket", &socket]);
    accept(&door).send(&message, &[]).expect("somebody reads it");
    assert_eq!(daemon.wait().code(), Some(1));
    daemon.wait_for("without the descriptor of /dev/fuse");
}

fn served_already() {
    let (server, shared, kept) = started();
    server.put("file", "content");
    let (_first, mut link) = serve(&kept, &shared, &message(&server), &[]);
    assert!(hear(&mut link).is_some());
    let descriptor = kept.device().try_clone().expect("there is room");
    refused(&descriptor, "another process serves it already");
    assert_eq!(std::fs::read(kept.join("file")).expect("the first goes on"), b"content");
}
