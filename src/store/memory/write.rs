//! How the store in memory changes: the body is sent at the pace of the plan, then the change happens at one instant, then
//! the answer is lost if that was planned. Invariant: a request that fails for any other reason has changed nothing.

use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until};

use super::bucket::{Bucket, Content, Incomplete};
use super::hold::Point;
use super::log::Guard;
use super::plan::Fault;
use super::read::next_stop;
use super::{Memory, not_found, precondition_failed};
use crate::store::symlink::{self, Link};
use crate::store::{
    Body, Condition, CopyRequest, Crc64, Details, ETag, Error, ErrorKind, Headers, Key, LARGEST_COPY, MOST_PARTS, ObjectSum, Op, Part,
    PartChecksum, PartCopy, PartsPage, Polynomial, PutRequest, Result, Unfinished, Upload, UploadRequest, UploadsPage, Written,
};

/// Entries of one page of uploads, or of parts.
const MOST_LISTED: usize = 1000;

impl Memory {
    /// Sends a body, of which nothing is kept here.
    async fn send(&self, op: Op, key: &Key, total: u64, faults: &[Fault], guard: &Guard) -> Result<()> {
        let (mut done, mut due) = (0, Instant::now());
        while done < total {
            for fault in faults {
                match *fault {
                    Fault::Truncate { after } if done >= after => {
                        let message = format!("the connection was reset after {done} of {total} bytes");
                        return Err(Error::new(ErrorKind::Unavailable, op, key, message));
                    }
                    Fault::Stall { after, pause } if done == after => {
                        sleep(pause).await;
                        due += pause;
                    }
                    Fault::Replace { after } if done == after => self.bucket.lock().replace(key),
                    _ => {}
                }
            }
            let n = next_stop(done, total, faults) - done;
            due = {
                let bucket = &mut *self.bucket.lock();
                bucket.up.on_piece(bucket.script.plan.bandwidth, due, n)
            };
            if due > Instant::now() {
                sleep_until(due).await;
            } else {
                tokio::task::yield_now().await;
            }
            guard.on_sent(n);
            done += n;
        }
        Ok(())
    }

    /// One request that changes something: its body of `len` bytes, then `change` at one instant.
    async fn carry_out<T>(
        &self,
        op: Op,
        key: &Key,
        len: u64,
        guard: Guard,
        change: impl FnOnce(&mut Bucket) -> Result<T> + Send,
    ) -> Result<T> {
        let answer = self.attempt(op, key, len, &guard, change).await;
        guard.close(answer)
    }

    async fn attempt<T>(
        &self,
        op: Op,
        key: &Key,
        len: u64,
        guard: &Guard,
        change: impl FnOnce(&mut Bucket) -> Result<T> + Send,
    ) -> Result<T> {
        let faults = self.first_byte(op, key).await?;
        self.send(op, key, len, &faults, guard).await?;
        let answer = change(&mut self.bucket.lock());
        self.pass(Point::Answer, op, key).await;
        if faults.contains(&Fault::Lost) {
            return Err(Error::new(ErrorKind::Timeout, op, key, "planned fault: the answer was lost"));
        }
        answer
    }

    pub(super) async fn answer_details(&self, key: &Key) -> Result<Details> {
        let guard = Guard::open(&self.log, Op::Head, key, None, None);
        self.carry_out(Op::Head, key, 0, guard, |bucket| {
            let object = bucket.objects.get(key).ok_or_else(|| not_found(Op::Head, key))?;
            let (meta, headers) = (object.meta(key), object.headers());
            let symlink = symlink::recognise(meta.size, &headers).map(|link| match link {
                Link::To(target) => target,
                Link::Inside => symlink::inside(&object.content.bytes(0..meta.size)),
            });
            let crc64 = bucket.checksums.then(|| nvme(&object.content.bytes(0..meta.size)));
            Ok(Details {
                meta,
                headers,
                storage_class: object.storage_class(),
                version_id: None,
                crc64,
                sum: crc64.map(ObjectSum::from),
                symlink,
            })
        })
        .await
    }

    pub(super) async fn answer_put(&self, request: &PutRequest) -> Result<Written> {
        let PutRequest { key, body, headers, condition } = request;
        let guard = Guard::open(&self.log, Op::Put, key, None, None);
        self.carry_out(Op::Put, key, body.len() as u64, guard, |bucket| {
            check(bucket, Op::Put, key, condition)?;
            Ok(Written { etag: bucket.put(key.clone(), headers.clone(), |_, _| Content::Stored(own(body))) })
        })
        .await
    }

