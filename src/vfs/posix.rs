//! Owner, mode and times as s3fs and ossfs keep them in the metadata of an object: decimal numbers under `uid`, `gid`, `mode` (with the type of
//! the file), `mtime` and `atime` (seconds, with a fraction). What other programs write is read, too. Pure. Invariant: what is written here is read
//! back the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Options;
use super::listing::{Extra, FileFacts, Posix};
use super::user_attributes::UserAttributes;
use crate::store::{Details, Headers};

/// Permission bits, with setuid, setgid and sticky.
const PERMISSIONS: u32 = 0o7777;
const SET_IDS: u16 = 0o6000;

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

/// Whether `own` says more than is shown of what has no attributes.
pub(super) fn differs(own: &Posix, options: &Options, is_directory: bool) -> bool {
    let mode = if is_directory { options.dir_mode } else { options.file_mode } & !options.umask;
    own.mode.is_some_and(|own| own != mode)
        || own.uid.is_some_and(|uid| uid != options.uid)
        || own.gid.is_some_and(|gid| gid != options.gid)
        || own.modified.or(own.accessed).is_some()
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

/// What an object is to be given whose content was written: `own` over what `metadata` says. Setuid and setgid go with a write.
pub(super) fn written_over(own: Posix, metadata: &BTreeMap<String, String>) -> Posix {
    let stored = read(metadata);
    Posix {
        mode: own.mode.or(stored.mode.map(|mode| mode & !SET_IDS)),
        uid: own.uid.or(stored.uid),
        gid: own.gid.or(stored.gid),
        modified: own.modified,
        accessed: own.accessed.or(stored.accessed),
    }
}

/// `facts` of a file that is being written, with the attributes of `metadata`; its time is that of the last write.
pub(super) fn being_written(facts: FileFacts, metadata: &BTreeMap<String, String>) -> FileFacts {
    let posix = written_over(Posix::default(), metadata);
    let extra = Extra { posix, ..Extra::default() };
    FileFacts { extra: (extra != Extra::default()).then(|| Arc::new(extra)), ..facts }
}

/// `facts` of a file that was just stored with [`headers`] over `metadata`.
pub(super) fn with(facts: FileFacts, own: &Posix, options: &Options, metadata: &BTreeMap<String, String>) -> FileFacts {
    let posix = Posix {
        mode: Some(own.mode.unwrap_or(options.file_mode & !options.umask)),
        uid: Some(own.uid.unwrap_or(options.uid)),
        gid: Some(own.gid.unwrap_or(options.gid)),
        modified: own.modified,
        accessed: own.accessed,
    };
    FileFacts { extra: Some(Arc::new(Extra { link: None, posix, user: UserAttributes::read(metadata) })), ..facts }
}

/// What a HEAD told of a file.
pub(super) fn facts(details: &Details, with_attributes: bool) -> FileFacts {
    let metadata = &details.headers.metadata;
    let (posix, user) = if with_attributes { (read(metadata), UserAttributes::read(metadata)) } else { Default::default() };
    let extra = Extra { link: details.symlink.clone(), posix, user };
    FileFacts { extra: (extra != Extra::default()).then(|| Arc::new(extra)), ..FileFacts::from(&details.meta) }
}

/// The attributes in `metadata`. What cannot be read is as if it were not there. Of several spellings that of s3fs and ossfs counts, which is the one
/// that is written here.
pub(super) fn read(metadata: &BTreeMap<String, String>) -> Posix {
    let s3cmd = metadata.get("s3cmd-attrs").map_or("", String::as_str);
    let in_s3cmd = |name: &str| s3cmd.split('/').find_map(|pair| pair.strip_prefix(name)?.strip_prefix(':'));
    // Storage Gateway, FSx and DataSync of Amazon write `file-...`.
    let text = |name: &str, of_amazon: &str| {
        metadata.get(name).or_else(|| metadata.get(of_amazon)).map(|text| text.trim()).or_else(|| in_s3cmd(name))
    };
    let number = |name: &str, of_amazon: &str| text(name, of_amazon)?.parse::<u32>().ok();
    Posix {
        mode: text("mode", "file-permissions").and_then(mode),
        uid: number("uid", "file-owner"),
        gid: number("gid", "file-group"),
        modified: text("mtime", "file-mtime").and_then(time),
        accessed: text("atime", "file-atime").and_then(time),
    }
}

/// A mode with the type of the file, decimal (s3fs, ossfs, GeeseFS, s3cmd), or octal (rclone, and Amazon, which begins it with a zero).
fn mode(text: &str) -> Option<u16> {
    const DECIMAL: [u32; 2] = [libc::S_IFREG, libc::S_IFDIR];
    const OCTAL: [u32; 4] = [libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK, 0];
    let kind = |mode: &u32| mode & !PERMISSIONS;
    // No octal spelling reads like these: decimal, a file is 32768 to 36863, a directory 16384 to 20479.
    let decimal = text.parse().ok().filter(|mode| DECIMAL.contains(&kind(mode)) && !text.starts_with('0'));
    let mode = decimal.or_else(|| u32::from_str_radix(text, 8).ok().filter(|mode| OCTAL.contains(&kind(mode))))?;
    Some(u16::try_from(mode & PERMISSIONS).expect("twelve bits"))
}

fn time_text(time: SystemTime) -> String {
    let (sign, since) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => ("", since),
        Err(before) => ("-", before.duration()),
    };
    match since.subsec_nanos() {
        0 => format!("{sign}{}", since.as_secs()),
        nanos => format!("{sign}{}.{nanos:09}", since.as_secs()),
    }
}

