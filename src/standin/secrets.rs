//! Credentials of a mount as files, as Alibaba Cloud's driver lays them out for its clients (pkg/mounter/interceptors/ossfs_secret.go there): a
//! password file, or a directory with a file a field, which is swapped as a whole through a link. Invariant: nobody else can read them, and a
//! client sees the fields of before or of after a change, never some of both.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use super::lines::Client;

/// The fields of temporary keys, as the driver and the store call them; the last one may be missing.
const FIELDS: [&str; 4] = ["AccessKeyId", "AccessKeySecret", "SecurityToken", "Expiration"];

/// The name of the link.
const LINK: &str = "sts";

/// Where a client finds its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// It has to look for itself: a role, or files that are there already.
    None,
    File(String),
    Directory(String),
}

impl Credentials {
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::File(path) | Self::Directory(path) => Some(path),
        }
    }
}

/// Lays out `secrets` in `home`, a directory of the mount's own, in place of what was there before.
///
/// # Errors
/// When a field is missing or a file cannot be written.
pub(super) fn lay_out(home: &Path, client: Client, secrets: &BTreeMap<String, String>) -> io::Result<Credentials> {
    let named = |name: &str| secrets.get(name).map(String::as_str).filter(|text| !text.is_empty());
    if let Some(text) = named(client.password_file()) {
        let path = home.join(client.password_file());
        if fs::read_to_string(&path).ok().as_deref() != Some(text) {
            let draft = home.join("draft");
            write(&draft, text)?;
            fs::rename(&draft, &path)?;
        }
        return Ok(Credentials::File(shown(&path)?));
    }
    if named("SecurityToken").is_none() {
        return Ok(Credentials::None);
    }
    let mut fields = Vec::new();
    for field in FIELDS {
        match named(field) {
            Some(text) => fields.push((field, text)),
            None if field == "Expiration" => {}
            None => return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid authorization: {field} is empty"))),
        }
    }
    let link = home.join(LINK);
    let is_there = |(field, text): &(&str, &str)| fs::read_to_string(link.join(field)).is_ok_and(|found| found == *text);
    if !fields.iter().all(is_there) || fields.len() == 3 && link.join("Expiration").exists() {
        swap(home, &link, &fields)?;
    }
    Ok(Credentials::Directory(shown(&link)?))
}

/// A directory beside the one before, then the link, then the one before goes.
fn swap(home: &Path, link: &Path, fields: &[(&str, &str)]) -> io::Result<()> {
    let before = fs::read_link(link).ok();
    let next = tempfile::Builder::new().prefix(".sts.").tempdir_in(home)?;
    for (field, text) in fields {
        write(&next.path().join(field), text)?;
    }
    let draft = home.join(".sts");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let name = next.path().file_name().map(PathBuf::from).ok_or(io::ErrorKind::InvalidInput)?;
    symlink(&name, &draft)?;
    fs::rename(&draft, link)?;
    // From here on it is what clients see.
    let _ = next.keep();
    match before {
        Some(before) => fs::remove_dir_all(home.join(before)),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

fn shown(path: &Path) -> io::Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the directory of secrets is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn secrets(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_password_file_is_private_and_replaced_as_a_whole() {
        let home = tempfile::tempdir().unwrap();
        for text in ["data:A:s", "data:B:s"] {
            let laid = lay_out(home.path(), Client::Ossfs, &secrets(&[("passwd-ossfs", text)])).unwrap();
            let Credentials::File(path) = laid else { panic!("{laid:?}") };
            assert_eq!((fs::read_to_string(&path).unwrap().as_str(), fs::metadata(&path).unwrap().mode() & 0o777), (text, 0o600));
        }
        // That of the other client is no secret of this one.
        assert_eq!(lay_out(home.path(), Client::Ossfs2, &secrets(&[("passwd-ossfs", "data:A:s")])).unwrap(), Credentials::None);
    }

    #[test]
    fn tokens_are_swapped_through_a_link_and_only_when_they_change() {
        let home = tempfile::tempdir().unwrap();
        let token = |token: &str| {
            let all =
                [("AccessKeyId", "STS.A"), ("AccessKeySecret", "s"), ("SecurityToken", token), ("Expiration", "2099-01-01T00:00:00Z")];
            let laid = lay_out(home.path(), Client::Ossfs, &secrets(&all)).unwrap();
            let Credentials::Directory(path) = laid else { panic!("{laid:?}") };
            (fs::read_link(&path).unwrap(), fs::read_to_string(Path::new(&path).join("SecurityToken")).unwrap())
        };
        let (first, second, third) = (token("one"), token("one"), token("two"));
        assert_eq!(first, second);
        assert_eq!((first.0 != third.0, third.1.as_str()), (true, "two"));
        assert!(!home.path().join(first.0).exists(), "what nobody sees any more is gone");
        let error = lay_out(home.path(), Client::Ossfs, &secrets(&[("SecurityToken", "x"), ("AccessKeyId", "a")])).unwrap_err();
        assert!(error.to_string().contains("AccessKeySecret is empty"), "{error}");
    }
}
