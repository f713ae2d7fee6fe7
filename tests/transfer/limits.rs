//! What a transfer may take of the machine.

use std::convert::Infallible;
use std::fs::{self, File};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;

use super::program::{MIB, at, command, content, peak_kib, run};
use super::support::{Effect, Fault, Kind, S3Server};

#[test]
fn memory_stays_inside_what_was_allowed() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    for n in 0..4 {
        server.put_synthetic(&format!("m/{n}"), 64 << 20);
    }
    // Slow enough to be looked at, and as many requests as there may be.
    server.fault(Fault::new(Effect::Bandwidth(8 << 20)).kind(Kind::Get));
    let words =
        ["get", "-r", &at("m"), dir.path().to_str().unwrap(), "--parallel", "200", "--part-size", "1MiB", "--bigfile-threshold", "1MiB"];
    let mut child =
        command(&server, &[&words[..], &["--max-memory", "16MiB"]].concat()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(peak_kib(child.id()));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(child.wait().unwrap().success() && server.count(Kind::Get) == 256);
    assert!(peak > 0 && peak < (16 + 96) << 10, "{peak} KiB");
}

#[test]
fn put_stays_inside_its_memory() {
    let server = S3Server::start();
    let words = ["put", "-", &at("large"), "--part-size", "5MiB", "--parallel", "100", "--max-memory", "32MiB"];
    let mut child = command(&server, &words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let piece = content(8 * MIB);
    for _ in 0..32 {
        std::io::Write::write_all(&mut pipe, &piece).unwrap();
    }
    let peak = peak_kib(child.id());
    drop(pipe);
    assert!(child.wait().unwrap().success());
    assert_eq!(server.stored("large").unwrap().0.len(), 256 * MIB);
    assert!(peak > 0 && peak < (32 + 96) << 10, "{peak} KiB");
}

/// A store that takes uploads and keeps nothing of them. It looks how much memory the sender had before it ends the upload.
struct Sink {
    port: u16,
    sender: Arc<AtomicU32>,
    peak_kib: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

impl Sink {
    fn start() -> Self {
        let (sender, peak, bytes) = (Arc::<AtomicU32>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (pid, kib, count) = (sender.clone(), peak.clone(), bytes.clone());
        // It ends with the process.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let Ok((stream, _)) = listener.accept().await else { continue };
                    let (pid, kib, count) = (pid.clone(), kib.clone(), count.clone());
                    let service = service_fn(move |request| take(request, pid.clone(), kib.clone(), count.clone()));
                    tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                }
            });
        });
        Self { port, sender, peak_kib: peak, bytes }
    }
}

async fn take(
    request: Request<Incoming>,
    sender: Arc<AtomicU32>,
    peak: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (method, query) = (request.method().clone(), request.uri().query().unwrap_or_default().to_owned());
    let mut body = request.into_body();
    let mut length = 0;
    while let Some(Ok(frame)) = body.frame().await {
        length += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    let answer = match method {
        Method::PUT => {
            bytes.fetch_add(length, Ordering::Relaxed);
            return Ok(Response::builder().header("etag", "\"part\"").body(Full::default()).unwrap());
        }
        Method::POST if query.starts_with("uploads") => {
            "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
        }
        _ => {
            peak.store(peak_kib(sender.load(Ordering::Relaxed)), Ordering::Relaxed);
            "<CompleteMultipartUploadResult><ETag>&quot;whole&quot;</ETag></CompleteMultipartUploadResult>"
        }
    };
    Ok(Response::new(Full::from(answer)))
}

#[test]
fn put_of_a_file_larger_than_its_memory_stays_inside_that() {
    let (server, sink) = (S3Server::start(), Sink::start());
    let dir = tempfile::tempdir().unwrap();
    // With holes: it takes no disk.
    let (file, size) = (dir.path().join("sparse"), 1_300 << 20);
    File::create(&file).unwrap().set_len(size).unwrap();
    let words = ["put", file.to_str().unwrap(), &at("large"), "--max-memory", "512MiB", "--parallel", "64"];
    let mut command = command(&server, &words);
    // The last one said is the one.
    command.args(["--endpoint", &format!("http://127.0.0.1:{}", sink.port)]).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    sink.sender.store(child.id(), Ordering::Relaxed);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("31 requests and 1 beside x 16.00 MiB = 512.00 MiB of memory"), "{said}");
    let (peak, sent) = (sink.peak_kib.load(Ordering::Relaxed), sink.bytes.load(Ordering::Relaxed));
    assert_eq!(sent, size);
    assert!(peak > 0 && peak < (512 + 96) << 10, "{peak} KiB");
}

#[test]
fn a_limit_of_the_bandwidth_spaces_what_is_asked_for() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().unwrap();
    let content = content(4 * MIB);
    server.put("k", content.clone());
    let file = dir.path().join("file");
    let path = file.to_str().unwrap();
    // A quarter of a second at a time: one request without a limit.
    for (words, gets) in [(&["get", &at("k"), path][..], 1), (&["get", &at("k"), path, "--bandwidth-limit", "8MiB"], 2)] {
        server.reset_log();
        run(&server, words).succeeds();
        assert!(fs::read(&file).unwrap() == content && server.count(Kind::Get) == gets, "{gets}");
    }
    server.reset_log();
    let said = run(&server, &["cat", &at("k"), "--bandwidth-limit", "16MiB", "--range", "0-4194302"]).succeeds();
    assert!(said.out == content[..4 * MIB - 1] && server.count(Kind::Get) == 1);
    // Parts are a second long where that is less than what was said, but never smaller than stores take.
    fs::write(&file, super::program::content(12 * MIB)).unwrap();
    for (limit, parts) in [("1GiB", 0), ("8MiB", 2)] {
        server.reset_log();
        run(&server, &["put", path, &at("up"), "--bandwidth-limit", limit]).succeeds();
        assert_eq!(server.count(Kind::UploadPart), parts, "{limit}");
    }
    assert_eq!(run(&server, &["cat", &at("k"), "--bandwidth-limit", "1"]).code, 2);
}
