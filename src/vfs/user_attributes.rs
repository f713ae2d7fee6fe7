//! Extended attributes of programs (`user.*`), as s3fs keeps them in the metadata of an object: under `xattr` the URL-encoded JSON of an object of names
//! and values, which are base64. Pure. Invariant: what is written here is read back the same, and names of other classes, which s3fs may have put
//! there, stay.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::error::{Error, Result};

/// The metadata that holds them.
const XATTR: &str = "xattr";

/// The one class of names that a program may use on a file that it may write (`xattr(7)`).
const USER: &str = "user.";

/// What stands for something else: s3fs takes all but `%` as it is, so that most of base64 and JSON need not be three times as long.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b'=').remove(b':').remove(b',');

/// What each object may get beside them, and the most bytes that takes: chmod, chown and utimens never fail for want of room.
const OTHERS: [(&str, usize); 5] = [("mode", 5), ("uid", 10), ("gid", 10), ("mtime", 22), ("atime", 22)];

/// The attributes of an object. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserAttributes(Option<Arc<BTreeMap<String, Vec<u8>>>>);

/// A change of one attribute (`setxattr(2)`, `removexattr(2)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeChange {
    Set { value: Vec<u8>, only: Only },
    Remove,
}

/// The name of an attribute, and its change.
pub type NamedChange<'a> = (&'a [u8], &'a AttributeChange);

/// When an attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    Always,
    /// XATTR_CREATE.
    IfAbsent,
    /// XATTR_REPLACE.
    IfPresent,
}

impl UserAttributes {
    /// Those in `metadata`. What cannot be read is as if it were not there.
    pub fn read(metadata: &BTreeMap<String, String>) -> Self {
        let all = metadata.get(XATTR).and_then(|text| parse(text)).unwrap_or_default();
        Self((!all.is_empty()).then(|| Arc::new(all)))
    }

    /// The value of `name`.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let name = str::from_utf8(name).ok().filter(|name| name.starts_with(USER))?;
        self.0.as_ref()?.get(name).map(Vec::as_slice)
    }

    /// All names, each with a zero behind it, as listxattr(2) tells them.
    pub fn names(&self) -> Vec<u8> {
        let names = self.0.iter().flat_map(|all| all.keys()).filter(|name| name.starts_with(USER));
        names.flat_map(|name| name.bytes().chain([0])).collect()
    }
}

impl AttributeChange {
    /// Makes the change of `name` in the metadata of an object, of which a store keeps `most` bytes.
    ///
    /// # Errors
    /// EOPNOTSUPP for a name that is no `user.*` in UTF-8, EEXIST, ENODATA, ENOSPC; EIO when what another program has written there cannot be read.
    pub fn apply(&self, name: &[u8], metadata: &mut BTreeMap<String, String>, most: usize) -> Result<()> {
        let name = str::from_utf8(name).ok().filter(|name| name.starts_with(USER)).ok_or(Error::Unsupported)?;
        let mut all = match metadata.get(XATTR) {
            Some(text) => parse(text).ok_or(Error::UnreadableAttributes)?,
            None => BTreeMap::new(),
        };
        match self {
            Self::Set { only: Only::IfAbsent, .. } if all.contains_key(name) => return Err(Error::Exists),
            Self::Set { only: Only::IfPresent, .. } | Self::Remove if !all.contains_key(name) => return Err(Error::NoAttribute),
            Self::Set { value, .. } => drop(all.insert(name.to_owned(), value.clone())),
            Self::Remove => drop(all.remove(name)),
        }
        let before = metadata.remove(XATTR);
        if !all.is_empty() {
            metadata.insert(XATTR.into(), text(&all));
        }
        if matches!(self, Self::Set { .. }) && full_size(metadata) > most {
            metadata.extend(before.map(|before| (XATTR.into(), before)));
            return Err(Error::NoRoomForAttributes);
        }
        Ok(())
    }
}

/// Whether `metadata` has some.
pub fn are_in(metadata: &BTreeMap<String, String>) -> bool {
    metadata.contains_key(XATTR)
}

/// Those of `from` go with `to` as well.
pub fn keep(from: &BTreeMap<String, String>, to: &mut BTreeMap<String, String>) {
    to.extend(from.get(XATTR).map(|text| (XATTR.to_owned(), text.clone())));
}

fn parse(text: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    let all: BTreeMap<String, String> = serde_json::from_str(&text).ok()?;
    all.into_iter().map(|(name, value)| Some((name, BASE64_STANDARD.decode(value).ok()?))).collect()
}

fn text(all: &BTreeMap<String, Vec<u8>>) -> String {
    let all: BTreeMap<&str, String> = all.iter().map(|(name, value)| (name.as_str(), BASE64_STANDARD.encode(value))).collect();
    let json = serde_json::to_string(&all).expect("names and values are text");
    utf8_percent_encode(&json, ENCODED).to_string()
}

