//! The daemon's end of the line to its keeper, which stays open as long as the daemon lives: what it says of itself, one JSON object with one
//! key at a time. It waits for no answer. Where the keeper may begin anew, the line to the new one takes the place of the old one. Invariants: a
//! keeper that is gone, or does not read, costs the daemon a moment and nothing else; nothing is waited for under the lock.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Uid;
use serde::Serialize;
use serde_json::Value;

use super::{Error, Link, WayBack, Wishes, user_of};

/// Longest wait for a keeper that does not read: what is said here fits into the buffer of the socket.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is said.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Word<'a> {
    /// To be kept for the next daemon.
    Session(&'a Value),
    Ready(bool),
    Failed(&'a Failed),
    /// It was asked to leave, answers no more and ends.
    Left(bool),
    /// It was asked to leave and stays, and why.
    Stays(&'a str),
    /// It has served the mount for an earlier keeper, and gives this one everything.
    Resume(Resume<'a>),
}

#[derive(Debug, Serialize)]
struct Resume<'a> {
    /// How many descriptors are of /dev/fuse: they come first.
    devices: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a Value>,
}

/// Why there is no mount, or why it ended badly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// What the process ends with.
    pub code: u8,
    /// The same as a word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// Files whose bytes did not reach the bucket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Line(Mutex<State>);

#[derive(Debug)]
struct State {
    link: Arc<Link>,
    is_ready: bool,
    /// With the user that the first keeper ran as.
    way_back: Option<(Uid, WayBack)>,
}

impl Line {
    /// Over the connection that the message came by.
    pub fn new(stream: UnixStream) -> Self {
        Self::over(Link::new(stream))
    }

    /// The same.
    pub fn over(link: Link) -> Self {
        Self(Mutex::new(State { link: Arc::new(link), is_ready: false, way_back: None }))
    }

    /// From now on a keeper that began anew can be found.
    ///
    /// # Errors
    /// When it cannot be told who the keeper is.
    pub fn can_return(&self, way_back: WayBack) -> io::Result<()> {
        let mut state = self.0.lock();
        state.way_back = Some((user_of(state.link.stream())?, way_back));
        Ok(())
    }

    /// Whether it can be found.
    pub fn has_way_back(&self) -> bool {
        self.0.lock().way_back.is_some()
    }

    /// Gives everything to a keeper that began anew and speaks to that one from then on; what that one says. Tries once.
    ///
    /// # Errors
    /// When there is none yet, or nothing to be given: no daemon could go on before this one has agreed with the kernel.
    pub fn come_back(&self) -> Result<Wishes, Error> {
        let (keeper, way_back) = self.what_to_give()?;
        let link = way_back.connect(keeper)?;
        link.stream().set_write_timeout(Some(PATIENCE))?;
        let resume = Resume { devices: way_back.devices(), session: way_back.session.as_ref() };
        link.send(&Word::Resume(resume), &way_back.descriptors())?;
        let (wishes, link) = (wishes(&link)?, Arc::new(link));
        let is_ready = {
            let mut state = self.0.lock();
            state.link = Arc::clone(&link);
            state.is_ready
        };
        // Also what was said to the old line meanwhile.
        if is_ready {
            link.send(&Word::Ready(true), &[])?;
        }
        Ok(wishes)
    }

    fn what_to_give(&self) -> io::Result<(Uid, WayBack)> {
        let state = self.0.lock();
        let way_back = state.way_back.clone().filter(|(_, way_back)| state.is_ready || way_back.session.is_some());
        way_back.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is nothing yet that another daemon could go on with"))
    }

    /// The mount answers. Nothing with descriptors may follow: who reads both in one piece would take them for part of this.
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn ready(&self) -> Result<(), Error> {
        self.0.lock().is_ready = true;
        self.say(&Word::Ready(true), &[])
    }

    /// It does not, or does no more.
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn failed(&self, failed: &Failed) -> Result<(), Error> {
        self.say(&Word::Failed(failed), &[])
    }

    /// What the keeper gives to the daemon after this one, with its `descriptors`. Comes before [`ready`](Self::ready).
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn keep(&self, session: &Value, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        if let Some((_, way_back)) = &mut self.0.lock().way_back {
            way_back.keep(session, descriptors)?;
        }
        self.say(&Word::Session(session), descriptors)
    }

    /// The mount is left to the daemon after this one.
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn left(&self) -> Result<(), Error> {
        self.say(&Word::Left(true), &[])
    }

    /// It is not, and why.
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn stays(&self, why: &str) -> Result<(), Error> {
        self.say(&Word::Stays(why), &[])
    }

    /// What the keeper says from now on. For one listener.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn wishes(&self) -> std::io::Result<Wishes> {
        wishes(&self.0.lock().link)
    }

    fn say(&self, word: &Word<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let link = Arc::clone(&self.0.lock().link);
        link.stream().set_write_timeout(Some(PATIENCE))?;
        link.send(word, descriptors)
    }
}

fn wishes(link: &Link) -> io::Result<Wishes> {
    Ok(Wishes(Link::new(link.stream().try_clone()?)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use serde_json::json;

    use super::super::Place;
    use super::*;

    /// Waits until something fails that was closed: a process that another test starts has a copy of each descriptor for a moment.
    fn until_it_fails<E>(mut try_it: impl FnMut() -> Result<(), E>) {
        while try_it().is_ok() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn each_word_is_an_object_with_one_key_and_a_keeper_that_is_gone_is_an_error() {
        let (one, other) = UnixStream::pair().unwrap();
        let (line, mut keeper) = (Line::new(one), Link::new(other));
        let mut heard = || keeper.receive::<Value>(Some(PATIENCE)).unwrap().unwrap();
        let file = tempfile::tempfile().unwrap();
        line.keep(&json!({"minor": 40}), &[file.as_fd()]).unwrap();
        let (session, descriptors) = heard();
        assert_eq!((session, descriptors.len()), (json!({"session": {"minor": 40}}), 1));
        line.ready().unwrap();
        assert_eq!(heard().0, json!({"ready": true}));
        line.failed(&Failed { code: 5, reason: "not-written", message: "it".into(), paths: vec!["a".into()] }).unwrap();
        assert_eq!(heard().0, json!({"failed": {"code": 5, "reason": "not-written", "message": "it", "paths": ["a"]}}));
        drop(keeper);
        until_it_fails(|| line.ready());
    }

    /// Stands in for the device, and for what is kept.
    fn file() -> std::os::fd::OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    #[test]
    fn a_keeper_that_began_anew_is_given_everything_and_told_everything() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let (one, other) = UnixStream::pair().unwrap();
        let line = Line::new(one);
        assert!(!line.has_way_back());
        line.can_return(WayBack::new(path.clone(), vec![file(), file()], None, Vec::new())).unwrap();
        drop(other);
        assert!(line.come_back().is_err(), "nothing is agreed");
        until_it_fails(|| line.keep(&json!({"minor": 40}), &[file().as_fd()]));
        assert!(line.come_back().is_err(), "nobody listens");
        let door = Place::of(&path).unwrap().listen().unwrap();
        let mut wishes = line.come_back().unwrap();
        let mut keeper = Link::new(door.accept().unwrap());
        let (said, descriptors) = keeper.receive::<Value>(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!((said, descriptors.len()), (json!({"resume": {"devices": 2, "session": {"minor": 40}}}), 3));
        line.ready().unwrap();
        assert_eq!(keeper.receive::<Value>(Some(PATIENCE)).unwrap().unwrap().0, json!({"ready": true}));
        drop(keeper);
        assert_eq!(wishes.hear(), None);
        let _wishes = line.come_back().unwrap();
        let mut keeper = Link::new(door.accept().unwrap());
        assert_eq!(keeper.receive::<Value>(Some(PATIENCE)).unwrap().unwrap().1.len(), 3);
        assert_eq!(keeper.receive::<Value>(Some(PATIENCE)).unwrap().unwrap().0, json!({"ready": true}), "it was said before");
    }

    #[test]
    fn descriptors_go_to_nobody_but_the_user_that_they_came_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.sock");
        let door = Place::of(&path).unwrap().listen().unwrap();
        let way_back = WayBack::new(path, vec![file()], None, Vec::new());
        let other = Uid::from_raw(rustix::process::geteuid().as_raw() + 1);
        let error = way_back.connect(other).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        drop(door.accept().unwrap());
        way_back.connect(rustix::process::geteuid()).unwrap();
    }
}
