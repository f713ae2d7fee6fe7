//! The three of a pod as a cluster has them: the driver as root, the sidecar without any privilege in a sandbox of its own, the application in mount and
//! PID namespaces of its own. How much is written is told by WINDLASS_TEST_MIB.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::kubelet::{map, publish_request};
use super::node::{Node, Pod};
use super::support::mounts::wait_until;
use super::support::network::Network;
use super::support::sandbox::{Sandbox, Sandboxed, trial};
use super::support::{ACCESS_KEY, BUCKET, REGION, S3Server, SECRET_KEY, prometheus};

/// What is written when nobody says how much: enough for the largest READ.
const MIB: u64 = 96;

/// The sandbox has the emptyDir of the pod where everybody has it.
pub const SIDECAR: [&str; 2] = ["--sidecar-dir", "{home}/kubelet/pods/1/volumes/kubernetes.io~empty-dir/windlass"];

pub fn trials() -> Vec<Trial> {
    vec![
        trial("an_application_writes_and_reads_through_a_sidecar_without_privilege", || written_and_read(&[], 16 << 20)),
        trial("without_the_limit_of_pages_reads_are_of_a_mebibyte", || written_and_read(&["--read-size", "1MiB"], 1 << 20)),
        trial("a_sidecar_serves_what_comes_and_ends_with_its_daemons", life),
    ]
}

/// The sidecar of a pod.
pub struct Sidecar {
    pub process: Sandboxed,
    network: Arc<Network>,
}

/// Where its pages are; nobody else listens in the network of the pod.
pub const PORT: u16 = 9811;

impl Sidecar {
    pub fn start(pod: &Pod, server: &S3Server) -> Self {
        Self::start_with(pod, server, &[])
    }

    /// One whose daemons get `options` besides.
    pub fn start_with(pod: &Pod, server: &S3Server, options: &[&str]) -> Self {
        Self::start_in(None, pod, server, options)
    }

    /// One whose container has a limit of memory.
    pub fn start_in(cgroup: Option<&Path>, pod: &Pod, server: &S3Server, options: &[&str]) -> Self {
        let network = Arc::new(Network::with_store(server));
        // Nothing in its environment says who it is: that comes from a Secret, by way of the driver.
        let sandbox = Sandbox::new(&network).writable(&pod.meeting).in_cgroup(cgroup).envs([("AWS_EC2_METADATA_DISABLED", "true")]);
        let listen = format!("127.0.0.1:{PORT}");
        let directory = pod.meeting.to_str().expect("it is text");
        let words = ["sidecar", "--dir", directory, "--listen", &listen, "--", "--path-style"];
        Self { process: sandbox.start(&[&words, options].concat()), network }
    }

    /// Status and body of a page; nothing while nobody listens.
    pub fn page(&self, path: &str) -> Option<(u16, String)> {
        self.network.page(PORT, path)
    }

    pub fn wait_until_ready(&self) {
        wait_until("all volumes are served", || self.page("/readyz").is_some_and(|(status, _)| status == 200));
    }

    /// Kills the daemon of its only volume as the kernel does when memory runs out, and returns which it was.
    pub fn kill_daemon(&self) -> i32 {
        let [daemon] = self.daemons()[..] else { panic!("not one daemon but {:?}", self.daemons()) };
        kill_process(Pid::from_raw(daemon).expect("it is a process"), Signal::KILL).expect("it runs");
        daemon
    }

    /// Kills it, and waits until another one is there.
    pub fn replace_daemon(&self) {
        let killed = self.kill_daemon();
        wait_until("another daemon", || self.daemons().iter().any(|daemon| *daemon != killed));
    }

    /// The processes that it has started.
    pub fn daemons(&self) -> Vec<i32> {
        let all = fs::read_dir("/proc").expect("it is mounted").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let parent = format!("PPid:\t{}\n", self.process.pid());
        all.filter(|pid: &i32| fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains(&parent))).collect()
    }
}

fn context(server: &S3Server) -> Vec<(&'static str, String)> {
    let owner = |name| (name, "1000".to_owned());
    vec![("bucket", BUCKET.into()), ("endpoint", server.endpoint()), ("region", REGION.into()), owner("uid"), owner("gid")]
}

pub fn publish(node: &Node, volume: &str, pod: &Pod, server: &S3Server) {
    let context = context(server);
    let context: Vec<(&str, &str)> = context.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let mut request = publish_request(volume, pod, &context);
    request.secrets = map(&[("AccessKeyId", ACCESS_KEY), ("AccessKeySecret", SECRET_KEY)]);
    node.kubelet().publish(request).expect("it is published");
}

/// Writes and fsyncs. What it has of its own is another copy to compare with.
const WRITE: &str = r#"
head -c "$3" /dev/urandom > "$2/source"
dd if="$2/source" of="$1/file" bs=1M conv=fsync status=none
"#;

