//! The signature rules of OSS (V4 in header and query, V1 in the header), written a second time from the vendor's
//! descriptions, so that a server in a test can check what a client signs. Not for signing: the product signs through
//! its libraries. Invariant: it reproduces every vector of tests/data/signatures.json.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use sha1::Sha1;
use sha2::{Digest, Sha256};

const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &VALUE.remove(b'/');

/// The query parameters that belong to the resource in V1.
const SUB_RESOURCES: &[&str] = &[
    "acl",
    "append",
    "bucketInfo",
    "callback",
    "callback-var",
    "cloudboxes",
    "continuation-token",
    "delete",
    "location",
    "objectMeta",
    "partNumber",
    "position",
    "regionList",
    "resourceGroup",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "security-token",
    "sequential",
    "stat",
    "symlink",
    "tagging",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
];

/// A request as its receiver sees it: decoded, header names in lower case.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub method: String,
    pub bucket: Option<String>,
    pub key: Option<Vec<u8>>,
    pub query: Vec<(String, String)>,
    pub headers: BTreeMap<String, String>,
}

/// Who signs, and for where.
#[derive(Clone, Debug)]
pub struct Signee {
    pub id: String,
    pub secret: String,
    pub region: String,
}

/// The signature that `who` would make at `date` (`20240229T235959Z`). `additional`: the further headers it covers.
pub fn oss_v4(received: &Received, who: &Signee, date: &str, additional: &[&str]) -> String {
    let scope = oss_v4_scope(who, date);
    let bucket = received.bucket.as_ref().map(|bucket| format!("{bucket}/")).unwrap_or_default();
    let key = percent_encode(received.key.as_deref().unwrap_or_default(), PATH);
    let own = |name: &str| matches!(name, "content-type" | "content-md5") || name.starts_with("x-oss-");
    let headers = received.headers.iter().filter(|(name, _)| own(name) || additional.contains(&name.as_str()));
    let headers: String = headers.map(|(name, value)| format!("{name}:{value}\n")).collect();
    let method = &received.method;
    let query = canonical_query(&received.query);
    let request = format!("{method}\n/{bucket}{key}\n{query}\n{headers}\n{}\nUNSIGNED-PAYLOAD", additional.join(";"));
    let text = format!("OSS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex::encode(Sha256::digest(request)));
    sign_chain(&format!("aliyun_v4{}", who.secret), &[&date[..8], &who.region, "oss", "aliyun_v4_request"], &text)
}

/// `20240229/cn-hangzhou/oss/aliyun_v4_request`.
pub fn oss_v4_scope(who: &Signee, date: &str) -> String {
    format!("{}/{}/oss/aliyun_v4_request", &date[..8], who.region)
}

/// The V1 signature of a request whose Date header is `date`.
pub fn oss_v1(received: &Received, who: &Signee, date: &str) -> String {
    let header = |name: &str| received.headers.get(name).map(String::as_str).unwrap_or_default();
    let own = received.headers.iter().filter(|(name, _)| name.starts_with("x-oss-"));
    let own: String = own.map(|(name, value)| format!("{name}:{value}\n")).collect();
    let mut sub: Vec<_> = received.query.iter().filter(|(name, _)| SUB_RESOURCES.contains(&name.as_str())).collect();
    sub.sort();
    let sub: Vec<_> = sub.iter().map(|(name, value)| if value.is_empty() { name.clone() } else { format!("{name}={value}") }).collect();
    let mut text = format!("{}\n{}\n{}\n{date}\n{own}/", received.method, header("content-md5"), header("content-type")).into_bytes();
    if let Some(bucket) = &received.bucket {
        text.extend_from_slice(format!("{bucket}/").as_bytes());
        text.extend_from_slice(received.key.as_deref().unwrap_or_default());
    }
    if !sub.is_empty() {
        text.extend_from_slice(format!("?{}", sub.join("&")).as_bytes());
    }
    let mut mac = Hmac::<Sha1>::new_from_slice(who.secret.as_bytes()).unwrap();
    mac.update(&text);
    BASE64_STANDARD.encode(mac.finalize().into_bytes())
}

fn canonical_query(query: &[(String, String)]) -> String {
    let encode = |text: &str| percent_encode(text.as_bytes(), VALUE).to_string();
    let mut pairs: Vec<_> = query.iter().map(|(name, value)| (encode(name), encode(value))).collect();
    pairs.sort();
    let pairs = pairs.into_iter().map(|(name, value)| if value.is_empty() { name } else { format!("{name}={value}") });
    pairs.collect::<Vec<_>>().join("&")
}

fn sign_chain(secret: &str, steps: &[&str], text: &str) -> String {
    let key = steps.iter().fold(secret.as_bytes().to_vec(), |key, step| sha256_mac(&key, step));
    hex::encode(sha256_mac(&key, text))
}

fn sha256_mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}
