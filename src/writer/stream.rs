//! The parts of a file that is written front to back, as they fill, leave and stay at hand. All of it is under the lock of its
//! content; nothing here waits or sends. Invariant: every byte that was written is in a slot's memory, or in a part that the
//! store has; what a slot does not cover is zeros.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use rangemap::RangeSet;

use super::WriteError;
use super::filling::Filling;
use super::landing::Landing;
use super::memory::{Buffer, Share};
use super::parts::{Limits, Sizes};
use super::staging::StagedFile;
use super::upload::Uploading;
use crate::store::Part;

/// Buffers of a first part that is not whole yet: most files are small, and many of them may be open.
const SMALL: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// See the module.
#[derive(Debug)]
pub(super) struct Stream {
    sizes: Sizes,
    slots: Vec<Slot>,
    /// All slots before this one are whole.
    front: usize,
    /// Parts that became whole and are not on their way.
    whole: Vec<u32>,
    pub upload: Option<Arc<Uploading>>,
    /// The store has all of it as an object.
    pub saved: bool,
    /// Why a part could not be sent.
    pub failure: Option<WriteError>,
    /// Where it is written down for another daemon.
    pub handed_over: Option<Arc<StagedFile>>,
}

#[derive(Debug)]
enum Slot {
    /// Nothing was written here.
    Hole,
    Open(OpenPart),
    /// Being sent.
    Busy {
        filling: Arc<Filling>,
        len: usize,
    },
    /// The store has it: as a part of the upload, or, without one, as a part of the object. Its bytes may still be at hand.
    Sent {
        part: Option<Part>,
        len: usize,
        bytes: Weak<Filling>,
    },
}

#[derive(Debug)]
struct OpenPart {
    filling: Arc<Filling>,
    covered: RangeSet<usize>,
    /// It was sent before; it waits for the commit, since more changes may come.
    reopened: bool,
}

/// What a write brings.
#[derive(Debug)]
pub(super) enum Data<'a> {
    Lent(&'a [u8]),
    /// May be kept where it is.
    Received(&'a mut Landing),
    /// Is kept where it is.
    Kept(Bytes),
}

impl Data<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Received(landing) => landing.bytes(),
            Self::Kept(bytes) => bytes,
        }
    }

    /// To be kept; none when it is somebody else's.
    fn keep(self) -> Option<Bytes> {
        match self {
            Self::Lent(_) => None,
            Self::Received(landing) => Some(landing.keep()),
            Self::Kept(bytes) => Some(bytes),
        }
    }
}

/// What became of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// A buffer of so many bytes is needed first.
    Room(usize),
    /// A part of it is on its way and has to arrive first.
    Wait,
    /// This is no stream any more.
    Stage,
}

/// What became of bytes that were sent.
#[derive(Debug)]
pub(super) enum Outcome {
    Part(Part),
    /// They are all of an object.
    Object,
    Failed(WriteError),
    /// The upload was given up.
    Stopped,
}

/// Bytes of the file that are in memory and nowhere else.
#[derive(Debug)]
pub(super) struct Held {
    pub offset: u64,
    pub covered: RangeSet<usize>,
    pub filling: Arc<Filling>,
}

impl Stream {
    pub fn new(sizes: Sizes) -> Self {
        Self { sizes, slots: Vec::new(), front: 0, whole: Vec::new(), upload: None, saved: false, failure: None, handed_over: None }
    }

    /// The end of the first part: what fits in it is one request.
    pub fn first_part(&self) -> u64 {
        self.sizes.range(0).end
    }

