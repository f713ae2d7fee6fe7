//! One object version on the disk in the hands of this process: its open files, and the lock under which they are changed. It
//! knows neither index nor bounds. Invariant: files change only under the exclusive lock of a map that has its name, with
//! the header of this version.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::fs::FlockOperation;

use super::files::{self, DATA, Layout, MAP, Pair, try_lock, unlock};
use super::format::{CHUNK_BYTES, CHUNK_PIECES, Header, Name, SLOT_BYTES};
use super::ledger::{Charge, Ledger};
use super::whole::Stamp;
use crate::sys::is_open_elsewhere;

/// Tries to lock a map that another process holds, and how long between them: it writes a chunk meanwhile, and so may others that wait.
/// Whoever adds does so behind the readers' backs and can wait for a good while; a piece that is not added is fetched again.
const TRIES: usize = 400;
const PAUSE: Duration = Duration::from_micros(500);
/// File systems keep the first few extents of a file in its inode, and others in blocks that are allocated when they write back,
/// which is later than we look.
const INLINE_BYTES: u64 = 512 << 10;
const BYTES_PER_EXTENT_BLOCK: u64 = 16 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Entry {
    header: Header,
    pair: RwLock<Option<Arc<Pair>>>,
    /// The lock of the file is one for the whole process: threads wait here.
    turn: Mutex<()>,
    /// The state of the data in which this process found each piece undamaged.
    pub verified: Mutex<Option<Stamp>>,
    /// The chunk that was read last: one pass over a chunk is one hit, however many reads it takes.
    last_hit: AtomicU64,
    /// Bytes that somebody is about to add.
    pub coming: AtomicU64,
}

/// What became of an attempt to change the files.
pub(super) enum Turn<'a> {
    Locked(Locked<'a>),
    /// Somebody else changes them.
    Contended,
    /// There are none.
    Gone,
}

