//! What is agreed on with the kernel before the first request. Where this process mounts, fuser does the exchange; over a descriptor that
//! somebody else mounted it is done here, because fuser answers with no more read-ahead than the kernel offers, which takes away again what
//! the other side has raised meanwhile. Invariant: both ways ask for the same.

use std::io::{self, IoSlice};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{Filesystem, InitFlags, KernelConfig, Request};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, IntoBytes};

use super::MAX_WRITE;
use super::channel::Channel;
use super::wire::{InHeader, InitIn, InitOut, opcode};

/// Requests the kernel may keep waiting in the background. With its default of 16, parallel small reads with a large
/// read-ahead drop to a sixth of their rate.
const MAX_BACKGROUND: u16 = 256;

/// From how many of these on it slows down who reads ahead: three quarters, as fuser has it.
const CONGESTED: u16 = MAX_BACKGROUND / 4 * 3;

/// Files on plain file systems; with more the mount itself could not lie under an overlay.
const STACK_DEPTH: u32 = 1;

const PAGE: u32 = 4096;

/// The protocol that is spoken here (`wire`).
const VERSION: (u32, u32) = (7, 40);

/// The first that has answers of today's length.
const OLDEST: (u32, u32) = (7, 23);

/// The kernel asks as soon as it is mounted. When it does not, somebody has answered it already.
const PATIENCE: Duration = Duration::from_secs(5);

/// What this mount wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    /// Listings tell the attributes of files, without a request for each.
    pub listings_tell_attributes: bool,
    /// Files of the disk that the kernel reads by itself.
    pub passthrough: bool,
    /// Bytes of read-ahead that are agreed to.
    pub max_readahead: u32,
    /// Bytes of the longest READ, where the kernel allows as much.
    pub longest_read: u32,
}

/// What was agreed on, as long as the connection lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agreed {
    /// Version of the kernel's protocol.
    pub minor: u32,
    /// FUSE_* flags of INIT that both ends know.
    pub flags: u64,
    pub max_write: u32,
    pub max_pages: u16,
    pub max_readahead: u32,
}

impl Agreed {
    /// Whether the kernel asks again for what a daemon that died had taken.
    pub fn resends(self) -> bool {
        self.flags & InitFlags::FUSE_HAS_RESEND.bits() != 0
    }

    /// Whether it reads files of the disk by itself.
    pub fn passes_through(self) -> bool {
        self.flags & InitFlags::FUSE_PASSTHROUGH.bits() != 0
    }
}

impl Wishes {
    /// Those of the flags that a kernel `offers` which are wanted.
    fn flags(self, offers: InitFlags) -> InitFlags {
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            // Several lookups and listings in one directory at a time.
            | InitFlags::FUSE_PARALLEL_DIROPS
            // Direct reads longer than one READ are sent side by side.
            | InitFlags::FUSE_ASYNC_DIO
            // Attributes with the names: the listing told them anyway.
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_CACHE_SYMLINKS
            // We say when pages are stale; the kernel need not guess from mtime, which stores round to seconds.
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            // O_TRUNC comes with the open: one request, and no moment in which the file is empty and somebody else's.
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            // Setuid bits are taken away here; without it the kernel asks for an extended attribute before every write.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            // It says so; nothing is to be said in return.
            | InitFlags::FUSE_HAS_RESEND;
        // With this the kernel asks for attributes in the first reply only until it sees a lookup, and whoever reads all names
        // before the first stat (ls -l, filepath.Walk) pays a lookup a file. Right only where attributes cost a request each.
        wanted.set(InitFlags::FUSE_READDIRPLUS_AUTO, !self.listings_tell_attributes);
        wanted.set(InitFlags::FUSE_PASSTHROUGH, self.passthrough);
        tracing::debug!(missing = ?(wanted - offers), "what the kernel does not know");
        wanted & offers
    }
}

/// What is asked for where fuser does the exchange, and what came of it.
#[derive(Debug)]
pub(super) struct Asking {
    pub wishes: Wishes,
    pub agreed: Arc<OnceLock<Agreed>>,
}

impl Filesystem for Asking {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let flags = self.wishes.flags(config.capabilities());
        config.add_capabilities(flags).map_err(|missing| io::Error::other(format!("the kernel offers no {missing:?}")))?;
        if flags.contains(InitFlags::FUSE_PASSTHROUGH) {
            config.set_max_stack_depth(STACK_DEPTH).map_err(|most| io::Error::other(format!("max_stack_depth above {most}")))?;
        }
        // More than it offers is refused; it gets what it offers then, and what is above that is raised after mounting.
        let _ = config.set_max_readahead(self.wishes.max_readahead);
        config.set_max_background(MAX_BACKGROUND).map_err(|least| io::Error::other(format!("max_background below {least}")))?;
        config.set_max_write(MAX_WRITE).map_err(|most| io::Error::other(format!("max_write above {most}")))?;
        let (minor, max_readahead) = (config.kernel_abi().1, self.wishes.max_readahead);
        let agreed = Agreed { minor, flags: flags.bits(), max_write: MAX_WRITE, max_pages: 0, max_readahead };
        // A kernel asks once.
        let _ = self.agreed.set(agreed);
        Ok(())
    }
}

