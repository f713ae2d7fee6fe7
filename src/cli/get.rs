//! `windlass get`: objects into files, or one to standard output; or all below names, see `Tree`. It reads the words, says the plan and what
//! came of it. Invariant: exit code 0 means that all targets are whole.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;

use super::Failure;
use super::cat::{Which, to_stdout};
use super::many::{Picking, Report, Way, text};
use super::progress::{Progress, Unit};
use super::remote::{Reach, Remote, ended, open_all, runtime};
use super::tuning::Tuning;
use crate::signals::Signals;
use crate::store::{Checking, Details, ErrorKind, Key, LARGEST_OBJECT};
use crate::transfer::{self, Event, Getting, Item, Moved, Plan, Root, Streaming, Tree, Wanted, get, is_there, stream};
use crate::units::ByteSize;

/// Fetch objects into files, in parts side by side, or with --recursive everything below names into a directory.
///
/// A file appears under its name when it is whole and, where the store keeps a CRC64 of the object, checked.
/// For example: windlass get --checkpoint-dir /var/tmp/windlass s3://bucket/models/a.safetensors /data
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket/key or oss://bucket/key. With --recursive and several, each goes into a directory of its own name.
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    /// The file, or the directory that it goes to; of several SOURCEs a directory; - is standard output.
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    picking: Picking,
    #[command(flatten)]
    reach: Reach,
}

/// Less than that is all latency.
const LEAST_PART: ByteSize = ByteSize::kib(64);

