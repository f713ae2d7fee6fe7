//! What makes the bucket a directory bucket of S3 Express One Zone: sessions, RenameObject, listings in no order, and what it refuses. After the
//! vendor's documents and SDK; the SDK's own client, which opens sessions by itself, works with it too.
//! <https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-differences.html>

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;
use s3s::dto::{ETag, ETagCondition};
use s3s::path::S3Path;
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};
use windlass::store::Key;

use super::aws_sign::{self, Refusal};
use super::bucket::Bucket;
use super::keyring::Keyring;
use super::layer::Gate;

/// The name of a directory bucket: its last part says so to every client.
pub const DIRECTORY_BUCKET: &str = "test-bucket--usw2-az1--x-s3";

/// In place of x-amz-security-token, with the keys of a session.
const SESSION_TOKEN: &str = "x-amz-s3session-token";

/// Requests that such a bucket does not know, by a parameter of their query.
const UNKNOWN: [&str; 4] = ["acl", "tagging", "ownershipControls", "versioning"];

const UNKNOWN_HEADERS: [&str; 4] = ["x-amz-acl", "x-amz-tagging", "x-amz-request-payer", "x-amz-object-lock-mode"];

/// Checks signatures and features of requests before the S3 service, which rejects the service name `s3express`.
pub struct Sessions(pub Keyring);

impl Gate for Sessions {
    fn admit(&self, request: &mut http::request::Parts) -> Result<(), Refusal> {
        let query = request.uri.query().unwrap_or_default();
        let asks = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
        // The keys of the account sign what opens a session and what copies: a copy may be of another bucket.
        let is_of_account = asks("session") || request.headers.contains_key("x-amz-copy-source");
        self.check_signature(request, is_of_account)?;
        let has_unknown = UNKNOWN_HEADERS.iter().any(|name| request.headers.contains_key(*name));
        let has_md5 = asks("partNumber") && request.headers.contains_key("content-md5");
        match UNKNOWN.iter().any(|name| asks(name)) || has_unknown || has_md5 {
            true => Err((501, "NotImplemented", "A header you provided implies functionality that is not implemented.")),
            false => Ok(()),
        }
    }
}

impl Sessions {
    fn check_signature(&self, request: &http::request::Parts, is_of_account: bool) -> Result<(), Refusal> {
        let session = (!is_of_account).then_some(SESSION_TOKEN);
        let signed = aws_sign::check(request, session, |id| self.0.get(id))?;
        let token = request.headers.get(SESSION_TOKEN).and_then(|value| value.to_str().ok());
        if signed.by.token.is_none() != is_of_account || signed.by.token.as_deref() != token || signed.service != "s3express" {
            return Err((403, "InvalidToken", "The provided token is malformed or otherwise invalid."));
        }
        Ok(())
    }
}

/// RenameObject, which the S3 service does not know.
pub struct Renames(pub Bucket);

#[async_trait::async_trait]
impl S3Route for Renames {
    fn is_match(&self, method: &Method, uri: &Uri, _: &HeaderMap, _: &mut http::Extensions) -> bool {
        method == Method::PUT && uri.query().is_some_and(|query| query.split('&').any(|name| name.starts_with("renameObject")))
    }

    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        // The gate has checked the signature.
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let path = percent_decode_str(request.uri.path()).decode_utf8_lossy().into_owned();
        let target = match s3s::path::parse_path_style(&path) {
            Ok(S3Path::Object { bucket, key }) if &*bucket == DIRECTORY_BUCKET => key.to_string(),
            _ => return Err(s3_error!(NoSuchBucket)),
        };
        let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        let source = header("x-amz-rename-source").ok_or_else(|| s3_error!(InvalidRequest))?;
        let source = percent_decode_str(source.trim_start_matches('/')).decode_utf8_lossy().into_owned();
        if source.ends_with('/') || target.ends_with('/') {
            return Err(s3_error!(InvalidRequest, "Keys that end in a slash are not renamed."));
        }
        let tag = |name| header(name).map(|tag| ETagCondition::ETag(ETag::Strong(tag.trim_matches('"').to_owned())));
        let is_free = header("if-none-match").map(|_| ETagCondition::Any);
        let token = header("x-amz-client-token").unwrap_or_default();
        let conditions = [tag("if-match"), is_free, tag("x-amz-rename-source-if-match")];
        self.0.rename(&source, &target, token, conditions)?;
        Ok(S3Response::new(Body::empty()))
    }
}

/// The names of a listing in the order of such a bucket, which is that of nothing.
pub fn shuffled(names: BTreeSet<Key>) -> Vec<Key> {
    let mut names: Vec<Key> = names.into_iter().collect();
    names.sort_by_cached_key(|name| {
        let mut hasher = DefaultHasher::new();
        name.as_bytes().hash(&mut hasher);
        hasher.finish()
    });
    names
}
