//! The daemon's end of the line to its keeper: what it was given, and what it tells. It reads no environment and decides nothing. Invariant: a
//! line that broke is no reason to end: who is served does not care who keeps the mount.

use std::os::fd::{BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Error, Failed, Link};

/// What a daemon has from the keeper of its mount.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Of /dev/fuse, the first mounted and the others clones of it, and behind them what belongs to `session`. None of them: the daemon mounts
    /// by itself, and gives the keeper its descriptors with its session.
    pub descriptors: Vec<OwnedFd>,
    /// What the daemon before had agreed on with the kernel.
    pub session: Option<Value>,
    /// Where the keeper hears of it; none: there is no keeper, and the mount ends with this daemon.
    pub line: Option<Line>,
}

/// See the module.
#[derive(Debug)]
pub struct Line {
    tell: Mutex<Link>,
    hear: Mutex<Link>,
}

/// What a keeper says after its message. Unknown names are left aside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wish {
    /// The daemon shall end at a quiet moment and leave the mount: another one goes on. Waits so many milliseconds for files that are being
    /// written.
    pub leave_within_ms: Option<u64>,
}

impl Line {
    /// Over a line whose message has been received.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new(link: Link) -> std::io::Result<Self> {
        let tell = Link::new(link.stream().try_clone()?);
        Ok(Self { tell: Mutex::new(tell), hear: Mutex::new(link) })
    }

    /// Tells what was agreed on with the kernel, with what another daemon needs to go on from there.
    ///
    /// # Errors
    /// When nobody hears it.
    pub fn session(&self, session: &Value, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.tell.lock().send(&json!({ "session": session }), descriptors)
    }

    /// Tells that the mount answers.
    pub fn ready(&self) {
        self.say(&json!({"ready": true}));
    }

    /// Tells why it does not.
    pub fn failed(&self, failed: &Failed) {
        self.say(&json!({ "failed": failed }));
    }

    /// Tells that the mount is left to the next one.
    pub fn left(&self) {
        self.say(&json!({"left": true}));
    }

    /// Tells why it is not.
    pub fn stays(&self, why: &str) {
        self.say(&json!({ "stays": why }));
    }

    /// Waits for a wish of the keeper; none: it is gone.
    pub fn next(&self) -> Option<Wish> {
        match self.hear.lock().receive(None) {
            Ok(wish) => wish.map(|(wish, _)| wish),
            Err(error) => {
                tracing::warn!(%error, "the keeper of this mount says what cannot be understood");
                None
            }
        }
    }

    fn say(&self, what: &Value) {
        if let Err(error) = self.tell.lock().send(what, &[]) {
            tracing::warn!(%error, "the keeper of this mount is gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_speak_at_the_same_time_and_each_notices_that_the_other_is_gone() {
        let (here, there) = UnixStream::pair().unwrap();
        let line = Line::new(Link::new(here)).unwrap();
        let mut keeper = Link::new(there);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| (line.next(), line.next()));
            line.ready();
            assert_eq!(keeper.receive::<Value>(None).unwrap().unwrap().0, json!({"ready": true}));
            let wish = Wish { leave_within_ms: Some(5) };
            keeper.send(&wish, &[]).unwrap();
            keeper.send(&json!({"of-tomorrow": 1}), &[]).unwrap();
            assert_eq!(waiting.join().unwrap(), (Some(wish), Some(Wish::default())));
        });
        drop(keeper);
        line.ready();
        assert_eq!(line.next(), None);
    }
}
