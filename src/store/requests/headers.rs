//! Headers of objects in both dialects: what a write says of its object, and what a HEAD tells of one. Invariant: metadata is
//! read back as it was written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use reqsign_core::time::Timestamp;

use super::digests::{Tags, possible_md5};
use crate::store::arn::copy_source;
use crate::store::{
    Crc64, Details, Dialect, ETag, Error, ErrorKind, Headers, Key, ObjectMeta, ObjectSum, Op, Options, PartChecksum, Polynomial, Result,
    Sse, Upload,
};

/// How stores write a key in the header that names the source of a copy.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The name of the header that says who pays, without the vendor's prefix, and what it says.
pub(in crate::store) const REQUEST_PAYER: (&str, &str) = ("request-payer", "requester");

/// The headers of [`Headers::carried`] that every web server has.
const CARRIED: [HeaderName; 5] =
    [header::CACHE_CONTROL, header::CONTENT_DISPOSITION, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE, header::EXPIRES];

/// Those of the store that a HEAD tells, without the prefix of the vendor.
const STORAGE_CLASS: &str = "storage-class";
const SSE: &str = "server-side-encryption";
const LOCK_MODE: &str = "object-lock-mode";
const LEGAL_HOLD: &str = "object-lock-legal-hold";
const LOCKED_UNTIL: &str = "object-lock-retain-until-date";
const TOLD: [&str; 10] = [
    STORAGE_CLASS,
    SSE,
    // The key is named in other words by each vendor; the second belongs to SM4 of OSS.
    "server-side-encryption-aws-kms-key-id",
    "server-side-encryption-key-id",
    "server-side-data-encryption",
    "server-side-encryption-bucket-key-enabled",
    LOCK_MODE,
    LOCKED_UNTIL,
    LEGAL_HOLD,
    "website-redirect-location",
];

/// Those that only requests of their own tell: see [`attributes`](super::attributes). The access list is one word, or a header for each right.
pub(super) const TAGGING: &str = "tagging";
pub(super) const ACL: &str = "acl";
pub(super) const GRANT: &str = "grant-";

