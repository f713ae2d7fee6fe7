//! What the daemon before this one may have answered. The kernel asks again for each request that was taken and has no answer; of an open the
//! answer may have been on its way, with a handle that is written down. Invariant: a request gets one handle, whichever daemon made it.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::request::Header;
use super::wire::OpenOut;
use crate::vfs::Answered;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Before(Mutex<HashMap<u64, Answered>>);

impl Before {
    /// These handles were, or may have been, told to the kernel.
    pub fn new(answered: impl IntoIterator<Item = Answered>) -> Self {
        Self(Mutex::new(answered.into_iter().map(|one| (one.told.unique, one)).collect()))
    }

    /// What a request that is asked again was answered with. No other daemon asks for it once more.
    pub fn take(&self, header: Header) -> Option<Answer> {
        if !header.is_resent() {
            return None;
        }
        self.0.lock().remove(&header.first_unique()).map(Answer)
    }
}

/// An answer that did not arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer(pub Answered);

impl Answer {
    /// As it was.
    pub fn out(self) -> OpenOut {
        let Answered { handle, told, .. } = self.0;
        OpenOut { fh: handle.0, flags: told.flags, backing_id: told.backing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{HandleId, Inode, Told};

    #[test]
    fn only_who_asks_again_gets_the_answer_of_before_and_only_once() {
        let answered = Answered { handle: HandleId(3), ino: Inode(9), told: Told { unique: 40, flags: 2, backing: 1 } };
        let before = Before::new([answered]);
        let header = |unique| Header { unique, ino: Inode(9), uid: 0, gid: 0, thread: 0 };
        assert!(before.take(header(40)).is_none());
        assert!(before.take(header(42 | 1 << 63)).is_none());
        assert_eq!(before.take(header(40 | 1 << 63)).unwrap().out(), OpenOut { fh: 3, flags: 2, backing_id: 1 });
        assert!(before.take(header(40 | 1 << 63)).is_none());
    }
}
