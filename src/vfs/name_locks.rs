//! Locks on keys: a rename locks its names exclusively, or all names below them when it renames a directory; everything that begins, commits or
//! removes a file shares the lock of its key. Pure bookkeeping: nothing is sent and nothing is known about files here.
//!
//! Invariants: all keys of a rename are locked in one step, so two renames cannot wait for each other. A key is locked before the turn of the
//! dirty file of that name is waited for, never after, and no holder of a shared key waits for another key: so no share that is asked for
//! later is granted before a rename that waits.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::store::Key;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct NameLocks {
    state: Mutex<State>,
    released: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Keys in use, and by how many.
    shared: HashMap<Key, usize>,
    /// What each rename under way has locked.
    exclusive: Vec<[Key; 2]>,
    /// What renames wait for.
    wanted: Vec<[Key; 2]>,
}

/// A key that no rename touches while this lives.
#[derive(Debug)]
pub(super) struct SharedName<'a> {
    locks: &'a NameLocks,
    key: Key,
}

/// Keys that a rename waits for, until it has them or gives up.
struct Wanted<'a> {
    locks: &'a NameLocks,
    keys: &'a [Key; 2],
}

/// Two names, and all below those that end in `/`, that belong to one rename while this lives.
#[derive(Debug)]
pub(super) struct ExclusiveNames<'a> {
    locks: &'a NameLocks,
    keys: [Key; 2],
}

impl NameLocks {
    /// Waits until no rename has locked `key`, or waits for it.
    pub async fn share(&self, key: &Key) -> SharedName<'_> {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if let Some(shared) = self.try_share(key) {
                return shared;
            }
            released.await;
        }
    }

    fn try_share(&self, key: &Key) -> Option<SharedName<'_>> {
        let state = &mut *self.state.lock();
        if state.exclusive.iter().chain(&state.wanted).flatten().any(|locked| overlap(locked, key)) {
            return None;
        }
        *state.shared.entry(key.clone()).or_default() += 1;
        Some(SharedName { locks: self, key: key.clone() })
    }

    /// Whether `key` is being renamed, or is where something is renamed to.
    pub fn is_renamed(&self, key: &Key) -> bool {
        self.state.lock().exclusive.iter().flatten().any(|locked| overlap(locked, key))
    }

    /// Waits until none of `keys`, and nothing below those that end in `/`, is locked or in use.
    pub async fn lock(&self, keys: [Key; 2]) -> ExclusiveNames<'_> {
        if let Some(locked) = self.try_lock(&keys) {
            return locked;
        }
        self.state.lock().wanted.push(keys.clone());
        let _wanted = Wanted { locks: self, keys: &keys };
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if let Some(locked) = self.try_lock(&keys) {
                return locked;
            }
            released.await;
        }
    }

    fn try_lock(&self, keys: &[Key; 2]) -> Option<ExclusiveNames<'_>> {
        let state = &mut *self.state.lock();
        let is_locked = |key: &Key| keys.iter().any(|wanted| overlap(wanted, key));
        if state.exclusive.iter().flatten().any(is_locked) || state.shared.keys().any(is_locked) {
            return None;
        }
        state.exclusive.push(keys.clone());
        Some(ExclusiveNames { locks: self, keys: keys.clone() })
    }
}

/// Whether one is the other, or a directory above it. A directory is the same with and without its `/`.
fn overlap(one: &Key, other: &Key) -> bool {
    let [one, other] = [one, other].map(|key| key.as_bytes());
    let covers = |above: &[u8], below: &[u8]| match above.strip_suffix(b"/") {
        Some(bare) => below == bare || below.starts_with(above),
        None => below == above,
    };
    covers(one, other) || covers(other, one)
}

impl Drop for SharedName<'_> {
    fn drop(&mut self) {
        let state = &mut *self.locks.state.lock();
        if let Some(count) = state.shared.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                state.shared.remove(&self.key);
            }
        }
        self.locks.released.notify_waiters();
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let state = &mut *self.locks.state.lock();
        if let Some(at) = state.wanted.iter().position(|keys| keys == self.keys) {
            state.wanted.swap_remove(at);
        }
        // A rename that gave up without the keys kept others waiting.
        self.locks.released.notify_waiters();
    }
}

impl Drop for ExclusiveNames<'_> {
    fn drop(&mut self) {
        let state = &mut *self.locks.state.lock();
        if let Some(at) = state.exclusive.iter().position(|keys| *keys == self.keys) {
            state.exclusive.swap_remove(at);
        }
        self.locks.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_overlaps_with_all_below_it() {
        for (one, other, is) in [
            ("a", "a", true),
            ("a/", "a", true),
            ("a/", "a/b", true),
            ("a/", "a/b/", true),
            ("a/", "ab", false),
            ("a", "a/b", false),
            ("a/b/", "a/", true),
            ("a/b", "a/c", false),
        ] {
            let [one, other] = [one, other].map(Key::from);
            assert_eq!((overlap(&one, &other), overlap(&other, &one)), (is, is), "{one} {other}");
        }
    }

    #[test]
    fn shared_names_bar_renames_and_renames_bar_both() {
        let locks = NameLocks::default();
        let keys = |from: &str, to: &str| [Key::from(from), Key::from(to)];
        let (first, second) = (locks.try_share(&Key::from("d/a")), locks.try_share(&Key::from("d/a")));
        assert!(first.is_some() && second.is_some());
        assert!(locks.try_lock(&keys("d/", "e/")).is_none() && locks.try_lock(&keys("x", "d/a")).is_none());
        drop((first, second));
        let renaming = locks.try_lock(&keys("d/", "e/"));
        assert!(renaming.is_some());
        assert!(locks.try_share(&Key::from("e/x")).is_none() && locks.try_share(&Key::from("f")).is_some());
        assert!(locks.try_lock(&keys("e/a", "f")).is_none());
        drop(renaming);
        assert!(locks.try_lock(&keys("e/a", "f")).is_some());
        assert!(locks.state.lock().shared.is_empty() && locks.state.lock().exclusive.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rename_that_waits_is_not_passed_by_what_comes_later() {
        let (locks, key) = (NameLocks::default(), Key::from("d/a"));
        let first = locks.share(&key).await;
        let mut renaming = Box::pin(locks.lock([Key::from("d/"), Key::from("e/")]));
        assert!(futures::poll!(&mut renaming).is_pending());
        assert!(locks.try_share(&key).is_none() && locks.try_share(&Key::from("f")).is_some());
        // A rename that gave up keeps nothing waiting.
        drop(renaming);
        let second = locks.try_share(&key);
        assert!(second.is_some());
        let mut renaming = Box::pin(locks.lock([Key::from("d/"), Key::from("e/")]));
        assert!(futures::poll!(&mut renaming).is_pending());
        drop((first, second));
        let renaming = renaming.await;
        assert!(locks.try_share(&key).is_none());
        drop(renaming);
        assert!(locks.try_share(&key).is_some() && locks.state.lock().wanted.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_go_on_when_the_names_are_free() {
        let locks = NameLocks::default();
        let renaming = locks.lock([Key::from("a"), Key::from("b")]).await;
        let key = Key::from("b");
        let (_shared, ()) = tokio::join!(locks.share(&key), async {
            tokio::task::yield_now().await;
            drop(renaming);
        });
    }
}
