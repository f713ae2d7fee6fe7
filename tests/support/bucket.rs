//! One bucket in memory, as s3s serves it: stored or computed objects, conditional range GETs, and listings that cost
//! a page and not the bucket. How it is written is in `write`.

mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use s3s::dto::*;
use s3s::stream::{ByteStream, DynByteStream, RemainingLength};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use windlass::store::memory::{Synthetic, listing};
use windlass::store::{Key, ListRequest};

use super::directory_bucket::{DIRECTORY_BUCKET, shuffled};
use super::keyring::Keyring;
use super::s3_server::BUCKET;

/// How long the keys of a session are valid: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateSession.html>
const SESSION_LIFETIME: Duration = Duration::from_secs(300);

/// Bytes of a body handed to hyper at once.
const PIECE: u64 = 256 << 10;

/// Clones are the same bucket.
#[derive(Clone, Debug, Default)]
pub struct Bucket(Arc<Mutex<Objects>>);

#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<Key, Object>,
    uploads: BTreeMap<(Key, String), write::Uploading>,
    version: u64,
    habits: Habits,
    /// Where the keys of sessions become valid.
    sessions: Option<Keyring>,
    /// Renames that were carried out, by the token of their request.
    renamed: BTreeMap<String, (String, String)>,
}

/// How the endpoint differs from AWS.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// It knows no checksums and says so.
    pub no_checksums: bool,
    /// It refuses bodies of objects and parts that come with neither a checksum nor Content-MD5, as S3 does in buckets with object lock.
    pub requires_checksums: bool,
    /// It ignores checksums, Content-MD5 included, and says nothing.
    pub silent_checksums: bool,
    /// Its tags look like MD5s and are something else.
    pub odd_tags: bool,
    /// An upload that was begun with a checksum is completed only with those of its parts, as MinIO and versitygw do, and takes no copied part, as
    /// MinIO does.
    pub wants_part_sums: bool,
    /// It begins uploads with a checksum, and refuses it later.
    pub refuses_sums: Option<Refusing>,
    /// It marks the tags in headers as weak, as proxies do, and meets no condition on a tag. Listings show them as they are.
    pub weak_tags: bool,
    /// What may not be deleted with others.
    pub kept: Option<&'static str>,
    /// What it has no time to delete with others.
    pub busy: Option<&'static str>,
    /// It deletes one object at a time.
    pub no_deletes_of_many: bool,
    /// It knows no conditional writes and says so.
    pub no_conditions: bool,
    /// It ignores conditions of writes and deletes, and says nothing.
    pub silent_conditions: bool,
    /// All parts of an upload but the last must have one size, as in R2.
    pub equal_parts: bool,
    /// Checksums that it tells are wrong.
    pub wrong_checksums: bool,
    /// The next completion fails, and says so after it began with success.
    pub late_error: bool,
    /// It is a directory bucket of S3 Express One Zone: see `directory_bucket`.
    pub is_directory_bucket: bool,
}

/// When checksums of an upload are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusing {
    Parts,
    /// That of the whole, at the end; those of parts are welcome.
    Whole,
    Completion,
}

#[derive(Clone, Debug)]
struct Object {
    version: u64,
    modified: SystemTime,
    content: Content,
    about: About,
}

/// What is stored beside the content.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The tag, when it is not the version.
    pub etag: Option<String>,
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub cache_control: Option<String>,
    pub content_disposition: Option<String>,
    pub content_language: Option<String>,
    pub expires: Option<Expires>,
    pub metadata: BTreeMap<String, String>,
    pub storage_class: Option<String>,
    pub encryption: Option<String>,
    pub acl: Option<String>,
    pub crc64: Option<u64>,
}

#[derive(Clone, Debug)]
pub enum Content {
    Stored(Bytes),
    Synthetic(u64, Synthetic),
}

impl Bucket {
    pub fn put(&self, key: &str, content: impl Into<Bytes>) -> String {
        self.lock().put(key, About::default(), |_| Content::Stored(content.into()))
    }

