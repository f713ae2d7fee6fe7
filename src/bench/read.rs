//! One object, read by ranges side by side, compared with the sum that the store keeps of it, and thrown away. The plan is pure. Invariant:
//! every byte is asked for once, and what is in flight stays within the memory that was allowed.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::away::{PIECE_BYTES, Piece};
use super::rate::{Rate, Speed};
use crate::budget::{self, Budget};
use crate::store::{Crc64, ObjectMeta, ObjectStore, Part, RangeRequest};
use crate::transfer::{self, Result, check};
use crate::units::ByteSize;

/// Below that a system call moves too little.
const LEAST_PIECE: u64 = 64 << 10;

/// As many requests as ossutil takes.
const MOST_REQUESTS: usize = 10_000;

/// So many chunks of so many bytes in flight: `128x800` is 128 x 800 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub requests: usize,
    pub chunk: ByteSize,
}

/// How a length is read under a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    len: u64,
    chunk_bytes: u64,
    /// Requests at a time.
    pub requests: usize,
    /// Memory of each.
    pub piece_bytes: u64,
}

/// Why there is no load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("\"{0}\" is not CONCURRENCYxCHUNK: write for example 128x800 for 128 chunks of 800 MiB in flight, or 4x256KiB")]
    Form(String),
    #[error("from 1 to 10000 requests can be in flight, not {0}")]
    Requests(usize),
    #[error("a chunk must have at least 64KiB, not {0}")]
    Chunk(ByteSize),
    #[error("{0} of memory do not hold one piece of 64KiB")]
    Memory(ByteSize),
}

impl Load {
    /// A load that can be.
    ///
    /// # Errors
    /// [`LoadError::Requests`], [`LoadError::Chunk`].
    pub fn new(requests: usize, chunk: ByteSize) -> Result<Self, LoadError> {
        match () {
            () if !(1..=MOST_REQUESTS).contains(&requests) => Err(LoadError::Requests(requests)),
            () if chunk.as_u64() < LEAST_PIECE => Err(LoadError::Chunk(chunk)),
            () => Ok(Self { requests, chunk }),
        }
    }

    /// How `len` bytes are read under it. A request holds a piece of its chunk, smaller the more there are.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    pub fn plan(&self, len: u64, max_memory: ByteSize) -> Result<Plan, LoadError> {
        let share = (max_memory.as_u64() / self.requests as u64).clamp(LEAST_PIECE, PIECE_BYTES);
        let piece_bytes = 1 << share.ilog2();
        let fitting = max_memory.as_u64() / piece_bytes;
        if fitting == 0 {
            return Err(LoadError::Memory(max_memory));
        }
        let mut plan = Plan { len, chunk_bytes: self.chunk.as_u64(), requests: self.requests, piece_bytes };
        let useful = fitting.min(plan.chunks().max(1));
        plan.requests = plan.requests.min(usize::try_from(useful).unwrap_or(usize::MAX));
        Ok(plan)
    }
}

impl Plan {
    /// Pieces that the length is cut into.
    pub fn chunks(&self) -> u64 {
        self.len.div_ceil(self.chunk_bytes)
    }

    /// All memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        self.piece_bytes * self.requests as u64
    }

    fn chunk(&self, n: u64) -> Option<Range<u64>> {
        let start = Some(n).filter(|&n| n < self.chunks())? * self.chunk_bytes;
        Some(start..self.len.min(start.saturating_add(self.chunk_bytes)))
    }
}

impl FromStr for Load {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        let form = || LoadError::Form(text.to_owned());
        let (requests, chunk) = text.split_once('x').ok_or_else(form)?;
        let is_bare = chunk.bytes().all(|byte| byte.is_ascii_digit());
        let chunk: ByteSize = if is_bare { format!("{chunk}MiB").parse() } else { chunk.parse() }.map_err(|_| form())?;
        Self::new(requests.parse().map_err(|_| form())?, chunk)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.requests, self.chunk)
    }
}

