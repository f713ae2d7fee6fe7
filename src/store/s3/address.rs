//! Where a bucket is and how requests for it are signed: what the endpoint rules of the vendor's SDK say of its name, the region and the options. Pure.
//! Invariant: a region is one label of a host name and nothing more.

use aws_sdk_s3::config::endpoint::{DefaultResolver, Params, ResolveEndpoint};
use reqwest::Url;

use crate::store::answer::innermost;
use crate::store::arn::Arn;
use crate::store::endpoint::{self, Endpoint};

/// Any region that the rules know. At an endpoint of its own a store may have regions of any name, which are signed and have no part in its address.
const KNOWN_REGION: &str = "us-east-1";

/// Why there is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    #[error("\"{0}\" is not a region: set --region to the region of the bucket, for example us-east-1")]
    Region(String),
    #[error("no label can stand before the address {0}, and the ARN of an access point needs one: name the endpoint by its host name")]
    ArnAtNumber(String),
    #[error("{0} is for the addresses of AWS: leave it out, or --endpoint")]
    OwnEndpoint(&'static str),
    #[error("{0} has an address of AWS alone, and the endpoint is another: leave out --endpoint, and AWS_ENDPOINT_URL")]
    OfAwsAlone(String),
    /// The rules have no address for the combination.
    #[error("{reason}: {advice}")]
    NoRule { reason: String, advice: String },
    #[error("the endpoint rules of the SDK name {0}, which is not understood")]
    Unknown(String),
}

/// What the address of a bucket depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// A name, or the ARN of an access point. Empty: where buckets are listed.
    pub bucket: &'a str,
    pub region: &'a str,
    /// None: the addresses of AWS.
    pub endpoint: Option<&'a Endpoint>,
    pub path_style: bool,
    pub fips: bool,
    pub dual_stack: bool,
    pub accelerate: bool,
}

/// Where a bucket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Without a slash at its end: `http://host/bucket`, or `https://bucket.host`.
    pub base: String,
    pub scheme: Scheme,
}

/// How requests are signed, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// AWS Signature Version 4, for one region.
    V4 { service: String, region: String },
    /// AWS Signature Version 4A, for a set of regions: `*` or several separated by commas.
    V4a { service: String, region_set: String },
    /// AWS Signature Version 4 with the keys of a session of a directory bucket, whose token has a header of its own:
    /// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-create-session.html>
    Session { service: String, region: String },
}

impl Scheme {
    /// Returns the region that signatures are valid in; of Version 4A the set of them.
    pub fn region(&self) -> &str {
        match self {
            Self::V4 { region, .. } | Self::Session { region, .. } => region,
            Self::V4a { region_set, .. } => region_set,
        }
    }

    /// How requests are signed that open a session, or do not belong to one: with the keys of the account.
    pub fn without_session(&self) -> Self {
        match self {
            Self::Session { service, region } => Self::V4 { service: service.clone(), region: region.clone() },
            Self::V4 { .. } | Self::V4a { .. } => self.clone(),
        }
    }
}

