//! Many small files in a directory: written, or read whole, by real threads, as programs do it. Knows nothing of mounts. Invariant: no file
//! that was there before is changed, and what was written can be removed, also after an error in the middle.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use walkdir::WalkDir;

use super::threads::{Check, Pass, on_threads};
use crate::store::memory::Synthetic;
use crate::transfer::{Error, Result};

/// Bytes asked for at once, as the vendor's program does.
const READ: usize = 1 << 20;

/// What the names of all files begin with that are written here.
pub const PREFIX: &str = "windlass-bench-";

/// Files to be written.
#[derive(Debug)]
pub struct NewFiles {
    dir: PathBuf,
    bytes: u64,
    count: u64,
    /// Names that were given out: no other one can be there.
    begun: AtomicU64,
}

impl NewFiles {
    /// `count` files of `bytes` in `dir`.
    ///
    /// # Errors
    /// When it is no directory, has no room, or has files of these names already.
    pub fn plan(dir: &Path, bytes: u64, count: u64) -> Result<Self> {
        check_room(dir, bytes.saturating_mul(count))?;
        let failed = || Error::local("use", dir);
        for entry in fs::read_dir(dir).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            if name.to_string_lossy().starts_with(PREFIX) {
                let words = format!("{} of an earlier bench is there: remove {PREFIX}* first", name.display());
                return Err(failed()(io::Error::other(words)));
            }
        }
        Ok(Self { dir: dir.to_owned(), bytes, count, begun: AtomicU64::new(0) })
    }

    /// Writes them with so many threads.
    ///
    /// # Errors
    /// The first; then [`remove`](Self::remove) takes away what is there.
    pub fn write(&self, threads: usize, check: Check<'_>) -> Result<Pass> {
        let mut content = vec![0; usize::try_from(self.bytes).unwrap_or(usize::MAX)];
        Synthetic::new(1).fill(0, &mut content);
        let next = || self.name(&self.begun, self.count);
        on_threads(threads, &content, check, &next, &|path, content| {
            let failed = || Error::local("write", path);
            let file = File::options().write(true).create_new(true).open(path).map_err(failed())?;
            file.write_all_at(content, 0).map_err(failed())?;
            close(file).map_err(failed())?;
            Ok(content.len() as u64)
        })
    }

    /// Removes them, as far as they are there.
    ///
    /// # Errors
    /// The first that cannot be removed.
    pub fn remove(&self, threads: usize) -> Result<()> {
        let (removed, begun) = (AtomicU64::new(0), self.begun.load(Relaxed).min(self.count));
        let next = || self.name(&removed, begun);
        on_threads(threads, &[], &|| Ok(()), &next, &|path, _| remove_one(path)).map(drop)
    }

    /// The next of `end` names.
    fn name(&self, next: &AtomicU64, end: u64) -> Option<Result<PathBuf>> {
        Some(next.fetch_add(1, Relaxed)).filter(|&n| n < end).map(|n| Ok(self.dir.join(format!("{PREFIX}{n:08}"))))
    }
}

/// Reads files below `dir` to their end: all, or the first `count` that are found. With `bytes` each must have so many.
///
/// # Errors
/// The first, also that there are fewer files, or a file of another size.
pub fn read(dir: &Path, count: Option<u64>, bytes: Option<u64>, threads: usize, check: Check<'_>) -> Result<Pass> {
    // Whoever takes the next name goes on with the walk: names come as the readers need them.
    let walk = Mutex::new((WalkDir::new(dir).into_iter(), 0));
    let next = || {
        let (walk, taken) = &mut *walk.lock();
        if count.is_some_and(|count| *taken >= count) {
            return None;
        }
        let found = walk.find(|entry| entry.as_ref().map_or(true, |entry| entry.file_type().is_file()))?;
        *taken += 1;
        Some(found.map(walkdir::DirEntry::into_path).map_err(|error| Error::local("list", dir)(error.into())))
    };
    let pass = on_threads(threads, &vec![0; READ], check, &next, &|path, buffer| {
        let failed = || Error::local("read", path);
        let len = read_one(path, buffer).map_err(failed())?;
        match bytes {
            Some(bytes) if bytes != len => Err(failed()(io::Error::other(format!("it has {len} bytes and not {bytes}")))),
            _ => Ok(len),
        }
    })?;
    match count {
        Some(count) if pass.files < count => Err(too_few(dir, &format!("{} of {count} files are", pass.files))),
        _ if pass.files == 0 => Err(too_few(dir, "no files are")),
        _ => Ok(pass),
    }
}

/// Removes `dir` with all in it; the files with several threads, because each may be a request.
///
/// # Errors
/// The first thing that cannot be removed.
pub fn remove_tree(dir: &Path, threads: usize) -> Result<()> {
    let failed = |error: walkdir::Error| Error::local("list", dir)(error.into());
    let walk: Result<Vec<_>, _> = WalkDir::new(dir).into_iter().collect();
    let files = walk.map_err(failed)?.into_iter().filter(|entry| !entry.file_type().is_dir()).map(walkdir::DirEntry::into_path);
    let files = Mutex::new(files);
    on_threads(threads, &[], &|| Ok(()), &|| files.lock().next().map(Ok), &|path, _| remove_one(path))?;
    fs::remove_dir_all(dir).map_err(Error::local("remove", dir))
}

