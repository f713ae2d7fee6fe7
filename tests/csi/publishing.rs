//! What a volume is on its node: mounted before anybody serves it, once, and gone without a trace.

use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use tonic::Code;
use windlass::csi::proto::csi::NodeGetInfoRequest;
use windlass::csi::proto::csi::volume_capability::access_mode::Mode;
use windlass::csi::proto::registration::registration_client::RegistrationClient;
use windlass::csi::proto::registration::{InfoRequest, RegistrationStatus};

use super::daemon::{Daemon, Looker};
use super::kubelet::{Kubelet, capability, publish_request};
use super::node::{Node, PAGES_LIMIT, mounted};
use super::support::mounts::{trial_as_root, wait_until};
use super::support::{BUCKET, S3Server};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_volume_is_mounted_before_anybody_serves_it", before_anybody),
        trial_as_root("a_volume_is_published_once_however_often_it_is_asked_for", once),
        trial_as_root("many_volumes_are_published_at_once", many),
        trial_as_root("two_hundred_cycles_leave_nothing", cycles),
        trial_as_root("a_volume_for_one_pod_is_refused_to_another", alone),
        trial_as_root("what_cannot_be_published_says_why", refusals),
        trial_as_root("kubelet_finds_the_driver_and_a_refused_driver_ends", registration),
    ]
}

const CONTEXT: [(&str, &str); 1] = [("bucket", BUCKET)];

fn before_anybody() {
    let (server, node) = (S3Server::start(), Node::start(&[]));
    server.put("a/file", "content");
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    kubelet.publish(publish_request("v", &pod, &[("bucket", BUCKET), ("prefix", "a"), ("region", "us-east-1")])).expect("it is published");
    let line = mounted(&pod.target).expect("it is mounted");
    assert!(line.contains(&format!(" - fuse.windlass s3://{BUCKET}/a rw")), "{line}");
    assert!(
        line.contains("nosuid") && line.contains("nodev") && line.contains("allow_other") && line.contains("default_permissions"),
        "{line}"
    );
    let device = line.split(' ').nth(2).expect("it has so many fields");
    let read_ahead = fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).expect("the mount has one");
    let limit = fs::read_to_string(PAGES_LIMIT).expect("this kernel has a limit");
    assert_eq!(read_ahead.trim(), "16384");
    assert!(limit.trim().parse::<u64>().expect("a number") < 4096, "the limit is {limit}");
    let condition = kubelet.condition("v", &pod).expect("it is published");
    assert!(condition.abnormal && condition.message.contains("no sidecar"), "{condition:?}");
    let mut looker = Looker::at(&pod.target);
    let daemon = Daemon::serve(&pod, &server);
    assert_eq!(daemon.message.bucket, format!("s3://{BUCKET}/a"));
    let cores = std::thread::available_parallelism().expect("it is known").get();
    assert_eq!(daemon.descriptors.len(), cores.min(16));
    assert!(looker.wait().success(), "whoever came before the daemon has waited");
    assert_eq!(fs::read(pod.target.join("file")).expect("it is served"), b"content");
    wait_until("the driver has heard", || kubelet.condition("v", &pod).is_ok_and(|condition| !condition.abnormal));
    kubelet.unpublish("v", &pod).expect("it is published");
    assert!(mounted(&pod.target).is_none() && !pod.target.exists() && !pod.directory.exists());
    assert_eq!(daemon.wait().code(), Some(0), "it was unmounted");
    kubelet.unpublish("v", &pod).expect("a second time");
    assert_eq!(kubelet.condition("v", &pod).unwrap_err().code(), Code::NotFound);
}

fn once() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let request = || publish_request("v", &pod, &CONTEXT);
    kubelet.publish(request()).expect("it is published");
    let first = mounted(&pod.target);
    for _ in 0..3 {
        kubelet.publish(request()).expect("it is published already");
    }
    assert_eq!(mounted(&pod.target), first);
    let mut others = vec![publish_request("w", &pod, &CONTEXT), publish_request("v", &pod, &[("bucket", "other")]), request(), request()];
    others[2].readonly = true;
    others[3].volume_capability = Some(capability(Mode::MultiNodeMultiWriter, &["uid=7"]));
    for other in others {
        assert_eq!(kubelet.publish(other).unwrap_err().code(), Code::AlreadyExists);
    }
    assert_eq!(kubelet.unpublish("w", &pod).unwrap_err().code(), Code::NotFound, "another volume is there");
    assert_eq!(node.mounts().len(), 1);
    // The same call, many times at once: some are told to come again, none mounts a second time.
    kubelet.unpublish("v", &pod).expect("it is published");
    let (calls, requests) = (kubelet.node(), (0..16).map(|_| request()).collect::<Vec<_>>());
    let results = kubelet.runtime.block_on(async {
        let calling = requests.into_iter().map(|request| {
            let mut calls = calls.clone();
            async move { calls.node_publish_volume(request).await }
        });
        futures::future::join_all(calling).await
    });
    let (done, aborted): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert!(!done.is_empty());
    assert!(aborted.iter().all(|result| result.as_ref().is_err_and(|status| status.code() == Code::Aborted)), "{aborted:?}");
    assert_eq!(node.mounts().len(), 1);
    kubelet.unpublish("v", &pod).expect("it is published");
}

