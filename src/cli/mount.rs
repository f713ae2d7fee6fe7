//! `windlass mount`: settings, checks, then the mount, attached or as a daemon. Knows no option by itself. Invariant:
//! whatever is wrong is said on the stderr of the caller, whoever found it.

use std::ffi::OsString;

use clap::ValueEnum;

use super::flags::TableFlags;
use super::ready::{self, Ready};
use super::report::Report;
use super::{Failure, core_dumps, daemon, handed, kept, mountpoint, supervise, waiting};
use crate::config::{self, Input, Program, Reports, Settings, Values};
use crate::logging::{self, Attachment};
use crate::mount::{self, Given};
use crate::store::Key;

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
  All buckets of an account, each a directory:
    windlass mount s3:// /mnt/buckets --region eu-central-1
  A container without privileges, where another process mounts and hands over source, options and descriptor:
    windlass mount --fd-socket connect:/windlass/mount.sock --foreground --metrics-listen 0.0.0.0:9100
  /etc/fstab:
    s3://bucket /mnt/data fuse.windlass _netdev,config=/etc/windlass.toml 0 0

Every option can also stand in a TOML file (--config), in the environment (--chunk-size is WINDLASS_CHUNK_SIZE) and
behind -o, there also in the spelling of ossfs and ossfs2. What ranks higher: -o, flags, environment, file, defaults.
--print-config shows each value and where it came from; its output can be used as a file.

SIGTERM and SIGINT refuse new writes (ESHUTDOWN), store what was written within --drain-timeout and end; a second one ends at once.

Exit codes: 0 mounted (or, in the foreground, ended with everything stored), 1 internal, 2 usage, 3 credentials, 4 bucket or endpoint, 5 not written: \
files that --error-file names are not in the bucket.";

/// Mount a bucket at a directory.
///
/// Returns when the mount answers and leaves a daemon behind; with --foreground it stays until it is unmounted or told
/// to stop with SIGINT, SIGTERM or SIGHUP.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples and exit codes: windlass mount --help")]
pub struct Args {
    /// s3://bucket[/prefix], oss://bucket[/prefix], bucket[:/prefix] together with --endpoint, or s3:// for all buckets of the account.
    #[arg(value_name = "SOURCE")]
    source: Option<OsString>,
    /// A directory, or /dev/fd/N for a descriptor of /dev/fuse that a parent has mounted. See also --fd-socket.
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
    S3fs,
    Mountpoint,
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
            Compat::S3fs => Program::S3fs,
            Compat::Mountpoint => Program::Mountpoint,
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
    let values = Values::gather(&request.input);
    if request.print_config {
        return print_config(&mut values?, &request.input);
    }
    let worker = kept::Worker::of_this_process()?;
    let is_supervised = worker.is_some();
    let passed = handed::passed();
    let line = passed.as_ref().map(handed::line).transpose()?.or_else(|| worker.as_ref().map(kept::Worker::line));
    let report = Report::new(Reports::of(&request.input, values.as_ref().ok()), line.clone());
    let done = values.map_err(Ended::from).and_then(|values| {
        let given = match worker {
            Some(worker) => return work(request, values, worker, &report),
            None => passed.zip(line).map(|(passed, line)| handed::given(passed, line)).transpose()?,
        };
        attend(request, values, given, &report)
    });
    done.map_err(|ended| {
        report.failed(&ended.failure, &ended.lost);
        if is_supervised {
            return Failure { message: String::new(), ..ended.failure };
        }
        if !daemon::is_child() {
            return ended.failure;
        }
        daemon::tell_error(&ended.failure.message);
        Failure { message: String::new(), ..ended.failure }
    })
}

/// How a mount ended, or why there is none.
struct Ended {
    failure: Failure,
    /// Files that are not in the bucket.
    lost: Vec<Key>,
}

impl<E: Into<Failure>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self { failure: error.into(), lost: Vec::new() }
    }
}

impl From<mount::Error> for Failure {
    fn from(error: mount::Error) -> Self {
        Self { code: error.exit_code(), message: error.to_string() }
    }
}

/// Serves what a supervisor keeps, and says everything to that one.
fn work(request: &Request, mut values: Values, worker: kept::Worker, report: &Report) -> Result<(), Ended> {
    let settings = Settings::from_values(&mut values, &request.input.environment)?;
    let attachment = worker.attachment;
    serve(&settings, Some(worker.given()), attachment, report, |_| match attachment {
        Attachment::Daemon => daemon::let_go().map_err(|e| Failure::internal(format!("cannot let go of the terminal: {e}"))),
        Attachment::Foreground => Ok(()),
    })
}

