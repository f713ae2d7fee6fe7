//! Acts on what eviction decides, so that there is room: when a reservation is short of it, and about once a second before one is.
//! Invariant: room is counted as free when it is.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::entry::{Removed, Taken, Turn};
use super::files;
use super::format::Name;
use super::guard::{Disk, Purpose};
use super::ledger::Account;
use super::{ChunkId, Engine};
use crate::units::ByteSize;

/// Free room above the bounds, so that a reservation seldom waits for eviction: this, or one part in so many if that is less.
const MARGIN: ByteSize = ByteSize::mib(64);
const MARGIN_SHARE: u64 = 50;
/// Victims that are spared, because somebody else has them, before it is given up: 16 GiB that the kernel reads.
const SPARED: usize = 4096;
/// At most so often is the directory looked through for what other processes added.
const RESCAN_EVERY: Duration = Duration::from_secs(10);

/// How the eviction of one chunk went.
enum Evicted {
    Freed(u64),
    /// Somebody else changes the object.
    Busy,
    /// The kernel reads the object from its file, or has it mapped for somebody.
    Held,
}

fn margin(of: u64) -> u64 {
    MARGIN.as_u64().min(of / MARGIN_SHARE)
}

impl Engine {
    /// Frees about `bytes`, and says how many it freed.
    pub(super) fn make_room(&self, bytes: u64, purpose: Purpose) -> u64 {
        let (freed, held) = self.evict(bytes);
        // A writer must go on; a chunk that finds no room is not kept.
        if freed < bytes && purpose == Purpose::Staged {
            self.take_names(&held, bytes - freed);
        }
        freed
    }

    /// Evicts until `bytes` are free or there are no victims. Also the objects that were spared because they are held.
    fn evict(&self, bytes: u64) -> (u64, Vec<Name>) {
        let (mut freed, mut spared, mut held, mut taken) = (0, Vec::new(), Vec::new(), HashSet::new());
        while freed < bytes && spared.len() < SPARED {
            let Some((id, weight)) = self.index.lock().victim() else {
                self.wants_rescan();
                break;
            };
            if taken.contains(&id.name) {
                spared.push((id, weight));
                continue;
            }
            match self.evict_chunk(id) {
                Ok(Evicted::Freed(more)) => {
                    freed += more;
                    self.count_evicted(more > 0);
                }
                Ok(Evicted::Busy) => {
                    spared.push((id, weight));
                    taken.insert(id.name);
                }
                Ok(Evicted::Held) => {
                    spared.push((id, weight));
                    held.push(id.name);
                    taken.insert(id.name);
                }
                // What cannot be evicted would be the next victim again: the next scan finds it.
                Err(error) => self.trouble.tell("evicting", &self.layout.file(id.name, files::MAP), &error),
            }
        }
        let mut index = self.index.lock();
        for (id, weight) in spared {
            index.on_spared(id, weight);
        }
        (freed, held)
    }

    fn evict_chunk(&self, id: ChunkId) -> io::Result<Evicted> {
        let Some(entry) = self.entry_on_disk(id.name)? else { return Ok(Evicted::Freed(0)) };
        let chunk = u64::from(id.chunk);
        let locked = match entry.lock(&self.layout)? {
            Turn::Locked(locked) if chunk < entry.chunks() => locked,
            Turn::Contended => return Ok(Evicted::Busy),
            Turn::Locked(_) | Turn::Gone => return Ok(Evicted::Freed(0)),
        };
        if locked.take_data()? != Taken::Free {
            return Ok(Evicted::Held);
        }
        let (before, gone) = (locked.pair.kept_bytes()?, locked.kept_in(chunk)?.next_multiple_of(self.block_bytes));
        // The slots first, so that nobody takes a hole for damage.
        let punched = locked
            .pair
            .clear_slots(entry.header(), &entry.pieces_of(chunk))
            .map(|()| locked.pair.punch(&entry.bytes_of(chunk)).is_ok())
            .and_then(|punched| Ok(punched && !locked.is_empty()?));
        locked.let_data_go();
        if punched? {
            return Ok(Evicted::Freed(locked.recharge(&self.ledger, before.saturating_sub(gone))?));
        }
        // Nothing is left of it, or the file system knows no holes.
        match self.remove(&entry, locked)? {
            Removed::Freed(bytes) => Ok(Evicted::Freed(bytes)),
            Removed::Lingers(_) => Ok(Evicted::Freed(0)),
        }
    }

