//! What the read modes cost and bring: one object read front to back by `read(2)`, cold and again, direct, through the disk, half of it
//! through the disk, and by the kernel alone, beside the file on the disk itself. All in one run, so that the ratios mean something on a
//! machine that others use too. Needs /dev/fuse, and root for the kernel's part; says so when it has none.
//!
//! `cargo bench --bench modes [-- SIZE_MIB...]`, each size in five rounds, in three from 4 GiB on; twice the largest has to fit on the disk below
//! TMPDIR. Under `cargo test` (as CI runs it) one short round.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};

use support::{DATE, ETAG, Mount, is_short, median, range_of, serve};

const READ: usize = 1 << 20;
/// The object is made of this over and over.
const PATTERN: usize = 64 << 20;

fn main() {
    let mut sizes: Vec<u64> = std::env::args().filter_map(|arg| arg.parse::<u64>().ok()).map(|mib| mib << 20).collect();
    if is_short() {
        sizes = vec![64 << 20];
    } else if sizes.is_empty() {
        sizes.push(1 << 30);
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("modes: not run, /dev/fuse: {error}");
        return;
    }
    let tables: Vec<[f64; WAYS.len()]> = sizes.iter().map(|&size| measure(size)).collect();
    println!("\n{:<44}{}", "seconds", sizes.iter().map(|size| format!("{:>8.1} GiB", gib(*size))).collect::<String>());
    for (at, way) in WAYS.iter().enumerate() {
        let seconds = tables.iter().zip(&sizes).map(|(rates, &size)| format!("{:>12.2}", size as f64 / rates[at]));
        println!("{way:<44}{}", seconds.collect::<String>());
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Medians of all ways of reading an object of `size`, in bytes per second.
fn measure(size: u64) -> [f64; WAYS.len()] {
    let rounds = match size {
        _ if is_short() => 1,
        0..0x1_0000_0000 => 5,
        _ => 3,
    };
    let store = Store::start(size);
    let mut table: [Vec<f64>; WAYS.len()] = Default::default();
    for _ in 0..rounds {
        for (rates, rate) in table.iter_mut().zip(round(&store, size)) {
            rates.push(rate);
        }
    }
    let medians = table.map(median);
    println!("{:.1} GiB, {rounds} rounds, medians:", gib(size));
    for (way, rate) in WAYS.iter().zip(medians) {
        println!("{way:<44} {:>7.0} MB/s {:>8.2} s  {:.2} of direct", rate / 1e6, size as f64 / rate, rate / medians[0]);
    }
    medians
}

const WAYS: [&str; 7] = [
    "direct",
    "cached, first read",
    "cached, next mount, pages dropped",
    "hybrid with half of it kept, first read",
    "hybrid, next mount, pages dropped",
    "cached, by the kernel alone, pages kept",
    "the file on the disk itself, pages kept",
];

/// Bytes per second of each of the [`WAYS`].
fn round(store: &Store, size: u64) -> [f64; 7] {
    let half = format!("{}MiB", size >> 21);
    let (cached, hybrid) = (tempfile::tempdir(), tempfile::tempdir());
    let (cached, hybrid) = (cached.expect("there is room"), hybrid.expect("there is room"));
    let in_cached = ["--read-mode", "cached", "--spill-dir", text(cached.path())];
    let in_hybrid = ["--read-mode", "hybrid", "--hybrid-threshold", &half, "--spill-dir", text(hybrid.path())];
    let direct = read(&store.mount(&[]).path().join("object"), size);
    let first_cached = {
        let mount = store.mount(&in_cached);
        let rate = read(&mount.path().join("object"), size);
        wait_until_written(cached.path());
        rate
    };
    drop_pages();
    let next_cached = read(&store.mount(&in_cached).path().join("object"), size);
    let first_hybrid = {
        let mount = store.mount(&in_hybrid);
        let rate = read(&mount.path().join("object"), size);
        wait_until_written(hybrid.path());
        rate
    };
    drop_pages();
    let next_hybrid = read(&store.mount(&in_hybrid).path().join("object"), size);
    let mount = store.mount(&in_cached);
    let data = data_file(cached.path()).expect("it was written");
    read_by_kernel(&mount, store, size);
    // In turns, so that both have the same neighbours.
    let object = mount.path().join("object");
    let (mut by_kernel, mut file) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        by_kernel.push(read(&object, size));
        file.push(read(&data, size));
    }
    let (by_kernel, file) = (median(by_kernel), median(file));
    [direct, first_cached, next_cached, first_hybrid, next_hybrid, by_kernel, file]
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

/// Reads all of `path`; bytes per second.
fn read(path: &Path, size: u64) -> f64 {
    let mut buffer = vec![0; READ];
    let began = Instant::now();
    let mut file = File::open(path).expect("it is there");
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer).expect("it can be read") {
            0 => break,
            n => bytes += n as u64,
        }
    }
    assert_eq!(bytes, size);
    bytes as f64 / began.elapsed().as_secs_f64()
}

