//! The HTTP layer around the S3 service: writes the log and carries out the faults. It knows nothing of S3 but
//! the shape of an error document.

use std::net::TcpStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::response::Builder;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderValue, LOCATION};
use hyper::service::Service;
use hyper::{Request, Response, StatusCode};
use s3s::service::S3Service;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::aws_sign::Refusal;
use super::fault::{Effect, Fault};
use super::log::{self, Entry, Log};

/// Bytes of a paced body that leave at once.
const PACED_PIECE: usize = 16 << 10;

/// How often a cut looks whether all that came before it has arrived: hyper drops what it still holds with the connection, and the kernel what
/// it has not sent when that is reset.
const LOOK: Duration = Duration::from_millis(10);

/// Looks in a row that find the kernel with nothing to send. After each hyper hands over what it holds: the second one finds that sent too, and
/// the third is for what did not fit.
const LOOKS: u32 = 3;

/// What all connections of a server share.
#[derive(Clone)]
pub struct Shared {
    pub s3: S3Service,
    /// Checks requests in place of the service.
    pub gate: Option<Arc<dyn Gate>>,
    pub log: Log,
    pub faults: Arc<Mutex<Vec<Fault>>>,
    /// Told while the faults are locked: they were cleared.
    pub cleared: watch::Sender<()>,
}

/// The service of one connection.
pub struct Connection {
    pub shared: Shared,
    pub remote_port: u16,
    /// A second descriptor of the socket that hyper owns, to make its end a reset.
    pub socket: Arc<TcpStream>,
}

impl Service<Request<Incoming>> for Connection {
    type Response = Response<FaultyBody>;
    type Error = s3s::HttpError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let seen = log::Request::new(request.method(), request.uri(), request.headers(), self.remote_port);
        let (effects, mut cleared): (Vec<Effect>, _) = {
            let mut faults = self.shared.faults.lock().expect("no panic while it is held");
            (faults.iter_mut().filter_map(|fault| fault.on_request(&seen)).collect(), self.shared.cleared.subscribe())
        };
        let entry = self.shared.log.open(seen);
        let (s3, gate, socket) = (self.shared.s3.clone(), self.shared.gate.clone(), self.socket.clone());
        async move {
            let location = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
            for effect in &effects {
                if let Effect::Delay(delay) = effect {
                    tokio::time::sleep(*delay).await;
                }
            }
            if effects.contains(&Effect::Held) {
                // An error is a server that ends.
                let _ = cleared.changed().await;
            }
            let mut response = match effects.iter().find_map(|effect| planned_answer(effect, &location)) {
                Some(planned) => {
                    take_in(request.into_body()).await;
                    planned
                }
                None if effects.contains(&Effect::Broken) => return Err(reset(&socket)),
                None => match gate {
                    None => Service::call(&s3, request).await?,
                    Some(gate) => through(&*gate, &s3, request).await?,
                },
            };
            if effects.contains(&Effect::Lost) {
                return Err(reset(&socket));
            }
            for effect in &effects {
                change_head(&mut response, effect);
            }
            entry.update(|request| request.status = response.status().as_u16());
            Ok(response.map(|body| FaultyBody::new(body, &effects, entry, socket)))
        }
        .boxed()
    }
}

/// A check of requests before the service, where the service cannot check their signatures.
pub trait Gate: Send + Sync {
    /// Checks the request, and changes it into what the service is to see.
    ///
    /// # Errors
    /// Why the request is refused.
    fn admit(&self, request: &mut http::request::Parts) -> Result<(), Refusal>;
}

/// Lets a request into the service that `gate` has nothing against.
async fn through(gate: &dyn Gate, s3: &S3Service, request: Request<Incoming>) -> Result<Response<s3s::Body>, s3s::HttpError> {
    let (mut parts, body) = request.into_parts();
    match gate.admit(&mut parts) {
        Ok(()) => {
            // The service knows no such signatures.
            parts.headers.remove(AUTHORIZATION);
            Service::call(s3, Request::from_parts(parts, body)).await
        }
        Err((status, code, message)) => {
            take_in(body).await;
            Ok(error(status, code, message, |response| response))
        }
    }
}

