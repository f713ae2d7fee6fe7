//! What a read costs without FUSE: a range GET over loopback into memory of ours, a whole object through the window, and
//! reads of bytes that are there already (stream table and window alone). Each prints the CPU time of the reading
//! thread a GiB, or a read, beside criterion's wall time; `cargo bench --bench reading`.

mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use cpu_time::ThreadTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures::future::join_all;
use tokio::runtime::{Builder, Runtime};
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::reader::{self, ObjectHandle, Reader};
use windlass::store::memory::{Memory, Plan};
use windlass::store::{self, ETag, Key, ObjectStore, RangeRequest, RangeSink};
use windlass::units::ByteSize;

use support::sink;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const CHUNK: u64 = 4 * MIB;

/// One thread for everything that is measured.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime of one thread")
}

/// Memory that is used again and again, as that of a chunk is.
struct Reused {
    memory: Vec<u8>,
    filled: usize,
}

impl RangeSink for Reused {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.memory[self.filled..]
    }

    fn advance(&mut self, n: usize) {
        self.filled += n;
    }
}

/// Runs `once`, which handles `bytes`, and prints the CPU time of this thread a GiB.
fn measure(criterion: &mut Criterion, name: &str, bytes: u64, mut once: impl FnMut()) {
    let mut group = criterion.benchmark_group("read");
    group.throughput(Throughput::Bytes(bytes)).sample_size(20);
    let (mut runs, started) = (0_u64, ThreadTime::now());
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            runs += 1;
            once();
        });
    });
    let gib = (runs.max(1) * bytes) as f64 / GIB as f64;
    println!("{name}: {:.3} s of CPU a GiB", started.elapsed().as_secs_f64() / gib);
    group.finish();
}

fn range_client(criterion: &mut Criterion) {
    let runtime = runtime();
    let keys = store::StaticKeys { id: "AK".into(), secret: "SK".into(), token: None };
    let options = store::Options {
        bucket: "bench".into(),
        endpoint: Some(format!("http://127.0.0.1:{}", sink::serve())),
        region: Some("us-east-1".into()),
        credentials: store::CredentialOptions { keys: Some(keys), ..Default::default() },
        ..Default::default()
    };
    let store = runtime.block_on(store::open(&options, Arc::default())).expect("nothing is asked of it yet");
    for (name, len) in [("range GETs of 4 MiB, 4 at a time", CHUNK), ("range GETs of 128 KiB, 4 at a time", 128 << 10)] {
        let mut sinks: Vec<Reused> = (0..4).map(|_| Reused { memory: vec![0; len as usize], filled: 0 }).collect();
        measure(criterion, name, 4 * len, || {
            let gets = sinks.iter_mut().map(|sink| {
                sink.filled = 0;
                let request = RangeRequest { key: Key::from("k"), range: 0..len, etag: ETag::from(support::ETAG) };
                let store = &store;
                async move { store.get_range(&request, sink).await }
            });
            assert!(runtime.block_on(join_all(gets)).iter().all(Result::is_ok));
            assert!(sinks.iter().all(|sink| sink.filled == len as usize));
        });
    }
}

fn open(runtime: &Runtime, size: u64) -> ObjectHandle {
    let _runtime = runtime.enter();
    let store = Memory::new(Plan::default());
    store.put_synthetic("k", size);
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::gib(1)) });
    let meta = store.meta("k").expect("it was just put");
    let options = reader::Options::default();
    Reader::new(Arc::new(store), budget, Arc::new(Metrics::default()), options, Duration::from_secs(60)).open(&meta)
}

/// Through window, budget and fetches; the store makes the bytes up, which is most of the time.
fn window(criterion: &mut Criterion) {
    let runtime = runtime();
    measure(criterion, "an object of 256 MiB in reads of 1 MiB", 256 * MIB, || {
        let handle = open(&runtime, 256 * MIB);
        for offset in (0..256 * MIB).step_by(MIB as usize) {
            let data = runtime.block_on(handle.read(1, offset, MIB as usize)).expect("the store fails nothing");
            assert_eq!(black_box(data).len() as u64, MIB);
        }
    });
}

/// The first step of a read alone: what every read costs, whatever it waits for.
fn stream_table(criterion: &mut Criterion) {
    let runtime = runtime();
    let handle = open(&runtime, CHUNK);
    runtime.block_on(handle.read(1, 0, CHUNK as usize)).expect("the store fails nothing");
    let _runtime = runtime.enter();
    let mut group = criterion.benchmark_group("find bytes that are there");
    for (name, step) in [("in order", 1), ("at random", 7919)] {
        let (mut n, started) = (0_u64, ThreadTime::now());
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                n += 1;
                let offset = n * step % 1024 * 4096;
                assert!(black_box(handle.begin(1, offset, 4096).ready()).is_some());
            });
        });
        println!("{name}: {} ns of CPU a read", started.elapsed().as_nanos() / u128::from(n.max(1)));
    }
    group.finish();
}

criterion_group!(benches, range_client, window, stream_table);
criterion_main!(benches);