/// Reads back, and looks how.
const READ: &str = r#"
cmp "$2/source" "$1/file"
cat "$1/.windlass/stats"
"#;

/// Runs a script as an application in a container of its own.
fn application(script: &str, pod: &Pod, own: &Path, mib: u64) -> Vec<u8> {
    let mut application = Command::new("unshare");
    let user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"];
    application.args(["--mount", "--pid", "--fork", "--mount-proc"]).args(user).args(["sh", "-e", "-c", script, "sh"]);
    let output = application.arg(&pod.target).arg(own).arg((mib << 20).to_string()).output().expect("they are installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn written_and_read(flags: &[&str], longest: u64) {
    let (server, node) = (S3Server::start(), Node::start(&[&SIDECAR[..], flags].concat()));
    let pod = node.pod("1", "data");
    publish(&node, "v", &pod, &server);
    let mut sidecar = Sidecar::start(&pod, &server);
    sidecar.wait_until_ready();
    sidecar.process.check_privilege(&[&pod.meeting]);
    let mib = std::env::var("WINDLASS_TEST_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(MIB);
    let own = node.path("own");
    fs::create_dir(&own).expect("it is new");
    std::os::unix::fs::chown(&own, Some(1000), Some(1000)).expect("we are root");
    application(WRITE, &pod, &own, mib);
    let read = || {
        let stats: Value = serde_json::from_slice(&application(READ, &pod, &own, mib)).expect("it is JSON");
        stats["gauges"]["longest_read_bytes"].as_u64().expect("it is counted")
    };
    // The kernel tells of the last close after it has returned. Until then reads go past its pages, and a buffer that begins inside of one has less.
    wait_until("it is read through pages", || read() >= longest);
    let read = read();
    println!("{mib} MiB written and read; longest READ {} KiB", read >> 10);
    assert_eq!(read, longest);
    let stored = server.stored("file").expect("it is in the bucket").0;
    assert!(stored == fs::read(own.join("source")).expect("it is there"));
    let (status, metrics) = sidecar.page("/metrics").expect("it listens");
    assert!(status == 200 && metrics.contains("volume=\"data\""), "{metrics}");
    // Its daemon's process, and its own.
    assert!(metrics.contains("process_open_fds{volume=\"data\"} ") && metrics.contains("\nprocess_open_fds "), "{metrics}");
    prometheus::checks(&metrics);
    node.kubelet().unpublish("v", &pod).expect("it is published");
    wait_until("the daemon ends with its mount", || sidecar.daemons().is_empty());
    sidecar.process.signal(Signal::TERM);
    assert_eq!(sidecar.process.wait().code(), Some(0));
}

fn life() {
    let (server, node) = (S3Server::start(), Node::start(&SIDECAR));
    server.put("file", "content");
    let (one, two) = (node.pod("1", "one"), node.pod("1", "two"));
    let mut sidecar = Sidecar::start(&one, &server);
    wait_until("it listens", || sidecar.page("/healthz").is_some_and(|(status, _)| status == 200));
    assert_eq!(sidecar.page("/readyz").expect("it listens").0, 503, "nothing is published");
    publish(&node, "v", &one, &server);
    sidecar.wait_until_ready();
    assert_eq!(fs::read(one.target.join("file")).expect("it is served"), b"content");
    publish(&node, "w", &two, &server);
    wait_until("both are served", || sidecar.daemons().len() == 2 && sidecar.page("/readyz").is_some_and(|(status, _)| status == 200));
    assert_eq!(fs::read(two.target.join("file")).expect("it is served"), b"content");
    // A daemon that ends is started again, also after SIGTERM; kubelet asks for its volume again and again meanwhile.
    for signal in [Signal::KILL, Signal::TERM] {
        let ended = sidecar.daemons()[0];
        kill_process(Pid::from_raw(ended).expect("it is a process"), signal).expect("it runs");
        wait_until("another one serves", || {
            publish(&node, "v", &one, &server);
            publish(&node, "w", &two, &server);
            let daemons = sidecar.daemons();
            daemons.len() == 2 && !daemons.contains(&ended) && sidecar.page("/readyz").is_some_and(|(status, _)| status == 200)
        });
        for pod in [&one, &two] {
            assert_eq!(fs::read(pod.target.join("file")).expect("it is served"), b"content");
        }
    }
    sidecar.process.signal(Signal::TERM);
    assert_eq!(sidecar.process.wait().code(), Some(0));
    assert_eq!(sidecar.daemons(), Vec::<i32>::new());
    let kubelet = node.kubelet();
    kubelet.unpublish("v", &one).expect("it is published");
    kubelet.unpublish("w", &two).expect("it is published");
    assert_eq!(node.mounts(), Vec::<String>::new());
}
