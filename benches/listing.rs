//! What a listed name costs between the socket and the kernel: reading a page of 1,000 keys in both dialects, merging it into
//! entries, and filling readdirplus replies from it. No network and no FUSE. Each prints its CPU time an entry beside
//! criterion's wall time; `cargo bench --bench listing`.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use cpu_time::ProcessTime;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use windlass::store::memory::{Memory, Plan};
use windlass::store::{Dialect, Key, parse_page};
use windlass::vfs::{Inode, Merge, Names, Options};

const KEYS: usize = 1000;

/// The page as the stores write it; OSS in URL encoding, with what it tells beside.
fn page(dialect: Dialect) -> String {
    let (slash, encoding, storage, kind) = match dialect {
        Dialect::S3 => ("/", "", "STANDARD", ""),
        Dialect::Oss => ("%2F", "<EncodingType>url</EncodingType>", "Standard", "<Type>Normal</Type>"),
    };
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult><Name>bench</Name><Prefix>train{slash}</Prefix><MaxKeys>1000</MaxKeys>\
         <Delimiter>{slash}</Delimiter>{encoding}<IsTruncated>true</IsTruncated><KeyCount>{KEYS}</KeyCount>\
         <NextContinuationToken>747261696e2f30303030303939392e6a7067</NextContinuationToken>"
    );
    for n in 0..KEYS {
        let second = n / 20 % 60;
        write!(
            text,
            "<Contents><Key>train{slash}{n:08}.jpg</Key><LastModified>2026-03-01T12:00:{second:02}.000Z</LastModified>\
             <ETag>&quot;{n:032x}&quot;</ETag><Size>{}</Size><StorageClass>{storage}</StorageClass>{kind}</Contents>",
            100_000 + n
        )
        .expect("a String takes it");
    }
    text + "</ListBucketResult>"
}

/// Runs `once`, which handles a page of [`KEYS`] names, and prints the CPU time of the whole process a name.
fn measure(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, mut once: impl FnMut()) {
    let (mut runs, started) = (0_u32, ProcessTime::now());
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            runs += 1;
            once();
        });
    });
    let each = started.elapsed().as_nanos() / (u128::from(runs.max(1)) * KEYS as u128);
    println!("{name}: {each} ns of CPU an entry");
}

fn parsing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse a page of 1,000 keys");
    group.throughput(Throughput::Elements(KEYS as u64));
    for (name, dialect) in [("s3", Dialect::S3), ("oss", Dialect::Oss)] {
        let body = page(dialect);
        measure(&mut group, name, || {
            let page = parse_page(body.as_bytes(), dialect).expect("a whole page");
            assert_eq!(black_box(page).objects.len(), KEYS);
        });
    }
    group.finish();
}

fn merging(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("merge a page of 1,000 keys");
    group.throughput(Throughput::Elements(KEYS as u64));
    let parsed = parse_page(page(Dialect::S3).as_bytes(), Dialect::S3).expect("a whole page");
    measure(&mut group, "copy it", || assert_eq!(black_box(parsed.clone()).objects.len(), KEYS));
    measure(&mut group, "copy and merge it", || {
        let entries = Merge::new(Key::from("train/")).on_page(parsed.clone());
        // The last may be the name of a directory on the next page.
        assert_eq!(black_box(entries).len(), KEYS - 1);
    });
    group.finish();
}

/// A listing that is in memory, in replies of `room` entries as the kernel asks for them; then the kernel forgets all of it.
fn replying(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("no I/O in it");
    let store = Memory::new(Plan::default());
    for n in 0..KEYS {
        store.put_synthetic(format!("{n:08}.jpg"), 100_000);
    }
    let names = Names::new(Arc::new(store), Options { stat_cache_ttl: Duration::MAX, ..Options::default() });
    let handle = names.open_dir(Inode::ROOT).expect("the root is a directory");
    let mut group = criterion.benchmark_group("readdirplus of 1,000 entries");
    group.throughput(Throughput::Elements(KEYS as u64));
    for (name, room) in [("48 a reply (8 KiB)", 48), ("190 a reply (32 KiB)", 190)] {
        measure(&mut group, name, || {
            let mut told = Vec::with_capacity(KEYS);
            let mut offset = 0;
            loop {
                let page = runtime.block_on(handle.read_plus(offset)).expect("the store fails nothing");
                if page.is_empty() {
                    break;
                }
                let mut left = room;
                page.fill_plus(|item, entry| {
                    if left == 0 {
                        return true;
                    }
                    left -= 1;
                    offset = item.next_offset;
                    if !matches!(item.name, b"." | b"..") {
                        told.push(black_box(entry).attr.ino);
                    }
                    false
                });
            }
            assert_eq!(told.len(), KEYS);
            told.into_iter().for_each(|ino| names.forget(ino, 1));
            assert_eq!(names.known_inodes(), 1);
        });
    }
    group.finish();
}

criterion_group!(benches, parsing, merging, replying);
criterion_main!(benches);
