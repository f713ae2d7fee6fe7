//! The real reader under real threads, as FUSE drives it: reads that are parked, streams, strides and walks side by side in
//! shared objects, handles that come and go, housekeeping in between. What it shows is that they all come to an end
//! with the right bytes, whatever the order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::reader::{ObjectHandle, Options, Reader};
use windlass::store::memory::{Memory, Plan};
use windlass::units::ByteSize;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
const LEN: u64 = 128 << 10;
const OBJECTS: u64 = 3;
const THREADS: u64 = 8;
const ROUNDS: u64 = 3;

/// Long enough for any machine; a deadlock lasts for ever.
const PATIENCE: Duration = Duration::from_secs(240);

/// Where the `n`th read of a thread lies: front to back, in strides, backward through chunks, or anywhere.
fn place(thread: u64, n: u64) -> u64 {
    let reads = SIZE / LEN;
    let index = match thread % 4 {
        0 => n,
        1 => n * 8 + n / 64,
        2 => n / 32 * 32 + 31 - n % 32,
        _ => n * 7919,
    };
    index % reads * LEN
}

fn read(handle: &ObjectHandle, thread: u32, offset: u64) -> Vec<u8> {
    let (sender, receiver) = mpsc::channel();
    handle.begin(thread, offset, LEN as usize).park(move |pending| drop(sender.send(pending)));
    let pending = receiver.recv().expect("who was parked goes on");
    let data = match pending.ready() {
        Some(data) => data,
        // It was given up, because its stream was taken for left: that is asked for again.
        None => futures::executor::block_on(async { handle.read(thread, offset, LEN as usize).await }).expect("the store fails nothing"),
    };
    data.slices().collect::<Vec<_>>().concat()
}

fn reads(store: &Memory, reader: &Reader, thread: u64) {
    for round in 0..ROUNDS {
        let key = format!("k{}", (thread + round) % OBJECTS);
        let handle = reader.open(&store.meta(key.as_str()).expect("it is there"));
        let content = store.synthetic(key.as_str()).expect("it is there");
        for n in 0..SIZE / LEN {
            let offset = place(thread, n);
            let bytes = read(&handle, u32::try_from(thread).expect("few threads"), offset);
            assert!(bytes.len() as u64 == LEN && content.matches(offset, &bytes), "{key} at {offset}");
        }
    }
}

#[test]
fn readers_of_every_habit_come_to_an_end_side_by_side() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let entered = runtime.enter();
    let store = Memory::new(Plan::default());
    for n in 0..OBJECTS {
        store.put_synthetic(format!("k{n}").as_str(), SIZE);
    }
    // Less than is read, so that memory is taken back all the time.
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) });
    let reader = Reader::new(
        Arc::new(store.clone()),
        Arc::clone(&budget),
        Arc::new(Metrics::default()),
        Options::default(),
        Duration::from_secs(60),
    );
    drop(entered);

    let over = Arc::new(AtomicBool::new(false));
    let (ended, ends) = mpsc::channel();
    for thread in 0..THREADS {
        let (store, reader, ended, context) = (store.clone(), reader.clone(), ended.clone(), runtime.handle().clone());
        thread::spawn(move || {
            let _context = context.enter();
            reads(&store, &reader, thread);
            ended.send(thread)
        });
    }
    drop(ended);
    let (housekeeper, stop, context) = (reader.clone(), Arc::clone(&over), runtime.handle().clone());
    let keeping = thread::spawn(move || {
        let _context = context.enter();
        while !stop.load(Ordering::Relaxed) {
            housekeeper.on_time();
            thread::sleep(Duration::from_millis(1));
        }
    });
    let mut done: Vec<u64> = (0..THREADS).map_while(|_| ends.recv_timeout(PATIENCE).ok()).collect();
    done.sort_unstable();
    assert_eq!(done, (0..THREADS).collect::<Vec<_>>(), "some failed, or wait for ever");
    over.store(true, Ordering::Relaxed);
    keeping.join().unwrap();
    assert!(budget.usage().peak_bytes <= 64 << 20);
}
