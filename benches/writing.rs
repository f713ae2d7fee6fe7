//! What the way through the kernel costs a writer: the same bytes as parallel UploadPart requests alone, and as write(2) into a mount, to
//! the same sink in the same run. Prints both rates, the ratio and the CPU time of each; needs /dev/fuse and says so when there is none.
//!
//! `cargo bench --bench writing`; under `cargo test` (as CI runs it) one short round.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use windlass::metrics::Metrics;
use windlass::store::{self, Condition, CredentialOptions, Headers, Key, ObjectStore, StaticKeys};

use support::{Mount, is_short, serve};

const PART: usize = 8 << 20;
const AT_ONCE: usize = 16;
const WRITE: usize = 1 << 20;

fn main() {
    let (bytes, rounds) = if is_short() { (64 << 20, 1) } else { (1 << 30, 5) };
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("writing: not run, /dev/fuse: {error}");
        return;
    }
    // It takes every object and keeps none.
    let port = serve(answer);
    let (mut raw, mut mounted) = (Vec::new(), Vec::new());
    let mount = Mount::start(port, &[]);
    for _ in 0..rounds {
        raw.push(upload(port, bytes));
        mounted.push(write(&mount, bytes));
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
        cpu_per_gib(&mount, bytes * rounds)
    );
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

/// Bytes per second from the first write to the end of close.
fn write(mount: &Mount, bytes: usize) -> f64 {
    let (path, piece) = (mount.path(), vec![7; WRITE]);
    let began = Instant::now();
    let mut file = File::create(path.join("file")).expect("it can be made");
    for _ in 0..bytes / WRITE {
        file.write_all(&piece).expect("it is taken");
    }
    file.sync_all().expect("it is in the store");
    drop(file);
    bytes as f64 / began.elapsed().as_secs_f64()
}

/// User and system time of the daemon for each GiB written, from proc(5).
fn cpu_per_gib(mount: &Mount, bytes: usize) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", mount.pid())).expect("the daemon runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().map(|&at| fields[at].parse::<f64>().expect("a number of ticks")).sum();
    ticks / 100.0 / (bytes as f64 / f64::from(1 << 30))
}
