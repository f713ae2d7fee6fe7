//! Signatures: AWS Signature V4 in headers; of data GETs and listings over host, date, payload marker and token only, so that
//! one signature serves every range of an object, of all others over their own headers too, and where TLS does not protect it over what they send. Invariant: a signature is given out only while it and the credentials
//! behind it are valid for at least as long as a request waits for its first byte.
//!
//! Why headers, and why cached: in a debug build presigning through the SDK takes 302 us (it runs the whole request
//! pipeline), a header signature 63 us, the cache 7 us (`cargo test --lib signing_costs -- --ignored --nocapture`).
//! A presigned URL would also stand in every access log. A header signature is good for 15 minutes at the store.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningParams, SigningSettings, UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::{v4, v4a};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use moka::sync::Cache;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use reqwest::Url;

use super::address::{Address, Scheme};
use super::failure;
use crate::store::clock::{Correction, StoreClock};
use crate::store::credentials::{Attempts, Edition, Rotating, Signing};
use crate::store::requests::{self, REQUEST_PAYER, Voice};
use crate::store::signing::{SignGet, SignedGet};
use crate::store::{Error, ErrorKind, Key, Op, Result};

/// Well below the 15 minutes that stores accept, for clocks that differ and requests that wait.
const SIGNATURE_LIFETIME: Duration = Duration::from_secs(300);

/// Signatures kept: about one a file being read, and a kilobyte each.
const SIGNATURES: u64 = 1024;

/// What S3 leaves as it is in a canonical query, and with the slash in a canonical path.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &VALUE.remove(b'/');

/// Who pays, when it is whoever asks.
const PAYER: HeaderName = HeaderName::from_static("x-amz-request-payer");

/// Of every data GET, as the vendor's SDKs send it: one signature serves those of ranges too.
const CHECKSUM_MODE: HeaderName = HeaderName::from_static("x-amz-checksum-mode");

/// In place of x-amz-security-token where the keys are those of a session:
/// <https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateSession.html>
const SESSION_TOKEN: &str = "x-amz-s3session-token";

/// Signs the requests of one bucket.
pub(super) struct Signer {
    /// URL of the bucket without a slash at its end: `http://host/bucket` or `https://bucket.host`.
    pub base: String,
    pub scheme: Scheme,
    /// None: anonymous.
    pub credentials: Option<Arc<Rotating>>,
    /// Of a bucket with sessions, the keys behind them: they sign what sessions do not.
    account: Option<Arc<Rotating>>,
    pub requester_pays: bool,
    /// The sum of an object is asked for with its content.
    pub asks_sums: bool,
    /// With the end of each, and the correction that it was made with.
    cache: Cache<Key, (SignedGet, SystemTime, Correction)>,
    clock: Arc<StoreClock>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("base", &self.base).field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

impl Signer {
    pub fn new(address: Address, credentials: Option<Arc<Rotating>>, requester_pays: bool) -> Self {
        let cache = Cache::builder().max_capacity(SIGNATURES).time_to_live(SIGNATURE_LIFETIME).build();
        Self {
            base: address.base,
            scheme: address.scheme,
            credentials,
            account: None,
            requester_pays,
            asks_sums: false,
            cache,
            clock: Arc::default(),
        }
    }

    /// As [`new`](Self::new), with the keys of sessions, and with those of the account for what sessions do not sign.
    pub fn with_sessions(address: Address, sessions: Arc<Rotating>, account: Arc<Rotating>, requester_pays: bool) -> Self {
        Self { account: Some(account), ..Self::new(address, Some(sessions), requester_pays) }
    }

    /// What signs a request, and how. Copies read another object, which may be in another bucket: the session of this one does not sign them
    /// (CopyObject and UploadPartCopy of the vendor's SDK, which switch sessions off).
    fn keys_for(&self, op: Op) -> (Option<&Arc<Rotating>>, Cow<'_, Scheme>) {
        match &self.account {
            Some(account) if matches!(op, Op::Copy | Op::CopyPart) => (Some(account), Cow::Owned(self.scheme.without_session())),
            _ => (self.credentials.as_ref(), Cow::Borrowed(&self.scheme)),
        }
    }

    /// Whether the keys that signed it are still those that sign.
    fn may_reuse(&self, signed: &SignedGet) -> bool {
        match (&self.credentials, signed.by) {
            (Some(keys), Some(by)) => keys.may_reuse(by),
            _ => true,
        }
    }

