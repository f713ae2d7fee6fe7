//! Where one thread receives messages: memory of its own, and for what is written, once something large was, memory that writers can keep. It
//! answers nothing. Invariant: each message is taken apart before the next one is received.

use std::io::{self, IoSliceMut};
use std::mem::size_of;

use super::MAX_WRITE;
use super::channel::Channel;
use super::request::{Envelope, Header, Operation, decode, decode_received, is_write};
use super::wire::{InHeader, WriteIn};
use crate::sys::{HUGE_PAGE, Memory, Window};
use crate::writer::Landing;

const PAGE: usize = 4096;

/// `struct fuse_in_header` and `struct fuse_write_in`.
const WRITE_HEADERS: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// Where a message begins in its memory: so that what a WRITE brings, behind two headers, begins with a page and the kernel copies whole pages.
const LEAD: usize = PAGE - WRITE_HEADERS;

/// Room for the largest message: a WRITE, behind a page of its own (`fuse_dev_do_read` wants no less).
const MESSAGE_BYTES: usize = MAX_WRITE as usize + PAGE;

/// Nothing was written for so many messages: what comes is something else.
const OTHERS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Inbox {
    memory: Window<Memory>,
    /// Whether something large was received there.
    used: bool,
    landing: Option<Landing>,
    /// How long the last WRITE was.
    written: usize,
    /// How many messages came since.
    others: usize,
}

impl Inbox {
    /// Nothing is received into a landing yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { memory: memory()?, used: false, landing: None, written: 0, others: OTHERS })
    }

    /// Waits for a message and tells its length; none when the mount is gone. `open` makes a landing for writes of so many bytes.
    pub fn receive(&mut self, channel: &Channel, open: impl FnOnce(usize) -> Option<Landing>) -> io::Result<Option<usize>> {
        self.prepare(open);
        let message = &mut self.memory.bytes_mut()[LEAD..];
        match &mut self.landing {
            Some(landing) => {
                let head = IoSliceMut::new(&mut message[..WRITE_HEADERS]);
                channel.receive_parts(&mut [head, IoSliceMut::new(&mut landing.spare()[..MAX_WRITE as usize])])
            }
            None => channel.receive(message),
        }
    }

    /// Has a landing with room for a message as long as large writes come.
    fn prepare(&mut self, open: impl FnOnce(usize) -> Option<Landing>) {
        if self.others >= OTHERS {
            self.landing = None;
        } else if self.landing.as_ref().is_none_or(|landing| landing.room() < MAX_WRITE as usize) {
            self.landing = open(self.written);
            if self.landing.is_some() && self.used {
                // In its place, not beside it. Without new memory the old one serves as well.
                match memory() {
                    Ok(memory) => (self.memory, self.used) = (memory, false),
                    Err(error) => tracing::debug!(%error, "a thread keeps the memory that it received large messages in"),
                }
            }
        }
    }

    /// The beginning of the message of `len` bytes that has come; see [`Envelope::read`].
    pub fn envelope(&self, len: usize) -> Option<Envelope> {
        // The whole header is there also where the rest went into a landing.
        Envelope::read(&self.memory.bytes()[LEAD..][..len.min(WRITE_HEADERS)])
    }

    /// Starts over after a message that may have been decoded only in part.
    pub fn reset(&mut self) {
        (self.landing, self.others) = (None, OTHERS);
    }

    /// Takes apart the message of `len` bytes that has come; see [`decode`].
    pub fn decode(&mut self, len: usize) -> Option<(Header, Operation<'_>)> {
        let message = &mut self.memory.bytes_mut()[LEAD..];
        let is_write = is_write(&message[..len.min(WRITE_HEADERS)]);
        if is_write {
            (self.written, self.others) = (len - WRITE_HEADERS, 0);
        } else {
            self.others = self.others.saturating_add(1);
        }
        match &mut self.landing {
            Some(landing) => {
                let rest = len.saturating_sub(WRITE_HEADERS);
                if is_write {
                    return decode_received(&message[..WRITE_HEADERS], landing, rest);
                }
                message[WRITE_HEADERS..WRITE_HEADERS + rest].copy_from_slice(&landing.spare()[..rest]);
            }
            None => self.used |= len > PAGE,
        }
        decode(&message[..len])
    }
}

