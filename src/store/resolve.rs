//! What became of a write whose answer was lost: the object that is there now is compared with what was sent. It changes
//! nothing. Invariant: a write is called done only when the object's content is known to be what was written.

use bytes::Bytes;
use md5::{Digest, Md5};

use super::retry::Doubt;
use super::whole::Whole;
use super::{CopyRequest, Details, ETag, Key, ObjectMeta, ObjectStore, Part, RangeRequest, Result, Written};

/// Whether a link to `target` is what is at `key` now.
pub(super) async fn is_link(store: &dyn ObjectStore, key: &Key, target: &[u8]) -> Result<Option<Written>> {
    let there = store.details(key).await?;
    Ok((there.symlink.as_deref() == Some(target)).then_some(Written { etag: there.meta.etag }))
}

/// Whether `body` is what is at `key` now.
pub(super) async fn is_put(store: &dyn ObjectStore, key: &Key, body: &Bytes) -> Result<Option<Written>> {
    let there = store.details(key).await?;
    if there.meta.size != body.len() as u64 {
        return Ok(None);
    }
    let same = match there.crc64 {
        Some(crc64) => crc64.polynomial.of(body) == crc64.value,
        None if body.is_empty() || is_tag(&there.meta.etag, &hex::encode(Md5::digest(body))) => true,
        // A tag that is no MD5 (encrypted, or a store of its own kind) says nothing: what is there is read.
        None => read(store, &there.meta).await? == *body,
    };
    Ok(same.then_some(Written { etag: there.meta.etag }))
}

/// Whether what is at the target now is the copy.
pub(super) async fn is_copy(store: &dyn ObjectStore, request: &CopyRequest, doubt: Doubt) -> Result<Option<Written>> {
    let (there, source) = (store.details(&request.target).await?, store.details(&request.source).await?);
    if there.meta.size != source.meta.size || source.meta.etag != request.etag {
        return Ok(None);
    }
    let same = match (there.crc64, source.crc64) {
        (Some(there), Some(source)) => there == source,
        _ => there.meta.etag == source.meta.etag || is_new(store, &there, doubt),
    };
    Ok(same.then_some(Written { etag: there.meta.etag }))
}

/// Whether the object at `key` is made of `parts`.
pub(super) async fn is_complete(store: &dyn ObjectStore, key: &Key, parts: &[Part], doubt: Doubt) -> Result<Option<Written>> {
    let there = store.details(key).await?;
    if there.meta.size != parts.iter().map(|part| part.size).sum::<u64>() {
        return Ok(None);
    }
    let tag = multipart_tag(parts);
    let sum = there.crc64.and_then(|crc64| Some((crc64.value, crc64.polynomial.of_parts(parts)?)));
    let same = match sum {
        _ if tag.is_some_and(|tag| is_tag(&there.meta.etag, &tag)) => true,
        Some((there, sent)) => there == sent,
        None => bare(&there.meta.etag).ends_with(&format!("-{}", parts.len())) && is_new(store, &there, doubt),
    };
    Ok(same.then_some(Written { etag: there.meta.etag }))
}

fn is_new(store: &dyn ObjectStore, there: &Details, doubt: Doubt) -> bool {
    store.time_at(doubt.from).is_some_and(|from| from.may_be_before(there.meta.modified))
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

/// The content of an object no longer than what was just sent.
async fn read(store: &dyn ObjectStore, meta: &ObjectMeta) -> Result<Vec<u8>> {
    let mut whole = Whole::new(meta.size);
    let request = RangeRequest { key: meta.key.clone(), range: 0..meta.size, etag: meta.etag.clone() };
    store.get_range(&request, &mut whole).await?;
    Ok(whole.content)
}

#[cfg(test)]
mod tests;
