//! Multipart uploads: begin, send and copy parts, complete, abort, list. Invariant: an object is complete only when its checksum
//! is that of its parts one after another, wherever the store tells it.

use std::time::SystemTime;

use aws_sdk_s3::Client;
use aws_sdk_s3::operation::list_multipart_uploads::ListMultipartUploadsOutput;
use aws_sdk_s3::operation::list_parts::ListPartsOutput;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, EncodingType};
use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;

use super::adapt::{Becomes, Sent, Write};
use super::headers::{ACL, decoded, encoded, in_base64};
use super::objects::{gone, header_etag, told_etag};
use super::sdk_client::PLACEHOLDER;
use super::{Reply, Requests};
use crate::store::sorted_listing::directory_of;
use crate::store::{
    Body, Condition, Dialect, ETag, Error, ErrorKind, Key, Op, Part, PartChecksum, PartCopy, PartsPage, Result, Unfinished, Upload,
    UploadChecksum, UploadRequest, UploadsPage, Written,
};

/// Entries of a page, the most that stores give.
const PAGE: i32 = 1000;

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
            headers
        };
        let write = Write { op: Op::CreateUpload, key, condition: &Condition::Any };
        let (id, reply) = self.write(write, form, |headers| self.begin_upload(key, headers)).await?;
        let confirmed = |sum: &PartChecksum| {
            let told = reply.headers.get(self.names.vendor("checksum-algorithm"));
            self.upload_checksum != UploadChecksum::Auto || told.is_some_and(|told| told == algorithm(*sum))
        };
        let checksum = if self.dialect == Dialect::Oss { Some(PartChecksum::Crc64) } else { sum().filter(confirmed) };
        let acl = headers.carried.get(ACL).filter(|_| self.dialect == Dialect::Oss).cloned();
        Ok(Upload { key: key.clone(), id, checksum, acl })
    }

    /// Begins an upload of an object with `headers`. Returns its id, and the answer.
    pub(super) async fn begin_upload(&self, key: &Key, headers: HeaderMap) -> Result<(String, Reply)> {
        let create = |client: &Client| client.create_multipart_upload().bucket(PLACEHOLDER).key(PLACEHOLDER).send();
        let (created, reply) = self.sdk.send(Op::CreateUpload, key, headers, create).await?;
        match created.upload_id {
            Some(id) if !id.is_empty() => Ok((id, reply)),
            _ => Err(Error::new(ErrorKind::Malformed, Op::CreateUpload, key, "the answer does not name the upload")),
        }
    }

    pub async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        let (key, size) = (&upload.key, body.len() as u64);
        let sent = Sent { body, becomes: Becomes::Part(upload.checksum) };
        let write = Write { op: Op::UploadPart, key, condition: &Condition::Any };
        let (reply, digests) = self.write_body(write, &sent, &part_query(upload, number), |headers| headers).await?;
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
        let copy = |client: &Client| {
            let copy = client.upload_part_copy().bucket(PLACEHOLDER).key(PLACEHOLDER).copy_source(PLACEHOLDER);
            copy.upload_id(&upload.id).part_number(number.cast_signed()).send()
        };
        let (copied, _) = self.sdk.send(Op::CopyPart, key, headers, copy).await?;
        let etag = told_etag(Op::CopyPart, key, copied.copy_part_result.and_then(|result| result.e_tag))?;
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
            if let Some(crc64) = crc64.filter(|_| tells_whole && sums == Some(PartChecksum::Crc64)) {
                headers.insert(self.names.checksum(PartChecksum::Crc64), encoded(crc64.to_be_bytes()));
                headers.insert(self.names.vendor("checksum-type"), HeaderValue::from_static(WHOLE));
            }
            headers
        };
        let send = |headers: HeaderMap| {
            let complete = |client: &Client| {
                let complete = client.complete_multipart_upload().bucket(PLACEHOLDER).key(PLACEHOLDER).upload_id(&upload.id);
                complete.multipart_upload(completion(parts, sums)).send()
            };
            self.sdk.send(Op::CompleteUpload, key, headers, complete)
        };
        let write = Write { op: Op::CompleteUpload, key, condition };
        let (completed, reply) = match self.write(write, |headers| form(true, headers), send).await {
            // The sums of the parts may be welcome: all of the bytes would have to be sent again otherwise.
            Err(refused) if refused.kind == ErrorKind::ChecksumRefused => {
                self.write(write, |headers| form(false, headers), send).await.map_err(|_| refused)?
            }
            completed => completed?,
        };
        // S3 tells the sum in the document, OSS in a header.
        let in_document = completed.checksum_crc64_nvme.as_deref().and_then(decoded);
        let told = in_document.or_else(|| self.names.crc64(&reply.headers).map(|told| told.value));
        if let Some((sent, told)) = crc64.zip(told).filter(|(sent, told)| sent != told) {
            let message = format!("the store has content with CRC64 {told:016x}, sent was {sent:016x}");
            return Err(Error::new(ErrorKind::Corrupt, Op::CompleteUpload, key, message));
        }
        Ok(Written { etag: told_etag(Op::CompleteUpload, key, completed.e_tag)? })
    }

    pub async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        let abort = |client: &Client| client.abort_multipart_upload().bucket(PLACEHOLDER).key(PLACEHOLDER).upload_id(&upload.id).send();
        gone(self.sdk.send(Op::AbortUpload, &upload.key, HeaderMap::new(), abort).await)
    }

    pub async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        let text = |key: &Key| {
            let text = key.to_str().map(str::to_owned);
            text.ok_or_else(|| {
                Error::new(ErrorKind::Invalid, Op::ListUploads, prefix, "keys that are asked for are UTF-8, this one is not")
            })
        };
        let asked = if self.ordered_listings { prefix.clone() } else { directory_of(prefix) };
        let prefix_text = if asked.as_bytes().is_empty() { None } else { Some(text(&asked)?) };
        let (key_marker, id_marker) = match after {
            Some((key, id)) => (Some(text(key)?), Some(id.clone()).filter(|id| !id.is_empty())),
            None => (None, None),
        };
        let page_in = async |encoding: Option<EncodingType>| {
            let list = |client: &Client| {
                let list = client.list_multipart_uploads().bucket(PLACEHOLDER).max_uploads(PAGE).set_prefix(prefix_text.clone());
                let list = list.set_encoding_type(encoding).set_key_marker(key_marker.clone());
                list.set_upload_id_marker(id_marker.clone()).send()
            };
            let about = |error| Error { key: prefix.clone(), ..error };
            let (page, _) = self.sdk.send(Op::ListUploads, &Key::root(), HeaderMap::new(), list).await.map_err(about)?;
            uploads_page(page).map_err(|message| Error::new(ErrorKind::Malformed, Op::ListUploads, prefix, message))
        };
        // As of listings of objects: in XML as long as that can say the keys, because there are servers that confirm the encoding and do not encode.
        // What cannot be said is written as U+FFFD by some servers, and makes the document none with others.
        let mut page = match (self.dialect, page_in((self.dialect == Dialect::Oss).then_some(EncodingType::Url)).await) {
            (Dialect::S3, Ok(page))
                if page.uploads.iter().any(|upload| upload.key.to_str().is_some_and(|key| key.contains('\u{fffd}'))) =>
            {
                page_in(Some(EncodingType::Url)).await.unwrap_or(page)
            }
            (Dialect::S3, Err(error)) if error.kind == ErrorKind::Malformed => page_in(Some(EncodingType::Url)).await.map_err(|_| error)?,
            (_, page) => page?,
        };
        if !self.ordered_listings {
            page.uploads.retain(|upload| upload.key.as_bytes().starts_with(prefix.as_bytes()));
        }
        Ok(page)
    }

    pub async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        let marker = (after > 0).then(|| after.to_string());
        let list = |client: &Client| {
            let list = client.list_parts().bucket(PLACEHOLDER).key(PLACEHOLDER).upload_id(&upload.id);
            list.max_parts(PAGE).set_part_number_marker(marker).send()
        };
        let (page, _) = self.sdk.send(Op::ListParts, &upload.key, HeaderMap::new(), list).await?;
        parts_page(page).map_err(|message| Error::new(ErrorKind::Malformed, Op::ListParts, &upload.key, message))
    }
}

