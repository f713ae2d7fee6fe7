//! How pieces get to the disk. Invariant: their room is reserved before they are written, their bytes are written before the slots that
//! name them, and what could not be written leaves nothing behind.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

use super::entry::{Entry, Locked, Turn};
use super::format::{CHUNK_PIECES, PIECE_BYTES, checksum};
use super::guard::Purpose;
use super::summing::Summing;
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

/// Bytes that are to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Addition<'a> {
    /// Where they lie in the object.
    pub offset: u64,
    pub bytes: &'a [u8],
    /// The checksums of their pieces, as far as somebody has made them.
    pub summing: Option<&'a Summing>,
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

/// A run of pieces that is to be written.
struct Run<'a> {
    /// Of which of the contents it is a part.
    of: usize,
    pieces: Range<u64>,
    data: &'a [u8],
    sums: Cow<'a, [u64]>,
}

impl<'a> Content<'a> {
    fn run(&self, of: usize, pieces: Range<u64>, entry: &Entry) -> Run<'a> {
        let (base, range) = (self.pieces.start * PIECE_BYTES, run_bytes(entry, &pieces));
        let data = &self.bytes[(range.start - base) as usize..(range.end - base) as usize];
        let sums = self.sums.map(|sums| &sums[(pieces.start - self.pieces.start) as usize..(pieces.end - self.pieces.start) as usize]);
        let sums = sums.map_or_else(|| data.chunks(PIECE_BYTES as usize).map(checksum).collect(), Cow::Borrowed);
        Run { of, pieces, data, sums }
    }
}

/// Below this, straight writes cost more in waits than they save in copies; and what they have to be aligned to.
const STRAIGHT_BYTES: usize = 1 << 20;
const ALIGN: usize = 4096;

