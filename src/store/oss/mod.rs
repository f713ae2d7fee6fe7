//! The OSS dialect: HEAD, ListObjectsV2 and range GETs of one bucket, signed with V4 or V1 or not at all. It does not
//! retry, but for a range whose kept signature is refused. Invariant: each call reads one version of one object, or one page.

mod address;
mod credentials;
mod process;
mod sign;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, Method, header};
use reqsign_core::OsEnv;
use reqwest::Response;
use tokio::time::timeout;

use super::answer::{self, Answer};
use super::listing::Tokens;
use super::page::{Answered, PageClient};
use super::range::{RangeClient, client_builder};
use super::{
    ETag, Error, ErrorKind, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Op, Options, RangeRequest, RangeSink, Result, Tell,
};
use crate::metrics::Metrics;
use address::Address;
use credentials::Sources;
use sign::OssSigner;

/// One bucket of OSS.
#[derive(Debug)]
struct OssStore {
    http: reqwest::Client,
    ranges: RangeClient,
    pages: PageClient,
    signer: OssSigner,
    stall_timeout: Duration,
    metrics: Arc<Metrics>,
}

/// The bucket that `options` name. Credentials are looked up here, so that a mount without any fails at once; the
/// bucket itself is not asked for anything.
pub(super) async fn connect(options: &Options, metrics: Arc<Metrics>) -> Result<Arc<dyn ObjectStore>> {
    let root = Key::root();
    let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::List, &root, message);
    let address = Address::new(options).map_err(|error| invalid(error.to_string()))?;
    let sources = Sources::new(&options.credentials, &options.bucket, OsEnv).map_err(|error| answer::transport(Op::List, &root, &error))?;
    let http = client_builder(options).build().map_err(|error| answer::transport(Op::List, &root, &error))?;
    let signer = OssSigner::new(address, options.signature, sources);
    signer.sign(Op::List, Method::GET, &root, &[]).await?;
    let ranges = RangeClient::new(http.clone(), options, metrics.clone());
    let pages = PageClient::new(http.clone(), options.stall_timeout, Tokens::Encoded);
    Ok(Arc::new(OssStore { http, ranges, pages, signer, stall_timeout: options.stall_timeout, metrics }))
}

#[async_trait]
impl ObjectStore for OssStore {
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let response = self.send_head(key).await?;
        let headers = response.headers();
        if !response.status().is_success() {
            return Err(refused_head(response.status().as_u16(), headers, key));
        }
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let meta = || {
            Some(ObjectMeta {
                key: key.clone(),
                size: text(header::CONTENT_LENGTH)?.parse().ok()?,
                etag: ETag::from(text(header::ETAG)?),
                modified: text(header::LAST_MODIFIED).map_or(Some(UNIX_EPOCH), |date| httpdate::parse_http_date(date).ok())?,
            })
        };
        meta().ok_or_else(|| Error::new(ErrorKind::Corrupt, Op::Head, key, "the answer has no length, no ETag or no readable date"))
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.list_telling(request, &|_| {}).await
    }

    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        let max_keys = request.max_keys.to_string();
        let mut query: Vec<(&str, &[u8])> = vec![("encoding-type", b"url"), ("list-type", b"2"), ("max-keys", max_keys.as_bytes())];
        // A query parameter without a value is signed without its `=`: nothing empty is sent.
        if !request.prefix.as_bytes().is_empty() {
            query.push(("prefix", request.prefix.as_bytes()));
        }
        if request.delimited {
            query.push(("delimiter", b"/"));
        }
        if let Some(token) = &request.token {
            query.push(("continuation-token", token.as_bytes()));
        }
        let prefix = &request.prefix;
        let signed = self.signer.sign(Op::List, Method::GET, &Key::root(), &query).await;
        let signed = signed.map_err(|error| Error { key: prefix.clone(), ..error })?;
        self.metrics.list_requests.add(1);
        match self.pages.get(signed, prefix, tell).await? {
            Answered::Page(page) => Ok(page),
            Answered::Unreadable(_, _, error) => Err(Error::new(ErrorKind::Corrupt, Op::List, prefix, error.to_string())),
            Answered::Refused(status, headers, body) => Err(Answer::new(status.as_u16(), &headers, &body).into_error(Op::List, prefix)),
        }
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        match self.ranges.get(&self.signer, request, sink).await {
            // Made with a token or key that has ended since: refused before any byte of the range.
            Err(error) if error.kind == ErrorKind::BadCredentials && self.signer.forget(&request.key) => {
                self.ranges.get(&self.signer, request, sink).await
            }
            result => result,
        }
    }
}

impl OssStore {
    async fn send_head(&self, key: &Key) -> Result<Response> {
        let signed = self.signer.sign(Op::Head, Method::HEAD, key, &[]).await?;
        self.metrics.head_requests.add(1);
        let sent = self.http.head(signed.url).headers(signed.headers).send();
        match timeout(self.stall_timeout, sent).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(answer::transport(Op::Head, key, &error)),
            Err(_) => Err(Error::new(ErrorKind::Timeout, Op::Head, key, format!("no answer for {:?}", self.stall_timeout))),
        }
    }
}

/// The error of a HEAD, which has no body: OSS sends the error document in base64 in `x-oss-err`, and the number of the
/// exact cause in `x-oss-ec`.
fn refused_head(status: u16, headers: &HeaderMap, key: &Key) -> Error {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let document = text("x-oss-err").and_then(|encoded| BASE64_STANDARD.decode(encoded).ok()).unwrap_or_default();
    let mut error = Answer::new(status, headers, &document).into_error(Op::Head, key);
    if let Some(cause) = text("x-oss-ec") {
        error.message = format!("{} (x-oss-ec {cause})", error.message);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_head_is_read_from_its_headers() {
        let document = BASE64_STANDARD.encode("<Error><Code>NoSuchBucket</Code><Message>gone</Message><RequestId>R1</RequestId></Error>");
        let mut headers = HeaderMap::new();
        headers.insert("x-oss-err", document.parse().unwrap());
        headers.insert("x-oss-ec", "0015-00000101".parse().unwrap());
        let error = refused_head(404, &headers, &Key::from("k"));
        assert_eq!((error.kind, error.request_id.as_deref()), (ErrorKind::NoSuchBucket, Some("R1")));
        assert_eq!(error.message, "gone (x-oss-ec 0015-00000101)");
        assert_eq!(refused_head(404, &HeaderMap::new(), &Key::from("k")).kind, ErrorKind::NotFound);
    }
}
