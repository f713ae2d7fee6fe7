//! Uploads that were begun without us hearing of it: the answer to a create was lost, so nobody knows the id and nobody will
//! complete or abort it. They are looked for and aborted in the background; it never fails a write. Invariant: an upload that a
//! caller of this process got is not touched, and neither is one begun outside the time of the lost attempts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::retry::Doubt;
use super::{Key, ObjectStore, Result, Unfinished, Upload};

/// Clocks of stores tell whole seconds, and differ from ours a little.
const SLACK: Duration = Duration::from_secs(2);

/// What is known of the uploads of this process.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Ids that callers have, from the answer to the create up to complete or abort.
    ours: Mutex<HashSet<String>>,
    /// Creates that are under way.
    creating: watch::Sender<HashMap<Key, usize>>,
    /// How many searches are under way. Each ends by the deadline of its requests, or with the runtime.
    searching: watch::Sender<usize>,
}

impl Default for Orphans {
    fn default() -> Self {
        let (creating, searching) = (watch::Sender::new(HashMap::new()), watch::Sender::new(0));
        Self { ours: Mutex::default(), creating, searching }
    }
}

/// A create that is under way. Dropped before its end, it leaves an upload behind or not: then too it is looked for.
#[derive(Debug)]
pub(super) struct Creating {
    orphans: Arc<Orphans>,
    store: Arc<dyn ObjectStore>,
    key: Key,
    begun: SystemTime,
    /// The time to look at, and whether the end was told.
    doubt: Option<Doubt>,
    ended: bool,
}

impl Orphans {
    /// A create of `key` begins; `store` is where to look when its answer gets lost.
    pub fn create(self: &Arc<Self>, store: Arc<dyn ObjectStore>, key: &Key) -> Creating {
        self.creating.send_modify(|creating| *creating.entry(key.clone()).or_default() += 1);
        Creating { orphans: self.clone(), store, key: key.clone(), begun: SystemTime::now(), doubt: None, ended: false }
    }

    /// Nobody will ask for this upload again.
    pub fn ended(&self, upload: &Upload) {
        self.ours.lock().remove(&upload.id);
    }

    /// Waits until no search is under way.
    pub async fn settle(&self) {
        // The sender is a field: it cannot be gone.
        let _ = self.searching.subscribe().wait_for(|&searching| searching == 0).await;
    }

    fn search(self: &Arc<Self>, store: Arc<dyn ObjectStore>, key: Key, time: Doubt) {
        // Outside a runtime everything ends, and the next `mpu abort` finds what is left.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        self.searching.send_modify(|searching| *searching += 1);
        let done = Done(self.searching.clone());
        let orphans = self.clone();
        runtime.spawn(async move {
            let _done = done;
            match orphans.abort(&*store, &key, time).await {
                Ok(aborted) => debug!(%key, aborted, "looked for uploads whose creation was not heard of"),
                Err(error) => warn!(%error, "an upload may be left behind"),
            }
        });
    }

    /// Aborts the uploads of exactly `key` that began within `time` and that nobody here has; how many.
    async fn abort(&self, store: &dyn ObjectStore, key: &Key, time: Doubt) -> Result<usize> {
        let suspects = begun_within(store, key, time).await?;
        if suspects.is_empty() {
            return Ok(0);
        }
        // One of them may be that of a create whose answer is still on its way to us. The sender is a field.
        let _ = self.creating.subscribe().wait_for(|creating| !creating.contains_key(key)).await;
        let mut aborted = 0;
        for Unfinished { key, id, .. } in suspects {
            if !self.ours.lock().contains(&id) {
                store.abort_upload(&Upload { key, id, checksum: None, acl: None }).await?;
                aborted += 1;
            }
        }
        Ok(aborted)
    }
}

/// Counts a search down however it ends.
struct Done(watch::Sender<usize>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.send_modify(|searching| *searching -= 1);
    }
}

impl Creating {
    /// How the create ended.
    pub fn end(mut self, result: &Result<Upload>, doubt: Option<Doubt>) {
        if let Ok(upload) = result {
            self.orphans.ours.lock().insert(upload.id.clone());
        }
        (self.doubt, self.ended) = (doubt, true);
    }
}

impl Drop for Creating {
    fn drop(&mut self) {
        self.orphans.creating.send_modify(|creating| {
            if let Some(count) = creating.get_mut(&self.key) {
                *count -= 1;
            }
            creating.retain(|_, count| *count > 0);
        });
        let dropped = || Doubt { from: self.begun, to: SystemTime::now() };
        if let Some(time) = if self.ended { self.doubt } else { Some(dropped()) } {
            self.orphans.search(self.store.clone(), self.key.clone(), time);
        }
    }
}

async fn begun_within(store: &dyn ObjectStore, key: &Key, time: Doubt) -> Result<Vec<Unfinished>> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_uploads(key, after.as_ref()).await?;
        // Keys come in order and the key itself before all that it begins.
        let passed = page.uploads.last().is_some_and(|last| last.key != *key);
        let within = |upload: &Unfinished| upload.initiated + SLACK >= time.from && upload.initiated <= time.to + SLACK;
        found.extend(page.uploads.into_iter().filter(|upload| upload.key == *key && within(upload)));
        after = page.next;
        if after.is_none() || passed {
            return Ok(found);
        }
    }
}
