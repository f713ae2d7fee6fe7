//! The decorator that sends a failed request again. It decides when and how often, never what: the inner store does
//! one attempt a call. Invariant: a resumed range goes on at the byte after the last one that reached the sink, on
//! the same version, so the sink sees every byte once.

mod attempts;
mod load;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tokio::time::Instant;

use self::attempts::{Attempts, Limit, is_ambiguous};
use self::load::Load;
use super::orphans::Orphans;
use super::{
    Body, Condition, CopyRequest, DELETES_AT_ONCE, Details, ETag, Error, Headers, Key, ListPage, ListRequest, ObjectMeta, ObjectStore,
    ObjectSum, Op, Options, Part, PartCopy, PartsPage, PutRequest, RangeRequest, RangeSink, RenameRequest, Result, StoreTime, Switches,
    Tell, Upload, UploadRequest, UploadsPage, Written,
};
use crate::metrics::Metrics;

pub(super) use self::attempts::Doubt;

/// How long and how often to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Attempts after the first, without progress between them. Throttled attempts are not counted, nor are those without a response from
    /// an endpoint that had responded before.
    pub retries: usize,
    /// From the first attempt of a request to its end; of a GET, from one progress of its body to the next.
    pub request_timeout: Duration,
    /// Longest wait of the first attempt for its response; the second one waits twice as long, and so on. Stalls inside a body are noticed
    /// where its bytes arrive or leave.
    pub attempt_timeout: Duration,
}

impl From<&Options> for Policy {
    fn from(options: &Options) -> Self {
        // An attempt may have to connect first.
        let attempt_timeout = options.connect_timeout + options.stall_timeout;
        Self { retries: options.retries, request_timeout: options.request_timeout, attempt_timeout }
    }
}

/// An [`ObjectStore`] whose requests are sent again when that may help.
#[derive(Debug)]
pub struct Retrying {
    inner: Arc<dyn ObjectStore>,
    policy: Policy,
    metrics: Arc<Metrics>,
    load: Arc<Load>,
    orphans: Arc<Orphans>,
    switches: Switches,
}

impl Retrying {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn ObjectStore>, policy: Policy, metrics: Arc<Metrics>) -> Self {
        Self { inner, policy, metrics, load: Load::new(), orphans: Arc::default(), switches: Switches::default() }
    }

    /// The same; `switches` are those of `inner`.
    #[must_use]
    pub fn switched(self, switches: Switches) -> Self {
        Self { switches, ..self }
    }

    /// What can be switched while it is used.
    pub fn switches(&self) -> &Switches {
        &self.switches
    }

    /// How long and how often requests are tried.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The same store under another policy.
    #[must_use]
    pub fn under(&self, policy: Policy) -> Self {
        Self {
            inner: self.inner.clone(),
            policy,
            metrics: self.metrics.clone(),
            load: self.load.clone(),
            orphans: self.orphans.clone(),
            switches: self.switches.clone(),
        }
    }

    /// Sends a request until it succeeds, cannot succeed, or time or retries are spent; and tells whether an attempt may have
    /// been carried out although it failed.
    async fn run<'a, T>(
        &self,
        op: Op,
        key: &Key,
        limit: Limit,
        mut attempt: impl FnMut() -> BoxFuture<'a, Result<T>> + Send,
    ) -> (Result<T>, Option<Doubt>) {
        self.run_knowing(op, key, limit, None, |_| attempt()).await
    }

    /// The same for attempts that depend on whether one before them, or the request that `doubt` is about, may have been carried out.
    async fn run_knowing<'a, T>(
        &self,
        op: Op,
        key: &Key,
        limit: Limit,
        mut doubt: Option<Doubt>,
        mut attempt: impl FnMut(Option<Doubt>) -> BoxFuture<'a, Result<T>> + Send,
    ) -> (Result<T>, Option<Doubt>) {
        let mut attempts = Attempts::start(self.policy, limit, &self.load);
        loop {
            let from = Instant::now();
            let error = match attempts.bounded(op, key, || 0, attempt(doubt)).await {
                Ok(answer) => return (Ok(answer), doubt),
                Err(error) => error,
            };
            if is_ambiguous(error.kind) {
                doubt = Some(Doubt { from, to: Instant::now(), attempts: 1 }.and(doubt));
            }
            if let Err(error) = attempts.pause_after(error, &self.metrics).await {
                return (Err(error), doubt);
            }
        }
    }
}

#[async_trait]
impl ObjectStore for Retrying {
    fn time_at(&self, at: Instant) -> Option<StoreTime> {
        self.inner.time_at(at)
    }

    fn most_metadata(&self) -> usize {
        self.inner.most_metadata()
    }

