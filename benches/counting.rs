//! What counting costs: the CPU time of what one read counts, on one thread and on all cores at once, beside the CPU time of finding the bytes
//! of that read in memory, in one run. `cargo bench --bench counting`; the shares it prints are of the fastest reads there are, those that a
//! window answers.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use tokio::runtime::Builder;
use windlass::budget::{self, Budget};
use windlass::metrics::{Metrics, RequestKind};
use windlass::reader::{self, ObjectHandle, Reader};
use windlass::store::memory::{Memory, Plan};
use windlass::units::ByteSize;

const MIB: u64 = 1 << 20;

/// CPU of the daemon for a GiB of direct reads of 1 MiB from a file system that does nothing, the least that a mount can take.
const LEAST_CPU_PER_GIB: f64 = 0.045;

fn main() {
    // `cargo test` only wants to see that it runs.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { 4_000_000 } else { 4_000 };
    let metrics: Arc<Metrics> = Arc::default();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // The read has looked at the clock when it began anyway: what it begins with costs nothing more.
    let began = Instant::now();
    let count = |metrics: &Metrics| {
        metrics.window_hits.add(1);
        metrics.read_bytes.add(black_box(MIB));
        metrics.read_seconds.record(black_box(began).elapsed());
    };
    let nothing = nanoseconds(rounds, 1, || {
        black_box(&metrics);
    });
    let alone = nanoseconds(rounds, 1, || count(&metrics)) - nothing;
    let together = nanoseconds(rounds, cores, || count(&metrics)) - nothing;
    let request = nanoseconds(rounds / 10, cores, || {
        let mut attempt = metrics.attempt(RequestKind::Get);
        attempt.on_head(206);
        attempt.on_end();
    });
    println!("what a read counts: {alone:.0} ns of CPU on one thread, {together:.0} ns on each of {cores}");
    println!("what a request counts: {request:.0} ns on each of {cores}");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime of one thread");
    let _runtime = runtime.enter();
    let handle = open();
    runtime.block_on(handle.read(1, 0, 4 << 20)).expect("the store fails nothing");
    let (handle, mut n) = (&handle, 0);
    let small = nanoseconds(rounds / 10, 1, move || {
        n += 1;
        assert!(black_box(handle.begin(1, n % 1024 * 4096, 4096).ready()).is_some());
    });
    println!("a read of bytes that are in memory, with what it counts: {small:.0} ns");
    let per_gib = 1024.0 * together.max(alone) / 1e9;
    println!("at 1 MiB a read: {:.4} % of the least CPU that a GiB takes", per_gib / LEAST_CPU_PER_GIB * 100.0);
}

fn open() -> ObjectHandle {
    let store = Memory::new(Plan::default());
    store.put_synthetic("k", 4 * MIB);
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::gib(1)) });
    let meta = store.meta("k").expect("it was just put");
    Reader::new(Arc::new(store), budget, Arc::new(Metrics::default()), reader::Options::default(), Duration::from_secs(60)).open(&meta)
}

/// CPU time of `once` on each of so many threads that do it at the same time.
fn nanoseconds(rounds: u64, threads: usize, once: impl FnMut() + Clone + Send) -> f64 {
    let all: Vec<f64> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| once.clone()).map(|once| scope.spawn(move || on_this_thread(rounds, once))).collect();
        running.into_iter().map(|thread| thread.join().expect("nothing panics in there")).collect()
    });
    all.iter().sum::<f64>() / all.len() as f64
}

fn on_this_thread(rounds: u64, mut once: impl FnMut()) -> f64 {
    let started = ThreadTime::now();
    for _ in 0..rounds {
        once();
    }
    started.elapsed().as_nanos() as f64 / rounds as f64
}
