//! Names in the store. A key is bytes: stores promise UTF-8 but listings may carry anything, so no code above
//! this layer assumes text.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use md5::{Digest, Md5};

/// How tags begin that no store has given.
const STAND_IN: &str = "untagged-";

/// The name of an object, or of a common prefix of objects (then it ends in `/`, or is empty for the whole bucket).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// The empty key: the prefix of everything.
    pub fn root() -> Self {
        Self(Arc::from(&b""[..]))
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key as text, when it is text. The S3 dialect can only ask for such keys.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// This key with `tail` appended, byte for byte.
    pub fn join(&self, tail: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(self.0.len() + tail.len());
        bytes.extend_from_slice(&self.0);
        bytes.extend_from_slice(tail);
        Self(bytes.into())
    }

    /// Whether the key names a directory marker or a common prefix: it is empty or ends in `/`.
    pub fn is_prefix(&self) -> bool {
        self.0.last().is_none_or(|&b| b == b'/')
    }
}

/// Maps keyed by `Key` can be asked with a slice of a longer key. Derived Eq, Ord and Hash are those of the bytes.
impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// The version of an object's content as the store names it, quotes included, so that it can be sent back in
/// `If-Match` unchanged. Empty when a listing did not tell it: then the attributes must be asked for before reading.
///
/// A weak tag (`W/"..."`) equals the strong one of the same text: proxies weaken the tags in headers and leave those in listings alone, and both
/// name one version.
#[derive(Clone, Debug)]
pub struct ETag(Arc<str>);

impl ETag {
    /// The tag that `text` names. Some stores list tags without the quotes that they send and expect in headers.
    pub fn quoted(text: &str) -> Self {
        let whole = text.starts_with('"') || text.starts_with("W/") || text.is_empty();
        if whole { Self::from(text) } else { Self::from(&*format!("\"{text}\"")) }
    }

    /// What stands in for the tag of an object that has none, such as a file that was put below a gateway: its version id, else its size and date.
    /// It is weak, so that it is sent in no condition: answers are compared with it.
    pub(super) fn stand_in(version_id: Option<&str>, size: u64, modified: SystemTime) -> Self {
        let seconds = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self::from(&*match version_id {
            Some(id) => format!("W/\"{STAND_IN}version-{id}\""),
            None => format!("W/\"{STAND_IN}{size}-{seconds}\""),
        })
    }

    /// What stands in for the tag of a symbolic link that has none: links differ by their target alone.
    pub(super) fn of_link(target: &[u8]) -> Self {
        Self::from(&*format!("W/\"{STAND_IN}link-{}\"", hex::encode(Md5::digest(target))))
    }

    /// Whether the store has named no version of the object.
    pub(super) fn is_stand_in(&self) -> bool {
        self.opaque().strip_prefix('"').is_some_and(|text| text.starts_with(STAND_IN))
    }

    /// Whether it is marked as weak. A server that marks its tags meets no `If-Match`, which takes strong ones only (RFC 9110, 13.1.1).
    pub fn is_weak(&self) -> bool {
        self.0.starts_with("W/")
    }

    /// What identifies the version: the tag without the mark of a weak one.
    pub fn opaque(&self) -> &str {
        self.0.strip_prefix("W/").unwrap_or(&self.0)
    }

    /// The tag as it stands in the header.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PartialEq for ETag {
    fn eq(&self, other: &Self) -> bool {
        self.opaque() == other.opaque()
    }
}

impl Eq for ETag {}

impl PartialOrd for ETag {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ETag {
    fn cmp(&self, other: &Self) -> Ordering {
        self.opaque().cmp(other.opaque())
    }
}

impl Hash for ETag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.opaque().hash(state);
    }
}

impl From<&str> for ETag {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
