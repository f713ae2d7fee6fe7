//! `windlass csi`: words and flags of the Kubernetes driver, which is in `csi`. Invariant: what cannot be used is said before a socket is made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::remote::runtime;
use super::{Failure, mount as mount_command};
use crate::admin::{Alone, Listen, Listener, Pages};
use crate::config::{Kind, Value};
use crate::csi::{Driver, Options};
use crate::logging::{self, Attachment};
use crate::signals::Signals;
use crate::units::ByteSize;

/// How the driver is called unless somebody has a reason.
const DRIVER: &str = "csi.windlass.dev";

/// Reads that the kernel sends: a page is 4 KiB, and the kernel counts them in 16 bits.
const READS: [ByteSize; 2] = [ByteSize::mib(1), ByteSize::mib(16)];

/// Answer kubelet as a CSI driver.
///
/// Mounts volumes and hands their descriptors to the sidecars of the pods (windlass sidecar), which serve them without any privilege. Runs as root on every
/// node, with /dev/fuse, and with the kubelet's directory mounted at its own path with mountPropagation Bidirectional.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Socket to listen at: unix:///csi/csi.sock.
    #[arg(long, value_name = "URL", value_parser = unix)]
    endpoint: PathBuf,
    /// Name of the node.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_id: String,
    /// Directory of the kubelet.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Where kubelet looks for plugins (plugins_registry); without it somebody else has to make the driver known.
    #[arg(long, value_name = "DIR")]
    registration_dir: Option<PathBuf>,
    /// The endpoint as kubelet finds it; default: plugins/DRIVER/ in its directory.
    #[arg(long, value_name = "PATH")]
    kubelet_registration_path: Option<PathBuf>,
    /// Name of the driver in CSIDriver, PersistentVolume and StorageClass.
    #[arg(long, value_name = "NAME", default_value = DRIVER)]
    driver_name: String,
    /// What is published is written down here, for a driver that begins anew; default: the directory of the endpoint.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Where the sidecars have the pod's emptyDir.
    #[arg(long, value_name = "DIR", default_value = "/windlass")]
    sidecar_dir: PathBuf,
    /// User and group of the sidecars: the only ones who may take a mount and read its credentials.
    #[arg(long, value_name = "UID", default_value_t = 65534)]
    sidecar_uid: u32,
    /// Largest read that the kernel sends, 1MiB..16MiB.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = read_size)]
    read_size: ByteSize,
    /// How long a mount waits for its first daemon before it is given up.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    start_timeout: Duration,
    /// How long reads wait for the next daemon when one has ended; then they fail with ENOTCONN.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    orphan_timeout: Duration,
    /// Where /healthz is served for a livenessProbe, and /metrics of the process: ADDRESS:PORT or :PORT.
    #[arg(long, value_name = "ADDRESS")]
    health_listen: Option<Listen>,
    /// error, warn, info, debug, trace, or a filter.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Shape of log lines.
    #[arg(long, value_name = "SHAPE", default_value = "text", env = "WINDLASS_LOG_FORMAT", value_parser = ["text", "json"])]
    log_format: String,
}

fn unix(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    if path.starts_with('/') && !path.ends_with('/') {
        Ok(path.into())
    } else {
        Err("must be a socket on this machine: unix:///csi/csi.sock".into())
    }
}

fn read_size(text: &str) -> Result<ByteSize, String> {
    let kind = Kind::Size { min: READS[0], max: READS[1], step: ByteSize::mib(1), bare_max: 16, auto: false };
    match kind.parse(text)? {
        Value::Size(size) => Ok(size),
        _ => unreachable!("a kind parses values of its own kind"),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let kind = Kind::Time { min: Duration::ZERO, max: Duration::from_secs(7 * 24 * 3600), never: false };
    match kind.parse(text)? {
        Value::Time(time) => Ok(time),
        _ => unreachable!("a kind parses values of its own kind"),
    }
}

impl Args {
    fn options(&self) -> Options {
        let file = self.endpoint.file_name().unwrap_or_default();
        let default = || self.kubelet_dir.join("plugins").join(&self.driver_name).join(file);
        // Outside of a container kubelet finds it where it is.
        let as_it_is = self.endpoint.starts_with(&self.kubelet_dir).then(|| self.endpoint.clone());
        Options {
            driver: self.driver_name.clone(),
            endpoint: self.endpoint.clone(),
            kubelet_endpoint: self.kubelet_registration_path.clone().or(as_it_is).unwrap_or_else(default),
            node: self.node_id.clone(),
            kubelet: self.kubelet_dir.clone(),
            registry: self.registration_dir.clone(),
            state: self.state_dir.clone().unwrap_or_else(|| self.endpoint.parent().unwrap_or(Path::new("/")).to_owned()),
            sidecar: self.sidecar_dir.clone(),
            sidecar_user: self.sidecar_uid,
            read_size: self.read_size,
            start_timeout: self.start_timeout,
            orphan_timeout: self.orphan_timeout,
            environment: mount_command::environment(),
        }
    }
}

/// A process that answers is healthy: what it cannot go on without ends it.
fn show(place: &Listen, runtime: &Handle) -> Result<Pages, Failure> {
    let started = Listener::bind(place).and_then(|listener| Pages::start(listener, Arc::new(Alone), runtime));
    started.map_err(|error| Failure::usage(format!("cannot serve /healthz at {place}: {error}")))
}

/// Answers until a signal ends it. Mounts that are served go on without it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let format = logging::Format::named(&args.log_format);
    super::start_log(&logging::Options { level: args.log_level.clone(), format, file: None }, Attachment::Foreground)?;
    if args.node_id.is_empty() {
        return Err(Failure::usage("--node-id is empty: it is the name of the node (spec.nodeName)"));
    }
    let runtime = runtime()?;
    // Before anybody can see that it answers, and end it.
    let mut signals = runtime.block_on(async { Signals::listen() }).map_err(Failure::without_signals)?;
    let driver = Driver::prepare(args.options(), runtime.handle()).map_err(|error| Failure::usage(error.to_string()))?;
    let _pages = args.health_listen.as_ref().map(|place| show(place, runtime.handle())).transpose()?;
    let served = runtime.block_on(async {
        tracing::info!(driver = args.driver_name, node = args.node_id, volumes = driver.count(), "the driver answers");
        let end = async {
            let ending = signals.next().await;
            tracing::info!(signal = ending.name(), "the driver ends; what is served goes on");
        };
        driver.serve(end).await.map_err(|error| Failure::internal(error.to_string()))
    });
    // What talks to daemons ends with the lines to them, which are closed by now.
    runtime.shutdown_background();
    served
}
