//! Makes the driver known to kubelet, which looks for sockets in its plugins_registry and asks each who it is. Invariant: a driver that kubelet
//! refuses ends, so that it begins anew and asks again.

use std::path::PathBuf;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::proto::registration::registration_server::Registration;
use super::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// What kubelet knows such drivers as, and the version of the CSI (k8s.io/kubelet, pluginregistration).
const KIND: &str = "CSIPlugin";
const VERSION: &str = "1.0.0";

/// See the module.
#[derive(Debug)]
pub struct Entry {
    pub driver: String,
    /// The driver's socket, where kubelet finds it.
    pub endpoint: PathBuf,
    /// Why kubelet does not use the driver, when it has said so.
    pub refusal: watch::Sender<Option<String>>,
}

#[tonic::async_trait]
impl Registration for Entry {
    async fn get_info(&self, _request: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!(driver = self.driver, "kubelet knows the driver");
        } else {
            self.refusal.send_replace(Some(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
