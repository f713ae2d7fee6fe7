//! Where S3 credentials come from, and how long they are kept. The SDK's providers do the work; this chooses one by
//! the options and caches its answer for control requests and data GETs alike. Invariant: only sources that the user
//! named are asked when one is named.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_config::credential_process::CredentialProcessProvider;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::imds;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, SharedCredentialsProvider, future};
use aws_smithy_runtime::expiring_cache::ExpiringCache;
use aws_types::region::Region;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::store::{CredentialOptions, passwd};

/// Credentials are fetched again this long before they expire, so that a signature made with them lives a while.
const BEFORE_EXPIRY: Duration = Duration::from_secs(60);

/// How long credentials without an expiry are believed: keys in a file are replaced by people who then wait for it.
const FILE_LIFETIME: Duration = Duration::from_secs(30);

/// As the SDK does for all other sources.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(900);

/// After a refusal the source is asked again, but not more often than this: many reads are refused at once.
const BETWEEN_RENEWALS: Duration = Duration::from_secs(5);

/// Longer than any credentials live.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Outside a cloud nothing answers at the metadata address, and a mount without credentials must fail within seconds.
const METADATA_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const METADATA_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The metadata service under the time limits above.
pub(super) fn metadata_client() -> imds::Client {
    imds::Client::builder().max_attempts(1).connect_timeout(METADATA_CONNECT_TIMEOUT).read_timeout(METADATA_READ_TIMEOUT).build()
}

/// The credentials that `options` name, or the SDK's chain: environment, profile, web identity, container, instance.
pub(super) async fn provider(options: &CredentialOptions, bucket: &str, region: &Region) -> CachedCredentials {
    if let Some(keys) = &options.keys {
        let keys = Credentials::new(&keys.id, &keys.secret, keys.token.clone(), None, "configuration");
        return CachedCredentials::new(SharedCredentialsProvider::new(keys), DEFAULT_LIFETIME);
    }
    if let Some(path) = &options.passwd_file {
        let file = PasswdFile { path: path.clone(), bucket: bucket.to_owned() };
        return CachedCredentials::new(SharedCredentialsProvider::new(file), FILE_LIFETIME);
    }
    let source = if let Some(command) = &options.process {
        SharedCredentialsProvider::new(CredentialProcessProvider::new(command.clone()))
    } else if let Some(profile) = &options.profile {
        SharedCredentialsProvider::new(ProfileFileCredentialsProvider::builder().profile_name(profile).build())
    } else {
        let chain = DefaultCredentialsChain::builder().region(region.clone()).imds_client(metadata_client());
        SharedCredentialsProvider::new(chain.build().await)
    };
    CachedCredentials::new(source, DEFAULT_LIFETIME)
}

/// Where credentials were found, for people.
pub(super) fn source(options: &CredentialOptions, found: &Credentials) -> String {
    if options.keys.is_some() {
        return "the configuration (file or environment of windlass)".into();
    }
    if let Some(path) = &options.passwd_file {
        return format!("the credentials file {}", path.display());
    }
    if options.process.is_some() {
        return "the credential process".into();
    }
    if let Some(profile) = &options.profile {
        return format!("the profile {profile}");
    }
    // The SDK has no other door to which link of its chain it was; what it prints has no secret in it.
    let shown = format!("{found:?}");
    let link = shown.split("provider_name: \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("unknown");
    match link {
        "EnvironmentVariable" => "the environment (AWS_ACCESS_KEY_ID)".into(),
        "ProfileFile" => "the profile files (~/.aws)".into(),
        "WebIdentityToken" => "the web identity (AWS_WEB_IDENTITY_TOKEN_FILE)".into(),
        "EcsContainer" => "the container's role".into(),
        link if link.starts_with("IMDS") || link.starts_with("Ec2") => "the instance's role (metadata service)".into(),
        other => format!("the chain of the SDK ({other})"),
    }
}

/// A line of a password file, read again whenever the cache has forgotten it.
#[derive(Debug)]
struct PasswdFile {
    path: PathBuf,
    bucket: String,
}

impl PasswdFile {
    async fn load(&self) -> provider::Result {
        let (path, bucket) = (self.path.clone(), self.bucket.clone());
        let read = tokio::task::spawn_blocking(move || passwd::read(&path, &bucket));
        let entry = read.await.map_err(CredentialsError::unhandled)?.map_err(CredentialsError::invalid_configuration)?;
        Ok(Credentials::new(entry.access_key_id, entry.access_key_secret, entry.security_token, None, "passwd-file"))
    }
}

impl ProvideCredentials for PasswdFile {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.load())
    }
}

/// One cache for everything that signs: the SDK keeps its own inside its clients.
#[derive(Debug)]
pub(super) struct CachedCredentials {
    source: SharedCredentialsProvider,
    lifetime: Duration,
    cache: ExpiringCache<Credentials, CredentialsError>,
    last: Mutex<Option<Credentials>>,
    renewed: Mutex<Option<Instant>>,
}

