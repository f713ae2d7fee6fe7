//! `windlass mountpoint-pod`: in the place of the mounter in a pod of the Mountpoint driver for S3. Invariant: it ends with 0 only when the driver
//! wants the pod to be over.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use super::Failure;
use super::stop::Stop;
use crate::logging::{self, Attachment};
use crate::standin::Pod;

/// Serve a volume of the Mountpoint CSI driver for S3, in the place of its mounter.
///
/// Waits at mount.sock for the one mount of its pod, serves it by a windlass process with the command line that mount-s3 would get, leaves its
/// error in mount.err, and ends with 0 when mount.exit is there. SIGTERM is left aside while it serves, as the driver wants it: the pods that
/// use the volume end first.
#[derive(Debug, clap::Parser)]
pub struct Args {
    /// The directory that is shared with the driver.
    #[arg(long, value_name = "DIR", default_value = "/comm")]
    comm_dir: PathBuf,
    /// Directory for what is read, when it is there.
    #[arg(long, value_name = "DIR", default_value = "/local-cache")]
    cache_dir: PathBuf,
    /// Longest wait for the mount, such as 2m.
    #[arg(long, value_name = "TIME", default_value = "2m")]
    mount_sock_recv_timeout: String,
}

/// Serves the one mount. What it ends with says whether the pod is over.
pub fn run(args: &Args) -> Result<(), Failure> {
    super::start_log(&logging::Options::default(), Attachment::Foreground)?;
    let patience = super::time("--mount-sock-recv-timeout", &args.mount_sock_recv_timeout)?;
    let pod = Pod { directory: args.comm_dir.clone(), cache: args.cache_dir.clone(), patience };
    let code = pod.run(|| Stop::listen().map(drop)).map_err(|error| Failure::internal(error.to_string()))?;
    // What there was to say has been said by the daemon.
    if code == 0 { Ok(()) } else { Err(Failure { code, message: String::new() }) }
}

/// Runs the command line of the driver's own mounter, whose flags have one hyphen.
pub fn run_as_mounter(args: &[OsString]) -> Result<(), Failure> {
    let long = |word: &OsString| match word.to_str() {
        Some(text) if text.starts_with('-') && !text.starts_with("--") => format!("-{text}").into(),
        _ => word.clone(),
    };
    let words = std::iter::once("windlass".into()).chain(args.iter().map(long));
    match Args::try_parse_from(words) {
        Ok(args) => run(&args),
        Err(error) => error.exit(),
    }
}
