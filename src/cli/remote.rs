//! A place in a bucket for commands that mount nothing: what they take to reach it, the store behind it, and what its errors are to a
//! person. Invariant: the key is what was typed, byte for byte, so that every object can be named.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::Failure;
use super::flags::StoreFlags;
use crate::config::{self, Input, Place, bucket_len};
use crate::metrics::Metrics;
use crate::mount;
use crate::store::{self, ContentTypes, Error, ErrorKind, Key, Location, ObjectMeta, ObjectStore, arn_len};
use crate::transfer;

/// How a bucket is reached.
#[derive(Debug, clap::Args)]
pub struct Reach {
    /// TOML file with options under their names.
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    #[command(flatten)]
    flags: StoreFlags,
}

impl Reach {
    /// Whether anything was said.
    pub fn is_said(&self) -> bool {
        self.config.is_some() || !self.flags.0.is_empty()
    }
}

/// A place in a bucket.
#[derive(Debug)]
pub struct Remote {
    pub store: Arc<dyn ObjectStore>,
    /// What was named: an object, a directory with or without its slash, or nothing for the whole bucket.
    pub key: Key,
    /// As it was typed.
    pub shown: String,
    /// What is counted of the requests to it.
    pub metrics: Arc<Metrics>,
    /// What type new objects say that they have.
    pub content_types: ContentTypes,
    /// Parts of an upload must have one size.
    pub equal_parts: bool,
    location: Location,
}

/// The places that several SOURCEs name; those in one bucket share its connections.
pub async fn open_all(sources: &[OsString], reach: &Reach) -> Result<Vec<Remote>, Failure> {
    open_each(sources, reach, Place::gather).await
}

/// The same, where a SOURCE may also be an account: `s3://`.
pub async fn open_all_or_accounts(sources: &[OsString], reach: &Reach) -> Result<Vec<Remote>, Failure> {
    open_each(sources, reach, Place::gather_any).await
}

async fn open_each(
    sources: &[OsString],
    reach: &Reach,
    gather: fn(&Input) -> Result<Place, config::Error>,
) -> Result<Vec<Remote>, Failure> {
    let mut remotes: Vec<Remote> = Vec::with_capacity(sources.len());
    for source in sources {
        let (bucket, key) = split(source.as_bytes());
        let same = remotes.iter().zip(sources).find(|(_, other)| split(other.as_bytes()).0 == bucket);
        let remote = match same {
            Some((Remote { store, metrics, content_types, equal_parts, location, .. }, _)) => Remote {
                store: Arc::clone(store),
                metrics: Arc::clone(metrics),
                key: Key::from(key),
                shown: source.to_string_lossy().into_owned(),
                content_types: content_types.clone(),
                equal_parts: *equal_parts,
                location: location.clone(),
            },
            None => Remote::open_with(source, reach, gather).await?,
        };
        remotes.push(remote);
    }
    Ok(remotes)
}

/// Does the same to each. What fails is said, and the others are done; the exit code is that of the first.
pub async fn each(remotes: &[Remote], mut act: impl AsyncFnMut(&Remote) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut first = None;
    for remote in remotes {
        if let Err(failure) = act(remote).await {
            match remotes.len() {
                1 => return Err(failure),
                _ => eprintln!("windlass: {}", failure.message),
            }
            first.get_or_insert(Failure { message: String::new(), ..failure });
        }
    }
    first.map_or(Ok(()), Err)
}

/// What ended a transfer from or to one of them, for a person.
pub fn ended(remotes: &[Remote], error: transfer::Error) -> Failure {
    let is_about = |remote: &&Remote| matches!(&error, transfer::Error::Store(error) if error.key == remote.key);
    let remote = remotes.iter().find(is_about).unwrap_or(&remotes[0]);
    match error {
        // Something below it.
        transfer::Error::Store(error) if error.kind == ErrorKind::NotFound && error.key != remote.key => {
            Failure { code: 4, message: format!("\"{}\": there is no such object any more", line_of(error.key.as_bytes())) }
        }
        error => remote.ended(error),
    }
}

/// What everything that talks to a store runs on.
pub fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread().enable_all().build().map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))
}

impl Remote {
    /// The place that SOURCE names. The store is not asked yet.
    pub async fn open(source: &OsStr, reach: &Reach) -> Result<Self, Failure> {
        Self::open_with(source, reach, Place::gather).await
    }

    async fn open_with(source: &OsStr, reach: &Reach, gather: fn(&Input) -> Result<Place, config::Error>) -> Result<Self, Failure> {
        let shown = source.to_string_lossy().into_owned();
        let (bucket, key) = split(source.as_bytes());
        let place = gather(&reach.flags.input(reach.config.as_deref(), vec![OsStr::from_bytes(bucket).to_owned()]))?;
        if place.source.is_account() && !key.is_empty() {
            return Err(Failure::usage(format!(
                "source \"{shown}\": the bucket is missing: write s3://BUCKET/KEY, or s3:// for the buckets of the account"
            )));
        }
        let location = Location::describe(&place.store);
        let failed = |error| refused("ask", &location, &error);
        let metrics = Arc::new(Metrics::default());
        let store = store::open(&place.store, Arc::clone(&metrics)).await.map_err(failed)?;
        let (content_types, equal_parts) = (place.store.content_types.clone(), place.store.quirks.equal_parts);
        Ok(Self { store, key: Key::from(key), shown, metrics, content_types, equal_parts, location })
    }

