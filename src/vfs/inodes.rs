//! The inode table: which numbers the kernel knows, and which keys they stand for. Pure: it holds no lock, asks no
//! store and knows no attributes. Where another daemon may have to go on it is written down as it changes. Invariant: a number means one key from the first reply that told it to the kernel
//! until the kernel has forgotten it and everything below it, so the table is as large as the kernel's own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use twox_hash::XxHash3_64;

use crate::lasting::{Log, Source, Table};
use crate::store::Key;

/// What is written down of a number: its slot, and, since that is all that most lookups change, its lookups.
const SLOT: Table = 1;
const LOOKUPS: Table = 2;

/// The number of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode(pub u64);

impl Inode {
    /// The root of the mount (`FUSE_ROOT_ID`).
    pub const ROOT: Self = Self(1);

    /// From here on no number ever stands for a key.
    pub const RESERVED: Self = Self(u64::MAX - 1);
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    File,
    Directory,
    /// Facts tell it, not the key: to the inode table it is a file.
    Symlink,
}

/// What the table knows of a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The object `a/b`, or the directory `a/b/`.
    pub key: Key,
    /// The directory that holds it; the root holds itself.
    pub parent: Inode,
}

impl Node {
    /// File or directory: the key tells.
    pub fn kind(&self) -> Kind {
        if self.key.is_prefix() { Kind::Directory } else { Kind::File }
    }
}

/// The table.
#[derive(Debug)]
pub struct Inodes {
    slots: HashMap<u64, Slot, BuildHasherDefault<Identity>>,
    /// Keys whose own number was taken by another key when they came. Nearly always empty.
    displaced: HashMap<Key, u64>,
    hash: fn(&[u8]) -> u64,
    /// None: nobody goes on after this process.
    log: Option<Log>,
}

#[derive(Debug, PartialEq, Eq)]
struct Slot {
    key: Key,
    parent: Inode,
    /// How often the kernel was told of it, less what it forgot.
    lookups: u64,
    /// Slots whose parent this is. FORGETs of a directory and of what is in it may overtake each other on their way
    /// through several threads; the count keeps the directory's number taken until the last child is gone.
    children: u64,
    /// The key has another number from the next reply on.
    retired: bool,
    /// Because this mount has removed what it stands for.
    removed: bool,
}

impl Inodes {
    /// A table that knows the root, whose key is `prefix`.
    pub fn new(prefix: Key) -> Self {
        Self::with_hash(prefix, XxHash3_64::oneshot)
    }

    fn with_hash(prefix: Key, hash: fn(&[u8]) -> u64) -> Self {
        let root = Slot { key: prefix, parent: Inode::ROOT, lookups: 1, children: 0, retired: false, removed: false };
        Self { slots: HashMap::from_iter([(Inode::ROOT.0, root)]), displaced: HashMap::new(), hash, log: None }
    }

    /// Writes down what changes from now on. For an empty table.
    pub fn write_to(&mut self, log: Log) {
        self.log = Some(log);
    }

    /// The table that another process wrote down to `log`.
    ///
    /// # Errors
    /// As [`Log::load`].
    pub fn load(prefix: Key, log: OwnedFd) -> io::Result<Self> {
        let mut table = Self::new(prefix);
        let log = Log::load(log, |what, number, row| table.on_row(what, number, row))?;
        table.relate();
        table.log = Some(log);
        Ok(table)
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

    /// What follows from the slots.
    fn relate(&mut self) {
        let parents: Vec<u64> = self.slots.iter().filter(|&(&number, _)| number != Inode::ROOT.0).map(|(_, slot)| slot.parent.0).collect();
        for parent in parents {
            if let Some(slot) = self.slots.get_mut(&parent) {
                slot.children += 1;
            }
        }
        let displaced = self.slots.iter().filter(|&(&number, slot)| !slot.retired && self.natural(&slot.key) != number);
        self.displaced = displaced.map(|(&number, slot)| (slot.key.clone(), number)).collect();
    }

    /// The memory that the table is written down to.
    pub fn log(&self) -> Option<BorrowedFd<'_>> {
        self.log.as_ref().map(Log::file)
    }

    fn note(&mut self, number: u64) {
        let Self { slots, log: Some(log), .. } = self else { return };
        match slots.get(&number) {
            _ if number == Inode::ROOT.0 => {}
            Some(slot) => slot.write(|parts| log.put(SLOT, number, parts)),
            None => log.delete(SLOT, number),
        }
        if log.is_long() {
            let slots = slots.iter().filter(|&(&number, _)| number != Inode::ROOT.0);
            log.renew(|all| slots.for_each(|(&number, slot)| slot.write(|parts| all.put(SLOT, number, parts))));
        }
    }

