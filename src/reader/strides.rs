//! What a reader will want next that does not read front to back. Pure: reads come as arguments, guesses as ranges.
//!
//! Two habits are known. A stride: reads a constant distance apart, in either direction (columns of a table, records of a
//! tensor, a file read from its end). And a walk: chunks one after another, each read densely in whatever order
//! (backward inside the chunk, shuffled batches). A guess grows with what was read that way, so what is fetched in vain when the
//! habit ends is never more than that.

use std::ops::Range;

use super::jumps::ReaderId;

/// Equal distances before a stride is believed.
const BELIEVED: u32 = 2;

/// Reads ahead of a stride at most: at 20 ms to the first byte these are 3,000 reads a second.
const MOST_READS: u64 = 64;

/// Chunks ahead of a walk at most. More would bring more, and be more in vain.
const MOST_CHUNKS: u64 = 6;

/// Readers remembered per object.
const READERS: usize = 64;

/// The habits of the readers of one object.
#[derive(Debug, Default)]
pub(super) struct Strides {
    readers: Vec<Habit>,
    uses: u64,
}

#[derive(Debug)]
struct Habit {
    id: ReaderId,
    /// Start of the latest read, and how far it lay from the one before.
    at: u64,
    distance: i64,
    repeats: u32,
    /// The chunk that is being read, bytes read in it, and chunks that were walked through before it.
    chunk: u64,
    read: u64,
    walked: u64,
    forward: bool,
    last_use: u64,
}

/// What may be wanted next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Guess {
    /// Reads of a stride, the next one first.
    pub reads: Vec<Range<u64>>,
    /// Whole chunks: the one that is being read and those after it.
    pub chunks: Option<Range<u64>>,
    /// The read lies before the one that was made before it.
    pub backward: bool,
}

impl Strides {
    /// An isolated read of the bytes `read` by `id`, in an object of `size` bytes with chunks of `chunk` bytes.
    pub fn on_read(&mut self, id: ReaderId, read: &Range<u64>, chunk: u64, size: u64) -> Guess {
        self.uses += 1;
        let uses = self.uses;
        let habit = self.habit(id, read, chunk);
        habit.last_use = uses;
        let backward = read.start < habit.at;
        Guess { reads: habit.stride(read, size), chunks: habit.walk(read, chunk, size), backward }
    }

    /// A handle was closed: its readers are gone.
    pub fn on_close(&mut self, handle: u64) {
        self.readers.retain(|habit| habit.id.handle != handle);
    }

    fn habit(&mut self, id: ReaderId, read: &Range<u64>, chunk: u64) -> &mut Habit {
        if let Some(index) = self.readers.iter().position(|habit| habit.id == id) {
            return &mut self.readers[index];
        }
        if self.readers.len() >= READERS {
            let oldest = self.readers.iter().enumerate().min_by_key(|(_, habit)| habit.last_use);
            let index = oldest.map(|(index, _)| index).expect("the table is full, hence not empty");
            self.readers.swap_remove(index);
        }
        let (at, chunk) = (read.start, read.start / chunk);
        self.readers.push(Habit { id, at, distance: 0, repeats: 0, chunk, read: 0, walked: 0, forward: true, last_use: 0 });
        self.readers.last_mut().expect("it was just pushed")
    }
}

impl Habit {
    fn stride(&mut self, read: &Range<u64>, size: u64) -> Vec<Range<u64>> {
        let distance = read.start.wrapping_sub(self.at).cast_signed();
        self.repeats = if distance == self.distance { self.repeats + 1 } else { 0 };
        (self.distance, self.at) = (distance, read.start);
        let len = read.end - read.start;
        if self.repeats < BELIEVED || distance.unsigned_abs() < len {
            return Vec::new();
        }
        let ahead = (2 * u64::from(self.repeats)).min(MOST_READS);
        let place = |n: u64| read.start.checked_add_signed(distance.checked_mul(n.cast_signed())?);
        let places = (1..=ahead).map_while(|n| place(n).filter(|&start| start < size));
        places.map(|start| start..(start + len).min(size)).collect()
    }

