//! The directory that a spill and staged files lie in, and the files that are opened there. A daemon that runs as root may be given a directory that other
//! users can write to, such as `/tmp` or a volume of a pod. Invariant: the files that are opened lie in a directory that only this user, or root, can change,
//! and belong to this user: a link that another user planted is neither followed nor written through.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat, fstat, mkdirat, open, openat};
use rustix::io::Errno;

/// Permissions with which others could put a link into a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// See the module.
#[derive(Debug)]
pub struct Home {
    path: PathBuf,
    shown: PathBuf,
    /// Keeps `path` valid when it goes through a descriptor.
    _held: Option<OwnedFd>,
}

impl Home {
    /// Opens `directory`, which is created when it is missing. When users other than its owner can write to it, the files go into a subdirectory
    /// `windlass-UID` with mode 0700, which is reached by its descriptor: in a directory without sticky bit another user could rename it.
    ///
    /// # Errors
    /// When the directory cannot be created or opened, or belongs to another user than this one and root.
    pub fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory"),
            _ => error,
        })?;
        Self::of(directory, true)
    }

    /// As [`open`](Self::open), and creates nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`io::ErrorKind::NotFound`] when it does not exist.
    pub fn existing(directory: &Path) -> io::Result<Self> {
        Self::of(directory, false)
    }

    fn of(directory: &Path, creates: bool) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outer = open(directory, flags, Mode::empty())?;
        let (found, own) = (fstat(&outer)?, own_uid());
        if found.st_uid != own && found.st_uid != 0 {
            let why = format!("it belongs to uid {}, which could put links there", found.st_uid);
            return Err(refused(directory, &why));
        }
        if found.st_mode & WRITABLE_BY_OTHERS == 0 {
            return Ok(Self { path: directory.to_owned(), shown: directory.to_owned(), _held: None });
        }
        let name = format!("windlass-{own}");
        let shown = directory.join(&name);
        match mkdirat(&outer, &name, Mode::RWXU) {
            Err(error) if error != Errno::EXIST && creates => return Err(error.into()),
            _ => {}
        }
        let inner = match openat(&outer, &name, flags | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(refused(&shown, "it is a link or a file")),
            opened => opened?,
        };
        check_private(&shown, &fstat(&inner)?)?;
        let path = Path::new("/proc/self/fd").join(inner.as_raw_fd().to_string());
        Ok(Self { path, shown, _held: Some(inner) })
    }

    /// The path by which its files are opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `path`, which is below [`path`](Self::path), as a person finds it.
    pub fn shown(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.path).map_or_else(|_| path.to_owned(), |below| self.shown.join(below))
    }

    /// The subdirectory `name`, which no other user can enter. It is created when it is missing.
    ///
    /// # Errors
    /// When it cannot be created, or is not such a directory.
    pub fn private(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        make_private(&path)?;
        self.check_private(&path)?;
        Ok(path)
    }

    /// Checks that `path` is a directory of this user that no other user can enter.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_private(&self, path: &Path) -> io::Result<()> {
        check_private_at(path, &self.shown(path))
    }
}

/// Checks that `path` is a directory of this user that no other user can enter.
pub(super) fn check_private_at(path: &Path, shown: &Path) -> io::Result<()> {
    let found = rustix::fs::lstat(path)?;
    if rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir() {
        return check_private(shown, &found);
    }
    Err(refused(shown, "it is a link or a file"))
}

fn check_private(shown: &Path, found: &Stat) -> io::Result<()> {
    let (uid, mode) = (found.st_uid, found.st_mode & 0o7777);
    if uid == own_uid() && mode & 0o077 == 0 {
        return Ok(());
    }
    Err(refused(shown, &format!("it belongs to uid {uid} and has mode {mode:04o}")))
}

fn refused(path: &Path, why: &str) -> io::Error {
    let (path, uid) = (path.display(), own_uid());
    let message = format!("{path} is not a directory that only uid {uid} can change: {why}; remove it, or choose another directory");
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes a directory that no other user can enter, unless there is one.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Opens a file of this user as `options` say, with mode 0600 when it is created. Links are not followed.
///
/// # Errors
/// What open(2) says, and [`io::ErrorKind::PermissionDenied`] when the file is not a regular file of this user.
pub fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Without NONBLOCK the open of a FIFO would wait for another process.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let foreign = || {
        let message = format!("{} is a link, or no file of uid {}: remove it", path.display(), own_uid());
        io::Error::new(io::ErrorKind::PermissionDenied, message)
    };
    let file = match options.mode(0o600).custom_flags(flags).open(path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => return Err(foreign()),
        opened => opened?,
    };
    let found = file.metadata()?;
    if found.is_file() && found.uid() == own_uid() { Ok(file) } else { Err(foreign()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const STRANGER: u32 = 65534;

    fn directory(mode: u32) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        directory
    }

    #[test]
    fn a_directory_that_others_can_write_to_gets_a_private_subdirectory() {
        for (mode, is_private) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false), (0o1777, false)] {
            let directory = directory(mode);
            let home = Home::open(directory.path()).unwrap();
            fs::write(home.path().join("file"), "").unwrap();
            let below = if is_private { directory.path().to_owned() } else { directory.path().join(format!("windlass-{}", own_uid())) };
            assert!(below.join("file").exists(), "{mode:o}");
            assert_eq!(home.shown(&home.path().join("file")), below.join("file"));
            assert!(Home::existing(directory.path()).unwrap().path().join("file").exists());
        }
        let missing = tempfile::tempdir().unwrap().path().join("missing");
        assert_eq!(Home::existing(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_private_subdirectory_is_used_where_it_was_opened() {
        let directory = directory(0o777);
        let (home, name) = (Home::open(directory.path()).unwrap(), format!("windlass-{}", own_uid()));
        let (moved, victim) = (directory.path().join("moved"), tempfile::tempdir().unwrap());
        fs::rename(directory.path().join(&name), &moved).unwrap();
        symlink(victim.path(), directory.path().join(&name)).unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        assert!(moved.join("file").exists() && fs::read_dir(victim.path()).unwrap().count() == 0);
        assert_eq!(Home::open(directory.path()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if own_uid() != 0 {
            return;
        }
        let theirs = directory(0o755);
        std::os::unix::fs::chown(theirs.path(), Some(STRANGER), None).unwrap();
        let error = Home::open(theirs.path()).unwrap_err();
        assert!(error.to_string().contains("belongs to uid 65534") && error.to_string().contains("choose another"), "{error}");
        let shared = directory(0o777);
        fs::create_dir(shared.path().join("windlass-0")).unwrap();
        std::os::unix::fs::chown(shared.path().join("windlass-0"), Some(STRANGER), None).unwrap();
        assert!(Home::open(shared.path()).unwrap_err().to_string().contains("windlass-0"));
    }

    #[test]
    fn a_file_behind_a_link_is_not_opened() {
        let directory = directory(0o700);
        let (victim, at) = (directory.path().join("victim"), |name: &str| directory.path().join(name));
        fs::write(&victim, "mine").unwrap();
        symlink(&victim, at("symbolic")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), Mode::RWXU).unwrap();
        let open = |path: &Path| open_own(OpenOptions::new().read(true).write(true).create(true).truncate(false), path);
        for name in ["symbolic", "fifo"] {
            assert_eq!(open(&at(name)).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{name}");
        }
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert_eq!(open(&at("new")).unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        open(&at("new")).unwrap();
    }
}