impl Wanted<'_> {
    /// Asks the rules of the SDK.
    pub async fn resolve(&self) -> Result<Address, AddressError> {
        let is_arn = Arn::parse(self.bucket).is_some();
        let known_region = match self.endpoint {
            None if !is_label(self.region) => return Err(AddressError::Region(self.region.to_owned())),
            Some(_) if !is_arn => KNOWN_REGION,
            _ => self.region,
        };
        let is_numeric = self.endpoint.is_some_and(|endpoint| endpoint::is_numeric(endpoint.url()));
        if let Some(endpoint) = self.endpoint {
            if is_arn && is_numeric {
                return Err(AddressError::ArnAtNumber(endpoint.url().host_str().unwrap_or_default().to_owned()));
            }
            if let Some(option) = self.variants().next() {
                return Err(AddressError::OwnEndpoint(option));
            }
        }
        let params = Params::builder()
            .set_bucket(Some(self.bucket).filter(|bucket| !bucket.is_empty()).map(str::to_owned))
            .region(known_region)
            .force_path_style(self.path_style || is_numeric)
            .use_fips(self.fips)
            .use_dual_stack(self.dual_stack)
            .accelerate(self.accelerate)
            // The rules put a bucket right behind the path.
            .set_endpoint(self.endpoint.map(|endpoint| format!("{}/", endpoint.url().as_str().trim_end_matches('/'))))
            .build()
            .expect("no parameter is required");
        let found = DefaultResolver::new().resolve_endpoint(&params).await;
        let found = found.map_err(|error| AddressError::NoRule { reason: innermost(&*error), advice: self.advice(is_arn) })?;
        let scheme = found.auth_schemes().first().ok_or_else(|| AddressError::Unknown("no signature".into()))?;
        let text = |name| scheme.get(name).and_then(|value| value.as_string()).map(str::to_owned);
        let service = text("signingName").unwrap_or_else(|| "s3".to_owned());
        let scheme = match scheme.name() {
            "sigv4" => {
                let region = text("signingRegion").unwrap_or_else(|| known_region.to_owned());
                // Of a plain bucket at an endpoint of its own only the option knows the region.
                let region = if self.endpoint.is_some() && !is_arn { self.region.to_owned() } else { region };
                Scheme::V4 { service, region }
            }
            "sigv4a" => {
                let regions = scheme.get("signingRegionSet").and_then(|value| value.as_array()).map_or(&[][..], Vec::as_slice);
                let regions: Vec<&str> = regions.iter().filter_map(|region| region.as_string()).collect();
                Scheme::V4a { service, region_set: regions.join(",") }
            }
            "sigv4-s3express" => {
                let region = text("signingRegion").filter(|_| self.endpoint.is_none());
                Scheme::Session { service, region: region.unwrap_or_else(|| self.region.to_owned()) }
            }
            other => return Err(AddressError::Unknown(format!("the signature {other}"))),
        };
        let base = found.url().trim_end_matches('/').to_owned();
        // For some names the rules pass over the endpoint, and the requests, with their data, would leave for another place than the one that was named.
        if self.endpoint.is_some_and(|endpoint| !is_below(&base, endpoint)) {
            return Err(AddressError::OfAwsAlone(self.bucket.to_owned()));
        }
        Ok(Address { base, scheme })
    }

    /// The options that choose among the addresses of AWS.
    fn variants(&self) -> impl Iterator<Item = &'static str> {
        let all = [("--fips", self.fips), ("--dual-stack", self.dual_stack), ("--accelerate", self.accelerate)];
        all.into_iter().filter(|(_, is_on)| *is_on).map(|(option, _)| option)
    }

    /// What to try where the rules have no address.
    fn advice(&self, is_arn: bool) -> String {
        let mut given: Vec<&str> = self.variants().collect();
        given.extend((self.path_style && is_arn).then_some("--path-style"));
        match given[..] {
            [] if is_arn => "compare the ARN with that of the console, and --region with its region".to_owned(),
            [] => "check the name of the bucket, and --region".to_owned(),
            [one] => format!("leave out {one}"),
            _ => format!("leave out one of {}", given.join(", ")),
        }
    }
}

/// Whether the host of `base` is that of `endpoint` or has labels before it.
fn is_below(base: &str, endpoint: &Endpoint) -> bool {
    let host = Url::parse(base).ok().and_then(|base| base.host_str().map(str::to_owned)).unwrap_or_default();
    let of_endpoint = endpoint.url().host_str().unwrap_or_default();
    host.strip_suffix(of_endpoint).is_some_and(|labels| labels.is_empty() || labels.ends_with('.'))
}

