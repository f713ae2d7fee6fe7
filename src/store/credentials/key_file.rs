//! What `passwd-file` names, as a source: a password file, a directory with one file a field, or such files one by one. Whether new fields
//! belong together is judged here. Invariant: keys of which only a part is new are not taken as long as the rest may still come.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::directory::Fields;
use super::{Keys, Missing, Source, directory, passwd};
use crate::store::options::KeyFiles;

/// Drivers that write one file after the other are done within milliseconds. A part of new keys that stays alone is all that is new: there
/// are stores where the secret of a key can be changed.
const SETTLED: Duration = Duration::from_secs(10);

/// Keys in files.
#[derive(Debug)]
pub(in crate::store) struct KeyFile {
    place: Place,
    given: Mutex<Given>,
}

#[derive(Clone, Debug)]
enum Place {
    /// A password file, or a directory.
    Path {
        path: PathBuf,
        bucket: String,
    },
    Fields(Fields),
}

#[derive(Debug, Default)]
struct Given {
    last: Option<Keys>,
    /// What was found when only a part of it was new, and since when that is there.
    part: Option<(Keys, Instant)>,
}

impl KeyFile {
    pub fn at(path: &Path, bucket: &str) -> Self {
        Self { place: Place::Path { path: path.to_owned(), bucket: bucket.to_owned() }, given: Mutex::default() }
    }

    pub fn of_fields(files: &KeyFiles) -> Self {
        let KeyFiles { id, secret, token } = files.clone();
        Self { place: Place::Fields(Fields { id: Some(id), secret: Some(secret), token, expiration: None }), given: Mutex::default() }
    }

    /// What it is, for people.
    pub fn name(&self) -> String {
        match &self.place {
            Place::Path { path, .. } if path.is_dir() => format!("the credentials in {}", path.display()),
            Place::Path { path, .. } => format!("the credentials file {}", path.display()),
            Place::Fields(fields) => format!("the credentials file {}", fields.id.as_deref().unwrap_or(Path::new("")).display()),
        }
    }

    /// What was found in several files, unless more of it is still to come.
    fn settled(&self, found: Keys, now: Instant) -> Result<Keys, Missing> {
        let mut given = self.given.lock();
        if given.last.as_ref().is_some_and(|last| is_part(last, &found)) {
            let since = given.part.as_ref().filter(|(part, _)| part.sign_like(&found)).map_or(now, |(_, since)| *since);
            if now - since < SETTLED {
                given.part = Some((found, since));
                return Err(Missing::new(format!("only a part of {} is new: the rest is waited for", self.name())));
            }
        }
        *given = Given { last: Some(found.clone()), part: None };
        Ok(found)
    }
}

#[async_trait]
impl Source for KeyFile {
    async fn fetch(&self) -> Result<Keys, Missing> {
        let place = self.place.clone();
        let read = tokio::task::spawn_blocking(move || place.read()).await;
        let (found, is_one_file) =
            read.map_err(|_| Missing::new(format!("reading {} was interrupted", self.name())))?.map_err(Missing::new)?;
        if is_one_file { Ok(found) } else { self.settled(found, Instant::now()) }
    }

    fn files(&self) -> Vec<PathBuf> {
        match &self.place {
            Place::Path { path, .. } => vec![path.clone()],
            Place::Fields(fields) => fields.paths().into_iter().map(Path::to_owned).collect(),
        }
    }
}

impl Place {
    /// The keys, and whether they stand in one file.
    fn read(&self) -> Result<(Keys, bool), String> {
        match self {
            Self::Path { path, .. } if path.is_dir() => directory::read(path).map(|keys| (keys, false)).map_err(|error| error.to_string()),
            Self::Path { path, bucket } => passwd::read(path, bucket).map(|keys| (keys, true)).map_err(|error| error.to_string()),
            Self::Fields(fields) => directory::read_files(fields).map(|keys| (keys, false)).map_err(|error| error.to_string()),
        }
    }
}

/// Whether some of the fields are new and others should be and are not.
fn is_part(last: &Keys, found: &Keys) -> bool {
    let (id, secret, token) = (last.id != found.id, last.secret != found.secret, last.token != found.token);
    let has_token = last.token.is_some() && found.token.is_some();
    id != secret || (has_token && token != id)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(dir: &Path, id: &str, secret: &str, token: &str) {
        for (name, text) in [("AccessKeyId", id), ("AccessKeySecret", secret), ("SecurityToken", token)] {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_of_new_keys_is_not_taken_until_the_rest_came_or_nothing_more_comes() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::at(dir.path(), "b");
        let ask = async || file.fetch().await.map(|keys| (keys.id, keys.secret, keys.token.unwrap()));
        let keys = |id: &str, secret: &str, token: &str| Ok((id.to_owned(), secret.to_owned(), token.to_owned()));
        write(dir.path(), "A", "a", "ta");
        assert_eq!(ask().await, keys("A", "a", "ta"));
        for (id, secret, token) in [("A", "b", "ta"), ("A", "b", "tb"), ("B", "b", "ta"), ("A", "a", "tb"), ("B", "a", "ta")] {
            write(dir.path(), id, secret, token);
            let missing = ask().await.unwrap_err();
            assert!(missing.message.contains("only a part of"), "{id} {secret} {token}: {missing}");
        }
        write(dir.path(), "B", "b", "tb");
        assert_eq!(ask().await, keys("B", "b", "tb"));

        write(dir.path(), "B", "changed", "tb");
        assert!(ask().await.is_err());
        tokio::time::advance(SETTLED / 2).await;
        assert!(ask().await.is_err());
        tokio::time::advance(SETTLED / 2).await;
        assert_eq!(ask().await, keys("B", "changed", "tb"));
    }

    #[tokio::test]
    async fn a_file_of_its_own_is_new_as_a_whole() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        let file = KeyFile::at(&path, "b");
        for line in ["A:a", "A:b", "B:b"] {
            fs::write(&path, line).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let keys = file.fetch().await.unwrap();
            assert_eq!(format!("{}:{}", keys.id, keys.secret), line);
        }
        fs::write(&path, "").unwrap();
        assert!(file.fetch().await.unwrap_err().message.contains("no line for the bucket"));
    }
}
