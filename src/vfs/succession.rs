//! Which files of a directory will be opened next. Pure: positions in the listing come as arguments.
//!
//! Whoever reads a directory file by file goes through it in the order of the listing: cp, tar, a loader that does not
//! shuffle, with one thread or with a hundred. When opens keep coming from around one place that moves on, the files
//! after it are announced. What is announced in vain, when it ends, is never more than was opened that way.

use std::ops::Range;

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
    /// The position after the last file that was announced.
    announced: u64,
}

impl Succession {
    /// The file at `position` was opened. Returns the positions to announce.
    pub fn on_open(&mut self, position: u64) -> Range<u64> {
        if position.abs_diff(self.front) > SLACK {
            *self = Self { start: position, front: position + 1, in_order: 1, announced: position + 1 };
            return 0..0;
        }
        if self.in_order == 0 {
            self.start = position;
        }
        self.start = self.start.min(position);
        self.front = self.front.max(position + 1);
        self.in_order += 1;
        // In a small directory everything is around one place: in order is who leaves few out.
        if self.in_order < BELIEVED || self.in_order * 2 < self.front - self.start {
            return 0..0;
        }
        let from = self.announced.max(self.front);
        let to = self.front + (self.in_order / 2).min(MOST_AHEAD);
        self.announced = self.announced.max(to);
        from..to.max(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_opened_in_order_announce_those_after_them_once() {
        let mut succession = Succession::default();
        let mut announced = Vec::new();
        for position in 0..1000 {
            let next = succession.on_open(position);
            assert!(next.is_empty() || next.start > position);
            announced.extend(next);
        }
        assert!(announced.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        assert_eq!(announced.last(), Some(&(999 + MOST_AHEAD)));
        assert!(announced[0] < 2 * BELIEVED);
    }

    #[test]
    fn threads_that_take_files_from_a_queue_are_in_order() {
        let mut succession = Succession::default();
        let announced: u64 = (0..100).flat_map(|block| (0..128).rev().map(move |n| block * 128 + n)).fold(0, |sum, position| {
            let next = succession.on_open(position);
            sum + next.end - next.start
        });
        assert!(announced > 12_000, "{announced}");
    }

    #[test]
    fn what_is_announced_in_vain_is_less_than_what_was_opened() {
        for opened in [5, 10, 50, 500] {
            let mut succession = Succession::default();
            let announced: u64 = (0..opened).map(|position| succession.on_open(position)).map(|next| next.end - next.start).sum();
            let in_vain = announced.saturating_sub(opened.saturating_sub(2 * BELIEVED));
            assert!(in_vain <= opened, "{opened}: {announced}");
        }
    }

    #[test]
    fn a_shuffled_directory_announces_nothing() {
        for files in [101, 307, 10_007] {
            let mut succession = Succession::default();
            for n in 1..files {
                let next = succession.on_open(n * 7919 % files);
                assert!(next.start.min(files) == next.end.min(files), "{n} of {files}: {next:?}");
            }
        }
    }
}
