//! Password files as ossfs and s3fs read them: `bucket:id:secret` or `id:secret` lines, `#` comments, blank lines.
//! Read anew at each call and kept nowhere. Invariant: a file that others could read is refused before a byte of
//! it is looked at, but where Kubernetes mounted it; and no error carries a secret.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Keys;

/// The system-wide files. Their group may read them (a group of users that may mount), as ossfs and s3fs allow.
const SYSTEM_FILES: [&str; 2] = ["/etc/passwd-ossfs", "/etc/passwd-s3fs"];

/// A password file of more than this is some other file.
const SIZE_LIMIT: u64 = 1 << 20;

/// Why a password file gives no credentials.
#[derive(Debug, thiserror::Error)]
pub(super) enum PasswdError {
    #[error("cannot read the credentials file {}: {source}; it must be there and readable for the user who mounts", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the credentials file {} is not a regular file; write BUCKET:KEY_ID:SECRET or KEY_ID:SECRET into one", path.display())]
    NotAFile { path: PathBuf },
    #[error("the credentials file {p} has mode {mode:03o}: {who} must not have access to it; run: chmod {fix} {p}", p = path.display())]
    Permissions { path: PathBuf, mode: u32, who: &'static str, fix: &'static str },
    #[error("line {line} of the credentials file {p} {problem}; write BUCKET:KEY_ID:SECRET or KEY_ID:SECRET", p = path.display())]
    Line { path: PathBuf, line: usize, problem: &'static str },
    #[error("the credentials file {p} has no line for the bucket {bucket} and no default line; add {bucket}:KEY_ID:SECRET or KEY_ID:SECRET", p = path.display())]
    NoEntry { path: PathBuf, bucket: String },
    #[error("the credentials file {} has lines for buckets only, and these are requests for all of them: name the buckets with --buckets, or add a line KEY_ID:SECRET", path.display())]
    NoDefault { path: PathBuf },
}

/// The credentials for `bucket`: its own line, else the line without a bucket.
pub(super) fn read(path: &Path, bucket: &str) -> Result<Keys, PasswdError> {
    let unreadable = |source| PasswdError::Unreadable { path: path.to_owned(), source };
    // One descriptor for the checks and the content, so that what was checked is what is read. A FIFO would block the
    // open itself, hence the look at the path before.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(PasswdError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(PasswdError::NotAFile { path: path.to_owned() });
    }
    check_mode(path, metadata.mode(), is_mounted_secret(path))?;
    let mut text = String::new();
    file.take(SIZE_LIMIT).read_to_string(&mut text).map_err(unreadable)?;
    find(path, &text, bucket)
}

/// Whether Kubernetes mounted the file out of a secret, readable for everybody in the container and for nobody else.
fn is_mounted_secret(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.join("..data").is_symlink())
}

/// The rules of ossfs and s3fs: nothing for others, nothing for the group (but reading the system's file), not executable. Of a mounted
/// secret only that others cannot write it.
fn check_mode(path: &Path, mode: u32, is_mounted_secret: bool) -> Result<(), PasswdError> {
    let mode = std::fs::Permissions::from_mode(mode).mode() & 0o777;
    let system = SYSTEM_FILES.iter().any(|system| path == Path::new(system));
    let fix = if system { "640" } else { "600" };
    let refuse = |who| Err(PasswdError::Permissions { path: path.to_owned(), mode, who, fix });
    match mode {
        mode if is_mounted_secret && mode & 0o002 == 0 => Ok(()),
        mode if mode & 0o007 != 0 => refuse("other users"),
        mode if system && mode & 0o030 != 0 => refuse("the group, except for reading,"),
        mode if !system && mode & 0o070 != 0 => refuse("the group"),
        mode if mode & 0o100 != 0 => refuse("an executing user"),
        _ => Ok(()),
    }
}

fn find(path: &Path, text: &str, bucket: &str) -> Result<Keys, PasswdError> {
    let (mut of_bucket, mut default) = (None, None);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bad = |problem| PasswdError::Line { path: path.to_owned(), line: index + 1, problem };
        let (owner, entry) = parse(line).map_err(bad)?;
        let place = match owner {
            None => &mut default,
            Some(owner) if owner == bucket => &mut of_bucket,
            Some(_) => continue,
        };
        if place.replace(entry).is_some() {
            return Err(bad("is the second one for the same bucket"));
        }
    }
    let found = of_bucket.or(default).ok_or_else(|| match bucket {
        "" => PasswdError::NoDefault { path: path.to_owned() },
        bucket => PasswdError::NoEntry { path: path.to_owned(), bucket: bucket.to_owned() },
    })?;
    let (id, secret, token) = found;
    Ok(Keys { id, secret, token, expires: None, from: format!("the credentials file {}", path.display()) })
}

/// Key id, secret and token of one line.
type Entry = (String, String, Option<String>);

