//! How the bucket is written: whole objects, multipart uploads with parts that are sent or copied, copies, conditions, checksums
//! (CRC64NVME of the whole). Tags are those of S3: the MD5, or that of the parts' MD5s and their number.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::TryStreamExt;
use md5::{Digest, Md5};
use s3s::dto::*;
use s3s::{S3Response, S3Result, s3_error};
use windlass::store::{Key, Polynomial};

use super::{About, Bucket, Content, Habits, Object, Objects, Refusing, check};

/// Uploads of one page of their list, and parts of one of theirs.
const MOST_UPLOADS: usize = 3;

/// An upload that is neither complete nor aborted.
#[derive(Debug)]
pub struct Uploading {
    about: About,
    checked: bool,
    initiated: SystemTime,
    parts: BTreeMap<i32, Bytes>,
}

pub fn in_base64(crc64: u64) -> String {
    BASE64_STANDARD.encode(crc64.to_be_bytes())
}

fn md5(content: &[u8]) -> String {
    hex::encode(Md5::digest(content))
}

impl Habits {
    /// A tag as it stands in the header of an answer.
    pub fn header(self, etag: String) -> ETag {
        if self.weak_tags { ETag::Weak(etag) } else { ETag::Strong(etag) }
    }

    /// The tag of `content`.
    fn tag(self, content: &[u8]) -> String {
        if self.odd_tags { md5(&[content, b"salt"].concat()) } else { md5(content) }
    }
}

async fn collect(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let mut bytes = Vec::new();
    if let Some(mut body) = body {
        while let Some(piece) = body.try_next().await.map_err(|_| s3_error!(IncompleteBody))? {
            bytes.extend_from_slice(&piece);
        }
    }
    Ok(bytes.into())
}

