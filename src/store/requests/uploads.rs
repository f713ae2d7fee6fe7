//! Multipart uploads: begin, send and copy parts, complete, abort, list. Invariant: an object is complete only when its checksum
//! is that of its parts one after another, wherever the store tells it.

use http::{HeaderMap, HeaderValue, Method, header};

use super::adapt::{Becomes, Sent};
use super::documents::{completion, parts, uploads};
use super::headers::{ACL, decoded, encoded};
use super::objects::{gone, header_etag, no_etag};
use super::{Call, Requests};
use crate::store::{
    Body, Condition, Dialect, Error, ErrorKind, Key, Op, Part, PartChecksum, PartCopy, PartsPage, Result, Upload, UploadChecksum,
    UploadRequest, UploadsPage, Written,
};

/// That the sum is one of the whole object, which is made of those of the parts.
const WHOLE: &str = "FULL_OBJECT";

/// What S3 calls an algorithm.
pub(super) fn algorithm(sum: PartChecksum) -> &'static str {
    match sum {
        PartChecksum::Crc64 => "CRC64NVME",
        PartChecksum::Crc32c => "CRC32C",
    }
}

impl Requests {
    pub async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        let UploadRequest { key, headers, has_copies } = request;
        let object = self.names.of_object(Op::CreateUpload, key, headers)?;
        let sum = || self.sum_header().filter(|_| !has_copies);
        let form = |mut headers: HeaderMap| {
            headers.extend(object.clone());
            if let Some(sum) = sum() {
                headers.insert(self.names.vendor("checksum-algorithm"), HeaderValue::from_static(algorithm(sum)));
                // The sum of an object out of the CRC-32C of its parts is younger than many stores.
                if sum == PartChecksum::Crc64 {
                    headers.insert(self.names.vendor("checksum-type"), HeaderValue::from_static(WHOLE));
                }
            }
            Call::new(Op::CreateUpload, Method::POST, key).with([("uploads", String::new())]).headed(headers)
        };
        let reply = self.write(Op::CreateUpload, key, &Condition::Any, form).await?;
        let id = self.outcome(Op::CreateUpload, key, &reply)?.upload_id.filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| Error::new(ErrorKind::Malformed, Op::CreateUpload, key, "the answer does not name the upload"))?;
        let confirmed = |sum: &PartChecksum| {
            let told = reply.headers.get(self.names.vendor("checksum-algorithm"));
            self.upload_checksum != UploadChecksum::Auto || told.is_some_and(|told| told == algorithm(*sum))
        };
        let checksum = if self.dialect == Dialect::Oss { Some(PartChecksum::Crc64) } else { sum().filter(confirmed) };
        let acl = headers.carried.get(ACL).filter(|_| self.dialect == Dialect::Oss).cloned();
        Ok(Upload { key: key.clone(), id, checksum, acl })
    }

    pub async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        let (key, size) = (&upload.key, body.len() as u64);
        let sent = Sent { body, becomes: Becomes::Part(upload.checksum) };
        let form = |headers: HeaderMap| Call::new(Op::UploadPart, Method::PUT, key).with(part_query(upload, number)).headed(headers);
        let (reply, digests) = self.write_body(Op::UploadPart, key, &Condition::Any, &sent, form).await?;
        let etag = header_etag(Op::UploadPart, key, &reply)?;
        Ok(Part { number, etag, size, crc64: Some(digests.crc64), crc32c: digests.crc32c })
    }

    pub async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        let was_weak = self.are_weak();
        match self.copy_part_at_once(upload, number, source).await {
            Err(error) if error.kind == ErrorKind::Replaced && self.turns_out_weak(&source.source, was_weak).await => {
                self.copy_part_at_once(upload, number, source).await
            }
            result => result,
        }
    }

    async fn copy_part_at_once(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        let (key, range) = (&upload.key, &source.range);
        if range.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, Op::CopyPart, key, "a part that is copied has at least one byte"));
        }
        let mut headers = self.copy_source(Op::CopyPart, &source.source, &source.etag).await?;
        if !self.conditional_part_copies {
            headers.remove(self.names.vendor("copy-source-if-match"));
        }
        let bytes = format!("bytes={}-{}", range.start, range.end - 1);
        headers.insert(self.names.vendor("copy-source-range"), HeaderValue::try_from(bytes).expect("digits are valid in a header"));
        let reply = self.exchange.send(&Call::new(Op::CopyPart, Method::PUT, key).with(part_query(upload, number)).headed(headers)).await?;
        let etag = self.outcome(Op::CopyPart, key, &reply)?.etag().ok_or_else(|| no_etag(Op::CopyPart, key))?;
        if !self.conditional_part_copies {
            // The source may have been replaced before the part was copied, and is then another version now.
            self.version_of_source(Op::CopyPart, &source.source, &source.etag).await?;
        }
        Ok(Part { number, etag, size: range.end - range.start, crc64: None, crc32c: None })
    }

    pub async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        let key = &upload.key;
        let crc64 = self.polynomial().of_parts(parts);
        let sums = upload.checksum.filter(|_| self.dialect == Dialect::S3);
        let acl = self.names.of_completion(upload)?;
        let form = |tells_whole: bool, mut headers: HeaderMap| {
            headers.extend(acl.clone());
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
            if let Some(crc64) = crc64.filter(|_| tells_whole && sums == Some(PartChecksum::Crc64)) {
                headers.insert(self.names.checksum(PartChecksum::Crc64), encoded(crc64.to_be_bytes()));
                headers.insert(self.names.vendor("checksum-type"), HeaderValue::from_static(WHOLE));
            }
            let body = Body::from(completion(parts, sums).into_bytes());
            Call::new(Op::CompleteUpload, Method::POST, key).with([("uploadId", upload.id.clone())]).headed(headers).bearing(body)
        };
        let mut reply = match self.write(Op::CompleteUpload, key, condition, |headers| form(true, headers)).await {
            // The sums of the parts may be welcome: all of the bytes would have to be sent again otherwise.
            Err(refused) if refused.kind == ErrorKind::ChecksumRefused => {
                self.write(Op::CompleteUpload, key, condition, |headers| form(false, headers)).await.map_err(|_| refused)?
            }
            reply => reply?,
        };
        let outcome = self.outcome(Op::CompleteUpload, key, &reply)?;
        // S3 tells the sum in the document, OSS in a header.
        if let Some(told) = outcome.crc64.as_deref().and_then(decoded) {
            reply.headers.insert(self.names.checksum(PartChecksum::Crc64), encoded(told.to_be_bytes()));
        }
        self.compare(Op::CompleteUpload, key, crc64, &reply)?;
        Ok(Written { etag: outcome.etag().ok_or_else(|| no_etag(Op::CompleteUpload, key))? })
    }

    pub async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        gone(self.exchange.send(&Call::new(Op::AbortUpload, Method::DELETE, &upload.key).with([("uploadId", upload.id.clone())])).await)
    }

    pub async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        let text = |key: &Key| {
            let text = key.to_str().map(str::to_owned);
            text.ok_or_else(|| {
                Error::new(ErrorKind::Invalid, Op::ListUploads, prefix, "keys that are asked for are UTF-8, this one is not")
            })
        };
        let mut query = vec![("uploads", String::new()), ("max-uploads", "1000".to_owned())];
        if self.dialect == Dialect::Oss {
            query.push(("encoding-type", "url".to_owned()));
        }
        if !prefix.as_bytes().is_empty() {
            query.push(("prefix", text(prefix)?));
        }
        if let Some((key, id)) = after {
            query.push(("key-marker", text(key)?));
            query.extend((!id.is_empty()).then(|| ("upload-id-marker", id.clone())));
        }
        let about = |error| Error { key: prefix.clone(), ..error };
        let reply = self.exchange.send(&Call::new(Op::ListUploads, Method::GET, &Key::root()).with(query)).await.map_err(about)?;
        uploads(&reply.body).map_err(|message| Error::new(ErrorKind::Malformed, Op::ListUploads, prefix, message))
    }

    pub async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        let mut query = vec![("uploadId", upload.id.clone()), ("max-parts", "1000".to_owned())];
        query.extend((after > 0).then(|| ("part-number-marker", after.to_string())));
        let reply = self.exchange.send(&Call::new(Op::ListParts, Method::GET, &upload.key).with(query)).await?;
        parts(&reply.body).map_err(|message| Error::new(ErrorKind::Malformed, Op::ListParts, &upload.key, message))
    }
}

pub(super) fn part_query(upload: &Upload, number: u32) -> [(&'static str, String); 2] {
    [("partNumber", number.to_string()), ("uploadId", upload.id.clone())]
}