    /// Takes `data` as what is at `offset`. With `most_leaving` parts on their way nothing more is begun: who writes would only take memory. `room` is
    /// a buffer that an earlier call asked for. Calls `sure` when nothing can keep the write from being done any more, before it copies.
    pub fn write(
        &mut self,
        offset: u64,
        data: Data<'_>,
        (share, limits, most_leaving): (&Arc<Share>, &Limits, usize),
        room: &mut Option<Buffer>,
        sure: impl FnOnce(),
    ) -> Step {
        let len = data.bytes().len();
        let range = offset..offset + len as u64;
        if self.saved && !self.reopen_saved(share) {
            return Step::Stage;
        }
        if self.sizes.index(range.end - 1).is_none() || offset > self.end_of_front() + limits.ahead {
            return Step::Stage;
        }
        let received = !matches!(data, Data::Lent(_)) && len >= limits.received;
        let touched = self.touched(&range);
        if touched.iter().any(|(index, _)| self.is_hole(*index)) && self.leaving() >= most_leaving {
            return Step::Wait;
        }
        // All memory first: a write that has to wait has changed nothing.
        for (index, inside) in &touched {
            match self.open(*index, inside, received, share, room) {
                Step::Done => {}
                other => return other,
            }
        }
        sure();
        let takes = received && touched.iter().any(|(index, _)| self.takes_received(*index));
        if takes {
            let bytes = data.keep().expect("what is lent is not received");
            for (index, inside) in touched {
                let own = bytes.slice(self.within(index, &inside, offset));
                self.fill(index, inside.clone(), |filling| filling.put(inside.start, own));
            }
        } else {
            for (index, inside) in touched {
                let own = &data.bytes()[self.within(index, &inside, offset)];
                self.fill(index, inside.clone(), |filling| {
                    filling.buffer().expect("it was opened for this").bytes_mut()[inside].copy_from_slice(own);
                });
            }
        }
        share.on_written();
        Step::Done
    }

    /// The parts that `range` is in, with where in them.
    fn touched(&self, range: &Range<u64>) -> Vec<(u32, Range<usize>)> {
        let Some((first, last)) = self.sizes.index(range.start).zip(self.sizes.index(range.end - 1)) else { return Vec::new() };
        let inside = |index| {
            let part = self.sizes.range(index);
            let (start, end) = (range.start.max(part.start) - part.start, range.end.min(part.end) - part.start);
            (index, start as usize..end as usize)
        };
        (first..=last).map(inside).collect()
    }

    /// Makes the slot ready to take the bytes of `inside`; without a buffer when they are `received` and it needs none.
    fn open(&mut self, index: u32, inside: &Range<usize>, received: bool, share: &Arc<Share>, room: &mut Option<Buffer>) -> Step {
        let at = index as usize;
        while self.slots.len() <= at {
            self.slots.push(Slot::Hole);
        }
        if let Slot::Sent { len, bytes, .. } = &self.slots[at] {
            let Some(filling) = share.take(bytes) else { return Step::Stage };
            self.slots[at] = Slot::Open(OpenPart { filling, covered: covered(*len), reopened: true });
            self.front = self.front.min(at);
        }
        let (size, part_len) = (self.buffer_size(index, inside.end), self.part_len(index));
        match &mut self.slots[at] {
            Slot::Hole => {
                // Headers, which are written again, are in first parts, and so are small files.
                let kept = if received && index > 0 { share.try_room(part_len).map(Filling::from) } else { None };
                let Some(filling) = kept.or_else(|| fitting(room, size).or_else(|| share.try_buffer(size)).map(Filling::from)) else {
                    return Step::Room(size);
                };
                self.slots[at] = Slot::Open(OpenPart { filling: Arc::new(filling), covered: RangeSet::new(), reopened: false });
            }
            Slot::Open(open) => {
                // A request that was given up may hold on to the buffer for a moment.
                let fits = open.filling.len() >= inside.end
                    && Arc::get_mut(&mut open.filling)
                        .is_some_and(|filling| filling.buffer().is_some() || (received && filling.is_free(inside)));
                if !fits {
                    // Who holds something waits for a whole part: there is always room for one beside the small ones.
                    let Some(mut buffer) = fitting(room, size).or_else(|| share.try_buffer(size)) else { return Step::Room(part_len) };
                    copy_covered(&open.covered, &open.filling, 0..buffer.len(), buffer.bytes_mut());
                    open.filling = Arc::new(buffer.into());
                }
            }
            Slot::Busy { .. } => return Step::Wait,
            Slot::Sent { .. } => unreachable!("it was just opened"),
        }
        Step::Done
    }