    /// Which bucket, and where.
    pub fn location(&self) -> String {
        self.location.to_string()
    }

    /// The host that data comes from, when that is known.
    pub fn data_host(&self) -> Option<&str> {
        self.location.data_host()
    }

    /// What the store said, for a person.
    pub fn failed(&self, error: Error) -> Failure {
        match error.kind {
            ErrorKind::NotFound => self.missing(),
            ErrorKind::Replaced => Failure::internal(format!("\"{}\" was replaced meanwhile: run it again", error.key)),
            _ => refused("ask", &self.location, &error),
        }
    }

    /// What ended a transfer, for a person.
    pub fn ended(&self, error: transfer::Error) -> Failure {
        match error {
            transfer::Error::Store(error) => self.failed(error),
            other => Failure::internal(format!("{other}{}", local_advice(&other))),
        }
    }

    /// There is nothing of that name.
    pub fn missing(&self) -> Failure {
        let parent = self.shown.trim_end_matches('/').rsplit_once(['/', ':']).map_or(0, |(parent, _)| parent.len() + 1);
        Failure { code: 4, message: format!("{}: there is no such object: see windlass ls {}", self.shown, &self.shown[..parent]) }
    }

    /// [`missing`](Self::missing), or that it is a directory and what is to be done with one.
    pub async fn missing_or_directory(&self, advice: &str) -> Failure {
        match self.is_directory().await {
            Ok(true) => Failure { code: 4, message: format!("{}: there is no such object, but a directory: {advice}", self.shown) },
            Ok(false) => self.missing(),
            Err(failure) => failure,
        }
    }

    /// The object of that name, if there is one.
    pub async fn object(&self) -> Result<Option<ObjectMeta>, Failure> {
        if self.key.as_bytes().is_empty() {
            return Ok(None);
        }
        match self.store.head(&self.key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Whether something lies below that name.
    pub async fn is_directory(&self) -> Result<bool, Failure> {
        let prefix = transfer::directory_of(&self.key);
        let request = store::ListRequest { prefix, delimited: true, after: None, token: None, max_keys: 1, any_order: true };
        let page = self.store.list(&request).await.map_err(|error| self.failed(error))?;
        Ok(!page.objects.is_empty() || !page.prefixes.is_empty())
    }
}

/// What to try when this machine could not read or write a file, as the end of the line.
fn local_advice(error: &transfer::Error) -> String {
    let transfer::Error::Local { path, source, .. } = error else { return String::new() };
    match (source.kind(), path.parent()) {
        (io::ErrorKind::NotFound, Some(parent)) if !parent.exists() => format!("; make its directory: mkdir -p {}", parent.display()),
        (io::ErrorKind::StorageFull, _) => "; free space on that disk, or name another place".to_owned(),
        (io::ErrorKind::PermissionDenied, _) => "; check the permissions of its directory, or name another place".to_owned(),
        _ => String::new(),
    }
}

/// The bucket with its scheme, and the key.
fn split(source: &[u8]) -> (&[u8], &[u8]) {
    let scheme = source.windows(3).position(|three| three == b"://").map(|at| at + 3);
    let end = match (scheme, arn_len(source)) {
        (Some(from), _) => from + bucket_len(&source[from..]),
        (None, Some(end)) => end,
        // Without a scheme it is `bucket:/prefix`.
        (None, None) => source.iter().position(|&b| b == b':').unwrap_or(source.len()),
    };
    let rest = source.get(end + 1..).unwrap_or_default();
    let key = if source.get(end) == Some(&b':') { rest.strip_prefix(b"/").unwrap_or(rest) } else { rest };
    (&source[..end], key)
}

/// What a store said to a command that wanted to `what` the bucket.
pub fn refused(what: &str, location: &Location, error: &Error) -> Failure {
    Failure { code: mount::exit_code(error), message: mount::refusal(what, location, error) }
}

/// A name on a line of its own: what would end the line or move the cursor is escaped.
pub fn line_of(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Facts about an object as JSON.
pub fn to_json(meta: &ObjectMeta) -> serde_json::Value {
    json!({
        "key": String::from_utf8_lossy(meta.key.as_bytes()),
        "size_bytes": meta.size,
        "modified_unix_seconds": unix_seconds(meta.modified),
        "etag": meta.etag.as_str(),
    })
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_bucket_and_every_byte_of_a_key() {
        for (source, bucket, key) in [
            ("s3://b", "s3://b", ""),
            ("s3://b/", "s3://b", ""),
            ("s3://b/a/b", "s3://b", "a/b"),
            ("oss://b/a/", "oss://b", "a/"),
            ("s3://b//a", "s3://b", "/a"),
            ("b:/a/b", "b", "a/b"),
            ("b", "b", ""),
            ("arn:aws:s3:r:1:accesspoint/n/a/b", "arn:aws:s3:r:1:accesspoint/n", "a/b"),
            ("arn:aws:s3:r:1:accesspoint/n:/a/b", "arn:aws:s3:r:1:accesspoint/n", "a/b"),
            ("s3://arn:aws:s3:r:1:accesspoint/n//a:b", "s3://arn:aws:s3:r:1:accesspoint/n", "/a:b"),
        ] {
            assert_eq!(split(source.as_bytes()), (bucket.as_bytes(), key.as_bytes()), "{source}");
        }
    }

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(line_of("ä b\n\u{1b}[31m".as_bytes()), "ä b\\n\\u{1b}[31m");
    }
}