    fn note_lookups(&mut self, number: u64, lookups: u64) {
        if let Some(log) = self.log.as_mut().filter(|_| number != Inode::ROOT.0) {
            log.put(LOOKUPS, number, &[&lookups.to_le_bytes()]);
            if log.is_long() {
                self.note(number);
            }
        }
    }

    /// Whether `ino` stands for anything.
    pub fn knows(&self, ino: Inode) -> bool {
        self.slots.contains_key(&ino.0)
    }

    /// Whether its key has another number by now, or nothing: it was unlinked, or replaced while it was open.
    pub fn is_retired(&self, ino: Inode) -> bool {
        self.slots.get(&ino.0).is_none_or(|slot| slot.retired)
    }

    /// What `ino` stands for.
    pub fn get(&self, ino: Inode) -> Option<Node> {
        self.slots.get(&ino.0).map(|slot| Node { key: slot.key.clone(), parent: slot.parent })
    }

    /// The number that `key` has, or would get now: what readdir shows without the kernel remembering it.
    pub fn number(&self, key: &Key) -> Inode {
        if !self.displaced.is_empty()
            && let Some(&number) = self.displaced.get(key)
        {
            return Inode(number);
        }
        let mut number = self.natural(key);
        while self.slots.get(&number).is_some_and(|slot| slot.retired || slot.key != *key) {
            number = not_reserved(number.wrapping_add(1));
        }
        Inode(number)
    }

    /// What is known below a directory.
    pub fn below(&self, directory: &Key) -> impl Iterator<Item = (Inode, Node)> {
        let is_below = |slot: &Slot| slot.key != *directory && slot.key.as_bytes().starts_with(directory.as_bytes());
        let slots = self.slots.iter().filter(move |&(_, slot)| is_below(slot));
        slots.map(|(&number, slot)| (Inode(number), Node { key: slot.key.clone(), parent: slot.parent }))
    }

    /// The kernel is told of `key` once more, as an entry of `parent`.
    pub fn remember(&mut self, parent: Inode, key: &Key) -> Inode {
        let ino = self.number(key);
        match self.slots.entry(ino.0) {
            Entry::Occupied(mut slot) => {
                slot.get_mut().lookups += 1;
                let lookups = slot.get().lookups;
                self.note_lookups(ino.0, lookups);
            }
            Entry::Vacant(slot) => {
                slot.insert(Slot { key: key.clone(), parent, lookups: 1, children: 0, retired: false, removed: false });
                if self.natural(key) != ino.0 {
                    self.displaced.insert(key.clone(), ino.0);
                }
                if let Some(slot) = self.slots.get_mut(&parent.0) {
                    slot.children += 1;
                }
                self.note(ino.0);
            }
        }
        ino
    }

    /// The key of `ino` gets another number from the next reply on; `ino` means what it meant until the kernel forgets it.
    pub fn retire(&mut self, ino: Inode) {
        if ino == Inode::ROOT {
            return;
        }
        let Some(slot) = self.slots.get_mut(&ino.0) else { return };
        slot.retired = true;
        if self.displaced.get(&slot.key) == Some(&ino.0) {
            self.displaced.remove(&slot.key);
        }
        self.note(ino.0);
    }

    /// [`retire`](Self::retire) because the name of `ino` was removed, or given to another, through this mount.
    pub fn remove_name(&mut self, ino: Inode) {
        self.retire(ino);
        if let Some(slot) = self.slots.get_mut(&ino.0) {
            slot.removed = slot.retired;
        }
        self.note(ino.0);
    }

    /// Whether [`remove_name`](Self::remove_name) was called on it.
    pub fn is_removed(&self, ino: Inode) -> bool {
        self.slots.get(&ino.0).is_some_and(|slot| slot.removed)
    }

