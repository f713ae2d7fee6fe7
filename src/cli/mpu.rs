//! `windlass mpu`: multipart uploads that nobody finished, which a store keeps and charges for. Lists them, and aborts those that are old
//! enough. Invariant: nothing is aborted that is younger than was said, or outside the prefix.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Subcommand;

use super::Failure;
use super::flags::StoreFlags;
use super::remote::{line_of, refused};
use crate::config::Place;
use crate::metrics::Metrics;
use crate::store::{self, Location, ObjectStore, Retrying, Unfinished, Upload};

/// Show or abort multipart uploads that were never finished.
///
/// A writer that was killed leaves the parts it sent in the bucket, invisible and charged for.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them: when each began, its upload id and its key.
    List(Which),
    /// Abort them. Uploads that are still being written to fail with that, so say how old they must be.
    Abort(Which),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// s3://bucket[/prefix] or oss://bucket[/prefix].
    #[arg(value_name = "SOURCE")]
    source: Option<OsString>,
    /// Only uploads that began longer ago than this: 90s, 30m, 24h, 7d. Abort takes 24h when nothing is said.
    #[arg(long, value_name = "AGE")]
    older_than: Option<String>,
    /// TOML file with options under their names.
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    #[command(flatten)]
    flags: StoreFlags,
}

/// What abort leaves alone when nothing is said: uploads of a day may be under way.
const A_DAY: Duration = Duration::from_secs(24 * 3600);

/// Lists or aborts.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (which, abort) = match &args.action {
        Action::List(which) => (which, false),
        Action::Abort(which) => (which, true),
    };
    let age = which.older_than.as_deref().map(|text| super::time("--older-than", text)).transpose()?.unwrap_or(if abort {
        A_DAY
    } else {
        Duration::ZERO
    });
    let place = Place::gather(&which.flags.input(which.config.as_deref(), which.source.iter().cloned().collect()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let failed = |error: store::Error| refused("ask", &Location::describe(&place.store), &error);
        let store = store::open(&place.store, Arc::new(Metrics::default())).await.map_err(failed)?;
        let (found, without_date) = find(&store, &place, age).await.map_err(failed)?;
        if without_date > 0 {
            eprintln!("windlass: {} without a date left out: name them with --older-than 0s", count(without_date));
        }
        if !abort {
            found.iter().try_for_each(|upload| super::print(line(upload).as_bytes()))?;
            eprintln!("windlass: {} unfinished of {}", count(found.len()), place.source);
            return Ok(());
        }
        let mut errors = HashMap::new();
        for upload in &found {
            let target = Upload { key: upload.key.clone(), id: upload.id.clone(), checksum: None, acl: None };
            if let Err(error) = store.abort_upload(&target).await {
                errors.insert(upload.id.as_str(), error);
            }
        }
        // A store may answer that there is no such upload, because it has the key otherwise than it lists it.
        let there: HashSet<String> = match found.is_empty() {
            true => HashSet::new(),
            false => find(&store, &place, age).await.map_err(failed)?.0.into_iter().map(|upload| upload.id).collect(),
        };
        let (left, aborted): (Vec<_>, Vec<_>) = found.iter().partition(|upload| there.contains(&upload.id));
        aborted.iter().try_for_each(|upload| super::print(line(upload).as_bytes()))?;
        eprintln!("windlass: {} aborted of {}", count(aborted.len()), place.source);
        for upload in &left {
            let why =
                errors.get(upload.id.as_str()).map_or_else(|| "the store lists it still".to_owned(), |error| error.reason().to_string());
            eprintln!("windlass: not aborted: {}: {why}", line(upload).trim_end());
        }
        match left.len() {
            0 => Ok(()),
            left => Err(Failure { code: 4, message: format!("{} cannot be aborted", count(left)) }),
        }
    })
}

/// The uploads that are old enough, and how many more there are of which the store does not tell the age.
async fn find(store: &Retrying, place: &Place, age: Duration) -> store::Result<(Vec<Unfinished>, usize)> {
    let prefix = store::Key::from(place.source.prefix.as_str());
    let newest = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    let (mut found, mut without_date) = (Vec::new(), 0);
    let mut after = None;
    loop {
        let page = store.list_uploads(&prefix, after.as_ref()).await?;
        for upload in page.uploads {
            match upload.initiated {
                None if !age.is_zero() => without_date += 1,
                Some(initiated) if initiated > newest => {}
                Some(_) | None => found.push(upload),
            }
        }
        if page.next.is_none() || page.next == after {
            return Ok((found, without_date));
        }
        after = page.next;
    }
}

fn line(upload: &Unfinished) -> String {
    let began = upload.initiated.map_or_else(|| "at an unknown time".to_owned(), httpdate::fmt_http_date);
    format!("{began}  {}  {}\n", line_of(upload.id.as_bytes()), line_of(upload.key.as_bytes()))
}

fn count(n: usize) -> String {
    if n == 1 { "1 upload".into() } else { format!("{n} uploads") }
}
