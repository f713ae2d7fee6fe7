//! The log of changes: each row that was put or taken away, one after another. When there is much more of that than there are rows, what counts
//! is written anew into the other half of the memory, which counts from one store on. Invariant: what lies before the published end of the
//! half that counts is whole.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::Table;
use crate::sys::SharedMemory;

/// First bytes: another number is another form.
const MAGIC: u64 = u64::from_le_bytes(*b"windlas1");
/// Where the numbers of the head are: the form, which half counts, where each ends, and whether something did not fit.
const FORM: usize = 0;
const HALF: usize = 8;
const ENDS: [usize; 2] = [16, 24];
const LOST: usize = 32;
/// The head is a page.
const HEAD: usize = 4096;

/// Length of what follows, table, what is done, and the number of the row.
const FRAME: usize = 16;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Less than this is not worth being written anew.
const WORTH: usize = 256 << 10;

/// See the module.
#[derive(Debug)]
pub struct Log {
    memory: SharedMemory,
    half: usize,
    end: usize,
    /// Where it ended when it was written anew.
    fresh_end: usize,
    /// Present while there is a change that did not fit.
    overflow: Option<Overflow>,
}

/// Changes that are not in the log. A renewal makes it complete again.
#[derive(Clone, Copy, Debug, Default)]
struct Overflow {
    changes: usize,
    /// Changes to wait for before the next renewal. A renewal that does not fit writes every row in vain, so that the number
    /// grows with the rows.
    wait: usize,
}

/// A renewal that did not fit is tried again after this share of its rows has changed: at most four rows are written for each change.
const RETRY_SHARE: usize = 4;

/// All that counts, as it is written anew.
#[derive(Debug)]
pub struct Snapshot<'a> {
    memory: &'a mut SharedMemory,
    base: usize,
    end: usize,
    most: usize,
    rows: usize,
    fits: bool,
}

impl Log {
    /// An empty one that holds at most `bytes`, twice. What is not used takes no memory.
    ///
    /// # Errors
    /// When there is no memory or descriptor.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let half = bytes.next_multiple_of(HEAD);
        let mut memory = SharedMemory::new(HEAD + 2 * half)?;
        memory.publish(FORM, MAGIC);
        Ok(Self { memory, half: 0, end: 0, fresh_end: 0, overflow: None })
    }

    /// What another process left: `found` is told of every change that counts, in order; none: the row was taken away.
    ///
    /// # Errors
    /// InvalidData when it is no log, or did not hold everything.
    pub fn load(file: OwnedFd, mut found: impl FnMut(Table, u64, Option<&[u8]>)) -> io::Result<Self> {
        let memory = SharedMemory::of(file)?;
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        if memory.len() < HEAD || memory.published(FORM) != MAGIC {
            return Err(wrong("it has another form"));
        }
        if memory.published(LOST) != 0 {
            return Err(wrong("it did not hold everything"));
        }
        let half = usize::from(memory.published(HALF) != 0);
        let mut log = Self { memory, half, end: 0, fresh_end: 0, overflow: None };
        let end = usize::try_from(log.memory.published(ENDS[half])).unwrap_or(usize::MAX);
        if end > log.most() {
            return Err(wrong("it ends behind its end"));
        }
        let mut bytes = Vec::new();
        while log.end < end {
            let mut frame = [0; FRAME];
            if end - log.end < FRAME {
                return Err(wrong("it is cut"));
            }
            log.memory.read(log.base() + log.end, &mut frame);
            let (len, number) = (number(&frame[..4]) as usize, number(&frame[8..]));
            if len > end - log.end - FRAME {
                return Err(wrong("it is cut"));
            }
            bytes.resize(len, 0);
            log.memory.read(log.base() + log.end + FRAME, &mut bytes);
            found(frame[4], number, (frame[5] == PUT).then_some(&bytes));
            log.end += FRAME + len.next_multiple_of(8);
        }
        log.fresh_end = log.end / 2;
        Ok(log)
    }

    /// The memory, for who keeps it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Row `number` of `table` is `parts`, one after another, from now on.
    pub fn put(&mut self, table: Table, number: u64, parts: &[&[u8]]) {
        self.append(table, PUT, number, parts);
    }

    /// There is no such row any more.
    pub fn delete(&mut self, table: Table, number: u64) {
        self.append(table, DELETE, number, &[]);
    }

    /// Whether [`renew`](Self::renew) is due: more than half of the log has been overtaken, or a change did not fit.
    pub fn is_long(&self) -> bool {
        match self.overflow {
            Some(overflow) => overflow.changes >= overflow.wait,
            None => self.end > WORTH + 2 * self.fresh_end,
        }
    }

    /// Writes it anew: `all` puts every row that counts.
    pub fn renew(&mut self, all: impl FnOnce(&mut Snapshot<'_>)) {
        let (other, most) = (1 - self.half, self.most());
        let mut snapshot = Snapshot { base: HEAD + other * most, memory: &mut self.memory, end: 0, most, rows: 0, fits: true };
        all(&mut snapshot);
        let Snapshot { base, end, rows, fits, .. } = snapshot;
        if !fits {
            if self.overflow.is_none_or(|overflow| overflow.wait == 0) {
                tracing::warn!("more is open than can be written down: a restart of this daemon loses the mount until files are closed");
            }
            self.memory.publish(LOST, 1);
            self.overflow = Some(Overflow { changes: 0, wait: (rows / RETRY_SHARE).max(1) });
            self.give_back(base, end);
            return;
        }
        self.memory.publish(ENDS[other], end as u64);
        self.memory.publish(HALF, other as u64);
        // Last: until here the half that counts lacks a change.
        self.memory.publish(LOST, 0);
        if self.overflow.take().is_some_and(|overflow| overflow.wait > 0) {
            tracing::info!("everything that is open is written down again");
        }
        let (old, old_end) = (self.base(), self.end);
        (self.half, self.end, self.fresh_end) = (other, end, end);
        self.give_back(old, old_end);
    }

    /// Returns the memory of a half that does not count, as far as it was used.
    fn give_back(&mut self, base: usize, end: usize) {
        let used = base..base + end.next_multiple_of(HEAD).min(self.most());
        // It is only a matter of memory.
        if let Err(error) = self.memory.give_back(used) {
            tracing::debug!(%error, "memory of the log is not given back");
        }
    }

    fn append(&mut self, table: Table, what: u8, number: u64, parts: &[&[u8]]) {
        if let Some(overflow) = &mut self.overflow {
            overflow.changes += 1;
            return;
        }
        let (base, most) = (self.base(), self.most());
        match write(&mut self.memory, base, self.end, most, (table, what, number), parts) {
            Some(end) => {
                self.end = end;
                self.memory.publish(ENDS[self.half], end as u64);
            }
            None => {
                self.memory.publish(LOST, 1);
                self.overflow = Some(Overflow::default());
            }
        }
    }

    fn most(&self) -> usize {
        (self.memory.len() - HEAD) / 2
    }

    fn base(&self) -> usize {
        HEAD + self.half * self.most()
    }
}

