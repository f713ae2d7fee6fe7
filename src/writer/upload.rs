//! One multipart upload: begun with its first part, ended once. Invariant: an upload that was begun is completed or aborted, and
//! aborted only after the last of its requests has ended, since a late part would be kept by the store for ever.

use std::sync::Arc;

use tokio::sync::{OnceCell, watch};
use tracing::warn;

use super::Shared;
use crate::store::{self, Body, Condition, Headers, Key, ObjectStore, Part, PartCopy, Upload, UploadRequest, Written};

/// See the module.
#[derive(Debug)]
pub(super) struct Uploading {
    pub key: Key,
    pub headers: Headers,
    has_copies: bool,
    store: Arc<dyn ObjectStore>,
    begun: OnceCell<Upload>,
    stopped: watch::Sender<bool>,
    running: watch::Sender<usize>,
}

/// A request of the upload that has not ended.
#[derive(Debug)]
pub(super) struct Running(Arc<Uploading>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running -= 1);
    }
}

impl Uploading {
    /// Asks the store for nothing yet.
    pub fn new(shared: &Shared, key: Key, headers: Headers) -> Arc<Self> {
        Self::begin_later(shared, key, headers, false)
    }

    /// The same of one that some parts will be copied into.
    pub fn with_copies(shared: &Shared, key: Key, headers: Headers) -> Arc<Self> {
        Self::begin_later(shared, key, headers, true)
    }

    fn begin_later(shared: &Shared, key: Key, headers: Headers, has_copies: bool) -> Arc<Self> {
        let store = Arc::clone(&shared.store);
        Arc::new(Self {
            key,
            headers,
            has_copies,
            store,
            begun: OnceCell::new(),
            stopped: watch::Sender::new(false),
            running: watch::Sender::new(0),
        })
    }

    /// One that another daemon has begun.
    pub fn restore(shared: &Shared, upload: Upload, headers: Headers) -> Arc<Self> {
        let (store, key, begun) = (Arc::clone(&shared.store), upload.key.clone(), OnceCell::new_with(Some(upload)));
        Arc::new(Self { key, headers, has_copies: false, store, begun, stopped: watch::Sender::new(false), running: watch::Sender::new(0) })
    }

    /// As the store knows it; none before it has begun it.
    pub fn begun(&self) -> Option<&Upload> {
        self.begun.get()
    }

    /// To be held by whoever is going to send or copy a part.
    pub fn run(self: &Arc<Self>) -> Running {
        self.running.send_modify(|running| *running += 1);
        Running(Arc::clone(self))
    }

    /// Has parts that are on their way end, and no more begin.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    async fn upload(&self) -> store::Result<&Upload> {
        let request = || UploadRequest { key: self.key.clone(), headers: self.headers.clone(), has_copies: self.has_copies };
        // Never cancelled: nobody would know the upload that came of it.
        self.begun.get_or_try_init(async || self.store.create_upload(&request()).await).await
    }

    async fn unless_stopped(&self, request: impl Future<Output = store::Result<Part>>) -> store::Result<Option<Part>> {
        let mut stopped = self.stopped.subscribe();
        tokio::select! {
            part = request => part.map(Some),
            _ = stopped.wait_for(|stopped| *stopped) => Ok(None),
        }
    }

    /// Has the store begin it.
    pub async fn begin(&self) -> store::Result<()> {
        self.upload().await.map(drop)
    }

    /// Sends a part; none when the upload was given up.
    pub async fn send(&self, number: u32, body: Body) -> store::Result<Option<Part>> {
        if self.is_stopped() {
            return Ok(None);
        }
        let upload = self.upload().await?;
        self.unless_stopped(self.store.upload_part(upload, number, body)).await
    }

    /// Copies a part; none when the upload was given up.
    pub async fn copy(&self, number: u32, source: &PartCopy) -> store::Result<Option<Part>> {
        if self.is_stopped() {
            return Ok(None);
        }
        let upload = self.upload().await?;
        self.unless_stopped(self.store.copy_part(upload, number, source)).await
    }

    pub async fn complete(&self, parts: &[Part], condition: &Condition) -> store::Result<Written> {
        let upload = self.upload().await?;
        self.store.complete_upload(upload, parts, condition).await
    }

    /// Ends it: stops what is running, then has the store forget it. That goes on in the background.
    pub fn give_up(self: Arc<Self>, shared: &Shared) {
        self.stop();
        if self.begun.get().is_none() && *self.running.borrow() == 0 {
            return;
        }
        shared.background.spawn(async move {
            let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
            if let Some(upload) = self.begun.get()
                && let Err(error) = self.store.abort_upload(upload).await
            {
                warn!(%error, "an unfinished upload stays in the bucket");
            }
        });
    }
}
