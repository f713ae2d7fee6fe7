//! Forgetting on request: somebody outside this mount changed the bucket and says where. It asks the store nothing. Invariant: after
//! [`Names::expire_path`] returns no answer that was asked for earlier is kept or told to the kernel with a life of its own, though it may
//! still be under way.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::changes::directory_of;
use super::error::{Error, Result};
use super::inodes::Inode;
use super::listing::check_name;
use super::lookup::Names;
use crate::store::Key;

/// Requests that are remembered one by one. What was learnt before an older one is not believed at all: it has been under way for long.
const REMEMBERED: usize = 1024;

/// What the kernel may believe of names that were expired, and what it calls them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Inodes whose attributes it may have.
    pub inodes: Vec<Inode>,
    /// Names it may have, present or absent, with the directory they are in.
    pub entries: Vec<(Inode, Vec<u8>)>,
}

/// Which paths were expired, and when. A path is a key without the `/` of a directory.
#[derive(Debug, Default)]
pub struct Expiries {
    recent: VecDeque<Expiry>,
    newest: Option<Instant>,
    /// Everything that was learnt until then is expired.
    all_until: Option<Instant>,
}

#[derive(Debug)]
struct Expiry {
    path: Key,
    /// And everything below it.
    below: bool,
    at: Instant,
}

impl Expiries {
    /// `path` is expired, and what is below it when `below`.
    pub fn on_expire(&mut self, path: &Key, below: bool, at: Instant) {
        if self.recent.len() == REMEMBERED {
            self.all_until = self.recent.pop_front().map(|oldest| oldest.at);
        }
        self.recent.push_back(Expiry { path: path.clone(), below, at });
        self.newest = Some(at);
    }

    /// Whether anything was expired since `learnt`.
    pub fn any_since(&self, learnt: Instant) -> bool {
        self.newest.is_some_and(|newest| newest >= learnt)
    }

    /// Whether what was learnt of `path` then is expired.
    pub fn cover(&self, path: &[u8], learnt: Instant) -> bool {
        self.since(learnt, |expiry| expiry.path.as_bytes() == path || expiry.below && is_below(&expiry.path, path))
    }

    /// Whether a listing of `directory` (which is empty or ends in `/`) that was asked for then is expired.
    pub fn cover_listing(&self, directory: &[u8], learnt: Instant) -> bool {
        self.since(learnt, |expiry| concerns_listing(&expiry.path, expiry.below, directory))
    }

    fn since(&self, learnt: Instant, concerns: impl Fn(&Expiry) -> bool) -> bool {
        self.any_since(learnt)
            && (self.all_until.is_some_and(|until| until >= learnt)
                || self.recent.iter().rev().take_while(|expiry| expiry.at >= learnt).any(concerns))
    }
}

