//! Whole objects, their headers and conditions, deletion, links.

use windlass::store::{
    Condition, CopyRequest, ErrorKind, Headers, ListRequest, ObjectStore, PutRequest, SYMLINK_SIZE, UploadRequest, Written,
};

use super::{content, head, whole};
use crate::stores::{Bucket, Kind, key};

pub fn headers(content_type: &str, metadata: &[(&str, &str)]) -> Headers {
    let metadata = metadata.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Headers { content_type: Some(content_type.to_owned()), metadata, ..Headers::default() }
}

fn request(name: &str, body: &[u8], condition: Condition) -> PutRequest {
    PutRequest { key: key(name), body: body.to_vec().into(), headers: headers("text/plain", &[("mode", "33188")]), condition }
}

/// Writes an object that nothing is in the way of.
pub async fn put(bucket: &Bucket, name: &str, body: &[u8]) -> Written {
    bucket.store.put(&request(name, body, Condition::Any)).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Everything that the object at `name` holds, and its version.
pub async fn read(bucket: &Bucket, name: &str) -> Vec<u8> {
    let meta = head(bucket, name).await;
    if meta.size == 0 { Vec::new() } else { whole(&*bucket.store, &meta, 0..meta.size).await }
}

pub async fn a_put_is_read_back_with_its_headers(bucket: Bucket) {
    for (name, length) in [("d/empty", 0), ("d/one", 1), ("d/large", 3_000_000)] {
        let body = content(1, length);
        let written = put(&bucket, name, &body).await;
        assert!(read(&bucket, name).await == body, "{name}");
        let details = bucket.store.details(&key(name)).await.unwrap();
        assert_eq!((details.meta.etag.clone(), details.meta.size), (written.etag, length as u64));
        assert_eq!(details.headers, headers("text/plain", &[("mode", "33188")]));
        assert_eq!(details.symlink, None);
        if let Some(crc64) = details.crc64 {
            assert_eq!(crc64.polynomial.of(&body), crc64.value);
        }
        if bucket.kind != Kind::S3sFs {
            assert_eq!(head(&bucket, name).await, details.meta);
        }
    }
    assert_eq!(bucket.store.details(&key("d/none")).await.unwrap_err().kind, ErrorKind::NotFound);
    let replaced = put(&bucket, "d/large", b"small").await;
    assert_eq!((read(&bucket, "d/large").await, head(&bucket, "d/large").await.etag), (b"small".to_vec(), replaced.etag));
}

pub async fn odd_keys_are_written_as_they_are(bucket: Bucket) {
    let names = ["sp ace/plus+/pct%41", "a//b", "dir/", "中/文?&#=", "quote'\"<&>", "tilde~!*()"];
    for (i, name) in names.into_iter().enumerate() {
        put(&bucket, name, &content(i as u8, 100)).await;
        let copied = windlass::store::CopyRequest {
            source: key(name),
            etag: head(&bucket, name).await.etag,
            target: key(&format!("copies/{name}")),
            headers: None,
            condition: Condition::Any,
        };
        bucket.store.copy(&copied).await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read(&bucket, &format!("copies/{name}")).await, content(i as u8, 100), "{name}");
    }
    let request = ListRequest { prefix: key("copies/"), delimited: false, after: None, token: None, max_keys: 100, any_order: false };
    assert_eq!(bucket.store.list(&request).await.unwrap().objects.len(), names.len());
}

