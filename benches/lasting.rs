//! What it costs to write down what is open, for a daemon that goes on after this one: the same work through two mounts, one with a supervisor
//! and one without, in turns in one run. Prints the CPU time of the daemons for each small file (looked up, opened, read, closed) and for each GiB
//! that is read in order, and the ratio; and the part of it that is the record alone, without kernel and network. Needs /dev/fuse, and says so when
//! there is none.
//!
//! `cargo bench --bench lasting [-- ROUNDS]`; under `cargo test` (as CI runs it) one short round.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cpu_time::ThreadTime;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tokio::runtime::Builder;
use windlass::budget::{self, Budget};
use windlass::metrics::Metrics;
use windlass::reader::{self, Reader};
use windlass::store::memory::{Memory, Plan};
use windlass::units::ByteSize;
use windlass::vfs::{self, Files, Inode, Names, Told};

use support::{DATE, ETAG, Mount, is_short, median, range_of, serve};

const SMALL: u64 = 4 << 10;
const IN_A_DIRECTORY: u64 = 1000;
const READ: usize = 1 << 20;
/// The objects are made of this over and over.
const PATTERN: usize = 64 << 20;

/// How much of what is done.
#[derive(Clone, Copy)]
struct Work {
    directories: u64,
    bytes: u64,
}

impl Work {
    fn files(self) -> u64 {
        self.directories * IN_A_DIRECTORY
    }
}

/// CPU-seconds of a daemon.
#[derive(Clone, Copy, Default)]
struct Spent {
    a_file: f64,
    a_gib: f64,
}

fn main() {
    let asked = std::env::args().find_map(|arg| arg.parse::<usize>().ok());
    let (work, rounds) = match is_short() {
        true => (Work { directories: 1, bytes: 32 << 20 }, 1),
        false => (Work { directories: 10, bytes: 2 << 30 }, asked.unwrap_or(9)),
    };
    alone(if is_short() { 1 } else { 200 });
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("lasting: mounts not run, /dev/fuse: {error}");
        return;
    }
    let pattern: Bytes = (0..PATTERN).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into();
    let port = serve(move |request| {
        let answer = answer(&request, work, &pattern);
        async move { Ok(answer) }
    });
    let mut rows = Vec::new();
    for round in 0..rounds {
        // In turns, and each as often first as the other.
        let (first, second) = (through_mount(port, work, round % 2 == 1), through_mount(port, work, round % 2 == 0));
        let (without, with) = if round % 2 == 1 { (second, first) } else { (first, second) };
        println!(
            "round {round}: a file {:.1} us, with the record {:.1}; a GiB {:.3} s, with the record {:.3}",
            without.a_file * 1e6,
            with.a_file * 1e6,
            without.a_gib,
            with.a_gib
        );
        rows.push((without, with));
    }
    for (what, of) in [("a small file", (|spent| spent.a_file) as fn(Spent) -> f64), ("a GiB in order", |spent| spent.a_gib)] {
        let [without, with] = [median(rows.iter().map(|row| of(row.0))), median(rows.iter().map(|row| of(row.1)))];
        let ratio = median(rows.iter().map(|row| of(row.1) / of(row.0)));
        println!("{what}: {:.3} ms of CPU, with the record {:.3}, {ratio:.3} times as much (medians)", without * 1e3, with * 1e3);
    }
}

/// The names and handles of files that are known, on this thread: what there is between the kernel and the reader.
fn alone(passes: u64) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime of one thread");
    let _runtime = runtime.enter();
    let store = Memory::new(Plan::default());
    (0..IN_A_DIRECTORY).for_each(|number| drop(store.put(format!("f/{number:04}").as_str(), Bytes::from_static(b"content"))));
    let store = Arc::new(store);
    let [without, with] = [false, true].map(|is_kept| {
        let options = vfs::Options::default();
        let names =
            if is_kept { Names::lasting(store.clone(), options).expect("there is memory") } else { Names::new(store.clone(), options) };
        let budget = Budget::new(&budget::Options { memory_limit: Some(ByteSize::mib(64)) });
        let metrics = Arc::new(Metrics::default());
        let reader = Reader::new(store.clone(), budget, metrics, reader::Options::default(), Duration::from_secs(60));
        (Files::new(Arc::clone(&names), reader), names)
    });
    let pass = |(files, names): &(Arc<Files>, Arc<Names>)| {
        let directory = runtime.block_on(names.lookup(Inode::ROOT, b"f")).expect("it is there").attr.ino;
        let began = ThreadTime::now();
        for number in 0..IN_A_DIRECTORY {
            let ino = runtime.block_on(names.lookup(directory, format!("{number:04}").as_bytes())).expect("it is there").attr.ino;
            let opened = files.try_open(ino, false).unwrap_or_else(|| runtime.block_on(files.open(ino, false))).expect("it can be opened");
            files.on_told(opened.handle, Told { unique: number, flags: 1, backing: 0 });
            files.release(opened.handle);
            names.forget(ino, 1);
        }
        began.elapsed()
    };
    let mut spent = [Duration::ZERO; 2];
    // The first one asks the store.
    for mount in [&without, &with] {
        pass(mount);
    }
    for number in 0..passes {
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for at in order {
            spent[at] += pass([&without, &with][at]);
        }
    }
    let [without, with] = spent.map(|spent| spent.as_nanos() / u128::from(passes * IN_A_DIRECTORY));
    println!("a file that is known, without kernel and network: {without} ns of CPU, with the record {with}");
}

