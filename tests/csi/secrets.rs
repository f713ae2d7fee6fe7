//! Keys and tokens on their way to the sidecar, and what a sidecar says of its failure.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use libtest_mimic::Trial;
use serde_json::json;
use tonic::Code;
use windlass::csi::proto::csi::NodePublishVolumeRequest;

use super::daemon::take;
use super::kubelet::{map, publish_request};
use super::node::{Node, Pod};
use super::support::BUCKET;
use super::support::mounts::{trial_as_root, wait_until};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_as_root("keys_and_tokens_are_files_that_only_the_sidecar_reads", files),
        trial_as_root("a_sidecar_cannot_lead_the_driver_out_of_its_directory", links),
        trial_as_root("what_a_sidecar_says_of_its_failure_is_what_kubelet_hears", failures),
    ]
}

fn request(pod: &Pod, token: &str) -> NodePublishVolumeRequest {
    let tokens = json!({"sts.amazonaws.com": {"token": token, "expirationTimestamp": "2026-01-01T00:00:00Z"}}).to_string();
    let context = [("bucket", BUCKET), ("roleArn", "arn:aws:iam::1:role/r"), ("csi.storage.k8s.io/serviceAccount.tokens", &tokens)];
    publish_request("v", pod, &context)
}

/// What lies in a directory, with everything that guards it.
fn look(path: &Path) -> (String, u32, u32) {
    let found = fs::metadata(path).expect("it is there");
    (fs::read_to_string(path).expect("root reads everything"), found.uid(), found.mode() & 0o777)
}

fn files() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    kubelet.publish(request(&pod, "first")).expect("it is published");
    let token = pod.directory.join("credentials/token-sts.amazonaws.com");
    assert_eq!(look(&token), ("first".into(), 65534, 0o400));
    let (_line, message, _) = take(&pod);
    let variables = &message.env.0;
    assert_eq!(variables["AWS_WEB_IDENTITY_TOKEN_FILE"], "/windlass/data/credentials/token-sts.amazonaws.com");
    assert_eq!(variables["AWS_ROLE_ARN"], "arn:aws:iam::1:role/r");
    // kubelet asks again and again (requiresRepublish), with tokens that are fresh.
    let before = fs::read_link(pod.directory.join("credentials/..data")).expect("it is a link");
    kubelet.publish(request(&pod, "second")).expect("it is published already");
    assert_eq!(look(&token).0, "second");
    assert_ne!(fs::read_link(pod.directory.join("credentials/..data")).expect("it is a link"), before);
    assert!(!pod.directory.join("credentials").join(before).exists(), "the old ones are gone");
    kubelet.unpublish("v", &pod).expect("it is published");
    let mut with_keys = publish_request("v", &pod, &[("bucket", BUCKET)]);
    with_keys.secrets = map(&[("key_id", "id"), ("access_key", "hidden")]);
    kubelet.publish(with_keys).expect("it is published");
    assert_eq!(look(&pod.directory.join("credentials/AccessKeySecret")), ("hidden".into(), 65534, 0o400));
    for closed in [pod.directory.clone(), pod.directory.join("credentials"), pod.directory.join("credentials/..data")] {
        let found = fs::metadata(&closed).expect("it is there");
        assert_eq!((found.uid(), found.mode() & 0o077), (65534, 0), "{}", closed.display());
    }
    let written = fs::read_dir(node.path("csi/volumes")).expect("it is ours").flatten().map(|entry| fs::read_to_string(entry.path()));
    let said = written.map(|text| text.expect("it is text")).collect::<String>() + &node.log();
    assert!(said.contains("s3://") && !said.contains("hidden"), "{said}");
    kubelet.unpublish("v", &pod).expect("it is published");
    assert!(!pod.directory.exists());
}

fn links() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let outside = node.path("outside");
    fs::create_dir(&outside).expect("it is new");
    fs::write(outside.join("error.json"), r#"{"code":3,"reason":"credentials","message":"read"}"#).expect("it is ours");
    kubelet.publish(request(&pod, "first")).expect("it is published");
    fs::remove_dir_all(pod.directory.join("credentials")).expect("the sidecar may do that");
    symlink(&outside, pod.directory.join("credentials")).expect("and that");
    assert!(kubelet.publish(request(&pod, "second")).is_err());
    fs::remove_file(pod.directory.join("credentials")).expect("it is a link");
    symlink(outside.join("error.json"), pod.directory.join("error.json")).expect("and that");
    kubelet.publish(request(&pod, "third")).expect("a link says nothing");
    fs::rename(&pod.directory, pod.meeting.join("moved")).expect("and that");
    symlink(&outside, &pod.directory).expect("and that");
    assert!(kubelet.publish(request(&pod, "fourth")).is_err());
    kubelet.unpublish("v", &pod).expect("it is published");
    assert_eq!(fs::read_dir(&outside).expect("it is ours").count(), 1, "nothing was written there");
    assert_eq!(fs::metadata(&outside).expect("it is there").uid(), 0, "nor given away");
}

fn failures() {
    let node = Node::start(&[]);
    let (kubelet, pod) = (node.kubelet(), node.pod("1", "data"));
    let asked = || publish_request("v", &pod, &[("bucket", BUCKET)]);
    kubelet.publish(asked()).expect("it is published");
    for (code, reason, expected) in [
        (2, "usage", Code::InvalidArgument),
        (3, "credentials", Code::PermissionDenied),
        (4, "bucket", Code::NotFound),
        (5, "not-written", Code::ResourceExhausted),
        (1, "internal", Code::Internal),
    ] {
        let line = json!({"code": code, "reason": reason, "message": format!("because of {reason}")});
        fs::write(pod.directory.join("error.json"), line.to_string()).expect("it is ours");
        let status = kubelet.publish(asked()).unwrap_err();
        assert!(status.code() == expected && status.message().contains(reason), "{status:?}");
        let condition = kubelet.condition("v", &pod).expect("it is published");
        assert!(condition.abnormal && condition.message.contains(reason), "{condition:?}");
    }
    // While a daemon serves, what an earlier one said is past.
    let (line, ..) = take(&pod);
    line.send(&json!({"ready": true}), &[]).expect("the driver listens");
    wait_until("the driver has heard", || kubelet.publish(asked()).is_ok());
    line.send(&json!({"failed": {"code": 3, "reason": "credentials", "message": "expired"}}), &[]).expect("the driver listens");
    drop(line);
    wait_until("the driver has heard", || kubelet.publish(asked()).is_err_and(|status| status.code() == Code::PermissionDenied));
    kubelet.unpublish("v", &pod).expect("it is published");
    kubelet.publish(asked()).expect("a new mount begins without old words");
    kubelet.unpublish("v", &pod).expect("it is published");
}
