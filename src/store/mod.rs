//! The store layer: ranges, heads and listings of one bucket. Everything above speaks to [`ObjectStore`] and does
//! not know which dialect answers. Invariant: bytes given to a [`RangeSink`] are the bytes of the one version
//! that was asked for, in order, from the start of the range, each exactly once.

mod answer;
mod arn;
mod body;
mod buckets;
mod ca_bundle;
mod checksum;
mod clients;
mod clock;
mod connecting;
mod content_types;
mod copying;
mod credentials;
mod endpoint;
mod error;
mod hedge;
mod http_store;
mod key;
mod leave;
mod listing;
pub mod memory;
mod object_sum;
mod open;
mod options;
mod orphans;
mod oss;
mod page;
mod plain;
mod provider;
mod range;
mod reach;
mod read_endpoint;
mod redirect;
mod request_log;
mod requests;
mod resolve;
mod retry;
mod s3;
mod signing;
mod sorted_listing;
mod switches;
mod symlink;
mod whole;
#[cfg(test)]
mod wire;
mod write;

use std::fmt;
use std::ops::Range;
use std::time::SystemTime;

use async_trait::async_trait;
use futures::{FutureExt, StreamExt, stream};
use tokio::time::Instant;

pub use arn::{Arn, arn_len};
pub use body::Body;
pub use buckets::Buckets;
pub use ca_bundle::CaBundle;
pub use checksum::{Crc64, Polynomial, Summing};
pub use clock::StoreTime;
pub use content_types::ContentTypes;
pub use copying::copy_object;
pub use credentials::KeyField;
pub use error::{Error, ErrorKind, Op, Result};
pub use hedge::Hedging;
pub use key::{ETag, Key};
pub use leave::Exit;
pub use object_sum::{Checking, Mismatch, ObjectSum, get_checked};
pub use open::{Location, open, probe, probe_buckets};
pub use options::{CredentialOptions, Dialect, KeyFiles, Options, Signature, Sse, StaticKeys, UploadChecksum, WebIdentity};
pub use provider::{AUTO, PROVIDERS, Provider, Quirks, Support};
pub use range::Urls;
pub use reach::{Identity, Silence, Spoken, Way, identity};
pub use retry::{Policy, Retrying};
pub use switches::Switches;
pub use whole::begins_with;
pub use write::{
    Condition, CopyRequest, DIRECTORY_TYPE, Details, Headers, LARGEST_COPY, LARGEST_OBJECT, LARGEST_PART, LEAST_PART, MOST_PARTS, Part,
    PartChecksum, PartCopy, PartsPage, PutRequest, RenameRequest, SYMLINK_SIZE, Unfinished, Upload, UploadRequest, UploadsPage, Written,
};

/// What a store tells about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Its name.
    pub key: Key,
    /// Its length in bytes.
    pub size: u64,
    /// Which version of the content this is.
    pub etag: ETag,
    /// When the store took it.
    pub modified: SystemTime,
}

/// One page of a listing to ask for.
#[derive(Clone, Debug)]
pub struct ListRequest {
    /// Only keys that start with this.
    pub prefix: Key,
    /// Roll keys up to the next `/` after the prefix into [`ListPage::prefixes`].
    pub delimited: bool,
    /// Only keys behind this, which need not exist. Some stores do not know how to begin anywhere but at the first key, and do that.
    pub after: Option<Key>,
    /// Where the page before stopped.
    pub token: Option<String>,
    /// At most this many entries (stores cap it at 1000).
    pub max_keys: u16,
    /// The caller takes pages in the order in which the store has them. Matters only where [`ObjectStore::lists_in_order`] is false: there pages in byte
    /// order need all names first.
    pub any_order: bool,
}

/// One page of a listing. Both lists are in byte order.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// Objects.
    pub objects: Vec<ObjectMeta>,
    /// Common prefixes, each ending in `/`.
    pub prefixes: Vec<Key>,
    /// How to ask for the next page; none on the last.
    pub next: Option<String>,
    /// Which sums the store keeps of the objects, in their order; of those beyond its end the listing does not say.
    pub sums: Vec<Option<Polynomial>>,
    /// When the store was asked for the first of these names, where that was before this page was: see [`ObjectStore::lists_in_order`].
    pub asked: Option<Instant>,
}

impl ListPage {
    /// Since when other changes may be missing from a page that was requested at `requested`.
    pub fn asked_at(&self, requested: Instant) -> Instant {
        self.asked.map_or(requested, |asked| asked.min(requested))
    }
}

/// Who is told the token of the next page before the page is complete.
pub type Tell<'a> = dyn Fn(&str) + Send + Sync + 'a;

/// A range of one version of an object to fetch.
#[derive(Clone, Debug)]
pub struct RangeRequest {
    /// Which object.
    pub key: Key,
    /// Which bytes: not empty, inside the object.
    pub range: Range<u64>,
    /// Which version. The request carries it as If-Match and the answer's ETag must be the same.
    pub etag: ETag,
}

