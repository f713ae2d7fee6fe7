//! Who holds a mount while daemons come and go: the descriptors of /dev/fuse, what is to be served there, and what the daemon before agreed on
//! with the kernel. It mounts nothing, starts nothing and knows no time. Blocking: whoever has many keeps each in a thread of its own.
//! Invariants: the kernel ends the mount when the last descriptor closes, so it lives as long as its keeper or a daemon does; a daemon gets
//! descriptors that another one has used only together with the session of that one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

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
    /// None: daemons are trusted.
    proof: Option<Proof>,
}

/// How a keeper whose daemons are not trusted knows its mount again.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The device of the mount, `major:minor`.
    pub device: String,
    /// That of what is mounted over a descriptor; none where the kernel does not tell. Fails for what is not of /dev/fuse, or not mounted.
    pub look: fn(BorrowedFd<'_>) -> Result<Option<String>, String>,
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
                self.check_kept(&came)?;
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
        let shown = self.check_devices(&came)?;
        if is_sure && !shown {
            return Err(Error::Stranger("this mount is kept already".into()));
        }
        self.check_kept(&kept)?;
        (self.descriptors, self.kept) = (came, kept);
        self.message.session = resume.session;
        self.begun = true;
        Ok(())
    }

    /// Whether all of them are shown to be of this mount; an error when one of them cannot be.
    fn check_devices(&self, devices: &[OwnedFd]) -> Result<bool, Error> {
        let Some(Proof { device, look }) = &self.proof else { return Ok(false) };
        let mut shown = true;
        for descriptor in devices {
            match look(descriptor.as_fd()).map_err(Error::Stranger)? {
                Some(found) if found == *device => {}
                Some(found) => return Err(Error::Stranger(format!("a descriptor is of the mount {found}, not {device}"))),
                None => shown = false,
            }
        }
        Ok(shown)
    }

    /// What is kept for a daemon is memory (memfd_create(2)). To close anything else may take as long as a stranger likes: it may be a file of
    /// a mount that nobody serves.
    fn check_kept(&self, kept: &[OwnedFd]) -> Result<(), Error> {
        if self.proof.is_some() && kept.iter().any(|descriptor| rustix::fs::fcntl_get_seals(descriptor).is_err()) {
            return Err(Error::Stranger("what it wants to be kept is not memory".into()));
        }
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
    fn what_a_stranger_gives_is_looked_at() {
        use rustix::fs::{MemfdFlags, memfd_create};

        // Stands in for the kernel: an empty file is of no device, else its length tells.
        let look = |descriptor: BorrowedFd<'_>| match rustix::fs::fstat(descriptor).unwrap().st_size {
            0 => Err("it is not /dev/fuse".to_owned()),
            1 => Ok(None),
            len => Ok(Some(format!("0:{len}"))),
        };
        let file = |len: u64| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len).unwrap();
            OwnedFd::from(file)
        };
        let memory = || memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let heard = |keeper: &mut Keeper, devices: usize, came: &[OwnedFd]| {
            let (here, there) = UnixStream::pair().unwrap();
            let came: Vec<BorrowedFd<'_>> = came.iter().map(AsFd::as_fd).collect();
            Link::new(there.try_clone().unwrap()).send(&json!({"resume": {"devices": devices}, "ready": true}), &came).unwrap();
            there.shutdown(std::net::Shutdown::Write).unwrap();
            let is_new = keeper.descriptors.is_empty();
            let done = if is_new { keeper.take_back(here, Duration::from_secs(10), |_| {}) } else { keeper.serve(here, |_| {}) };
            drop(there);
            done.map_err(|error| error.to_string())
        };
        let proof = || Proof { device: "0:40".into(), look };
        let keeper = || Keeper::new(Vec::new(), Message::default()).with_proof(proof());
        for (came, word) in
            [(vec![file(40), file(0)], "not /dev/fuse"), (vec![file(41), file(40)], "0:41"), (vec![file(40), memory()], "not /dev/fuse")]
        {
            let (mut keeper, words) = (keeper(), "does not serve this mount");
            let error = heard(&mut keeper, 2, &came).unwrap_err();
            assert!(error.contains(word) && error.contains(words) && keeper.descriptors.is_empty(), "{error}");
        }
        assert!(heard(&mut keeper(), 1, &[file(40), file(40)]).unwrap_err().contains("not memory"));
        let mut known = keeper();
        heard(&mut known, 1, &[file(40), memory()]).unwrap();
        // It comes back to a keeper that did not begin anew: only where the kernel tells that it is the same.
        heard(&mut known, 2, &[file(40), file(40)]).unwrap();
        assert_eq!(known.descriptors.len(), 2);
        assert!(heard(&mut known, 1, &[file(1)]).unwrap_err().contains("kept already"));
        assert_eq!(known.descriptors.len(), 2);
        heard(&mut keeper(), 1, &[file(1)]).unwrap();
    }
}
