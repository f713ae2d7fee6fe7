//! Who the driver is and what it can do. Knows no volume.

use tonic::{Request, Response, Status};

use super::proto::csi::identity_server::Identity;
use super::proto::csi::plugin_capability::{self, service};
use super::proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, PluginCapability,
    ProbeRequest, ProbeResponse,
};

/// See the module.
#[derive(Debug)]
pub struct Who {
    /// The name in every CSIDriver, PersistentVolume and StorageClass.
    pub driver: String,
}

#[tonic::async_trait]
impl Identity for Who {
    async fn get_plugin_info(&self, _request: Request<GetPluginInfoRequest>) -> Result<Response<GetPluginInfoResponse>, Status> {
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(GetPluginInfoResponse { name: self.driver.clone(), vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = plugin_capability::Service { r#type: service::Type::ControllerService.into() };
        let controller = PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) };
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: vec![controller] }))
    }

    /// Whoever answers has everything it needs.
    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
