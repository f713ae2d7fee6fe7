//! Where OSS credentials come from: the sources that the options name, else the vendor's usual places in order. Keeps nothing of what it
//! found. Invariant: no credentials is an error that names every place that was looked at.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqsign_aliyun_oss::{
    AssumeRoleCredentialProvider, AssumeRoleWithOidcCredentialProvider, Credential, DefaultCredentialProvider,
    EcsRamRoleCredentialProvider, OssProfileCredentialProvider,
};
use reqsign_core::{Context, Env, Error, ProvideCredentialDyn};
use reqsign_file_read_tokio::TokioFileRead;
use reqsign_http_send_reqwest::ReqwestHttpSend;

use super::process::Process;
use crate::store::credentials::{KeyFile, Keys, Missing, ProfileFiles, Source};
use crate::store::options::ANY_ROLE;
use crate::store::{CredentialOptions, WebIdentity};

/// The metadata service is one hop away or not there at all. Two of its requests may fail before a look-up gives up (the
/// token, then the role), and a mount without credentials should fail within two seconds.
const METADATA_CONNECT: Duration = Duration::from_millis(400);
const METADATA_REQUEST: Duration = Duration::from_millis(800);

/// The token service (STS) is on the public network.
const STS_CONNECT: Duration = Duration::from_secs(3);
const STS_REQUEST: Duration = Duration::from_secs(5);

/// One place to look at.
#[derive(Debug)]
enum Place {
    File(Box<KeyFile>),
    /// Keys that the options hold.
    Given(Keys),
    Provider(Box<Provider>),
}

/// A provider of the library.
#[derive(Debug)]
struct Provider {
    /// What it is, for the message when nothing is found.
    name: String,
    context: Context,
    provider: Arc<dyn ProvideCredentialDyn<Credential = Credential>>,
    /// What it reads.
    files: Vec<PathBuf>,
    /// Checks `files`, when these are where its keys come from.
    profile_files: Option<ProfileFiles>,
}

impl Provider {
    fn new(
        name: impl Into<String>,
        context: &Context,
        provider: impl ProvideCredentialDyn<Credential = Credential>,
        files: Vec<PathBuf>,
    ) -> Self {
        Self { name: name.into(), context: context.clone(), provider: Arc::new(provider), files, profile_files: None }
    }

    async fn find(&self) -> Result<Option<Keys>, String> {
        let found = self.provider.provide_credential_dyn(&self.context).await.map_err(|error| self.failed(&error))?;
        if let Some(checks) = self.profile_files.as_ref().filter(|_| found.is_some()) {
            checks.check(self.files.clone()).map_err(|missing| missing.message)?;
        }
        Ok(found.map(|found| Keys {
            id: found.access_key_id,
            secret: found.access_key_secret,
            token: found.security_token,
            expires: found.expires_in.map(reqsign_core::time::Timestamp::as_system_time),
            from: self.name.clone(),
        }))
    }

    /// What failed here, naming the place once.
    fn failed(&self, error: &Error) -> String {
        let said = error.to_string();
        // Where the crate has no reason to add to its words they end in a colon.
        let said = said.trim_end_matches([':', ' ']);
        if said.contains(&self.name) { said.to_owned() } else { format!("{} ({said})", self.name) }
    }
}

impl Place {
    fn name(&self) -> String {
        match self {
            Self::File(file) => file.name(),
            Self::Given(keys) => keys.from.clone(),
            Self::Provider(provider) => provider.name.clone(),
        }
    }

    /// The keys there, if there are any; an error says where it was looked at.
    async fn find(&self) -> Result<Option<Keys>, String> {
        match self {
            Self::File(file) => file.fetch().await.map(Some).map_err(|missing| missing.message),
            Self::Given(keys) => Ok(Some(keys.clone())),
            Self::Provider(provider) => provider.find().await,
        }
    }
}

/// All places to look at, in order.
#[derive(Debug)]
pub(super) struct Sources {
    places: Vec<Place>,
    /// They are those that the options name, and not the usual places.
    named: bool,
}

