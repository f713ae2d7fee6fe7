//! Where S3 credentials come from. The SDK's providers do the work; this chooses one by the options, and makes it anew for each question,
//! because they keep what they read of files. Invariant: only sources that the user named are asked when one is named.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use aws_config::credential_process::CredentialProcessProvider;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::imds::{self, credentials::ImdsCredentialsProvider};
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::{StaticConfiguration, WebIdentityTokenCredentialsProvider};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials};
use aws_types::region::Region;

use super::failure;
use crate::store::credentials::{KeyFile, Keys, Missing, ProfileFiles, Source, own_variables};
use crate::store::options::ANY_ROLE;
use crate::store::{CredentialOptions, WebIdentity};

/// Outside a cloud nothing answers at the metadata address, and a mount without credentials must fail within seconds.
const METADATA_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const METADATA_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The metadata service under the time limits above.
pub(super) fn metadata_client() -> imds::Client {
    imds::Client::builder().max_attempts(1).connect_timeout(METADATA_CONNECT_TIMEOUT).read_timeout(METADATA_READ_TIMEOUT).build()
}

/// The source that `options` name, or the SDK's chain: environment, profile, web identity, container, instance. An option that S3 has no
/// use for is an error.
pub(super) fn source(options: &CredentialOptions, bucket: &str, region: &Region) -> Result<Box<dyn Source>, String> {
    if let Some(keys) = options.keys.clone() {
        let from = "the configuration (file or environment of windlass)".into();
        return Ok(Box::new(Keys { id: keys.id, secret: keys.secret, token: keys.token, expires: None, from }));
    }
    if let Some(path) = &options.passwd_file {
        return Ok(Box::new(KeyFile::at(path, bucket)));
    }
    if let Some(files) = &options.key_files {
        return Ok(Box::new(KeyFile::of_fields(files)));
    }
    let link = if let Some(command) = &options.process {
        Link::Process(command.clone())
    } else if let Some(role) = &options.ram_role {
        Link::Instance(role.clone())
    } else if let Some(profile) = &options.profile {
        Link::Profile(profile.clone())
    } else if let Some(identity) = &options.web_identity {
        Link::WebIdentity(role(identity)?)
    } else {
        Link::Chain
    };
    Ok(Box::new(Sdk { link, region: region.clone(), profile_files: ProfileFiles::default() }))
}

/// The role of the options, filled up from the environment as the SDK reads it.
fn role(identity: &WebIdentity) -> Result<StaticConfiguration, String> {
    let WebIdentity { role_arn, provider_arn, token_file, session_name, sts_endpoint, then_role_arn, external_id } = identity;
    let for_oss = [
        ("oidc-provider-arn", provider_arn),
        ("sts-endpoint", sts_endpoint),
        ("assume-role-arn", then_role_arn),
        ("assume-role-external-id", external_id),
    ];
    if let Some((word, _)) = for_oss.into_iter().find(|(_, value)| value.is_some()) {
        return Err(format!("{word} is for OSS; on S3 the environment of the SDK says it (AWS_ENDPOINT_URL_STS, AWS_PROFILE)"));
    }
    let needed = |given: Option<String>, option: &str, variable: &str| {
        given.or_else(|| std::env::var(variable).ok()).ok_or_else(|| format!("a web identity needs {option} or {variable}"))
    };
    let token_file = token_file.as_ref().map(|path| path.to_string_lossy().into_owned());
    Ok(StaticConfiguration {
        web_identity_token_file: needed(token_file, "oidc-token-file", "AWS_WEB_IDENTITY_TOKEN_FILE")?.into(),
        role_arn: needed(role_arn.clone(), "role-arn", "AWS_ROLE_ARN")?,
        session_name: session_name.clone().or_else(|| std::env::var("AWS_ROLE_SESSION_NAME").ok()).unwrap_or_else(|| "windlass".into()),
    })
}

/// `command` for `sh -c`, without the variables of this program: the SDK gives the process its whole environment.
fn without_own_variables(command: &str) -> String {
    let names = own_variables();
    if names.is_empty() { command.to_owned() } else { format!("unset {}; {command}", names.join(" ")) }
}

/// A provider of the SDK.
#[derive(Debug)]
struct Sdk {
    link: Link,
    region: Region,
    profile_files: ProfileFiles,
}

#[derive(Debug)]
enum Link {
    Process(String),
    Profile(String),
    /// The role of the instance: its name, or `auto`.
    Instance(String),
    WebIdentity(StaticConfiguration),
    Chain,
}