/// Where the bytes of a range go. The store writes into [`spare`](Self::spare) and says how much it wrote; each
/// call hands over the following bytes of the range.
pub trait RangeSink: Send {
    /// Room for the bytes that come next: never empty before the range is complete, never longer than what is
    /// missing of the range.
    fn spare(&mut self) -> &mut [u8];

    /// The first `n` bytes of [`spare`](Self::spare) now hold data.
    fn advance(&mut self, n: usize);

    /// Whether the range is all of an object whose content will be compared with the sum that the store tells of it.
    fn wants_sum(&self) -> bool {
        false
    }

    /// Takes that sum, before the first byte, from answers that tell one.
    fn on_sum(&mut self, sum: &ObjectSum) {
        let _ = sum;
    }
}

/// Hands `bytes`, the next of a range, to the sink.
fn pour(mut bytes: &[u8], sink: &mut dyn RangeSink) {
    while !bytes.is_empty() {
        let spare = sink.spare();
        let n = spare.len().min(bytes.len());
        assert!(n > 0, "a sink has room until its range is complete");
        spare[..n].copy_from_slice(&bytes[..n]);
        sink.advance(n);
        bytes = &bytes[n..];
    }
}

/// The page that the body of a ListObjectsV2 answer is. The dialects do this themselves; this is the door for benches/listing.rs.
///
/// # Errors
/// Why it is none.
#[doc(hidden)]
pub fn parse_page(body: &[u8], dialect: Dialect) -> std::result::Result<ListPage, impl std::error::Error + use<>> {
    let tokens = match dialect {
        Dialect::S3 => listing::Tokens::Plain,
        Dialect::Oss => listing::Tokens::Encoded,
    };
    listing::parse(body, tokens)
}

/// One bucket of one store, or many of them (see [`Buckets`]).
///
/// Dropping a future cancels its request: the connection of an unfinished body is closed.
#[async_trait]
pub trait ObjectStore: fmt::Debug + Send + Sync + 'static {
    /// Size, version and date of one object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is none.
    async fn head(&self, key: &Key) -> Result<ObjectMeta>;

    /// One page of keys in byte order. A prefix that nothing matches is an empty page, not an error.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchBucket`], [`ErrorKind::AccessDenied`] and what else the endpoint can answer.
    async fn list(&self, request: &ListRequest) -> Result<ListPage>;

    /// Whether the store itself lists in byte order, so that [`ListRequest::after`] and the first page of many cost one request. Directory buckets do
    /// not: the first pages of their listings are empty until all names have been read, and a prefix without a slash at its end is listed as the
    /// directory that it is in. `prefix` says which bucket of many.
    fn lists_in_order(&self, prefix: &Key) -> bool {
        let _ = prefix;
        true
    }

    /// [`list`](Self::list), and tells the token of the next page as soon as that has arrived, which may be long before the page
    /// has. What is told is a hint: the page itself decides, and a page that is tried again tells again.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        let page = self.list(request).await?;
        page.next.iter().for_each(|token| tell(token));
        Ok(page)
    }

    /// Fetches a range into `sink`, whole or with an error; on an error the sink may have received a correct
    /// beginning of the range.
    ///
    /// # Errors
    /// [`ErrorKind::Replaced`] when the object is no longer the version in the request, [`ErrorKind::NotFound`]
    /// when it is gone.
    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()>;

    /// Everything the store tells of one object, by HEAD.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    async fn details(&self, key: &Key) -> Result<Details> {
        Err(not_writable(Op::Head, key))
    }

    /// The same with what only further requests tell, asked for at the same time: tags and access list. For a change of the object, which has to say
    /// all of it again. What the store refuses to tell is left out.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    async fn details_to_keep(&self, key: &Key) -> Result<Details> {
        self.details(key).await
    }

    /// Writes a whole object.
    ///
    /// # Errors
    /// [`ErrorKind::Replaced`] when the condition does not hold, [`ErrorKind::Corrupt`] when the store's checksum differs from ours.
    async fn put(&self, request: &PutRequest) -> Result<Written> {
        Err(not_writable(Op::Put, &request.key))
    }

    /// Begins a multipart upload.
    ///
    /// # Errors
    /// What the endpoint answers.
    async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        Err(not_writable(Op::CreateUpload, &request.key))
    }

    /// Sends a part; one of the same number that is there already is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the upload is not there any more, [`ErrorKind::ChecksumRefused`] when it has to be begun anew.
    async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        let _ = (number, body);
        Err(not_writable(Op::UploadPart, &upload.key))
    }

    /// Makes a part out of a range of an object that is in the bucket.
    ///
    /// # Errors
    /// [`ErrorKind::Replaced`] when the source is no longer the version asked for.
    async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        let _ = (number, source);
        Err(not_writable(Op::CopyPart, &upload.key))
    }

    /// Makes the object out of its parts, which are in the order of their numbers.
    ///
    /// # Errors
    /// As [`put`](Self::put), [`ErrorKind::NotFound`] when the upload is not there any more, and [`ErrorKind::ChecksumRefused`] when it has to be
    /// begun anew.
    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        let _ = (parts, condition);
        Err(not_writable(Op::CompleteUpload, &upload.key))
    }

    /// Drops an upload and its parts. One that is not there any more is no error.
    ///
    /// # Errors
    /// What the endpoint answers.
    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        Err(not_writable(Op::AbortUpload, &upload.key))
    }

    /// Uploads that were begun and neither completed nor aborted, in the order of their keys where the store [lists in order](Self::lists_in_order).
    ///
    /// # Errors
    /// What the endpoint answers.
    async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        let _ = after;
        Err(not_writable(Op::ListUploads, prefix))
    }

    /// Parts that the store has of an upload: those with numbers above `after`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the upload is not there any more.
    async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        let _ = after;
        Err(not_writable(Op::ListParts, &upload.key))
    }

    /// Copies an object of at most [`LARGEST_COPY`] bytes.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the source is gone, [`ErrorKind::Replaced`] when it is another version or the condition
    /// does not hold.
    async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        Err(not_writable(Op::Copy, &request.source))
    }

    /// Moves an object to another key in one step, where the store has a request for that and takes these keys. `None`: it has none, and nothing was
    /// done; a copy and a delete have to do. Returns the ETag of the target, which is that of the source where nothing else is known.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the source is gone, [`ErrorKind::Replaced`] when it is another version or the condition does not hold.
    async fn rename(&self, request: &RenameRequest) -> Result<Option<Written>> {
        let _ = request;
        Ok(None)
    }

    /// Deletes an object. One that is not there is no error.
    ///
    /// # Errors
    /// What the endpoint answers.
    async fn delete(&self, key: &Key) -> Result<()> {
        Err(not_writable(Op::Delete, key))
    }

    /// Deletes the object if it still is the version `etag`, where the endpoint compares (S3 with `If-Match`; some servers ignore it); where it is known
    /// not to, a HEAD before it does. What is not there is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Replaced`] when it is another version; else what the endpoint answers.
    async fn delete_version(&self, key: &Key, etag: &ETag) -> Result<()> {
        let _ = etag;
        Err(not_writable(Op::Delete, key))
    }

    /// Deletes at most [`MOST_DELETED`] objects, in one request where the endpoint takes that. Those that are not there are no error. Returns an
    /// error for each that may still be there.
    ///
    /// # Errors
    /// What the endpoint answers when it does nothing of it, and one request for each would do no more.
    async fn delete_many(&self, keys: &[Key]) -> Result<Vec<Error>> {
        Ok(one_by_one(self, keys).await)
    }

    /// Waits for what still has to be cleaned up after writes whose answers were lost.
    async fn settle(&self) {}

    /// The time of the store's own clock at `at`, which the dates of its objects and uploads are compared with. `None` until a response has told it.
    fn time_at(&self, at: Instant) -> Option<StoreTime> {
        let _ = at;
        None
    }

    /// Bytes of metadata, names and values together, that an object may have.
    fn most_metadata(&self) -> usize {
        symlink::MOST_METADATA
    }

    /// Requests that the endpoint takes at a time, as far as it is known: fewer for a while after it was overloaded.
    fn most_requests(&self) -> usize {
        usize::MAX
    }

    /// Writes a symbolic link to `target`, which is kept as it is.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`ErrorKind::Invalid`] when the target is longer than the store can keep.
    async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        let _ = (target, headers, condition);
        Err(not_writable(Op::Put, key))
    }
}