    fn lists_in_order(&self, prefix: &Key) -> bool {
        self.inner.lists_in_order(prefix)
    }

    fn most_requests(&self) -> usize {
        self.load.allowed()
    }

    /// Waits until the uploads are aborted that lost answers left behind, as far as they can be.
    async fn settle(&self) {
        self.orphans.settle().await;
        self.inner.settle().await;
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.run(Op::Head, key, Limit::Short, || self.inner.head(key)).await.0
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.list_telling(request, &|_| {}).await
    }

    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        self.run(Op::List, &request.prefix, Limit::Short, || self.inner.list_telling(request, tell)).await.0
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let mut attempts = Attempts::start(self.policy, Limit::Brought, &self.load);
        let (mut rest, bytes) = (request.clone(), AtomicU64::new(0));
        let arrived = || bytes.load(Ordering::Relaxed);
        loop {
            let mut counted = Counted { sink: &mut *sink, bytes: &bytes };
            let result = attempts.bounded(Op::Get, &request.key, arrived, self.inner.get_range(&rest, &mut counted)).await;
            let Err(error) = result else { return Ok(()) };
            rest.range.start = request.range.start + arrived();
            if rest.range.is_empty() {
                // What failed came after the last byte: a connection that could not be closed properly.
                return Ok(());
            }
            attempts.pause_after(error, &self.metrics).await?;
        }
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        self.run(Op::Head, key, Limit::Short, || self.inner.details(key)).await.0
    }

    async fn details_to_keep(&self, key: &Key) -> Result<Details> {
        self.run(Op::Head, key, Limit::Short, || self.inner.details_to_keep(key)).await.0
    }

    async fn put(&self, request: &PutRequest) -> Result<Written> {
        self.put_once(request).await
    }

    async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        self.begin_once(request).await
    }

    async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        let limit = Limit::Sent(body.len() as u64);
        self.run(Op::UploadPart, &upload.key, limit, || self.inner.upload_part(upload, number, body.clone())).await.0
    }

    async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        self.run(Op::CopyPart, &upload.key, Limit::Long, || self.inner.copy_part(upload, number, source)).await.0
    }

    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        self.complete_once(upload, parts, condition).await
    }

    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        let aborted = self.run(Op::AbortUpload, &upload.key, Limit::Short, || self.inner.abort_upload(upload)).await.0;
        self.orphans.ended(upload);
        aborted
    }

    async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        self.run(Op::ListUploads, prefix, Limit::Short, || self.inner.list_uploads(prefix, after)).await.0
    }

    async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        self.run(Op::ListParts, &upload.key, Limit::Short, || self.inner.list_parts(upload, after)).await.0
    }

    async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        self.copy_once(request).await
    }

    async fn rename(&self, request: &RenameRequest) -> Result<Option<Written>> {
        self.run(Op::Rename, &request.target, Limit::Long, || self.inner.rename(request)).await.0
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.delete_once(key, None).await
    }

    async fn delete_version(&self, key: &Key, etag: &ETag) -> Result<()> {
        self.run(Op::Delete, key, Limit::Short, || self.inner.delete_version(key, etag)).await.0
    }

    async fn delete_many(&self, keys: &[Key]) -> Result<Vec<Error>> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let from = Instant::now();
        let (result, doubt) = self.delete_many_once(keys, first).await;
        let (again, mut left): (Vec<_>, Vec<_>) = result?.into_iter().partition(|error| error.kind.is_retryable());
        let to = Instant::now();
        // Each with attempts of its own.
        let deletes = again.into_iter().map(|error| {
            let own = is_ambiguous(error.kind).then_some(Doubt { from, to, attempts: 1 });
            async move { self.delete_once(&error.key, own.or(doubt)).await.err() }.boxed()
        });
        let others: Vec<Option<Error>> = stream::iter(deletes.collect::<Vec<_>>()).buffered(DELETES_AT_ONCE).collect().await;
        left.extend(others.into_iter().flatten());
        Ok(left)
    }

    async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        self.link_once(key, target, headers, condition).await
    }
}

/// Passes bytes on and counts them.
pub(super) struct Counted<'a> {
    pub sink: &'a mut dyn RangeSink,
    pub bytes: &'a AtomicU64,
}

impl RangeSink for Counted<'_> {
    fn spare(&mut self) -> &mut [u8] {
        self.sink.spare()
    }

    fn advance(&mut self, n: usize) {
        // This sink is the only writer: no locked addition for each piece.
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
        self.sink.advance(n);
    }

    fn wants_sum(&self) -> bool {
        self.sink.wants_sum()
    }

    fn on_sum(&mut self, sum: &ObjectSum) {
        self.sink.on_sum(sum);
    }
}

#[cfg(test)]
mod tests;
