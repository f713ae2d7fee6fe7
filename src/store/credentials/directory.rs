//! Keys in files of their own, one a field: what Kubernetes mounts of a secret, and what drivers write for ossfs and ossfs2. A directory is
//! read as it is at one moment, and nothing of it is kept. Who else may read the files is not asked: a mounted secret is readable for
//! all users of its container by design, and its directory is what guards it. Invariant: fields of two directories, the one before a
//! swap and the one after it, are never mixed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use reqsign_core::time::Timestamp;

use super::Keys;
use super::watch::Print;

/// A token of a token service has a few kilobytes.
const FIELD_LIMIT: u64 = 64 << 10;

/// How often a directory is read that is being swapped.
const TRIES: usize = 3;

/// A field of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyField {
    Id,
    Secret,
    Token,
    Expiration,
}

/// Names of the fields in lower case without `_` and `-`: those of Alibaba Cloud (AccessKeyId) and of its driver (akId), of AWS
/// (aws_access_key_id), of Mountpoint's driver (key_id, access_key) and of csi-s3 (accessKeyID, secretAccessKey). A directory of tokens that
/// Alibaba Cloud's driver writes has AccessKeyId, AccessKeySecret, SecurityToken and Expiration (pkg/mounter/interceptors/ossfs_secret_utils.go,
/// getTokenKeys). Behind its secret_store_dir is a volume of secrets-store.csi.k8s.io (manager.go, AuthTypeCSS), whose files are called as the
/// SecretProviderClass of the cluster says: no source of the driver or of ossfs names them, so that the names above are what a class may use.
const NAMES: [(KeyField, &[&str]); 4] = [
    (KeyField::Id, &["accesskeyid", "akid", "keyid", "awsaccesskeyid", "ossaccesskeyid", "alibabacloudaccesskeyid"]),
    (
        KeyField::Secret,
        &[
            "accesskeysecret",
            "aksecret",
            "accesskey",
            "secretaccesskey",
            "awssecretaccesskey",
            "ossaccesskeysecret",
            "alibabacloudaccesskeysecret",
        ],
    ),
    (KeyField::Token, &["securitytoken", "sessiontoken", "ststoken", "awssessiontoken", "osssessiontoken", "alibabacloudsecuritytoken"]),
    (KeyField::Expiration, &["expiration"]),
];

impl KeyField {
    /// The field that is called `name` somewhere.
    pub fn of(name: &str) -> Option<Self> {
        let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect();
        NAMES.iter().find(|(_, names)| names.contains(&plain.as_str())).map(|(field, _)| *field)
    }
}

/// Which files hold the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub id: Option<PathBuf>,
    pub secret: Option<PathBuf>,
    pub token: Option<PathBuf>,
    pub expiration: Option<PathBuf>,
}

/// Why a directory gives no keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectoryError {
    #[error("cannot read {}: {source}; it must be there and readable for the user who mounts", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} has no file {field}; it needs AccessKeyId and AccessKeySecret, and with temporary keys SecurityToken and Expiration", dir.display())]
    NoField { dir: PathBuf, field: &'static str },
    #[error("{} is empty", path.display())]
    Empty { path: PathBuf },
    #[error("{} is not one line of text", path.display())]
    NotText { path: PathBuf },
    #[error("{p} has mode {mode:03o}: other users may write it; run: chmod o-w {p}", p = path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} is not a time such as 2026-01-01T00:00:00Z", path.display())]
    NotATime { path: PathBuf },
    #[error("{} is being replaced", dir.display())]
    Moving { dir: PathBuf },
}

/// The keys in `dir`.
pub(super) fn read(dir: &Path) -> Result<Keys, DirectoryError> {
    still(dir, &[dir], || Fields::in_directory(dir).and_then(|fields| fields.read(dir)))
}

/// The keys in files that were named one by one.
pub(super) fn read_files(fields: &Fields) -> Result<Keys, DirectoryError> {
    let paths = fields.paths();
    let dir = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new("/"));
    still(dir, &paths, || fields.read(dir))
}

/// What `read` finds while nothing of `paths` changes.
fn still(dir: &Path, paths: &[&Path], read: impl Fn() -> Result<Keys, DirectoryError>) -> Result<Keys, DirectoryError> {
    for _ in 0..TRIES {
        let before = Print::of(paths.iter().copied());
        let found = read();
        if Print::of(paths.iter().copied()) == before {
            return found;
        }
    }
    Err(DirectoryError::Moving { dir: dir.to_owned() })
}

impl Fields {
    /// The files of `dir` whose names say what they hold.
    fn in_directory(dir: &Path) -> Result<Self, DirectoryError> {
        let unreadable = |source| DirectoryError::Unreadable { path: dir.to_owned(), source };
        let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(unreadable)?;
        let mut found: Vec<(KeyField, PathBuf)> =
            entries.iter().filter_map(|entry| Some((KeyField::of(entry.file_name().to_str()?)?, entry.path()))).collect();
        found.sort_by(|(_, one), (_, other)| one.cmp(other));
        let file = |wanted| found.iter().find(|(field, _)| *field == wanted).map(|(_, path)| path.clone());
        Ok(Self {
            id: file(KeyField::Id),
            secret: file(KeyField::Secret),
            token: file(KeyField::Token),
            expiration: file(KeyField::Expiration),
        })
    }

