//! Where the bucket is and how to talk to it.

use std::path::PathBuf;
use std::time::Duration;

use super::buckets::Buckets;
use super::ca_bundle::CaBundle;
use super::content_types::ContentTypes;
use super::leave::Exit;
use super::provider::Quirks;

/// Which protocol the endpoint speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Amazon S3 and everything that speaks it.
    #[default]
    S3,
    /// Alibaba Cloud OSS.
    Oss,
}

/// How requests are signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signature {
    /// AWS Signature V4, or OSS Signature V4.
    #[default]
    V4,
    /// OSS Signature V1.
    V1,
    /// Not at all: public buckets.
    None,
}

/// How the store encrypts what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sse {
    /// As the bucket says.
    #[default]
    None,
    /// With keys of the store's own (AES256).
    Aes256,
    /// With a key of its key management service.
    Kms,
}

/// What protects a body on its way to S3; OSS tells the CRC-64 of whatever it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadChecksum {
    /// CRC-64/NVME as long as the store takes and repeats it, else Content-MD5 and the ETag of the answer.
    #[default]
    Auto,
    /// `x-amz-checksum-crc64nvme`, or an error.
    Crc64Nvme,
    /// `x-amz-checksum-crc32c`, or an error.
    Crc32c,
    /// Content-MD5.
    Md5,
    /// Nothing: what is stored is not compared with what was sent.
    None,
}

/// Keys that were given as they are.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticKeys {
    pub id: String,
    pub secret: String,
    /// Goes with temporary keys.
    pub token: Option<String>,
}

/// Not derived: keys must not reach a log through `{:?}`.
impl std::fmt::Debug for StaticKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticKeys").field("id", &self.id).finish_non_exhaustive()
    }
}

/// In place of the name of a role: the one that the instance has.
pub const ANY_ROLE: &str = "auto";

/// Where credentials may come from; without any of these the dialect's own chain is asked (environment, profile,
/// web identity, container, instance role).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialOptions {
    /// Keys from the configuration file or the environment; they go before everything else.
    pub keys: Option<StaticKeys>,
    /// Named profile of the dialect's shared configuration files.
    pub profile: Option<String>,
    /// A file of `bucket:key:secret` or `key:secret` lines, as ossfs and s3fs use, or a directory with one file a field.
    pub passwd_file: Option<PathBuf>,
    /// The same fields in files that are named one by one.
    pub key_files: Option<KeyFiles>,
    /// A command that prints credentials as JSON.
    pub process: Option<String>,
    /// Role of the instance (ECS, EC2) whose credentials the metadata service gives out: its name, or `auto` for the one that it has.
    pub ram_role: Option<String>,
    /// A role that a projected token stands for.
    pub web_identity: Option<WebIdentity>,
}

/// Files that hold one field each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    pub id: PathBuf,
    pub secret: PathBuf,
    pub token: Option<PathBuf>,
}

/// A role that is assumed with a token of the cluster (RRSA, IRSA). What is not said here the environment says, under the names that the
/// vendors' own tools read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebIdentity {
    pub role_arn: Option<String>,
    /// Who vouches for the token (OSS).
    pub provider_arn: Option<String>,
    pub token_file: Option<PathBuf>,
    pub session_name: Option<String>,
    /// URL of the token service (OSS).
    pub sts_endpoint: Option<String>,
    /// Another role, which the first one may assume (OSS).
    pub then_role_arn: Option<String>,
    /// What that role's owner wants to be told (OSS).
    pub external_id: Option<String>,
}

/// Options of the store layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub dialect: Dialect,
    /// What is known of the store.
    pub quirks: Quirks,
    /// Empty with `buckets`.
    pub bucket: String,
    /// Many buckets in place of one (S3): keys begin with their names.
    pub buckets: Option<Buckets>,
    /// URL of the endpoint without the bucket; none means the dialect's own address for the region.
    pub endpoint: Option<String>,
    /// URL of an accelerator or a cache in front of the bucket, which is asked for data before the endpoint is.
    pub read_endpoint: Option<String>,
    pub region: Option<String>,
    /// `endpoint/bucket/key` instead of `bucket.endpoint/key`. None: as [`Quirks::path_style`] says, else path style when the endpoint is an IP address
    /// or `localhost`.
    pub path_style: Option<bool>,
    /// The addresses of AWS whose cryptography is validated after FIPS 140. None: as the SDK's variables and profiles say. No other store has them.
    pub fips: Option<bool>,
    /// The addresses of AWS that are reached over IPv6 too. None: as the SDK's variables and profiles say. No other store has them.
    pub dual_stack: Option<bool>,
    /// The addresses of S3 Transfer Acceleration. No other store has them.
    pub accelerate: bool,
    pub signature: Signature,
    pub credentials: CredentialOptions,
    /// Hosts besides the endpoints to which requests may be redirected, with signature and data: `host`, `host:port`, or `.domain`.
    pub redirect_hosts: Vec<String>,
    /// Certificates that may vouch for the store besides those of the system.
    pub ca_bundle: Option<CaBundle>,
    /// From where connections leave, in turns; none: as the routing table says.
    pub exits: Vec<Exit>,
    /// How the store encrypts what is written.
    pub sse: Sse,
    /// With [`Sse::Kms`]: which key; none is the account's own.
    pub sse_key_id: Option<String>,
    /// Storage class of what is written, as the store calls it; none is the bucket's default.
    pub storage_class: Option<String>,
    /// Canned access list of what is written, such as `private`.
    pub acl: Option<String>,
    /// Who asks pays, also for reads.
    pub requester_pays: bool,
    /// Slow data GETs are helped by extra ones.
    pub hedge: bool,
    /// What is read whole is compared with the sum that the store tells of it.
    pub verify_reads: bool,
    /// What protects what is written.
    pub upload_checksum: UploadChecksum,
    /// What type new objects say that they have.
    pub content_types: ContentTypes,
    /// How often a failed request is sent again.
    pub retries: usize,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest time from the first attempt of a request to its end, all retries included.
    pub request_timeout: Duration,
    /// Longest time from a request without a body to the head of its response; [`Retrying`](super::Retrying) waits for less.
    pub answer_timeout: Duration,
    /// Longest time without a byte inside a body.
    pub stall_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dialect: Dialect::S3,
            quirks: Quirks::LEARNED,
            bucket: String::new(),
            buckets: None,
            endpoint: None,
            read_endpoint: None,
            region: None,
            path_style: None,
            fips: None,
            dual_stack: None,
            accelerate: false,
            signature: Signature::V4,
            credentials: CredentialOptions::default(),
            redirect_hosts: Vec::new(),
            ca_bundle: None,
            exits: Vec::new(),
            sse: Sse::None,
            sse_key_id: None,
            storage_class: None,
            acl: None,
            requester_pays: false,
            hedge: true,
            verify_reads: true,
            upload_checksum: UploadChecksum::Auto,
            content_types: ContentTypes::default(),
            retries: 10,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            answer_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(5),
        }
    }
}
