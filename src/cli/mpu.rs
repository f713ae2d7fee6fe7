//! `windlass mpu`: multipart uploads that nobody finished, which a store keeps and charges for. Lists them, and aborts those that are old
//! enough. Invariant: nothing is aborted that is younger than was said, or outside the prefix.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Subcommand;

use super::Failure;
use super::flags::StoreFlags;
use super::remote::refused;
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
        let found = find(&store, &place, age).await.map_err(failed)?;
        for upload in &found {
            if abort {
                let upload = Upload { key: upload.key.clone(), id: upload.id.clone(), checksum: None, acl: None };
                store.abort_upload(&upload).await.map_err(failed)?;
            }
            super::print(line(upload).as_bytes())?;
        }
        let what = if abort { "aborted" } else { "unfinished" };
        eprintln!("windlass: {} {what} of {}", count(found.len()), place.source);
        Ok(())
    })
}

async fn find(store: &Retrying, place: &Place, age: Duration) -> store::Result<Vec<Unfinished>> {
    let prefix = store::Key::from(place.source.prefix.as_str());
    let newest = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = store.list_uploads(&prefix, after.as_ref()).await?;
        found.extend(page.uploads.into_iter().filter(|upload| upload.initiated <= newest));
        if page.next.is_none() || page.next == after {
            return Ok(found);
        }
        after = page.next;
    }
}

fn line(upload: &Unfinished) -> String {
    format!("{}  {}  {}\n", httpdate::fmt_http_date(upload.initiated), upload.id, upload.key)
}

fn count(n: usize) -> String {
    if n == 1 { "1 upload".into() } else { format!("{n} uploads") }
}