    pub fn paths(&self) -> Vec<&Path> {
        [&self.id, &self.secret, &self.token, &self.expiration].into_iter().flatten().map(PathBuf::as_path).collect()
    }

    fn read(&self, dir: &Path) -> Result<Keys, DirectoryError> {
        let needed = |path: &Option<PathBuf>, field| {
            let path = path.as_ref().ok_or_else(|| DirectoryError::NoField { dir: dir.to_owned(), field })?;
            read_field(path)?.ok_or_else(|| DirectoryError::Empty { path: path.clone() })
        };
        let optional = |path: &Option<PathBuf>| path.as_deref().map_or(Ok(None), read_field);
        Ok(Keys {
            id: needed(&self.id, "AccessKeyId")?,
            secret: needed(&self.secret, "AccessKeySecret")?,
            token: optional(&self.token)?,
            expires: self.expiration.as_deref().map_or(Ok(None), expiration)?,
            from: format!("the credentials in {}", dir.display()),
        })
    }
}

/// The text of a field; none when the file is empty.
fn read_field(path: &Path) -> Result<Option<String>, DirectoryError> {
    let unreadable = |source| DirectoryError::Unreadable { path: path.to_owned(), source };
    // A FIFO would block the open itself.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(DirectoryError::NotText { path: path.to_owned() });
    }
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode() & 0o777;
    if mode & 0o002 != 0 {
        return Err(DirectoryError::Writable { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(FIELD_LIMIT).read_to_end(&mut bytes).map_err(unreadable)?;
    let not_text = || DirectoryError::NotText { path: path.to_owned() };
    let text = std::str::from_utf8(&bytes).map_err(|_| not_text())?.trim();
    // It becomes part of a header.
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(not_text());
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn expiration(path: &Path) -> Result<Option<SystemTime>, DirectoryError> {
    let Some(text) = read_field(path)? else { return Ok(None) };
    let time = text.parse::<Timestamp>().map_err(|_| DirectoryError::NotATime { path: path.to_owned() })?;
    Ok(Some(time.as_system_time()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn the_files_of_each_vendor_are_known() {
        for [id, secret, token] in [
            ["AccessKeyId", "AccessKeySecret", "SecurityToken"],
            ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"],
            ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"],
            ["accessKeyID", "secretAccessKey", "sessionToken"],
            ["key_id", "access_key", "session_token"],
            ["akId", "akSecret", "stsToken"],
            ["access-key-id", "access-key-secret", "security-token"],
        ] {
            let dir = directory(&[(id, "STS.A\n"), (secret, "s/+="), (token, " t \n"), ("Expiration", "2030-01-01T00:00:00Z"), ("x", "y")]);
            // As Kubernetes mounts them.
            fs::set_permissions(dir.path().join(secret), fs::Permissions::from_mode(0o644)).unwrap();
            let keys = read(dir.path()).unwrap();
            assert_eq!((keys.id.as_str(), keys.secret.as_str(), keys.token.as_deref()), ("STS.A", "s/+=", Some("t")), "{id}");
            assert_eq!(keys.expires.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(), 1_893_456_000);
            let named = Fields { id: Some(dir.path().join(id)), secret: Some(dir.path().join(secret)), ..Fields::default() };
            assert!(read_files(&named).is_ok_and(|keys| keys.token.is_none() && keys.expires.is_none()));
        }
    }

    #[test]
    fn a_directory_that_is_not_complete_says_what_it_lacks() {
        for (files, words) in [
            (&[("AccessKeyId", "A")][..], "has no file AccessKeySecret"),
            (&[("AccessKeyId", ""), ("AccessKeySecret", "s")], "AccessKeyId is empty"),
            (&[("AccessKeyId", "A"), ("AccessKeySecret", "top secret")], "AccessKeySecret is not one line of text"),
            (&[("AccessKeyId", "A"), ("AccessKeySecret", "s"), ("Expiration", "tomorrow")], "Expiration is not a time"),
        ] {
            let error = read(directory(files).path()).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("top"), "{error}");
        }
        let missing = read(Path::new("/nonexistent")).unwrap_err();
        assert!(matches!(missing, DirectoryError::Unreadable { .. }));
    }

    #[test]
    fn a_file_that_everybody_may_write_is_refused() {
        let dir = directory(&[("AccessKeyId", "A"), ("AccessKeySecret", "s")]);
        fs::set_permissions(dir.path().join("AccessKeyId"), fs::Permissions::from_mode(0o666)).unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("mode 666") && error.contains("chmod o-w"), "{error}");
    }

    #[test]
    fn a_directory_that_changes_while_it_is_read_is_read_again() {
        let dir = directory(&[("AccessKeyId", "A"), ("AccessKeySecret", "s")]);
        let (path, reads) = (dir.path(), std::cell::Cell::new(0));
        let changing = |until: usize| {
            reads.set(0);
            let found = still(path, &[path], || {
                reads.set(reads.get() + 1);
                let found = Fields::in_directory(path)?.read(path);
                if reads.get() < until {
                    fs::write(path.join("AccessKeySecret"), "longer".repeat(reads.get())).unwrap();
                }
                found
            });
            (found.map(|keys| keys.secret), reads.get())
        };
        assert!(matches!(changing(2), (Ok(secret), 2) if secret == "longer"));
        assert!(matches!(changing(usize::MAX), (Err(DirectoryError::Moving { .. }), TRIES)));
    }
}
