//! What the way through the kernel costs a writer: the same bytes as parallel UploadPart requests alone, and as write(2) into a mount, to
//! the same sink in the same run. Prints both rates, the ratio and the CPU time of each; needs /dev/fuse and says so when there is none.
//!
//! `cargo bench --bench writing`; with `--test` (as CI runs it) one short round.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use windlass::metrics::Metrics;
use windlass::store::{self, Condition, CredentialOptions, Headers, Key, ObjectStore, StaticKeys};

const PART: usize = 8 << 20;
const AT_ONCE: usize = 16;
const WRITE: usize = 1 << 20;

fn main() {
    let short = std::env::args().any(|arg| arg == "--test");
    let (bytes, rounds) = if short { (64 << 20, 1) } else { (1 << 30, 5) };
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("writing: not run, /dev/fuse: {error}");
        return;
    }
    let port = serve();
    let (mut raw, mut mounted) = (Vec::new(), Vec::new());
    let mount = Mount::start(port);
    for _ in 0..rounds {
        raw.push(upload(port, bytes));
        mounted.push(mount.write(bytes));
    }
    let [raw, mounted] = [raw, mounted].map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("parallel UploadPart alone: {:.0} MB/s", raw / 1e6);
    println!(
        "write(2) into a mount:     {:.0} MB/s, {:.2} of it, {:.2} CPU-s per GiB",
        mounted / 1e6,
        mounted / raw,
        mount.cpu_per_gib(bytes * rounds)
    );
}

/// A server that takes every object and keeps none. On a thread of its own; ends with the process.
fn serve() -> u16 {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.set_nonblocking(true).expect("a listener can be nonblocking");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is nonblocking");
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let _ = stream.set_nodelay(true);
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
            }
        });
    });
    port
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, mut body) = request.into_parts();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    let query = head.uri.query().unwrap_or_default();
    let (status, text) = match head.method {
        Method::POST if query.contains("uploads") => {
            (200, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
        }
        Method::POST => (200, "<CompleteMultipartUploadResult><ETag>\"e-1\"</ETag></CompleteMultipartUploadResult>"),
        Method::GET => (200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"),
        Method::HEAD => (404, ""),
        Method::DELETE => (204, ""),
        _ => (200, ""),
    };
    let answer = Response::builder().status(status).header("etag", "\"0123456789abcdef0123456789abcdef\"").body(Full::from(text));
    Ok(answer.expect("its parts are valid"))
}

/// Bytes per second of a multipart upload without a mount.
fn upload(port: u16, bytes: usize) -> f64 {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let keys = StaticKeys { id: "id".into(), secret: "secret".into(), token: None };
    let options = store::Options {
        bucket: "bench".into(),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: Some("us-east-1".into()),
        credentials: CredentialOptions { keys: Some(keys), ..CredentialOptions::default() },
        ..store::Options::default()
    };
    runtime.block_on(async {
        let store = store::open(&options, Arc::new(Metrics::default())).await.expect("the options are right");
        // Different memory for each part in flight, as a writer has it.
        let parts: Vec<Bytes> = (0..AT_ONCE).map(|n| Bytes::from(vec![n as u8; PART])).collect();
        let began = Instant::now();
        let upload = store.create_upload(&Key::from("raw"), &Headers::default()).await.expect("the sink takes it");
        let (store, upload, parts) = (&store, &upload, &parts);
        let sent = stream::iter(0..bytes / PART)
            .map(|n| async move { store.upload_part(upload, u32::try_from(n + 1).expect("few parts"), parts[n % AT_ONCE].clone()).await });
        let sent: Vec<_> = sent.buffered(AT_ONCE).try_collect().await.expect("the sink takes it");
        store.complete_upload(upload, &sent, &Condition::Any).await.expect("the sink takes it");
        bytes as f64 / began.elapsed().as_secs_f64()
    })
}

/// The built program over the sink.
struct Mount {
    child: Child,
    directory: tempfile::TempDir,
}

impl Mount {
    fn start(port: u16) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let at = directory.path().join("mnt");
        fs::create_dir(&at).expect("it is empty");
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(["mount", "s3://bench"]).arg(&at).args(["--foreground", "--path-style", "--region", "us-east-1"]);
        command.args(["--endpoint", &format!("http://127.0.0.1:{port}"), "--log-level", "error"]);
        command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret").stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        // Its first line says that the mount answers.
        let mut first = [0];
        child.stdout.take().expect("it is piped").read_exact(&mut first).expect("the mount answers");
        Self { child, directory }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("mnt")
    }

    /// Bytes per second from the first write to the end of close.
    fn write(&self, bytes: usize) -> f64 {
        assert!(is_mounted(&self.path()), "a bench that misses its mount would fill the disk");
        let piece = vec![7; WRITE];
        let began = Instant::now();
        let mut file = File::create(self.path().join("file")).expect("it can be made");
        for _ in 0..bytes / WRITE {
            file.write_all(&piece).expect("it is taken");
        }
        file.sync_all().expect("it is in the store");
        drop(file);
        bytes as f64 / began.elapsed().as_secs_f64()
    }

    /// User and system time of the daemon for each GiB written, from proc(5).
    fn cpu_per_gib(&self, bytes: usize) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the daemon runs");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = [11, 12].iter().map(|&at| fields[at].parse::<f64>().expect("a number of ticks")).sum();
        ticks / 100.0 / (bytes as f64 / f64::from(1 << 30))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let end = Instant::now() + Duration::from_secs(30);
        while self.child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel shows its mounts");
    let path = path.canonicalize().expect("it is there");
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}
