//! Conditions and checksums of writes: sent while the endpoint takes them, and done without when it says that it does not. What
//! is not taken as a header is asked for before the write. Bodies are compared with what the answer tells of them. Invariant: a condition that
//! the endpoint cannot check is checked by a HEAD, never dropped; an endpoint that has compared a condition is never written to without;
//! and a body that the store has otherwise than it was sent is an error.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::digests::{CONTENT_MD5, Digests, Extra, content_md5, md5_of};
use super::headers::{encoded, sayable};
use super::objects::header_etag;
use super::uploads::part_query;
use super::{Call, HASHED_HERE, Reply, Requests, off_the_runtime};
use crate::store::{
    Body, Condition, Dialect, Error, ErrorKind, Headers, Key, Op, PartChecksum, Quirks, Result, Support, Upload, UploadChecksum,
};

/// Time until a refused feature is tried again: the refusal may have come from a proxy, or from one server of a cluster.
const TRIED_AGAIN_AFTER: Duration = Duration::from_mins(10);

/// A protocol feature that not every endpoint supports. Where nothing is known of the store, it is used until the endpoint refuses it, then not for
/// [`TRIED_AGAIN_AFTER`].
#[derive(Debug, Default)]
pub(super) struct Feature {
    /// The store is known not to support it.
    is_missing: bool,
    refused: Mutex<Option<Instant>>,
    /// Whether the endpoint has supported it at least once.
    has_worked: AtomicBool,
}

impl Feature {
    pub fn new(support: Support) -> Self {
        Self { is_missing: support == Support::No, has_worked: AtomicBool::new(support == Support::Yes), ..Self::default() }
    }

    pub fn is_taken(&self) -> bool {
        !self.is_missing && self.refused.lock().is_none_or(|refused| refused.elapsed() >= TRIED_AGAIN_AFTER)
    }

    /// Returns true for the first call of a feature that the store is known not to support.
    pub fn is_first_without(&self) -> bool {
        self.is_missing && self.refused.lock().replace(Instant::now()).is_none()
    }

    /// Records a refusal. Returns whether it was the first one.
    fn on_refused(&self, now: Instant) -> bool {
        self.refused.lock().replace(now).is_none()
    }

    /// Records a request with the feature that the endpoint has carried out: a refusal before it came from elsewhere.
    pub fn on_worked(&self) {
        if !self.has_worked.swap(true, Relaxed) {
            *self.refused.lock() = None;
        }
    }

    pub fn has_worked(&self) -> bool {
        self.has_worked.load(Relaxed)
    }
}

/// The conditions of S3. They came one by one (If-None-Match of PUT and CompleteMultipartUpload, then If-Match, then those of DELETE and
/// CopyObject), and servers took them up as slowly: that one works says nothing about another.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    absent: ByOp,
    version: ByOp,
}

#[derive(Debug, Default)]
struct ByOp {
    put: Feature,
    copy: Feature,
    complete: Feature,
    delete: Feature,
}

impl Conditions {
    pub fn new(quirks: &Quirks) -> Self {
        Self { absent: ByOp::new(quirks), version: ByOp::new(quirks) }
    }

    fn of(&self, op: Op, condition: &Condition) -> &Feature {
        let by_op = if *condition == Condition::Absent { &self.absent } else { &self.version };
        match op {
            Op::Copy => &by_op.copy,
            Op::CompleteUpload => &by_op.complete,
            Op::Delete => &by_op.delete,
            _ => &by_op.put,
        }
    }
}

impl ByOp {
    fn new(quirks: &Quirks) -> Self {
        let writes = || Feature::new(quirks.conditional_writes);
        // Those of copies are younger than the others, and a store that has the others may be without them.
        let copy = if quirks.conditional_writes == Support::No { Support::No } else { Support::Learned };
        Self { put: writes(), copy: Feature::new(copy), complete: writes(), delete: Feature::new(quirks.conditional_deletes) }
    }
}

