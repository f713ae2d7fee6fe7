//! A store in memory for simulations: deterministic, on tokio's clock, with a plan of latencies, bandwidths and
//! faults, and a log of what was asked. It opens no socket and makes one attempt a request, like a dialect
//! does. Invariant: the same requests in the same order under a paused clock give the same answers at the same instants.

mod bucket;
mod hold;
mod link;
pub mod listing;
mod log;
mod plan;
mod read;
mod synthetic;
mod write;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use self::bucket::{Bucket, Content};
use self::hold::Point;
use self::log::{Guard, Log};
use self::plan::Script;
use super::{
    Body, Condition, CopyRequest, Details, ETag, Error, ErrorKind, Headers, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Op, Part,
    PartCopy, PartsPage, PutRequest, RangeRequest, RangeSink, Result, StoreTime, Unfinished, Upload, UploadRequest, UploadsPage, Written,
    symlink,
};

pub use self::hold::Held;
pub use self::link::{Bandwidth, PIECE};
pub use self::log::{Outcome, Request};
pub use self::plan::{Fault, Latency, Plan, Rule};
pub use self::synthetic::Synthetic;

/// A bucket in memory. Clones are the same bucket.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    bucket: Arc<Mutex<Bucket>>,
    log: Arc<Mutex<Log>>,
}

/// An object that was taken out.
#[derive(Clone, Debug)]
pub struct Taken {
    key: Key,
    object: bucket::Object,
}

impl Memory {
    /// An empty bucket behind a network that behaves as planned.
    pub fn new(plan: Plan) -> Self {
        Self { bucket: Arc::new(Mutex::new(Bucket::new(plan))), log: Arc::default() }
    }

    /// Creates or replaces an object.
    pub fn put(&self, key: impl Into<Key>, content: impl Into<Bytes>) -> ETag {
        self.bucket.lock().put(key.into(), Headers::default(), |_, _| Content::Stored(content.into()))
    }

    /// Creates or replaces an object whose content is computed: [`Memory::synthetic`] tells which it is.
    pub fn put_synthetic(&self, key: impl Into<Key>, size: u64) -> ETag {
        self.bucket.lock().put(key.into(), Headers::default(), |key, version| Content::Synthetic(size, Synthetic::of(key, version)))
    }

    /// Removes an object; whether there was one.
    pub fn delete(&self, key: impl Into<Key>) -> bool {
        self.bucket.lock().objects.remove(&key.into()).is_some()
    }

    /// Takes an object out, which can be [put back](Self::put_back) as the same version.
    pub fn take(&self, key: impl Into<Key>) -> Option<Taken> {
        let key = key.into();
        self.bucket.lock().objects.remove(&key).map(|object| Taken { key, object })
    }

    /// Creates or replaces an object by one that was there before, with the same ETag: what an upload of the same bytes makes where ETags are sums.
    pub fn put_back(&self, Taken { key, object }: Taken) {
        self.bucket.lock().objects.insert(key, object);
    }

    /// The content of an object, to compare with what was read; none when it is not a synthetic one.
    pub fn synthetic(&self, key: impl Into<Key>) -> Option<Synthetic> {
        match self.bucket.lock().objects.get(&key.into())?.content {
            Content::Synthetic(_, content) => Some(content),
            Content::Stored(_) => None,
        }
    }

    /// What HEAD would answer, at once and without being logged.
    pub fn meta(&self, key: impl Into<Key>) -> Option<ObjectMeta> {
        let key = key.into();
        self.bucket.lock().objects.get(&key).map(|object| object.meta(&key))
    }

    /// The content of an object, at once and without being logged; what is computed is written out.
    pub fn content(&self, key: impl Into<Key>) -> Option<Bytes> {
        let content = self.bucket.lock().objects.get(&key.into())?.content.clone();
        Some(content.bytes(0..content.size()))
    }

    /// What is stored beside the content of an object.
    pub fn headers(&self, key: impl Into<Key>) -> Option<Headers> {
        self.bucket.lock().objects.get(&key.into()).map(|object| object.headers())
    }

    /// Gives an object other headers; its version stays.
    pub fn set_headers(&self, key: impl Into<Key>, headers: Headers) {
        self.bucket.lock().change(&key.into(), |there| *there = headers);
    }

    /// Says of an object where it is kept; its version stays.
    pub fn set_storage_class(&self, key: impl Into<Key>, storage_class: &str) {
        self.bucket.lock().change(&key.into(), |there| drop(there.carried.insert("storage-class".into(), storage_class.into())));
    }

    /// Every key, in order.
    pub fn keys(&self) -> Vec<Key> {
        self.bucket.lock().objects.keys().cloned().collect()
    }

    /// Uploads that were neither completed nor aborted.
    pub fn uploads(&self) -> Vec<Unfinished> {
        let bucket = self.bucket.lock();
        let unfinished = |((key, id), upload): (&(Key, String), &bucket::Uploading)| Unfinished {
            key: key.clone(),
            id: id.clone(),
            initiated: Some(upload.initiated),
        };
        bucket.uploads.iter().map(unfinished).collect()
    }