    /// As [`put`](Self::put), with this tag, which may be one that the object had before.
    pub fn put_tagged(&self, key: &str, content: impl Into<Bytes>, etag: &str) -> String {
        self.lock().put(key, About { etag: Some(etag.to_owned()), ..About::default() }, |_| Content::Stored(content.into()))
    }

    pub fn put_synthetic(&self, key: &str, size: u64) -> String {
        self.lock().put(key, About::default(), |version| Content::Synthetic(size, Synthetic::of(&key.into(), version)))
    }

    /// Changes one byte of a stored object and nothing that is known of it.
    pub fn spoil(&self, key: &str, at: usize) {
        if let Some(Object { content: Content::Stored(bytes), .. }) = self.lock().by_key.get_mut(&Key::from(key)) {
            let mut spoiled = bytes.to_vec();
            spoiled[at] ^= 1;
            *bytes = spoiled.into();
        }
    }

    pub fn delete(&self, key: &str) -> bool {
        self.lock().by_key.remove(&Key::from(key)).is_some()
    }

    pub fn synthetic(&self, key: &str) -> Option<Synthetic> {
        match self.lock().by_key.get(&Key::from(key))?.content {
            Content::Synthetic(_, content) => Some(content),
            Content::Stored(_) => None,
        }
    }

    /// Content, and what is stored beside it.
    pub fn stored(&self, key: &str) -> Option<(Bytes, About)> {
        let object = self.lock().by_key.get(&Key::from(key))?.clone();
        Some((object.bytes(0..object.size()), object.about))
    }

    /// How many uploads were neither completed nor aborted.
    pub fn uploads(&self) -> usize {
        self.lock().uploads.len()
    }

    pub fn behave(&self, habits: Habits) {
        self.lock().habits = habits;
    }

    /// From now on it is a directory bucket, whose sessions `keyring` lets in.
    pub fn become_directory_bucket(&self, keyring: Keyring) {
        let mut objects = self.lock();
        // Its tags are random, and no MD5 of anything.
        objects.habits = Habits { is_directory_bucket: true, odd_tags: true, ..Habits::default() };
        objects.sessions = Some(keyring);
    }

    /// RenameObject. `conditions`: the tag that the target has, that there is none, and the tag that the source has.
    pub fn rename(&self, source: &str, target: &str, token: &str, conditions: [Option<ETagCondition>; 3]) -> S3Result<()> {
        let mut objects = self.lock();
        let names = (source.to_owned(), target.to_owned());
        match objects.renamed.get(token) {
            Some(done) if *done == names => return Ok(()),
            Some(_) => return Err(s3_error!(InvalidRequest, "The token was used for another request.")),
            None => {}
        }
        let [target_is, target_is_free, source_is] = conditions;
        objects.meets(source, source_is.as_ref(), None)?;
        objects.meets(target, target_is.as_ref(), target_is_free.as_ref())?;
        let object = objects.by_key.remove(&Key::from(source)).ok_or_else(|| s3_error!(NoSuchKey))?;
        objects.by_key.insert(target.into(), object);
        objects.renamed.insert(token.to_owned(), names);
        Ok(())
    }

