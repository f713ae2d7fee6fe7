//! Where who mounts and who serves find each other: a path, and which of the two waits there. Invariant: whoever waits does so no longer than it
//! was told, and a stranger who connects is not listened to.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::{Place, user_of};

/// How often is looked whether the other one is there.
const LOOK: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The other one listens there, now or soon.
    Connect(PathBuf),
    /// The other one connects.
    Listen(PathBuf),
}

impl FromStr for Meeting {
    type Err = String;

    /// Reads `connect:PATH` or `listen:PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        let reason = || "must be connect:PATH or listen:PATH, the path of a unix socket".to_owned();
        let (how, path) = text.split_once(':').ok_or_else(reason)?;
        let path = Some(path).filter(|path| !path.is_empty() && !path.ends_with('/')).ok_or_else(reason)?;
        let path = crate::started_in::absolute(path).map_err(|_| reason())?;
        match how {
            "connect" => Ok(Self::Connect(path)),
            "listen" => Ok(Self::Listen(path)),
            _ => Err(reason()),
        }
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(path) => write!(f, "connect:{}", path.display()),
            Self::Listen(path) => write!(f, "listen:{}", path.display()),
        }
    }
}

impl Meeting {
    /// Waits for the other one, at most for `patience` and as long as `goes_on` says so.
    ///
    /// # Errors
    /// TimedOut when nobody comes, Interrupted when it shall not go on, else what the system says of the path.
    pub fn meet(&self, patience: Duration, goes_on: impl Fn() -> bool) -> io::Result<UnixStream> {
        let deadline = Instant::now() + patience;
        let wait = |nobody: io::Error| {
            if !goes_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, nobody));
            }
            thread::sleep(LOOK);
            Ok(())
        };
        match self {
            Self::Connect(path) => connect(path, wait),
            Self::Listen(path) => listen(path, wait),
        }
    }
}

fn connect(path: &Path, wait: impl Fn(io::Error) -> io::Result<()>) -> io::Result<UnixStream> {
    loop {
        match Place::of(path).and_then(|place| place.connect()) {
            // The other one may come up a moment later, and its directory with it.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => wait(error)?,
            done => return done,
        }
    }
}

fn listen(path: &Path, wait: impl Fn(io::Error) -> io::Result<()>) -> io::Result<UnixStream> {
    let door = Place::of(path)?.listen()?;
    door.socket().set_nonblocking(true)?;
    loop {
        match door.accept() {
            Ok(stream) if is_trusted(&stream)? => return Ok(stream),
            Ok(_) => tracing::warn!("somebody who is neither root nor this user has connected, and is not listened to"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(io::Error::other("nobody has connected"))?,
            Err(error) => return Err(error),
        }
    }
}

/// Whoever sends a message says what programs are run and which environment they have.
fn is_trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = user_of(stream)?;
    Ok(peer.is_root() || peer == rustix::process::geteuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_written_with_their_path() {
        for text in ["connect:/run/mount.sock", "listen:/run/mount.sock"] {
            assert_eq!(text.parse::<Meeting>().unwrap().to_string(), text);
        }
        assert!(matches!("connect:mount.sock".parse(), Ok(Meeting::Connect(path)) if path.is_absolute()));
        for bad in ["/run/mount.sock", "connect:", "listen:/run/", "unix:/run/x", ""] {
            assert!(bad.parse::<Meeting>().unwrap_err().contains("listen:PATH"), "{bad}");
        }
    }

    #[test]
    fn whoever_comes_first_waits_for_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later/mount.sock");
        let (connects, listens) = (Meeting::Connect(path.clone()), Meeting::Listen(path.clone()));
        let patience = Duration::from_secs(60);
        let first = thread::spawn(move || connects.meet(patience, || true));
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        listens.meet(patience, || true).unwrap();
        first.join().unwrap().unwrap();
        assert!(!path.exists(), "who listened has taken its socket along");
    }

    #[test]
    fn nobody_is_waited_for_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        for meeting in [Meeting::Connect(dir.path().join("a")), Meeting::Listen(dir.path().join("b"))] {
            let kind = |patience, goes_on: bool| meeting.meet(patience, || goes_on).unwrap_err().kind();
            assert_eq!(kind(Duration::ZERO, true), io::ErrorKind::TimedOut);
            assert_eq!(kind(Duration::from_secs(60), false), io::ErrorKind::Interrupted);
        }
    }
}
