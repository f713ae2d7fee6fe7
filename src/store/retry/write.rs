//! Writes that are sent again. What can be done twice is simply repeated; what cannot (a condition that the first attempt made
//! false, an upload that the first attempt ended, a second upload) is settled by looking at what is there. Invariant: an error
//! that the write's own first attempt caused is not reported.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::Retrying;
use super::attempts::Limit;
use crate::store::resolve::{self, Outcome};
use crate::store::{
    Condition, CopyRequest, ETag, Error, ErrorKind, Headers, Key, Op, Part, PutRequest, Result, Upload, UploadRequest, Written,
};

impl Retrying {
    pub(super) async fn put_once(&self, request: &PutRequest) -> Result<Written> {
        let limit = Limit::Sent(request.body.len() as u64);
        // What an attempt has left there in place of the body that was sent is ours to replace, and nothing else is.
        let spoiled: Mutex<Option<ETag>> = Mutex::default();
        let attempt = || -> BoxFuture<'_, Result<Written>> {
            let condition = spoiled.lock().clone().map_or_else(|| request.condition.clone(), Condition::Is);
            let again = PutRequest { condition, ..request.clone() };
            let (inner, spoiled) = (&self.inner, &spoiled);
            Box::pin(async move {
                let result = inner.put(&again).await;
                if let Err(Error { stored: Some(etag), .. }) = &result {
                    *spoiled.lock() = Some(etag.clone());
                }
                result
            })
        };
        let (result, doubt) = self.run(Op::Put, &request.key, limit, attempt).await;
        match (result, doubt) {
            (Err(error), Some(_)) if error.kind == ErrorKind::Replaced => {
                settled(error, resolve::is_put(self, &request.key, &request.body).await)
            }
            (result, _) => result,
        }
    }

    pub(super) async fn link_once(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        let (result, doubt) = self.run(Op::Put, key, Limit::Short, || self.inner.put_symlink(key, target, headers, condition)).await;
        match (result, doubt) {
            (Err(error), Some(_)) if error.kind == ErrorKind::Replaced => settled(error, resolve::is_link(self, key, target).await),
            (result, _) => result,
        }
    }

    pub(super) async fn copy_once(&self, request: &CopyRequest) -> Result<Written> {
        let (result, doubt) = self.run(Op::Copy, &request.target, Limit::Long, || self.inner.copy(request)).await;
        match (result, doubt) {
            (Err(error), Some(doubt)) if error.kind == ErrorKind::Replaced => settled(error, resolve::is_copy(self, request, doubt).await),
            (result, _) => result,
        }
    }

    pub(super) async fn begin_once(&self, request: &UploadRequest) -> Result<Upload> {
        let creating = self.orphans.create(Arc::new(self.under(self.policy)), &request.key);
        let attempt = || -> BoxFuture<'_, Result<Upload>> {
            let creating = &creating;
            Box::pin(async move {
                creating.on_attempt();
                self.inner.create_upload(request).await
            })
        };
        let (result, doubt) = self.run(Op::CreateUpload, &request.key, Limit::Short, attempt).await;
        creating.end(&result, doubt);
        result
    }

    pub(super) async fn complete_once(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        let run = self.run(Op::CompleteUpload, &upload.key, Limit::Long, || self.inner.complete_upload(upload, parts, condition));
        let result = match run.await {
            // The upload is gone because it became the object, or the object that must not be there is the one just made.
            (Err(error), Some(doubt)) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Replaced) => {
                settled(error, resolve::is_complete(self, upload, parts, doubt).await)
            }
            (result, _) => result,
        };
        if result.is_ok() {
            self.orphans.ended(upload);
        }
        result
    }
}

/// The write's own answer, when what is there shows that it was done; else the error that it ended with.
fn settled(error: Error, found: Result<Outcome>) -> Result<Written> {
    let unknown = |why: &str| {
        let message = format!("{}, and it cannot be found out whether it was done: {why}", error.message);
        // Neither a conflict nor a missing object: nothing is known but that the response was lost.
        Err(Error { kind: ErrorKind::Unavailable, message, ..error.clone() })
    };
    match found {
        Ok(Outcome::Done(written)) => Ok(written),
        // Nothing there, or another one's: the error is right.
        Ok(Outcome::NotDone) => Err(error),
        Ok(Outcome::Unknown) => unknown("neither checksum nor ETag of what is there tells"),
        Err(look) if matches!(look.kind, ErrorKind::NotFound | ErrorKind::Replaced) => Err(error),
        Err(look) => unknown(&look.message),
    }
}

#[cfg(test)]
mod tests;
