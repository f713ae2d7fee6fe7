//! Words for people: reads the command line, speaks on stdout and stderr, and ends with an exit code. The only place
//! that names clap and prints. Invariant: every failure is one line `windlass: what failed: why, what to try`.

mod bench;
mod cat;
mod completions;
mod core_dumps;
mod csi;
mod ctl;
mod daemon;
mod demo;
mod doctor;
mod evict;
mod flags;
mod foreign;
mod get;
mod handed;
mod kept;
mod locate;
mod ls;
mod man;
mod many;
mod mistake;
mod mount;
mod mount_proxy;
mod mountpoint;
mod mountpoint_pod;
mod mpu;
mod progress;
mod put;
mod ready;
mod refresh;
mod remote;
mod report;
mod rm;
mod sidecar;
mod stat;
mod stats;
mod stop;
mod supervise;
mod tuning;
mod umount;
mod upgrade;
mod waiting;
mod warm;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, Rlimit};

use crate::config::{self, Kind, NEVER, Program, Value};
use crate::logging::{self, Attachment};
use crate::panics;

/// How a program of this house ends when it does not succeed.
#[derive(Debug)]
pub struct Failure {
    /// 1 internal, 2 usage, 3 credentials, 4 bucket or endpoint, 5 files that did not reach the bucket.
    pub code: u8,
    /// One line; empty when it has been said already.
    pub message: String,
}

impl Failure {
    /// A mistake in how the program was called.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// Everything that is nobody's mistake.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// What could not be ended in order is not begun.
    pub fn without_signals(error: std::io::Error) -> Self {
        Self::internal(format!("cannot listen for signals: {error}"))
    }
}

impl From<config::Error> for Failure {
    fn from(error: config::Error) -> Self {
        Self::usage(error.to_string())
    }
}

/// Mounts an object-storage bucket (S3 and everything that speaks it, Alibaba OSS) at a directory, and reads and writes it as
/// fast as the network allows.
#[derive(Debug, Parser)]
#[command(name = "windlass", version = version(), args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mount(Box<mount::Args>),
    #[command(visible_alias = "unmount")]
    Umount(umount::Args),
    Upgrade(upgrade::Args),
    Stats(stats::Args),
    Ctl(ctl::Args),
    Refresh(refresh::Args),
    Warm(Box<warm::Args>),
    Evict(evict::Args),
    Doctor(Box<doctor::Args>),
    Demo(demo::Args),
    Ls(ls::Args),
    Stat(stat::Args),
    Cat(cat::Args),
    Get(Box<get::Args>),
    Put(Box<put::Args>),
    Rm(rm::Args),
    Bench(bench::Args),
    Mpu(mpu::Args),
    Csi(Box<csi::Args>),
    Sidecar(sidecar::Args),
    MountProxy(mount_proxy::Args),
    MountpointPod(mountpoint_pod::Args),
    Completions(completions::Args),
    Man(man::Args),
    // A new subcommand is a file of its own, a line here and a line in `dispatch`.
}

/// Every subcommand and flag, for those who check what is said about them elsewhere.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Reads the command line, by the name the program was started under, and does what it says.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    allow_open_files();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("windlass: {}", failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Takes as many descriptors as this process may have: shells and services begin with 1,024, for the sake of programs that use select(2), and a mount
/// has connections and files on the disk. What cannot be raised stays as it is.
fn allow_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let all = Rlimit { current: limit.maximum, ..limit };
        let _ = rustix::process::setrlimit(Resource::Nofile, all);
    }
}

fn dispatch(args: &[OsString]) -> Result<(), Failure> {
    let name = args.first().and_then(|arg| Path::new(arg).file_name()).and_then(|name| name.to_str()).unwrap_or("windlass");
    let rest = args.get(1..).unwrap_or_default();
    if let Some(program) = Program::of(name) {
        return foreign::run(program, rest);
    }
    if matches!(name, "mount.windlass" | "mount.fuse.windlass") {
        return foreign::run_for_mount(rest);
    }
    if name == "aws-s3-csi-mounter" {
        return mountpoint_pod::run_as_mounter(rest);
    }
    if let Some((program, rest)) = foreign::compat(rest)? {
        return foreign::run(program, &rest);
    }
    // A link of this name is the whole command of an image.
    let under_its_name = ["windlass".into(), "mount-proxy".into()].into_iter().chain(rest.iter().cloned());
    let args: Vec<OsString> = if name == "csi-mount-proxy-server" { under_its_name.collect() } else { args.to_vec() };
    match Cli::try_parse_from(&args) {
        Ok(cli) => match cli.command {
            Command::Mount(args) => mount::run(&args.into_request()),
            Command::Umount(args) => umount::run(&args),
            Command::Upgrade(args) => upgrade::run(&args),
            Command::Stats(args) => stats::run(&args),
            Command::Ctl(args) => ctl::run(&args),
            Command::Refresh(args) => refresh::run(&args),
            Command::Warm(args) => warm::run(&args),
            Command::Evict(args) => evict::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::Ls(args) => ls::run(&args),
            Command::Stat(args) => stat::run(&args),
            Command::Cat(args) => cat::run(&args),
            Command::Get(args) => get::run(&args),
            Command::Put(args) => put::run(&args),
            Command::Rm(args) => rm::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Mpu(args) => mpu::run(&args),
            Command::Csi(args) => csi::run(&args),
            Command::Sidecar(args) => sidecar::run(&args),
            Command::MountProxy(args) => mount_proxy::run(&args),
            Command::MountpointPod(args) => mountpoint_pod::run(&args),
            Command::Completions(args) => completions::run(&args, &mut Cli::command()),
            Command::Man(args) => man::run(&args, Cli::command()),
        },
        Err(error) => Err(mistake::explain(&error, &args, &mut Cli::command())),
    }
}

/// `0.1.0`, or `0.1.0 (hash)` when the build was told its commit in WINDLASS_COMMIT.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    option_env!("WINDLASS_COMMIT").map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
}

/// The time behind a flag that is none of the table.
fn time(flag: &str, text: &str) -> Result<Duration, Failure> {
    let kind = Kind::Time { min: Duration::ZERO, max: NEVER, never: false };
    match kind.parse(text) {
        Ok(Value::Time(time)) => Ok(time),
        Ok(_) => unreachable!("a time is a time"),
        Err(_) => Err(Failure::usage(format!("{flag} {text}: must be a time such as 90s, 30m, 24h or 7d"))),
    }
}

/// Starts the log of a process that serves, which has its panics too.
fn start_log(options: &logging::Options, attachment: Attachment) -> Result<(), Failure> {
    logging::init(options, attachment).map_err(|error| Failure::usage(error.to_string()))?;
    panics::log_panics();
    Ok(())
}

/// Writes to stdout. A reader that has seen enough (`| head`) is no failure.
fn print(text: &[u8]) -> Result<(), Failure> {
    use std::io::Write;
    match std::io::stdout().write_all(text) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::internal(format!("cannot write to stdout: {e}"))),
        _ => Ok(()),
    }
}
