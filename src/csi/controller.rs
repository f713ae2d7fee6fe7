//! What Kubernetes asks of the cluster's side: volumes out of a StorageClass. Nothing is attached. What a volume is in the bucket is decided in
//! `provision`. DeleteVolume deletes the objects, as `reclaimPolicy: Delete` promises; with `Retain` Kubernetes never calls it.

use std::collections::{BTreeMap, HashMap};

use tonic::{Code, Request, Response, Status};

use super::capability;
use super::credentials::{self, Files};
use super::in_flight::InFlight;
use super::proto::csi::controller_server::Controller;
use super::proto::csi::controller_service_capability::{self, Rpc, rpc};
use super::proto::csi::validate_volume_capabilities_response::Confirmed;
use super::proto::csi::{
    CapacityRange, ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    Volume as Made, VolumeCapability,
};
use super::provision::{Capacity, Error, Volume};
use crate::store::ErrorKind;

/// See the module.
#[derive(Debug)]
pub struct InCluster {
    /// Where the stores' own libraries look for keys when a request brings none.
    pub environment: Vec<(String, String)>,
    pub in_flight: InFlight,
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Invalid(_) => Code::InvalidArgument,
            Error::Exists(_) => Code::AlreadyExists,
            Error::Store(error) => match error.kind {
                ErrorKind::AccessDenied | ErrorKind::BadCredentials | ErrorKind::NoCredentials => Code::PermissionDenied,
                ErrorKind::NoSuchBucket | ErrorKind::NotFound => Code::NotFound,
                ErrorKind::Invalid | ErrorKind::WrongEndpoint => Code::InvalidArgument,
                ErrorKind::Throttled => Code::ResourceExhausted,
                _ => Code::Unavailable,
            },
        };
        Self::new(code, error.to_string())
    }
}

fn invalid(why: impl Into<String>) -> Status {
    Status::invalid_argument(why.into())
}

fn keys(secrets: HashMap<String, String>) -> Result<Option<Files>, Status> {
    credentials::keys(&secrets.into_iter().collect()).map_err(invalid)
}

fn check(capabilities: &[VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(invalid("the volume capabilities are missing"));
    }
    capabilities.iter().try_for_each(|capability| capability::read(Some(capability)).map(drop))
}

fn capacity(range: Option<CapacityRange>) -> Result<Capacity, Status> {
    let CapacityRange { required_bytes: required, limit_bytes: limit } = range.unwrap_or_default();
    if required < 0 || limit < 0 || limit != 0 && limit < required {
        return Err(Status::out_of_range(format!("no size is between {required} and {limit} bytes")));
    }
    Ok(Capacity { required, limit })
}

#[tonic::async_trait]
impl Controller for InCluster {
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.name.is_empty() {
            return Err(invalid("name is missing"));
        }
        check(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            return Err(invalid("a volume cannot be made out of a snapshot or of another volume"));
        }
        if !request.mutable_parameters.is_empty() {
            return Err(invalid("a volume has no parameters that can be changed (VolumeAttributesClass)"));
        }
        let capacity = capacity(request.capacity_range)?;
        let _guard = self.in_flight.begin(&request.name)?;
        let parameters: BTreeMap<String, String> = request.parameters.into_iter().collect();
        let volume = Volume::of_class(&request.name, &parameters)?;
        let store = volume.open(keys(request.secrets)?.as_ref(), &self.environment).await?;
        let capacity_bytes = volume.create(&store, &request.name, capacity).await?;
        let volume_context = volume.context(&parameters).into_iter().collect();
        tracing::info!(name = request.name, source = volume.source(), "a volume is made");
        Ok(Response::new(CreateVolumeResponse { volume: Some(Made { capacity_bytes, volume_id: volume.id(), volume_context }) }))
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Result<Response<DeleteVolumeResponse>, Status> {
        let DeleteVolumeRequest { volume_id, secrets } = request.into_inner();
        if volume_id.is_empty() {
            return Err(invalid("volume_id is missing"));
        }
        let _guard = self.in_flight.begin(&volume_id)?;
        // One that was not made here is not there.
        if let Some(volume) = Volume::of_id(&volume_id) {
            let store = volume.open(keys(secrets)?.as_ref(), &self.environment).await?;
            let objects = volume.delete(&store).await?;
            tracing::info!(source = volume.source(), objects, "a volume is deleted");
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        if request.volume_id.is_empty() {
            return Err(invalid("volume_id is missing"));
        }
        if request.volume_capabilities.is_empty() {
            return Err(invalid("the volume capabilities are missing"));
        }
        let missing = || Status::not_found(format!("there is no volume {}", request.volume_id));
        let volume = Volume::of_id(&request.volume_id).ok_or_else(missing)?;
        let store = volume.open(keys(request.secrets)?.as_ref(), &self.environment).await?;
        if !volume.exists(&store).await? {
            return Err(missing());
        }
        let answer = match check(&request.volume_capabilities) {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: HashMap::new(),
                }),
                message: String::new(),
            },
            Err(status) => ValidateVolumeCapabilitiesResponse { confirmed: None, message: status.message().to_owned() },
        };
        Ok(Response::new(answer))
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let all = [rpc::Type::CreateDeleteVolume, rpc::Type::SingleNodeMultiWriter];
        let capability = |kind: rpc::Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: all.into_iter().map(capability).collect() }))
    }
}
