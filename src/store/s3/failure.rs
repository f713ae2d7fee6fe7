//! What S3 says, and what its sources of credentials say, as errors of the store layer. Invariant: people are told what the store
//! answered, or the reason behind a failure, and not that there was one.

use aws_config::imds::client::error::ImdsError;
use aws_credential_types::provider::error::CredentialsError;
use http::HeaderMap;

use crate::store::answer::{Answer, causes};
use crate::store::credentials::Missing;
use crate::store::{Error, ErrorKind, Key, Op};

/// Why there are no credentials, and what to do about it.
pub(super) fn credentials(error: &CredentialsError) -> Missing {
    // The metadata service is the last that the chain asks; outside a cloud it fails in many ways.
    let no_metadata = causes(error).any(|cause| cause.is::<ImdsError>());
    match error {
        _ if no_metadata || matches!(error, CredentialsError::CredentialsNotLoaded(_)) => {
            let words = "no credentials found in environment, profile, web identity, container and \
             instance role: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, --profile or --passwd-file, or --signature none for a \
             public bucket";
            Missing::new(words.to_owned())
        }
        // Its own text names the kind of failure only; file names and reasons stand behind it.
        _ => {
            let mut reasons: Vec<String> = causes(error).skip(1).map(ToString::to_string).collect();
            // Some errors repeat their cause in their own text.
            reasons.dedup_by(|inner, outer| outer.contains(inner.as_str()));
            Missing::new(format!("no usable credentials: {}", if reasons.is_empty() { error.to_string() } else { reasons.join(": ") }))
        }
    }
}

/// A success that is not what a success of `op` looks like.
pub(super) fn unreadable(op: Op, key: &Key, status: u16, headers: &HeaderMap) -> Error {
    let request_id = Answer::new(status, headers, b"").request_id;
    Error { status: Some(status), request_id, ..Error::new(ErrorKind::Malformed, op, key, "the answer cannot be read") }
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
