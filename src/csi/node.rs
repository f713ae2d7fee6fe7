//! What kubelet asks on its node: reads requests, hands them to the volumes, one call at a time for each target. Mounts nothing itself. Invariant:
//! a call that kubelet gives up goes on to its end, and keeps its target until then.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tonic::{Request, Response, Status};

use super::attributes::{self, Described};
use super::capability;
use super::credentials::{self, Files};
use super::in_flight::InFlight;
use super::ledger::{Record, Requested};
use super::pod_dir::CREDENTIALS;
use super::proto::csi::node_server::Node;
use super::proto::csi::node_service_capability::{self, Rpc, rpc};
use super::proto::csi::volume_usage::Unit;
use super::proto::csi::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, VolumeCondition, VolumeUsage,
};
use super::target::Target;
use super::volumes::{self, Volumes};
use crate::handover::Environment;
use crate::mountinfo;

/// A bucket has no size: what a mount of it tells statfs(2), 1 EiB.
const ENDLESS: i64 = 1 << 60;

/// What requests are read with.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The kubelet's directory, without links.
    pub kubelet: PathBuf,
    /// Where the emptyDir lies for the sidecar.
    pub sidecar: PathBuf,
}

/// See the module.
#[derive(Debug)]
pub struct OnNode {
    pub id: String,
    pub reading: Reading,
    pub volumes: Arc<Volumes>,
    pub in_flight: InFlight,
}

impl OnNode {
    /// Does what blocks. The call goes on when its caller has gone.
    async fn run<T: Send + 'static>(
        &self,
        target: &Path,
        call: impl FnOnce(&Volumes) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let guard = self.in_flight.begin(&target.to_string_lossy())?;
        let volumes = Arc::clone(&self.volumes);
        let running = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            call(&volumes)
        });
        running.await.unwrap_or_else(|error| Err(Status::internal(format!("the driver failed: {error}"))))
    }
}

/// A field that a request cannot be without.
fn needed(text: String, name: &str) -> Result<String, Status> {
    if text.is_empty() { Err(Status::invalid_argument(format!("{name} is missing"))) } else { Ok(text) }
}

impl Reading {
    /// What a request asks for, with everything checked that can be without asking anybody.
    fn read(&self, request: NodePublishVolumeRequest) -> Result<volumes::Request, Status> {
        let volume = needed(request.volume_id, "volume_id")?;
        let path = needed(request.target_path, "target_path")?;
        let wanted = capability::read(request.volume_capability.as_ref())?;
        let context: BTreeMap<String, String> = request.volume_context.into_iter().collect();
        let invalid = |why: String| Status::invalid_argument(format!("volume {volume}: {why}"));
        let described = attributes::describe(&context, &wanted.mount.mount_flags).map_err(invalid)?;
        let path = mountinfo::resolve(Path::new(&path));
        let path = path.to_str().ok_or_else(|| invalid("the target path is no text".into()))?;
        let target = Target::parse(path, &self.kubelet, described.pod.as_deref()).map_err(invalid)?;
        let secrets = request.secrets.into_iter().collect();
        let keys = credentials::keys(&secrets).map_err(invalid)?;
        let tokens = described.tokens.as_deref().map(credentials::tokens).transpose().map_err(invalid)?.unwrap_or_default();
        let read_only = described.read_only || request.readonly || wanted.read_only;
        let requested = Requested {
            attributes: context
                .iter()
                .filter(|(name, _)| !attributes::is_of_kubernetes(name))
                .map(|(name, text)| (name.clone(), text.clone()))
                .collect(),
            mount_flags: wanted.mount.mount_flags.clone(),
            group: wanted.mount.volume_mount_group.clone(),
            access_mode: wanted.mode.as_str_name().to_owned(),
            read_only: request.readonly,
            has_keys: keys.is_some(),
        };
        let directory = self.sidecar.join(&target.name).join(CREDENTIALS);
        let group = wanted.mount.volume_mount_group.as_str();
        let record = Record {
            volume: volume.clone(),
            target: target.path.clone(),
            pod: target.pod.clone(),
            name: target.name.clone(),
            read_only,
            no_exec: described.no_exec,
            alone: wanted.alone,
            message: complete(described, read_only, group, keys.is_some(), &tokens, &directory),
            device: String::new(),
            requested: Some(requested),
        };
        Ok(volumes::Request { record, target, credentials: keys.into_iter().flatten().chain(tokens).collect() })
    }
}

