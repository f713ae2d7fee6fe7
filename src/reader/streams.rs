//! Who is reading: sorts the reads of one object into streams. Pure: no lock, no clock, no I/O.
//!
//! A read belongs to the stream whose tail is nearest, whichever descriptor it came through: four threads on one
//! handle, the processes of a data loader and kernel read-ahead all look like interleaved sequential readers.
//! Invariant: a stream's `tail` is the end of the bytes it asked for without a hole; reads that arrive ahead of it
//! (the kernel sends read-ahead in any order) wait in `ahead` until the hole before them is filled.

use std::ops::Range;

/// Reads may arrive this far from a stream's tail and still belong to it: two requests of 1 MiB.
const REORDER_BYTES: u64 = 2 << 20;

/// Reads ahead of the tail before the hole is taken for what it is: a jump, or a stride.
const AHEAD_READS: usize = 8;

/// Streams remembered per open object, at the least.
pub(super) const TABLE_SIZE: usize = 16;

/// Names a stream as long as it is in the table.
pub(super) type StreamId = u64;

/// One reader of an object.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub id: StreamId,
    /// Start of its first read.
    origin: u64,
    /// End of the bytes that were asked for without a hole.
    tail: u64,
    sequential: bool,
    ahead: Vec<Range<u64>>,
    last_use: u64,
}

/// What a read turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// It continues (or, at offset 0, begins) a sequential stream, whose tail moved by `moved` bytes.
    Sequential { stream: StreamId, moved: u64 },
    /// It stands alone.
    Isolated,
}

/// What a read did to the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Observed {
    pub pattern: Pattern,
    /// The stream or lone read that it belongs to now, and what that has read without a hole.
    pub run: (StreamId, Range<u64>),
    /// A sequential stream that ended: it was pushed out of the table or jumped away.
    pub ended: Option<StreamId>,
}

/// The streams of one open object, least recently used first out.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    streams: Vec<Stream>,
    uses: u64,
}

impl StreamTable {
    /// Files a read of the bytes `range` (not empty). A read that lags further behind a tail than the
    /// `backward_bytes` that are kept there is another reader's. `capacity` bounds the table.
    pub fn on_read(&mut self, range: &Range<u64>, backward_bytes: u64, capacity: usize) -> Observed {
        self.uses += 1;
        let (id, pattern, ended) = match self.nearest(range, backward_bytes) {
            Some(index) => self.continued(index, range),
            None => self.begin(range, capacity),
        };
        let stream = self.streams.iter().find(|stream| stream.id == id);
        let run = stream.map_or(range.clone(), |stream| stream.origin..stream.tail);
        Observed { pattern, run: (id, run), ended }
    }

    fn begin(&mut self, range: &Range<u64>, capacity: usize) -> (StreamId, Pattern, Option<StreamId>) {
        let ended = (self.streams.len() >= capacity.max(1)).then(|| self.evict()).flatten();
        let id = self.uses;
        let sequential = range.start == 0;
        self.streams.push(Stream { id, origin: range.start, tail: range.end, sequential, ahead: Vec::new(), last_use: self.uses });
        let pattern =
            if sequential { Pattern::Sequential { stream: id, moved: range.end + self.join(id, range.end) } } else { Pattern::Isolated };
        (id, pattern, ended)
    }

