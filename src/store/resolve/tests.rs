//! What an object that is there says about who wrote it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use super::*;
use crate::store::{
    Condition, Crc64, Details, Headers, ListPage, ListRequest, Op, PartsPage, Polynomial, RangeRequest, RangeSink, StoreTime,
};

/// A store with one object, which changes nothing.
#[derive(Debug)]
struct One {
    details: Details,
    content: &'static [u8],
    /// Whether it still has the upload in question.
    has_upload: bool,
    /// Whether its responses have dates.
    has_clock: bool,
}

#[async_trait]
impl ObjectStore for One {
    /// The time at which the attempts began, far from the clock of this machine.
    fn time_at(&self, _: Instant) -> Option<StoreTime> {
        self.has_clock.then_some(StoreTime { earliest: at(100), latest: at(101) })
    }

    async fn head(&self, _: &Key) -> Result<ObjectMeta> {
        Ok(self.details.meta.clone())
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        Err(super::super::Error::new(ErrorKind::Invalid, Op::List, &request.prefix, "nobody lists here"))
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        super::super::pour(&self.content[request.range.start as usize..request.range.end as usize], sink);
        Ok(())
    }

    async fn details(&self, _: &Key) -> Result<Details> {
        Ok(self.details.clone())
    }

    async fn list_parts(&self, upload: &Upload, _: u32) -> Result<PartsPage> {
        match self.has_upload {
            true => Ok(PartsPage::default()),
            false => Err(super::super::Error::new(ErrorKind::NotFound, Op::ListParts, &upload.key, "no such upload")),
        }
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn one(content: &'static [u8], etag: &str, crc64: Option<u64>, modified: u64) -> One {
    let meta = ObjectMeta { key: "k".into(), size: content.len() as u64, etag: etag.into(), modified: at(modified) };
    let crc64 = crc64.map(|value| Crc64 { polynomial: Polynomial::Ecma, value });
    let headers = Headers { content_type: None, metadata: BTreeMap::new(), ..Headers::default() };
    One {
        details: Details { meta, headers, storage_class: None, version_id: None, crc64, sum: None, symlink: None },
        content,
        has_upload: false,
        has_clock: true,
    }
}

fn doubt() -> Doubt {
    let now = Instant::now();
    Doubt { from: now, to: now, attempts: 1 }
}

async fn is_ours(store: &One, body: &'static [u8]) -> bool {
    matches!(is_put(store, &"k".into(), &Bytes::from_static(body)).await.unwrap(), Outcome::Done(_))
}

#[tokio::test]
async fn a_put_is_known_by_its_sum_its_tag_or_its_content() {
    let sum = Polynomial::Ecma.of(b"body");
    assert!(is_ours(&one(b"body", "\"any\"", Some(sum), 0), b"body").await);
    assert!(!is_ours(&one(b"body", "\"any\"", Some(sum + 1), 0), b"body").await, "the sum decides");
    assert!(is_ours(&one(b"xxxx", "\"841A2D689AD86BD1611447453C22C6FC\"", None, 0), b"body").await, "the tag decides");
    assert!(is_ours(&one(b"body", "\"no-md5\"", None, 0), b"body").await);
    assert!(!is_ours(&one(b"bodi", "\"no-md5\"", None, 0), b"body").await);
    assert!(!is_ours(&one(b"longer", "\"841a2d689ad86bd1611447453c22c6fc\"", None, 0), b"body").await);
    assert!(is_ours(&one(b"", "\"no-md5\"", None, 0), b"").await);
}

fn parts(etags: [&str; 2], crc64: bool) -> Vec<Part> {
    let part = |number, etag: &str, content: &[u8]| Part {
        number,
        etag: etag.into(),
        size: content.len() as u64,
        crc64: crc64.then(|| Polynomial::Ecma.of(content)),
        crc32c: None,
    };
    vec![part(1, etags[0], b"bo"), part(2, etags[1], b"dy")]
}

async fn made_of(store: &One, parts: &[Part]) -> Outcome {
    is_complete(store, &Upload { key: "k".into(), id: "u".into(), checksum: None, acl: None }, parts, doubt()).await.unwrap()
}

fn done(etag: &str) -> Outcome {
    Outcome::Done(Written { etag: etag.into() })
}

#[tokio::test]
async fn an_upload_is_known_by_the_tag_of_its_parts_or_their_sums() {
    // As S3 makes it: the MD5 of the MD5s, in binary.
    let md5s: Vec<u8> = [b"bo", b"dy"].iter().flat_map(Md5::digest).collect();
    let whole = format!("\"{}-2\"", hex::encode(Md5::digest(&md5s)));
    let tags: Vec<String> = [b"bo", b"dy"].iter().map(|content| format!("\"{}\"", hex::encode_upper(Md5::digest(content)))).collect();
    let tags = [tags[0].as_str(), tags[1].as_str()];
    assert_eq!(made_of(&one(b"body", &whole, None, 0), &parts(tags, false)).await, done(&whole));
    let other = one(b"body", "\"00000000000000000000000000000000-3\"", None, 200);
    assert_eq!(made_of(&other, &parts(tags, false)).await, Outcome::NotDone);
    let odd = ["\"p1\"", "\"p2\""];
    assert_eq!(made_of(&one(b"body", "\"x\"", Some(Polynomial::Ecma.of(b"body")), 0), &parts(odd, true)).await, done("\"x\""));
    assert_eq!(made_of(&one(b"bodi", "\"x-2\"", Some(Polynomial::Ecma.of(b"bodi")), 200), &parts(odd, true)).await, Outcome::NotDone);
    assert_eq!(made_of(&one(b"body", "\"x\"", None, 200), &parts(odd, true)).await, Outcome::NotDone, "no multipart tag");
    assert_eq!(made_of(&one(b"longer", "\"x-2\"", None, 200), &parts(odd, true)).await, Outcome::NotDone);
}

#[tokio::test]
async fn an_upload_without_sums_is_the_object_only_when_it_is_gone() {
    let odd = parts(["\"p1\"", "\"p2\""], true);
    let there = |modified| one(b"body", "\"x-2\"", None, modified);
    assert_eq!(made_of(&One { has_upload: true, ..there(200) }, &odd).await, Outcome::NotDone, "another client has completed another");
    assert_eq!(made_of(&there(200), &odd).await, done("\"x-2\""));
    assert_eq!(made_of(&there(100), &odd).await, done("\"x-2\""), "dates are whole seconds");
    assert_eq!(made_of(&there(99), &odd).await, Outcome::NotDone, "older than the attempt");
    assert_eq!(made_of(&One { has_clock: false, ..there(200) }, &odd).await, Outcome::Unknown);
}

/// A store with the source of a copy and its target.
#[derive(Debug)]
struct Two {
    source: One,
    target: One,
}

#[async_trait]
impl ObjectStore for Two {
    fn time_at(&self, at: Instant) -> Option<StoreTime> {
        self.source.time_at(at)
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        Ok(self.details(key).await?.meta)
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.source.list(request).await
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        self.source.get_range(request, sink).await
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        let object = if *key == Key::from("s") { &self.source } else { &self.target };
        object.details(key).await
    }
}

#[tokio::test]
async fn a_copy_is_known_by_the_sum_or_the_tag_of_its_source() {
    let copied = async |source: One, target: One, etag: &str| {
        let request =
            CopyRequest { source: "s".into(), etag: etag.into(), target: "k".into(), headers: None, condition: Condition::Absent };
        is_copy(&Two { source, target }, &request, doubt()).await.unwrap()
    };
    let sum = Some(Polynomial::Ecma.of(b"body"));
    let source = |sum| one(b"body", "\"e\"", sum, 0);
    assert_eq!(copied(source(None), source(None), "\"e\"").await, done("\"e\""));
    assert_eq!(copied(source(sum), one(b"body", "\"t\"", sum, 0), "\"e\"").await, done("\"t\""));
    assert_eq!(copied(source(sum), one(b"bodi", "\"t\"", sum.map(|sum| sum + 1), 0), "\"e\"").await, Outcome::NotDone);
    assert_eq!(copied(source(None), one(b"longer", "\"t\"", None, 0), "\"e\"").await, Outcome::NotDone);
    assert_eq!(copied(source(None), source(None), "\"other\"").await, Outcome::NotDone, "the source was replaced");
    assert_eq!(copied(source(None), one(b"bodi", "\"t\"", None, 99), "\"e\"").await, Outcome::NotDone, "older than the attempt");
    assert_eq!(copied(source(None), one(b"bodi", "\"t\"", None, 200), "\"e\"").await, Outcome::Unknown, "however young it is");
}