/// Seconds with a fraction (s3fs, ossfs, rclone), nanoseconds that say so (Amazon), or RFC 3339 (gcsfuse's spelling, which rclone takes over).
fn time(text: &str) -> Option<SystemTime> {
    if let Some(nanos) = text.strip_suffix("ns") {
        return UNIX_EPOCH.checked_add(Duration::from_nanos(nanos.parse().ok()?));
    }
    if text.contains('T') {
        return text.parse::<jiff::Timestamp>().ok().map(SystemTime::from);
    }
    let (text, is_before) = text.trim().strip_prefix('-').map_or((text.trim(), false), |text| (text, true));
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().take(9).collect();
    let nanos = if digits.is_empty() { 0 } else { format!("{digits:0<9}").parse().ok()? };
    let since = Duration::new(seconds.parse().ok().filter(|_| seconds.starts_with(|first: char| first.is_ascii_digit()))?, nanos);
    if is_before { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) }
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
        let before = UNIX_EPOCH - Duration::new(4, 999_999_997);
        assert_eq!((time_text(before), time(&time_text(before))), ("-4.999999997".into(), Some(before)));
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
        let read = |pairs: &[(&str, &str)]| read(&metadata(pairs));
        let at = |millis| Some(UNIX_EPOCH + Duration::from_millis(millis));
        // s3fs and ossfs.
        let found = read(&[("mode", "33188"), ("mtime", "1600000000.5"), ("uid", "x")]);
        assert_eq!((found.mode, found.uid, found.modified), (Some(0o644), None, at(1_600_000_000_500)));
        // rclone with --metadata.
        let found = read(&[("mode", "100755"), ("mtime", "2020-09-13T12:26:40.5Z"), ("atime", "1600000001.25"), ("gid", "7")]);
        assert_eq!((found.mode, found.gid), (Some(0o755), Some(7)));
        assert_eq!((found.modified, found.accessed), (at(1_600_000_000_500), at(1_600_000_001_250)));
        // Storage Gateway and FSx.
        let found =
            read(&[("file-permissions", "0100640"), ("file-owner", "500"), ("file-group", "501"), ("file-mtime", "1600000000500000000ns")]);
        assert_eq!((found.mode, found.uid, found.gid, found.modified), (Some(0o640), Some(500), Some(501), at(1_600_000_000_500)));
        // s3cmd.
        let found = read(&[("s3cmd-attrs", "atime:1600000001/gid:3/gname:sys/mode:33256/mtime:1600000000/uid:4/uname:a")]);
        assert_eq!((found.mode, found.uid, found.gid, found.accessed), (Some(0o750), Some(4), Some(3), at(1_600_000_001_000)));
        for (text, expected) in [
            ("16877", Some(0o755)),
            ("40755", Some(0o755)),
            ("0755", Some(0o755)),
            ("755", Some(0o755)),
            ("120777", Some(0o777)),
            ("41777", Some(0o1777)),
        ] {
            assert_eq!(mode(text), expected, "{text}");
        }
        assert!(["", "x", "-1", "999999", "8", "177777777"].iter().all(|text| mode(text).is_none()));
        assert!(["99999999999999999999", "1.x", "ns", "T", "", "-", "--1", "-+1"].iter().all(|text| time(text).is_none()));
    }
}