/// Whether `dir` is a directory with so much room.
///
/// # Errors
/// That it is not.
pub fn check_room(dir: &Path, bytes: u64) -> Result<()> {
    let failed = || Error::local("use", dir);
    if !fs::metadata(dir).map_err(failed())?.is_dir() {
        return Err(failed()(io::ErrorKind::NotADirectory.into()));
    }
    let disk = rustix::fs::statvfs(dir).map_err(|error| failed()(error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    if free >= bytes {
        Ok(())
    } else {
        Err(failed()(io::Error::other(format!("{} MiB are free there, {} are needed", free >> 20, mib(bytes)))))
    }
}

fn too_few(dir: &Path, what: &str) -> Error {
    Error::local("read", dir)(io::Error::other(format!("{what} below it: --write --keep makes some")))
}

fn read_one(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut at = 0;
    loop {
        match file.read_at(buffer, at) {
            Ok(0) => break,
            Ok(n) => at += n as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    close(file)?;
    Ok(at)
}

/// Dropping a file says nothing of its close, which is when a mount of a bucket has stored it or failed to.
fn close(file: File) -> io::Result<()> {
    crate::sys::close(file.into())
}

fn remove_one(path: &Path) -> Result<u64> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::local("remove", path)(error)),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go_on() -> io::Result<()> {
        Ok(())
    }

    fn names(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn what_is_written_is_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "not from here").unwrap();
        let files = NewFiles::plan(dir.path(), 3000, 57).unwrap();
        let written = files.write(8, &go_on).unwrap();
        assert_eq!((written.files, written.bytes, written.times.count(), names(dir.path())), (57, 171_000, 57, 58));
        let content = fs::read(dir.path().join(format!("{PREFIX}00000056"))).unwrap();
        assert!(content.len() == 3000 && Synthetic::new(1).matches(0, &content));

        let read_all = read(dir.path(), None, None, 8, &go_on).unwrap();
        assert_eq!((read_all.files, read_all.bytes), (58, 171_013));
        assert_eq!(read(dir.path(), Some(5), None, 8, &go_on).unwrap().files, 5);

        files.remove(8).unwrap();
        assert_eq!(fs::read(dir.path().join("mine")).unwrap(), b"not from here");
        assert_eq!(names(dir.path()), 1);
        files.remove(8).unwrap();
    }

    #[test]
    fn files_that_are_not_as_told_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("deep")).unwrap();
        let none = read(dir.path(), None, None, 2, &go_on).unwrap_err();
        assert!(none.to_string().contains("no files"), "{none}");
        fs::write(dir.path().join("deep/er"), "12345").unwrap();
        assert_eq!(read(dir.path(), Some(1), Some(5), 2, &go_on).unwrap().bytes, 5);
        let few = read(dir.path(), Some(2), Some(5), 2, &go_on).unwrap_err();
        assert!(few.to_string().contains("1 of 2 files"), "{few}");
        let other = read(dir.path(), None, Some(6), 2, &go_on).unwrap_err();
        assert!(other.to_string().contains("deep/er") && other.to_string().contains("5 bytes and not 6"), "{other}");
    }

    #[test]
    fn what_has_no_room_or_is_there_already_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |error: Result<NewFiles>, words: &str| {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(NewFiles::plan(dir.path(), u64::MAX, u64::MAX), "MiB are free");
        refused(NewFiles::plan(&dir.path().join("nothing"), 1, 1), "nothing");
        fs::write(dir.path().join("file"), "").unwrap();
        refused(NewFiles::plan(&dir.path().join("file"), 1, 1), "not a directory");
        fs::write(dir.path().join(format!("{PREFIX}00000000")), "").unwrap();
        refused(NewFiles::plan(dir.path(), 1, 1), "earlier bench");
    }

    #[test]
    fn whoever_is_stopped_leaves_no_thread_working() {
        let dir = tempfile::tempdir().unwrap();
        let files = NewFiles::plan(dir.path(), 10, 10_000).unwrap();
        let asked = AtomicU64::new(0);
        let stopped = files.write(4, &|| if asked.fetch_add(1, Relaxed) < 100 { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) });
        assert!(matches!(stopped, Err(Error::Local { source, .. }) if source.kind() == io::ErrorKind::Interrupted));
        assert_eq!(names(dir.path()), 100);
        files.remove(4).unwrap();
        assert_eq!(names(dir.path()), 0);
    }

    #[test]
    fn a_tree_is_removed_with_all_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        (0..20).for_each(|n| fs::write(tree.join(format!("a/b/{n}")), "x").unwrap());
        std::os::unix::fs::symlink("/", tree.join("a/link")).unwrap();
        remove_tree(&tree, 4).unwrap();
        assert_eq!(names(dir.path()), 0);
        assert!(remove_tree(&tree, 4).is_err());
    }
}
