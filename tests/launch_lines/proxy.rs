//! The mount-proxy, asked as the node plugin of Alibaba Cloud's driver asks (pkg/mounter/proxy/client/client.go and protocol.go of
//! kubernetes-sigs/alibaba-cloud-csi-driver): a connection for each request, JSON and a line feed, one answer.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::oss::{BUCKET, Needs, World};
use super::place::{soon, wait};
use super::support::mounts::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("the_proxy_answers_pings_and_names_what_it_does_not_know", || {
            answers();
            Ok(())
        }),
        trial("the_proxy_mounts_for_ossfs_and_unmounts", || mounts("ossfs")),
        trial("the_proxy_mounts_for_ossfs2_and_unmounts", || mounts("ossfs2")),
        trial("the_proxy_rotates_tokens_of_ossfs", || rotates("ossfs", OSSFS)),
        trial("the_proxy_rotates_tokens_of_ossfs2", || rotates("ossfs2", OSSFS2)),
        trial("the_proxy_says_why_it_does_not_mount", says_why),
        trial("the_proxy_writes_the_metrics_that_the_driver_reads", writes_metrics),
        trial("the_proxy_ends_its_mounts_with_sigterm", ends),
    ]
}

struct Proxy {
    world: World,
    socket: PathBuf,
    child: Child,
}

impl Proxy {
    fn start(needs: Needs) -> Self {
        let world = World::new(needs);
        let socket = world.place.beside("mounter.sock");
        // The image's own words, then those of the pod: pkg/mounter/fuse_pod_manager/oss/ossfs/manager.go buildPodSpec.
        let mut command = world.command("csi-mount-proxy-server");
        command.arg("--driver=ossfs,ossfs2").arg(format!("--socket={}", socket.display())).arg("-v=4");
        let child = command.env("TMPDIR", world.place.beside("")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        assert!(soon(|| socket.exists()), "what the readiness probe of the pod looks for");
        Self { world, socket, child }
    }

    fn ask(&self, request: &Value) -> Value {
        let mut stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.write_all(format!("{request}\n").as_bytes()).expect("it is read");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("it answers");
        assert!(line.ends_with('\n'), "{line}");
        serde_json::from_str(&line).expect("it is JSON")
    }

    fn mount(&self, client: &str, options: &[&str], secrets: Value, metrics: &str) -> Value {
        let options: Vec<_> = options.iter().map(|option| option.replace("{url}", &self.world.url())).collect();
        let body = json!({
            "source": format!("{BUCKET}:/p"), "target": self.world.place.at, "fstype": client, "options": options, "secrets": secrets,
            "metricsPath": metrics, "volumeID": "volume-1", "newThing": 1,
        });
        self.ask(&json!({"header": {"method": "mount"}, "body": body}))
    }

    fn unmount(&self) -> Value {
        self.ask(&json!({"header": {"method": "unmount"}, "body": {"target": self.world.place.at}}))
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        assert_eq!(wait(&mut self.child), Some(0));
        assert!(!self.socket.exists() && !self.world.place.is_mounted());
        assert!(soon(|| self.world.place.pids().is_empty()), "{:?}", self.world.place.pids());
        let left: Vec<_> =
            fs::read_dir(self.world.place.beside("")).expect("it is ours").flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("windlass-mount-")), "secrets stay behind: {left:?}");
    }
}

const KEY: &str = "data:LTAI5tEXAMPLEKEYID:EXAMPLEsecret0001";
const CONFIGURATION: &str = "--oss_access_key_id=LTAI5tEXAMPLEKEYID\n--oss_access_key_secret=EXAMPLEsecret0001";
const OSSFS: &[&str] = &["url={url}", "dbglevel=warn", "allow_other", "use_metrics", "listobjectsv2"];
const OSSFS2: &[&str] =
    &["oss_endpoint={url}", "oss_bucket=data", "oss_bucket_prefix=/p", "log_level=info", "log_dir=/dev/stdout", "use_metrics=true"];

fn answers() {
    let proxy = Proxy::start(Needs::Key);
    let ping = json!({"header": {"method": "ping"}});
    assert_eq!((proxy.ask(&ping), proxy.ask(&ping)), (json!({"seq": 1}), json!({"seq": 2})));
    for (request, words) in [
        (json!({"header": {"method": "remount"}}), "invalid method"),
        (json!({"header": {"method": "mount"}, "body": {"fstype": "alinas", "target": "/x"}}), "fstype \"alinas\" not supported"),
        (json!({"header": {"method": "mount"}, "body": {"fstype": "ossfs", "target": "/x", "overlay": true}}), "overlay"),
        (json!({"header": {"method": "mount"}, "body": {"fstype": "ossfs"}}), "empty mount target"),
        (json!({"header": {"method": "unmount"}, "body": {"target": "/x"}}), "target not managed by mount broker"),
        (json!([1, 2]), "read request"),
    ] {
        let answer = proxy.ask(&request);
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{request}: {answer}");
    }
    proxy.stop();
}

fn mounts(client: &str) {
    let proxy = Proxy::start(Needs::Key);
    let (options, secrets) = match client {
        "ossfs" => (OSSFS, json!({"passwd-ossfs": KEY})),
        _ => (OSSFS2, json!({"passwd-ossfs2": CONFIGURATION})),
    };
    assert_eq!(proxy.mount(client, options, secrets.clone(), ""), json!({"seq": 1}));
    proxy.world.reads();
    // Published once more: it is mounted already.
    let pids = proxy.world.place.pids();
    assert_eq!(proxy.mount(client, options, secrets, ""), json!({"seq": 2}));
    assert_eq!(proxy.world.place.pids(), pids);
    assert_eq!(proxy.unmount(), json!({"seq": 3}));
    assert!(!proxy.world.place.is_mounted());
    assert!(proxy.unmount()["error"].as_str().is_some_and(|error| error.contains("not managed")));
    proxy.stop();
}