/// A body on its way.
#[derive(Debug)]
pub(super) struct Sent {
    pub body: Body,
    pub becomes: Becomes,
}

/// What becomes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Becomes {
    Object,
    /// With the sum that its upload was begun with: others the store may refuse.
    Part(Option<PartChecksum>),
}

/// A write as far as it decides what an endpoint has to support.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write<'a> {
    pub op: Op,
    pub key: &'a Key,
    pub condition: &'a Condition,
}

impl Requests {
    /// Sends a write without a body of the caller's. `form` makes its headers out of those of the condition, and `send` sends it with them, both once
    /// for each attempt.
    pub(super) async fn write<T, F: Future<Output = Result<T>>>(
        &self,
        write: Write<'_>,
        form: impl Fn(HeaderMap) -> HeaderMap,
        send: impl Fn(HeaderMap) -> F,
    ) -> Result<T> {
        self.adapting(write, None, form, |headers, _| send(headers)).await
    }

    /// PUTs the body of an object or part. `form` makes its headers out of those of the condition and those that protect the body. The answer has been
    /// compared with the body. Formed here: the pipeline of the SDK would cost more CPU time than all else that a small PUT needs.
    pub(super) async fn write_body(
        &self,
        write: Write<'_>,
        sent: &Sent,
        query: &[(&'static str, String)],
        form: impl Fn(HeaderMap) -> HeaderMap,
    ) -> Result<(Reply, Digests)> {
        let Write { op, key, .. } = write;
        let put = |headers, digests: Option<Digests>| async move {
            let digests = digests.expect("they were made of the body");
            let call = Call::new(op, Method::PUT, key).with(query).headed(headers).bearing(sent.body.clone());
            let reply = self.exchange.send(&Call { payload: digests.sha256, ..call }).await?;
            Ok((reply, digests))
        };
        let (reply, digests) = self.adapting(write, Some(sent), form, put).await?;
        self.verify(op, key, sent, &digests, &reply).await?;
        Ok((reply, digests))
    }

    async fn adapting<T, F: Future<Output = Result<T>>>(
        &self,
        write: Write<'_>,
        sent: Option<&Sent>,
        form: impl Fn(HeaderMap) -> HeaderMap,
        send: impl Fn(HeaderMap, Option<Digests>) -> F,
    ) -> Result<T> {
        let Write { op, key, condition } = write;
        loop {
            let was_weak = self.are_weak();
            let mut headers = self.condition(op, key, condition).await?;
            let (conditional, md5s) = (!headers.is_empty(), self.md5s.is_taken());
            let digests = match sent {
                Some(sent) => Some(self.protect(sent, &mut headers).await),
                None => None,
            };
            let headers = form(headers);
            let has_md5 = headers.contains_key(CONTENT_MD5);
            let has_sum = headers.keys().any(|name| name.as_str().starts_with("x-amz-checksum-"));
            let error = match send(headers, digests).await {
                Ok(done) => {
                    if conditional {
                        self.conditions.of(op, condition).on_worked();
                    }
                    return Ok(done);
                }
                Err(error) => error,
            };
            if has_md5 && md5s && refuses_md5(&error) {
                self.without(&self.md5s, &error, "the endpoint takes no Content-MD5, going on without");
            } else if has_sum && refuses_checksums(&error) {
                if self.upload_checksum != UploadChecksum::Auto {
                    return Err(Error { message: format!("{}: set --upload-checksum to auto", error.message), ..error });
                }
                self.without(&self.checksums, &error, "the endpoint takes no CRC64NVME, going on without");
                if matches!(op, Op::UploadPart | Op::CompleteUpload) {
                    return Err(Error { kind: ErrorKind::ChecksumRefused, ..error });
                }
            } else if conditional && is_versioned(op, condition, &error) && self.turns_out_weak(key, was_weak).await {
                debug!(%error, "the endpoint weakens its ETags: looking before each write that replaces a version");
            } else if conditional && self.dialect == Dialect::S3 && lacks_conditions(&error) {
                let feature = self.conditions.of(op, condition);
                // One server of a cluster, or a proxy, answers for itself. A HEAD before the write would be less than what this endpoint has
                // promised so far, so the request is repeated as it is, or fails.
                if feature.has_worked() {
                    let message = format!("a condition was refused by an endpoint that has compared conditions before: {}", error.message);
                    return Err(Error { kind: ErrorKind::Unavailable, message, ..error });
                }
                let what = match op {
                    Op::Delete => "the endpoint knows no conditional deletes: looking before each instead",
                    _ => "the endpoint knows no conditional writes: looking before each instead, which leaves a gap between the two",
                };
                self.without(feature, &error, what);
            } else {
                let error = meaning(error, condition);
                if conditional && error.kind == ErrorKind::Replaced {
                    self.conditions.of(op, condition).on_worked();
                }
                return Err(error);
            }
        }
    }

    pub(super) fn sends_checksums(&self) -> bool {
        self.dialect == Dialect::S3 && self.checksums.is_taken()
    }

    /// Counts and logs that the endpoint refused `feature`, which is not used for a while.
    pub(super) fn without(&self, feature: &Feature, error: &Error, what: &'static str) {
        self.metrics.refused_features.add(1);
        if feature.on_refused(Instant::now()) {
            warn!(%error, "{what}; it is tried again every {} minutes", TRIED_AGAIN_AFTER.as_secs() / 60);
        } else {
            debug!(%error, "{what}");
        }
    }

    /// The sum that is sent with objects, and that uploads are begun with.
    pub(super) fn sum_header(&self) -> Option<PartChecksum> {
        match (self.dialect, self.upload_checksum) {
            (Dialect::Oss, _) | (_, UploadChecksum::Md5 | UploadChecksum::None) => None,
            (Dialect::S3, UploadChecksum::Auto) => self.sends_checksums().then_some(PartChecksum::Crc64),
            (Dialect::S3, UploadChecksum::Crc64Nvme) => Some(PartChecksum::Crc64),
            (Dialect::S3, UploadChecksum::Crc32c) => Some(PartChecksum::Crc32c),
        }
    }

    /// The sum that goes with a body.
    fn sum_of(&self, sent: &Sent) -> Option<PartChecksum> {
        match sent.becomes {
            Becomes::Object => self.sum_header(),
            Becomes::Part(sum) => sum.filter(|_| self.dialect == Dialect::S3),
        }
    }

    /// Whether tags were known to be weak when a condition on one is about to be sent.
    pub fn are_weak(&self) -> bool {
        self.tags.are_weak()
    }

    /// Whether a condition on the tag of `key` may have failed because the server marks its tags as weak, which was found out since it was sent, or is
    /// now: listings leave the mark out.
    pub async fn turns_out_weak(&self, key: &Key, was_weak: bool) -> bool {
        if was_weak {
            return false;
        }
        if self.tags.have_no_form() && self.head(key).await.is_err() {
            return false;
        }
        self.tags.are_weak()
    }

    /// Adds the headers that protect a body, and makes the sums that they and the comparison afterwards need: see [`digests`](super::digests)
    /// for which and why.
    async fn protect(&self, sent: &Sent, headers: &mut HeaderMap) -> Digests {
        let sum = self.sum_of(sent);
        let extra = match self.dialect {
            Dialect::S3 => Extra {
                md5: match self.upload_checksum {
                    UploadChecksum::Auto => sum.is_none() || self.acknowledging.is_known_not_to(),
                    UploadChecksum::Crc64Nvme | UploadChecksum::Crc32c => sum.is_none(),
                    UploadChecksum::Md5 => true,
                    UploadChecksum::None => false,
                },
                // The header with the sum is signed. Once the store is known to look at it, the hash would only cost.
                sha256: self.voice.signs_payloads() && !(sum.is_some() && self.acknowledging.is_known_to()),
                crc32c: sum == Some(PartChecksum::Crc32c),
            },
            // OSS tells the CRC of whatever it takes, but afterwards. Over TLS, and for a part, which is sent again, that is enough; an object
            // must not be seen with wrong bytes until it is.
            Dialect::Oss => Extra {
                md5: self.acknowledging.is_known_not_to() || (sent.becomes == Becomes::Object && self.voice.signs_payloads()),
                ..Extra::default()
            },
        };
        let digests = self.digests(&sent.body, extra).await;
        if let Some(sum) = sum {
            let value = match digests.crc32c {
                Some(crc32c) => encoded(crc32c.to_be_bytes()),
                None => encoded(digests.crc64.to_be_bytes()),
            };
            headers.insert(self.names.checksum(sum), value);
        }
        if let Some(md5) = digests.md5.filter(|_| self.md5s.is_taken()) {
            headers.insert(CONTENT_MD5, content_md5(md5));
        }
        digests
    }

    /// Compares what the store says that it has taken with what was sent.
    async fn verify(&self, op: Op, key: &Key, sent: &Sent, digests: &Digests, reply: &Reply) -> Result<()> {
        let crc64 = self.names.crc64(&reply.headers);
        let crc32c = self.names.crc32c(&reply.headers).zip(digests.crc32c);
        match self.sum_of(sent) {
            Some(PartChecksum::Crc32c) => self.acknowledging.record(crc32c.is_some()),
            Some(PartChecksum::Crc64) => self.acknowledging.record(crc64.is_some()),
            None if self.dialect == Dialect::Oss => self.acknowledging.record(crc64.is_some()),
            None => {}
        }
        if let Some((told, made)) = crc32c.filter(|(told, made)| told != made) {
            let message = format!("the store has content with CRC-32C {told:08x}, sent was {made:08x}");
            return Err(self.spoiled(op, key, sent, reply, message));
        }
        if let Some(told) = crc64 {
            if told.value == digests.crc64 {
                return Ok(());
            }
            let message = format!("the store has content with CRC64 {:016x}, sent was {:016x}", told.value, digests.crc64);
            return Err(self.spoiled(op, key, sent, reply, message));
        }
        if crc32c.is_some() || self.upload_checksum == UploadChecksum::None {
            return Ok(());
        }
        let Some(stored) = self.names.md5_tag(&reply.headers).filter(|_| !self.tags.are_not_md5s()) else { return Ok(()) };
        let md5 = match digests.md5 {
            Some(md5) => md5,
            None => off_the_runtime(&sent.body, HASHED_HERE, md5_of).await,
        };
        if md5 == stored {
            self.tags.record(true);
            return Ok(());
        }
        let differs = || {
            let message = format!("the store has content with MD5 {}, sent was {}", hex::encode(stored), hex::encode(md5));
            self.spoiled(op, key, sent, reply, message)
        };
        let _one_at_a_time = self.probing.lock().await;
        if self.tags.are_unknown() {
            match self.probe_tags(key).await {
                Ok(are_md5s) => self.tags.record(are_md5s),
                Err(error) if error.kind.is_retryable() => return Err(differs()),
                Err(error) => {
                    debug!(%error, "it cannot be found out what the ETags of the bucket are");
                    self.tags.record(false);
                }
            }
            if self.tags.are_not_md5s() {
                warn!(
                    "the endpoint acknowledges no checksum and its ETags are no MD5s: what it has stored cannot be compared with what was sent"
                );
            }
        }
        if self.tags.are_md5s() { Err(differs()) } else { Ok(()) }
    }

    /// What is there now is not what was sent.
    fn spoiled(&self, op: Op, key: &Key, sent: &Sent, reply: &Reply, message: String) -> Error {
        let stored = if sent.becomes == Becomes::Object { header_etag(op, key, reply).ok() } else { None };
        Error { stored, ..Error::new(ErrorKind::Corrupt, op, key, message) }
    }

    /// Whether the tag of an empty part, which has no bit to lose, is the MD5 of nothing. The part is dropped with its upload.
    async fn probe_tags(&self, key: &Key) -> Result<bool> {
        let object = self.names.of_object(Op::CreateUpload, key, &Headers::default())?;
        let (id, _) = self.begin_upload(key, object).await?;
        let upload = Upload { key: key.clone(), id, checksum: None, acl: None };
        let part = self.exchange.send(&Call::new(Op::UploadPart, Method::PUT, key).with(part_query(&upload, 1))).await;
        if let Err(error) = self.abort_upload(&upload).await {
            warn!(%error, "an unfinished upload is left in the bucket: remove it with \"windlass mpu abort\"");
        }
        Ok(self.names.md5_tag(&part?.headers) == Some(md5_of(&Body::default())))
    }

    /// The headers that make the endpoint check `condition`; or it was checked now, and holds.
    async fn condition(&self, op: Op, key: &Key, condition: &Condition) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        let mut look = false;
        match (self.dialect, condition) {
            (_, Condition::Any) => {}
            (Dialect::Oss, Condition::Absent) => {
                headers.insert(self.names.vendor("forbid-overwrite"), HeaderValue::from_static("true"));
            }
            (Dialect::Oss, Condition::Is(_)) => look = true,
            (Dialect::S3, _) if !self.conditions.of(op, condition).is_taken() => {
                if op != Op::Delete && self.conditions.of(op, condition).is_first_without() {
                    warn!(
                        "the provider knows no conditional writes: looking before each instead, which leaves a gap between the two (--provider)"
                    );
                }
                look = true;
            }
            (Dialect::S3, Condition::Is(etag)) if etag.is_weak() || self.tags.are_weak() => look = true,
            (Dialect::S3, Condition::Absent) => {
                headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
            }
            (Dialect::S3, Condition::Is(etag)) => {
                headers.insert(header::IF_MATCH, sayable(op, key, etag.as_str())?);
            }
        }
        // Conditions of copies, and on a version at the end of an upload, are younger than those of PUTs, and who does not know them (moto, of the
        // second) says nothing.
        let is_young = match op {
            Op::Copy => *condition != Condition::Any,
            Op::CompleteUpload => matches!(condition, Condition::Is(_)),
            _ => false,
        };
        if look || is_young {
            self.check(op, key, condition).await?;
        }
        Ok(headers)
    }

    async fn check(&self, op: Op, key: &Key, condition: &Condition) -> Result<()> {
        let there = match self.head(key).await {
            Ok(meta) => Some(meta.etag),
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match (condition, there) {
            (Condition::Any, _) | (Condition::Absent, None) => Ok(()),
            (Condition::Is(etag), Some(there)) if *etag == there => Ok(()),
            (_, there) => {
                let what = there.map_or_else(|| "nothing".to_owned(), |etag| format!("version {etag}"));
                let message = format!("there is {what} at the place of the write");
                Err(Error { status: Some(412), ..Error::new(ErrorKind::Replaced, op, key, message) })
            }
        }
    }
}

/// Whether a condition on the version of what is there was not met. Of a copy it may be that on the source.
fn is_versioned(op: Op, condition: &Condition, error: &Error) -> bool {
    error.kind == ErrorKind::Replaced && op != Op::Copy && matches!(condition, Condition::Is(_))
}

/// Whether the endpoint said no because of the checksum, and not because it differs.
fn refuses_checksums(error: &Error) -> bool {
    let text = format!("{} {}", error.code.as_deref().unwrap_or_default(), error.message).to_ascii_lowercase();
    matches!(error.status, Some(400 | 501)) && error.kind == ErrorKind::Invalid && (text.contains("checksum") || text.contains("crc64"))
}

/// Whether the endpoint said no because of Content-MD5, and not because it differs.
fn refuses_md5(error: &Error) -> bool {
    let text = format!("{} {}", error.code.as_deref().unwrap_or_default(), error.message).to_ascii_lowercase();
    matches!(error.status, Some(400 | 501)) && error.kind == ErrorKind::Invalid && text.contains("md5")
}

fn lacks_conditions(error: &Error) -> bool {
    error.status == Some(501) || error.code.as_deref() == Some("NotImplemented")
}

/// S3 calls an object missing whose version a write asked for.
fn meaning(error: Error, condition: &Condition) -> Error {
    let missing = error.kind == ErrorKind::NotFound && error.code.as_deref() == Some("NoSuchKey");
    match condition {
        Condition::Is(_) if missing && error.op != Op::Copy => Error { kind: ErrorKind::Replaced, ..error },
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_refused_is_tried_again_after_a_while() {
        let feature = Feature::default();
        assert!(feature.is_taken());
        assert!(feature.on_refused(Instant::now()));
        tokio::time::advance(TRIED_AGAIN_AFTER - Duration::from_secs(1)).await;
        assert!(!feature.is_taken());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(feature.is_taken());
        assert!(!feature.on_refused(Instant::now()), "it is told once");
        assert!(!feature.is_taken());
        assert!(!feature.has_worked());
        feature.on_worked();
        assert!(feature.is_taken() && feature.has_worked());
    }

    #[test]
    fn a_condition_that_works_says_nothing_about_others() {
        let (conditions, version) = (Conditions::default(), Condition::Is("\"e\"".into()));
        conditions.of(Op::Put, &Condition::Absent).on_worked();
        assert!(conditions.of(Op::Put, &Condition::Absent).has_worked());
        for (op, condition) in [(Op::Put, &version), (Op::CompleteUpload, &Condition::Absent), (Op::Copy, &version), (Op::Delete, &version)]
        {
            assert!(!conditions.of(op, condition).has_worked(), "{op} {condition:?}");
        }
    }

    fn error(status: u16, code: &str, kind: ErrorKind, message: &str) -> Error {
        Error { status: Some(status), code: Some(code.into()), ..Error::new(kind, Op::Put, &"k".into(), message) }
    }

    #[test]
    fn a_checksum_is_given_up_when_it_is_refused_and_not_when_it_differs() {
        for (status, code, kind, message, refused) in [
            (400, "InvalidArgument", ErrorKind::Invalid, "Value for x-amz-checksum-algorithm header is invalid.", true),
            (501, "NotImplemented", ErrorKind::Invalid, "A header you provided: x-amz-checksum-crc64nvme", true),
            (400, "InvalidRequest", ErrorKind::Invalid, "Unsupported algorithm CRC64NVME", true),
            (400, "BadDigest", ErrorKind::Corrupt, "The CRC64NVME you specified did not match the calculated checksum.", false),
            (501, "NotImplemented", ErrorKind::Invalid, "A header you provided implies functionality that is not implemented", false),
            (403, "AccessDenied", ErrorKind::AccessDenied, "checksum", false),
        ] {
            assert_eq!(refuses_checksums(&error(status, code, kind, message)), refused, "{message}");
        }
    }

    #[test]
    fn an_object_that_is_missing_does_not_meet_a_condition_on_its_version() {
        let missing = error(404, "NoSuchKey", ErrorKind::NotFound, "");
        assert_eq!(meaning(missing.clone(), &Condition::Is("\"e\"".into())).kind, ErrorKind::Replaced);
        assert_eq!(meaning(missing.clone(), &Condition::Any).kind, ErrorKind::NotFound);
        // Of a copy it is the source that is missing: the target was looked at before.
        assert_eq!(meaning(Error { op: Op::Copy, ..missing }, &Condition::Is("\"e\"".into())).kind, ErrorKind::NotFound);
        let upload = error(404, "NoSuchUpload", ErrorKind::NotFound, "");
        assert_eq!(meaning(upload, &Condition::Is("\"e\"".into())).kind, ErrorKind::NotFound);
    }
}
