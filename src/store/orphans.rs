//! Uploads that a create has left behind without telling their id, because its response was lost. They are looked for and aborted in the background;
//! that never fails a write.
//!
//! The listings of S3 and OSS do not show which client began an upload, nor its metadata: only key, id and date. An abort of another client's upload
//! fails that client's write, while an orphan without parts costs nothing. So an upload is taken for an orphan only when all of this holds:
//!
//! - It is of exactly that key, and its id was never returned to a caller of this process.
//! - By the store's clock it began between the beginning and the end of the lost attempts. The clock of this machine does not count.
//! - There are no more such uploads than lost attempts. Otherwise at least one of them belongs to another client, and nothing shows which one.
//! - None of them has parts, now and after [`QUIET`]: a part belongs to a client that knows the id. Nor has one of them ended meanwhile.
//!
//! In doubt all of them stay and the log says so; `windlass mpu abort` or a lifecycle rule removes them. One case remains: another client begins an
//! upload at the time of a lost attempt that itself never arrived, and completes no part within [`QUIET`]. It finds its upload gone before the store
//! has any part of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::retry::Doubt;
use super::{Error, ErrorKind, Key, ObjectStore, Op, Result, Unfinished, Upload};

/// Time in which an upload of another client gets its first part: clients begin an upload when they have one to send.
const QUIET: Duration = Duration::from_secs(10);

/// What is known of the uploads of this process.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Ids that callers have, from the answer to the create up to complete or abort.
    ours: Mutex<HashSet<String>>,
    /// Ids that a search deals with.
    suspected: Mutex<HashSet<String>>,
    /// Creates that are under way.
    creating: watch::Sender<HashMap<Key, usize>>,
    /// Lost creates that no search has taken up yet.
    lost: Mutex<HashMap<Key, Doubt>>,
    /// How many searches are under way. Each ends by the deadline of its requests, or with the runtime.
    searching: watch::Sender<usize>,
}

impl Default for Orphans {
    fn default() -> Self {
        let (creating, searching) = (watch::Sender::new(HashMap::new()), watch::Sender::new(0));
        Self { ours: Mutex::default(), suspected: Mutex::default(), creating, lost: Mutex::default(), searching }
    }
}

/// A create that is under way. Dropped before its end, it leaves an upload behind or not: then too it is looked for.
#[derive(Debug)]
pub(super) struct Creating {
    orphans: Arc<Orphans>,
    store: Arc<dyn ObjectStore>,
    key: Key,
    begun: Instant,
    attempts: AtomicUsize,
    /// The time to look at, and whether the end was told.
    doubt: Option<Doubt>,
    ended: bool,
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Aborted(usize),
    /// Uploads that may be those of another client.
    Unclear(usize),
}

impl Orphans {
    /// A create of `key` begins; `store` is where to look when its answer gets lost.
    pub fn create(self: &Arc<Self>, store: Arc<dyn ObjectStore>, key: &Key) -> Creating {
        self.creating.send_modify(|creating| *creating.entry(key.clone()).or_default() += 1);
        let (orphans, key, begun) = (self.clone(), key.clone(), Instant::now());
        Creating { orphans, store, key, begun, attempts: AtomicUsize::new(0), doubt: None, ended: false }
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

    fn search(self: &Arc<Self>, store: Arc<dyn ObjectStore>, key: Key, doubt: Doubt) {
        // Outside a runtime everything ends, and the next `mpu abort` finds what is left.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        {
            let lost = &mut *self.lost.lock();
            let doubt = doubt.and(lost.remove(&key));
            lost.insert(key.clone(), doubt);
        }
        self.searching.send_modify(|searching| *searching += 1);
        let done = Done(self.searching.clone());
        let orphans = self.clone();
        runtime.spawn(async move {
            let _done = done;
            match orphans.abort(&*store, &key).await {
                Ok(Found::Nothing) => debug!(%key, "no upload was left behind by a create without a response"),
                Ok(Found::Aborted(count)) => debug!(%key, count, "aborted uploads that lost creates left behind"),
                Ok(Found::Unclear(count)) => warn!(
                    %key,
                    count,
                    "an upload may be left behind and cannot be told from those of other clients: see \"windlass mpu list\""
                ),
                Err(error) => warn!(%error, "an upload may be left behind"),
            }
        });
    }

