//! The credentials that sign, until the store refuses them. It neither forms nor sends requests. Invariant: after a refusal the sources are
//! asked again, once for all requests that were refused with it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqsign_aliyun_oss::{Credential, RequestSigner};
use reqsign_core::{Context, ProvideCredential, Result, Signer};
use tokio::time::Instant;

use super::credentials::Sources;

/// After a refusal the sources are asked again, but not more often than this: many requests are refused at once.
const BETWEEN_RENEWALS: Duration = Duration::from_secs(5);

/// Who signs, for every address of one bucket.
#[derive(Debug)]
pub(super) struct Identity {
    sources: Shared,
    /// It keeps what the sources gave and has no way to forget that: it is replaced.
    signer: Mutex<Signer<Credential>>,
    renewed: Mutex<Option<Instant>>,
}

impl Identity {
    pub fn new(sources: Sources, rules: RequestSigner) -> Self {
        let sources = Shared(Arc::new(sources));
        let signer = Mutex::new(Signer::new(Context::new(), sources.clone(), rules));
        Self { sources, signer, renewed: Mutex::default() }
    }

    /// Adds the headers of a signature.
    pub async fn sign(&self, request: &mut http::request::Parts) -> Result<()> {
        // A copy shares what was given.
        let signer = self.signer.lock().clone();
        signer.sign(request, None).await
    }

    /// Forgets credentials that the store refuses, because they may have been replaced before their time: a rotated key in a file, a
    /// revoked session. `since` is when the refused request began; the answer is whether the credentials of now may be others than those
    /// it was signed with.
    pub fn renew(&self, since: Instant) -> bool {
        let now = Instant::now();
        let mut renewed = self.renewed.lock();
        if let Some(before) = renewed.filter(|&before| now - before < BETWEEN_RENEWALS) {
            return before >= since;
        }
        *renewed = Some(now);
        let mut signer = self.signer.lock();
        *signer = signer.clone().with_credential_provider(self.sources.clone());
        true
    }
}

/// The sources, for one signer after the other.
#[derive(Clone, Debug)]
struct Shared(Arc<Sources>);

impl ProvideCredential for Shared {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        self.0.provide_credential(context).await
    }
}

#[cfg(test)]
mod tests {
    use reqsign_core::StaticEnv;

    use super::*;
    use crate::store::{CredentialOptions, StaticKeys};

    #[tokio::test(start_paused = true)]
    async fn requests_that_were_refused_together_ask_the_sources_once() {
        let keys = Some(StaticKeys { id: "id".into(), secret: "secret".into(), token: None });
        let options = CredentialOptions { keys, ..CredentialOptions::default() };
        let env = StaticEnv { home_dir: None, envs: std::collections::HashMap::new() };
        let identity = Identity::new(Sources::new(&options, "data", env).unwrap(), RequestSigner::new("data"));
        let started = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(identity.renew(started));
        assert!(identity.renew(started), "it was signed with those before");
        tokio::time::advance(BETWEEN_RENEWALS / 2).await;
        assert!(!identity.renew(Instant::now()), "it was signed with those of now");
        tokio::time::advance(BETWEEN_RENEWALS / 2).await;
        assert!(identity.renew(Instant::now()));
    }
}
