//! What can go wrong between us and a store: born where the answer is seen, with the operation and the key, and
//! matched on kind by everyone above.

use std::fmt;

use super::{ETag, Key};

/// A store operation, for errors, metrics and fault plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Head,
    List,
    Get,
    Put,
    CreateUpload,
    UploadPart,
    CopyPart,
    CompleteUpload,
    AbortUpload,
    ListUploads,
    ListParts,
    Copy,
    Rename,
    Delete,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "HEAD",
            Self::List => "LIST",
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::CreateUpload => "CREATE UPLOAD",
            Self::UploadPart => "UPLOAD PART",
            Self::CopyPart => "COPY PART",
            Self::CompleteUpload => "COMPLETE UPLOAD",
            Self::AbortUpload => "ABORT UPLOAD",
            Self::ListUploads => "LIST UPLOADS",
            Self::ListParts => "LIST PARTS",
            Self::Copy => "COPY",
            Self::Rename => "RENAME",
            Self::Delete => "DELETE",
        })
    }
}

/// What an error means to the code that meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such object.
    NotFound,
    /// No such bucket.
    NoSuchBucket,
    /// The object is no longer the version asked for (If-Match failed, or the answer's ETag differs).
    Replaced,
    /// The range lies outside the object.
    RangeNotSatisfiable,
    /// The store knows us and says no.
    AccessDenied,
    /// The store does not know us: unknown key id, wrong secret, expired token, skewed clock.
    BadCredentials,
    /// There are no credentials to send, or they may not be used (file unreadable, or readable by others).
    NoCredentials,
    /// The bucket lives elsewhere: other region, or other endpoint.
    WrongEndpoint,
    /// The store does not take the checksum that an upload was begun with: it is begun anew, without.
    ChecksumRefused,
    /// The request can never succeed as it is: bad bucket name, key that the store cannot say, bad argument.
    Invalid,
    /// The store asks us to slow down: 503 SlowDown, 429.
    Throttled,
    /// The store or something before it failed: 500, 502, 504, reset connection.
    Unavailable,
    /// The endpoint cannot be reached: DNS, refused, TLS.
    Connect,
    /// No byte arrived for the stall timeout, or the whole request took longer than the request timeout.
    Timeout,
    /// The bytes that arrived, here or there, are not those that were sent or asked for: short body, wrong Content-Range, another checksum.
    Corrupt,
    /// The response does not belong to the protocol: no HTTP, no ranges, unreadable XML, no upload id, nothing that names the version. A second one
    /// in a row ends the request.
    Malformed,
    /// The certificate of the endpoint is not accepted. A second failure in a row ends the request.
    Untrusted,
    /// The endpoint does not speak TLS. A second failure in a row ends the request.
    NotTls,
}

impl ErrorKind {
    /// Whether the same request may succeed if it is sent again. All requests we send today are idempotent.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Throttled | Self::Unavailable | Self::Connect | Self::Timeout | Self::Corrupt => true,
            Self::Malformed | Self::Untrusted | Self::NotTls => true,
            Self::NotFound
            | Self::NoSuchBucket
            | Self::Replaced
            | Self::RangeNotSatisfiable
            | Self::AccessDenied
            | Self::BadCredentials
            | Self::NoCredentials
            | Self::WrongEndpoint
            | Self::ChecksumRefused
            | Self::Invalid => false,
        }
    }
}

/// A failed store operation. Cloneable, because one fetch can serve many readers.
#[derive(Clone, Debug)]
pub struct Error {
    /// What it means.
    pub kind: ErrorKind,
    /// What was tried.
    pub op: Op,
    /// On what: the key, or the prefix of a listing.
    pub key: Key,
    /// HTTP status, when there was an answer.
    pub status: Option<u16>,
    /// The store's own error code, such as `NoSuchKey`.
    pub code: Option<String>,
    /// The store's request id, for its support.
    pub request_id: Option<String>,
    /// The version that this write has left in the store although it failed: its content is not what was sent.
    pub stored: Option<ETag>,
    /// Seconds that the store asks to wait before the next attempt; 255 stands for all that is longer.
    pub retry_after: Option<u8>,
    /// What happened, in a few words and without secrets.
    pub message: String,
}

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without an HTTP answer behind it.
    pub fn new(kind: ErrorKind, op: Op, key: &Key, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, op, key: key.clone(), status: None, code: None, request_id: None, stored: None, retry_after: None, message }
    }

    /// That a task panicked which asked for `key`. Nothing is known of what the store did.
    pub fn panicked(op: Op, key: &Key) -> Self {
        Self::new(ErrorKind::Unavailable, op, key, "windlass panicked, which is a defect: its log has the place")
    }

    /// Whether the next attempt is likely to fail in the same way, so that a second failure of the kind ends the request.
    pub(super) fn is_persistent(&self) -> bool {
        matches!(self.kind, ErrorKind::Malformed | ErrorKind::Untrusted | ErrorKind::NotTls)
    }

    /// Whether the store says that it has more to do than it can. It does nothing of what it refuses so.
    pub fn asks_to_slow_down(&self) -> bool {
        self.kind == ErrorKind::Throttled || self.status == Some(503)
    }

    /// Whether nothing of the endpoint has answered: there is no answer, or it is that of a gateway before it.
    pub fn is_silence(&self) -> bool {
        match self.status {
            Some(status) => matches!(status, 502 | 504),
            None => matches!(self.kind, ErrorKind::Connect | ErrorKind::Unavailable | ErrorKind::Timeout),
        }
    }

    /// What happened, without the request: for those who have said already what they were about to do.
    pub fn reason(&self) -> impl fmt::Display + '_ {
        Reason(self)
    }
}

struct Reason<'a>(&'a Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        f.write_str(&error.message)?;
        let status = error.status.map(|s| format!("HTTP {s}"));
        let id = error.request_id.as_ref().map(|id| format!("request id {id}"));
        let facts: Vec<String> = [status, error.code.clone(), id].into_iter().flatten().collect();
        if facts.is_empty() { Ok(()) } else { write!(f, " ({})", facts.join(", ")) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\": {}", self.op, self.key, self.reason())
    }
}

impl std::error::Error for Error {}
