//! The router over buckets in memory.

use bytes::Bytes;

use super::*;
use crate::store::memory::{Fault, Memory, Plan, Rule};

/// An account of buckets in memory, of which some are not listed.
#[derive(Debug, Default)]
struct InMemory {
    buckets: BTreeMap<String, Memory>,
    listed: Option<Vec<String>>,
    opened: Mutex<Vec<String>>,
}

#[async_trait]
impl Account for Arc<InMemory> {
    async fn list_buckets(&self) -> Result<Vec<String>> {
        let denied = || Error::new(ErrorKind::AccessDenied, Op::List, &Key::root(), "access denied");
        self.listed.clone().ok_or_else(denied)
    }

    async fn open_bucket(&self, name: &str) -> Result<Arc<dyn ObjectStore>> {
        self.opened.lock().push(name.to_owned());
        match self.buckets.get(name) {
            Some(bucket) => Ok(Arc::new(bucket.clone())),
            None => Err(Error::new(ErrorKind::NoSuchBucket, Op::Head, &Key::root(), "no such bucket")),
        }
    }
}

struct World {
    account: Arc<InMemory>,
    store: BucketRouter<Arc<InMemory>>,
}

fn world(listed: Option<&[&str]>, buckets: Buckets) -> World {
    let of = |name: &str| (name.to_owned(), Memory::new(Plan::default()));
    let listed = listed.map(|names| names.iter().map(|&name| name.to_owned()).collect());
    let account = Arc::new(InMemory { buckets: ["one", "two"].map(of).into(), listed, opened: Mutex::default() });
    World { store: BucketRouter::new(Arc::clone(&account), buckets), account }
}

impl World {
    fn bucket(&self, name: &str) -> &Memory {
        &self.account.buckets[name]
    }

    async fn list(&self, prefix: &str, delimited: bool, max_keys: u16) -> Result<Vec<String>> {
        let request = ListRequest { prefix: prefix.into(), delimited, after: None, token: None, max_keys, any_order: false };
        let page = self.store.list(&request).await?;
        assert!(page.sums.is_empty() || page.sums.len() == page.objects.len(), "one sum for each object");
        let keys = page.objects.iter().map(|object| &object.key).chain(&page.prefixes);
        Ok(keys.map(ToString::to_string).collect())
    }
}

#[tokio::test]
async fn the_root_lists_buckets_and_asks_none_of_them() {
    let world = world(Some(&["two", "one", "Not_A_Bucket"]), Buckets::All);
    assert_eq!(world.list("", true, 1000).await.unwrap(), ["one/", "two/"]);
    let behind =
        ListRequest { prefix: Key::root(), delimited: true, after: Some("one/".into()), token: None, max_keys: 1000, any_order: false };
    assert_eq!(world.store.list(&behind).await.unwrap().prefixes, [Key::from("two/")]);
    assert!(world.account.opened.lock().is_empty());
    assert_eq!(world.list("", false, 1000).await.unwrap_err().kind, ErrorKind::Invalid);
}

#[tokio::test]
async fn named_buckets_are_all_there_is() {
    let world = world(None, Buckets::Named(vec!["two".into(), "gone".into()]));
    assert_eq!(world.list("", true, 1000).await.unwrap(), ["two/"], "those that exist");
    for (name, found) in [("two", vec!["two/"]), ("gone", vec![]), ("one", vec![])] {
        assert_eq!(world.list(name, false, 16).await.unwrap(), found, "{name}");
    }
    assert!(!world.account.opened.lock().contains(&"one".to_owned()), "it is not among them");
}