/// Reads all of `object` as planned, and compares it with `crc` when that is known.
///
/// # Errors
/// The first that the store answers, or that the object has another sum.
pub async fn read(store: &Arc<dyn ObjectStore>, object: &ObjectMeta, plan: &Plan, crc: Option<Crc64>) -> Result<Speed> {
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::bytes(plan.memory_bytes())) });
    let job = Arc::new(Job {
        store: Arc::clone(store),
        object: object.clone(),
        plan: *plan,
        crc,
        next: AtomicU64::new(0),
        rate: Mutex::new(Rate::new(Instant::now())),
    });
    // Dropped, it aborts what is under way.
    let mut running = JoinSet::new();
    for _ in 0..plan.requests {
        let piece = Piece::lease(&budget, plan.piece_bytes).await?;
        running.spawn(work(Arc::clone(&job), piece));
    }
    let mut sums = Vec::new();
    while let Some(done) = running.join_next().await {
        sums.append(&mut done.expect("a worker does not panic, and nobody else aborts it")?);
    }
    let speed = job.rate.lock().end(Instant::now());
    if let Some(crc) = crc {
        sums.sort_by_key(|&(start, _)| start);
        let sums: Vec<Part> = sums.into_iter().map(|(_, sum)| sum).collect();
        check(crc, &sums, &object.key)?;
    }
    Ok(speed)
}

/// What the workers of one load share.
struct Job {
    store: Arc<dyn ObjectStore>,
    object: ObjectMeta,
    plan: Plan,
    crc: Option<Crc64>,
    /// The next chunk.
    next: AtomicU64,
    rate: Mutex<Rate>,
}

