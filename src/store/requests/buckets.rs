//! Requests about buckets and not about what is in them: which there are, and where one is. Invariant: a region is told only when the endpoint
//! named it.

use http::{HeaderMap, Method};
use serde::Deserialize;

use super::documents::trimmed;
use super::{Call, Requests, Unsigned};
use crate::store::redirect::Target;
use crate::store::{Error, ErrorKind, Key, Op, Result};

/// Names of a page, where buckets are asked for page by page.
const PAGE: &str = "1000";

/// In the response to HeadBucket, also when that is a refusal:
/// <https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html>
const BUCKET_REGION: &str = "x-amz-bucket-region";

/// The answer to ListBuckets.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct BucketsDocument {
    buckets: BucketList,
    continuation_token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct BucketList {
    bucket: Vec<BucketEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BucketEntry {
    name: String,
}

impl Requests {
    /// The names of the buckets of the account. The address of these requests is that of the endpoint, without a bucket.
    ///
    /// All are asked for at once: a server that knows no pages (moto) may stop at `max-buckets` without a word. Only accounts that may have more than
    /// 10,000 buckets must be asked page by page, and refuse anything else:
    /// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/BucketRestrictions.html>
    pub async fn list_buckets(&self) -> Result<Vec<String>> {
        let mut page = match self.buckets_page(Vec::new()).await {
            Err(error) if error.kind == ErrorKind::Invalid => self.buckets_page(vec![("max-buckets", PAGE.to_owned())]).await?,
            page => page?,
        };
        let (mut names, mut token) = (Vec::new(), None::<String>);
        loop {
            names.extend(page.buckets.bucket.into_iter().map(|bucket| bucket.name));
            let Some(next) = page.continuation_token.filter(|next| !next.is_empty()) else { return Ok(names) };
            if token.as_ref() == Some(&next) {
                return Err(Error::new(ErrorKind::Malformed, Op::List, &Key::root(), "the list of buckets does not go on"));
            }
            page = self.buckets_page(vec![("continuation-token", next.clone()), ("max-buckets", PAGE.to_owned())]).await?;
            token = Some(next);
        }
    }

    async fn buckets_page(&self, query: Vec<(&'static str, String)>) -> Result<BucketsDocument> {
        let root = Key::root();
        let reply = self.exchange.send(&Call::new(Op::List, Method::GET, &root).with(query)).await?;
        read_buckets(&reply.body).ok_or_else(|| Error::new(ErrorKind::Malformed, Op::List, &root, "the answer is no list of buckets"))
    }

    /// The region of the bucket where that is another one than requests are signed for; None: it is here, as far as the endpoint tells. A bucket
    /// that may not be read is somewhere too.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchBucket`]; else what the endpoint answers.
    pub async fn other_region(&self) -> Result<Option<String>> {
        let (root, mut headers) = (Key::root(), HeaderMap::new());
        self.names.pay(&mut headers);
        let call = Call::new(Op::Head, Method::HEAD, &root);
        let unsigned = Unsigned { op: call.op, method: Method::HEAD, key: call.key, query: &call.query, headers: &headers, payload: None };
        let signed = self.voice.sign(&unsigned).await?;
        let (status, headers, body) = self.exchange.attempt(&call, Target { url: signed.url, headers: signed.headers }).await?;
        let region = headers.get(BUCKET_REGION).and_then(|region| region.to_str().ok()).map(str::to_owned);
        let refused = || self.voice.refused(Op::Head, &root, status.as_u16(), &headers, &body);
        match status.as_u16() {
            // Signed for the right region, whatever the answer calls it.
            200..=299 => Ok(None),
            404 => Err(Error { kind: ErrorKind::NoSuchBucket, message: "no such bucket".into(), ..refused() }),
            403 => Ok(region),
            _ if region.is_some() => Ok(region),
            _ => Err(refused()),
        }
    }
}

fn read_buckets(body: &[u8]) -> Option<BucketsDocument> {
    let body = trimmed(body);
    // What is no such document has none of its parts, and none of them must be there.
    let is_it = body.windows(RESULT.len()).any(|part| part == RESULT);
    quick_xml::de::from_reader(body).ok().filter(|_| is_it)
}

/// The name of the document.
const RESULT: &[u8] = b"ListAllMyBucketsResult";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_the_next_page_are_read_from_list_buckets() {
        let document = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Owner><ID>1</ID></Owner><Buckets><Bucket><Name>one</Name><CreationDate>2020-01-01T00:00:00Z</CreationDate></Bucket>\
             <Bucket><BucketRegion>eu-west-1</BucketRegion><Name>two</Name></Bucket></Buckets><ContinuationToken>t</ContinuationToken>\
             </ListAllMyBucketsResult>";
        let page = read_buckets(document.as_bytes()).unwrap();
        assert_eq!(page.buckets.bucket.iter().map(|bucket| &*bucket.name).collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(page.continuation_token.as_deref(), Some("t"));
        let empty = read_buckets(b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>").unwrap();
        assert!(empty.buckets.bucket.is_empty() && empty.continuation_token.is_none());
        assert!(read_buckets(b"<html><body>hello</body></html>").is_none());
    }
}
