//! The address of a store as people write it: with or without a scheme, by name or by number. It resolves nothing.

use std::net::IpAddr;

use reqwest::Url;

/// Why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not an endpoint: {reason}; write for example https://s3.example.com or 127.0.0.1:9000")]
pub(super) struct EndpointError {
    text: String,
    reason: &'static str,
}

/// The URL of a store, without a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint(Url);

impl Endpoint {
    /// Without a scheme, http for addresses and `localhost`, which have no certificates, and https for names.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let fail = |reason| EndpointError { text: shown(text), reason };
        let trimmed = text.trim().trim_end_matches('/');
        let url = if trimmed.contains("://") {
            Url::parse(trimmed)
        } else {
            // Parsed as http first, only to see what the host is.
            let local = Url::parse(&format!("http://{trimmed}")).is_ok_and(|url| is_local(&url));
            Url::parse(&format!("{}://{trimmed}", if local { "http" } else { "https" }))
        };
        let url = url.map_err(|_| fail("it is no URL"))?;
        match url {
            _ if !matches!(url.scheme(), "http" | "https") => Err(fail("the scheme must be http or https")),
            _ if !url.has_host() => Err(fail("it has no host")),
            _ if !url.username().is_empty() || url.password().is_some() => Err(fail("credentials do not belong into it")),
            _ if url.query().is_some() || url.fragment().is_some() => Err(fail("it has a query")),
            _ => Ok(Self(url)),
        }
    }

    pub fn url(&self) -> &Url {
        &self.0
    }

    /// Whether the bucket must stand in the path, because it cannot be a label before the host.
    pub fn wants_path_style(&self) -> bool {
        is_local(&self.0)
    }
}

/// Whether requests for this endpoint go through the proxy that the environment names. To the machine itself they
/// never do: a proxy elsewhere could not reach it.
pub(super) fn goes_through_proxy(endpoint: Option<&str>) -> bool {
    let url = endpoint.and_then(|text| Endpoint::parse(text).ok());
    !url.is_some_and(|endpoint| {
        let host = bare_host(endpoint.url()).to_ascii_lowercase();
        host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

fn bare_host(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

fn is_local(url: &Url) -> bool {
    is_numeric(url) || bare_host(url).eq_ignore_ascii_case("localhost")
}

/// Whether the host is an address, before which no label can stand.
pub(super) fn is_numeric(url: &Url) -> bool {
    bare_host(url).parse::<IpAddr>().is_ok()
}

/// The text for a message: what stands before an `@` or behind a `?` may be a secret.
fn shown(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    text.rsplit_once('@').map_or(text, |(_, host)| host).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_scheme_is_added() {
        for (text, url, path_style) in [
            ("127.0.0.1:9000", "http://127.0.0.1:9000/", true),
            ("localhost:9000/", "http://localhost:9000/", true),
            ("[::1]:9000", "http://[::1]:9000/", true),
            ("https://10.0.0.1", "https://10.0.0.1/", true),
            ("s3.example.com", "https://s3.example.com/", false),
            (" http://s3.example.com:80/ ", "http://s3.example.com/", false),
            ("oss-cn-hangzhou.aliyuncs.com", "https://oss-cn-hangzhou.aliyuncs.com/", false),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!((endpoint.url().as_str(), endpoint.wants_path_style()), (url, path_style), "{text}");
        }
    }

    #[test]
    fn only_the_machine_itself_is_reached_without_the_proxy() {
        for direct in ["127.0.0.1:9000", "localhost", "http://b.localhost:80", "[::1]:9000"] {
            assert!(!goes_through_proxy(Some(direct)), "{direct}");
        }
        for proxied in [None, Some("10.0.0.1:9000"), Some("s3.example.com"), Some("notlocalhost")] {
            assert!(goes_through_proxy(proxied), "{proxied:?}");
        }
    }

    #[test]
    fn what_is_no_endpoint_says_why_and_keeps_secrets() {
        for (text, reason) in [
            ("", "no URL"),
            ("ftp://host", "http or https"),
            ("http://key:secret@host", "credentials"),
            ("http://host/?X-Amz-Signature=secret", "query"),
            ("http://ho st", "no URL"),
        ] {
            let message = Endpoint::parse(text).unwrap_err().to_string();
            assert!(message.contains(reason) && !message.contains("secret"), "{message}");
        }
    }
}
