//! What was done to a staged file since it was described, one record after another, for a daemon that goes on with it while it is open: writing
//! the whole description at each write would cost more than the write. Invariant: what was answered to a writer is here; read again on top of a
//! description that has some of it already, they come to the same.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

use super::layout::Layout;
use crate::lasting::{Form, Source};
use crate::spill::open_own;

/// Kind and two numbers.
const RECORD: usize = 24;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::writer) enum Change {
    Write(Range<u64>),
    Zero(Range<u64>),
    Cut(u64),
    /// It is longer, by zeros.
    Grow(u64),
    /// Bytes of the object are in the file now.
    Fetch(Range<u64>),
}

impl Change {
    /// Does it to what is known of a file, `size` bytes long.
    fn apply(self, layout: &mut Layout, size: &mut u64) {
        match self {
            Self::Write(range) => {
                layout.on_write(&range);
                *size = range.end.max(*size);
            }
            Self::Zero(range) => {
                layout.on_zero(&range);
                *size = range.end.max(*size);
            }
            Self::Cut(to) => {
                layout.on_cut(to);
                *size = to;
            }
            Self::Grow(to) => *size = to.max(*size),
            Self::Fetch(range) => layout.on_fetched(&range),
        }
    }

    fn form(&self) -> Form {
        let (kind, start, end) = match self {
            Self::Write(range) => (1, range.start, range.end),
            Self::Zero(range) => (2, range.start, range.end),
            Self::Cut(to) => (3, *to, 0),
            Self::Grow(to) => (4, *to, 0),
            Self::Fetch(range) => (5, range.start, range.end),
        };
        Form::default().number(kind).number(start).number(end)
    }

    fn read(record: &[u8]) -> Option<Self> {
        let mut record = Source(record);
        let (kind, start, end) = (record.number(), record.number(), record.number());
        if matches!(kind, 1 | 2 | 5) && start >= end {
            return None;
        }
        Some(match kind {
            1 => Self::Write(start..end),
            2 => Self::Zero(start..end),
            3 => Self::Cut(start),
            4 => Self::Grow(start),
            5 => Self::Fetch(start..end),
            _ => return None,
        })
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Changes(File);

impl Changes {
    /// Those at `path`, to be added to.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open_own(OpenOptions::new().append(true).create(true), path)?))
    }

    pub fn append(&self, change: &Change) -> io::Result<()> {
        (&self.0).write_all(change.form().bytes())
    }

    /// They are in the description now.
    pub fn clear(&self) -> io::Result<()> {
        self.0.set_len(0)
    }
}

/// Does the changes at `path` to what a description says, and returns the size of the content then.
pub(super) fn apply(path: &Path, layout: &mut Layout, mut size: u64) -> io::Result<u64> {
    let mut bytes = Vec::new();
    match open_own(OpenOptions::new().read(true), path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(size),
        opened => opened?.read_to_end(&mut bytes)?,
    };
    // A daemon that was killed may have written half of the last one, which it has told nobody of.
    for record in bytes.chunks_exact(RECORD) {
        let change = Change::read(record).ok_or_else(|| io::Error::other("a change that this version does not know"))?;
        change.apply(layout, &mut size);
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let range = || (0u64..50, 1u64..20).prop_map(|(start, len)| start..start + len);
        prop::collection::vec(
            prop_oneof![
                range().prop_map(Change::Write),
                range().prop_map(Change::Zero),
                (0u64..60).prop_map(Change::Cut),
                (0u64..60).prop_map(Change::Grow),
            ],
            0..20,
        )
    }

    proptest! {
        #[test]
        fn they_come_to_the_same_on_top_of_a_description_that_has_them(changes in changes(), described in 0usize..20) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.changes");
            let journal = Changes::open(&path).unwrap();
            let (mut layout, mut size) = (Layout::of_object(40), 40);
            let mut snapshot = (layout.clone(), size);
            for (at, change) in changes.iter().enumerate() {
                journal.append(change).unwrap();
                change.clone().apply(&mut layout, &mut size);
                if at < described {
                    snapshot = (layout.clone(), size);
                }
            }
            let again = apply(&path, &mut snapshot.0, snapshot.1).unwrap();
            prop_assert_eq!((snapshot.0, again), (layout, size));
        }
    }

    #[test]
    fn half_a_record_is_left_out_and_an_unknown_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.changes");
        let mut layout = Layout::default();
        assert_eq!(apply(&path, &mut layout, 3).unwrap(), 3, "there are none");
        let journal = Changes::open(&path).unwrap();
        journal.append(&Change::Write(0..9)).unwrap();
        (&journal.0).write_all(&[1; 7]).unwrap();
        assert_eq!(apply(&path, &mut layout, 3).unwrap(), 9);
        journal.clear().unwrap();
        journal.append(&Change::Fetch(0..1)).unwrap();
        (&journal.0).write_all(&[9; RECORD]).unwrap();
        assert!(apply(&path, &mut layout, 3).is_err());
    }
}
