//! Room on the disk: three bounds that hold at the same time, looked at before every growth. It writes nothing itself.
//! Invariant: what is reserved by all that share the ledger never exceeds `max`, and at the moment of each reservation the disk
//! had the free space that is to be kept, with all that was promised but not written yet taken off.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::ledger::{Account, Charge, Ledger};
use crate::units::ByteSize;

/// What is to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Most bytes of ours on the disk; 0: no bound.
    pub max: ByteSize,
    /// So many bytes stay free for others.
    pub ensure_free: ByteSize,
    /// So many per cent of the disk stay free for others.
    pub free_ratio: u8,
}

/// What statvfs(3) tells of a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    pub total: u64,
    /// For those who are not root.
    pub free: u64,
}

impl Disk {
    pub fn of(directory: &Path) -> io::Result<Self> {
        let told = rustix::fs::statvfs(directory)?;
        Ok(Self { total: told.f_blocks.saturating_mul(told.f_frsize), free: told.f_bavail.saturating_mul(told.f_frsize) })
    }
}

/// What the room is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Chunks,
    Staged,
}

/// Frees about so many bytes for that purpose, and says how many it freed.
type MakeRoom = Box<dyn Fn(u64, Purpose) -> u64 + Send + Sync>;

/// The guard of one directory. Clones share what is reserved.
#[derive(Clone)]
pub struct Guard {
    bounds: Bounds,
    ledger: Arc<Ledger>,
    /// What the directory and the files of its own take: nobody reserves them.
    base: u64,
    make_room: Arc<OnceLock<MakeRoom>>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("bounds", &self.bounds).field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

/// Victims are chunks of a few MiB and others take the room meanwhile: tries before a reservation is refused.
const TRIES: usize = 16;

/// One part in so many of what is there may still be allocated for blocks of extents: one block for 16 MiB and some more.
const UNSEEN_SHARE: u64 = 1024;

impl Guard {
    /// For a directory that no other process uses. Nothing is reserved yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, ledger: Arc::new(Ledger::private()), base: 0, make_room: Arc::default() }
    }

    /// For a directory whose users share `ledger`.
    pub(super) fn shared(bounds: Bounds, ledger: Arc<Ledger>, base: u64) -> Self {
        Self { bounds, ledger, base, make_room: Arc::default() }
    }

    /// What is asked for room before a reservation is refused.
    pub(super) fn on_shortage(&self, make_room: impl Fn(u64, Purpose) -> u64 + Send + Sync + 'static) {
        // A second one would be a second engine on this guard: the first stays.
        let _ = self.make_room.set(Box::new(make_room));
    }

    /// Room for `bytes` more in `directory`.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] when a bound would be broken, and what statvfs says.
    pub fn reserve(&self, directory: &Path, bytes: u64) -> io::Result<Reservation> {
        self.reserve_for(directory, bytes, Purpose::Staged)
    }

    /// Chunks have no room ([`io::ErrorKind::WouldBlock`]) while it is not known what is on the disk.
    pub(super) fn reserve_for(&self, directory: &Path, bytes: u64, purpose: Purpose) -> io::Result<Reservation> {
        for tried in 1.. {
            let refused = match self.try_reserve(directory, bytes, purpose)? {
                Ok(()) => break,
                Err(refused) => refused,
            };
            let make_room = self.make_room.get().filter(|_| tried < TRIES);
            if make_room.map_or(0, |make_room| make_room(refused.short, purpose)) == 0 {
                return Err(io::Error::new(io::ErrorKind::StorageFull, refused.why));
            }
        }
        Ok(Reservation { guard: self.clone(), purpose, pending: bytes })
    }

