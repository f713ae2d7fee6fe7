//! The CSI driver of Kubernetes: answers kubelet on its node and the provisioner of the cluster. It mounts and keeps descriptors, and serves no file:
//! that does the pod's own sidecar, without any privilege, which gets the descriptors over a socket in an emptyDir of the pod.
//!
//! What a request means is decided in `attributes`, `credentials`, `target` and `capability`; `volumes` acts on it with `attach`, `detach`, `pod_dir`
//! and `reception`. Invariants: a mount is there before its first daemon comes, so that nobody writes into the bare directory; the driver never asks a
//! mount for anything a daemon would have to answer; it may die at any time without an error for whoever reads.

mod attach;
mod attributes;
mod capability;
mod controller;
mod credentials;
mod detach;
mod identity;
mod in_flight;
mod ledger;
mod node;
pub mod overview;
mod pod_dir;
pub mod proto;
mod provision;
mod reception;
mod registration;
pub mod sidecar;
mod target;
mod verdict;
mod volumes;

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::transport::Server;

use crate::handover::{Door, Place};
use crate::units::ByteSize;
use attach::Mounts;
use controller::InCluster;
use identity::Who;
use in_flight::InFlight;
use ledger::Ledger;
use node::{OnNode, Reading};
use proto::csi::controller_server::ControllerServer;
use proto::csi::identity_server::IdentityServer;
use proto::csi::node_server::NodeServer;
use proto::registration::registration_server::RegistrationServer;
use reception::Patience;
use registration::Entry;
use volumes::Volumes;

/// How long a daemon that connects to a driver which began anew may take to say that it serves already.
const RESUME: Duration = Duration::from_secs(5);

/// Options of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What CSIDriver, PersistentVolume and StorageClass call it.
    pub driver: String,
    /// Its socket.
    pub endpoint: PathBuf,
    /// The same where kubelet finds it.
    pub kubelet_endpoint: PathBuf,
    /// The name of the node.
    pub node: String,
    /// The kubelet's directory.
    pub kubelet: PathBuf,
    /// Where kubelet looks for plugins; none: somebody else makes the driver known.
    pub registry: Option<PathBuf>,
    /// What is published is written down here.
    pub state: PathBuf,
    /// Where the pods' sidecars have the emptyDir.
    pub sidecar: PathBuf,
    /// The user of the sidecars.
    pub sidecar_user: u32,
    /// The largest READ that the kernel sends.
    pub read_size: ByteSize,
    /// How long a mount waits for its first daemon.
    pub start_timeout: Duration,
    /// How long a mount whose daemon has ended waits for the next one.
    pub orphan_timeout: Duration,
    /// Where the stores' own libraries look for the keys of the driver.
    pub environment: Vec<(String, String)>,
}

/// Why the driver does not run.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}", .path.display())]
pub struct Error {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// A driver that listens. Dropped, it lets go of all mounts: those with a daemon live on.
#[derive(Debug)]
pub struct Driver {
    volumes: Arc<Volumes>,
    options: Options,
    door: Door,
    registry: Option<Door>,
}

impl Driver {
    /// Takes over what an earlier driver published, and listens.
    ///
    /// # Errors
    /// The directory or socket that cannot be used.
    pub fn prepare(options: Options, runtime: &Handle) -> Result<Self, Error> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| Error { what, path, source }
        };
        // Where only volumes are made, as in a Deployment beside the provisioner, there is no kubelet.
        let kubelet = options.kubelet.canonicalize().unwrap_or_else(|_| options.kubelet.clone());
        let ledger = Ledger::open(options.state.join("volumes")).map_err(failed("keep what is published in", &options.state))?;
        let mounts = Mounts::new(options.read_size, &options.state).map_err(failed("read", &options.state))?;
        detach::show_connections();
        let patience = Patience { first: options.start_timeout, next: options.orphan_timeout, word: RESUME };
        let place = volumes::Place { kubelet: kubelet.clone(), user: options.sidecar_user, patience };
        let volumes =
            Volumes::restore(place, mounts, ledger, runtime.clone()).map_err(failed("take over the volumes in", &options.state))?;
        let listen = |path: &Path| Place::of(path).and_then(Place::listen).map_err(failed("listen at", path));
        let door = listen(&options.endpoint)?;
        let registry =
            options.registry.as_ref().map(|registry| listen(&registry.join(format!("{}-reg.sock", options.driver)))).transpose()?;
        Ok(Self { volumes: Arc::new(volumes), options: Options { kubelet, ..options }, door, registry })
    }

    /// How many volumes are published.
    pub fn count(&self) -> usize {
        self.volumes.count()
    }

    /// Answers until `end`.
    ///
    /// # Errors
    /// When a socket breaks, or kubelet does not want the driver.
    pub async fn serve(self, end: impl Future<Output = ()>) -> Result<(), Error> {
        let Self { volumes, options, door, registry } = self;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error { what: "serve", path, source }
        };
        let reading = Reading { kubelet: options.kubelet.clone(), sidecar: options.sidecar.clone() };
        let node = OnNode { id: options.node.clone(), reading, volumes, in_flight: InFlight::default() };
        let controller = InCluster { environment: options.environment.clone(), in_flight: InFlight::default() };
        let ended = watch::Sender::new(false);
        let driver = Server::builder()
            .add_service(IdentityServer::new(Who { driver: options.driver.clone() }))
            .add_service(NodeServer::new(node))
            .add_service(ControllerServer::new(controller))
            .serve_with_incoming_shutdown(incoming(&door).map_err(failed(&options.endpoint))?, until(&ended));
        let refusal = watch::Sender::new(None);
        let mut refused = refusal.subscribe();
        let entry = Entry { driver: options.driver.clone(), endpoint: options.kubelet_endpoint.clone(), refusal };
        let registration = async {
            match &registry {
                None => Ok(()),
                Some(door) => {
                    let incoming = incoming(door).map_err(failed(&options.endpoint))?;
                    let server = Server::builder().add_service(RegistrationServer::new(entry));
                    let serving = server.serve_with_incoming_shutdown(incoming, until(&ended));
                    serving.await.map_err(io::Error::other).map_err(failed(&options.endpoint))
                }
            }
        };
        let driver = async { driver.await.map_err(io::Error::other).map_err(failed(&options.endpoint)) };
        let ending = async {
            let refusal = async {
                match refused.wait_for(Option::is_some).await.ok().and_then(|why| why.clone()) {
                    Some(why) => io::Error::other(format!("kubelet refuses the driver: {why}")),
                    // Nobody is there who could hear one.
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                () = end => Ok(()),
                why = refusal => Err(failed(&options.endpoint)(why)),
            };
            ended.send_replace(true);
            // Whoever has asked is answered first.
            Ok(result)
        };
        tokio::try_join!(driver, registration, ending)?.2
    }
}

/// Becomes ready when the driver ends.
fn until(ended: &watch::Sender<bool>) -> impl Future<Output = ()> + use<> {
    let mut ended = ended.subscribe();
    async move {
        // Without a sender it has ended too.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Who connects, one after the other.
fn incoming(door: &Door) -> io::Result<Pin<Box<dyn Stream<Item = io::Result<UnixStream>> + Send>>> {
    let listener = door.socket().try_clone()?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let accepted = stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    Ok(Box::pin(accepted))
}
