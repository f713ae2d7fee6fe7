//! Anonymous memory outside the allocator, so that a released buffer goes back to the kernel at once and large
//! ones sit on huge pages (replying from 2 MiB pages costs half the CPU of replying from 4 KiB pages).

use std::io;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size and alignment of a transparent huge page on the machines we run on.
pub const HUGE_PAGE: usize = 2 << 20;

/// An owned, private, zero-initialised mapping.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory without thread affinity; `Memory` owns it and hands out no references itself.
unsafe impl Send for Memory {}
// SAFETY: as above; the shared methods only return the address and the length.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` bytes (a multiple of 4096). From 2 MiB on the mapping is aligned to huge pages and asks for them.
    ///
    /// # Errors
    /// ENOMEM when the kernel has none or the process has too many mappings.
    pub fn map(len: usize) -> io::Result<Self> {
        assert!(len > 0 && len.is_multiple_of(4096), "a mapping is a whole number of pages");
        if len < HUGE_PAGE {
            return Ok(Self { start: map(len)?, len });
        }
        // Over-allocate by one huge page and trim both ends: mmap aligns to 4 KiB only.
        let padded = map(len + HUGE_PAGE)?;
        let lead = padded.align_offset(HUGE_PAGE);
        // SAFETY: lead < HUGE_PAGE because the address is at least byte aligned, so start and end stay inside `padded`.
        let start = unsafe { padded.add(lead) };
        // SAFETY: as above: len bytes from start end inside the padded mapping.
        let end = unsafe { start.add(len) };
        unmap(padded, lead);
        unmap(end, HUGE_PAGE - lead);
        // SAFETY: the range is ours; the advice changes no content. Failure only means small pages.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(Self { start, len })
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping is empty: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address of the first byte, for code in this module that upholds aliasing itself.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

// For `front` and `Window`, which take what holds a mapping.
impl AsRef<Memory> for Memory {
    fn as_ref(&self) -> &Memory {
        self
    }
}

impl AsMut<Memory> for Memory {
    fn as_mut(&mut self) -> &mut Memory {
        self
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unmap(self.start, self.len);
    }
}

fn map(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
    let address = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
    Ok(NonNull::new(address.cast()).expect("mmap without MAP_FIXED never returns the null page"))
}

fn unmap(start: NonNull<u8>, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: callers own the range and use it no more. An error would mean a wrong range, which is a bug here.
    let result = unsafe { munmap(start.as_ptr().cast(), len) };
    debug_assert!(result.is_ok(), "munmap of an owned range failed: {result:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_mappings_are_aligned_to_huge_pages() {
        for len in [4096, 128 << 10, HUGE_PAGE, 3 * HUGE_PAGE] {
            let memory = Memory::map(len).unwrap();
            assert_eq!(memory.len(), len);
            if len >= HUGE_PAGE {
                assert_eq!(memory.start().as_ptr() as usize % HUGE_PAGE, 0);
            }
        }
    }

    #[test]
    #[should_panic(expected = "whole number of pages")]
    fn a_mapping_of_no_pages_is_refused() {
        let _ = Memory::map(0);
    }
}