/// Fetches.
pub fn run(args: &Args) -> Result<(), Failure> {
    let is_many = args.picking.recursive || args.sources.len() > 1;
    if (is_many || args.picking.update) && args.which.is_said() {
        return Err(Failure::usage("--range and --compat are for one object, without --update"));
    }
    runtime()?.block_on(async {
        let mut signals = Signals::listen().map_err(Failure::without_signals)?;
        let fetching = async {
            let remotes = open_all(&args.sources, &args.reach).await?;
            match &remotes[..] {
                [remote] if !is_many => fetch_one(args, remote).await,
                _ => fetch_many(args, &remotes).await,
            }
        };
        // Whoever is stopped takes what is unfinished away.
        tokio::select! {
            done = fetching => done,
            ending = signals.next() => Err(Failure { code: ending.exit_code(), message: ending.word().into() }),
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

async fn fetch_one(args: &Args, remote: &Remote) -> Result<(), Failure> {
    if remote.key.is_prefix() {
        return Err(Failure::usage(format!("{}: name an object in the bucket, or add --recursive", remote.shown)));
    }
    let details = match remote.store.details(&remote.key).await {
        Ok(details) => details,
        Err(error) if error.kind == ErrorKind::NotFound => return Err(remote.missing_or_directory("add --recursive").await),
        Err(error) => return Err(remote.failed(error)),
    };
    let range = args.which.of(details.meta.size)?;
    let sink = sink(&args.dest, details.meta.key.as_bytes());
    if let Sink::File(path) = &sink
        && args.picking.update
        && is_there(path, &details.meta)
    {
        eprintln!("windlass: {} is there", path.display());
        return Ok(());
    }
    let asked = args.tuning.asked(LEAST_PART)?;
    let len = range.end - range.start;
    let plan = if matches!(sink, Sink::File(_)) { Plan::at_offsets(&asked, len) } else { Plan::in_order(&asked, len) };
    let plan = plan.map_err(|error| Failure::usage(error.to_string()))?;
    let part = HumanBytes(plan.part_bytes.min(len));
    args.tuning.say(&plan, &format!("{} in {} parts of {part}", HumanBytes(len), plan.parts), None);
    if args.picking.dry_run {
        return report(args, &details, &sink, len, None);
    }
    let (began, progress) = (Instant::now(), Progress::start("fetching", len, Unit::Bytes));
    let moved = bring(args, remote, &details, range, plan, &sink, &progress).await;
    progress.clear();
    let moved = moved.map_err(|error| remote.ended(error))?;
    report(args, &details, &sink, len, Some(Moved { took: began.elapsed(), ..moved }))
}

/// Brings one object to where it goes.
async fn bring(
    args: &Args,
    remote: &Remote,
    details: &Details,
    range: Range<u64>,
    plan: Plan,
    sink: &Sink,
    progress: &Progress,
) -> transfer::Result<Moved> {
    let moved = Moved { bytes: range.end - range.start, resumed_bytes: 0, parts: 0, is_checked: false, took: Duration::ZERO };
    let Sink::File(path) = sink else {
        let is_checked = range == (0..details.meta.size) && details.sum.as_ref().and_then(Checking::against).is_some();
        in_order(args, remote, details, range, &plan, sink, progress).await?;
        return Ok(Moved { is_checked, ..moved });
    };
    let got = get(&getting(args, remote, plan, progress), &Wanted::from(details), range, path).await?;
    Ok(Moved { resumed_bytes: got.resumed_bytes, is_checked: got.is_checked, ..moved })
}

fn getting(args: &Args, remote: &Remote, plan: Plan, progress: &Progress) -> Getting {
    let told = progress.clone();
    Getting {
        directory: None,
        store: Arc::clone(&remote.store),
        budget: args.tuning.budget(),
        plan,
        parallel: args.tuning.parallel(),
        location: remote.location(),
        checkpoints: args.tuning.checkpoints(),
        bandwidth: args.tuning.pace.bandwidth(),
        on_bytes: Arc::new(move |n| told.add(n)),
        named: None,
    }
}

async fn in_order(
    args: &Args,
    remote: &Remote,
    details: &Details,
    range: Range<u64>,
    plan: &Plan,
    sink: &Sink,
    progress: &Progress,
) -> transfer::Result<()> {
    let how = Streaming { part_bytes: plan.part_bytes, ahead: plan.requests, bandwidth: args.tuning.pace.bandwidth() };
    let budget = args.tuning.budget();
    let mut file = match sink {
        Sink::Stdout | Sink::File(_) => None,
        Sink::Special(path) => Some((File::options().write(true).open(path).map_err(transfer::Error::local("write", path))?, path)),
    };
    let take = |bytes: &[u8]| {
        progress.add(bytes.len() as u64);
        match &mut file {
            None => to_stdout(bytes),
            Some((file, path)) => file.write_all(bytes).map(|()| true).map_err(transfer::Error::local("write", path.as_path())),
        }
    };
    stream(&remote.store, &budget, details, range, how, take).await
}

/// What `-`, a directory, a device or a name mean.
fn sink(dest: &Path, key: &[u8]) -> Sink {
    if dest == Path::new("-") {
        return Sink::Stdout;
    }
    let inside = || Sink::File(dest.join(std::ffi::OsStr::from_bytes(last_name(key))));
    match fs::metadata(dest) {
        Ok(found) if found.is_dir() => inside(),
        Ok(found) if !found.is_file() => Sink::Special(dest.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && dest.as_os_str().as_bytes().ends_with(b"/") => inside(),
        _ => Sink::File(dest.to_owned()),
    }
}

/// What comes after the last slash but the one at the end.
fn last_name(key: &[u8]) -> &[u8] {
    let name = key.strip_suffix(b"/").unwrap_or(key);
    name.rsplit(|&b| b == b'/').next().unwrap_or_default()
}

/// Says what came of it, or without that what would have.
fn report(args: &Args, details: &Details, sink: &Sink, len: u64, moved: Option<Moved>) -> Result<(), Failure> {
    let path = match sink {
        Sink::Stdout => PathBuf::from("standard output"),
        Sink::Special(path) | Sink::File(path) => path.clone(),
    };
    let item = Item { key: details.meta.key.clone(), path, bytes: len, meta: Some(details.meta.clone()) };
    let text = text(args.picking.json, Way::Fetched, &item, moved.as_ref());
    // Standard output is the object's.
    if matches!(sink, Sink::Stdout) {
        eprintln!("windlass: {text}");
        return Ok(());
    }
    super::print(format!("{text}\n").as_bytes())
}

async fn fetch_many(args: &Args, remotes: &[Remote]) -> Result<(), Failure> {
    let roots = roots(args, remotes)?;
    let asked = args.tuning.asked(LEAST_PART)?;
    let plan = Plan::at_offsets(&asked, LARGEST_OBJECT).map_err(|error| Failure::usage(error.to_string()))?;
    let pick = args.picking.pick()?;
    args.tuning.say(&plan, "files of any size", Some(args.picking.transfers));
    let progress = Progress::growing("fetching", Unit::Bytes);
    let many = args.picking.many(asked, pick, &progress);
    let tree = Tree { getting: getting(args, &remotes[0], plan, &progress), many };
    let mut report = Report::new(&args.picking, Way::Fetched);
    let fetched = tree.get(&roots, |event: Event| report.add(event, &progress)).await;
    progress.clear();
    for index in fetched.map_err(|error| ended(remotes, error))? {
        if !remotes[index].is_directory().await? {
            return Err(remotes[index].missing());
        }
    }
    report.finish()
}

/// What goes where. No two SOURCEs become the same file.
fn roots(args: &Args, remotes: &[Remote]) -> Result<Vec<Root>, Failure> {
    let dest = &args.dest;
    let is_other = fs::metadata(dest).map_or_else(|_| !args.picking.recursive && !ends_in_slash(dest), |found| !found.is_dir());
    if dest == Path::new("-") || is_other {
        let why = if args.picking.recursive { "--recursive needs" } else { "several SOURCEs need" };
        return Err(Failure::usage(format!("{}: {why} a directory to write to", dest.display())));
    }
    let (is_tree, mut taken) = (args.picking.recursive, HashSet::new());
    let root = |remote: &Remote| {
        let name = last_name(remote.key.as_bytes()).to_vec();
        if !is_tree && remote.key.is_prefix() {
            return Err(Failure::usage(format!("{}: name an object in the bucket, or add --recursive", remote.shown)));
        }
        if remotes.len() > 1 && (matches!(&name[..], b"" | b"." | b"..") || !taken.insert(name.clone())) {
            return Err(Failure::usage(format!("{}: it has no name of its own in {}", remote.shown, dest.display())));
        }
        // What is below one name goes into the directory itself.
        let dest = if remotes.len() > 1 { dest.join(std::ffi::OsStr::from_bytes(&name)) } else { dest.clone() };
        let key: Key = remote.key.clone();
        Ok(Root { store: Arc::clone(&remote.store), location: remote.location(), key, dest, is_tree })
    };
    remotes.iter().map(root).collect()
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}
