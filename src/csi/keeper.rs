//! Keeps the descriptors of one mount, and gives them to whoever serves it: to the first daemon and to each that comes after it. Knows no volume and
//! no request of Kubernetes. Invariants: one daemon at a time; while a daemon is away the kernel's requests wait, because all descriptors stay open
//! here (the kernel fails what a closed one had taken); when none has come for too long they are closed, and readers get ENOTCONN.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::verdict::Failed;
use crate::handover::{Door, Link, Message};

/// How long a mount waits for whoever serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the first daemon: images are pulled meanwhile, and nobody can have opened anything.
    pub first: Duration,
    /// For the next one: until then whoever reads waits.
    pub next: Duration,
    /// For a daemon to say that it serves already, when the driver began anew.
    pub word: Duration,
}

/// How a mount is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has come yet.
    Expected,
    /// A daemon has the descriptors. What it said of a failure comes before it ends.
    Served { ready: bool, failed: Option<Failed> },
    /// A daemon was there, and the next one is waited for.
    Left(Option<Failed>),
    /// The driver began anew and has no descriptor: only the daemon that serves it can give one back.
    Unknown,
    /// It was given up: the mount is dead.
    Dead,
}

/// See the module. Dropped, it lets go of the mount: without a daemon the mount is dead then.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    message: Message,
    /// Who may serve.
    user: u32,
    patience: Patience,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    standing: Standing,
    since: Instant,
    /// Of /dev/fuse, the one that was mounted first.
    devices: Vec<OwnedFd>,
    /// What the daemon wants its successor to have, as it gave it.
    session: Option<Value>,
    beside: Vec<OwnedFd>,
    /// The line to the daemon that is there.
    line: Option<UnixStream>,
    /// Goes with the descriptors.
    door: Option<Door>,
}

/// What a daemon says. Other words are for others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Word {
    session: Option<Value>,
    ready: bool,
    failed: Option<Failed>,
    /// It serves already, and gives its descriptors to a driver that began anew.
    resume: Option<Resume>,
}

/// The first descriptors are of /dev/fuse, those behind them belong to the session.
#[derive(Debug, Deserialize)]
struct Resume {
    devices: usize,
    #[serde(default)]
    session: Option<Value>,
}

impl Keeper {
    /// Keeps `devices`, none of which there are after the driver began anew, and gives them with `message` to daemons of `user` that knock.
    ///
    /// # Errors
    /// When the runtime cannot take the socket.
    pub fn keep(door: Door, devices: Vec<OwnedFd>, message: Message, user: u32, patience: Patience, runtime: &Handle) -> io::Result<Self> {
        let listener = door.socket().try_clone()?;
        listener.set_nonblocking(true)?;
        let standing = if devices.is_empty() { Standing::Unknown } else { Standing::Expected };
        let state = State { standing, since: Instant::now(), devices, session: None, beside: Vec::new(), line: None, door: Some(door) };
        let shared = Arc::new(Shared { message, user, patience, state: Mutex::new(state) });
        let listener = {
            let _runtime = runtime.enter();
            UnixListener::from_std(listener)?
        };
        let accepting = runtime.spawn(accept(Arc::clone(&shared), listener));
        Ok(Self { shared, accepting })
    }

    /// How the mount is served now.
    pub fn standing(&self) -> Standing {
        self.shared.state.lock().standing.clone()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.give_up();
    }
}

impl Shared {
    /// Lets go of everything.
    fn give_up(&self) {
        let mut state = self.state.lock();
        state.standing = Standing::Dead;
        if let Some(line) = state.line.take() {
            // Whoever waits for a word on it ends.
            let _ = line.shutdown(Shutdown::Both);
        }
        let (devices, beside, door) = (std::mem::take(&mut state.devices), std::mem::take(&mut state.beside), state.door.take());
        drop(state);
        // Closing the last one fails requests, whose owners may want to know how the mount stands.
        drop((devices, beside, door));
    }

    /// When the mount is given up unless somebody comes.
    fn deadline(&self) -> Option<Instant> {
        let state = self.state.lock();
        match state.standing {
            Standing::Expected => Some(state.since + self.patience.first),
            Standing::Left(_) => Some(state.since + self.patience.next),
            // Without a descriptor there is nothing to give up: when nobody has one, the kernel knows already.
            Standing::Served { .. } | Standing::Unknown | Standing::Dead => None,
        }
    }

