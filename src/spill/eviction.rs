//! Which chunk goes first: S3-FIFO over what is on the disk. It knows no file, and its room is whatever there is: the caller asks for
//! victims when it needs room. Invariant: what it says is on the disk is the sum of what was added and not taken out.
//!
//! New chunks wait in a small queue of a tenth of the bytes; those that are read again while they are there, or soon after they
//! left it, go to the main queue, where each read gives another round. A scan therefore passes through the small queue alone.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Rounds that a chunk in the main queue can have before it.
const MOST_ROUNDS: u8 = 3;
/// One in so many bytes waits in the small queue.
const SMALL_SHARE: u64 = 10;
/// Entries of queues that lost their chunk are swept when they are more than the living and this.
const SLACK: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Eviction<K> {
    chunks: HashMap<K, Chunk>,
    small: Queue<K>,
    main: Queue<K>,
    /// Chunks that left the small queue unread, and whether they still count as such.
    ghosts: VecDeque<(K, u64)>,
    ghost_stamps: HashMap<K, u64>,
    /// Tells an entry of a queue from an older one of the same chunk.
    stamp: u64,
}

#[derive(Debug)]
struct Chunk {
    bytes: u64,
    rounds: u8,
    in_main: bool,
    stamp: u64,
}

#[derive(Debug)]
struct Queue<K> {
    order: VecDeque<(K, u64)>,
    bytes: u64,
    len: usize,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { order: VecDeque::new(), bytes: 0, len: 0 }
    }
}

impl<K> Default for Eviction<K> {
    fn default() -> Self {
        let (ghosts, ghost_stamps) = (VecDeque::new(), HashMap::new());
        Self { chunks: HashMap::new(), small: Queue::default(), main: Queue::default(), ghosts, ghost_stamps, stamp: 0 }
    }
}