#[tokio::test]
async fn a_bucket_that_is_not_listed_is_found_by_its_name() {
    let world = world(None, Buckets::All);
    assert_eq!(world.list("", true, 1000).await.unwrap_err().kind, ErrorKind::AccessDenied);
    assert_eq!(world.list("one", false, 16).await.unwrap(), ["one/"]);
    assert_eq!(world.list("one/", false, 1).await.unwrap(), ["one/"]);
    for absent in ["nobody", ".git", "x", "o\u{e9}e"] {
        assert!(world.list(absent, false, 16).await.unwrap().is_empty(), "{absent}");
        assert!(world.list(&format!("{absent}/"), false, 1).await.unwrap().is_empty(), "{absent}/");
        assert_eq!(world.store.head(&absent.into()).await.unwrap_err().kind, ErrorKind::NotFound);
    }
    assert_eq!(world.store.opened.lock().len(), 1, "names that nobody has are not kept");
}

#[tokio::test]
async fn keys_go_to_their_bucket_and_come_back_whole() {
    let world = world(None, Buckets::All);
    world.bucket("one").put("d/a", "1");
    world.bucket("one").put("z", "22");
    world.bucket("two").put("d/a", "333");
    assert_eq!(world.store.head(&"two/d/a".into()).await.unwrap().size, 3);
    assert_eq!(world.list("one/", true, 1000).await.unwrap(), ["one/", "one/z", "one/d/"]);
    assert_eq!(world.list("one/d/", true, 1000).await.unwrap(), ["one/d/a"]);
    let behind = |after: &str| ListRequest {
        prefix: "one/".into(),
        delimited: false,
        after: Some(after.into()),
        token: None,
        max_keys: 1000,
        any_order: false,
    };
    let keys = |page: ListPage| page.objects.iter().map(|object| object.key.to_string()).collect::<Vec<_>>();
    assert_eq!(keys(world.store.list(&behind("one/d/a")).await.unwrap()), ["one/z"]);
    assert_eq!(keys(world.store.list(&behind("ona")).await.unwrap()), ["one/", "one/d/a", "one/z"]);
    assert!(keys(world.store.list(&behind("two/")).await.unwrap()).is_empty());
    let error = world.store.head(&"one/absent".into()).await.unwrap_err();
    assert_eq!((error.kind, error.key), (ErrorKind::NotFound, "one/absent".into()));

    let put = |key: &str| PutRequest { key: key.into(), body: Bytes::from("x"), headers: Headers::default(), condition: Condition::Any };
    world.store.put(&put("two/new")).await.unwrap();
    assert!(world.bucket("two").meta("new").is_some());
    assert_eq!(world.store.put(&put("new")).await.unwrap_err().kind, ErrorKind::Invalid);

    let left = world.store.delete_many(&["one/z".into(), "two/new".into(), "two".into()]).await.unwrap();
    assert_eq!(left.iter().map(|error| error.key.to_string()).collect::<Vec<_>>(), ["two"]);
    assert!(world.bucket("one").meta("z").is_none() && world.bucket("two").meta("new").is_none());
}

#[tokio::test]
async fn uploads_and_copies_stay_inside_their_bucket() {
    let world = world(None, Buckets::All);
    world.bucket("one").put("a", "1");
    let etag = world.store.head(&"one/a".into()).await.unwrap().etag;
    let copy = |target: &str| CopyRequest {
        source: "one/a".into(),
        etag: etag.clone(),
        target: target.into(),
        headers: None,
        condition: Condition::Any,
    };
    world.store.copy(&copy("one/b")).await.unwrap();
    assert_eq!(world.bucket("one").content("b").as_deref(), Some(&b"1"[..]));
    assert_eq!(world.store.copy(&copy("two/b")).await.unwrap_err().kind, ErrorKind::Invalid);

    let upload = world.store.create_upload(&UploadRequest::new(&"two/u".into(), &Headers::default())).await.unwrap();
    assert_eq!(upload.key, "two/u".into());
    let part = world.store.upload_part(&upload, 1, Bytes::from("bytes").into()).await.unwrap();
    assert_eq!(world.store.list_uploads(&"two/".into(), None).await.unwrap().uploads[0].key, "two/u".into());
    world.store.complete_upload(&upload, &[part], &Condition::Any).await.unwrap();
    assert_eq!(world.bucket("two").content("u").as_deref(), Some(&b"bytes"[..]));
}

