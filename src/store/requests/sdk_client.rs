//! The client of the vendor's SDK behind our own HTTP client: it writes and reads the documents of requests that change a bucket. Invariant: of its
//! requests only method, query and body leave; address, headers and signature are ours, and so is each error.
//!
//! OSS takes and gives the same documents: <https://www.alibabacloud.com/help/doc-detail/389025.html>

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::endpoint::{Endpoint, EndpointFuture, Params, ResolveEndpoint};
use aws_sdk_s3::config::http::{HttpRequest, HttpResponse};
use aws_sdk_s3::config::retry::{ReconnectMode, RetryConfig};
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, IdentityCache, Region, RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{ConnectorError, SdkError};
use aws_sdk_s3::primitives::SdkBody;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn};
use http::{HeaderMap, HeaderValue, Method, header};
use parking_lot::Mutex;
use quick_xml::events::{BytesEnd, Event};
use quick_xml::{Reader, Writer};
use reqwest::Url;

use super::digests::{CONTENT_MD5, content_md5, md5_of};
use super::exchange::{Call, Exchange, Reply, Voice};
use crate::store::answer::innermost;
use crate::store::{Body, Error, ErrorKind, Key, Op, Result};

/// What the SDK is given where an operation insists on a bucket, a key or a source: the address and the headers that leave are not its own.
pub(super) const PLACEHOLDER: &str = "placeholder";

/// The parameter in which the SDK repeats the name of the operation. Servers do not need it, and OSS does not know it.
const OPERATION_NAME: &str = "x-id";

/// The SDK's client behind the HTTP client of one store.
#[derive(Debug)]
pub(super) struct SdkClient {
    exchange: Arc<Exchange>,
    voice: Arc<dyn Voice>,
}

/// One for all stores: it knows none of them, and takes some 100 KiB. Its retries, timeouts, signatures and checksums are off: [`Exchange`] and its
/// callers have their own.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let connector = SharedHttpConnector::new(Connector);
    // It has no connections of its own that it could close after an error.
    let retries = RetryConfig::disabled().with_reconnect_mode(ReconnectMode::ReuseAllConnections);
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http_client_fn(move |_, _| connector.clone()))
        .endpoint_resolver(NoEndpoint)
        .region(Region::from_static("placeholder"))
        .allow_no_auth()
        .disable_s3_express_session_auth(true)
        .identity_cache(IdentityCache::no_cache())
        .retry_config(retries)
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .build();
    Client::from_conf(config)
});

