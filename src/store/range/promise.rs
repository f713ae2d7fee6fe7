//! What a GET of one range of one version asks for, and whether the head of an answer promises just that. It sends and reads nothing. Invariant:
//! what passes here is the range, and of the version, that was asked for, as far as a head can tell.

use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::store::requests::version_in;
use crate::store::{ETag, Error, ErrorKind, Key, Op, RangeRequest, Result};

/// The headers that make a GET of an object a GET of one range of one version.
pub(super) struct Conditions(pub Vec<(HeaderName, HeaderValue)>);

impl Conditions {
    /// With `is_matched` the server is to compare the version; [`check`] compares it in any case. With `is_whole` the range is all of the object and
    /// is not named: S3, MinIO and moto return the sum of an object only for a request without a range.
    pub fn new(request: &RangeRequest, is_matched: bool, is_whole: bool) -> Result<Self> {
        let Range { start, end } = request.range;
        if request.etag.as_str().is_empty() {
            // Listings of some stores tell no version; whoever meets this asks for the attributes, as for a replaced object.
            return Err(Error::new(ErrorKind::Replaced, Op::Get, &request.key, "the listing told no version of the object"));
        }
        let etag = HeaderValue::from_str(request.etag.as_str())
            .map_err(|_| Error::new(ErrorKind::Invalid, Op::Get, &request.key, "the etag cannot be sent as a header"))?;
        let range = HeaderValue::try_from(format!("bytes={start}-{}", end - 1)).expect("digits are valid in a header");
        let identity = HeaderValue::from_static("identity");
        let mut headers = vec![(header::ACCEPT_ENCODING, identity)];
        headers.extend((!is_whole).then_some((header::RANGE, range)));
        // A weak tag meets no condition: the server would answer 412 to each request.
        if is_matched && !request.etag.is_weak() {
            headers.push((header::IF_MATCH, etag));
        }
        Ok(Self(headers))
    }
}

/// Whether the head of an answer promises exactly the bytes that were asked for.
pub(super) fn check(status: StatusCode, headers: &HeaderMap, length: Option<u64>, request: &RangeRequest) -> Result<()> {
    let Range { start, end } = request.range;
    let etag = named(headers, length, request);
    // Stores exist that accept If-Match and ignore it. This comes first: the Content-Range of another version may differ too,
    // and asking again does not help.
    if etag.as_ref().is_some_and(|etag| !same_version(etag, &request.etag)) {
        return Err(answered(ErrorKind::Replaced, &request.key, status, "the object was replaced".to_owned()));
    }
    match status {
        StatusCode::PARTIAL_CONTENT => {
            let text = headers.get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or("none");
            if content_range(text).is_none_or(|(first, last, total)| first != start || last != end - 1 || total.is_some_and(|t| t < end)) {
                let message = format!("asked for bytes {start}-{}, the answer has Content-Range {text:?}", end - 1);
                return Err(answered(ErrorKind::Corrupt, &request.key, status, message));
            }
        }
        // Some servers answer a range that is the whole object without a 206.
        StatusCode::OK if start == 0 => {}
        status => {
            let message = format!("asked for bytes {start}-{}, the answer is not partial", end - 1);
            return Err(answered(ErrorKind::Malformed, &request.key, status, message));
        }
    }
    if etag.is_none() {
        return Err(answered(ErrorKind::Malformed, &request.key, status, "the answer has no ETag".to_owned()));
    }
    match length {
        Some(length) if length != end - start => {
            let message = format!("asked for {} bytes, the answer has {length}", end - start);
            // A server without range support answers the retry in the same way.
            let kind = if status == StatusCode::OK { ErrorKind::Malformed } else { ErrorKind::Corrupt };
            Err(answered(kind, &request.key, status, message))
        }
        _ => Ok(()),
    }
}

/// The version that an answer names. Where the object has no tag, its size and date are compared in place of one; an answer that has lost the tag of
/// an object with one names none.
fn named(headers: &HeaderMap, length: Option<u64>, request: &RangeRequest) -> Option<ETag> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if !request.etag.is_stand_in() {
        return text(header::ETAG).map(|tag| ETag::from(tag.trim()));
    }
    let size = match text(header::CONTENT_RANGE) {
        Some(range) => content_range(range)?.2?,
        None => length?,
    };
    version_in(headers, size)
}

/// First byte, last byte and size of the object, of `bytes 0-9/100`; the size may be `*`.
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?, total))
}

/// Whether two spellings name one version: listings of some stores leave the quotes out, and proxies mark tags as weak.
fn same_version(answer: &ETag, asked: &ETag) -> bool {
    answer.opaque().trim_matches('"') == asked.opaque().trim_matches('"')
}

/// Whether a 416 comes from another version: it says so, or the object is now too short for a range that lay inside it.
pub(super) fn is_other_version(headers: &HeaderMap, request: &RangeRequest) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match (text(header::ETAG), text(header::CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes */")?.parse::<u64>().ok())) {
        (Some(etag), _) => !same_version(&etag.trim().into(), &request.etag),
        (None, Some(total)) => total < request.range.end,
        (None, None) => false,
    }
}