    fn buffer_size(&self, index: u32, end: usize) -> usize {
        let part = self.part_len(index);
        let small = SMALL.into_iter().find(|&size| index == 0 && end <= size);
        small.map_or(part, |size| size.min(part))
    }

    fn part_len(&self, index: u32) -> usize {
        let range = self.sizes.range(index);
        (range.end - range.start) as usize
    }

    /// Where `inside` of a part is in what is written to `offset`.
    fn within(&self, index: u32, inside: &Range<usize>, offset: u64) -> Range<usize> {
        let from = (self.sizes.range(index).start + inside.start as u64 - offset) as usize;
        from..from + inside.len()
    }

    fn takes_received(&self, index: u32) -> bool {
        matches!(&self.slots[index as usize], Slot::Open(open) if open.filling.takes_received())
    }

    /// Has `fill` bring the bytes of `inside`.
    fn fill(&mut self, index: u32, inside: Range<usize>, fill: impl FnOnce(&mut Filling)) {
        let part_len = self.part_len(index);
        let Slot::Open(open) = &mut self.slots[index as usize] else { unreachable!("it was opened for this") };
        fill(Arc::get_mut(&mut open.filling).expect("it was opened for this"));
        let was_whole = is_whole(&open.covered, part_len);
        open.covered.insert(inside);
        if !was_whole && is_whole(&open.covered, part_len) {
            open.reopened = false;
            self.whole.push(index);
        }
    }

    /// Whether it is all holes, and nobody was told of it.
    pub fn is_blank(&self) -> bool {
        let is_empty = |slot: &Slot| matches!(slot, Slot::Hole) || matches!(slot, Slot::Open(open) if open.covered.is_empty());
        !self.saved && self.upload.is_none() && self.slots.iter().all(is_empty)
    }

    /// Where the first hole begins.
    fn end_of_front(&mut self) -> u64 {
        while self.slots.get(self.front).is_some_and(|slot| self.is_slot_whole(self.front, slot)) {
            self.front += 1;
        }
        let start = self.sizes.range(index_of(self.front)).start;
        match self.slots.get(self.front) {
            Some(Slot::Open(open)) => start + first_run(&open.covered) as u64,
            Some(Slot::Sent { len, .. } | Slot::Busy { len, .. }) => start + *len as u64,
            Some(Slot::Hole) | None => start,
        }
    }

    fn is_slot_whole(&self, at: usize, slot: &Slot) -> bool {
        let part_len = self.part_len(index_of(at));
        match slot {
            Slot::Hole => false,
            Slot::Open(open) => is_whole(&open.covered, part_len),
            Slot::Busy { len, .. } | Slot::Sent { len, .. } => *len == part_len,
        }
    }

