//! A bucket over HTTP: which part of what both dialects share answers which call. What is a dialect's own comes with its signer and its lister.
//! It does not retry, but where other credentials sign. Invariant: each call reads one version of one object, or one page.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::credentials::{Attempts, Edition};
use super::leave::Clients;
use super::range::RangeClient;
use super::requests::{Requests, Tags, Voice};
use super::signing::SignGet;
use super::{
    Body, Condition, CopyRequest, Details, ETag, Error, ErrorKind, Headers, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Options,
    Part, PartCopy, PartsPage, PutRequest, RangeRequest, RangeSink, RenameRequest, Result, StoreTime, Tell, Upload, UploadRequest,
    UploadsPage, Written,
};
use crate::metrics::Metrics;

/// How a dialect lists.
#[async_trait]
pub(super) trait Lister: fmt::Debug + Send + Sync + 'static {
    /// One page, and which keys signed the last request for it.
    async fn list_page(&self, request: &ListRequest, tell: &Tell<'_>) -> (Option<Edition>, Result<ListPage>);
}

/// One bucket.
#[derive(Debug)]
pub(super) struct HttpStore<S> {
    ranges: RangeClient,
    requests: Requests,
    signer: Arc<S>,
    lister: Arc<dyn Lister>,
}

impl<S: SignGet + Voice + 'static> HttpStore<S> {
    /// `http` comes from [`clients`](super::clients::clients).
    pub fn new(http: Clients, options: &Options, signer: Arc<S>, lister: Arc<dyn Lister>, tags: Tags, metrics: Arc<Metrics>) -> Self {
        let tags = Arc::new(tags);
        let requests = Requests::new(http.clone(), options, signer.clone(), Arc::clone(&tags), Arc::clone(&metrics));
        let ranges = RangeClient::new(http, options, tags, metrics).with_clock(Arc::clone(signer.clock()));
        Self { ranges, requests, signer, lister }
    }

    /// See [`Requests::other_region`].
    pub async fn other_region(&self) -> Result<Option<String>> {
        self.requests.other_region().await
    }
}

#[async_trait]
impl<S: SignGet + Voice + 'static> ObjectStore for HttpStore<S> {
    fn time_at(&self, at: Instant) -> Option<StoreTime> {
        self.requests.time_at(at)
    }

    fn most_metadata(&self) -> usize {
        self.requests.most_metadata()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.requests.head(key).await
    }

    fn lists_in_order(&self, _: &Key) -> bool {
        self.requests.lists_in_order()
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.list_telling(request, &|_| {}).await
    }

    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        let mut attempts = Attempts::new(self.signer.clock());
        loop {
            let (by, result) = self.lister.list_page(request, tell).await;
            if !self.signer.again(&mut attempts, by, result.as_ref().err()).await {
                return result;
            }
        }
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let was_weak = self.requests.are_weak();
        match self.ranges.get_again(&*self.signer, request, sink).await {
            // The sink has nothing of another version.
            Err(error) if error.kind == ErrorKind::Replaced && self.requests.turns_out_weak(&request.key, was_weak).await => {
                self.ranges.get_again(&*self.signer, request, sink).await
            }
            result => result,
        }
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        self.requests.details(key).await
    }

    async fn details_to_keep(&self, key: &Key) -> Result<Details> {
        self.requests.details_to_keep(key).await
    }

    async fn put(&self, request: &PutRequest) -> Result<Written> {
        self.requests.put(request).await
    }

    async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        self.requests.create_upload(request).await
    }

    async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        self.requests.upload_part(upload, number, body).await
    }

    async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        self.requests.copy_part(upload, number, source).await
    }

    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        self.requests.complete_upload(upload, parts, condition).await
    }

    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        self.requests.abort_upload(upload).await
    }

    async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        self.requests.list_uploads(prefix, after).await
    }

    async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        self.requests.list_parts(upload, after).await
    }

    async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        self.requests.copy(request).await
    }

    async fn rename(&self, request: &RenameRequest) -> Result<Option<Written>> {
        self.requests.rename(request).await
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.requests.delete(key).await
    }

    async fn delete_version(&self, key: &Key, etag: &ETag) -> Result<()> {
        self.requests.delete_version(key, etag).await
    }

    async fn delete_many(&self, keys: &[Key]) -> Result<Vec<Error>> {
        self.requests.delete_many(keys).await
    }

    async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        self.requests.put_symlink(key, target, headers, condition).await
    }
}