/// The error that an answer is.
pub(super) fn answered(kind: ErrorKind, key: &Key, status: StatusCode, message: String) -> Error {
    Error { status: Some(status.as_u16()), ..Error::new(kind, Op::Get, key, message) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn request() -> RangeRequest {
        RangeRequest { key: Key::from("k"), range: 10..20, etag: ETag::from("\"v1\"") }
    }

    fn headers(etag: &str, range: &str) -> HeaderMap {
        let all = [(header::ETAG, etag), (header::CONTENT_RANGE, range)].into_iter().filter(|(_, value)| !value.is_empty());
        all.map(|(name, value)| (name, value.parse().unwrap())).collect()
    }

    #[test]
    fn only_the_very_range_of_the_very_version_passes() {
        let whole = "bytes 10-19/100";
        for (status, etag, range, length, expected) in [
            (206, "\"v1\"", whole, Some(10), None),
            (206, "v1", "bytes 10-19/*", None, None),
            (206, "W/\"v1\"", whole, Some(10), None),
            (206, "W/\"v2\"", whole, Some(10), Some(ErrorKind::Replaced)),
            (206, "\"v2\"", "bytes 10-11/12", Some(2), Some(ErrorKind::Replaced)),
            (206, "", whole, Some(10), Some(ErrorKind::Malformed)),
            (206, "\"v1\"", "", Some(10), Some(ErrorKind::Corrupt)),
            (206, "\"v1\"", "bytes 10-18/100", Some(9), Some(ErrorKind::Corrupt)),
            (206, "\"v1\"", "bytes 10-19/15", Some(10), Some(ErrorKind::Corrupt)),
            (206, "\"v1\"", whole, Some(9), Some(ErrorKind::Corrupt)),
            (200, "\"v1\"", "", Some(10), Some(ErrorKind::Malformed)),
        ] {
            let checked = check(StatusCode::from_u16(status).unwrap(), &headers(etag, range), length, &request());
            assert_eq!(checked.err().map(|error| error.kind), expected, "{status} {etag} {range} {length:?}");
        }
        let from_the_beginning = RangeRequest { range: 0..10, ..request() };
        assert!(check(StatusCode::OK, &headers("v1", ""), Some(10), &from_the_beginning).is_ok());
    }

    #[test]
    fn size_and_date_stand_in_for_a_tag_that_there_is_not() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let asked = RangeRequest { etag: ETag::stand_in(None, 100, at(1_330_063_668)), ..request() };
        let partial = StatusCode::PARTIAL_CONTENT;
        let answer = |etag: &str, range: &str, date: &str| {
            let mut headers = headers(etag, range);
            headers.insert(header::LAST_MODIFIED, date.parse().unwrap());
            check(partial, &headers, Some(10), &asked).err().map(|error| error.kind)
        };
        let (range, date) = ("bytes 10-19/100", "Fri, 24 Feb 2012 06:07:48 GMT");
        assert_eq!(answer("", range, date), None);
        assert_eq!(answer("", "bytes 10-19/101", date), Some(ErrorKind::Replaced));
        assert_eq!(answer("", range, "Fri, 24 Feb 2012 06:07:49 GMT"), Some(ErrorKind::Replaced));
        assert_eq!(answer("\"v1\"", range, date), Some(ErrorKind::Replaced), "it was written by the store since");
        let conditions: HeaderMap = Conditions::new(&asked, true, false).unwrap().0.into_iter().collect();
        assert_eq!(conditions.get(header::IF_MATCH), None);
        let mut whole = headers("", "");
        whole.insert(header::LAST_MODIFIED, date.parse().unwrap());
        let all = RangeRequest { range: 0..100, ..asked.clone() };
        assert!(check(StatusCode::OK, &whole, Some(100), &all).is_ok());
        whole.insert("x-amz-version-id", "v7".parse().unwrap());
        assert_eq!(check(StatusCode::OK, &whole, Some(100), &all).unwrap_err().kind, ErrorKind::Replaced);
        let by_id = RangeRequest { etag: ETag::stand_in(Some("v7"), 0, at(0)), ..all };
        assert!(check(StatusCode::OK, &whole, Some(100), &by_id).is_ok());
    }

    #[test]
    fn a_range_beyond_the_end_tells_of_another_version_only_when_it_was_not_asked_for_too_far() {
        assert!(is_other_version(&headers("", "bytes */15"), &request()));
        assert!(!is_other_version(&headers("", "bytes */20"), &request()));
        assert!(is_other_version(&headers("\"v2\"", "bytes */20"), &request()));
        assert!(!is_other_version(&headers("\"v1\"", "bytes */15"), &request()));
        assert!(!is_other_version(&HeaderMap::new(), &request()));
    }

    #[test]
    fn nothing_is_asked_of_a_version_without_a_name() {
        assert_eq!(
            Conditions::new(&RangeRequest { etag: ETag::from(""), ..request() }, true, false).err().map(|error| error.kind),
            Some(ErrorKind::Replaced)
        );
        let asked: HeaderMap = Conditions::new(&request(), true, false).unwrap().0.into_iter().collect();
        assert_eq!(
            (&asked[header::RANGE], &asked[header::IF_MATCH]),
            (&HeaderValue::from_static("bytes=10-19"), &HeaderValue::from_static("\"v1\""))
        );
        for (etag, is_matched) in [("W/\"v1\"", true), ("\"v1\"", false)] {
            let asked: HeaderMap =
                Conditions::new(&RangeRequest { etag: etag.into(), ..request() }, is_matched, false).unwrap().0.into_iter().collect();
            assert_eq!((asked.len(), asked.get(header::IF_MATCH)), (2, None), "{etag}");
        }
    }
}