    /// A page of a directory bucket: for prefixes that are directories, from the first name on, in no order, with the directories of unfinished uploads.
    fn list_in_no_order(&self, input: &ListObjectsV2Input, prefix: &Key) -> S3Result<S3Response<ListObjectsV2Output>> {
        if input.start_after.is_some() {
            return Err(s3_error!(NotImplemented, "StartAfter is not supported for directory buckets."));
        }
        if !prefix.as_bytes().is_empty() && !prefix.is_prefix() {
            return Err(s3_error!(InvalidArgument, "The prefix of a directory bucket ends in a slash."));
        }
        let objects = self.lock();
        let below = |key: &Key| key.as_bytes().starts_with(prefix.as_bytes());
        // The name of this level, and whether it is that of a directory.
        let level = |key: &Key| match key.as_bytes()[prefix.as_bytes().len()..].iter().position(|&byte| byte == b'/') {
            Some(slash) if input.delimiter.is_some() => Key::from(&key.as_bytes()[..=prefix.as_bytes().len() + slash]),
            _ => key.clone(),
        };
        let mut names: BTreeSet<Key> = objects.by_key.keys().filter(|key| below(key)).map(level).collect();
        names.extend(
            objects
                .uploads
                .keys()
                .map(|(key, _)| key)
                .filter(|key| below(key))
                .map(level)
                .filter(|name| name.is_prefix() && name != prefix),
        );
        let names = shuffled(names);
        let token = |text: &String| text.strip_prefix("from ").and_then(|from| from.parse::<usize>().ok());
        let start = match &input.continuation_token {
            Some(text) => token(text).ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))?,
            None => 0,
        };
        let end = names.len().min(start + usize::try_from(input.max_keys.unwrap_or(1000)).unwrap_or(0).clamp(1, 1000));
        let page = names.get(start..end).unwrap_or_default();
        let encode = |key: &Key| {
            let text = String::from_utf8_lossy(key.as_bytes()).into_owned();
            if input.encoding_type.is_some() { encode_key(&text) } else { text }
        };
        let is_directory = |name: &&Key| input.delimiter.is_some() && name.is_prefix() && **name != *prefix;
        let (directories, files): (Vec<&Key>, Vec<&Key>) = page.iter().partition(is_directory);
        let listed = |name: &Key| objects.by_key.get(name).map(|object| object.listed(encode(name)));
        let output = ListObjectsV2Output {
            name: Some(input.bucket.clone()),
            prefix: Some(encode(prefix)),
            delimiter: input.delimiter.clone(),
            encoding_type: input.encoding_type.clone(),
            is_truncated: Some(end < names.len()),
            contents: Some(files.into_iter().filter_map(listed).collect()),
            common_prefixes: Some(directories.into_iter().map(|name| CommonPrefix { prefix: Some(encode(name)) }).collect()),
            next_continuation_token: (end < names.len()).then(|| format!("from {end}")),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    fn habits(&self) -> Habits {
        self.lock().habits
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().expect("no panic while it is held")
    }

    fn get(&self, bucket: &str, key: &str) -> S3Result<Object> {
        check(bucket)?;
        self.lock().by_key.get(&Key::from(key)).cloned().ok_or_else(|| s3_error!(NoSuchKey))
    }
}

impl Objects {
    fn put(&mut self, key: &str, about: About, content: impl FnOnce(u64) -> Content) -> String {
        self.version += 1;
        let object = Object { version: self.version, modified: SystemTime::now(), content: content(self.version), about };
        let etag = object.etag();
        self.by_key.insert(key.into(), object);
        format!("\"{etag}\"")
    }
}

impl Object {
    /// Without one of its own it is the version, which does not look like the MD5 of anything.
    fn etag(&self) -> String {
        self.about.etag.clone().unwrap_or_else(|| format!("v{:031x}", self.version))
    }

    fn bytes(&self, range: std::ops::Range<u64>) -> Bytes {
        match &self.content {
            Content::Stored(bytes) => bytes.slice(range.start as usize..range.end as usize),
            Content::Synthetic(_, content) => content.pieces(range).flatten().collect::<Vec<u8>>().into(),
        }
    }

    fn size(&self) -> u64 {
        match &self.content {
            Content::Stored(bytes) => bytes.len() as u64,
            Content::Synthetic(size, _) => *size,
        }
    }

    fn listed(&self, key: String) -> s3s::dto::Object {
        s3s::dto::Object {
            key: Some(key),
            size: Some(self.size() as i64),
            e_tag: Some(ETag::Strong(self.etag())),
            last_modified: Some(self.modified.into()),
            checksum_algorithm: self.about.crc64.map(|_| vec![ChecksumAlgorithm::from_static(ChecksumAlgorithm::CRC64NVME)]),
            ..Default::default()
        }
    }
}

