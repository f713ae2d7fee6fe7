//! The hot path: one range GET, from a signed request to bytes in a sink. Both dialects use it; they only differ
//! in how they sign. It does not retry (see the retry decorator) and knows nothing of chunks.

use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use reqwest::Url;

use super::{Error, ErrorKind, Key, Op, RangeRequest, RangeSink, Result};

/// A GET of a whole object, signed; Range and If-Match are added by the range path and are not part of the
/// signature, so one of these serves many ranges of the object until it expires.
#[derive(Clone, Debug)]
pub(super) struct SignedGet {
    pub url: Url,
    pub headers: HeaderMap,
}

/// How a dialect signs data GETs.
#[async_trait]
pub(super) trait SignGet: Send + Sync {
    async fn sign_get(&self, key: &Key) -> Result<SignedGet>;
}

/// The HTTP client of the data path.
#[derive(Clone, Debug)]
pub(super) struct RangeClient {
    http: reqwest::Client,
    stall_timeout: Duration,
}

impl RangeClient {
    pub fn new(http: reqwest::Client, stall_timeout: Duration) -> Self {
        Self { http, stall_timeout }
    }

    /// Fetches `request` into `sink`: one attempt.
    pub async fn get(&self, signer: &dyn SignGet, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        let _ = (signer, sink, &self.http, self.stall_timeout);
        Err(Error::new(ErrorKind::Invalid, Op::Get, &request.key, "not written yet"))
    }
}