/// The parts that an upload ends with. Tags stand there without the mark of weak ones, which only answers through a proxy have. Each part names the
/// sum that it came with: MinIO and versitygw insist on it.
fn completion(parts: &[Part], sums: Option<PartChecksum>) -> CompletedMultipartUpload {
    let named = |part: &Part| {
        // The number is small; one that is not is refused by the store.
        let named = CompletedPart::builder().part_number(part.number.cast_signed()).e_tag(part.etag.opaque());
        match sums {
            Some(PartChecksum::Crc64) => named.set_checksum_crc64_nvme(part.crc64.map(|crc| in_base64(crc.to_be_bytes()))),
            Some(PartChecksum::Crc32c) => named.set_checksum_crc32_c(part.crc32c.map(|crc| in_base64(crc.to_be_bytes()))),
            None => named,
        }
    };
    let parts = parts.iter().map(|part| named(part).build()).collect();
    CompletedMultipartUpload::builder().set_parts(Some(parts)).build()
}

/// The page of uploads that the store listed, or why it is none.
fn uploads_page(page: ListMultipartUploadsOutput) -> Result<UploadsPage, String> {
    let is_encoded = page.encoding_type == Some(EncodingType::Url);
    let key = |text: &str| match is_encoded {
        // As in listings: a literal plus comes as %2B.
        true => Key::from(percent_decode_str(&text.replace('+', " ")).collect::<Vec<u8>>()),
        false => Key::from(text),
    };
    let mut uploads = Vec::with_capacity(page.uploads().len());
    for upload in page.uploads() {
        let (Some(name), Some(id)) = (&upload.key, &upload.upload_id) else {
            return Err("an upload is listed without its key or its id".into());
        };
        if name.is_empty() {
            return Err("an upload is listed with an empty key".into());
        }
        let initiated = upload.initiated.map(SystemTime::try_from).transpose();
        let initiated = initiated.map_err(|_| "an upload is listed with a date that no clock shows".to_owned())?;
        uploads.push(Unfinished { key: key(name), id: id.clone(), initiated });
    }
    let next = match (page.is_truncated, page.next_key_marker) {
        (Some(true), Some(marker)) => Some((key(&marker), page.next_upload_id_marker.unwrap_or_default())),
        (Some(true), None) => return Err("the list of uploads is not complete and does not say how to go on".into()),
        (Some(false) | None, _) => None,
    };
    Ok(UploadsPage { uploads, next })
}

