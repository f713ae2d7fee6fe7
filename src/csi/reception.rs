//! Lets daemons in to serve one mount, one after the other, and gives the mount up when none comes for too long. What is said to them, and what they
//! leave for the next one, is the keeper's. Invariants: while a daemon is away the kernel's requests wait, because all descriptors stay open here
//! (the kernel fails what a closed one had taken); when none has come in time they are closed, and readers get ENOTCONN.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::detach::Known;
use crate::handover::{Door, Error, Keeper, Report, Trouble, user_of};

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
    Served { ready: bool, trouble: Option<Trouble> },
    /// A daemon was there, and the next one is waited for.
    Left(Option<Trouble>),
    /// The driver began anew and has no descriptor: only the daemon that serves it can give one back.
    Unknown,
    /// It was given up: the mount is dead.
    Dead,
}

/// See the module. Dropped, it lets go of the mount: without a daemon the mount is dead then.
#[derive(Debug)]
pub struct Reception {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// For the log.
    bucket: String,
    mount: Known,
    /// Who may serve.
    user: u32,
    patience: Patience,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    standing: Standing,
    since: Instant,
    /// The line to the daemon that is there.
    line: Option<UnixStream>,
    /// Goes when the mount is given up.
    door: Option<Door>,
}

impl Reception {
    /// Lets daemons of `user` in to what `keeper` has of `mount`. It has nothing after the driver began anew.
    ///
    /// # Errors
    /// When the runtime cannot take the socket.
    pub fn open(door: Door, keeper: Keeper, mount: Known, (user, patience): (u32, Patience), runtime: &Handle) -> io::Result<Self> {
        let listener = door.socket().try_clone()?;
        listener.set_nonblocking(true)?;
        let standing = if keeper.descriptors.is_empty() { Standing::Unknown } else { Standing::Expected };
        let state = State { standing, since: Instant::now(), line: None, door: Some(door) };
        let shared = Arc::new(Shared { bucket: keeper.message.bucket.clone(), mount, user, patience, state: Mutex::new(state) });
        let listener = {
            let _runtime = runtime.enter();
            UnixListener::from_std(listener)?
        };
        let accepting = runtime.spawn(accept(Arc::clone(&shared), keeper, listener));
        Ok(Self { shared, accepting })
    }

    /// How the mount is served now.
    pub fn standing(&self) -> Standing {
        self.shared.state.lock().standing.clone()
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.give_up();
    }
}

