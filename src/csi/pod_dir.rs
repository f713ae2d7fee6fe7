//! The directory of a volume in its pod's emptyDir, where driver and daemon meet: `mount.sock`, `error.json`, `credentials/`. The daemon, which is
//! not trusted, can write there: it may put links, other files or nothing where something is expected. It reads and writes files, not what
//! they mean. Invariant: below the emptyDir no link is ever followed, so that nothing outside of it is read, written or removed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use super::credentials::Files;
use super::target::Target;
use crate::handover::{Door, Place};

/// Files that are read from it are one line.
const LONGEST: u64 = 64 << 10;

/// What is in it.
const SOCKET: &str = "mount.sock";
const ERROR: &str = "error.json";
pub const CREDENTIALS: &str = "credentials";

/// Entries that one call removes at most. The directory of a volume has about twenty; a pod can make millions, and the driver works for all pods of the node.
const MAX_ENTRIES: usize = 1000;

/// Directories below each other that are removed: a set of credentials is the third one.
const MAX_DEPTH: usize = 4;

/// The link to what holds at present, as Kubernetes has it in its Secret volumes: a reader sees all of a set or all of the one before.
const DATA: &str = "..data";
const DATA_NEXT: &str = "..data_tmp";

/// Why there is no such directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod cannot serve a volume.
    #[error(
        "the pod has no emptyDir named windlass ({0}): it needs one, and the sidecar that serves the volume (windlass sidecar) with it at /windlass"
    )]
    NoMeeting(String),
    /// Something is in the way.
    #[error("the directory of the volume in the pod's emptyDir: {0}")]
    Io(#[from] io::Error),
}

/// The directory, held open.
#[derive(Debug)]
pub struct PodDir {
    /// The emptyDir, and the name of ours in it.
    meeting: OwnedFd,
    name: OsString,
    directory: OwnedFd,
    /// Who serves.
    owner: (Uid, Gid),
}

