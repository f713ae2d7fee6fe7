//! `windlass get`: an object into a file, or to standard output; or all below a name, see `tree`. It reads the words, says the plan and what came of it. Invariant: exit
//! code 0 means that the target is whole.

mod tree;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indicatif::HumanBytes;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
use super::cat::{Which, to_stdout};
use super::progress::{Progress, Unit};
use super::remote::{Reach, Remote, runtime, to_json};
use crate::budget::{self, Budget};
use crate::store::Details;
use crate::transfer::{self, Asked, Getting, Got, Parallel, Plan, Streaming, get, is_there, stream};
use crate::units::ByteSize;

/// Fetch an object into a file, in parts side by side, or with --recursive everything below a name into a directory.
///
/// The file appears under its name when it is whole and, where the store keeps a CRC64 of the object, checked.
/// For example: windlass get --checkpoint-dir /var/tmp/windlass s3://bucket/models/a.safetensors /data
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket/key or oss://bucket/key.
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// The file, or the directory that it goes to; - is standard output.
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    #[command(flatten)]
    which: Which,
    /// Requests at a time: 1..10000, or auto for as many as make it faster.
    #[arg(long, value_name = "N", default_value = "auto")]
    parallel: Parallel,
    /// Bytes of one request; at least 64KiB.
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    part_size: ByteSize,
    /// What is smaller is one request.
    #[arg(long, value_name = "SIZE", default_value = "100MiB")]
    bigfile_threshold: ByteSize,
    /// Most memory for bytes on their way.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    max_memory: ByteSize,
    /// Remember there which parts are done, so that the same command fetches only the others after it was interrupted.
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    /// Everything below SOURCE, into the directory DEST.
    #[arg(short, long, conflicts_with_all = ["range", "compat"])]
    recursive: bool,
    /// With --recursive: only names that match, relative to SOURCE: *.bin, logs/**; may be given several times.
    #[arg(long, value_name = "PATTERN", requires = "recursive")]
    include: Vec<String>,
    /// With --recursive: not these, whatever --include says.
    #[arg(long, value_name = "PATTERN", requires = "recursive")]
    exclude: Vec<String>,
    /// With --recursive: files at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    transfers: u16,
    /// Leave out what is there with the same size and is not older.
    #[arg(short, long, conflicts_with_all = ["range", "compat"])]
    update: bool,
    /// Only say what would be fetched.
    #[arg(long)]
    dry_run: bool,
    /// What came of each file as one JSON object a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Less than that is all latency.
const LEAST_PART: ByteSize = ByteSize::kib(64);

/// Fetches.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.part_size < LEAST_PART {
        return Err(Failure::usage(format!("--part-size {}: must be at least {LEAST_PART}", args.part_size)));
    }
    let runtime = runtime()?;
    runtime.block_on(async {
        let refused = |error| Failure::internal(format!("cannot listen for signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(refused)?;
        // Whoever is stopped takes what is unfinished away.
        tokio::select! {
            done = fetch(args) => done,
            _ = interrupt.recv() => Err(Failure { code: 130, message: "interrupted".into() }),
            _ = terminate.recv() => Err(Failure { code: 143, message: "terminated".into() }),
        }
    })
}

/// Where the bytes go.
enum Sink {
    Stdout,
    /// What is no file: a device, a pipe.
    Special(PathBuf),
    File(PathBuf),
}

async fn fetch(args: &Args) -> Result<(), Failure> {
    let remote = Remote::open(&args.source, &args.reach).await?;
    if args.recursive {
        return tree::fetch(args, &remote).await;
    }
    if remote.key.is_prefix() {
        return Err(Failure::usage(format!("{}: name an object in the bucket, or add --recursive", remote.shown)));
    }
    let details = remote.store.details(&remote.key).await.map_err(|error| remote.failed(error))?;
    let range = args.which.of(details.meta.size)?;
    let sink = sink(&args.dest, details.meta.key.as_bytes());
    if let Sink::File(path) = &sink
        && args.update
        && is_there(path, &details.meta)
    {
        eprintln!("windlass: {} is there", path.display());
        return Ok(());
    }
    let asked = asked(args);
    let len = range.end - range.start;
    let plan = if matches!(sink, Sink::File(_)) { Plan::at_offsets(&asked, len) } else { Plan::in_order(&asked, len) };
    let plan = plan.map_err(|error| Failure::usage(error.to_string()))?;
    eprintln!("windlass: {}", words(&plan, len, args.parallel));
    if args.dry_run {
        return report(args, &details, &sink, len, None, Instant::now());
    }
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::bytes(plan.memory_bytes())) });
    let (began, progress) = (Instant::now(), Progress::start("fetching", len, Unit::Bytes));
    let got = match &sink {
        Sink::File(path) => {
            let told = progress.clone();
            let getting = Getting {
                store: Arc::clone(&remote.store),
                budget,
                plan,
                parallel: args.parallel,
                location: remote.location(),
                checkpoints: args.checkpoint_dir.clone(),
                on_bytes: Arc::new(move |n| told.add(n)),
            };
            get(&getting, &details, range, path).await
        }
        Sink::Stdout => in_order(&remote, &budget, &details, range, &plan, &progress, to_stdout).await,
        Sink::Special(path) => match File::options().write(true).open(path) {
            Ok(mut file) => {
                let take = |bytes: &[u8]| file.write_all(bytes).map(|()| true).map_err(transfer::Error::local("write", path));
                in_order(&remote, &budget, &details, range, &plan, &progress, take).await
            }
            Err(error) => Err(transfer::Error::local("write", path)(error)),
        },
    };
    progress.clear();
    report(args, &details, &sink, len, Some(got.map_err(|error| remote.ended(error))?), began)
}