/// Whether `path` is below the directory `top`.
pub(super) fn is_below(top: &Key, path: &[u8]) -> bool {
    let top = top.as_bytes();
    top.is_empty() || path.strip_prefix(top).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Whether the listing of `directory` says something of `path`: it is in it, it is it, or it is above it when `below`.
pub(super) fn concerns_listing(path: &Key, below: bool, directory: &[u8]) -> bool {
    let own = directory.strip_suffix(b"/").unwrap_or(directory);
    own == path.as_bytes() || directory_of(path).as_bytes() == directory || below && is_below(path, own)
}

impl Names {
    /// Nothing that was learnt so far of `path`, names below the root of the mount with `/` between them, is believed any more: neither
    /// what it stands for nor the listing it is in, nor its own when it is a directory; when `below`, nothing of what is in it either.
    /// Returns what the kernel has to be told. Looks through all that is known when `below`: milliseconds for 100,000 names.
    ///
    /// # Errors
    /// When it cannot be a path inside the mount.
    pub fn expire_path(&self, path: &[u8], below: bool) -> Result<Expired> {
        let path = self.path_at(path)?;
        let absent = self.cache.expire(&path, below);
        self.probe.abandon(|asked| {
            let asked = asked.as_bytes().strip_suffix(b"/").unwrap_or(asked.as_bytes());
            asked == path.as_bytes() || below && is_below(&path, asked)
        });
        self.walks.lock().retain(|directory, _| !concerns_listing(&path, below, directory.as_bytes()));
        Ok(self.told_of(&path, below, &absent))
    }

    /// The key, without the `/` of a directory, of names below the root of the mount.
    ///
    /// # Errors
    /// When it cannot be a path inside the mount.
    pub fn path_at(&self, path: &[u8]) -> Result<Key> {
        let mut key = self.options.prefix.trim_end_matches('/').as_bytes().to_vec();
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            check_name(name).map_err(|error| if matches!(error, Error::NotFound) { Error::Invalid } else { error })?;
            if !key.is_empty() {
                key.push(b'/');
            }
            key.extend_from_slice(name);
        }
        Ok(Key::from(key))
    }

    /// What the kernel may have of `path`, of what is below it, and of `absent`, names that are known to be nothing. The name of a
    /// directory is left alone: the kernel would take its place in the tree away from processes that are in it.
    fn told_of(&self, path: &Key, below: bool, absent: &[Key]) -> Expired {
        let inodes = self.inodes.lock();
        let known = |key: &Key| Some(inodes.number(key)).filter(|&ino| inodes.knows(ino));
        let entry = |path: &Key| {
            let directory = directory_of(path);
            Some((known(&directory)?, path.as_bytes()[directory.as_bytes().len()..].to_vec()))
        };
        let mut expired = Expired::default();
        let directory = if path.as_bytes() == self.root_path() { Some(Inode::ROOT) } else { known(&path.join(b"/")) };
        match directory {
            Some(directory) => expired.inodes.push(directory),
            None => {
                expired.inodes.extend(known(path));
                expired.entries.extend(entry(path));
            }
        }
        if below && let Some(directory) = directory.and_then(|ino| inodes.get(ino)) {
            for (ino, node) in inodes.below(&directory.key) {
                expired.inodes.push(ino);
                if !node.key.is_prefix() {
                    let start = inodes.get(node.parent).map_or(0, |parent| parent.key.as_bytes().len());
                    expired.entries.push((node.parent, node.key.as_bytes()[start..].to_vec()));
                }
            }
            expired.entries.extend(absent.iter().filter_map(entry));
        }
        expired
    }

    pub(super) fn root_path(&self) -> &[u8] {
        self.options.prefix.trim_end_matches('/').as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_learnt_before_is_covered_and_what_came_later_is_not() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut expiries = Expiries::default();
        expiries.on_expire(&Key::from("d/x"), false, at(10));
        expiries.on_expire(&Key::from("e"), true, at(20));
        for (path, learnt, covered) in [
            ("d/x", 5, true),
            ("d/x", 11, false),
            ("d/x/y", 5, false),
            ("d/xy", 5, false),
            ("e", 15, true),
            ("e/f/g", 15, true),
            ("e/f/g", 21, false),
            ("ef", 15, false),
        ] {
            assert_eq!(expiries.cover(path.as_bytes(), at(learnt)), covered, "{path} {learnt}");
        }
        for (directory, learnt, covered) in [
            ("d/", 5, true),
            ("d/x/", 5, true),
            ("d/x/y/", 5, false),
            ("", 5, true),
            ("d/", 11, false),
            ("e/f/", 15, true),
            ("f/", 5, false),
        ] {
            assert_eq!(expiries.cover_listing(directory.as_bytes(), at(learnt)), covered, "{directory} {learnt}");
        }
    }

    #[test]
    fn the_root_is_above_everything() {
        let start = Instant::now();
        let mut expiries = Expiries::default();
        expiries.on_expire(&Key::root(), true, start);
        assert!(expiries.cover(b"a/b", start) && expiries.cover_listing(b"", start) && expiries.cover_listing(b"a/b/", start));
    }

    #[test]
    fn there_is_a_bound_to_what_is_remembered_and_none_to_what_is_expired() {
        let start = Instant::now();
        let mut expiries = Expiries::default();
        for n in 0..3000_u32 {
            expiries.on_expire(&Key::from(n.to_string()), false, start + Duration::from_secs(u64::from(n)));
        }
        assert_eq!(expiries.recent.len(), REMEMBERED);
        assert!((0..3000_u32).all(|n| expiries.cover(n.to_string().as_bytes(), start + Duration::from_secs(u64::from(n)))));
        assert!(!expiries.cover(b"other", start + Duration::from_secs(2999)));
    }
}