/// Bytes of names and values as S3 counts them, with room for [`OTHERS`].
fn full_size(metadata: &BTreeMap<String, String>) -> usize {
    let is_other = |name: &str| OTHERS.iter().any(|(other, _)| *other == name);
    let given = metadata.iter().filter(|(name, _)| !is_other(name)).map(|(name, value)| name.len() + value.len());
    given.chain(OTHERS.iter().map(|(name, value)| name.len() + value)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 2048;

    fn set(value: &[u8]) -> AttributeChange {
        AttributeChange::Set { value: value.to_vec(), only: Only::Always }
    }

    #[test]
    fn the_spelling_is_that_of_s3fs() {
        let mut metadata = BTreeMap::new();
        set(b"b>?").apply(b"user.a", &mut metadata, MOST).unwrap();
        set(b"").apply(b"user.b", &mut metadata, MOST).unwrap();
        assert_eq!(metadata[XATTR], "%7B%22user.a%22:%22Yj4/%22,%22user.b%22:%22%22%7D");
        // With a class of names that is not for programs.
        let of_s3fs = "%7b%22system.posix_acl_access%22%3a%22AgAAAA%3d%3d%22%2c%22user.c%22%3a%22YQ%3d%3d%22%7d";
        let mut metadata = BTreeMap::from([(XATTR.to_owned(), of_s3fs.to_owned())]);
        let read = UserAttributes::read(&metadata);
        assert_eq!((read.names(), read.get(b"user.c")), (b"user.c\0".to_vec(), Some(&b"a"[..])));
        assert_eq!(read.get(b"system.posix_acl_access"), None);
        AttributeChange::Remove.apply(b"user.c", &mut metadata, MOST).unwrap();
        assert_eq!(UserAttributes::read(&metadata).names(), b"");
        assert!(metadata[XATTR].contains("posix_acl_access"));
    }

    #[test]
    fn each_change_says_what_stands_against_it() {
        let mut metadata = BTreeMap::new();
        let errno = |change: &AttributeChange, name: &[u8], metadata: &mut BTreeMap<String, String>| {
            let before = metadata.clone();
            let errno = change.apply(name, metadata, MOST).err().map(|error| error.errno());
            assert!(errno.is_none() || *metadata == before, "a refused change changes nothing");
            errno
        };
        let only = |only| AttributeChange::Set { value: b"x".to_vec(), only };
        assert_eq!(errno(&only(Only::IfPresent), b"user.a", &mut metadata), Some(libc::ENODATA));
        assert_eq!(errno(&AttributeChange::Remove, b"user.a", &mut metadata), Some(libc::ENODATA));
        assert_eq!(errno(&only(Only::IfAbsent), b"user.a", &mut metadata), None);
        assert_eq!(errno(&only(Only::IfAbsent), b"user.a", &mut metadata), Some(libc::EEXIST));
        assert_eq!(errno(&only(Only::IfPresent), b"user.a", &mut metadata), None);
        for name in [&b"trusted.a"[..], b"security.selinux", b"user.\xff"] {
            assert_eq!(errno(&set(b"x"), name, &mut metadata), Some(libc::EOPNOTSUPP));
        }
        assert_eq!(errno(&set(&[0; 1500]), b"user.b", &mut metadata), Some(libc::ENOSPC));
        assert_eq!(errno(&set(&[0; 1000]), b"user.b", &mut metadata), None);
        assert_eq!(errno(&AttributeChange::Remove, b"user.b", &mut metadata), None);
        assert_eq!(errno(&AttributeChange::Remove, b"user.a", &mut metadata), None);
        assert!(!are_in(&metadata));
        let mut foreign = BTreeMap::from([(XATTR.to_owned(), "something".to_owned())]);
        assert_eq!(errno(&set(b"x"), b"user.a", &mut foreign), Some(libc::EIO));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(all in proptest::collection::btree_map("user\\.\\PC{1,9}", proptest::collection::vec(any::<u8>(), 0..20), 0..9)) {
            let mut metadata = BTreeMap::new();
            for (name, value) in &all {
                set(value).apply(name.as_bytes(), &mut metadata, usize::MAX).unwrap();
            }
            prop_assert!(metadata.values().all(|text| text.bytes().all(|byte| byte.is_ascii_graphic())));
            let read = UserAttributes::read(&metadata);
            for (name, value) in &all {
                prop_assert_eq!(read.get(name.as_bytes()), Some(value.as_slice()));
            }
            prop_assert_eq!(read.names(), all.keys().flat_map(|name| name.bytes().chain([0])).collect::<Vec<_>>());
        }
    }
}
