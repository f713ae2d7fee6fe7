//! The mounter in a pod of the Mountpoint driver for S3: waits at a socket for one mount, serves it by a daemon of its own, and tells of its end
//! in files that the driver looks at (cmd/aws-s3-csi-mounter and pkg/podmounter/mppod/path.go of awslabs/mountpoint-s3-csi-driver).
//! Invariant: the descriptor that came in is held by the daemon alone, so the mount does not outlive it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};

use super::daemon::Daemon;
use crate::handover::{self, Door, Link, Message, Place};

/// Files in the directory that the driver shares with the pod.
const SOCKET: &str = "mount.sock";
const ERROR: &str = "mount.err";
const EXIT: &str = "mount.exit";

/// How often is looked whether somebody has come.
const LOOK: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The directory that is shared with the driver.
    pub directory: PathBuf,
    /// A volume for what is read, where the driver gives one.
    pub cache: PathBuf,
    /// How long is waited for a mount.
    pub patience: Duration,
}

/// Why nothing was served.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// Nothing came.
    #[error("no mount came at {}: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    /// It was no mount.
    #[error("what came at {} cannot be used: {source}", path.display())]
    Message { path: PathBuf, source: handover::Error },
    /// It was a mount without a descriptor, or with more than one.
    #[error("a mount came with {0} descriptors of /dev/fuse: one is expected")]
    Descriptors(usize),
    /// It wants what the pod does not have.
    #[error("--cache needs a volume at {}, and there is none", .0.display())]
    NoCache(PathBuf),
    /// Nothing could be started.
    #[error("cannot start the daemon: {0}")]
    Start(io::Error),
}

impl Pod {
    /// Serves one mount until its end. `received` is called when it is there. Returns what the process is to end with: 0 when the driver wants
    /// the pod to be over, else something that makes Kubernetes start it again.
    ///
    /// # Errors
    /// Why nothing was served, unless the driver wants the pod to be over.
    pub fn run(&self, received: impl FnOnce() -> io::Result<()>) -> Result<u8, PodError> {
        let served = self.receive().and_then(|(message, fuse)| {
            received().map_err(PodError::Start)?;
            self.serve(&message, fuse)
        });
        match served {
            _ if self.is_over() => Ok(0),
            Ok(code) => Ok(code),
            Err(error) => {
                self.tell(error.to_string().as_bytes());
                Err(error)
            }
        }
    }

    fn is_over(&self) -> bool {
        self.directory.join(EXIT).exists()
    }

    fn receive(&self) -> Result<(Message, OwnedFd), PodError> {
        let path = self.directory.join(SOCKET);
        let no_mount = |source| PodError::Socket { path: path.clone(), source };
        let end = Instant::now() + self.patience;
        let door = Place::of(&path).and_then(Place::listen).map_err(no_mount)?;
        let mut link = Link::new(next(&door, self.patience).map_err(no_mount)?);
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        let come = link.receive::<Message>(Some(left)).map_err(|source| PodError::Message { path: path.clone(), source })?;
        let (message, mut descriptors) = come.ok_or_else(|| no_mount(io::ErrorKind::UnexpectedEof.into()))?;
        match (descriptors.pop(), descriptors.len()) {
            (Some(fuse), 0) => Ok((message, fuse)),
            (found, more) => Err(PodError::Descriptors(more + usize::from(found.is_some()))),
        }
    }

    fn serve(&self, message: &Message, fuse: OwnedFd) -> Result<u8, PodError> {
        let words = self.words(message, fuse.as_raw_fd())?;
        fcntl_setfd(&fuse, FdFlags::empty()).map_err(|error| PodError::Start(error.into()))?;
        let environment: Vec<_> = message.env.0.clone().into_iter().collect();
        let daemon = Daemon::start(&words, Some(&environment)).map_err(PodError::Start)?;
        drop(fuse);
        tracing::info!(bucket = message.bucket, "serving");
        let ended = daemon.wait();
        if ended.status.success() {
            // Nobody said that this was wanted: Kubernetes is to start the pod again.
            return Ok(u8::from(!self.is_over()));
        }
        self.tell(ended.said.as_bytes());
        Ok(ended.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }

    /// The command line that the mounter starts mount-s3 with, and before it whose line it is.
    fn words(&self, message: &Message, fuse: i32) -> Result<Vec<String>, PodError> {
        let is = |word: &str, name: &str| word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
        let mut words = ["mount", "--compat", "mountpoint"].map(str::to_owned).to_vec();
        words.extend([message.bucket.clone(), format!("/dev/fd/{fuse}")]);
        words.extend(message.args.iter().filter(|word| !is(word, "--cache") && !is(word, "--foreground")).cloned());
        if self.cache.is_dir() {
            words.push(format!("--cache={}", self.cache.display()));
        } else if message.args.iter().any(|word| is(word, "--cache")) {
            return Err(PodError::NoCache(self.cache.clone()));
        }
        words.push("--foreground".to_owned());
        Ok(words)
    }

    /// Leaves word of an error, which the driver shows to people.
    fn tell(&self, text: &[u8]) {
        let path = self.directory.join(ERROR);
        let written =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).and_then(|mut file| file.write_all(text));
        if let Err(error) = written {
            tracing::error!(file = %path.display(), %error, "the error cannot be left for the driver");
        }
    }
}

/// Who connects, while there is patience.
fn next(door: &Door, patience: Duration) -> io::Result<UnixStream> {
    door.socket().set_nonblocking(true)?;
    let end = Instant::now() + patience;
    loop {
        match door.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            taken => return taken,
        }
        if Instant::now() >= end {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK);
    }
}

/// Where the mounter's files are in a pod of the driver.
impl Default for Pod {
    fn default() -> Self {
        Self { directory: Path::new("/comm").into(), cache: Path::new("/local-cache").into(), patience: Duration::from_secs(120) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_line_is_that_of_the_mounter() {
        let dir = tempfile::tempdir().unwrap();
        let message = |args: &[&str]| Message {
            bucket: "data".into(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            ..Message::default()
        };
        let pod = Pod { cache: dir.path().join("none"), ..Pod::default() };
        let words = pod.words(&message(&["--allow-root", "--foreground", "--region=eu-central-1"]), 7).unwrap();
        assert_eq!(words.join(" "), "mount --compat mountpoint data /dev/fd/7 --allow-root --region=eu-central-1 --foreground");
        assert!(matches!(pod.words(&message(&["--cache=/x"]), 7), Err(PodError::NoCache(_))));
        let pod = Pod { cache: dir.path().to_owned(), ..Pod::default() };
        let words = pod.words(&message(&["--cache=/x"]), 7).unwrap();
        assert_eq!(words[5..], [format!("--cache={}", dir.path().display()), "--foreground".to_owned()]);
    }

    #[test]
    fn who_does_not_come_is_not_waited_for_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let pod = Pod { directory: dir.path().to_owned(), patience: Duration::from_millis(10), ..Pod::default() };
        assert!(matches!(pod.run(|| Ok(())), Err(PodError::Socket { .. })));
        assert!(dir.path().join(ERROR).exists() && !dir.path().join(SOCKET).exists());
        fs::write(dir.path().join(EXIT), "").unwrap();
        assert_eq!(pod.run(|| Ok(())).unwrap(), 0);
    }
}
