//! What it takes to go through names: a tree directory by directory as find does, an index name by name as git does, a large directory file
//! by file as a training script does; reading all files of the tree as tar does; making and removing files as tar and rm do. Beside them what it
//! takes when nothing can be foreseen: one name, and files at random, which are a GET each; and the same requests without a mount, one for
//! each directory or name. From a store that takes 20 ms for a request and tells how many there were. Needs /dev/fuse.
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
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::RwLock;
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
        println!("\n{:<46} {:>8} {:>8} {:>8} {:>8} {:>10}", format!("round {}", round + 1), "s", "LISTs", "GETs", "changes", "ms a name");
        for what in WHAT {
            match what.run {
                // A mount of its own for each: what was listed before would be known.
                How::Mounted(run) => {
                    let mount = Mount::start(store.port, &[]);
                    store.tell(what.words, || run(&mount.path(), size));
                }
                How::Alone(method, paths) => store.tell(what.words, || alone(store.port, &method, paths(size))),
            }
            store.restore(size);
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
    run: How,
}

#[derive(Clone)]
enum How {
    /// Returns how many names it asked for.
    Mounted(fn(&Path, Size) -> usize),
    /// Requests one after another, without a mount.
    Alone(Method, fn(Size) -> Vec<String>),
}

const WHAT: [What; 12] = [
    What { words: "find", run: How::Mounted(find) },
    What { words: "the same, the last directory first", run: How::Mounted(find_backward) },
    What { words: "a LIST for each directory, without a mount", run: How::Alone(Method::GET, directories) },
    What { words: "stat of every file of an index, in order", run: How::Mounted(index) },
    What { words: "stat of a fifth of a large directory", run: How::Mounted(manifest) },
    What { words: "stat of one file in it and the directory", run: How::Mounted(one) },
    What { words: "tar of the tree", run: How::Mounted(tar) },
    What { words: "cp -r of the large directory", run: How::Mounted(copy) },
    What { words: "some files of the tree at random", run: How::Mounted(some_files) },
    What { words: "directories of files are made", run: How::Mounted(make) },
    What { words: "a part of the tree is removed", run: How::Mounted(remove) },
    What { words: "as many names by PUT, without a mount", run: How::Alone(Method::PUT, made) },
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

/// As tar does.
fn make(mount: &Path, size: Size) -> usize {
    let names = made(size);
    for name in &names {
        let path = mount.join(name);
        let made = if name.ends_with('/') { fs::create_dir(&path) } else { fs::write(&path, b"x") };
        made.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    names.len()
}

/// Each directory before what is in it.
fn made(size: Size) -> Vec<String> {
    let files = |d: usize| (0..size.files).map(move |f| format!("new/d{d:02}/f{f}"));
    let below = (0..size.wide).flat_map(|d| std::iter::once(format!("new/d{d:02}/")).chain(files(d)));
    std::iter::once("new/".to_owned()).chain(below).collect()
}

/// As rm -r does.
fn remove(mount: &Path, size: Size) -> usize {
    fs::remove_dir_all(mount.join("tree/d00")).expect("it can be removed");
    1 + size.wide * (1 + size.files)
}

/// How the directories of the tree are listed.
fn directories(size: Size) -> Vec<String> {
    let below = (0..size.wide).flat_map(|a| (0..size.wide).map(move |b| format!("d{a:02}/e{b:02}/")));
    let above = (0..size.wide).map(|a| format!("d{a:02}/"));
    let all = std::iter::once(String::new()).chain(above).chain(below);
    all.map(|directory| format!("?list-type=2&delimiter=/&prefix=tree/{directory}")).collect()
}

fn alone(port: u16, method: &Method, paths: Vec<String>) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let client = reqwest::Client::new();
        for path in &paths {
            let request = client.request(method.clone(), format!("http://127.0.0.1:{port}/bench/{path}")).body("x");
            let answer = request.send().await.and_then(reqwest::Response::error_for_status).expect("it is answered");
            answer.bytes().await.expect("it is sent");
        }
    });
    paths.len()
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
    keys: Arc<RwLock<BTreeMap<Key, ()>>>,
    requests: Arc<Requests>,
}

#[derive(Default)]
struct Requests {
    lists: AtomicUsize,
    gets: AtomicUsize,
    /// PUTs and DELETEs.
    changes: AtomicUsize,
}

impl Requests {
    fn count(&self) -> [usize; 3] {
        [&self.lists, &self.gets, &self.changes].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Store {
    fn start(size: Size) -> Self {
        let (keys, requests) = (Arc::<RwLock<_>>::default(), Arc::<Requests>::default());
        let shared = (Arc::clone(&keys), Arc::clone(&requests));
        let port = serve(move |request: Request<Incoming>| {
            let (keys, count) = (Arc::clone(&shared.0), Arc::clone(&shared.1));
            async move {
                let (parts, body) = request.into_parts();
                body.collect().await?;
                tokio::time::sleep(size.latency).await;
                Ok(answer(&parts, &keys, &count))
            }
        });
        let store = Self { port, keys, requests };
        store.restore(size);
        store
    }

    /// What is there at the beginning.
    fn restore(&self, size: Size) {
        *self.keys.write() = size.index().chain(size.manifest()).map(|name| (Key::from(name), ())).collect();
    }

    fn tell(&self, what: &str, run: impl FnOnce() -> usize) {
        let (before, began) = (self.requests.count(), Instant::now());
        let names = run();
        let (seconds, after) = (began.elapsed().as_secs_f64(), self.requests.count());
        let [lists, gets, changes] = [0, 1, 2].map(|n| after[n] - before[n]);
        println!("{what:<46} {seconds:>8.2} {lists:>8} {gets:>8} {changes:>8} {:>10.3}", seconds * 1e3 / names as f64);
    }
}

fn answer(request: &Parts, keys: &RwLock<BTreeMap<Key, ()>>, count: &Requests) -> Response<Full<Bytes>> {
    let key = request.uri.path().trim_start_matches("/bench").trim_start_matches('/');
    let begin = Response::builder().header("etag", ETAG).header("last-modified", DATE);
    let answer = match request.method {
        Method::GET if key.is_empty() => {
            count.lists.fetch_add(1, Ordering::Relaxed);
            return Response::new(Full::from(list(&keys.read(), request.uri.query().unwrap_or_default())));
        }
        Method::GET => {
            count.gets.fetch_add(1, Ordering::Relaxed);
            begin.status(StatusCode::PARTIAL_CONTENT).header("content-range", "bytes 0-0/1").body(Full::from("x"))
        }
        // Nothing has attributes.
        Method::HEAD => begin.status(StatusCode::NOT_FOUND).body(Full::default()),
        Method::PUT => {
            count.changes.fetch_add(1, Ordering::Relaxed);
            keys.write().insert(Key::from(key), ());
            begin.body(Full::default())
        }
        _ => {
            count.changes.fetch_add(1, Ordering::Relaxed);
            keys.write().remove(&Key::from(key));
            begin.status(StatusCode::NO_CONTENT).body(Full::default())
        }
    };
    answer.expect("its parts are valid")
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
        any_order: false,
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
