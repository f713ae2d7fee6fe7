//! ListObjectsV2 into pages. Keys are asked for as plain XML text; only when a page holds a key that XML cannot say is
//! it asked for again in URL encoding, and from then on every page. Not at once, because there are servers that
//! confirm `encoding-type=url` and leave the keys as they are, so that `a+b` would be read as `a b`.

use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
use aws_sdk_s3::types::EncodingType;
use percent_encoding::percent_decode_str;

use super::{S3, etag, failure, text};
use crate::store::{Error, ErrorKind, Key, ListPage, ListRequest, ObjectMeta, Op, Result};

impl S3 {
    /// One page, in a second request when the first could not be read.
    pub(super) async fn list_page(&self, request: &ListRequest) -> Result<ListPage> {
        if !self.url_encoded.load(Relaxed) {
            match self.send_list(request, false).await {
                Err(error) if error.kind == ErrorKind::Corrupt && error.status.is_some() => {}
                result => return result,
            }
            let page = self.send_list(request, true).await?;
            self.url_encoded.store(true, Relaxed);
            return Ok(page);
        }
        self.send_list(request, true).await
    }

    async fn send_list(&self, request: &ListRequest, url_encoded: bool) -> Result<ListPage> {
        let prefix = text(Op::List, &request.prefix)?;
        let list = self
            .client
            .list_objects_v2()
            .bucket(&self.bucket)
            .set_prefix((!prefix.is_empty()).then(|| prefix.to_owned()))
            .set_delimiter(request.delimited.then(|| "/".to_owned()))
            .set_continuation_token(request.token.clone())
            .set_encoding_type(url_encoded.then_some(EncodingType::Url))
            .max_keys(i32::from(request.max_keys));
        self.metrics.list_requests.add(1);
        let answer = list.send().await.map_err(|error| failure::sdk(Op::List, &request.prefix, &self.region, &error))?;
        page(request, answer)
    }
}

/// What the store listed, in our words.
fn page(request: &ListRequest, answer: ListObjectsV2Output) -> Result<ListPage> {
    let encoded = answer.encoding_type == Some(EncodingType::Url);
    let key = |name: String| if encoded { url_decoded(&name) } else { Key::from(name) };
    let corrupt = |message| Error::new(ErrorKind::Corrupt, Op::List, &request.prefix, message);
    let next = match (answer.is_truncated, answer.next_continuation_token) {
        (Some(true), None) => return Err(corrupt("the listing is cut off without a token to go on")),
        (Some(true), token) => token,
        _ => None,
    };
    let mut objects = Vec::with_capacity(answer.contents.as_ref().map_or(0, Vec::len));
    for object in answer.contents.unwrap_or_default() {
        let (Some(name), Some(size)) = (object.key, object.size.and_then(|size| u64::try_from(size).ok())) else {
            return Err(corrupt("an entry of the listing has no key or no size"));
        };
        let modified = object.last_modified.and_then(|date| SystemTime::try_from(date).ok()).unwrap_or(SystemTime::UNIX_EPOCH);
        // An empty tag stands for one that the listing does not tell; the range path knows it.
        let etag = etag(object.e_tag.as_deref().unwrap_or_default());
        objects.push(ObjectMeta { key: key(name), size, etag, modified });
    }
    let prefixes = answer.common_prefixes.unwrap_or_default().into_iter().filter_map(|common| common.prefix.map(key)).collect();
    Ok(ListPage { objects, prefixes, next })
}

/// A key of a listing in URL encoding, where a space is a plus sign.
fn url_decoded(name: &str) -> Key {
    let spaced = name.replace('+', " ");
    Key::from(percent_decode_str(&spaced).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::primitives::DateTime;
    use aws_sdk_s3::types::{CommonPrefix, Object};

    use super::*;

    fn request() -> ListRequest {
        ListRequest { prefix: Key::from("p"), delimited: true, token: None, max_keys: 1000 }
    }

    #[test]
    fn a_page_keeps_keys_as_they_are_unless_they_are_encoded() {
        let object = Object::builder().key("a+b%41").size(3).e_tag("abc").last_modified(DateTime::from_secs(7)).build();
        let plain = ListObjectsV2Output::builder().contents(object).common_prefixes(CommonPrefix::builder().prefix("d+/").build());
        let parsed = page(&request(), plain.clone().build()).unwrap();
        assert_eq!((parsed.objects[0].key.clone(), parsed.prefixes), (Key::from("a+b%41"), vec![Key::from("d+/")]));
        assert_eq!((parsed.objects[0].etag.as_str(), parsed.objects[0].size, parsed.next), ("\"abc\"", 3, None));

        let decoded = page(&request(), plain.encoding_type(EncodingType::Url).build()).unwrap();
        assert_eq!((decoded.objects[0].key.clone(), decoded.prefixes), (Key::from("a bA"), vec![Key::from("d /")]));
        assert_eq!(url_decoded("x%01%FF%2B"), Key::from(&b"x\x01\xff+"[..]));
    }

    #[test]
    fn a_page_that_contradicts_itself_is_corrupt() {
        let endless = ListObjectsV2Output::builder().is_truncated(true).build();
        assert_eq!(page(&request(), endless).unwrap_err().kind, ErrorKind::Corrupt);
        let nameless = ListObjectsV2Output::builder().contents(Object::builder().size(1).build()).build();
        assert_eq!(page(&request(), nameless).unwrap_err().kind, ErrorKind::Corrupt);
        let last = ListObjectsV2Output::builder().is_truncated(false).next_continuation_token("t").build();
        assert_eq!(page(&request(), last).unwrap().next, None);
    }
}
