//! The slots of the inode table: how long each number stays, written down as it changes where another daemon may have to go on. Which number a
//! key gets is decided above. Invariants: a slot stays while the kernel knows its number or that of anything in it; what was written down,
//! read back, is the same slots.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::{Inode, Node};
use crate::lasting::{Log, Source, Table};
use crate::store::Key;

/// What is written down of a number: its slot, and, since that is all that most lookups change, its lookups.
const SLOT: Table = 1;
const LOOKUPS: Table = 2;

/// What a number stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub key: Key,
    parent: Inode,
    /// How often the kernel was told of it, less what it forgot.
    lookups: u64,
    /// Slots whose parent this is. FORGETs of a directory and of what is in it may overtake each other on their way
    /// through several threads; the count keeps the directory's number taken until the last child is gone.
    children: u64,
    /// The key has another number from the next reply on.
    pub retired: bool,
    /// Because this mount has removed what it stands for.
    pub removed: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Slots {
    slots: HashMap<u64, Slot, BuildHasherDefault<Identity>>,
    /// None: nobody goes on after this process.
    log: Option<Log>,
}

impl Slots {
    /// That of the root, which stays.
    pub fn new(root: Key) -> Self {
        Self { slots: HashMap::from_iter([(Inode::ROOT.0, Slot::new(root, Inode::ROOT))]), log: None }
    }

    /// Writes down what changes from now on.
    pub fn write_to(&mut self, log: Log) {
        self.log = Some(log);
    }

    /// Those that another process wrote down to `log`, and the root.
    ///
    /// # Errors
    /// As [`Log::load`].
    pub fn load(root: Key, log: OwnedFd) -> io::Result<Self> {
        let mut slots = Self::new(root);
        slots.log = Some(Log::load(log, |what, number, row| slots.on_row(what, number, row))?);
        // What follows from the others.
        let parents: Vec<u64> = slots.slots.iter().filter(|&(&number, _)| number != Inode::ROOT.0).map(|(_, slot)| slot.parent.0).collect();
        for parent in parents {
            if let Some(slot) = slots.slots.get_mut(&parent) {
                slot.children += 1;
            }
        }
        Ok(slots)
    }

    fn on_row(&mut self, what: Table, number: u64, row: Option<&[u8]>) {
        match (what, row.map(Source)) {
            (SLOT, Some(mut row)) => {
                let (parent, lookups, flags) = (Inode(row.number()), row.number(), row.number());
                let (retired, removed) = (flags & 1 != 0, flags & 2 != 0);
                self.slots.insert(number, Slot { key: Key::from(row.0), parent, lookups, children: 0, retired, removed });
            }
            (SLOT, None) => drop(self.slots.remove(&number)),
            (LOOKUPS, Some(mut row)) => {
                if let Some(slot) = self.slots.get_mut(&number) {
                    slot.lookups = row.number();
                }
            }
            _ => {}
        }
    }

