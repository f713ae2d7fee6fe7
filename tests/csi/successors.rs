//! Sidecars whose daemons are killed at work, and drivers that are: each goes on where the one before ended, and who reads and writes notices nothing.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use rustix::process::Signal;
use windlass::store::memory::Synthetic;

use super::node::{Node, Pod, mounted};
use super::support::S3Server;
use super::support::disturbed::{READERS, SIZE, Scribbled, objects, too_old, while_reading};
use super::support::mounts::{trial_unless, wait_until};
use super::support::sandbox::no_sandbox;
use super::trio::{SIDECAR, Sidecar, publish};

pub fn trials() -> Vec<Trial> {
    let trial = |name, test: fn()| trial_unless(|| too_old().or_else(no_sandbox), name, test);
    vec![
        trial("readers_and_a_writer_outlive_their_driver_and_then_their_daemon", driver_then_daemon),
        trial("readers_and_a_writer_outlive_their_daemons", daemons),
        trial("readers_of_a_daemon_that_does_not_come_back_get_an_error", no_other_daemon),
        trial("a_volume_whose_daemon_is_being_waited_for_is_unpublished", unpublished_meanwhile),
    ]
}

/// A published volume, which a sidecar without privilege serves.
struct Served {
    server: S3Server,
    contents: Vec<Synthetic>,
    sidecar: Sidecar,
    node: Mutex<Node>,
    pod: Pod,
}

impl Served {
    fn start(flags: &[&str]) -> Self {
        let (server, node) = (S3Server::start(), Node::start(&[&SIDECAR[..], flags].concat()));
        let (pod, contents) = (node.pod("1", "data"), objects(&server));
        publish(&node, "v", &pod, &server);
        // What is staged outlives the daemon.
        let disk = format!("--spill-dir={}", pod.meeting.join("disk").display());
        let sidecar = Sidecar::start_with(&pod, &server, &["--memory-limit=256MiB", &disk]);
        sidecar.wait_until_ready();
        Self { server, contents, sidecar, node: Mutex::new(node), pod }
    }

    /// Ends the driver without a word.
    fn kill_driver(&self) {
        self.node.lock().expect("nobody panics with it").kill();
    }

    /// Ends it as a newer one is rolled out.
    fn end_driver(&self) {
        let mut node = self.node.lock().expect("nobody panics with it");
        node.terminate();
        assert_eq!(node.wait(), Some(0));
        // Which is no reason to send nobody to this pod.
        self.sidecar.wait_until_ready();
    }

    /// Starts another driver, and waits until the daemon has found it.
    fn begin_driver(&self) {
        let mut node = self.node.lock().expect("nobody panics with it");
        node.begin();
        let kubelet = node.kubelet();
        wait_until("the daemon is found again", || {
            kubelet
                .condition("v", &self.pod)
                .is_ok_and(|condition| !condition.abnormal && condition.message.contains("a sidecar serves it"))
        });
    }

    /// Reads with sixteen readers and writes all over the file `name` while `disturb` happens.
    fn work(&self, name: &str, flags: i32, disturb: &[&(dyn Fn() + Sync)]) {
        self.server.put(name, Scribbled::before());
        let mut doc = Scribbled::open(&self.pod.target.join(name));
        doc.write(0, 300);
        // Over when nobody has it any more, also when a reader fails.
        let reading = Arc::new(());
        let watched = Arc::downgrade(&reading);
        let next = std::thread::scope(|scope| {
            let writer = scope.spawn(|| doc.write_while(300, || watched.strong_count() > 0));
            let reading = reading;
            while_reading(&self.pod.target, &self.contents, flags, disturb);
            drop(reading);
            writer.join().expect("every write succeeds")
        });
        doc.check();
        doc.write(next, next + 100);
        let expected = doc.close();
        assert!(self.server.stored(name).expect("it is there").0 == expected, "what is stored");
        assert!(fs::read(self.pod.target.join(name)).expect("it is served") == expected);
        // The kernel tells of the last close behind the back of who closed.
        let staging = self.pod.meeting.join("disk/staging");
        wait_until("nothing stays behind", || fs::read_dir(&staging).expect("it is used").count() == 0);
    }