impl PodDir {
    /// That of `target`, made where it is missing, for a daemon of this user.
    ///
    /// # Errors
    /// [`Error::NoMeeting`] when the pod has no emptyDir.
    pub fn make(kubelet: &Path, target: &Target, user: u32) -> Result<Self, Error> {
        let meeting = meeting(kubelet, target)?;
        match rustix::fs::mkdirat(&meeting, &target.name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::Io(error.into())),
        }
        let made = Self::open_in(meeting, target, user)?;
        rustix::fs::fchown(&made.directory, Some(made.owner.0), Some(made.owner.1)).map_err(io::Error::from)?;
        Ok(made)
    }

    /// That of `target`, if it is there.
    ///
    /// # Errors
    /// Also when there is none.
    pub fn open(kubelet: &Path, target: &Target, user: u32) -> Result<Self, Error> {
        Self::open_in(meeting(kubelet, target)?, target, user)
    }

    fn open_in(meeting: OwnedFd, target: &Target, user: u32) -> Result<Self, Error> {
        let directory = directory_in(meeting.as_fd(), OsStr::new(&target.name))?;
        Ok(Self { meeting, name: OsString::from(&target.name), directory, owner: (Uid::from_raw(user), Gid::from_raw(user)) })
    }

    /// Listens where the daemon connects. Only its user may: the directory is closed to others, and so is the socket.
    ///
    /// # Errors
    /// What bind(2) says.
    pub fn listen(&self) -> io::Result<Door> {
        // Whatever is there is of an earlier driver, or no socket at all, which must not be connected to.
        let _ = rustix::fs::unlinkat(&self.directory, SOCKET, AtFlags::empty());
        let door = Place::within(self.directory.try_clone()?, OsStr::new(SOCKET)).listen()?;
        // By the owner, which is set without following a link; the mode would be set through one.
        door.give_to(self.owner.0.as_raw(), Some(self.owner.1.as_raw()))?;
        Ok(door)
    }

    /// The last error of the daemon, as it wrote it; none when there is none.
    ///
    /// # Errors
    /// When what is there is no file.
    pub fn error(&self) -> io::Result<Option<Vec<u8>>> {
        // A pipe that somebody put there must not block.
        match open(self.directory.as_fd(), OsStr::new(ERROR), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(file) => read(file).map(Some),
        }
    }

    /// Takes away what an earlier daemon said.
    pub fn forget_error(&self) {
        let _ = rustix::fs::unlinkat(&self.directory, ERROR, AtFlags::empty());
    }

    /// Puts `files` in place of the credentials that are there, all at once. Nobody but the daemon's user, and root, can read them.
    ///
    /// # Errors
    /// When they cannot be written, or something else is in the way. What was there holds on then.
    pub fn put_credentials(&self, files: &Files) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.directory, CREDENTIALS, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let set = directory_in(self.directory.as_fd(), OsStr::new(CREDENTIALS))?;
        self.give(&set, Mode::RWXU)?;
        let before = target_of(set.as_fd(), DATA);
        if before.as_deref().is_some_and(|before| holds(set.as_fd(), before, files)) {
            return Ok(());
        }
        let name = self.write_set(set.as_fd(), files)?;
        let _ = rustix::fs::unlinkat(&set, DATA_NEXT, AtFlags::empty());
        rustix::fs::symlinkat(&name, &set, DATA_NEXT)?;
        rustix::fs::renameat(&set, DATA_NEXT, &set, DATA)?;
        for file in files.keys() {
            let to = Path::new(DATA).join(file);
            if target_of(set.as_fd(), file).as_deref() != Some(to.as_os_str()) {
                let _ = rustix::fs::unlinkat(&set, file.as_str(), AtFlags::empty());
                rustix::fs::symlinkat(&to, &set, file.as_str())?;
            }
        }
        self.sweep_credentials(&set, &name, files)
    }

    /// Writes the files into a directory of their own, and says its name.
    fn write_set(&self, set: BorrowedFd<'_>, files: &Files) -> io::Result<OsString> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = OsString::from(format!("..{}_{:09}", since.as_secs(), since.subsec_nanos()));
        rustix::fs::mkdirat(set, &name, Mode::RWXU)?;
        let directory = directory_in(set, &name)?;
        for (file, bytes) in files {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            let mut written = File::from(open(directory.as_fd(), OsStr::new(file), flags, Mode::RUSR)?);
            written.write_all(bytes)?;
            self.give(&written, Mode::RUSR)?;
        }
        self.give(&directory, Mode::RUSR | Mode::XUSR)?;
        Ok(name)
    }

    fn give(&self, what: impl AsFd, mode: Mode) -> io::Result<()> {
        rustix::fs::fchmod(&what, mode)?;
        rustix::fs::fchown(&what, Some(self.owner.0), Some(self.owner.1))?;
        Ok(())
    }

    /// Takes away earlier sets, and links that lead nowhere now.
    fn sweep_credentials(&self, set: &OwnedFd, current: &OsStr, files: &Files) -> io::Result<()> {
        let found = names(set.as_fd(), MAX_ENTRIES)?;
        let mut removal = Removal { is_cut: found.len() == MAX_ENTRIES, ..Removal::default() };
        for name in found {
            let is_wanted = name == current || name == DATA || name.to_str().is_some_and(|name| files.contains_key(name));
            if !is_wanted {
                removal.remove(set.as_fd(), &name, 1);
            }
        }
        removal.report(&self.name);
        Ok(())
    }

    /// Takes the directory away with what is in it. What cannot be removed, or is more than [`MAX_ENTRIES`], goes with the pod.
    pub fn clear(&self) {
        let mut removal = Removal::default();
        removal.remove(self.meeting.as_fd(), &self.name, MAX_DEPTH);
        removal.report(&self.name);
    }
}

/// The emptyDir of the pod. The way to it belongs to the kubelet; it itself is the pod's.
fn meeting(kubelet: &Path, target: &Target) -> Result<OwnedFd, Error> {
    let root = rustix::fs::open(kubelet, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from)?;
    let way = target.meeting();
    directory_in(root.as_fd(), way.as_os_str()).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoMeeting(kubelet.join(way).display().to_string()),
        _ => Error::Io(error),
    })
}

/// Opens what is below `at`, without following any link on the way.
fn open(at: BorrowedFd<'_>, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(at, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, resolve)?)
}

fn directory_in(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    open(at, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// The content of a plain file.
fn read(file: OwnedFd) -> io::Result<Vec<u8>> {
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file"));
    }
    let mut bytes = Vec::new();
    File::from(file).take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Where a link leads, which is read and never followed.
fn target_of(at: BorrowedFd<'_>, link: &str) -> Option<OsString> {
    use std::os::unix::ffi::OsStringExt;
    Some(OsString::from_vec(rustix::fs::readlinkat(at, link, Vec::new()).ok()?.into_bytes()))
}

/// Whether the set `name` is these files.
fn holds(set: BorrowedFd<'_>, name: &OsStr, files: &Files) -> bool {
    let Ok(directory) = directory_in(set, name) else { return false };
    let same = |(file, bytes): (&String, &Vec<u8>)| {
        let found = open(directory.as_fd(), OsStr::new(file), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        found.and_then(read).is_ok_and(|found| found == *bytes)
    };
    names(directory.as_fd(), files.len() + 1).is_ok_and(|names| names.len() == files.len()) && files.iter().all(same)
}

/// What is in a directory, up to `most` names.
fn names(directory: BorrowedFd<'_>, most: usize) -> io::Result<Vec<OsString>> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        if found.len() == most {
            break;
        }
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            found.push(name);
        }
    }
    Ok(found)
}