/// A request on its way through the SDK.
#[derive(Debug)]
struct Transmission {
    exchange: Arc<Exchange>,
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
        Self { exchange, voice }
    }

    /// Sends the request that `operation` makes, which is about `key` and has the headers `headers`. Returns what the SDK reads in the answer, and the
    /// answer itself.
    pub async fn send<T, E, F>(&self, op: Op, key: &Key, headers: HeaderMap, operation: impl FnOnce(&Client) -> F) -> Result<(T, Reply)>
    where
        E: std::error::Error + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let exchange = Arc::clone(&self.exchange);
        let transmission = Arc::new(Transmission { exchange, op, key: key.clone(), headers, result: Mutex::default() });
        let read = TRANSMISSION.scope(Arc::clone(&transmission), operation(&CLIENT)).await;
        match (transmission.result.lock().take(), read) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(reply)), Ok(output)) => Ok((output, reply)),
            (Some(Ok(reply)), Err(unread)) => {
                let error = self.voice.refused(op, key, reply.status, &reply.headers, without_blanks(&reply.body));
                Err(match error.code {
                    // An error that came with success: stores answer 200 before they begin to copy.
                    Some(_) => error,
                    None => Error {
                        kind: ErrorKind::Malformed,
                        message: format!("the answer cannot be read: {}", unreadable(&unread)),
                        ..error
                    },
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
struct Connector;

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let Ok(transmission) = TRANSMISSION.try_with(Arc::clone) else {
            return HttpConnectorFuture::ready(Err(ConnectorError::other("outside of a request".into(), None)));
        };
        HttpConnectorFuture::new(async move {
            let result = transmission.send(&request).await;
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
    async fn send(&self, request: &HttpRequest) -> Result<Reply> {
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
        self.exchange.send(&call).await
    }
}

/// Why the SDK cannot read an answer.
fn unreadable(error: &(dyn std::error::Error + 'static)) -> String {
    let reason = innermost(error);
    // The SDK blames itself for what a proxy answers.
    reason.split(" This is likely a bug").next().unwrap_or_default().to_owned()
}

/// The answer as the SDK reads it: without headers, none of which it has to know.
fn response(op: Op, reply: &Reply) -> Result<HttpResponse, ConnectorError> {
    let unreadable = |why: String| ConnectorError::other(why.into(), None);
    let status = reply.status.try_into().map_err(|_| unreadable("no status".into()))?;
    let body = match (op, without_blanks(&reply.body)) {
        (Op::AbortUpload | Op::Rename, b"") => Vec::new(),
        (Op::AbortUpload | Op::Rename, _) => return Err(unreadable("it has a body".into())),
        // A quiet answer of OSS may be no document at all, which the SDK would not read.
        (Op::Delete, b"") => b"<DeleteResult/>".to_vec(),
        (_, body) => document(body).map_err(unreadable)?,
    };
    Ok(HttpResponse::new(status, SdkBody::from(body)))
}

/// What moto calls two documents, and what they are called: the SDK looks at the name.
const RENAMED: [(&str, &str); 2] =
    [("ListPartsResponse", "ListPartsResult"), ("CompleteMultipartUploadResponse", "CompleteMultipartUploadResult")];

/// An XML document that is complete, with its CDATA sections as text, without comments, and under its usual name. The SDK's reader takes a document
/// that was cut off, or whose tags do not match, for a whole one, CDATA for nothing and a comment for the end of a text.
///
/// # Errors
/// Why it is none.
fn document(body: &[u8]) -> Result<Vec<u8>, String> {
    let mut reader = Reader::from_reader(body);
    let mut document = Writer::new(Vec::with_capacity(body.len()));
    let (mut depth, mut roots) = (0_usize, 0_usize);
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let is_outside = depth == 0;
        let kept = match event {
            Event::Eof if is_outside && roots == 1 => return Ok(document.into_inner()),
            Event::Eof => return Err("it ends too early".into()),
            Event::Start(mut start) => {
                if is_outside && let Some(name) = usual_name(start.name().as_ref()) {
                    start.set_name(name);
                }
                if is_outside && start.local_name().as_ref().eq_ignore_ascii_case("html") {
                    return Err("it is an HTML page".into());
                }
                depth += 1;
                roots += usize::from(is_outside);
                Event::Start(start)
            }
            Event::End(end) => {
                depth -= 1;
                Event::End(usual_name(end.name().as_ref()).filter(|_| depth == 0).map_or(end, BytesEnd::new))
            }
            Event::Empty(empty) => {
                roots += usize::from(is_outside);
                Event::Empty(empty)
            }
            Event::Text(text) if is_outside && !text.trim_ascii().is_empty() => return Err("it is no XML document".into()),
            Event::CData(data) => Event::Text(data.escape().map_err(|error| error.to_string())?),
            Event::Comment(_) | Event::PI(_) | Event::DocType(_) => continue,
            other => other,
        };
        document.write_event(kept).map_err(|error| error.to_string())?;
    }
}

/// What a document is called whose root has another name.
fn usual_name(root: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(other, _)| *other == root).map(|(_, usual)| *usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_is_complete_or_refused() {
        let whole = "<?xml version=\"1.0\"?>\n<R xmlns=\"n\"><K>a&amp;b&#x1;</K><E/></R>\n";
        assert_eq!(document(whole.as_bytes()).unwrap(), whole.as_bytes());
        for end in 0..whole.trim_end().len() {
            assert!(document(&whole.as_bytes()[..end]).is_err(), "{}", &whole[..end]);
        }
        for odd in
            ["<K>k</Kex>", "<K></R>", "k", "", "<K/><K/>", "<K/>more", "<html><body>no</body></html>", "<!DOCTYPE html><HTML></HTML>"]
        {
            assert!(document(odd.as_bytes()).is_err(), "{odd}");
        }
    }

    #[test]
    fn document_has_cdata_and_text_around_comments() {
        for (body, expected) in [
            ("<K><![CDATA[a<b&c]]></K>", "<K>a&lt;b&amp;c</K>"),
            ("<K>k<!-- x -->1</K>", "<K>k1</K>"),
            ("<ListPartsResponse xmlns=\"x\"><A/></ListPartsResponse>", "<ListPartsResult xmlns=\"x\"><A/></ListPartsResult>"),
            ("<!-- x --><K>a<![CDATA[b]]>c</K>", "<K>abc</K>"),
        ] {
            assert_eq!(String::from_utf8(document(body.as_bytes()).unwrap()).unwrap(), expected);
        }
    }
}
