//! What an HTTP answer that is not a success means: status, headers and the XML error body become an [`Error`].
//! Shared by both dialects and by the range path; it decides nothing about retries. Invariant: a message never
//! carries a query string or a header of the request, because these may hold signatures.

use std::error::Error as StdError;
use std::time::SystemTime;

use http::{HeaderMap, header};
use serde::Deserialize;

use super::{Error, ErrorKind, Key, Op, reach};

/// Longest message taken over from a store, so that a log line stays a line.
const MESSAGE_LIMIT: usize = 240;

/// The facts of an unsuccessful answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: u16,
    pub code: Option<String>,
    pub message: Option<String>,
    pub request_id: Option<String>,
    /// Where the bucket lives, when the answer tells.
    pub region: Option<String>,
    /// How the bucket wants to be addressed, when the answer tells.
    pub endpoint: Option<String>,
    /// Seconds to wait before the next attempt, when the answer tells.
    pub retry_after: Option<u8>,
}

/// The error document of S3 and OSS.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorDocument {
    code: Option<String>,
    message: Option<String>,
    request_id: Option<String>,
    region: Option<String>,
    endpoint: Option<String>,
}

impl Answer {
    /// Gathers the facts. A body that is not the error document (an HTML page of a proxy, nothing after a HEAD) is
    /// not a failure here: the status still says enough.
    pub fn new(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        let document: ErrorDocument = quick_xml::de::from_reader(body).unwrap_or_default();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Self {
            status,
            code: filled(document.code),
            message: filled(document.message),
            request_id: filled(document.request_id).or_else(|| header("x-amz-request-id")).or_else(|| header("x-oss-request-id")),
            region: header("x-amz-bucket-region").or(filled(document.region)),
            endpoint: filled(document.endpoint),
            retry_after: header(header::RETRY_AFTER.as_str()).and_then(|text| delay(&text, SystemTime::now())),
        }
    }

    /// The error of `op` on `key` that this answer is.
    pub fn into_error(self, op: Op, key: &Key) -> Error {
        let kind = self.kind(op);
        let message = match kind {
            ErrorKind::WrongEndpoint => self.where_instead(),
            _ => self.message.as_deref().map(one_line).filter(|m| !m.is_empty()).unwrap_or_else(|| self.in_our_words(kind, op)),
        };
        Error {
            status: Some(self.status),
            code: self.code,
            request_id: self.request_id,
            retry_after: self.retry_after,
            ..Error::new(kind, op, key, message)
        }
    }

    fn kind(&self, op: Op) -> ErrorKind {
        let addressed_wrongly = |m: &String| m.contains("must be addressed using the specified endpoint");
        match self.code.as_deref().unwrap_or_default() {
            "AccessDenied" if self.message.as_ref().is_some_and(addressed_wrongly) => ErrorKind::WrongEndpoint,
            // Without a region in the answer the header was malformed for another reason: an odd key id.
            "AuthorizationHeaderMalformed" if self.region.is_none() => ErrorKind::BadCredentials,
            code => by_code(code).unwrap_or_else(|| self.by_status(op)),
        }
    }

    fn by_status(&self, op: Op) -> ErrorKind {
        match self.status {
            300..=399 => ErrorKind::WrongEndpoint,
            400 if self.region.is_some() => ErrorKind::WrongEndpoint,
            401 | 403 => ErrorKind::AccessDenied,
            404 if op == Op::List => ErrorKind::NoSuchBucket,
            404 => ErrorKind::NotFound,
            408 => ErrorKind::Timeout,
            412 => ErrorKind::Replaced,
            416 => ErrorKind::RangeNotSatisfiable,
            429 | 503 => ErrorKind::Throttled,
            // What is not implemented will not be at the next attempt.
            400..=499 | 501 => ErrorKind::Invalid,
            500..=599 => ErrorKind::Unavailable,
            // A success with a body that is neither the document expected nor an error document, or a status that HTTP does not define.
            _ => ErrorKind::Malformed,
        }
    }