impl Entry {
    pub fn new(header: Header) -> Self {
        let last_hit = AtomicU64::new(u64::MAX);
        Self { header, pair: RwLock::default(), turn: Mutex::default(), verified: Mutex::default(), last_hit, coming: AtomicU64::new(0) }
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn name(&self) -> Name {
        self.header.name()
    }

    /// Whether a read of `chunk` is not one more of the same pass.
    pub fn is_new_hit(&self, chunk: u64) -> bool {
        self.last_hit.swap(chunk, Ordering::Relaxed) != chunk
    }

    /// The pieces of a chunk.
    pub fn pieces_of(&self, chunk: u64) -> Range<u64> {
        chunk * CHUNK_PIECES..((chunk + 1) * CHUNK_PIECES).min(self.header.pieces())
    }

    pub fn bytes_of(&self, chunk: u64) -> Range<u64> {
        chunk * CHUNK_BYTES..((chunk + 1) * CHUNK_BYTES).min(self.header.size())
    }

    pub fn chunks(&self) -> u64 {
        self.header.size().div_ceil(CHUNK_BYTES)
    }

    /// The chunks whose slots were ever written: a map ends behind the last of them.
    pub fn mapped_chunks(&self, pair: &Pair) -> io::Result<Range<u64>> {
        let slots = pair.map.metadata()?.len().saturating_sub(self.header.slot_at(0));
        Ok(0..slots.div_ceil(SLOT_BYTES * CHUNK_PIECES).min(self.chunks()))
    }

    /// Whether there is a slot for every piece.
    pub fn is_complete(&self, pair: &Pair) -> io::Result<bool> {
        if self.mapped_chunks(pair)?.end < self.chunks() {
            return Ok(false);
        }
        for chunk in 0..self.chunks() {
            if pair.sums(&self.header, &self.pieces_of(chunk))?.contains(&None) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The files, when this version is on the disk.
    pub fn pair(&self, layout: &Layout) -> io::Result<Option<Arc<Pair>>> {
        if let Some(pair) = &*self.pair.read() {
            return Ok(Some(pair.clone()));
        }
        let Some(pair) = Pair::open(layout, self.name())? else { return Ok(None) };
        if files::read_header(&pair.map)?.as_ref() != Some(&self.header) || !pair.is_intact(self.header.size())? {
            return Ok(None);
        }
        let pair = Arc::new(pair);
        *self.pair.write() = Some(pair.clone());
        Ok(Some(pair))
    }

    /// Closes files that were removed, so that their room is free.
    pub fn close_removed(&self) {
        let Some(open) = self.pair.read().clone() else { return };
        if open.is_intact(self.header.size()).unwrap_or(false) {
            return;
        }
        let mut pair = self.pair.write();
        // Somebody else may have opened those that have the names now.
        if pair.as_ref().is_some_and(|now| Arc::ptr_eq(now, &open)) {
            *pair = None;
        }
    }

    /// Closes the files when nobody is at them. Who comes next opens them again.
    pub fn close_idle(&self) {
        if let Some(mut pair) = self.pair.try_write()
            && pair.as_ref().is_some_and(|pair| Arc::strong_count(pair) == 1)
        {
            *pair = None;
        }
    }

    /// The files to change, as far as there are any.
    pub fn lock(&self, layout: &Layout) -> io::Result<Turn<'_>> {
        let turn = self.turn.lock();
        self.lock_found(layout, turn)
    }

    /// The files to change, made when there are none.
    pub fn lock_made(&self, layout: &Layout) -> io::Result<Turn<'_>> {
        match self.lock_found(layout, self.turn.lock())? {
            Turn::Gone => self.make(layout, self.turn.lock()),
            other => Ok(other),
        }
    }

    fn lock_found<'a>(&'a self, layout: &Layout, turn: MutexGuard<'a, ()>) -> io::Result<Turn<'a>> {
        // Again when what was open was removed, or could only be read when it was opened.
        for _ in 0..3 {
            let Some(pair) = self.pair(layout)? else { return Ok(Turn::Gone) };
            if pair.writable {
                if !lock_patiently(&pair.map)? {
                    return Ok(Turn::Contended);
                }
                if pair.is_intact(self.header.size())? {
                    return Ok(Turn::Locked(Locked { entry: self, pair, made: false, _turn: turn }));
                }
                unlock(&pair.map);
            }
            let only_readable = !pair.writable;
            *self.pair.write() = None;
            if only_readable && self.pair(layout)?.is_some_and(|pair| !pair.writable) {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            }
        }
        Ok(Turn::Contended)
    }

    fn make<'a>(&'a self, layout: &Layout, turn: MutexGuard<'a, ()>) -> io::Result<Turn<'a>> {
        let map = Pair::make_map(layout, self.name())?;
        if !lock_patiently(&map)? || map.metadata()?.nlink() == 0 {
            return Ok(Turn::Contended);
        }
        let (found, data) = (files::read_header(&map)?, Pair::open_data(layout, self.name())?);
        let (data, made) = match (found, data) {
            // Another object of the same name came first.
            (Some(found), _) if found != self.header => return Ok(Turn::Contended),
            // Another thread or process made them since we looked.
            (Some(_), Some(data)) if data.metadata()?.len() == self.header.size() => (data, false),
            _ => (self.begin_or_remove(layout, &map)?, true),
        };
        let pair = Arc::new(Pair::new(layout, data, map, true));
        *self.pair.write() = Some(pair.clone());
        Ok(Turn::Locked(Locked { entry: self, pair, made, _turn: turn }))
    }

    fn begin_or_remove(&self, layout: &Layout, map: &File) -> io::Result<File> {
        self.begin(layout, map).inspect_err(|_| {
            // Half of it is of no use to anybody.
            let _ = files::remove(&layout.file(self.name(), DATA));
            let _ = files::remove(&layout.file(self.name(), MAP));
        })
    }

    /// Data of the object's length with nothing in it, and a map that says so. What was charged for files that were here stays known.
    fn begin(&self, layout: &Layout, map: &File) -> io::Result<File> {
        let charge = match files::read_header(map)? {
            Some(_) => files::read_charge(map)?,
            None => Charge::default(),
        };
        map.set_len(0)?;
        // Not cut: it may be somebody's mapping.
        files::remove(&layout.file(self.name(), DATA))?;
        let data = Pair::make_data(layout, self.name())?;
        data.set_len(self.header.size())?;
        map.write_all_at(self.header.bytes(), 0)?;
        files::write_charge(map, charge)?;
        Ok(data)
    }
}

fn lock_patiently(map: &File) -> io::Result<bool> {
    for _ in 0..TRIES {
        if try_lock(map, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(true);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(false)
}

/// Who would see a change of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Nobody; and nobody takes hold of it until it is [let go](Locked::let_data_go).
    Free,
    /// Somebody who lets go of it and says so.
    Held,
    /// Somebody who has it mapped, and never says anything.
    Mapped,
}

/// The files of one version, while nobody else changes them.
pub(super) struct Locked<'a> {
    entry: &'a Entry,
    pub pair: Arc<Pair>,
    /// They were just made.
    pub made: bool,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        unlock(&self.pair.map);
    }
}