    /// Makes all unfinished uploads older.
    pub fn age_uploads(&self, by: Duration) {
        self.bucket.lock().uploads.values_mut().for_each(|upload| upload.initiated -= by);
    }

    /// Refuses to complete uploads with smaller parts before the last, as real stores do below 5 MiB. At first any size is taken.
    pub fn set_least_part(&self, bytes: u64) {
        self.bucket.lock().least_part = bytes;
    }

    /// Whether the store keeps checksums and tells them; at first it does.
    pub fn set_checksums(&self, kept: bool) {
        self.bucket.lock().checksums = kept;
    }

    /// Gives objects that are written from now on the date of the store's clock, as real stores do. At first each version is dated a second after
    /// the one before, in the past.
    pub fn keep_dates(&self) {
        self.bucket.lock().has_dates = true;
    }

    /// Changes the network from the next request on; seeded latencies start over.
    pub fn set_plan(&self, plan: Plan) {
        let bucket = &mut *self.bucket.lock();
        let mut script = Script::new(plan);
        std::mem::swap(&mut bucket.script, &mut script);
        bucket.script.take_rules(script);
    }

    /// Adds a fault.
    pub fn fault(&self, rule: Rule) {
        self.bucket.lock().script.push(rule);
    }

    /// Takes all faults away.
    pub fn clear_faults(&self) {
        self.bucket.lock().script.clear_rules();
    }

    /// Every request since the start or the last [`reset_log`](Self::reset_log), in the order they were sent.
    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().requests().to_vec()
    }

    /// How many requests of one operation the log holds.
    pub fn count(&self, op: Op) -> usize {
        self.log.lock().requests().iter().filter(|request| request.op == op).count()
    }

    /// Bytes of bodies handed over, as the log tells.
    pub fn delivered_bytes(&self) -> u64 {
        self.log.lock().requests().iter().map(|request| request.delivered).sum()
    }

    /// Bytes of bodies sent, as the log tells.
    pub fn sent_bytes(&self) -> u64 {
        self.log.lock().requests().iter().map(|request| request.sent).sum()
    }

    /// Requests that are open now.
    pub fn in_flight(&self) -> usize {
        self.log.lock().in_flight()
    }

    /// Most requests that were open at once since the log was reset.
    pub fn max_in_flight(&self) -> usize {
        self.log.lock().max_in_flight()
    }

    /// Forgets the log.
    pub fn reset_log(&self) {
        self.log.lock().reset();
    }
}

#[async_trait]
impl ObjectStore for Memory {
    fn time_at(&self, at: Instant) -> Option<StoreTime> {
        let time = self.bucket.lock().time_at(at);
        Some(StoreTime { earliest: time, latest: time })
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let guard = Guard::open(&self.log, Op::Head, key, None, None);
        let answer = self.first_byte(Op::Head, key).await.and_then(|_| self.meta(key.clone()).ok_or_else(|| not_found(Op::Head, key)));
        self.pass(Point::Answer, Op::Head, key).await;
        guard.close(answer)
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        let guard = Guard::open(&self.log, Op::List, &request.prefix, None, None);
        let answer = self.answer_list(request).await;
        self.pass(Point::Answer, Op::List, &request.prefix).await;
        guard.close(answer)
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let guard = Guard::open(&self.log, Op::Get, &request.key, Some(request.range.clone()), Some(request.etag.clone()));
        let answer = self.answer_range(request, &guard, sink).await;
        guard.close(answer)
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        let mut details = self.answer_details(key).await?;
        // As over HTTP: these are told by requests of their own.
        details.headers.carried.retain(|name, _| name != "tagging" && name != "acl" && !name.starts_with("grant-"));
        Ok(details)
    }

    async fn details_to_keep(&self, key: &Key) -> Result<Details> {
        self.answer_details(key).await
    }

    async fn put(&self, request: &PutRequest) -> Result<Written> {
        self.answer_put(request).await
    }

    async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        self.answer_create(request).await
    }

    async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        self.answer_part(upload, number, body).await
    }

    async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        self.answer_copy_part(upload, number, source).await
    }

    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        self.answer_complete(upload, parts, condition).await
    }

    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        self.answer_abort(upload).await
    }

    async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        self.answer_uploads(prefix, after).await
    }

    async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        self.answer_parts(upload, after).await
    }

    async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        self.answer_copy(request).await
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.answer_delete(key, &Condition::Any).await
    }

    async fn delete_version(&self, key: &Key, etag: &ETag) -> Result<()> {
        self.answer_delete(key, &Condition::Is(etag.clone())).await
    }

    async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        self.answer_put(&symlink::put(key, target, headers, condition)?).await
    }
}

fn precondition_failed(op: Op, key: &Key, message: String) -> Error {
    Error { status: Some(412), code: Some("PreconditionFailed".into()), ..Error::new(ErrorKind::Replaced, op, key, message) }
}

fn not_found(op: Op, key: &Key) -> Error {
    Error { status: Some(404), code: Some("NoSuchKey".into()), ..Error::new(ErrorKind::NotFound, op, key, "no such object") }
}

#[cfg(test)]
mod tests;