/// Which version of the source of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Version<'a> {
    Tag(&'a ETag),
    Id(&'a str),
    /// The one that was last modified in that second.
    Date(SystemTime),
}

/// What the options say of every object, in the words of the dialect.
#[derive(Debug)]
pub(super) struct Names {
    dialect: Dialect,
    requester_pays: bool,
    /// Encryption.
    sse: HeaderMap,
    storage_class: Option<HeaderValue>,
    /// Access list.
    acl: Option<HeaderValue>,
}

impl Names {
    pub fn new(options: &Options) -> Self {
        let value = |text: &Option<String>| text.as_deref().and_then(|text| HeaderValue::from_str(text).ok());
        let mut names = Self {
            dialect: options.dialect,
            requester_pays: options.requester_pays,
            sse: HeaderMap::new(),
            storage_class: value(&options.storage_class),
            acl: value(&options.acl),
        };
        let (kms, key_id) = match options.dialect {
            Dialect::S3 => ("aws:kms", "server-side-encryption-aws-kms-key-id"),
            Dialect::Oss => ("KMS", "server-side-encryption-key-id"),
        };
        let encryption = match options.sse {
            Sse::None => None,
            Sse::Aes256 => Some("AES256"),
            Sse::Kms => Some(kms),
        };
        let key = value(&options.sse_key_id).filter(|_| options.sse == Sse::Kms);
        names.sse.extend(encryption.map(|name| (names.vendor(SSE), HeaderValue::from_static(name))));
        names.sse.extend(key.map(|key| (names.vendor(key_id), key)));
        names
    }

    fn prefix(&self) -> &'static str {
        prefix_of(self.dialect)
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

    /// The header of an access list that is one word.
    fn acl(&self) -> HeaderName {
        self.vendor(match self.dialect {
            Dialect::S3 => ACL,
            Dialect::Oss => "object-acl",
        })
    }

    /// What is to be said of the object that `op` writes: what `headers` carry, and for what they do not speak of the options.
    pub fn of_object(&self, op: Op, key: &Key, headers: &Headers) -> Result<HeaderMap> {
        let mut map = self.of_store(op, key, headers)?;
        if let Some(content_type) = &headers.content_type {
            map.insert(header::CONTENT_TYPE, sayable(op, key, content_type)?);
        }
        for name in CARRIED {
            if let Some(value) = headers.carried.get(name.as_str()) {
                map.insert(name, sayable(op, key, value)?);
            }
        }
        for (name, value) in &headers.metadata {
            let unsayable = |_| Error::new(ErrorKind::Invalid, op, key, format!("metadata cannot be called {name:?}"));
            let name = HeaderName::try_from(format!("{}meta-{name}", self.prefix())).map_err(unsayable)?;
            map.insert(name, sayable(op, key, value)?);
        }
        Ok(map)
    }

    /// The part of it that is the store's own business, which no copy takes along by itself. OSS takes the access list when an upload ends, all
    /// others when it begins.
    pub fn of_store(&self, op: Op, key: &Key, headers: &Headers) -> Result<HeaderMap> {
        let carried = &headers.carried;
        let mut map = if carried.contains_key(SSE) { HeaderMap::new() } else { self.sse.clone() };
        map.extend(self.storage_class.clone().map(|class| (self.vendor(STORAGE_CLASS), class)));
        // What a lock that is over says is refused.
        let is_over = carried.get(LOCKED_UNTIL).is_some_and(|until| is_past(until, SystemTime::now()));
        for name in TOLD {
            if let Some(value) = carried.get(name)
                && !(is_over && matches!(name, LOCK_MODE | LOCKED_UNTIL))
            {
                map.insert(self.vendor(name), sayable(op, key, value)?);
            }
        }
        // A copy keeps the tags of its source.
        if let Some(tags) = carried.get(TAGGING)
            && op != Op::Copy
        {
            map.insert(self.vendor(TAGGING), sayable(op, key, tags)?);
        }
        let mut is_granted = false;
        for (name, value) in carried.iter().filter(|(name, _)| name.starts_with(GRANT)) {
            let unsayable = |_| Error::new(ErrorKind::Invalid, op, key, format!("no right is called {name:?}"));
            map.insert(HeaderName::try_from(format!("{}{name}", self.prefix())).map_err(unsayable)?, sayable(op, key, value)?);
            is_granted = true;
        }
        let is_said_later = self.dialect == Dialect::Oss && op == Op::CreateUpload;
        if !(is_granted || is_said_later) {
            map.extend(self.word_of_acl(op, key, carried.get(ACL).map(String::as_str))?);
        }
        Ok(map)
    }

    /// Whether an object with these headers will be locked.
    pub fn locks(&self, headers: &HeaderMap) -> bool {
        headers.contains_key(self.vendor(LOCK_MODE)) || headers.contains_key(self.vendor(LEGAL_HOLD))
    }

    /// The access list in one word: `own`, else that of the options.
    fn word_of_acl(&self, op: Op, key: &Key, own: Option<&str>) -> Result<Option<(HeaderName, HeaderValue)>> {
        let word = match own {
            Some(own) => Some(sayable(op, key, own)?),
            None => self.acl.clone(),
        };
        Ok(word.map(|word| (self.acl(), word)))
    }

    /// What is to be said when `upload` ends.
    pub fn of_completion(&self, upload: &Upload) -> Result<HeaderMap> {
        if self.dialect == Dialect::S3 {
            return Ok(HeaderMap::new());
        }
        Ok(self.word_of_acl(Op::CompleteUpload, &upload.key, upload.acl.as_deref())?.into_iter().collect())
    }

    /// The class of objects of which the store may not say it.
    fn usual_class(&self) -> &'static str {
        match self.dialect {
            Dialect::S3 => "STANDARD",
            Dialect::Oss => "Standard",
        }
    }

    /// Whether an object that has no access list of its own would get one from the options.
    pub fn gives_acl(&self) -> bool {
        self.acl.is_some()
    }

    /// Names the source of a copy and its version. A weak tag meets no condition: what [`Details`] tell of the version stands in for it, the version
    /// id where there is one, else the date.
    pub fn copy_from(&self, op: Op, bucket: &str, source: &Key, version: Version<'_>) -> Result<HeaderMap> {
        let Version::Tag(etag) = version else { return Ok(self.copy_from_weak(bucket, source, version)) };
        if etag.as_str().is_empty() {
            return Err(Error::new(ErrorKind::Replaced, op, source, "the listing told no version of the object"));
        }
        let path = format!("{}/{}", copy_source(bucket), percent_encode(source.as_bytes(), PATH));
        let path = HeaderValue::try_from(path).expect("percent-encoding leaves what a header takes");
        let mut map = HeaderMap::new();
        map.insert(self.vendor("copy-source"), path);
        map.insert(self.vendor("copy-source-if-match"), sayable(op, source, etag.as_str())?);
        Ok(map)
    }

    /// Names the source of RenameObject, and the token that makes a repeated request harmless.
    pub fn rename_from(&self, source: &Key, etag: &ETag, token: &str) -> Result<HeaderMap> {
        let path = percent_encode(source.as_bytes(), PATH).to_string();
        let mut map = HeaderMap::new();
        map.insert(self.vendor("rename-source"), HeaderValue::try_from(path).expect("percent-encoding leaves what a header takes"));
        map.insert(self.vendor("rename-source-if-match"), sayable(Op::Rename, source, etag.as_str())?);
        map.insert(self.vendor("client-token"), sayable(Op::Rename, source, token)?);
        Ok(map)
    }

    fn copy_from_weak(&self, bucket: &str, source: &Key, version: Version<'_>) -> HeaderMap {
        let mut path = format!("{}/{}", copy_source(bucket), percent_encode(source.as_bytes(), PATH));
        let mut map = HeaderMap::new();
        match version {
            Version::Id(id) => path.extend(["?versionId=", &percent_encode(id.as_bytes(), PATH).to_string()]),
            Version::Date(modified) => {
                // Answers tell whole seconds. versitygw compares with the fraction that it knows, and would find every object younger.
                let date = httpdate::fmt_http_date(modified + Duration::from_secs(1));
                let date = HeaderValue::try_from(date).expect("dates are valid in a header");
                map.insert(self.vendor("copy-source-if-unmodified-since"), date);
            }
            Version::Tag(_) => {}
        }
        map.insert(self.vendor("copy-source"), HeaderValue::try_from(path).expect("percent-encoding leaves what a header takes"));
        map
    }

    /// Everything that the answer to a HEAD of `key` tells.
    pub fn details(&self, key: &Key, map: &HeaderMap) -> Result<Details> {
        let text = |name: HeaderName| map.get(name).and_then(|value| value.to_str().ok());
        let meta = || {
            let size = text(header::CONTENT_LENGTH)?.parse().ok()?;
            let modified = text(header::LAST_MODIFIED).map_or(Some(UNIX_EPOCH), |date| httpdate::parse_http_date(date).ok())?;
            Some(ObjectMeta { key: key.clone(), size, etag: version_in(map, size)?, modified })
        };
        let lacking = || {
            let message =
                "the answer has no length, no readable date, or nothing that names the version: neither ETag nor version id nor date";
            Error::new(ErrorKind::Malformed, Op::Head, key, message)
        };
        let owned = |name: &str| text(self.vendor(name)).map(str::to_owned);
        Ok(Details {
            meta: meta().ok_or_else(lacking)?,
            headers: self.object_headers(map),
            storage_class: owned("storage-class"),
            version_id: owned("version-id").filter(|id| id != "null"),
            crc64: self.crc64(map),
            sum: None,
            symlink: None,
        })
    }

    /// See [`md5_tag`].
    pub fn md5_tag(&self, map: &HeaderMap) -> Option<[u8; 16]> {
        md5_tag(self.dialect, map)
    }

    fn object_headers(&self, map: &HeaderMap) -> Headers {
        // Others write UTF-8 here, which must survive a copy with new metadata.
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let prefix = format!("{}meta-", self.prefix());
        let metadata = map.iter().filter_map(|(name, value)| Some((name.as_str().strip_prefix(&prefix)?.to_owned(), text(value))));
        let mut carried: BTreeMap<String, String> =
            CARRIED.into_iter().filter_map(|name| Some((name.as_str().to_owned(), text(map.get(&name)?)))).collect();
        carried.extend(TOLD.into_iter().filter_map(|name| Some((name.to_owned(), text(map.get(self.vendor(name))?)))));
        match carried.get(STORAGE_CLASS) {
            // Without the word the store does the same, and there are stores that know none.
            Some(class) if self.dialect == Dialect::S3 && class == self.usual_class() && self.storage_class.is_none() => {
                carried.remove(STORAGE_CLASS);
            }
            None if self.storage_class.is_some() => drop(carried.insert(STORAGE_CLASS.to_owned(), self.usual_class().to_owned())),
            Some(_) | None => {}
        }
        Headers { content_type: map.get(header::CONTENT_TYPE).map(text), metadata: metadata.collect(), carried }
    }

    /// The header with the sum of a body.
    pub fn checksum(&self, sum: PartChecksum) -> HeaderName {
        self.vendor(match sum {
            PartChecksum::Crc64 => "checksum-crc64nvme",
            PartChecksum::Crc32c => "checksum-crc32c",
        })
    }

    /// The CRC-32C that an answer tells of an object or part.
    pub fn crc32c(&self, map: &HeaderMap) -> Option<u32> {
        let bytes = BASE64_STANDARD.decode(map.get(self.checksum(PartChecksum::Crc32c))?).ok()?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    }

    /// The checksum that an answer tells of a whole object or part.
    pub fn crc64(&self, map: &HeaderMap) -> Option<Crc64> {
        crc64_of(self.dialect, map)
    }
}

