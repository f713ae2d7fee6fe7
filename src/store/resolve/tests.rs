//! What an object that is there says about who wrote it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use super::*;
use crate::store::{Condition, Crc64, ErrorKind, Headers, ListPage, ListRequest, Op, Polynomial, RangeSink, StoreTime};

/// A store with one object, which changes nothing.
#[derive(Debug)]
struct One {
    details: Details,
    content: &'static [u8],
}

#[async_trait]
impl ObjectStore for One {
    /// Far from the clock of this machine.
    fn time_at(&self, _: Instant) -> Option<StoreTime> {
        Some(StoreTime { earliest: at(100), latest: at(101) })
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
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn doubt() -> Doubt {
    let now = Instant::now();
    Doubt { from: now, to: now, attempts: 1 }
}

fn one(content: &'static [u8], etag: &str, crc64: Option<u64>, modified: u64) -> One {
    let meta = ObjectMeta { key: "k".into(), size: content.len() as u64, etag: etag.into(), modified: at(modified) };
    let crc64 = crc64.map(|value| Crc64 { polynomial: Polynomial::Ecma, value });
    let headers = Headers { content_type: None, metadata: BTreeMap::new(), ..Headers::default() };
    One { details: Details { meta, headers, storage_class: None, version_id: None, crc64, sum: None, symlink: None }, content }
}

async fn is_ours(store: &One, body: &'static [u8]) -> bool {
    is_put(store, &"k".into(), &Bytes::from_static(body)).await.unwrap().is_some()
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

async fn is_made_of(store: &One, parts: &[Part]) -> bool {
    is_complete(store, &"k".into(), parts, doubt()).await.unwrap().is_some()
}

#[tokio::test]
async fn an_upload_is_known_by_the_tag_of_its_parts_their_sums_or_its_time() {
    // As S3 makes it: the MD5 of the MD5s, in binary.
    let md5s: Vec<u8> = [b"bo", b"dy"].iter().flat_map(Md5::digest).collect();
    let whole = format!("\"{}-2\"", hex::encode(Md5::digest(&md5s)));
    let tags: Vec<String> = [b"bo", b"dy"].iter().map(|content| format!("\"{}\"", hex::encode_upper(Md5::digest(content)))).collect();
    let tags = [tags[0].as_str(), tags[1].as_str()];
    assert!(is_made_of(&one(b"body", &whole, None, 0), &parts(tags, false)).await);
    assert!(!is_made_of(&one(b"body", "\"00000000000000000000000000000000-3\"", None, 200), &parts(tags, false)).await);
    let odd = ["\"p1\"", "\"p2\""];
    assert!(is_made_of(&one(b"body", "\"x\"", Some(Polynomial::Ecma.of(b"body")), 0), &parts(odd, true)).await);
    assert!(!is_made_of(&one(b"bodi", "\"x-2\"", Some(Polynomial::Ecma.of(b"bodi")), 200), &parts(odd, true)).await);
    assert!(is_made_of(&one(b"body", "\"x-2\"", None, 100), &parts(odd, true)).await);
    assert!(!is_made_of(&one(b"body", "\"x-2\"", None, 99), &parts(odd, true)).await, "older than the attempt");
    assert!(!is_made_of(&one(b"body", "\"x\"", None, 200), &parts(odd, true)).await, "no multipart tag");
    assert!(!is_made_of(&one(b"longer", "\"x-2\"", None, 200), &parts(odd, true)).await);
}

#[tokio::test]
async fn a_copy_is_known_by_its_source() {
    let request =
        |etag: &str| CopyRequest { source: "s".into(), etag: etag.into(), target: "k".into(), headers: None, condition: Condition::Absent };
    // Source and target answer alike here: same tag, same sum.
    let there = one(b"body", "\"e\"", None, 0);
    assert!(is_copy(&there, &request("\"e\""), doubt()).await.unwrap().is_some());
    assert!(is_copy(&there, &request("\"other\""), doubt()).await.unwrap().is_none(), "the source was replaced");
}
