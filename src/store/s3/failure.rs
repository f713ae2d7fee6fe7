//! Failures of the SDK as errors of the store layer. The text of the SDK's outer levels ("service error") says
//! nothing to people; the answer of the store, or the innermost cause, does.

use std::error::Error as StdError;
use std::io;

use aws_config::imds::client::error::ImdsError;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::SdkError;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::store::answer::{self, Answer, causes, innermost};
use crate::store::{Error, ErrorKind, Key, Op};

/// What `error` of `op` on `key` means; `region` is the one that requests are signed for.
pub(super) fn sdk<E>(op: Op, key: &Key, region: &str, error: &SdkError<E, HttpResponse>) -> Error
where
    E: StdError + 'static,
{
    if let Some(cause) = causes(error).find_map(|cause| cause.downcast_ref::<CredentialsError>()) {
        return credentials(op, key, cause);
    }
    match error {
        SdkError::ServiceError(inner) => answered(op, key, region, inner.raw()),
        SdkError::ResponseError(inner) => answered(op, key, region, inner.raw()),
        SdkError::TimeoutError(_) => Error::new(ErrorKind::Timeout, op, key, innermost(error)),
        SdkError::DispatchFailure(inner) if inner.is_timeout() => Error::new(ErrorKind::Timeout, op, key, innermost(error)),
        SdkError::DispatchFailure(inner) if inner.is_user() => Error::new(ErrorKind::Invalid, op, key, innermost(error)),
        SdkError::DispatchFailure(_) if answer::is_not_http(error) => Error::new(ErrorKind::Corrupt, op, key, answer::NOT_HTTP),
        SdkError::DispatchFailure(_) if was_cut(error) => {
            Error::new(ErrorKind::Unavailable, op, key, format!("the connection was lost: {}", innermost(error)))
        }
        SdkError::DispatchFailure(_) => Error::new(ErrorKind::Connect, op, key, format!("cannot connect: {}", innermost(error))),
        _ => Error::new(ErrorKind::Invalid, op, key, innermost(error)),
    }
}

/// Why there are no credentials, and what to do about it.
pub(super) fn credentials(op: Op, key: &Key, error: &CredentialsError) -> Error {
    // The metadata service is the last that the chain asks; outside a cloud it fails in many ways.
    let no_metadata = causes(error).any(|cause| cause.is::<ImdsError>());
    let message = match error {
        _ if no_metadata || matches!(error, CredentialsError::CredentialsNotLoaded(_)) => {
            "no credentials found in environment, profile, web identity, container and \
             instance role: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, --profile or --passwd-file, or --signature none for a \
             public bucket"
                .to_owned()
        }
        // Its own text names the kind of failure only; file names and reasons stand behind it.
        _ => {
            let mut reasons: Vec<String> = causes(error).skip(1).map(ToString::to_string).collect();
            // Some errors repeat their cause in their own text.
            reasons.dedup_by(|inner, outer| outer.contains(inner.as_str()));
            format!("no usable credentials: {}", if reasons.is_empty() { error.to_string() } else { reasons.join(": ") })
        }
    };
    Error::new(ErrorKind::NoCredentials, op, key, message)
}

fn answered(op: Op, key: &Key, region: &str, raw: &HttpResponse) -> Error {
    let status = raw.status().as_u16();
    let headers = raw
        .headers()
        .iter()
        .filter_map(|(name, value)| Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?)));
    let headers = headers.collect::<HeaderMap>();
    if (200..300).contains(&status) {
        return unreadable(op, key, status, &headers);
    }
    refused(op, key, region, status, &headers, raw.body().bytes().unwrap_or_default())
}

/// A success that is not what a success of `op` looks like.
pub(super) fn unreadable(op: Op, key: &Key, status: u16, headers: &HeaderMap) -> Error {
    let request_id = Answer::new(status, headers, b"").request_id;
    Error { status: Some(status), request_id, ..Error::new(ErrorKind::Corrupt, op, key, "the answer cannot be read") }
}

/// The error that an answer which is no success is.
pub(super) fn refused(op: Op, key: &Key, region: &str, status: u16, headers: &HeaderMap, body: &[u8]) -> Error {
    let mut answer = Answer::new(status, headers, body);
    // S3 names the region in answers that fail for other reasons too.
    if answer.region.as_deref() == Some(region) {
        answer.region = None;
    }
    answer.into_error(op, key)
}

/// Whether the connection was there and broke.
fn was_cut(error: &(dyn StdError + 'static)) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let broke = |io: &io::Error| matches!(io.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof);
    causes(error).any(|cause| cause.downcast_ref::<io::Error>().is_some_and(broke) || cause.to_string().contains("connection closed"))
}
