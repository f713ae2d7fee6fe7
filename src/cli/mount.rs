//! `windlass mount`: settings, checks, then the mount, attached or as a daemon. Knows no option by itself. Invariant:
//! whatever is wrong is said on the stderr of the caller, whoever found it.

use std::ffi::OsString;

use clap::ValueEnum;

use super::flags::TableFlags;
use super::ready::{self, Ready};
use super::{Failure, daemon, kept, mountpoint, supervise};
use crate::config::{self, Input, Program, Settings, Values};
use crate::logging::{self, Attachment};
use crate::mount::{self, Given};

const EXAMPLES: &str = "\
Examples:
  Amazon S3, with the credentials of the environment, ~/.aws or the instance:
    windlass mount s3://bucket/prefix /mnt/data --region eu-central-1
  MinIO or another server that speaks S3:
    AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... windlass mount s3://bucket /mnt/data --endpoint http://127.0.0.1:9000
  Alibaba Cloud OSS, with a file of key:secret lines (chmod 600):
    windlass mount oss://bucket /mnt/oss --endpoint https://oss-cn-hangzhou.aliyuncs.com --passwd-file ~/.passwd-oss
  A public bucket:
    windlass mount s3://bucket /mnt/data --region us-east-1 --signature none
  /etc/fstab:
    s3://bucket /mnt/data fuse.windlass _netdev,config=/etc/windlass.toml 0 0

Every option can also stand in a TOML file (--config), in the environment (--chunk-size is WINDLASS_CHUNK_SIZE) and
behind -o, there also in the spelling of ossfs and ossfs2. What ranks higher: -o, flags, environment, file, defaults.
--print-config shows each value and where it came from; its output can be used as a file.

Exit codes: 0 mounted (or, in the foreground, unmounted in order), 1 internal, 2 usage, 3 credentials, 4 bucket or endpoint, 5 not written.";

/// Mount a bucket at a directory.
///
/// Returns when the mount answers and leaves a daemon behind; with --foreground it stays until it is unmounted or told
/// to stop with SIGINT, SIGTERM or SIGHUP.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples and exit codes: windlass mount --help")]
pub struct Args {
    /// s3://bucket[/prefix], oss://bucket[/prefix], or bucket[:/prefix] together with --endpoint.
    #[arg(value_name = "SOURCE")]
    source: Option<OsString>,
    /// A directory, or /dev/fd/N for a descriptor of /dev/fuse that a parent has mounted.
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: Option<OsString>,
    /// TOML file with options under their names.
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Options as in fstab, also in the spellings of ossfs; can be repeated.
    #[arg(short = 'o', value_name = "NAME[=VALUE],...")]
    options: Vec<String>,
    /// Read the rest of the command line as that program would, with its defaults.
    #[arg(long, value_enum, value_name = "PROGRAM")]
    compat: Option<Compat>,
    /// Print every option with its value and where it came from, and exit.
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    flags: TableFlags,
}

/// Programs whose command lines are understood.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Compat {
    Ossfs,
    Ossfs2,
}

/// What a command line of any form asks for.
#[derive(Debug, Default)]
pub struct Request {
    pub input: Input,
    /// Show the settings and mount nothing.
    pub print_config: bool,
    /// Check everything and mount nothing (mount -f).
    pub fake: bool,
}

impl Args {
    /// The request, with the environment of this process.
    pub fn into_request(self) -> Request {
        let mut flags = self.flags.0;
        flags.extend(self.config.map(|path| ("config".to_owned(), Some(path))));
        let places = [self.source, self.mountpoint].into_iter().flatten().collect();
        // Only reached when the word before the subcommand kept `--compat` from being seen earlier.
        let program = self.compat.map_or(Program::Native, |program| match program {
            Compat::Ossfs => Program::Ossfs,
            Compat::Ossfs2 => Program::Ossfs2,
        });
        let input = Input { program, places, environment: environment(), flags, options: self.options, sloppy: false };
        Request { input, print_config: self.print_config, fake: false }
    }
}

