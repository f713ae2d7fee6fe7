//! What became of a write whose answer was lost: the object that is there now is compared with what was sent. It changes
//! nothing. Invariant: a write is called done only when the object's content is known to be what was written, or when its upload, whose id no
//! other client has, became an object of that size and number of parts. Size and date by themselves prove nothing: another client may have written as many
//! bytes at the same time. Dates are compared with the store's clock.

use bytes::Bytes;
use md5::{Digest, Md5};

use super::retry::Doubt;
use super::whole::read;
use super::{CopyRequest, ETag, ErrorKind, Key, ObjectMeta, ObjectStore, Part, Result, Upload, Written};

/// What the bucket shows of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done(Written),
    /// Something else is there.
    NotDone,
    /// The object that is there may be what was written, and neither a checksum nor its ETag tells.
    Unknown,
}

impl Outcome {
    fn of(is_ours: bool, etag: ETag) -> Self {
        if is_ours { Self::Done(Written { etag }) } else { Self::NotDone }
    }
}

/// Whether a link to `target` is what is at `key` now.
pub(super) async fn is_link(store: &dyn ObjectStore, key: &Key, target: &[u8]) -> Result<Outcome> {
    let there = store.details(key).await?;
    Ok(Outcome::of(there.symlink.as_deref() == Some(target), there.meta.etag))
}

/// Whether `body` is what is at `key` now.
pub(super) async fn is_put(store: &dyn ObjectStore, key: &Key, body: &Bytes) -> Result<Outcome> {
    let there = store.details(key).await?;
    if there.meta.size != body.len() as u64 {
        return Ok(Outcome::NotDone);
    }
    let same = match there.crc64 {
        Some(crc64) => crc64.polynomial.of(body) == crc64.value,
        None if body.is_empty() || is_tag(&there.meta.etag, &hex::encode(Md5::digest(body))) => true,
        // A tag that is no MD5 (encrypted, or a store of its own kind) says nothing: what is there is read.
        None => read(store, &there.meta, there.meta.size).await? == *body,
    };
    Ok(Outcome::of(same, there.meta.etag))
}

/// Whether what is at the target now is the copy.
pub(super) async fn is_copy(store: &dyn ObjectStore, request: &CopyRequest, doubt: Doubt) -> Result<Outcome> {
    let (there, source) = (store.details(&request.target).await?, store.details(&request.source).await?);
    if there.meta.size != source.meta.size || source.meta.etag != request.etag {
        return Ok(Outcome::NotDone);
    }
    match (there.crc64, source.crc64) {
        (Some(copied), Some(source)) => Ok(Outcome::of(copied == source, there.meta.etag)),
        _ if there.meta.etag == source.meta.etag => Ok(Outcome::Done(Written { etag: there.meta.etag })),
        _ if age(store, &there.meta, doubt) == Age::Old => Ok(Outcome::NotDone),
        // The copy of an object that was uploaded in parts, or is encrypted, has a tag of its own.
        _ => Ok(Outcome::Unknown),
    }
}

/// Whether `upload` became the object that is at its key now, which is made of `parts`.
pub(super) async fn is_complete(store: &dyn ObjectStore, upload: &Upload, parts: &[Part], doubt: Doubt) -> Result<Outcome> {
    let there = store.details(&upload.key).await?;
    if there.meta.size != parts.iter().map(|part| part.size).sum::<u64>() {
        return Ok(Outcome::NotDone);
    }
    let tag = multipart_tag(parts);
    let sum = there.crc64.and_then(|crc64| Some((crc64.value, crc64.polynomial.of_parts(parts)?)));
    match sum {
        _ if tag.is_some_and(|tag| is_tag(&there.meta.etag, &tag)) => Ok(Outcome::Done(Written { etag: there.meta.etag })),
        Some((there_sum, sent)) => Ok(Outcome::of(there_sum == sent, there.meta.etag)),
        None if !bare(&there.meta.etag).ends_with(&format!("-{}", parts.len())) => Ok(Outcome::NotDone),
        // OSS returns no sum of a part that was copied. An upload that is still there did not become the object. One that is gone was completed,
        // or aborted by a lifecycle rule or an operator, who have no reason to do so minutes after its last part.
        None => match store.list_parts(upload, 0).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(match age(store, &there.meta, doubt) {
                Age::New => Outcome::Done(Written { etag: there.meta.etag }),
                Age::Old => Outcome::NotDone,
                Age::Unknown => Outcome::Unknown,
            }),
            listed => listed.map(|_| Outcome::NotDone),
        },
    }
}

/// When an object was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    /// Before the attempts whose outcome is not known.
    Old,
    /// During or after them.
    New,
    /// The store has not told its time.
    Unknown,
}

fn age(store: &dyn ObjectStore, there: &ObjectMeta, doubt: Doubt) -> Age {
    match store.time_at(doubt.from) {
        None => Age::Unknown,
        Some(from) if from.may_be_before(there.modified) => Age::New,
        Some(_) => Age::Old,
    }
}

/// The tag of an object out of parts whose tags are MD5s: the MD5 of these one after another, and their number.
fn multipart_tag(parts: &[Part]) -> Option<String> {
    let mut all = Md5::new();
    for part in parts {
        let md5 = hex::decode(bare(&part.etag)).ok().filter(|md5| md5.len() == 16)?;
        all.update(md5);
    }
    Some(format!("{}-{}", hex::encode(all.finalize()), parts.len()))
}

/// The tag without its quotes.
fn bare(etag: &ETag) -> &str {
    etag.as_str().trim_matches('"')
}

/// OSS writes its tags in capitals.
fn is_tag(etag: &ETag, hex: &str) -> bool {
    bare(etag).eq_ignore_ascii_case(hex)
}

#[cfg(test)]
mod tests;
