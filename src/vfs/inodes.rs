//! The inode table: which numbers the kernel knows, and which keys they stand for. Pure: it holds no lock, asks no
//! store and knows no attributes. How long a number stays, and what is written down of it, is the business of its slot. Invariant: a number
//! means one key from the first reply that told it to the kernel until the kernel has forgotten it and everything below it, so the table is
//! as large as the kernel's own.

mod slots;

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use twox_hash::XxHash3_64;

use crate::lasting::Log;
use crate::store::Key;
use slots::{Slot, Slots};

/// The number of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode(pub u64);

impl Inode {
    /// The root of the mount (`FUSE_ROOT_ID`).
    pub const ROOT: Self = Self(1);

    /// No number: the kernel is told that a name is there, and has to look it up to learn more (`fuse_direntplus_link`).
    pub const NONE: Self = Self(0);

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
    slots: Slots,
    /// Keys whose own number was taken by another key when they came. Nearly always empty.
    displaced: HashMap<Key, Inode>,
    hash: fn(&[u8]) -> u64,
}

impl Inodes {
    /// A table that knows the root, whose key is `prefix`.
    pub fn new(prefix: Key) -> Self {
        Self::with_hash(prefix, XxHash3_64::oneshot)
    }

    fn with_hash(prefix: Key, hash: fn(&[u8]) -> u64) -> Self {
        Self { slots: Slots::new(prefix), displaced: HashMap::new(), hash }
    }

    /// Writes down what changes from now on. For an empty table.
    pub fn write_to(&mut self, log: Log) {
        self.slots.write_to(log);
    }

    /// The table that another process wrote down to `log`.
    ///
    /// # Errors
    /// As [`Log::load`].
    pub fn load(prefix: Key, log: OwnedFd) -> io::Result<Self> {
        let mut table = Self::new(prefix.clone());
        table.slots = Slots::load(prefix, log)?;
        let displaced = table.slots.iter().filter(|&(ino, slot)| !slot.retired && table.natural(&slot.key) != ino);
        table.displaced = displaced.map(|(ino, slot)| (slot.key.clone(), ino)).collect();
        Ok(table)
    }

