//! What a store can be asked to change, in the words of its protocol: whole objects, the parts of a multipart upload, copies
//! inside the store. Nothing here sends anything. Invariant: a change is either wholly in the store or not at all; which of
//! both, after an error that leaves it open, is found out by the decorator that retries.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::SystemTime;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Crc64, ETag, Key, ObjectMeta, ObjectSum};

/// The least that S3 and OSS take for a part that is not the last (OSS: 100 KiB, S3: 5 MiB).
pub const LEAST_PART: u64 = 5 << 20;

/// Most parts of an upload, and the largest part and object that both stores take.
pub const MOST_PARTS: u32 = 10_000;
pub const LARGEST_PART: u64 = 5 << 30;
pub const LARGEST_OBJECT: u64 = 5 << 40;

/// The largest object that one server-side copy takes; larger ones are copied part by part.
pub const LARGEST_COPY: u64 = 5 << 30;

/// Objects of exactly this size may be symbolic links: a listing cannot say it, [`ObjectStore::details`] can.
///
/// [`ObjectStore::details`]: super::ObjectStore::details
pub const SYMLINK_SIZE: u64 = 83;

/// The content type of directory markers, so that other clients see a directory.
pub const DIRECTORY_TYPE: &str = "application/x-directory";

/// What is stored beside the content of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// None: the store's default.
    pub content_type: Option<String>,
    /// User metadata, names in lower case and without the store's prefix (`x-amz-meta-`, `x-oss-meta-`).
    pub metadata: BTreeMap<String, String>,
    /// What else the object has, as it was found, and what a change of it says again. What HTTP says of the content is for other clients:
    /// `cache-control`, `content-disposition`, `content-encoding`, `content-language`, `expires`. The rest is the store's, without the prefix of its
    /// vendor: `storage-class`, `server-side-encryption` and its key, `object-lock-*`, `website-redirect-location`; of
    /// [`ObjectStore::details_to_keep`] also `tagging` (URL-encoded pairs) and the access list, as one word (`acl`) or by rights (`grant-*`). Nothing
    /// here goes by it. What is not in here a new object gets from the options.
    ///
    /// [`ObjectStore::details_to_keep`]: super::ObjectStore::details_to_keep
    pub carried: BTreeMap<String, String>,
}

/// What must be true of the object that is there, for a write to replace it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    Any,
    /// There is none (`If-None-Match: *`, `x-oss-forbid-overwrite`).
    Absent,
    /// It is still this version, where the store can compare (`If-Match`; OSS cannot: a HEAD before the write is all there is).
    Is(ETag),
}

/// A whole object to write.
#[derive(Clone, Debug)]
pub struct PutRequest {
    pub key: Key,
    pub body: Bytes,
    pub headers: Headers,
    pub condition: Condition,
}

/// A multipart upload to begin.
#[derive(Clone, Debug)]
pub struct UploadRequest {
    pub key: Key,
    pub headers: Headers,
    /// Some of its parts will be copied inside the store. MinIO copies no part into an upload that was begun with a checksum, and versitygw tells
    /// the sum of the whole source for that of a part.
    pub has_copies: bool,
}

impl UploadRequest {
    /// All parts of which are sent.
    pub fn new(key: &Key, headers: &Headers) -> Self {
        Self { key: key.clone(), headers: headers.clone(), has_copies: false }
    }
}

/// The sum that each part of an upload comes with, and is completed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartChecksum {
    /// In the polynomial of the store.
    Crc64,
    /// S3 only.
    Crc32c,
}

/// An unfinished multipart upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    pub key: Key,
    /// The store's name of it.
    pub id: String,
    /// The store said that it keeps these sums of its parts.
    pub checksum: Option<PartChecksum>,
    /// The access list of the object before, where the store takes that at the end (OSS); None: that of the options.
    pub acl: Option<String>,
}

/// A part that the store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 1.
    pub number: u32,
    pub etag: ETag,
    pub size: u64,
    /// CRC64 of its content, in the polynomial of the store; none of a part that was copied.
    pub crc64: Option<u64>,
    /// What it came with in an upload with [`PartChecksum::Crc32c`].
    pub crc32c: Option<u32>,
}

/// A copy inside the store.
#[derive(Clone, Debug)]
pub struct CopyRequest {
    pub source: Key,
    /// The version of the source.
    pub etag: ETag,
    pub target: Key,
    /// All that the copy is to have, as [`ObjectStore::details_to_keep`] tells it of the source, and changed; tags stay in any case. None: those
    /// of the source.
    ///
    /// [`ObjectStore::details_to_keep`]: super::ObjectStore::details_to_keep
    pub headers: Option<Headers>,
    pub condition: Condition,
}

/// A move inside the store.
#[derive(Clone, Debug)]
pub struct RenameRequest {
    /// This version.
    pub source: ObjectMeta,
    pub target: Key,
    /// What has to be at the target.
    pub condition: Condition,
    /// Chosen by the caller for this request alone: the store carries out a request with it once, however often it is sent. At most 64 printable
    /// characters of ASCII.
    pub token: String,
}

/// What is known of an object that was just written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub etag: ETag,
}

/// Everything that a store tells of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    pub meta: ObjectMeta,
    pub headers: Headers,
    pub storage_class: Option<String>,
    pub version_id: Option<String>,
    /// Of its content, when the store keeps it.
    pub crc64: Option<Crc64>,
    /// What proves its content when it is read whole: the same, or what else the store has. `None` where it has nothing, or where reads are not verified.
    pub sum: Option<ObjectSum>,
    /// Where it leads, when it is a symbolic link.
    pub symlink: Option<Vec<u8>>,
}

/// An unfinished upload as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    pub key: Key,
    pub id: String,
    /// When it began; servers exist that do not say so.
    pub initiated: Option<SystemTime>,
}

/// One page of unfinished uploads.
#[derive(Clone, Debug, Default)]
pub struct UploadsPage {
    pub uploads: Vec<Unfinished>,
    /// How to ask for the next page: the last key and upload id; none on the last.
    pub next: Option<(Key, String)>,
}

/// One page of the parts that the store has of an upload.
#[derive(Clone, Debug, Default)]
pub struct PartsPage {
    /// In the order of their numbers. Their checksums are not told.
    pub parts: Vec<Part>,
    /// How to ask for the next page: the number of the last part; none on the last.
    pub next: Option<u32>,
}

/// A part that is a range of an object in the same bucket.
#[derive(Clone, Debug)]
pub struct PartCopy {
    pub source: Key,
    pub etag: ETag,
    pub range: Range<u64>,
}
