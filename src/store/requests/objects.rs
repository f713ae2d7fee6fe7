//! Whole objects: their details, PUT, copy, DELETE, symbolic links. Invariant: the checksum that the store tells of what it took
//! is that of what was sent, or the write is an error.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_sdk_s3::Client;
use futures::future::try_join;
use futures::{FutureExt, StreamExt, TryFutureExt, stream};
use http::{HeaderMap, HeaderValue, Method, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

use super::adapt::{Becomes, Sent, Write};
use super::deletion;
use super::digests::{CONTENT_MD5, content_md5, md5_of};
use super::headers::{Version, object_sum, sayable, version_in};
use super::sdk_client::PLACEHOLDER;
use super::uploads::algorithm;
use super::{Call, Reply, Requests};
use crate::store::symlink::{self, Link};
use crate::store::{
    Body, Condition, CopyRequest, DELETES_AT_ONCE, Details, Dialect, ETag, Error, ErrorKind, Headers, Key, ObjectMeta, Op, PutRequest,
    RenameRequest, Result, SYMLINK_SIZE, Written,
};

/// The longest target that OSS keeps in a link of its own, a key.
const LONGEST_KEY: usize = 1023;

/// How OSS writes the key that a link leads to.
const TARGET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

impl Requests {
    /// Size, version and date. No checksum is asked for: S3 tells that of an encrypted object only to who may decrypt it.
    pub async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.told(key, HeaderMap::new()).await.map(|(details, _)| details.meta)
    }

    /// What HEAD tells, and where a link of the store's own leads; and how many tags there are, where that is told.
    async fn facts(&self, key: &Key) -> Result<(Details, Option<u32>)> {
        let mut headers = HeaderMap::new();
        if self.sends_checksums() {
            headers.insert(self.names.vendor("checksum-mode"), HeaderValue::from_static("ENABLED"));
        }
        self.told(key, headers).await
    }

    async fn told(&self, key: &Key, headers: HeaderMap) -> Result<(Details, Option<u32>)> {
        let found = self.exchange.send(&Call::new(Op::Head, Method::HEAD, key).headed(headers)).await;
        let is_link = self.dialect == Dialect::Oss
            && match &found {
                Ok(reply) => reply.headers.get("x-oss-object-type").is_some_and(|kind| kind == "Symlink"),
                Err(error) => leads_nowhere(error),
            };
        if is_link {
            return Ok((self.own_link(key).await?, None));
        }
        let headers = found?.headers;
        let details = self.names.details(key, &headers)?;
        if !details.meta.etag.is_stand_in() {
            self.tags.on_header(details.meta.etag.as_str());
        }
        let sum = object_sum(self.dialect, &headers, &self.tags).filter(|_| self.verifies_reads);
        let tags = headers.get(self.names.vendor("tagging-count")).and_then(|count| count.to_str().ok()?.trim().parse().ok());
        if tags.is_some() {
            self.telling.on_count();
        }
        Ok((Details { sum, ..details }, tags))
    }

    /// What a link of OSS is by itself.
    async fn own_link(&self, key: &Key) -> Result<Details> {
        let mut reply = self.exchange.send(&Call::new(Op::Head, Method::GET, key).with([("symlink", String::new())])).await?;
        reply.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(SYMLINK_SIZE));
        let target = reply.headers.get("x-oss-symlink-target").map(|target| percent_decode(target.as_bytes()).collect());
        let target: Vec<u8> =
            target.ok_or_else(|| Error::new(ErrorKind::Malformed, Op::Head, key, "the answer does not say where the link leads"))?;
        // Not every server gives a link a tag of its own.
        if header_etag(Op::Head, key, &reply).is_err() {
            let tag = HeaderValue::try_from(ETag::of_link(&target).as_str()).expect("it is ASCII");
            reply.headers.insert(header::ETAG, tag);
        }
        Ok(Details { symlink: Some(target), ..self.names.details(key, &reply.headers)? })
    }

    pub async fn details(&self, key: &Key) -> Result<Details> {
        self.details_with_count(key).await.map(|(details, _)| details)
    }

    /// The same, and how many tags there are, where that is told.
    pub(super) async fn details_with_count(&self, key: &Key) -> Result<(Details, Option<u32>)> {
        let (mut details, tags) = self.facts(key).await?;
        if details.symlink.is_none() {
            details.symlink = match symlink::recognise(details.meta.size, &details.headers) {
                None => None,
                Some(Link::To(target)) => Some(target),
                Some(Link::Inside) => Some(symlink::inside(&self.content(key, &details.meta.etag).await?)),
            };
        }
        Ok((details, tags))
    }

    /// All of an object that is known to be small.
    async fn content(&self, key: &Key, etag: &ETag) -> Result<Vec<u8>> {
        let mut headers = HeaderMap::new();
        if !etag.is_weak() {
            headers.insert(header::IF_MATCH, super::headers::sayable(Op::Get, key, etag.as_str())?);
        }
        let reply = self.exchange.send(&Call::new(Op::Get, Method::GET, key).headed(headers)).await?;
        if version_in(&reply.headers, reply.body.len() as u64).is_none_or(|there| there != *etag) {
            return Err(Error::new(ErrorKind::Replaced, Op::Get, key, "the object was replaced"));
        }
        Ok(reply.body)
    }

    pub async fn put(&self, request: &PutRequest) -> Result<Written> {
        let PutRequest { key, body, headers, condition } = request;
        let object = self.names.of_object(Op::Put, key, headers)?;
        let sent = Sent { body: Body::from(body.clone()), becomes: Becomes::Object };
        let form = |mut headers: HeaderMap| {
            headers.extend(object.clone());
            // Of what is to be locked S3 wants a sum, and moto looks for this header alone.
            if let Some(sum) = self.sum_header()
                && self.names.locks(&object)
            {
                headers.insert(self.names.vendor("sdk-checksum-algorithm"), HeaderValue::from_static(algorithm(sum)));
            }
            headers
        };
        let (reply, _) = self.write_body(Write { op: Op::Put, key, condition }, &sent, &[], form).await?;
        Ok(Written { etag: header_etag(Op::Put, key, &reply)? })
    }

    pub async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        let was_weak = self.are_weak();
        match self.copy_at_once(request).await {
            Err(error) if error.kind == ErrorKind::Replaced && self.turns_out_weak(&request.source, was_weak).await => {
                self.copy_at_once(request).await
            }
            result => result,
        }
    }

    async fn copy_at_once(&self, request: &CopyRequest) -> Result<Written> {
        let CopyRequest { source, etag, target, headers, condition } = request;
        let (mut object, directive) = match headers {
            None => {
                // A copy by itself has neither class nor encryption nor access list of its source.
                let kept = self.details_to_copy(source).map_err(|error| Error { op: Op::Copy, ..error });
                let (mut object, kept) = try_join(self.copy_source(Op::Copy, source, etag), kept).await?;
                object.extend(self.names.of_store(Op::Copy, target, &kept.headers)?);
                (object, "COPY")
            }
            Some(headers) => {
                let mut object = self.copy_source(Op::Copy, source, etag).await?;
                object.extend(self.names.of_object(Op::Copy, target, headers)?);
                (object, "REPLACE")
            }
        };
        object.insert(self.names.vendor("metadata-directive"), HeaderValue::from_static(directive));
        if self.names.locks(&object) {
            // As of a PUT; here it is that of no body.
            object.insert(CONTENT_MD5, content_md5(md5_of(&Body::default())));
        }
        let form = |mut headers: HeaderMap| {
            headers.extend(object.clone());
            headers
        };
        let send = |headers: HeaderMap| {
            let copy = |client: &Client| client.copy_object().bucket(PLACEHOLDER).key(PLACEHOLDER).copy_source(PLACEHOLDER).send();
            self.sdk.send(Op::Copy, target, headers, copy)
        };
        let (copied, _) = self.write(Write { op: Op::Copy, key: target, condition }, form, send).await?;
        Ok(Written { etag: told_etag(Op::Copy, target, copied.copy_object_result.and_then(|result| result.e_tag))? })
    }

    /// The headers that name the source of a copy and its version.
    pub(super) async fn copy_source(&self, op: Op, source: &Key, etag: &ETag) -> Result<HeaderMap> {
        let is_strong = !etag.is_weak() && !self.tags.are_weak();
        if is_strong || etag.as_str().is_empty() {
            return self.names.copy_from(op, &self.bucket, source, Version::Tag(etag));
        }
        let there = self.version_of_source(op, source, etag).await?;
        let version = match &there.version_id {
            _ if !there.meta.etag.is_weak() => Version::Tag(etag),
            Some(id) => Version::Id(id),
            None => Version::Date(there.meta.modified),
        };
        self.names.copy_from(op, &self.bucket, source, version)
    }

    /// Reads what the source of a copy is now.
    ///
    /// # Errors
    /// [`ErrorKind::Replaced`] where it is another version than `etag`; else what the store answers.
    pub(super) async fn version_of_source(&self, op: Op, source: &Key, etag: &ETag) -> Result<Details> {
        let (there, _) = self.told(source, HeaderMap::new()).await.map_err(|error| Error { op, ..error })?;
        if there.meta.etag != *etag {
            return Err(Error::new(ErrorKind::Replaced, op, source, format!("the source is version {} now", there.meta.etag)));
        }
        Ok(there)
    }

    /// RenameObject of S3 Express One Zone: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_RenameObject.html>
    pub async fn rename(&self, request: &RenameRequest) -> Result<Option<Written>> {
        let RenameRequest { source: ObjectMeta { key: source, size, etag, modified }, target, condition, token } = request;
        // Keys that end in a slash are not renamed, and a version that cannot be named is none to insist on.
        let is_taken = !source.is_prefix() && !target.is_prefix() && !etag.as_str().is_empty() && !etag.is_weak();
        if !self.renames || !is_taken {
            return Ok(None);
        }
        let mut headers = self.names.rename_from(source, etag, token)?;
        match condition {
            Condition::Any => {}
            Condition::Absent => {
                headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
            }
            Condition::Is(etag) => {
                headers.insert(header::IF_MATCH, sayable(Op::Rename, target, etag.as_str())?);
            }
        }
        let rename = |client: &Client| client.rename_object().bucket(PLACEHOLDER).key(PLACEHOLDER).rename_source(PLACEHOLDER).send();
        self.sdk.send(Op::Rename, target, headers, rename).await?;
        // The answer does not tell the ETag, and the documents do not say that it stays; size and date do. Whatever a HEAD finds or fails with, the object has
        // been moved: an object of another client must not be taken for it, and one whose ETag is not known is read under the old one, or not at all.
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let is_it = |there: &ObjectMeta| there.size == *size && seconds(there.modified) == seconds(*modified);
        let there = self.head(target).await.ok().filter(is_it);
        Ok(Some(Written { etag: there.map_or_else(|| etag.clone(), |there| there.etag) }))
    }

    pub async fn delete(&self, key: &Key) -> Result<()> {
        gone(self.exchange.send(&Call::new(Op::Delete, Method::DELETE, key)).await)
    }

    pub async fn delete_version(&self, key: &Key, etag: &ETag) -> Result<()> {
        let condition = Condition::Is(etag.clone());
        let write = Write { op: Op::Delete, key, condition: &condition };
        let send = |headers| async move { self.exchange.send(&Call::new(Op::Delete, Method::DELETE, key).headed(headers)).await };
        match self.write(write, |headers| headers, send).await {
            // As of `delete`, whoever says it.
            Err(error) if error.kind == ErrorKind::Replaced => match self.head(key).await {
                Err(now) if now.kind == ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            },
            result => gone(result),
        }
    }

    /// One request for all of them, unless the endpoint turns out to know none such.
    pub async fn delete_many(&self, keys: &[Key]) -> Result<Vec<Error>> {
        let (named, odd): (Vec<&Key>, Vec<&Key>) = keys.iter().partition(|key| deletion::can_name(key));
        let mut left = Vec::new();
        let mut one_by_one = odd;
        if !named.is_empty() && self.deletes_many.is_taken() {
            match self.delete_named(&named).await {
                Ok(refused) => left = refused,
                // It knows no such request, or allows none.
                Err(error) if matches!(error.kind, ErrorKind::Invalid | ErrorKind::AccessDenied | ErrorKind::NotFound) => {
                    self.without(
                        &self.deletes_many,
                        &error,
                        "the endpoint takes no request for many deletes: objects are deleted one by one",
                    );
                    one_by_one.extend(named);
                }
                Err(error) => return Err(error),
            }
        } else {
            one_by_one.extend(named);
        }
        let deletes = one_by_one.into_iter().map(|key| async move { self.delete(key).await.err() }.boxed()).collect::<Vec<_>>();
        let others: Vec<Option<Error>> = stream::iter(deletes).buffered(DELETES_AT_ONCE).collect().await;
        left.extend(others.into_iter().flatten());
        Ok(left)
    }

    async fn delete_named(&self, keys: &[&Key]) -> Result<Vec<Error>> {
        let (root, op) = (Key::root(), Op::Delete);
        let document = deletion::request(keys);
        let delete = |client: &Client| client.delete_objects().bucket(PLACEHOLDER).delete(document).send();
        let (output, reply) = self.sdk.send(op, &root, HeaderMap::new(), delete).await?;
        let errors = output.errors().iter().map(|failure| deletion::error_of(failure, &reply.headers));
        let errors: Vec<Error> = errors.filter(|error| error.kind != ErrorKind::NotFound).collect();
        // The caller retries by the key in the answer, so a key outside the request would delete another object.
        let named: HashSet<&Key> = keys.iter().copied().collect();
        if let Some(other) = errors.iter().find(|error| !named.contains(&error.key)) {
            let message = format!("the answer has an error of {:?}, which was not to be deleted: {}", other.key, other.message);
            return Err(Error::new(ErrorKind::Malformed, op, &root, message));
        }
        Ok(errors)
    }

    /// A link of the store's own where it has such and can say the target; OSS keeps a key, which begins with no slash.
    pub async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        let is_key = target.len() <= LONGEST_KEY && !matches!(target.first(), None | Some(b'/' | b'\\'));
        if self.dialect == Dialect::S3 || !is_key {
            return self.put(&symlink::put(key, target, headers, condition)?).await;
        }
        let mut object = self.names.of_object(Op::Put, key, headers)?;
        let encoded = percent_encode(target, TARGET).to_string();
        object.insert("x-oss-symlink-target", HeaderValue::try_from(encoded).expect("percent-encoding leaves what a header takes"));
        let form = |mut headers: HeaderMap| {
            headers.extend(object.clone());
            headers
        };
        let send = |headers| async move {
            self.exchange.send(&Call::new(Op::Put, Method::PUT, key).with([("symlink", String::new())]).headed(headers)).await
        };
        let reply = self.write(Write { op: Op::Put, key, condition }, form, send).await?;
        // As `own_link` has it.
        Ok(Written { etag: header_etag(Op::Put, key, &reply).unwrap_or_else(|_| ETag::of_link(target)) })
    }
}

/// HEAD of OSS follows links, also to nothing or to another link.
fn leads_nowhere(error: &Error) -> bool {
    error.code.as_deref().is_some_and(|code| code.starts_with("SymlinkTarget") || code == "InvalidTargetType")
}

/// What is not there needs no deleting.
pub(super) fn gone<T>(result: Result<T>) -> Result<()> {
    match result {
        Err(error) if error.kind != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn header_etag(op: Op, key: &Key, reply: &Reply) -> Result<ETag> {
    let text = reply.headers.get(header::ETAG).and_then(|value| value.to_str().ok());
    text.map(ETag::quoted).ok_or_else(|| no_etag(op, key))
}

/// The tag that a document tells.
pub(super) fn told_etag(op: Op, key: &Key, text: Option<String>) -> Result<ETag> {
    let text = text.as_deref().map(str::trim).filter(|text| !text.is_empty());
    text.map(ETag::quoted).ok_or_else(|| no_etag(op, key))
}

fn no_etag(op: Op, key: &Key) -> Error {
    Error::new(ErrorKind::Malformed, op, key, "the answer does not tell the ETag")
}