/// What the daemon is told besides what the attributes say.
fn complete(
    described: Described,
    read_only: bool,
    group: &str,
    has_keys: bool,
    tokens: &Files,
    directory: &Path,
) -> crate::handover::Message {
    let Described { mut message, role, .. } = described;
    let mut default = |name: &str, value: Value| {
        message.options.entry(name.to_owned()).or_insert(value);
    };
    if read_only {
        default("read-only", Value::Bool(true));
    }
    if !group.is_empty() {
        // The pod's fsGroup: who is in it may do what the owner may.
        default("gid", group.into());
        default("file-mode", "0664".into());
        default("dir-mode", "0775".into());
    }
    if has_keys {
        // They go before roles, as in the clouds' own tools.
        default("passwd-file", directory.to_string_lossy().into());
    } else {
        message.env = Environment(credentials::environment(tokens, &role, directory));
    }
    message
}

#[tonic::async_trait]
impl Node for OnNode {
    async fn node_publish_volume(&self, request: Request<NodePublishVolumeRequest>) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = self.reading.read(request.into_inner())?;
        let target = request.target.path.clone();
        self.run(&target, move |volumes| volumes.publish(&request)).await.inspect_err(|status| {
            tracing::warn!(target = %target.display(), code = ?status.code(), "a volume is not published: {}", status.message());
        })?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        let volume = needed(volume_id, "volume_id")?;
        let target = mountinfo::resolve(Path::new(&needed(target_path, "target_path")?));
        let path = target.clone();
        self.run(&target, move |volumes| volumes.unpublish(&volume, &path)).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let NodeGetVolumeStatsRequest { volume_id, volume_path, .. } = request.into_inner();
        let (volume, path) = (needed(volume_id, "volume_id")?, needed(volume_path, "volume_path")?);
        let volumes = Arc::clone(&self.volumes);
        let looking = tokio::task::spawn_blocking(move || {
            let condition = volumes.condition(&volume, &mountinfo::resolve(Path::new(&path)));
            condition.ok_or_else(|| Status::not_found(format!("volume {volume} is not published at {path}")))
        });
        let condition = looking.await.map_err(|error| Status::internal(format!("the driver failed: {error}")))??;
        let usage = VolumeUsage { available: ENDLESS, total: ENDLESS, used: 0, unit: Unit::Bytes.into() };
        let condition = VolumeCondition { abnormal: condition.is_abnormal, message: condition.message };
        Ok(Response::new(NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: Some(condition) }))
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let all = [rpc::Type::GetVolumeStats, rpc::Type::VolumeCondition, rpc::Type::SingleNodeMultiWriter, rpc::Type::VolumeMountGroup];
        let capability =
            |kind: rpc::Type| NodeServiceCapability { r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: kind.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: all.into_iter().map(capability).collect() }))
    }

    async fn node_get_info(&self, _request: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        // A node has room for as many as kubelet wants.
        Ok(Response::new(NodeGetInfoResponse { node_id: self.id.clone(), max_volumes_per_node: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::csi::VolumeCapability;
    use super::super::proto::csi::volume_capability::access_mode::Mode;
    use super::super::proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
    use super::*;

    fn request(context: &[(&str, &str)], secrets: &[(&str, &str)]) -> NodePublishVolumeRequest {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let mount = MountVolume { volume_mount_group: "2000".into(), ..MountVolume::default() };
        NodePublishVolumeRequest {
            volume_id: "v".into(),
            target_path: "/nowhere/kubelet/pods/1/volumes/kubernetes.io~csi/data/mount".into(),
            volume_capability: Some(VolumeCapability {
                access_type: Some(AccessType::Mount(mount)),
                access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
            }),
            volume_context: map(context),
            secrets: map(secrets),
            ..NodePublishVolumeRequest::default()
        }
    }

    fn read(request: NodePublishVolumeRequest) -> Result<volumes::Request, Status> {
        Reading { kubelet: "/nowhere/kubelet".into(), sidecar: "/windlass".into() }.read(request)
    }

    #[test]
    fn keys_become_files_that_the_daemon_is_told_of() {
        let made = read(request(&[("bucket", "data")], &[("akId", "id"), ("akSecret", "hidden")])).unwrap();
        let options = &made.record.message.options;
        assert_eq!(options["passwd-file"], "/windlass/data/credentials");
        assert_eq!((&options["gid"], &options["dir-mode"]), (&"2000".into(), &"0775".into()));
        assert_eq!(made.credentials.len(), 2);
        assert!(!serde_json::to_string(&made.record).unwrap().contains("hidden"));
        assert!(!made.record.read_only && !options.contains_key("read-only"));
    }

    #[test]
    fn request_stays_the_same_when_the_driver_puts_credentials_elsewhere() {
        let asked = || request(&[("bucket", "data"), ("csi.storage.k8s.io/pod.name", "one")], &[("akId", "id"), ("akSecret", "hidden")]);
        let before = read(asked()).unwrap().record;
        let after = Reading { kubelet: "/nowhere/kubelet".into(), sidecar: "/elsewhere".into() }.read(asked()).unwrap().record;
        assert_ne!(before.message, after.message);
        assert!(before.is_same(&after));
        let with = |change: fn(&mut NodePublishVolumeRequest)| {
            let mut changed = asked();
            change(&mut changed);
            read(changed).unwrap().record
        };
        assert!(before.is_same(&with(|request| drop(request.volume_context.insert("csi.storage.k8s.io/pod.name".into(), "two".into())))));
        for other in [
            with(|request| drop(request.volume_context.insert("chunk-size".into(), "8MiB".into()))),
            with(|request| request.readonly = true),
            with(|request| request.secrets.clear()),
            with(|request| request.volume_id = "w".into()),
        ] {
            assert!(!before.is_same(&other), "{:?}", other.requested);
        }
    }

    #[test]
    fn a_role_is_told_in_variables_unless_there_are_keys() {
        let tokens = r#"{"sts.amazonaws.com":{"token":"hidden"}}"#;
        let context = [("bucket", "data"), ("roleArn", "arn:1"), ("csi.storage.k8s.io/serviceAccount.tokens", tokens)];
        let made = read(request(&context, &[])).unwrap();
        assert_eq!(made.record.message.env.0["AWS_ROLE_ARN"], "arn:1");
        assert_eq!(made.credentials["token-sts.amazonaws.com"], b"hidden");
        assert!(!serde_json::to_string(&made.record).unwrap().contains("hidden"));
        let both = read(request(&context, &[("key_id", "id"), ("access_key", "secret")])).unwrap();
        assert!(both.record.message.env.is_empty());
    }

    #[test]
    fn a_request_that_cannot_be_is_an_invalid_argument() {
        let without = |take: fn(&mut NodePublishVolumeRequest)| {
            let mut request = request(&[("bucket", "data")], &[]);
            take(&mut request);
            request
        };
        for wrong in [
            NodePublishVolumeRequest::default(),
            without(|request| request.target_path.clear()),
            without(|request| request.volume_capability = None),
            without(|request| request.target_path = "/elsewhere/mount".into()),
            request(&[("bucket", "data"), ("chunk-sise", "4MiB")], &[]),
            request(&[("bucket", "data")], &[("akId", "id")]),
        ] {
            assert_eq!(read(wrong).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }
}
