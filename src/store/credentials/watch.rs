//! Whether files are still the ones that were read: by what stat(2) tells of the file behind the links, which changes when a directory of
//! Kubernetes is swapped (a new inode behind `..data`), when a file is renamed over another, and when it is written in place. It reads no
//! content. Invariant: a file that is not there, or may not be looked at, differs from one that is.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// A directory of credentials has four files. One of thousands is something else, and is not worth a look each second.
const ENTRIES: usize = 64;

/// What of a file changes with its content: device, inode, size, and both times to the nanosecond.
type Stat = (u64, u64, u64, (i64, i64), (i64, i64));

/// Files and directories as they were at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Print(Vec<(PathBuf, Option<Stat>)>);

impl Print {
    /// `paths` as they are; of a directory also what is in it.
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut found = Vec::new();
        for path in paths {
            let metadata = fs::metadata(path).ok();
            let is_dir = metadata.as_ref().is_some_and(Metadata::is_dir);
            found.push((path.to_owned(), metadata.as_ref().map(stat)));
            if is_dir {
                let entries = fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES).map(|entry| entry.path());
                let mut entries: Vec<_> = entries.map(|path| (fs::metadata(&path).ok().as_ref().map(stat), path)).collect();
                entries.sort();
                found.extend(entries.into_iter().map(|(stat, path)| (path, stat)));
            }
        }
        Self(found)
    }
}

fn stat(metadata: &Metadata) -> Stat {
    let times = ((metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec()));
    (metadata.dev(), metadata.ino(), metadata.size(), times.0, times.1)
}

/// Files that are looked at from time to time.
#[derive(Debug)]
pub(super) struct Watch {
    paths: Vec<PathBuf>,
    seen: Mutex<Print>,
}

impl Watch {
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, seen: Mutex::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Looks, and says whether something changed since the look before.
    pub fn look(&self) -> bool {
        let now = Print::of(self.paths.iter().map(PathBuf::as_path));
        let mut seen = self.seen.lock();
        let changed = *seen != now;
        *seen = now;
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn watch(path: &Path) -> Watch {
        let watch = Watch::new(vec![path.to_owned()]);
        assert!(watch.look() && !watch.look());
        watch
    }

    #[test]
    fn a_file_that_is_written_replaced_removed_or_made_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let watch = watch(&file);
        fs::write(&file, "one").unwrap();
        assert!(watch.look() && !watch.look());
        fs::write(&file, "longer").unwrap();
        assert!(watch.look() && !watch.look());
        // The same length and time, as cp -p leaves it: another inode.
        let other = dir.path().join("other");
        fs::write(&other, "others").unwrap();
        let time = fs::metadata(&file).unwrap().modified().unwrap();
        fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        fs::rename(&other, &file).unwrap();
        assert!(watch.look() && !watch.look());
        fs::remove_file(&file).unwrap();
        assert!(watch.look() && !watch.look());
    }

    #[test]
    fn a_directory_is_another_when_what_stands_behind_its_links_is() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("secret");
        for generation in ["..one", "..two"] {
            fs::create_dir_all(dir.join(generation)).unwrap();
            fs::write(dir.join(generation).join("AccessKeyId"), generation).unwrap();
        }
        symlink("..one", dir.join("..data")).unwrap();
        symlink("..data/AccessKeyId", dir.join("AccessKeyId")).unwrap();
        let watch = watch(&dir);
        symlink("..two", dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        assert!(watch.look() && !watch.look());
        fs::write(dir.join("..two/AccessKeyId"), "written in place").unwrap();
        assert!(watch.look() && !watch.look());
    }
}
