//! `windlass upgrade`: has another program take the place of the daemon of a mount that is supervised. Who reads goes on reading. It only asks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::locate::locate;
use super::supervise::{Answer, Request};
use super::{Failure, mount};
use crate::admin;
use crate::config;
use crate::handover::{Link, Place};

/// Beyond what the supervisor itself waits.
const BEYOND: Duration = Duration::from_secs(300);

/// Have this program, or another one, serve a mount that runs, without unmounting it.
///
/// For mounts that were made with --supervised. Open files and directories stay open, reads wait for a moment. What is being written front to
/// back cannot be handed over: the upgrade waits until such files are closed, and gives up after --wait.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount, or any path in it.
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// The program that shall serve. Default: the one that is asked.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Longest wait, in seconds, for files that are being written.
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    wait: u64,
}

/// Asks and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    let at = args.mountpoint.display();
    let program = args.binary.clone().map_or_else(std::env::current_exe, std::path::absolute);
    let program = program.map_err(|error| Failure::usage(format!("cannot find the program: {error}")))?;
    let version = version_of(&program)?;
    let located = locate(&args.mountpoint)?;
    let me = rustix::process::geteuid().as_raw();
    let owner = located.mount.owner().unwrap_or(me);
    let environment = if owner == me { mount::environment() } else { Vec::new() };
    let directories = config::socket_directories(owner, &environment);
    let none = || Failure::usage(format!("{at}: nobody supervises this mount: mount it with --supervised"));
    let socket = admin::keeper_of(&directories, located.mount.device, owner).ok_or_else(none)?;
    let failed = |error: String| Failure::internal(format!("{at}: cannot ask the supervisor: {error}"));
    let stream = Place::of(&socket).and_then(|place| place.connect()).map_err(|error| match error.kind() {
        // A supervisor that was killed leaves its socket.
        ErrorKind::ConnectionRefused => none(),
        _ => failed(error.to_string()),
    })?;
    let mut link = Link::new(stream);
    let wait_ms = args.wait.saturating_mul(1000);
    link.send(&Request::Upgrade { program: program.clone(), wait_ms }, &[]).map_err(|error| failed(error.to_string()))?;
    let patience = Duration::from_secs(args.wait).saturating_add(BEYOND);
    match link.receive::<Answer>(Some(patience)) {
        Ok(Some((Answer::Done { pid }, _))) => {
            super::print(format!("windlass: {at}: {version} serves it now (process {pid})\n").as_bytes())
        }
        Ok(Some((Answer::Failed(why), _))) => Err(Failure::internal(format!("{at}: {why}"))),
        Ok(None) => Err(failed("it ended before it answered".into())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// What a program says of itself, as a sign that it runs here.
fn version_of(program: &Path) -> Result<String, Failure> {
    let wrong = |why: String| Failure::usage(format!("{}: cannot serve a mount: {why}", program.display()));
    let output = Command::new(program).arg("--version").output().map_err(|error| wrong(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && said.starts_with("windlass ") { Ok(said) } else { Err(wrong("it is no windlass".into())) }
}
