//! The OSS dialect: the requests of one bucket, signed with V4 or V1 or not at all. It does not
//! retry, but where other credentials sign. Invariant: each call reads one version of one object, or one page.

mod address;
mod credentials;
mod process;
mod sign;

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Method};
use reqsign_core::OsEnv;
use reqwest::Url;

use super::answer::{self, Answer};
use super::clients::clients;
use super::credentials::{Attempts, Rotating, Source};
use super::listing::Tokens;
use super::page::{Answered, PageClient};
use super::range::RangeClient;
use super::read_endpoint::{ReadEndpoint, options_near};
use super::redirect;
use super::requests::{Requests, Voice};
use super::signing::SignedGet;
use super::{
    Condition, CopyRequest, Details, Error, ErrorKind, Headers, Identity, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Op, Options,
    Part, PartCopy, PartsPage, PutRequest, RangeRequest, RangeSink, Result, Signature, Tell, Upload, UploadsPage, Written,
};
use crate::metrics::{Metrics, RequestKind};
use address::Address;
use credentials::Sources;
use sign::OssSigner;

/// One bucket of OSS.
#[derive(Debug)]
struct OssStore {
    ranges: RangeClient,
    pages: PageClient,
    requests: Requests,
    signer: Arc<OssSigner>,
    metrics: Arc<Metrics>,
}

/// The bucket that `options` name. Credentials are looked up here, so that a mount without any fails at once; the
/// bucket itself is not asked for anything.
pub(super) async fn connect(options: &Options, metrics: Arc<Metrics>) -> Result<Arc<dyn ObjectStore>> {
    let root = Key::root();
    let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::List, &root, message);
    let address = |options: &Options| Address::new(options).map_err(|error| invalid(error.to_string()));
    let home_address = address(options)?;
    let sources = Sources::new(&options.credentials, &options.bucket, OsEnv).map_err(|error| answer::transport(Op::List, &root, &error))?;
    let keys = Rotating::new(Box::new(sources));
    let region = home_address.region.clone();
    let authority = |address: &Address| address.target(&root, &[]).map(|target| redirect::authority(&target.url));
    let home_authority = authority(&home_address);
    let signer = OssSigner::new(home_address, options.signature, keys, options.requester_pays);
    signer.sign(Op::List, Method::GET, &root, &[]).await?;
    let Some(near) = options_near(options, region) else { return Ok(Arc::new(OssStore::new(options, signer, metrics)?)) };
    // Each may redirect to the other. What they are asked for is signed for the bucket, wherever it is sent.
    let near_address = address(&near)?;
    let trusted: Vec<String> = [home_authority, authority(&near_address)].into_iter().flatten().collect();
    let store = |options: Options, signer| {
        let redirect_hosts = [&options.redirect_hosts[..], &trusted].concat();
        OssStore::new(&Options { redirect_hosts, ..options }, signer, metrics.clone())
    };
    let (near, home) = (store(near, signer.at(near_address))?, store(options.clone(), signer)?);
    Ok(Arc::new(ReadEndpoint::new(Arc::new(near), Arc::new(home), metrics)))
}

/// The address of the bucket of `options`, and the region that requests are signed for.
pub(super) fn place(options: &Options) -> Result<(Url, Option<String>)> {
    let root = Key::root();
    let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::List, &root, message);
    let address = Address::new(options).map_err(|error| invalid(error.to_string()))?;
    let target = address.target(&root, &[]).ok_or_else(|| invalid("the address of the bucket is no URL".into()))?;
    Ok((target.url, address.region))
}

/// Whose keys sign the requests of `options`.
pub(super) async fn identity(options: &Options) -> Result<Option<Identity>> {
    if options.signature == Signature::None {
        return Ok(None);
    }
    let root = Key::root();
    let sources = Sources::new(&options.credentials, &options.bucket, OsEnv).map_err(|error| answer::transport(Op::List, &root, &error))?;
    match sources.fetch().await {
        Ok(keys) => Ok(Some(Identity { source: keys.from, key_id: keys.id, expires: keys.expires })),
        Err(missing) => Err(Error::new(ErrorKind::NoCredentials, Op::List, &root, missing.0)),
    }
}

