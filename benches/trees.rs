//! What it takes to go through names: a tree directory by directory as find does, an index name by name as git does, a large directory file
//! by file as a training script does; and reading all files of the tree as tar does. Beside them what it takes when nothing can be foreseen: the
//! tree with the last directory first, which is a LIST for each, one name, and files at random, which are a GET each. From a store that takes
//! 20 ms for a request and tells how many there were. Needs /dev/fuse.
//!
//! `cargo bench --bench trees`, three rounds. Under `cargo test` (as CI runs it) one short round.

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use windlass::store::memory::listing;
use windlass::store::{Key, ListRequest};

use support::{DATE, ETAG, Mount, is_short, serve};

fn main() {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("trees: not run, /dev/fuse: {error}");
        return;
    }
    let size = if is_short() { Size { wide: 4, files: 2, large: 100, latency: Duration::ZERO } } else { Size::FULL };
    let store = Store::start(size);
    println!(
        "a tree of {0} directories with {0} directories with {1} files, and a directory with {2} files; {3} ms for a request",
        size.wide,
        size.files,
        size.large,
        size.latency.as_millis()
    );
    let rounds = if is_short() { 1 } else { 3 };
    for round in 0..rounds {
        println!("\n{:<44} {:>8} {:>8} {:>8} {:>10}", format!("round {}", round + 1), "s", "LISTs", "GETs", "ms a name");
        for what in WHAT {
            // A mount of its own for each: what was listed before would be known.
            let mount = Mount::start(store.port, &[]);
            store.tell(what.words, || (what.run)(&mount.path(), size));
        }
    }
}

#[derive(Clone, Copy)]
struct Size {
    /// Directories in the tree, and in each of these.
    wide: usize,
    files: usize,
    /// Files of the large directory.
    large: usize,
    latency: Duration,
}

impl Size {
    const FULL: Self = Self { wide: 32, files: 8, large: 10_000, latency: Duration::from_millis(20) };
}

struct What {
    words: &'static str,
    /// Returns how many names it asked for.
    run: fn(&Path, Size) -> usize,
}

const WHAT: [What; 8] = [
    What { words: "find", run: find },
    What { words: "the same, the last directory first", run: find_backward },
    What { words: "stat of every file of an index, in order", run: index },
    What { words: "stat of a fifth of a large directory", run: manifest },
    What { words: "stat of one file in it and the directory", run: one },
    What { words: "tar of the tree", run: tar },
    What { words: "cp -r of the large directory", run: copy },
    What { words: "some files of the tree at random", run: some_files },
];

fn find(mount: &Path, size: Size) -> usize {
    let names = walk(&mount.join("tree"), false);
    assert_eq!(names, size.wide + size.wide * size.wide * (1 + size.files));
    names
}

fn find_backward(mount: &Path, _: Size) -> usize {
    walk(&mount.join("tree"), true)
}

/// Each directory before what is in it.
fn walk(directory: &Path, backward: bool) -> usize {
    let mut entries: Vec<_> = fs::read_dir(directory).expect("it can be read").map(|entry| entry.expect("it can be read")).collect();
    if backward {
        entries.reverse();
    }
    let below = entries.iter().filter(|entry| entry.file_type().expect("it is told").is_dir()).map(|entry| walk(&entry.path(), backward));
    below.sum::<usize>() + entries.len()
}

fn index(mount: &Path, size: Size) -> usize {
    stat(mount, size.index())
}

fn manifest(mount: &Path, size: Size) -> usize {
    stat(mount, size.manifest().take(size.large / 5))
}

/// Reads every file as it comes by.
fn tar(mount: &Path, size: Size) -> usize {
    let read = read_below(&mount.join("tree"));
    assert_eq!(read, size.wide.pow(2) * size.files);
    read
}

fn read_below(directory: &Path) -> usize {
    let entries: Vec<_> = fs::read_dir(directory).expect("it can be read").map(|entry| entry.expect("it can be read")).collect();
    let below = entries.iter().map(|entry| match entry.file_type().expect("it is told").is_dir() {
        true => read_below(&entry.path()),
        false => read(&entry.path()),
    });
    below.sum()
}

/// cp(1) sorts what it finds by inode number.
fn copy(mount: &Path, size: Size) -> usize {
    let found = fs::read_dir(mount.join("flat")).expect("it can be read").map(|entry| entry.expect("it can be read"));
    let mut files: Vec<_> = found.map(|entry| (entry.ino(), entry.path())).collect();
    files.sort();
    assert_eq!(files.len(), size.large);
    files.iter().map(|(_, path)| read(path)).sum()
}