/// The driver publishes again with other keys (requiresRepublish), and the store knows no others from then on.
fn rotates(client: &str, options: &[&str]) {
    let proxy = Proxy::start(Needs::Token);
    let secrets = |id: &str, secret: &str, token: &str| json!({"AccessKeyId": id, "AccessKeySecret": secret, "SecurityToken": token});
    let first = secrets("LTAI5tEXAMPLEKEYID", "EXAMPLEsecret0001", "EXAMPLEtoken/0001==");
    assert_eq!(proxy.mount(client, options, first, ""), json!({"seq": 1}));
    proxy.world.reads();
    let pids = proxy.world.place.pids();
    let second = secrets("STS.second", "EXAMPLEsecret0002", "EXAMPLEtoken/0002==");
    assert_eq!(proxy.mount(client, options, second, ""), json!({"seq": 2}));
    proxy.world.server.change(|setup| {
        (setup.who.id, setup.who.secret) = ("STS.second".into(), "EXAMPLEsecret0002".into());
        setup.token = Some("EXAMPLEtoken/0002==".into());
    });
    // A name that nobody has asked for is a request.
    let mut names = 0..;
    let asked = |name: u32| fs::metadata(proxy.world.place.at.join(format!("absent-{name}")));
    let is_let_in = || names.next().is_some_and(|name| asked(name).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound));
    assert!(soon(is_let_in));
    assert_eq!(proxy.world.place.pids(), pids, "the daemon is the same");
    proxy.stop();
}

fn says_why() {
    let proxy = Proxy::start(Needs::Key);
    let metrics = proxy.world.place.beside("metrics");
    let metrics = metrics.to_str().expect("the test names it");
    let error = |answer: Value| answer["error"].as_str().unwrap_or_default().to_owned();
    let refused = error(proxy.mount("ossfs", &["url={url}", "new_thing"], json!({"passwd-ossfs": KEY}), metrics));
    assert!(refused.contains("ossfs exited: exit status: 2, with stderr: ") && refused.contains("new_thing"), "{refused}");
    let denied = error(proxy.mount("ossfs", OSSFS, json!({"passwd-ossfs": "data:LTAI5tEXAMPLEKEYID:another"}), metrics));
    assert!(denied.contains("exit status: 3") && denied.contains("SignatureDoesNotMatch"), "{denied}");
    let halved = error(proxy.mount("ossfs", OSSFS, json!({"SecurityToken": "t", "AccessKeyId": "a"}), metrics));
    assert!(halved.contains("AccessKeySecret is empty"), "{halved}");
    let read = |name: &str| fs::read_to_string(PathBuf::from(metrics).join(name)).expect("the driver reads it");
    assert_eq!((read("mount_point_status").as_str(), read("mount_retry_count").as_str()), ("1", "2"));
    assert!(read("last_fuse_client_exit_reason").contains("Z:: "), "{}", read("last_fuse_client_exit_reason"));
    assert!(!proxy.world.place.is_mounted());
    proxy.stop();
}

fn writes_metrics() {
    let proxy = Proxy::start(Needs::Key);
    // In a directory of the driver's form: the hash of the volume's name.
    let metrics = proxy.world.place.beside("metrics").join("c4f1");
    let place = metrics.to_str().expect("the test names it").to_owned();
    assert_eq!(proxy.mount("ossfs", OSSFS, json!({"passwd-ossfs": KEY}), &place), json!({"seq": 1}));
    proxy.world.reads();
    let numbers = |name: &str| fs::read_to_string(metrics.join(name)).unwrap_or_default();
    assert_eq!((numbers("mount_point_status").as_str(), numbers("mount_retry_count").as_str()), ("0", "0"));
    let size = proxy.world.place.read("file").len();
    let read = || numbers("throughput_counter").split(' ').next().and_then(|number| number.parse::<usize>().ok());
    assert!(soon(|| read().is_some_and(|bytes| bytes >= size)), "{}", numbers("throughput_counter"));
    // Each file is replaced by itself, this one later. Opens are the eleventh number.
    let posix = || numbers("posix_counter").split(' ').map(|number| number.parse::<u64>().unwrap_or_default()).collect::<Vec<_>>();
    assert!(soon(|| posix().len() == 16 && posix()[10] >= 1), "opens: {:?}", posix());
    assert_eq!(numbers("iops_counter").split(' ').count(), 2);
    // A daemon that dies is told of.
    let daemons: Vec<_> = proxy.world.place.pids().into_iter().filter(|pid| *pid != proxy.child.id().cast_signed()).collect();
    kill_process(Pid::from_raw(daemons[0]).expect("it is positive"), Signal::KILL).expect("it runs");
    assert!(soon(|| numbers("mount_point_status") == "1"));
    // And the driver, which asks again, gets a new one in the place of what it left.
    assert_eq!(proxy.mount("ossfs", OSSFS, json!({"passwd-ossfs": KEY}), &place), json!({"seq": 2}));
    proxy.world.reads();
    assert_eq!((numbers("mount_point_status").as_str(), numbers("mount_retry_count").as_str()), ("0", "1"));
    proxy.stop();
    assert!(!metrics.join("mount_point_status").exists());
}

fn ends() {
    let proxy = Proxy::start(Needs::Key);
    assert_eq!(proxy.mount("ossfs", OSSFS, json!({"passwd-ossfs": KEY}), ""), json!({"seq": 1}));
    proxy.world.reads();
    proxy.stop();
}
