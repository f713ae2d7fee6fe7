//! From options to a store: checks what can be checked without the network, chooses the dialect, wraps it in the
//! decorators. Invariant: a store that leaves here retries; a probe gives up within the time a mount may take to fail.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::arn::Arn;
use super::buckets::BucketRouter;
use super::endpoint::Endpoint;
use super::{
    Buckets, Dialect, Error, ErrorKind, Hedging, Key, ListRequest, ObjectStore, Op, Options, Policy, Result, Retrying, Switches, oss, s3,
};
use crate::metrics::Metrics;

/// A mount that cannot work must say so within five seconds, looking for credentials included. Options may ask for less,
/// not for more.
const PROBE: Policy = Policy { retries: 3, request_timeout: Duration::from_secs(4), attempt_timeout: Duration::from_secs(3) };

/// The store that `options` name. Nothing is asked of it yet: see [`probe`].
///
/// # Errors
/// [`ErrorKind::Invalid`] for a bucket, endpoint or region that cannot be right, and [`ErrorKind::NoCredentials`].
pub async fn open(options: &Options, metrics: Arc<Metrics>) -> Result<Arc<Retrying>> {
    let invalid = |message: String| Error::new(ErrorKind::Invalid, Op::List, &Key::root(), message);
    let names = match &options.buckets {
        None => std::slice::from_ref(&options.bucket),
        Some(Buckets::Named(names)) => names,
        Some(Buckets::All) => &[],
    };
    for name in names {
        check_bucket(has_dots(options), name).map_err(|rule| invalid(format!("bucket name \"{name}\" {rule}")))?;
    }
    if let Some(text) = &options.endpoint {
        Endpoint::parse(text).map_err(|error| invalid(error.to_string()))?;
    }
    if let Some(text) = &options.read_endpoint {
        Endpoint::parse(text).map_err(|error| invalid(format!("read-endpoint: {error}")))?;
    }
    let dialect: Arc<dyn ObjectStore> = match (options.dialect, &options.buckets) {
        // One controller of retries and load above all of them: most often they are behind one endpoint.
        (Dialect::S3, Some(buckets)) => {
            Arc::new(BucketRouter::new(s3::S3Account::connect(options, metrics.clone()).await?, buckets.clone()))
        }
        (Dialect::Oss, Some(_)) => return Err(invalid("many buckets in one mount are for s3:// only: write oss://BUCKET".into())),
        (Dialect::S3, None) => s3::connect(options, metrics.clone()).await?,
        (Dialect::Oss, None) => oss::connect(options, metrics.clone()).await?,
    };
    let switches = Switches::new(options.hedge);
    let store = Arc::new(Hedging::new(dialect, metrics.clone()).switched(switches.clone()));
    Ok(Arc::new(Retrying::new(store, Policy::from(options), metrics).switched(switches)))
}

/// Asks for the buckets of a store that has many, which shows whether endpoint and credentials are right. Returns what its user should know, one
/// line each: buckets that do not exist or cannot be used, and that the buckets may not be listed.
///
/// # Errors
/// What the endpoint answers, after a few attempts and at most four seconds for each named bucket; of named buckets only where none of them can be
/// used.
pub async fn probe_buckets(store: &Retrying, buckets: &Buckets) -> Result<Vec<String>> {
    let store = store.under(probe_policy(store));
    let Buckets::Named(names) = buckets else {
        let all = ListRequest { prefix: Key::root(), delimited: true, after: None, token: None, max_keys: 1000, any_order: false };
        return match store.list(&all).await {
            Ok(_) => Ok(Vec::new()),
            Err(error) if error.kind == ErrorKind::AccessDenied => Ok(vec![format!(
                "the buckets may not be listed ({}): those whose names are known can be used, and --buckets names those to show",
                error.reason()
            )]),
            Err(error) => Err(error),
        };
    };
    let questions = names.iter().map(|name| {
        let all =
            ListRequest { prefix: Key::from(format!("{name}/")), delimited: true, after: None, token: None, max_keys: 1, any_order: true };
        let store = &store;
        async move { store.list(&all).await.map(|_| ()) }
    });
    let answers = futures::future::join_all(questions).await;
    let (mut notes, mut failures) = (Vec::new(), Vec::new());
    for (name, answer) in names.iter().zip(answers) {
        let Err(error) = answer else { continue };
        notes.push(match error.kind {
            ErrorKind::NotFound => format!("there is no bucket {name}"),
            kind if !kind.is_retryable() => format!("the bucket {name} cannot be used: {}", error.reason()),
            _ => format!("the bucket {name} does not answer now: {}", error.reason()),
        });
        failures.push(error);
    }
    // What may be mended where it is says more than that a name is wrong.
    match failures.into_iter().min_by_key(|error| error.kind == ErrorKind::NotFound) {
        Some(error) if notes.len() == names.len() => Err(error),
        _ => Ok(notes),
    }
}