    /// Aborts the uploads of exactly `key` that lost attempts have left behind.
    async fn abort(&self, store: &dyn ObjectStore, key: &Key) -> Result<Found> {
        // An upload that is found may be that of a create whose answer is still on its way to us.
        self.no_create_of(key).await;
        // Creates of one key that were lost at the same time are looked into together, by the first search: each would find too many uploads.
        let Some(doubt) = self.lost.lock().remove(key) else { return Ok(Found::Nothing) };
        let mut uploads = begun_within(store, key, doubt).await?;
        {
            let (ours, suspected) = (self.ours.lock(), &mut *self.suspected.lock());
            uploads.retain(|upload| !ours.contains(&upload.id) && !suspected.contains(&upload.id));
            suspected.extend(uploads.iter().map(|upload| upload.id.clone()));
        }
        let ids: Vec<String> = uploads.iter().map(|upload| upload.id.clone()).collect();
        let found = self.abort_suspects(store, key, uploads, doubt.attempts).await;
        let suspected = &mut *self.suspected.lock();
        suspected.retain(|id| !ids.contains(id));
        found
    }

    async fn abort_suspects(&self, store: &dyn ObjectStore, key: &Key, mut uploads: Vec<Upload>, lost: usize) -> Result<Found> {
        if uploads.is_empty() {
            return Ok(Found::Nothing);
        }
        if uploads.len() > lost || !are_without_parts(store, &uploads).await? {
            return Ok(Found::Unclear(uploads.len()));
        }
        sleep(QUIET).await;
        // A create that began right after the lost one may have returned meanwhile, or be about to.
        self.no_create_of(key).await;
        {
            let ours = self.ours.lock();
            uploads.retain(|upload| !ours.contains(&upload.id));
        }
        if !are_without_parts(store, &uploads).await? {
            return Ok(Found::Unclear(uploads.len()));
        }
        for upload in &uploads {
            store.abort_upload(upload).await?;
        }
        Ok(Found::Aborted(uploads.len()))
    }

    async fn no_create_of(&self, key: &Key) {
        // The sender is a field.
        let _ = self.creating.subscribe().wait_for(|creating| !creating.contains_key(key)).await;
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
    /// An attempt begins.
    pub fn on_attempt(&self) {
        self.attempts.fetch_add(1, Relaxed);
    }

    /// How the create ended.
    pub fn end(mut self, result: &Result<Upload>, doubt: Option<Doubt>) {
        if let Ok(upload) = result {
            self.orphans.ours.lock().insert(upload.id.clone());
        }
        // What did not get its turn before the deadline was not sent.
        let sent = self.attempts.load(Relaxed);
        self.doubt = doubt.map(|doubt| Doubt { attempts: doubt.attempts.min(sent), ..doubt });
        self.ended = true;
    }
}

impl Drop for Creating {
    fn drop(&mut self) {
        let dropped = || Doubt { from: self.begun, to: Instant::now(), attempts: self.attempts.load(Relaxed) };
        if let Some(doubt) = if self.ended { self.doubt } else { Some(dropped()) } {
            self.orphans.search(self.store.clone(), self.key.clone(), doubt);
        }
        // After the doubt is known: a search of the key that waits for this create takes it up.
        self.orphans.creating.send_modify(|creating| {
            if let Some(count) = creating.get_mut(&self.key) {
                *count -= 1;
            }
            creating.retain(|_, count| *count > 0);
        });
    }
}

/// The uploads of exactly `key` that may have begun in the time of `doubt`.
async fn begun_within(store: &dyn ObjectStore, key: &Key, doubt: Doubt) -> Result<Vec<Upload>> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_uploads(key, after.as_ref()).await?;
        let Some((from, to)) = store.time_at(doubt.from).zip(store.time_at(doubt.to)) else {
            return Err(Error::new(ErrorKind::Malformed, Op::ListUploads, key, "no response of the store has a date"));
        };
        // Where keys come in order, the key itself comes before all that begin with it.
        let passed = store.lists_in_order(key) && page.uploads.last().is_some_and(|last| last.key != *key);
        let within = page
            .uploads
            .into_iter()
            .filter(|upload| upload.key == *key && upload.initiated.is_some_and(|at| from.may_be_before(at) && to.may_be_after(at)));
        found.extend(within.map(|Unfinished { key, id, .. }| Upload { key, id, checksum: None, acl: None }));
        after = page.next;
        if after.is_none() || passed {
            return Ok(found);
        }
    }
}

/// Whether all of `uploads` are still there, and none of them has a part.
async fn are_without_parts(store: &dyn ObjectStore, uploads: &[Upload]) -> Result<bool> {
    for upload in uploads {
        match store.list_parts(upload, 0).await {
            Ok(page) if page.parts.is_empty() => {}
            Ok(_) => return Ok(false),
            // Its client has completed or aborted it.
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
