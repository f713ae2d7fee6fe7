//! The daemon's end of the line to its keeper, which stays open as long as the daemon lives: what it says of itself, one JSON object with one
//! key at a time. It waits for no answer. Invariant: a keeper that is gone, or does not read, costs the daemon a moment and nothing else.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use super::{Error, Link, Wishes};

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
pub struct Line(Mutex<Link>);

impl Line {
    /// Over the connection that the message came by.
    pub fn new(stream: UnixStream) -> Self {
        Self::over(Link::new(stream))
    }

    /// The same.
    pub fn over(link: Link) -> Self {
        Self(Mutex::new(link))
    }

    /// The mount answers. Nothing with descriptors may follow: who reads both in one piece would take them for part of this.
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn ready(&self) -> Result<(), Error> {
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
        Ok(Wishes(Link::new(self.0.lock().stream().try_clone()?)))
    }

    fn say(&self, word: &Word<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let link = self.0.lock();
        link.stream().set_write_timeout(Some(PATIENCE))?;
        link.send(word, descriptors)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use serde_json::json;

    use super::*;

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
        assert!(line.ready().is_err());
    }
}