    /// Parts that can leave now, each with its bytes: they count as being sent from here on. The first one stays as long as it
    /// may be the whole file.
    pub fn leave_whole(&mut self, size: u64) -> Vec<(u32, Arc<Filling>, usize)> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let stays_first = size <= self.first_part();
        let (stay, leave): (Vec<u32>, Vec<u32>) = self.whole.drain(..).partition(|&index| index == 0 && stays_first);
        self.whole = stay;
        leave.into_iter().filter_map(|index| self.leave(index, self.part_len(index))).collect()
    }

    /// Whole parts that were sent before and changed since; they only stay until memory is needed.
    pub fn leave_reopened(&mut self) {
        for at in 0..self.slots.len() {
            let index = index_of(at);
            let part_len = self.part_len(index);
            if let Slot::Open(open) = &mut self.slots[at]
                && open.reopened
                && is_whole(&open.covered, part_len)
            {
                open.reopened = false;
                self.whole.push(index);
            }
        }
    }

    /// The first `len` bytes of a part that is open, to be sent.
    pub fn leave(&mut self, index: u32, len: usize) -> Option<(u32, Arc<Filling>, usize)> {
        let slot = self.slots.get_mut(index as usize)?;
        let Slot::Open(open) = slot else { return None };
        let filling = Arc::clone(&open.filling);
        *slot = Slot::Busy { filling: Arc::clone(&filling), len };
        Some((index, filling, len))
    }

    /// A part that left has arrived, or not.
    pub fn on_sent(&mut self, index: u32, filling: Arc<Filling>, outcome: Outcome, share: &Share) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let len = match slot {
            Slot::Busy { filling: own, len } if Arc::ptr_eq(own, &filling) => *len,
            _ => return,
        };
        // The slot's own reference goes first, so that the one that is kept is the last.
        *slot = Slot::Hole;
        let part = match outcome {
            Outcome::Part(part) => Some(part),
            Outcome::Object => None,
            Outcome::Failed(_) | Outcome::Stopped => {
                if let Outcome::Failed(error) = outcome {
                    self.failure.get_or_insert(error);
                }
                *slot = Slot::Open(OpenPart { filling, covered: covered(len), reopened: true });
                return;
            }
        };
        let size = self.sizes.range(index_of(self.slots.len() - 1)).end;
        self.slots[index as usize] = Slot::Sent { part, len, bytes: share.keep(filling, index == 0, size) };
    }

    /// Whether any part is on its way.
    pub fn is_busy(&self) -> bool {
        self.leaving() > 0
    }

    /// How many parts are on their way.
    pub fn leaving(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Busy { .. })).count()
    }

    fn is_hole(&self, index: u32) -> bool {
        matches!(self.slots.get(index as usize), None | Some(Slot::Hole))
    }

    /// Fills what is not covered of the first `len` bytes of a part with zeros. Otherwise: how large a buffer that takes.
    pub fn seal(&mut self, index: u32, len: usize, share: &Arc<Share>, room: &mut Option<Buffer>) -> Result<(), usize> {
        if matches!(self.slots.get(index as usize), Some(Slot::Sent { part: Some(_), .. } | Slot::Busy { .. })) {
            return Ok(());
        }
        if let Some(Slot::Open(open)) = self.slots.get(index as usize)
            && first_run(&open.covered) >= len
        {
            return Ok(());
        }
        match self.open(index, &(0..len), false, share, room) {
            Step::Done => {}
            Step::Room(size) => return Err(size),
            Step::Wait | Step::Stage => {
                unreachable!("open parts and holes only need memory, and all others were left out above, under the same lock")
            }
        }
        let Slot::Open(open) = &mut self.slots[index as usize] else { unreachable!("it was just opened, under the same lock") };
        let buffer = Arc::get_mut(&mut open.filling).and_then(Filling::buffer).expect("it was just opened for itself alone");
        for gap in open.covered.gaps(&(0..len)) {
            buffer.bytes_mut()[gap].fill(0);
        }
        open.covered.insert(0..len);
        Ok(())
    }

    /// How many parts a file of `size` bytes has, and the length of each.
    pub fn lengths(&self, size: u64) -> Vec<(u32, usize)> {
        let count = self.sizes.count(size).expect("no size is taken that has no parts");
        (0..count).map(|index| (index, (self.sizes.range(index).end.min(size) - self.sizes.range(index).start) as usize)).collect()
    }

    /// The parts that the store has of the upload, in order.
    pub fn sent_parts(&self) -> Vec<Part> {
        self.slots
            .iter()
            .filter_map(|slot| if let Slot::Sent { part: Some(part), .. } = slot { Some(part.clone()) } else { None })
            .collect()
    }

    /// How its parts are cut.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// What only memory has. Nothing may be on its way.
    pub fn open_parts(&self) -> Vec<Held> {
        let open = self.slots.iter().enumerate().filter_map(|(at, slot)| match slot {
            Slot::Open(open) => {
                let offset = self.sizes.range(index_of(at)).start;
                Some(Held { offset, covered: open.covered.clone(), filling: Arc::clone(&open.filling) })
            }
            _ => None,
        });
        open.collect()
    }

    /// A stream that another daemon began, of which `upload` has `parts`; none when they cannot be parts of one that is cut so.
    pub fn restore(sizes: Sizes, upload: Option<Arc<Uploading>>, parts: Vec<Part>) -> Option<Self> {
        let mut stream = Self { upload, ..Self::new(sizes) };
        for part in parts {
            let index = part.number.checked_sub(1).filter(|&index| stream.upload.is_some() && sizes.holds(index))?;
            let range = sizes.range(index);
            let len = usize::try_from(part.size).ok().filter(|_| (1..=range.end - range.start).contains(&part.size))?;
            while stream.slots.len() <= index as usize {
                stream.slots.push(Slot::Hole);
            }
            let slot = &mut stream.slots[index as usize];
            if !matches!(slot, Slot::Hole) {
                return None;
            }
            *slot = Slot::Sent { part: Some(part), len, bytes: Weak::new() };
        }
        Some(stream)
    }

    /// Takes the bytes of `run`, which `read` brings, as they were written to the daemon before.
    ///
    /// # Errors
    /// Those of `read`; there is no memory for them; they are in a part that was sent.
    pub fn restore_bytes(
        &mut self,
        run: &Range<u64>,
        share: &Arc<Share>,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for (index, inside) in self.touched(run) {
            match self.open(index, &inside, false, share, &mut None) {
                Step::Done => {}
                Step::Room(_) => return Err(io::ErrorKind::OutOfMemory.into()),
                Step::Wait | Step::Stage => return Err(io::ErrorKind::InvalidData.into()),
            }
            let offset = self.sizes.range(index).start + inside.start as u64;
            let mut result = Ok(());
            self.fill(index, inside.clone(), |filling| {
                result = read(offset, &mut filling.buffer().expect("it was opened for this").bytes_mut()[inside]);
            });
            result?;
        }
        Ok(())
    }

    /// Takes all parts that were sent back, to be sent anew; false, and nothing is changed, when bytes are gone.
    pub fn reopen(&mut self, share: &Share) -> bool {
        // All in hand before the first one is taken, since others may push them out.
        let all: Option<Vec<(usize, usize, Arc<Filling>)>> = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(at, slot)| match slot {
                Slot::Sent { len, bytes, .. } => Some(bytes.upgrade().map(|filling| (at, *len, filling))),
                _ => None,
            })
            .collect();
        let Some(all) = all else { return false };
        for (at, len, filling) in all {
            share.forget(&Arc::downgrade(&filling));
            self.slots[at] = Slot::Open(OpenPart { filling, covered: covered(len), reopened: true });
        }
        self.front = 0;
        true
    }

    /// Goes on in memory after a commit. Of larger files it is cheaper to have the store copy what stays.
    fn reopen_saved(&mut self, share: &Share) -> bool {
        let reopened = self.slots.len() <= 1 && self.reopen(share);
        self.saved &= !reopened;
        reopened
    }

    /// The store has made an object of it.
    pub fn on_saved(&mut self) {
        for slot in &mut self.slots {
            if let Slot::Sent { part, .. } = slot {
                *part = None;
            }
        }
        (self.saved, self.upload) = (true, None);
        self.whole.clear();
    }

    /// Cuts the file to `size`; false when that takes bytes that are not here. Nothing may be on its way.
    pub fn truncate(&mut self, size: u64, share: &Share) -> bool {
        if self.saved && !self.reopen_saved(share) {
            return false;
        }
        let count = self.sizes.count(size).map_or(usize::MAX, |count| count as usize);
        if let Some(at) = count.checked_sub(1).filter(|&at| at < self.slots.len()) {
            let keep = (size - self.sizes.range(index_of(at)).start) as usize;
            if let Slot::Sent { len, bytes, .. } = &self.slots[at]
                && keep < *len
            {
                let Some(filling) = share.take(bytes) else { return false };
                self.slots[at] = Slot::Open(OpenPart { filling, covered: covered(*len), reopened: true });
            }
            if let Slot::Open(open) = &mut self.slots[at] {
                open.covered.remove(keep..usize::MAX);
            }
        }
        for slot in self.slots.drain(count.min(self.slots.len())..) {
            if let Slot::Sent { bytes, .. } = slot {
                share.forget(&bytes);
            }
        }
        self.front = self.front.min(self.slots.len().saturating_sub(1));
        let slots = &self.slots;
        let sizes = self.sizes;
        self.whole.retain(|&index| {
            let range = sizes.range(index);
            matches!(slots.get(index as usize), Some(Slot::Open(open)) if is_whole(&open.covered, (range.end - range.start) as usize))
        });
        true
    }

    /// Whether a file of this size still is a stream when it grows by a hole. Programs say how long a file will be before they write it
    /// front to back (posix_fallocate); what is written far behind the end of what is there ends the stream, and what is never written is zeros.
    pub fn may_grow_to(&mut self, size: u64, share: &Share) -> bool {
        (!self.saved || self.reopen_saved(share)) && self.sizes.count(size).is_some()
    }

    /// The bytes of `range`, which is inside the file; none when some of them are not here.
    pub fn read(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        for (index, inside) in self.touched(range) {
            let to = (self.sizes.range(index).start + inside.start as u64 - range.start) as usize;
            let into = &mut bytes[to..to + inside.len()];
            match self.slots.get(index as usize) {
                None | Some(Slot::Hole) => {}
                Some(Slot::Open(open)) => copy_covered(&open.covered, &open.filling, inside, into),
                Some(Slot::Busy { filling, len }) => copy_covered(&covered(*len), filling, inside, into),
                Some(Slot::Sent { len, bytes, .. }) => copy_covered(&covered(*len), &*bytes.upgrade()?, inside, into),
            }
        }
        Some(bytes)
    }

    /// What only memory has; none when parts of the upload are with the store alone.
    pub fn held(&self) -> Option<Vec<Held>> {
        let mut all = Vec::new();
        for (at, slot) in self.slots.iter().enumerate() {
            let offset = self.sizes.range(index_of(at)).start;
            match slot {
                Slot::Hole | Slot::Sent { part: None, .. } => {}
                Slot::Open(open) => all.push(Held { offset, covered: open.covered.clone(), filling: Arc::clone(&open.filling) }),
                Slot::Busy { filling, len } => all.push(Held { offset, covered: covered(*len), filling: Arc::clone(filling) }),
                Slot::Sent { len, bytes, .. } => all.push(Held { offset, covered: covered(*len), filling: bytes.upgrade()? }),
            }
        }
        Some(all)
    }

    /// Nothing of it is wanted any more.
    pub fn clear(&mut self, share: &Share) {
        for slot in self.slots.drain(..) {
            if let Slot::Sent { bytes, .. } = slot {
                share.forget(&bytes);
            }
        }
        self.whole.clear();
        self.front = 0;
    }
}

fn fitting(room: &mut Option<Buffer>, size: usize) -> Option<Buffer> {
    room.take_if(|buffer| buffer.len() >= size)
}

fn covered(len: usize) -> RangeSet<usize> {
    let mut covered = RangeSet::new();
    if len > 0 {
        covered.insert(0..len);
    }
    covered
}

fn is_whole(covered: &RangeSet<usize>, len: usize) -> bool {
    first_run(covered) >= len
}

fn first_run(covered: &RangeSet<usize>) -> usize {
    covered.first().filter(|run| run.start == 0).map_or(0, |run| run.end)
}

fn index_of(at: usize) -> u32 {
    u32::try_from(at).expect("there are at most so many parts")
}

/// Copies what is there of `inside` to the same places of `into`.
fn copy_covered(covered: &RangeSet<usize>, filling: &Filling, inside: Range<usize>, into: &mut [u8]) {
    for run in covered.overlapping(&inside) {
        for (at, bytes) in filling.slices(run.start.max(inside.start)..run.end.min(inside.end)) {
            into[at - inside.start..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}