/// Reads what came with a request. Answered before that, the connection would be closed with bytes that nobody has read: the client may meet a
/// reset in place of the answer.
async fn take_in(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// Whether the kernel has bytes of the connection that the other side's kernel does not have yet, from its table (proc_net_tcp(5)): addresses are
/// the second and the third column, both queues the fifth.
fn has_unsent(socket: &TcpStream) -> bool {
    let port = |address: std::io::Result<std::net::SocketAddr>| address.map_or_else(|_| String::new(), |at| format!(":{:04X}", at.port()));
    let (here, there) = (port(socket.local_addr()), port(socket.peer_addr()));
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("the kernel shows its connections");
    table.lines().any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_it = columns.len() > 4 && columns[1].ends_with(&here) && columns[2].ends_with(&there);
        is_it && !columns[4].starts_with("00000000:")
    })
}

/// Makes the connection end in a reset, which the error makes hyper do.
fn reset(socket: &TcpStream) -> s3s::HttpError {
    // Closing a socket with a linger time of zero sends RST instead of FIN.
    rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).expect("it is a TCP socket");
    s3s::HttpError::new("planned fault".into())
}

/// An answer that S3 is not asked for.
fn planned_answer(effect: &Effect, location: &str) -> Option<Response<s3s::Body>> {
    let same_path_at = |base: &str| Some(format!("{}{location}", base.trim_end_matches('/')));
    let (status, code, target) = match effect {
        Effect::Status(status) => (*status, error_code(*status), None),
        Effect::Redirect(base) => (307, "TemporaryRedirect", same_path_at(base)),
        Effect::Moved(status, base) => (*status, "Redirect", same_path_at(base)),
        Effect::Elsewhere(base, _) => (301, "PermanentRedirect", same_path_at(base)),
        _ => return None,
    };
    Some(error(status, code, "planned fault", |mut response| {
        if let Some(target) = target {
            response = response.header(LOCATION, target);
        }
        if let Effect::Elsewhere(_, region) = effect {
            response = response.header("x-amz-bucket-region", region);
        }
        response
    }))
}

/// An error as S3 answers it, with the headers that `more` adds.
fn error(status: u16, code: &str, message: &str, more: impl FnOnce(Builder) -> Builder) -> Response<s3s::Body> {
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message><RequestId>4442587FB7D0A2F9</RequestId></Error>"
    );
    let response = Response::builder()
        .status(status)
        .header("content-type", "application/xml")
        .header("x-amz-request-id", "4442587FB7D0A2F9")
        .header(CONTENT_LENGTH, xml.len());
    more(response).body(s3s::Body::from(xml)).expect("the parts are valid")
}

fn error_code(status: u16) -> &'static str {
    match status {
        403 => "AccessDenied",
        404 => "NoSuchKey",
        412 => "PreconditionFailed",
        429 => "TooManyRequests",
        500 => "InternalError",
        501 => "NotImplemented",
        503 => "SlowDown",
        _ => "PlannedFault",
    }
}

fn change_head(response: &mut Response<s3s::Body>, effect: &Effect) {
    match effect {
        Effect::WrongETag(etag) => {
            let value = HeaderValue::from_str(etag).expect("a test names a valid header value");
            response.headers_mut().insert(ETAG, value);
        }
        Effect::WrongRange if response.status() == StatusCode::PARTIAL_CONTENT => {
            response.headers_mut().insert(CONTENT_RANGE, HeaderValue::from_static("bytes 1-1/2"));
        }
        _ => {}
    }
}

