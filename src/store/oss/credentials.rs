//! Where OSS credentials come from: the sources that the options name, else the vendor's usual places in order. Asked
//! again when what they gave runs out. Invariant: no credentials is an error that names every place that was looked at.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqsign_aliyun_oss::{
    AssumeRoleWithOidcCredentialProvider, Credential, DefaultCredentialProvider, EcsRamRoleCredentialProvider, OssProfileCredentialProvider,
};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Env, Error, ProvideCredential, ProvideCredentialDyn};
use reqsign_file_read_tokio::TokioFileRead;
use reqsign_http_send_reqwest::ReqwestHttpSend;

use super::process::Process;
use crate::store::{CredentialOptions, StaticKeys, passwd};

/// Files are read and processes run again this often, so that changed keys arrive without a new mount.
const RELOAD: Duration = Duration::from_secs(300);

/// The signer asks for new credentials this long before the old ones expire (reqsign's `Credential::is_valid`).
const FRESH: Duration = Duration::from_secs(120);

/// The metadata service is one hop away or not there at all. Two of its requests may fail before a look-up gives up (the
/// token, then the role), and a mount without credentials should fail within two seconds.
const METADATA_CONNECT: Duration = Duration::from_millis(400);
const METADATA_REQUEST: Duration = Duration::from_millis(800);

/// The token service (STS) is on the public network.
const STS_CONNECT: Duration = Duration::from_secs(3);
const STS_REQUEST: Duration = Duration::from_secs(5);

/// One place to look at.
#[derive(Debug)]
struct Source {
    /// What it is, for the message when nothing is found.
    name: String,
    context: Context,
    provider: Arc<dyn ProvideCredentialDyn<Credential = Credential>>,
}

impl Source {
    /// What failed here, naming the place once.
    fn failed(&self, error: &Error) -> String {
        let said = error.to_string();
        // Where the crate has no reason to add to its words they end in a colon.
        let said = said.trim_end_matches([':', ' ']);
        if said.contains(&self.name) { said.to_owned() } else { format!("{} ({said})", self.name) }
    }
}

/// All places to look at, in order.
#[derive(Debug)]
pub(super) struct Sources {
    sources: Vec<Source>,
    /// They are those that the options name, and not the usual places.
    named: bool,
    /// The last ones found, for when a file is just being replaced.
    last: Mutex<Option<Credential>>,
}

impl Sources {
    /// `env` is the process's environment, or a made-up one.
    pub fn new(options: &CredentialOptions, bucket: &str, env: impl Env + Clone) -> reqwest::Result<Self> {
        let metadata = reqwest::Client::builder().connect_timeout(METADATA_CONNECT).timeout(METADATA_REQUEST).no_proxy().build()?;
        let sts = reqwest::Client::builder().connect_timeout(STS_CONNECT).timeout(STS_REQUEST).build()?;
        let context = Context::new().with_file_read(TokioFileRead).with_env(env.clone());
        let near = context.clone().with_http_send(ReqwestHttpSend::new(metadata));
        let far = context.with_http_send(ReqwestHttpSend::new(sts));
        let source = |name: String, context: &Context, provider| Source { name, context: context.clone(), provider };
        let passwd = |path: PathBuf| {
            let name = format!("the credentials file {}", path.display());
            source(name, &far, Arc::new(PasswdFile { path, bucket: bucket.to_owned() }) as Arc<_>)
        };
        let ecs = EcsRamRoleCredentialProvider::new();

        let mut sources = Vec::new();
        if let Some(keys) = &options.keys {
            sources.push(source("the keys of the configuration".into(), &far, Arc::new(Given(keys.clone()))));
        }
        if let Some(path) = &options.passwd_file {
            sources.push(passwd(path.clone()));
        }
        if let Some(command) = &options.process {
            sources.push(source("the credential process".into(), &far, Arc::new(Process::new(command))));
        }
        if let Some(role) = &options.ram_role {
            let provider = ecs.clone().with_role_name(role);
            sources.push(source(format!("the metadata service for the RAM role {role}"), &near, Arc::new(provider)));
        }
        if let Some(profile) = &options.profile {
            let far = far.clone().with_env(ProfileEnv { profile: profile.clone(), inner: env.clone() });
            let shared = DefaultCredentialProvider::builder().no_assume_role().no_env().no_credentials_uri().no_ecs_ram_role().no_oidc();
            let shared = shared.oss_profile(OssProfileCredentialProvider::new().with_profile(profile)).build();
            sources.push(source(format!("the profile {profile}"), &far, Arc::new(shared)));
        }
        let named = !sources.is_empty();
        if !named {
            // The web identity before the instance: in a pod the instance's role is the node's, not the pod's. The crate's
            // own order is the other way round, so its chain is asked in parts.
            let shared = DefaultCredentialProvider::builder().no_ecs_ram_role().no_oidc().build();
            let names = "the environment (OSS_ACCESS_KEY_ID, ALIBABA_CLOUD_ACCESS_KEY_ID), the profile files (~/.oss/credentials, \
                         ~/.alibabacloud/credentials.ini, ~/.aliyun/config.json)";
            sources.push(source(names.into(), &far, Arc::new(shared)));
            sources.extend(default_files(&env).into_iter().filter(|path| path.exists()).map(passwd));
            let oidc = AssumeRoleWithOidcCredentialProvider::new();
            sources.push(source("the web identity (ALIBABA_CLOUD_OIDC_TOKEN_FILE)".into(), &far, Arc::new(oidc)));
            sources.push(source("the metadata service for the RAM role of this instance".into(), &near, Arc::new(ecs)));
        }
        Ok(Self { sources, named, last: Mutex::new(None) })
    }