    /// The memory that they are written down to.
    pub fn log(&self) -> Option<BorrowedFd<'_>> {
        self.log.as_ref().map(Log::file)
    }

    pub fn get(&self, ino: Inode) -> Option<&Slot> {
        self.slots.get(&ino.0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Inode, &Slot)> {
        self.slots.iter().map(|(&number, slot)| (Inode(number), slot))
    }

    /// How many there are, the root included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The kernel is told once more of a number; false: it does not know it.
    pub fn look_up(&mut self, ino: Inode) -> bool {
        let Some(slot) = self.slots.get_mut(&ino.0) else { return false };
        slot.lookups += 1;
        let lookups = slot.lookups;
        self.note_lookups(ino, lookups);
        true
    }

    /// The kernel is told of a number that stood for nothing.
    pub fn add(&mut self, ino: Inode, key: Key, parent: Inode) {
        self.slots.insert(ino.0, Slot::new(key, parent));
        self.gain_child(parent);
        self.note(ino);
    }

    /// Changes what is known of a number that stands for something.
    pub fn change<T>(&mut self, ino: Inode, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let changed = change(self.slots.get_mut(&ino.0)?);
        self.note(ino);
        Some(changed)
    }

    /// `ino` becomes an entry of `parent`. What nothing holds any more because of that is `gone`.
    pub fn adopt(&mut self, ino: Inode, parent: Inode, gone: impl FnMut(Inode, &Slot)) {
        if let Some(before) = self.change(ino, |slot| std::mem::replace(&mut slot.parent, parent)) {
            self.gain_child(parent);
            self.lose_child(before, gone);
        }
    }

    /// The kernel forgets `n` of the times it was told of a number. What nothing holds any more because of that is `gone`.
    pub fn forget(&mut self, ino: Inode, n: u64, mut gone: impl FnMut(Inode, &Slot)) {
        if ino == Inode::ROOT {
            return;
        }
        let Some(slot) = self.slots.get_mut(&ino.0) else { return };
        slot.lookups = slot.lookups.saturating_sub(n);
        let lookups = slot.lookups;
        match self.remove_unused(ino, &mut gone) {
            Some(parent) => self.lose_child(parent, gone),
            None => self.note_lookups(ino, lookups),
        }
        self.give_memory_back();
    }

    fn gain_child(&mut self, parent: Inode) {
        if let Some(slot) = self.slots.get_mut(&parent.0) {
            slot.children += 1;
        }
    }

    fn lose_child(&mut self, parent: Inode, mut gone: impl FnMut(Inode, &Slot)) {
        let mut next = Some(parent);
        while let Some(parent) = next {
            if let Some(slot) = self.slots.get_mut(&parent.0) {
                slot.children = slot.children.saturating_sub(1);
            }
            next = self.remove_unused(parent, &mut gone);
        }
    }

    /// Removes the slot of `ino` when nothing holds it and says whose child it was.
    fn remove_unused(&mut self, ino: Inode, gone: &mut impl FnMut(Inode, &Slot)) -> Option<Inode> {
        let slot = self.slots.get(&ino.0)?;
        if ino == Inode::ROOT || slot.lookups > 0 || slot.children > 0 {
            return None;
        }
        let slot = self.slots.remove(&ino.0)?;
        self.note(ino);
        gone(ino, &slot);
        Some(slot.parent)
    }

    /// After a large tree was walked and forgotten the table would stay as large as it ever was.
    fn give_memory_back(&mut self) {
        if self.slots.capacity() > 4096 && self.slots.len() < self.slots.capacity() / 8 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }

    fn note(&mut self, ino: Inode) {
        let Self { slots, log: Some(log) } = self else { return };
        match slots.get(&ino.0) {
            _ if ino == Inode::ROOT => {}
            Some(slot) => slot.write(|parts| log.put(SLOT, ino.0, parts)),
            None => log.delete(SLOT, ino.0),
        }
        if log.is_long() {
            let slots = slots.iter().filter(|&(&number, _)| number != Inode::ROOT.0);
            log.renew(|all| slots.for_each(|(&number, slot)| slot.write(|parts| all.put(SLOT, number, parts))));
        }
    }

    fn note_lookups(&mut self, ino: Inode, lookups: u64) {
        if let Some(log) = self.log.as_mut().filter(|_| ino != Inode::ROOT) {
            log.put(LOOKUPS, ino.0, &[&lookups.to_le_bytes()]);
            if log.is_long() {
                self.note(ino);
            }
        }
    }
}

impl Slot {
    /// The kernel is told of it for the first time.
    fn new(key: Key, parent: Inode) -> Self {
        Self { key, parent, lookups: 1, children: 0, retired: false, removed: false }
    }

    pub fn node(&self) -> Node {
        Node { key: self.key.clone(), parent: self.parent }
    }

    /// As it is written down.
    fn write(&self, put: impl FnOnce(&[&[u8]])) {
        let flags = u64::from(self.retired) | u64::from(self.removed) << 1;
        put(&[&self.parent.0.to_le_bytes(), &self.lookups.to_le_bytes(), &flags.to_le_bytes(), self.key.as_bytes()]);
    }
}

/// The numbers are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_holds_any_more_goes_from_the_inside_out() {
        let mut slots = Slots::new(Key::root());
        let (outer, inner, file) = (Inode(2), Inode(3), Inode(4));
        slots.add(outer, Key::from("a/"), Inode::ROOT);
        slots.add(inner, Key::from("a/b/"), outer);
        slots.add(file, Key::from("a/b/c"), inner);
        assert!(slots.look_up(file) && !slots.look_up(Inode(5)));
        let mut gone = Vec::new();
        for (ino, n) in [(outer, 1), (inner, 1), (file, 1), (Inode::ROOT, 9)] {
            slots.forget(ino, n, |ino, _| gone.push(ino));
            assert_eq!((gone.len(), slots.len()), (0, 4));
        }
        slots.forget(file, 1, |ino, _| gone.push(ino));
        assert_eq!((gone, slots.len()), (vec![file, inner, outer], 1));
    }

    #[test]
    fn a_directory_stays_for_what_was_moved_into_it_and_not_for_what_left() {
        let mut slots = Slots::new(Key::root());
        let (from, to, file) = (Inode(2), Inode(3), Inode(4));
        slots.add(from, Key::from("a/"), Inode::ROOT);
        slots.add(to, Key::from("b/"), Inode::ROOT);
        slots.add(file, Key::from("a/c"), from);
        let mut gone = Vec::new();
        for ino in [from, to] {
            slots.forget(ino, 1, |ino, _| gone.push(ino));
        }
        assert_eq!(gone, [to]);
        slots.add(to, Key::from("b/"), Inode::ROOT);
        slots.adopt(file, to, |ino, _| gone.push(ino));
        slots.forget(to, 1, |ino, _| gone.push(ino));
        assert_eq!((&gone[..], slots.len()), (&[to, from][..], 3));
    }
}