impl Sdk {
    /// Providers that ask the token service need a region to sign in, also where the profile has none.
    fn here(&self) -> ProviderConfig {
        ProviderConfig::without_region().with_region(Some(self.region.clone()))
    }

    async fn ask(&self) -> provider::Result {
        match &self.link {
            Link::Process(command) => CredentialProcessProvider::new(without_own_variables(command)).provide_credentials().await,
            Link::Profile(profile) => {
                let provider = ProfileFileCredentialsProvider::builder().configure(&self.here()).profile_name(profile);
                provider.build().provide_credentials().await
            }
            Link::Instance(role) => {
                let provider = ImdsCredentialsProvider::builder().configure(&self.here()).imds_client(metadata_client());
                let provider = if role == ANY_ROLE { provider } else { provider.profile(role) };
                provider.build().provide_credentials().await
            }
            Link::WebIdentity(role) => {
                let provider = WebIdentityTokenCredentialsProvider::builder().static_configuration(role.clone()).configure(&self.here());
                provider.build().provide_credentials().await
            }
            Link::Chain => {
                let chain = DefaultCredentialsChain::builder().region(self.region.clone()).imds_client(metadata_client());
                chain.build().await.provide_credentials().await
            }
        }
    }

    /// The files of profiles, whether they are there or not.
    fn profiles() -> impl Iterator<Item = PathBuf> {
        let at_home = |variable, name: &str| named(variable).or_else(|| Some(std::env::home_dir()?.join(".aws").join(name)));
        [at_home("AWS_SHARED_CREDENTIALS_FILE", "credentials"), at_home("AWS_CONFIG_FILE", "config")].into_iter().flatten()
    }

    /// Why there are no keys.
    fn missing(&self, error: &CredentialsError) -> Missing {
        match (&self.link, error) {
            // The SDK takes a profile that is not there for one without keys.
            (Link::Profile(name), CredentialsError::CredentialsNotLoaded(_)) => {
                let files: Vec<String> = Self::profiles().map(|path| path.display().to_string()).collect();
                Missing::new(format!("the profile \"{name}\" is not in {}, or has no credentials: check --profile", files.join(" or ")))
            }
            _ => failure::credentials(error),
        }
    }

    /// Where credentials were found, for people.
    fn origin(&self, found: &Credentials) -> String {
        match &self.link {
            Link::Process(_) => "the credential process".into(),
            Link::Profile(profile) => format!("the profile {profile}"),
            Link::Instance(role) => format!("the instance's role {role} (metadata service)"),
            Link::WebIdentity(role) => format!("the role {}", role.role_arn),
            Link::Chain => link_of_chain(found),
        }
    }
}

/// A path in the environment.
fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Which link of its chain the SDK found credentials in.
fn link_named(found: &Credentials) -> String {
    // The SDK has no other door to which link it was; what it prints has no secret in it.
    let shown = format!("{found:?}");
    shown.split("provider_name: \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("unknown").to_owned()
}

fn found_in_profile(found: &Credentials) -> bool {
    link_named(found) == "ProfileFile"
}

fn link_of_chain(found: &Credentials) -> String {
    match link_named(found).as_str() {
        "EnvironmentVariable" => "the environment (AWS_ACCESS_KEY_ID)".into(),
        "ProfileFile" => "the profile files (~/.aws)".into(),
        "WebIdentityToken" => "the web identity (AWS_WEB_IDENTITY_TOKEN_FILE)".into(),
        "EcsContainer" => "the container's role".into(),
        link if link.starts_with("IMDS") || link.starts_with("Ec2") => "the instance's role (metadata service)".into(),
        other => format!("the chain of the SDK ({other})"),
    }
}

#[async_trait]
impl Source for Sdk {
    async fn fetch(&self) -> Result<Keys, Missing> {
        let found = self.ask().await.map_err(|error| self.missing(&error))?;
        if matches!(self.link, Link::Profile(_)) || found_in_profile(&found) {
            self.profile_files.check(Self::profiles())?;
        }
        Ok(Keys {
            id: found.access_key_id().to_owned(),
            secret: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
            expires: found.expiry(),
            from: self.origin(&found),
        })
    }

    fn files(&self) -> Vec<PathBuf> {
        let profiles = Self::profiles();
        let tokens = [named("AWS_WEB_IDENTITY_TOKEN_FILE"), named("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")];
        match &self.link {
            Link::Process(_) | Link::Instance(_) => Vec::new(),
            Link::Profile(_) => profiles.collect(),
            Link::WebIdentity(role) => vec![role.web_identity_token_file.clone()],
            Link::Chain => profiles.chain(tokens.into_iter().flatten()).collect(),
        }
    }
}
