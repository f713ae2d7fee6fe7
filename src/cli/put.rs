//! `windlass put`: files, or standard input, into objects; or all below directories, see `Storing`. It reads the words, says the plan and what
//! came of it. Invariant: exit code 0 means that the objects are whole; one that is not is what it was.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indicatif::HumanBytes;
use tokio::sync::watch;

use super::Failure;
use super::many::{Picking, Report, Way, text};
use super::progress::{Progress, Unit};
use super::remote::{Reach, Remote, ended, runtime};
use super::tuning::Tuning;
use crate::signals::{Ending, Signals};
use crate::store::{Headers, Key, LEAST_PART};
use crate::transfer::{self, Asked, Event, Given, Item, Moved, Origin, Plan, Putting, Storing, put};
use crate::units::ByteSize;

/// Store files, or standard input, as objects, in parts side by side, or with --recursive everything below directories.
///
/// An object appears when it is whole; the store compares its checksum with ours where it can. Symbolic links are followed. For example:
/// tar c models | windlass put - s3://bucket/models.tar
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, or with --recursive the directory; - is standard input. Of several directories each goes below its own name.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// s3://bucket/key or oss://bucket/key; what ends in a slash is a directory that they go to.
    #[arg(value_name = "DEST")]
    dest: OsString,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    picking: Picking,
    #[command(flatten)]
    reach: Reach,
}

/// Stores.
pub fn run(args: &Args) -> Result<(), Failure> {
    let asked = args.tuning.asked_to_send(ByteSize::bytes(LEAST_PART))?;
    let is_many = args.picking.recursive || args.files.len() > 1 || args.picking.update;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let remote = Remote::open(&args.dest, &args.reach).await?;
        if is_many { Box::pin(store_many(args, asked, remote)).await } else { store_one(args, &args.files[0], asked, remote).await }
    });
    // A read of standard input that nobody waits for any more would keep it.
    runtime.shutdown_background();
    done
}

/// Runs `storing` to its end, which it comes to early after a signal.
async fn until_stopped<T>(
    remote: &Remote,
    stop: &watch::Sender<bool>,
    storing: impl Future<Output = transfer::Result<T>>,
) -> Result<T, Failure> {
    let mut signals = Signals::listen().map_err(Failure::without_signals)?;
    tokio::pin!(storing);
    let mut ending = None;
    let stored = loop {
        tokio::select! {
            stored = &mut storing => break stored,
            came = signals.next(), if ending.is_none() => {
                ending = Some(came);
                stop.send_replace(true);
            }
        }
    };
    stored.map_err(|error| match error {
        transfer::Error::Stopped { is_kept } => stopped(ending, is_kept),
        error => ended(std::slice::from_ref(remote), error),
    })
}

fn stopped(ending: Option<Ending>, is_kept: bool) -> Failure {
    let ending = ending.unwrap_or(Ending::Interrupt);
    let rest = if is_kept { "the same command goes on with what the store has of it" } else { "nothing unfinished is in the bucket" };
    Failure { code: ending.exit_code(), message: format!("{}: {rest}", ending.word()) }
}

async fn store_one(args: &Args, file: &Path, asked: Asked, remote: Remote) -> Result<(), Failure> {
    let (origin, len) = origin(args, file)?;
    let key = target(file, &remote)?;
    let plan = Plan::upload(&asked, len).map_err(|error| Failure::usage(error.to_string()))?;
    let part = HumanBytes(plan.part_bytes);
    let what = match len {
        Some(len) => format!("{} in {} parts of {}", HumanBytes(len), plan.parts, HumanBytes(plan.part_bytes.min(len))),
        None if remote.equal_parts => format!("a stream in parts of {part}"),
        None => format!("a stream in parts of {part} and more"),
    };
    args.tuning.say(&plan, &what, None);
    let item = Item { key, path: file.to_owned(), bytes: len.unwrap_or(0), meta: None };
    let print = |moved| super::print(format!("{}\n", text(args.picking.json, Way::Stored, &item, moved)).as_bytes());
    if args.picking.dry_run {
        return print(None);
    }
    let (began, progress) = match len {
        Some(len) => (Instant::now(), Progress::start("storing", len, Unit::Bytes)),
        None => (Instant::now(), Progress::growing("storing", Unit::Bytes)),
    };
    let (stop, putting) = putting(args, &remote, plan, remote.content_types.headers(&item.key), len.is_some(), &progress);
    let done = until_stopped(&remote, &stop, put(&putting, &item.key, origin, file)).await;
    progress.clear();
    let put = done?;
    let (bytes, resumed_bytes, parts) = (put.bytes, put.resumed_bytes, put.parts);
    print(Some(&Moved { bytes, resumed_bytes, parts, is_checked: false, took: began.elapsed() }))
}