/// Letters, digits and hyphens: the region is a part of the host name, and whatever else it holds would lead to another host.
fn is_label(region: &str) -> bool {
    let plain = region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    plain && (1..=63).contains(&region.len()) && !region.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted<'a>(bucket: &'a str, region: &'a str, endpoint: Option<&'a Endpoint>) -> Wanted<'a> {
        Wanted { bucket, region, endpoint, path_style: false, fips: false, dual_stack: false, accelerate: false }
    }

    #[tokio::test]
    async fn an_endpoint_may_have_a_path_and_any_region() {
        let endpoint = Endpoint::parse("https://s3.example.com:8080/gateway/").unwrap();
        for region in ["r", "us-east-1", "my region", "aws-global"] {
            for (path_style, expected) in
                [(true, "https://s3.example.com:8080/gateway/data"), (false, "https://data.s3.example.com:8080/gateway")]
            {
                let address = Wanted { path_style, ..wanted("data", region, Some(&endpoint)) }.resolve().await.unwrap();
                assert_eq!((address.base.as_str(), address.scheme.region()), (expected, region));
            }
        }
    }

    #[tokio::test]
    async fn no_bucket_stands_before_a_number() {
        for (endpoint, base) in [("127.0.0.1:9000", "http://127.0.0.1:9000/my.data"), ("https://[::1]:9000", "https://[::1]:9000/my.data")]
        {
            let endpoint = Endpoint::parse(endpoint).unwrap();
            assert_eq!(wanted("my.data", "r", Some(&endpoint)).resolve().await.unwrap().base, base);
        }
    }

    #[tokio::test]
    async fn a_region_never_becomes_another_host() {
        for region in ["", "bad region", "evil.example/", "-x", "a@b"] {
            for path_style in [true, false] {
                let found = Wanted { path_style, ..wanted("data", region, None) }.resolve().await;
                assert_eq!(found, Err(AddressError::Region(region.into())));
            }
        }
    }

    #[tokio::test]
    async fn an_endpoint_is_never_passed_over() {
        let endpoint = Endpoint::parse("http://localhost:9000").unwrap();
        let multi_region = "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap";
        let found = wanted(multi_region, "us-east-1", Some(&endpoint)).resolve().await;
        assert_eq!(found, Err(AddressError::OfAwsAlone(multi_region.into())));
        assert!(wanted(multi_region, "us-east-1", None).resolve().await.is_ok());
    }

    #[tokio::test]
    async fn buckets_are_listed_at_the_endpoint_or_the_region() {
        let endpoint = Endpoint::parse("https://s3.example.com:8080/gateway/").unwrap();
        for (region, endpoint, base) in [
            ("r", Some(&endpoint), "https://s3.example.com:8080/gateway"),
            ("cn-north-1", None, "https://s3.cn-north-1.amazonaws.com.cn"),
            ("us-east-1", None, "https://s3.us-east-1.amazonaws.com"),
        ] {
            let address = wanted("", region, endpoint).resolve().await.unwrap();
            assert_eq!((address.base.as_str(), address.scheme.region()), (base, region));
        }
    }

    #[tokio::test]
    async fn what_cannot_be_combined_says_what_to_leave_out() {
        let named = Endpoint::parse("https://s3.example.com").unwrap();
        let number = Endpoint::parse("127.0.0.1:9000").unwrap();
        let arn = "arn:aws:s3:us-west-2:123456789012:accesspoint/test";
        let multi_region = "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap";
        let of = |bucket, region| wanted(bucket, region, None);
        for (wanted, expected) in [
            (
                Wanted { fips: true, ..wanted("data", "us-east-1", Some(&named)) },
                "--fips is for the addresses of AWS: leave it out, or --endpoint",
            ),
            (
                Wanted { accelerate: true, fips: true, ..of("data", "us-east-1") },
                "Accelerate cannot be used with FIPS: leave out one of --fips, --accelerate",
            ),
            (Wanted { accelerate: true, ..of(arn, "us-west-2") }, "Access Points do not support S3 Accelerate: leave out --accelerate"),
            (
                Wanted { path_style: true, ..of(arn, "us-west-2") },
                "Path-style addressing cannot be used with ARN buckets: leave out --path-style",
            ),
            (Wanted { dual_stack: true, ..of(multi_region, "us-west-2") }, "S3 MRAP does not support dual-stack: leave out --dual-stack"),
            (of(arn, "cn-north-1"), "compare the ARN with that of the console, and --region with its region"),
            (wanted(arn, "us-west-2", Some(&number)), "name the endpoint by its host name"),
        ] {
            let error = wanted.resolve().await.unwrap_err().to_string();
            assert!(error.ends_with(expected), "{error}");
        }
    }
}
