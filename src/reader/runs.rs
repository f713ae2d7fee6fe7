//! How far readers go from where they begin before they jump. Pure: reads come as arguments.
//!
//! Who takes samples, tensors or row groups out of a large file reads a few megabytes in order, and then elsewhere. The kernel cuts
//! such a read into several, so it looks like the beginning of a sequential one; a window that opened for it would fetch many times
//! what is read. What such runs came to lately says how far the next one may be expected to go: so much is fetched at once, and until
//! it goes further, no more.

use std::collections::VecDeque;
use std::ops::Range;

use super::jumps::ReaderId;
use super::streams::StreamId;

/// Runs that ended before anything is believed.
const BELIEVED: usize = 3;

/// Before anything is known of others, a run of more bytes is taken for one to the end.
const UNKNOWN: u64 = 16 << 20;

/// The latest runs that count.
const COUNTED: usize = 4;

/// A run that goes further than all before it may become so many times what it is, ...
const FURTHER: u64 = 2;

/// ... and one that has become so many times what they were is none of them. Before anything is known it may become that at once.
const UNLIKE: u64 = 4;

/// Readers remembered per object.
const READERS: usize = 64;

/// Streams remembered as those that a reader was in, and as those that one came back to: more than one interleaves.
const STREAMS: usize = 16;

/// Reads so near to a run belong to it: the kernel sends what it cut in any order.
const NEAR: u64 = 2 << 20;

/// What was read around one place.
#[derive(Clone, Debug)]
struct Run {
    stream: StreamId,
    range: Range<u64>,
}

#[derive(Debug)]
struct Reader {
    id: ReaderId,
    now: Run,
    /// The streams that it was in before, the latest last.
    before: VecDeque<StreamId>,
}

/// The runs of the readers of one object.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Those that came last are last.
    readers: VecDeque<Reader>,
    /// The latest that ended, the newest last.
    ended: VecDeque<Run>,
    /// Streams that somebody left and came back to: one thread may read several in turns. They are no runs.
    resumed: VecDeque<StreamId>,
}

impl Runs {
    /// A read by `id`, with which its stream has come to `range`. The run that the reader was in has ended if this is another one, until
    /// somebody goes on with it.
    pub fn on_read(&mut self, id: ReaderId, stream: StreamId, range: &Range<u64>) {
        let now = Run { stream, range: range.clone() };
        self.ended.retain(|run| !run.is_near(range, 0));
        let Some(reader) = self.readers.iter_mut().find(|reader| reader.id == id) else {
            return push(&mut self.readers, Reader { id, now, before: VecDeque::new() }, READERS);
        };
        if reader.now.is_near(range, NEAR) {
            reader.now.stream = stream;
            return reader.now.take_in(range);
        }
        let left = std::mem::replace(&mut reader.now, now);
        let comes_back = reader.before.contains(&stream);
        push(&mut reader.before, left.stream, STREAMS);
        if comes_back && !self.resumed.contains(&stream) {
            push(&mut self.resumed, stream, STREAMS);
        }
        self.end(left);
    }

    /// A handle was closed: the runs of its readers have ended.
    pub fn on_close(&mut self, handle: u64) {
        let left: Vec<Run> = self.readers.iter().filter(|reader| reader.id.handle == handle).map(|reader| reader.now.clone()).collect();
        self.readers.retain(|reader| reader.id.handle != handle);
        left.into_iter().for_each(|run| self.end(run));
    }

    /// The bytes that every run has come to lately.
    pub fn sure(&self) -> Option<u64> {
        self.believed()?.min()
    }

    /// The bytes that the run of `stream`, which has come to `bytes`, may be expected to come to; none when it may well go on to the end.
    pub fn expected(&self, stream: StreamId, bytes: u64) -> Option<u64> {
        if self.resumed.contains(&stream) {
            return None;
        }
        let longest = self.believed().and_then(Iterator::max);
        if let Some(longest) = longest.filter(|&longest| bytes <= longest) {
            return Some(longest);
        }
        let (most, further) = longest.map_or((UNKNOWN, UNLIKE), |longest| (longest.saturating_mul(UNLIKE), FURTHER));
        (bytes <= most).then(|| bytes.saturating_mul(further))
    }

    fn believed(&self) -> Option<impl Iterator<Item = u64>> {
        (self.ended.len() >= BELIEVED).then(|| self.ended.iter().map(|run| run.range.end - run.range.start))
    }

    fn end(&mut self, run: Run) {
        // Several threads may read the same one.
        if self.resumed.contains(&run.stream) || self.readers.iter().any(|reader| reader.now.is_near(&run.range, 0)) {
            return;
        }
        match self.ended.iter_mut().find(|ended| ended.is_near(&run.range, 0)) {
            Some(ended) => ended.take_in(&run.range),
            None => push(&mut self.ended, run, COUNTED),
        }
    }
}

impl Run {
    fn is_near(&self, other: &Range<u64>, distance: u64) -> bool {
        self.range.start <= other.end.saturating_add(distance) && other.start <= self.range.end.saturating_add(distance)
    }

