//! Redirects of data GETs: which target may see the signature, and which target an object was sent to last time.
//! It sends nothing itself. Invariant: headers that prove who we are leave only for the host that they were made
//! for, or for a host on the allow-list; an https request never continues over http.

use std::time::Duration;

use http::{HeaderMap, HeaderName, StatusCode, header};
use moka::sync::Cache;
use reqwest::Url;

use super::Key;

/// More hops than this are a loop or a misconfiguration; caches in front of a store need one.
pub(super) const MAX_HOPS: usize = 5;

/// Targets remembered: the objects being read at one time, which are a few hundred at most.
const REMEMBERED: u64 = 1024;

/// A target is asked for again after this time, because the server that redirects balances load by it.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);

/// The host and port of a URL, as an entry of the allow-list.
pub(super) fn authority(url: &Url) -> String {
    format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default())
}

/// Where a redirect leads and with which headers.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub url: Url,
    pub headers: HeaderMap,
}

/// Why a redirect is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("redirected without a usable location")]
    NoLocation,
    #[error("redirected from https to http, which is refused")]
    Downgrade,
}

/// Whether an answer sends a GET elsewhere. S3 also says "wrong region" with a 301, mostly without a location; following
/// it would only hide the right region behind a refusal, as the signature does not go along.
pub(super) fn leads_elsewhere(status: StatusCode, headers: &HeaderMap) -> bool {
    let wrong_region = status == StatusCode::MOVED_PERMANENTLY && headers.contains_key("x-amz-bucket-region");
    matches!(status.as_u16(), 301 | 302 | 307 | 308) && headers.contains_key(header::LOCATION) && !wrong_region
}

/// The URL that an answer to a request for `from` redirects to.
pub(super) fn location(from: &Url, answer: &HeaderMap) -> Result<Url, Refused> {
    let text = answer.get(header::LOCATION).and_then(|value| value.to_str().ok()).ok_or(Refused::NoLocation)?;
    let target = from.join(text).map_err(|_| Refused::NoLocation)?;
    match (from.scheme(), target.scheme()) {
        ("https", "http") => Err(Refused::Downgrade),
        (_, "http" | "https") if target.has_host() => Ok(target),
        _ => Err(Refused::NoLocation),
    }
}

/// Whether the target carries its signature in its query, as a presigned URL does; a second one in the headers
/// would make the store refuse both.
pub(super) fn is_presigned(target: &Url) -> bool {
    target.query_pairs().any(|(name, _)| ["x-amz-signature", "x-oss-signature", "signature"].contains(&&*name.to_ascii_lowercase()))
}

/// Takes out every header that proves who we are.
pub(super) fn strip_credentials(headers: &mut HeaderMap) {
    let secret = |name: &HeaderName| {
        let text = name.as_str();
        [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE, header::DATE].contains(name)
            || text.starts_with("x-amz-")
            || text.starts_with("x-oss-")
    };
    let names: Vec<HeaderName> = headers.keys().filter(|name| secret(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Hosts besides the endpoint that may see our signature: `host`, `host:port`, or `.domain` for all below it.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowList(Vec<String>);

impl AllowList {
    pub fn new(hosts: &[String]) -> Self {
        Self(hosts.iter().map(|host| host.trim().to_ascii_lowercase()).filter(|host| !host.is_empty()).collect())
    }

    /// Whether a signature made for `signed` may be shown to `target`.
    pub fn trusts(&self, signed: &Url, target: &Url) -> bool {
        let authority = |url: &Url| Some((url.host_str()?.to_ascii_lowercase(), url.port_or_known_default()?));
        if authority(signed) == authority(target) {
            return true;
        }
        let Some((host, port)) = authority(target) else { return false };
        self.0.iter().any(|entry| match entry.strip_prefix('.') {
            Some(domain) => host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
            None => *entry == host || *entry == format!("{host}:{port}"),
        })
    }
}

/// The targets of recent redirects, so that the next range of an object goes there at once.
#[derive(Clone, Debug)]
pub(super) struct Remembered(Cache<Key, Target>);

impl Remembered {
    pub fn new() -> Self {
        Self(Cache::builder().max_capacity(REMEMBERED).time_to_live(REMEMBERED_FOR).build())
    }

    pub fn get(&self, key: &Key) -> Option<Target> {
        self.0.get(key)
    }

    pub fn insert(&self, key: &Key, target: Target) {
        self.0.insert(key.clone(), target);
    }

    pub fn forget(&self, key: &Key) {
        self.0.invalidate(key);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn a_location_is_absolute_or_relative_but_never_a_downgrade() {
        let answer = |text: &'static str| HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_static(text))]);
        let from = url("https://b.store/dir/k");
        assert_eq!(location(&from, &answer("https://other:81/k")), Ok(url("https://other:81/k")));
        assert_eq!(location(&from, &answer("/x")), Ok(url("https://b.store/x")));
        assert_eq!(location(&from, &answer("http://b.store/x")), Err(Refused::Downgrade));
        assert_eq!(location(&from, &answer("ftp://b.store/x")), Err(Refused::NoLocation));
        assert_eq!(location(&from, &HeaderMap::new()), Err(Refused::NoLocation));
        assert_eq!(location(&url("http://b/k"), &answer("https://c/k")), Ok(url("https://c/k")));
    }

    #[test]
    fn only_the_signed_host_and_the_allow_list_are_trusted() {
        let list = AllowList::new(&["cache.local".into(), "peer:9000".into(), ".trusted.example".into(), String::new()]);
        let signed = url("http://store:8080/b/k");
        for (target, trusted) in [
            ("http://store:8080/elsewhere", true),
            ("http://STORE:8080/elsewhere", true),
            ("http://store:8081/b/k", false),
            ("http://store/b/k", false),
            ("http://cache.local:1234/k", true),
            ("http://peer:9000/k", true),
            ("http://peer:9001/k", false),
            ("https://a.trusted.example/k", true),
            ("https://trusted.example/k", false),
            ("https://eviltrusted.example/k", false),
            ("http://evil/?cache.local", false),
        ] {
            assert_eq!(list.trusts(&signed, &url(target)), trusted, "{target}");
        }
        assert!(!AllowList::default().trusts(&signed, &url("http://cache.local/k")));
    }

    #[test]
    fn stripped_headers_keep_range_and_condition() {
        let names = ["authorization", "x-amz-date", "x-amz-security-token", "x-oss-date", "date", "range", "if-match"];
        let mut headers = names.iter().map(|&n| (HeaderName::from_static(n), HeaderValue::from_static("v"))).collect::<HeaderMap>();
        strip_credentials(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["if-match", "range"]);
    }

    #[test]
    fn presigned_targets_are_recognised() {
        assert!(is_presigned(&url("http://h/k?X-Amz-Date=1&X-Amz-Signature=2")));
        assert!(is_presigned(&url("http://h/k?OSSAccessKeyId=1&Signature=2")));
        assert!(!is_presigned(&url("http://h/k?versionId=1")));
    }
}