    fn try_reserve(&self, directory: &Path, bytes: u64, purpose: Purpose) -> io::Result<Result<(), Refused>> {
        if bytes == 0 {
            return Ok(Ok(()));
        }
        self.ledger.change(|account| {
            if purpose == Purpose::Chunks && !account.settled {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // Under the lock, so that two reservations do not both count on the same free bytes. It is a call of microseconds.
            let disk = Disk::of(directory)?;
            // Blocks of extents are allocated when data is written back: statvfs does not know of them, and what we charge does.
            let unseen = if self.base == 0 { 0 } else { self.base + account.used() / UNSEEN_SHARE };
            let admitted = self.bounds.admit(account.used() + self.base, account.pending + unseen, disk, bytes);
            if admitted.is_ok() {
                *field(account, purpose) += bytes;
                *own(account, purpose) += bytes;
                account.pending += bytes;
            }
            Ok(admitted)
        })?
    }

    /// Bytes that were written under reservations are gone from the disk. They go on counting when the ledger cannot be written.
    pub fn release(&self, bytes: u64) {
        let _ = self.ledger.change(|account| account.staged = account.staged.saturating_sub(bytes));
    }

    /// Counts bytes that are on the disk already, left by an earlier process. A shared ledger counts them still.
    pub fn adopt(&self, bytes: u64) {
        if let Ledger::Private(account) = &*self.ledger {
            account.lock().staged += bytes;
        }
    }

    /// Bytes on the disk, or about to be; 0 when the ledger cannot be read.
    pub fn reserved_bytes(&self) -> u64 {
        self.ledger.change(|account| account.used()).unwrap_or(0)
    }
}

fn own(account: &mut Account, purpose: Purpose) -> &mut u64 {
    match purpose {
        Purpose::Chunks => &mut account.own.chunks,
        Purpose::Staged => &mut account.own.staged,
    }
}

/// `bytes` are not pending any more.
fn settle(account: &mut Account, purpose: Purpose, bytes: u64) {
    account.pending = account.pending.saturating_sub(bytes);
    let own = own(account, purpose);
    *own = own.saturating_sub(bytes);
}

fn field(account: &mut Account, purpose: Purpose) -> &mut u64 {
    match purpose {
        Purpose::Chunks => &mut account.chunks,
        Purpose::Staged => &mut account.staged,
    }
}

/// Which bound forbids it, and how many bytes less would be allowed.
#[derive(Debug)]
struct Refused {
    why: String,
    short: u64,
}

impl Bounds {
    /// How many bytes of a disk of that size are to stay free.
    pub(super) fn free_bytes(&self, total: u64) -> u64 {
        // u128, so that nothing wraps; up, so that the bound holds to the byte.
        let share = (u128::from(total) * u128::from(self.free_ratio)).div_ceil(100);
        self.ensure_free.as_u64().max(u64::try_from(share).unwrap_or(u64::MAX))
    }

    /// Whether `bytes` more may be written, when `used` are ours and `pending` of them are not on the disk yet.
    fn admit(&self, used: u64, pending: u64, disk: Disk, bytes: u64) -> Result<(), Refused> {
        let max = self.max.as_u64();
        let over = used.saturating_add(bytes).saturating_sub(max);
        if max > 0 && over > 0 {
            let why = format!("{} of at most {} are in use", ByteSize::bytes(used), self.max);
            return Err(Refused { why, short: over });
        }
        let (wanted, kept) = (pending.saturating_add(bytes), self.free_bytes(disk.total));
        let short = wanted.saturating_add(kept).saturating_sub(disk.free);
        if short == 0 {
            return Ok(());
        }
        let why = if wanted > disk.free {
            "the disk is full".into()
        } else if kept > self.ensure_free.as_u64() {
            format!("{} % of the disk are kept free", self.free_ratio)
        } else {
            format!("{} of the disk are kept free", self.ensure_free)
        };
        Err(Refused { why, short })
    }
}

/// Room that was granted. Dropping it gives back what was not [`written`](Self::written).
#[derive(Debug)]
#[must_use = "the room is given back when this is dropped"]
pub struct Reservation {
    guard: Guard,
    purpose: Purpose,
    pending: u64,
}

impl Reservation {
    /// The bytes are on the disk, for statvfs to see; they count until [`Guard::release`].
    pub fn written(mut self) {
        let bytes = std::mem::take(&mut self.pending);
        let _ = self.guard.ledger.change(|account| settle(account, self.purpose, bytes));
    }