impl Shared {
    /// Lets nobody in any more, and sends away who is there. The keeper goes with the task that has it.
    fn give_up(&self) {
        let mut state = self.state.lock();
        state.standing = Standing::Dead;
        state.door = None;
        if let Some(line) = state.line.take() {
            // Whoever waits for a word on it ends.
            let _ = line.shutdown(Shutdown::Both);
        }
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

    /// Has the daemon at the other end of `stream` serve the mount until it ends; whether another one may come.
    fn converse(&self, keeper: &mut Keeper, stream: UnixStream) -> bool {
        let before = {
            let mut state = self.state.lock();
            if state.standing == Standing::Dead {
                return false;
            }
            state.line = stream.try_clone().ok();
            (state.standing.clone(), state.since)
        };
        let is_unknown = keeper.descriptors.is_empty();
        let served = if is_unknown {
            keeper.take_back(stream, self.patience.word, |report| self.hear(report))
        } else {
            self.stand(Standing::Served { ready: false, trouble: None });
            keeper.serve(stream, |report| self.hear(report))
        };
        let bucket = &self.bucket;
        match &served {
            Ok(()) => tracing::info!(%bucket, "the daemon of a mount has ended"),
            Err(error) => tracing::warn!(%bucket, %error, "the line to the daemon of a mount broke"),
        }
        {
            let mut state = self.state.lock();
            state.line = None;
            // One of another mount is as if nobody had come.
            let has_served = state.standing != Standing::Served { ready: false, trouble: None };
            if matches!(served, Err(Error::Stranger(_))) && !is_unknown && !has_served {
                (state.standing, state.since) = before;
            }
        }
        self.after(keeper, is_unknown, &served)
    }

    /// How the mount stands when a daemon has ended.
    fn after(&self, keeper: &Keeper, was_unknown: bool, served: &Result<(), Error>) -> bool {
        // A mount table that cannot be read says nothing about the mount.
        if self.mount.is_mounted().is_ok_and(|is_mounted| !is_mounted) {
            tracing::info!(bucket = self.bucket, "the mount is gone: no other daemon is expected");
            return false;
        }
        let standing = self.state.lock().standing.clone();
        match standing {
            Standing::Dead => return false,
            // It came and went without a word, as somebody who only looks whether there is a socket.
            Standing::Unknown if served.is_ok() => return true,
            // A daemon of an earlier driver may come back later than somebody who has nothing to give.
            Standing::Unknown if was_unknown && self.mount.is_alive() => return true,
            Standing::Unknown if was_unknown => {
                tracing::warn!(
                    bucket = self.bucket,
                    "nobody serves a mount of an earlier driver: it is made anew at the next request of kubelet"
                );
                return false;
            }
            Standing::Served { trouble, .. } => self.stand(Standing::Left(trouble)),
            Standing::Expected | Standing::Left(_) | Standing::Unknown => {}
        }
        if !keeper.can_go_on() {
            tracing::warn!(bucket = self.bucket, "the daemon left no session for another one: its mount ends with it");
        }
        keeper.can_go_on()
    }

    fn hear(&self, report: Report) {
        let mut state = self.state.lock();
        match (&mut state.standing, report) {
            (standing @ Standing::Unknown, Report::Resumed) => *standing = Standing::Served { ready: false, trouble: None },
            (Standing::Served { ready, .. }, Report::Ready) => *ready = true,
            (Standing::Served { trouble, .. }, Report::Failed(said)) => *trouble = Some(said),
            _ => {}
        }
    }
}

async fn accept(shared: Arc<Shared>, mut keeper: Keeper, listener: UnixListener) {
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
                tracing::warn!(bucket = shared.bucket, "no daemon has come to serve a mount: it is given up");
                return shared.give_up();
            }
        };
        let admitted = accepted.and_then(|(stream, _)| admit(stream, shared.user));
        let conversation = match admitted.and_then(|stream| Conversation::start(Arc::clone(&shared), stream)) {
            Ok(conversation) => conversation,
            Err(error) => {
                tracing::warn!(bucket = shared.bucket, %error, "a daemon that has connected cannot serve the mount");
                // Without descriptors left it would be tried again at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match conversation.with(keeper).await {
            Some(kept) => keeper = kept,
            None => return shared.give_up(),
        }
    }
}

/// A thread that talks to one daemon. It lasts as long as the daemon, and dropping the reception ends it. It is none of the runtime's threads for work that blocks:
/// there are 512 of those, which the volumes of a large node would keep from the calls of kubelet.
#[derive(Debug)]
struct Conversation {
    keeper: mpsc::Sender<Keeper>,
    end: oneshot::Receiver<Option<Keeper>>,
}

impl Conversation {
    /// Starts the thread, which waits for the keeper: that stays with the caller when there is no thread to be had.
    fn start(shared: Arc<Shared>, stream: UnixStream) -> io::Result<Self> {
        let (keeper, taken) = mpsc::channel::<Keeper>();
        let (ended, end) = oneshot::channel();
        thread::Builder::new().name("windlass-serve".into()).spawn(move || {
            let Ok(mut keeper) = taken.recv() else { return };
            let goes_on = shared.converse(&mut keeper, stream);
            // Unless the reception has been dropped meanwhile.
            let _ = ended.send(goes_on.then_some(keeper));
        })?;
        Ok(Self { keeper, end })
    }

    /// Returns the keeper when another daemon may come.
    async fn with(self, keeper: Keeper) -> Option<Keeper> {
        self.keeper.send(keeper).expect("the thread waits for it");
        // A thread that has panicked has dropped the keeper.
        self.end.await.ok().flatten()
    }
}

