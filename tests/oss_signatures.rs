//! The test server's own reading of the signature rules, proven against the vendor's SDK.

mod support;

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use support::oss_sign::{Received, Signee, oss_v1, oss_v4, oss_v4_scope};

#[derive(Deserialize)]
struct File {
    vectors: Vec<Vector>,
}

#[derive(Clone, Deserialize)]
struct Vector {
    id: String,
    mode: String,
    method: String,
    bucket: Option<String>,
    key: Option<String>,
    query: BTreeMap<String, String>,
    region: String,
    ak: String,
    sk: String,
    additional: Vec<String>,
    authorization: Option<String>,
    url: Option<String>,
    sent_headers: BTreeMap<String, String>,
}

impl Vector {
    fn received(&self) -> Received {
        let headers = self.sent_headers.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
        let query = match &self.url {
            Some(url) => query_of(url).into_iter().filter(|(name, _)| name != "x-oss-signature").collect(),
            None => self.query.clone().into_iter().collect(),
        };
        let key = self.key.clone().map(String::into_bytes);
        Received { method: self.method.clone(), bucket: self.bucket.clone(), key, query, headers }
    }

    fn who(&self) -> Signee {
        Signee { id: self.ak.clone(), secret: self.sk.clone(), region: self.region.clone() }
    }
}

fn query_of(url: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(name, value)| (decode(name), decode(value))).collect()
}

/// What the vendor put out, and what we make of the same request.
fn both(vector: &Vector) -> (String, String) {
    let (mut received, who) = (vector.received(), vector.who());
    let authorization = vector.authorization.clone().unwrap_or_default();
    match vector.mode.as_str() {
        "oss4" => {
            let date = received.headers["x-oss-date"].clone();
            let mut additional: Vec<&str> = vector.additional.iter().map(String::as_str).collect();
            additional.retain(|name| received.headers.contains_key(*name));
            additional.sort_unstable();
            let listed = if additional.is_empty() { String::new() } else { format!("AdditionalHeaders={},", additional.join(";")) };
            let signature = oss_v4(&received, &who, &date, &additional);
            let scope = oss_v4_scope(&who, &date);
            (authorization, format!("OSS4-HMAC-SHA256 Credential={}/{scope},{listed}Signature={signature}", who.id))
        }
        "oss4q" => {
            let query = query_of(vector.url.as_deref().unwrap());
            let value = |wanted: &str| query.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone()).unwrap();
            received.headers.clear();
            (value("x-oss-signature"), oss_v4(&received, &who, &value("x-oss-date"), &[]))
        }
        "oss1" => {
            let date = received.headers["date"].clone();
            (authorization, format!("OSS {}:{}", who.id, oss_v1(&received, &who, &date)))
        }
        mode => panic!("unknown mode {mode}"),
    }
}

#[test]
fn every_vendor_vector_is_reproduced() {
    let file: File = serde_json::from_str(include_str!("data/signatures.json")).unwrap();
    let mut counted = BTreeMap::new();
    for vector in &file.vectors {
        let (theirs, ours) = both(vector);
        assert_eq!(ours, theirs, "{} {}", vector.id, vector.mode);
        *counted.entry(vector.mode.as_str()).or_insert(0) += 1;
    }
    assert_eq!(counted, BTreeMap::from([("oss1", 19), ("oss4", 20), ("oss4q", 19)]));
}

#[test]
fn a_changed_request_has_another_signature() {
    let file: File = serde_json::from_str(include_str!("data/signatures.json")).unwrap();
    for vector in file.vectors.iter().filter(|vector| vector.bucket.is_some()) {
        let changed = Vector { bucket: Some("otherbucket".into()), ..vector.clone() };
        let (theirs, ours) = both(&changed);
        assert_ne!(ours, theirs, "{}", vector.id);
    }
}
