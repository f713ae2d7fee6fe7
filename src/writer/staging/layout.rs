//! Where the bytes of a staged file are: in the file on the disk, nowhere because they are zeros, or still in the object that is
//! edited. Pure. Invariant: a byte that was written is never looked for in the object again, and neither is one behind the
//! smallest size that the file had meanwhile.

use std::ops::Range;

use rangemap::RangeSet;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::writer) struct Layout {
    /// In the file.
    present: RangeSet<u64>,
    /// Zeros that are not in the file.
    zeros: RangeSet<u64>,
    /// What the object does not have like this.
    dirty: RangeSet<u64>,
    /// Bytes of the object that count end here. What is behind it and not written is zeros.
    base_end: u64,
}

/// Where some bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::writer) enum Place {
    File,
    Zeros,
    Object,
}

impl Layout {
    /// All of the object, nothing of it here.
    pub fn of_object(size: u64) -> Self {
        Self { base_end: size, ..Self::default() }
    }

    /// As it was written down.
    pub fn from_parts(present: RangeSet<u64>, zeros: RangeSet<u64>, dirty: RangeSet<u64>, base_end: u64) -> Self {
        Self { present, zeros, dirty, base_end }
    }

    pub fn present(&self) -> &RangeSet<u64> {
        &self.present
    }

    pub fn zeros(&self) -> &RangeSet<u64> {
        &self.zeros
    }

    pub fn dirty(&self) -> &RangeSet<u64> {
        &self.dirty
    }

    pub fn base_end(&self) -> u64 {
        self.base_end
    }

    /// How many bytes of `range` the file does not hold yet.
    pub fn growth(&self, range: &Range<u64>) -> u64 {
        self.present.gaps(range).map(|gap| gap.end - gap.start).sum()
    }

    /// Bytes of `range` that the file holds.
    pub fn held(&self, range: &Range<u64>) -> u64 {
        (range.end - range.start) - self.growth(range)
    }

    /// The range is in the file now, and new.
    pub fn on_write(&mut self, range: &Range<u64>) {
        if !range.is_empty() {
            self.present.insert(range.clone());
            self.zeros.remove(range.clone());
            self.dirty.insert(range.clone());
        }
    }

    /// A write of the range begins and may end anywhere: what of it is in the file counts as new from here on.
    pub fn on_write_begin(&mut self, range: &Range<u64>) {
        let there: Vec<_> = self.present.overlapping(range).map(|run| run.start.max(range.start)..run.end.min(range.end)).collect();
        self.dirty.extend(there);
    }

    /// The range is zeros now.
    pub fn on_zero(&mut self, range: &Range<u64>) {
        if !range.is_empty() {
            self.present.remove(range.clone());
            self.zeros.insert(range.clone());
            self.dirty.insert(range.clone());
        }
    }

    /// The file was cut to `size`.
    pub fn on_cut(&mut self, size: u64) {
        for set in [&mut self.present, &mut self.zeros, &mut self.dirty] {
            set.remove(size..u64::MAX);
        }
        self.base_end = self.base_end.min(size);
    }

    /// The range was fetched from the object and put into the file.
    pub fn on_fetched(&mut self, range: &Range<u64>) {
        self.present.insert(range.clone());
    }

    /// The object is now what the file was, `size` bytes long.
    pub fn on_saved(&mut self, size: u64) {
        self.dirty.clear();
        self.base_end = size;
    }

    /// Parts of `range` that only the object has.
    pub fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let range = range.start.min(self.base_end)..range.end.min(self.base_end);
        if range.is_empty() {
            return Vec::new();
        }
        let here: RangeSet<u64> = self.present.overlapping(&range).chain(self.zeros.overlapping(&range)).cloned().collect();
        here.gaps(&range).collect()
    }

    /// All of `range`, in order, by where it is.
    pub fn places(&self, range: &Range<u64>) -> Vec<(Range<u64>, Place)> {
        if range.is_empty() {
            return Vec::new();
        }
        let inside = |run: &Range<u64>| run.start.max(range.start)..run.end.min(range.end);
        let mut all: Vec<(Range<u64>, Place)> = self.present.overlapping(range).map(|run| (inside(run), Place::File)).collect();
        all.extend(self.missing(range).into_iter().map(|run| (run, Place::Object)));
        let known: RangeSet<u64> = all.iter().map(|(run, _)| run.clone()).collect();
        all.extend(known.gaps(range).map(|run| (run, Place::Zeros)));
        all.sort_by_key(|(run, _)| run.start);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_written_is_in_the_file_and_the_rest_in_the_object() {
        let mut layout = Layout::of_object(100);
        layout.on_write(&(20..30));
        layout.on_zero(&(25..40));
        let expected =
            [(10..20, Place::Object), (20..25, Place::File), (25..40, Place::Zeros), (40..100, Place::Object), (100..120, Place::Zeros)];
        assert_eq!(layout.places(&(10..120)), expected);
        assert_eq!(layout.missing(&(0..200)), [0..20, 40..100]);
    }

    #[test]
    fn what_was_cut_off_does_not_come_back() {
        let mut layout = Layout::of_object(100);
        layout.on_write(&(40..60));
        layout.on_cut(50);
        assert_eq!(layout.places(&(30..70)), [(30..40, Place::Object), (40..50, Place::File), (50..70, Place::Zeros)]);
        assert_eq!((layout.growth(&(0..100)), layout.held(&(0..100))), (90, 10));
    }

    #[test]
    fn a_write_that_may_fail_makes_what_it_overwrites_new_at_once() {
        let mut layout = Layout::of_object(100);
        layout.on_fetched(&(0..10));
        layout.on_write_begin(&(5..20));
        assert_eq!(layout.dirty().first().zip(layout.dirty().last()), Some((&(5..10), &(5..10))));
        assert_eq!(layout.places(&(0..20)), [(0..10, Place::File), (10..20, Place::Object)]);
    }

    proptest! {
        /// Against a byte-wise model of places and dirt.
        #[test]
        fn every_byte_is_where_the_last_change_put_it(size in 0u64..40, changes in proptest::collection::vec((0u8..4, 0u64..50, 0u64..12), 0..20)) {
            let mut layout = Layout::of_object(size);
            let mut model: Vec<(Place, bool)> = (0..100).map(|at| (if at < size { Place::Object } else { Place::Zeros }, false)).collect();
            for (what, at, len) in changes {
                let range = at..at + len;
                let bytes = &mut model[at as usize..(at + len) as usize];
                match what {
                    0 => { layout.on_write(&range); bytes.fill((Place::File, true)); }
                    1 => { layout.on_zero(&range); bytes.fill((Place::Zeros, true)); }
                    2 => { layout.on_cut(at); model[at as usize..].fill((Place::Zeros, false)); }
                    _ => for gap in layout.missing(&range) {
                        layout.on_fetched(&gap);
                        model[gap.start as usize..gap.end as usize].fill((Place::File, false));
                    },
                }
            }
            let mut end = 0;
            for (run, place) in layout.places(&(0..100)) {
                prop_assert_eq!(run.start, end);
                end = run.end;
                for at in run {
                    prop_assert_eq!(place, model[at as usize].0, "byte {}", at);
                    prop_assert_eq!(layout.dirty().contains(&at), model[at as usize].1, "byte {}", at);
                }
            }
            prop_assert_eq!(end, 100);
        }
    }
}
