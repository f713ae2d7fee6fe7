//! The file that becomes the target: room for all of it beside the target, and its name when it is whole. Invariant: the final name
//! shows the old file or the whole new one; what is unfinished is removed, unless a checkpoint goes on with it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, fallocate, fstatvfs, renameat, statat, unlinkat};

use super::resumed::{create, open_directory, open_or_create};
use super::{Error, Result};

/// Permissions of a new file, less the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// Room that is had at once, and a step of the rest: file systems in memory clear it, and whoever writes waits meanwhile.
const STEP: u64 = 32 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Target {
    pub file: Arc<File>,
    len: u64,
    unfinished: Unfinished,
    /// The final name, in the directory of the unfinished file.
    name: OsString,
    path: PathBuf,
}

/// The file as long as it is not whole, by its name in a directory that is held open: whatever is put on the path of the directory meanwhile, the file is
/// renamed and removed there.
#[derive(Debug)]
struct Unfinished {
    directory: Arc<OwnedFd>,
    name: OsString,
    /// Removed when it is dropped. Otherwise the next run goes on with it.
    is_temporary: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.is_temporary {
            self.remove();
        }
    }
}

impl Unfinished {
    fn temporary(directory: Arc<OwnedFd>) -> io::Result<(File, Self)> {
        loop {
            let name = OsString::from(format!(".windlass-{:016x}.part", rand::random::<u64>()));
            match create(&directory, &name, OFlags::empty(), MODE) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return Ok((created?, Self { directory, name, is_temporary: true })),
            }
        }
    }

    fn kept(directory: Arc<OwnedFd>, name: &str) -> io::Result<(File, Self)> {
        let name = OsString::from(format!(".{name}.part"));
        let file = open_or_create(&directory, &name, OFlags::empty(), MODE)?;
        Ok((file, Self { directory, name, is_temporary: false }))
    }

    fn rename(mut self, to: &OsStr) -> io::Result<()> {
        renameat(&self.directory, &self.name, &self.directory, to)?;
        self.is_temporary = false;
        Ok(())
    }

    fn remove(&self) {
        let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
    }
}

impl Target {
    /// Of `len` bytes, for which there is room. With a name the file is the same in the next run, with what is in it. It is made in `directory`, where the
    /// path leads; without that the path is opened, and a link at its end stays and what it leads to is replaced.
    pub fn open(path: &Path, len: u64, name: Option<&str>, directory: Option<&Arc<OwnedFd>>) -> Result<Self> {
        let path =
            Some(path).filter(|_| directory.is_none()).and_then(|path| fs::canonicalize(path).ok()).unwrap_or_else(|| path.to_owned());
        let failed = || Error::local("write", &path);
        let final_name = path.file_name().ok_or(io::ErrorKind::IsADirectory.into()).map_err(failed())?.to_owned();
        let directory = match directory {
            Some(directory) => Arc::clone(directory),
            None => Arc::new(open_directory(parent_of(&path)).map_err(failed())?),
        };
        let there = statat(&directory, &final_name, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir()) {
            return Err(failed()(io::ErrorKind::IsADirectory.into()));
        }
        let opened = match name {
            None => Unfinished::temporary(directory),
            Some(name) => Unfinished::kept(directory, name),
        };
        let (file, unfinished) = opened.map_err(failed())?;
        make_long(&file, len).and_then(|()| reserve(&file, 0, len.min(STEP))).map_err(failed())?;
        Ok(Self { file: Arc::new(file), len, unfinished, name: final_name, path })
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
        let Self { file, unfinished, name, path, .. } = self;
        let failed = || Error::local("write", &path);
        // File systems without times are still good for content.
        let _ = file.set_modified(modified);
        file.sync_all().map_err(failed())?;
        unfinished.rename(&name).map_err(failed())?;
        named(parent_of(&path))
    }

    /// Removes also what was kept.
    pub fn discard(self) {
        self.unfinished.remove();
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
        let target = Target::open(&path, 5, None, None).unwrap();
        target.file.write_all_at(b"whole", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(target);
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(&dir).unwrap().count()), (b"old".to_vec(), 1));
        let target = Target::open(&path, 5, None, None).unwrap();
        target.file.write_all_at(b"whole", 0).unwrap();
        target.finish(SystemTime::UNIX_EPOCH, keep_names).unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(&dir).unwrap().count()), (b"whole".to_vec(), 1));
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH);
    }

    #[tokio::test]
    async fn room_is_taken_for_all_of_it() {
        let dir = tempfile::tempdir().unwrap();
        for len in [STEP - 1, STEP, 3 * STEP + 5] {
            let target = Target::open(&dir.path().join("file"), len, None, None).unwrap();
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
        Target::open(&path, 5, Some("x"), None).unwrap().file.write_all_at(b"half", 0).unwrap();
        assert!(!path.exists() && dir.path().join(".x.part").exists());
        let target = Target::open(&path, 5, Some("x"), None).unwrap();
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
        Target::open(&link, 0, None, None).unwrap().finish(SystemTime::now(), keep_names).unwrap();
        assert!(link.is_symlink() && fs::read(&file).unwrap().is_empty());
        let directory = Arc::new(open_directory(dir.path()).unwrap());
        Target::open(&link, 1, None, Some(&directory)).unwrap().finish(SystemTime::now(), keep_names).unwrap();
        assert!(!link.is_symlink() && fs::read(&file).unwrap().is_empty());
        assert!(Target::open(dir.path(), 0, None, None).unwrap_err().to_string().contains("directory"));
    }
}
