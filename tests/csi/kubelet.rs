//! A kubelet of the test's own: asks the driver over its socket, one call after the other or many at once.

use std::collections::HashMap;
use std::path::Path;

use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use windlass::csi::proto::csi::controller_client::ControllerClient;
use windlass::csi::proto::csi::node_client::NodeClient;
use windlass::csi::proto::csi::volume_capability::access_mode::Mode;
use windlass::csi::proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use windlass::csi::proto::csi::{
    CreateVolumeRequest, DeleteVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest, Volume,
    VolumeCapability, VolumeCondition,
};

use super::node::Pod;

pub struct Kubelet {
    pub runtime: Runtime,
    pub channel: Channel,
}

/// A map of texts.
pub fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

pub fn capability(mode: Mode, flags: &[&str]) -> VolumeCapability {
    let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume { mount_flags, ..MountVolume::default() })),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// What kubelet sends for a volume of a pod.
pub fn publish_request(volume: &str, pod: &Pod, context: &[(&str, &str)]) -> NodePublishVolumeRequest {
    let mut volume_context = map(context);
    volume_context.insert("csi.storage.k8s.io/pod.uid".into(), pod.uid.clone());
    NodePublishVolumeRequest {
        volume_id: volume.to_owned(),
        target_path: pod.target.to_str().expect("it is text").to_owned(),
        volume_capability: Some(capability(Mode::MultiNodeMultiWriter, &[])),
        volume_context,
        ..NodePublishVolumeRequest::default()
    }
}

impl Kubelet {
    pub fn connect(socket: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads can be started");
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).expect("it is a path");
        let channel = runtime.block_on(async { endpoint.connect().await }).expect("the driver listens");
        Self { runtime, channel }
    }

    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        self.runtime.block_on(self.node().node_publish_volume(request)).map(drop)
    }

    pub fn unpublish(&self, volume: &str, pod: &Pod) -> Result<(), Status> {
        let target_path = pod.target.to_str().expect("it is text").to_owned();
        let request = NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path };
        self.runtime.block_on(self.node().node_unpublish_volume(request)).map(drop)
    }

    pub fn condition(&self, volume: &str, pod: &Pod) -> Result<VolumeCondition, Status> {
        let volume_path = pod.target.to_str().expect("it is text").to_owned();
        let request = NodeGetVolumeStatsRequest { volume_id: volume.to_owned(), volume_path, ..NodeGetVolumeStatsRequest::default() };
        let stats = self.runtime.block_on(self.node().node_get_volume_stats(request))?.into_inner();
        assert_eq!(stats.usage.len(), 1);
        Ok(stats.volume_condition.expect("it is always told"))
    }

    pub fn create(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        let response = self.runtime.block_on(self.controller().create_volume(request))?;
        Ok(response.into_inner().volume.expect("there is one when there is no error"))
    }

    pub fn delete(&self, volume: &str, secrets: &[(&str, &str)]) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: volume.to_owned(), secrets: map(secrets) };
        self.runtime.block_on(self.controller().delete_volume(request)).map(drop)
    }
}