impl Sources {
    /// `env` is the process's environment, or a made-up one.
    pub fn new(options: &CredentialOptions, bucket: &str, env: impl Env + Clone) -> reqwest::Result<Self> {
        let metadata = reqwest::Client::builder().connect_timeout(METADATA_CONNECT).timeout(METADATA_REQUEST).no_proxy().build()?;
        let sts = reqwest::Client::builder().connect_timeout(STS_CONNECT).timeout(STS_REQUEST).build()?;
        let context = Context::new().with_file_read(TokioFileRead).with_env(env.clone());
        let near = context.clone().with_http_send(ReqwestHttpSend::new(metadata));
        let far = context.with_http_send(ReqwestHttpSend::new(sts));
        let mut places = named(options, bucket, &near, &far, &env);
        let named = !places.is_empty();
        if !named {
            // The web identity before the instance: in a pod the instance's role is the node's, not the pod's. The crate's
            // own order is the other way round, so its chain is asked in parts.
            let shared = DefaultCredentialProvider::builder().no_ecs_ram_role().no_oidc().build();
            let names = "the environment (OSS_ACCESS_KEY_ID, ALIBABA_CLOUD_ACCESS_KEY_ID), the profile files (~/.oss/credentials, \
                         ~/.alibabacloud/credentials.ini, ~/.aliyun/config.json)";
            places.push(profiles(names, &far, shared, &env, false));
            let files = default_files(&env).into_iter().filter(|path| path.exists());
            places.extend(files.map(|path| Place::File(Box::new(KeyFile::at(&path, bucket)))));
            places.push(web_identity(&WebIdentity::default(), &far, &env));
            let ecs = EcsRamRoleCredentialProvider::new();
            places.push(provider("the metadata service for the RAM role of this instance", &near, ecs, Vec::new()));
        }
        Ok(Self { places, named })
    }

