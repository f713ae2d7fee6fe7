//! Where a unix socket lies. The address of a socket has room for 107 bytes, while volumes of Kubernetes lie deeper: the directory is opened
//! and the socket is reached through it. Invariant: a socket that was made here is removed by whoever made it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// A name in a directory that is held open.
#[derive(Debug)]
pub struct Place {
    directory: OwnedFd,
    name: OsString,
}

impl Place {
    /// That of `path`.
    ///
    /// # Errors
    /// When its directory cannot be opened, or it names none.
    pub fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is no name of a file"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { directory, name: name.to_owned() })
    }

    /// `name` in a directory that was opened with the care it needs: whoever may write above it could have put a link there.
    pub fn within(directory: OwnedFd, name: &OsStr) -> Self {
        Self { directory, name: name.to_owned() }
    }

    /// Connects to who listens there.
    ///
    /// # Errors
    /// What connect(2) says.
    pub fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.path())
    }

    /// Listens there, in place of a socket that nobody listens at any more. Whoever sees the socket can connect: bind(2) makes the file before
    /// anybody listens, so it is made beside its place and moved there.
    ///
    /// # Errors
    /// AddrInUse when somebody listens there, or when it is no socket; else what bind(2) says.
    pub fn listen(self) -> io::Result<Door> {
        let mut draft = OsString::from(".");
        draft.push(&self.name);
        // The number of a process says nothing here: each first process of a container has the same one, also after it was killed in this place.
        draft.push(format!(".{:08x}", rand::random::<u32>()));
        let beside = self.beside(&draft);
        let listener = UnixListener::bind(&beside)?;
        if let Err(error) = self.take(&draft) {
            let _ = fs::remove_file(&beside);
            return Err(error);
        }
        let identity = self.identity()?;
        Ok(Door { listener, place: self, identity })
    }

    /// Moves `draft` to the place.
    fn take(&self, draft: &OsStr) -> io::Result<()> {
        let to = |flags| rustix::fs::renameat_with(&self.directory, draft, &self.directory, &self.name, flags);
        match to(RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) if self.is_left_behind() => Ok(to(RenameFlags::empty())?),
            Err(Errno::EXIST) => Err(io::ErrorKind::AddrInUse.into()),
            moved => Ok(moved?),
        }
    }

    fn is_left_behind(&self) -> bool {
        UnixStream::connect(self.path()).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            && rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Socket)
    }

    fn path(&self) -> PathBuf {
        self.beside(&self.name)
    }

    fn beside(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/self/fd").join(self.directory.as_fd().as_raw_fd().to_string()).join(name)
    }

    /// Device and inode number of what is there.
    fn identity(&self) -> io::Result<(u64, u64)> {
        let found = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((found.st_dev, found.st_ino))
    }
}

/// A socket that listens. Dropped, its file goes.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    place: Place,
    identity: (u64, u64),
}

impl Door {
    /// Who connects next.
    ///
    /// # Errors
    /// What accept(2) says.
    pub fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().map(|(stream, _)| stream)
    }

    /// The socket, to be waited for.
    pub fn socket(&self) -> &UnixListener {
        &self.listener
    }

    /// Lets `mode` say who may connect.
    ///
    /// # Errors
    /// What chmod(2) says.
    pub fn permit(&self, mode: u32) -> io::Result<()> {
        rustix::fs::chmodat(&self.place.directory, &self.place.name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        Ok(())
    }

    /// Gives the socket to `uid`, so that it may connect.
    ///
    /// # Errors
    /// What chown(2) says.
    pub fn give_to(&self, uid: u32, gid: Option<u32>) -> io::Result<()> {
        let owner = rustix::fs::Uid::from_raw(uid);
        let group = gid.map(rustix::fs::Gid::from_raw);
        rustix::fs::chownat(&self.place.directory, &self.place.name, Some(owner), group, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Door {
    /// Takes the file away, while somebody may still wait for who comes.
    pub fn remove(&self) {
        // Unless somebody has put another one there meanwhile.
        if self.place.identity().is_ok_and(|found| found == self.identity)
            && let Err(error) = rustix::fs::unlinkat(&self.place.directory, &self.place.name, AtFlags::empty())
        {
            tracing::debug!(name = %self.place.name.display(), %error, "a socket stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_may_lie_deeper_than_its_address_has_room_for() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a".repeat(120)).join("b".repeat(120));
        fs::create_dir_all(&deep).unwrap();
        let path = deep.join("mount.sock");
        let door = Place::of(&path).unwrap().listen().unwrap();
        Place::of(&path).unwrap().connect().unwrap();
        door.accept().unwrap();
        assert_eq!(Place::of(&path).unwrap().listen().unwrap_err().kind(), io::ErrorKind::AddrInUse, "somebody listens");
        let left: Vec<_> = fs::read_dir(&deep).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["mount.sock"], "what it was made as");
        drop(door);
        assert!(!path.exists());
    }

    #[test]
    fn a_process_with_the_number_of_one_that_was_killed_here_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        fs::write(dir.path().join(format!(".mount.sock.{}", std::process::id())), "").unwrap();
        Place::of(&path).unwrap().listen().unwrap();
    }

    #[test]
    fn what_a_killed_process_left_is_replaced_and_what_is_no_socket_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "its file stays");
        // A process that another test starts has a copy of each descriptor for a moment.
        while UnixStream::connect(&path).is_ok() {
            std::thread::yield_now();
        }
        drop(Place::of(&path).unwrap().listen().unwrap());
        fs::write(&path, "mine").unwrap();
        assert!(Place::of(&path).unwrap().listen().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