/// Bucket and credentials of one line. Three fields are `bucket:id:secret` when the first can name a bucket (lower case,
/// digits, `.` and `-`), else `id:secret:token`: ids of temporary credentials (`STS.…`, `ASIA…`) have upper-case letters.
fn parse(line: &str) -> Result<(Option<&str>, Entry), &'static str> {
    if line.contains(char::is_whitespace) {
        return Err("contains white space");
    }
    let fields: Vec<&str> = line.splitn(4, ':').collect();
    let (bucket, id, secret, token) = match fields[..] {
        [id, secret] => (None, id, secret, None),
        [bucket, id, secret] if can_name_bucket(bucket) => (Some(bucket), id, secret, None),
        [id, secret, token] => (None, id, secret, Some(token)),
        [bucket, id, secret, token] => (Some(bucket), id, secret, Some(token)),
        _ => return Err("has no colon"),
    };
    if id.is_empty() || secret.is_empty() || bucket == Some("") || token == Some("") {
        return Err("has an empty field");
    }
    Ok((bucket, (id.to_owned(), secret.to_owned(), token.map(str::to_owned))))
}

fn can_name_bucket(text: &str) -> bool {
    (3..=63).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(text: &str, bucket: &str) -> Result<(String, String, Option<String>), String> {
        find(Path::new("/p"), text, bucket).map(|keys| (keys.id, keys.secret, keys.token)).map_err(|error| error.to_string())
    }

    fn entry(id: &str, secret: &str, token: Option<&str>) -> Result<(String, String, Option<String>), String> {
        Ok((id.to_owned(), secret.to_owned(), token.map(str::to_owned)))
    }

    #[test]
    fn the_line_of_the_bucket_beats_the_default_wherever_it_stands() {
        let text = "# keys\n\nDEF:s1\r\n  photos:AK:s2  \nother:AK3:s3\n";
        assert_eq!(look_up(text, "photos"), entry("AK", "s2", None));
        assert_eq!(look_up(text, "nobody"), entry("DEF", "s1", None));
        assert_eq!(
            look_up("photos:AK:s2", "other"),
            Err("the credentials file /p has no line for the bucket other and no default line; add other:KEY_ID:SECRET or KEY_ID:SECRET"
                .into())
        );
        let of_all = look_up("photos:AK:s2", "").unwrap_err();
        assert!(of_all.contains("name the buckets with --buckets"), "{of_all}");
    }

    #[test]
    fn temporary_credentials_carry_a_token_with_and_without_a_bucket() {
        assert_eq!(look_up("STS.NAbc:sk:to/k+en==", "photos"), entry("STS.NAbc", "sk", Some("to/k+en==")));
        assert_eq!(look_up("photos:STS.NAbc:sk:a:b", "photos"), entry("STS.NAbc", "sk", Some("a:b")));
    }

    #[test]
    fn a_bad_line_is_named_without_its_content() {
        for (text, words) in [
            ("LTAIsecret", "line 1 of the credentials file /p has no colon"),
            ("#\nAK: secret", "line 2 of the credentials file /p contains white space"),
            ("AK:", "has an empty field"),
            ("A:s\nB:t", "line 2 of the credentials file /p is the second one"),
        ] {
            let error = look_up(text, "photos").unwrap_err();
            assert!(error.contains(words) && !error.contains("LTAIsecret"), "{error}");
        }
    }

    #[test]
    fn the_file_is_refused_when_others_could_read_it() {
        let own = Path::new("/home/u/.passwd-ossfs");
        let system = Path::new("/etc/passwd-ossfs");
        for (path, mode, accepted) in [
            (own, 0o600, true),
            (own, 0o400, true),
            (own, 0o640, false),
            (own, 0o604, false),
            (own, 0o602, false),
            (own, 0o700, false),
            (system, 0o640, true),
            (system, 0o660, false),
            (system, 0o650, false),
            (system, 0o644, false),
        ] {
            assert_eq!(check_mode(path, 0o100_000 | mode, false).is_ok(), accepted, "{} {mode:o}", path.display());
        }
        let error = check_mode(own, 0o100_644, false).unwrap_err().to_string();
        assert!(error.contains("mode 644") && error.contains("chmod 600 /home/u/.passwd-ossfs"), "{error}");
    }

    #[test]
    fn a_file_on_disk_is_checked_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        std::fs::write(&path, "AK:top-secret\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(read(&path, "b"), Err(PasswdError::Permissions { .. })));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let keys = read(&path, "b").unwrap();
        assert_eq!(keys.secret, "top-secret");
        assert!(!format!("{keys:?}").contains("top-secret"));
        assert!(matches!(read(dir.path(), "b"), Err(PasswdError::NotAFile { .. })));
        assert!(matches!(read(&dir.path().join("none"), "b"), Err(PasswdError::Unreadable { .. })));
    }

    #[test]
    fn a_secret_that_kubernetes_mounted_may_be_read_by_all_and_written_by_none() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("..2026");
        std::fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink("..2026", dir.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/passwd", dir.path().join("passwd")).unwrap();
        std::fs::write(data.join("passwd"), "AK:s\n").unwrap();
        for (mode, accepted) in [(0o644, true), (0o640, true), (0o600, true), (0o666, false)] {
            std::fs::set_permissions(data.join("passwd"), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&dir.path().join("passwd"), "b").is_ok(), accepted, "{mode:o}");
        }
    }
}