    /// The object for which it was reserved takes `bytes` now, and was charged `old` before.
    pub(super) fn charged(mut self, old: Charge, bytes: u64) -> io::Result<Charge> {
        let reserved = self.pending;
        let (purpose, ledger) = (self.purpose, self.guard.ledger.clone());
        let charge = ledger.change(|account| {
            give_back(account, purpose, reserved);
            account.recharge(old, bytes)
        })?;
        self.pending = 0;
        Ok(charge)
    }
}

fn give_back(account: &mut Account, purpose: Purpose, bytes: u64) {
    settle(account, purpose, bytes);
    let field = field(account, purpose);
    *field = field.saturating_sub(bytes);
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.pending > 0 {
            let _ = self.guard.ledger.change(|account| give_back(account, self.purpose, self.pending));
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    const DISK: Disk = Disk { total: 1000, free: 400 };

    fn admits(bounds: Bounds, reserved: u64, pending: u64, bytes: u64) -> bool {
        bounds.admit(reserved, pending, DISK, bytes).is_ok()
    }

    #[test]
    fn every_bound_holds_to_the_byte() {
        let max = Bounds { max: ByteSize::bytes(100), ..Bounds::default() };
        assert!(admits(max, 40, 0, 60) && !admits(max, 40, 0, 61));
        let free = Bounds { ensure_free: ByteSize::bytes(150), ..Bounds::default() };
        assert!(admits(free, 0, 0, 250) && !admits(free, 0, 0, 251));
        let ratio = Bounds { free_ratio: 10, ..Bounds::default() };
        assert!(admits(ratio, 0, 0, 300) && !admits(ratio, 0, 0, 301));
        assert!(admits(Bounds::default(), 0, 0, 400) && !admits(Bounds::default(), 0, 0, 401));
    }

    #[test]
    fn what_is_promised_to_others_is_not_free() {
        let free = Bounds { ensure_free: ByteSize::bytes(150), ..Bounds::default() };
        assert!(admits(free, 500, 200, 50) && !admits(free, 500, 200, 51));
    }

    #[test]
    fn the_tightest_bound_decides() {
        let all = Bounds { max: ByteSize::bytes(300), ensure_free: ByteSize::bytes(120), free_ratio: 20 };
        assert!(admits(all, 0, 0, 200) && !admits(all, 0, 0, 201));
        assert!(!admits(all, 250, 0, 51));
    }

    #[test]
    fn a_full_disk_has_its_own_error_and_room_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let guard = Guard::new(Bounds { max: ByteSize::bytes(100), ..Bounds::default() });
        guard.reserve(directory.path(), 70).unwrap().written();
        let dropped = guard.reserve(directory.path(), 30).unwrap();
        assert_eq!(guard.reserve(directory.path(), 1).unwrap_err().kind(), io::ErrorKind::StorageFull);
        drop(dropped);
        assert_eq!(guard.reserved_bytes(), 70);
        guard.release(70);
        guard.reserve(directory.path(), 100).unwrap().written();
        assert_eq!((guard.reserved_bytes(), guard.ledger.change(|account| account.pending).unwrap()), (100, 0));
    }

    #[test]
    fn what_makes_room_is_asked_for_what_is_short_until_it_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let guard = Guard::new(Bounds { max: ByteSize::bytes(100), ..Bounds::default() });
        let (asked, weak) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&guard.ledger));
        let seen = asked.clone();
        guard.on_shortage(move |short, purpose| {
            seen.lock().push((short, purpose));
            let ledger = weak.upgrade().unwrap();
            let evict = |account: &mut Account| {
                let bytes = account.chunks.min(30);
                account.chunks -= bytes;
                bytes
            };
            ledger.change(evict).unwrap()
        });
        guard.reserve_for(directory.path(), 90, Purpose::Chunks).unwrap().charged(Charge::default(), 90).unwrap();
        guard.reserve(directory.path(), 50).unwrap().written();
        assert_eq!(*asked.lock(), [(40, Purpose::Staged), (10, Purpose::Staged)]);
        assert_eq!(guard.reserve(directory.path(), 100).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(guard.reserved_bytes(), 50);
    }

    #[test]
    fn a_disk_that_is_gone_is_an_error() {
        assert!(Guard::new(Bounds::default()).reserve(Path::new("/no/such/directory"), 1).is_err());
    }
}