    fn where_instead(&self) -> String {
        match (&self.endpoint, &self.region) {
            (Some(endpoint), _) => format!("the bucket answers at another endpoint: set --endpoint {}", one_line(endpoint)),
            (None, Some(region)) => format!("the bucket lives in another region: set --region {}", one_line(region)),
            (None, None) => "the bucket lives in another region or at another endpoint: check --region and --endpoint".to_owned(),
        }
    }

    fn in_our_words(&self, kind: ErrorKind, op: Op) -> String {
        match kind {
            ErrorKind::NotFound => "no such object",
            ErrorKind::NoSuchBucket => "no such bucket",
            ErrorKind::Replaced => "the object was replaced",
            ErrorKind::RangeNotSatisfiable => "the range lies outside the object",
            ErrorKind::AccessDenied => "access denied",
            ErrorKind::BadCredentials => "the store does not accept these credentials",
            ErrorKind::Throttled => "the store asks to slow down",
            ErrorKind::Invalid => return format!("the store refuses this {op}"),
            _ => return format!("the store answered with status {}", self.status),
        }
        .to_owned()
    }
}

/// The seconds that Retry-After says (RFC 9110, section 10.2.3), or the date that it says.
fn delay(text: &str, now: SystemTime) -> Option<u8> {
    let seconds = match text.trim().parse() {
        Ok(seconds) => seconds,
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default().as_secs(),
    };
    Some(u8::try_from(seconds).unwrap_or(u8::MAX))
}

/// What the store's own code means; none for codes that say no more than the status does.
fn by_code(code: &str) -> Option<ErrorKind> {
    Some(match code {
        "NoSuchKey" | "NoSuchVersion" | "NoSuchUpload" | "SymlinkTargetNotExist" => ErrorKind::NotFound,
        "NoSuchBucket" => ErrorKind::NoSuchBucket,
        // The second is what OSS says of x-oss-forbid-overwrite.
        "PreconditionFailed" | "FileAlreadyExists" => ErrorKind::Replaced,
        // Another conditional write of the same key is under way; S3 asks to try again.
        "ConditionalRequestConflict" | "OperationAborted" => ErrorKind::Unavailable,
        // What arrived is not what was sent.
        "BadDigest" | "InvalidDigest" | "XAmzContentChecksumMismatch" | "XAmzContentSHA256Mismatch" | "IncompleteBody" => {
            ErrorKind::Corrupt
        }
        // These may come after an answer began with success.
        "InvalidPart" | "InvalidPartOrder" | "EntityTooSmall" | "EntityTooLarge" | "MalformedXML" => ErrorKind::Invalid,
        "InvalidRange" => ErrorKind::RangeNotSatisfiable,
        "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" | "RequestTimeTooSkewed" => {
            ErrorKind::BadCredentials
        }
        "SecurityTokenExpired" | "InvalidSecurityToken" | "TokenRefreshRequired" | "RequestExpired" | "NotSignedUp" => {
            ErrorKind::BadCredentials
        }
        "PermanentRedirect" | "TemporaryRedirect" | "Redirect" | "AuthorizationHeaderMalformed" => ErrorKind::WrongEndpoint,
        "SlowDown" | "Throttling" | "ThrottlingException" | "RequestLimitExceeded" | "TooManyRequests" => ErrorKind::Throttled,
        "DownloadTrafficRateLimitExceeded" | "QpsLimitExceeded" => ErrorKind::Throttled,
        // S3 says it with status 400.
        "RequestTimeout" => ErrorKind::Timeout,
        "InternalError" | "ServiceUnavailable" => ErrorKind::Unavailable,
        "InvalidBucketName" | "InvalidObjectName" | "KeyTooLongError" | "InvalidArgument" | "InvalidURI" => ErrorKind::Invalid,
        // OSS: path style is not allowed on its public endpoints.
        "SecondLevelDomainForbidden" => ErrorKind::Invalid,
        _ => return None,
    })
}

