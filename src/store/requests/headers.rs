//! Headers of objects in both dialects: what a write says of its object, and what a HEAD tells of one. Invariant: metadata is
//! read back as it was written.

use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::store::{Crc64, Details, Dialect, ETag, Error, ErrorKind, Headers, Key, ObjectMeta, Op, Options, Polynomial, Result, Sse};

/// How stores write a key in the header that names the source of a copy.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The name of the header that says who pays, without the vendor's prefix, and what it says.
pub(in crate::store) const REQUEST_PAYER: (&str, &str) = ("request-payer", "requester");

/// The headers that a copy with new ones would lose, because nothing above knows them.
pub(super) const CARRIED: [HeaderName; 5] =
    [header::CACHE_CONTROL, header::CONTENT_DISPOSITION, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE, header::EXPIRES];

/// What the options say of every object, in the words of the dialect.
#[derive(Debug)]
pub(super) struct Names {
    dialect: Dialect,
    requester_pays: bool,
    /// Encryption and storage class.
    kept: HeaderMap,
    /// Access list.
    acl: HeaderMap,
}

impl Names {
    pub fn new(options: &Options) -> Self {
        let mut names =
            Self { dialect: options.dialect, requester_pays: options.requester_pays, kept: HeaderMap::new(), acl: HeaderMap::new() };
        let (kms, key_id, acl) = match options.dialect {
            Dialect::S3 => ("aws:kms", "server-side-encryption-aws-kms-key-id", "acl"),
            Dialect::Oss => ("KMS", "server-side-encryption-key-id", "object-acl"),
        };
        let encryption = match options.sse {
            Sse::None => None,
            Sse::Aes256 => Some("AES256"),
            Sse::Kms => Some(kms),
        };
        let kept = [
            ("server-side-encryption", encryption),
            (key_id, options.sse_key_id.as_deref().filter(|_| options.sse == Sse::Kms)),
            ("storage-class", options.storage_class.as_deref()),
        ];
        for (name, value) in kept {
            names.kept.extend(value.and_then(|value| Some((names.vendor(name), HeaderValue::from_str(value).ok()?))));
        }
        names.acl.extend(options.acl.as_deref().and_then(|value| Some((names.vendor(acl), HeaderValue::from_str(value).ok()?))));
        names
    }

    fn prefix(&self) -> &'static str {
        match self.dialect {
            Dialect::S3 => "x-amz-",
            Dialect::Oss => "x-oss-",
        }
    }

    /// The vendor's header of this name.
    pub fn vendor(&self, name: &str) -> HeaderName {
        HeaderName::try_from(format!("{}{name}", self.prefix())).expect("the names are ours")
    }

    /// Says who pays.
    pub fn pay(&self, headers: &mut HeaderMap) {
        if self.requester_pays {
            headers.insert(self.vendor(REQUEST_PAYER.0), HeaderValue::from_static(REQUEST_PAYER.1));
        }
    }

    /// What is to be said of the object that `op` writes. OSS takes the access list when an upload ends, all others when it begins.
    pub fn of_object(&self, op: Op, key: &Key, headers: &Headers) -> Result<HeaderMap> {
        let mut map = self.kept.clone();
        if !(self.dialect == Dialect::Oss && op == Op::CreateUpload) {
            map.extend(self.acl.clone());
        }
        if let Some(content_type) = &headers.content_type {
            map.insert(header::CONTENT_TYPE, sayable(op, key, content_type)?);
        }
        for (name, value) in &headers.metadata {
            let unsayable = |_| Error::new(ErrorKind::Invalid, op, key, format!("metadata cannot be called {name:?}"));
            let name = HeaderName::try_from(format!("{}meta-{name}", self.prefix())).map_err(unsayable)?;
            map.insert(name, sayable(op, key, value)?);
        }
        Ok(map)
    }

    /// What is to be said when an upload ends.
    pub fn of_completion(&self) -> HeaderMap {
        if self.dialect == Dialect::Oss { self.acl.clone() } else { HeaderMap::new() }
    }

    /// Names the source of a copy and its version.
    pub fn copy_from(&self, op: Op, bucket: &str, source: &Key, etag: &ETag) -> Result<HeaderMap> {
        if etag.as_str().is_empty() {
            return Err(Error::new(ErrorKind::Replaced, op, source, "the listing told no version of the object"));
        }
        let path = format!("/{bucket}/{}", percent_encode(source.as_bytes(), PATH));
        let path = HeaderValue::try_from(path).expect("percent-encoding leaves what a header takes");
        let mut map = HeaderMap::new();
        map.insert(self.vendor("copy-source"), path);
        map.insert(self.vendor("copy-source-if-match"), sayable(op, source, etag.as_str())?);
        Ok(map)
    }

    /// Everything that the answer to a HEAD of `key` tells.
    pub fn details(&self, key: &Key, map: &HeaderMap) -> Result<Details> {
        let text = |name: HeaderName| map.get(name).and_then(|value| value.to_str().ok());
        let meta = || {
            Some(ObjectMeta {
                key: key.clone(),
                size: text(header::CONTENT_LENGTH)?.parse().ok()?,
                etag: ETag::quoted(text(header::ETAG)?),
                modified: text(header::LAST_MODIFIED).map_or(Some(UNIX_EPOCH), |date| httpdate::parse_http_date(date).ok())?,
            })
        };
        let lacking = || Error::new(ErrorKind::Corrupt, Op::Head, key, "the answer has no length, no ETag or no readable date");
        let owned = |name: &str| text(self.vendor(name)).map(str::to_owned);
        Ok(Details {
            meta: meta().ok_or_else(lacking)?,
            headers: self.object_headers(map),
            storage_class: owned("storage-class"),
            version_id: owned("version-id").filter(|id| id != "null"),
            crc64: self.crc64(map),
            symlink: None,
        })
    }

    fn object_headers(&self, map: &HeaderMap) -> Headers {
        // Others write UTF-8 here, which must survive a copy with new metadata.
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let prefix = format!("{}meta-", self.prefix());
        let metadata = map.iter().filter_map(|(name, value)| Some((name.as_str().strip_prefix(&prefix)?.to_owned(), text(value))));
        Headers { content_type: map.get(header::CONTENT_TYPE).map(text), metadata: metadata.collect() }
    }

    /// The checksum that an answer tells of a whole object or part.
    pub fn crc64(&self, map: &HeaderMap) -> Option<Crc64> {
        let text = |name: &str| map.get(self.vendor(name)).and_then(|value| value.to_str().ok());
        match self.dialect {
            Dialect::S3 => {
                let value = decoded(text("checksum-crc64nvme")?)?;
                Some(Crc64 { polynomial: Polynomial::Nvme, value })
            }
            Dialect::Oss => Some(Crc64 { polynomial: Polynomial::Ecma, value: text("hash-crc64ecma")?.parse().ok()? }),
        }
    }
}

/// A CRC as S3 writes it: its bytes, the highest first, in base64.
pub(super) fn encoded(crc64: u64) -> HeaderValue {
    HeaderValue::try_from(BASE64_STANDARD.encode(crc64.to_be_bytes())).expect("base64 is valid in a header")
}

pub(super) fn decoded(text: &str) -> Option<u64> {
    Some(u64::from_be_bytes(BASE64_STANDARD.decode(text).ok()?.try_into().ok()?))
}

pub(super) fn sayable(op: Op, key: &Key, value: &str) -> Result<HeaderValue> {
    HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| Error::new(ErrorKind::Invalid, op, key, format!("{value:?} cannot be sent as a header")))
}