impl Snapshot<'_> {
    /// Row `number` of `table`.
    pub fn put(&mut self, table: Table, number: u64, parts: &[&[u8]]) {
        self.rows += 1;
        if !self.fits {
            return;
        }
        match write(self.memory, self.base, self.end, self.most, (table, PUT, number), parts) {
            Some(end) => self.end = end,
            None => self.fits = false,
        }
    }
}

/// Writes a frame at `end` of a half and returns its end; none: it does not fit.
fn write(memory: &mut SharedMemory, base: usize, end: usize, most: usize, row: (Table, u8, u64), parts: &[&[u8]]) -> Option<usize> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let next = end + FRAME + len.next_multiple_of(8);
    if next > most {
        return None;
    }
    let (table, what, number) = row;
    let mut frame = [0; FRAME];
    frame[..4].copy_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
    (frame[4], frame[5]) = (table, what);
    frame[8..].copy_from_slice(&number.to_le_bytes());
    memory.write(base + end, &frame);
    let mut at = base + end + FRAME;
    for part in parts {
        memory.write(at, part);
        at += part.len();
    }
    Some(next)
}

fn number(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Found = BTreeMap<(Table, u64), Vec<u8>>;

    fn found(log: &Log) -> Found {
        let mut rows = Found::new();
        Log::load(log.file().try_clone_to_owned().unwrap(), |table, number, bytes| match bytes {
            Some(bytes) => drop(rows.insert((table, number), bytes.to_vec())),
            None => drop(rows.remove(&(table, number))),
        })
        .unwrap();
        rows
    }

    #[test]
    fn what_does_not_fit_is_not_passed_over_in_silence() {
        let mut log = Log::new(4096).unwrap();
        for number in 0..4096 / 24 {
            log.put(1, number, &[b"x"]);
        }
        log.put(1, 1, &[&[0; 100]]);
        log.put(1, 2, &[]);
        let error = Log::load(log.file().try_clone_to_owned().unwrap(), |_, _, _| {}).unwrap_err();
        assert!(error.to_string().contains("did not hold"), "{error}");
    }

    #[test]
    fn what_is_no_log_is_refused() {
        let memory = SharedMemory::new(1 << 16).unwrap();
        assert!(Log::load(memory.file().try_clone_to_owned().unwrap(), |_, _, _| {}).is_err());
        let mut log = Log::new(4096).unwrap();
        log.put(1, 1, &[b"abc"]);
        log.memory.publish(ENDS[0], 17);
        assert!(Log::load(log.file().try_clone_to_owned().unwrap(), |_, _, _| {}).is_err());
    }

    #[test]
    fn a_log_is_written_anew_in_proportion_to_what_is_added() {
        let mut log = Log::new(64 << 20).unwrap();
        let (mut renewed, mut rows) = (0, Found::new());
        for number in 0..100_000 {
            log.put(1, number % 100, &[&[7; 100]]);
            rows.insert((1, number % 100), vec![7; 100]);
            if log.is_long() {
                renewed += 1;
                log.renew(|all| rows.iter().for_each(|(&(table, number), bytes)| all.put(table, number, &[bytes])));
            }
        }
        assert_eq!(found(&log), rows);
        // 12 MB in steps of the least that is worth it.
        assert!((20..60).contains(&renewed), "{renewed}");
    }

    proptest! {
        #[test]
        fn whoever_comes_next_finds_the_rows(changes in proptest::collection::vec((0u8..3, 0u64..9, proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)), 0u8..20), 0..200)) {
            let mut log = Log::new(1 << 20).unwrap();
            let mut rows = Found::new();
            for (table, number, bytes, dice) in changes {
                match bytes {
                    Some(bytes) => {
                        log.put(table, number, &[&bytes[..bytes.len() / 2], &bytes[bytes.len() / 2..]]);
                        rows.insert((table, number), bytes);
                    }
                    None => {
                        log.delete(table, number);
                        rows.remove(&(table, number));
                    }
                }
                if dice == 0 {
                    log.renew(|all| rows.iter().for_each(|(&(table, number), bytes)| all.put(table, number, &[bytes])));
                }
                prop_assert_eq!(&found(&log), &rows);
            }
        }
    }
}