/// The page of parts that the store listed, or why it is none.
fn parts_page(page: ListPartsOutput) -> Result<PartsPage, String> {
    let mut parts = Vec::with_capacity(page.parts().len());
    for part in page.parts() {
        let number = part.part_number.and_then(|number| u32::try_from(number).ok());
        let (Some(number), Some(size)) = (number, part.size.and_then(|size| u64::try_from(size).ok())) else {
            return Err("a part is listed without its number or its size".into());
        };
        // Some servers leave the ETag out: such a part is equal to no part that was sent.
        let etag = ETag::quoted(part.e_tag.as_deref().unwrap_or_default().trim());
        parts.push(Part { number, etag, size, crc64: None, crc32c: None });
    }
    let next = match (page.is_truncated, page.next_part_number_marker.and_then(|marker| marker.trim().parse().ok())) {
        (Some(true), Some(marker)) => Some(marker),
        (Some(true), None) => return Err("the list of parts is not complete and does not say how to go on".into()),
        (Some(false) | None, _) => None,
    };
    Ok(PartsPage { parts, next })
}

pub(super) fn part_query(upload: &Upload, number: u32) -> [(&'static str, String); 2] {
    [("partNumber", number.to_string()), ("uploadId", upload.id.clone())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_in_their_order_with_the_sum_of_the_upload() {
        let part = |number, etag: &str| Part { number, etag: etag.into(), size: 1, crc64: None, crc32c: None };
        let summed = Part { crc64: Some(0xae8b_1486_0a79_9888), crc32c: Some(0xe306_9283), ..part(7, "W/\"b\"") };
        for (sums, crc64, crc32c) in [
            (Some(PartChecksum::Crc64), Some("rosUhgp5mIg="), None),
            (Some(PartChecksum::Crc32c), None, Some("4waSgw==")),
            (None, None, None),
        ] {
            let document = completion(&[part(1, "\"a\""), summed.clone()], sums);
            let parts: Vec<_> = document.parts().iter().map(|part| (part.part_number(), part.e_tag())).collect();
            assert_eq!(parts, [(Some(1), Some("\"a\"")), (Some(7), Some("\"b\""))]);
            assert_eq!((document.parts()[0].checksum_crc64_nvme(), document.parts()[0].checksum_crc32_c()), (None, None));
            assert_eq!((document.parts()[1].checksum_crc64_nvme(), document.parts()[1].checksum_crc32_c()), (crc64, crc32c));
        }
    }
}
