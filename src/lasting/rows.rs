//! Rows that are few enough to be held in memory besides, so that the log can be written anew without asking anybody. Invariant: what is here
//! is what the log says.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use parking_lot::Mutex;

use super::{Log, Table};

/// See the module.
#[derive(Debug)]
pub struct Rows(Mutex<State>);

#[derive(Debug)]
struct State {
    log: Log,
    rows: HashMap<(Table, u64), Box<[u8]>>,
}

impl Rows {
    /// None yet, and room for `bytes` of them.
    ///
    /// # Errors
    /// As [`Log::new`].
    pub fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self(Mutex::new(State { log: Log::new(bytes)?, rows: HashMap::new() })))
    }

    /// Those that another process left.
    ///
    /// # Errors
    /// As [`Log::load`].
    pub fn load(file: OwnedFd) -> io::Result<Self> {
        let mut rows = HashMap::new();
        let log = Log::load(file, |table, number, bytes| match bytes {
            Some(bytes) => drop(rows.insert((table, number), bytes.into())),
            None => drop(rows.remove(&(table, number))),
        })?;
        Ok(Self(Mutex::new(State { log, rows })))
    }

    /// The memory, for who keeps it.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.0.lock().log.file().as_fd().try_clone_to_owned()
    }

    /// The rows of `table`, by their numbers.
    pub fn all(&self, table: Table) -> Vec<(u64, Box<[u8]>)> {
        let state = self.0.lock();
        let mut found: Vec<_> =
            state.rows.iter().filter(|((of, _), _)| *of == table).map(|((_, number), row)| (*number, row.clone())).collect();
        found.sort_by_key(|(number, _)| *number);
        found
    }

    /// Row `number` of `table`.
    pub fn get(&self, table: Table, number: u64) -> Option<Box<[u8]>> {
        self.0.lock().rows.get(&(table, number)).cloned()
    }

    /// Row `number` of `table` is `row` from now on. Returns how long it was before.
    pub fn put(&self, table: Table, number: u64, row: &[u8]) -> usize {
        let state = &mut *self.0.lock();
        let before = state.rows.insert((table, number), row.into());
        state.log.put(table, number, &[row]);
        state.tidy();
        before.map_or(0, |row| row.len())
    }

    /// There is no such row any more. Returns how long it was.
    pub fn delete(&self, table: Table, number: u64) -> usize {
        let state = &mut *self.0.lock();
        let Some(before) = state.rows.remove(&(table, number)) else { return 0 };
        state.log.delete(table, number);
        state.tidy();
        before.len()
    }
}

impl State {
    fn tidy(&mut self) {
        if self.log.is_long() {
            let rows = &self.rows;
            self.log.renew(|all| rows.iter().for_each(|(&(table, number), row)| all.put(table, number, &[row])));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_for_the_next_process_however_often_they_changed() {
        let rows = Rows::new(1 << 20).unwrap();
        for number in 0..20_000u64 {
            rows.put(1, number, &number.to_le_bytes());
            rows.put(2, 0, &number.to_le_bytes());
            if number >= 10 {
                rows.delete(1, number - 10);
            }
        }
        rows.delete(9, 9);
        let again = Rows::load(rows.file().unwrap()).unwrap();
        let numbers = |rows: &Rows, table| rows.all(table).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!(numbers(&again, 1), (19_990..20_000).collect::<Vec<_>>());
        assert_eq!(again.all(2), [(0, 19_999u64.to_le_bytes().into())]);
        again.put(1, 5, b"new");
        assert_eq!(numbers(&Rows::load(again.file().unwrap()).unwrap(), 1).first(), Some(&5));
    }

    /// The rows of table 1 that the next process finds.
    fn found(rows: &Rows) -> io::Result<Vec<(u64, Box<[u8]>)>> {
        Ok(Rows::load(rows.file()?)?.all(1))
    }

    #[test]
    fn rows_that_fill_most_of_the_room_can_change_without_end() {
        let rows = Rows::new(1 << 20).unwrap();
        for round in 0..5u8 {
            // Two thirds of the room.
            (0..3000).for_each(|number| _ = rows.put(1, number, &[round; 200]));
        }
        assert!(found(&rows).unwrap().iter().all(|(_, row)| **row == [4; 200]));
        assert_eq!(found(&rows).unwrap().len(), 3000);
    }

    #[test]
    fn rows_beyond_the_room_are_restored_once_there_are_fewer() {
        let rows = Rows::new(1 << 20).unwrap();
        (0..6000).for_each(|number| _ = rows.put(1, number, &[7; 200]));
        assert!(found(&rows).is_err(), "they do not fit");
        (0..4000).for_each(|number| _ = rows.delete(1, number));
        assert_eq!(found(&rows).unwrap().len(), 2000);
        rows.put(1, 1, b"new");
        assert_eq!(found(&rows).unwrap().first(), Some(&(1, b"new"[..].into())));
    }
}
