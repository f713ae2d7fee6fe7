//! Signs the requests of one bucket of OSS; the signatures themselves are made in `signature`. It sends nothing. Invariant: a signature never
//! covers Range or If-Match, so the one of a GET serves all ranges of its object.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::address::Address;
use super::signature::{self, Version};
use crate::store::clock::{Correction, StoreClock};
use crate::store::credentials::{Attempts, Edition, Rotating, Signing};
use crate::store::requests::{REQUEST_PAYER, Unsigned, Voice};
use crate::store::signing::{SignGet, SignedGet};
use crate::store::{Error, ErrorKind, Key, Op, Result, Signature};

/// How long the signature of a GET is used. Less than the two minutes that credentials usually have left when they sign,
/// so that a token rarely expires inside a kept signature, and less than the 15 minutes of skew that OSS takes.
const SIGNATURE_LIFE: Duration = Duration::from_secs(100);

/// Objects with a kept signature; about 1 KiB each.
const KEPT_SIGNATURES: usize = 4096;

/// Who pays, when it is whoever asks.
const PAYER: HeaderName = HeaderName::from_static("x-oss-request-payer");

/// Signs for one bucket.
pub(super) struct OssSigner {
    address: Address,
    /// None for anonymous access.
    identity: Option<Identity>,
    requester_pays: bool,
    kept: Mutex<HashMap<Key, Kept>>,
    clock: Arc<StoreClock>,
}

/// Who signs, and by which rules, for every address of one bucket.
#[derive(Clone)]
struct Identity {
    keys: Arc<Rotating>,
    version: Version,
}

/// A signature in use.
struct Kept {
    until: Instant,
    signed: SignedGet,
    /// Of the time in it.
    correction: Correction,
}

impl fmt::Debug for OssSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OssSigner").field("address", &self.address).field("signs", &self.identity.is_some()).finish_non_exhaustive()
    }
}

impl OssSigner {
    pub fn new(address: Address, signature: Signature, keys: Arc<Rotating>, requester_pays: bool) -> Self {
        let version = match signature {
            Signature::None => None,
            Signature::V1 => Some(Version::V1),
            Signature::V4 => {
                let region = address.region.clone().expect("an address for signature v4 has a region");
                Some(Version::V4 { region })
            }
        };
        let identity = version.map(|version| Identity { keys, version });
        Self { address, identity, requester_pays, kept: Mutex::new(HashMap::new()), clock: Arc::default() }
    }

    /// The same credentials for the same bucket behind another address.
    pub fn at(&self, address: Address) -> Self {
        Self {
            address,
            identity: self.identity.clone(),
            requester_pays: self.requester_pays,
            kept: Mutex::default(),
            clock: Arc::default(),
        }
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
        let url = self.address.target(key, query).ok_or_else(|| invalid("a URL cannot say a key with a component . or .."))?;
        let Some(identity) = &self.identity else { return Ok(SignedGet { url, headers, by: None }) };
        if key.to_str().is_none() || query.iter().any(|(_, value)| std::str::from_utf8(value).is_err()) {
            return Err(invalid("OSS signs only names that are UTF-8"));
        }
        let Signing { keys, edition } = identity.keys.keys().await.map_err(|none| none.into_error(op, key))?;
        let unsigned = signature::Unsigned { method: &method, bucket: &self.address.bucket, key, query, headers: &headers };
        let added = identity.version.sign(unsigned, &keys, self.clock.correction().apply(SystemTime::now()));
        let added = added.ok_or_else(|| invalid("cannot sign: the credentials do not fit into headers"))?;
        let mut headers = headers;
        headers.extend(added);
        Ok(SignedGet { url, headers, by: Some(edition) })
    }

    /// Whether the keys that signed it are still those that sign.
    fn may_reuse(&self, signed: &SignedGet) -> bool {
        match (&self.identity, signed.by) {
            (Some(identity), Some(by)) => identity.keys.may_reuse(by),
            _ => true,
        }
    }
}

#[async_trait]
impl Voice for OssSigner {
    async fn sign(&self, unsigned: &Unsigned<'_>) -> Result<SignedGet> {
        // OSS has no hash of the payload in its signatures; Content-MD5 is under them.
        let Unsigned { op, method, key, query, headers, payload: _ } = unsigned;
        let query: Vec<(&str, &[u8])> = query.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        self.sign_with(*op, method.clone(), key, &query, (*headers).clone()).await
    }

    async fn again(&self, attempts: &mut Attempts, by: Option<Edition>, error: Option<&Error>) -> bool {
        let (Some(identity), Some(by)) = (&self.identity, by) else { return false };
        attempts.correct(&self.clock, error) || identity.keys.again(attempts, by, error).await
    }

    fn clock(&self) -> &Arc<StoreClock> {
        &self.clock
    }

    fn signs_payloads(&self) -> bool {
        self.identity.is_some() && !self.address.is_https()
    }

    fn refused(&self, op: Op, key: &Key, status: u16, headers: &HeaderMap, body: &[u8]) -> Error {
        super::refused(op, key, status, headers, body)
    }
}

#[async_trait]
impl SignGet for OssSigner {
    async fn sign_get(&self, key: &Key) -> Result<SignedGet> {
        let (now, correction) = (Instant::now(), self.clock.correction());
        if let Some(kept) = self.kept.lock().get(key)
            && kept.until > now
            && kept.correction == correction
            && self.may_reuse(&kept.signed)
        {
            return Ok(kept.signed.clone());
        }
        let signed = self.sign(Op::Get, Method::GET, key, &[]).await?;
        // What new keys sign is asked for once before it is kept.
        if !self.may_reuse(&signed) {
            return Ok(signed);
        }
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_SIGNATURES {
            kept.retain(|_, kept| kept.until > now);
        }
        // Still full: the process reads more objects a minute than it can keep; signing again is 20 microseconds.
        if kept.len() < KEPT_SIGNATURES {
            kept.insert(key.clone(), Kept { until: now + SIGNATURE_LIFE, signed: signed.clone(), correction });
        }
        Ok(signed)
    }
}
