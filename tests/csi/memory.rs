//! Many volumes in one sidecar of 256 MiB: its daemons have one budget together, and none of them is killed for want of memory. How much each reader
//! reads is told by WINDLASS_TEST_MIB.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::thread;

use libtest_mimic::Trial;
use rustix::process::Signal;
use windlass::store::memory::Synthetic;

use super::node::{Node, Pod};
use super::support::S3Server;
use super::support::cgroup::Cgroup;
use super::support::mounts::{trial_unless, wait_until};
use super::support::sandbox::no_sandbox;
use super::trio::{SIDECAR, Sidecar, publish};

const LIMIT: u64 = 256 << 20;
const READERS: usize = 3;

/// What a reader reads when nobody says how much: several times what its daemon may hold.
const MIB: u64 = 96;

pub fn trials() -> Vec<Trial> {
    let trial = |name, test: fn()| trial_unless(|| no_sandbox().or_else(|| Cgroup::make(LIMIT).err()), name, test);
    vec![
        trial("no_daemon_of_one_to_eight_volumes_in_256_mib_is_killed", || [1, 2, 4, 6, 8].into_iter().for_each(volumes)),
        trial("the_memory_of_a_volume_that_goes_is_given_to_the_others", comes_and_goes),
        trial("volumes_that_ask_for_more_than_their_share_are_served", asks_for_more),
    ]
}

/// The memory limits of a pod's daemons, in MiB.
fn limits(sidecar: &Sidecar) -> Vec<u64> {
    let (_, metrics) = sidecar.page("/metrics").expect("it listens");
    let values = metrics.lines().filter(|line| line.starts_with("windlass_budget_limit_bytes{"));
    values.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect("it is a number") >> 20).collect()
}

fn pods(node: &Node, count: usize) -> Vec<Pod> {
    (0..count).map(|number| node.pod("1", &format!("volume-{number}"))).collect()
}

fn check(path: PathBuf, content: Synthetic) {
    let mut file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut offset, mut piece) = (0, vec![0; 1 << 20]);
    while let len @ 1.. = file.read(&mut piece).unwrap_or_else(|error| panic!("{} at {offset}: {error}", path.display())) {
        assert!(content.matches(offset, &piece[..len]), "{} at {offset}: other bytes", path.display());
        offset += len as u64;
    }
}

fn volumes(count: usize) {
    let size = std::env::var("WINDLASS_TEST_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(MIB) << 20;
    let cgroup = Cgroup::make(LIMIT).expect("it could be made");
    let (server, node) = (S3Server::start(), Node::start(&SIDECAR));
    let contents: Vec<Synthetic> = (0..READERS).map(|number| server.put_synthetic(&format!("file-{number}"), size)).collect();
    let pods = pods(&node, count);
    for (number, pod) in pods.iter().enumerate() {
        publish(&node, &format!("v-{number}"), pod, &server);
    }
    let mut sidecar = Sidecar::start_in(Some(&cgroup.path), &pods[0], &server, &[]);
    wait_until("all volumes are served", || {
        sidecar.daemons().len() == count && sidecar.page("/readyz").is_some_and(|(status, _)| status == 200)
    });
    let (daemons, limits) = (sidecar.daemons(), limits(&sidecar));
    let mut most = 0;
    thread::scope(|scope| {
        let readers = pods
            .iter()
            .flat_map(|pod| contents.iter().enumerate().map(|(number, content)| (pod.target.join(format!("file-{number}")), *content)));
        let readers: Vec<_> = readers.map(|(path, content)| scope.spawn(move || check(path, content))).collect();
        while !readers.iter().all(thread::ScopedJoinHandle::is_finished) {
            most = most.max(cgroup.anonymous());
            thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    println!(
        "{count} volumes: memory-limit {limits:?} MiB, at most {} of {} MiB in use, {} kills",
        most >> 20,
        LIMIT >> 20,
        cgroup.kills()
    );
    assert_eq!((cgroup.kills(), sidecar.daemons()), (0, daemons));
    sidecar.process.signal(Signal::TERM);
    assert_eq!(sidecar.process.wait().code(), Some(0));
}

fn comes_and_goes() {
    let (server, mut node) = (S3Server::start(), Node::start(&SIDECAR));
    let pods = pods(&node, 3);
    publish(&node, "v-0", &pods[0], &server);
    let sidecar = Sidecar::start_with(&pods[0], &server, &[]);
    let total = || limits(&sidecar).iter().sum::<u64>();
    sidecar.wait_until_ready();
    let all = total();
    publish(&node, "v-1", &pods[1], &server);
    wait_until("two have a half each", || limits(&sidecar) == [all / 2; 2]);
    publish(&node, "v-2", &pods[2], &server);
    wait_until("three have a third each", || limits(&sidecar) == [all / 3; 3]);
    // A driver that is replaced takes its sockets along; the daemons go on, and with them what they have.
    node.terminate();
    assert_eq!(node.wait(), Some(0));
    assert!(pods.iter().all(|pod| !pod.directory.join("mount.sock").exists()));
    // Several looks.
    thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(limits(&sidecar), [all / 3; 3]);
    node.begin();
    wait_until("the daemons are found again", || {
        let found = |(number, pod)| {
            let condition = node.kubelet().condition(&format!("v-{number}"), pod);
            condition.is_ok_and(|condition| !condition.abnormal && condition.message.contains("a sidecar serves it"))
        };
        pods.iter().enumerate().all(found)
    });
    assert_eq!(limits(&sidecar), [all / 3; 3]);
    let kubelet = node.kubelet();
    kubelet.unpublish("v-0", &pods[0]).expect("it is published");
    kubelet.unpublish("v-2", &pods[2]).expect("it is published");
    wait_until("one has all", || limits(&sidecar) == [all]);
}

fn asks_for_more() {
    let cgroup = Cgroup::make(LIMIT).expect("it could be made");
    let (server, node) = (S3Server::start(), Node::start(&SIDECAR));
    let content = server.put_synthetic("file", 40 << 20);
    let pods = pods(&node, 3);
    for (number, pod) in pods.iter().enumerate() {
        publish(&node, &format!("v-{number}"), pod, &server);
    }
    // A third of 64 MiB holds neither two such chunks nor two such parts, and there is no disk.
    let options = ["--chunk-size=16MiB", "--upload-part-size=16MiB"];
    let sidecar = Sidecar::start_in(Some(&cgroup.path), &pods[0], &server, &options);
    wait_until("all volumes are served", || {
        sidecar.daemons().len() == 3 && sidecar.page("/readyz").is_some_and(|(status, _)| status == 200)
    });
    assert_eq!(limits(&sidecar), [32; 3]);
    for (number, pod) in pods.iter().enumerate() {
        check(pod.target.join("file"), content);
        std::fs::write(pod.target.join(format!("new-{number}")), vec![1; 70 << 20]).expect("it is stored");
    }
    assert_eq!(cgroup.kills(), 0);
}
