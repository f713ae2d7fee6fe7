//! What a reader does with one object version on the disk: ask what is there, read it, add to it. It fetches nothing. Invariant: bytes
//! are returned only when their checksum is right, and no trouble of the disk is an error for the caller.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::Engine;
use super::adding::{Added, Addition, Content, Way};
use super::entry::{Entry, Taken, Turn};
use super::files::{self, DATA, Pair, read_most};
use super::format::{CHUNK_PIECES, PIECE_BYTES, checksum};
use super::summing::Summing;
use super::whole::{Stamp, Whole};

/// Pieces that are read at once: what a reader asks for is seldom more than a chunk.
const BATCH: u64 = CHUNK_PIECES;

/// Chunks that are written under one lock: a disk gains nothing from more, and others wait for it.
const AT_ONCE: usize = 4;

/// For whom something is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ForWhom {
    /// Whoever has it open: a sign that it is worth keeping.
    Somebody,
    /// To see whether it is good, which says nothing of that: else what was looked through would stay and what comes new would go.
    Ourselves,
}

/// One version of one object. Clones are the same object.
#[derive(Clone, Debug)]
pub struct SpillObject {
    pub(super) engine: Arc<Engine>,
    /// None for an object without content or etag, of which nothing can be kept.
    pub(super) entry: Option<Arc<Entry>>,
}

