//! Which files of a directory will be opened next. Pure: positions in the listing and times come as arguments.
//!
//! Whoever reads a directory file by file goes through it in the order of the listing: cp, tar, a loader that does not
//! shuffle, with one thread or with a hundred. When opens keep coming from around one place that moves on, the files
//! after it are announced. What is announced in vain, when it ends, is never more than was opened that way.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Opens may come so far from the place that the others are at: many threads take their files from one queue.
const SLACK: u64 = 256;

/// Opens in a row before the order is believed.
const BELIEVED: u64 = 8;

/// Files announced ahead of the place at most: at 20 ms to the first byte these are 6,400 files a second.
const MOST_AHEAD: u64 = 128;

/// As many are announced as were opened within this time: what is fetched and not opened for ten seconds goes, and would be fetched twice.
const RECENTLY: Duration = Duration::from_secs(3);

/// How one directory is gone through.
#[derive(Debug, Default)]
pub(super) struct Succession {
    /// The position of the first open, and the one after the farthest.
    start: u64,
    front: u64,
    /// Opens in a row that came from around the front.
    in_order: u64,
    /// Those in directories before this one.
    carried: u64,
    /// When the latest of them were.
    recent: VecDeque<Instant>,
    /// Who has been opened, and who was opened or announced, in this pass through the directory.
    opened: Marks,
    known: Marks,
}

/// What to announce.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Next {
    pub positions: Vec<u64>,
    /// So many of what comes after the directory.
    pub beyond: u64,
}

/// A set of positions.
#[derive(Debug, Default)]
struct Marks(Vec<u64>);

impl Marks {
    /// Puts `position` in; false if it was there.
    fn insert(&mut self, position: u64) -> bool {
        let (word, bit) = ((position / 64) as usize, 1 << (position % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

impl Succession {
    /// Of a directory that comes after one that was gone through like `before`, and of which so many positions were announced.
    pub fn after(before: &Self, announced: u64) -> Self {
        let mut known = Marks::default();
        (0..announced).for_each(|position| {
            known.insert(position);
        });
        Self { carried: before.carried + before.in_order, recent: before.recent.clone(), known, ..Self::default() }
    }

    /// Whether most of a directory of `len` entries was opened.
    pub fn is_through(&self, len: u64) -> bool {
        self.is_dense() && self.in_order * 2 >= len
    }

    /// Whether nearly all of so many files were opened.
    pub fn is_through_all(&self, files: u64) -> bool {
        self.in_order >= files - files / 16
    }

    /// Whether there were enough opens in a row to believe in it.
    pub fn is_in_order(&self) -> bool {
        self.carried + self.in_order >= BELIEVED && self.is_dense()
    }

    /// Whether few were left out so far. In a small directory everything is around one place.
    pub fn is_dense(&self) -> bool {
        self.in_order > 0 && self.in_order * 2 >= self.front - self.start
    }

    /// The file at `position` of `len` was opened. None of the positions is named twice in one pass.
    pub fn on_open(&mut self, position: u64, len: u64, now: Instant) -> Next {
        if !self.opened.insert(position) {
            // Again: another pass.
            *self = Self::default();
            self.opened.insert(position);
        }
        self.known.insert(position);
        self.recent.push_back(now);
        while self.recent.len() as u64 > MOST_AHEAD || self.recent.front().is_some_and(|&first| now.duration_since(first) > RECENTLY) {
            self.recent.pop_front();
        }
        let is_first = self.in_order == 0;
        if !is_first && position.abs_diff(self.front) > SLACK {
            (self.start, self.front, self.in_order, self.carried) = (position, position + 1, 1, 0);
            return Next::default();
        }
        self.start = if is_first { position } else { self.start.min(position) };
        self.front = self.front.max(position + 1);
        self.in_order += 1;
        if !self.is_in_order() {
            return Next::default();
        }
        let end = self.front + ((self.carried + self.in_order) / 2).min(self.recent.len() as u64);
        let ahead = self.front..end.min(len);
        Next { beyond: end.saturating_sub(len.max(self.front)), positions: ahead.filter(|&position| self.known.insert(position)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a millisecond after one another.
    fn open(succession: &mut Succession, position: u64, len: u64) -> Vec<u64> {
        let now = succession.recent.back().map_or_else(Instant::now, |&last| last + Duration::from_millis(1));
        succession.on_open(position, len, now).positions
    }

    #[test]
    fn files_opened_in_order_announce_those_after_them_once() {
        let mut succession = Succession::default();
        for _pass in 0..2 {
            let mut announced = Vec::new();
            for position in 0..1000 {
                let next = open(&mut succession, position, 1000);
                assert!(next.iter().all(|&next| next > position));
                announced.extend(next);
            }
            assert!(announced.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            assert_eq!(announced.last(), Some(&999));
            assert!(announced[0] < 2 * BELIEVED);
        }
    }

    #[test]
    fn threads_that_take_files_from_a_queue_are_in_order() {
        let mut succession = Succession::default();
        let order = (0..100).flat_map(|block| (0..128).rev().map(move |n| block * 128 + n));
        let announced: usize = order.map(|position| open(&mut succession, position, 12_800).len()).sum();
        assert!(announced > 12_000, "{announced}");
    }

    #[test]
    fn what_is_announced_in_vain_is_less_than_what_was_opened() {
        for opened in [5, 10, 50, 500] {
            let mut succession = Succession::default();
            let announced: usize = (0..opened).map(|position| open(&mut succession, position, 10_000).len()).sum();
            assert!(announced as u64 <= opened + opened / 2, "{opened}: {announced}");
        }
    }

    #[test]
    fn a_shuffled_directory_announces_nothing() {
        for files in [101, 307, 10_007] {
            let mut succession = Succession::default();
            for n in 1..files {
                let next = open(&mut succession, n * 7919 % files, files);
                assert!(next.is_empty(), "{n} of {files}: {next:?}");
            }
        }
    }

    #[test]
    fn numbers_without_leading_zeros_announce_no_file_that_was_opened() {
        let mut names: Vec<String> = (0..300).map(|n| n.to_string()).collect();
        names.sort();
        let mut succession = Succession::default();
        let mut opened = Vec::new();
        for n in 0..300 {
            let position = names.iter().position(|name| *name == n.to_string()).unwrap() as u64;
            opened.push(position);
            assert!(open(&mut succession, position, 300).iter().all(|next| !opened.contains(next)));
        }
    }

    #[test]
    fn as_many_are_announced_as_were_opened_lately() {
        let (mut succession, begin, mut announced) = (Succession::default(), Instant::now(), 0);
        // Four a second: what is announced has to be opened within ten.
        for position in 0..200_u32 {
            announced += succession.on_open(position.into(), 1000, begin + Duration::from_millis(250) * position).positions.len();
            assert!(announced as u64 <= u64::from(position) + 14, "{position}: {announced}");
        }
        assert!(announced > 190);
    }

    #[test]
    fn who_goes_through_one_directory_after_another_is_believed_in_the_next() {
        let mut before = Succession::default();
        for position in 0..10 {
            before.on_open(position, 10, Instant::now());
        }
        for _ in 0..3 {
            assert!(before.is_through(5) && before.is_dense());
            let mut next = Succession::after(&before, 2);
            let mut announced = Vec::new();
            let mut beyond = 0;
            for position in 0..5 {
                let told = next.on_open(position, 5, Instant::now());
                announced.extend(told.positions);
                beyond = told.beyond;
            }
            // Two of them were announced from before.
            assert_eq!((announced, beyond), (vec![2, 3, 4], (next.carried + 5) / 2));
            before = next;
        }
    }
}