    fn object_url(&self, key: &Key) -> Result<Url> {
        let unsayable = |message: &str| Error::new(ErrorKind::Invalid, Op::Get, key, message);
        // URLs resolve such components, also when they are escaped: the request would be for another object.
        if key.as_bytes().split(|&byte| byte == b'/').any(|part| part == b"." || part == b"..") {
            return Err(unsayable("keys with . or .. components cannot be asked for"));
        }
        Url::parse(&format!("{}/{}", self.base, percent_encode(key.as_bytes(), PATH))).map_err(|_| unsayable("the key makes no URL"))
    }

    /// The address of the bucket with a query.
    fn bucket_url(&self, op: Op, prefix: &Key, query: &str) -> Result<Url> {
        Url::parse(&format!("{}?{query}", self.base))
            .map_err(|_| Error::new(ErrorKind::Invalid, op, prefix, "the bucket's address makes no URL"))
    }

    /// A listing of the bucket. Not kept: each page has a URL of its own.
    pub async fn sign_list(&self, prefix: &Key, query: &[(&str, &str)]) -> Result<SignedGet> {
        let url = self.bucket_url(Op::List, prefix, &query_text(query.iter().copied()))?;
        let Headers { headers, by, .. } = self.get_headers(Op::List, prefix, &url).await?;
        Ok(SignedGet { url, headers, by })
    }

    /// The headers of a GET without any of its own.
    async fn get_headers(&self, op: Op, key: &Key, url: &Url) -> Result<Headers> {
        let mut headers = HeaderMap::new();
        if self.requester_pays && self.credentials.is_some() {
            headers.insert(PAYER, HeaderValue::from_static(REQUEST_PAYER.1));
        }
        if self.asks_sums && op == Op::Get {
            headers.insert(CHECKSUM_MODE, HeaderValue::from_static("ENABLED"));
        }
        self.headers(op, key, &Method::GET, url, headers, None).await
    }

    /// `headers` and those of the signature, which covers all that have the vendor's prefix.
    async fn headers(
        &self,
        op: Op,
        key: &Key,
        method: &Method,
        url: &Url,
        mut headers: HeaderMap,
        payload: Option<[u8; 32]>,
    ) -> Result<Headers> {
        let (keys, scheme) = self.keys_for(op);
        let Some(rotating) = keys else { return Ok(Headers { headers, by: None, expires: None }) };
        let Signing { keys, edition } = rotating.keys().await.map_err(|none| none.into_error(op, key))?;
        let credentials = Credentials::new(&keys.id, &keys.secret, keys.token.clone(), keys.expires, "windlass");
        let own = headers
            .iter()
            .filter(|(name, _)| name.as_str().starts_with("x-amz-") || **name == header::CONTENT_TYPE || name.as_str() == "content-md5");
        let own: Vec<(&str, &str)> =
            own.filter_map(|(name, value)| Some((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?))).collect();
        let payload = payload.map_or(SignableBody::UnsignedPayload, |hash| SignableBody::Precomputed(hex::encode(hash)));
        let unsigned = Unsigned { method: method.as_str(), url: url.as_str(), headers: &own, payload };
        let signature = unsigned
            .sign(&credentials, &scheme, self.clock.correction().apply(SystemTime::now()))
            .map_err(|error| Error::new(ErrorKind::Invalid, op, key, format!("cannot sign: {error}")))?;
        headers.extend(signature);
        Ok(Headers { headers, by: Some(edition), expires: keys.expires })
    }
}

/// Headers with a signature among them.
struct Headers {
    headers: HeaderMap,
    by: Option<Edition>,
    /// When the keys expire that signed.
    expires: Option<SystemTime>,
}

#[async_trait]
impl SignGet for Signer {
    async fn sign_get(&self, key: &Key) -> Result<SignedGet> {
        let (now, correction) = (SystemTime::now(), self.clock.correction());
        if let Some((signed, valid_until, corrected)) = self.cache.get(key)
            && now < valid_until
            && corrected == correction
            && self.may_reuse(&signed)
        {
            return Ok(signed);
        }
        let url = self.object_url(key)?;
        let Headers { headers, by, expires } = self.get_headers(Op::Get, key, &url).await?;
        let signed = SignedGet { url, headers, by };
        let valid_until = (now + SIGNATURE_LIFETIME).min(expires.unwrap_or(now + SIGNATURE_LIFETIME));
        // What new keys sign is asked for once before it is kept.
        if self.may_reuse(&signed) {
            self.cache.insert(key.clone(), (signed.clone(), valid_until, correction));
        }
        Ok(signed)
    }

