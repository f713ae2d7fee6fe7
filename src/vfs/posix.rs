//! Owner, mode and times as s3fs and ossfs keep them in the metadata of an object: decimal numbers under `uid`, `gid`, `mode` (with the type of
//! the file), `mtime` and `atime` (seconds, with a fraction). Pure. Invariant: what is written here is read back the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Options;
use super::listing::{Extra, FileFacts, Posix};
use crate::store::{Details, Headers};

/// Permission bits, with setuid, setgid and sticky.
const PERMISSIONS: u32 = 0o7777;

/// `headers` with the attributes of a file or directory; what is not set is as the options say.
pub(super) fn headers(mut headers: Headers, own: &Posix, options: &Options, is_directory: bool) -> Headers {
    let (kind, mode) = if is_directory { (libc::S_IFDIR, options.dir_mode) } else { (libc::S_IFREG, options.file_mode) };
    let mode = kind | u32::from(own.mode.unwrap_or(mode & !options.umask));
    let metadata = &mut headers.metadata;
    metadata.insert("mode".into(), mode.to_string());
    metadata.insert("uid".into(), own.uid.unwrap_or(options.uid).to_string());
    metadata.insert("gid".into(), own.gid.unwrap_or(options.gid).to_string());
    metadata.insert("mtime".into(), time_text(own.modified.unwrap_or_else(SystemTime::now)));
    // One that is there already stays: reads and writes do not change it.
    if let Some(accessed) = own.accessed {
        metadata.insert("atime".into(), time_text(accessed));
    }
    headers
}

/// What an object is to be given: `own` over what it has.
pub(super) fn over(own: Posix, details: &Details) -> Posix {
    let stored = read(&details.headers.metadata);
    let modified = stored.modified.or(Some(details.meta.modified));
    Posix {
        mode: own.mode.or(stored.mode),
        uid: own.uid.or(stored.uid),
        gid: own.gid.or(stored.gid),
        modified: own.modified.or(modified),
        // A new time of modification does not take the time of access along, which was the same before.
        accessed: own.accessed.or(stored.accessed).or(modified.filter(|_| own.modified.is_some())),
    }
}

/// `facts` of a file that was just stored with [`headers`].
pub(super) fn with(facts: FileFacts, own: &Posix, options: &Options) -> FileFacts {
    let posix = Posix {
        mode: Some(own.mode.unwrap_or(options.file_mode & !options.umask)),
        uid: Some(own.uid.unwrap_or(options.uid)),
        gid: Some(own.gid.unwrap_or(options.gid)),
        modified: own.modified,
        accessed: own.accessed,
    };
    FileFacts { extra: Some(Arc::new(Extra { link: None, posix })), ..facts }
}

/// What a HEAD told of a file.
pub(super) fn facts(details: &Details, with_attributes: bool) -> FileFacts {
    let posix = if with_attributes { read(&details.headers.metadata) } else { Posix::default() };
    let extra = Extra { link: details.symlink.clone(), posix };
    FileFacts { extra: (extra != Extra::default()).then(|| Arc::new(extra)), ..FileFacts::from(&details.meta) }
}

/// The attributes in `metadata`. What cannot be read is as if it were not there.
pub(super) fn read(metadata: &BTreeMap<String, String>) -> Posix {
    let number = |name: &str| metadata.get(name).and_then(|text| text.trim().parse::<u32>().ok());
    Posix {
        mode: number("mode").map(|mode| u16::try_from(mode & PERMISSIONS).expect("twelve bits")),
        uid: number("uid"),
        gid: number("gid"),
        modified: metadata.get("mtime").and_then(|text| time(text)),
        accessed: metadata.get("atime").and_then(|text| time(text)),
    }
}

fn time_text(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    match since.subsec_nanos() {
        0 => since.as_secs().to_string(),
        nanos => format!("{}.{nanos:09}", since.as_secs()),
    }
}

fn time(text: &str) -> Option<SystemTime> {
    let (seconds, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits: String = fraction.chars().take(9).collect();
    let nanos = if digits.is_empty() { 0 } else { format!("{digits:0<9}").parse().ok()? };
    UNIX_EPOCH.checked_add(Duration::new(seconds.parse().ok()?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ETag, Key, ObjectMeta};

    #[test]
    fn what_is_written_is_read_back() {
        let modified = UNIX_EPOCH + Duration::new(1_600_000_000, 120_000_000);
        let accessed = UNIX_EPOCH + Duration::new(1_700_000_000, 1);
        let own = Posix { mode: Some(0o4751), uid: Some(7), gid: None, modified: Some(modified), accessed: Some(accessed) };
        let options = Options { gid: 8, ..Options::default() };
        let stored = headers(Headers::default(), &own, &options, false).metadata;
        assert_eq!(stored["mode"], (0o100_000 | 0o4751).to_string());
        assert_eq!((&*stored["mtime"], &*stored["atime"]), ("1600000000.120000000", "1700000000.000000001"));
        assert_eq!(read(&stored), Posix { gid: Some(8), ..own });
    }

    #[test]
    fn access_time_stays_when_another_attribute_is_set() {
        let [first, second, third] = [1, 2, 3].map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        let details = |metadata: &[(&str, &str)]| {
            let meta = ObjectMeta { key: Key::from("a"), size: 1, etag: ETag::from("1"), modified: first };
            let headers = Headers { metadata: metadata.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect(), ..Headers::default() };
            Details { meta, headers, storage_class: None, version_id: None, crc64: None, sum: None, symlink: None }
        };
        let times = |own: Posix, details: &Details| {
            let all = over(own, details);
            (all.modified, all.accessed)
        };
        let modified = Posix { modified: Some(third), ..Posix::default() };
        assert_eq!(times(modified, &details(&[])), (Some(third), Some(first)));
        assert_eq!(times(modified, &details(&[("mtime", "2")])), (Some(third), Some(second)));
        assert_eq!(times(modified, &details(&[("atime", "2")])), (Some(third), Some(second)));
        let accessed = Posix { accessed: Some(third), ..Posix::default() };
        assert_eq!(times(accessed, &details(&[("mtime", "2")])), (Some(second), Some(third)));
        assert_eq!(times(Posix { uid: Some(1), ..Posix::default() }, &details(&[])), (Some(first), None));
    }

    #[test]
    fn other_programs_spellings_are_read_and_nonsense_is_not() {
        let metadata = |pairs: &[(&str, &str)]| pairs.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect::<BTreeMap<_, _>>();
        let read = read(&metadata(&[("mode", "33188"), ("mtime", "1600000000.5"), ("uid", "x")]));
        assert_eq!((read.mode, read.uid), (Some(0o644), None));
        assert_eq!(read.modified, Some(UNIX_EPOCH + Duration::from_millis(1_600_000_000_500)));
        assert_eq!(time("99999999999999999999"), None);
        assert_eq!(time("1.x"), None);
    }
}
