//! The OSS dialect: the requests of one bucket, signed with V4 or V1 or not at all. Everything that is not its own goes through what both
//! dialects share. Invariant: what is sent to the bucket is signed for it, wherever it is sent.

mod address;
mod credentials;
mod list;
mod process;
mod sign;
mod signature;

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, Method};
use reqsign_core::OsEnv;
use reqwest::Url;

use super::answer::{self, Answer};
use super::clients::clients;
use super::credentials::{Rotating, Source};
use super::http_store::HttpStore;
use super::listing::Tokens;
use super::page::PageClient;
use super::read_endpoint::{ReadEndpoint, options_near};
use super::redirect;
use super::requests::{Tags, Voice};
use super::{Error, ErrorKind, Identity, Key, ObjectStore, Op, Options, Result, Signature};
use crate::metrics::Metrics;
use address::Address;
use credentials::Sources;
use list::OssLister;
use sign::OssSigner;

/// The bucket that `options` name. Credentials are looked up here, so that a mount without any fails at once; the
/// bucket itself is not asked for anything.
pub(super) async fn connect(options: &Options, metrics: Arc<Metrics>) -> Result<Arc<dyn ObjectStore>> {
    let root = Key::root();
    let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::List, &root, message);
    let address = |options: &Options| Address::new(options).map_err(|error| invalid(error.to_string()));
    let home_address = address(options)?;
    let sources = Sources::new(&options.credentials, &options.bucket, OsEnv).map_err(|error| answer::transport(Op::List, &root, &error))?;
    let keys = Rotating::new(Box::new(sources));
    let region = home_address.region.clone();
    let authority = |address: &Address| address.target(&root, &[]).map(|url| redirect::authority(&url));
    let home_authority = authority(&home_address);
    let signer = OssSigner::new(home_address, options.signature, keys, options.requester_pays);
    signer.sign(Op::List, Method::GET, &root, &[]).await?;
    let Some(near) = options_near(options, region) else { return Ok(Arc::new(store(options, signer, Tags::default(), metrics)?)) };
    // Each may redirect to the other. What they are asked for is signed for the bucket, wherever it is sent.
    let near_address = address(&near)?;
    let trusted: Vec<String> = [home_authority, authority(&near_address)].into_iter().flatten().collect();
    let trusting = |options: Options, signer, tags| {
        let redirect_hosts = [&options.redirect_hosts[..], &trusted].concat();
        store(&Options { redirect_hosts, ..options }, signer, tags, metrics.clone())
    };
    let (near, home) =
        (trusting(near, signer.at(near_address), Tags::taken_for_strong())?, trusting(options.clone(), signer, Tags::default())?);
    Ok(Arc::new(ReadEndpoint::new(Arc::new(near), Arc::new(home), metrics)))
}

fn store(options: &Options, signer: OssSigner, tags: Tags, metrics: Arc<Metrics>) -> Result<HttpStore<OssSigner>> {
    let http = clients(options, &metrics).map_err(|error| answer::transport(Op::List, &Key::root(), &error))?;
    let signer = Arc::new(signer);
    let pages = PageClient::new(http.clone(), options, Tokens::Encoded, Arc::clone(signer.clock()), Arc::clone(&metrics));
    let lister = Arc::new(OssLister { pages, signer: Arc::clone(&signer) });
    Ok(HttpStore::new(http, options, signer, lister, tags, metrics))
}

/// The address of the bucket of `options`, and the region that requests are signed for.
pub(super) fn place(options: &Options) -> Result<(Url, Option<String>)> {
    let root = Key::root();
    let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::List, &root, message);
    let address = Address::new(options).map_err(|error| invalid(error.to_string()))?;
    let url = address.target(&root, &[]).ok_or_else(|| invalid("the address of the bucket is no URL".into()))?;
    Ok((url, address.region))
}

/// Whose keys sign the requests of `options`.
pub(super) async fn identity(options: &Options) -> Result<Option<Identity>> {
    if options.signature == Signature::None {
        return Ok(None);
    }
    let root = Key::root();
    let sources = Sources::new(&options.credentials, &options.bucket, OsEnv).map_err(|error| answer::transport(Op::List, &root, &error))?;
    match sources.fetch().await {
        Ok(keys) => Ok(Some(Identity { source: keys.from, key_id: keys.id, expires: keys.expires })),
        Err(missing) => Err(Error::new(ErrorKind::NoCredentials, Op::List, &root, missing.message)),
    }
}

/// The error of an answer without success. That of a HEAD has no body: OSS sends the error document in base64 in `x-oss-err`,
/// and the number of the exact cause in `x-oss-ec`.
fn refused(op: Op, key: &Key, status: u16, headers: &HeaderMap, body: &[u8]) -> Error {
    if !body.is_empty() {
        return Answer::new(status, headers, body).into_error(op, key);
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let document = text("x-oss-err").and_then(|encoded| BASE64_STANDARD.decode(encoded).ok()).unwrap_or_default();
    let mut error = Answer::new(status, headers, &document).into_error(op, key);
    if let Some(cause) = text("x-oss-ec") {
        error.message = format!("{} (x-oss-ec {cause})", error.message);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_head_is_read_from_its_headers() {
        let document = BASE64_STANDARD.encode("<Error><Code>NoSuchBucket</Code><Message>gone</Message><RequestId>R1</RequestId></Error>");
        let mut headers = HeaderMap::new();
        headers.insert("x-oss-err", document.parse().unwrap());
        headers.insert("x-oss-ec", "0015-00000101".parse().unwrap());
        let error = refused(Op::Head, &Key::from("k"), 404, &headers, b"");
        assert_eq!((error.kind, error.request_id.as_deref()), (ErrorKind::NoSuchBucket, Some("R1")));
        assert_eq!(error.message, "gone (x-oss-ec 0015-00000101)");
        assert_eq!(refused(Op::Head, &Key::from("k"), 404, &HeaderMap::new(), b"").kind, ErrorKind::NotFound);
    }
}
