//! Memory that outlives the process: a file without a name (memfd_create(2)) whose size nobody can change, mapped by whoever writes to it. What
//! was written is there for the next one however this process ends, since the pages belong to the file. It knows nothing of what lies there.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Whoever maps it relies on its size: behind the end of a file that was cut there is SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// See the module. Pages that were never written to take no memory.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: a mapping is plain memory without thread affinity; `SharedMemory` owns it and hands out no references into it.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; the shared methods only read copies.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// `len` bytes of zeros.
    ///
    /// # Errors
    /// When there is no room for the mapping, or no descriptor.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = memfd_create("windlass", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Self::of(file)
    }

    /// What another process wrote.
    ///
    /// # Errors
    /// When it is no such memory.
    pub fn of(file: OwnedFd) -> io::Result<Self> {
        let size = fstat(&file)?.st_size;
        let len = usize::try_from(size).ok().filter(|&len| len > 0).ok_or(io::ErrorKind::InvalidData)?;
        if !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its size is not sealed"));
        }
        // SAFETY: the kernel chooses a range that nobody uses; the file is at least so long for ever, by its seals.
        let start = unsafe { mmap(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0)? };
        let start = NonNull::new(start.cast()).expect("a mapping is never at address 0");
        Ok(Self { start, len, file })
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The file, for another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes `bytes` at `at`. Panics when they do not fit.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "outside of the memory");
        // SAFETY: the range lies in the mapping, by the line above, and nobody has a reference into it: it is only copied from and to.
        unsafe { self.start.add(at).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Fills `into` from `at` on. Panics when there is not so much.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at <= self.len && into.len() <= self.len - at, "outside of the memory");
        // SAFETY: as for `write`; a process that still writes would be seen half way, which is an answer as good as any other.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(self.start.add(at).as_ptr(), into.len()) };
    }

    /// Writes a number after everything that was written before: who finds it finds that too.
    pub fn publish(&mut self, at: usize, number: u64) {
        self.word(at).store(number, Ordering::Release);
    }

    /// A number that was published.
    pub fn published(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at <= self.len - 8, "outside of the memory");
        // SAFETY: it lies in the mapping, which is aligned to pages, and lives as long as `self`; words that are published are only used so.
        unsafe { &*self.start.add(at).as_ptr().cast::<AtomicU64>() }
    }

    /// Gives the memory of `range` back: it is zeros from then on.
    ///
    /// # Errors
    /// What fallocate(2) says.
    pub fn give_back(&mut self, range: Range<usize>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, range.start as u64, (range.end - range.start) as u64)?)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a reference into it.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "a mapping of ours can be taken away");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_there_for_who_has_the_file() {
        let mut memory = SharedMemory::new(1 << 30).unwrap();
        memory.write(5000, b"abc");
        memory.publish(16, 7);
        let file = memory.file().try_clone_to_owned().unwrap();
        drop(memory);
        let mut again = SharedMemory::of(file).unwrap();
        let mut bytes = [0; 4];
        again.read(5000, &mut bytes);
        assert_eq!((&bytes, again.published(16), again.len()), (b"abc\0", 7, 1 << 30));
        again.give_back(4096..8192).unwrap();
        again.read(5000, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn memory_whose_size_could_change_is_refused() {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert!(SharedMemory::of(file).is_err());
        assert!(SharedMemory::of(tempfile::tempfile().unwrap().into()).is_err());
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn nothing_is_written_behind_the_end() {
        SharedMemory::new(4096).unwrap().write(4090, &[0; 7]);
    }
}