/// Users of one pod with a user namespace of its own: kubelet gives it a range of this length, which begins at a multiple of it
/// (pkg/kubelet/userns/userns_manager.go).
const USERS_OF_POD: u32 = 1 << 16;

/// The directory is closed to others; this is the second lock. In a pod with `hostUsers: false` the sidecar's user has another number here, while files of
/// the pod belong to the same one as ever.
fn admit(stream: tokio::net::UnixStream, user: u32) -> io::Result<UnixStream> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let peer = user_of(&stream)?.as_raw();
    if !may_serve(peer, user) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {peer} is not the sidecar's user {user}")));
    }
    Ok(stream)
}

fn may_serve(peer: u32, user: u32) -> bool {
    peer == 0 || peer == user || peer >= USERS_OF_POD && peer % USERS_OF_POD == user
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use serde_json::json;
    use tokio::runtime::Builder;

    use super::*;
    use crate::handover::{Link, Message, Place};
    use crate::mountinfo;

    const HOUR: Duration = Duration::from_secs(3600);
    const PATIENCE: Patience = Patience { first: HOUR, next: HOUR, word: HOUR };

    /// One that is always there.
    fn mounted() -> Known {
        let target = Path::new("/");
        Known { target: target.to_owned(), device: mountinfo::device_at(target).unwrap().to_string() }
    }

    fn reception(path: &Path, files: usize, patience: Patience) -> Reception {
        reception_of(mounted(), path, files, patience)
    }

    fn reception_of(mount: Known, path: &Path, files: usize, patience: Patience) -> Reception {
        let door = Place::of(path).unwrap().listen().unwrap();
        let devices = (0..files).map(|_| tempfile::tempfile().unwrap().into()).collect();
        let keeper = Keeper::new(devices, Message { bucket: "s3://data".into(), ..Message::default() });
        Reception::open(door, keeper, mount, (rustix::process::geteuid().as_raw(), patience), &Handle::current()).unwrap()
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

    async fn until(reception: &Reception, is_so: impl Fn(&Standing) -> bool) {
        let looked = async {
            while !is_so(&reception.standing()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), looked).await.unwrap_or_else(|_| panic!("{:?}", reception.standing()));
    }

    #[test]
    fn the_sidecar_may_have_another_number_where_its_pod_has_a_user_namespace() {
        for (peer, user) in [(0, 65534), (65534, 65534), (7 << 16 | 65534, 65534), (7 << 16 | 1000, 1000)] {
            assert!(may_serve(peer, user), "{peer}");
        }
        for (peer, user) in [(1000, 65534), (7 << 16, 65534), (7 << 16 | 1000, 65534)] {
            assert!(!may_serve(peer, user), "{peer}");
        }
    }

    #[tokio::test]
    async fn each_daemon_gets_what_the_one_before_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let reception = reception(&path, 2, PATIENCE);
        assert_eq!(reception.standing(), Standing::Expected);
        let (link, message, descriptors) = daemon(&path).await;
        assert_eq!((message.bucket.as_str(), &message.session, descriptors), ("s3://data", &None, 2));
        let note = tempfile::tempfile().unwrap();
        link.send(&json!({"session": {"minor": 45}}), &[note.as_fd()]).unwrap();
        link.send(&json!({"ready": true, "of-tomorrow": 1}), &[]).unwrap();
        until(&reception, |standing| matches!(standing, Standing::Served { ready: true, .. })).await;
        link.send(&json!({"failed": {"code": 3, "reason": "credentials", "message": "expired"}}), &[]).unwrap();
        drop(link);
        until(&reception, |standing| matches!(standing, Standing::Left(Some(trouble)) if trouble.code == 3)).await;
        let (link, message, descriptors) = daemon(&path).await;
        assert_eq!((message.session, descriptors), (Some(json!({"minor": 45})), 3));
        drop((link, reception));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_mount_that_nobody_comes_for_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let reception = reception(&path, 1, Patience { next: Duration::ZERO, ..PATIENCE });
        drop(daemon(&path).await);
        until(&reception, |standing| *standing == Standing::Dead).await;
        assert!(!path.exists(), "nobody knocks in vain");
    }

    #[tokio::test]
    async fn a_mount_whose_daemon_left_no_session_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let reception = reception(&path, 1, PATIENCE);
        let (link, ..) = daemon(&path).await;
        link.send(&json!({"ready": true}), &[]).unwrap();
        drop(link);
        until(&reception, |standing| *standing == Standing::Dead).await;
    }

    #[tokio::test]
    async fn mount_that_is_gone_ends_with_its_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let gone = Known { target: path.clone(), device: "0:0".into() };
        let reception = reception_of(gone, &path, 1, PATIENCE);
        let (link, ..) = daemon(&path).await;
        link.send(&json!({"session": {"minor": 45}}), &[]).unwrap();
        link.send(&json!({"ready": true}), &[]).unwrap();
        drop(link);
        until(&reception, |standing| *standing == Standing::Dead).await;
        assert!(!path.exists(), "no other daemon is expected");
    }

    #[test]
    fn served_volumes_leave_the_blocking_threads_to_the_calls_of_kubelet() {
        let runtime = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
        let _runtime = runtime.enter();
        let dir = tempfile::tempdir().unwrap();
        let serve = |number: usize| {
            let path = dir.path().join(format!("{number}.sock"));
            let reception = reception(&path, 1, PATIENCE);
            let mut link = Link::new(Place::of(&path).unwrap().connect().unwrap());
            let message = link.receive::<Message>(Some(Duration::from_secs(10))).unwrap().unwrap().0;
            assert_eq!(message.bucket, "s3://data");
            (reception, link)
        };
        let _served: Vec<_> = (0..3).map(serve).collect();
        let call = async { tokio::time::timeout(Duration::from_secs(10), tokio::task::spawn_blocking(|| 7)).await };
        assert_eq!(runtime.block_on(call).expect("a call of kubelet waits for a served volume").unwrap(), 7);
    }

    #[tokio::test]
    async fn who_serves_gives_the_descriptors_back_to_a_driver_that_began_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let reception = reception(&path, 0, PATIENCE);
        assert_eq!(reception.standing(), Standing::Unknown);
        let link = Link::new(Place::of(&path).unwrap().connect().unwrap());
        let file = tempfile::tempfile().unwrap();
        link.send(&json!({"resume": {"devices": 2, "session": {"a": 1}}, "ready": true}), &[file.as_fd(); 3]).unwrap();
        until(&reception, |standing| matches!(standing, Standing::Served { ready: true, .. })).await;
        drop(link);
        until(&reception, |standing| matches!(standing, Standing::Left(None))).await;
        let (_link, message, descriptors) = daemon(&path).await;
        assert_eq!((message.session, descriptors), (Some(json!({"a": 1})), 3));
    }

    #[tokio::test]
    async fn a_daemon_of_another_mount_is_as_if_nobody_had_come() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let reception = reception(&path, 1, PATIENCE);
        let (mut stranger, ..) = daemon(&path).await;
        let file = tempfile::tempfile().unwrap();
        stranger.send(&json!({"resume": {"devices": 1}}), &[file.as_fd()]).unwrap();
        let heard = tokio::task::spawn_blocking(move || {
            stranger.receive::<Message>(Some(Duration::from_secs(10))).is_ok_and(|heard| heard.is_some())
        });
        assert!(!heard.await.unwrap(), "it is sent away");
        until(&reception, |standing| *standing == Standing::Expected).await;
        assert_eq!(daemon(&path).await.2, 1);
    }

    #[tokio::test]
    async fn a_daemon_that_has_nothing_cannot_serve_a_mount_that_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let lost = Known { target: path.clone(), device: "0:0".into() };
        let reception = reception_of(lost, &path, 0, Patience { word: Duration::from_millis(1), ..PATIENCE });
        drop(Place::of(&path).unwrap().connect().unwrap());
        let _waits = Place::of(&path).unwrap().connect().unwrap();
        until(&reception, |standing| *standing == Standing::Dead).await;
    }
}
