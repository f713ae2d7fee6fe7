//! The decorator that asks an accelerator or a cache for data, and the endpoint for everything else. What the accelerator does not
//! answer the endpoint does, and when it fails again and again it is left alone for a while. It retries nothing. Invariant: as long as
//! the endpoint answers, no failure of the accelerator is anybody's error; the sink sees every byte once, of the version asked for.

mod breaker;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use self::breaker::{Breaker, Turn};
use super::retry::Counted;
use super::{
    Body, Condition, CopyRequest, Details, ETag, Error, ErrorKind, Headers, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Options,
    Part, PartCopy, PartsPage, PutRequest, RangeRequest, RangeSink, RenameRequest, Result, StoreTime, Tell, Upload, UploadRequest,
    UploadsPage, Written,
};
use crate::metrics::Metrics;

/// Longest silence of the accelerator. The endpoint can answer instead, so less patience is needed than with that one.
const PATIENCE: Duration = Duration::from_secs(2);

/// An [`ObjectStore`] whose data comes from elsewhere where it can.
#[derive(Debug)]
pub(super) struct ReadEndpoint {
    near: Arc<dyn ObjectStore>,
    home: Arc<dyn ObjectStore>,
    breaker: Mutex<Breaker>,
    metrics: Arc<Metrics>,
}

/// The options of the store behind `read-endpoint`, if there is one. `region` is that of the bucket: the names of accelerators do not tell it.
pub(super) fn options_near(options: &Options, region: Option<String>) -> Option<Options> {
    let endpoint = options.read_endpoint.clone()?;
    Some(Options {
        endpoint: Some(endpoint),
        region,
        read_endpoint: None,
        // They choose among the addresses of AWS, and this one is named.
        fips: None,
        dual_stack: None,
        accelerate: false,
        connect_timeout: options.connect_timeout.min(PATIENCE),
        answer_timeout: options.answer_timeout.min(PATIENCE),
        stall_timeout: options.stall_timeout.min(PATIENCE),
        ..options.clone()
    })
}

impl ReadEndpoint {
    /// Data from `near` while it answers, everything else from `home`. Both make one attempt a call.
    pub fn new(near: Arc<dyn ObjectStore>, home: Arc<dyn ObjectStore>, metrics: Arc<Metrics>) -> Self {
        Self { near, home, breaker: Mutex::default(), metrics }
    }

    fn on_success(&self, turn: Turn) {
        self.metrics.read_endpoint_requests.add(1);
        if self.breaker.lock().on_success(turn) {
            info!("the read endpoint answers again");
        }
    }

    fn on_failure(&self, turn: Turn, error: &Error) {
        let pause = self.breaker.lock().on_failure(turn, Instant::now());
        if let Some(pause) = pause {
            warn!(%error, ?pause, "the read endpoint fails, all data comes from the endpoint for a while");
        }
    }
}

/// Whether the accelerator may be in order although it does not have what was asked for: the object may have changed.
fn is_of_the_object(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::Replaced | ErrorKind::RangeNotSatisfiable)
}

#[async_trait]
impl ObjectStore for ReadEndpoint {
    fn time_at(&self, at: Instant) -> Option<StoreTime> {
        self.home.time_at(at)
    }

    fn most_metadata(&self) -> usize {
        self.home.most_metadata()
    }

    fn lists_in_order(&self, prefix: &Key) -> bool {
        self.home.lists_in_order(prefix)
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        // Not in the match below, which would hold the lock to its end.
        let turn = self.breaker.lock().turn(Instant::now());
        let Some(turn) = turn else {
            self.metrics.read_endpoint_fallbacks.add(1);
            return self.home.get_range(request, sink).await;
        };
        let bytes = AtomicU64::new(0);
        let near = self.near.get_range(request, &mut Counted { sink: &mut *sink, bytes: &bytes }).await;
        let mut rest = request.clone();
        rest.range.start += bytes.into_inner();
        let error = match near {
            Err(error) if !rest.range.is_empty() => error,
            // An error after the last byte is that of a connection that could not be closed properly.
            _ => {
                self.on_success(turn);
                return Ok(());
            }
        };
        debug!(%error, "the read endpoint has no answer, asking the endpoint");
        self.metrics.read_endpoint_fallbacks.add(1);
        if !is_of_the_object(error.kind) {
            self.on_failure(turn, &error);
            return self.home.get_range(&rest, sink).await;
        }
        self.home.get_range(&rest, sink).await?;
        // The endpoint has that version.
        self.on_failure(turn, &error);
        Ok(())
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.home.head(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.home.list(request).await
    }

    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        self.home.list_telling(request, tell).await
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        self.home.details(key).await
    }

    async fn details_to_keep(&self, key: &Key) -> Result<Details> {
        self.home.details_to_keep(key).await
    }

    async fn put(&self, request: &PutRequest) -> Result<Written> {
        self.home.put(request).await
    }

    async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        self.home.create_upload(request).await
    }

    async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        self.home.upload_part(upload, number, body).await
    }

    async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        self.home.copy_part(upload, number, source).await
    }

    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        self.home.complete_upload(upload, parts, condition).await
    }

    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        self.home.abort_upload(upload).await
    }

    async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        self.home.list_uploads(prefix, after).await
    }

    async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        self.home.list_parts(upload, after).await
    }

    async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        self.home.copy(request).await
    }

    async fn rename(&self, request: &RenameRequest) -> Result<Option<Written>> {
        self.home.rename(request).await
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.home.delete(key).await
    }

    async fn delete_version(&self, key: &Key, etag: &ETag) -> Result<()> {
        self.home.delete_version(key, etag).await
    }

    async fn delete_many(&self, keys: &[Key]) -> Result<Vec<Error>> {
        self.home.delete_many(keys).await
    }

    async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        self.home.put_symlink(key, target, headers, condition).await
    }
}

#[cfg(test)]
mod tests;