/// The version of the object of `size` bytes that an answer is about: its ETag, or what stands in for one where there is none. None: it names no
/// version at all.
pub(in crate::store) fn version_in(map: &HeaderMap, size: u64) -> Option<ETag> {
    let text = |name: &str| map.get(name).and_then(|value| value.to_str().ok()).map(str::trim).filter(|text| !text.is_empty());
    if let Some(tag) = text("etag") {
        return Some(ETag::quoted(tag));
    }
    let id = text("x-amz-version-id").or_else(|| text("x-oss-version-id")).filter(|&id| id != "null");
    let modified = text("last-modified").and_then(|date| httpdate::parse_http_date(date).ok());
    (id.is_some() || modified.is_some()).then(|| ETag::stand_in(id, size, modified.unwrap_or(UNIX_EPOCH)))
}

fn prefix_of(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::S3 => "x-amz-",
        Dialect::Oss => "x-oss-",
    }
}

/// The MD5 that the tag in an answer may be: those of objects that are encrypted with a key of the customer's are none.
fn md5_tag(dialect: Dialect, map: &HeaderMap) -> Option<[u8; 16]> {
    let text = |name: &str| map.get(format!("{}{name}", prefix_of(dialect))).and_then(|value| value.to_str().ok());
    let by_kms = text("server-side-encryption").is_some_and(|how| how.to_ascii_lowercase().contains("kms"));
    if by_kms || text("server-side-encryption-customer-algorithm").is_some() {
        return None;
    }
    possible_md5(map.get(header::ETAG)?.to_str().ok()?)
}

