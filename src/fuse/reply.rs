//! Answers that are owed to the kernel. Invariant: every request that waits gets exactly one answer. It is owed by [`Owed`] until a [`Reply`]
//! takes that over; either of them answers EIO when it is dropped, also by a panic. What was interrupted meanwhile has been answered already, and
//! each later attempt to answer it learns that.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::io::IoSlice;
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use zerocopy::{Immutable, IntoBytes};

use super::channel::Channel;
use super::request::{Envelope, first_unique};

/// Requests whose answers may be given up, by what the kernel calls them.
#[derive(Debug, Default)]
pub(super) struct Interruptible(Mutex<HashMap<u64, Waiting>>);

#[derive(Debug)]
struct Waiting {
    /// Who asked.
    thread: u32,
    since: Instant,
    channel: Arc<Channel>,
}

impl Interruptible {
    /// What waits here since `then` or longer, and who asked.
    pub fn since(&self, then: Instant) -> Vec<(u64, u32)> {
        let waiting = self.0.lock();
        waiting.iter().filter(|(_, one)| one.since <= then).map(|(unique, one)| (*unique, one.thread)).collect()
    }

    /// Answers EINTR to a request if it still waits here.
    pub fn interrupt(&self, unique: u64) {
        if let Some(channel) = self.remove(unique) {
            send(&channel, unique, libc::EINTR, &[]);
        }
    }

    fn remove(&self, unique: u64) -> Option<Arc<Channel>> {
        self.0.lock().remove(&unique).map(|one| one.channel)
    }
}

/// The answer to a request that is being handled, as long as no [`Reply`] was made.
#[derive(Debug)]
pub(super) struct Owed<'a> {
    envelope: Envelope,
    channel: &'a Arc<Channel>,
    is_owed: Cell<bool>,
}

impl<'a> Owed<'a> {
    /// Of a request that came by `channel`. Nothing is owed to one that the kernel does not wait for.
    pub fn new(envelope: Envelope, channel: &'a Arc<Channel>) -> Self {
        Self { envelope, channel, is_owed: Cell::new(envelope.is_answered()) }
    }

    /// The one reply, which owes the answer from now on.
    pub fn reply<A>(&self) -> Reply<A> {
        self.is_owed.set(false);
        Reply::new(self.envelope.unique, self.channel)
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        if self.is_owed.get() {
            let Envelope { unique, opcode } = self.envelope;
            tracing::error!(unique, opcode, "a request was not answered, and gets EIO");
            send(self.channel, unique, libc::EIO, &[]);
        }
    }
}

/// An answer that only says that it is done.
#[derive(Debug)]
pub(super) enum Empty {}

/// An answer of bytes, as many as were asked for or less.
#[derive(Debug)]
pub(super) enum Data {}

/// A request that waits for an `A`, which is a structure of the protocol, [`Empty`] or [`Data`].
pub(super) struct Reply<A> {
    unique: u64,
    /// None: it is answered.
    channel: Option<Arc<Channel>>,
    /// Where it is answered from when who asked does not want to wait any more.
    waits: Option<Arc<Interruptible>>,
    answer: PhantomData<fn(A)>,
}

impl<A> Reply<A> {
    pub fn new(unique: u64, channel: &Arc<Channel>) -> Self {
        Self { unique, channel: Some(Arc::clone(channel)), waits: None, answer: PhantomData }
    }

    /// From now on it may be answered EINTR; `thread` asked.
    pub fn interruptible(mut self, waits: &Arc<Interruptible>, thread: u32) -> Self {
        if let Some(channel) = &self.channel {
            let one = Waiting { thread, since: Instant::now(), channel: Arc::clone(channel) };
            waits.0.lock().insert(self.unique, one);
            self.waits = Some(Arc::clone(waits));
        }
        self
    }

    /// Nobody can interrupt it any more. None: somebody has, and what the answer would tell is not known to anybody.
    pub fn claim(mut self) -> Option<Self> {
        self.channel = Some(self.take()?);
        Some(self)
    }

    /// What the kernel calls the request, also when it asks for it again.
    pub fn first_unique(&self) -> u64 {
        first_unique(self.unique)
    }

    pub fn error(mut self, errno: i32) {
        self.finish(errno, &[]);
    }

    /// Nothing is answered here: the kernel asks the daemon that goes on with the mount again.
    pub fn leave(mut self) {
        self.take();
    }

    /// The connection that it goes to.
    pub fn channel(&self) -> &Arc<Channel> {
        self.channel.as_ref().expect("only what consumes a reply answers it")
    }

    /// The right to answer.
    fn take(&mut self) -> Option<Arc<Channel>> {
        let channel = self.channel.take()?;
        match self.waits.take() {
            Some(waits) => waits.remove(self.unique),
            None => Some(channel),
        }
    }