    /// What had the key `from` has the key `to` now, as an entry of `parent`, under the number that the kernel knows; when it is a
    /// directory everything below it moves along. What had a key at or below `to` is retired.
    pub fn rename(&mut self, from: &Key, parent: Inode, to: &Key) {
        let below = |key: &Key, top: &Key| key == top || top.is_prefix() && key.as_bytes().starts_with(top.as_bytes());
        let live = |slots: &HashMap<u64, Slot, BuildHasherDefault<Identity>>, top: &Key| -> Vec<u64> {
            let found = slots.iter().filter(|&(&number, slot)| number != Inode::ROOT.0 && !slot.retired && below(&slot.key, top));
            found.map(|(&number, _)| number).collect()
        };
        for number in live(&self.slots, to) {
            self.remove_name(Inode(number));
        }
        for number in live(&self.slots, from) {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let key = to.join(&slot.key.as_bytes()[from.as_bytes().len()..]);
            let is_top = slot.key == *from;
            let before = std::mem::replace(&mut slot.key, key.clone());
            if self.displaced.get(&before) == Some(&number) {
                self.displaced.remove(&before);
            }
            if self.natural(&key) != number {
                self.displaced.insert(key, number);
            }
            if is_top {
                self.adopt(Inode(number), parent);
            }
            self.note(number);
        }
    }

    /// `ino` becomes an entry of `parent`.
    fn adopt(&mut self, ino: Inode, parent: Inode) {
        let Some(slot) = self.slots.get_mut(&ino.0) else { return };
        let before = std::mem::replace(&mut slot.parent, parent);
        if let Some(slot) = self.slots.get_mut(&parent.0) {
            slot.children += 1;
        }
        self.lose_child(before);
    }

    fn lose_child(&mut self, parent: Inode) {
        let mut next = Some(parent);
        while let Some(parent) = next {
            if let Some(slot) = self.slots.get_mut(&parent.0) {
                slot.children = slot.children.saturating_sub(1);
            }
            next = self.remove_unused(parent);
        }
    }

    /// The kernel forgets `n` of the times it was told of `ino`.
    pub fn forget(&mut self, ino: Inode, n: u64) {
        if ino == Inode::ROOT {
            return;
        }
        let Some(slot) = self.slots.get_mut(&ino.0) else { return };
        slot.lookups = slot.lookups.saturating_sub(n);
        let lookups = slot.lookups;
        match self.remove_unused(ino) {
            Some(parent) => self.lose_child(parent),
            None => self.note_lookups(ino.0, lookups),
        }
        self.give_memory_back();
    }

    /// How many numbers are known, the root included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Removes `ino` when nothing holds it and says whose child it was.
    fn remove_unused(&mut self, ino: Inode) -> Option<Inode> {
        let slot = self.slots.get(&ino.0)?;
        if ino == Inode::ROOT || slot.lookups > 0 || slot.children > 0 {
            return None;
        }
        let slot = self.slots.remove(&ino.0)?;
        self.note(ino.0);
        // A retired number leaves the entry of its successor alone.
        if self.displaced.get(&slot.key) == Some(&ino.0) {
            self.displaced.remove(&slot.key);
        }
        Some(slot.parent)
    }

    /// After a large tree was walked and forgotten the table would stay as large as it ever was.
    fn give_memory_back(&mut self) {
        if self.slots.capacity() > 4096 && self.slots.len() < self.slots.capacity() / 8 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }

    fn natural(&self, key: &Key) -> u64 {
        if self.slots.get(&Inode::ROOT.0).is_some_and(|root| root.key == *key) {
            return Inode::ROOT.0;
        }
        not_reserved((self.hash)(key.as_bytes()))
    }
}

impl Slot {
    /// As it is written down.
    fn write(&self, put: impl FnOnce(&[&[u8]])) {
        let flags = u64::from(self.retired) | u64::from(self.removed) << 1;
        put(&[&self.parent.0.to_le_bytes(), &self.lookups.to_le_bytes(), &flags.to_le_bytes(), self.key.as_bytes()]);
    }
}