#[tokio::test]
async fn what_a_bucket_keeps_for_its_mount_is_its_marker_and_not_shown() {
    let world = world(None, Buckets::All);
    let put = PutRequest { key: "one/".into(), body: Bytes::new(), headers: Headers::default(), condition: Condition::Absent };
    world.store.put(&put).await.unwrap();
    assert!(world.bucket("one").meta(".windlass/attributes").is_some());
    assert_eq!(world.store.details(&"one/".into()).await.unwrap().meta.key, "one/".into());
    for (prefix, delimited) in [("one/", true), ("one/", false), ("one/.windlass/", false)] {
        let shown = world.list(prefix, delimited, 1000).await.unwrap();
        assert!(shown.iter().all(|key| !key.contains("windlass")), "{shown:?}");
    }
    // Nor is a file made in its place.
    for own in ["one/.windlass/attributes", "one/.windlass"] {
        assert_eq!(world.store.head(&own.into()).await.unwrap_err().kind, ErrorKind::Invalid, "{own}");
        let put = PutRequest { key: own.into(), ..put.clone() };
        assert_eq!(world.store.put(&put).await.unwrap_err().kind, ErrorKind::Invalid, "{own}");
    }
    world.bucket("one").put(".windlass", "by another client");
    assert!(world.list("one/", true, 1000).await.unwrap().iter().all(|key| !key.contains("windlass")));
}

#[tokio::test]
async fn a_bucket_that_may_not_be_read_is_there_and_refuses() {
    let world = world(None, Buckets::All);
    world.bucket("two").put("a", "1");
    for op in [Op::List, Op::Head] {
        world.bucket("one").fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).op(op));
    }
    assert_eq!(world.list("one", false, 16).await.unwrap(), ["one/"]);
    assert_eq!(world.list("one/", false, 1).await.unwrap(), ["one/"]);
    assert_eq!(world.list("one/", true, 1000).await.unwrap_err().kind, ErrorKind::AccessDenied);
    assert_eq!(world.list("two/", true, 1000).await.unwrap(), ["two/", "two/a"]);
}

#[tokio::test]
async fn a_bucket_with_wrong_credentials_is_there_and_refuses() {
    let world = world(None, Buckets::Named(vec!["one".into(), "two".into()]));
    world.bucket("one").fault(Rule::new(Fault::Error(ErrorKind::BadCredentials)).op(Op::List));
    assert_eq!(world.list("", true, 1000).await.unwrap(), ["one/", "two/"]);
    assert_eq!(world.list("one", false, 16).await.unwrap(), ["one/"]);
    assert_eq!(world.list("one/", true, 1000).await.unwrap_err().kind, ErrorKind::BadCredentials);
}

#[tokio::test]
async fn what_a_deleted_bucket_had_is_absent() {
    let world = world(None, Buckets::Named(vec!["one".into(), "two".into()]));
    world.store.head(&"one/a".into()).await.unwrap_err();
    for op in [Op::List, Op::Head, Op::Put, Op::Delete] {
        world.bucket("one").fault(Rule::new(Fault::Error(ErrorKind::NoSuchBucket)).op(op));
    }
    let put = PutRequest { key: "one/a".into(), body: Bytes::new(), headers: Headers::default(), condition: Condition::Any };
    let reads = [world.list("one/", true, 1000).await.unwrap_err(), world.store.head(&"one/a".into()).await.unwrap_err()];
    assert_eq!(reads.map(|error| error.kind), [ErrorKind::NotFound; 2]);
    let writes = [world.store.put(&put).await.unwrap_err(), world.store.delete(&"one/a".into()).await.unwrap_err()];
    assert_eq!(writes.map(|error| error.kind), [ErrorKind::NoSuchBucket; 2]);
    assert_eq!(world.list("", true, 1000).await.unwrap(), ["two/"]);
}