fn crc64_of(dialect: Dialect, map: &HeaderMap) -> Option<Crc64> {
    let text = |name: &str| map.get(format!("{}{name}", prefix_of(dialect))).and_then(|value| value.to_str().ok());
    match dialect {
        Dialect::S3 => {
            let value = decoded(text("checksum-crc64nvme")?)?;
            Some(Crc64 { polynomial: Polynomial::Nvme, value })
        }
        Dialect::Oss => Some(Crc64 { polynomial: Polynomial::Ecma, value: text("hash-crc64ecma")?.parse().ok()? }),
    }
}

/// The sum that the answer to a HEAD, or to a GET of a whole object, tells of its content: the cheapest there is, and the ETag when there is nothing
/// else.
pub(in crate::store) fn object_sum(dialect: Dialect, map: &HeaderMap, tags: &Arc<Tags>) -> Option<ObjectSum> {
    let text = |name: &str| map.get(name).and_then(|value| value.to_str().ok());
    // The other kind is a sum of the sums of parts, which are not told.
    let is_whole = text("x-amz-checksum-type").is_none_or(|kind| kind.eq_ignore_ascii_case("FULL_OBJECT"));
    let told = || {
        // A sum of sums has a number behind it, which is no base64.
        let bytes = |name| BASE64_STANDARD.decode(text(name)?).ok();
        let crc = |name| <[u8; 4]>::try_from(bytes(name)?).ok();
        let sha256 = || <[u8; 32]>::try_from(bytes("x-amz-checksum-sha256")?).ok();
        crc("x-amz-checksum-crc32c")
            .map(ObjectSum::crc32c)
            .or_else(|| crc("x-amz-checksum-crc32").map(ObjectSum::crc32))
            .or_else(|| sha256().map(ObjectSum::sha256))
    };
    let md5 = || md5_tag(dialect, map).map(|md5| ObjectSum::md5(md5, tags.clone()));
    let whole = is_whole.then(|| crc64_of(dialect, map).map(ObjectSum::from).or_else(told)).flatten();
    whole.or_else(md5)
}