/// Waits for the kernel's first request on `channel` and answers it.
pub(super) fn agree(channel: &Channel, wishes: Wishes) -> io::Result<Agreed> {
    let mut message = vec![0; 64 << 10];
    loop {
        if !channel.has_message(PATIENCE)? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not begin: another process serves it already"));
        }
        let Some(len) = channel.receive(&mut message)? else { return Err(io::ErrorKind::NotConnected.into()) };
        let Some((unique, offer)) = Offer::read(&message[..len]) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "another process has begun to serve it"));
        };
        let refuse = |errno, words: String| {
            channel.answer(unique, errno, &[])?;
            Err(io::Error::new(io::ErrorKind::Unsupported, words))
        };
        match offer.version {
            version if version.0 > VERSION.0 => {
                // A newer kernel asks again in our version.
                let ours = InitOut { major: VERSION.0, minor: VERSION.1, ..InitOut::default() };
                channel.answer(unique, 0, &[IoSlice::new(ours.as_bytes())])?;
            }
            version if version < OLDEST => {
                return refuse(libc::EPROTO, format!("the kernel speaks FUSE {}.{}, which is too old", version.0, version.1));
            }
            version => {
                let answer = answer(wishes, offer);
                channel.answer(unique, 0, &[IoSlice::new(answer.as_bytes())])?;
                let agreed = Agreed {
                    minor: version.1.min(VERSION.1),
                    flags: u64::from(answer.flags) | u64::from(answer.flags2) << 32,
                    max_write: answer.max_write,
                    max_pages: answer.max_pages,
                    max_readahead: answer.max_readahead,
                };
                tracing::debug!(?agreed, "agreed with the kernel");
                return Ok(agreed);
            }
        }
    }
}

/// What the kernel says at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    version: (u32, u32),
    flags: InitFlags,
}

impl Offer {
    /// None: it is another request.
    fn read(message: &[u8]) -> Option<(u64, Self)> {
        let (header, rest) = InHeader::read_from_prefix(message).ok()?;
        let (init, rest) = InitIn::read_from_prefix(rest).ok().filter(|_| header.opcode == opcode::INIT)?;
        let low = InitFlags::from_bits_retain(u64::from(init.flags));
        let high = u32::read_from_prefix(rest).ok().filter(|_| low.contains(InitFlags::FUSE_INIT_EXT)).map_or(0, |(high, _)| high);
        let flags = low | InitFlags::from_bits_retain(u64::from(high) << 32);
        Some((header.unique, Self { version: (init.major, init.minor), flags }))
    }
}

fn answer(wishes: Wishes, offer: Offer) -> InitOut {
    let flags = wishes.flags(offer.flags) | (offer.flags & InitFlags::FUSE_INIT_EXT);
    let most = u16::try_from(wishes.longest_read / PAGE).expect("it has few pages");
    let max_pages = if flags.contains(InitFlags::FUSE_MAX_PAGES) { most } else { 0 };
    let low = u32::try_from(flags.bits() & u64::from(u32::MAX)).expect("the lower half");
    let high = u32::try_from(flags.bits() >> 32).expect("the upper half");
    InitOut {
        major: VERSION.0,
        minor: VERSION.1,
        // What was offered is what was so when it was mounted. The kernel takes the lower of this and of what is so now
        // (`process_init_reply`), so that echoing it takes away what has been raised since.
        max_readahead: wishes.max_readahead,
        flags: low,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTED,
        max_write: MAX_WRITE,
        time_gran: 1,
        max_pages,
        flags2: high,
        max_stack_depth: if flags.contains(InitFlags::FUSE_PASSTHROUGH) { STACK_DEPTH } else { 0 },
        ..InitOut::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISHES: Wishes = Wishes { listings_tell_attributes: true, passthrough: false, max_readahead: 16 << 20, longest_read: 2 << 20 };

    fn init(opcode: u32, words: &[u32]) -> Vec<u8> {
        let header = InHeader { opcode, unique: 7, ..InHeader::default() };
        [header.as_bytes(), words.as_bytes()].concat()
    }

    #[test]
    fn the_first_request_is_read_with_both_halves_of_its_flags() {
        let ext = u32::try_from(InitFlags::FUSE_INIT_EXT.bits()).unwrap();
        let (unique, offer) = Offer::read(&init(opcode::INIT, &[7, 45, 131_072, 1 | ext, 3])).unwrap();
        assert_eq!((unique, offer.version, offer.flags.bits()), (7, (7, 45), u64::from(1 | ext) | 3 << 32));
        let (_, old) = Offer::read(&init(opcode::INIT, &[7, 31, 131_072, 1])).unwrap();
        assert_eq!((old.version, old.flags.bits()), ((7, 31), 1));
        assert_eq!(Offer::read(&init(opcode::READ, &[7, 45, 0, 0])), None);
        assert_eq!(Offer::read(b"short"), None);
    }

    #[test]
    fn only_what_is_offered_is_taken_but_for_the_read_ahead() {
        let offer = |flags| Offer { version: (7, 45), flags };
        let nothing = answer(WISHES, offer(InitFlags::empty()));
        assert_eq!((nothing.flags, nothing.flags2, nothing.max_pages, nothing.max_readahead), (0, 0, 0, 16 << 20));
        let all = answer(WISHES, offer(InitFlags::all()));
        assert_eq!(all.max_pages, 512);
        assert_eq!(all.max_stack_depth, 0, "nothing is passed through");
        let flags = InitFlags::from_bits_retain(u64::from(all.flags) | u64::from(all.flags2) << 32);
        assert!(flags.contains(InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_INIT_EXT));
        assert!(!flags.intersects(InitFlags::FUSE_READDIRPLUS_AUTO | InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_WRITEBACK_CACHE));
    }
}
