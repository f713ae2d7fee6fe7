//! Answers of ListObjectsV2 as pages. Pure. Keys arrive URL-encoded, because XML cannot say every byte.

use std::time::SystemTime;

use percent_encoding::percent_decode_str;
use reqsign_core::time::Timestamp;
use serde::Deserialize;

use crate::store::{ETag, Key, ListPage, ObjectMeta};

/// Why a body is no listing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListingError {
    #[error("the listing is not readable: {0}")]
    Xml(#[from] quick_xml::DeError),
    #[error("the listing says \"{0}\" where a date belongs")]
    Date(String),
    #[error("the listing is not complete and does not say how to go on")]
    NoToken,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    #[serde(default)]
    encoding_type: Option<String>,
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    next_continuation_token: Option<String>,
    #[serde(default)]
    contents: Vec<Object>,
    #[serde(default)]
    common_prefixes: Vec<Prefix>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Object {
    key: String,
    last_modified: String,
    #[serde(rename = "ETag")]
    etag: String,
    size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Prefix {
    prefix: String,
}

/// The page that `body` is.
pub(super) fn parse(body: &[u8]) -> Result<ListPage, ListingError> {
    let document: Document = quick_xml::de::from_reader(body)?;
    let encoded = document.encoding_type.is_some_and(|kind| kind.eq_ignore_ascii_case("url"));
    let key = |text: &str| if encoded { Key::from(decode(text)) } else { Key::from(text) };
    let objects = document.contents.iter().map(|object| {
        Ok(ObjectMeta {
            key: key(&object.key),
            size: object.size,
            etag: ETag::from(object.etag.as_str()),
            modified: date(&object.last_modified)?,
        })
    });
    let objects = objects.collect::<Result<_, ListingError>>()?;
    let prefixes = document.common_prefixes.iter().map(|prefix| key(&prefix.prefix)).collect();
    let next = match document.next_continuation_token.filter(|token| document.is_truncated && !token.is_empty()) {
        Some(token) if encoded => Some(percent_decode_str(&token).decode_utf8_lossy().into_owned()),
        None if document.is_truncated => return Err(ListingError::NoToken),
        token => token,
    };
    Ok(ListPage { objects, prefixes, next })
}

/// A key as OSS encodes it. A literal plus comes as `%2B`; the vendor's Go and Java SDKs read `+` as a space, so do we.
fn decode(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}

fn date(text: &str) -> Result<SystemTime, ListingError> {
    text.trim().parse::<Timestamp>().map(Timestamp::as_system_time).map_err(|_| ListingError::Date(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    const PAGE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult>
  <Name>data</Name><Prefix>d%2F</Prefix><MaxKeys>2</MaxKeys><Delimiter>%2F</Delimiter><EncodingType>url</EncodingType>
  <IsTruncated>true</IsTruncated><NextContinuationToken>CgJiYw--</NextContinuationToken>
  <Contents><Key>d%2Fa%20b%2Bc%FF%25</Key><LastModified>2012-02-24T08:43:07.000Z</LastModified>
    <ETag>"5B3C1A2E053D763E1B002CC607C5A0FE"</ETag><Type>Normal</Type><Size>344606</Size><StorageClass>Standard</StorageClass>
    <Owner><ID>1</ID><DisplayName>u</DisplayName></Owner></Contents>
  <CommonPrefixes><Prefix>d%2Fsub+dir%2F</Prefix></CommonPrefixes>
  <Contents><Key>d%2Fz</Key><LastModified>2012-02-24T08:43:07.000Z</LastModified><ETag>&quot;E&quot;</ETag><Size>0</Size></Contents>
  <KeyCount>3</KeyCount>
</ListBucketResult>"#;

    #[test]
    fn a_page_is_read_with_its_odd_keys() {
        let page = parse(PAGE.as_bytes()).unwrap();
        assert_eq!(page.next.as_deref(), Some("CgJiYw--"));
        assert_eq!(page.prefixes, [Key::from("d/sub dir/")]);
        assert_eq!(page.objects.len(), 2);
        assert_eq!(page.objects[0].key, Key::from(&b"d/a b+c\xff%"[..]));
        assert_eq!(page.objects[0].etag.as_str(), "\"5B3C1A2E053D763E1B002CC607C5A0FE\"");
        assert_eq!(page.objects[0].size, 344_606);
        assert_eq!(page.objects[0].modified, UNIX_EPOCH + Duration::from_secs(1_330_072_987));
        assert_eq!(page.objects[1].etag.as_str(), "\"E\"");
    }

    #[test]
    fn an_empty_page_is_a_page() {
        let page = parse(b"<ListBucketResult><IsTruncated>false</IsTruncated><NextContinuationToken/></ListBucketResult>").unwrap();
        assert!(page.objects.is_empty() && page.prefixes.is_empty() && page.next.is_none());
    }

    #[test]
    fn what_is_no_listing_is_an_error_and_never_an_empty_directory() {
        for (body, words) in [
            ("<html>", "not readable"),
            ("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "how to go on"),
            (&PAGE.replace("2012-02-24T08", "yesterday"), "date"),
            (&PAGE[..700], "not readable"),
        ] {
            assert!(parse(body.as_bytes()).unwrap_err().to_string().contains(words), "{body}");
        }
    }
}
