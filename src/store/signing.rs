//! A GET that is signed, and whoever signs it, as the paths of both dialects see them. How a signature is made is each dialect's own. Invariant:
//! with each signature it is known which keys made it.

use async_trait::async_trait;
use http::HeaderMap;
use parking_lot::Mutex;
use reqwest::Url;

use super::credentials::Edition;
use super::{Key, Op, Result};

/// A GET of a whole object, signed; Range and If-Match are added by the range path and are not part of the
/// signature, so one of these serves many ranges of the object until it expires.
#[derive(Clone, Debug)]
pub(super) struct SignedGet {
    pub url: Url,
    pub headers: HeaderMap,
    /// Which keys signed it; none: nobody's.
    pub by: Option<Edition>,
}

/// How a dialect signs data GETs.
#[async_trait]
pub(super) trait SignGet: Send + Sync {
    async fn sign_get(&self, key: &Key) -> Result<SignedGet>;

    /// The headers for a trusted host that `signed`, a GET without headers of its own, was redirected to. As it stands for signatures that do
    /// not cover host and path of the URL (OSS); those that do sign again.
    async fn sign_redirected(&self, _op: Op, signed: &SignedGet, _key: &Key, _target: &Url) -> Result<HeaderMap> {
        Ok(signed.headers.clone())
    }
}

/// A signer that remembers which keys it signed with last, for one GET.
pub(super) struct Remembering<'a> {
    signer: &'a dyn SignGet,
    by: Mutex<Option<Edition>>,
}

impl<'a> Remembering<'a> {
    pub fn new(signer: &'a dyn SignGet) -> Self {
        Self { signer, by: Mutex::default() }
    }

    /// None as long as nothing was signed.
    pub fn by(&self) -> Option<Edition> {
        *self.by.lock()
    }
}

#[async_trait]
impl SignGet for Remembering<'_> {
    async fn sign_get(&self, key: &Key) -> Result<SignedGet> {
        let signed = self.signer.sign_get(key).await?;
        *self.by.lock() = signed.by;
        Ok(signed)
    }

    async fn sign_redirected(&self, op: Op, signed: &SignedGet, key: &Key, target: &Url) -> Result<HeaderMap> {
        self.signer.sign_redirected(op, signed, key, target).await
    }
}