/// Their names are known: a GET each.
fn some_files(mount: &Path, size: Size) -> usize {
    find(mount, size);
    let all: Vec<String> = size.index().collect();
    (0..all.len().min(256)).map(|n| read(&mount.join(&all[n * 7919 % all.len()]))).sum()
}

/// One file.
fn read(path: &Path) -> usize {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).len()
}

/// The name of the directory is one too.
fn one(mount: &Path, size: Size) -> usize {
    1 + stat(mount, size.manifest().take(1))
}

fn stat(mount: &Path, names: impl Iterator<Item = String>) -> usize {
    let mut asked = 0;
    for name in names {
        fs::symlink_metadata(mount.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        asked += 1;
    }
    asked
}

impl Size {
    /// In the order of their names.
    fn index(self) -> impl Iterator<Item = String> {
        (0..self.wide.pow(2) * self.files).map(move |n| {
            let (directory, file) = (n / self.files, n % self.files);
            format!("tree/d{:02}/e{:02}/f{file}", directory / self.wide, directory % self.wide)
        })
    }

    /// In no order.
    fn manifest(self) -> impl Iterator<Item = String> {
        (0..self.large).map(move |n| format!("flat/{:06}", n * 7919 % self.large))
    }
}

/// A store of objects of one byte that takes its time.
struct Store {
    port: u16,
    requests: Arc<Requests>,
}

#[derive(Default)]
struct Requests {
    lists: AtomicUsize,
    gets: AtomicUsize,
}

impl Requests {
    fn count(&self) -> (usize, usize) {
        (self.lists.load(Ordering::Relaxed), self.gets.load(Ordering::Relaxed))
    }
}

impl Store {
    fn start(size: Size) -> Self {
        let keys: BTreeMap<Key, ()> = size.index().chain(size.manifest()).map(|name| (Key::from(name), ())).collect();
        let (keys, requests) = (Arc::new(keys), Arc::<Requests>::default());
        let count = Arc::clone(&requests);
        let port = serve(move |request: Request<Incoming>| {
            let (keys, count) = (Arc::clone(&keys), Arc::clone(&count));
            async move {
                tokio::time::sleep(size.latency).await;
                if request.uri().path().trim_matches('/') != "bench" {
                    count.gets.fetch_add(1, Ordering::Relaxed);
                    let begin = Response::builder().header("etag", ETAG).header("last-modified", DATE).status(StatusCode::PARTIAL_CONTENT);
                    return Ok(begin.header("content-range", "bytes 0-0/1").body(Full::from("x")).expect("its parts are valid"));
                }
                count.lists.fetch_add(1, Ordering::Relaxed);
                Ok(Response::new(Full::new(Bytes::from(list(&keys, request.uri().query().unwrap_or_default())))))
            }
        });
        Self { port, requests }
    }

    fn tell(&self, what: &str, run: impl FnOnce() -> usize) {
        let (before, began) = (self.requests.count(), Instant::now());
        let names = run();
        let (seconds, after) = (began.elapsed().as_secs_f64(), self.requests.count());
        let (lists, gets) = (after.0 - before.0, after.1 - before.1);
        println!("{what:<44} {seconds:>8.2} {lists:>8} {gets:>8} {:>10.3}", seconds * 1e3 / names as f64);
    }
}

/// A page of ListObjectsV2.
fn list(keys: &BTreeMap<Key, ()>, query: &str) -> String {
    let parameter = |name: &str| {
        let found = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        found.map(|value| percent_decode_str(value).decode_utf8_lossy().into_owned())
    };
    let request = ListRequest {
        prefix: parameter("prefix").unwrap_or_default().into(),
        delimited: parameter("delimiter").is_some(),
        after: parameter("start-after").map(Key::from),
        token: parameter("continuation-token"),
        max_keys: parameter("max-keys").and_then(|text| text.parse().ok()).unwrap_or(1000),
    };
    let page = listing::page(keys, &request).expect("tokens are ours");
    let next = page.next.map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>"));
    let mut text = format!("<ListBucketResult><IsTruncated>{}</IsTruncated>{}", next.is_some(), next.unwrap_or_default());
    for (key, ()) in page.objects {
        let (size, date) = (1, "2026-08-01T00:00:00.000Z");
        let _ =
            write!(text, "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{ETAG}</ETag><LastModified>{date}</LastModified></Contents>");
    }
    for prefix in page.prefixes {
        let _ = write!(text, "<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
    }
    text + "</ListBucketResult>"
}
