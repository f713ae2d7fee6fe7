//! `windlass rm`: deletes an object, or all below a name. Invariant: without --recursive one object at most goes, and each that goes is
//! named.

use std::ffi::OsString;

use super::Failure;
use super::remote::{Reach, Remote, each, line_of, open_all, runtime};
use crate::store::Key;
use crate::transfer::{At, remove};

/// Delete objects, or with --recursive everything below names.
///
/// For example: windlass rm --recursive --dry-run s3://bucket/old
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket/path or oss://bucket/path.
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    /// The object of that name and everything below it.
    #[arg(short, long)]
    recursive: bool,
    /// Only say what would be deleted.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Deletes and says what.
pub fn run(args: &Args) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let remotes = open_all(&args.sources, &args.reach).await?;
        each(&remotes, async |remote| delete(args, remote).await).await
    })
}

async fn delete(args: &Args, remote: &Remote) -> Result<(), Failure> {
    let object = remote.object().await?.is_some();
    let at = match (args.recursive, object) {
        (false, true) => At::Object,
        // The marker of a directory is below it.
        (true, object) => At::Tree { object: object && !remote.key.is_prefix() },
        (false, false) if remote.key.as_bytes().is_empty() => {
            return Err(Failure::usage(format!(
                "{}: name an object in the bucket, or add --recursive to delete all of them",
                remote.shown
            )));
        }
        (false, false) if remote.is_directory().await? => {
            return Err(Failure::usage(format!("{} is a directory: add --recursive", remote.shown)));
        }
        (false, false) => return Err(remote.missing()),
    };
    let word = if args.dry_run { "would delete" } else { "deleted" };
    let mut said = Ok(());
    let tell = |key: &Key| {
        let line = format!("{word} {}\n", line_of(key.as_bytes()));
        said = std::mem::replace(&mut said, Ok(())).and_then(|()| super::print(line.as_bytes()));
    };
    match remove(&remote.store, &remote.key, at, args.dry_run, tell).await {
        Ok(0) => Err(remote.missing()),
        Ok(_) => said,
        Err(error) => Err(remote.failed(error)),
    }
}
