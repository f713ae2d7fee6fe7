//! Who holds a mount while daemons come and go: the descriptors of /dev/fuse, what is to be served there, and what the daemon before agreed on
//! with the kernel. It mounts nothing, starts nothing and knows no time. Blocking: whoever has many keeps each in a thread of its own.
//! Invariants: the kernel ends the mount when the last descriptor closes, so it lives as long as its keeper or a daemon does; a daemon gets
//! descriptors that another one has used only together with the session of that one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::{Error, Link, Message, Proof};

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
    /// None: daemons are trusted.
    proof: Option<Proof>,
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
    /// It has served the mount for an earlier keeper, and has given this one its descriptors.
    Resumed,
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
    resume: Option<Resume>,
}

/// What a daemon gives a keeper that began anew: descriptors of /dev/fuse come first, behind them what it wants to be kept.
#[derive(Debug, Deserialize)]
struct Resume {
    devices: usize,
    #[serde(default)]
    session: Option<Value>,
}

impl Keeper {
    /// Keeps a mount that no daemon has served yet.
    pub fn new(descriptors: Vec<OwnedFd>, message: Message) -> Self {
        Self { descriptors, message, kept: Vec::new(), begun: false, proof: None }
    }

    /// The same for daemons that are not trusted: what they give is looked at first.
    pub fn with_proof(self, proof: Proof) -> Self {
        Self { proof: Some(proof), ..self }
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
    pub fn serve(&mut self, stream: UnixStream, on_report: impl FnMut(Report)) -> Result<(), Error> {
        let mut link = Link::new(stream);
        let descriptors: Vec<BorrowedFd<'_>> = self.descriptors.iter().chain(&self.kept).map(AsFd::as_fd).collect();
        link.send(&self.message, &descriptors)?;
        self.listen(&mut link, on_report)
    }

    /// The same for a keeper that began anew and has no descriptor: a daemon that serves the mount gives them back, and has `patience` to begin with that.
    ///
    /// # Errors
    /// [`Error::Stranger`] when it is a daemon that has none and waits for the message, or has those of another mount.
    pub fn take_back(&mut self, stream: UnixStream, patience: Duration, mut on_report: impl FnMut(Report)) -> Result<(), Error> {
        let mut link = Link::new(stream);
        match link.receive::<Said>(Some(patience))? {
            None => return Ok(()),
            Some((Said { resume: Some(resume), ready, .. }, came)) => {
                self.take(resume, came, false)?;
                on_report(Report::Resumed);
                if ready == Some(true) {
                    on_report(Report::Ready);
                }
            }
            Some(_) => return Err(Error::Stranger("it gives no descriptor back".into())),
        }
        self.listen(&mut link, on_report)
    }

    fn listen(&mut self, link: &mut Link, mut on_report: impl FnMut(Report)) -> Result<(), Error> {
        while let Some((said, came)) = link.next()? {
            let Said { session, ready, failed, left, stays, resume } = said;
            if let Some(resume) = resume {
                // It may be the one that was here before, or one of an earlier mount.
                self.take(resume, came, true)?;
                on_report(Report::Resumed);
            } else if let Some(session) = session {
                self.proof.as_ref().map_or(Ok(()), |proof| proof.check_kept(&came))?;
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

    /// Takes everything from a daemon that served for an earlier keeper. `is_sure`: only what is shown to be of this mount.
    fn take(&mut self, resume: Resume, mut came: Vec<OwnedFd>, is_sure: bool) -> Result<(), Error> {
        if !(1..=came.len()).contains(&resume.devices) {
            return Err(Error::Stranger("it gives no descriptor back".into()));
        }
        let kept = came.split_off(resume.devices);
        let proof = self.proof.as_ref();
        let shown = proof.map_or(Ok(false), |proof| proof.check_devices(&came))?;
        if is_sure && !shown {
            return Err(Error::Stranger("this mount is kept already".into()));
        }
        proof.map_or(Ok(()), |proof| proof.check_kept(&kept))?;
        (self.descriptors, self.kept) = (came, kept);
        self.message.session = resume.session;
        self.begun = true;
        Ok(())
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
    fn a_keeper_that_began_anew_gets_everything_back_from_who_serves() {
        let mut keeper = Keeper::new(Vec::new(), Message::default());
        let (here, there) = UnixStream::pair().unwrap();
        let link = Link::new(there);
        let file = tempfile::tempfile().unwrap();
        link.send(&json!({"resume": {"devices": 2, "session": {"minor": 45}}, "ready": true}), &[file.as_fd(); 3]).unwrap();
        drop(link);
        let mut reports = Vec::new();
        keeper.take_back(here, Duration::from_secs(10), |report| reports.push(report)).unwrap();
        assert_eq!(reports, [Report::Resumed, Report::Ready]);
        assert!(keeper.can_go_on());
        daemon(&mut keeper, |got, descriptors, _| assert_eq!((got.session, descriptors.len()), (Some(json!({"minor": 45})), 3)));
        let mut empty = Keeper::new(Vec::new(), Message::default());
        for word in [json!({"resume": {"devices": 2}}), json!({"resume": {"devices": 0}}), json!({"ready": true})] {
            let (here, there) = UnixStream::pair().unwrap();
            Link::new(there).send(&word, &[file.as_fd()]).unwrap();
            assert!(empty.take_back(here, Duration::from_secs(10), |_| {}).is_err(), "{word}");
        }
    }

    #[test]
    fn who_dies_in_the_middle_of_a_word_has_closed() {
        let mut keeper = Keeper::new(Vec::new(), Message::default());
        assert_eq!(daemon(&mut keeper, |_, _, link| (&mut link.stream()).write_all(b"{\"ready\": t").unwrap()), []);
    }

    #[test]
    fn a_daemon_comes_back_to_a_keeper_that_did_not_begin_anew_only_where_the_mount_is_shown_to_be_the_same() {
        // Stands in for the kernel, which may not tell.
        let look =
            |descriptor: BorrowedFd<'_>| Ok(Some(rustix::fs::fstat(descriptor).unwrap().st_size.to_string()).filter(|size| size != "0"));
        let file = |len: u64| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len).unwrap();
            file
        };
        let come_back = |keeper: &mut Keeper, files: &[File]| {
            let (here, there) = UnixStream::pair().unwrap();
            let descriptors: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            Link::new(there.try_clone().unwrap()).send(&json!({"resume": {"devices": files.len()}, "ready": true}), &descriptors).unwrap();
            there.shutdown(std::net::Shutdown::Write).unwrap();
            let mut reports = Vec::new();
            // The other end stays open, since this one says what is to be served.
            let done = keeper.serve(here, |report| reports.push(report));
            drop(there);
            done.map(|()| reports).map_err(|error| error.to_string())
        };
        let proof = Proof { device: "40".into(), look };
        let mut keeper = Keeper::new(vec![file(40).into()], Message::default()).with_proof(proof);
        assert_eq!(come_back(&mut keeper, &[file(40), file(40)]).unwrap(), [Report::Resumed, Report::Ready]);
        assert!(come_back(&mut keeper, &[file(0)]).unwrap_err().contains("kept already"));
        assert!(come_back(&mut keeper, &[file(41)]).unwrap_err().contains("not 40"));
        assert_eq!(keeper.descriptors.len(), 2, "strangers change nothing");
        let mut trusting = Keeper::new(vec![file(40).into()], Message::default());
        assert!(come_back(&mut trusting, &[file(40)]).is_err());
    }
}