    /// Ends it all in order.
    fn end(mut self) {
        let node = self.node.into_inner().expect("nobody panics with it");
        assert_eq!(node.mounts().len(), 1);
        node.kubelet().unpublish("v", &self.pod).expect("it is published");
        wait_until("the daemon ends with its mount", || self.sidecar.daemons().is_empty());
        self.sidecar.process.signal(Signal::TERM);
        assert_eq!(self.sidecar.process.wait().code(), Some(0), "{}", self.sidecar.process.said());
    }
}

fn driver_then_daemon() {
    let served = Served::start(&[]);
    let first = served.sidecar.daemons();
    let kill_driver = || served.kill_driver();
    let begin_driver = || served.begin_driver();
    let replace = || {
        assert_eq!(served.sidecar.daemons(), first, "it is the one that the driver before had");
        served.sidecar.replace_daemon();
    };
    // Past the pages, so that each part is asked for when it is read.
    served.work("one", libc::O_DIRECT, &[&kill_driver, &begin_driver, &replace]);
    // Once more with a daemon that has itself come after another one, and two drivers one after the other.
    let again = || {
        served.end_driver();
        served.begin_driver();
        served.kill_driver();
        served.begin_driver();
    };
    let replace = || served.sidecar.replace_daemon();
    served.work("two", libc::O_DIRECT, &[&again, &replace]);
    served.end();
}

fn daemons() {
    let served = Served::start(&[]);
    let replace = || served.sidecar.replace_daemon();
    served.work("one", 0, &[&replace, &replace]);
    served.work("two", libc::O_DIRECT, &[&replace]);
    served.end();
}

/// Readers in the middle of their files, whose daemon is killed and none begins; what each of them got.
fn orphaned(served: &Served, then: impl FnOnce()) -> Vec<io::Error> {
    let open = |number| File::open(served.pod.target.join(format!("data/{number}"))).expect("it is served");
    let files: Vec<File> = (0..READERS).map(open).collect();
    let mut bytes = [0; 4096];
    for (file, content) in files.iter().zip(&served.contents) {
        file.read_exact_at(&mut bytes, 0).expect("it is served");
        assert!(content.matches(0, &bytes));
    }
    // A sidecar that is stopped starts nobody.
    served.sidecar.process.signal(Signal::STOP);
    served.sidecar.kill_daemon();
    std::thread::scope(|scope| {
        let read = |file: File| move || file.read_exact_at(&mut [0; 4096], SIZE - 4096).expect_err("nobody serves it");
        let reading: Vec<_> = files.into_iter().map(|file| scope.spawn(read(file))).collect();
        then();
        reading.into_iter().map(|reader| reader.join().expect("it only reads")).collect()
    })
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

fn no_other_daemon() {
    let served = Served::start(&["--orphan-timeout", "500ms"]);
    let errors = orphaned(&served, || {});
    assert!(errors.iter().all(is_gone), "{errors:?}");
    let node = served.node.lock().expect("nobody panics with it");
    let error = fs::metadata(served.pod.target.join("doc")).expect_err("nobody serves it");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
    node.kubelet().unpublish("v", &served.pod).expect("it is published");
    assert!(mounted(&served.pod.target).is_none() && !served.pod.target.exists() && !served.pod.directory.exists());
}

fn unpublished_meanwhile() {
    let served = Served::start(&["--orphan-timeout", "1h"]);
    let errors = orphaned(&served, || {
        let node = served.node.lock().expect("nobody panics with it");
        wait_until("the driver waits for another one", || {
            node.kubelet().condition("v", &served.pod).is_ok_and(|condition| condition.message.contains("waited for"))
        });
        node.kubelet().unpublish("v", &served.pod).expect("it is published");
        assert!(mounted(&served.pod.target).is_none() && !served.pod.target.exists() && !served.pod.directory.exists());
    });
    assert!(errors.iter().all(is_gone), "{errors:?}");
}
