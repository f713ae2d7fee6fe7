//! What a request says that deletes many objects (DeleteObjects of S3, DeleteMultipleObjects of OSS), and what its answer means. Pure. Invariant: a
//! key that a document cannot say exactly is not put into one.

use aws_sdk_s3::types::{self, Delete, ObjectIdentifier};
use http::HeaderMap;

use crate::store::answer::Answer;
use crate::store::{Error, Key, Op};

/// Whether a document says it and its reader understands that: XML has no words for control characters, and blanks at an end may be dropped.
pub(super) fn can_name(key: &Key) -> bool {
    let is_plain = |text: &str| {
        !text.is_empty() && text.trim() == text && !text.chars().any(|c| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
    };
    key.to_str().is_some_and(is_plain)
}

/// Names `keys`, which all [can be](can_name). Only failures are answered.
pub(super) fn request(keys: &[&Key]) -> Delete {
    let object = |key: &str| ObjectIdentifier::builder().key(key).build().expect("it has a key");
    let objects = keys.iter().filter_map(|key| key.to_str()).map(object).collect();
    Delete::builder().quiet(true).set_objects(Some(objects)).build().expect("it has objects")
}

/// The error that the answer to a request for this object alone would have been.
pub(super) fn error_of(failure: &types::Error, headers: &HeaderMap) -> Error {
    let status = match failure.code().unwrap_or_default() {
        "AccessDenied" => 403,
        "NoSuchKey" | "NoSuchVersion" => 404,
        "SlowDown" | "ServiceUnavailable" => 503,
        "InternalError" => 500,
        _ => 400,
    };
    let answer = Answer { code: failure.code.clone(), message: failure.message.clone(), region: None, ..Answer::new(status, headers, b"") };
    answer.into_error(Op::Delete, &Key::from(failure.key().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    #[test]
    fn keys_are_named_exactly_or_not_at_all() {
        let keys = ["a/b", "a & <b> \"c\" 'd'", "ä/中文 🦀", "dir/"].map(Key::from);
        assert!(keys.iter().all(can_name));
        for key in ["a\nb", "a\u{1}", " a", "a ", "", "\u{ffff}"] {
            assert!(!can_name(&Key::from(key)), "{key:?}");
        }
        assert!(!can_name(&Key::from(vec![b'a', 0xff])));
    }

    #[test]
    fn a_failure_is_the_error_of_a_delete_of_its_own() {
        for (code, kind) in
            [("AccessDenied", ErrorKind::AccessDenied), ("SlowDown", ErrorKind::Throttled), ("NoSuchKey", ErrorKind::NotFound)]
        {
            let error = error_of(&types::Error::builder().key("a/b & c").code(code).build(), &HeaderMap::new());
            assert_eq!((error.kind, error.key.to_str(), error.code.as_deref()), (kind, Some("a/b & c"), Some(code)));
        }
    }
}
