//! How mounts end that nobody serves: whoever waits for them gets an error, and kubelet gets its target back.

use std::fs;

use libtest_mimic::Trial;

use super::daemon::{Daemon, Looker, take};
use super::kubelet::publish_request;
use super::node::{Node, mounted};
use super::support::mounts::{trial_as_root, wait_until};
use super::support::{BUCKET, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_mount_that_nobody_serves_is_taken_away_under_its_readers", unserved),
        trial_as_root("a_mount_whose_daemon_hangs_is_taken_away", hanging),
        trial_as_root("a_mount_whose_daemon_does_not_come_back_fails_its_readers_and_is_made_anew", orphan),
    ]
}

const CONTEXT: [(&str, &str); 1] = [("bucket", BUCKET)];

fn unserved() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published");
    let mut looker = Looker::at(&pod.target);
    // It waits in the mount, which an unmount must not wait for.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!looker.has_ended());
    kubelet.unpublish("v", &pod).expect("it is published");
    assert!(mounted(&pod.target).is_none() && !pod.target.exists());
    assert!(!looker.wait().success());
}

/// A daemon that takes the mount and never says a word to the kernel.
fn hanging() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published");
    let (_line, _, _descriptors) = take(&pod);
    let mut looker = Looker::at(&pod.target);
    std::thread::sleep(std::time::Duration::from_millis(50));
    kubelet.unpublish("v", &pod).expect("it is published");
    assert!(mounted(&pod.target).is_none() && !pod.target.exists());
    assert!(!looker.wait().success());
}

fn orphan() {
    let (server, node) = (S3Server::start(), Node::start(&["--orphan-timeout", "200ms"]));
    server.put("file", "content");
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let request = || publish_request("v", &pod, &CONTEXT);
    kubelet.publish(request()).expect("it is published");
    let daemon = Daemon::serve(&pod, &server);
    assert_eq!(fs::read(pod.target.join("file")).expect("it is served"), b"content");
    daemon.kill();
    let error = fs::read(pod.target.join("file")).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    wait_until("the driver has noticed", || {
        kubelet.condition("v", &pod).is_ok_and(|condition| condition.message.contains("did not come back"))
    });
    // The next call of kubelet makes it anew, and the next daemon serves it.
    kubelet.publish(request()).expect("it is published anew");
    let daemon = Daemon::serve(&pod, &server);
    assert_eq!(fs::read(pod.target.join("file")).expect("it is served"), b"content");
    daemon.kill();
    kubelet.unpublish("v", &pod).expect("it is published");
    assert_eq!(node.mounts(), Vec::<String>::new());
}
