//! Signatures against those of botocore 1.44.5, and what they cost.

use std::collections::BTreeMap;
use std::time::Instant as WallInstant;

use aws_sdk_s3::config::{BehaviorVersion, Region};
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat as Format};
use serde::Deserialize;

use super::*;
use crate::store::credentials::Keys;

#[derive(Deserialize)]
struct Vector {
    id: String,
    method: String,
    key: Option<String>,
    url: String,
    headers: BTreeMap<String, String>,
    time: String,
    region: String,
    access_key_id: String,
    secret: String,
    token: Option<String>,
    authorization: String,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("../../../../tests/data/s3_signatures.json")).unwrap()
}

fn v4(region: &str) -> Scheme {
    Scheme::V4 { service: "s3".into(), region: region.into() }
}

fn at(base: &str) -> Address {
    Address { base: base.into(), scheme: v4("us-east-1") }
}

fn signer(keys: Keys) -> Signer {
    Signer::new(at("https://examplebucket.s3.example.com"), Some(Rotating::new(Box::new(keys))), false)
}

fn credentials(expires: Option<SystemTime>) -> Keys {
    Keys { id: "AKID".into(), secret: "secret".into(), token: Some("token".into()), expires, from: "a test".into() }
}

#[test]
fn every_vector_of_the_vendor_is_reproduced() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 16);
    for vector in vectors {
        let credentials = Credentials::new(&vector.access_key_id, &vector.secret, vector.token.clone(), None, "vector");
        let time = DateTime::from_str(&vector.time, Format::DateTime).unwrap().try_into().unwrap();
        let headers: Vec<(&str, &str)> = vector.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let unsigned = Unsigned { method: &vector.method, url: &vector.url, headers: &headers, payload: SignableBody::Bytes(b"") };
        let signed = unsigned.sign(&credentials, &v4(&vector.region), time).unwrap();
        assert_eq!(signed["authorization"], vector.authorization, "{}", vector.id);
    }
}

#[test]
fn keys_are_escaped_as_the_vendor_escapes_them() {
    let signer = signer(credentials(None));
    for vector in vectors() {
        let Some(key) = vector.key else { continue };
        assert_eq!(signer.object_url(&Key::from(key)).unwrap().as_str(), vector.url, "{}", vector.id);
    }
    let raw = signer.object_url(&Key::from(&b"x\xff/y"[..])).unwrap();
    assert_eq!(raw.path(), "/x%FF/y");
}

#[test]
fn keys_that_a_url_would_resolve_are_refused() {
    let signer = signer(credentials(None));
    for key in ["..", "a/../b", "./a", "a/."] {
        assert_eq!(signer.object_url(&Key::from(key)).unwrap_err().kind, ErrorKind::Invalid, "{key}");
    }
    for key in ["a..b", "a/...", ".a", "a//b"] {
        assert!(signer.object_url(&Key::from(key)).unwrap().path().ends_with(key), "{key}");
    }
}

