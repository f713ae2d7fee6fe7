//! The XML documents of a request that deletes many objects (DeleteObjects of S3, DeleteMultipleObjects of OSS). Pure. Invariant: a key that a document
//! cannot say exactly is not put into one.

use serde::{Deserialize, Serialize};

use super::documents::trimmed;
use crate::store::Key;

#[derive(Serialize)]
#[serde(rename = "Delete")]
struct Deletion<'a> {
    /// Only failures are answered.
    #[serde(rename = "Quiet")]
    quiet: bool,
    #[serde(rename = "Object")]
    objects: Vec<Named<'a>>,
}

#[derive(Serialize)]
struct Named<'a> {
    #[serde(rename = "Key")]
    key: &'a str,
}

/// Whether a document says it and its reader understands that: XML has no words for control characters, and blanks at an end may be dropped.
pub(super) fn can_name(key: &Key) -> bool {
    let is_plain = |text: &str| {
        !text.is_empty() && text.trim() == text && !text.chars().any(|c| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
    };
    key.to_str().is_some_and(is_plain)
}

/// The body that names `keys`, which all [can be](can_name).
pub(super) fn request(keys: &[&Key]) -> String {
    let objects = keys.iter().filter_map(|key| key.to_str()).map(|key| Named { key }).collect();
    quick_xml::se::to_string(&Deletion { quiet: true, objects }).expect("text can be written as XML")
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Answer {
    error: Vec<Failure>,
    /// Of a document that is an error as a whole.
    code: Option<String>,
}

/// An object that was not deleted.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename = "Error", rename_all = "PascalCase", default)]
pub(super) struct Failure {
    #[serde(skip_serializing)]
    key: String,
    code: String,
    message: String,
}

impl Failure {
    pub fn key(&self) -> Key {
        Key::from(self.key.as_str())
    }

    /// The status that the answer to a request for this object alone would have.
    pub fn status(&self) -> u16 {
        match self.code.as_str() {
            "AccessDenied" => 403,
            "NoSuchKey" | "NoSuchVersion" => 404,
            "SlowDown" | "ServiceUnavailable" => 503,
            "InternalError" => 500,
            _ => 400,
        }
    }

    /// The document that it would have.
    pub fn document(&self) -> Vec<u8> {
        quick_xml::se::to_string(self).expect("text can be written as XML").into_bytes()
    }
}

/// What was not deleted. None: the body is no answer to such a request.
pub(super) fn failures(body: &[u8]) -> Option<Vec<Failure>> {
    // A quiet answer may be no document at all.
    if trimmed(body).is_empty() {
        return Some(Vec::new());
    }
    let answer: Answer = quick_xml::de::from_reader(trimmed(body)).ok()?;
    answer.code.is_none().then_some(answer.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_exactly_or_not_at_all() {
        let keys = ["a/b", "a & <b> \"c\" 'd'", "ä/中文 🦀", "dir/"].map(Key::from);
        assert!(keys.iter().all(can_name));
        let body = request(&keys.iter().collect::<Vec<_>>());
        assert!(body.starts_with("<Delete><Quiet>true</Quiet><Object><Key>a/b</Key></Object>"), "{body}");
        assert!(body.contains("<Key>a &amp; &lt;b&gt;") && body.ends_with("</Delete>"), "{body}");
        for key in ["a\nb", "a\u{1}", " a", "a ", "", "\u{ffff}"] {
            assert!(!can_name(&Key::from(key)), "{key:?}");
        }
        assert!(!can_name(&Key::from(vec![b'a', 0xff])));
    }

    #[test]
    fn an_answer_names_what_is_still_there() {
        let none = |body: &str| failures(body.as_bytes()).expect("it is an answer").is_empty();
        assert!(
            none("")
                && none("<DeleteResult/>")
                && none("<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Deleted><Key>a</Key></Deleted></DeleteResult>")
        );
        let body = "\n<?xml version=\"1.0\"?><DeleteResult><Error><Key>a/b &amp; c</Key><Code>AccessDenied</Code><Message>no</Message></Error>\
                    <Error><Key>d</Key><Code>SlowDown</Code></Error></DeleteResult>";
        let found = failures(body.as_bytes()).expect("it is an answer");
        let found: Vec<_> = found.iter().map(|failure| (failure.key().to_string(), failure.status())).collect();
        assert_eq!(found, [("a/b & c".to_owned(), 403), ("d".to_owned(), 503)]);
        assert!(failures(b"<Error><Code>MalformedXML</Code></Error>").is_none() && failures(b"no").is_none());
    }
}
