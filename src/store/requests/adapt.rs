//! Conditions and checksums of writes: sent while the endpoint takes them, and done without when it says that it does not. What
//! is not taken as a header is asked for before the write. Invariant: a condition that the endpoint cannot check is checked by
//! a HEAD, never dropped.

use std::sync::atomic::Ordering::Relaxed;

use http::{HeaderMap, HeaderValue, header};
use tracing::warn;

use super::headers::sayable;
use super::{Call, Reply, Requests};
use crate::store::{Condition, Dialect, Error, ErrorKind, Key, Op, Result};

impl Requests {
    /// Sends a write under `condition`. `form` makes the request out of the headers of the condition, with or without checksums.
    pub(super) async fn write<'a>(
        &self,
        op: Op,
        key: &Key,
        condition: &Condition,
        form: impl Fn(HeaderMap, bool) -> Call<'a> + Send,
    ) -> Result<Reply> {
        loop {
            let headers = self.condition(op, key, condition).await?;
            let (conditional, checksums) = (!headers.is_empty(), self.sends_checksums());
            let error = match self.send(&form(headers, checksums)).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if checksums && refuses_checksums(&error) {
                warn!(%error, "the endpoint takes no CRC64NVME, going on without");
                self.checksums.store(false, Relaxed);
            } else if conditional && self.dialect == Dialect::S3 && lacks_conditions(&error) {
                warn!(%error, "the endpoint knows no conditional writes: looking before each instead, which leaves a gap between the two");
                self.conditions.store(false, Relaxed);
            } else {
                return Err(meaning(error, condition));
            }
        }
    }

    pub(super) fn sends_checksums(&self) -> bool {
        self.checksums.load(Relaxed)
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
            (Dialect::S3, _) if !self.conditions.load(Relaxed) => look = true,
            (Dialect::S3, Condition::Absent) => {
                headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
            }
            (Dialect::S3, Condition::Is(etag)) => {
                headers.insert(header::IF_MATCH, sayable(op, key, etag.as_str())?);
            }
        }
        // Conditions of copies are younger than those of PUTs, and who does not know them says nothing.
        if look || (op == Op::Copy && *condition != Condition::Any) {
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

/// Whether the endpoint said no because of the checksum, and not because it differs.
fn refuses_checksums(error: &Error) -> bool {
    let text = format!("{} {}", error.code.as_deref().unwrap_or_default(), error.message).to_ascii_lowercase();
    matches!(error.status, Some(400 | 501)) && error.kind == ErrorKind::Invalid && (text.contains("checksum") || text.contains("crc64"))
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