pub async fn a_put_replaces_only_what_its_condition_allows(bucket: Bucket) {
    let store = &bucket.store;
    let first = store.put(&request("a", b"one", Condition::Absent)).await.unwrap();
    assert_eq!(store.put(&request("a", b"two", Condition::Absent)).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(read(&bucket, "a").await, b"one");
    store.put(&request("a", b"three", Condition::Is(first.etag.clone()))).await.unwrap();
    assert_eq!(store.put(&request("a", b"four", Condition::Is(first.etag.clone()))).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(read(&bucket, "a").await, b"three");
    assert_eq!(store.put(&request("none", b"five", Condition::Is(first.etag))).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(store.head(&key("none")).await.unwrap_err().kind, ErrorKind::NotFound);
}

pub async fn what_is_deleted_is_gone_and_may_be_deleted_again(bucket: Bucket) {
    put(&bucket, "d/a", b"one").await;
    put(&bucket, "d/b", b"two").await;
    for _ in 0..2 {
        bucket.store.delete(&key("d/a")).await.unwrap();
        assert_eq!(bucket.store.head(&key("d/a")).await.unwrap_err().kind, ErrorKind::NotFound);
    }
    assert_eq!(read(&bucket, "d/b").await, b"two");
}

pub async fn a_version_is_deleted_and_no_other(bucket: Bucket) {
    let store = &bucket.store;
    let old = put(&bucket, "a", b"one").await.etag;
    let new = put(&bucket, "a", b"three").await.etag;
    assert_eq!(store.delete_version(&key("a"), &old).await.unwrap_err().kind, ErrorKind::Replaced);
    assert_eq!(read(&bucket, "a").await, b"three");
    for _ in 0..2 {
        store.delete_version(&key("a"), &new).await.unwrap();
        assert_eq!(store.head(&key("a")).await.unwrap_err().kind, ErrorKind::NotFound);
    }
}

pub async fn headers_for_other_clients_stay_with_their_object(bucket: Bucket) {
    let carried = [
        ("cache-control", "max-age=60, private"),
        ("content-disposition", "attachment; filename=\"a b.txt\""),
        ("content-encoding", "gzip"),
        ("content-language", "de, en"),
        ("expires", "Wed, 21 Oct 2065 07:28:00 GMT"),
    ];
    let carried = carried.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let wanted = Headers { carried, ..headers("text/plain", &[("mode", "33188")]) };
    let put = PutRequest { headers: wanted.clone(), ..request("whole", b"content", Condition::Any) };
    let written = bucket.store.put(&put).await.unwrap();
    let store = &*bucket.store;
    let upload = store.create_upload(&UploadRequest::new(&key("parts"), &wanted)).await.unwrap();
    let part = store.upload_part(&upload, 1, b"content".to_vec().into()).await.unwrap();
    store.complete_upload(&upload, &[part], &Condition::Any).await.unwrap();
    for (name, new) in
        [("copy", None), ("copy with others", Some(Headers { metadata: [("mode".into(), "33024".into())].into(), ..wanted.clone() }))]
    {
        let (source, etag) = (key("whole"), written.etag.clone());
        store.copy(&CopyRequest { source, etag, target: key(name), headers: new, condition: Condition::Any }).await.unwrap();
    }
    for (name, mode) in [("whole", "33188"), ("parts", "33188"), ("copy", "33188"), ("copy with others", "33024")] {
        let found = store.details(&key(name)).await.unwrap().headers;
        // MinIO forgets one in a copy that names no headers.
        let mut wanted = wanted.clone();
        if bucket.kind == Kind::Minio && name == "copy" {
            wanted.carried.remove("expires");
        }
        assert_eq!(
            (&found.carried, found.content_type.as_deref(), found.metadata["mode"].as_str()),
            (&wanted.carried, Some("text/plain"), mode),
            "{name}"
        );
    }
}

pub async fn many_objects_are_deleted_at_once(bucket: Bucket) {
    let mut names: Vec<String> = (0..40).map(|n| format!("many/{n}")).collect();
    names.extend(["many/a & <b> \"c\"", "many/ä 中文", "many/100%+", "many/two  blanks"].map(str::to_owned));
    for name in names.iter().map(String::as_str).chain(["many-more"]) {
        put(&bucket, name, b"x").await;
    }
    // What is not there is no error.
    let keys: Vec<_> = names.iter().map(String::as_str).chain(["many/none"]).map(key).collect();
    for requests in 1..=2 {
        let left = bucket.store.delete_many(&keys).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
        // The store in memory answers without any.
        let sent = bucket.metrics.delete_requests.get();
        assert!(sent == requests || bucket.kind == Kind::Memory, "{sent} requests");
    }
    for name in &names {
        assert_eq!(bucket.store.head(&key(name)).await.unwrap_err().kind, ErrorKind::NotFound, "{name}");
    }
    assert_eq!(read(&bucket, "many-more").await, b"x");
    assert!(bucket.store.delete_many(&[]).await.unwrap().is_empty());
}

pub async fn links_lead_where_they_were_written_to(bucket: Bucket) {
    let targets: [&[u8]; 5] = [b"d/there", b"../a b/%41+", b"/etc/passwd", "中/文".as_bytes(), b"nowhere"];
    put(&bucket, "d/there", b"target").await;
    for (i, target) in targets.into_iter().enumerate() {
        let name = format!("links/{i}");
        let written = bucket.store.put_symlink(&key(&name), target, &headers("text/plain", &[]), &Condition::Any).await.unwrap();
        let details = bucket.store.details(&key(&name)).await.unwrap();
        assert_eq!((details.symlink.as_deref(), details.meta.size), (Some(target), SYMLINK_SIZE), "{name}");
        assert_eq!(details.meta.etag, written.etag);
        let listed = ListRequest { prefix: key(&name), delimited: true, after: None, token: None, max_keys: 10, any_order: false };
        assert_eq!(bucket.store.list(&listed).await.unwrap().objects[0].size, SYMLINK_SIZE, "{name}");
    }
    let long = vec![b'x'; 3000];
    let refused = bucket.store.put_symlink(&key("links/long"), &long, &headers("text/plain", &[]), &Condition::Any).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid);
    if bucket.kind.is_conditional() {
        let second = bucket.store.put_symlink(&key("links/0"), b"other", &headers("text/plain", &[]), &Condition::Absent).await;
        assert_eq!(second.unwrap_err().kind, ErrorKind::Replaced);
    }
}

pub async fn links_of_other_programs_are_recognised(bucket: Bucket) {
    let link = headers("application/octet-stream", &[("mode", "41471"), ("uid", "0")]);
    let request = PutRequest { key: key("d/l"), body: "../target".into(), headers: link, condition: Condition::Any };
    bucket.store.put(&request).await.unwrap();
    assert_eq!(bucket.store.details(&key("d/l")).await.unwrap().symlink.unwrap(), b"../target");
}