    fn stand(&self, standing: Standing) {
        let mut state = self.state.lock();
        if state.standing != Standing::Dead {
            state.standing = standing;
            state.since = Instant::now();
        }
    }

    /// Talks to a daemon until it ends.
    fn converse(&self, stream: UnixStream) {
        let Ok(line) = stream.try_clone() else { return };
        self.state.lock().line = Some(line);
        let mut link = Link::new(stream);
        if self.begin(&mut link) {
            self.listen(&mut link);
        }
        self.state.lock().line = None;
    }

    /// Gives the daemon all there is, or takes it from one that has it; whether it serves now.
    fn begin(&self, link: &mut Link) -> bool {
        if self.state.lock().standing == Standing::Unknown {
            return match link.receive::<Word>(Some(self.patience.word)) {
                Ok(Some((Word { resume: Some(resume), ready, .. }, descriptors))) => self.resume(resume, descriptors, ready),
                // It has gone again, without a word.
                Ok(None) => false,
                // It waits for what was given to the one before.
                Ok(Some(_)) | Err(_) => {
                    tracing::warn!(bucket = %self.message.bucket, "a daemon came that serves nothing yet, and the mount is lost: it is made anew at the next request of kubelet");
                    self.give_up();
                    false
                }
            };
        }
        let sent = self.everything().and_then(|(message, descriptors)| {
            let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            link.send(&message, &borrowed).map_err(io::Error::other)
        });
        match sent {
            Ok(()) => self.stand(Standing::Served { ready: false, failed: None }),
            Err(error) => tracing::warn!(bucket = %self.message.bucket, %error, "a daemon did not take the mount"),
        }
        matches!(self.state.lock().standing, Standing::Served { .. })
    }

    /// What a daemon is given. Copies: what is here stays.
    fn everything(&self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let state = self.state.lock();
        let message = Message { session: state.session.clone(), ..self.message.clone() };
        let descriptors = state.devices.iter().chain(&state.beside).map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok((message, descriptors))
    }

    fn resume(&self, resume: Resume, mut descriptors: Vec<OwnedFd>, ready: bool) -> bool {
        if resume.devices == 0 || resume.devices > descriptors.len() {
            tracing::warn!(bucket = %self.message.bucket, "a daemon serves the mount and gives no descriptor back");
        } else {
            let mut state = self.state.lock();
            state.beside = descriptors.split_off(resume.devices);
            state.devices = descriptors;
            state.session = resume.session;
        }
        self.stand(Standing::Served { ready, failed: None });
        true
    }