    /// Where the key is found that signs, and which it is; else what to do about it.
    pub async fn whose(&self) -> Result<(String, String), String> {
        match self.find().await {
            Ok((source, credential)) => Ok((source.name.clone(), credential.access_key_id)),
            Err(looked_at) => Err(self.nothing(&looked_at)),
        }
    }

    /// Credentials, or what became of each place.
    async fn look_up(&self) -> Result<Credential, String> {
        self.find().await.map(|(_, credential)| credential)
    }

    async fn find(&self) -> Result<(&Source, Credential), String> {
        let mut looked_at = Vec::new();
        for source in &self.sources {
            match source.provider.provide_credential_dyn(&source.context).await {
                Ok(Some(credential)) => return Ok((source, credential)),
                Ok(None) if self.named => looked_at.push(format!("nothing in {}", source.name)),
                Ok(None) => looked_at.push(source.name.clone()),
                Err(error) => looked_at.push(source.failed(&error)),
            }
        }
        Err(looked_at.join(", "))
    }

    fn nothing(&self, looked_at: &str) -> String {
        if self.named {
            return format!("no usable credentials: {looked_at}");
        }
        format!(
            "no credentials found in {looked_at}: set OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET, --profile or --passwd-file, or \
             --signature none for a public bucket"
        )
    }
}

/// Where ossfs looks without being told, its user's file first.
fn default_files(env: &impl Env) -> Vec<PathBuf> {
    let own = env.home_dir().map(|home| home.join(".passwd-ossfs"));
    own.into_iter().chain([PathBuf::from("/etc/passwd-ossfs")]).collect()
}

impl ProvideCredential for Sources {
    type Credential = Credential;

    async fn provide_credential(&self, _: &Context) -> reqsign_core::Result<Option<Credential>> {
        let found = self.look_up().await;
        let now = Timestamp::now();
        let mut last = self.last.lock();
        match (found, last.clone()) {
            (Ok(credential), _) => {
                *last = Some(credential.clone());
                // Without an end of its own the signer would keep it for ever.
                let expires_in = credential.expires_in.or(Some(now + RELOAD + FRESH));
                Ok(Some(Credential { expires_in, ..credential }))
            }
            (Err(looked_at), Some(credential)) if credential.expires_in.is_none_or(|end| end > now + FRESH / 2) => {
                tracing::warn!(looked_at, "credentials cannot be renewed now, the ones in use are kept");
                let expires_in = credential.expires_in.or(Some(now + RELOAD + FRESH));
                Ok(Some(Credential { expires_in, ..credential }))
            }
            // They were there before and will be again: a caller may retry.
            (Err(looked_at), Some(_)) => {
                Err(Error::unexpected(format!("the credentials expired and cannot be renewed, looked at {looked_at}")).set_retryable(true))
            }
            (Err(looked_at), None) => Err(Error::credential_invalid(self.nothing(&looked_at))),
        }
    }
}

/// Keys that the options hold.
#[derive(Debug)]
struct Given(StaticKeys);

impl ProvideCredential for Given {
    type Credential = Credential;

    async fn provide_credential(&self, _: &Context) -> reqsign_core::Result<Option<Credential>> {
        let StaticKeys { id, secret, token } = self.0.clone();
        Ok(Some(Credential { access_key_id: id, access_key_secret: secret, security_token: token, expires_in: None }))
    }
}

/// A password file, read anew each time.
#[derive(Debug)]
struct PasswdFile {
    path: PathBuf,
    bucket: String,
}

impl ProvideCredential for PasswdFile {
    type Credential = Credential;

    async fn provide_credential(&self, _: &Context) -> reqsign_core::Result<Option<Credential>> {
        let (path, bucket) = (self.path.clone(), self.bucket.clone());
        let entry = tokio::task::spawn_blocking(move || passwd::read(&path, &bucket)).await;
        let entry = entry.map_err(|_| Error::unexpected("reading the credentials file was interrupted"))?;
        let entry = entry.map_err(|error| Error::config_invalid(error.to_string()))?;
        Ok(Some(Credential {
            access_key_id: entry.access_key_id,
            access_key_secret: entry.access_key_secret,
            security_token: entry.security_token,
            expires_in: None,
        }))
    }
}

/// The environment with a profile chosen: the variables win over what the crate's providers are told.
#[derive(Clone, Debug)]
struct ProfileEnv<E> {
    profile: String,
    inner: E,
}

impl<E: Env> Env for ProfileEnv<E> {
    fn var(&self, key: &str) -> Option<String> {
        if matches!(key, "OSS_PROFILE" | "ALIBABA_CLOUD_PROFILE") { Some(self.profile.clone()) } else { self.inner.var(key) }
    }

    fn vars(&self) -> std::collections::HashMap<String, String> {
        self.inner.vars()
    }

    fn home_dir(&self) -> Option<PathBuf> {
        self.inner.home_dir()
    }
}

#[cfg(test)]
mod tests;