#[tokio::test]
async fn a_signature_covers_no_range_and_is_used_again() {
    let signer = signer(credentials(None));
    let first = signer.sign_get(&Key::from("k")).await.unwrap();
    let authorization = first.headers["authorization"].to_str().unwrap();
    assert!(authorization.contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,"), "{authorization}");
    assert_eq!(first.headers["x-amz-content-sha256"], "UNSIGNED-PAYLOAD");
    assert_eq!(first.headers["x-amz-security-token"], "token");
    let again = signer.sign_get(&Key::from("k")).await.unwrap();
    assert_eq!((first.url, first.headers), (again.url, again.headers));
}

#[tokio::test]
async fn a_signature_does_not_outlive_its_credentials() {
    let gone = signer(credentials(Some(SystemTime::now() - Duration::from_secs(1))));
    gone.sign_get(&Key::from("k")).await.unwrap();
    assert!(gone.cache.get(&Key::from("k")).is_none());
    let long = signer(credentials(Some(SystemTime::now() + Duration::from_secs(3600))));
    long.sign_get(&Key::from("k")).await.unwrap();
    let (_, valid_until, _) = long.cache.get(&Key::from("k")).unwrap();
    assert!(valid_until <= SystemTime::now() + SIGNATURE_LIFETIME);
}

#[tokio::test]
async fn a_redirect_target_gets_its_own_signature_and_anonymous_none() {
    let named = signer(credentials(None));
    let signed = named.sign_get(&Key::from("k")).await.unwrap();
    let target = Url::parse("https://cache.example.com:8443/k").unwrap();
    let headers = named.sign_redirected(Op::Get, &signed, &Key::from("k"), &target).await.unwrap();
    assert_ne!(headers["authorization"], signed.headers["authorization"]);
    let anonymous = Signer::new(at("http://h/b"), None, false);
    assert!(anonymous.sign_get(&Key::from("k")).await.unwrap().headers.is_empty());
}

#[tokio::test]
async fn a_write_is_signed_with_its_query_and_the_headers_of_the_vendor() {
    let signer = signer(credentials(None));
    let (key, mut headers) = (Key::from("d/k"), HeaderMap::new());
    headers.insert("x-amz-meta-mode", HeaderValue::from_static("33188"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
    let query = [("partNumber", "7".to_owned()), ("uploadId", "a+/b".to_owned()), ("uploads", String::new())];
    let unsigned = requests::Unsigned { op: Op::Put, method: Method::PUT, key: &key, query: &query, headers: &headers, payload: None };
    let signed = Voice::sign(&signer, &unsigned).await.unwrap();
    assert_eq!(signed.url.as_str(), "https://examplebucket.s3.example.com/d/k?partNumber=7&uploadId=a%2B%2Fb&uploads");
    let authorization = signed.headers["authorization"].to_str().unwrap();
    let covered = "SignedHeaders=content-type;host;x-amz-content-sha256;x-amz-date;x-amz-meta-mode;x-amz-security-token,";
    assert!(authorization.contains(covered), "{authorization}");
    assert_eq!(
        (&signed.headers["x-amz-meta-mode"], &signed.headers["if-none-match"]),
        (&headers["x-amz-meta-mode"], &headers["if-none-match"])
    );
    let bucket = Key::root();
    let unsigned =
        requests::Unsigned { op: Op::ListUploads, method: Method::GET, key: &bucket, query: &query[2..], headers: &headers, payload: None };
    assert_eq!(Voice::sign(&signer, &unsigned).await.unwrap().url.as_str(), "https://examplebucket.s3.example.com/?uploads");
}

#[tokio::test]
#[ignore = "prints a measurement; run with --nocapture"]
async fn signing_costs() {
    const ROUNDS: u32 = 2000;
    let per_call = |started: WallInstant| started.elapsed() / ROUNDS;
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("AKID", "secret", Some("token".into()), None, "test"));
    let client = aws_sdk_s3::Client::from_conf(config.build());
    let signer = signer(credentials(None));
    let key = Key::from("some/directory/with/an/object.bin");

    let started = WallInstant::now();
    for _ in 0..ROUNDS {
        let request = client.get_object().bucket("examplebucket").key(key.to_str().unwrap());
        request.presigned(PresigningConfig::expires_in(Duration::from_secs(900)).unwrap()).await.unwrap();
    }
    println!("presigned by the SDK  {:?}", per_call(started));
    let started = WallInstant::now();
    for _ in 0..ROUNDS {
        let url = signer.object_url(&key).unwrap();
        signer.get_headers(Op::Get, &key, &url).await.unwrap();
    }
    println!("header signature      {:?}", per_call(started));
    let started = WallInstant::now();
    for _ in 0..ROUNDS {
        signer.sign_get(&key).await.unwrap();
    }
    println!("from the cache        {:?}", per_call(started));
}