impl SpillObject {
    /// The parts of `range` that are said to be on the disk, in order. Reading may still find one damaged.
    pub fn present(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(entry) = &self.entry else { return Vec::new() };
        let wanted = range.start..range.end.min(entry.header().size());
        if wanted.is_empty() {
            return Vec::new();
        }
        let pieces = wanted.start / PIECE_BYTES..wanted.end.div_ceil(PIECE_BYTES);
        let mut parts: Vec<Range<u64>> = Vec::new();
        for (piece, sum) in (pieces.start..).zip(self.engine.quietly("looking", entry, self.sums(entry, &pieces)).unwrap_or_default()) {
            if sum.is_none() {
                continue;
            }
            let start = (piece * PIECE_BYTES).max(wanted.start);
            let end = ((piece + 1) * PIECE_BYTES).min(wanted.end);
            match parts.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => parts.push(start..end),
            }
        }
        parts
    }

    /// Whether every piece is said to be on the disk.
    pub fn is_whole(&self) -> bool {
        let Some(entry) = &self.entry else { return false };
        let look = || self.pair(entry)?.map_or(Ok(false), |pair| entry.is_complete(&pair));
        self.engine.quietly("looking", entry, look()).unwrap_or(false)
    }

    /// Bytes that are about to be added, for those who do so to count: one number for all who have this version open. None: nothing of it
    /// can be kept.
    pub fn coming(&self) -> Option<&AtomicU64> {
        self.entry.as_ref().map(|entry| &entry.coming)
    }

    /// What the bytes of the object take of the disk.
    pub fn bytes_on_disk(&self) -> u64 {
        let Some(entry) = &self.entry else { return 0 };
        let look = || self.pair(entry)?.map_or(Ok(0), |pair| pair.data.metadata().map(|found| files::disk_bytes(&found)));
        self.engine.quietly("looking", entry, look()).unwrap_or(0)
    }

    /// Reads from `offset` on what is on the disk without a gap, and says how many bytes of `into` are good. What is behind them
    /// is to be fetched, and the rest of `into` may hold anything.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let Some(entry) = &self.entry else { return 0 };
        let wanted = usize::try_from(entry.header().size().saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let into = &mut into[..wanted];
        let done = self.read_for(ForWhom::Somebody, entry, offset, into);
        self.engine.count_read(done as u64, (wanted - done) as u64);
        done
    }

    fn read_for(&self, whom: ForWhom, entry: &Entry, offset: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let read = self.read_some(whom, entry, offset + done as u64, &mut into[done..]);
            match self.engine.quietly("reading", entry, read) {
                Some(read) if read > 0 => done += read,
                _ => break,
            }
        }
        done
    }

    /// Reads up to the end of a batch of pieces, or to the first piece that is not there.
    fn read_some(&self, whom: ForWhom, entry: &Entry, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let first = offset / PIECE_BYTES;
        let last = (offset + into.len() as u64).div_ceil(PIECE_BYTES).min((first / BATCH + 1) * BATCH);
        let Some(pair) = self.pair(entry)? else { return Ok(0) };
        let sums: Vec<u64> = pair.sums(entry.header(), &(first..last))?.into_iter().map_while(|sum| sum).collect();
        let mut done = 0;
        if whom == ForWhom::Somebody && !sums.is_empty() {
            self.engine.on_hit(entry, &pair, first / CHUNK_PIECES);
        }
        while done < into.len() {
            let at = offset + done as u64;
            let skip = (at % PIECE_BYTES) as usize;
            let index = (at / PIECE_BYTES - first) as usize;
            let Some(left) = sums.get(index..).filter(|left| !left.is_empty()) else { break };
            let len = entry.header().piece_len(at / PIECE_BYTES);
            let read = if skip > 0 || into.len() - done < len {
                let read = self.read_part(entry, &pair, at, left[0], &mut into[done..])?;
                if read == 0 {
                    break;
                }
                read
            } else {
                let (read, all) = self.read_pieces(entry, &pair, at / PIECE_BYTES, left, &mut into[done..])?;
                done += read;
                if !all {
                    break;
                }
                continue;
            };
            done += read;
        }
        Ok(done)
    }

    /// Reads as many whole pieces as fit, with one call, and says whether all of them were good.
    fn read_pieces(&self, entry: &Entry, pair: &Pair, first: u64, sums: &[u64], into: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut lengths = Vec::with_capacity(sums.len());
        let mut room = into.len();
        for piece in first..first + sums.len() as u64 {
            let len = entry.header().piece_len(piece);
            if len > room {
                break;
            }
            room -= len;
            lengths.push(len);
        }
        let wanted = into.len() - room;
        let filled = read_most(&pair.data, &mut into[..wanted], first * PIECE_BYTES)?;
        let mut good = 0;
        for ((piece, len), sum) in (first..).zip(lengths).zip(sums) {
            if good + len > filled || checksum(&into[good..good + len]) != *sum {
                self.damaged(entry, piece)?;
                return Ok((good, false));
            }
            good += len;
        }
        Ok((good, true))
    }

    /// Reads from `at` on to the end of the piece or of `into`, whatever comes first. The checksum is that of the whole piece.
    fn read_part(&self, entry: &Entry, pair: &Pair, at: u64, sum: u64, into: &mut [u8]) -> io::Result<usize> {
        let (piece, skip) = (at / PIECE_BYTES, (at % PIECE_BYTES) as usize);
        let mut whole = vec![0; entry.header().piece_len(piece)];
        let filled = read_most(&pair.data, &mut whole, piece * PIECE_BYTES)?;
        if filled < whole.len() || checksum(&whole) != sum {
            self.damaged(entry, piece)?;
            return Ok(0);
        }
        let len = into.len().min(whole.len() - skip);
        into[..len].copy_from_slice(&whole[skip..skip + len]);
        Ok(len)
    }

    /// A piece was not what its slot says: it is taken back, unless it was evicted or replaced while it was read.
    fn damaged(&self, entry: &Entry, piece: u64) -> io::Result<()> {
        self.engine.on_verified(entry, None);
        let Turn::Locked(locked) = entry.lock(&self.engine.layout)? else { return Ok(()) };
        let Some(sum) = locked.pair.sums(entry.header(), &(piece..piece + 1))?[0] else { return Ok(()) };
        let mut bytes = vec![0; entry.header().piece_len(piece)];
        let filled = read_most(&locked.pair.data, &mut bytes, piece * PIECE_BYTES)?;
        if filled == bytes.len() && checksum(&bytes) == sum {
            return Ok(());
        }
        self.engine.count_damaged(&self.engine.layout.file(entry.name(), DATA));
        locked.pair.clear_slots(entry.header(), &(piece..piece + 1))?;
        if locked.take_data()? == Taken::Free {
            let start = piece * PIECE_BYTES;
            let punched = locked.pair.punch(&(start..start + bytes.len() as u64));
            locked.let_data_go();
            let gone = (bytes.len() as u64).next_multiple_of(self.engine.block_bytes);
            if punched.is_ok() {
                locked.recharge(&self.engine.ledger, locked.pair.kept_bytes()?.saturating_sub(gone))?;
            }
        }
        Ok(())
    }

    /// Keeps the whole pieces among `bytes`, which are those of the object from `offset` on. The last piece is whole at the end of the object.
    pub fn add(&self, offset: u64, bytes: &[u8]) -> Added {
        self.add_all(Way::Straight, &[Addition { offset, bytes, summing: None }])[0]
    }

    /// Makes checksums of what comes from `start` on, for [`Addition`].
    pub fn summing(&self, start: u64) -> Option<Summing> {
        self.entry.as_ref().map(|entry| Summing::new(entry.header().size(), start))
    }

    /// [`add`](Self::add) of several, with a word on how, and what became of each. Those that lie one behind the other, and are given in that
    /// order, are written at once.
    pub fn add_all(&self, way: Way, additions: &[Addition<'_>]) -> Vec<Added> {
        let mut all = vec![Added::default(); additions.len()];
        let Some(entry) = &self.entry else { return all };
        let (of, contents): (Vec<_>, Vec<_>) = additions
            .iter()
            .enumerate()
            .flat_map(|(of, addition)| contents_of(entry, addition).into_iter().map(move |content| (of, content)))
            .unzip();
        for (of, contents) in of.chunks(AT_ONCE).zip(contents.chunks(AT_ONCE)) {
            for (of, added) in of.iter().zip(self.engine.add(entry, contents, way)) {
                let Added { kept, present, dropped } = &mut all[*of];
                (*kept, *present, *dropped) = (*kept + added.kept, *present + added.present, *dropped + added.dropped);
            }
        }
        all
    }

    /// Reads all of it; whether it is there and good. Takes as long as reading it does.
    pub fn verify(&self) -> bool {
        let Some(entry) = &self.entry else { return false };
        let state = || Ok(self.pair(entry)?.map(|pair| pair.data.metadata()).transpose()?.map(|found| Stamp::of(&found)));
        let Some(before) = self.engine.quietly("verifying", entry, state()).flatten() else { return false };
        let mut buffer = vec![0; (BATCH * PIECE_BYTES) as usize];
        let (mut at, size) = (0, entry.header().size());
        while at < size {
            let len = (size - at).min(buffer.len() as u64) as usize;
            if self.read_for(ForWhom::Ourselves, entry, at, &mut buffer[..len]) < len {
                return false;
            }
            at += len as u64;
        }
        let unchanged = self.engine.quietly("verifying", entry, state()).flatten() == Some(before);
        if unchanged {
            self.engine.on_verified(entry, Some(before));
        }
        unchanged
    }

    /// Whether [`verify`](Self::verify) found it good, some time. Does not look at the disk.
    pub fn was_verified(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.verified.lock().is_some())
    }

    /// The whole object, when [`verify`](Self::verify) found it good and nothing changed it since.
    pub fn whole(&self) -> Option<Whole> {
        let entry = self.entry.as_ref()?;
        self.engine.make_way();
        if !self.engine.may_pass() {
            return None;
        }
        let taken = Whole::take(entry, &self.engine.layout, &self.engine.ledger);
        let whole = self.engine.quietly("passing through", entry, taken).flatten()?;
        // Nobody tells what the kernel reads of it: that somebody opens it is what is known.
        self.engine.on_opened(entry);
        Some(whole)
    }

    fn sums(&self, entry: &Entry, pieces: &Range<u64>) -> io::Result<Vec<Option<u64>>> {
        self.pair(entry)?.map_or(Ok(Vec::new()), |pair| pair.sums(entry.header(), pieces))
    }

    /// The open files: those that have the names now, not ones that somebody removed.
    fn pair(&self, entry: &Entry) -> io::Result<Option<Arc<Pair>>> {
        entry.close_removed();
        self.engine.make_way();
        entry.pair(&self.engine.layout)
    }
}

/// The whole pieces of an addition by chunks: a chunk is what makes room for another.
fn contents_of<'a>(entry: &Entry, addition: &Addition<'a>) -> Vec<Content<'a>> {
    let Addition { offset, bytes, summing } = *addition;
    let size = entry.header().size();
    let end = size.min(offset + bytes.len() as u64);
    let last = if end == size { entry.header().pieces() } else { end / PIECE_BYTES };
    let pieces = offset.div_ceil(PIECE_BYTES)..last;
    if pieces.is_empty() {
        return Vec::new();
    }
    let bytes = &bytes[(pieces.start * PIECE_BYTES - offset) as usize..(end - offset) as usize];
    let content = |chunk| {
        let part = entry.pieces_of(chunk).start.max(pieces.start)..entry.pieces_of(chunk).end.min(pieces.end);
        let from = ((part.start - pieces.start) * PIECE_BYTES) as usize;
        let until = bytes.len().min(((part.end - pieces.start) * PIECE_BYTES) as usize);
        let sums = summing.and_then(|summing| summing.of(&part));
        Content { pieces: part, bytes: &bytes[from..until], sums }
    };
    (pieces.start / CHUNK_PIECES..=(pieces.end - 1) / CHUNK_PIECES).map(content).collect()
}