/// What the daemon of a new mount takes for `work`.
fn through_mount(port: u16, work: Work, is_kept: bool) -> Spent {
    // Reads are counted alike when the kernel does not read ahead in one and not in the other.
    let mount = Mount::start(port, if is_kept { &["--supervised"] } else { &[] });
    let (path, pid) = (mount.path(), if is_kept { child_of(mount.pid()) } else { mount.pid() });
    let mut buffer = vec![0; READ];
    // Directories are listed once, which is not what is measured.
    (0..work.directories)
        .for_each(|at| assert_eq!(fs::read_dir(path.join(format!("d{at}"))).expect("it is there").count() as u64, IN_A_DIRECTORY));
    let began = cpu(pid);
    for at in 0..work.directories {
        for number in 0..IN_A_DIRECTORY {
            assert_eq!(read(&path.join(format!("d{at}/{number:04}")), &mut buffer), SMALL);
        }
    }
    let half = cpu(pid);
    assert_eq!(read(&path.join("large"), &mut buffer), work.bytes);
    let end = cpu(pid);
    Spent { a_file: (half - began) / work.files() as f64, a_gib: (end - half) / (work.bytes as f64 / f64::from(1 << 30)) }
}

/// Reads all of `path`; its length.
fn read(path: &Path, buffer: &mut [u8]) -> u64 {
    let mut file = File::open(path).expect("it is there");
    let mut bytes = 0;
    while let n @ 1.. = file.read(buffer).expect("it can be read") {
        bytes += n as u64;
    }
    bytes
}

/// The daemon that a supervisor has.
fn child_of(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("the supervisor runs");
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("it has a daemon")
}

/// CPU-seconds of all threads of a process so far: the first number of their schedstat, in nanoseconds. The ticks of proc_pid_stat(5) are too coarse.
fn cpu(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the daemon runs");
    let of_thread = |entry: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    threads.filter_map(of_thread).sum::<f64>() / 1e9
}

fn answer(request: &Request<Incoming>, work: Work, pattern: &Bytes) -> Response<Full<Bytes>> {
    let key = request.uri().path().trim_start_matches("/bench").trim_start_matches('/').to_owned();
    let size = if key == "large" { work.bytes } else { SMALL };
    let begin = Response::builder().header("etag", ETAG).header("last-modified", DATE);
    let made = match *request.method() {
        Method::GET if key.is_empty() => Response::builder().body(Full::from(listing(request.uri().query().unwrap_or_default(), work))),
        Method::HEAD => begin.header("content-length", size).body(Full::default()),
        Method::GET => {
            let range = range_of(request).unwrap_or((0, size - 1));
            let (first, last) = (range.0, range.1.min(size - 1));
            let from = (first % PATTERN as u64) as usize;
            let body = pattern.slice(from..from + (last - first + 1) as usize);
            let place = format!("bytes {first}-{last}/{size}");
            begin.status(StatusCode::PARTIAL_CONTENT).header("content-range", place).body(Full::from(body))
        }
        _ => Response::builder().status(StatusCode::NOT_FOUND).body(Full::default()),
    };
    made.expect("its parts are valid")
}

/// A page of a LIST. Without a delimiter only the first is asked for, by who wants to know what a name is.
fn listing(query: &str, work: Work) -> String {
    let asked = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name));
    let prefix = asked("prefix=").unwrap_or_default().replace("%2F", "/");
    let most = asked("max-keys=").and_then(|most| most.parse().ok()).unwrap_or(1000);
    let object = |key: String, size: u64| {
        format!(
            "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{ETAG}</ETag><LastModified>2026-08-01T00:00:00.000Z</LastModified></Contents>"
        )
    };
    let mut entries = Vec::new();
    for directory in (0..work.directories).map(|at| format!("d{at}/")) {
        if prefix == directory || asked("delimiter=").is_none() && directory.starts_with(&prefix) {
            entries.extend((0..IN_A_DIRECTORY).map(|number| object(format!("{directory}{number:04}"), SMALL)));
        } else if directory.starts_with(&prefix) {
            entries.push(format!("<CommonPrefixes><Prefix>{directory}</Prefix></CommonPrefixes>"));
        }
    }
    entries.extend("large".starts_with(&prefix).then(|| object("large".to_owned(), work.bytes)));
    let end =
        if entries.len() > most { "true</IsTruncated><NextContinuationToken>t</NextContinuationToken>" } else { "false</IsTruncated>" };
    entries.truncate(most);
    format!("<ListBucketResult><IsTruncated>{end}{}</ListBucketResult>", entries.concat())
}
