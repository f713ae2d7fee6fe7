//! Signs requests to OSS through reqsign, in the shape in which its signatures are those of the vendor. It sends
//! nothing. Invariant: a signature covers method, bucket, key, query and the headers that OSS names, never Range or If-Match, so
//! the one of a GET serves all ranges of its object.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use reqsign_aliyun_oss::{RequestSigner, SigningVersion};
use reqsign_core::ErrorKind as SignErrorKind;
use tokio::time::Instant;

use super::address::Address;
use super::credentials::Sources;
use super::identity::Identity;
use crate::store::range::{SignGet, SignedGet};
use crate::store::requests::{REQUEST_PAYER, Unsigned, Voice};
use crate::store::{Error, ErrorKind, Key, Op, Result, Signature};

/// How long the signature of a GET is used. Less than the two minutes that credentials usually have left when they sign,
/// so that a token rarely expires inside a kept signature, and less than the 15 minutes of skew that OSS takes.
const SIGNATURE_LIFE: Duration = Duration::from_secs(100);

/// Objects with a kept signature; about 1 KiB each.
const KEPT_SIGNATURES: usize = 4096;

const SECURITY_TOKEN: &str = "x-oss-security-token";

/// Who pays, when it is whoever asks.
const PAYER: HeaderName = HeaderName::from_static("x-oss-request-payer");

/// Signs for one bucket.
pub(super) struct OssSigner {
    address: Address,
    /// None for anonymous access.
    identity: Option<Arc<Identity>>,
    requester_pays: bool,
    kept: Mutex<HashMap<Key, Kept>>,
}

/// A signature in use.
struct Kept {
    until: Instant,
    uses: u64,
    signed: SignedGet,
}

impl fmt::Debug for OssSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OssSigner").field("address", &self.address).field("signs", &self.identity.is_some()).finish_non_exhaustive()
    }
}

impl OssSigner {
    pub fn new(address: Address, signature: Signature, sources: Sources, requester_pays: bool) -> Self {
        let rules = RequestSigner::new(&address.bucket);
        let rules = match signature {
            Signature::None => None,
            Signature::V1 => Some(rules.with_signing_version(SigningVersion::V1)),
            Signature::V4 => {
                let region = address.region.clone().expect("an address for signature v4 has a region");
                Some(rules.with_signing_version(SigningVersion::V4).with_region(region))
            }
        };
        let identity = rules.map(|rules| Arc::new(Identity::new(sources, rules)));
        Self { address, identity, requester_pays, kept: Mutex::new(HashMap::new()) }
    }

    /// The same credentials for the same bucket behind another address.
    pub fn at(&self, address: Address) -> Self {
        Self { address, identity: self.identity.clone(), requester_pays: self.requester_pays, kept: Mutex::default() }
    }

    /// URL and headers of a request for `key` that has none of its own, or for the bucket when it is empty.
    pub async fn sign(&self, op: Op, method: Method, key: &Key, query: &[(&str, &[u8])]) -> Result<SignedGet> {
        let mut headers = HeaderMap::new();
        if self.requester_pays && self.identity.is_some() {
            headers.insert(PAYER, HeaderValue::from_static(REQUEST_PAYER.1));
        }
        self.sign_with(op, method, key, query, headers).await
    }

    /// The same with `headers`, of which the signature covers those that OSS signs.
    async fn sign_with(&self, op: Op, method: Method, key: &Key, query: &[(&str, &[u8])], headers: HeaderMap) -> Result<SignedGet> {
        let invalid = |message: &str| Error::new(ErrorKind::Invalid, op, key, message);
        let target = self.address.target(key, query).ok_or_else(|| invalid("a URL cannot say a key with a component . or .."))?;
        let Some(identity) = &self.identity else { return Ok(SignedGet { url: target.url, headers }) };
        if key.to_str().is_none() || query.iter().any(|(_, value)| std::str::from_utf8(value).is_err()) {
            return Err(invalid("OSS signs only names that are UTF-8"));
        }
        // The resource that OSS signs is /bucket/key whatever the URL looks like. reqsign takes path style for anything
        // whose host does not begin with the bucket, and a bucket named like the beginning of a host for virtual-host style.
        // So what it sees is always virtual-host style. It sees no headers but those
        // that belong to every signature: V4 would sign each of them.
        let uri = format!("http://{}.oss{}", self.address.bucket, target.path_and_query);
        let request = http::Request::builder().method(method).uri(uri).body(());
        let (mut parts, ()) = request.map_err(|_| invalid("the key gives no valid URL"))?.into_parts();
        let (signed, others) = headers.into_iter().filter_map(|(name, value)| Some((name?, value))).partition(|(name, _)| is_signed(name));
        parts.headers = signed;
        identity.sign(&mut parts).await.map_err(|error| translate(&error, op, key))?;
        let mut headers = as_the_vendor_writes(parts.headers);
        headers.extend::<HeaderMap>(others);
        Ok(SignedGet { url: target.url, headers })
    }

