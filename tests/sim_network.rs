//! Reads and writes over links of all kinds and what happens on them, in virtual time: how fast they are again after it, what is transferred for
//! what is read or written, and whether a program sees an error that it could have been spared.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, sleep_until};
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::reader::{Options, ReadError, Reader};
use windlass::store::memory::{Bandwidth, Fault, Latency, Memory, Plan, Rule};
use windlass::store::{
    Body, Condition, Details, Error, ErrorKind, Headers, Key, ListPage, ListRequest, ObjectMeta, ObjectStore, Op, Part, Policy, PutRequest,
    RangeRequest, RangeSink, Result, Retrying, Upload, UploadRequest, Written,
};
use windlass::units::ByteSize;
use windlass::writer::{self, Writer};

const MIB: u64 = 1 << 20;

const FILES_WRITTEN: u64 = 4;

/// Parts of one file that are sent at a time over a path that carries no more, and their size.
const PARTS_UNDER_WAY: u64 = 10;
const PART: u64 = 8 * MIB;

/// The default of `--stall-timeout`.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// What happens on the way or at the endpoint, once reads have run for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// One answer in a hundred ends early, all the time.
    Cuts,
    /// Connections are refused, and those in use break.
    Outage(Duration),
    /// Each request is refused with 503.
    Refusals(Duration),
    /// A tenth of the requests that there were a second is taken, all others are refused with 503.
    Tenth(Duration),
    /// Requests are taken and never answered.
    Silence(Duration),
}

impl Trouble {
    fn lasts(self) -> Duration {
        match self {
            Self::Nothing | Self::Cuts => Duration::ZERO,
            Self::Outage(time) | Self::Refusals(time) | Self::Tenth(time) | Self::Silence(time) => time,
        }
    }
}

/// A store behind a network that has its day.
#[derive(Debug)]
struct Network {
    inner: Arc<Memory>,
    trouble: Trouble,
    round_trip: Duration,
    begins: Instant,
    /// Requests until it began, and those that were taken since.
    before: AtomicUsize,
    taken: AtomicUsize,
    started: Instant,
}

impl Network {
    fn is_in_trouble(&self) -> bool {
        let now = Instant::now();
        now >= self.begins && now < self.begins + self.trouble.lasts()
    }

    /// As many as a tenth of those of the time before in the time since.
    fn takes_one_more(&self) -> bool {
        let rate = self.before.load(Ordering::Relaxed) as f64 / (self.begins - self.started).as_secs_f64();
        let allowed = 1.0 + self.begins.elapsed().as_secs_f64() * rate / 10.0;
        let is_taken = (self.taken.load(Ordering::Relaxed) as f64) < allowed;
        self.taken.fetch_add(usize::from(is_taken), Ordering::Relaxed);
        is_taken
    }

    /// Carries out a request unless the network is in trouble.
    async fn pass<T>(&self, op: Op, key: &Key, request: impl Future<Output = Result<T>>) -> Result<T> {
        let failed = |kind, message: &str| Err(Error::new(kind, op, key, message));
        if Instant::now() < self.begins {
            self.before.fetch_add(1, Ordering::Relaxed);
        }
        if self.is_in_trouble() {
            match self.trouble {
                Trouble::Outage(_) => return failed(ErrorKind::Connect, "refused"),
                Trouble::Refusals(_) => {
                    sleep(self.round_trip).await;
                    return failed(ErrorKind::Throttled, "slow down");
                }
                Trouble::Tenth(_) if !self.takes_one_more() => {
                    sleep(self.round_trip).await;
                    return failed(ErrorKind::Throttled, "slow down");
                }
                // The client gives a body up that does not leave; other requests end where they are sent again.
                Trouble::Silence(_) if matches!(op, Op::Put | Op::UploadPart) => {
                    sleep(STALL_TIMEOUT).await;
                    return failed(ErrorKind::Timeout, "nothing moved");
                }
                Trouble::Silence(_) => std::future::pending().await,
                _ => {}
            }
        }
        let breaks = matches!(self.trouble, Trouble::Outage(_)) && Instant::now() < self.begins;
        tokio::select! {
            biased;
            result = request => result,
            () = sleep_until(self.begins), if breaks => failed(ErrorKind::Unavailable, "reset"),
        }
    }
}