/// Only root can; without it the second reads come from pages.
fn drop_pages() {
    let _ = Command::new("sync").status();
    let _ = fs::write("/proc/sys/vm/drop_caches", "1");
}

/// What the disk could not take in time is left out, so that only its rest tells.
fn wait_until_written(directory: &Path) {
    let mut before = u64::MAX;
    while held_bytes(directory) != before {
        before = held_bytes(directory);
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn data_file(directory: &Path) -> Option<PathBuf> {
    fs::read_dir(directory).ok()?.filter_map(Result::ok).map(|entry| entry.path()).find_map(|path| {
        if path.is_dir() { data_file(&path) } else { path.extension().is_some_and(|ending| ending == "data").then_some(path) }
    })
}

fn held_bytes(directory: &Path) -> u64 {
    data_file(directory).and_then(|path| fs::metadata(path).ok()).map_or(0, |found| found.blocks() * 512)
}

/// A store with one object, which it makes up.
struct Store {
    port: u16,
    sent: Arc<AtomicU64>,
}

impl Store {
    fn start(size: u64) -> Self {
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let pattern: Bytes = (0..PATTERN).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into();
        let port = serve(move |request| {
            let answer = answer(&request, size, &pattern, &count);
            async move { Ok(answer) }
        });
        Self { port, sent }
    }

    fn mount(&self, arguments: &[&str]) -> Mount {
        Mount::start(self.port, arguments)
    }
}

fn answer(request: &Request<Incoming>, size: u64, pattern: &Bytes, sent: &AtomicU64) -> Response<Full<Bytes>> {
    let is_object = request.uri().path() == "/bench/object";
    let begin = Response::builder().header("etag", ETAG).header("last-modified", DATE);
    let made = match *request.method() {
        Method::HEAD if is_object => begin.header("content-length", size).body(Full::default()),
        Method::GET if is_object => {
            let range = range_of(request).unwrap_or((0, size - 1));
            let from = (range.0 % PATTERN as u64) as usize;
            let len = (range.1 - range.0 + 1) as usize;
            // Chunks are aligned and the pattern is longer than any.
            let body = pattern.slice(from..from + len);
            sent.fetch_add(len as u64, Ordering::Relaxed);
            let place = format!("bytes {}-{}/{size}", range.0, range.1);
            begin.status(StatusCode::PARTIAL_CONTENT).header("content-range", place).body(Full::from(body))
        }
        Method::GET => Response::builder().body(Full::from(format!(
            "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>object</Key><Size>{size}</Size>\
             <ETag>{ETAG}</ETag><LastModified>2026-08-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"
        ))),
        _ => Response::builder().status(StatusCode::NOT_FOUND).body(Full::default()),
    };
    made.expect("its parts are valid")
}

/// Reads until the daemon has nothing to do with it.
fn read_by_kernel(mount: &Mount, store: &Store, size: u64) {
    let object = mount.path().join("object");
    for _ in 0..100 {
        let file = File::open(&object).expect("it is there");
        // What the kernel has in pages of the mount would not be asked for either.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        drop(file);
        let (answered, before) = (answered_bytes(mount), store.sent.load(Ordering::Relaxed));
        read(&object, size);
        if answered_bytes(mount) - answered < size / 2 {
            assert_eq!(store.sent.load(Ordering::Relaxed), before, "the store was asked for what is on the disk");
            return;
        }
    }
    println!("modes: the kernel does not read by itself here (it takes Linux 6.9 and root)");
}

/// Bytes the daemon sent to whomever, proc_pid_io(5).
fn answered_bytes(mount: &Mount) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", mount.pid())).expect("the daemon runs");
    io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).expect("the kernel counts them")
}
