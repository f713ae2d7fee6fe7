//! Requests about buckets and not about what is in them: which there are, and where one is. Invariant: a region is told only when the endpoint
//! named it.

use aws_sdk_s3::Client;
use aws_sdk_s3::operation::list_buckets::ListBucketsOutput;
use http::{HeaderMap, Method};

use super::{Call, Requests, Unsigned};
use crate::store::redirect::Target;
use crate::store::{Error, ErrorKind, Key, Op, Result};

/// Names of a page, where buckets are asked for page by page.
const PAGE: i32 = 1000;

/// In the response to HeadBucket, also when that is a refusal:
/// <https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html>
const BUCKET_REGION: &str = "x-amz-bucket-region";

impl Requests {
    /// The names of the buckets of the account. The address of these requests is that of the endpoint, without a bucket.
    ///
    /// All are asked for at once: a server that knows no pages (moto) may stop at `max-buckets` without a word. Only accounts that may have more than
    /// 10,000 buckets must be asked page by page, and refuse anything else:
    /// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/BucketRestrictions.html>
    pub async fn list_buckets(&self) -> Result<Vec<String>> {
        let mut page = match self.buckets_page(None, None).await {
            Err(error) if error.kind == ErrorKind::Invalid => self.buckets_page(None, Some(PAGE)).await?,
            page => page?,
        };
        let (mut names, mut token) = (Vec::new(), None::<String>);
        loop {
            names.extend(page.buckets().iter().filter_map(|bucket| bucket.name().map(str::to_owned)));
            let Some(next) = page.continuation_token.filter(|next| !next.is_empty()) else { return Ok(names) };
            if token.as_ref() == Some(&next) {
                return Err(Error::new(ErrorKind::Malformed, Op::List, &Key::root(), "the list of buckets does not go on"));
            }
            page = self.buckets_page(Some(&next), Some(PAGE)).await?;
            token = Some(next);
        }
    }

    async fn buckets_page(&self, token: Option<&str>, size: Option<i32>) -> Result<ListBucketsOutput> {
        let token = token.map(str::to_owned);
        let list = |client: &Client| client.list_buckets().set_continuation_token(token).set_max_buckets(size).send();
        Ok(self.sdk.send(Op::List, &Key::root(), HeaderMap::new(), list).await?.0)
    }

    /// The region of the bucket where that is another one than requests are signed for; None: it is here, as far as the endpoint tells. A bucket
    /// that may not be read is somewhere too. Formed here: refusals tell the region as well, and of those the SDK's client gets nothing.
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