    fn walk(&mut self, read: &Range<u64>, chunk: u64, size: u64) -> Option<Range<u64>> {
        let index = read.start / chunk;
        if index != self.chunk {
            let forward = index > self.chunk;
            let was_dense = self.read >= chunk / 2;
            let goes_on = was_dense && index.abs_diff(self.chunk) == 1 && (forward == self.forward || self.walked == 0);
            self.walked = if goes_on { self.walked + 1 } else { 0 };
            (self.chunk, self.read, self.forward) = (index, 0, forward);
        }
        self.read += read.end - read.start;
        if self.walked == 0 {
            return None;
        }
        let ahead = (2 * self.walked).min(MOST_CHUNKS);
        let chunks = if self.forward { index..index + 1 + ahead } else { index.saturating_sub(ahead)..index + 1 };
        Some(chunks.start * chunk..(chunks.end * chunk).min(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ReaderId = ReaderId { handle: 1, thread: 1 };
    const OTHER: ReaderId = ReaderId { handle: 1, thread: 2 };
    const CHUNK: u64 = 4 << 20;
    const LEN: u64 = 128 << 10;
    const SIZE: u64 = 1 << 30;

    fn read(strides: &mut Strides, id: ReaderId, at: u64) -> Guess {
        strides.on_read(id, &(at..at + LEN), CHUNK, SIZE)
    }

    #[test]
    fn a_stride_is_guessed_further_the_longer_it_lasts() {
        for distance in [1 << 20, -(1 << 20), -(LEN as i64)] {
            let mut strides = Strides::default();
            let place = |n: i64| (SIZE / 2).checked_add_signed(n * distance).unwrap();
            for n in 0..3 {
                assert_eq!(read(&mut strides, ME, place(n)).reads, []);
            }
            for n in 3..100 {
                let guess = read(&mut strides, ME, place(n)).reads;
                assert_eq!(guess[0], place(n + 1)..place(n + 1) + LEN);
                assert_eq!(guess.len() as u64, (2 * (n.unsigned_abs() - 1)).min(MOST_READS));
            }
            assert_eq!(read(&mut strides, ME, 12345).reads, []);
        }
    }

    #[test]
    fn guesses_end_with_the_object() {
        let mut strides = Strides::default();
        let distance = SIZE / 6;
        let last = (0..6).map(|n| read(&mut strides, ME, n * distance)).last().unwrap();
        assert_eq!(last.reads.len(), 1);
        assert_eq!(last.reads[0].end, SIZE);
        let back = (0..6).rev().map(|n| read(&mut strides, OTHER, n * distance)).last().unwrap();
        assert_eq!(back.reads, []);
    }

    #[test]
    fn readers_do_not_disturb_each_other() {
        let mut strides = Strides::default();
        let guesses: Vec<Guess> = (0..20)
            .map(|n| {
                read(&mut strides, OTHER, (n * 7919 % 1000) * LEN);
                read(&mut strides, ME, n << 20)
            })
            .collect();
        assert!(guesses[3..].iter().all(|guess| !guess.reads.is_empty()));
        strides.on_close(1);
        assert_eq!(read(&mut strides, ME, 20 << 20).reads, []);
    }

    #[test]
    fn the_same_place_again_and_random_places_are_no_stride() {
        let mut strides = Strides::default();
        for n in 0..1000 {
            assert_eq!(read(&mut strides, ME, 5 * LEN), Guess::default());
            let guess = read(&mut strides, OTHER, (n * n * 7919 % 8000) * LEN);
            assert_eq!(guess, Guess { backward: guess.backward, ..Guess::default() });
        }
    }

    #[test]
    fn chunks_read_backward_one_after_another_are_a_walk() {
        let mut strides = Strides::default();
        for chunk in 0..10 {
            for n in (0..CHUNK / LEN).rev() {
                let guess = read(&mut strides, ME, chunk * CHUNK + n * LEN).chunks;
                let ahead = (2 * chunk).min(MOST_CHUNKS);
                assert_eq!(guess, (chunk > 0).then(|| chunk * CHUNK..(chunk + 1 + ahead) * CHUNK));
            }
        }
        // Elsewhere, and from there backward.
        assert_eq!(read(&mut strides, ME, 100 * CHUNK).chunks, None);
        for chunk in (90..=99).rev() {
            for n in 0..CHUNK / LEN {
                let guess = read(&mut strides, ME, chunk * CHUNK + n * LEN).chunks;
                assert_eq!(guess.is_some(), chunk < 99);
                assert!(guess.is_none_or(|guess| guess.start < chunk * CHUNK && guess.end == (chunk + 1) * CHUNK));
            }
        }
    }

    #[test]
    fn chunks_that_were_only_touched_are_no_walk() {
        let mut strides = Strides::default();
        for chunk in 0..100 {
            assert_eq!(read(&mut strides, ME, chunk * CHUNK + (chunk % 3) * LEN).chunks, None);
        }
    }
}