/// What a store says that can only be read.
fn not_writable(op: Op, key: &Key) -> Error {
    Error::new(ErrorKind::Invalid, op, key, "this store can only be read")
}

/// Keys of one request to delete objects (DeleteObjects, DeleteMultipleObjects).
pub const MOST_DELETED: usize = 1000;

/// Requests that delete, at a time: an endpoint answers one in tens of milliseconds, and a bucket takes thousands a second.
const DELETES_AT_ONCE: usize = 32;

/// Requests that delete many, at a time: each is as much work for the endpoint as all of its keys.
const MANY_AT_ONCE: usize = 4;

/// Deletes objects, however many. Returns an error for each that may still be there.
pub async fn delete_all(store: &dyn ObjectStore, keys: &[Key]) -> Vec<Error> {
    let pages = keys.chunks(MOST_DELETED).map(|keys| {
        async move {
            match keys {
                [key] => store.delete(key).await.err().into_iter().collect(),
                keys => match store.delete_many(keys).await {
                    Ok(left) => left,
                    Err(error) => keys.iter().map(|key| Error { key: key.clone(), ..error.clone() }).collect(),
                },
            }
        }
        .boxed()
    });
    let left: Vec<Vec<Error>> = stream::iter(pages.collect::<Vec<_>>()).buffered(MANY_AT_ONCE).collect().await;
    left.into_iter().flatten().collect()
}

/// The same with a request for each.
async fn one_by_one<S: ObjectStore + ?Sized>(store: &S, keys: &[Key]) -> Vec<Error> {
    let deletes = keys.iter().map(|key| async move { store.delete(key).await.err() }.boxed()).collect::<Vec<_>>();
    let left: Vec<Option<Error>> = stream::iter(deletes).buffered(DELETES_AT_ONCE).collect().await;
    left.into_iter().flatten().collect()
}