/// The error of a request that got no answer, or whose body broke off.
pub(super) fn transport(op: Op, key: &Key, error: &reqwest::Error) -> Error {
    if is_not_http(error) {
        return Error::new(ErrorKind::Malformed, op, key, NOT_HTTP);
    }
    if let Some((kind, failure)) = reach::tls_failure(error) {
        return Error::new(kind, op, key, failure.to_string());
    }
    let kind = match () {
        () if error.is_timeout() && error.is_connect() => ErrorKind::Connect,
        () if error.is_timeout() => ErrorKind::Timeout,
        () if error.is_connect() => ErrorKind::Connect,
        () if error.is_builder() => ErrorKind::Invalid,
        () => ErrorKind::Unavailable,
    };
    let what = if error.is_connect() { "cannot connect" } else { "the connection was lost" };
    // The outer levels repeat the URL, with its query; the innermost says what happened.
    let message = match error.source() {
        Some(_) if is_closed_early(error) => format!("{what}: the other side closed it without an answer"),
        Some(_) => format!("{what}: {}", one_line(&innermost(error))),
        None => what.to_owned(),
    };
    Error::new(kind, op, key, message)
}

/// Something answers there, but no web server.
pub(super) const NOT_HTTP: &str = "what answers there does not speak HTTP";

/// Whether bytes came that are no HTTP.
fn is_not_http(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse))
}

/// Whether the connection was closed before an answer was complete.
fn is_closed_early(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message))
}

/// An error and what is behind it, outermost first.
pub(super) fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&cause| cause.source())
}

/// The text of the last cause.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    causes(error).last().expect("the error itself is one").to_string()
}

fn filled(text: Option<String>) -> Option<String> {
    text.filter(|t| !t.trim().is_empty())
}