impl Objects {
    fn check_md5(&self, sent: Option<&String>, content: &[u8]) -> S3Result<()> {
        match sent.filter(|_| !self.habits.silent_checksums) {
            Some(sent) if *sent != BASE64_STANDARD.encode(Md5::digest(content)) => {
                Err(s3_error!(BadDigest, "The Content-MD5 you specified did not match what we received."))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a body without any sum where one is required.
    fn require_sum(&self, sums: &[Option<&String>]) -> S3Result<()> {
        match self.habits.requires_checksums && sums.iter().all(Option::is_none) {
            true => Err(s3_error!(InvalidRequest, "Missing required header for this request: Content-MD5 OR x-amz-checksum-*")),
            false => Ok(()),
        }
    }

    /// Checks the CRC-64 that came with a body, and returns the one of the store.
    fn sum(&self, sent: Option<&String>, content: &[u8]) -> S3Result<Option<u64>> {
        let own = || Polynomial::Nvme.of(content);
        let is_checked = self.check_sum("CRC64NVME", sent, || in_base64(own()))?;
        // A directory bucket makes the sum of what comes without one.
        Ok((is_checked || self.habits.is_directory_bucket).then(own))
    }

    /// Checks the CRC-32C that came with a body, and returns the one that the store tells.
    fn crc32c(&self, sent: Option<&String>, content: &[u8]) -> S3Result<Option<String>> {
        let own = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, content) as u32;
        let text = |sum: u32| BASE64_STANDARD.encode(sum.to_be_bytes());
        let is_checked = self.check_sum("CRC32C", sent, || text(own))?;
        Ok(is_checked.then(|| text(own ^ u32::from(self.habits.wrong_checksums))))
    }

    /// Whether a sum came and was looked at; an error where it is another one than `own`.
    fn check_sum(&self, algorithm: &str, sent: Option<&String>, own: impl Fn() -> String) -> S3Result<bool> {
        let Some(sent) = sent.filter(|_| !self.habits.silent_checksums) else { return Ok(false) };
        if self.habits.no_checksums {
            return Err(s3_error!(InvalidArgument, "Value for x-amz-checksum-{} header is invalid.", algorithm.to_lowercase()));
        }
        match *sent == own() {
            true => Ok(true),
            false => Err(s3_error!(BadDigest, "The {algorithm} you specified did not match the calculated checksum.")),
        }
    }

    fn told(&self, sum: Option<u64>) -> Option<String> {
        sum.map(|sum| in_base64(sum ^ u64::from(self.habits.wrong_checksums)))
    }

    pub(super) fn meets(&self, key: &str, if_match: Option<&ETagCondition>, if_none_match: Option<&ETagCondition>) -> S3Result<()> {
        if self.habits.no_conditions && (if_match.is_some() || if_none_match.is_some()) {
            return Err(s3_error!(NotImplemented, "A header you provided implies functionality that is not implemented"));
        }
        if self.habits.silent_conditions {
            return Ok(());
        }
        let there = self.by_key.get(&Key::from(key));
        match (if_match, if_none_match, there) {
            (Some(_), _, None) => Err(s3_error!(NoSuchKey)),
            (Some(ETagCondition::ETag(wanted)), _, Some(there)) if !self.habits.header(there.etag()).strong_cmp(wanted) => {
                Err(s3_error!(PreconditionFailed))
            }
            (_, Some(ETagCondition::Any), Some(_)) => Err(s3_error!(PreconditionFailed)),
            _ => Ok(()),
        }
    }

    /// The object that a copy is made of.
    fn source(&self, source: &CopySource, if_match: Option<&ETagCondition>, unmodified_since: Option<&Timestamp>) -> S3Result<Object> {
        let key = match source {
            CopySource::Bucket { bucket, key, .. } => {
                check(bucket)?;
                key
            }
            CopySource::AccessPoint { key, .. } | CopySource::Outpost { key, .. } => key,
        };
        let object = self.by_key.get(&Key::from(&**key)).ok_or_else(|| s3_error!(NoSuchKey))?;
        // Dates in headers have whole seconds.
        let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970").as_secs();
        let parsed = |limit: &Timestamp| {
            let mut text = Vec::new();
            limit.format(TimestampFormat::HttpDate, &mut text).expect("a date can be written");
            httpdate::parse_http_date(std::str::from_utf8(&text).unwrap()).expect("it was written just now")
        };
        if unmodified_since.is_some_and(|limit| seconds(object.modified) > seconds(parsed(limit))) {
            return Err(s3_error!(PreconditionFailed));
        }
        match if_match {
            Some(ETagCondition::ETag(wanted)) if !self.habits.header(object.etag()).strong_cmp(wanted) => {
                Err(s3_error!(PreconditionFailed))
            }
            _ => Ok(object.clone()),
        }
    }

    fn uploading(&mut self, key: &str, id: &str) -> S3Result<&mut Uploading> {
        self.uploads.get_mut(&(key.into(), id.to_owned())).ok_or_else(|| s3_error!(NoSuchUpload))
    }
}

impl Bucket {
    pub(super) async fn put_object(&self, input: PutObjectInput) -> S3Result<S3Response<PutObjectOutput>> {
        let content = collect(input.body).await?;
        let mut objects = self.lock();
        objects.meets(&input.key, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        objects.check_md5(input.content_md5.as_ref(), &content)?;
        let sums = (input.checksum_crc64nvme.as_ref(), input.checksum_crc32c.as_ref());
        objects.require_sum(&[input.content_md5.as_ref(), sums.0, sums.1])?;
        let (crc64, checksum_crc32c) = (objects.sum(sums.0, &content)?, objects.crc32c(sums.1, &content)?);
        let about = About {
            etag: Some(objects.habits.tag(&content)),
            content_type: input.content_type,
            content_encoding: input.content_encoding,
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            content_language: input.content_language,
            expires: input.expires,
            metadata: input.metadata.unwrap_or_default().into_iter().collect(),
            storage_class: input.storage_class.map(|class| class.as_str().to_owned()),
            encryption: input.server_side_encryption.map(|sse| sse.as_str().to_owned()),
            acl: input.acl.map(|acl| acl.as_str().to_owned()),
            crc64,
        };
        let (etag, encryption) =
            (about.etag.clone().map(|etag| objects.habits.header(etag)), about.encryption.clone().map(ServerSideEncryption::from));
        objects.put(&input.key, about, |_| Content::Stored(content));
        Ok(S3Response::new(PutObjectOutput {
            e_tag: etag,
            server_side_encryption: encryption,
            checksum_crc64nvme: objects.told(crc64),
            checksum_crc32c,
            ..Default::default()
        }))
    }

    pub(super) fn copy_object(&self, input: CopyObjectInput) -> S3Result<S3Response<CopyObjectOutput>> {
        let mut objects = self.lock();
        let source =
            objects.source(&input.copy_source, input.copy_source_if_match.as_ref(), input.copy_source_if_unmodified_since.as_ref())?;
        let replaced = input.metadata_directive.as_ref().is_some_and(|directive| directive.as_str() == MetadataDirective::REPLACE);
        let kept = source.about;
        let about = About {
            content_type: if replaced { input.content_type } else { kept.content_type },
            content_encoding: if replaced { input.content_encoding } else { kept.content_encoding },
            cache_control: if replaced { input.cache_control } else { kept.cache_control },
            content_disposition: if replaced { input.content_disposition } else { kept.content_disposition },
            content_language: if replaced { input.content_language } else { kept.content_language },
            expires: if replaced { input.expires } else { kept.expires },
            metadata: if replaced { input.metadata.unwrap_or_default().into_iter().collect() } else { kept.metadata },
            storage_class: input.storage_class.map(|class| class.as_str().to_owned()),
            encryption: input.server_side_encryption.map(|sse| sse.as_str().to_owned()),
            acl: input.acl.map(|acl| acl.as_str().to_owned()),
            crc64: kept.crc64,
            // One tag for one content, as long as it is not that of parts.
            etag: kept.etag.filter(|etag| !etag.contains('-')),
        };
        objects.put(&input.key, about, |_| source.content);
        let etag = objects.by_key[&Key::from(input.key.as_str())].etag();
        let result =
            CopyObjectResult { e_tag: Some(ETag::Strong(etag)), last_modified: Some(SystemTime::now().into()), ..Default::default() };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() }))
    }

