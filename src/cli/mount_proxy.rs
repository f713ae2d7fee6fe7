//! `windlass mount-proxy`: in the place of the mount-proxy of Alibaba Cloud's driver. Invariant: from its first line on, what goes wrong is logged,
//! because nobody reads its exit code.

use std::path::PathBuf;

use super::Failure;
use super::stop::Stop;
use crate::logging::{self, Attachment};
use crate::standin::{Drivers, Proxy};

/// Mount for the node plugin of Alibaba Cloud's CSI driver, in the place of its mount-proxy.
///
/// Takes its requests (mount, unmount, ping) on a unix socket and serves each volume by a windlass process of its own, with the command line
/// that ossfs or ossfs2 would get. Ends with SIGTERM, when all of them have ended.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The unix socket.
    #[arg(long, value_name = "PATH", default_value = "/var/run/csi/mounter.sock")]
    socket: PathBuf,
    /// Clients in whose place mounts are served: ossfs, ossfs2.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', required = true)]
    driver: Vec<String>,
    /// Longest wait for a mount, such as 30s.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: String,
    /// How much is logged, as klog counts: from 4 on debug, from 8 on trace.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 2)]
    verbosity: u8,
}

/// Serves until a signal asks for the end.
pub fn run(args: &Args) -> Result<(), Failure> {
    let level = match args.verbosity {
        0..4 => "info",
        4..8 => "debug",
        _ => "trace",
    };
    let log = logging::Options { level: level.into(), ..logging::Options::default() };
    super::start_log(&log, Attachment::Foreground)?;
    let drivers = Drivers::named(args.driver.iter().map(String::as_str)).map_err(Failure::usage)?;
    let timeout = super::time("--timeout", &args.timeout)?;
    let signals = Stop::listen().map_err(Failure::without_signals)?;
    let on = |error: std::io::Error| Failure::usage(format!("cannot listen at {}: {error}", args.socket.display()));
    let proxy = Proxy::open(&args.socket, drivers, timeout).map_err(on)?;
    proxy.serve().map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))?;
    tracing::info!(socket = %args.socket.display(), "waiting for requests");
    signals.wait();
    tracing::info!("ending");
    proxy.end();
    Ok(())
}
