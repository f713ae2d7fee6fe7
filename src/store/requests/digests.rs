//! How a body is protected on its way, and what tells that it arrived as it was. Pure but for the sums themselves.
//!
//! The cheapest proof comes first. A store that repeats the CRC-64 of a body in its answer has computed it: nothing else is needed, and the
//! request costs some 0.1 ns a byte. A store that does not repeat it may have ignored the header. Its bodies carry Content-MD5, which is the
//! oldest of these headers and known nearly everywhere, and the ETag of the answer is compared with that MD5: a store that ignores
//! every header still tells what it has stored. MD5 costs some 1.6 ns a byte, so it is made only there.
//!
//! An ETag is an MD5 only in stores that make it so. That is found out once per bucket: by the first tag that is the MD5 of its body, or, after
//! the first that is not, by the tag of an empty part, which no broken line can damage (see [`Tags`]).

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use crc_fast::CrcAlgorithm;
use http::{HeaderName, HeaderValue};
use md5::{Digest, Md5};
use sha2::Sha256;

use crate::store::{Body, Polynomial};

/// Bytes that all sums are made of while the processor has them in its cache.
const STEP: usize = 32 << 10;

/// Digests of a body that are computed in addition to its CRC-64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra {
    /// For Content-MD5, and for the ETag of the answer.
    pub md5: bool,
    /// For the signature of the payload.
    pub sha256: bool,
    /// For `x-amz-checksum-crc32c`.
    pub crc32c: bool,
}

/// The sums of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Digests {
    pub crc64: u64,
    pub md5: Option<[u8; 16]>,
    pub sha256: Option<[u8; 32]>,
    pub crc32c: Option<u32>,
}

impl Digests {
    /// Makes them in one pass.
    pub fn of(body: &Body, polynomial: Polynomial, extra: Extra) -> Self {
        if extra == Extra::default() {
            return Self { crc64: polynomial.of_body(body), md5: None, sha256: None, crc32c: None };
        }
        let (mut crc64, mut md5, mut sha256) = (polynomial.summing(), extra.md5.then(Md5::new), extra.sha256.then(Sha256::new));
        let mut crc32c = extra.crc32c.then(|| crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi));
        for step in body.pieces().iter().flat_map(|piece| piece.chunks(STEP)) {
            crc64.add(step);
            if let Some(md5) = &mut md5 {
                md5.update(step);
            }
            if let Some(sha256) = &mut sha256 {
                sha256.update(step);
            }
            if let Some(crc32c) = &mut crc32c {
                crc32c.update(step);
            }
        }
        Self {
            crc64: crc64.value(),
            md5: md5.map(|md5| md5.finalize().into()),
            sha256: sha256.map(|sha256| sha256.finalize().into()),
            crc32c: crc32c.map(|sum| u32::try_from(sum.finalize()).expect("it has 32 bits")),
        }
    }
}

/// The MD5 of `body`.
pub(super) fn md5_of(body: &Body) -> [u8; 16] {
    let mut md5 = Md5::new();
    body.pieces().iter().for_each(|piece| md5.update(piece));
    md5.finalize().into()
}

pub(super) const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// The value of Content-MD5.
pub(super) fn content_md5(md5: [u8; 16]) -> HeaderValue {
    HeaderValue::try_from(BASE64_STANDARD.encode(md5)).expect("base64 is valid in a header")
}

/// Whether the store repeats the CRC-64 of what it takes.
#[derive(Debug, Default)]
pub(super) struct Acknowledging(AtomicU8);

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl Acknowledging {
    /// Records whether the last answer did.
    pub fn record(&self, repeated: bool) {
        self.0.store(if repeated { YES } else { NO }, Relaxed);
    }

    pub fn is_known_to(&self) -> bool {
        self.0.load(Relaxed) == YES
    }

    pub fn is_known_not_to(&self) -> bool {
        self.0.load(Relaxed) == NO
    }
}

/// What is known of the ETags of a bucket.
#[derive(Debug, Default)]
pub(in crate::store) struct Tags {
    /// Whether they are the MD5s of contents, where they have the length of one and no key of the customer's encrypts the object.
    md5s: AtomicU8,
    /// Whether they are strong.
    strong: AtomicU8,
}

