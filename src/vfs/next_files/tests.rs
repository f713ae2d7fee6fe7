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
use crate::vfs::{Files, Inode, Kind, Options};

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
    mount((0..FILES).map(|n| format!("f{n:04}"))).await
}

/// A bucket of which every directory was listed; its files in order.
async fn mount(keys: impl IntoIterator<Item = String>) -> Mount {
    let store = Memory::new(Plan { first_byte: Latency::Fixed(LATENCY), ..Plan::default() });
    for (n, key) in keys.into_iter().enumerate() {
        store.put(key.as_str(), format!("content {n}"));
    }
    let shared: Arc<dyn ObjectStore> = Arc::new(store.clone());
    let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::gib(1)) });
    let options = reader::Options::default();
    let reader = Reader::new(Arc::clone(&shared), Arc::clone(&budget), Arc::new(Metrics::default()), options, Duration::from_secs(60));
    let names = Names::new(shared, Options::default());
    let (mut directories, mut inodes) = (vec![Inode::ROOT], Vec::new());
    while let Some(directory) = directories.pop() {
        let directory = names.open_dir(directory).unwrap();
        let (mut offset, mut below) = (0, Vec::new());
        loop {
            let page = directory.read_plus(offset).await.unwrap();
            if page.is_empty() {
                break;
            }
            page.fill_plus(|item, entry| {
                offset = item.next_offset;
                match entry.attr.kind {
                    _ if item.name == b"." || item.name == b".." => {}
                    Kind::Directory => below.push(entry.attr.ino),
                    _ => inodes.push(entry.attr.ino),
                }
                false
            });
        }
        directories.extend(below.into_iter().rev());
    }
    Mount { files: Files::new(names, reader.clone()), store, budget, reader, inodes }
}

impl Mount {
    async fn read(&self, n: usize) {
        let opened = self.files.try_open(self.inodes[n], false).unwrap().unwrap();
        let file = self.files.get(opened.handle).unwrap();
        let data = self.files.finish(&file, file.begin(1, 0, 4096).unwrap()).await.unwrap();
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

#[tokio::test(start_paused = true)]
async fn what_the_kernel_has_is_fetched_neither_at_open_nor_ahead() {
    let mount = listed().await;
    let gets = || {
        let gets = mount.store.count(Op::Get);
        mount.store.reset_log();
        gets
    };
    for n in 0..FILES {
        mount.read(n).await;
    }
    assert_eq!(gets(), FILES);
    for n in 0..FILES {
        let opened = mount.files.try_open(mount.inodes[n], false).unwrap().unwrap();
        assert!(opened.keep_pages);
        mount.files.release(opened.handle);
        tokio::time::sleep(LATENCY).await;
    }
    assert_eq!(gets(), 0);
    // One in ten has lost a page: it alone is fetched.
    for n in 0..FILES {
        if n % 10 == 0 {
            mount.read(n).await;
        } else {
            let opened = mount.files.try_open(mount.inodes[n], false).unwrap().unwrap();
            mount.files.release(opened.handle);
        }
    }
    assert_eq!(gets(), FILES / 10);
    // The kernel has lost them all: after a few of them the others are fetched ahead again.
    let started = Instant::now();
    for n in 0..FILES {
        mount.read(n).await;
    }
    assert_eq!(gets(), FILES);
    assert!(started.elapsed() < 40 * LATENCY, "{:?}", started.elapsed());
}

/// Files of a tree, `wide` directories in each of `wide`.
fn tree(wide: usize, files: usize) -> impl Iterator<Item = String> {
    let directories = (0..wide).flat_map(move |a| (0..wide).map(move |b| (a, b)));
    directories.flat_map(move |(a, b)| (0..files).map(move |file| format!("t/d{a:02}/e{b:02}/f{file:02}")))
}

#[tokio::test(start_paused = true)]
async fn small_directories_one_after_another_wait_for_few_round_trips() {
    for files in [1, 3, 8, 40] {
        let mount = mount(tree(8, files)).await;
        let started = Instant::now();
        for n in 0..mount.inodes.len() {
            mount.read(n).await;
        }
        // At most 128 of them are fetched at once.
        let most = 25 + mount.inodes.len() / 100;
        assert!(started.elapsed() < LATENCY * most as u32, "{files}: {:?}", started.elapsed());
        assert_eq!(mount.store.count(Op::Get), mount.inodes.len());
    }
}

#[tokio::test(start_paused = true)]
async fn one_part_of_a_tree_has_nothing_fetched_of_the_others() {
    let mount = mount(tree(8, 8)).await;
    // All of `d02`.
    for n in 128..192 {
        mount.read(n).await;
    }
    tokio::time::sleep(LATENCY * 2).await;
    assert_eq!(mount.store.count(Op::Get), 64);
}

#[tokio::test(start_paused = true)]
async fn one_file_of_each_directory_announces_no_other() {
    let mount = mount(tree(16, 8)).await;
    for n in 0..256 {
        mount.read(n * 8 + 3).await;
    }
    assert_eq!(mount.store.count(Op::Get), 256);
}

#[tokio::test(start_paused = true)]
async fn who_takes_his_time_has_nothing_fetched_twice() {
    let mount = listed().await;
    for n in 0..100 {
        mount.read(n).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        mount.reader.on_time();
    }
    // Those of the last three seconds have announced as many.
    assert!((100..=107).contains(&mount.store.count(Op::Get)), "{}", mount.store.count(Op::Get));
}

#[tokio::test(start_paused = true)]
async fn directories_in_no_order_of_which_all_is_read_wait_for_one_round_trip_each() {
    let mount = mount(tree(8, 20)).await;
    let started = Instant::now();
    for n in 0..64 {
        // The first directories have to show how they are read.
        for file in 0..20 {
            mount.read(n * 37 % 64 * 20 + file).await;
        }
    }
    assert!(started.elapsed() < (64 + 30) * LATENCY, "{:?}", started.elapsed());
    assert_eq!(mount.store.count(Op::Get), 64 * 20);
}

#[tokio::test(start_paused = true)]
async fn files_in_the_order_of_their_inode_numbers_wait_for_few_round_trips() {
    let mount = listed().await;
    let mut order: Vec<usize> = (0..FILES).collect();
    order.sort_by_key(|&n| mount.inodes[n].0);
    let started = Instant::now();
    for n in order {
        mount.read(n).await;
    }
    assert!(started.elapsed() < 25 * LATENCY, "{:?}", started.elapsed());
    assert_eq!(mount.store.count(Op::Get), FILES);
}
