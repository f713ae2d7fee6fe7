//! `windlass ls`: what a bucket holds, without a mount. It only prints. Invariant: the memory of one page, however long the list is.

use std::ffi::OsString;
use std::fmt::Write;
use std::sync::Arc;

use serde_json::json;

use super::Failure;
use super::remote::{Reach, Remote, each, line_of, open_all_or_accounts, runtime, to_json};
use crate::store::{Key, ListPage, ObjectMeta};
use crate::transfer::{Listing, directory_of};

/// List objects of a bucket: size, time, name; directories end in a slash.
///
/// For example: windlass ls --recursive s3://bucket/models
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket[/path] or oss://bucket[/path]; s3:// lists the buckets of the account.
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    /// Everything below, not one level.
    #[arg(short, long)]
    recursive: bool,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Lists.
pub fn run(args: &Args) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let remotes = open_all_or_accounts(&args.sources, &args.reach).await?;
        each(&remotes, async |remote| list(args, remote).await).await
    })
}

async fn list(args: &Args, remote: &Remote) -> Result<(), Failure> {
    let mut is_there = remote.key.as_bytes().is_empty();
    // `dir/` cannot be meant as an object; `name` may be one, a directory, or both.
    if !remote.key.is_prefix()
        && let Some(meta) = remote.object().await?
    {
        let name = remote.key.as_bytes().rsplit(|&b| b == b'/').next().unwrap_or_default();
        let text = if args.json { format!("{}\n", to_json(&meta)) } else { line(&meta, name) };
        super::print(text.as_bytes())?;
        is_there = true;
    }
    let prefix = directory_of(&remote.key);
    let mut listing = Listing::new(Arc::clone(&remote.store), prefix.clone(), !args.recursive);
    while let Some(page) = listing.next().await.map_err(|error| remote.failed(error))? {
        is_there |= !page.objects.is_empty() || !page.prefixes.is_empty();
        super::print(shown(&page, &prefix, args.json).as_bytes())?;
    }
    if is_there { Ok(()) } else { Err(remote.missing()) }
}

fn shown(page: &ListPage, prefix: &Key, json: bool) -> String {
    let mut text = String::new();
    for directory in &page.prefixes {
        let name = below(directory, prefix);
        let _ = match json {
            true => writeln!(text, "{}", json!({"prefix": String::from_utf8_lossy(directory.as_bytes())})),
            false => writeln!(text, "{:>15}  {:29}  {}", "-", "", line_of(name)),
        };
    }
    for object in &page.objects {
        let name = below(&object.key, prefix);
        match json {
            true => text += &format!("{}\n", to_json(object)),
            // The marker of the directory itself.
            false if name.is_empty() => text += &line(object, b"./"),
            false => text += &line(object, name),
        }
    }
    text
}

fn below<'a>(key: &'a Key, prefix: &Key) -> &'a [u8] {
    key.as_bytes().strip_prefix(prefix.as_bytes()).unwrap_or(key.as_bytes())
}

fn line(meta: &ObjectMeta, name: &[u8]) -> String {
    format!("{:>15}  {}  {}\n", meta.size, httpdate::fmt_http_date(meta.modified), line_of(name))
}
