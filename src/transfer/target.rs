//! The file that becomes the target: room for all of it beside the target, and its name when it is whole. Invariant: the final name
//! shows the old file or the whole new one; what is unfinished is removed, unless a checkpoint goes on with it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatvfs};
use tempfile::{Builder, TempPath};

use super::{Error, Result};

/// Room that is had at once, and a step of the rest: file systems in memory clear it, and whoever writes waits meanwhile.
const STEP: u64 = 32 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Target {
    pub file: Arc<File>,
    len: u64,
    unfinished: Unfinished,
    path: PathBuf,
}

#[derive(Debug)]
enum Unfinished {
    /// Removed when it is dropped.
    Temporary(TempPath),
    Kept(PathBuf),
}

impl Target {
    /// Of `len` bytes, for which there is room. With a name the file is the same in the next run, with what is in it.
    pub fn open(path: &Path, len: u64, name: Option<&str>, follows_links: bool) -> Result<Self> {
        // A link that is followed stays, and what it leads to is replaced.
        let path = Some(path).filter(|_| follows_links).and_then(|path| fs::canonicalize(path).ok()).unwrap_or_else(|| path.to_owned());
        let failed = || Error::local("write", &path);
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            return Err(failed()(io::ErrorKind::IsADirectory.into()));
        }
        let parent = parent_of(&path);
        let (file, unfinished) = match name {
            None => {
                let mut builder = Builder::new();
                let builder = builder.prefix(".windlass-").suffix(".part");
                let made = builder.permissions(Permissions::from_mode(0o666)).tempfile_in(parent).map_err(failed())?;
                let (file, path) = made.into_parts();
                (file, Unfinished::Temporary(path))
            }
            Some(name) => {
                let kept = parent.join(format!(".{name}.part"));
                // Its name is predictable: a planted link is not followed.
                let mut options = File::options();
                let options = options.read(true).write(true).create(true).truncate(false).custom_flags(OFlags::NOFOLLOW.bits() as i32);
                let file = options.open(&kept).map_err(failed())?;
                (file, Unfinished::Kept(kept))
            }
        };
        make_long(&file, len).and_then(|()| reserve(&file, 0, len.min(STEP))).map_err(failed())?;
        Ok(Self { file: Arc::new(file), len, unfinished, path })
    }

    /// Takes the room for all of it, beside those who write.
    pub async fn reserve(&self) -> Result<()> {
        if self.len <= STEP {
            return Ok(());
        }
        let (file, len, wanted) = (Arc::clone(&self.file), self.len, Arc::new(AtomicBool::new(true)));
        // Dropped, it is not wanted any more.
        let _guard = Unwanted(Arc::clone(&wanted));
        let steps = move || {
            let mut starts = (STEP..len).step_by(STEP as usize);
            starts.try_for_each(|at| if wanted.load(Ordering::Relaxed) { reserve(&file, at, STEP.min(len - at)) } else { Ok(()) })
        };
        let done = tokio::task::spawn_blocking(steps).await.expect("it does not panic, and nobody aborts it");
        done.map_err(Error::local("write", &self.path))
    }

    /// Gives it its name, as old as the object. The directory of that name is told to `named`, to be [kept](keep_names).
    pub fn finish(self, modified: SystemTime, named: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let Self { file, unfinished, path, .. } = self;
        let failed = || Error::local("write", &path);
        // File systems without times are still good for content.
        let _ = file.set_modified(modified);
        file.sync_all().map_err(failed())?;
        match unfinished {
            Unfinished::Temporary(made) => made.persist(&path).map_err(|error| failed()(error.error))?,
            Unfinished::Kept(kept) => fs::rename(&kept, &path).map_err(failed())?,
        }
        named(parent_of(&path))
    }

    /// Removes also what was kept.
    pub fn discard(self) {
        if let Unfinished::Kept(path) = self.unfinished {
            let _ = fs::remove_file(path);
        }
    }
}

/// The directory that a path is in.
pub(super) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Has the names in a directory survive a crash.
pub(super) fn keep_names(directory: &Path) -> Result<()> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(Error::local("write to", directory))
}

struct Unwanted(Arc<AtomicBool>);

impl Drop for Unwanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A full disk says so before the first byte is fetched, where the file system can tell.
fn make_long(file: &File, len: u64) -> io::Result<()> {
    // Asked for more than there is, some file systems take all there is before they say no.
    let (free, has) = (fstatvfs(file)?, file.metadata()?.blocks() * 512);
    if (free.f_bavail * free.f_frsize).saturating_add(has) < len {
        return Err(rustix::io::Errno::NOSPC.into());
    }
    file.set_len(len)
}

fn reserve(file: &File, at: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), at, len) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        other => other.map_err(io::Error::from),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_target_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let target = Target::open(&path, 5, None, true).unwrap();
        target.file.write_all_at(b"whole", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(target);
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(&dir).unwrap().count()), (b"old".to_vec(), 1));
        let target = Target::open(&path, 5, None, true).unwrap();
        target.file.write_all_at(b"whole", 0).unwrap();
        target.finish(SystemTime::UNIX_EPOCH, keep_names).unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(&dir).unwrap().count()), (b"whole".to_vec(), 1));
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH);
    }

    #[tokio::test]
    async fn room_is_taken_for_all_of_it() {
        let dir = tempfile::tempdir().unwrap();
        for len in [STEP - 1, STEP, 3 * STEP + 5] {
            let target = Target::open(&dir.path().join("file"), len, None, true).unwrap();
            target.file.write_all_at(b"there", STEP / 2).unwrap();
            target.reserve().await.unwrap();
            let found = target.file.metadata().unwrap();
            assert!(found.len() == len && found.blocks() * 512 >= len, "{found:?}");
            let mut there = [0; 5];
            target.file.read_exact_at(&mut there, STEP / 2).unwrap();
            assert_eq!(&there, b"there");
        }
    }

    #[test]
    fn a_named_one_is_found_again_until_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        Target::open(&path, 5, Some("x"), true).unwrap().file.write_all_at(b"half", 0).unwrap();
        assert!(!path.exists() && dir.path().join(".x.part").exists());
        let target = Target::open(&path, 5, Some("x"), true).unwrap();
        target.file.write_all_at(b"!", 4).unwrap();
        target.finish(SystemTime::now(), keep_names).unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(&dir).unwrap().count()), (b"half!".to_vec(), 1));
    }

    #[test]
    fn the_file_behind_a_link_is_replaced_and_a_directory_never() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        Target::open(&link, 0, None, true).unwrap().finish(SystemTime::now(), keep_names).unwrap();
        assert!(link.is_symlink() && fs::read(&file).unwrap().is_empty());
        Target::open(&link, 1, None, false).unwrap().finish(SystemTime::now(), keep_names).unwrap();
        assert!(!link.is_symlink() && fs::read(&file).unwrap().is_empty());
        assert!(Target::open(dir.path(), 0, None, true).unwrap_err().to_string().contains("directory"));
    }
}
