//! `windlass sidecar`: words and flags of what serves the volumes of a pod, which is in `csi`. Invariant: it ends with the worst that a daemon ended with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Failure;
use super::remote::runtime;
use crate::admin::{Listen, Listener, Pages};
use crate::budget;
use crate::csi::overview::Overview;
use crate::csi::sidecar::{Daemons, End, Options};
use crate::logging::{self, Attachment};
use crate::signals::Signals;
use crate::units::ByteSize;

/// Serve the volumes that the CSI driver has published to this pod.
///
/// Runs beside the containers of a pod, without any privilege: finds the volumes in the emptyDir that the driver knows too, and has one daemon serve each
/// (windlass mount --fd-socket). SIGTERM has all of them store what was written.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pod's emptyDir named windlass.
    #[arg(long, value_name = "DIR", default_value = "/windlass")]
    dir: PathBuf,
    /// Where /readyz, /healthz and /metrics of all volumes are served: ADDRESS:PORT or :PORT.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Listen>,
    /// Memory of all daemons together, which have equal shares; by default a quarter of what the cgroups and the machine leave.
    #[arg(long, value_name = "SIZE", env = "WINDLASS_MEMORY_LIMIT")]
    memory_limit: Option<ByteSize>,
    /// error, warn, info, debug, trace, or a filter; for the daemons too.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Shape of log lines; of the daemons too.
    #[arg(long, value_name = "SHAPE", default_value = "text", env = "WINDLASS_LOG_FORMAT", value_parser = ["text", "json"])]
    log_format: String,
    /// Options for every daemon, as for windlass mount: --chunk-size=8MiB. What a volume says ranks higher.
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<String>,
}

/// Serves until a signal ends it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let format = logging::Format::named(&args.log_format);
    super::start_log(&logging::Options { level: args.log_level.clone(), format, file: None }, Attachment::Foreground)?;
    let directory = args.dir.canonicalize();
    let directory = directory.map_err(|error| {
        let hint = "the pod needs an emptyDir named windlass, mounted there";
        Failure::usage(format!("--dir {}: {error}; {hint}", args.dir.display()))
    })?;
    let runtime = runtime()?;
    let show = |place: &Listen| {
        let overview = Arc::new(Overview { directory: directory.clone() });
        let started = Listener::bind(place).and_then(|listener| Pages::start(listener, overview, runtime.handle()));
        started.map_err(|error| Failure::usage(format!("cannot listen at {place}: {error}")))
    };
    let _pages = args.listen.as_ref().map(show).transpose()?;
    // The program as it is, whatever has been put in its place since.
    let words = vec![format!("--log-level={}", args.log_level), format!("--log-format={}", args.log_format)];
    let words = [words, args.options.clone()].concat();
    let memory_limit = args.memory_limit.unwrap_or_else(|| budget::default_limit(Path::new("/")));
    let options = Options { directory: directory.clone(), program: "/proc/self/exe".into(), words, memory_limit };
    let end = runtime.block_on(async {
        let mut signals = Signals::listen().map_err(Failure::without_signals)?;
        Ok::<_, Failure>(Daemons::new(options).serve(async || signals.next().await).await)
    })?;
    match end {
        End::InOrder => Ok(()),
        End::Code(code) => Err(Failure { code, message: "a daemon has ended badly: its lines above say why".into() }),
    }
}
