//! Copies inside the store, of any size: one request where one is enough, else a multipart upload whose parts are copied. Invariant: an
//! error leaves no object and no upload behind, as far as the store can be reached.

use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::{
    Condition, CopyRequest, Error, ErrorKind, Headers, Key, LARGEST_COPY, ObjectMeta, ObjectStore, Part, PartCopy, PutRequest, Result,
    Upload, UploadRequest, Written,
};

/// Bytes of a part that is copied; the largest object of 5 TiB has 5,120 of them.
const COPIED_PART: u64 = 1 << 30;

/// Parts copied at once: the store moves the bytes, so a few are enough to keep it busy.
const AT_ONCE: usize = 16;

/// Copies the version `source` to `target`; without `headers` those of the source are kept.
///
/// # Errors
/// As [`ObjectStore::copy`].
pub async fn copy_object(
    store: &dyn ObjectStore,
    source: &ObjectMeta,
    target: &Key,
    headers: Option<Headers>,
    condition: &Condition,
) -> Result<Written> {
    if source.size <= LARGEST_COPY {
        let (key, etag) = (source.key.clone(), source.etag.clone());
        let request = CopyRequest { source: key, etag, target: target.clone(), headers, condition: condition.clone() };
        return match store.copy(&request).await {
            Err(error) if error.kind == ErrorKind::Invalid && source.size == 0 => write_empty(store, request, error).await,
            copied => copied,
        };
    }
    let headers = match headers {
        Some(headers) => headers,
        None => store.details_to_keep(&source.key).await?.headers,
    };
    let upload = store.create_upload(&UploadRequest { key: target.clone(), headers, has_copies: true }).await?;
    let copied = match copy_parts(store, source, &upload).await {
        Ok(parts) => store.complete_upload(&upload, &parts, condition).await,
        Err(error) => Err(error),
    };
    if copied.is_err()
        && let Err(error) = store.abort_upload(&upload).await
    {
        tracing::warn!(%error, "an unfinished upload is left in the bucket: remove it with \"windlass mpu abort\"");
    }
    copied
}

/// Writes what is empty anew where its copy was `refused`: versitygw copies no directory markers.
async fn write_empty(store: &dyn ObjectStore, request: CopyRequest, refused: Error) -> Result<Written> {
    let CopyRequest { source, etag, target: key, headers, condition } = request;
    let there = store.details_to_keep(&source).await?;
    if there.meta.etag != etag || there.meta.size > 0 {
        return Err(Error { kind: ErrorKind::Replaced, ..refused });
    }
    store.put(&PutRequest { key, body: Bytes::new(), headers: headers.unwrap_or(there.headers), condition }).await
}

async fn copy_parts(store: &dyn ObjectStore, source: &ObjectMeta, upload: &Upload) -> Result<Vec<Part>> {
    let copies = stream::iter(ranges(source.size)).zip(stream::iter(1..)).map(|(range, number)| async move {
        let part = PartCopy { source: source.key.clone(), etag: source.etag.clone(), range };
        store.copy_part(upload, number, &part).await
    });
    copies.buffered(AT_ONCE).try_collect().await
}

/// Even ranges, so that the last is not too small for a part.
fn ranges(size: u64) -> Vec<Range<u64>> {
    let count = size.div_ceil(COPIED_PART);
    let each = size.div_ceil(count);
    (0..count).map(|n| n * each..((n + 1) * each).min(size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{LARGEST_OBJECT, LEAST_PART, MOST_PARTS};

    #[test]
    fn parts_cover_every_size_within_the_limits() {
        for size in [LARGEST_COPY + 1, 6 << 30, (6 << 30) + 1, LARGEST_OBJECT] {
            let ranges = ranges(size);
            assert!(ranges.len() <= MOST_PARTS as usize);
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, size));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(ranges.iter().all(|range| range.end - range.start >= LEAST_PART));
        }
    }
}
