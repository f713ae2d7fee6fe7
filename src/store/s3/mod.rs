//! The S3 dialect: everything goes through what both dialects share, with addresses and signatures of its own. One attempt a call,
//! and another where other credentials sign it. It does not retry. Of the vendor's SDK the endpoint rules, the sources of credentials and the
//! arithmetic of signatures are used, and its client for documents (see `requests`), but not for data: its pipeline costs several times the CPU
//! of a small request (see `sign`).
//! Invariant: all requests go to the same address.

mod account;
mod address;
mod credentials;
mod failure;
mod list;
mod session;
mod sign;

use std::sync::Arc;

use aws_config::BehaviorVersion;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_types::region::Region;
use reqwest::Url;

use super::answer;
use super::arn::Arn;
use super::clients::clients;
use super::credentials::Rotating;
use super::endpoint::Endpoint;
use super::http_store::{HttpStore, Lister};
use super::leave::Clients;
use super::listing::Tokens;
use super::page::PageClient;
use super::read_endpoint::{ReadEndpoint, options_near};
use super::redirect;
use super::requests::{Tags, Voice};
use super::sorted_listing::SortedLister;
use super::{Error, ErrorKind, Identity, Key, ObjectStore, Op, Options, Result, Signature, UploadChecksum};
use crate::metrics::Metrics;
pub(super) use account::S3Account;
use address::{Address, Scheme, Wanted};
use list::S3Lister;
use sign::Signer;

/// Makes ready to ask for the bucket of `options`. Nothing is sent to it yet; only the metadata service may be asked for
/// the region.
pub(super) async fn connect(options: &Options, metrics: Arc<Metrics>) -> Result<Arc<dyn ObjectStore>> {
    let region = known_region(options).await?;
    let credentials = credentials_of(options, &options.bucket, &region)?;
    let address = address(options, &region).await?;
    let Some(near) = options_near(options, Some(region.to_string())) else {
        let http = http_clients(options, &metrics)?;
        return Ok(Arc::new(store(options, address, credentials, Tags::default(), http, metrics)?));
    };
    // Each may redirect to the other.
    let near_address = self::address(&near, &region).await?;
    let trusted = [url(&address)?, url(&near_address)?].map(|url| redirect::authority(&url));
    let trusting = |options: Options, address, tags| {
        let redirect_hosts = [&options.redirect_hosts[..], &trusted].concat();
        let http = http_clients(&options, &metrics)?;
        store(&Options { redirect_hosts, ..options }, address, credentials.clone(), tags, http, metrics.clone())
    };
    let (near, home) = (trusting(near, near_address, Tags::taken_for_strong())?, trusting(options.clone(), address, Tags::default())?);
    Ok(Arc::new(ReadEndpoint::new(Arc::new(near), Arc::new(home), metrics)))
}

fn store(
    options: &Options,
    address: Address,
    credentials: Option<Arc<Rotating>>,
    tags: Tags,
    http: Clients,
    metrics: Arc<Metrics>,
) -> Result<HttpStore<Signer>> {
    let is_directory_bucket = matches!(address.scheme, Scheme::Session { .. });
    let of_directory_bucket = is_directory_bucket.then(|| Options { quirks: options.quirks.of_directory_bucket(), ..options.clone() });
    let options = of_directory_bucket.as_ref().unwrap_or(options);
    if is_directory_bucket && options.upload_checksum == UploadChecksum::Md5 {
        // https://docs.aws.amazon.com/AmazonS3/latest/API/API_UploadPart.html (Content-MD5)
        let message = "directory buckets take no Content-MD5: set --upload-checksum to auto, crc64nvme or crc32c";
        return Err(Error::new(ErrorKind::Invalid, Op::List, &Key::root(), message));
    }
    // https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-differences.html (ETags)
    let tags = if is_directory_bucket { Tags::of_nothing() } else { tags };
    let mut signer = match credentials {
        Some(account) if is_directory_bucket => session::signer(options, address, account, &http, &metrics),
        credentials => Signer::new(address, credentials, options.requester_pays),
    };
    signer.asks_sums = options.verify_reads;
    let signer = Arc::new(signer);
    let pages = PageClient::new(http.clone(), options, Tokens::Plain, Arc::clone(signer.clock()), Arc::clone(&metrics));
    let lister = S3Lister::new(pages, Arc::clone(&signer));
    let lister: Arc<dyn Lister> = if is_directory_bucket { Arc::new(SortedLister::new(lister)) } else { Arc::new(lister) };
    Ok(HttpStore::new(http, options, signer, lister, tags, metrics))
}

fn http_clients(options: &Options, metrics: &Arc<Metrics>) -> Result<Clients> {
    let failed = |error| format!("cannot set up TLS: {}", answer::innermost(&error));
    clients(options, metrics).map_err(|error| Error::new(ErrorKind::Invalid, Op::List, &Key::root(), failed(error)))
}

/// What signs the requests for `bucket`; None: nothing does.
fn credentials_of(options: &Options, bucket: &str, region: &Region) -> Result<Option<Arc<Rotating>>> {
    let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::List, &Key::root(), message);
    let source = credentials::source(&options.credentials, bucket, region).map_err(invalid)?;
    match options.signature {
        Signature::None => Ok(None),
        Signature::V4 => Ok(Some(Rotating::new(source))),
        Signature::V1 => Err(invalid("signature v1 is for OSS; S3 takes v4 or none".into())),
    }
}

