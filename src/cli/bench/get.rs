//! `windlass bench get`: whole objects, as many at a time as asked, for a time. It reads the words, finds out what to ask for and makes the
//! report.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::super::Failure;
use super::super::remote::{Reach, Remote, runtime};
use super::{BYTES, SECONDS, SOURCE, Shape, ceiling, with_ceiling};
use crate::bench::{Ceiling, Cell, Gets, Name, Report, TAIL, Targets, gets, milliseconds, seconds, tail};
use crate::metrics::Metrics;
use crate::store::{ObjectMeta, Urls};
use crate::transfer::{self, Listing};

/// GET whole objects again and again, many at a time, for some seconds: rates, times as percentiles, connections, failures.
///
/// Addresses are asked for as they stand, without a signature of ours and without retries, and redirects (307, 308) are followed each time. Objects
/// below a prefix are asked for as mounts do. For example: windlass bench get --prefix s3://bucket/images/ --concurrency 64 --duration 30
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file with an http or https address on each line, public or presigned.
    #[arg(long, value_name = "FILE", required_unless_present = "prefix")]
    urls: Option<PathBuf>,
    /// Every object whose key begins so: s3://bucket/prefix or oss://bucket/prefix.
    #[arg(long, value_name = "SOURCE", conflicts_with = "urls")]
    prefix: Option<OsString>,
    /// GETs at a time.
    #[arg(long, value_name = "C", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    concurrency: u16,
    /// How long.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    duration: u64,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    reach: Reach,
}

/// More names than that are of no use to a bench, and take memory.
const MOST_OBJECTS: usize = 1_000_000;

const TARGETS: Name = Name { shown: "different objects", key: "objects" };
const CONCURRENCY: Name = Name { shown: "GETs at a time", key: "concurrency" };
const GETS: Name = Name { shown: "GETs", key: "gets" };
const GIGABYTES: Name = Name { shown: "GB/s", key: "gigabytes_per_second" };
const OPERATIONS: Name = Name { shown: "op/s", key: "operations_per_second" };
const AVERAGE: Name = Name { shown: "avg ms", key: "average_milliseconds" };
const FAILED: Name = Name { shown: "failed", key: "failed" };
const CONNECTIONS: Name = Name { shown: "new connections", key: "new_connections" };

/// Asks.
pub fn run(args: &Args) -> Result<(), Failure> {
    runtime()?.block_on(async {
        match (&args.urls, &args.prefix) {
            (Some(file), _) => of_urls(args, file).await,
            (None, Some(prefix)) => {
                let remote = Remote::open(prefix, &args.reach).await?;
                let objects = objects(&remote).await?;
                let targets = Targets::Objects(Arc::clone(&remote.store), objects);
                let before = remote.metrics.connections_opened.get();
                let asked = ask(args, targets).await.map_err(|error| remote.ended(error))?;
                let connections = remote.metrics.connections_opened.get() - before;
                say(args, &remote.shown, &asked, connections, ceiling(remote.data_host()).await)
            }
            (None, None) => Err(Failure::usage("name a file of --urls or a --prefix")),
        }
    })
}

async fn of_urls(args: &Args, file: &Path) -> Result<(), Failure> {
    if args.reach.is_said() {
        return Err(Failure::usage("--urls are asked for as they stand: options of a bucket have no meaning with them"));
    }
    let text = fs::read_to_string(file).map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let metrics = Arc::new(Metrics::default());
    let urls = Urls::new(lines, Arc::clone(&metrics)).map_err(|error| Failure::usage(format!("{}: {}", file.display(), error.message)))?;
    if urls.is_empty() {
        return Err(Failure::usage(format!("{}: there is no address in it", file.display())));
    }
    let ceiling = ceiling(urls.host()).await;
    let asked = ask(args, Targets::Urls(Box::new(urls))).await.map_err(|error| Failure { code: 4, message: error.to_string() })?;
    say(args, &file.display().to_string(), &asked, metrics.connections_opened.get(), ceiling)
}

/// What there is to be asked for.
async fn objects(remote: &Remote) -> Result<Vec<ObjectMeta>, Failure> {
    let mut listing = Listing::new(Arc::clone(&remote.store), remote.key.clone(), false);
    let mut objects = Vec::new();
    while let Some(page) = listing.next().await.map_err(|error| remote.failed(error))? {
        // An empty one has no byte that could be asked for.
        objects.extend(page.objects.into_iter().filter(|object| object.size > 0));
        if objects.len() >= MOST_OBJECTS {
            eprintln!("windlass: only the first {} objects are asked for", objects.len());
            break;
        }
    }
    if objects.is_empty() {
        Err(Failure { code: 4, message: format!("{}: no object with content begins so", remote.shown) })
    } else {
        Ok(objects)
    }
}

struct Asked {
    targets: usize,
    gets: Gets,
}

async fn ask(args: &Args, targets: Targets) -> transfer::Result<Asked> {
    let targets = Arc::new(targets);
    let gets = gets(Arc::clone(&targets), args.concurrency.into(), Duration::from_secs(args.duration)).await?;
    Ok(Asked { targets: targets.len(), gets })
}

fn say(args: &Args, source: &str, asked: &Asked, connections: u64, ceiling: Option<Ceiling>) -> Result<(), Failure> {
    let Asked { targets, gets: Gets { speed, times, failed, first_failure } } = asked;
    if let Some(failure) = first_failure {
        eprintln!("windlass: {failed} of {} GETs failed, the first one so: {failure}", failed + times.count());
    }
    let report = Report::new("get").fact(SOURCE, source).fact(TARGETS, *targets).fact(CONCURRENCY, u64::from(args.concurrency));
    let report = report.fact(SECONDS, seconds(speed.took)).fact(GETS, times.count()).fact(BYTES, speed.bytes);
    let report = report.fact(GIGABYTES, Cell::number(speed.mean() / 1e9, 3)).fact(OPERATIONS, Cell::number(asked.gets.operations(), 1));
    let report = report.fact(AVERAGE, milliseconds(times.mean()));
    let report = TAIL.into_iter().zip(tail(times)).fold(report, |report, (name, cell)| report.fact(name, cell));
    let report = report.fact(FAILED, *failed).fact(CONNECTIONS, connections);
    args.shape.print(&with_ceiling(report, ceiling, speed.mean()))
}
