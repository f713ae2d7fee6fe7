//! What the store has of an object besides its content and the headers for other clients.

use std::collections::BTreeMap;

use windlass::store::{Condition, CopyRequest, Headers, ObjectStore, PutRequest, Retrying, UploadRequest};

use super::writes::headers;
use crate::stores::{Bucket, Kind, key};

/// What each server implements. s3s-fs and the S3 server of the tests have neither tags nor access lists.
fn carried(kind: Kind) -> BTreeMap<String, String> {
    let class = match kind {
        Kind::Memory | Kind::S3 | Kind::Moto => Some("STANDARD_IA"),
        Kind::OssV4 | Kind::OssV1 => Some("IA"),
        Kind::Minio => Some("REDUCED_REDUNDANCY"),
        Kind::Directory => Some("EXPRESS_ONEZONE"),
        Kind::S3sFs | Kind::Versitygw => None,
    };
    let tags = (!matches!(kind, Kind::S3 | Kind::Directory | Kind::S3sFs)).then_some("team=a%20b&x=1%3D2");
    let acl = match kind {
        Kind::Memory | Kind::Moto | Kind::OssV4 | Kind::OssV1 => Some("public-read"),
        // Those of MinIO are all the same; versitygw has them of buckets.
        Kind::S3 | Kind::Directory | Kind::S3sFs | Kind::Versitygw | Kind::Minio => None,
    };
    // versitygw encrypts nothing.
    let encryption = matches!(kind, Kind::Memory | Kind::Moto | Kind::Minio | Kind::OssV4 | Kind::OssV1).then_some("AES256");
    let lock = (kind == Kind::Memory).then_some("ON");
    let redirect = matches!(kind, Kind::Memory | Kind::Moto).then_some("/elsewhere");
    [
        ("storage-class", class),
        ("tagging", tags),
        ("acl", acl),
        ("server-side-encryption", encryption),
        ("object-lock-legal-hold", lock),
        ("website-redirect-location", redirect),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
    .collect()
}

/// Of what is carried, as far as `wanted` speaks of it.
async fn found(store: &Retrying, name: &str, wanted: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut found = store.details_to_keep(&key(name)).await.unwrap().headers.carried;
    found.retain(|name, _| wanted.contains_key(name));
    // Stores put tags into an order of their own.
    if let Some(tags) = found.get_mut("tagging") {
        let mut pairs: Vec<_> = tags.split('&').collect();
        pairs.sort_unstable();
        *tags = pairs.join("&");
    }
    found
}

pub async fn class_tags_and_acl_stay_with_their_object(bucket: Bucket) {
    let (store, carried) = (&*bucket.store, carried(bucket.kind));
    let wanted = Headers { carried: carried.clone(), ..headers("text/plain", &[("mode", "33188")]) };
    let put = PutRequest { key: key("whole"), body: b"content".to_vec().into(), headers: wanted, condition: Condition::Any };
    let etag = store.put(&put).await.unwrap().etag;
    assert_eq!(found(store, "whole", &carried).await, carried, "of what was put");
    let kept = store.details_to_keep(&key("whole")).await.unwrap().headers;
    let upload = store.create_upload(&UploadRequest::new(&key("parts"), &kept)).await.unwrap();
    let part = store.upload_part(&upload, 1, b"content".to_vec().into()).await.unwrap();
    store.complete_upload(&upload, &[part], &Condition::Any).await.unwrap();
    let mut new = kept.clone();
    new.metadata.insert("mode".into(), "33024".into());
    for (name, headers) in [("copy", None), ("copy with others", Some(new))] {
        let request = CopyRequest { source: key("whole"), etag: etag.clone(), target: key(name), headers, condition: Condition::Any };
        store.copy(&request).await.unwrap();
    }
    for name in ["parts", "copy", "copy with others"] {
        assert_eq!(found(store, name, &carried).await, carried, "{name}");
    }
}

pub async fn own_attributes_win_over_options(bucket: Bucket) {
    let plain = PutRequest { key: key("a"), body: b"content".to_vec().into(), headers: Headers::default(), condition: Condition::Any };
    let etag = bucket.store.put(&plain).await.unwrap().etag;
    let class = if bucket.kind == Kind::Moto { "STANDARD_IA" } else { "IA" };
    let store = bucket
        .with(|options| windlass::store::Options { storage_class: Some(class.into()), acl: Some("public-read".into()), ..options })
        .await;
    let of = async |name: &str| {
        let carried = bucket.store.details_to_keep(&key(name)).await.unwrap().headers.carried;
        let of = |name: &str| carried.get(name).map(String::as_str).unwrap_or_default().to_owned();
        // The usual is not always said.
        (of("storage-class").to_uppercase().replace("STANDARD", "").replace("_IA", "IA"), of("acl").replace("private", ""))
    };
    let usual = (String::new(), String::new());
    assert_eq!(of("a").await, usual);
    let kept = store.details_to_keep(&key("a")).await.unwrap().headers;
    store.put(&PutRequest { headers: kept.clone(), key: key("edited"), ..plain.clone() }).await.unwrap();
    let copy = CopyRequest { source: key("a"), etag, target: key("copied"), headers: None, condition: Condition::Any };
    store.copy(&copy).await.unwrap();
    store.copy(&CopyRequest { target: key("changed"), headers: Some(kept), ..copy }).await.unwrap();
    for name in ["edited", "copied", "changed"] {
        assert_eq!(of(name).await, usual, "{name}");
    }
    store.put(&PutRequest { key: key("new"), ..plain }).await.unwrap();
    assert_eq!(of("new").await.1, "public-read");
    assert_ne!(of("new").await.0, "");
}
