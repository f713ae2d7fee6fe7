//! Whether `get --parallel auto` finds as many requests as make it fast: one object fetched into memory (/dev/shm) with 2, 4, ... 128 requests at
//! a time and with `auto`, in turns. The store takes 20 ms to the first byte and gives a connection 90 MB/s, as clouds do, so that few requests
//! are slow and many gain nothing. Prints the sweep, and the share that `auto` has of the best.
//!
//! `cargo bench --bench transfers [-- SIZE_MIB]`; under `cargo test` (as CI runs it) one short round.

mod support;

use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::Sleep;

use support::{is_short, serve};

const LATENCY: Duration = Duration::from_millis(20);
const BYTES_PER_SECOND: u64 = 90_000_000;

/// Bytes that leave at once.
const PIECE: usize = 256 << 10;

fn main() {
    let asked = std::env::args().filter_map(|arg| arg.parse::<u64>().ok()).next();
    let (size, rounds) = if is_short() { (64 << 20, 1) } else { (asked.unwrap_or(2048) << 20, 5) };
    let ways: &[&str] = if is_short() { &["4", "16", "auto"] } else { &["2", "4", "8", "16", "32", "64", "128", "auto"] };
    let port = serve(move |request| async move {
        tokio::time::sleep(LATENCY).await;
        Ok(answer(&request, size))
    });
    let mut table: Vec<(&str, Vec<f64>)> = ways.iter().map(|way| (*way, Vec::new())).collect();
    for _ in 0..rounds {
        for (way, rates) in &mut table {
            rates.push(fetch(port, size, way));
        }
    }
    let mut best = (0.0, "");
    println!("{} MiB, {rounds} rounds, medians:", size >> 20);
    for (way, rates) in &mut table {
        rates.sort_by(f64::total_cmp);
        let rate = rates[rates.len() / 2];
        println!("--parallel {way:<5} {:>7.0} MB/s", rate / 1e6);
        if *way != "auto" && rate > best.0 {
            best = (rate, way);
        } else if *way == "auto" {
            println!("auto has {:.2} of the best, which is --parallel {}", rate / best.0, best.1);
        }
    }
}

/// Bytes per second.
fn fetch(port: u16, size: u64, parallel: &str) -> f64 {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let place = place.expect("a temporary directory can be made");
    let file = place.path().join("object");
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(["get", "s3://bench/object"]).arg(&file).args(["--parallel", parallel, "--path-style", "--region", "us-east-1"]);
    command.args(["--endpoint", &format!("http://127.0.0.1:{port}")]).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
    let began = Instant::now();
    assert!(command.status().expect("the program starts").success(), "it fetches");
    let took = began.elapsed();
    assert_eq!(std::fs::metadata(&file).expect("it is there").len(), size);
    size as f64 / took.as_secs_f64()
}

const ETAG: &str = "\"0123456789abcdef0123456789abcdef\"";
const DATE: &str = "Sat, 01 Aug 2026 00:00:00 GMT";

fn answer(request: &Request<Incoming>, size: u64) -> Response<Paced> {
    let begin = Response::builder().header("etag", ETAG).header("last-modified", DATE);
    let made = match *request.method() {
        Method::HEAD => begin.header("content-length", size).body(Paced::new(0)),
        _ => {
            let range = request.headers().get("range").and_then(|range| range.to_str().ok()).and_then(parse).unwrap_or((0, size - 1));
            let place = format!("bytes {}-{}/{size}", range.0, range.1);
            begin.status(StatusCode::PARTIAL_CONTENT).header("content-range", place).body(Paced::new(range.1 - range.0 + 1))
        }
    };
    made.expect("its parts are valid")
}

fn parse(range: &str) -> Option<(u64, u64)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Zeros at the pace of a connection.
struct Paced {
    left: u64,
    due: tokio::time::Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    fn new(len: u64) -> Self {
        Self { left: len, due: tokio::time::Instant::now(), sleep: None }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        static ZEROS: [u8; PIECE] = [0; PIECE];
        if let Some(sleep) = &mut self.sleep {
            ready!(sleep.as_mut().poll(cx));
        }
        let n = self.left.min(PIECE as u64);
        if n == 0 {
            return Poll::Ready(None);
        }
        self.left -= n;
        self.due += Duration::from_nanos(n * 1_000_000_000 / BYTES_PER_SECOND);
        self.sleep = Some(Box::pin(tokio::time::sleep_until(self.due)));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&ZEROS[..n as usize])))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
