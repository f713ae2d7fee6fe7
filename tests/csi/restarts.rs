//! A driver that dies and begins anew: what is served is served, what is dead is taken away, and nothing is forgotten.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use libtest_mimic::Trial;
use serde_json::Value;
use tonic::Code;
use windlass::handover::{Error as LinkError, Link};

use super::daemon::{Daemon, Looker, resume_at};
use super::kubelet::publish_request;
use super::node::{Node, PAGES_LIMIT, mounted};
use super::support::mounts::{PATIENCE, trial_as_root, wait_until};
use super::support::{BUCKET, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_driver_may_die_while_a_daemon_serves", while_served),
        trial_as_root("a_driver_that_began_anew_takes_nothing_from_strangers", strangers),
        trial_as_root("what_was_published_is_still_published_to_the_next_driver", taken_over),
        trial_as_root("a_dead_mount_is_taken_away_by_the_next_driver", swept),
        trial_as_root("a_limit_that_a_killed_driver_left_raised_is_put_back", limit),
    ]
}

const CONTEXT: [(&str, &str); 1] = [("bucket", BUCKET)];

/// Reads a file again and again until it is told to stop; how often.
fn read_all_the_time(path: &std::path::Path, content: &[u8], done: &AtomicBool, times: &AtomicUsize) {
    while !done.load(Relaxed) {
        assert_eq!(fs::read(path).expect("it is served"), content);
        times.fetch_add(1, Relaxed);
    }
}

fn while_served() {
    let (server, mut node) = (S3Server::start(), Node::start(&["--orphan-timeout", "1s"]));
    let content = vec![7; 3 << 20];
    server.put("file", content.clone());
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published");
    let mut daemon = Daemon::serve(&pod, &server);
    let (done, times) = (AtomicBool::new(false), AtomicUsize::new(0));
    let path = pod.target.join("file");
    std::thread::scope(|scope| {
        scope.spawn(|| read_all_the_time(&path, &content, &done, &times));
        let more = || {
            let before = times.load(Relaxed);
            wait_until("it is read on", || times.load(Relaxed) > before + 2);
        };
        more();
        for _ in 0..2 {
            node.kill();
            more();
            node.begin();
            more();
            daemon.resume();
            more();
        }
        done.store(true, Relaxed);
    });
    let kubelet = node.kubelet();
    wait_until("the new driver knows", || kubelet.condition("v", &pod).is_ok_and(|condition| !condition.abnormal));
    // The descriptors that it was given back are as good as those it had: the next daemon goes on with them, or fails with them.
    kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published already");
    assert_eq!(node.mounts().len(), 1);
    kubelet.unpublish("v", &pod).expect("it is published");
    assert_eq!(daemon.wait().code(), Some(0));
}

fn strangers() {
    let (server, mut node) = (S3Server::start(), Node::start(&[]));
    server.put("file", "content");
    let (kubelet, one, two) = (node.kubelet(), node.pod("1", "data"), node.pod("2", "data"));
    for pod in [&one, &two] {
        kubelet.publish(publish_request("v", pod, &CONTEXT)).expect("it is published");
    }
    let (mut first, mut second) = (Daemon::serve(&one, &server), Daemon::serve(&two, &server));
    node.kill();
    node.begin();
    let kubelet = node.kubelet();
    let said = |pod| kubelet.condition("v", pod).expect("it is published").message;
    let is_sent_away = |mut link: Link| match link.receive::<Value>(Some(PATIENCE)) {
        Ok(told) => told.is_none(),
        Err(LinkError::Io(error)) => error.kind() == io::ErrorKind::ConnectionReset,
        Err(error) => panic!("{error}"),
    };
    let null = File::options().read(true).write(true).open("/dev/null").expect("it is there");
    assert!(is_sent_away(resume_at(&two.directory.join("mount.sock"), &[null.as_fd()])), "it is no device of FUSE");
    // Linux 6.12.
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", first.descriptors[0].as_raw_fd())).expect("it is open");
    if facts.contains("fuse_connection:") {
        assert!(is_sent_away(first.resume_for(&two)), "it is another mount");
    }
    assert!(said(&two).contains("an earlier driver"), "{}", said(&two));
    for (daemon, pod) in [(&mut first, &one), (&mut second, &two)] {
        daemon.resume();
        wait_until("the driver knows its own", || said(pod).contains("a sidecar serves it"));
        assert_eq!(fs::read(pod.target.join("file")).expect("it is served"), b"content");
        kubelet.unpublish("v", pod).expect("it is published");
    }
    for daemon in [first, second] {
        assert_eq!(daemon.wait().code(), Some(0));
    }
}

fn taken_over() {
    let (server, mut node) = (S3Server::start(), Node::start(&[]));
    server.put("file", "content");
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published");
    let line = mounted(&pod.target);
    let daemon = Daemon::serve(&pod, &server);
    node.terminate();
    assert_eq!(node.wait(), Some(0));
    assert_eq!(fs::read(pod.target.join("file")).expect("it is served"), b"content");
    node.begin();
    let kubelet = node.kubelet();
    kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published already");
    assert_eq!(kubelet.publish(publish_request("w", &pod, &CONTEXT)).unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(mounted(&pod.target), line, "it is the same mount");
    kubelet.unpublish("v", &pod).expect("it is published");
    assert!(mounted(&pod.target).is_none() && !pod.target.exists());
    assert_eq!(daemon.wait().code(), Some(0));
}

fn swept() {
    let mut node = Node::start(&[]);
    let (kubelet, pod, other) = (node.kubelet(), node.pod("1", "data"), node.pod("2", "data"));
    for pod in [&pod, &other] {
        kubelet.publish(publish_request("v", pod, &CONTEXT)).expect("it is published");
    }
    let mut looker = Looker::at(&pod.target);
    // Nobody else has a descriptor: the mounts die with the driver.
    node.kill();
    assert!(!looker.wait().success());
    assert_eq!(node.mounts().len(), 2);
    node.begin();
    assert_eq!(node.mounts(), Vec::<String>::new());
    let kubelet = node.kubelet();
    assert_eq!(kubelet.condition("v", &pod).unwrap_err().code(), Code::NotFound);
    kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published anew");
    for pod in [&pod, &other] {
        kubelet.unpublish("v", pod).expect("also what was swept");
        assert!(!pod.target.exists());
    }
}

fn limit() {
    let mut node = Node::start(&[]);
    let before = fs::read_to_string(PAGES_LIMIT).expect("this kernel has a limit");
    node.kill();
    fs::write(node.path("csi/max_pages_limit"), before.trim()).expect("it is ours");
    fs::write(PAGES_LIMIT, "4096").expect("we are root");
    node.begin();
    assert_eq!(fs::read_to_string(PAGES_LIMIT).expect("it is there"), before);
    assert!(!node.path("csi/max_pages_limit").exists() && node.log().contains("put back"), "{}", node.log());
}