    /// The memory that the table is written down to.
    pub fn log(&self) -> Option<BorrowedFd<'_>> {
        self.slots.log()
    }

    /// Whether `ino` stands for anything.
    pub fn knows(&self, ino: Inode) -> bool {
        self.slots.get(ino).is_some()
    }

    /// Whether its key has another number by now, or nothing: it was unlinked, or replaced while it was open.
    pub fn is_retired(&self, ino: Inode) -> bool {
        self.slots.get(ino).is_none_or(|slot| slot.retired)
    }

    /// What `ino` stands for.
    pub fn get(&self, ino: Inode) -> Option<Node> {
        self.slots.get(ino).map(Slot::node)
    }

    /// The table, while `path` (with its `/` or without) is an entry of what `parent` stands for. After a rename of `parent` it is not, and what
    /// would be remembered of it would be of a key that the kernel does not mean.
    pub fn of_parent(&mut self, parent: Inode, path: &Key) -> Option<&mut Self> {
        let slot = self.slots.get(parent)?;
        let name = path.as_bytes().strip_prefix(slot.key.as_bytes())?;
        let name = name.strip_suffix(b"/").unwrap_or(name);
        (!name.is_empty() && !name.contains(&b'/')).then_some(self)
    }

    /// The number that `key` has, or would get now: what readdir shows without the kernel remembering it.
    pub fn number(&self, key: &Key) -> Inode {
        if !self.displaced.is_empty()
            && let Some(&ino) = self.displaced.get(key)
        {
            return ino;
        }
        let mut ino = self.natural(key);
        while self.slots.get(ino).is_some_and(|slot| slot.retired || slot.key != *key) {
            ino = not_reserved(ino.0.wrapping_add(1));
        }
        ino
    }

    /// What is known below a directory.
    pub fn below(&self, directory: &Key) -> impl Iterator<Item = (Inode, Node)> {
        let is_below = |slot: &Slot| slot.key != *directory && slot.key.as_bytes().starts_with(directory.as_bytes());
        self.slots.iter().filter(move |&(_, slot)| is_below(slot)).map(|(ino, slot)| (ino, slot.node()))
    }

    /// The kernel is told of `key` once more, as an entry of `parent`.
    pub fn remember(&mut self, parent: Inode, key: &Key) -> Inode {
        let ino = self.number(key);
        if !self.slots.look_up(ino) {
            self.slots.add(ino, key.clone(), parent);
            if self.natural(key) != ino {
                self.displaced.insert(key.clone(), ino);
            }
        }
        ino
    }

    /// The key of `ino` gets another number from the next reply on; `ino` means what it meant until the kernel forgets it.
    pub fn retire(&mut self, ino: Inode) {
        if ino == Inode::ROOT {
            return;
        }
        let Self { slots, displaced, .. } = self;
        slots.change(ino, |slot| {
            slot.retired = true;
            give_up(displaced, &slot.key, ino);
        });
    }

    /// [`retire`](Self::retire) because the name of `ino` was removed, or given to another, through this mount.
    pub fn remove_name(&mut self, ino: Inode) {
        self.retire(ino);
        self.slots.change(ino, |slot| slot.removed = slot.retired);
    }

    /// Whether [`remove_name`](Self::remove_name) was called on it.
    pub fn is_removed(&self, ino: Inode) -> bool {
        self.slots.get(ino).is_some_and(|slot| slot.removed)
    }

    /// What had the key `from` has the key `to` now, as an entry of `parent`, under the number that the kernel knows; when it is a
    /// directory everything below it moves along. What had a key at or below `to` is retired.
    pub fn rename(&mut self, from: &Key, parent: Inode, to: &Key) {
        for ino in self.live(to) {
            self.remove_name(ino);
        }
        for ino in self.live(from) {
            let renamed = self.slots.change(ino, |slot| {
                let key = to.join(&slot.key.as_bytes()[from.as_bytes().len()..]);
                (std::mem::replace(&mut slot.key, key.clone()), key)
            });
            let Some((before, key)) = renamed else { continue };
            give_up(&mut self.displaced, &before, ino);
            if self.natural(&key) != ino {
                self.displaced.insert(key, ino);
            }
            if before == *from {
                let Self { slots, displaced, .. } = self;
                slots.adopt(ino, parent, |ino, slot| give_up(displaced, &slot.key, ino));
            }
        }
    }

    /// The numbers of what is known at `top`, or below it when it is a directory.
    fn live(&self, top: &Key) -> Vec<Inode> {
        let below = |key: &Key| key == top || top.is_prefix() && key.as_bytes().starts_with(top.as_bytes());
        let found = self.slots.iter().filter(|&(ino, slot)| ino != Inode::ROOT && !slot.retired && below(&slot.key));
        found.map(|(ino, _)| ino).collect()
    }

    /// The kernel forgets `n` of the times it was told of `ino`.
    pub fn forget(&mut self, ino: Inode, n: u64) {
        let Self { slots, displaced, .. } = self;
        slots.forget(ino, n, |ino, slot| give_up(displaced, &slot.key, ino));
    }

    /// How many numbers are known, the root included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    fn natural(&self, key: &Key) -> Inode {
        if self.slots.get(Inode::ROOT).is_some_and(|root| root.key == *key) {
            return Inode::ROOT;
        }
        not_reserved((self.hash)(key.as_bytes()))
    }
}

/// `key` is not displaced to `ino` any more. A retired number leaves the entry of its successor alone.
fn give_up(displaced: &mut HashMap<Key, Inode>, key: &Key, ino: Inode) {
    if displaced.get(key) == Some(&ino) {
        displaced.remove(key);
    }
}

/// 0 means "no inode" in the protocol, 1 is the root, and the last are not for keys.
fn not_reserved(number: u64) -> Inode {
    if (Inode::ROOT.0 + 1..Inode::RESERVED.0).contains(&number) { Inode(number) } else { Inode(2) }
}

#[cfg(test)]
mod tests;
