//! Many transfers, some at a time, told as they end. It knows neither direction. Invariant: the first that fails ends all, and none is left
//! running.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinSet;

use super::names::Pick;
use super::plan::Asked;
use super::{OnBytes, Result};
use crate::store::{Key, ObjectMeta};

/// Which files are moved and how, whichever way.
#[derive(Clone)]
pub struct Many {
    /// What the plan for a file of each size comes from.
    pub asked: Asked,
    pub pick: Pick,
    /// Leave out what is there with the same size and not older.
    pub update: bool,
    /// Files at a time.
    pub transfers: usize,
    pub dry_run: bool,
    pub on_file: OnFile,
}

impl fmt::Debug for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Many").field("asked", &self.asked).field("pick", &self.pick).finish_non_exhaustive()
    }
}

/// What is told of a transfer of many files.
#[derive(Debug)]
pub enum Event {
    /// So many bytes are to be moved.
    Found(u64),
    Moved(Item, Moved),
    /// What would have been moved.
    Would(Item),
    /// So many bytes are there already.
    Skipped(u64),
    /// Something that was named is left out.
    Refused {
        name: Vec<u8>,
        why: String,
    },
}

/// A file and its object.
#[derive(Clone, Debug)]
pub struct Item {
    pub key: Key,
    pub path: PathBuf,
    pub bytes: u64,
    /// Of an object that was there.
    pub meta: Option<ObjectMeta>,
}

/// What came of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    pub bytes: u64,
    /// Of them, those that an earlier run had moved.
    pub resumed_bytes: u64,
    /// Of an upload; 0: it was one request.
    pub parts: u32,
    /// The sum that the store keeps is that of the file.
    pub is_checked: bool,
    pub took: Duration,
}

/// Told of a file of so many bytes when it begins. What comes back is told of its bytes, and dropped at its end.
pub type OnFile = Arc<dyn Fn(&Path, u64) -> OnBytes + Send + Sync>;

/// See the module.
#[derive(Debug)]
pub(super) struct Crew {
    running: JoinSet<Result<Event>>,
    most: usize,
}

impl Crew {
    pub fn new(most: usize) -> Self {
        Self { running: JoinSet::new(), most: most.max(1) }
    }

    /// Begins one more as soon as there are less than the most, and tells those that ended meanwhile.
    pub async fn begin(
        &mut self,
        transfer: impl Future<Output = Result<Event>> + Send + 'static,
        tell: &mut impl FnMut(Event),
    ) -> Result<()> {
        while self.running.len() >= self.most {
            self.next(tell).await?;
        }
        self.running.spawn(transfer);
        Ok(())
    }

    /// Waits for all.
    pub async fn finish(&mut self, tell: &mut impl FnMut(Event)) -> Result<()> {
        while !self.running.is_empty() {
            self.next(tell).await?;
        }
        Ok(())
    }

    /// Waits for those that were told to stop.
    pub async fn end(&mut self) {
        while self.running.join_next().await.is_some() {}
    }

    async fn next(&mut self, tell: &mut impl FnMut(Event)) -> Result<()> {
        if let Some(ended) = self.running.join_next().await {
            tell(ended.expect("a transfer does not panic, and nobody else aborts it")?);
        }
        Ok(())
    }
}

/// Whether a copy is of the same size and not older. Times of objects have whole seconds in some answers.
pub(super) fn is_current(copy: (u64, SystemTime), original: (u64, SystemTime)) -> bool {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    copy.0 == original.0 && seconds(copy.1) >= seconds(original.1)
}