fn many() {
    const VOLUMES: usize = 24;
    let node = Node::start(&[]);
    let kubelet = node.kubelet();
    let pods: Vec<_> = (0..VOLUMES).map(|n| node.pod(&format!("pod-{}", n / 2), &format!("data-{n}"))).collect();
    let limit = fs::read_to_string(PAGES_LIMIT).expect("this kernel has a limit");
    let results = kubelet.runtime.block_on(async {
        let calling = pods.iter().map(|pod| {
            let (mut calls, request) = (kubelet.node(), publish_request("v", pod, &CONTEXT));
            async move { calls.node_publish_volume(request).await }
        });
        futures::future::join_all(calling).await
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!((node.mounts().len(), fs::read_to_string(PAGES_LIMIT).expect("it is there")), (VOLUMES, limit));
    for pod in &pods {
        kubelet.unpublish("v", pod).expect("it is published");
    }
    assert_eq!(node.mounts(), Vec::<String>::new());
}

fn cycles() {
    const CYCLES: usize = 200;
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let cycle = || {
        kubelet.publish(publish_request("v", &pod, &CONTEXT)).expect("it is published");
        kubelet.unpublish("v", &pod).expect("it is published");
    };
    cycle();
    let trace = || {
        let threads = fs::read_dir(format!("/proc/{}/task", node.pid())).expect("it runs").count();
        let files = walk(&node.path("kubelet")) + walk(&node.path("csi"));
        (node.descriptors(), files, node.mounts().len(), threads)
    };
    // Threads that have done something wait a while for more of it, and a connection that was closed may still be there: what is asked is that they do not
    // become more.
    let before = trace();
    for _ in 0..CYCLES {
        cycle();
    }
    wait_until("all that was used is given back", || trace().0 <= before.0);
    let after = trace();
    assert_eq!((after.1, after.2), (before.1, 0), "files and mounts");
    assert!(after.3 <= before.3 + 4, "{} threads, and {} before", after.3, before.3);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", node.pid())).expect("it runs");
    assert_eq!(children.trim(), "");
}

/// How many entries there are below a directory.
fn walk(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).expect("it is a directory").flatten();
    entries.map(|entry| 1 + if entry.file_type().is_ok_and(|kind| kind.is_dir()) { walk(&entry.path()) } else { 0 }).sum()
}

fn alone() {
    let node = Node::start(&[]);
    let (kubelet, one, two) = (node.kubelet(), node.pod("1", "data"), node.pod("2", "data"));
    let mut request = publish_request("v", &one, &CONTEXT);
    request.volume_capability = Some(capability(Mode::SingleNodeSingleWriter, &[]));
    kubelet.publish(request.clone()).expect("it is published");
    kubelet.publish(request).expect("it is published already");
    assert_eq!(kubelet.publish(publish_request("v", &two, &CONTEXT)).unwrap_err().code(), Code::FailedPrecondition);
    kubelet.unpublish("v", &one).expect("it is published");
    kubelet.publish(publish_request("v", &two, &CONTEXT)).expect("the other one is gone");
    kubelet.unpublish("v", &two).expect("it is published");
}

fn refusals() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let refused = |context: &[(&str, &str)], code, word| {
        let status = kubelet.publish(publish_request("v", &pod, context)).unwrap_err();
        assert!(status.code() == code && status.message().contains(word), "{status:?}");
    };
    refused(&[], Code::InvalidArgument, "no bucket");
    refused(&[("bucket", BUCKET), ("chunk-sise", "4MiB")], Code::InvalidArgument, "chunk-sise");
    refused(&[("bucket", BUCKET), ("mountOptions", "alow_other")], Code::InvalidArgument, "allow_other");
    fs::remove_dir(&pod.meeting).expect("it is empty");
    refused(&CONTEXT, Code::FailedPrecondition, "emptyDir named windlass");
    std::os::unix::fs::symlink("/tmp", &pod.meeting).expect("it was removed");
    let linked = kubelet.publish(publish_request("v", &pod, &CONTEXT)).unwrap_err();
    assert_eq!(linked.code(), Code::Internal, "{linked:?}");
    assert_eq!(node.mounts(), Vec::<String>::new());
    assert!(!pod.target.exists());
}

fn registration() {
    let mut node = Node::start(&[]);
    let kubelet = node.kubelet();
    let info = kubelet.runtime.block_on(kubelet.node().node_get_info(NodeGetInfoRequest {})).expect("it answers");
    assert_eq!(info.into_inner().node_id, "node-1");
    let registry = node.path("registry/csi.windlass.dev-reg.sock");
    let asking = Kubelet::connect(&registry);
    let mut calls = RegistrationClient::new(asking.channel.clone());
    let info = asking.runtime.block_on(calls.get_info(InfoRequest {})).expect("it answers").into_inner();
    assert_eq!(
        (info.r#type.as_str(), info.name.as_str(), info.supported_versions),
        ("CSIPlugin", "csi.windlass.dev", vec!["1.0.0".to_owned()])
    );
    assert!(info.endpoint.ends_with("kubelet/plugins/csi.windlass.dev/csi.sock"), "{}", info.endpoint);
    let status = |plugin_registered| RegistrationStatus { plugin_registered, error: "not wanted".into() };
    asking.runtime.block_on(calls.notify_registration_status(status(true))).expect("it listens");
    asking.runtime.block_on(calls.notify_registration_status(status(false))).expect("it listens");
    drop((kubelet, calls, asking));
    assert_eq!(node.wait(), Some(1));
    assert!(node.log().contains("not wanted") && !registry.exists() && !node.socket().exists(), "{}", node.log());
}