    /// The signature covers host and path: another target needs another one.
    async fn sign_redirected(&self, op: Op, _: &SignedGet, key: &Key, target: &Url) -> Result<HeaderMap> {
        self.get_headers(op, key, target).await.map(|signed| signed.headers)
    }
}

/// A query as S3 reads and signs it; a parameter without a value has no equals sign.
fn query_text<'q>(query: impl IntoIterator<Item = (&'q str, &'q str)>) -> String {
    let pair = |(name, value): (&str, &str)| match value {
        "" => name.to_owned(),
        value => format!("{name}={}", percent_encode(value.as_bytes(), VALUE)),
    };
    query.into_iter().map(pair).collect::<Vec<_>>().join("&")
}

#[async_trait]
impl Voice for Signer {
    async fn sign(&self, unsigned: &requests::Unsigned<'_>) -> Result<SignedGet> {
        let requests::Unsigned { op, method, key, query, headers, payload } = unsigned;
        let query = query_text(query.iter().map(|(name, value)| (*name, value.as_str())));
        let url = if key.as_bytes().is_empty() {
            self.bucket_url(*op, key, &query)?
        } else {
            super::text(*op, key)?;
            let mut url = self.object_url(key).map_err(|error| Error { op: *op, ..error })?;
            url.set_query(Some(query.as_str()).filter(|query| !query.is_empty()));
            url
        };
        let Headers { headers, by, .. } = self.headers(*op, key, method, &url, (*headers).clone(), *payload).await?;
        Ok(SignedGet { url, headers, by })
    }

    async fn sign_again(&self, unsigned: &requests::Unsigned<'_>, _: &SignedGet, target: &Url) -> Result<HeaderMap> {
        let requests::Unsigned { op, method, key, headers, payload, .. } = unsigned;
        self.headers(*op, key, method, target, (*headers).clone(), *payload).await.map(|signed| signed.headers)
    }

    async fn again(&self, attempts: &mut Attempts, by: Option<Edition>, error: Option<&Error>) -> bool {
        let Some(by) = by else { return false };
        let Some(keys) = [&self.credentials, &self.account].into_iter().flatten().find(|keys| keys.has_had(by)) else { return false };
        // The keys of a session may do everything in their bucket or nothing: a HEAD that is denied without a word is one whose session has ended.
        let is_of_session = self.account.is_some() && self.credentials.as_ref().is_some_and(|sessions| sessions.has_had(by));
        let has_ended = |error: &&Error| is_of_session && error.kind == ErrorKind::AccessDenied && error.code.is_none();
        let ended = error.filter(has_ended).map(|error| Error { kind: ErrorKind::BadCredentials, ..error.clone() });
        let error = ended.as_ref().or(error);
        attempts.correct(&self.clock, error) || keys.again(attempts, by, error).await
    }

    fn clock(&self) -> &Arc<StoreClock> {
        &self.clock
    }

    fn signs_payloads(&self) -> bool {
        self.credentials.is_some() && self.base.starts_with("http://")
    }

    fn refused(&self, op: Op, key: &Key, status: u16, headers: &HeaderMap, body: &[u8]) -> Error {
        failure::refused(op, key, self.scheme.region(), status, headers, body)
    }
}

/// A request to sign; its URL is escaped as it will be sent.
struct Unsigned<'a> {
    method: &'a str,
    url: &'a str,
    headers: &'a [(&'a str, &'a str)],
    payload: SignableBody<'a>,
}

impl Unsigned<'_> {
    /// The headers that the signature adds.
    fn sign(
        self,
        credentials: &Credentials,
        scheme: &Scheme,
        time: SystemTime,
    ) -> Result<HeaderMap, aws_sigv4::http_request::SigningError> {
        let mut settings = SigningSettings::default();
        // S3 differs from all other services here: paths are escaped once and never normalised.
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let identity = credentials.clone().into();
        let params: SigningParams<'_> = match scheme {
            Scheme::V4 { service, region } | Scheme::Session { service, region } => {
                settings.session_token_name_override = matches!(scheme, Scheme::Session { .. }).then_some(SESSION_TOKEN);
                let params = v4::SigningParams::builder().identity(&identity).name(service).time(time).settings(settings);
                params.region(region).build().expect("every field is set").into()
            }
            Scheme::V4a { service, region_set } => {
                let params = v4a::SigningParams::builder().identity(&identity).name(service).time(time).settings(settings);
                params.region_set(region_set).build().expect("every field is set").into()
            }
        };
        let request = SignableRequest::new(self.method, self.url, self.headers.iter().copied(), self.payload)?;
        let (instructions, _) = sign(request, &params)?.into_parts();
        let (added, _) = instructions.into_parts();
        Ok(added
            .iter()
            .filter_map(|header| {
                let mut value = HeaderValue::from_str(header.value()).ok()?;
                value.set_sensitive(header.sensitive());
                Some((HeaderName::from_static(header.name()), value))
            })
            .collect())
    }
}

#[cfg(test)]
mod tests;