    pub(super) async fn answer_create(&self, request: &UploadRequest) -> Result<Upload> {
        let UploadRequest { key, headers, .. } = request;
        let guard = Guard::open(&self.log, Op::CreateUpload, key, None, None);
        self.carry_out(Op::CreateUpload, key, 0, guard, |bucket| {
            let id = bucket.begin(key, headers.clone());
            Ok(Upload { key: key.clone(), id, checksum: bucket.checksums.then_some(PartChecksum::Crc64), acl: None })
        })
        .await
    }

    pub(super) async fn answer_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        let guard = Guard::open(&self.log, Op::UploadPart, &upload.key, None, None).of_part(number);
        self.carry_out(Op::UploadPart, &upload.key, body.len() as u64, guard, |bucket| {
            add_part(bucket, Op::UploadPart, upload, number, own(&body.joined()))
        })
        .await
    }

    pub(super) async fn answer_copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        let (range, etag) = (source.range.clone(), source.etag.clone());
        let guard = Guard::open(&self.log, Op::CopyPart, &upload.key, Some(range.clone()), Some(etag)).of_part(number);
        self.carry_out(Op::CopyPart, &upload.key, 0, guard, |bucket| {
            let content = copied(bucket, Op::CopyPart, &source.source, &source.etag)?.0;
            if range.is_empty() || range.end > content.size() {
                let message = format!("bytes {range:?} of {}", content.size());
                return Err(refused(Op::CopyPart, &source.source, "InvalidRequest", message));
            }
            let part = add_part(bucket, Op::CopyPart, upload, number, content.bytes(range))?;
            Ok(Part { crc64: None, ..part })
        })
        .await
    }

    pub(super) async fn answer_complete(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        let key = &upload.key;
        let guard = Guard::open(&self.log, Op::CompleteUpload, key, None, None);
        self.carry_out(Op::CompleteUpload, key, 0, guard, |bucket| {
            let name = (key.clone(), upload.id.clone());
            if !bucket.uploads.contains_key(&name) {
                return Err(no_such_upload(Op::CompleteUpload, key));
            }
            check(bucket, Op::CompleteUpload, key, condition)?;
            let etag = bucket.complete(&name, parts).map_err(|why| {
                let code = match why {
                    Incomplete::InvalidPart => "InvalidPart",
                    Incomplete::InvalidPartOrder => "InvalidPartOrder",
                    Incomplete::EntityTooSmall => "EntityTooSmall",
                    Incomplete::MalformedXml => "MalformedXML",
                };
                refused(Op::CompleteUpload, key, code, "the parts are not an object".into())
            })?;
            Ok(Written { etag })
        })
        .await
    }

    pub(super) async fn answer_abort(&self, upload: &Upload) -> Result<()> {
        let guard = Guard::open(&self.log, Op::AbortUpload, &upload.key, None, None);
        self.carry_out(Op::AbortUpload, &upload.key, 0, guard, |bucket| {
            bucket.uploads.remove(&(upload.key.clone(), upload.id.clone()));
            Ok(())
        })
        .await
    }

    pub(super) async fn answer_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        let guard = Guard::open(&self.log, Op::ListUploads, prefix, None, None);
        self.carry_out(Op::ListUploads, prefix, 0, guard, |bucket| {
            let all = bucket.uploads.iter().filter(|((key, _), _)| key.as_bytes().starts_with(prefix.as_bytes()));
            let mut rest = all.filter(|(name, _)| after.is_none_or(|after| *name > after));
            let uploads: Vec<Unfinished> = rest
                .by_ref()
                .take(MOST_LISTED)
                .map(|((key, id), uploading)| Unfinished { key: key.clone(), id: id.clone(), initiated: Some(uploading.initiated) })
                .collect();
            let more = rest.next().is_some();
            let next = uploads.last().filter(|_| more).map(|last| (last.key.clone(), last.id.clone()));
            Ok(UploadsPage { uploads, next })
        })
        .await
    }

    pub(super) async fn answer_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        let key = &upload.key;
        let guard = Guard::open(&self.log, Op::ListParts, key, None, None);
        self.carry_out(Op::ListParts, key, 0, guard, |bucket| {
            let uploading = bucket.uploads.get(&(key.clone(), upload.id.clone())).ok_or_else(|| no_such_upload(Op::ListParts, key))?;
            let mut rest = uploading.parts.range(after.saturating_add(1)..);
            let part = |(&number, (etag, content)): (&u32, &(ETag, Bytes))| Part {
                number,
                etag: etag.clone(),
                size: content.len() as u64,
                crc64: None,
                crc32c: None,
            };
            let parts: Vec<Part> = rest.by_ref().take(MOST_LISTED).map(part).collect();
            let next = parts.last().map(|last| last.number).filter(|_| rest.next().is_some());
            Ok(PartsPage { parts, next })
        })
        .await
    }

    pub(super) async fn answer_copy(&self, request: &CopyRequest) -> Result<Written> {
        let CopyRequest { source, etag, target, headers, condition } = request;
        let guard = Guard::open(&self.log, Op::Copy, target, None, Some(etag.clone()));
        self.carry_out(Op::Copy, target, 0, guard, |bucket| {
            let (content, own) = copied(bucket, Op::Copy, source, etag)?;
            if content.size() > LARGEST_COPY {
                let message = format!("{} bytes are more than one copy takes", content.size());
                return Err(refused(Op::Copy, source, "InvalidRequest", message));
            }
            check(bucket, Op::Copy, target, condition)?;
            let headers = match headers {
                Some(headers) => {
                    let mut headers = headers.clone();
                    headers.carried.extend(own.carried.get("tagging").map(|tags| ("tagging".to_owned(), tags.clone())));
                    headers
                }
                None => own,
            };
            Ok(Written { etag: bucket.put(target.clone(), headers, |_, _| content) })
        })
        .await
    }

    pub(super) async fn answer_delete(&self, key: &Key, condition: &Condition) -> Result<()> {
        let guard = Guard::open(&self.log, Op::Delete, key, None, None);
        self.carry_out(Op::Delete, key, 0, guard, |bucket| {
            if bucket.objects.contains_key(key) {
                check(bucket, Op::Delete, key, condition)?;
            }
            bucket.objects.remove(key);
            Ok(())
        })
        .await
    }
}