    fn finish(&mut self, errno: i32, parts: &[IoSlice<'_>]) {
        if let Some(channel) = self.take() {
            send(&channel, self.unique, errno, parts);
        }
    }
}

impl<A: IntoBytes + Immutable> Reply<A> {
    pub fn ok(mut self, answer: &A) {
        self.finish(0, &[IoSlice::new(answer.as_bytes())]);
    }
}

impl Reply<Empty> {
    pub fn done(mut self) {
        self.finish(0, &[]);
    }
}

impl Reply<Data> {
    pub fn data(mut self, data: &[u8]) {
        self.finish(0, &[IoSlice::new(data)]);
    }

    /// Bytes that lie in several places; they are not put together.
    pub fn slices<'a>(mut self, slices: impl Iterator<Item = &'a [u8]>) {
        let slices: Vec<_> = slices.map(IoSlice::new).collect();
        self.finish(0, &slices);
    }
}

impl<A> Drop for Reply<A> {
    fn drop(&mut self) {
        if let Some(channel) = self.take() {
            tracing::error!(unique = self.unique, "a request was not answered, and gets EIO");
            send(&channel, self.unique, libc::EIO, &[]);
        }
    }
}

impl<A> fmt::Debug for Reply<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("unique", &self.unique).finish_non_exhaustive()
    }
}

fn send(channel: &Channel, unique: u64, errno: i32, parts: &[IoSlice<'_>]) {
    if let Err(error) = channel.answer(unique, errno, parts) {
        // The request is gone, or all of the connection: the kernel has told who waited.
        tracing::debug!(unique, %error, "an answer was not taken");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::time::Duration;

    use super::*;
    use crate::fuse::wire::opcode;

    /// A pipe in place of the device.
    fn channel() -> (Arc<Channel>, File) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        (Arc::new(Channel::new(write)), File::from(read))
    }

    /// The requests that were answered, with what.
    fn answers(read: &mut File) -> Vec<(u64, i32)> {
        let mut bytes = vec![0; 1 << 16];
        let len = read.read(&mut bytes).unwrap_or(0);
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let mut found = Vec::new();
        let mut at = 0;
        while at < len {
            let size = u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            found.push((number(at + 8), i32::from_ne_bytes(bytes[at + 4..at + 8].try_into().unwrap())));
            at += size;
        }
        found
    }

    #[test]
    fn a_request_is_answered_once_and_never_forgotten() {
        let (channel, mut read) = channel();
        Reply::<Empty>::new(1, &channel).done();
        Reply::<Data>::new(2, &channel).slices([&b"ab"[..], b"c"].into_iter());
        drop(Reply::<Empty>::new(3, &channel));
        Reply::<Empty>::new(4, &channel).error(libc::ENOENT);
        assert_eq!(answers(&mut read), [(1, 0), (2, 0), (3, -libc::EIO), (4, -libc::ENOENT)]);
    }

    #[test]
    fn request_without_reply_is_answered_eio_once() {
        let (channel, mut read) = channel();
        let owed = |unique, opcode| Owed::new(Envelope { unique, opcode }, &channel);
        drop(owed(1, opcode::READDIR));
        owed(2, opcode::READDIR).reply::<Data>().data(b"");
        drop(owed(3, opcode::WRITE).reply::<Empty>());
        for (unique, opcode) in [(4, opcode::FORGET), (5, opcode::BATCH_FORGET), (6, opcode::INTERRUPT)] {
            drop(owed(unique, opcode));
        }
        assert_eq!(answers(&mut read), [(1, -libc::EIO), (2, 0), (3, -libc::EIO)]);
    }

    #[test]
    fn who_interrupts_answers_and_who_comes_later_is_told() {
        let (channel, mut read) = channel();
        let waits = Arc::new(Interruptible::default());
        let reply = |unique| Reply::<Data>::new(unique, &channel).interruptible(&waits, 5);
        let (interrupted, answered, claimed) = (reply(1), reply(2), reply(3));
        assert_eq!(waits.since(Instant::now()).len(), 3);
        assert_eq!(waits.since(Instant::now() - Duration::from_secs(60)), []);
        waits.interrupt(1);
        waits.interrupt(1);
        assert!(interrupted.claim().is_none());
        answered.data(b"x");
        let claimed = claimed.claim().unwrap();
        waits.interrupt(2);
        waits.interrupt(3);
        assert!(waits.0.lock().is_empty());
        claimed.data(b"y");
        assert_eq!(answers(&mut read), [(1, -libc::EINTR), (2, 0), (3, 0)]);
    }

    #[test]
    fn an_answer_in_very_many_places_is_put_together() {
        let (channel, mut read) = channel();
        let bytes = [7u8; 40];
        Reply::<Data>::new(1, &channel).slices(bytes.chunks(1));
        let mut message = vec![0; 100];
        assert_eq!(read.read(&mut message).unwrap(), 16 + 40);
        assert_eq!(message[16..56], bytes);
    }
}