/// The text on one line, of bearable length, and cut before a query string.
fn one_line(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MESSAGE_LIMIT) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(op: Op, status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Error {
        let headers = headers
            .iter()
            .map(|&(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value)))
            .collect::<HeaderMap>();
        Answer::new(status, &headers, body.as_bytes()).into_error(op, &Key::from("a/b"))
    }

    fn document(code: &str) -> String {
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message><RequestId>R1</RequestId></Error>")
    }

    #[test]
    fn the_code_of_the_store_decides_before_the_status() {
        for (status, code, kind) in [
            (404, "NoSuchKey", ErrorKind::NotFound),
            (404, "NoSuchBucket", ErrorKind::NoSuchBucket),
            (403, "AccessDenied", ErrorKind::AccessDenied),
            (403, "InvalidAccessKeyId", ErrorKind::BadCredentials),
            (403, "SignatureDoesNotMatch", ErrorKind::BadCredentials),
            (400, "ExpiredToken", ErrorKind::BadCredentials),
            (403, "RequestTimeTooSkewed", ErrorKind::BadCredentials),
            (403, "SecurityTokenExpired", ErrorKind::BadCredentials),
            (400, "AuthorizationHeaderMalformed", ErrorKind::BadCredentials),
            (301, "PermanentRedirect", ErrorKind::WrongEndpoint),
            (503, "SlowDown", ErrorKind::Throttled),
            (503, "ServiceUnavailable", ErrorKind::Unavailable),
            (400, "RequestTimeout", ErrorKind::Timeout),
            (500, "InternalError", ErrorKind::Unavailable),
            (400, "InvalidBucketName", ErrorKind::Invalid),
            (412, "PreconditionFailed", ErrorKind::Replaced),
            (418, "SomethingNew", ErrorKind::Invalid),
            (404, "NoSuchUpload", ErrorKind::NotFound),
            (409, "FileAlreadyExists", ErrorKind::Replaced),
            (409, "ConditionalRequestConflict", ErrorKind::Unavailable),
            (400, "BadDigest", ErrorKind::Corrupt),
            // After a success that had begun.
            (200, "InvalidPart", ErrorKind::Invalid),
            (200, "InternalError", ErrorKind::Unavailable),
        ] {
            let error = error(Op::Get, status, &[], &document(code));
            assert_eq!(error.kind, kind, "{code}");
            assert_eq!((error.code.as_deref(), error.request_id.as_deref()), (Some(code), Some("R1")));
        }
    }

    #[test]
    fn without_a_document_the_status_decides() {
        for (op, status, kind) in [
            (Op::Head, 404, ErrorKind::NotFound),
            (Op::List, 404, ErrorKind::NoSuchBucket),
            (Op::Head, 403, ErrorKind::AccessDenied),
            (Op::Head, 301, ErrorKind::WrongEndpoint),
            (Op::Get, 412, ErrorKind::Replaced),
            (Op::Get, 416, ErrorKind::RangeNotSatisfiable),
            (Op::Get, 429, ErrorKind::Throttled),
            (Op::Get, 502, ErrorKind::Unavailable),
            (Op::Get, 400, ErrorKind::Invalid),
            (Op::Put, 501, ErrorKind::Invalid),
        ] {
            let error = error(op, status, &[("x-amz-request-id", "R2")], "<html>bad gateway</html>");
            assert_eq!((error.kind, error.status), (kind, Some(status)), "{op} {status}");
            assert_eq!(error.request_id.as_deref(), Some("R2"));
            assert!(!error.message.is_empty());
        }
    }

    #[test]
    fn how_long_to_wait_is_told_in_seconds_or_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777);
        for (text, seconds) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:40 GMT", Some(3)),
            ("Sun, 06 Nov 1994 08:49:30 GMT", Some(0)),
            ("31536000", Some(u8::MAX)),
            ("-1", None),
            ("soon", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(delay(text, now), seconds, "{text}");
        }
        let refused = error(Op::Put, 503, &[("retry-after", "7")], &document("SlowDown"));
        assert_eq!(refused.retry_after, Some(7));
        assert!(refused.asks_to_slow_down());
        assert!(error(Op::Put, 503, &[], &document("ServiceUnavailable")).asks_to_slow_down());
        assert!(!error(Op::Put, 500, &[], &document("InternalError")).asks_to_slow_down());
    }

    #[test]
    fn a_wrong_endpoint_names_the_right_one() {
        let by_header = error(Op::Head, 400, &[("x-amz-bucket-region", "eu-west-1")], "");
        assert_eq!(by_header.kind, ErrorKind::WrongEndpoint);
        assert!(by_header.message.contains("--region eu-west-1"), "{by_header}");

        let malformed = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region></Error>";
        assert!(error(Op::Get, 400, &[], malformed).message.contains("--region eu-central-1"));

        let oss = "<Error><Code>AccessDenied</Code><Message>The bucket you are attempting to access must be addressed using \
                   the specified endpoint. Please send all future requests to this endpoint.</Message>\
                   <Endpoint>oss-cn-beijing.aliyuncs.com</Endpoint></Error>";
        let oss = error(Op::List, 403, &[], oss);
        assert_eq!(oss.kind, ErrorKind::WrongEndpoint);
        assert!(oss.message.contains("--endpoint oss-cn-beijing.aliyuncs.com"), "{oss}");
    }

    #[test]
    fn messages_are_one_short_line_without_a_query() {
        let body = format!("<Error><Code>X</Code><Message>see\n http://h/k?X-Amz-Signature=abc {}</Message></Error>", "y".repeat(500));
        assert_eq!(error(Op::Get, 400, &[], &body).message, "see http://h/k");
        let long = format!("<Error><Code>X</Code><Message>{}</Message></Error>", "é".repeat(500));
        assert_eq!(error(Op::Get, 400, &[], &long).message.chars().count(), MESSAGE_LIMIT + 3);
    }
}