/// Removes trees that a pod has made, up to a number of entries together.
#[derive(Debug)]
struct Removal {
    entries_left: usize,
    /// A bound was hit, or the pod makes entries meanwhile.
    is_cut: bool,
}

impl Default for Removal {
    fn default() -> Self {
        Self { entries_left: MAX_ENTRIES, is_cut: false }
    }
}

impl Removal {
    /// Says of the directory of `volume` that not all of it is removed.
    fn report(&self, volume: &OsStr) {
        if self.is_cut {
            tracing::warn!(
                volume = %volume.display(),
                max_entries = MAX_ENTRIES,
                max_depth = MAX_DEPTH,
                "the pod's directory of a volume has too many entries or is too deep: the rest is left to the kubelet"
            );
        }
    }

    /// Removes a name, and what is below it down to `depth` directories.
    fn remove(&mut self, at: BorrowedFd<'_>, name: &OsStr, depth: usize) {
        if rustix::fs::unlinkat(at, name, AtFlags::empty()).is_ok() {
            return;
        }
        if let Some(deeper) = depth.checked_sub(1)
            && let Ok(directory) = directory_in(at, name)
        {
            let found = names(directory.as_fd(), self.entries_left).unwrap_or_default();
            self.entries_left -= found.len();
            found.iter().for_each(|name| self.remove(directory.as_fd(), name, deeper));
        }
        if let Err(error) = rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR) {
            self.is_cut |= error == Errno::NOTEMPTY;
            tracing::debug!(name = %name.display(), %error, "something stays in the pod's directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    struct Pod {
        kubelet: TempDir,
        target: Target,
        /// The emptyDir.
        meeting: PathBuf,
    }

    fn pod() -> Pod {
        let kubelet = tempfile::tempdir().unwrap();
        let path = kubelet.path().join("pods/1/volumes/kubernetes.io~csi/data/mount");
        let target = Target::parse(path.to_str().unwrap(), kubelet.path(), None).unwrap();
        let meeting = kubelet.path().join(target.meeting());
        fs::create_dir_all(&meeting).unwrap();
        Pod { kubelet, target, meeting }
    }

    impl Pod {
        fn dir(&self) -> PodDir {
            let user = rustix::process::geteuid().as_raw();
            PodDir::make(self.kubelet.path(), &self.target, user).unwrap()
        }
    }

    fn files(pairs: &[(&str, &str)]) -> Files {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_pod_without_the_directory_is_told_what_it_needs() {
        let pod = pod();
        fs::remove_dir(&pod.meeting).unwrap();
        let error = PodDir::make(pod.kubelet.path(), &pod.target, 0).unwrap_err().to_string();
        assert!(error.contains("emptyDir named windlass") && error.contains("windlass sidecar"), "{error}");
    }

    #[test]
    fn credentials_are_swapped_whole_and_nobody_else_reads_them() {
        let pod = pod();
        let (dir, at) = (pod.dir(), pod.meeting.join("data/credentials"));
        dir.put_credentials(&files(&[("AccessKeyId", "1"), ("AccessKeySecret", "2")])).unwrap();
        let first = fs::read_link(at.join(DATA)).unwrap();
        assert_eq!(fs::read_to_string(at.join("AccessKeySecret")).unwrap(), "2");
        assert_eq!(fs::metadata(at.join("AccessKeySecret")).unwrap().permissions().mode() & 0o7777, 0o400);
        dir.put_credentials(&files(&[("AccessKeyId", "1"), ("AccessKeySecret", "2")])).unwrap();
        assert_eq!(fs::read_link(at.join(DATA)).unwrap(), first, "nothing has changed");
        dir.put_credentials(&files(&[("token-a", "3")])).unwrap();
        let names: Vec<_> =
            names(dir_of(&at).as_fd(), MAX_ENTRIES).unwrap().into_iter().filter(|name| !name.to_string_lossy().starts_with("..")).collect();
        assert_eq!(names, ["token-a"]);
        assert_eq!(fs::read_dir(&at).unwrap().count(), 3, "the link, the set and one name");
        dir.clear();
        assert_eq!(fs::read_dir(&pod.meeting).unwrap().count(), 0);
    }

    fn dir_of(path: &Path) -> OwnedFd {
        fs::File::open(path).unwrap().into()
    }

    #[test]
    fn no_link_of_the_daemon_is_followed() {
        let (pod, outside) = (pod(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("kept"), "kept").unwrap();
        symlink(outside.path(), pod.meeting.join("data")).unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert!(PodDir::make(pod.kubelet.path(), &pod.target, user).is_err(), "the directory is a link");
        fs::remove_file(pod.meeting.join("data")).unwrap();
        let (dir, at) = (pod.dir(), pod.meeting.join("data"));
        symlink(outside.path(), at.join("credentials")).unwrap();
        assert!(dir.put_credentials(&files(&[("a", "1")])).is_err(), "the set is a link");
        fs::remove_file(at.join("credentials")).unwrap();
        fs::create_dir(at.join("credentials")).unwrap();
        symlink(outside.path(), at.join("credentials").join(DATA)).unwrap();
        symlink(outside.path().join("kept"), at.join("credentials/a")).unwrap();
        dir.put_credentials(&files(&[("a", "1")])).unwrap();
        symlink(outside.path().join("kept"), at.join(ERROR)).unwrap();
        assert!(dir.error().is_err(), "the error is a link");
        fs::create_dir(at.join("deep")).unwrap();
        symlink(outside.path(), at.join("deep/out")).unwrap();
        dir.clear();
        assert_eq!(fs::read_dir(&pod.meeting).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    fn make_files(at: &Path, count: usize) {
        fs::create_dir_all(at).unwrap();
        (0..count).for_each(|number| fs::write(at.join(number.to_string()), "").unwrap());
    }

    fn count(at: &Path) -> usize {
        fs::read_dir(at).unwrap().count()
    }

    #[test]
    fn directory_with_too_many_entries_is_left_to_the_kubelet() {
        let pod = pod();
        let (dir, at) = (pod.dir(), pod.meeting.join("data"));
        make_files(&at, MAX_ENTRIES + 50);
        dir.clear();
        assert_eq!(count(&at), 50);
        dir.clear();
        assert!(!at.exists());
    }

    #[test]
    fn bound_of_removed_entries_is_that_of_the_whole_tree() {
        let pod = pod();
        let (dir, at) = (pod.dir(), pod.meeting.join("data"));
        let folders = 4;
        (0..folders).for_each(|number| make_files(&at.join(format!("folder-{number}")), MAX_ENTRIES / folders));
        dir.clear();
        let left: usize = fs::read_dir(&at).unwrap().map(|folder| count(&folder.unwrap().path())).sum();
        assert_eq!(left, folders, "the folders are entries too");
    }

    #[test]
    fn directory_that_is_too_deep_is_left_to_the_kubelet() {
        let pod = pod();
        let (dir, at) = (pod.dir(), pod.meeting.join("data"));
        fs::create_dir_all(at.join("2/3/4/5/6")).unwrap();
        dir.clear();
        assert!(at.join("2/3/4/5/6").exists());
    }

    #[test]
    fn credentials_are_written_beside_too_many_entries() {
        let pod = pod();
        let (dir, at) = (pod.dir(), pod.meeting.join("data/credentials"));
        make_files(&at, MAX_ENTRIES + 50);
        dir.put_credentials(&files(&[("AccessKeyId", "1")])).unwrap();
        assert_eq!(fs::read_to_string(at.join("AccessKeyId")).unwrap(), "1");
        assert!(count(&at) >= 50, "{}", count(&at));
    }

    #[test]
    fn an_error_is_a_file_of_bounded_length() {
        let pod = pod();
        let (dir, at) = (pod.dir(), pod.meeting.join("data"));
        assert_eq!(dir.error().unwrap(), None);
        fs::write(at.join(ERROR), vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(dir.error().unwrap().unwrap().len() as u64, LONGEST);
        fs::remove_file(at.join(ERROR)).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at.join(ERROR), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(dir.error().is_err(), "a pipe");
        dir.forget_error();
        assert_eq!(dir.error().unwrap(), None);
        assert_eq!(fs::metadata(&at).unwrap().mode() & 0o077, 0, "nobody else enters");
    }
}
