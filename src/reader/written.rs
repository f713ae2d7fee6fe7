//! Small files that this process has just written, for whoever reads them back: git its objects, a compiler what another step made, a script
//! its own output. Invariant: what is held is what the store acknowledged under that etag; it takes memory that nobody else
//! asks for, and no more than its share.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{KEPT, Reader};
use crate::store::{ETag, Key, ObjectMeta};

/// Larger files are read from the store: copying them would be felt by who writes them.
const MOST_BYTES: usize = 64 << 10;

/// Of the budget, for all of them.
const SHARE_OF_BUDGET: usize = 32;

/// Who has not opened one by then does not read back what it writes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Files that are remembered at most, whatever they take.
const FILES: usize = 4096;

/// What is held, the oldest first, also when it was read or has gone since.
#[derive(Debug, Default)]
pub(super) struct Written(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    files: VecDeque<(Key, ETag, usize)>,
    bytes: usize,
}

impl Held {
    /// Puts one in; returns those that have to go for it.
    fn push(&mut self, meta: &ObjectMeta, len: usize, most_bytes: usize) -> Vec<(Key, ETag)> {
        self.files.push_back((meta.key.clone(), meta.etag.clone(), len));
        self.bytes += len;
        let mut gone = Vec::new();
        while (self.bytes > most_bytes || self.files.len() > FILES)
            && let Some((key, etag, len)) = self.files.pop_front()
        {
            self.bytes -= len;
            gone.push((key, etag));
        }
        gone
    }
}

impl Reader {
    /// The store has taken `content` as the version `meta`: who opens it within twenty seconds finds it in memory, once, if it is small and
    /// there is memory to spare.
    pub fn keep_written(&self, meta: &ObjectMeta, content: &[u8]) {
        let shared = &self.0;
        if content.is_empty() || content.len() > MOST_BYTES || content.len() as u64 != meta.size || meta.etag.as_str().is_empty() {
            return;
        }
        let Some(lease) = shared.budget.try_lease(content.len()) else { return };
        let len = lease.as_ref().len();
        let object = shared.object(meta);
        object.hold(content, lease, Instant::now() + (PATIENCE - KEPT));
        let mut objects = shared.objects.lock();
        let Entry::Vacant(free) = objects.entry((meta.key.clone(), meta.etag.clone())) else { return };
        free.insert(Arc::new(object));
        for gone in shared.written.0.lock().push(meta, len, shared.budget.limit() / SHARE_OF_BUDGET) {
            // The map is locked: nobody opens it meanwhile.
            if objects.get(&gone).is_some_and(|object| !object.is_open()) {
                objects.remove(&gone);
            }
        }
    }

    /// What was written as `from` is the version `to` of another key now.
    pub fn on_moved(&self, from: &ObjectMeta, to: &ObjectMeta) {
        let key = (from.key.clone(), from.etag.clone());
        let object = {
            let mut objects = self.0.objects.lock();
            // The map is locked: nobody opens it meanwhile.
            if objects.get(&key).is_some_and(|object| object.is_open()) { None } else { objects.remove(&key) }
        };
        if let Some(whole) = object.and_then(|object| object.whole())
            && let Some(content) = whole.bytes(&(0..whole.len()))
        {
            self.keep_written(to, content);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::time::advance;

    use super::*;
    use crate::budget::{self, Budget};
    use crate::metrics::Metrics;
    use crate::reader::{Options, Pending};
    use crate::store::memory::Memory;
    use crate::units::ByteSize;

    fn meta(key: &str, size: usize) -> ObjectMeta {
        ObjectMeta { key: key.into(), size: size as u64, etag: ETag::from("\"e\""), modified: SystemTime::UNIX_EPOCH }
    }

    fn reader(store: &Memory, memory_mib: u64) -> (Reader, Arc<Budget>) {
        let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(memory_mib)) });
        let (options, deadline) = (Options::default(), Duration::from_secs(60));
        (Reader::new(Arc::new(store.clone()), Arc::clone(&budget), Arc::new(Metrics::default()), options, deadline), budget)
    }

    /// What can be read without the store.
    fn at_once(reader: &Reader, meta: &ObjectMeta) -> Option<Vec<u8>> {
        let handle = reader.open_quietly(meta);
        let whole = handle.resident().first().is_some_and(|have| *have == (0..meta.size));
        let pending: Option<Pending> = whole.then(|| handle.begin(1, 0, meta.size as usize));
        pending?.ready().map(|data| data.slices().collect::<Vec<_>>().concat())
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_written_is_read_back_once_without_the_store() {
        let store = Memory::default();
        let (reader, budget) = reader(&store, 64);
        let content = b"content".as_slice();
        reader.keep_written(&meta("a", 7), content);
        assert_eq!(at_once(&reader, &ObjectMeta { etag: ETag::from("\"f\""), ..meta("a", 7) }), None, "another version");
        assert_eq!(at_once(&reader, &meta("a", 7)).as_deref(), Some(content));
        assert_eq!(at_once(&reader, &meta("a", 7)), None, "the kernel has it");
        reader.on_time();
        assert_eq!((budget.leased_bytes(), store.requests().len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_reads_back_goes() {
        let (reader, budget) = reader(&Memory::default(), 64);
        reader.keep_written(&meta("a", 7), b"content");
        advance(PATIENCE - Duration::from_millis(1)).await;
        reader.on_time();
        assert!(budget.leased_bytes() > 0);
        advance(Duration::from_millis(1)).await;
        reader.on_time();
        assert_eq!(budget.leased_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn they_have_a_share_of_the_memory_and_the_latest_of_them_is_kept() {
        let (reader, budget) = reader(&Memory::default(), 64);
        let content = vec![7; MOST_BYTES];
        for n in 0..100 {
            reader.keep_written(&meta(&n.to_string(), MOST_BYTES), &content);
            assert!(budget.leased_bytes() <= budget.limit() / SHARE_OF_BUDGET + MOST_BYTES, "{n}: {}", budget.leased_bytes());
        }
        let there: Vec<usize> = (0..100).filter(|n| at_once(&reader, &meta(&n.to_string(), MOST_BYTES)).is_some()).collect();
        assert_eq!(there, (68..100).collect::<Vec<_>>());
        for n in 0..2 * FILES {
            reader.keep_written(&meta(&format!("small {n}"), 1), b"x");
        }
        assert!(reader.0.written.0.lock().files.len() <= FILES);
        let too_large = vec![7; MOST_BYTES + 1];
        reader.keep_written(&meta("large", too_large.len()), &too_large);
        assert_eq!(at_once(&reader, &meta("large", too_large.len())), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_moves_with_its_file_unless_somebody_has_that_open() {
        let (reader, _) = reader(&Memory::default(), 64);
        reader.keep_written(&meta("a", 7), b"content");
        let to = ObjectMeta { etag: ETag::from("\"g\""), ..meta("b", 7) };
        reader.on_moved(&meta("a", 7), &to);
        assert_eq!((at_once(&reader, &meta("a", 7)), at_once(&reader, &to).as_deref()), (None, Some(&b"content"[..])));
        reader.keep_written(&meta("c", 7), b"content");
        let open = reader.open_quietly(&meta("c", 7));
        reader.on_moved(&meta("c", 7), &to);
        assert_eq!((open.resident().len(), at_once(&reader, &to)), (1, None));
    }
}
