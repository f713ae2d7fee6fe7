//! Which files of a directory will be opened next. Pure: positions in the listing come as arguments.
//!
//! Whoever reads a directory file by file goes through it in the order of the listing: cp, tar, a loader that does not
//! shuffle, with one thread or with a hundred. When opens keep coming from around one place that moves on, the files
//! after it are announced. What is announced in vain, when it ends, is never more than was opened that way.

/// Opens may come so far from the place that the others are at: many threads take their files from one queue.
const SLACK: u64 = 256;

/// Opens in a row before the order is believed.
const BELIEVED: u64 = 8;

/// Files announced ahead of the place at most: at 20 ms to the first byte these are 6,400 files a second.
const MOST_AHEAD: u64 = 128;

/// How one directory is gone through.
#[derive(Debug, Default)]
pub(super) struct Succession {
    /// The position of the first open, and the one after the farthest.
    start: u64,
    front: u64,
    /// Opens in a row that came from around the front.
    in_order: u64,
    /// Who has been opened, and who was opened or announced, in this pass through the directory.
    opened: Marks,
    known: Marks,
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
    /// The file at `position` of `len` was opened. Returns the positions to announce; none is named twice in one pass.
    pub fn on_open(&mut self, position: u64, len: u64) -> Vec<u64> {
        if !self.opened.insert(position) {
            // Again: another pass.
            *self = Self::default();
            self.opened.insert(position);
        }
        self.known.insert(position);
        if self.in_order == 0 || position.abs_diff(self.front) > SLACK {
            (self.start, self.front, self.in_order) = (position, position + 1, 1);
            return Vec::new();
        }
        self.start = self.start.min(position);
        self.front = self.front.max(position + 1);
        self.in_order += 1;
        // In a small directory everything is around one place: in order is who leaves few out.
        if self.in_order < BELIEVED || self.in_order * 2 < self.front - self.start {
            return Vec::new();
        }
        let ahead = self.front..(self.front + (self.in_order / 2).min(MOST_AHEAD)).min(len);
        ahead.filter(|&position| self.known.insert(position)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_opened_in_order_announce_those_after_them_once() {
        let mut succession = Succession::default();
        for _pass in 0..2 {
            let mut announced = Vec::new();
            for position in 0..1000 {
                let next = succession.on_open(position, 1000);
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
        let announced: usize = order.map(|position| succession.on_open(position, 12_800).len()).sum();
        assert!(announced > 12_000, "{announced}");
    }

    #[test]
    fn what_is_announced_in_vain_is_less_than_what_was_opened() {
        for opened in [5, 10, 50, 500] {
            let mut succession = Succession::default();
            let announced: usize = (0..opened).map(|position| succession.on_open(position, 10_000).len()).sum();
            assert!(announced as u64 <= opened + opened / 2, "{opened}: {announced}");
        }
    }

    #[test]
    fn a_shuffled_directory_announces_nothing() {
        for files in [101, 307, 10_007] {
            let mut succession = Succession::default();
            for n in 1..files {
                let next = succession.on_open(n * 7919 % files, files);
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
            assert!(succession.on_open(position, 300).iter().all(|next| !opened.contains(next)));
        }
    }
}
