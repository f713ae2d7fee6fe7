//! The signatures of OSS in headers, V4 and V1, at any time: what a library signs is always of this machine's time, which a store with another clock
//! refuses. Pure. Invariant: a signature covers method, bucket, key, query and the headers that OSS names ([`is_signed`]), as the vendor's SDK
//! writes them.

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use percent_encoding::percent_encode;
use reqsign_core::hash::{base64_hmac_sha1, hex_hmac_sha256, hex_sha256, hmac_sha256};
use reqsign_core::time::Timestamp;

use super::address::{PATH, VALUE};
use crate::store::Key;
use crate::store::credentials::Keys;

const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-oss-security-token");
const OSS_DATE: HeaderName = HeaderName::from_static("x-oss-date");
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-oss-content-sha256");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// V4: the body is not under the signature.
const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// The parameters that V1 signs, of those that are sent here: sub-resources, and the token of a listing
/// (<https://www.alibabacloud.com/help/en/oss/developer-reference/include-signatures-in-the-authorization-header>).
const SUB_RESOURCES: [&str; 12] = [
    "acl",
    "append",
    "continuation-token",
    "delete",
    "location",
    "partNumber",
    "position",
    "symlink",
    "tagging",
    "uploadId",
    "uploads",
    "versionId",
];

/// How requests are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V4 { region: String },
}

/// A request to sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsigned<'a> {
    pub method: &'a Method,
    pub bucket: &'a str,
    /// Empty for the bucket itself.
    pub key: &'a Key,
    pub query: &'a [(&'a str, &'a [u8])],
    pub headers: &'a HeaderMap,
}

/// Whether OSS signs this header, in V4 as in V1.
pub(super) fn is_signed(name: &HeaderName) -> bool {
    *name == CONTENT_TYPE || *name == CONTENT_MD5 || name.as_str().starts_with("x-oss-")
}

impl Version {
    /// The headers that the signature at `time` adds; `None` when keys or header values cannot be sent in headers.
    pub fn sign(&self, unsigned: Unsigned<'_>, keys: &Keys, time: SystemTime) -> Option<HeaderMap> {
        let secret = |text: &str| {
            let mut value = HeaderValue::try_from(text).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let mut added = HeaderMap::new();
        if let Some(token) = &keys.token {
            added.insert(SECURITY_TOKEN, secret(token)?);
        }
        let authorization = match self {
            Self::V1 => {
                let date = httpdate::fmt_http_date(time);
                let text = unsigned.v1_text(&added, &date);
                added.insert(DATE, HeaderValue::try_from(date).ok()?);
                format!("OSS {}:{}", keys.id, base64_hmac_sha1(keys.secret.as_bytes(), &text))
            }
            Self::V4 { region } => {
                let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
                let stamp = Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?.format_iso8601();
                added.insert(OSS_DATE, HeaderValue::try_from(&stamp).ok()?);
                added.insert(CONTENT_SHA256, HeaderValue::from_static(UNSIGNED_PAYLOAD));
                let day = &stamp[..8];
                let scope = format!("{day}/{region}/oss/aliyun_v4_request");
                let request = hex_sha256(unsigned.v4_text(&added).as_bytes());
                let text = format!("OSS4-HMAC-SHA256\n{stamp}\n{scope}\n{request}");
                let first = format!("aliyun_v4{}", keys.secret).into_bytes();
                let steps = [day, region, "oss", "aliyun_v4_request"];
                let signing_key = steps.iter().fold(first, |key, step| hmac_sha256(&key, step.as_bytes()));
                let signature = hex_hmac_sha256(&signing_key, text.as_bytes());
                format!("OSS4-HMAC-SHA256 Credential={}/{scope},Signature={signature}", keys.id)
            }
        };
        added.insert(AUTHORIZATION, secret(&authorization)?);
        Some(added)
    }
}

impl Unsigned<'_> {
    /// The headers under the signature, by name.
    fn signed_headers(&self, added: &HeaderMap, is_signed: impl Fn(&HeaderName) -> bool) -> String {
        let all = self.headers.iter().chain(added).filter(|(name, _)| is_signed(name));
        let mut all: Vec<(&str, &HeaderValue)> = all.map(|(name, value)| (name.as_str(), value)).collect();
        all.sort_by_key(|(name, _)| *name);
        // HTTP drops blanks around a value: the store does not see them.
        let line = |(name, value): (&str, &HeaderValue)| format!("{name}:{}\n", String::from_utf8_lossy(value.as_bytes()).trim());
        all.into_iter().map(line).collect()
    }