impl<K: Copy + Eq + Hash> Eviction<K> {
    /// Bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    pub fn contains(&self, key: &K) -> bool {
        self.chunks.contains_key(key)
    }

    /// `bytes` more of a chunk were written.
    pub fn on_add(&mut self, key: K, bytes: u64) {
        if let Some(chunk) = self.chunks.get_mut(&key) {
            chunk.bytes += bytes;
            let queue = if chunk.in_main { &mut self.main } else { &mut self.small };
            queue.bytes += bytes;
            return;
        }
        let missed = self.ghost_stamps.remove(&key).is_some();
        self.insert(key, bytes, 0, missed);
    }

    /// A chunk was found on the disk; nobody knows how often it was read. What was found earlier goes earlier.
    pub fn on_found(&mut self, key: K, bytes: u64) {
        if !self.contains(&key) {
            self.insert(key, bytes, 0, true);
        }
    }

    /// A victim stays, because it could not be evicted now.
    pub fn on_spared(&mut self, key: K, bytes: u64) {
        if !self.contains(&key) {
            self.ghost_stamps.remove(&key);
            self.insert(key, bytes, 1, true);
        }
    }

    /// A chunk was read.
    pub fn on_hit(&mut self, key: &K) {
        if let Some(chunk) = self.chunks.get_mut(key) {
            chunk.rounds = (chunk.rounds + 1).min(MOST_ROUNDS);
        }
    }

    /// A chunk is not on the disk any more.
    pub fn on_gone(&mut self, key: &K) {
        let Some(chunk) = self.chunks.remove(key) else { return };
        self.leave(&chunk);
        self.sweep();
    }

    /// Nothing is known of the disk any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The chunk that goes next, and its bytes. It counts as gone.
    pub fn victim(&mut self) -> Option<(K, u64)> {
        loop {
            let total = self.small.bytes + self.main.bytes;
            let from_small = self.small.len > 0 && (self.main.len == 0 || self.small.bytes >= total / SMALL_SHARE);
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let (key, stamp) = queue.order.pop_front()?;
            let Some(chunk) = self.chunks.get_mut(&key).filter(|chunk| chunk.stamp == stamp) else { continue };
            if chunk.rounds == 0 {
                let chunk = self.chunks.remove(&key).expect("it was just found");
                self.leave(&chunk);
                if from_small {
                    self.haunt(key);
                }
                return Some((key, chunk.bytes));
            }
            let chunk = self.chunks.remove(&key).expect("it was just found");
            self.leave(&chunk);
            let rounds = if from_small { 0 } else { chunk.rounds - 1 };
            self.insert(key, chunk.bytes, rounds, true);
        }
    }

    fn insert(&mut self, key: K, bytes: u64, rounds: u8, in_main: bool) {
        self.stamp += 1;
        self.chunks.insert(key, Chunk { bytes, rounds, in_main, stamp: self.stamp });
        let queue = if in_main { &mut self.main } else { &mut self.small };
        queue.order.push_back((key, self.stamp));
        queue.bytes += bytes;
        queue.len += 1;
    }

    fn leave(&mut self, chunk: &Chunk) {
        let queue = if chunk.in_main { &mut self.main } else { &mut self.small };
        queue.bytes -= chunk.bytes;
        queue.len -= 1;
    }

    /// Remembers as many as there are chunks.
    fn haunt(&mut self, key: K) {
        self.stamp += 1;
        self.ghosts.push_back((key, self.stamp));
        self.ghost_stamps.insert(key, self.stamp);
        while self.ghosts.len() > self.chunks.len() + SLACK {
            let Some((oldest, stamp)) = self.ghosts.pop_front() else { break };
            if self.ghost_stamps.get(&oldest) == Some(&stamp) {
                self.ghost_stamps.remove(&oldest);
            }
        }
    }

    fn sweep(&mut self) {
        for queue in [&mut self.small, &mut self.main] {
            if queue.order.len() > 2 * queue.len + SLACK {
                queue.order.retain(|(key, stamp)| self.chunks.get(key).is_some_and(|chunk| chunk.stamp == *stamp));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Adds a chunk as a cache of `room` bytes does, and says who left.
    fn add(cache: &mut Eviction<u32>, room: u64, key: u32, bytes: u64) -> Vec<u32> {
        let mut left = Vec::new();
        while cache.bytes() + bytes > room {
            left.push(cache.victim().expect("there is something to evict").0);
        }
        cache.on_add(key, bytes);
        left
    }

    #[test]
    fn what_was_never_read_again_leaves_in_order() {
        let mut cache = Eviction::default();
        (1..=3).for_each(|key| cache.on_add(key, 10));
        assert_eq!([cache.victim(), cache.victim(), cache.victim(), cache.victim()], [Some((1, 10)), Some((2, 10)), Some((3, 10)), None]);
    }

    #[test]
    fn what_was_read_again_stays_longer_than_what_was_not() {
        let mut cache = Eviction::default();
        (1..=3).for_each(|key| cache.on_add(key, 10));
        cache.on_hit(&1);
        assert_eq!([cache.victim(), cache.victim(), cache.victim()], [Some((2, 10)), Some((3, 10)), Some((1, 10))]);
    }

    #[test]
    fn what_comes_back_soon_goes_to_the_main_queue() {
        let mut cache = Eviction::default();
        (1..=2).for_each(|key| cache.on_add(key, 10));
        assert_eq!(cache.victim(), Some((1, 10)));
        cache.on_add(1, 10);
        cache.on_add(3, 10);
        assert_eq!([cache.victim(), cache.victim(), cache.victim()], [Some((2, 10)), Some((3, 10)), Some((1, 10))]);
    }

    #[test]
    fn a_chunk_grows_and_its_bytes_leave_with_it() {
        let mut cache = Eviction::default();
        cache.on_add(1, 10);
        cache.on_add(1, 5);
        cache.on_add(2, 1);
        assert_eq!(cache.bytes(), 16);
        cache.on_gone(&1);
        cache.on_gone(&1);
        assert_eq!((cache.bytes(), cache.contains(&1), cache.victim()), (1, false, Some((2, 1))));
    }

    #[test]
    fn what_was_spared_is_asked_for_last() {
        let mut cache = Eviction::default();
        (1..=2).for_each(|key| cache.on_add(key, 10));
        let (key, bytes) = cache.victim().unwrap();
        cache.on_spared(key, bytes);
        assert_eq!([cache.victim(), cache.victim(), cache.victim()], [Some((2, 10)), Some((1, 10)), None]);
    }

    #[test]
    fn what_an_earlier_process_left_survives_new_chunks_that_nobody_reads_again() {
        let mut cache = Eviction::default();
        (0..90).for_each(|key| cache.on_found(key, 1));
        (1000..2000).for_each(|key| drop(add(&mut cache, 100, key, 1)));
        assert!((0..90).all(|key| cache.contains(&key)));
    }

    #[test]
    fn what_is_read_again_and_again_survives_a_scan_of_ten_times_the_room() {
        let mut cache = Eviction::default();
        let room = 100;
        (0..50).for_each(|key| cache.on_add(key, 1));
        for scanned in 0..10 * room as u32 {
            (0..50).for_each(|key| cache.on_hit(&key));
            let left = add(&mut cache, room, 1000 + scanned, 1);
            assert!(left.iter().all(|key| *key >= 1000), "{left:?}");
        }
    }

    #[test]
    fn a_queue_does_not_grow_with_what_left_it() {
        let mut cache = Eviction::default();
        for _ in 0..10_000 {
            cache.on_add(1, 1);
            cache.on_gone(&1);
        }
        assert!(cache.small.order.len() <= SLACK + 1);
        for key in 0..10_000 {
            cache.on_add(key, 1);
            cache.victim();
        }
        assert!(cache.ghosts.len() <= SLACK + 1 && cache.ghost_stamps.len() <= cache.ghosts.len());
    }

    #[derive(Clone, Debug)]
    enum Event {
        Add(u32, u64),
        Found(u32, u64),
        Hit(u32),
        Gone(u32),
        Victim { spared: bool },
    }

    fn event() -> impl Strategy<Value = Event> {
        let (key, bytes) = (0u32..20, 1u64..50);
        prop_oneof![
            (key.clone(), bytes.clone()).prop_map(|(key, bytes)| Event::Add(key, bytes)),
            (key.clone(), bytes).prop_map(|(key, bytes)| Event::Found(key, bytes)),
            key.clone().prop_map(Event::Hit),
            key.prop_map(Event::Gone),
            any::<bool>().prop_map(|spared| Event::Victim { spared }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_known_is_what_was_added_and_not_taken_out(events in proptest::collection::vec(event(), 0..400)) {
            let (mut cache, mut known) = (Eviction::default(), HashMap::<u32, u64>::new());
            for event in events {
                match event {
                    Event::Add(key, bytes) => {
                        cache.on_add(key, bytes);
                        *known.entry(key).or_default() += bytes;
                    }
                    Event::Found(key, bytes) => {
                        cache.on_found(key, bytes);
                        known.entry(key).or_insert(bytes);
                    }
                    Event::Hit(key) => cache.on_hit(&key),
                    Event::Gone(key) => {
                        cache.on_gone(&key);
                        known.remove(&key);
                    }
                    Event::Victim { spared } => match cache.victim() {
                        Some((key, bytes)) => {
                            prop_assert_eq!(known.remove(&key), Some(bytes));
                            if spared {
                                cache.on_spared(key, bytes);
                                known.insert(key, bytes);
                            }
                        }
                        None => prop_assert!(known.is_empty()),
                    },
                }
                prop_assert_eq!(cache.bytes(), known.values().sum::<u64>());
                prop_assert!(known.keys().all(|key| cache.contains(key)));
            }
            while let Some((key, bytes)) = cache.victim() {
                prop_assert_eq!(known.remove(&key), Some(bytes));
            }
            prop_assert!(known.is_empty());
        }
    }
}