/// Fetches the next chunk until there is none. Returns where each began, with its sum.
async fn work(job: Arc<Job>, mut piece: Piece) -> Result<Vec<(u64, Part)>> {
    let mut sums = Vec::new();
    while let Some(range) = job.plan.chunk(job.next.fetch_add(1, Relaxed)) {
        let (start, size) = (range.start, range.end - range.start);
        let request = RangeRequest { key: job.object.key.clone(), range, etag: job.object.etag.clone() };
        let mut sum = job.crc.map(|crc| crc.polynomial.summing());
        let on_bytes = |bytes: &[u8]| {
            if let Some(sum) = &mut sum {
                sum.add(bytes);
            }
            job.rate.lock().on_bytes(Instant::now(), bytes.len() as u64);
        };
        job.store.get_range(&request, &mut piece.away(size, on_bytes)).await?;
        sums.extend(sum.map(|sum| (start, transfer::piece(size, sum.value()))));
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::memory::{Bandwidth, Fault, Latency, Memory, Plan as Network, Rule};
    use crate::store::{ErrorKind, Op, Polynomial};
    use crate::transfer::Error;

    fn load(text: &str) -> Load {
        text.parse().unwrap()
    }

    #[test]
    fn loads_are_written_as_the_vendor_does() {
        assert_eq!(load("128x800"), Load { requests: 128, chunk: ByteSize::mib(800) });
        assert_eq!(load("4x256KiB"), Load { requests: 4, chunk: ByteSize::kib(256) });
        assert_eq!(load("4x1GiB").to_string(), "4x1GiB");
        for text in ["", "x", "128", "128x", "x800", "ax8", "8xa", "8x4x4", "-1x4", "0x4", "10001x4", "4x0", "4x63KiB"] {
            assert!(text.parse::<Load>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_rows_of_the_vendors_table_fit_into_the_default_memory() {
        for (text, chunks, piece) in
            [("128x800", 128, 1 << 20), ("256x400", 256, 1 << 20), ("512x200", 512, 512 << 10), ("1024x100", 1024, 256 << 10)]
        {
            let plan = load(text).plan(100 << 30, ByteSize::mib(256)).unwrap();
            assert_eq!((plan.chunks(), plan.requests, plan.piece_bytes), (chunks, chunks as usize, piece), "{text}");
        }
    }

    #[test]
    fn every_byte_is_in_one_chunk() {
        let plan = load("2x8").plan(20 << 20, ByteSize::mib(256)).unwrap();
        let chunks: Vec<_> = (0..).map_while(|n| plan.chunk(n)).collect();
        assert_eq!(chunks, [0..8 << 20, 8 << 20..16 << 20, 16 << 20..20 << 20]);
        assert_eq!(load("2x8").plan(0, ByteSize::mib(256)).unwrap().chunk(0), None);
    }

    #[test]
    fn memory_and_the_object_bound_what_is_in_flight() {
        for (text, len, memory, requests) in
            [("10000x1", 100 << 30, 256, 4096), ("64x8", 20 << 20, 256, 3), ("64x8", 0, 256, 1), ("3x8", 100 << 30, 1, 3)]
        {
            let plan = load(text).plan(len, ByteSize::mib(memory)).unwrap();
            assert_eq!(plan.requests, requests, "{text}");
            assert!(plan.memory_bytes() <= memory << 20, "{plan:?}");
        }
        assert_eq!(load("1x1").plan(1, ByteSize::kib(63)), Err(LoadError::Memory(ByteSize::kib(63))));
    }

    #[tokio::test(start_paused = true)]
    async fn every_byte_is_asked_for_once_with_as_many_requests_as_planned() {
        let bandwidth = Bandwidth { per_connection: Some(16 << 20), total: None };
        let memory = Memory::new(Network { first_byte: Latency::Fixed(Duration::from_millis(100)), bandwidth, seed: 0 });
        memory.put_synthetic("k", 64 << 20);
        let (object, store): (_, Arc<dyn ObjectStore>) = (memory.meta("k").unwrap(), Arc::new(memory.clone()));
        let plan = load("4x8").plan(object.size, ByteSize::mib(256)).unwrap();
        let speed = read(&store, &object, &plan, None).await.unwrap();
        assert_eq!((speed.bytes, memory.delivered_bytes(), memory.count(Op::Get), memory.max_in_flight()), (64 << 20, 64 << 20, 8, 4));
        // Two rounds of 100 ms to the first byte and 500 ms for 8 MiB.
        assert!((1200..1205).contains(&speed.took.as_millis()), "{speed:?}");
        // What came after a second is no whole one, but what came in the first is less than the mean.
        assert_eq!(speed.peak, speed.mean());
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_is_compared_with_the_sum_of_the_store() {
        let memory = Memory::default();
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        memory.put("k", content.clone());
        let (object, store): (_, Arc<dyn ObjectStore>) = (memory.meta("k").unwrap(), Arc::new(memory.clone()));
        let plan = load("4x256KiB").plan(object.size, ByteSize::mib(256)).unwrap();
        let right = Crc64 { polynomial: Polynomial::Nvme, value: Polynomial::Nvme.of(&content) };
        assert_eq!(read(&store, &object, &plan, Some(right)).await.unwrap().bytes, 3_000_000);
        let wrong = Crc64 { value: right.value ^ 1, ..right };
        assert!(matches!(read(&store, &object, &plan, Some(wrong)).await, Err(Error::Checksum { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_error_ends_it() {
        let memory = Memory::default();
        memory.put_synthetic("k", 64 << 20);
        memory.fault(Rule::new(Fault::Error(ErrorKind::AccessDenied)).nth(3));
        let (object, store): (_, Arc<dyn ObjectStore>) = (memory.meta("k").unwrap(), Arc::new(memory.clone()));
        let plan = load("1x8").plan(object.size, ByteSize::mib(256)).unwrap();
        assert!(matches!(read(&store, &object, &plan, None).await, Err(Error::Store(_))));
        assert_eq!(memory.count(Op::Get), 3);
    }
}