#[async_trait]
impl ObjectStore for Network {
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.head(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        self.inner.list(request).await
    }

    async fn get_range(&self, request: &RangeRequest, sink: &mut dyn RangeSink) -> Result<()> {
        self.pass(Op::Get, &request.key, self.inner.get_range(request, sink)).await
    }

    async fn details(&self, key: &Key) -> Result<Details> {
        self.pass(Op::Head, key, self.inner.details(key)).await
    }

    async fn put(&self, request: &PutRequest) -> Result<Written> {
        self.pass(Op::Put, &request.key, ObjectStore::put(&*self.inner, request)).await
    }

    async fn create_upload(&self, request: &UploadRequest) -> Result<Upload> {
        self.pass(Op::CreateUpload, &request.key, self.inner.create_upload(request)).await
    }

    async fn upload_part(&self, upload: &Upload, number: u32, body: Body) -> Result<Part> {
        self.pass(Op::UploadPart, &upload.key, self.inner.upload_part(upload, number, body)).await
    }

    async fn complete_upload(&self, upload: &Upload, parts: &[Part], condition: &Condition) -> Result<Written> {
        self.pass(Op::CompleteUpload, &upload.key, self.inner.complete_upload(upload, parts, condition)).await
    }

    async fn abort_upload(&self, upload: &Upload) -> Result<()> {
        self.pass(Op::AbortUpload, &upload.key, self.inner.abort_upload(upload)).await
    }
}

/// The access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    OneStream,
    SixteenStreams,
    /// Files of 256 KiB, sixteen at a time.
    SmallFiles,
    /// Four new files at a time.
    Writing,
}

impl Load {
    /// How many objects of which size to read `bytes`, and how many at a time.
    fn objects(self, bytes: u64) -> (u64, u64, u64) {
        match self {
            Self::OneStream => (1, bytes, 1),
            Self::SixteenStreams => (16, bytes / 16, 16),
            Self::SmallFiles => ((bytes / (256 << 10)).max(16), 256 << 10, 16),
            Self::Writing => (FILES_WRITTEN, bytes / FILES_WRITTEN, FILES_WRITTEN),
        }
    }
}

/// What a run showed.
#[derive(Clone, Copy, Debug)]
struct Run {
    time: Duration,
    /// Bytes that were read or written.
    bytes: u64,
    /// Bytes that were transferred for them.
    moved: u64,
}

/// A link.
#[derive(Clone, Copy, Debug)]
struct Link {
    megabytes_a_second: u64,
    round_trip: Duration,
}

impl Link {
    fn rate(self) -> u64 {
        self.megabytes_a_second * 1_000_000
    }

    /// Until then reads run undisturbed: time for the window to open, and for forty chunks on the slowest link.
    fn undisturbed(self) -> Duration {
        Duration::from_secs((160_000_000 / self.rate()).max(6))
    }
}

/// A bucket behind a link.
struct World {
    memory: Arc<Memory>,
    store: Arc<Retrying>,
    budget: Arc<Budget>,
    metrics: Arc<Metrics>,
}

impl World {
    fn reader(&self) -> Reader {
        let (store, budget, metrics) = (Arc::clone(&self.store), Arc::clone(&self.budget), Arc::clone(&self.metrics));
        Reader::new(store, budget, metrics, Options::default(), Duration::from_secs(70))
    }

    fn writer(&self) -> Writer {
        let (store, budget, metrics) = (Arc::clone(&self.store), Arc::clone(&self.budget), Arc::clone(&self.metrics));
        Writer::new(store, budget, metrics, writer::Options::default(), "test")
    }
}

