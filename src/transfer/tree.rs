//! Everything below a name in a bucket into a directory, some files at a time. Invariant: nothing is written outside of the directory; a
//! name that would lead there is told and left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use tokio::task::{JoinSet, block_in_place};

use super::get::{Getting, Got, get};
use super::names::{NameError, Pick, local_name};
use super::plan::{Asked, Plan};
use super::walk::{Listing, directory_of};
use super::{Error, Result};
use crate::store::{Key, ObjectMeta};

/// A tree on its way.
#[derive(Debug)]
pub struct Tree {
    /// How each file is brought; its plan is replaced by one for its size.
    pub getting: Getting,
    pub asked: Asked,
    pub pick: Pick,
    /// Leave out what is there with the same size and not older.
    pub update: bool,
    /// Files at a time.
    pub transfers: usize,
    pub dry_run: bool,
}

/// What came of one name.
#[derive(Debug)]
pub enum Outcome {
    Got {
        meta: ObjectMeta,
        path: PathBuf,
        got: Got,
    },
    /// What would have been brought.
    Would {
        meta: ObjectMeta,
        path: PathBuf,
    },
    Skipped,
    Refused {
        key: Key,
        why: NameError,
    },
}

impl Tree {
    /// Brings what lies below `key` and tells what came of each.
    ///
    /// # Errors
    /// The first that could not be brought. Those under way are given up, others are there.
    pub async fn get(&self, key: &Key, dest: &Path, mut tell: impl FnMut(Outcome)) -> Result<()> {
        let prefix = directory_of(key);
        let mut listing = Listing::new(Arc::clone(&self.getting.store), prefix.clone(), false);
        let mut running = JoinSet::new();
        while let Some(page) = listing.next().await? {
            for meta in page.objects {
                let rest = meta.key.as_bytes().strip_prefix(prefix.as_bytes()).unwrap_or_default();
                // The marker of the directory itself.
                if rest.is_empty() {
                    continue;
                }
                let name = match local_name(rest) {
                    Ok(name) => name,
                    Err(why) => {
                        tell(Outcome::Refused { key: meta.key, why });
                        continue;
                    }
                };
                if !self.pick.takes(&name) {
                    continue;
                }
                let path = dest.join(name);
                if meta.key.is_prefix() {
                    self.make(&path)?;
                } else if self.update && block_in_place(|| is_there(&path, &meta)) {
                    tell(Outcome::Skipped);
                } else if self.dry_run {
                    tell(Outcome::Would { meta, path });
                } else {
                    while running.len() >= self.transfers.max(1) {
                        tell(finished(&mut running).await.expect("it is not empty")?);
                    }
                    self.make(path.parent().unwrap_or(dest))?;
                    // That the plan fits was found out for the largest.
                    let plan = Plan::at_offsets(&self.asked, meta.size).unwrap_or(self.getting.plan);
                    running.spawn(one(Getting { plan, ..self.getting.clone() }, meta, path));
                }
            }
        }
        while let Some(outcome) = finished(&mut running).await {
            tell(outcome?);
        }
        Ok(())
    }

    fn make(&self, directory: &Path) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        block_in_place(|| fs::create_dir_all(directory)).map_err(Error::local("make the directory", directory))
    }
}

async fn finished(running: &mut JoinSet<Result<Outcome>>) -> Option<Result<Outcome>> {
    Some(running.join_next().await?.expect("a transfer does not panic, and nobody else aborts it"))
}

async fn one(getting: Getting, meta: ObjectMeta, path: PathBuf) -> Result<Outcome> {
    let details = getting.store.details(&meta.key).await?;
    let got = get(&getting, &details, 0..details.meta.size, &path).await?;
    Ok(Outcome::Got { meta: details.meta, path, got })
}

/// Whether the file is what the object is, by size and time. Times of objects have whole seconds in some answers.
pub fn is_there(path: &Path, meta: &ObjectMeta) -> bool {
    let seconds = |time: std::time::SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let found = fs::metadata(path).ok().filter(|found| found.is_file() && found.len() == meta.size);
    found.and_then(|found| found.modified().ok()).is_some_and(|modified| seconds(modified) >= seconds(meta.modified))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_is_there_with_the_same_size_and_not_older() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let modified = UNIX_EPOCH + Duration::from_millis(1_000_900);
        let meta = ObjectMeta { key: "k".into(), size: 3, etag: "e".into(), modified };
        assert!(!is_there(&path, &meta));
        fs::write(&path, "abc").unwrap();
        let set = |ms| fs::File::options().write(true).open(&path).unwrap().set_modified(UNIX_EPOCH + Duration::from_millis(ms)).unwrap();
        for (ms, expected) in [(999_000, false), (1_000_000, true), (1_001_000, true)] {
            set(ms);
            assert_eq!(is_there(&path, &meta), expected, "{ms}");
        }
        assert!(!is_there(&path, &ObjectMeta { size: 4, ..meta }));
    }
}