/// Asks for one key under `prefix`, which shows whether endpoint, bucket, region and credentials are right. An empty
/// answer shows it as well. Returns whether there is a key.
///
/// # Errors
/// What the endpoint answers, after a few attempts and at most four seconds.
pub async fn probe(store: &Retrying, prefix: &Key) -> Result<bool> {
    let request = ListRequest { prefix: prefix.clone(), delimited: false, after: None, token: None, max_keys: 1, any_order: true };
    let page = store.under(probe_policy(store)).list(&request).await?;
    Ok(!page.objects.is_empty() || !page.prefixes.is_empty())
}

fn probe_policy(store: &Retrying) -> Policy {
    let Policy { retries, request_timeout, .. } = store.policy();
    Policy { retries: PROBE.retries.min(retries), request_timeout: PROBE.request_timeout.min(request_timeout), ..PROBE }
}

/// Which bucket and where, for messages: `s3://bucket (endpoint http://127.0.0.1:9000)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    dialect: Dialect,
    bucket: String,
    endpoint: Option<String>,
    region: Option<String>,
    data_host: Option<String>,
}

impl Location {
    /// The place that `options` name.
    pub fn describe(options: &Options) -> Self {
        // What is no endpoint is told by `open`; it is not repeated, because it may hold a secret.
        let parse = |text: &Option<String>| text.as_deref().and_then(|text| Endpoint::parse(text).ok());
        let (endpoint, near) = (parse(&options.endpoint), parse(&options.read_endpoint));
        let data_host = near.or_else(|| endpoint.clone()).and_then(|endpoint| Some(endpoint.url().host_str()?.to_owned()));
        let endpoint = endpoint.map(|endpoint| endpoint.url().as_str().trim_end_matches('/').to_owned());
        Self { dialect: options.dialect, bucket: options.bucket.clone(), endpoint, region: options.region.clone(), data_host }
    }

    /// The host that data is asked for at first, when the options name it.
    pub fn data_host(&self) -> Option<&str> {
        self.data_host.as_deref()
    }

    /// The path of the endpoint, where it has one.
    pub fn path(&self) -> Option<&str> {
        let (_, rest) = self.endpoint.as_deref()?.split_once("://")?;
        rest.find('/').map(|at| &rest[at..])
    }

    /// The address, or the region where the store's own address is meant: what tells it from a bucket of the same name elsewhere.
    pub fn endpoint(&self) -> String {
        let region = || format!("{:?} {}", self.dialect, self.region.as_deref().unwrap_or_default());
        self.endpoint.clone().unwrap_or_else(region)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.dialect {
            Dialect::S3 => "s3",
            Dialect::Oss => "oss",
        };
        write!(f, "{scheme}://{}", self.bucket)?;
        match (&self.endpoint, &self.region) {
            (Some(endpoint), _) => write!(f, " (endpoint {endpoint})"),
            (None, Some(region)) => write!(f, " (region {region})"),
            (None, None) => Ok(()),
        }
    }
}

/// Whether a name of a bucket may have dots.
fn has_dots(options: &Options) -> bool {
    options.dialect == Dialect::S3 && options.quirks.dotted_buckets
}

/// The naming rules that the stores publish; the request for a name that breaks them would be for another resource.
pub(super) fn check_bucket(dots: bool, name: &str) -> Result<(), &'static str> {
    let end = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    match name.as_bytes() {
        _ if dots && Arn::parse(name).is_some_and(|arn| arn.is_access_point()) => Ok(()),
        b"" => Err("is empty: write s3://BUCKET or oss://BUCKET"),
        bytes if !(3..=63).contains(&bytes.len()) => Err("must have 3 to 63 characters"),
        bytes if !bytes.iter().all(|&b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || (dots && b == b'.')) => Err(if dots {
            "may only have lower-case letters, digits, dots and hyphens"
        } else {
            "may only have lower-case letters, digits and hyphens"
        }),
        bytes if !end(bytes.first()) || !end(bytes.last()) => Err("must begin and end with a letter or a digit"),
        _ if name.contains("..") => Err("must not have two dots in a row"),
        _ if name.parse::<std::net::Ipv4Addr>().is_ok() => Err("must not look like an IP address"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