/// A CRC as S3 writes it: its bytes, the highest first, in base64.
pub(super) fn in_base64<const N: usize>(crc: [u8; N]) -> String {
    BASE64_STANDARD.encode(crc)
}

pub(super) fn encoded<const N: usize>(crc: [u8; N]) -> HeaderValue {
    HeaderValue::try_from(in_base64(crc)).expect("base64 is valid in a header")
}

pub(super) fn decoded(text: &str) -> Option<u64> {
    Some(u64::from_be_bytes(BASE64_STANDARD.decode(text).ok()?.try_into().ok()?))
}

/// Whether a date as S3 writes those of locks is before `now`.
fn is_past(date: &str, now: SystemTime) -> bool {
    date.parse::<Timestamp>().is_ok_and(|date| date.as_system_time() <= now)
}

pub(super) fn sayable(op: Op, key: &Key, value: &str) -> Result<HeaderValue> {
    HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| Error::new(ErrorKind::Invalid, op, key, format!("{value:?} cannot be sent as a header")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dialect: Dialect, change: impl FnOnce(Options) -> Options) -> Names {
        Names::new(&change(Options { dialect, ..Options::default() }))
    }

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())).collect()
    }

    #[test]
    fn metadata_is_read_back_as_it_was_written() {
        let metadata = [("mode", "33188"), ("name", "Zoë"), ("empty", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let headers = Headers { content_type: Some("text/plain".into()), metadata: metadata.into(), ..Headers::default() };
        for dialect in [Dialect::S3, Dialect::Oss] {
            let names = names(dialect, |options| options);
            let written = names.of_object(Op::Put, &"k".into(), &headers).unwrap();
            assert_eq!(names.object_headers(&written), headers);
        }
        for (name, value) in [("a b", "x"), ("a", "x\ny")] {
            let headers = Headers { content_type: None, metadata: [(name.to_owned(), value.to_owned())].into(), ..Headers::default() };
            let refused = names(Dialect::S3, |options| options).of_object(Op::Put, &"k".into(), &headers);
            assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid, "{name}");
        }
    }

    #[test]
    fn a_head_tells_everything_or_is_an_error() {
        let full = [
            ("content-length", "7"),
            ("etag", "\"e\""),
            ("last-modified", "Fri, 24 Feb 2012 06:07:48 GMT"),
            ("x-amz-storage-class", "GLACIER"),
            ("x-amz-version-id", "v1"),
            ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ];
        let names = names(Dialect::S3, |options| options);
        let details = names.details(&"k".into(), &map(&full)).unwrap();
        assert_eq!((details.meta.size, details.meta.etag.as_str()), (7, "\"e\""));
        assert_eq!((details.storage_class.as_deref(), details.version_id.as_deref()), (Some("GLACIER"), Some("v1")));
        assert_eq!(details.crc64, Some(Crc64 { polynomial: Polynomial::Nvme, value: 0xae8b_1486_0a79_9888 }));
        assert_eq!(encoded(0xae8b_1486_0a79_9888_u64.to_be_bytes()), "rosUhgp5mIg=");
        for some in [&full[1..], &full[..1]] {
            assert_eq!(names.details(&"k".into(), &map(some)).unwrap_err().kind, ErrorKind::Malformed);
        }
        let untagged = |headers: &[(&'static str, &str)]| names.details(&"k".into(), &map(headers)).unwrap().meta.etag;
        let modified = UNIX_EPOCH + Duration::from_secs(1_330_063_668);
        assert_eq!(untagged(&[full[0], ("etag", ""), full[2]]), ETag::stand_in(None, 7, modified));
        assert_eq!(untagged(&[full[0], full[2], full[4]]), ETag::stand_in(Some("v1"), 7, modified));
        let unversioned = map(&[full[0], full[1], ("x-amz-version-id", "null")]);
        assert_eq!(names.details(&"k".into(), &unversioned).unwrap().version_id, None);
    }

    #[test]
    fn the_source_of_a_copy_is_named_in_bytes_and_with_its_version() {
        let names = names(Dialect::Oss, |options| options);
        let source = names.copy_from(Op::Copy, "b", &"a b+/中?".into(), Version::Tag(&"\"e\"".into())).unwrap();
        assert_eq!(source, map(&[("x-oss-copy-source", "/b/a%20b%2B/%E4%B8%AD%3F"), ("x-oss-copy-source-if-match", "\"e\"")]));
        assert_eq!(names.copy_from(Op::Copy, "b", &"a".into(), Version::Tag(&"".into())).unwrap_err().kind, ErrorKind::Replaced);
        let of = |version| names.copy_from(Op::Copy, "b", &"a".into(), version).unwrap();
        assert_eq!(of(Version::Id("v+1")), map(&[("x-oss-copy-source", "/b/a?versionId=v%2B1")]));
        let date = ("x-oss-copy-source-if-unmodified-since", "Thu, 01 Jan 1970 00:00:01 GMT");
        assert_eq!(of(Version::Date(UNIX_EPOCH)), map(&[("x-oss-copy-source", "/b/a"), date]));
    }

    #[test]
    fn what_options_say_of_objects_is_in_the_words_of_the_dialect() {
        let said = |options| Options {
            sse: Sse::Kms,
            sse_key_id: Some("k1".into()),
            acl: Some("private".into()),
            requester_pays: true,
            ..options
        };
        let (s3, oss) = (names(Dialect::S3, said), names(Dialect::Oss, said));
        let written = |names: &Names, op| names.of_object(op, &"k".into(), &Headers::default()).unwrap();
        let kms = ("x-amz-server-side-encryption", "aws:kms");
        assert_eq!(
            written(&s3, Op::CreateUpload),
            map(&[kms, ("x-amz-server-side-encryption-aws-kms-key-id", "k1"), ("x-amz-acl", "private")])
        );
        let kms = [("x-oss-server-side-encryption", "KMS"), ("x-oss-server-side-encryption-key-id", "k1")];
        assert_eq!(written(&oss, Op::CreateUpload), map(&kms));
        let upload = |acl: Option<&str>| Upload { key: "k".into(), id: "i".into(), checksum: None, acl: acl.map(str::to_owned) };
        assert_eq!(oss.of_completion(&upload(None)).unwrap(), map(&[("x-oss-object-acl", "private")]));
        assert_eq!(oss.of_completion(&upload(Some("default"))).unwrap(), map(&[("x-oss-object-acl", "default")]));
        assert_eq!(written(&oss, Op::Put).len(), 3);
        let mut headers = HeaderMap::new();
        s3.pay(&mut headers);
        assert_eq!(headers, map(&[("x-amz-request-payer", "requester")]));
    }

    fn carrying(pairs: &[(&str, &str)]) -> Headers {
        Headers { carried: pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(), ..Headers::default() }
    }

    #[test]
    fn what_an_object_carries_goes_before_what_options_say() {
        let said = |options| Options { sse: Sse::Kms, sse_key_id: Some("k1".into()), acl: Some("private".into()), ..options };
        let names = names(Dialect::S3, |options| Options { storage_class: Some("STANDARD_IA".into()), ..said(options) });
        let own = carrying(&[
            ("storage-class", "GLACIER_IR"),
            ("server-side-encryption", "AES256"),
            ("grant-read", "id=\"a\""),
            ("tagging", "a=b"),
        ]);
        let expected = [
            ("x-amz-storage-class", "GLACIER_IR"),
            ("x-amz-server-side-encryption", "AES256"),
            ("x-amz-grant-read", "id=\"a\""),
            ("x-amz-tagging", "a=b"),
        ];
        assert_eq!(names.of_object(Op::Put, &"k".into(), &own).unwrap(), map(&expected));
        assert_eq!(names.of_object(Op::Copy, &"k".into(), &own).unwrap(), map(&expected[..3]));
        let word = names.of_object(Op::Put, &"k".into(), &carrying(&[("acl", "public-read")])).unwrap();
        assert_eq!(word["x-amz-acl"], "public-read");
    }

    #[test]
    fn the_usual_class_is_carried_only_where_another_would_take_its_place() {
        for (dialect, option, told, carried) in [
            (Dialect::S3, None, None, None),
            (Dialect::S3, None, Some("STANDARD"), None),
            (Dialect::S3, None, Some("STANDARD_IA"), Some("STANDARD_IA")),
            (Dialect::S3, Some("STANDARD_IA"), None, Some("STANDARD")),
            (Dialect::Oss, None, Some("Standard"), Some("Standard")),
            (Dialect::Oss, Some("IA"), None, Some("Standard")),
        ] {
            let names = names(dialect, |options| Options { storage_class: option.map(str::to_owned), ..options });
            let told: HeaderMap = told.map(|class| (names.vendor(STORAGE_CLASS), HeaderValue::from_static(class))).into_iter().collect();
            let found = names.object_headers(&told).carried.remove(STORAGE_CLASS);
            assert_eq!(found.as_deref(), carried, "{dialect:?} {option:?} {told:?}");
        }
    }

    #[test]
    fn a_lock_that_is_over_is_not_set_again() {
        let names = names(Dialect::S3, |options| options);
        for (until, is_said) in [("2001-01-01T00:00:00Z", false), ("2999-01-01T00:00:00.000Z", true)] {
            let own = carrying(&[(LOCK_MODE, "GOVERNANCE"), (LOCKED_UNTIL, until), ("object-lock-legal-hold", "ON")]);
            let said = names.of_object(Op::Put, &"k".into(), &own).unwrap();
            assert_eq!((said.contains_key("x-amz-object-lock-mode"), said.len()), (is_said, if is_said { 3 } else { 1 }), "{until}");
        }
    }
}
