//! Who holds a mount while daemons come and go: the descriptors of /dev/fuse, what is to be served there, and what the daemon before agreed on
//! with the kernel. It mounts nothing, starts nothing and knows no time. Blocking: whoever has many keeps each in a thread of its own.
//! Invariants: the kernel ends the mount when the last descriptor closes, so it lives as long as its keeper or a daemon does; a daemon gets
//! descriptors that another one has used only together with the session of that one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use serde::Deserialize;
use serde_json::Value;

use super::{Error, Link, Message};

/// See the module. Dropped, it lets go of the mount: with no daemon there the kernel answers ENOTCONN to everybody from then on.
#[derive(Debug)]
pub struct Keeper {
    /// Of /dev/fuse: the one that was mounted, and clones of it. None where the daemon mounts by itself: then they come with its session.
    pub descriptors: Vec<OwnedFd>,
    /// What is said to each daemon; its session is what the last one told.
    pub message: Message,
    /// What came with the session.
    kept: Vec<OwnedFd>,
    /// A daemon was ready, so that the kernel has been told how to speak.
    begun: bool,
}

/// What a daemon tells. Unknown names are left aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It has agreed on a session with the kernel, by which another daemon can go on from here.
    Session,
    /// It answers.
    Ready,
    /// It cannot.
    Failed(Trouble),
    /// It was asked to leave, answers no more and ends.
    Left,
    /// It was asked to leave and stays, and why.
    Stays(String),
}

/// Why a daemon cannot serve, as the keeper hears it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Trouble {
    /// What it exits with.
    pub code: u8,
    /// One word: internal, usage, credentials, bucket, not-written.
    pub reason: String,
    /// One line for people.
    pub message: String,
    /// Files whose bytes did not reach the bucket.
    pub paths: Vec<String>,
}

/// What is on the line from a daemon: one of these at a time.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    session: Option<Value>,
    ready: Option<bool>,
    failed: Option<Trouble>,
    left: Option<bool>,
    stays: Option<String>,
}

impl Keeper {
    /// Keeps a mount that no daemon has served yet.
    pub fn new(descriptors: Vec<OwnedFd>, message: Message) -> Self {
        Self { descriptors, message, kept: Vec::new(), begun: false }
    }

    /// Whether another daemon can be given the mount: none has begun on it, or the last one told its session. Where it cannot (Linux before
    /// 6.9 does not repeat what a daemon that died had taken, and who asked waits for ever) the keeper has to be dropped.
    pub fn can_go_on(&self) -> bool {
        self.message.session.is_some() || !self.begun
    }

    /// Whether a daemon was ready at some time.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Serves the daemon at the other end of `stream` until it closes, and tells what it reports. A process that died has closed.
    ///
    /// # Errors
    /// When the line breaks or something else than a daemon is there. The keeper can be used again.
    pub fn serve(&mut self, stream: UnixStream, mut on_report: impl FnMut(Report)) -> Result<(), Error> {
        let mut link = Link::new(stream);
        let descriptors: Vec<BorrowedFd<'_>> = self.descriptors.iter().chain(&self.kept).map(AsFd::as_fd).collect();
        link.send(&self.message, &descriptors)?;
        while let Some((said, came)) = receive(&mut link)? {
            let Said { session, ready, failed, left, stays } = said;
            if let Some(session) = session {
                self.message.session = Some(session);
                self.kept = came;
                on_report(Report::Session);
            }
            if ready == Some(true) {
                self.begun = true;
                on_report(Report::Ready);
            }
            let other = failed.map(Report::Failed).or(stays.map(Report::Stays)).or((left == Some(true)).then_some(Report::Left));
            other.into_iter().for_each(&mut on_report);
        }
        Ok(())
    }
}

/// A daemon that is killed while it speaks has closed too.
fn receive(link: &mut Link) -> Result<Option<(Said, Vec<OwnedFd>)>, Error> {
    match link.receive(None) {
        Err(Error::Cut) => Ok(None),
        Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use serde_json::json;

    use super::*;

    /// A daemon that does `work` with what it is given, and what the keeper heard.
    fn daemon(keeper: &mut Keeper, work: impl FnOnce(Message, Vec<OwnedFd>, &Link) + Send + 'static) -> Vec<Report> {
        let (here, there) = UnixStream::pair().unwrap();
        let daemon = std::thread::spawn(move || {
            let mut link = Link::new(there);
            let (message, descriptors) = link.receive(None).unwrap().unwrap();
            work(message, descriptors, &link);
        });
        let mut reports = Vec::new();
        keeper.serve(here, |report| reports.push(report)).unwrap();
        daemon.join().unwrap();
        reports
    }

    #[test]
    fn the_next_daemon_gets_what_the_one_before_left() {
        let message = Message { bucket: "s3://data".into(), ..Message::default() };
        let mut keeper = Keeper::new(vec![tempfile::tempfile().unwrap().into()], message.clone());
        assert!(keeper.can_go_on());
        let first = daemon(&mut keeper, move |got, descriptors, link| {
            assert_eq!((got, descriptors.len()), (message, 1));
            let mut memory = tempfile::tempfile().unwrap();
            memory.write_all(b"known").unwrap();
            link.send(&json!({"session": {"minor": 45}}), &[memory.as_fd()]).unwrap();
            link.send(&json!({"of-tomorrow": 1}), &[]).unwrap();
            link.send(&json!({"ready": true}), &[]).unwrap();
        });
        assert_eq!(first, [Report::Session, Report::Ready]);
        assert!(keeper.can_go_on() && keeper.has_begun());
        let second = daemon(&mut keeper, |got, mut descriptors, link| {
            assert_eq!((got.session, descriptors.len()), (Some(json!({"minor": 45})), 2));
            let mut memory = File::from(descriptors.pop().unwrap());
            memory.rewind().unwrap();
            let mut text = String::new();
            memory.read_to_string(&mut text).unwrap();
            assert_eq!(text, "known");
            link.send(&json!({"failed": {"code": 3, "reason": "credentials", "message": "no"}}), &[]).unwrap();
        });
        let failed = Trouble { code: 3, reason: "credentials".into(), message: "no".into(), paths: Vec::new() };
        assert_eq!(second, [Report::Failed(failed)]);
    }

    #[test]
    fn a_daemon_that_told_no_session_has_no_successor() {
        let mut keeper = Keeper::new(Vec::new(), Message::default());
        assert_eq!(daemon(&mut keeper, |_, _, link| link.send(&json!({"failed": {"code": 4}}), &[]).unwrap()).len(), 1);
        assert!(keeper.can_go_on(), "it had not begun");
        daemon(&mut keeper, |_, _, link| link.send(&json!({"ready": true}), &[]).unwrap());
        assert!(!keeper.can_go_on());
    }

    #[test]
    fn who_dies_in_the_middle_of_a_word_has_closed() {
        let mut keeper = Keeper::new(Vec::new(), Message::default());
        assert_eq!(daemon(&mut keeper, |_, _, link| (&mut link.stream()).write_all(b"{\"ready\": t").unwrap()), []);
    }
}