fn nvme(content: &[u8]) -> Crc64 {
    Crc64 { polynomial: Polynomial::Nvme, value: Polynomial::Nvme.of(content) }
}

/// A copy: the sender wants its buffer back.
fn own(body: &Bytes) -> Bytes {
    Bytes::copy_from_slice(body)
}

fn check(bucket: &Bucket, op: Op, key: &Key, condition: &Condition) -> Result<()> {
    if bucket.allows(key, condition) {
        return Ok(());
    }
    Err(precondition_failed(op, key, format!("the object that is there does not meet {condition:?}")))
}

/// The content and the headers of the source of a copy.
fn copied(bucket: &Bucket, op: Op, source: &Key, etag: &ETag) -> Result<(Content, Headers)> {
    let object = bucket.objects.get(source).ok_or_else(|| not_found(op, source))?;
    if object.etag() != *etag {
        return Err(precondition_failed(op, source, format!("the source is now {}, not {etag}", object.etag())));
    }
    Ok((object.content.clone(), object.headers()))
}

fn add_part(bucket: &mut Bucket, op: Op, upload: &Upload, number: u32, content: Bytes) -> Result<Part> {
    if !(1..=MOST_PARTS).contains(&number) {
        return Err(refused(op, &upload.key, "InvalidArgument", format!("there is no part {number}")));
    }
    let (size, crc64) = (content.len() as u64, bucket.checksums.then(|| Polynomial::Nvme.of(&content)));
    let added = bucket.add_part(&(upload.key.clone(), upload.id.clone()), number, content);
    let etag = added.ok_or_else(|| no_such_upload(op, &upload.key))?;
    Ok(Part { number, etag, size, crc64, crc32c: None })
}

fn no_such_upload(op: Op, key: &Key) -> Error {
    Error { status: Some(404), code: Some("NoSuchUpload".into()), ..Error::new(ErrorKind::NotFound, op, key, "no such upload") }
}

fn refused(op: Op, key: &Key, code: &str, message: String) -> Error {
    Error { status: Some(400), code: Some(code.into()), ..Error::new(ErrorKind::Invalid, op, key, message) }
}

#[cfg(test)]
mod tests;
