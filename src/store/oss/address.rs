//! Where an object of the bucket is: endpoint, region, and the one spelling of its URL. Pure. Invariant: a key is
//! percent-encoded exactly once, here.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use reqwest::Url;

use crate::store::endpoint::{Endpoint, EndpointError};
use crate::store::{Key, Options, Signature};

/// What OSS leaves as it is in a query value: the unreserved characters of RFC 3986.
pub(super) const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The same in a path, where `/` separates.
pub(super) const PATH: &AsciiSet = &VALUE.remove(b'/');

/// Why the options give no address.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    #[error("{0}")]
    Endpoint(#[from] EndpointError),
    #[error("neither endpoint nor region is set: set --region, for example cn-hangzhou, or --endpoint")]
    NoEndpoint,
    #[error("signature v4 needs the region and the endpoint \"{0}\" does not tell it: set --region, for example cn-hangzhou")]
    NoRegion(String),
}

/// The address of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Scheme, host and port, with the bucket in the host in virtual-host style, without a `/` at the end.
    origin: String,
    /// What stands before the key in the path: empty in virtual-host style, else `/bucket`.
    base: String,
    pub bucket: String,
    /// Only signature V4 asks for it.
    pub region: Option<String>,
}

impl Address {
    pub fn new(options: &Options) -> Result<Self, AddressError> {
        let region = options.region.as_deref().map(|region| region.trim().trim_start_matches("oss-").to_owned());
        let endpoint = match (&options.endpoint, &region) {
            (Some(text), _) => Endpoint::parse(text)?,
            (None, Some(region)) => Endpoint::parse(&format!("https://oss-{region}.aliyuncs.com"))?,
            (None, None) => return Err(AddressError::NoEndpoint),
        };
        let url = endpoint.url();
        let host = url.host_str().unwrap_or_default();
        // Consoles show the bucket's own host beside the endpoint and people copy that.
        let host = host.strip_prefix(&format!("{}.", options.bucket)).filter(|rest| rest.ends_with(".aliyuncs.com")).unwrap_or(host);
        let region = region.or_else(|| region_of(host));
        if region.is_none() && options.signature == Signature::V4 {
            return Err(AddressError::NoRegion(host.to_owned()));
        }
        let path_style = options.path_style.unwrap_or_else(|| endpoint.wants_path_style());
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let prefix = url.path().trim_end_matches('/');
        let (label, base) = if path_style {
            (String::new(), format!("{prefix}/{}", options.bucket))
        } else {
            (format!("{}.", options.bucket), prefix.to_owned())
        };
        Ok(Self { origin: format!("{}://{label}{host}{port}", url.scheme()), base, bucket: options.bucket.clone(), region })
    }

    /// Whether requests go over TLS.
    pub fn is_https(&self) -> bool {
        self.origin.starts_with("https:")
    }

    /// The URL of a request for `key` (the bucket itself when it is empty); none when no URL can say the key: URLs
    /// resolve `.` and `..` components away, written plainly or percent-encoded.
    pub fn target(&self, key: &Key, query: &[(&str, &[u8])]) -> Option<Url> {
        let path = format!("/{}", percent_encode(key.as_bytes(), PATH));
        // A parameter without a value is signed without its equals sign, and so it is sent.
        let pair = |&(name, value): &(&str, &[u8])| match value {
            b"" => name.to_owned(),
            value => format!("{name}={}", percent_encode(value, VALUE)),
        };
        let query = query.iter().map(pair).collect::<Vec<_>>().join("&");
        let query = if query.is_empty() { query } else { format!("?{query}") };
        let sent = format!("{}{path}", self.base);
        let url = Url::parse(&format!("{}{sent}{query}", self.origin)).ok()?;
        (url.path() == sent).then_some(url)
    }
}

