//! What goes wrong on the disk, for the log: each cause once a minute, however many pieces it concerns. Nothing here stops anybody.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::files::Layout;

const EVERY: Duration = Duration::from_secs(60);

/// When each cause was told last.
#[derive(Debug)]
pub(super) struct Trouble {
    layout: Layout,
    told: Mutex<HashMap<(&'static str, io::ErrorKind), Instant>>,
}

impl Trouble {
    /// Nothing was told yet of the files in `layout`.
    pub fn new(layout: Layout) -> Self {
        Self { layout, told: Mutex::default() }
    }

    /// The spill went on without what it was `doing`.
    pub fn tell(&self, doing: &'static str, path: &Path, error: &io::Error) {
        if self.is_news(doing, error.kind(), Instant::now()) {
            tracing::warn!(path = %self.layout.shown(path).display(), %error, "the spill goes on without {doing}");
        }
    }

    /// A piece on the disk is not what was written there.
    pub fn tell_damaged(&self, path: &Path) {
        if self.is_news("damage", io::ErrorKind::InvalidData, Instant::now()) {
            tracing::warn!(path = %self.layout.shown(path).display(), "a spilled piece was damaged and will be fetched again");
        }
    }

    fn is_news(&self, doing: &'static str, kind: io::ErrorKind, now: Instant) -> bool {
        let mut told = self.told.lock();
        let is_news = told.get(&(doing, kind)).is_none_or(|last| now.duration_since(*last) >= EVERY);
        if is_news {
            told.insert((doing, kind), now);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_once_a_minute() {
        let directory = tempfile::tempdir().unwrap();
        let (trouble, start) = (Trouble::new(Layout::open(directory.path()).unwrap()), Instant::now());
        let full = |after| trouble.is_news("adding", io::ErrorKind::StorageFull, start + Duration::from_secs(after));
        assert_eq!([full(0), full(1), full(59), full(60), full(61)], [true, false, false, true, false]);
        assert!(trouble.is_news("adding", io::ErrorKind::PermissionDenied, start));
        assert!(trouble.is_news("reading", io::ErrorKind::StorageFull, start));
    }
}