/// Of huge pages: the kernel looks up every page that it writes to.
fn memory() -> io::Result<Window<Memory>> {
    Ok(Window::new(Memory::map((LEAD + MESSAGE_BYTES).next_multiple_of(HUGE_PAGE))?, LEAD + MESSAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::sync::Arc;

    use zerocopy::IntoBytes;

    use super::*;
    use crate::budget::{self, Budget};
    use crate::fuse::request::{Payload, tests::message};
    use crate::fuse::wire::opcode;
    use crate::metrics::Metrics;
    use crate::store::memory;
    use crate::units::ByteSize;
    use crate::vfs::HandleId;
    use crate::writer::{self, Writer};

    fn writer() -> Writer {
        let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::gib(1)) });
        Writer::new(Arc::new(memory::Memory::default()), budget, Arc::new(Metrics::default()), writer::Options::default(), "inbox")
    }

    fn write(len: usize) -> Vec<u8> {
        let head = WriteIn { fh: 6, offset: 10, size: u32::try_from(len).unwrap(), write_flags: 0, lock_owner: 0, flags: 0, padding: 0 };
        message(opcode::WRITE, &[head.as_bytes(), &vec![5; len]].concat())
    }

    /// As the kernel does.
    fn receive(inbox: &mut Inbox, message: &[u8], open: impl FnOnce(usize) -> Option<Landing>) {
        inbox.prepare(open);
        let memory = &mut inbox.memory.bytes_mut()[LEAD..];
        match &mut inbox.landing {
            Some(landing) => {
                let (head, rest) = message.split_at(message.len().min(WRITE_HEADERS));
                memory[..head.len()].copy_from_slice(head);
                landing.spare()[..rest.len()].copy_from_slice(rest);
            }
            None => memory[..message.len()].copy_from_slice(message),
        }
    }

    #[test]
    fn large_writes_are_received_where_they_can_stay_and_everything_else_is_whole() {
        let (writer, mut inbox) = (writer(), Inbox::new().unwrap());
        receive(&mut inbox, &write(300), |_| unreachable!("nothing was written yet"));
        let expected = [5; 300];
        let written = Operation::Write { handle: HandleId(6), offset: 10, data: Payload::Lent(&expected) };
        assert_eq!(inbox.decode(write(300).len()).unwrap().1, written);
        // The next one is.
        receive(&mut inbox, &write(300), |len| {
            assert_eq!(len, 300);
            writer.landing()
        });
        let Some((_, Operation::Write { handle: HandleId(6), offset: 10, data: Payload::Received(landing) })) =
            inbox.decode(write(300).len())
        else {
            panic!("it is received")
        };
        let kept = landing.keep();
        let long = "n".repeat(255);
        for name in ["", "short", &long] {
            let lookup = message(opcode::LOOKUP, &[name.as_bytes(), &[0]].concat());
            receive(&mut inbox, &lookup, |_| unreachable!("there is one"));
            assert_eq!(inbox.decode(lookup.len()).unwrap().1, Operation::Lookup { name: OsStr::new(name) });
        }
        assert_eq!(&kept[..], expected);
    }

    #[test]
    fn what_is_shorter_than_it_says_is_told_apart() {
        let (writer, mut inbox) = (writer(), Inbox::new().unwrap());
        let whole = write(300);
        for len in [whole.len(), whole.len() - 1, WRITE_HEADERS, WRITE_HEADERS - 1, size_of::<InHeader>()] {
            receive(&mut inbox, &whole[..len], |_| writer.landing());
            let malformed = Operation::Malformed { opcode: opcode::WRITE };
            assert_eq!(inbox.decode(len).unwrap().1 == malformed, len < whole.len(), "{len}");
        }
        receive(&mut inbox, &whole[..9], |_| writer.landing());
        assert!(inbox.decode(9).is_none());
    }

    #[test]
    fn a_landing_is_given_back_when_something_else_is_done() {
        let (writer, mut inbox) = (writer(), Inbox::new().unwrap());
        let (large, other) = (write(MAX_WRITE as usize), message(opcode::STATFS, &[]));
        let mut opened = 0;
        for _ in 0..5 {
            receive(&mut inbox, &large, |_| {
                opened += 1;
                writer.landing()
            });
            if let Operation::Write { data: Payload::Received(landing), .. } = inbox.decode(large.len()).unwrap().1 {
                landing.keep();
            }
        }
        assert_eq!(opened, 2, "two messages fit in one");
        for _ in 0..OTHERS {
            assert!(inbox.landing.is_some());
            receive(&mut inbox, &other, |_| writer.landing());
            inbox.decode(other.len());
        }
        receive(&mut inbox, &other, |_| unreachable!("nothing is written any more"));
        assert!(inbox.landing.is_none());
    }
}
