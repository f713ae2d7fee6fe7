//! `windlass put`: a file, or standard input, into an object. It reads the words, says the plan and what came of it. Invariant: exit code
//! 0 means that the object is whole; otherwise the bucket has what it had.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indicatif::HumanBytes;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
use super::progress::{Progress, Unit};
use super::remote::{Reach, Remote, runtime};
use crate::budget::{self, Budget};
use crate::store::{Headers, Key, LEAST_PART};
use crate::transfer::{self, Asked, Origin, Parallel, Plan, Put, Putting, put};
use crate::units::ByteSize;

/// Store a file, or standard input, as an object, in parts side by side.
///
/// The object appears when it is whole; the store compares its checksum with ours where it can. For example:
/// tar c models | windlass put - s3://bucket/models.tar
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file; - is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// s3://bucket/key or oss://bucket/key; what ends in a slash is a directory that it goes to.
    #[arg(value_name = "DEST")]
    dest: OsString,
    /// Requests at a time: 1..10000, or auto for as many as make it faster.
    #[arg(long, value_name = "N", default_value = "auto")]
    parallel: Parallel,
    /// Bytes of one request, at least 5MiB; more when there would be more than 10,000.
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    part_size: ByteSize,
    /// What is smaller is one request, if it fits into the memory.
    #[arg(long, value_name = "SIZE", default_value = "100MiB")]
    bigfile_threshold: ByteSize,
    /// Most memory for bytes on their way.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    max_memory: ByteSize,
    /// Only say what would be stored.
    #[arg(long)]
    dry_run: bool,
    /// What came of it as one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Stores.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.part_size.as_u64() < LEAST_PART {
        let least = ByteSize::bytes(LEAST_PART);
        return Err(Failure::usage(format!("--part-size {}: must be at least {least}", args.part_size)));
    }
    let runtime = runtime()?;
    let done = runtime.block_on(store(args));
    // A read of standard input that nobody waits for any more would keep it.
    runtime.shutdown_background();
    done
}

async fn store(args: &Args) -> Result<(), Failure> {
    let remote = Remote::open(&args.dest, &args.reach).await?;
    let (origin, len) = origin(&args.file)?;
    let key = target(&args.file, &remote)?;
    let asked = Asked {
        parallel: args.parallel,
        part_bytes: args.part_size.as_u64(),
        threshold_bytes: args.bigfile_threshold.as_u64(),
        max_memory_bytes: args.max_memory.as_u64(),
    };
    let plan = Plan::upload(&asked, len).map_err(|error| Failure::usage(error.to_string()))?;
    eprintln!("windlass: {}", words(&plan, len, args));
    if args.dry_run {
        return report(args, &key, None, Instant::now());
    }
    let (began, progress) = match len {
        Some(len) => (Instant::now(), Progress::start("storing", len, Unit::Bytes)),
        None => (Instant::now(), Progress::growing("storing", Unit::Bytes)),
    };
    let told = progress.clone();
    let is_known = len.is_some();
    let on_bytes = move |n| {
        if !is_known {
            told.grow(n);
        }
        told.add(n);
    };
    let putting = Putting {
        store: Arc::clone(&remote.store),
        budget: Budget::new(&budget::Options { memory_limit: Some(args.max_memory) }),
        plan,
        parallel: args.parallel,
        headers: headers(&key),
        on_bytes: Arc::new(on_bytes),
    };
    let refused = |error| Failure::internal(format!("cannot listen for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(refused)?;
    let stopped = Cell::new((130, "interrupted"));
    let stop = async {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => stopped.set((143, "terminated")) }
    };
    let done = put(&putting, &key, origin, &args.file, stop).await;
    progress.clear();
    let (code, word) = stopped.get();
    let done = done.map_err(|error| match error {
        transfer::Error::Stopped => Failure { code, message: format!("{word}: nothing of it is in the bucket") },
        other => remote.ended(other),
    })?;
    report(args, &key, Some(done), began)
}

/// What is read, and how much that is, where it is known.
fn origin(path: &Path) -> Result<(Origin, Option<u64>), Failure> {
    if path == Path::new("-") {
        return Ok((Origin::Stream(Box::new(io::stdin())), None));
    }
    let failed = |error: io::Error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if found.is_file() {
        Ok((Origin::File(Arc::new(file), found.len()), Some(found.len())))
    } else {
        Ok((Origin::Stream(Box::new(file)), None))
    }
}

/// The object that DEST means.
fn target(file: &Path, remote: &Remote) -> Result<Key, Failure> {
    if !remote.key.is_prefix() {
        return Ok(remote.key.clone());
    }
    match file.file_name().filter(|_| file != Path::new("-")) {
        Some(name) => Ok(remote.key.join(name.as_bytes())),
        None => Err(Failure::usage(format!("{}: name the object, there is no file name to take", remote.shown))),
    }
}

/// The type of the content, from the name.
fn headers(key: &Key) -> Headers {
    let content_type = key.to_str().and_then(|name| mime_guess::from_path(name).first_raw()).map(str::to_owned);
    Headers { content_type, ..Headers::default() }
}

/// Concurrency x part, and what that makes.
fn words(plan: &Plan, len: Option<u64>, args: &Args) -> String {
    let auto = if args.parallel == Parallel::Auto { "up to " } else { "" };
    let what = len.map_or_else(|| "a stream".to_owned(), |len| HumanBytes(len).to_string());
    let (part, memory) = (HumanBytes(plan.buffer_bytes), HumanBytes(plan.memory_bytes()));
    format!("plan: {what} in parts of {part}, {auto}{} requests x {part} = {memory}, at most {} of memory", plan.requests, args.max_memory)
}

/// Says what came of it, or without that what would have.
fn report(args: &Args, key: &Key, done: Option<Put>, began: Instant) -> Result<(), Failure> {
    let seconds = began.elapsed().as_secs_f64();
    let text = match (done, args.json) {
        (None, true) => json!({"key": key.to_string()}).to_string(),
        (None, false) => format!("would store {key}"),
        (Some(put), true) => json!({"key": key.to_string(), "bytes": put.bytes, "parts": put.parts, "seconds": seconds}).to_string(),
        (Some(put), false) => format!("{key}: {} in {seconds:.1} s", HumanBytes(put.bytes)),
    };
    super::print(format!("{text}\n").as_bytes())
}