async fn in_order(
    remote: &Remote,
    budget: &Arc<Budget>,
    details: &Details,
    range: Range<u64>,
    plan: &Plan,
    progress: &Progress,
    mut take: impl FnMut(&[u8]) -> transfer::Result<bool>,
) -> transfer::Result<Got> {
    let how = Streaming { part_bytes: plan.part_bytes, ahead: plan.requests };
    let whole = range == (0..details.meta.size);
    let bytes = range.end - range.start;
    let counted = |bytes: &[u8]| {
        progress.add(bytes.len() as u64);
        take(bytes)
    };
    stream(&remote.store, budget, details, range, how, counted).await?;
    Ok(Got { bytes, resumed_bytes: 0, is_checked: whole && details.crc64.is_some() })
}

/// The limits that were said.
fn asked(args: &Args) -> Asked {
    Asked {
        parallel: args.parallel,
        part_bytes: args.part_size.as_u64(),
        threshold_bytes: args.bigfile_threshold.as_u64(),
        max_memory_bytes: args.max_memory.as_u64(),
    }
}

/// What `-`, a directory, a device or a name mean.
fn sink(dest: &Path, key: &[u8]) -> Sink {
    if dest == Path::new("-") {
        return Sink::Stdout;
    }
    let name = key.rsplit(|&b| b == b'/').next().unwrap_or_default();
    match fs::metadata(dest) {
        Ok(found) if found.is_dir() => Sink::File(dest.join(std::ffi::OsStr::from_bytes(name))),
        Ok(found) if !found.is_file() => Sink::Special(dest.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && dest.as_os_str().as_bytes().ends_with(b"/") => {
            Sink::File(dest.join(std::ffi::OsStr::from_bytes(name)))
        }
        _ => Sink::File(dest.to_owned()),
    }
}

/// Concurrency x buffer, and what that makes.
fn words(plan: &Plan, len: u64, parallel: Parallel) -> String {
    let auto = if parallel == Parallel::Auto { "up to " } else { "" };
    format!(
        "plan: {} in {} parts of {}, {auto}{} requests x {} = {} of memory",
        HumanBytes(len),
        plan.parts,
        HumanBytes(plan.part_bytes.min(len)),
        plan.requests,
        HumanBytes(plan.buffer_bytes),
        HumanBytes(plan.memory_bytes())
    )
}

/// Says what came of it, or without that what would have.
fn report(args: &Args, details: &Details, sink: &Sink, len: u64, got: Option<Got>, began: Instant) -> Result<(), Failure> {
    let target = match sink {
        Sink::Stdout => "standard output".to_owned(),
        Sink::Special(path) | Sink::File(path) => path.display().to_string(),
    };
    let seconds = began.elapsed().as_secs_f64();
    let text = if args.json {
        let mut json = to_json(&details.meta);
        json["target"] = json!(target);
        json["bytes"] = json!(len);
        if let Some(got) = got {
            json["resumed_bytes"] = json!(got.resumed_bytes);
            json["is_checked"] = json!(got.is_checked);
            json["seconds"] = json!(seconds);
        }
        json.to_string()
    } else {
        let checked = if got.is_some_and(|got| got.is_checked) { ", checked" } else { "" };
        match got {
            Some(got) if got.resumed_bytes > 0 => {
                format!("{target}: {} in {seconds:.1} s, of which {} were there{checked}", HumanBytes(len), HumanBytes(got.resumed_bytes))
            }
            Some(_) => format!("{target}: {} in {seconds:.1} s{checked}", HumanBytes(len)),
            None => format!("would write {} to {target}", HumanBytes(len)),
        }
    };
    // Standard output is the object's.
    if matches!(sink, Sink::Stdout) {
        eprintln!("windlass: {text}");
        return Ok(());
    }
    super::print(format!("{text}\n").as_bytes())
}