/// The region in a host name of the vendor: `oss-cn-hangzhou[-internal].aliyuncs.com`, or `cn-hangzhou.oss.aliyuncs.com`
/// (dual stack). Others, such as `oss-accelerate`, serve all regions.
fn region_of(host: &str) -> Option<String> {
    let name = host.strip_suffix(".aliyuncs.com")?;
    let region = match name.strip_suffix(".oss") {
        Some(region) => region,
        None => name.strip_prefix("oss-")?.trim_end_matches("-internal"),
    };
    // Regions are words joined by hyphens; a single word is a service such as accelerate, as is accelerate-overseas.
    let plain = region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    (plain && region.contains('-') && !region.starts_with("accelerate")).then(|| region.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: &str) -> Options {
        Options { bucket: "data".into(), endpoint: Some(endpoint.into()), region: Some("r-1".into()), ..Options::default() }
    }

    fn url(options: &Options, key: &str) -> String {
        Address::new(options).unwrap().target(&Key::from(key), &[]).unwrap().to_string()
    }

    #[test]
    fn the_region_comes_from_the_option_or_the_vendors_host_names() {
        for (host, region) in [
            ("oss-cn-hangzhou.aliyuncs.com", Some("cn-hangzhou")),
            ("oss-ap-southeast-1-internal.aliyuncs.com", Some("ap-southeast-1")),
            ("cn-beijing.oss.aliyuncs.com", Some("cn-beijing")),
            ("oss-accelerate.aliyuncs.com", None),
            ("oss-accelerate-overseas.aliyuncs.com", None),
            ("oss-cn-hangzhou.example.com", None),
        ] {
            assert_eq!(region_of(host).as_deref(), region, "{host}");
        }
        let named = Options { endpoint: None, region: Some("oss-cn-beijing".into()), ..options("x") };
        let address = Address::new(&named).unwrap();
        assert_eq!((address.origin.as_str(), address.region.as_deref()), ("https://data.oss-cn-beijing.aliyuncs.com", Some("cn-beijing")));
    }

    #[test]
    fn a_region_that_nothing_tells_is_asked_for_when_the_signature_needs_it() {
        let unknown = Options { region: None, ..options("http://127.0.0.1:80") };
        assert!(Address::new(&unknown).unwrap_err().to_string().contains("--region"));
        assert!(Address::new(&Options { signature: Signature::V1, ..unknown.clone() }).is_ok());
        assert!(Address::new(&Options { signature: Signature::None, ..unknown.clone() }).is_ok());
        assert!(Address::new(&Options { endpoint: None, ..unknown }).unwrap_err().to_string().contains("--endpoint"));
    }

    #[test]
    fn the_bucket_stands_in_the_host_or_in_the_path() {
        for (endpoint, path_style, expected) in [
            ("oss-cn-hangzhou.aliyuncs.com", None, "https://data.oss-cn-hangzhou.aliyuncs.com/k"),
            ("data.oss-cn-hangzhou.aliyuncs.com", None, "https://data.oss-cn-hangzhou.aliyuncs.com/k"),
            ("http://store.example.com:8080", None, "http://data.store.example.com:8080/k"),
            ("http://store.example.com", Some(true), "http://store.example.com/data/k"),
            ("127.0.0.1:9000", None, "http://127.0.0.1:9000/data/k"),
            ("localhost:9000", Some(false), "http://data.localhost:9000/k"),
            ("http://gate.example.com/oss/", Some(true), "http://gate.example.com/oss/data/k"),
        ] {
            assert_eq!(url(&Options { path_style, ..options(endpoint) }, "k"), expected);
        }
    }

    #[test]
    fn keys_are_encoded_exactly_once_and_any_byte_can_be_said() {
        let path = options("127.0.0.1:9000");
        for (key, encoded) in [
            ("sp ace/plus+/pct%41", "sp%20ace/plus%2B/pct%2541"),
            ("中?#", "%E4%B8%AD%3F%23"),
            ("a//b/", "a//b/"),
            ("/lead", "/lead"),
            ("~-_.!*'()", "~-_.%21%2A%27%28%29"),
            ("a\nb\\", "a%0Ab%5C"),
        ] {
            assert_eq!(url(&path, key), format!("http://127.0.0.1:9000/data/{encoded}"));
        }
        let address = Address::new(&path).unwrap();
        assert!(address.target(&Key::from(&b"\xff\x00"[..]), &[]).unwrap().path().ends_with("/%FF%00"));
        let target = address.target(&Key::root(), &[("prefix", b"a b/"), ("x", b"")]).unwrap();
        assert_eq!(target.as_str(), "http://127.0.0.1:9000/data/?prefix=a%20b%2F&x");
    }

    #[test]
    fn keys_that_urls_resolve_away_are_refused() {
        let address = Address::new(&options("127.0.0.1:9000")).unwrap();
        for key in ["a/../b", "..", "./a", "a/."] {
            assert!(address.target(&Key::from(key), &[]).is_none(), "{key}");
        }
        assert!(address.target(&Key::from("a/..b/.c"), &[]).is_some());
    }
}