fn world(link: Link, trouble: Trouble) -> World {
    let bandwidth = Bandwidth { per_connection: None, total: Some(link.rate()) };
    let memory = Arc::new(Memory::new(Plan { first_byte: Latency::Fixed(link.round_trip), bandwidth, seed: 1 }));
    if trouble == Trouble::Cuts {
        let random = Mutex::new(StdRng::seed_from_u64(7));
        let one_in_a_hundred = move |_, _: &Key| random.lock().unwrap().random_ratio(1, 100);
        memory.fault(Rule::new(Fault::Truncate { after: 100_000 }).when(one_in_a_hundred));
    }
    let started = Instant::now();
    let network = Network {
        inner: Arc::clone(&memory),
        trouble,
        round_trip: link.round_trip,
        begins: started + link.undisturbed(),
        before: AtomicUsize::new(0),
        taken: AtomicUsize::new(0),
        started,
    };
    let policy = Policy { retries: 10, request_timeout: Duration::from_secs(60), attempt_timeout: Duration::from_secs(10) };
    let metrics = Arc::new(Metrics::default());
    let store = Arc::new(Retrying::new(Arc::new(network), policy, Arc::clone(&metrics)));
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::gib(1)) });
    World { memory, store, budget, metrics }
}

/// Writes four files at the same time.
async fn write(link: Link, trouble: Trouble) -> Run {
    let (started, world) = (Instant::now(), world(link, trouble));
    let size = (link.rate() * (2 * link.undisturbed().as_secs() + 10) / FILES_WRITTEN).next_multiple_of(MIB);
    let writer = world.writer();
    let write = async |n: u64| {
        let (key, piece) = (format!("{n}"), vec![n as u8; MIB as usize]);
        let content = writer.create(key.as_str().into(), Headers::default());
        for offset in (0..size).step_by(piece.len()) {
            content.write(offset, &piece).await.unwrap_or_else(|error| panic!("{link:?}, {trouble:?}: {error}"));
        }
        let stored = content.commit(Condition::Absent).await.unwrap_or_else(|error| panic!("{link:?}, {trouble:?}: {error}"));
        assert_eq!(stored.expect("it was written").size, size);
        let content = world.memory.content(key.as_str()).expect("it is stored");
        assert!(content.len() as u64 == size && content.chunks(piece.len()).all(|stored| stored == piece), "other bytes in {n}");
    };
    join_all((0..FILES_WRITTEN).map(write)).await;
    Run { time: started.elapsed(), bytes: FILES_WRITTEN * size, moved: world.memory.sent_bytes() }
}

async fn run(link: Link, trouble: Trouble, load: Load) -> Run {
    if load == Load::Writing {
        return write(link, trouble).await;
    }
    let (started, world) = (Instant::now(), world(link, trouble));
    let (memory, reader) = (&world.memory, world.reader());
    let warm = link.undisturbed();
    let (objects, size, at_once) = load.objects(link.rate() * (2 * warm.as_secs() + 10));
    (0..objects).for_each(|n| drop(memory.put_synthetic(format!("{n}"), size)));
    let next = AtomicU64::new(0);
    let worker = || async {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= objects {
                return;
            }
            let (handle, content) = (reader.open(&memory.meta(format!("{n}")).unwrap()), memory.synthetic(format!("{n}")).unwrap());
            for offset in (0..size).step_by(MIB as usize) {
                let data = handle.read(1, offset, MIB as usize).await;
                let data = data.unwrap_or_else(|error: ReadError| panic!("{link:?}, {trouble:?}, {load:?}: {error}"));
                let first = data.slices().next().unwrap();
                assert!(content.matches(offset, &first[..first.len().min(64)]), "other bytes at {offset}");
            }
        }
    };
    join_all((0..at_once).map(|_| worker())).await;
    Run { time: started.elapsed(), bytes: objects * size, moved: memory.delivered_bytes() }
}