    pub(super) fn create_multipart_upload(&self, input: CreateMultipartUploadInput) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let mut objects = self.lock();
        let algorithm = input.checksum_algorithm.filter(|_| !objects.habits.silent_checksums);
        if algorithm.is_some() && objects.habits.no_checksums {
            return Err(s3_error!(InvalidArgument, "Value for x-amz-checksum-algorithm header is invalid."));
        }
        objects.version += 1;
        let id = format!("upload-{:06}", objects.version);
        let about = About {
            content_type: input.content_type,
            content_encoding: input.content_encoding,
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            content_language: input.content_language,
            expires: input.expires,
            metadata: input.metadata.unwrap_or_default().into_iter().collect(),
            storage_class: input.storage_class.map(|class| class.as_str().to_owned()),
            encryption: input.server_side_encryption.map(|sse| sse.as_str().to_owned()),
            acl: input.acl.map(|acl| acl.as_str().to_owned()),
            ..About::default()
        };
        let uploading = Uploading { about, checked: algorithm.is_some(), initiated: SystemTime::now(), parts: BTreeMap::new() };
        objects.uploads.insert((input.key.as_str().into(), id.clone()), uploading);
        let output =
            CreateMultipartUploadOutput { key: Some(input.key), upload_id: Some(id), checksum_algorithm: algorithm, ..Default::default() };
        Ok(S3Response::new(output))
    }

    pub(super) async fn upload_part(&self, input: UploadPartInput) -> S3Result<S3Response<UploadPartOutput>> {
        let content = collect(input.body).await?;
        let mut objects = self.lock();
        if input.checksum_crc64nvme.is_some() && objects.habits.refuses_sums == Some(Refusing::Parts) {
            return Err(s3_error!(InvalidArgument, "Value for x-amz-checksum-crc64nvme header is invalid."));
        }
        let sums = (input.checksum_crc64nvme.as_ref(), input.checksum_crc32c.as_ref());
        objects.require_sum(&[input.content_md5.as_ref(), sums.0, sums.1])?;
        let (crc64, checksum_crc32c) = (objects.sum(sums.0, &content)?, objects.crc32c(sums.1, &content)?);
        objects.check_md5(input.content_md5.as_ref(), &content)?;
        let etag = objects.habits.header(objects.habits.tag(&content));
        objects.uploading(&input.key, &input.upload_id)?.parts.insert(input.part_number, content);
        let checksum_crc64nvme = objects.told(crc64);
        Ok(S3Response::new(UploadPartOutput { e_tag: Some(etag), checksum_crc64nvme, checksum_crc32c, ..Default::default() }))
    }

    pub(super) fn upload_part_copy(&self, input: UploadPartCopyInput) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let mut objects = self.lock();
        let source =
            objects.source(&input.copy_source, input.copy_source_if_match.as_ref(), input.copy_source_if_unmodified_since.as_ref())?;
        let range = input.copy_source_range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let (first, last) = range.ok_or_else(|| s3_error!(InvalidArgument))?;
        let (first, end): (u64, u64) = (first.parse().unwrap(), last.parse::<u64>().unwrap() + 1);
        if end > source.size() {
            return Err(s3_error!(InvalidRequest, "The specified copy range is invalid for the source object size"));
        }
        let content = source.bytes(first..end);
        let etag = ETag::Strong(objects.habits.tag(&content));
        let wants_sums = objects.habits.wants_part_sums;
        let uploading = objects.uploading(&input.key, &input.upload_id)?;
        if uploading.checked && wants_sums {
            return Err(s3_error!(InvalidArgument, "checksum missing, want CRC64NVME"));
        }
        let checksum_crc64nvme = uploading.checked.then(|| in_base64(Polynomial::Nvme.of(&content)));
        uploading.parts.insert(input.part_number, content);
        let result =
            CopyPartResult { checksum_crc64nvme, e_tag: Some(etag), last_modified: Some(SystemTime::now().into()), ..Default::default() };
        Ok(S3Response::new(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() }))
    }

    pub(super) fn complete_multipart_upload(
        &self,
        input: CompleteMultipartUploadInput,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let mut objects = self.lock();
        if std::mem::take(&mut objects.habits.late_error) {
            // Begun with success, and then it turns out otherwise.
            let future: futures::future::BoxFuture<'static, _> =
                Box::pin(async { Err(s3_error!(InternalError, "We encountered an internal error.")) });
            return Ok(S3Response::new(CompleteMultipartUploadOutput { future: Some(future), ..Default::default() }));
        }
        objects.uploading(&input.key, &input.upload_id)?;
        objects.meets(&input.key, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let habits = objects.habits;
        let uploading = objects.uploading(&input.key, &input.upload_id)?;
        if uploading.checked && habits.refuses_sums == Some(Refusing::Completion) {
            return Err(s3_error!(InvalidRequest, "The checksum type is not supported for multipart uploads."));
        }
        if input.checksum_crc64nvme.is_some() && habits.refuses_sums == Some(Refusing::Whole) {
            return Err(s3_error!(InvalidRequest, "The checksum type is not supported for multipart uploads."));
        }
        if habits.equal_parts {
            let mut sizes: Vec<usize> = uploading.parts.values().map(Bytes::len).collect();
            let last = sizes.pop().unwrap_or_default();
            if sizes.iter().any(|size| *size != sizes[0] || *size < last) {
                return Err(s3_error!(InvalidPart, "All non-trailing parts must have the same length."));
            }
        }
        let (mut whole, mut sums) = (Vec::new(), Vec::new());
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        for part in &parts {
            let content = part.part_number.and_then(|number| uploading.parts.get(&number)).ok_or_else(|| s3_error!(InvalidPart))?;
            let tag = habits.tag(content);
            let sum = uploading.checked.then(|| in_base64(Polynomial::Nvme.of(content)));
            let has_sum = !habits.silent_checksums && (part.checksum_crc64nvme.is_some() || habits.wants_part_sums);
            if part.e_tag != Some(ETag::Strong(tag.clone())) || (has_sum && part.checksum_crc64nvme != sum) {
                return Err(s3_error!(InvalidPart));
            }
            let digest = hex::decode(tag).expect("it was encoded just now");
            whole.extend_from_slice(content);
            sums.extend_from_slice(&digest);
        }
        let (checked, mut about) = (uploading.checked, uploading.about.clone());
        let crc64 = objects.sum(input.checksum_crc64nvme.as_ref(), &whole)?.or(checked.then(|| Polynomial::Nvme.of(&whole)));
        about.etag = Some(format!("{}-{}", md5(&sums), parts.len()));
        about.crc64 = crc64;
        let etag = about.etag.clone().map(ETag::Strong);
        objects.uploads.remove(&(input.key.as_str().into(), input.upload_id));
        objects.put(&input.key, about, |_| Content::Stored(whole.into()));
        let output = CompleteMultipartUploadOutput {
            key: Some(input.key),
            e_tag: etag,
            checksum_crc64nvme: objects.told(crc64),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    pub(super) fn abort_multipart_upload(&self, input: AbortMultipartUploadInput) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let gone = self.lock().uploads.remove(&(input.key.as_str().into(), input.upload_id)).is_none();
        if gone { Err(s3_error!(NoSuchUpload)) } else { Ok(S3Response::new(AbortMultipartUploadOutput::default())) }
    }

    pub(super) fn list_parts(&self, input: ListPartsInput) -> S3Result<S3Response<ListPartsOutput>> {
        let after = input.part_number_marker.unwrap_or(0);
        let mut objects = self.lock();
        let habits = objects.habits;
        let uploading = objects.uploading(&input.key, &input.upload_id)?;
        let mut rest = uploading.parts.range(after + 1..);
        let part = |(number, content): (&i32, &Bytes)| Part {
            part_number: Some(*number),
            e_tag: Some(ETag::Strong(habits.tag(content))),
            size: Some(content.len() as i64),
            ..Default::default()
        };
        let parts: Vec<Part> = rest.by_ref().take(MOST_UPLOADS).map(part).collect();
        let next = parts.last().and_then(|last| last.part_number).filter(|_| rest.next().is_some());
        let output =
            ListPartsOutput { is_truncated: Some(next.is_some()), next_part_number_marker: next, parts: Some(parts), ..Default::default() };
        Ok(S3Response::new(output))
    }

    /// ListMultipartUploads of a directory bucket: unsorted, with opaque markers.
    fn list_uploads_in_no_order(
        &self,
        prefix: &str,
        marker: Option<String>,
        id_marker: Option<&str>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        if (!prefix.is_empty() && !prefix.ends_with('/')) || id_marker.is_some() {
            return Err(s3_error!(InvalidArgument, "The prefix of a directory bucket ends in a slash, and there is no upload-id-marker."));
        }
        let objects = self.lock();
        let start = match marker.as_deref().map(|marker| marker.strip_prefix("from ").and_then(|from| from.parse().ok())) {
            Some(None) => return Err(s3_error!(InvalidArgument)),
            Some(Some(start)) => start,
            None => 0,
        };
        // Backwards: not the order of the keys.
        let all: Vec<_> = objects.uploads.iter().rev().filter(|((key, _), _)| key.as_bytes().starts_with(prefix.as_bytes())).collect();
        let end = all.len().min(start + MOST_UPLOADS);
        let uploads = all[start.min(end)..end].iter().map(|((key, id), uploading)| MultipartUpload {
            key: Some(key.to_string()),
            upload_id: Some(id.clone()),
            initiated: Some(uploading.initiated.into()),
            ..Default::default()
        });
        let output = ListMultipartUploadsOutput {
            is_truncated: Some(end < all.len()),
            next_key_marker: (end < all.len()).then(|| format!("from {end}")),
            uploads: Some(uploads.collect()),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    pub(super) fn list_multipart_uploads(&self, input: ListMultipartUploadsInput) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let prefix = input.prefix.unwrap_or_default();
        if self.habits().is_directory_bucket {
            return self.list_uploads_in_no_order(&prefix, input.key_marker, input.upload_id_marker.as_deref());
        }
        let after = input.key_marker.map(|key| (Key::from(key), input.upload_id_marker.unwrap_or_default()));
        let objects = self.lock();
        let mut rest = objects
            .uploads
            .iter()
            .filter(|(name, _)| name.0.as_bytes().starts_with(prefix.as_bytes()) && after.as_ref().is_none_or(|after| *name > after));
        let page: Vec<_> = rest.by_ref().take(MOST_UPLOADS).collect();
        let next = page.last().filter(|_| rest.next().is_some()).map(|(name, _)| (*name).clone());
        let uploads = page.iter().map(|((key, id), uploading)| MultipartUpload {
            key: Some(key.to_string()),
            upload_id: Some(id.clone()),
            initiated: Some(uploading.initiated.into()),
            ..Default::default()
        });
        let output = ListMultipartUploadsOutput {
            is_truncated: Some(next.is_some()),
            next_key_marker: next.as_ref().map(|next| next.0.to_string()),
            next_upload_id_marker: next.map(|next| next.1),
            uploads: Some(uploads.collect()),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }
}
