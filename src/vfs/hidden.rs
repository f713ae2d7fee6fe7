//! Objects that cannot be seen because a directory has their name: counted, and told of once per name. It decides
//! nothing. Invariant: memory is bounded however many there are.

use std::collections::HashSet;

use parking_lot::Mutex;
use twox_hash::XxHash3_64;

use crate::store::Key;

/// Names warned about one by one; a bucket with more conflicts than this has made its point.
const WARNINGS: usize = 10_000;

/// The hidden objects met so far, as hashes of their keys.
#[derive(Debug, Default)]
pub struct Hidden(Mutex<HashSet<u64>>);

impl Hidden {
    /// A directory of the same name hides the object `key`. Whether that is news.
    pub fn note(&self, key: &Key) -> bool {
        let count = {
            let mut seen = self.0.lock();
            if seen.len() >= WARNINGS || !seen.insert(XxHash3_64::oneshot(key.as_bytes())) {
                return false;
            }
            seen.len()
        };
        tracing::warn!(%key, count, "a directory of the same name hides this object");
        true
    }

    /// Whether a directory may hide the object `key`: known for the first 10,000 that were met.
    pub fn may_have(&self, key: &Key) -> bool {
        let seen = self.0.lock();
        seen.len() >= WARNINGS || seen.contains(&XxHash3_64::oneshot(key.as_bytes()))
    }

    /// How many different objects were found hidden; stops at 10,000.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_of_once_and_memory_is_bounded() {
        let hidden = Hidden::default();
        assert!(hidden.note(&Key::from("a")));
        assert!(!hidden.note(&Key::from("a")));
        for n in 0..WARNINGS + 10 {
            hidden.note(&Key::from(format!("n{n}")));
        }
        assert_eq!(hidden.count(), WARNINGS);
    }
}
