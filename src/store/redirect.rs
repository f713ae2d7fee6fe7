//! Redirects, of every verb: where a request continues, with or without a signature, and the target of the last redirect of each object's reads.
//! It sends nothing itself: each client asks its [`Course`] after each response. Invariant: headers that carry credentials, and
//! bodies, leave only for the host that they were made for, or for a host on the allow-list; an https request never continues over http.
//!
//! A body has been sent by the time the redirect arrives: the HTTP library does not report `100 Continue`, so waiting for it is not possible. The
//! first copy goes to the endpoint, which is trusted with it; the target gets the whole body again.

use std::time::Duration;

use http::{HeaderMap, HeaderName, Method, StatusCode, header};
use moka::sync::Cache;
use reqwest::Url;

use super::signing::SignedGet;
use super::{Error, ErrorKind, Key, Op};

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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("redirected without a usable location")]
    NoLocation,
    #[error("redirected from https to http, which is refused")]
    Downgrade,
    #[error("more than {MAX_HOPS} redirects")]
    Endless,
    #[error("redirected to {0}, which is not in --redirect-hosts: add it if this host may see signatures and data of the bucket")]
    Stranger(String),
}

impl Refused {
    /// The error of the request whose response with `status` was the redirect. Another attempt meets it again.
    pub fn into_error(self, op: Op, key: &Key, status: StatusCode) -> Error {
        Error { status: Some(status.as_u16()), ..Error::new(ErrorKind::WrongEndpoint, op, key, self.to_string()) }
    }
}

/// Where a request continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Onward {
    pub url: Url,
    /// Whether it is signed for the new host. Otherwise it carries no credentials.
    pub is_signed: bool,
}

/// One request on its way through redirects.
#[derive(Debug)]
pub(super) struct Course<'a> {
    allowed: &'a AllowList,
    /// The URL that the request was signed for.
    signed: Url,
    is_anonymous: bool,
    /// Whether it only reads, and so has no body that a stranger could see.
    reads: bool,
    hops: usize,
}

impl<'a> Course<'a> {
    pub fn new(allowed: &'a AllowList, method: &Method, signed: &SignedGet) -> Self {
        let is_anonymous = !signed.headers.contains_key(header::AUTHORIZATION);
        Self { allowed, signed: signed.url.clone(), is_anonymous, reads: matches!(*method, Method::GET | Method::HEAD), hops: 0 }
    }

    /// Returns where the request continues after a response to `from`; `None` when the response is no redirect.
    pub fn next(&mut self, from: &Url, status: StatusCode, headers: &HeaderMap) -> Result<Option<Onward>, Refused> {
        if !leads_elsewhere(status, headers) {
            return Ok(None);
        }
        if self.hops == MAX_HOPS {
            return Err(Refused::Endless);
        }
        self.hops += 1;
        let url = location(from, headers)?;
        let is_trusted = self.allowed.trusts(&self.signed, &url);
        // Needs nothing of ours: the target's own signature is in its URL, or the bucket is public.
        let needs_no_signature = is_presigned(&url) || self.is_anonymous;
        match () {
            () if is_trusted => Ok(Some(Onward { is_signed: !is_presigned(&url), url })),
            () if self.reads && needs_no_signature => Ok(Some(Onward { is_signed: false, url })),
            () => Err(Refused::Stranger(authority(&url))),
        }
    }
}

/// Whether an answer sends a request elsewhere. S3 also says "wrong region" with a 301, mostly without a location; following
/// it would only hide the right region behind a refusal, as the signature does not go along.
fn leads_elsewhere(status: StatusCode, headers: &HeaderMap) -> bool {
    let wrong_region = status == StatusCode::MOVED_PERMANENTLY && headers.contains_key("x-amz-bucket-region");
    matches!(status.as_u16(), 301 | 302 | 307 | 308) && headers.contains_key(header::LOCATION) && !wrong_region
}

/// The URL that an answer to a request for `from` redirects to.
fn location(from: &Url, answer: &HeaderMap) -> Result<Url, Refused> {
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
fn is_presigned(target: &Url) -> bool {
    target.query_pairs().any(|(name, _)| ["x-amz-signature", "x-oss-signature", "signature"].contains(&&*name.to_ascii_lowercase()))
}

/// The headers without those that carry credentials.
pub(super) fn without_credentials(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
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
    headers
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
    fn only_reads_that_need_no_signature_continue_at_a_stranger() {
        let answer = |text: &str| HeaderMap::from_iter([(header::LOCATION, HeaderValue::try_from(text).unwrap())]);
        let list = AllowList::new(&["friend".into()]);
        let stranger = Err(Refused::Stranger("evil:80".into()));
        let to = |text: &str, is_signed| Ok(Some(Onward { url: url(text), is_signed }));
        let (presigned, friend) = ("http://evil/k?X-Amz-Signature=1", "http://friend/k");
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE] {
            let reads = matches!(method, Method::GET | Method::HEAD);
            for is_anonymous in [false, true] {
                let authorization = (!is_anonymous).then(|| (header::AUTHORIZATION, HeaderValue::from_static("v")));
                let signed = SignedGet { url: url("http://store/b/k"), headers: authorization.into_iter().collect(), by: None };
                let next = |location: &str| {
                    let mut course = Course::new(&list, &method, &signed);
                    course.next(&signed.url, StatusCode::TEMPORARY_REDIRECT, &answer(location))
                };
                assert_eq!(next(friend), to(friend, true), "{method} {is_anonymous}");
                assert_eq!(next("/elsewhere"), to("http://store/elsewhere", true), "{method} {is_anonymous}");
                let expected = if reads { to(presigned, false) } else { stranger.clone() };
                assert_eq!(next(presigned), expected, "{method} {is_anonymous}");
                let expected = if reads && is_anonymous { to("http://evil/k", false) } else { stranger.clone() };
                assert_eq!(next("http://evil/k"), expected, "{method} {is_anonymous}");
            }
        }
    }

    #[test]
    fn a_course_ends_at_a_downgrade_and_after_its_hops() {
        let list = AllowList::new(&["b".into()]);
        let answer = |text: &'static str| HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_static(text))]);
        let signed = SignedGet { url: url("http://a/k"), headers: HeaderMap::new(), by: None };
        let mut course = Course::new(&list, &Method::PUT, &signed);
        let onward = course.next(&signed.url, StatusCode::FOUND, &answer("https://b/k")).unwrap().unwrap();
        // The hop before decides, not where the request began.
        assert_eq!(course.next(&onward.url, StatusCode::FOUND, &answer("http://a/k")), Err(Refused::Downgrade));
        let mut course = Course::new(&list, &Method::PUT, &signed);
        for _ in 0..MAX_HOPS {
            assert!(course.next(&signed.url, StatusCode::PERMANENT_REDIRECT, &answer("/k")).unwrap().is_some());
        }
        assert_eq!(course.next(&signed.url, StatusCode::PERMANENT_REDIRECT, &answer("/k")), Err(Refused::Endless));
        assert_eq!(course.next(&signed.url, StatusCode::OK, &answer("/k")), Ok(None));
    }

    #[test]
    fn stripped_headers_keep_range_and_condition() {
        let names = ["authorization", "x-amz-date", "x-amz-security-token", "x-oss-date", "date", "range", "if-match"];
        let mut headers = names.iter().map(|&n| (HeaderName::from_static(n), HeaderValue::from_static("v"))).collect::<HeaderMap>();
        headers = without_credentials(&headers);
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
