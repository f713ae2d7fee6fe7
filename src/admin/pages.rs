//! The pages that a mount serves over HTTP, for machines that look at it: Prometheus, the probes of Kubernetes. They are there before the mount
//! is. It decides nothing and changes nothing; who may connect may look. Invariants: connections, heads and waits are bounded, so that nobody who asks badly costs the mount more than a few buffers.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::Instant;

use super::health::{Health, Stage, Waiting};
use super::listen::{Listener, Socket};
use super::openmetrics::{self, Form};
use super::process::Process;
use super::socket_file::SocketFile;

/// Connections at a time: a few scrapers and a person. Of more the one that has asked for nothing for the longest goes, so that a probe of Kubernetes is
/// answered whoever else is there.
const CONNECTIONS: usize = 16;

/// Longest wait for the head of a request, and between two of them: Prometheus asks every 15 s to 60 s and connects again when it has to.
const PATIENCE: Duration = Duration::from_secs(75);

/// What is said to who asks whether a mount is ready that nobody has handed over yet.
pub const WAITS: &str = "waiting for a mount: nobody has handed it over yet\n";

/// What can be asked for. A new page is a line here, one in [`page`](Page::at) and one in [`answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Metrics,
    /// Whether the process lives.
    Health,
    /// Whether the mount answers.
    Readiness,
}

impl Page {
    fn at(path: &str) -> Option<Self> {
        match path {
            "/metrics" => Some(Self::Metrics),
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Readiness),
            _ => None,
        }
    }
}

/// The pages of a mount. Dropping it ends them.
#[derive(Debug)]
pub struct Pages {
    accepting: JoinHandle<()>,
    /// Goes with it.
    _file: Option<SocketFile>,
}

/// What the pages show.
pub trait Shown: Send + Sync + 'static {
    /// How far it has come.
    fn stage(&self) -> impl Future<Output = Stage> + Send;
    /// The metrics as a page of OpenMetrics; none: nothing is counted yet.
    fn metrics(&self) -> impl Future<Output = Option<Result<String, fmt::Error>>> + Send;
}

impl Shown for Waiting {
    async fn stage(&self) -> Stage {
        Stage::Waiting
    }

    async fn metrics(&self) -> Option<Result<String, fmt::Error>> {
        None
    }
}

impl Shown for Health {
    async fn stage(&self) -> Stage {
        Health::stage(self)
    }

    async fn metrics(&self) -> Option<Result<String, fmt::Error>> {
        let stats = self.observer()?.stats().await;
        Some(openmetrics::text(stats, process().await))
    }
}

/// A daemon without a mount of its own: it is ready as long as it answers, and counts nothing but what the kernel tells of it.
#[derive(Debug)]
pub struct Alone;

impl Shown for Alone {
    async fn stage(&self) -> Stage {
        Stage::Ready
    }

    async fn metrics(&self) -> Option<Result<String, fmt::Error>> {
        Some(openmetrics::of_process(process().await))
    }
}

/// A reading of this process; its descriptors are counted in a directory that may be long.
async fn process() -> Process {
    tokio::task::spawn_blocking(Process::read).await.unwrap_or_default()
}

impl Pages {
    /// Serves what `shown` knows.
    ///
    /// # Errors
    /// When the runtime cannot take the listener.
    pub fn start(listener: Listener, shown: Arc<impl Shown>, runtime: &Handle) -> io::Result<Self> {
        let _runtime = runtime.enter();
        let (accepting, file) = match listener.socket {
            Socket::Tcp(socket) => {
                let socket = TcpListener::from_std(socket)?;
                (runtime.spawn(accept(shown, socket)), None)
            }
            Socket::Unix(socket, file) => {
                let socket = UnixListener::from_std(socket)?;
                (runtime.spawn(accept(shown, socket)), Some(file))
            }
        };
        Ok(Self { accepting, _file: file })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // With it end the connections, which are its children.
        self.accepting.abort();
    }
}

/// A connection that is served.
struct Guest {
    /// When it was made, or has asked for the last time.
    asked: Arc<Mutex<Instant>>,
    served: AbortHandle,
}

/// What connections come from.
trait Door: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Door for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Door for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

async fn accept<D: Door>(shown: Arc<impl Shown>, door: D) {
    let (mut guests, mut connections) = (Vec::<Guest>::new(), JoinSet::new());
    loop {
        // What ended is taken off the set, so that it stays as small as the number of connections.
        while connections.try_join_next().is_some() {}
        let stream = match door.next().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "the metrics cannot take a connection");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        guests.retain(|guest| !guest.served.is_finished());
        if guests.len() >= CONNECTIONS
            && let Some((longest, _)) = guests.iter().enumerate().min_by_key(|(_, guest)| *guest.asked.lock())
        {
            guests.swap_remove(longest).served.abort();
        }
        let (shown, asked) = (Arc::clone(&shown), Arc::new(Mutex::new(Instant::now())));
        let asks = Arc::clone(&asked);
        let served = connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                *asks.lock() = Instant::now();
                let shown = Arc::clone(&shown);
                async move {
                    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
                    Ok::<_, Infallible>(answer(&*shown, request.method(), request.uri().path(), Form::accepted(accept)).await)
                }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "a connection to the metrics broke");
            }
        });
        guests.push(Guest { asked, served });
    }
}

async fn answer(shown: &impl Shown, method: &Method, path: &str, form: Form) -> Response<String> {
    let Some(page) = Page::at(path) else { return plain(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n") };
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "this can only be looked at\n");
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match page {
        Page::Metrics => metrics(shown, form).await,
        Page::Health => plain(StatusCode::OK, "ok\n"),
        Page::Readiness => match shown.stage().await {
            Stage::Waiting => plain(StatusCode::SERVICE_UNAVAILABLE, WAITS),
            Stage::Beginning => plain(StatusCode::SERVICE_UNAVAILABLE, "the mount does not answer yet\n"),
            Stage::Ready => plain(StatusCode::OK, "ok\n"),
            Stage::Ending => plain(StatusCode::SERVICE_UNAVAILABLE, "the mount is about to end\n"),
        },
    }
}

async fn metrics(shown: &impl Shown, form: Form) -> Response<String> {
    match shown.metrics().await {
        None => plain(StatusCode::SERVICE_UNAVAILABLE, "nothing is counted yet\n"),
        Some(Ok(text)) => with_type(Response::new(form.of(text)), form.content_type()),
        Some(Err(_)) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n"),
    }
}

fn plain(status: StatusCode, words: &str) -> Response<String> {
    let mut response = Response::new(words.to_owned());
    *response.status_mut() = status;
    with_type(response, "text/plain; charset=utf-8")
}

fn with_type(mut response: Response<String>, kind: &'static str) -> Response<String> {
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::admin::listen::Listen;

    const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n";

    async fn answer_to(mut stream: TcpStream) -> String {
        stream.write_all(ASK).await.unwrap();
        let mut bytes = [0; 15];
        stream.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn who_only_connects_keeps_nobody_from_an_answer() {
        let listener = Listener::bind(&"127.0.0.1:0".parse::<Listen>().unwrap()).unwrap();
        let port = listener.port().unwrap();
        let _pages = Pages::start(listener, Arc::new(Waiting), &Handle::current()).unwrap();
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            silent.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        for _ in 0..3 {
            assert_eq!(answer_to(TcpStream::connect(("127.0.0.1", port)).await.unwrap()).await, "HTTP/1.1 200 OK");
        }
        // The first of them had to go, the last is still heard.
        assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap_or(0), 0);
        assert_eq!(answer_to(silent.pop().unwrap()).await, "HTTP/1.1 200 OK");
    }
}
