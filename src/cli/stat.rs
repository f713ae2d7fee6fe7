//! `windlass stat`: everything the store tells of one object. It only prints.

use std::ffi::OsString;

use serde_json::json;

use super::Failure;
use super::remote::{Reach, Remote, each, line_of, open_all, runtime, to_json};
use crate::store::{Crc64, Details, ErrorKind, Polynomial};

/// Show what the store tells of an object: size, time, etag, checksum, headers, metadata.
///
/// For example: windlass stat --json s3://bucket/models/a.safetensors
#[derive(Debug, clap::Args)]
pub struct Args {
    /// s3://bucket/key or oss://bucket/key.
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<OsString>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Asks and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let remotes = open_all(&args.sources, &args.reach).await?;
        each(&remotes, async |remote| show(args, remote).await).await
    })
}

async fn show(args: &Args, remote: &Remote) -> Result<(), Failure> {
    if remote.key.as_bytes().is_empty() {
        return Err(Failure::usage(format!("{}: name an object in the bucket", remote.shown)));
    }
    match remote.store.details(&remote.key).await {
        Ok(details) => {
            let json = to_full_json(&details);
            super::print(if args.json { format!("{json}\n") } else { lines(&details) }.as_bytes())
        }
        Err(error) if error.kind == ErrorKind::NotFound => {
            Err(remote.missing_or_directory(&format!("see windlass ls {}", remote.shown)).await)
        }
        Err(error) => Err(remote.failed(error)),
    }
}

/// The checksum under the name that the store has for it.
fn checksum(crc: Crc64) -> (&'static str, String) {
    let name = match crc.polynomial {
        Polynomial::Ecma => "crc64ecma",
        Polynomial::Nvme => "crc64nvme",
    };
    (name, format!("{:016x}", crc.value))
}

fn to_full_json(details: &Details) -> serde_json::Value {
    let mut json = to_json(&details.meta);
    json["content_type"] = json!(details.headers.content_type);
    json["metadata"] = json!(details.headers.metadata);
    json["storage_class"] = json!(details.storage_class);
    json["version_id"] = json!(details.version_id);
    json["symlink"] = json!(details.symlink.as_deref().map(String::from_utf8_lossy));
    if let Some((name, value)) = details.crc64.map(checksum) {
        json[name] = json!(value);
    }
    json
}

fn lines(details: &Details) -> String {
    let meta = &details.meta;
    let mut facts = vec![
        ("key", line_of(meta.key.as_bytes())),
        ("size", format!("{} bytes", meta.size)),
        ("modified", httpdate::fmt_http_date(meta.modified)),
        ("etag", meta.etag.to_string()),
    ];
    facts.extend(details.crc64.map(checksum));
    let some = |name, value: &Option<String>| value.as_ref().map(|value| (name, line_of(value.as_bytes())));
    facts.extend(some("content type", &details.headers.content_type));
    facts.extend(some("storage class", &details.storage_class));
    facts.extend(some("version", &details.version_id));
    facts.extend(details.symlink.as_ref().map(|target| ("link to", line_of(target))));
    let mut text: String = facts.iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect();
    for (name, value) in &details.headers.metadata {
        text += &format!("{:<14} {}={}\n", "metadata", line_of(name.as_bytes()), line_of(value.as_bytes()));
    }
    text
}