/// How a removal went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removed {
    /// So many bytes are free.
    Freed(u64),
    /// So many bytes are free as soon as somebody lets go of the data.
    Lingers(u64),
}

impl Locked<'_> {
    /// What the ledger is to be charged for pieces that take `kept` bytes. From st_blocks it would be wrong: while data is written back,
    /// ext4 counts some of it twice or not at all, and others count what they wrote later.
    pub fn due(&self, kept: u64) -> io::Result<u64> {
        let map = files::disk_bytes(&self.pair.map.metadata()?).max(4096);
        let extents = if kept <= INLINE_BYTES { 0 } else { 4096 * (1 + kept / BYTES_PER_EXTENT_BLOCK) };
        Ok(kept + map + extents)
    }

    /// Sets the ledger right after a change to `kept` bytes of pieces, and says how many bytes are free now that were not.
    pub fn recharge(&self, ledger: &Ledger, kept: u64) -> io::Result<u64> {
        let (old, due) = (self.pair.charge()?, self.due(kept)?);
        self.pair.set_kept_bytes(kept)?;
        let new = ledger.change(|account| account.recharge(old, due))?;
        if new != old {
            self.pair.set_charge(new)?;
        }
        Ok(old.bytes.saturating_sub(due))
    }

    /// The bytes of the pieces of a chunk.
    pub fn kept_in(&self, chunk: u64) -> io::Result<u64> {
        let pieces = self.entry.pieces_of(chunk);
        let sums = self.pair.sums(self.entry.header(), &pieces)?;
        let kept = pieces.zip(sums).filter(|(_, sum)| sum.is_some());
        Ok(kept.map(|(piece, _)| self.entry.header().piece_len(piece) as u64).sum())
    }

    /// Takes the data for a change that its holders would see.
    pub fn take_data(&self) -> io::Result<Taken> {
        if !try_lock(&self.pair.data, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(Taken::Held);
        }
        // Nobody gives it to the kernel now. But who mapped it and closed it then has no handle any more, and still reads it.
        if self.pair.was_passed()? {
            if is_open_elsewhere(&self.pair.data) {
                self.let_data_go();
                return Ok(Taken::Mapped);
            }
            self.pair.set_passed(false)?;
        }
        Ok(Taken::Free)
    }

    pub fn let_data_go(&self) {
        unlock(&self.pair.data);
    }

    /// Whether any piece is left. Only files that take little are looked into: data that takes more has pieces.
    pub fn is_empty(&self) -> io::Result<bool> {
        if files::disk_bytes(&self.pair.data.metadata()?) > 64 << 10 {
            return Ok(false);
        }
        for chunk in self.entry.mapped_chunks(&self.pair)? {
            if self.pair.sums(self.entry.header(), &self.entry.pieces_of(chunk))?.iter().any(Option::is_some) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes both files.
    pub fn remove(self, layout: &Layout, ledger: &Ledger) -> io::Result<Removed> {
        let taken = self.take_data()?;
        let result = self.remove_taken(layout, ledger, taken);
        if taken == Taken::Free {
            self.let_data_go();
        }
        result
    }

    fn remove_taken(&self, layout: &Layout, ledger: &Ledger, taken: Taken) -> io::Result<Removed> {
        let (charge, name) = (self.pair.charge()?, self.entry.name());
        if taken == Taken::Free {
            // First, because somebody may have it open for reading: the room is to be free now.
            self.pair.data.set_len(0)?;
        }
        files::remove(&layout.file(name, DATA))?;
        files::remove(&layout.file(name, MAP))?;
        *self.entry.pair.write() = None;
        if taken == Taken::Held {
            ledger.change(|account| account.linger(charge))?;
            return Ok(Removed::Lingers(charge.bytes));
        }
        let left = ledger.change(|account| account.recharge(charge, 0))?;
        self.pair.set_charge(left)?;
        // Nobody tells when a mapping ends: from here on only statvfs knows of its room.
        Ok(if taken == Taken::Free { Removed::Freed(charge.bytes) } else { Removed::Lingers(charge.bytes) })
    }
}