/// Reads over all of these links, with all that may happen there: no read fails, and the whole takes as long as where nothing happens, the trouble
/// and ten seconds more; for what comes after that nine tenths of the throughput are enough. The rounds in which the requests at a time become
/// more again take the longer the farther the endpoint is.
async fn all_links(rates: &[u64], load: Load) {
    let mut failed = Vec::new();
    for &megabytes_a_second in rates {
        for round_trip in [1, 50, 300] {
            let link = Link { megabytes_a_second, round_trip: Duration::from_millis(round_trip) };
            let usual = run(link, Trouble::Nothing, load).await;
            for trouble in TROUBLES {
                let shown = run(link, trouble, load).await;
                let lost = shown.time.saturating_sub(usual.time).saturating_sub(trouble.lasts());
                let twice = shown.moved.saturating_sub(shown.bytes);
                let line = format!(
                    "{load:?}, {megabytes_a_second} MB/s, {round_trip} ms, {trouble:?}: {lost:.1?} more than {:.1?} and the trouble, \
                     {twice} of {} bytes twice",
                    usual.time, shown.bytes
                );
                println!("{line}");
                let rest = usual.time.saturating_sub(link.undisturbed());
                let mut most_lost = Duration::from_secs(10) + 20 * link.round_trip + rest / 9;
                if let Trouble::Silence(_) = trouble {
                    // The repeats of GETs that were silent have jitter, and that is not of virtual time.
                    most_lost += Duration::from_secs(2);
                }
                let most_twice = match (load, trouble) {
                    // A range goes on from where it stopped, a part is sent again as a whole: those that were under way.
                    (Load::Writing, _) => {
                        most_lost += Duration::from_secs_f64(twice as f64 / link.rate() as f64);
                        FILES_WRITTEN * PARTS_UNDER_WAY * PART
                    }
                    (_, Trouble::Cuts) => shown.bytes / 10,
                    _ => shown.bytes / 20,
                };
                if lost > most_lost || twice > most_twice {
                    failed.push(line);
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

const TWENTY: Duration = Duration::from_secs(20);
const TROUBLES: [Trouble; 5] =
    [Trouble::Cuts, Trouble::Outage(TWENTY), Trouble::Refusals(TWENTY), Trouble::Tenth(TWENTY), Trouble::Silence(TWENTY)];

#[tokio::test(start_paused = true)]
async fn one_stream_over_slow_links() {
    all_links(&[1, 5, 50], Load::OneStream).await;
}

#[tokio::test(start_paused = true)]
async fn one_stream_over_a_fast_link() {
    all_links(&[500], Load::OneStream).await;
}

#[tokio::test(start_paused = true)]
async fn sixteen_streams() {
    all_links(&[1, 5, 50], Load::SixteenStreams).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "minutes of simulation: cargo test --release --test sim_network fast_link -- --ignored"]
async fn sixteen_streams_over_a_fast_link() {
    all_links(&[500], Load::SixteenStreams).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "minutes of simulation: cargo test --release --test sim_network fast_link -- --ignored"]
async fn small_files_over_a_fast_link() {
    all_links(&[500], Load::SmallFiles).await;
}

#[tokio::test(start_paused = true)]
async fn small_files() {
    all_links(&[1, 5, 50], Load::SmallFiles).await;
}

#[tokio::test(start_paused = true)]
async fn four_files_that_are_written() {
    // Every byte is kept by the store in memory: a faster link has more of them, and nothing else to show.
    all_links(&[1, 5], Load::Writing).await;
}

/// Longer than any request may take: reads fail when that is over, with what the store said, and go on when it is there again.
#[tokio::test(start_paused = true)]
async fn an_outage_of_five_minutes_is_told_and_ends_with_itself() {
    for trouble in [Trouble::Outage, Trouble::Refusals, Trouble::Silence].map(|trouble| trouble(15 * TWENTY)) {
        let link = Link { megabytes_a_second: 50, round_trip: Duration::from_millis(50) };
        let (started, world) = (Instant::now(), world(link, trouble));
        let (memory, reader) = (&world.memory, world.reader());
        memory.put_synthetic("a", 64 << 30);
        let handle = reader.open(&memory.meta("a").unwrap());
        let (mut offset, mut failures) = (0, Vec::new());
        while started.elapsed() < link.undisturbed() + trouble.lasts() + Duration::from_secs(60) {
            match handle.read(1, offset, MIB as usize).await {
                Ok(_) => offset += MIB,
                Err(error) => {
                    failures.push((started.elapsed(), error));
                    // A program that tries again.
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
        let (first, error) = failures.first().expect("five minutes are too long to hide");
        assert!(*first >= link.undisturbed() + Duration::from_secs(55), "{trouble:?}: {error} after {first:?}");
        let (last, _) = failures.last().unwrap();
        assert!(*last <= link.undisturbed() + trouble.lasts() + Duration::from_secs(10), "{trouble:?}: the last failure after {last:?}");
        let bytes = offset as f64 / MIB as f64;
        assert!(bytes > 50.0 * 40.0, "{trouble:?}: {bytes} MiB read, the last failure after {last:?}");
    }
}
