//! What benches share: the built program over a server on loopback, mounted or not. Gone with the value.
#![allow(dead_code, reason = "each bench uses a part of it")]

pub mod sink;

use std::fs;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

/// Whether one short round will do: `cargo bench` says that it is one, `cargo test` only wants to see that it runs.
pub fn is_short() -> bool {
    !std::env::args().any(|arg| arg == "--bench")
}

/// Of every object that a bench's store has.
pub const ETAG: &str = "\"version-1\"";
pub const DATE: &str = "Sat, 01 Aug 2026 00:00:00 GMT";

/// First and last byte that are asked for.
pub fn range_of(request: &Request<Incoming>) -> Option<(u64, u64)> {
    let (first, last) = request.headers().get("range")?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// That of at least one value.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Has `answer` serve requests to the returned port, on a thread that ends with the process.
pub fn serve<F, B>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static) -> u16
where
    F: Future<Output = Result<Response<B>, hyper::Error>> + Send + 'static,
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
{
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
                let service = service_fn(answer.clone());
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
    });
    port
}

/// A mount of `s3://bench`.
pub struct Mount {
    child: Child,
    directory: tempfile::TempDir,
}

impl Mount {
    pub fn start(port: u16, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let at = directory.path().join("mnt");
        fs::create_dir(&at).expect("it is empty");
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(["mount", "s3://bench"]).arg(&at).args(["--foreground", "--path-style", "--region", "us-east-1"]);
        command.args(["--endpoint", &format!("http://127.0.0.1:{port}"), "--log-level", "error"]).args(arguments);
        command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret").stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        // Its first line says that the mount answers.
        let mut first = [0];
        child.stdout.take().expect("it is piped").read_exact(&mut first).expect("the mount answers");
        Self { child, directory }
    }

    /// Where it is; a bench that misses its mount would fill the disk.
    pub fn path(&self) -> PathBuf {
        let path = self.directory.path().join("mnt");
        assert!(is_mounted(&path), "{} is no mount any more", path.display());
        path
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
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

/// User and system time of a process so far, from proc_pid_stat(5).
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().map(|&at| fields[at].parse::<f64>().expect("a number of ticks")).sum();
    ticks / 100.0
}

pub fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel shows its mounts");
    let path = path.canonicalize().expect("it is there");
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}