#[async_trait::async_trait]
impl S3 for Bucket {
    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        let object = self.get(&input.bucket, &input.key)?;
        let etag = self.habits().header(object.etag());
        if let Some(ETagCondition::ETag(wanted)) = &input.if_match
            && !etag.strong_cmp(wanted)
        {
            return Err(s3_error!(PreconditionFailed));
        }
        let size = object.size();
        let range = match input.range {
            None => 0..size,
            Some(range) => range.check(size)?,
        };
        // As S3 does: only to those who ask for it, and for no range.
        let told = object.about.crc64.filter(|_| input.checksum_mode.is_some() && input.range.is_none());
        let content_range = input.range.map(|_| format!("bytes {}-{}/{size}", range.start, range.end - 1));
        let output = GetObjectOutput {
            content_length: Some((range.end - range.start) as i64),
            body: Some(StreamingBlob::from(Box::pin(Body { content: object.content, at: range.start, end: range.end }) as DynByteStream)),
            content_range,
            e_tag: Some(etag),
            checksum_crc64nvme: told.map(write::in_base64),
            last_modified: Some(object.modified.into()),
            accept_ranges: Some("bytes".into()),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let object = self.get(&req.input.bucket, &req.input.key)?;
        let checked = req.input.checksum_mode.is_some();
        let output = HeadObjectOutput {
            content_length: Some(object.size() as i64),
            e_tag: Some(self.habits().header(object.etag())),
            last_modified: Some(object.modified.into()),
            checksum_crc64nvme: object.about.crc64.filter(|_| checked).map(write::in_base64),
            content_type: object.about.content_type.clone(),
            content_encoding: object.about.content_encoding.clone(),
            cache_control: object.about.cache_control.clone(),
            content_disposition: object.about.content_disposition.clone(),
            content_language: object.about.content_language.clone(),
            expires: object.about.expires.clone(),
            metadata: Some(object.about.metadata.clone().into_iter().collect()),
            storage_class: object.about.storage_class.clone().map(StorageClass::from),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn create_session(&self, req: S3Request<CreateSessionInput>) -> S3Result<S3Response<CreateSessionOutput>> {
        check(&req.input.bucket)?;
        let mut objects = self.lock();
        objects.version += 1;
        let number = objects.version;
        let [id, secret, token] = ["key", "secret", "token"].map(|name| format!("session-{name}-{number}"));
        let sessions = objects.sessions.as_ref().ok_or_else(|| s3_error!(NotImplemented))?;
        sessions.admit(&id, &secret, Some(&token));
        let expiration = (SystemTime::now() + SESSION_LIFETIME).into();
        let credentials = SessionCredentials { access_key_id: id, expiration, secret_access_key: secret, session_token: token };
        Ok(S3Response::new(CreateSessionOutput {
            credentials,
            bucket_key_enabled: None,
            ssekms_encryption_context: None,
            ssekms_key_id: None,
            server_side_encryption: None,
        }))
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        check(&req.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        check(&input.bucket)?;
        if input.delimiter.as_deref().is_some_and(|d| d != "/") {
            return Err(s3_error!(NotImplemented, "the only delimiter is /"));
        }
        let encode = |key: &Key| {
            let text = String::from_utf8_lossy(key.as_bytes()).into_owned();
            if input.encoding_type.is_some() { encode_key(&text) } else { text }
        };
        let prefix = Key::from(input.prefix.as_deref().unwrap_or_default());
        if self.habits().is_directory_bucket {
            return self.list_in_no_order(&input, &prefix);
        }
        let request = ListRequest {
            prefix: prefix.clone(),
            delimited: input.delimiter.is_some(),
            after: input.start_after.as_deref().map(Key::from),
            token: input.continuation_token.clone(),
            max_keys: u16::try_from(input.max_keys.unwrap_or(1000)).unwrap_or(0),
            any_order: false,
        };
        let objects = self.lock();
        let page = listing::page(&objects.by_key, &request)
            .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))?;
        let output = ListObjectsV2Output {
            name: Some(input.bucket.clone()),
            prefix: Some(encode(&prefix)),
            delimiter: input.delimiter.clone(),
            encoding_type: input.encoding_type.clone(),
            max_keys: input.max_keys,
            key_count: i32::try_from(page.objects.len() + page.prefixes.len()).ok(),
            is_truncated: Some(page.next.is_some()),
            continuation_token: input.continuation_token.clone(),
            contents: Some(page.objects.iter().map(|(key, object)| object.listed(encode(key))).collect()),
            common_prefixes: Some(page.prefixes.iter().map(|prefix| CommonPrefix { prefix: Some(encode(prefix)) }).collect()),
            next_continuation_token: page.next,
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        check(&req.input.bucket)?;
        self.put_object(req.input).await
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        check(&req.input.bucket)?;
        let mut objects = self.lock();
        objects.meets(&req.input.key, req.input.if_match.as_ref(), None)?;
        objects.by_key.remove(&Key::from(req.input.key.as_str()));
        drop(objects);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> S3Result<S3Response<DeleteObjectsOutput>> {
        check(&req.input.bucket)?;
        if self.habits().no_deletes_of_many {
            return Err(s3_error!(NotImplemented));
        }
        let habits = self.habits();
        let mut errors = Vec::new();
        for object in &req.input.delete.objects {
            let code = match Some(object.key.as_str()) {
                key if key == habits.kept => "AccessDenied",
                key if key == habits.busy => "SlowDown",
                _ => {
                    self.delete(&object.key);
                    continue;
                }
            };
            errors.push(Error { code: Some(code.into()), key: Some(object.key.clone()), ..Error::default() });
        }
        Ok(S3Response::new(DeleteObjectsOutput { errors: Some(errors), ..Default::default() }))
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        check(&req.input.bucket)?;
        self.copy_object(req.input)
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        check(&req.input.bucket)?;
        self.create_multipart_upload(req.input)
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        check(&req.input.bucket)?;
        self.upload_part(req.input).await
    }

    async fn upload_part_copy(&self, req: S3Request<UploadPartCopyInput>) -> S3Result<S3Response<UploadPartCopyOutput>> {
        check(&req.input.bucket)?;
        self.upload_part_copy(req.input)
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        check(&req.input.bucket)?;
        self.complete_multipart_upload(req.input)
    }

    async fn abort_multipart_upload(&self, req: S3Request<AbortMultipartUploadInput>) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        check(&req.input.bucket)?;
        self.abort_multipart_upload(req.input)
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        check(&req.input.bucket)?;
        self.list_parts(req.input)
    }

    async fn list_multipart_uploads(&self, req: S3Request<ListMultipartUploadsInput>) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        check(&req.input.bucket)?;
        self.list_multipart_uploads(req.input)
    }
}

fn check(bucket: &str) -> S3Result<()> {
    if bucket == BUCKET || bucket == DIRECTORY_BUCKET { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
}

/// What S3 does to keys in XML when asked for `encoding-type=url`: everything but these is escaped.
fn encode_key(text: &str) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'*');
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// A range of an object on its way, cut without copies.
struct Body {
    content: Content,
    at: u64,
    end: u64,
}

impl Stream for Body {
    type Item = Result<Bytes, s3s::StdError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.at == self.end {
            return Poll::Ready(None);
        }
        let end = self.end.min(self.at + PIECE);
        let piece = match &self.content {
            Content::Stored(bytes) => bytes.slice(self.at as usize..end as usize),
            Content::Synthetic(_, content) => content.pieces(self.at..end).next().expect("the range is not empty"),
        };
        self.at += piece.len() as u64;
        Poll::Ready(Some(Ok(piece)))
    }
}

impl ByteStream for Body {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact((self.end - self.at) as usize)
    }
}