    /// Makes reads that came before the stream reached them a part of it: the kernel cuts what a program reads at once, and several threads take the
    /// pieces. Returns by how much this moves its `tail`.
    fn join(&mut self, id: StreamId, tail: u64) -> u64 {
        let mut end = tail;
        while let Some(index) = self.streams.iter().position(|other| !other.sequential && other.origin == end) {
            end = self.streams.swap_remove(index).tail;
        }
        if end > tail
            && let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id)
        {
            stream.tail = end;
        }
        end - tail
    }

    /// Where the stream `id` will come to bytes that another one has read: what lies there was fetched once and may
    /// be gone, so it is not fetched ahead. A stream that reads such bytes already (a second pass) has no such border.
    pub fn border(&self, id: StreamId) -> Option<u64> {
        let stream = self.streams.iter().find(|stream| stream.id == id)?;
        let others = || self.sequential().filter(|other| other.id != id);
        if others().any(|other| other.origin < stream.tail && stream.tail <= other.tail) {
            return None;
        }
        others().map(|other| other.origin).filter(|&origin| origin >= stream.tail).min()
    }

    fn sequential(&self) -> impl Iterator<Item = &Stream> {
        self.streams.iter().filter(|stream| stream.sequential)
    }

    /// Forgets some streams.
    pub fn remove(&mut self, ids: &[StreamId]) {
        self.streams.retain(|stream| !ids.contains(&stream.id));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.streams.clear();
    }

    fn nearest(&self, range: &Range<u64>, backward_bytes: u64) -> Option<usize> {
        let reaches = |stream: &Stream| {
            if stream.sequential {
                let first = stream.tail.saturating_sub(REORDER_BYTES.min(backward_bytes));
                first <= range.start && range.start <= stream.tail + REORDER_BYTES
            } else {
                stream.tail == range.start
            }
        };
        let distance = |stream: &Stream| stream.tail.abs_diff(range.start);
        let candidates = self.streams.iter().enumerate().filter(|(_, stream)| reaches(stream));
        candidates.min_by_key(|(_, stream)| (distance(stream), stream.id)).map(|(index, _)| index)
    }

    fn continued(&mut self, index: usize, range: &Range<u64>) -> (StreamId, Pattern, Option<StreamId>) {
        let stream = &mut self.streams[index];
        stream.last_use = self.uses;
        let id = stream.id;
        if !stream.sequential {
            // The second of two adjacent reads: a reader that started in the middle.
            stream.sequential = true;
            let moved = range.end - stream.tail;
            stream.tail = range.end;
            let moved = moved + self.join(id, range.end);
            return (id, Pattern::Sequential { stream: id, moved }, None);
        }
        if range.start > stream.tail {
            stream.ahead.push(range.clone());
            if stream.ahead.len() < AHEAD_READS {
                return (id, Pattern::Sequential { stream: id, moved: 0 }, None);
            }
            // Nobody fills the hole: a stride. What follows is fetched as isolated reads.
            stream.ahead.clear();
            stream.sequential = false;
            (stream.origin, stream.tail) = (range.start, range.end);
            return (id, Pattern::Isolated, Some(id));
        }
        let before = stream.tail;
        if range.end > stream.tail {
            stream.tail = range.end;
            absorb(&mut stream.ahead, &mut stream.tail);
        }
        let tail = stream.tail;
        let joined = if tail > before { self.join(id, tail) } else { 0 };
        let moved = tail - before + joined;
        (id, Pattern::Sequential { stream: id, moved }, None)
    }

    /// Random reads leave a trail of isolated entries; as long as these fill half of the table they go first, so
    /// that they do not push out a sequential reader beside them.
    fn evict(&mut self) -> Option<StreamId> {
        let sequential = self.sequential().count();
        let isolated_only = self.streams.len() > 2 * sequential;
        let candidates = self.streams.iter().enumerate().filter(|(_, stream)| !(isolated_only && stream.sequential));
        let (index, _) = candidates.min_by_key(|(_, stream)| stream.last_use)?;
        let stream = self.streams.swap_remove(index);
        stream.sequential.then_some(stream.id)
    }
}

