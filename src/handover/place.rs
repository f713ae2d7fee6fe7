//! Where a unix socket lies. The address of a socket has room for 107 bytes, while volumes of Kubernetes lie deeper: the directory is opened
//! and the socket is reached through it. Invariant: a socket that was made here is removed by whoever made it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Digits of the random number in the name of a draft.
const DRAFT_DIGITS: usize = 8;

/// Drafts that are bound before it is given up: another process removes one only in the microseconds between its bind(2) and listen(2).
const DRAFTS: usize = 4;

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
        self.remove_stale_drafts();
        let mut tries = DRAFTS;
        let listener = loop {
            tries -= 1;
            match self.bind_and_move() {
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries > 0 => {}
                bound => break bound?,
            }
        };
        let identity = self.identity()?;
        Ok(Door { listener, place: self, identity })
    }

    fn bind_and_move(&self) -> io::Result<UnixListener> {
        // The number of a process says nothing here: each first process of a container has the same one, also after it was killed in this place.
        let mut draft = self.draft_prefix();
        draft.push(format!("{:08x}", rand::random::<u32>()));
        let beside = self.beside(&draft);
        let listener = UnixListener::bind(&beside)?;
        if let Err(error) = self.take(&draft) {
            let _ = fs::remove_file(&beside);
            return Err(error);
        }
        Ok(listener)
    }

    /// What the names of drafts of this socket begin with; [`DRAFT_DIGITS`] hexadecimal digits follow.
    fn draft_prefix(&self) -> OsString {
        let mut prefix = OsString::from(".");
        prefix.push(&self.name);
        prefix.push(".");
        prefix
    }

    /// Removes drafts of processes that were killed between bind(2) and rename(2). A draft that refuses connections may also be one that was bound
    /// a moment ago and does not listen yet: its process finds it removed and binds another, see [`listen`](Self::listen).
    fn remove_stale_drafts(&self) {
        // A directory that cannot be listed keeps its drafts: they only take up names.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(entries) = rustix::fs::openat(&self.directory, ".", flags, Mode::empty()).and_then(Dir::new) else { return };
        let prefix = self.draft_prefix();
        for entry in entries.map_while(Result::ok) {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let digits = name.as_bytes().strip_prefix(prefix.as_bytes());
            let is_draft = digits.is_some_and(|digits| digits.len() == DRAFT_DIGITS && digits.iter().all(u8::is_ascii_hexdigit));
            if is_draft && self.refuses(name) {
                let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
            }
        }
    }

    /// Moves `draft` to the place.
    fn take(&self, draft: &OsStr) -> io::Result<()> {
        let to = |flags| rustix::fs::renameat_with(&self.directory, draft, &self.directory, &self.name, flags);
        match to(RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) if self.refuses(&self.name) => Ok(to(RenameFlags::empty())?),
            Err(Errno::EXIST) => Err(io::ErrorKind::AddrInUse.into()),
            moved => Ok(moved?),
        }
    }

    /// Whether `name` is a socket at which no process listens.
    fn refuses(&self, name: &OsStr) -> bool {
        let is_socket = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Socket);
        // A blocking connect(2) would wait for a process that listens and accepts nothing.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let connect = || {
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(self.beside(name))?)
        };
        is_socket && connect() == Err(Errno::CONNREFUSED)
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

    #[test]
    fn drafts_of_killed_processes_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let stale = [".mount.sock.0123abcd", ".mount.sock.89abcdef"];
        let other = [".mount.sock.0123", ".mount.sock.0123abcg", ".other.sock.0123abcd"];
        stale.iter().chain(&other).for_each(|name| drop(UnixListener::bind(at(name)).unwrap()));
        let living = UnixListener::bind(at(".mount.sock.11111111")).unwrap();
        fs::write(at(".mount.sock.22222222"), "no socket").unwrap();
        // A process that another test starts has a copy of each descriptor for a moment.
        while stale.iter().any(|name| UnixStream::connect(at(name)).is_ok()) {
            std::thread::yield_now();
        }
        let _door = Place::of(&at("mount.sock")).unwrap().listen().unwrap();
        assert!(stale.iter().all(|name| !at(name).exists()), "they are removed");
        let kept = [".mount.sock.11111111", ".mount.sock.22222222", "mount.sock"].into_iter().chain(other);
        assert_eq!(kept.filter(|name| !at(name).exists()).count(), 0, "they are kept");
        drop(living);
    }
}
