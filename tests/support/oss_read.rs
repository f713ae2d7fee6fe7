//! What the OSS server answers to GET, HEAD and ListObjectsV2. It changes nothing.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use hyper::body::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use super::oss_server::{Answer, Counts, Refusal, Setup, no_bucket, respond};
use super::oss_sign::Received;
use super::oss_write::{Writes, iso};

pub fn serve(
    setup: &Setup,
    writes: &Writes,
    received: &Received,
    request: &Request<Bytes>,
    counts: &mut Counts,
) -> Result<Answer, Refusal> {
    if received.bucket.as_ref() != Some(&setup.bucket) {
        return Err(no_bucket());
    }
    let key = received.key.clone().unwrap_or_default();
    match (request.method(), key.is_empty()) {
        (&Method::GET, true) => {
            counts.list += 1;
            Ok(list(setup, writes, received))
        }
        (&Method::GET, false) if received.query.iter().any(|(name, _)| name == "symlink") => {
            let data = find(setup, &key)?;
            let target = writes.target(&key, data).ok_or((400, "NotSymlink", "The object is not symlink.".to_owned()))?;
            let mut headers = if writes.bare_links { Vec::new() } else { object_headers(writes, &key, data) };
            headers.push((header::HeaderName::from_static("x-oss-symlink-target"), target.to_owned()));
            Ok(respond(200, headers, Vec::new()))
        }
        (&Method::GET, false) if received.query.iter().any(|(name, _)| name == "acl" || name == "tagging") => {
            let data = find(setup, &key)?;
            let is_acl = received.query.iter().any(|(name, _)| name == "acl");
            if is_acl {
                counts.acl += 1;
            } else {
                counts.tagging += 1;
            }
            let document = if is_acl { writes.acl(&key, data) } else { writes.tags(&key, data) };
            Ok(respond(200, Vec::new(), document.into_bytes()))
        }
        (&Method::GET, false) => {
            if let Some(target) = setup.redirect_to {
                counts.redirected += 1;
                let location = format!("http://{target}{}", request.uri().path());
                return Ok(respond(307, [(header::LOCATION, location)].into(), Vec::new()));
            }
            counts.get += 1;
            get(setup, writes, &key, request.headers())
        }
        (&Method::HEAD, false) => {
            counts.head += 1;
            let data = find(setup, &key)?;
            // hyper says no length of an empty body that it does not send; OSS does.
            let mut headers = object_headers(writes, &key, data);
            headers.push((header::CONTENT_LENGTH, data.len().to_string()));
            headers.extend(writes.told(&key, data));
            // Links are followed.
            if let Some(target) = writes.target(&key, data)
                && !setup.objects.contains_key(&*percent_decode_str(target).collect::<Vec<u8>>())
            {
                return Err((404, "SymlinkTargetNotExist", "The symlink target does not exist.".into()));
            }
            Ok(respond(200, headers, data.to_vec()))
        }
        _ => Err((405, "MethodNotAllowed", "The specified method is not allowed against this resource.".into())),
    }
}

fn find<'a>(setup: &'a Setup, key: &[u8]) -> Result<&'a [u8], Refusal> {
    setup.objects.get(key).map(Vec::as_slice).ok_or_else(|| (404, "NoSuchKey", "The specified key does not exist.".into()))
}

/// As OSS computes that of an object that was written by one PUT: its MD5 in capitals.
pub fn etag(data: &[u8]) -> String {
    use md5::{Digest, Md5};
    format!("\"{}\"", hex::encode_upper(Md5::digest(data)))
}

fn object_headers(writes: &Writes, key: &[u8], data: &[u8]) -> Vec<(header::HeaderName, String)> {
    [(header::ETAG, writes.tag(key, data)), (header::LAST_MODIFIED, httpdate::fmt_http_date(writes.modified(key, data)))].into()
}

fn get(setup: &Setup, writes: &Writes, key: &[u8], headers: &HeaderMap) -> Result<Answer, Refusal> {
    let data = find(setup, key)?;
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if text(header::IF_MATCH).is_some_and(|tag| tag != writes.tag(key, data)) {
        return Err((412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.".into()));
    }
    let Some((first, last)) = text(header::RANGE).and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Ok(respond(200, [object_headers(writes, key, data), vec![sum_of(data)]].concat(), data.to_vec()));
    };
    let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
    if first >= data.len() {
        return Err((416, "InvalidRange", "The requested range cannot be satisfied.".into()));
    }
    let end = (last + 1).min(data.len());
    let mut headers = object_headers(writes, key, data);
    headers.push((header::CONTENT_RANGE, format!("bytes {first}-{}/{}", end - 1, data.len())));
    headers.push(sum_of(data));
    Ok(respond(206, headers, data[first..end].to_vec()))
}

/// Of all of the object, whatever range was asked for.
fn sum_of(data: &[u8]) -> (header::HeaderName, String) {
    (header::HeaderName::from_static("x-oss-hash-crc64ecma"), windlass::store::Polynomial::Ecma.of(data).to_string())
}

fn list(setup: &Setup, writes: &Writes, received: &Received) -> Answer {
    let parameter = |wanted: &str| received.query.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    assert_eq!((parameter("list-type"), parameter("encoding-type")), (Some("2"), Some("url")));
    let prefix = parameter("prefix").unwrap_or_default().as_bytes();
    let max: usize = parameter("max-keys").unwrap_or("100").parse().unwrap();
    // The token names the last entry of the page before; its characters need encoding, as those of real tokens may.
    let after: Option<Vec<u8>> = parameter("continuation-token").map(|token| BASE64_STANDARD.decode(token).unwrap());
    let mut entries: BTreeMap<Vec<u8>, Option<&[u8]>> = BTreeMap::new();
    let start = parameter("start-after").filter(|_| after.is_none()).unwrap_or_default().as_bytes();
    for (key, data) in setup.objects.iter().filter(|(key, _)| key.starts_with(prefix) && (start.is_empty() || &key[..] > start)) {
        let cut = parameter("delimiter").and_then(|_| key[prefix.len()..].iter().position(|&b| b == b'/'));
        match cut {
            Some(at) => entries.insert(key[..=prefix.len() + at].to_vec(), None),
            None => entries.insert(key.clone(), Some(data)),
        };
    }
    let mut rest = entries.into_iter().filter(|(name, _)| after.as_ref().is_none_or(|after| name > after));
    let page: Vec<_> = rest.by_ref().take(max).collect();
    let mut body = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult><EncodingType>url</EncodingType>");
    let encode = |name: &[u8]| percent_encode(name, NON_ALPHANUMERIC).to_string();
    match (rest.next(), page.last()) {
        (Some(_), Some((last, _))) => {
            let token = BASE64_STANDARD.encode(last);
            body += &format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>");
        }
        _ => body += "<IsTruncated>false</IsTruncated>",
    }
    for (key, data) in &page {
        let name = encode(key);
        let kind = data.and_then(|data| writes.target(key, data)).map_or("Normal", |_| "Symlink");
        body += &match data {
            Some(data) if kind == "Symlink" && writes.bare_links => format!(
                "<Contents><Key>{name}</Key><LastModified>{}</LastModified><Type>{kind}</Type><Size>0</Size></Contents>",
                iso(writes.modified(key, data))
            ),
            None => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            Some(data) => format!(
                "<Contents><Key>{name}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Type>{kind}</Type><Size>{}</Size></Contents>",
                iso(writes.modified(key, data)),
                writes.tag(key, data).replace('"', "&quot;"),
                data.len()
            ),
        };
    }
    respond(200, Vec::new(), (body + "</ListBucketResult>").into_bytes())
}