/// Moves the tail over the waiting reads that now touch it.
fn absorb(ahead: &mut Vec<Range<u64>>, tail: &mut u64) {
    while let Some(index) = ahead.iter().position(|range| range.start <= *tail) {
        *tail = (*tail).max(ahead.swap_remove(index).end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const BACKWARD: u64 = 4 * MIB;

    fn read(table: &mut StreamTable, start: u64, len: u64) -> Pattern {
        table.on_read(&(start..start + len), BACKWARD, TABLE_SIZE).pattern
    }

    fn stream_of(pattern: Pattern) -> StreamId {
        match pattern {
            Pattern::Sequential { stream, .. } => stream,
            Pattern::Isolated => panic!("isolated"),
        }
    }

    #[test]
    fn a_reader_from_the_start_is_sequential_at_once() {
        let mut table = StreamTable::default();
        let first = stream_of(read(&mut table, 0, MIB));
        assert_eq!(read(&mut table, MIB, MIB), Pattern::Sequential { stream: first, moved: MIB });
        assert_eq!(table.sequential().count(), 1);
    }

    #[test]
    fn a_reader_from_the_middle_is_sequential_with_its_second_read() {
        let mut table = StreamTable::default();
        assert_eq!(read(&mut table, 100 * MIB, 4 * KIB), Pattern::Isolated);
        assert!(matches!(read(&mut table, 100 * MIB + 4 * KIB, 4 * KIB), Pattern::Sequential { moved: 4096, .. }));
    }

    #[test]
    fn interleaved_readers_are_told_apart() {
        let mut table = StreamTable::default();
        let starts = [0, 256 * MIB, 512 * MIB, 768 * MIB];
        for step in 0..10 {
            for start in starts {
                let pattern = read(&mut table, start + step * MIB, MIB);
                assert_eq!(matches!(pattern, Pattern::Isolated), step == 0 && start != 0, "{start} {step}");
            }
        }
        assert_eq!(table.sequential().count(), 4);
    }

    #[test]
    fn read_ahead_that_arrives_out_of_order_is_one_stream() {
        let mut table = StreamTable::default();
        let id = stream_of(read(&mut table, 0, MIB));
        assert_eq!(read(&mut table, 2 * MIB, MIB), Pattern::Sequential { stream: id, moved: 0 });
        assert_eq!(read(&mut table, MIB, MIB), Pattern::Sequential { stream: id, moved: 2 * MIB });
        assert_eq!(read(&mut table, MIB, MIB), Pattern::Sequential { stream: id, moved: 0 });
    }

    #[test]
    fn the_end_of_a_read_that_was_cut_may_come_before_its_beginning() {
        let mut table = StreamTable::default();
        let cut = MIB - 4 * KIB;
        assert_eq!(read(&mut table, cut, 4 * KIB), Pattern::Isolated);
        let id = stream_of(read(&mut table, 0, cut));
        for step in 1..4 {
            assert_eq!(read(&mut table, step * MIB, cut), Pattern::Sequential { stream: id, moved: cut });
            assert_eq!(read(&mut table, step * MIB + cut, 4 * KIB), Pattern::Sequential { stream: id, moved: 4 * KIB });
        }
        assert_eq!(table.streams.len(), 1);
        // The same for one that begins in the middle.
        assert_eq!(read(&mut table, 101 * MIB, MIB), Pattern::Isolated);
        assert_eq!(read(&mut table, 99 * MIB, MIB), Pattern::Isolated);
        assert!(matches!(read(&mut table, 100 * MIB, MIB), Pattern::Sequential { moved, .. } if moved == 2 * MIB));
        assert_eq!(table.streams.len(), 2);
    }

    #[test]
    fn a_reader_that_lags_behind_is_another_one() {
        let mut table = StreamTable::default();
        for step in 0..8 {
            read(&mut table, step * MIB, MIB);
        }
        assert!(matches!(read(&mut table, 6 * MIB, MIB), Pattern::Sequential { moved: 0, .. }));
        assert_eq!(read(&mut table, 3 * MIB, MIB), Pattern::Isolated);
        assert!(matches!(read(&mut table, 4 * MIB, MIB), Pattern::Sequential { moved: MIB, .. }));
        assert_eq!(table.sequential().count(), 2);
    }

    #[test]
    fn a_stream_does_not_run_into_what_another_has_read_unless_it_goes_there() {
        let mut table = StreamTable::default();
        let first = stream_of(read(&mut table, 0, MIB));
        read(&mut table, 2 * MIB, MIB);
        let second = {
            read(&mut table, 100 * MIB, MIB);
            stream_of(read(&mut table, 101 * MIB, MIB))
        };
        assert_eq!(table.border(first), Some(100 * MIB));
        assert_eq!(table.border(second), None);
        for step in 1..101 {
            read(&mut table, step * MIB, MIB);
        }
        assert_eq!(table.border(first), None);
    }

    #[test]
    fn random_reads_stay_isolated() {
        let mut table = StreamTable::default();
        for block in [900, 3, 555, 44, 777, 120, 310, 650] {
            assert_eq!(read(&mut table, block * MIB, 4 * KIB), Pattern::Isolated);
        }
    }

    #[test]
    fn a_stride_ends_the_stream_it_looked_like() {
        let mut table = StreamTable::default();
        let id = stream_of(read(&mut table, 0, 64 * KIB));
        let mut ended = None;
        for step in 1..=AHEAD_READS as u64 {
            let start = step * 256 * KIB;
            ended = table.on_read(&(start..start + 64 * KIB), BACKWARD, TABLE_SIZE).ended;
        }
        assert_eq!(ended, Some(id));
        assert_eq!(table.sequential().count(), 0);
    }

    #[test]
    fn the_least_recently_used_stream_makes_room() {
        let mut table = StreamTable::default();
        let oldest = stream_of(read(&mut table, 0, MIB));
        for reader in 1..TABLE_SIZE as u64 {
            read(&mut table, reader * 64 * MIB, MIB);
            read(&mut table, reader * 64 * MIB + MIB, MIB);
        }
        let observed = table.on_read(&(5000 * MIB..5001 * MIB), BACKWARD, TABLE_SIZE);
        assert_eq!((observed.pattern, observed.ended), (Pattern::Isolated, Some(oldest)));
    }

    #[test]
    fn random_reads_do_not_push_out_a_sequential_reader() {
        let mut table = StreamTable::default();
        let id = stream_of(read(&mut table, 0, MIB));
        for block in 0..100 {
            read(&mut table, (10 + block * 7) * MIB, 4 * KIB);
        }
        assert_eq!(read(&mut table, MIB, MIB), Pattern::Sequential { stream: id, moved: MIB });
    }
}