    async fn find(&self) -> Result<Keys, String> {
        let mut looked_at = Vec::new();
        for place in &self.places {
            match place.find().await {
                Ok(Some(keys)) => return Ok(keys),
                Ok(None) if self.named => looked_at.push(format!("nothing in {}", place.name())),
                Ok(None) => looked_at.push(place.name()),
                Err(failed) => looked_at.push(failed),
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

#[async_trait]
impl Source for Sources {
    async fn fetch(&self) -> Result<Keys, Missing> {
        self.find().await.map_err(|looked_at| Missing::new(self.nothing(&looked_at)))
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = |place: &Place| match place {
            Place::File(file) => file.files(),
            Place::Given(_) => Vec::new(),
            Place::Provider(provider) => provider.files.clone(),
        };
        self.places.iter().flat_map(files).collect()
    }

    fn is_fixed(&self) -> bool {
        matches!(self.places[..], [Place::Given(_), ..])
    }
}

fn provider(
    name: impl Into<String>,
    context: &Context,
    provider: impl ProvideCredentialDyn<Credential = Credential>,
    files: Vec<PathBuf>,
) -> Place {
    Place::Provider(Box::new(Provider::new(name, context, provider, files)))
}

/// A provider whose keys come from the files of profiles, unless the environment has some.
fn profiles(
    name: impl Into<String>,
    context: &Context,
    provider: impl ProvideCredentialDyn<Credential = Credential>,
    env: &impl Env,
    is_named: bool,
) -> Place {
    let in_environment = || ["OSS_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_ID"].iter().any(|name| env.var(name).is_some());
    let profile_files = (is_named || !in_environment()).then(ProfileFiles::default);
    Place::Provider(Box::new(Provider { profile_files, ..Provider::new(name, context, provider, profile_files_of(env)) }))
}

/// What the options name.
fn named(options: &CredentialOptions, bucket: &str, near: &Context, far: &Context, env: &(impl Env + Clone)) -> Vec<Place> {
    let mut places = Vec::new();
    if let Some(keys) = options.keys.clone() {
        let from = "the keys of the configuration".into();
        places.push(Place::Given(Keys { id: keys.id, secret: keys.secret, token: keys.token, expires: None, from }));
    }
    if let Some(path) = &options.passwd_file {
        places.push(Place::File(Box::new(KeyFile::at(path, bucket))));
    }
    if let Some(files) = &options.key_files {
        places.push(Place::File(Box::new(KeyFile::of_fields(files))));
    }
    if let Some(command) = &options.process {
        places.push(provider("the credential process", far, Process::new(command), Vec::new()));
    }
    if let Some(role) = &options.ram_role {
        let name = format!("the metadata service for the RAM role {role}");
        let ecs = EcsRamRoleCredentialProvider::new();
        let ecs = if role == ANY_ROLE { ecs } else { ecs.with_role_name(role) };
        places.push(provider(name, near, ecs, Vec::new()));
    }
    if let Some(profile) = &options.profile {
        let far = far.clone().with_env(ProfileEnv { profile: profile.clone(), inner: env.clone() });
        let shared = DefaultCredentialProvider::builder().no_assume_role().no_env().no_credentials_uri().no_ecs_ram_role().no_oidc();
        let shared = shared.oss_profile(OssProfileCredentialProvider::new().with_profile(profile)).build();
        places.push(profiles(format!("the profile {profile}"), &far, shared, env, true));
    }
    if let Some(identity) = &options.web_identity {
        places.push(web_identity(identity, far, env));
    }
    places
}

/// A role that a projected token stands for, and the role that this one assumes. What the options do not say the environment does.
fn web_identity(identity: &WebIdentity, far: &Context, env: &impl Env) -> Place {
    let WebIdentity { role_arn, provider_arn, token_file, session_name, sts_endpoint, then_role_arn, external_id } = identity.clone();
    let token_file = token_file.map(|path| path.to_string_lossy().into_owned());
    let files = token_file.clone().or_else(|| env.var("ALIBABA_CLOUD_OIDC_TOKEN_FILE")).map(PathBuf::from).into_iter().collect();
    // The second name is the one that Alibaba's CSI driver sets for ossfs.
    let session_name =
        session_name.or_else(|| ["ALIBABA_CLOUD_ROLE_SESSION_NAME", "ROLE_SESSION_NAME"].iter().find_map(|name| env.var(name)));
    let session_name = session_name.unwrap_or_else(|| "windlass".into());
    let mut oidc = AssumeRoleWithOidcCredentialProvider::new().with_role_session_name(&session_name);
    if let Some(role_arn) = role_arn {
        oidc = oidc.with_role_arn(role_arn);
    }
    if let Some(provider_arn) = provider_arn {
        oidc = oidc.with_oidc_provider_arn(provider_arn);
    }
    if let Some(token_file) = token_file {
        oidc = oidc.with_oidc_token_file(token_file);
    }
    if let Some(endpoint) = &sts_endpoint {
        oidc = oidc.with_sts_endpoint(endpoint);
    }
    let name = "the web identity (ALIBABA_CLOUD_ROLE_ARN, ALIBABA_CLOUD_OIDC_PROVIDER_ARN, ALIBABA_CLOUD_OIDC_TOKEN_FILE)";
    let Some(then_role_arn) = then_role_arn else { return provider(name, far, oidc, files) };
    let mut then = AssumeRoleCredentialProvider::new().with_base_provider(oidc).with_role_arn(&then_role_arn);
    then = then.with_role_session_name(&session_name);
    if let Some(external_id) = external_id {
        then = then.with_external_id(external_id);
    }
    if let Some(endpoint) = sts_endpoint {
        then = then.with_sts_endpoint(endpoint);
    }
    provider(format!("the role {then_role_arn} by {name}"), far, then, files)
}

/// The files that the library reads profiles from.
fn profile_files_of(env: &impl Env) -> Vec<PathBuf> {
    let places = [
        ("OSS_CREDENTIAL_PROFILES_FILE", ".oss/credentials"),
        ("ALIBABA_CLOUD_CREDENTIALS_FILE", ".alibabacloud/credentials.ini"),
        ("ALIBABA_CLOUD_CONFIG_FILE", ".aliyun/config.json"),
    ];
    let place = |(variable, name)| env.var(variable).map(PathBuf::from).or_else(|| Some(env.home_dir()?.join(name)));
    places.into_iter().filter_map(place).collect()
}

/// Where ossfs looks without being told, its user's file first.
fn default_files(env: &impl Env) -> Vec<PathBuf> {
    let own = env.home_dir().map(|home| home.join(".passwd-ossfs"));
    own.into_iter().chain([PathBuf::from("/etc/passwd-ossfs")]).collect()
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
