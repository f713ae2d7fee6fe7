//! How mounts end that nobody serves: whoever waits for them gets an error, and kubelet gets its target back.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use libtest_mimic::Trial;
use rustix::fs::{Mode, OFlags};
use serde_json::json;

use super::daemon::{Daemon, Looker, take};
use super::kubelet::publish_request;
use super::node::{Node, mounted};
use super::support::keeper::Kept;
use super::support::mounts::{trial_as_root, wait_until};
use super::support::{BUCKET, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_mount_that_nobody_serves_is_taken_away_under_its_readers", unserved),
        trial_as_root("a_mount_whose_daemon_hangs_is_taken_away", hanging),
        trial_as_root("unpublish_spares_a_new_mount_with_the_number_of_the_old_one", reused_number),
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

/// The kernel gives the lowest free number to the next mount, while the driver still watches the connection of the old one.
fn reused_number() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let mut reused = 0;
    // A test that mounts at the same time may get the number first.
    for _ in 0..50 {
        kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published");
        let number = device_of(&pod.target);
        let user = rustix::fs::open(&pod.target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("it is mounted");
        let other = std::thread::scope(|scope| {
            let unpublishing = scope.spawn(|| kubelet.unpublish("v", &pod));
            wait_until("it is unmounted", || mounted(&pod.target).is_none());
            // The connection ends with the last user of the mount.
            drop(user);
            let other = Kept::mount();
            unpublishing.join().expect("it only asks").expect("it is published");
            other
        });
        if device_of(other.path()) == number {
            let mut device = File::from(other.device().try_clone().expect("there is room"));
            let first = device.read(&mut vec![0; 1 << 20]).expect("the other mount has been aborted");
            assert!(first > 0, "the kernel asks for a session");
            reused += 1;
        }
        if reused == 3 {
            return;
        }
    }
    panic!("the number of a mount is not given out again");
}

fn device_of(target: &Path) -> String {
    let line = mounted(target).expect("it is mounted");
    line.split(' ').nth(2).expect("every line has it").to_owned()
}

fn orphan() {
    let (server, node) = (S3Server::start(), Node::start(&["--orphan-timeout", "200ms"]));
    server.put("file", "content");
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let request = || publish_request("v", &pod, &CONTEXT);
    kubelet.publish(request()).expect("it is published");
    let daemon = Daemon::serve(&pod, &server);
    assert_eq!(fs::read(pod.target.join("file")).expect("it is served"), b"content");
    // With its session another one could go on, and is waited for.
    daemon.say(&json!({"session": {"minor": 1}}), &[]);
    wait_until("the driver has heard", || kubelet.condition("v", &pod).is_ok_and(|condition| !condition.abnormal));
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