/// How one file is stored, and who can stop it.
fn putting(
    args: &Args,
    remote: &Remote,
    plan: Plan,
    headers: Headers,
    is_known: bool,
    progress: &Progress,
) -> (watch::Sender<bool>, Putting) {
    let told = progress.clone();
    let on_bytes = move |n| {
        if !is_known {
            told.grow(n);
        }
        told.add(n);
    };
    let (stop, stopped) = watch::channel(false);
    let putting = Putting {
        store: Arc::clone(&remote.store),
        budget: args.tuning.budget(),
        plan,
        equal_parts: remote.equal_parts,
        parallel: args.tuning.parallel(),
        headers,
        location: remote.location(),
        checkpoints: args.tuning.checkpoints(),
        bandwidth: args.tuning.pace.bandwidth(),
        on_bytes: Arc::new(on_bytes),
        stop: stopped,
    };
    (stop, putting)
}

/// What is read, and how much that is, where it is known.
fn origin(args: &Args, path: &Path) -> Result<(Origin, Option<u64>), Failure> {
    let stream = |stream| match args.tuning.checkpoints() {
        None => Ok((Origin::Stream(stream), None)),
        Some(_) => Err(Failure::usage(format!("{}: --checkpoint-dir needs a file, which can be read again", path.display()))),
    };
    if path == Path::new("-") {
        return stream(Box::new(io::stdin()));
    }
    let failed = |error: io::Error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(Failure::usage(format!("cannot read {}: it is a directory: add --recursive", path.display())));
    }
    if found.is_file() { Ok((Origin::File(Arc::new(file)), Some(found.len()))) } else { stream(Box::new(file)) }
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

async fn store_many(args: &Args, asked: Asked, remote: Remote) -> Result<(), Failure> {
    let given = given(args, &remote)?;
    // What is read when nothing is known of a file: the largest.
    let plan = Plan::upload(&asked, None).map_err(|error| Failure::usage(error.to_string()))?;
    let pick = args.picking.pick()?;
    args.tuning.say(&plan, "files of any size", Some(args.picking.transfers));
    let progress = Progress::growing("storing", Unit::Bytes);
    let many = args.picking.many(asked, pick, &progress);
    let (stop, putting) = putting(args, &remote, plan, Headers::default(), true, &progress);
    let storing = Arc::new(Storing { putting, many, content_types: remote.content_types.clone(), stop: stop.clone() });
    let mut report = Report::new(&args.picking, Way::Stored);
    let stored = until_stopped(&remote, &stop, Box::pin(storing.put(&given, |event: Event| report.add(event, &progress)))).await;
    progress.clear();
    stored?;
    report.finish()
}

/// What goes where. No two FILEs become the same object.
fn given(args: &Args, remote: &Remote) -> Result<Vec<Given>, Failure> {
    let is_one = args.files.len() == 1;
    if !is_one && !remote.key.is_prefix() {
        return Err(Failure::usage(format!("{}: several FILEs need a DEST that ends in a slash", remote.shown)));
    }
    let mut taken = HashSet::new();
    let one = |path: &PathBuf| {
        let usage = |why: &str| Failure::usage(format!("{}: {why}", path.display()));
        if path == Path::new("-") {
            return Err(usage("standard input is stored by itself"));
        }
        let found = fs::metadata(path).map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
        if found.is_dir() && !args.picking.recursive {
            return Err(usage("it is a directory: add --recursive"));
        }
        // What is below one directory goes to DEST itself.
        if is_one && found.is_dir() {
            return Ok(Given { path: path.clone(), key: transfer::directory_of(&remote.key) });
        }
        let key = target(path, remote)?;
        if !taken.insert(key.clone()) {
            return Err(usage(&format!("another FILE becomes \"{key}\" too")));
        }
        Ok(Given { path: path.clone(), key: if found.is_dir() { key.join(b"/") } else { key } })
    };
    args.files.iter().map(one).collect()
}