    fn v1_text(&self, added: &HeaderMap, date: &str) -> Vec<u8> {
        let header = |name| self.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default();
        let headers = self.signed_headers(added, |name| name.as_str().starts_with("x-oss-"));
        let (md5, content_type) = (header(CONTENT_MD5), header(CONTENT_TYPE));
        let mut text = format!("{}\n{md5}\n{content_type}\n{date}\n{headers}/{}/", self.method, self.bucket).into_bytes();
        text.extend_from_slice(self.key.as_bytes());
        let mut resources: Vec<_> = self.query.iter().filter(|(name, _)| SUB_RESOURCES.contains(name)).collect();
        resources.sort_unstable();
        for (n, (name, value)) in resources.into_iter().enumerate() {
            text.push(if n == 0 { b'?' } else { b'&' });
            text.extend_from_slice(name.as_bytes());
            if !value.is_empty() {
                text.push(b'=');
                text.extend_from_slice(value);
            }
        }
        text
    }

    fn v4_text(&self, added: &HeaderMap) -> String {
        let encoded = |bytes: &[u8]| percent_encode(bytes, VALUE).to_string();
        let mut query: Vec<_> = self.query.iter().map(|(name, value)| (encoded(name.as_bytes()), encoded(value))).collect();
        query.sort_unstable();
        let pair = |(name, value): (String, String)| if value.is_empty() { name } else { format!("{name}={value}") };
        let query = query.into_iter().map(pair).collect::<Vec<_>>().join("&");
        let key = percent_encode(self.key.as_bytes(), PATH);
        let headers = self.signed_headers(added, is_signed);
        // The empty line stands for further headers, of which none is signed.
        format!("{}\n/{}/{key}\n{query}\n{headers}\n\n{UNSIGNED_PAYLOAD}", self.method, self.bucket)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct File {
        vectors: Vec<Vector>,
    }

    /// A request that the vendor's SDK has signed.
    #[derive(Deserialize)]
    struct Vector {
        id: String,
        mode: String,
        method: String,
        bucket: Option<String>,
        key: Option<String>,
        query: BTreeMap<String, String>,
        headers: BTreeMap<String, String>,
        time: String,
        region: String,
        ak: String,
        sk: String,
        token: Option<String>,
        additional: Vec<String>,
        authorization: Option<String>,
    }

    #[test]
    fn signatures_are_those_of_the_vendor_at_any_time() {
        let file: File = serde_json::from_str(include_str!("../../../tests/data/signatures.json")).unwrap();
        let mut compared = BTreeMap::new();
        for vector in file.vectors {
            let version = match vector.mode.as_str() {
                "oss4" if vector.additional.is_empty() => Version::V4 { region: vector.region },
                // That SDK sends the token in another header, which V1 does not sign.
                "oss1" if vector.token.is_none() && vector.query.keys().all(|name| SUB_RESOURCES.contains(&name.as_str())) => Version::V1,
                _ => continue,
            };
            // The SDK signs blanks that it then loses on the wire.
            if vector.headers.values().any(|value| value.trim() != value) {
                continue;
            }
            let (Some(bucket), key) = (vector.bucket, Key::from(vector.key.unwrap_or_default().as_str())) else { continue };
            let keys = Keys { id: vector.ak, secret: vector.sk, token: vector.token, expires: None, from: String::new() };
            let headers = vector.headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap()));
            let headers = headers.collect();
            let query: Vec<(&str, &[u8])> = vector.query.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            let method = vector.method.parse().unwrap();
            let unsigned = Unsigned { method: &method, bucket: &bucket, key: &key, query: &query, headers: &headers };
            let time: Timestamp = vector.time.parse().unwrap();
            let added = version.sign(unsigned, &keys, time.as_system_time()).unwrap();
            assert_eq!(added[AUTHORIZATION].to_str().ok(), vector.authorization.as_deref(), "{}", vector.id);
            assert!(added[AUTHORIZATION].is_sensitive());
            *compared.entry(vector.mode).or_insert(0) += 1;
        }
        // All vectors of the file but those that are left out above.
        assert_eq!((compared["oss4"], compared["oss1"]), (16, 6));
    }
}