/// Mounts in this process, or has a daemon do it.
fn attend(request: &Request, mut values: Values, given: Option<Given>, report: &Report) -> Result<(), Ended> {
    let attached = daemon::is_child() || given.is_some() || values.is_foreground();
    if given.is_none()
        && let Some((meeting, patience)) = values.meeting()?
    {
        return match (request.fake, attached) {
            (true, _) => Ok(()),
            (false, true) => {
                let _shown = values.pages()?.as_ref().map(waiting::show).transpose()?;
                Ok(handed::serve(&request.input, &meeting, patience)?)
            }
            (false, false) => Ok(detach(&values.notes, values.get("log-file").is_some())?),
        };
    }
    let settings = Settings::from_values(&mut values, &request.input.environment)?;
    if daemon::is_child() {
        daemon::leave_terminal()?;
        let tell =
            |line: &str| daemon::tell_ready(line).map_err(|e| Failure::internal(format!("nobody waits for the mount any more: {e}")));
        return supervise_or_serve(&settings, given, Attachment::Daemon, report, tell);
    }
    mountpoint::check(&settings)?;
    if request.fake {
        return Ok(());
    }
    if attached {
        return supervise_or_serve(&settings, given, Attachment::Foreground, report, |line| super::print(format!("{line}\n").as_bytes()));
    }
    Ok(detach(&settings.notes, settings.logging.file.is_some())?)
}

/// Starts the daemon and says how that went.
fn detach(notes: &[String], has_log: bool) -> Result<(), Failure> {
    for note in notes {
        eprintln!("windlass: warning: {note}");
    }
    let line = daemon::spawn()?;
    // Not before: when there is no mount, the reason is all that is said.
    if !has_log && !logging::has_syslog() {
        eprintln!("windlass: warning: there is no syslog (/dev/log), so the daemon keeps no log: add --log-file to have one");
    }
    super::print(format!("{line}\n").as_bytes())
}

/// What is missing may come later; everything else must be right.
fn print_config(values: &mut Values, input: &Input) -> Result<(), Failure> {
    match Settings::from_values(values, &input.environment) {
        Ok(_) | Err(config::Error::Missing(_)) => {}
        Err(error) => return Err(error.into()),
    }
    // As comments: the text can be used as a file.
    let notes: String = values.notes.iter().map(|note| format!("# note: {note}\n")).collect();
    super::print(format!("{notes}{}", values.to_toml()).as_bytes())
}

/// Mounts and serves, in this process or in another one that is watched.
fn supervise_or_serve(
    settings: &Settings,
    given: Option<Given>,
    attachment: Attachment,
    report: &Report,
    tell: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Ended> {
    if !settings.supervised {
        return serve(settings, given, attachment, report, tell);
    }
    core_dumps::follow(settings)?;
    Ok(supervise::run(settings, attachment, tell)?)
}

/// Mounts and serves until the end. `tell` is called once the mount answers.
fn serve(
    settings: &Settings,
    given: Option<Given>,
    attachment: Attachment,
    report: &Report,
    tell: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Ended> {
    core_dumps::follow(settings)?;
    super::start_log(&settings.logging, attachment)?;
    for note in &settings.notes {
        tracing::warn!("{note}");
    }
    let on_file = |e: std::io::Error| Failure::usage(format!("cannot write the ready file: {e}"));
    let ready = Ready::prepare(settings.ready_file.as_deref()).map_err(on_file)?;
    let mut mounted = mount::start_with(settings, given.unwrap_or_default())?;
    for note in mounted.notes() {
        tracing::warn!("{note}");
        if attachment == Attachment::Daemon {
            eprintln!("windlass: warning: {note}");
        }
    }
    let line = ready::line(settings);
    ready.announce(&line).map_err(on_file)?;
    report.answers();
    tell(&line)?;
    tracing::info!(source = %settings.source, mountpoint = %settings.mountpoint, "mounted");
    let end = mounted.serve();
    // Before the mount goes, so that nobody who looks at the file comes too late.
    drop(ready);
    let error = match end {
        mount::End::Left => {
            mounted.leave();
            return Ok(());
        }
        mount::End::Failed { reason } => mounted.fail(reason),
        mount::End::Over => match mounted.unmount() {
            Ok(()) => {
                tracing::info!(source = %settings.source, "unmounted");
                return Ok(());
            }
            Err(error) => error,
        },
    };
    // In the foreground the last line on stderr says it.
    if attachment == Attachment::Daemon {
        tracing::error!("{error}");
    }
    let lost = error.lost().iter().map(|lost| lost.key.clone()).collect();
    Err(Ended { lost, failure: error.into() })
}