impl CachedCredentials {
    pub fn new(source: SharedCredentialsProvider, lifetime: Duration) -> Self {
        Self { source, lifetime, cache: ExpiringCache::new(BEFORE_EXPIRY), last: Mutex::new(None), renewed: Mutex::new(None) }
    }

    /// The credentials of now.
    pub async fn get(&self) -> provider::Result {
        match self.cache.yield_or_clear_if_expired(SystemTime::now()).await {
            Some(credentials) => Ok(credentials),
            None => self.cache.get_or_load(|| self.load()).await,
        }
    }

    /// Forgets credentials that the store refuses, because they may have been replaced before their time: a rotated
    /// key in a file, a revoked session. `since` is when the refused request began; the answer is whether the
    /// credentials of now may be others than those it was signed with.
    pub async fn renew(&self, since: Instant) -> bool {
        let now = Instant::now();
        {
            let mut renewed = self.renewed.lock();
            if let Some(before) = renewed.filter(|&before| now - before < BETWEEN_RENEWALS) {
                return before >= since;
            }
            *renewed = Some(now);
        }
        *self.last.lock() = None;
        // The cache has no other way to be emptied than to be told that everything has expired.
        self.cache.yield_or_clear_if_expired(SystemTime::now() + FOREVER).await;
        true
    }

    /// Asks the source. When it fails, the credentials before go on until they expire: a metadata service that is
    /// restarted must not fail reads.
    async fn load(&self) -> Result<(Credentials, SystemTime), CredentialsError> {
        let result = self.source.provide_credentials().await;
        let now = SystemTime::now();
        match result {
            Ok(fresh) => {
                *self.last.lock() = Some(fresh.clone());
                let expiry = fresh.expiry().unwrap_or(now + self.lifetime + BEFORE_EXPIRY);
                Ok((fresh, expiry))
            }
            Err(error) => {
                let kept = self.last.lock().clone().filter(|old| old.expiry().is_some_and(|expiry| expiry > now));
                let Some(old) = kept else { return Err(error) };
                warn!(%error, "credentials could not be renewed, going on with the ones before until they expire");
                Ok((old, now + BEFORE_EXPIRY + Duration::from_secs(5)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Gives out one answer after the other.
    #[derive(Debug)]
    struct Script(Mutex<VecDeque<provider::Result>>);

    impl ProvideCredentials for Script {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::ready(self.0.lock().pop_front().expect("asked once more than scripted"))
        }
    }

    fn key(id: &str, expires_in: Option<u64>) -> provider::Result {
        let expiry = expires_in.map(|seconds| SystemTime::now() + Duration::from_secs(seconds));
        Ok(Credentials::new(id, "secret", None, expiry, "test"))
    }

    fn cached(answers: impl IntoIterator<Item = provider::Result>) -> CachedCredentials {
        CachedCredentials::new(SharedCredentialsProvider::new(Script(Mutex::new(answers.into_iter().collect()))), DEFAULT_LIFETIME)
    }

    #[tokio::test]
    async fn credentials_are_asked_for_once_while_they_are_good() {
        let cached = cached([key("a", Some(3600))]);
        for _ in 0..3 {
            assert_eq!(cached.get().await.unwrap().access_key_id(), "a");
        }
    }

    #[tokio::test]
    async fn credentials_are_renewed_before_they_expire() {
        let cached = cached([key("a", Some(30)), key("b", None)]);
        assert_eq!(cached.get().await.unwrap().access_key_id(), "a");
        assert_eq!(cached.get().await.unwrap().access_key_id(), "b");
        assert_eq!(cached.get().await.unwrap().access_key_id(), "b");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_are_asked_for_anew_but_not_all_the_time() {
        let cached = cached([key("a", Some(3600)), key("b", None), key("c", None)]);
        assert_eq!(cached.get().await.unwrap().access_key_id(), "a");
        let started = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(cached.renew(started).await);
        assert_eq!(cached.get().await.unwrap().access_key_id(), "b");
        assert!(cached.renew(started).await, "a request of the same burst has others now");
        tokio::time::advance(BETWEEN_RENEWALS / 2).await;
        assert!(!cached.renew(Instant::now()).await);
        assert_eq!(cached.get().await.unwrap().access_key_id(), "b");
        tokio::time::advance(BETWEEN_RENEWALS / 2).await;
        assert!(cached.renew(Instant::now()).await);
        assert_eq!(cached.get().await.unwrap().access_key_id(), "c");
    }

    #[tokio::test]
    async fn a_failed_renewal_keeps_what_is_still_valid() {
        let failure = || Err(CredentialsError::not_loaded("down"));
        let renewing = cached([key("a", Some(30)), failure()]);
        renewing.get().await.unwrap();
        assert_eq!(renewing.get().await.unwrap().access_key_id(), "a");
        assert_eq!(renewing.get().await.unwrap().access_key_id(), "a");
        assert!(cached([failure()]).get().await.is_err());
    }
}
