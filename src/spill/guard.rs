//! Room on the disk: three bounds that hold at the same time, looked at before every growth. It writes nothing itself.
//! Invariant: what is reserved never exceeds `max`, and at the moment of each reservation the disk had the free space that is
//! to be kept, with all that was promised but not written yet taken off.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

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
struct Disk {
    total: u64,
    /// For those who are not root.
    free: u64,
}

impl Disk {
    fn of(directory: &Path) -> io::Result<Self> {
        let told = rustix::fs::statvfs(directory)?;
        Ok(Self { total: told.f_blocks.saturating_mul(told.f_frsize), free: told.f_bavail.saturating_mul(told.f_frsize) })
    }
}

/// The guard of one directory. Clones share what is reserved.
#[derive(Clone, Debug)]
pub struct Guard {
    bounds: Bounds,
    use_of_disk: Arc<Mutex<Use>>,
}

#[derive(Debug, Default)]
struct Use {
    /// On the disk, or about to be.
    reserved: u64,
    /// The part of it that statvfs cannot know of yet.
    pending: u64,
}

impl Guard {
    /// Nothing reserved yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, use_of_disk: Arc::default() }
    }

    /// Room for `bytes` more in `directory`.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] when a bound would be broken, and what statvfs says.
    pub fn reserve(&self, directory: &Path, bytes: u64) -> io::Result<Reservation> {
        if bytes > 0 {
            let mut use_of_disk = self.use_of_disk.lock();
            // Under the lock, so that two reservations do not both count on the same free bytes. It is a call of microseconds.
            let disk = Disk::of(directory)?;
            self.bounds.admit(&use_of_disk, disk, bytes).map_err(|why| io::Error::new(io::ErrorKind::StorageFull, why))?;
            use_of_disk.reserved += bytes;
            use_of_disk.pending += bytes;
        }
        Ok(Reservation { guard: self.clone(), pending: bytes })
    }

    /// Bytes that were written under reservations are gone from the disk.
    pub fn release(&self, bytes: u64) {
        let mut use_of_disk = self.use_of_disk.lock();
        use_of_disk.reserved = use_of_disk.reserved.saturating_sub(bytes);
    }

    /// Counts bytes that are on the disk already, left by an earlier process.
    pub fn adopt(&self, bytes: u64) {
        self.use_of_disk.lock().reserved += bytes;
    }

    /// Bytes on the disk, or about to be.
    pub fn reserved_bytes(&self) -> u64 {
        self.use_of_disk.lock().reserved
    }
}

impl Bounds {
    /// Whether `bytes` more may be written, or which bound forbids it.
    fn admit(&self, used: &Use, disk: Disk, bytes: u64) -> Result<(), String> {
        let max = self.max.as_u64();
        if max > 0 && used.reserved.saturating_add(bytes) > max {
            return Err(format!("{} of at most {} are in use", ByteSize::bytes(used.reserved), self.max));
        }
        let left = disk.free.checked_sub(used.pending).and_then(|free| free.checked_sub(bytes));
        let Some(left) = left else { return Err("the disk is full".into()) };
        if left < self.ensure_free.as_u64() {
            return Err(format!("{} of the disk are kept free", self.ensure_free));
        }
        // Multiplied instead of divided, so that nothing is rounded; u128, so that nothing wraps.
        if u128::from(left) * 100 < u128::from(disk.total) * u128::from(self.free_ratio) {
            return Err(format!("{} % of the disk are kept free", self.free_ratio));
        }
        Ok(())
    }
}

/// Room that was granted. Dropping it gives back what was not [`written`](Self::written).
#[derive(Debug)]
#[must_use = "the room is given back when this is dropped"]
pub struct Reservation {
    guard: Guard,
    pending: u64,
}

impl Reservation {
    /// The bytes are on the disk, for statvfs to see; they count until [`Guard::release`].
    pub fn written(mut self) {
        let bytes = std::mem::take(&mut self.pending);
        self.guard.use_of_disk.lock().pending -= bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.pending > 0 {
            let mut use_of_disk = self.guard.use_of_disk.lock();
            use_of_disk.pending -= self.pending;
            use_of_disk.reserved -= self.pending;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Disk = Disk { total: 1000, free: 400 };

    fn admits(bounds: Bounds, reserved: u64, pending: u64, bytes: u64) -> bool {
        bounds.admit(&Use { reserved, pending }, DISK, bytes).is_ok()
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
        assert_eq!((guard.reserved_bytes(), guard.use_of_disk.lock().pending), (100, 0));
    }

    #[test]
    fn a_disk_that_is_gone_is_an_error() {
        assert!(Guard::new(Bounds::default()).reserve(Path::new("/no/such/directory"), 1).is_err());
    }
}
