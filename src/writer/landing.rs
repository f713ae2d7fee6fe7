//! Memory that what is written is received into, and that parts then keep without a copy. It knows neither parts nor the kernel. Invariant:
//! what was kept never changes again, and what comes next lies behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::budget::{Budget, Lease};
use crate::sys::{FrontReader, FrontWriter, HUGE_PAGE, front};

/// One huge page: the kernel looks up each page that it copies to.
const BYTES: usize = HUGE_PAGE;

/// What comes next begins with a page, so that the kernel copies whole ones.
const PAGE: usize = 4096;

/// At most this part of the budget is in landings that are open. What was kept of closed ones is not more than twice its own size: less than the
/// largest message is left of each, and a message is at most half of one.
const SHARE: usize = 32;

/// See the module. One thread has it.
#[derive(Debug)]
pub struct Landing {
    memory: FrontWriter<Lease>,
    kept: FrontReader<Lease>,
    /// How much was received and not kept.
    received: usize,
    _counted: Counted,
}

/// How many are open.
#[derive(Debug, Default)]
pub(super) struct Landings(Arc<AtomicUsize>);

#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Landings {
    /// A new one out of `budget`; none when that has none to spare.
    pub fn open(&self, budget: &Arc<Budget>) -> Option<Landing> {
        let counted = {
            self.0.fetch_add(1, Ordering::Relaxed);
            Counted(Arc::clone(&self.0))
        };
        if counted.0.load(Ordering::Relaxed) > budget.limit() / SHARE / BYTES {
            return None;
        }
        let (memory, kept) = front(budget.try_lease(BYTES)?, BYTES);
        Some(Landing { memory, kept, received: 0, _counted: counted })
    }
}

impl Landing {
    /// Where the next message goes. Its content is unspecified; what was received before and not kept is overwritten.
    pub fn spare(&mut self) -> &mut [u8] {
        self.received = 0;
        self.memory.spare()
    }

    /// How long the next message may be.
    pub fn room(&self) -> usize {
        BYTES - self.memory.filled_len()
    }

    /// `len` bytes have come.
    pub fn on_received(&mut self, len: usize) {
        assert!(len <= self.room(), "what was received has room");
        self.received = len;
    }

    /// What was received and not kept.
    pub fn bytes(&self) -> &[u8] {
        self.memory.written(self.received)
    }

    /// Keeps what was received where it is.
    pub fn keep(&mut self) -> Bytes {
        let (start, len) = (self.memory.filled_len(), std::mem::take(&mut self.received));
        self.memory.advance(len.next_multiple_of(PAGE).min(self.room()));
        Bytes::from_owner(Kept(self.kept.clone())).slice(start..start + len)
    }
}

struct Kept(FrontReader<Lease>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        self.0.filled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Options;
    use crate::units::ByteSize;

    fn budget(limit: u64) -> Arc<Budget> {
        Budget::new(&Options { memory_limit: Some(ByteSize::mib(limit)) })
    }

    fn receive(landing: &mut Landing, content: &[u8]) {
        landing.spare()[..content.len()].copy_from_slice(content);
        landing.on_received(content.len());
    }

    #[test]
    fn what_is_kept_stays_and_what_comes_next_begins_with_a_page() {
        let (budget, landings) = (budget(64), Landings::default());
        let mut landing = landings.open(&budget).unwrap();
        receive(&mut landing, b"not kept");
        receive(&mut landing, b"wind");
        assert_eq!(landing.bytes(), b"wind");
        let first = landing.keep();
        assert_eq!((landing.bytes(), landing.room()), (&b""[..], BYTES - PAGE));
        receive(&mut landing, &vec![7; PAGE + 1]);
        let second = landing.keep();
        assert_eq!((second.as_ptr() as usize - first.as_ptr() as usize, landing.room()), (PAGE, BYTES - 3 * PAGE));
        receive(&mut landing, &vec![8; BYTES - 3 * PAGE]);
        assert_eq!(landing.keep().len(), BYTES - 3 * PAGE);
        assert_eq!((&first[..], second, landing.room()), (&b"wind"[..], vec![7; PAGE + 1].into(), 0));
        drop(landing);
        // The memory is there as long as somebody has something of it.
        assert_eq!(budget.leased_bytes(), BYTES);
        drop(first);
        assert_eq!(budget.leased_bytes(), 0);
    }

    #[test]
    fn few_are_open_at_once_and_none_when_memory_is_short() {
        let (budget, landings) = (budget(128), Landings::default());
        let both = (landings.open(&budget).unwrap(), landings.open(&budget).unwrap());
        assert!(landings.open(&budget).is_none());
        drop(both.0);
        let all = std::iter::from_fn(|| budget.try_lease(2 << 20)).collect::<Vec<_>>();
        assert!(landings.open(&budget).is_none());
        drop(all);
        assert!(landings.open(&budget).is_some());
    }
}