/// A body that is counted, and may be paced, stalled, or cut.
pub struct FaultyBody {
    inner: s3s::Body,
    entry: Entry,
    socket: Arc<TcpStream>,
    /// Bytes handed to the socket.
    sent: u64,
    total: Option<u64>,
    /// Taken from `inner` and not handed on yet.
    held: Bytes,
    stall: Option<(u64, Option<Duration>)>,
    /// Where the connection ends, and whether by a reset.
    cut: Option<(u64, bool)>,
    /// Looks in a row at a connection that had nothing to send.
    idle_looks: u32,
    bandwidth: Option<u64>,
    due: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl FaultyBody {
    fn new(inner: s3s::Body, effects: &[Effect], entry: Entry, socket: Arc<TcpStream>) -> Self {
        let mut body = Self {
            total: inner.size_hint().exact(),
            inner,
            entry,
            socket,
            sent: 0,
            held: Bytes::new(),
            stall: None,
            cut: None,
            idle_looks: 0,
            bandwidth: None,
            due: Instant::now(),
            sleep: None,
        };
        for effect in effects {
            match *effect {
                Effect::Truncate(after) => body.cut = Some((after, false)),
                Effect::Reset(after) => body.cut = Some((after, true)),
                Effect::Stall(after, pause) => body.stall = Some((after, pause)),
                Effect::Bandwidth(rate) => body.bandwidth = Some(rate.max(1)),
                _ => {}
            }
        }
        body.note_sent(0);
        body
    }

    fn note_sent(&mut self, n: u64) {
        self.sent += n;
        let (sent, has_all) = (self.sent, Some(self.sent) == self.total);
        self.entry.update(|request| {
            request.bytes_sent = sent;
            // The answer to a HEAD has no body, whatever its headers say.
            request.finished = has_all || request.method == hyper::Method::HEAD;
        });
    }

    /// How many bytes may leave now: up to where something happens.
    fn room(&self) -> usize {
        let stops = [self.stall.map(|s| s.0), self.cut.map(|c| c.0)];
        let until = stops.into_iter().flatten().filter(|&stop| stop > self.sent).map(|stop| stop - self.sent).min();
        let paced = if self.bandwidth.is_some() { PACED_PIECE } else { usize::MAX };
        until.map_or(paced, |n| paced.min(usize::try_from(n).unwrap_or(usize::MAX)))
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((_, pause)) = self.stall.filter(|stall| stall.0 == self.sent) {
            let Some(pause) = pause else { return Poll::Pending };
            self.stall = None;
            self.sleep = Some(Box::pin(tokio::time::sleep(pause)));
        }
        if let Some(sleep) = &mut self.sleep {
            ready!(sleep.as_mut().poll(cx));
            self.sleep = None;
        }
        Poll::Ready(())
    }

    fn cut_connection(&mut self, reset: bool) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        self.entry.cut_by_us();
        if reset {
            // Closing a socket with a linger time of zero sends RST instead of FIN.
            rustix::net::sockopt::set_socket_linger(&*self.socket, Some(Duration::ZERO)).expect("it is a TCP socket");
        }
        Poll::Ready(Some(Err("planned fault".into())))
    }
}

impl Body for FaultyBody {
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        ready!(this.poll_pause(cx));
        if let Some((_, reset)) = this.cut.filter(|cut| cut.0 == this.sent) {
            while this.idle_looks < LOOKS {
                this.sleep = Some(Box::pin(tokio::time::sleep(LOOK)));
                this.idle_looks = if has_unsent(&this.socket) { 0 } else { this.idle_looks + 1 };
                ready!(this.poll_pause(cx));
            }
            return this.cut_connection(reset);
        }
        while this.held.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut this.inner).poll_frame(cx)?) else {
                this.total.get_or_insert(this.sent);
                this.note_sent(0);
                return Poll::Ready(None);
            };
            match frame.into_data() {
                Ok(data) => this.held = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let n = this.room().min(this.held.len());
        let piece = this.held.split_to(n);
        this.note_sent(n as u64);
        if let Some(rate) = this.bandwidth {
            this.due += Duration::from_nanos(n as u64 * 1_000_000_000 / rate);
            this.sleep = Some(Box::pin(sleep_until(this.due)));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    /// Not before the log knows: hyper asks for no frame after this says yes.
    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && (Some(self.sent) == self.total || self.inner.is_end_stream()) && self.cut.is_none() && self.stall.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.total.map_or_else(SizeHint::default, |total| SizeHint::with_exact(total - self.sent))
    }
}