/// 0 means "no inode" in the protocol, 1 is the root, and the last are not for keys.
fn not_reserved(number: u64) -> u64 {
    if (Inode::ROOT.0 + 1..Inode::RESERVED.0).contains(&number) { number } else { 2 }
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
    use proptest::prelude::*;

    use super::*;

    fn table() -> Inodes {
        Inodes::new(Key::root())
    }

    #[test]
    fn a_number_is_the_same_after_a_remount_and_never_reserved() {
        let (mut one, mut two) = (table(), table());
        two.remember(Inode::ROOT, &Key::from("other"));
        assert_eq!(one.remember(Inode::ROOT, &Key::from("a/b")), two.remember(Inode::ROOT, &Key::from("a/b")));
        for hash in [0, 1] {
            let mut table = Inodes::with_hash(Key::root(), if hash == 0 { |_| 0 } else { |_| u64::MAX });
            assert!(table.remember(Inode::ROOT, &Key::from("x")).0 > 1);
            assert!(table.remember(Inode::ROOT, &Key::from("y")).0 > 1);
        }
    }

    #[test]
    fn a_file_and_a_directory_of_one_name_are_two_inodes() {
        let mut table = table();
        let file = table.remember(Inode::ROOT, &Key::from("a"));
        let directory = table.remember(Inode::ROOT, &Key::from("a/"));
        assert_ne!(file, directory);
        assert_eq!(table.get(file).expect("known").kind(), Kind::File);
        assert_eq!(table.get(directory).expect("known").kind(), Kind::Directory);
    }

    #[test]
    fn an_inode_is_gone_when_every_lookup_is_forgotten() {
        let mut table = table();
        let ino = table.remember(Inode::ROOT, &Key::from("a"));
        table.remember(Inode::ROOT, &Key::from("a"));
        table.forget(ino, 1);
        assert!(table.get(ino).is_some());
        table.forget(ino, 1);
        assert!(table.get(ino).is_none());
        table.forget(Inode::ROOT, 99);
        assert!(table.get(Inode::ROOT).is_some());
    }

    #[test]
    fn a_directory_that_is_forgotten_before_its_child_stays_until_the_child_goes() {
        let mut table = table();
        let directory = table.remember(Inode::ROOT, &Key::from("d/"));
        let file = table.remember(directory, &Key::from("d/f"));
        table.forget(directory, 1);
        assert!(table.get(directory).is_some());
        table.forget(file, 1);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_displaced_key_keeps_its_number_when_the_other_key_goes() {
        let mut table = Inodes::with_hash(Key::root(), |_| 7);
        let first = table.remember(Inode::ROOT, &Key::from("first"));
        let second = table.remember(Inode::ROOT, &Key::from("second"));
        assert_eq!((first, second), (Inode(7), Inode(8)));
        table.forget(first, 1);
        assert_eq!(table.number(&Key::from("second")), second);
        assert_eq!(table.remember(Inode::ROOT, &Key::from("second")), second);
    }

    #[test]
    fn a_retired_number_keeps_its_meaning_and_its_key_gets_another() {
        let mut table = table();
        let key = Key::from("a");
        let first = table.remember(Inode::ROOT, &key);
        table.retire(first);
        let second = table.remember(Inode::ROOT, &key);
        table.retire(second);
        let third = table.remember(Inode::ROOT, &key);
        assert!(first != second && second != third && third != first);
        assert_eq!(table.get(first), table.get(third));
        table.forget(first, 1);
        assert_eq!(table.number(&key), third);
        table.forget(third, 1);
        assert_eq!(table.number(&key), first, "its own number is free again");
        table.forget(second, 1);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_renamed_file_keeps_its_number_and_what_it_replaces_loses_its_name() {
        let mut table = table();
        let (a, b) = (Key::from("a"), Key::from("b"));
        let (first, second) = (table.remember(Inode::ROOT, &a), table.remember(Inode::ROOT, &b));
        table.rename(&a, Inode::ROOT, &b);
        assert_eq!(table.number(&b), first);
        assert_eq!(table.get(first).expect("known").key, b);
        assert_eq!(table.get(second).expect("still known to the kernel").key, b);
        let again = table.remember(Inode::ROOT, &a);
        assert!(again != first && again != second);
        table.rename(&b, Inode::ROOT, &a);
        assert_eq!(table.number(&a), first, "back under its own name");
        for ino in [first, second, again] {
            table.forget(ino, 1);
        }
        assert_eq!(table.len(), 1);
        assert!(table.displaced.is_empty());
    }

    #[test]
    fn what_is_in_a_renamed_directory_moves_along() {
        let mut table = table();
        let directory = table.remember(Inode::ROOT, &Key::from("d/"));
        let file = table.remember(directory, &Key::from("d/x/f"));
        let other = table.remember(Inode::ROOT, &Key::from("dx"));
        let target = table.remember(Inode::ROOT, &Key::from("t/"));
        table.rename(&Key::from("d/"), target, &Key::from("t/e/"));
        assert_eq!(table.get(directory).expect("known"), Node { key: Key::from("t/e/"), parent: target });
        assert_eq!(table.get(file).expect("known").key, Key::from("t/e/x/f"));
        assert_eq!(table.get(other).expect("known").key, Key::from("dx"));
        table.forget(target, 1);
        assert!(table.get(target).is_some(), "it holds the other");
        for ino in [file, directory, other] {
            table.forget(ino, 1);
        }
        assert_eq!(table.len(), 1);
        assert!(table.displaced.is_empty());
    }

    fn read_back(table: &Inodes) -> Inodes {
        Inodes::load(Key::root(), table.log().expect("it has one").try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn a_table_is_read_back_with_its_lookups_and_goes_on() {
        let mut table = table();
        table.write_to(Log::new(8 << 20).unwrap());
        let directory = table.remember(Inode::ROOT, &Key::from("d/"));
        for round in 0..200 {
            for number in 0..100 {
                table.remember(directory, &Key::from(format!("d/{number}")));
            }
            assert_eq!(table.len(), 102, "{round}");
        }
        let mut again = read_back(&table);
        assert_eq!((&again.slots, &again.displaced), (&table.slots, &table.displaced));
        let file = again.number(&Key::from("d/7"));
        again.forget(file, 199);
        assert!(again.knows(file));
        again.forget(file, 7);
        assert!(!again.knows(file) && !read_back(&again).knows(file), "more than was counted is no harm");
        again.forget(directory, 1);
        assert!(read_back(&again).knows(directory), "what is in it is known");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Remember { parent: usize, name: u8, directory: bool },
        Forget { which: usize, n: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let remember =
            (any::<usize>(), 0..5u8, any::<bool>()).prop_map(|(parent, name, directory)| Step::Remember { parent, name, directory });
        let forget = (any::<usize>(), 1..4u64).prop_map(|(which, n)| Step::Forget { which, n });
        prop::collection::vec(prop_oneof![remember, forget], 1..80)
    }

    /// The reference: a plain list of what the kernel was told.
    #[derive(Debug)]
    struct Told {
        ino: Inode,
        key: Key,
        parent: Key,
        lookups: u64,
    }

    proptest! {
        #[test]
        fn whatever_happens_is_read_back(steps in prop::collection::vec((0u8..6, 0u8..4, 0u8..4, any::<bool>()), 1..60)) {
            let mut table = table();
            table.write_to(Log::new(1 << 20).unwrap());
            let key = |name: u8, directory| Key::from(format!("{}{}", char::from(b'a' + name), if directory { "/" } else { "" }));
            for (what, one, other, directory) in steps {
                let (from, to) = (key(one, directory), key(other, directory));
                let ino = table.number(&from);
                match what {
                    0..=1 => drop(table.remember(Inode::ROOT, &from)),
                    2 => table.forget(ino, u64::from(other)),
                    3 => table.retire(ino),
                    4 => table.remove_name(ino),
                    _ => table.rename(&from, Inode::ROOT, &to),
                }
                let again = read_back(&table);
                prop_assert_eq!((&again.slots, &again.displaced), (&table.slots, &table.displaced));
            }
        }

        /// With a hash of four values, so that nearly everything collides.
        #[test]
        fn behaves_like_a_list_of_what_the_kernel_was_told(steps in steps()) {
            let mut table = Inodes::with_hash(Key::root(), |key| XxHash3_64::oneshot(key) % 4);
            let mut told = vec![Told { ino: Inode::ROOT, key: Key::root(), parent: Key::root(), lookups: 1 }];
            for step in steps {
                match step {
                    Step::Remember { parent, name, directory } => {
                        let parents: Vec<_> = told.iter().filter(|t| t.key.is_prefix() && t.lookups > 0).collect();
                        let parent = parents[parent % parents.len()];
                        let (parent_ino, parent_key) = (parent.ino, parent.key.clone());
                        let key = parent_key.join(&[b'a' + name]).join(if directory { b"/" } else { b"" });
                        let ino = table.remember(parent_ino, &key);
                        match told.iter_mut().find(|t| t.key == key) {
                            Some(known) => {
                                prop_assert_eq!(known.ino, ino);
                                known.lookups += 1;
                            }
                            None => {
                                prop_assert!(told.iter().all(|t| t.ino != ino), "a number of another key was handed out");
                                told.push(Told { ino, key, parent: parent_key, lookups: 1 });
                            }
                        }
                    }
                    Step::Forget { which, n } => {
                        let index = which % told.len();
                        let n = n.min(told[index].lookups);
                        table.forget(told[index].ino, n);
                        if index > 0 {
                            told[index].lookups -= n;
                        }
                        while let Some(gone) = told.iter().position(|t| t.lookups == 0 && told.iter().all(|c| c.parent != t.key)) {
                            told.remove(gone);
                        }
                    }
                }
                prop_assert_eq!(table.len(), told.len());
                for t in &told {
                    let node = table.get(t.ino).expect("the kernel still knows it");
                    prop_assert_eq!(&node.key, &t.key);
                    prop_assert_eq!(table.number(&t.key), t.ino);
                }
            }
        }
    }
}
