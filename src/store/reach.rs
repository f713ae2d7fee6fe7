//! How far the way to a store leads, step by step, for those who look for what is wrong with it: name, connection, TLS, HTTP, and whose keys
//! would sign. Nothing here is signed and nothing is tried again. Invariant: no secret is in what it tells.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use http::{Uri, header};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;
use rustls::CertificateError;
use tokio::time::{Instant, timeout};

use super::clients::client_builder;
use super::leave::{self, Clients, Exit, Turns};
use super::{Dialect, ErrorKind, Key, Op, Options, Result, answer, endpoint, oss, s3};

/// Longest wait for the answer to a request that asks for nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// The way to a bucket.
#[derive(Debug)]
pub struct Way {
    url: Url,
    /// Where requests are signed for, when that is known.
    pub region: Option<String>,
    http: Clients,
    exits: Turns<Exit>,
    connect_timeout: Duration,
    is_proxied: bool,
}

/// An answer, whatever it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoken {
    pub status: u16,
    /// The clock of the other side.
    pub date: Option<SystemTime>,
    pub took: Duration,
}

/// Why there is none.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Silence {
    #[error("its certificate is not accepted: {0}")]
    Untrusted(&'static str),
    #[error("what answers there does not speak TLS")]
    NotTls,
    #[error("{0}")]
    Other(String),
}

/// Whose keys sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Where they were found.
    pub source: String,
    pub key_id: String,
    pub expires: Option<SystemTime>,
}

impl Way {
    /// The way that requests of `options` take. Only the metadata service may be asked for something.
    ///
    /// # Errors
    /// When the options name no address.
    pub async fn of(options: &Options) -> Result<Self> {
        let (url, region) = match options.dialect {
            Dialect::S3 => s3::place(options).await?,
            Dialect::Oss => oss::place(options)?,
        };
        let patience = PATIENCE.max(options.connect_timeout);
        let http = Clients::build(&options.exits, || client_builder(options, &std::sync::Arc::default()).timeout(patience));
        let http = http.map_err(|error| answer::transport(Op::List, &Key::root(), &error))?;
        let may_be = endpoint::goes_through_proxy(options.endpoint.as_deref());
        let proxy = || url.as_str().parse::<Uri>().is_ok_and(|uri| Matcher::from_env().intercept(&uri).is_some());
        let is_proxied = may_be && proxy();
        Ok(Self { url, region, http, connect_timeout: options.connect_timeout, exits: Turns::new(options.exits.clone()), is_proxied })
    }

    /// Name or number.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
    }

    pub fn port(&self) -> u16 {
        self.url.port_or_known_default().unwrap_or(443)
    }

    pub fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Whether a proxy of the environment stands between: then it is not for us to look the host up or to connect to it.
    pub fn is_proxied(&self) -> bool {
        self.is_proxied
    }

    /// The addresses of the host.
    ///
    /// # Errors
    /// What the resolver said.
    pub async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found = timeout(self.connect_timeout, tokio::net::lookup_host((self.host(), self.port()))).await;
        let found: Vec<_> = found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.collect();
        if found.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(found) }
    }

    /// A connection to the first of `addresses` that takes one, and how long it took.
    ///
    /// # Errors
    /// What became of the last.
    pub async fn connect(&self, addresses: &[SocketAddr]) -> io::Result<(SocketAddr, Duration)> {
        let mut failure = io::Error::other("there is no address to connect to");
        for &address in addresses {
            let began = Instant::now();
            match timeout(self.connect_timeout, leave::connect(&address.ip().to_string(), address.port(), self.exits.next())).await {
                Ok(Ok(_)) => return Ok((address, began.elapsed())),
                Ok(Err(error)) => failure = error,
                Err(_) => {
                    failure = io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {address} for {:?}", self.connect_timeout))
                }
            }
        }
        Err(failure)
    }

    /// Asks for nothing, unsigned, and hears what any answer tells.
    ///
    /// # Errors
    /// Why there was none.
    pub async fn speak(&self) -> Result<Spoken, Silence> {
        let began = Instant::now();
        let mut url = self.url.clone();
        url.set_path("/");
        let response = self.http.next().head(url).send().await.map_err(|error| silence(&error))?;
        let date = response.headers().get(header::DATE).and_then(|value| httpdate::parse_http_date(value.to_str().ok()?).ok());
        Ok(Spoken { status: response.status().as_u16(), date, took: began.elapsed() })
    }
}

/// Whose keys sign the requests of `options`; none when they are not signed.
///
/// # Errors
/// When there are no keys.
pub async fn identity(options: &Options) -> Result<Option<Identity>> {
    match options.dialect {
        Dialect::S3 => s3::identity(options).await,
        Dialect::Oss => oss::identity(options).await,
    }
}

/// What went wrong under the name of TLS, as deep as it may be: an [`io::Error`] passes over what it wraps when it is asked for its source.
fn tls<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref::<rustls::Error>() {
        return Some(found);
    }
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => tls(inner),
        None => error.source().and_then(tls),
    }
}

/// Returns the failure when the other side showed a certificate that is not accepted, or does not speak TLS at all.
pub(super) fn tls_failure(error: &reqwest::Error) -> Option<(ErrorKind, Silence)> {
    match tls(error) {
        Some(rustls::Error::InvalidCertificate(flaw)) => Some((ErrorKind::Untrusted, Silence::Untrusted(in_words(flaw)))),
        Some(rustls::Error::InvalidMessage(_)) => Some((ErrorKind::NotTls, Silence::NotTls)),
        _ => None,
    }
}

/// Describes why a certificate is refused. The texts of the library name its types.
fn in_words(flaw: &CertificateError) -> &'static str {
    match flaw {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => "it is for another host name",
        CertificateError::UnknownIssuer => "its issuer is not trusted here",
        CertificateError::Revoked => "it was revoked",
        CertificateError::BadSignature => "its signature is wrong",
        // The library has no variant for an authority's certificate that a server shows as its own, which is what openssl req -x509 makes.
        CertificateError::Other(_) => "it is self-signed, or not made for a server",
        _ => "it cannot be verified",
    }
}

fn silence(error: &reqwest::Error) -> Silence {
    match (tls_failure(error), tls(error)) {
        (Some((_, failure)), _) => failure,
        (None, Some(error)) => Silence::Other(error.to_string()),
        (None, None) => Silence::Other(answer::transport(Op::List, &Key::root(), error).message),
    }
}
