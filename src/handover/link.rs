//! A line between who mounts and who serves: JSON objects one after another, with descriptors at the first byte of each. Invariant: no message
//! is longer than [`LONGEST`] and none has more than [`MOST`] descriptors, whoever sends it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a message: options and credentials have room in a few KiB.
const LONGEST: usize = 1 << 20;

/// Descriptors of a message: one for each core that serves, and a few more.
const MOST: usize = 64;

/// Why nothing came, or nothing went.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no message.
    #[error("what came is not a message: {0}")]
    Form(#[from] serde_json::Error),
    /// It is too much.
    #[error("a message has more than {LONGEST} bytes or {MOST} descriptors")]
    TooLong,
    /// It ended in the middle.
    #[error("the other end closed before its message was whole")]
    Cut,
    /// It cannot be what it says.
    #[error("who is at the other end does not serve this mount: {0}")]
    Stranger(String),
}

/// One end of the line.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    /// What has been read of the message that comes next.
    ahead: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Link {
    /// Over a socket that is connected.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, ahead: Vec::new(), descriptors: Vec::new() }
    }

    /// The socket, to be waited for.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends `what` with `descriptors`, which stay open here. The kernel may give the receiver two messages in one piece: who sends descriptors
    /// after a message without any waits for an answer between them.
    ///
    /// # Errors
    /// [`Error::Io`] when nobody takes it, [`Error::TooLong`].
    pub fn send(&self, what: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut text = serde_json::to_vec(what)?;
        text.push(b'\n');
        if descriptors.len() > MOST || text.len() > LONGEST {
            return Err(Error::TooLong);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Error::TooLong);
        }
        let mut sent = retry(|| sendmsg(&self.stream, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL))?;
        while sent < text.len() {
            let mut nothing = SendAncillaryBuffer::default();
            sent += retry(|| sendmsg(&self.stream, &[IoSlice::new(&text[sent..])], &mut nothing, SendFlags::NOSIGNAL))?;
        }
        Ok(())
    }

    /// Waits for the next message, at most `patience` for each of its pieces; none when the other end has closed.
    ///
    /// # Errors
    /// [`Error::Io`] with WouldBlock when nothing comes in time, [`Error::Form`], [`Error::TooLong`], [`Error::Cut`].
    pub fn receive<T: DeserializeOwned>(&mut self, patience: Option<Duration>) -> Result<Option<(T, Vec<OwnedFd>)>, Error> {
        self.stream.set_read_timeout(patience)?;
        loop {
            if let Some(message) = self.whole()? {
                return Ok(Some((message, std::mem::take(&mut self.descriptors))));
            }
            if self.ahead.len() > LONGEST {
                return Err(Error::TooLong);
            }
            match self.read()? {
                0 if self.ahead.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                0 => return Err(Error::Cut),
                _ => {}
            }
        }
    }

    /// Waits for the next message as long as it takes. Who is killed while it speaks, or has not read everything, has closed too.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<OwnedFd>)>, Error> {
        match self.receive(None) {
            Err(Error::Cut) => Ok(None),
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            other => other,
        }
    }

    /// The message that is ahead, when all of it is there.
    fn whole<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let mut values = serde_json::Deserializer::from_slice(&self.ahead).into_iter::<T>();
        match values.next() {
            Some(Ok(message)) => {
                let len = values.byte_offset();
                self.ahead.drain(..len);
                Ok(Some(message))
            }
            Some(Err(error)) if !error.is_eof() => Err(error.into()),
            Some(Err(_)) | None => Ok(None),
        }
    }

    fn read(&mut self) -> Result<usize, Error> {
        let mut bytes = [0; 16 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry(|| recvmsg(&self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        // The kernel closed those that had no room.
        if received.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > MOST {
            return Err(Error::TooLong);
        }
        self.ahead.extend_from_slice(&bytes[..received.bytes]);
        Ok(received.bytes)
    }
}

/// A signal of ours is no reason to stop.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> Result<T, Error> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(|error| Error::Io(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use serde_json::{Value, json};

    use super::*;

    fn pair() -> (Link, Link) {
        let (one, other) = UnixStream::pair().unwrap();
        (Link::new(one), Link::new(other))
    }

    #[test]
    fn each_message_comes_with_its_own_descriptors() {
        let (here, mut there) = pair();
        let file = tempfile::tempfile().unwrap();
        here.send(&json!({"number": 1}), &[file.as_fd(), file.as_fd()]).unwrap();
        let (first, descriptors) = there.receive::<Value>(None).unwrap().unwrap();
        assert_eq!((first, descriptors.len()), (json!({"number": 1}), 2));
        let long = json!({"number": 2, "text": "x".repeat(100_000)});
        let sender = std::thread::spawn(move || here.send(&long, &[]).unwrap());
        let (second, descriptors) = there.receive::<Value>(None).unwrap().unwrap();
        assert_eq!((&second["number"], descriptors.len()), (&json!(2), 0));
        sender.join().unwrap();
        assert!(there.receive::<Value>(None).unwrap().is_none(), "the other end is gone");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let error = |bytes: &[u8]| {
            let (here, mut there) = pair();
            (&here.stream).write_all(bytes).unwrap();
            drop(here);
            there.receive::<Value>(None).unwrap_err()
        };
        assert!(matches!(error(b"GET / HTTP/1.1\r\n"), Error::Form(_)));
        assert!(matches!(error(b"{\"a\": "), Error::Cut));
        let (here, mut there) = pair();
        assert!(matches!(there.receive::<Value>(Some(Duration::from_millis(1))).unwrap_err(), Error::Io(_)));
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(here.send(&1, &vec![file.as_fd(); MOST + 1]).unwrap_err(), Error::TooLong));
    }
}
