//! The ways to get a volume: a persistent volume that somebody wrote, one inside a pod, one out of a StorageClass; and what their options do.

use std::fs;

use libtest_mimic::Trial;
use tonic::Code;
use windlass::csi::proto::csi::volume_capability::access_mode::Mode;
use windlass::csi::proto::csi::{CapacityRange, CreateVolumeRequest, ValidateVolumeCapabilitiesRequest, Volume};

use super::daemon::Daemon;
use super::kubelet::{Kubelet, capability, map, publish_request};
use super::node::{Node, mounted};
use super::support::mounts::trial_as_root;
use super::support::{ACCESS_KEY, BUCKET, REGION, S3Server, SECRET_KEY};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("a_static_volume_takes_the_options_of_its_persistent_volume", fixed),
        trial_as_root("an_inline_volume_is_read_only_when_its_pod_says_so", inline),
        trial_as_root("a_storage_class_makes_volumes_and_takes_their_objects_away", class),
        trial_as_root("a_volume_of_a_class_is_made_with_the_keys_of_the_driver_too", keys_of_the_driver),
    ]
}

fn fixed() {
    let (server, node) = (S3Server::start(), Node::start(&[]));
    server.put("dir/file", "content");
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "pv-1"));
    let context = [("bucketName", BUCKET), ("path", "/dir"), ("otherOpts", "-o umask=027 -o max_stat_cache_size=10")];
    let mut request = publish_request("handle", &pod, &context);
    request.volume_capability = Some(capability(Mode::MultiNodeReaderOnly, &["uid=7", "noexec"]));
    kubelet.publish(request).expect("it is published");
    let line = mounted(&pod.target).expect("it is mounted");
    assert!(line.contains(" ro,") && line.contains("noexec"), "{line}");
    let daemon = Daemon::serve(&pod, &server);
    assert_eq!(daemon.message.args, ["-o", "uid=7,noexec,umask=027,max_stat_cache_size=10"]);
    assert_eq!(daemon.message.options["read-only"], true);
    let file = fs::metadata(pod.target.join("file")).expect("it is served");
    use std::os::unix::fs::MetadataExt;
    assert_eq!((file.uid(), file.mode() & 0o777), (7, 0o640));
    assert_eq!(fs::write(pod.target.join("new"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    kubelet.unpublish("handle", &pod).expect("it is published");
}

fn inline() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let context =
        [("source", "oss://data/models"), ("endpoint", "https://oss-cn-hangzhou.aliyuncs.com"), ("csi.storage.k8s.io/ephemeral", "true")];
    let mut request = publish_request("csi-0123", &pod, &context);
    request.volume_capability = Some(capability(Mode::SingleNodeWriter, &[]));
    request.readonly = true;
    kubelet.publish(request).expect("it is published");
    let line = mounted(&pod.target).expect("it is mounted");
    assert!(line.contains(" ro,") && line.contains("oss://data/models"), "{line}");
    kubelet.unpublish("csi-0123", &pod).expect("it is published");
}

const SECRETS: [(&str, &str); 2] = [("akId", ACCESS_KEY), ("akSecret", SECRET_KEY)];

fn create_request(name: &str, server: &S3Server, bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: bytes }),
        volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter, &[])],
        parameters: map(&[("bucket", BUCKET), ("prefix", "class"), ("endpoint", &server.endpoint()), ("region", REGION)]),
        secrets: map(&SECRETS),
        ..CreateVolumeRequest::default()
    }
}

fn validate(kubelet: &Kubelet, volume: &Volume) -> Result<bool, Code> {
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: volume.volume_id.clone(),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter, &[])],
        secrets: map(&SECRETS),
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let answer = kubelet.runtime.block_on(kubelet.controller().validate_volume_capabilities(request));
    answer.map(|answer| answer.into_inner().confirmed.is_some()).map_err(|status| status.code())
}

fn class() {
    let (server, node) = (S3Server::start(), Node::start(&[]));
    let kubelet = node.kubelet();
    server.put("class/other/file", "kept");
    let volume = kubelet.create(create_request("pvc-1", &server, 1 << 30)).expect("it is made");
    assert_eq!(kubelet.create(create_request("pvc-1", &server, 1 << 30)).expect("it is made already"), volume);
    assert_eq!(kubelet.create(create_request("pvc-1", &server, 2 << 30)).unwrap_err().code(), Code::AlreadyExists);
    assert_eq!((volume.capacity_bytes, validate(&kubelet, &volume)), (1 << 30, Ok(true)));
    let pod = node.pod("1", "pvc-1");
    let context: Vec<(&str, &str)> = volume.volume_context.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    kubelet.publish(publish_request(&volume.volume_id, &pod, &context)).expect("it is published");
    let _daemon = Daemon::serve(&pod, &server);
    fs::create_dir(pod.target.join("dir")).expect("it can be written");
    fs::write(pod.target.join("dir/new"), "written").expect("it can be written");
    assert_eq!(server.stored("class/pvc-1/dir/new").expect("it is in the bucket").0, "written");
    kubelet.unpublish(&volume.volume_id, &pod).expect("it is published");
    kubelet.delete(&volume.volume_id, &SECRETS).expect("it is there");
    assert!(server.stored("class/pvc-1/dir/new").is_none(), "its objects are gone");
    assert!(server.stored("class/other/file").is_some(), "and no others");
    assert_eq!(validate(&kubelet, &volume), Err(Code::NotFound));
    kubelet.delete(&volume.volume_id, &SECRETS).expect("a second time");
    // What was not made by a class is never deleted.
    let written = format!("s3://{BUCKET}/class/other?endpoint={}&region={REGION}", server.endpoint());
    kubelet.delete(&written, &SECRETS).expect("nothing is to be done");
    kubelet.delete("handle", &[]).expect("nothing is to be done");
    assert!(server.stored("class/other/file").is_some());
    let wrong = kubelet.delete(&volume.volume_id, &[("akId", ACCESS_KEY), ("akSecret", "wrong")]).unwrap_err();
    assert_eq!(wrong.code(), Code::PermissionDenied, "{wrong:?}");
}

fn keys_of_the_driver() {
    let server = S3Server::start();
    let node = Node::start_with(&[], Some(&server));
    let kubelet = node.kubelet();
    let mut request = create_request(&"n".repeat(128), &server, 0);
    request.secrets.clear();
    let volume = kubelet.create(request).expect("it is made");
    assert!(volume.volume_id.len() <= 128, "{}", volume.volume_id);
    kubelet.delete(&volume.volume_id, &[]).expect("it is there");
}