    /// Takes the names of held objects, so that their room is free as soon as they are closed.
    fn take_names(&self, held: &[Name], bytes: u64) {
        let mut coming = self.ledger.change(|account| account.lingering).unwrap_or(0);
        for name in held {
            if coming >= bytes {
                break;
            }
            match self.remove_named(*name) {
                Ok(Some(Removed::Lingers(more) | Removed::Freed(more))) => coming += more,
                Ok(None) => (),
                Err(error) => self.trouble.tell("evicting", &self.layout.file(*name, files::MAP), &error),
            }
        }
    }

    /// See [`Spill::on_time`](super::Spill::on_time).
    pub(super) fn keep_up(&self, now: Instant) {
        if let Err(error) = self.come_in() {
            self.trouble.tell("its place on the directory", self.layout.root(), &error);
            return;
        }
        self.close_removed();
        if self.rescan_is_due(now) {
            // Who is alone counts: somebody may have removed files.
            self.membership.leave();
            if let Err(error) = self.come_in() {
                self.trouble.tell("its place on the directory", self.layout.root(), &error);
                return;
            }
            self.scan();
        } else if self.membership.is_counting() {
            self.scan();
        }
        match self.short_of() {
            Ok((room, free)) => {
                let (freed, held) = self.evict(room.max(free));
                // Only what other programs need is worth the names of what is being read.
                self.take_names(&held, free.saturating_sub(freed));
            }
            Err(error) => self.trouble.tell("its bounds", self.layout.root(), &error),
        }
    }

    fn come_in(&self) -> io::Result<()> {
        self.membership.check(&self.ledger)?;
        if self.membership.is_out() {
            self.membership.join(&self.layout, &self.ledger, false)?;
        }
        if self.ledger.settle_dead()? > 0 {
            // It may have written pieces that it did not charge.
            self.wants_rescan();
        }
        Ok(())
    }

    /// By how many bytes `max` and the free space, each with its margin, are missed.
    fn short_of(&self) -> io::Result<(u64, u64)> {
        let disk = Disk::of(self.layout.root())?;
        let look = |account: &mut Account| (account.settled, account.used() + self.base_bytes, account.pending);
        let (settled, used, pending) = self.ledger.change(look)?;
        let max = self.bounds.max.as_u64();
        // What a killed process left in the ledger is no reason to evict.
        let over = if max == 0 || !settled { 0 } else { used.saturating_add(margin(max)).saturating_sub(max) };
        let kept = self.bounds.free_bytes(disk.total).saturating_add(margin(disk.total));
        Ok((over, kept.saturating_add(pending).saturating_sub(disk.free)))
    }

    /// There is nothing left to evict that this process knows of: others may have added something.
    fn wants_rescan(&self) {
        self.rescan.lock().wanted = true;
    }

    fn rescan_is_due(&self, now: Instant) -> bool {
        let (known, evictions) = (self.known(), self.counters.evictions.load(Ordering::Relaxed));
        let mut rescan = self.rescan.lock();
        // Whoever evicts and knows little of what is there evicts its own, and spares what others added.
        let wanted = rescan.wanted || evictions > rescan.evictions && known.is_less_than(rescan.known);
        let due = wanted && rescan.last.is_none_or(|last| now.saturating_duration_since(last) >= RESCAN_EVERY);
        if due {
            (rescan.wanted, rescan.last) = (false, Some(now));
        }
        due
    }

    /// A scan was through: this is as much as can be known.
    pub(super) fn on_scanned(&self) {
        let (known, evictions) = (self.known(), self.counters.evictions.load(Ordering::Relaxed));
        let mut rescan = self.rescan.lock();
        (rescan.known, rescan.evictions) = (known, evictions);
    }

    fn known(&self) -> Known {
        let indexed = self.index.lock().bytes();
        Known { indexed, charged: self.ledger.change(|account| account.chunks).unwrap_or(0) }
    }
}

/// How much of what is charged is in the index. Charges are larger: blocks are not filled.
#[derive(Clone, Copy, Debug)]
struct Known {
    indexed: u64,
    charged: u64,
}

impl Known {
    /// Whether the share of what is known is less than three quarters of what it was.
    fn is_less_than(self, before: Self) -> bool {
        let product = |one: u64, two: u64, times: u128| u128::from(one) * u128::from(two) * times;
        product(self.indexed, before.charged, 4) < product(before.indexed, self.charged, 3)
    }
}

/// When the directory was looked through for what others added, and whether it is to be done again.
#[derive(Debug)]
pub(super) struct Rescan {
    wanted: bool,
    last: Option<Instant>,
    /// At the end of the last scan.
    known: Known,
    evictions: u64,
}

impl Default for Rescan {
    fn default() -> Self {
        // Before the first scan everything should be known: what is charged is what this process added.
        Self { wanted: false, last: None, known: Known { indexed: 1, charged: 1 }, evictions: 0 }
    }
}
