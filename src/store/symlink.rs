//! Symbolic links in a store that has none: an object whose content says what it is and whose metadata holds the target.
//! The links of s3fs and ossfs 1 are recognised too. Invariant: what is read back is the target byte for byte.

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use super::{Condition, Error, ErrorKind, Headers, Key, Op, PutRequest, Result, SYMLINK_SIZE};

/// The content of every link, so that a listing shows which objects may be one.
const CONTENT: &str = "A symbolic link: its target is in this object's metadata, called windlass-symlink.\n";
const _: () = assert!(CONTENT.len() as u64 == SYMLINK_SIZE);

/// The name of the target among the metadata.
const TARGET: &str = "windlass-symlink";

/// What S3 takes of metadata, names and values together.
pub(super) const MOST_METADATA: usize = 2048;

/// S_IFMT and S_IFLNK of inode(7).
const TYPE_MASK: u32 = 0o170_000;
const LINK_TYPE: u32 = 0o120_000;

/// No target is longer (PATH_MAX).
const LONGEST_TARGET: u64 = 4096;

/// Everything that a header value cannot hold as it is, and what encoding itself needs.
pub(super) const HEADER_VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'"');

/// How an object shows that it is a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    To(Vec<u8>),
    /// The target is the content of the object (s3fs, ossfs 1).
    Inside,
}

/// The object that is a link to `target`.
pub(super) fn put(key: &Key, target: &[u8], headers: &Headers, condition: &Condition) -> Result<PutRequest> {
    let mut headers = headers.clone();
    headers.metadata.insert(TARGET.into(), percent_encode(target, HEADER_VALUE).to_string());
    let metadata: usize = headers.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if metadata > MOST_METADATA || target.len() as u64 > LONGEST_TARGET {
        let message = format!("a link target of {} bytes does not fit into an object's metadata", target.len());
        return Err(Error::new(ErrorKind::Invalid, Op::Put, key, message));
    }
    Ok(PutRequest { key: key.clone(), body: Bytes::from_static(CONTENT.as_bytes()), headers, condition: condition.clone() })
}

/// Whether an object of this size with these headers is a link.
pub(super) fn recognise(size: u64, headers: &Headers) -> Option<Link> {
    if size == SYMLINK_SIZE
        && let Some(target) = headers.metadata.get(TARGET)
    {
        return Some(Link::To(percent_decode_str(target).collect()));
    }
    let mode: u32 = headers.metadata.get("mode")?.parse().ok()?;
    (mode & TYPE_MASK == LINK_TYPE && (1..=LONGEST_TARGET).contains(&size)).then_some(Link::Inside)
}

/// The target that is the content of an object; s3fs wrote white space around it in some of its versions.
pub(super) fn inside(content: &[u8]) -> Vec<u8> {
    content.trim_ascii().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Headers {
        Headers { content_type: None, metadata: [(name.to_owned(), value.to_owned())].into(), ..Headers::default() }
    }

    #[test]
    fn any_target_comes_back_as_it_was() {
        let every: Vec<u8> = (1..=255).collect();
        for target in [&b"../a b/%41"[..], b"/etc/passwd", "ümlaut".as_bytes(), &every] {
            let request = put(&"l".into(), target, &with("mode", "41471"), &Condition::Any).unwrap();
            assert_eq!(recognise(request.body.len() as u64, &request.headers), Some(Link::To(target.to_vec())));
            let header = &request.headers.metadata[TARGET];
            assert!(header.bytes().all(|b| b.is_ascii_graphic()), "{header}");
        }
    }

    #[test]
    fn a_target_that_does_not_fit_is_refused() {
        let none = Headers::default();
        assert!(put(&"l".into(), &[b'a'; 2000], &none, &Condition::Any).is_ok());
        assert_eq!(put(&"l".into(), &[b'a'; 2040], &none, &Condition::Any).unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(put(&"l".into(), &[b' '; 700], &none, &Condition::Any).unwrap_err().kind, ErrorKind::Invalid);
    }

    #[test]
    fn links_of_s3fs_are_told_by_their_mode() {
        assert_eq!(recognise(9, &with("mode", "41471")), Some(Link::Inside));
        assert_eq!(recognise(9, &with("mode", "33188")), None);
        assert_eq!(recognise(9, &with("mode", "link")), None);
        assert_eq!(recognise(5000, &with("mode", "41471")), None);
        assert_eq!(recognise(9, &Headers::default()), None);
        assert_eq!(inside(b"../target\n"), b"../target");
    }

    #[test]
    fn content_of_the_same_length_is_no_link() {
        assert_eq!(recognise(SYMLINK_SIZE, &Headers::default()), None);
        assert_eq!(recognise(SYMLINK_SIZE + 1, &with(TARGET, "a")), None);
    }
}
