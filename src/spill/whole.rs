//! Objects that are on the disk from end to end, for readers that the kernel serves from the file itself. Nobody checks what they
//! read. Invariant: the data was found undamaged by this process as it is now, and stays as it is while it is held.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::fs::FlockOperation;

use super::entry::Entry;
use super::files::{self, DATA, Layout, MAP, Pair, try_lock, unlock};
use super::home::open_own;
use super::ledger::Ledger;

/// The state of a file: any write to it, and any hole, makes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Stamp {
    pub fn of(found: &fs::Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino(), changed: (found.ctime(), found.ctime_nsec()) }
    }
}

/// A complete object. Eviction may take its name but not its content until this is dropped and nobody has [`Whole::file`] open or mapped
/// any more.
#[derive(Debug)]
pub struct Whole {
    pair: Pair,
    size: u64,
    ledger: Arc<Ledger>,
}

impl Whole {
    /// The data of `entry`, locked; none when it is not what was verified.
    pub(super) fn take(entry: &Entry, layout: &Layout, ledger: &Arc<Ledger>) -> io::Result<Option<Self>> {
        let Some(verified) = *entry.verified.lock() else { return Ok(None) };
        let open =
            |ending, writable| files::found(open_own(OpenOptions::new().read(true).write(writable), &layout.file(entry.name(), ending)));
        let (Some(data), Some(map)) = (open(DATA, false)?, open(MAP, true)?) else { return Ok(None) };
        if !try_lock(&data, FlockOperation::NonBlockingLockShared)? {
            return Ok(None);
        }
        // Only now: whoever takes the names or the content holds the other lock meanwhile.
        let (pair, size) = (Pair::new(layout, data, map, false), entry.header().size());
        let is_verified = Stamp::of(&pair.data.metadata()?) == verified && pair.is_intact(size)?;
        // The clock of a file system may be so coarse that a hole leaves the stamp as it was, but it takes the slots.
        let is_whole = is_verified && entry.is_complete(&pair)?;
        if !is_whole {
            return Ok(None);
        }
        // Mappings outlive this: who changes the data has to look for them from now on.
        pair.set_passed(true)?;
        Ok(Some(Self { pair, size, ledger: ledger.clone() }))
    }

    /// The bytes of the object, read-only. Only the file itself is meant: nobody else may lock it.
    pub fn file(&self) -> &File {
        &self.pair.data
    }

    /// The length of the object.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whoever lets go last of data without a name tells the ledger that its room is free.
    fn let_go(&self) -> io::Result<()> {
        if self.pair.data.metadata()?.nlink() == 0 && try_lock(&self.pair.data, FlockOperation::NonBlockingLockExclusive)? {
            let charge = self.pair.charge()?;
            self.ledger.change(|account| account.let_go(charge))?;
        }
        Ok(())
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // The ledger stays too high when this fails, until somebody counts.
        let _ = self.let_go();
        // The kernel may have a reference of its own, which would keep the lock.
        unlock(&self.pair.data);
    }
}
