//! The client of the vendor's SDK behind our own HTTP client: it writes and reads the documents of requests that change a bucket. Invariant: of its
//! requests only method, query and body leave; address, headers and signature are ours, and so is each error.
//!
//! OSS takes and gives the same documents: <https://www.alibabacloud.com/help/doc-detail/389025.html>

use std::borrow::Cow;
use std::sync::Arc;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::endpoint::{Endpoint, EndpointFuture, Params, ResolveEndpoint};
use aws_sdk_s3::config::http::{HttpRequest, HttpResponse};
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, IdentityCache, Region, RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{ConnectorError, SdkError};
use aws_sdk_s3::primitives::SdkBody;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn};
use http::{HeaderMap, HeaderValue, Method, header};
use parking_lot::Mutex;
use reqwest::Url;

use super::digests::{CONTENT_MD5, content_md5, md5_of};
use super::exchange::{Call, Exchange, Reply, Voice};
use crate::store::answer::innermost;
use crate::store::{Body, Error, ErrorKind, Key, Op, Result};

/// What the SDK is given where an operation insists on a bucket, a key or a source: the address and the headers that leave are not its own.
pub(super) const PLACEHOLDER: &str = "placeholder";

/// The parameter in which the SDK repeats the name of the operation. Servers do not need it, and OSS does not know it.
const OPERATION_NAME: &str = "x-id";

/// The SDK's client. Its retries, timeouts, signatures and checksums are off: [`Exchange`] and its callers have their own.
#[derive(Debug)]
pub(super) struct SdkClient {
    client: Client,
    voice: Arc<dyn Voice>,
}

/// A request on its way through the SDK.
#[derive(Debug)]
struct Transmission {
    op: Op,
    key: Key,
    headers: HeaderMap,
    /// What came of it, of which the SDK sees successes alone.
    result: Mutex<Option<Result<Reply>>>,
}

tokio::task_local! {
    /// The request that the task sends. The SDK calls its HTTP client from the task that awaits the answer; its own types carry no [`Key`],
    /// which may be no UTF-8.
    static TRANSMISSION: Arc<Transmission>;
}

impl SdkClient {
    pub fn new(exchange: Arc<Exchange>, voice: Arc<dyn Voice>) -> Self {
        let connector = SharedHttpConnector::new(Connector { exchange });
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http_client_fn(move |_, _| connector.clone()))
            .endpoint_resolver(NoEndpoint)
            .region(Region::from_static("placeholder"))
            .allow_no_auth()
            .disable_s3_express_session_auth(true)
            .identity_cache(IdentityCache::no_cache())
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .build();
        Self { client: Client::from_conf(config), voice }
    }

    /// Sends the request that `operation` makes, which is about `key` and has the headers `headers`. Returns what the SDK reads in the answer, and the
    /// answer itself.
    pub async fn send<T, E, F>(&self, op: Op, key: &Key, headers: HeaderMap, operation: impl FnOnce(&Client) -> F) -> Result<(T, Reply)>
    where
        E: std::error::Error + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let transmission = Arc::new(Transmission { op, key: key.clone(), headers, result: Mutex::default() });
        let read = TRANSMISSION.scope(Arc::clone(&transmission), operation(&self.client)).await;
        match (transmission.result.lock().take(), read) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(reply)), Ok(output)) => Ok((output, reply)),
            (Some(Ok(reply)), Err(unread)) => {
                let error = self.voice.refused(op, key, reply.status, &reply.headers, without_blanks(&reply.body));
                Err(match error.code {
                    // An error that came with success: stores answer 200 before they begin to copy.
                    Some(_) => error,
                    None => Error { message: format!("the answer cannot be read: {}", innermost(&unread)), ..error },
                })
            }
            (None, Ok(_)) => Err(Error::new(ErrorKind::Invalid, op, key, "the request was not sent")),
            (None, Err(unformed)) => {
                Err(Error::new(ErrorKind::Invalid, op, key, format!("cannot form the request: {}", innermost(&unformed))))
            }
        }
    }
}

/// Blanks that kept the connection alive may stand before the document.
pub(super) fn without_blanks(body: &[u8]) -> &[u8] {
    body.trim_ascii_start()
}

#[derive(Debug)]
struct NoEndpoint;

impl ResolveEndpoint for NoEndpoint {
    fn resolve_endpoint<'a>(&'a self, _: &'a Params) -> EndpointFuture<'a> {
        EndpointFuture::ready(Ok(Endpoint::builder().url("http://placeholder").build()))
    }
}

#[derive(Debug)]
struct Connector {
    exchange: Arc<Exchange>,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let exchange = Arc::clone(&self.exchange);
        let Ok(transmission) = TRANSMISSION.try_with(Arc::clone) else {
            return HttpConnectorFuture::ready(Err(ConnectorError::other("outside of a request".into(), None)));
        };
        HttpConnectorFuture::new(async move {
            let result = transmission.send(&exchange, &request).await;
            let read = match &result {
                Ok(reply) => response(transmission.op, reply),
                // Not looked at.
                Err(error) => Err(ConnectorError::other(error.clone().into(), None)),
            };
            *transmission.result.lock() = Some(result);
            read
        })
    }
}

impl Transmission {
    async fn send(&self, exchange: &Exchange, request: &HttpRequest) -> Result<Reply> {
        let unformed = |what: &str| Error::new(ErrorKind::Invalid, self.op, &self.key, format!("cannot form the request: {what}"));
        let method = Method::from_bytes(request.method().as_bytes()).map_err(|_| unformed("no method"))?;
        let url = Url::parse(request.uri()).map_err(|_| unformed("no address"))?;
        let query: Vec<(Cow<'_, str>, Cow<'_, str>)> = url.query_pairs().filter(|(name, _)| name != OPERATION_NAME).collect();
        let body = Body::from(request.body().bytes().ok_or_else(|| unformed("the body is not in memory"))?.to_vec());
        let mut headers = self.headers.clone();
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        }
        if self.op == Op::Delete && !body.is_empty() {
            // Both vendors insist on a sum, and servers that are older than the CRC-32 of the SDK know this one.
            headers.insert(CONTENT_MD5, content_md5(md5_of(&body)));
        }
        let call = Call::new(self.op, method, &self.key)
            .with(query.iter().map(|(name, value)| (&**name, value.clone().into_owned())).collect::<Vec<_>>())
            .headed(headers)
            .bearing(body);
        exchange.send(&call).await
    }
}

/// The answer as the SDK reads it: without headers, none of which it has to know.
fn response(op: Op, reply: &Reply) -> Result<HttpResponse, ConnectorError> {
    let status = reply.status.try_into().map_err(|_| ConnectorError::other("no status".into(), None))?;
    let body = match (op, without_blanks(&reply.body)) {
        // A quiet answer may be no document at all, which the SDK would not read.
        (Op::Delete, b"") => b"<DeleteResult/>".to_vec(),
        // The name that moto gives the document, with which the SDK would not read it.
        (Op::ListParts, body) => String::from_utf8_lossy(body)
            .replace("<ListPartsResponse", "<ListPartsResult")
            .replace("</ListPartsResponse", "</ListPartsResult")
            .into(),
        (_, body) => body.to_vec(),
    };
    Ok(HttpResponse::new(status, SdkBody::from(body)))
}
