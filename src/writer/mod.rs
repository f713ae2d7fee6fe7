//! The content of files that are being changed: streamed to the store in parts while it is written front to back, staged on a
//! disk otherwise, and in the bucket whole after a commit or not at all. It knows keys, not names or handles.
//!
//! [`Writer`] is one per mount, [`Content`] one per file that is open for writing. What decides is pure (`parts`, and the layout
//! of a staged file, `fate`: what is to become of the bytes); `stream` and `staging` hold the bytes, `commit` and `upload` send them.
//!
//! Invariant: a commit that returned an object has put every byte into it that was written before; one that failed has
//! changed nothing in the bucket.

mod background;
mod change;
mod commit;
mod content;
mod error;
mod fate;
mod filling;
mod interrupted;
mod kept;
mod landing;
mod memory;
mod pace;
mod parts;
mod stage;
pub mod staging;
mod stream;
mod upload;
mod writing;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Semaphore;

use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::reader::Reader;
use crate::spill::Guard;
use crate::store::{Headers, Key, ObjectMeta, ObjectStore};
use crate::units::ByteSize;

pub use content::{Allocate, Content, End, Frozen};
pub use error::WriteError;
pub use interrupted::Interrupted;
pub use landing::Landing;
pub use parts::Limits;
pub use staging::{Left, Outcome, Recovered};

use background::Background;
use memory::Share;
use pace::Pace;
use parts::Sizes;
use staging::Area;
use stream::Stream;

/// Options of the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The size of parts; it grows with the file, so that the parts a store takes hold it.
    pub part_size: ByteSize,
    /// Parts of one file in flight; none: as many as turn out to be of use.
    pub concurrency: Option<usize>,
    /// Parts in flight in the process.
    pub total_concurrency: usize,
    pub staging: staging::Options,
    /// What the store takes. No flag sets it: tests do.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            part_size: ByteSize::mib(8),
            concurrency: None,
            total_concurrency: 64,
            staging: staging::Options::default(),
            limits: Limits::default(),
        }
    }
}

impl Options {
    fn pace(&self) -> Pace {
        Pace::new(self.concurrency, self.total_concurrency)
    }
}

/// The writer of a mount. Cheap to clone.
#[derive(Clone)]
pub struct Writer(Arc<Shared>);

struct Shared {
    store: Arc<dyn ObjectStore>,
    metrics: Arc<Metrics>,
    options: Options,
    /// What is mounted: staged files of other mounts are left alone.
    scope: String,
    sizes: Sizes,
    share: Arc<Share>,
    places: Semaphore,
    background: Background,
    area: Area,
    /// The endpoint does not copy inside the store.
    copies_refused: AtomicBool,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("options", &self.0.options).field("scope", &self.0.scope).finish_non_exhaustive()
    }
}

impl Writer {
    /// A writer to `store`, whose uploads run on the runtime that this is called in. `scope` names what is mounted.
    pub fn new(store: Arc<dyn ObjectStore>, budget: Arc<Budget>, metrics: Arc<Metrics>, options: Options, scope: &str) -> Self {
        let part = memory::fitting_part(options.part_size.as_u64(), &budget, &options.limits);
        let share = Share::new(budget, part as usize, &options.limits);
        Self(Arc::new(Shared {
            store,
            metrics,
            scope: scope.to_owned(),
            sizes: Sizes::new(part, share.largest_part() as u64, &options.limits),
            share,
            places: Semaphore::new(options.total_concurrency.max(1)),
            background: Background::new(),
            area: Area::new(&options.staging),
            copies_refused: AtomicBool::new(false),
            options,
        }))
    }

    /// Where what happens to files that are written is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Content that begins empty. It streams as long as it is written front to back.
    pub fn create(&self, key: Key, headers: Headers) -> Arc<Content> {
        Content::empty(&self.0, key, headers)
    }

    /// Content of `key` that a daemon which ended had, and that is gone.
    pub fn lost(&self, key: Key, headers: Headers) -> Arc<Content> {
        Content::lost(&self.0, key, headers)
    }

    /// Writes down each change of staged files from now on, so that another daemon can go on with them.
    pub fn write_down_changes(&self) {
        self.0.area.write_down_changes();
    }

    /// The staged files of a daemon that ended, and the streams that it [handed over](Content::hand_over), each under its owner, for those of
    /// `owners` that still have it open: they go on. What is not taken over, [`recover`](Self::recover) takes care of.
    pub async fn take_over(&self, owners: &HashSet<u64>) -> HashMap<u64, Arc<Content>> {
        staging::take_over(&self.0, owners.clone()).await
    }

    /// Content of an object that is going to be changed. Nothing is fetched yet.
    pub fn edit(&self, base: ObjectMeta, headers: Headers) -> Arc<Content> {
        Content::of_object(&self.0, base, headers)
    }

    /// Staged files that a killed mount of the same scope left: each is uploaded when a commit of it had begun and the object still
    /// is what it was, else it stays and is reported. The upload of a stream that was handed over and not taken over is aborted. For after
    /// [`take_over`](Self::take_over).
    pub async fn recover(&self) -> Vec<Recovered> {
        staging::recover(&self.0).await
    }

    /// Has `reader` let go of what it can spare when a writer waits for memory. Both draw on one budget, and what a reader keeps in
    /// case it is wanted again would else stay there.
    pub fn take_room_from(&self, reader: &Reader) {
        self.0.share.take_room_from(reader);
    }

    /// Staged files take their room of `guard`, which others use too. For before the first of them.
    pub fn share_room(&self, guard: Guard) {
        self.0.area.share(guard);
    }

    /// Memory to receive what is written into, for [`Content::try_write_received`]; none when there is none to spare.
    pub fn landing(&self) -> Option<Landing> {
        self.0.share.landing()
    }

    /// From so many bytes on a write is worth being received into a landing.
    pub fn least_received(&self) -> usize {
        self.0.options.limits.received
    }

    /// Waits for uploads and aborts that go on by themselves.
    pub async fn settle(&self) {
        self.0.background.settle().await;
    }
}

impl Shared {
    /// A stream of nothing yet.
    fn stream(&self) -> Stream {
        Stream::new(self.sizes)
    }

    /// How long the part is that `offset` is in.
    fn part_len(&self, offset: u64) -> u64 {
        self.sizes.index(offset).map_or(0, |index| {
            let part = self.sizes.range(index);
            part.end - part.start
        })
    }

    /// How many of `len` bytes at `offset` are in the same part.
    fn len_in_part(&self, offset: u64, len: usize) -> usize {
        let end = self.sizes.index(offset).map_or(u64::MAX, |index| self.sizes.range(index).end);
        usize::try_from(end - offset).map_or(len, |rest| rest.min(len))
    }
}
