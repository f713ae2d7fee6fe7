//! Writes that are sent again. A condition that the first attempt made false, an upload that the first attempt ended and a second upload are settled by
//! looking at what is there. Before a write or a delete without a condition is repeated, a HEAD shows whether another client has written since its
//! first attempt: that attempt may have been carried out, and its repetition would undo a write that the store has acknowledged to the other client.
//! Invariant: an error that the write's own first attempt caused is not reported.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tracing::debug;

use super::Retrying;
use super::attempts::{Doubt, Limit};
use crate::store::resolve::{self, Outcome};
use crate::store::{
    Condition, CopyRequest, DELETES_AT_ONCE, ETag, Error, ErrorKind, Headers, Key, Op, Part, PutRequest, Result, Upload, UploadRequest,
    Written,
};

/// What is under a key some time after attempts to write or delete it, which may have been carried out or not.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A version from before the attempts, or from the second in which they began: the dates of stores are no finer.
    Version(ETag),
    /// An object that was written after they had begun: what they wrote themselves, or a later write of another client.
    Later,
    /// The credentials do not allow to look.
    Hidden,
}

/// How an attempt ended that was not refused.
enum Attempted {
    Done(Written),
    /// It was not made: see [`Found::Later`].
    Overtaken,
}

impl Retrying {
    pub(super) async fn put_once(&self, request: &PutRequest) -> Result<Written> {
        let limit = Limit::Sent(request.body.len() as u64);
        // What an attempt has left there in place of the body that was sent is ours to replace, and nothing else is.
        let spoiled: Mutex<Option<ETag>> = Mutex::default();
        let attempt = |doubt| -> BoxFuture<'_, Result<Attempted>> {
            let spoiled = &spoiled;
            let own = spoiled.lock().clone().map_or_else(|| request.condition.clone(), Condition::Is);
            Box::pin(async move {
                let Some(condition) = self.condition(&request.key, own, doubt).await? else { return Ok(Attempted::Overtaken) };
                let result = self.inner.put(&PutRequest { condition, ..request.clone() }).await;
                if let Err(Error { stored: Some(etag), .. }) = &result {
                    *spoiled.lock() = Some(etag.clone());
                }
                result.map(Attempted::Done)
            })
        };
        let (result, doubt) = self.run_knowing(Op::Put, &request.key, limit, None, attempt).await;
        let look = |_| resolve::is_put(self, &request.key, &request.body);
        settled(result, doubt, || overtaken(ErrorKind::Replaced, Op::Put, &request.key), look).await
    }

    pub(super) async fn link_once(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        let attempt = |doubt| -> BoxFuture<'_, Result<Attempted>> {
            Box::pin(async move {
                let Some(condition) = self.condition(key, condition.clone(), doubt).await? else { return Ok(Attempted::Overtaken) };
                self.inner.put_symlink(key, target, headers, &condition).await.map(Attempted::Done)
            })
        };
        let (result, doubt) = self.run_knowing(Op::Put, key, Limit::Short, None, attempt).await;
        settled(result, doubt, || overtaken(ErrorKind::Replaced, Op::Put, key), |_| resolve::is_link(self, key, target)).await
    }

    pub(super) async fn copy_once(&self, request: &CopyRequest) -> Result<Written> {
        let target = &request.target;
        let attempt = |doubt| -> BoxFuture<'_, Result<Attempted>> {
            Box::pin(async move {
                let condition = self.condition(target, request.condition.clone(), doubt).await?;
                let Some(condition) = condition else { return Ok(Attempted::Overtaken) };
                self.inner.copy(&CopyRequest { condition, ..request.clone() }).await.map(Attempted::Done)
            })
        };
        let (result, doubt) = self.run_knowing(Op::Copy, target, Limit::Long, None, attempt).await;
        // Of a copy without a condition `Replaced` means the source.
        settled(result, doubt, || overtaken(ErrorKind::Unavailable, Op::Copy, target), |doubt| resolve::is_copy(self, request, doubt)).await
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
                told(error, resolve::is_complete(self, upload, parts, doubt).await)
            }
            (result, _) => result,
        };
        if result.is_ok() {
            self.orphans.ended(upload);
        }
        result
    }

    /// Deletes what is at `key`; `doubt` is about earlier attempts to do so.
    pub(super) async fn delete_once(&self, key: &Key, doubt: Option<Doubt>) -> Result<()> {
        let attempt = |doubt: Option<Doubt>| -> BoxFuture<'_, Result<()>> {
            Box::pin(async move {
                let Some(doubt) = doubt else { return self.inner.delete(key).await };
                match self.find(key, doubt).await? {
                    Found::Nothing => Ok(()),
                    Found::Hidden => self.inner.delete(key).await,
                    Found::Version(etag) => match self.inner.delete_version(key, &etag).await {
                        // Another client has written since.
                        Err(error) if error.kind == ErrorKind::Replaced => Ok(()),
                        result => result,
                    },
                    Found::Later => {
                        debug!(%key, "another client has written after the delete had begun: that stays");
                        Ok(())
                    }
                }
            })
        };
        self.run_knowing(Op::Delete, key, Limit::Short, doubt, attempt).await.0
    }

    /// Deletes objects by one request. Returns the errors of those that may still be there, and which attempts may have been carried out.
    pub(super) async fn delete_many_once(&self, keys: &[Key], first: &Key) -> (Result<Vec<Error>>, Option<Doubt>) {
        let attempt = |doubt: Option<Doubt>| -> BoxFuture<'_, Result<Vec<Error>>> {
            Box::pin(async move {
                let Some(doubt) = doubt else { return self.inner.delete_many(keys).await };
                let finds = keys.iter().map(|key| self.find(key, doubt).map(move |found| found.map(|found| (key, found))).boxed());
                let finds: Vec<(&Key, Found)> = stream::iter(finds.collect::<Vec<_>>()).buffered(DELETES_AT_ONCE).try_collect().await?;
                let left = finds.into_iter().filter(|(_, found)| matches!(found, Found::Version(_) | Found::Hidden));
                let left: Vec<Key> = left.map(|(key, _)| key.clone()).collect();
                if left.is_empty() { Ok(Vec::new()) } else { self.inner.delete_many(&left).await }
            })
        };
        self.run_knowing(Op::Delete, first, Limit::Long, None, attempt).await
    }

    /// The condition for the next attempt of a write that asks for `own`; none when it must not be made any more. Only a write without a condition
    /// needs another one, and only after an attempt that may have been carried out.
    async fn condition(&self, key: &Key, own: Condition, doubt: Option<Doubt>) -> Result<Option<Condition>> {
        let Some(doubt) = doubt.filter(|_| own == Condition::Any) else { return Ok(Some(own)) };
        Ok(match self.find(key, doubt).await? {
            Found::Nothing | Found::Hidden => Some(Condition::Any),
            Found::Version(etag) => Some(Condition::Is(etag)),
            Found::Later => None,
        })
    }

    /// Looks at `key` once; `doubt` is about the attempts before.
    async fn find(&self, key: &Key, doubt: Doubt) -> Result<Found> {
        match self.inner.head(key).await {
            // Without a time of the store every version may be an old one.
            Ok(there) if self.inner.time_at(doubt.from).is_some_and(|from| !from.may_be_after(there.modified)) => Ok(Found::Later),
            Ok(there) => Ok(Found::Version(there.etag)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(Found::Nothing),
            Err(error) if error.kind.is_retryable() => Err(error),
            Err(error) => {
                debug!(%error, "cannot look at an object before a write of it is repeated");
                Ok(Found::Hidden)
            }
        }
    }
}

/// The end of a write: an attempt that was refused or not made may have been preceded by one that was carried out, which `look` finds out.
async fn settled<F: Future<Output = Result<Outcome>>>(
    result: Result<Attempted>,
    doubt: Option<Doubt>,
    overtaken: impl FnOnce() -> Error,
    look: impl FnOnce(Doubt) -> F,
) -> Result<Written> {
    match (result, doubt) {
        (Ok(Attempted::Done(written)), _) => Ok(written),
        (Ok(Attempted::Overtaken), Some(doubt)) => told(overtaken(), look(doubt).await),
        (Ok(Attempted::Overtaken), None) => Err(overtaken()),
        (Err(error), Some(doubt)) if error.kind == ErrorKind::Replaced => told(error, look(doubt).await),
        (Err(error), _) => Err(error),
    }
}

/// The error of a write that another client's has followed before it was known whether it was done.
fn overtaken(kind: ErrorKind, op: Op, key: &Key) -> Error {
    Error::new(kind, op, key, "another client has written there after an attempt whose response was lost")
}

/// The write's own answer, when what is there shows that it was done; else the error that it ended with.
fn told(error: Error, found: Result<Outcome>) -> Result<Written> {
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
