//! Files opened one after another over the simulated store on a paused clock.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::budget::{self, Budget};
use crate::metrics::Metrics;
use crate::reader::{self, Reader};
use crate::store::memory::{Latency, Memory, Plan};
use crate::store::{ObjectStore, Op};
use crate::units::ByteSize;
use crate::vfs::{Files, Inode, Options};

const FILES: usize = 300;
const LATENCY: Duration = Duration::from_millis(20);

struct Mount {
    store: Memory,
    files: Arc<Files>,
    budget: Arc<Budget>,
    reader: Reader,
    inodes: Vec<Inode>,
}

/// A directory that was listed.
async fn listed() -> Mount {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(LATENCY), ..Plan::default() });
    for n in 0..FILES {
        store.put(format!("f{n:04}").as_str(), format!("content {n}"));
    }
    let shared: Arc<dyn ObjectStore> = Arc::new(store.clone());
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::gib(1)) });
    let options = reader::Options::default();
    let reader = Reader::new(Arc::clone(&shared), Arc::clone(&budget), Arc::new(Metrics::default()), options, Duration::from_secs(60));
    let names = Names::new(shared, Options::default());
    let directory = names.open_dir(Inode::ROOT).unwrap();
    let mut inodes = Vec::new();
    let mut offset = 0;
    loop {
        let page = directory.read_plus(offset).await.unwrap();
        if page.is_empty() {
            break;
        }
        page.fill_plus(|item, entry| {
            offset = item.next_offset;
            if item.name != b"." && item.name != b".." {
                inodes.push(entry.attr.ino);
            }
            false
        });
    }
    assert_eq!(inodes.len(), FILES);
    Mount { files: Files::new(names, reader.clone()), store, budget, reader, inodes }
}

impl Mount {
    async fn read(&self, n: usize) {
        let opened = self.files.try_open(self.inodes[n], false).unwrap().unwrap();
        let file = self.files.get(opened.handle).unwrap();
        let data = self.files.finish(&file, file.begin(1, 0, 4096)).await.unwrap();
        assert_eq!(data.slices().collect::<Vec<_>>().concat(), format!("content {n}").as_bytes());
        self.files.release(opened.handle);
    }
}

#[tokio::test(start_paused = true)]
async fn files_opened_in_the_order_of_the_listing_wait_for_few_round_trips() {
    let mount = listed().await;
    let started = Instant::now();
    for n in 0..FILES {
        mount.read(n).await;
    }
    assert!(started.elapsed() < 20 * LATENCY, "{:?}", started.elapsed());
    assert_eq!((mount.store.count(Op::Get), mount.store.count(Op::Head)), (FILES, 0));
}

#[tokio::test(start_paused = true)]
async fn files_opened_in_no_order_cost_what_they_are() {
    let mount = listed().await;
    for n in 0..FILES {
        // Jumps of 281 of 300 positions.
        mount.read(n * 281 % FILES).await;
    }
    assert_eq!(mount.store.count(Op::Get), FILES);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_opens_is_given_back() {
    let mount = listed().await;
    for n in 0..40 {
        mount.read(n).await;
    }
    tokio::time::sleep(LATENCY * 2).await;
    let announced = mount.store.count(Op::Get) - 40;
    assert!((1..=40).contains(&announced), "{announced}");
    assert!(mount.budget.leased_bytes() > 0);
    tokio::time::sleep(Duration::from_secs(10)).await;
    mount.reader.on_time();
    assert_eq!(mount.budget.leased_bytes(), 0);
}
