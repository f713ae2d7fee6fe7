//! The daemon's end: a socket that answers while it lives. It knows the line, not what commands mean. Invariants: the file is ours alone
//! and goes with the [`Server`], unless a later mount with the same number has put its own there; a client that is gone takes what it asked
//! for with it; none can make the daemon hold more than a line for it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::answers::{self, Subject};
use super::place::{self, socket_name};
use super::protocol::{self, Command, LINE_BYTES, Reply};
use super::socket_file::SocketFile;
use super::warm::Tally;
use crate::handover::{self, Door};
use crate::mountinfo::Device;

/// Clients at a time: a few people and their monitors.
const CLIENTS: usize = 16;

/// Longest time between two requests of a client.
const IDLE: Duration = Duration::from_secs(60);

/// How often what takes longer tells how far it has come.
const TELL: Duration = Duration::from_secs(1);

/// Longest time a client may take to read a line.
const WRITE: Duration = Duration::from_secs(10);

/// The control socket of a mount. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    accepting: JoinHandle<()>,
    /// What goes with it.
    file: Option<SocketFile>,
    door: Option<Door>,
}

impl Server {
    /// Serves `subject`, which is mounted as `device`, in the first of `directories` that can be used.
    ///
    /// # Errors
    /// Why none of them can, in one line.
    pub fn start(directories: &[PathBuf], device: Device, subject: Arc<Subject>, runtime: &Handle) -> io::Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let mut reasons = Vec::new();
        for directory in directories {
            match bind(directory, device, uid) {
                Ok((listener, path)) => {
                    let file = SocketFile::of(path.clone())?;
                    let mut server = Self::serve(listener, path, subject, runtime)?;
                    server.file = Some(file);
                    return Ok(server);
                }
                Err(error) => reasons.push(format!("{}: {error}", directory.display())),
            }
        }
        Err(io::Error::other(reasons.join("; ")))
    }

    /// Serves `subject` at `path`, in place of what a killed daemon left there.
    ///
    /// # Errors
    /// When somebody listens there, when something else is there, and what bind(2) says.
    pub fn at(path: &Path, subject: Arc<Subject>, runtime: &Handle) -> io::Result<Self> {
        let door = handover::Place::of(path)?.listen()?;
        door.permit(0o600)?;
        door.socket().set_nonblocking(true)?;
        let mut server = Self::serve(door.socket().try_clone()?, path.to_owned(), subject, runtime)?;
        server.door = Some(door);
        Ok(server)
    }

    fn serve(listener: std::os::unix::net::UnixListener, path: PathBuf, subject: Arc<Subject>, runtime: &Handle) -> io::Result<Self> {
        let _runtime = runtime.enter();
        let listener = UnixListener::from_std(listener)?;
        let accepting = runtime.spawn(accept(listener, subject, rustix::process::geteuid().as_raw()));
        Ok(Self { path, accepting, file: None, door: None })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // With it end the connections, which are its children.
        self.accepting.abort();
        drop((self.file.take(), self.door.take()));
    }
}

/// Listens under a name of its own and takes the name of the device then: what a killed daemon left there goes, and nobody finds a file
/// that does not listen.
fn bind(directory: &Path, device: Device, uid: u32) -> io::Result<(std::os::unix::net::UnixListener, PathBuf)> {
    place::prepare(directory, uid)?;
    let file = directory.join(socket_name(device));
    // Numbers of processes are not unique where containers share the directory; those of devices are.
    let draft = directory.join(format!(".{}.{}", socket_name(device), std::process::id()));
    let _ = fs::remove_file(&draft);
    let listener = std::os::unix::net::UnixListener::bind(&draft)?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&draft, &file))
        .inspect_err(|_| drop(fs::remove_file(&draft)))?;
    Ok((listener, file))
}

async fn accept(listener: UnixListener, subject: Arc<Subject>, uid: u32) {
    let (places, mut clients) = (Arc::new(Semaphore::new(CLIENTS)), JoinSet::new());
    loop {
        // What ended is taken off the set, so that it stays as small as the number of clients.
        while clients.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the control socket cannot take a client");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let (subject, place) = (Arc::clone(&subject), Arc::clone(&places).try_acquire_owned());
        clients.spawn(async move {
            let refusal = match (stream.peer_cred().map(|peer| peer.uid()), &place) {
                (Ok(peer), _) if peer != uid && peer != 0 => {
                    Some(format!("this mount belongs to user {uid}: only they and root may ask it"))
                }
                (Err(error), _) => Some(format!("the daemon cannot tell who asks: {error}")),
                (Ok(_), Err(_)) => Some(format!("{CLIENTS} others are asking already: try again")),
                (Ok(_), Ok(_)) => None,
            };
            // A client that is gone, or does not read, has no use for more words.
            let _ = match refusal {
                Some(words) => say(&mut stream.into_split().1, &Reply::Error(words)).await,
                None => converse(stream, &subject).await,
            };
        });
    }
}

/// Answers one request after the other until the client ends it.
async fn converse(stream: UnixStream, subject: &Arc<Subject>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let line = match tokio::time::timeout(IDLE, next_line(&mut read)).await {
            Err(_) | Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(line))) => line,
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                // Where the next request would begin cannot be told.
                return say(&mut write, &Reply::Error(error.to_string())).await;
            }
            Ok(Err(error)) => return Err(error),
        };
        let reply = match protocol::read(&line) {
            Err(words) => Reply::Error(words),
            Ok(command) => match answer(subject, command, &mut read, &mut write).await? {
                Some(reply) => reply,
                None => return Ok(()),
            },
        };
        say(&mut write, &reply).await?;
    }
}

/// Does what is asked and tells every second how far it has come. None: the client is gone, and what it asked for with it.
async fn answer(
    subject: &Arc<Subject>,
    command: Command,
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> io::Result<Option<Reply>> {
    let tally = Arc::new(Tally::default());
    let mut answer = pin!(answers::answer(subject, command, &tally));
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + TELL, TELL);
    loop {
        tokio::select! {
            answer = &mut answer => return Ok(Some(answer.map_or_else(Reply::Error, Reply::Done))),
            () = gone(read) => return Ok(None),
            _ = ticks.tick() => say(write, &Reply::Progress(tally.progress())).await?,
        }
    }
}

/// The next line without its end; none when the client has said all.
async fn next_line(read: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    read.take(LINE_BYTES as u64 + 1).read_until(b'\n', &mut line).await?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() >= LINE_BYTES => {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("a request is one line of at most {LINE_BYTES} bytes")))
        }
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Waits until the client has closed the line. One that has said more already is there.
async fn gone(read: &mut BufReader<OwnedReadHalf>) {
    if read.fill_buf().await.is_ok_and(|more| !more.is_empty()) {
        std::future::pending::<()>().await;
    }
}

async fn say(write: &mut OwnedWriteHalf, reply: &Reply) -> io::Result<()> {
    tokio::time::timeout(WRITE, write.write_all(&protocol::line(reply))).await?
}
