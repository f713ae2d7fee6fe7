//! The other end: asks the daemon of a mount. It finds the socket by the number of the device and never looks into the mount. Invariant: it
//! waits for a daemon that says nothing no longer than [`SILENCE`].

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::place::{self, socket_name};
use super::protocol::{self, Command, Done, LINE_BYTES, Progress, Reply};
use crate::handover::Place;
use crate::mountinfo::Device;

/// Longest time without a word from the daemon. What takes longer there tells its progress; the kernel may keep a refresh waiting.
const SILENCE: Duration = Duration::from_secs(90);

/// A line to a daemon.
#[derive(Debug)]
pub struct Client {
    read: BufReader<UnixStream>,
    file: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket of that mount is anywhere.
    #[error("there is no control socket {}", list(.0))]
    Missing(Vec<PathBuf>),
    /// A socket is there and nobody listens.
    #[error("nobody answers at {}: the daemon is gone", .0.display())]
    Gone(PathBuf),
    /// It cannot be used.
    #[error("cannot use {}: {}", .0.display(), .1)]
    Refused(PathBuf, #[source] io::Error),
    /// The line broke, or the daemon was silent.
    #[error("the daemon at {} {}", .0.display(), broken(.1))]
    Broken(PathBuf, #[source] io::Error),
    /// It said no.
    #[error("{0}")]
    Answer(String),
}

fn list(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
}

fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("has not said a word for {} s", SILENCE.as_secs()),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => "ended before it answered".into(),
        _ => format!("cannot be asked: {error}"),
    }
}

impl Client {
    /// A line to the daemon that mounted `device` for the user `owner`, whose sockets lie in one of `directories`.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Gone`], [`Error::Refused`].
    pub fn connect(directories: &[PathBuf], device: Device, owner: u32) -> Result<Self, Error> {
        let mut looked = Vec::new();
        for directory in directories {
            let file = directory.join(socket_name(device));
            match place::check(directory, owner) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    looked.push(file);
                    continue;
                }
                Err(error) => return Err(Error::Refused(directory.clone(), error)),
                Ok(()) => {}
            }
            match Self::at(&file) {
                Err(Error::Missing(_)) => looked.push(file),
                done => return done,
            }
        }
        Err(Error::Missing(looked))
    }

    /// A line to the daemon that listens at `file`.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Gone`], [`Error::Refused`].
    pub fn at(file: &Path) -> Result<Self, Error> {
        let file = file.to_owned();
        match Place::of(&file).and_then(|place| place.connect()) {
            Ok(stream) => match stream.set_read_timeout(Some(SILENCE)).and_then(|()| stream.set_write_timeout(Some(SILENCE))) {
                Ok(()) => Ok(Self { read: BufReader::new(stream), file }),
                Err(error) => Err(Error::Refused(file, error)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Missing(vec![file])),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Error::Gone(file)),
            Err(error) => Err(Error::Refused(file, error)),
        }
    }

    /// Asks, and waits for the end; `on_progress` hears how far it has come.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Answer`].
    pub fn ask(&mut self, command: &Command, mut on_progress: impl FnMut(Progress)) -> Result<Done, Error> {
        let sent = self.read.get_mut().write_all(&protocol::request(command));
        // A daemon that refuses speaks first and closes: what it said may be there to be read.
        let broken = |error| Error::Broken(self.file.clone(), error);
        loop {
            let reply = match (read_reply(&mut self.read), &sent) {
                (Err(_), Err(error)) => return Err(broken(io::Error::from(error.kind()))),
                (reply, _) => reply.map_err(broken)?,
            };
            match reply {
                Reply::Progress(progress) => on_progress(progress),
                Reply::Done(done) => return Ok(done),
                Reply::Error(words) => return Err(Error::Answer(words)),
            }
        }
    }
}

fn read_reply(read: &mut BufReader<UnixStream>) -> io::Result<Reply> {
    let mut line = Vec::new();
    read.take(LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("its answer is not understood: {error}")))
}