impl Engine {
    /// Keeps pieces of chunks of one object, all of them under one lock, and says what became of each.
    pub(super) fn add(&self, entry: &Entry, contents: &[Content<'_>], way: Way) -> Vec<Added> {
        let mut all = vec![Added::default(); contents.len()];
        let result = self.try_add(entry, contents, way, &mut all);
        self.quietly("adding", entry, result);
        for (added, content) in all.iter_mut().zip(contents) {
            added.dropped = content.bytes.len() as u64 - added.kept - added.present;
            if added.dropped > 0 && contents.len() > 1 {
                // There may be room for one where there is none for all, or where room for the others was made.
                let again = self.add(entry, std::slice::from_ref(content), way)[0];
                *added = Added { kept: added.kept + again.kept, present: again.present.saturating_sub(added.kept), ..again };
            } else {
                self.count_dropped(added.dropped.div_ceil(PIECE_BYTES));
            }
        }
        all
    }

    fn try_add(&self, entry: &Entry, contents: &[Content<'_>], way: Way, added: &mut [Added]) -> io::Result<()> {
        let Some(_entered) = self.membership.enter() else { return Ok(()) };
        entry.close_removed();
        self.make_way();
        let pair = entry.pair(&self.layout)?;
        let look = |content: &Content<'_>| match &pair {
            Some(pair) => Ok(runs(&content.pieces, &pair.sums(entry.header(), &content.pieces)?)),
            None => Ok(vec![content.pieces.clone()]),
        };
        let missing = contents.iter().map(look).collect::<io::Result<Vec<_>>>()?;
        if missing.iter().all(Vec::is_empty) {
            added.iter_mut().zip(contents).for_each(|(added, content)| added.present = content.bytes.len() as u64);
            return Ok(());
        }
        // Before the lock: making room may need it.
        let wanted = missing.iter().map(|missing| self.room_for(entry, missing)).sum();
        let room = match self.guard.reserve_for(self.layout.root(), wanted, Purpose::Chunks) {
            Err(error) if [io::ErrorKind::StorageFull, io::ErrorKind::WouldBlock].contains(&error.kind()) => return Ok(()),
            other => other?,
        };
        let Turn::Locked(locked) = entry.lock_made(&self.layout)? else { return Ok(()) };
        let mut writing = Vec::new();
        for (of, (content, missing)) in contents.iter().zip(&missing).enumerate() {
            let sums = locked.pair.sums(entry.header(), &content.pieces)?;
            // An earlier one of the contents may have some of the same pieces.
            let comes = |piece| writing.iter().any(|run: &Run<'_>| run.pieces.contains(&piece)).then_some(0);
            let sums: Vec<_> = content.pieces.clone().zip(sums).map(|(piece, sum)| sum.or_else(|| comes(piece))).collect();
            let missed: u64 = runs(&content.pieces, &sums).iter().map(|run| len_of(&run_bytes(entry, run))).sum();
            added[of].present = content.bytes.len() as u64 - missed;
            // Others may have added some of it meanwhile. What was evicted meanwhile has no room.
            let has_room = |piece| missing.iter().any(|run| run.contains(&piece));
            let sums: Vec<_> =
                content.pieces.clone().zip(sums).map(|(piece, sum)| if has_room(piece) { sum } else { sum.or(Some(0)) }).collect();
            writing.extend(runs(&content.pieces, &sums).into_iter().map(|pieces| content.run(of, pieces, entry)));
        }
        let written = write_runs(entry, &locked, &writing, way, added);
        let kept = locked.pair.kept_bytes()? + added.iter().map(|added| added.kept.next_multiple_of(self.block_bytes)).sum::<u64>();
        let charge = room.charged(locked.pair.charge()?, locked.due(kept)?)?;
        locked.pair.set_charge(charge)?;
        locked.pair.set_kept_bytes(kept)?;
        for (added, content) in added.iter().zip(contents).filter(|(added, _)| added.kept > 0) {
            let id = ChunkId { name: entry.name(), chunk: (content.pieces.start / CHUNK_PIECES) as u32 };
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
        let data: u64 = missing.iter().map(|run| len_of(&run_bytes(entry, run)).next_multiple_of(block) + block).sum();
        data + 8 * block
    }
}

fn run_bytes(entry: &Entry, run: &Range<u64>) -> Range<u64> {
    run.start * PIECE_BYTES..(run.end * PIECE_BYTES).min(entry.header().size())
}

fn len_of(range: &Range<u64>) -> u64 {
    range.end - range.start
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

/// Those that lie one behind the other with one write.
fn write_runs(entry: &Entry, locked: &Locked<'_>, mut runs: &[Run<'_>], way: Way, added: &mut [Added]) -> io::Result<()> {
    while !runs.is_empty() {
        let adjacent = 1 + runs.windows(2).take_while(|two| two[0].pieces.end == two[1].pieces.start).count();
        let (together, others) = runs.split_at(adjacent);
        write_together(entry, locked, together, way)?;
        together.iter().for_each(|run| added[run.of].kept += run.data.len() as u64);
        runs = others;
    }
    Ok(())
}

/// The data first, then its slots: a slot never names what is not there.
fn write_together(entry: &Entry, locked: &Locked<'_>, runs: &[Run<'_>], way: Way) -> io::Result<()> {
    let pieces = runs[0].pieces.start..runs[runs.len() - 1].pieces.end;
    let range = run_bytes(entry, &pieces);
    let data: Vec<&[u8]> = runs.iter().map(|run| run.data).collect();
    let sums: Vec<u64> = runs.iter().flat_map(|run| run.sums.iter().copied()).collect();
    let written =
        write_data(&locked.pair.data, &data, range.start, way).and_then(|()| locked.pair.set_slots(entry.header(), pieces.start, &sums));
    if written.is_err() {
        // Half of it would be of no use and take room.
        let _ = locked.pair.clear_slots(entry.header(), &pieces);
        let _ = locked.pair.punch(&range);
    }
    written
}

/// Writes `parts`, one behind the other, from `offset` on.
fn write_data(file: &File, parts: &[&[u8]], offset: u64, way: Way) -> io::Result<()> {
    let Some((last, before)) = parts.split_last() else { return Ok(()) };
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let is_aligned = offset.is_multiple_of(ALIGN as u64)
        && parts.iter().all(|part| part.as_ptr().addr().is_multiple_of(ALIGN))
        && before.iter().all(|part| part.len().is_multiple_of(ALIGN));
    if way == Way::Pages || bytes < STRAIGHT_BYTES || !is_aligned {
        return write_all(file, parts, offset);
    }
    let (straight, rest) = last.split_at(last.len() / ALIGN * ALIGN);
    // The same file, also when its name is gone.
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let written = OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(itself);
    match written.and_then(|file| write_all(&file, &[before, &[straight]].concat(), offset)) {
        Ok(()) => file.write_all_at(rest, offset + (bytes - rest.len()) as u64),
        // No room is an answer; that a file system does not do this, or aligns otherwise, is none.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(error),
        Err(_) => write_all(file, parts, offset),
    }
}

fn write_all(file: &File, parts: &[&[u8]], mut offset: u64) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    // Empty ones go first: a write of nothing is not an end.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match rustix::io::pwritev(file, rest, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut rest, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