    fn listen(&self, link: &mut Link) {
        let why = loop {
            match link.receive::<Word>(None) {
                Ok(Some((word, descriptors))) => self.hear(word, descriptors),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let standing = self.state.lock().standing.clone();
        if let Standing::Served { failed, .. } = standing {
            let bucket = &self.message.bucket;
            match why {
                None => tracing::info!(%bucket, "the daemon of a mount has ended"),
                Some(error) => tracing::warn!(%bucket, %error, "the line to the daemon of a mount broke"),
            }
            let is_lost = self.state.lock().devices.is_empty();
            self.stand(if is_lost { Standing::Unknown } else { Standing::Left(failed) });
        }
    }

    fn hear(&self, word: Word, descriptors: Vec<OwnedFd>) {
        let mut state = self.state.lock();
        if let Some(session) = word.session {
            (state.session, state.beside) = (Some(session), descriptors);
        }
        if let Standing::Served { ready, failed } = &mut state.standing {
            *ready |= word.ready;
            if word.failed.is_some() {
                *failed = word.failed;
            }
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: UnixListener) {
    loop {
        let deadline = shared.deadline();
        let too_late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = too_late => {
                tracing::warn!(bucket = %shared.message.bucket, "no daemon has come to serve a mount: it is given up");
                return shared.give_up();
            }
        };
        let stream = match accepted.and_then(|(stream, _)| admit(stream, shared.user)) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(bucket = %shared.message.bucket, %error, "nobody is let in to serve a mount");
                // Without descriptors left it would be tried again at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let conversation = Arc::clone(&shared);
        // It lasts as long as the daemon; dropping the keeper ends it.
        if tokio::task::spawn_blocking(move || conversation.converse(stream)).await.is_err() {
            return;
        }
    }
}

/// The directory is closed to others; this is the second lock. In a pod with a user namespace of its own (hostUsers: false) its user has another
/// number here, and the driver must be told that one.
fn admit(stream: tokio::net::UnixStream, user: u32) -> io::Result<UnixStream> {
    let peer = stream.peer_cred()?.uid();
    if peer != user && peer != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {peer} is not the sidecar's user {user}")));
    }
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::handover::Place;

    const HOUR: Duration = Duration::from_secs(3600);
    const PATIENCE: Patience = Patience { first: HOUR, next: HOUR, word: HOUR };

    fn keeper(path: &Path, files: usize, patience: Patience) -> Keeper {
        let door = Place::of(path).unwrap().listen().unwrap();
        let devices = (0..files).map(|_| tempfile::tempfile().unwrap().into()).collect();
        let message = Message { bucket: "s3://data".into(), ..Message::default() };
        let user = rustix::process::geteuid().as_raw();
        Keeper::keep(door, devices, message, user, patience, &Handle::current()).unwrap()
    }

    /// Connects, and reads what comes at once.
    async fn daemon(path: &Path) -> (Link, Message, usize) {
        let path = path.to_owned();
        let meeting = tokio::task::spawn_blocking(move || {
            let mut link = Link::new(Place::of(&path).unwrap().connect().unwrap());
            let (message, descriptors) = link.receive::<Message>(Some(Duration::from_secs(10))).unwrap().unwrap();
            (link, message, descriptors.len())
        });
        meeting.await.unwrap()
    }

    async fn until(keeper: &Keeper, standing: impl Fn(&Standing) -> bool) {
        let looked = async {
            while !standing(&keeper.standing()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), looked).await.unwrap_or_else(|_| panic!("{:?}", keeper.standing()));
    }

    #[tokio::test]
    async fn each_daemon_gets_what_the_one_before_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let keeper = keeper(&path, 2, PATIENCE);
        assert_eq!(keeper.standing(), Standing::Expected);
        let (link, message, descriptors) = daemon(&path).await;
        assert_eq!((message.bucket.as_str(), &message.session, descriptors), ("s3://data", &None, 2));
        let note = tempfile::tempfile().unwrap();
        link.send(&json!({"session": {"minor": 45}}), &[note.as_fd()]).unwrap();
        link.send(&json!({"ready": true, "of-tomorrow": 1}), &[]).unwrap();
        until(&keeper, |standing| matches!(standing, Standing::Served { ready: true, .. })).await;
        link.send(&json!({"failed": {"code": 3, "reason": "credentials", "message": "expired"}}), &[]).unwrap();
        drop(link);
        until(&keeper, |standing| matches!(standing, Standing::Left(Some(failed)) if failed.code == 3)).await;
        let (link, message, descriptors) = daemon(&path).await;
        assert_eq!((message.session, descriptors), (Some(json!({"minor": 45})), 3));
        drop((link, keeper));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_mount_that_nobody_comes_for_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let keeper = keeper(&path, 1, Patience { next: Duration::ZERO, ..PATIENCE });
        let (link, ..) = daemon(&path).await;
        until(&keeper, |standing| matches!(standing, Standing::Served { .. })).await;
        drop(link);
        until(&keeper, |standing| *standing == Standing::Dead).await;
        assert!(!path.exists(), "nobody knocks in vain");
    }

    #[tokio::test]
    async fn who_serves_gives_the_descriptors_back_to_a_driver_that_began_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let keeper = keeper(&path, 0, PATIENCE);
        assert_eq!(keeper.standing(), Standing::Unknown);
        let link = Link::new(Place::of(&path).unwrap().connect().unwrap());
        let files: Vec<_> = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        link.send(&json!({"resume": {"devices": 2, "session": {"a": 1}}, "ready": true}), &borrowed).unwrap();
        until(&keeper, |standing| matches!(standing, Standing::Served { ready: true, .. })).await;
        drop(link);
        until(&keeper, |standing| matches!(standing, Standing::Left(None))).await;
        let (_link, message, descriptors) = daemon(&path).await;
        assert_eq!((message.session, descriptors), (Some(json!({"a": 1})), 3));
    }

    #[tokio::test]
    async fn a_daemon_that_has_nothing_cannot_serve_a_mount_that_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let keeper = keeper(&path, 0, Patience { word: Duration::from_millis(1), ..PATIENCE });
        drop(Place::of(&path).unwrap().connect().unwrap());
        let _waits = Place::of(&path).unwrap().connect().unwrap();
        until(&keeper, |standing| *standing == Standing::Dead).await;
    }
}