    fn take_in(&mut self, other: &Range<u64>) {
        self.range = self.range.start.min(other.start)..self.range.end.max(other.end);
    }
}

/// Adds `value`, and drops the oldest where there would be more than `most`.
fn push<T>(values: &mut VecDeque<T>, value: T, most: usize) {
    if values.len() >= most {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ReaderId = ReaderId { handle: 1, thread: 1 };
    const OTHER: ReaderId = ReaderId { handle: 2, thread: 2 };
    const MIB: u64 = 1 << 20;

    /// The first `mib` of a stream; they begin far from each other.
    fn of(stream: StreamId, mib: u64) -> Range<u64> {
        stream << 30..(stream << 30) + mib * MIB
    }

    /// A run in reads of 1 MiB.
    fn run(runs: &mut Runs, id: ReaderId, stream: StreamId, mib: u64) {
        (1..=mib).for_each(|read| runs.on_read(id, stream, &of(stream, read)));
    }

    #[test]
    fn three_runs_are_believed_and_the_latest_four_count() {
        let mut runs = Runs::default();
        for (stream, mib) in [(1, 9), (2, 4), (3, 5)] {
            run(&mut runs, ME, stream, mib);
            assert_eq!((runs.sure(), runs.expected(99, MIB), runs.expected(99, 17 * MIB)), (None, Some(4 * MIB), None), "{stream}");
        }
        run(&mut runs, ME, 4, 4);
        assert_eq!((runs.sure(), runs.expected(99, MIB)), (Some(4 * MIB), Some(9 * MIB)));
        run(&mut runs, ME, 5, 3);
        run(&mut runs, ME, 6, 1);
        assert_eq!((runs.sure(), runs.expected(99, MIB)), (Some(3 * MIB), Some(5 * MIB)));
    }

    #[test]
    fn who_goes_further_than_the_others_is_held_back_less_and_less() {
        let mut runs = Runs::default();
        (1..=4).for_each(|stream| run(&mut runs, ME, stream, 2));
        assert_eq!(runs.expected(99, MIB / 2), Some(2 * MIB));
        assert_eq!(runs.expected(99, 2 * MIB), Some(2 * MIB));
        assert_eq!(runs.expected(99, 3 * MIB), Some(6 * MIB));
        assert_eq!(runs.expected(99, 8 * MIB), Some(16 * MIB));
        assert_eq!(runs.expected(99, 9 * MIB), None);
    }

    #[test]
    fn one_thread_that_reads_in_several_places_in_turns_makes_no_runs() {
        let mut runs = Runs::default();
        for read in 1..=10 {
            for stream in 1..=4 {
                runs.on_read(ME, stream, &of(stream, read));
                // In the first round they may be runs.
                assert_eq!(runs.expected(stream, read * MIB).is_some(), read == 1, "{read} {stream}");
            }
        }
        // Nor do they hide those of others.
        (5..=8).for_each(|stream| run(&mut runs, OTHER, stream, 2));
        runs.on_read(ME, 1, &of(1, 11));
        assert_eq!(runs.sure(), Some(2 * MIB));
        assert_eq!((runs.expected(1, MIB), runs.expected(8, MIB)), (None, Some(2 * MIB)));
    }

    #[test]
    fn pieces_that_come_in_any_order_are_one_run() {
        let mut runs = Runs::default();
        for place in 1..=5 {
            let piece = |n: u64| of(place, 0).start + n * MIB..of(place, 0).start + (n + 1) * MIB;
            // Until they touch, each is a stream of its own.
            runs.on_read(ME, 10 * place, &piece(0));
            runs.on_read(ME, 10 * place + 1, &piece(2));
            runs.on_read(ME, 10 * place, &of(place, 3));
            runs.on_read(ME, 10 * place, &of(place, 4));
            assert_eq!(runs.expected(10 * place, MIB), Some(4 * MIB));
        }
        assert_eq!(runs.sure(), Some(4 * MIB));
    }

    #[test]
    fn a_run_that_several_threads_read_is_one_and_ends_with_the_last_of_them() {
        let mut runs = Runs::default();
        for stream in 1..=4 {
            for (id, mib) in [(ME, 1), (OTHER, 2), (ME, 3), (OTHER, 4)] {
                assert_eq!(runs.sure().is_some(), stream == 4 && mib > 2, "{stream} {mib}");
                runs.on_read(id, stream, &of(stream, mib));
            }
        }
        assert_eq!(runs.sure(), Some(4 * MIB));
    }

    #[test]
    fn closing_a_handle_ends_its_runs() {
        let mut runs = Runs::default();
        for handle in 1..=3 {
            run(&mut runs, ReaderId { handle, thread: 7 }, handle, handle);
            assert_eq!(runs.sure(), None);
            runs.on_close(handle);
            runs.on_close(handle);
        }
        assert_eq!((runs.sure(), runs.expected(99, 0)), (Some(MIB), Some(3 * MIB)));
    }
}