    /// After a request that began at `started` was refused: forgets the credentials, and says whether another signature may help.
    pub fn may_renew(&self, error: &Error, started: Instant) -> bool {
        error.kind == ErrorKind::BadCredentials && self.identity.as_ref().is_some_and(|identity| identity.renew(started))
    }

    /// The same for a GET, whose kept signature may be older than the credentials of now.
    pub fn may_renew_get(&self, error: &Error, key: &Key, started: Instant) -> bool {
        if error.kind != ErrorKind::BadCredentials {
            return false;
        }
        let kept = self.kept.lock().remove(key);
        self.may_renew(error, started) || kept.is_some_and(|kept| kept.uses > 1)
    }
}

/// Whether OSS signs this header, in V4 as in V1.
fn is_signed(name: &HeaderName) -> bool {
    *name == CONTENT_TYPE || name.as_str() == "content-md5" || name.as_str().starts_with("x-oss-")
}

/// The headers of a signature without what reqsign adds to the vendor's form: an empty `AdditionalHeaders=`, and blanks.
fn as_the_vendor_writes(mut headers: HeaderMap) -> HeaderMap {
    if let Some(value) = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok())
        && let Ok(mut value) = HeaderValue::try_from(value.replace(", AdditionalHeaders=, ", ","))
    {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    if let Some(token) = headers.get_mut(SECURITY_TOKEN) {
        token.set_sensitive(true);
    }
    headers
}

fn translate(error: &reqsign_core::Error, op: Op, key: &Key) -> Error {
    let kind = match error.kind() {
        SignErrorKind::CredentialInvalid | SignErrorKind::PermissionDenied | SignErrorKind::ConfigInvalid => ErrorKind::NoCredentials,
        SignErrorKind::RequestInvalid => ErrorKind::Invalid,
        SignErrorKind::RateLimited | SignErrorKind::Unexpected => ErrorKind::Unavailable,
    };
    Error::new(kind, op, key, error.to_string())
}

#[async_trait]
impl Voice for OssSigner {
    async fn sign(&self, unsigned: &Unsigned<'_>) -> Result<SignedGet> {
        let Unsigned { op, method, key, query, headers } = unsigned;
        let query: Vec<(&str, &[u8])> = query.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        self.sign_with(*op, method.clone(), key, &query, (*headers).clone()).await
    }

    async fn renew(&self, error: &Error, started: Instant) -> bool {
        self.may_renew(error, started)
    }

    fn refused(&self, op: Op, key: &Key, status: u16, headers: &HeaderMap, body: &[u8]) -> Error {
        super::refused(op, key, status, headers, body)
    }
}

#[async_trait]
impl SignGet for OssSigner {
    async fn sign_get(&self, key: &Key) -> Result<SignedGet> {
        let now = Instant::now();
        if let Some(kept) = self.kept.lock().get_mut(key)
            && kept.until > now
        {
            kept.uses += 1;
            return Ok(kept.signed.clone());
        }
        let signed = self.sign(Op::Get, Method::GET, key, &[]).await?;
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_SIGNATURES {
            kept.retain(|_, kept| kept.until > now);
        }
        // Still full: the process reads more objects a minute than it can keep; signing again is 20 microseconds.
        if kept.len() < KEPT_SIGNATURES {
            kept.insert(key.clone(), Kept { until: now + SIGNATURE_LIFE, uses: 1, signed: signed.clone() });
        }
        Ok(signed)
    }
}