/// The environment as text; what is not UTF-8 can be no option.
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?))).collect()
}

/// Does what a request asks for.
pub fn run(request: &Request) -> Result<(), Failure> {
    let mut values = Values::gather(&request.input)?;
    if request.print_config {
        return print_config(&mut values, &request.input);
    }
    if let Some(worker) = kept::Worker::of_this_process()? {
        return worker.run(|given, attachment, tell| {
            let settings = Settings::from_values(&mut values, &request.input.environment)?;
            serve(&settings, given, attachment, tell)
        });
    }
    if daemon::is_child() {
        return run_as_daemon(values, &request.input);
    }
    let settings = Settings::from_values(&mut values, &request.input.environment)?;
    mountpoint::check(&settings)?;
    if request.fake {
        return Ok(());
    }
    if settings.foreground {
        return attend(&settings, Attachment::Foreground, |line| super::print(format!("{line}\n").as_bytes()));
    }
    for note in &settings.notes {
        eprintln!("windlass: warning: {note}");
    }
    let line = daemon::spawn()?;
    // Not before: when there is no mount, the reason is all that is said.
    if settings.logging.file.is_none() && !logging::has_syslog() {
        eprintln!("windlass: warning: there is no syslog (/dev/log), so the daemon keeps no log: add --log-file to have one");
    }
    super::print(format!("{line}\n").as_bytes())
}

/// What is missing may come later; everything else must be right.
fn print_config(values: &mut Values, input: &Input) -> Result<(), Failure> {
    match Settings::from_values(values, &input.environment) {
        Ok(_) | Err(config::Error::Missing(_)) => super::print(values.to_toml().as_bytes()),
        Err(error) => Err(error.into()),
    }
}

fn run_as_daemon(mut values: Values, input: &Input) -> Result<(), Failure> {
    let served = Settings::from_values(&mut values, &input.environment).map_err(Failure::from).and_then(|settings| {
        daemon::leave_terminal()?;
        attend(&settings, Attachment::Daemon, |line| {
            daemon::tell_ready(line).map_err(|e| Failure::internal(format!("nobody waits for the mount any more: {e}")))
        })
    });
    served.map_err(|failure| {
        daemon::tell_error(&failure.message);
        Failure { message: String::new(), ..failure }
    })
}

/// Mounts and serves, in this process or in another one that is watched.
fn attend(settings: &Settings, attachment: Attachment, tell: impl FnOnce(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    if settings.supervised { supervise::run(settings, attachment, tell) } else { serve(settings, Given::default(), attachment, tell) }
}

/// Mounts and serves until the end. `tell` is called once the mount answers.
fn serve(settings: &Settings, given: Given, attachment: Attachment, tell: impl FnOnce(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    logging::init(&settings.logging, attachment).map_err(|e| Failure::usage(e.to_string()))?;
    for note in &settings.notes {
        tracing::warn!("{note}");
    }
    let on_file = |e: std::io::Error| Failure::usage(format!("cannot write the ready file: {e}"));
    let ready = Ready::prepare(settings.ready_file.as_deref()).map_err(on_file)?;
    let failed = |error: mount::Error| Failure { code: error.exit_code(), message: error.to_string() };
    let mut mounted = mount::start_with(settings, given).map_err(failed)?;
    let line = ready::line(settings);
    ready.announce(&line).map_err(on_file)?;
    tell(&line)?;
    tracing::info!(source = %settings.source, mountpoint = %settings.mountpoint, "mounted");
    let end = mounted.serve();
    // Before the mount goes, so that nobody who looks at the file comes too late.
    drop(ready);
    if end == mount::End::Left {
        mounted.leave();
        return Ok(());
    }
    let served = mounted.unmount().map_err(failed);
    match &served {
        Ok(()) => tracing::info!(source = %settings.source, "unmounted"),
        // In the foreground the last line on stderr says it.
        Err(failure) if attachment == Attachment::Daemon => tracing::error!("{}", failure.message),
        Err(_) => {}
    }
    served
}