/// The address of the bucket of `options`, and the region that requests are signed for.
pub(super) async fn place(options: &Options) -> Result<(Url, Option<String>)> {
    let region = known_region(options).await?;
    let address = address(options, &region).await?;
    Ok((url(&address)?, Some(address.scheme.region().to_owned())))
}

/// Whose keys sign the requests of `options`.
pub(super) async fn identity(options: &Options) -> Result<Option<Identity>> {
    if options.signature == Signature::None {
        return Ok(None);
    }
    let region = known_region(options).await?;
    let invalid = |message| Error::new(ErrorKind::Invalid, Op::List, &Key::root(), message);
    let source = credentials::source(&options.credentials, &options.bucket, &region).map_err(invalid)?;
    match source.fetch().await {
        Ok(keys) => Ok(Some(Identity { source: keys.from, key_id: keys.id, expires: keys.expires })),
        Err(missing) => Err(Error::new(ErrorKind::NoCredentials, Op::List, &Key::root(), missing.message)),
    }
}

async fn known_region(options: &Options) -> Result<Region> {
    let invalid = |message: &str| Error::new(ErrorKind::Invalid, Op::List, &Key::root(), message);
    // The ARN of a Multi-Region Access Point names no region, and its requests are signed for all of them.
    let needs_none = options.endpoint.is_some() || Arn::parse(&options.bucket).is_some();
    let region = region(options, needs_none).await;
    region.ok_or_else(|| invalid("no region: set --region or AWS_REGION, or --endpoint for a store that is not AWS"))
}

/// Where the bucket is, or, of an account, where buckets are listed; and how requests for it are signed.
async fn address(options: &Options, region: &Region) -> Result<Address> {
    let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::List, &Key::root(), message);
    let endpoint = options.endpoint.as_deref().map(Endpoint::parse).transpose().map_err(|error| invalid(error.to_string()))?;
    // An ARN is a label before the host and nothing else.
    let is_arn = Arn::parse(&options.bucket).is_some();
    let path_style = options.path_style.or(options.quirks.path_style.filter(|_| !is_arn));
    let path_style = path_style.unwrap_or_else(|| !is_arn && endpoint.as_ref().is_some_and(Endpoint::wants_path_style));
    let (fips, dual_stack) = fips_and_dual_stack(options, region).await;
    let wanted = Wanted {
        bucket: &options.bucket,
        region: region.as_ref(),
        endpoint: endpoint.as_ref(),
        path_style,
        fips,
        dual_stack,
        accelerate: options.accelerate,
    };
    wanted.resolve().await.map_err(|error| invalid(error.to_string()))
}

/// Whether the addresses with FIPS and those with IPv6 are wanted: by the options, else by AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT and the
/// words of the profile for the same. Those are set for everything on a machine, and say nothing of stores that are not AWS.
async fn fips_and_dual_stack(options: &Options, region: &Region) -> (bool, bool) {
    if options.endpoint.is_some() || (options.fips.is_some() && options.dual_stack.is_some()) {
        return (options.fips == Some(true), options.dual_stack == Some(true));
    }
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).region(region.clone()).no_credentials();
    if let Some(name) = &options.credentials.profile {
        loader = loader.profile_name(name);
    }
    // Its state is larger than what a future should carry along.
    let shared = Box::pin(loader.load()).await;
    let or = |option: Option<bool>, shared: Option<bool>| option.or(shared) == Some(true);
    (or(options.fips, shared.use_fips()), or(options.dual_stack, shared.use_dual_stack()))
}

fn url(address: &Address) -> Result<Url> {
    let base = &address.base;
    Url::parse(base).map_err(|_| Error::new(ErrorKind::Invalid, Op::List, &Key::root(), format!("the address {base} is no URL")))
}

/// The option, else the ARN, else environment, else profile; then, where regions mean nothing (`needs_none`), that of the provider or a
/// name that all accept, else what the metadata service says.
async fn region(options: &Options, needs_none: bool) -> Option<Region> {
    let of_arn = || Arn::parse(&options.bucket)?.region().map(str::to_owned);
    if let Some(region) = options.region.clone().or_else(of_arn) {
        return Some(Region::new(region));
    }
    let mut profile = ProfileFileRegionProvider::builder();
    if let Some(name) = &options.credentials.profile {
        profile = profile.profile_name(name);
    }
    let chain = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new()).or_else(profile.build());
    match chain.region().await {
        None if needs_none => Some(Region::from_static(options.quirks.region.unwrap_or("us-east-1"))),
        None => {
            let metadata = ImdsRegionProvider::builder().imds_client(credentials::metadata_client()).build();
            RegionProviderChain::first_try(metadata).region().await
        }
        found => found,
    }
}

/// The key as S3 takes it.
fn text(op: Op, key: &Key) -> Result<&str> {
    key.to_str().ok_or_else(|| Error::new(ErrorKind::Invalid, op, key, "S3 keys are UTF-8, this one is not"))
}

#[cfg(test)]
mod tests;
