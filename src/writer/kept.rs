//! Which sent parts are kept in case their bytes are wanted again: pure bookkeeping. Invariant: they are never more than allowed,
//! and the first parts of files are the last to go, since headers are what is written again.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::filling::Filling;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The longest kept first.
    firsts: VecDeque<Arc<Filling>>,
    others: VecDeque<Arc<Filling>>,
    bytes: usize,
    /// Of these, in `others`.
    other_bytes: usize,
}

/// How many bytes may be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub all: usize,
    /// What is not of first parts.
    pub others: usize,
}

impl Kept {
    /// How many bytes there are.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps one more; those that have to go for it are returned, perhaps itself.
    pub fn keep(&mut self, buffer: Arc<Filling>, is_first: bool, most: Most) -> Vec<Arc<Filling>> {
        self.bytes += buffer.len();
        if is_first {
            self.firsts.push_back(buffer);
        } else {
            self.other_bytes += buffer.len();
            self.others.push_back(buffer);
        }
        let mut gone = Vec::new();
        while self.bytes > most.all || self.other_bytes > most.others {
            gone.extend(self.pop());
        }
        gone
    }

    /// The one that is wanted least.
    pub fn pop(&mut self) -> Option<Arc<Filling>> {
        let other = self.others.pop_front().inspect(|buffer| self.other_bytes -= buffer.len());
        let buffer = other.or_else(|| self.firsts.pop_front())?;
        self.bytes -= buffer.len();
        Some(buffer)
    }

    /// This one, if it is there.
    pub fn take(&mut self, weak: &Weak<Filling>) -> Option<Arc<Filling>> {
        let find = |list: &mut VecDeque<Arc<Filling>>| {
            let at = list.iter().position(|buffer| std::ptr::eq(Arc::as_ptr(buffer), weak.as_ptr()))?;
            list.remove(at)
        };
        let first = find(&mut self.firsts);
        let found = first.or_else(|| find(&mut self.others).inspect(|buffer| self.other_bytes -= buffer.len()))?;
        self.bytes -= found.len();
        Some(found)
    }
}
