//! How pieces get to the disk. Invariant: their room is reserved before they are written, their bytes are written before the slots that
//! name them, and what could not be written leaves nothing behind.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

use super::entry::{Entry, Locked, Turn};
use super::format::{CHUNK_PIECES, PIECE_BYTES, checksum};
use super::guard::Purpose;
use super::{ChunkId, Engine};

/// What became of bytes that were to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Bytes that were written.
    pub kept: u64,
    /// Bytes that were there already.
    pub present: u64,
    /// Bytes of whole pieces for which there was no room, or which could not be written now.
    pub dropped: u64,
}

/// How bytes get to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Where it can be, straight from memory: no copy, and nothing that others have in the kernel's pages has to go. Takes as long as
    /// the disk does.
    Straight,
    /// Into the kernel's pages, which take more than a slow disk for a while.
    Pages,
}

/// What is to be kept of one chunk.
pub(super) struct Content<'a> {
    pub pieces: Range<u64>,
    pub bytes: &'a [u8],
    /// The checksums of the pieces, where somebody has made them.
    pub sums: Option<&'a [u64]>,
}

impl Content<'_> {
    /// What it has of `run`, which lies in `range` of the object.
    fn part(&self, run: &Range<u64>, range: &Range<u64>) -> (&[u8], Cow<'_, [u64]>) {
        let base = self.pieces.start * PIECE_BYTES;
        let data = &self.bytes[(range.start - base) as usize..(range.end - base) as usize];
        let sums = self.sums.map(|sums| &sums[(run.start - self.pieces.start) as usize..(run.end - self.pieces.start) as usize]);
        (data, sums.map_or_else(|| data.chunks(PIECE_BYTES as usize).map(checksum).collect(), Cow::Borrowed))
    }
}

/// Below this, straight writes cost more in waits than they save in copies; and what they have to be aligned to.
const STRAIGHT_BYTES: usize = 1 << 20;
const ALIGN: usize = 4096;

impl Engine {
    /// Keeps pieces of one chunk.
    pub(super) fn add(&self, entry: &Entry, content: &Content<'_>, way: Way) -> Added {
        let mut added = Added::default();
        let result = self.try_add(entry, content, way, &mut added);
        self.quietly("adding", entry, result);
        added.dropped = content.bytes.len() as u64 - added.kept - added.present;
        self.count_dropped(added.dropped.div_ceil(PIECE_BYTES));
        added
    }

    fn try_add(&self, entry: &Entry, content: &Content<'_>, way: Way, added: &mut Added) -> io::Result<()> {
        let Content { pieces, bytes, .. } = content;
        let Some(_entered) = self.membership.enter() else { return Ok(()) };
        entry.close_removed();
        self.make_way();
        let missing = match entry.pair(&self.layout)? {
            Some(pair) => runs(pieces, &pair.sums(entry.header(), pieces)?),
            None => vec![pieces.clone()],
        };
        if missing.is_empty() {
            added.present = bytes.len() as u64;
            return Ok(());
        }
        // Before the lock: making room may need it.
        let room = match self.guard.reserve_for(self.layout.root(), self.room_for(entry, &missing), Purpose::Chunks) {
            Err(error) if [io::ErrorKind::StorageFull, io::ErrorKind::WouldBlock].contains(&error.kind()) => return Ok(()),
            other => other?,
        };
        let Turn::Locked(locked) = entry.lock_made(&self.layout)? else { return Ok(()) };
        let sums = locked.pair.sums(entry.header(), pieces)?;
        let missed: u64 = runs(pieces, &sums).iter().map(|run| run_bytes(entry, run).end - run_bytes(entry, run).start).sum();
        // Others may have added some of it meanwhile. What was evicted meanwhile has no room.
        let has_room = |piece| missing.iter().any(|run| run.contains(&piece));
        let sums: Vec<_> = pieces.clone().zip(sums).map(|(piece, sum)| if has_room(piece) { sum } else { sum.or(Some(0)) }).collect();
        let written = write_runs(entry, &locked, content, &runs(pieces, &sums), way, &mut added.kept);
        let kept = locked.pair.kept_bytes()? + added.kept.next_multiple_of(self.block_bytes);
        let charge = room.charged(locked.pair.charge()?, locked.due(kept)?)?;
        locked.pair.set_charge(charge)?;
        locked.pair.set_kept_bytes(kept)?;
        added.present = bytes.len() as u64 - missed;
        if added.kept > 0 {
            let id = ChunkId { name: entry.name(), chunk: (pieces.start / CHUNK_PIECES) as u32 };
            self.index.lock().on_add(id, added.kept);
        }
        let made = locked.made;
        drop(locked);
        if made {
            self.on_made(entry)?;
        }
        written
    }

    /// The bytes of the pieces, and what the file system may need to keep them: blocks of slots, of extents, of a directory.
    fn room_for(&self, entry: &Entry, missing: &[Range<u64>]) -> u64 {
        let block = self.block_bytes;
        let data: u64 =
            missing.iter().map(|run| (run_bytes(entry, run).end - run_bytes(entry, run).start).next_multiple_of(block) + block).sum();
        data + 8 * block
    }
}

fn run_bytes(entry: &Entry, run: &Range<u64>) -> Range<u64> {
    run.start * PIECE_BYTES..(run.end * PIECE_BYTES).min(entry.header().size())
}

/// The runs of pieces that are not there.
fn runs(pieces: &Range<u64>, sums: &[Option<u64>]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (piece, _) in pieces.clone().zip(sums).filter(|(_, sum)| sum.is_none()) {
        match runs.last_mut() {
            Some(run) if run.end == piece => run.end += 1,
            _ => runs.push(piece..piece + 1),
        }
    }
    runs
}

/// The data first, then its slots: a slot never names what is not there.
fn write_runs(
    entry: &Entry,
    locked: &Locked<'_>,
    content: &Content<'_>,
    missing: &[Range<u64>],
    way: Way,
    kept: &mut u64,
) -> io::Result<()> {
    for run in missing {
        let range = run_bytes(entry, run);
        let (data, sums) = content.part(run, &range);
        let written =
            write_data(&locked.pair.data, data, range.start, way).and_then(|()| locked.pair.set_slots(entry.header(), run.start, &sums));
        if let Err(error) = written {
            // Half of it would be of no use and take room.
            let _ = locked.pair.clear_slots(entry.header(), run);
            let _ = locked.pair.punch(&range);
            return Err(error);
        }
        *kept += data.len() as u64;
    }
    Ok(())
}

fn write_data(file: &File, data: &[u8], offset: u64, way: Way) -> io::Result<()> {
    let is_aligned = data.as_ptr().addr().is_multiple_of(ALIGN) && offset.is_multiple_of(ALIGN as u64);
    if way == Way::Pages || data.len() < STRAIGHT_BYTES || !is_aligned {
        return file.write_all_at(data, offset);
    }
    let (straight, rest) = data.split_at(data.len() / ALIGN * ALIGN);
    // The same file, also when its name is gone.
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let written = OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(itself);
    match written.and_then(|file| file.write_all_at(straight, offset)) {
        Ok(()) => file.write_all_at(rest, offset + straight.len() as u64),
        // No room is an answer; that a file system does not do this, or aligns otherwise, is none.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(error),
        Err(_) => file.write_all_at(data, offset),
    }
}