impl OssStore {
    fn new(options: &Options, signer: OssSigner, metrics: Arc<Metrics>) -> Result<Self> {
        let http = clients(options, &metrics).map_err(|error| answer::transport(Op::List, &Key::root(), &error))?;
        let signer = Arc::new(signer);
        let ranges = RangeClient::new(http.clone(), options, metrics.clone());
        let pages = PageClient::new(http.clone(), options.stall_timeout, Tokens::Encoded);
        let requests = Requests::new(http, options, signer.clone(), metrics.clone());
        Ok(Self { ranges, pages, requests, signer, metrics })
    }

    async fn sign_list(&self, request: &ListRequest) -> Result<SignedGet> {
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
        let signed = self.signer.sign(Op::List, Method::GET, &Key::root(), &query).await;
        signed.map_err(|error| Error { key: request.prefix.clone(), ..error })
    }

    async fn list_page(&self, signed: SignedGet, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        let prefix = &request.prefix;
        match self.pages.get(signed, prefix, self.metrics.attempt(RequestKind::List), tell).await? {
            Answered::Page(page) => Ok(page),
            Answered::Unreadable(_, _, error) => Err(Error::new(ErrorKind::Corrupt, Op::List, prefix, error.to_string())),
            Answered::Refused(status, headers, body) => Err(Answer::new(status.as_u16(), &headers, &body).into_error(Op::List, prefix)),
        }
    }
}

#[async_trait]
impl ObjectStore for OssStore {
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.requests.head(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.list_telling(request, &|_| {}).await
    }

    async fn list_telling(&self, request: &ListRequest, tell: &Tell<'_>) -> Result<ListPage> {
        let mut attempts = Attempts::new();
        loop {
            let signed = self.sign_list(request).await?;
            let by = signed.by;
            let result = self.list_page(signed, request, tell).await;
            if !self.signer.again(&mut attempts, by, result.as_ref().err()).await {
                return result;
            }
        }
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        self.ranges.get_again(&*self.signer, request, sink).await
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        self.requests.details(key).await
    }

    async fn put(&self, request: &PutRequest) -> Result<Written> {
        self.requests.put(request).await
    }

    async fn create_upload(&self, key: &Key, headers: &Headers) -> Result<Upload> {
        self.requests.create_upload(key, headers).await
    }

    async fn upload_part(&self, upload: &Upload, number: u32, body: Bytes) -> Result<Part> {
        self.requests.upload_part(upload, number, body).await
    }

    async fn copy_part(&self, upload: &Upload, number: u32, source: &PartCopy) -> Result<Part> {
        self.requests.copy_part(upload, number, source).await
    }

    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        self.requests.complete_upload(upload, parts, condition).await
    }

    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        self.requests.abort_upload(upload).await
    }

    async fn list_uploads(&self, prefix: &Key, after: Option<&(Key, String)>) -> Result<UploadsPage> {
        self.requests.list_uploads(prefix, after).await
    }

    async fn list_parts(&self, upload: &Upload, after: u32) -> Result<PartsPage> {
        self.requests.list_parts(upload, after).await
    }

    async fn copy(&self, request: &CopyRequest) -> Result<Written> {
        self.requests.copy(request).await
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.requests.delete(key).await
    }

    async fn put_symlink(&self, key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<Written> {
        self.requests.put_symlink(key, target, headers, condition).await
    }
}

/// The error of an answer without success. That of a HEAD has no body: OSS sends the error document in base64 in `x-oss-err`,
/// and the number of the exact cause in `x-oss-ec`.
fn refused(op: Op, key: &Key, status: u16, headers: &HeaderMap, body: &[u8]) -> Error {
    if !body.is_empty() {
        return Answer::new(status, headers, body).into_error(op, key);
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let document = text("x-oss-err").and_then(|encoded| BASE64_STANDARD.decode(encoded).ok()).unwrap_or_default();
    let mut error = Answer::new(status, headers, &document).into_error(op, key);
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
        let error = refused(Op::Head, &Key::from("k"), 404, &headers, b"");
        assert_eq!((error.kind, error.request_id.as_deref()), (ErrorKind::NoSuchBucket, Some("R1")));
        assert_eq!(error.message, "gone (x-oss-ec 0015-00000101)");
        assert_eq!(refused(Op::Head, &Key::from("k"), 404, &HeaderMap::new(), b"").kind, ErrorKind::NotFound);
    }
}