impl Tags {
    /// Of a server that is not asked for its form: what it is unsure of, the endpoint behind it tells.
    pub fn taken_for_strong() -> Self {
        Self { strong: AtomicU8::new(YES), ..Self::default() }
    }

    /// Of a store whose ETags are random.
    pub fn of_nothing() -> Self {
        Self { md5s: AtomicU8::new(NO), ..Self::default() }
    }

    /// A tag was, or was not, the MD5 of what it is the tag of.
    pub fn record(&self, is_md5: bool) {
        self.md5s.store(if is_md5 { YES } else { NO }, Relaxed);
    }

    pub fn are_md5s(&self) -> bool {
        self.md5s.load(Relaxed) == YES
    }

    pub fn are_not_md5s(&self) -> bool {
        self.md5s.load(Relaxed) == NO
    }

    pub fn are_unknown(&self) -> bool {
        self.md5s.load(Relaxed) == UNKNOWN
    }

    /// This tag stood in the header of an answer. One that is weak shows that conditions on tags are not met there, whatever others were: versions
    /// are compared here from then on.
    pub fn on_header(&self, etag: &str) {
        let form = if etag.trim_start().starts_with("W/") { NO } else { YES };
        if self.strong.load(Relaxed) != NO && self.strong.load(Relaxed) != form {
            self.strong.store(form, Relaxed);
        }
    }

    /// Whether the server weakens tags.
    pub fn are_weak(&self) -> bool {
        self.strong.load(Relaxed) == NO
    }

    /// Whether no header with a tag was seen yet.
    pub fn have_no_form(&self) -> bool {
        self.strong.load(Relaxed) == UNKNOWN
    }
}

/// The MD5 that `etag` may be: 32 hexadecimal digits. Those of multipart uploads have a hyphen and a number behind it.
pub(in crate::store) fn possible_md5(etag: &str) -> Option<[u8; 16]> {
    let etag = etag.trim();
    hex::decode(etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn digests_are_those_of_the_published_values() {
        let body: Body = [Bytes::from("1234"), Bytes::from("56789")].into_iter().collect();
        let all = Digests::of(&body, Polynomial::Nvme, Extra { md5: true, sha256: true, crc32c: true });
        assert_eq!(all.crc64, 0xae8b_1486_0a79_9888);
        assert_eq!(hex::encode(all.md5.unwrap()), "25f9e794323b453885f5181f1b624d0b");
        assert_eq!(hex::encode(all.sha256.unwrap()), "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225");
        assert_eq!(all.crc32c, Some(0xe306_9283));
        assert_eq!(md5_of(&body), all.md5.unwrap());
        let crc_only = Digests::of(&body, Polynomial::Nvme, Extra::default());
        assert_eq!(crc_only, Digests { md5: None, sha256: None, crc32c: None, ..all });
    }

    #[test]
    fn one_weak_tag_shows_that_conditions_are_not_met() {
        let tags = Tags::default();
        assert!(tags.have_no_form() && !tags.are_weak());
        tags.on_header("\"a\"");
        assert!(!tags.have_no_form() && !tags.are_weak());
        tags.on_header("W/\"b\"");
        tags.on_header("\"a\"");
        assert!(tags.are_weak());
    }

    #[test]
    fn only_tags_of_32_hexadecimal_digits_may_be_md5s() {
        assert!(possible_md5("\"25f9e794323b453885f5181f1b624d0b\"").is_some());
        assert!(possible_md5("W/\"25f9e794323b453885f5181f1b624d0b\"").is_some());
        assert!(possible_md5("\"25F9E794323B453885F5181F1B624D0B\"").is_some(), "OSS writes capitals");
        for tag in
            ["", "\"25f9e794323b453885f5181f1b624d0b-2\"", "\"0x8D4BCC2E4835CD0\"", "\"25f9e794323b453885f5181f1b624d0g\"", "W/\"25f9\""]
        {
            assert_eq!(possible_md5(tag), None, "{tag}");
        }
    }
}
