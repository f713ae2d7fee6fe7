//! A small OSS server in memory: GET with Range and If-Match, HEAD, ListObjectsV2, errors as OSS writes them. It checks
//! signatures (V4 and V1), dates and tokens by the vendor's rules, counts requests, and can send redirects. It knows
//! one bucket; how that is read and written is in `oss_read` and `oss_write`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use reqsign_core::time::Timestamp;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use windlass::store::Op;

use super::keyring::Keyring;
use super::oss_read::serve;
use super::oss_sign::{Received, Signee, oss_v1, oss_v4, oss_v4_scope};
use super::oss_write::{Change, OssEffect, OssFault, Writes};

/// How far a client's clock may be off.
const SKEW: Duration = Duration::from_secs(15 * 60);

/// What the server holds and whom it lets in.
#[derive(Clone, Debug)]
pub struct Setup {
    pub bucket: String,
    pub who: Signee,
    /// The security token that must come with the key id.
    pub token: Option<String>,
    /// Requests without a signature are let in.
    pub public: bool,
    pub objects: BTreeMap<Vec<u8>, Vec<u8>>,
    /// GETs of objects are redirected to this host and port.
    pub redirect_to: Option<SocketAddr>,
}

/// How often what was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub get: usize,
    pub head: usize,
    pub list: usize,
    pub acl: usize,
    pub tagging: usize,
    pub refused: usize,
    pub redirected: usize,
    /// Requests in virtual-host style.
    pub virtual_host: usize,
    /// What changed something, or asked for uploads.
    pub writes: BTreeMap<String, usize>,
    /// `V4`, `V1` or `none`, of the last request.
    pub signature: String,
}

/// A signed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub key_id: String,
    pub let_in: bool,
}

/// A running server; it ends when it is dropped.
pub struct OssServer {
    pub address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    setup: Mutex<Setup>,
    /// Who is let in besides the one of the setup.
    keyring: Keyring,
    seen: Mutex<Vec<Seen>>,
    counts: Mutex<Counts>,
    writes: Mutex<Writes>,
    connections: AtomicUsize,
    /// How far the server's clock is ahead of this machine's.
    ahead: Mutex<Duration>,
}

impl Drop for OssServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl OssServer {
    pub async fn start(setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            setup: Mutex::new(setup),
            keyring: Keyring::default(),
            seen: Mutex::default(),
            counts: Mutex::default(),
            writes: Mutex::default(),
            connections: AtomicUsize::new(0),
            ahead: Mutex::default(),
        });
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (state, counted) = (shared.clone(), shared.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let state = state.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                        state.answer(&Request::from_parts(head, body))
                    }
                });
                counted.connections.fetch_add(1, Relaxed);
                connections.spawn(async move {
                    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    let _ = connection.await; // an error is a client that hung up
                    counted.connections.fetch_sub(1, Relaxed);
                });
            }
        });
        Self { address, state, task }
    }

    /// Who is let in besides the one of the setup.
    pub fn keyring(&self) -> &Keyring {
        &self.state.keyring
    }

    /// Sets the server's clock, by which it checks signatures and writes its dates, ahead of this machine's.
    pub fn set_clock_ahead(&self, by: Duration) {
        *self.state.ahead.lock().unwrap() = by;
    }

    /// Every signed request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    pub fn counts(&self) -> Counts {
        self.state.counts.lock().unwrap().clone()
    }

    /// How often a write of this kind was asked for.
    pub fn count(&self, op: Op) -> usize {
        self.counts().writes.get(&op.to_string()).copied().unwrap_or_default()
    }

    /// Mistreats the next `times` requests of an operation that writes.
    pub fn fault(&self, op: Op, effect: OssEffect, times: usize) {
        self.state.writes.lock().unwrap().faults.push(OssFault { op, effect, times });
    }

    /// Gives links neither tag nor date, as some servers do.
    pub fn have_bare_links(&self) {
        self.state.writes.lock().unwrap().bare_links = true;
    }

    /// How many uploads were neither completed nor aborted.
    pub fn uploads(&self) -> usize {
        self.state.writes.lock().unwrap().uploads()
    }

    /// What is stored beside an object.
    pub fn stored(&self, key: &str) -> BTreeMap<String, String> {
        let setup = self.state.setup.lock().unwrap();
        let headers = self.state.writes.lock().unwrap().headers(key.as_bytes(), &setup.objects[key.as_bytes()]);
        headers.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }

    /// How many connections are open now.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Relaxed)
    }

    /// Changes what the server holds from now on.
    pub fn change(&self, change: impl FnOnce(&mut Setup)) {
        change(&mut self.state.setup.lock().unwrap());
    }
}

/// A refusal: status, code, message.
pub type Refusal = (u16, &'static str, String);
pub type Answer = Response<Full<Bytes>>;

impl State {
    /// An error closes the connection.
    fn answer(&self, request: &Request<Bytes>) -> std::io::Result<Answer> {
        self.answer_now(request).map(|mut answer| {
            let date = httpdate::fmt_http_date(SystemTime::now() + *self.ahead.lock().unwrap());
            answer.headers_mut().insert(header::DATE, HeaderValue::try_from(date).unwrap());
            answer
        })
    }

    fn answer_now(&self, request: &Request<Bytes>) -> std::io::Result<Answer> {
        let (received, virtual_host) = receive(request);
        let mut setup = self.setup.lock().unwrap();
        let mut counts = self.counts.lock().unwrap();
        counts.virtual_host += usize::from(virtual_host);
        let checked = self.check_signature(&setup, &received, &mut counts.signature);
        let answer = checked.and_then(|()| {
            let key = received.key.clone().unwrap_or_default();
            let (method, query, headers) = (request.method(), &received.query, request.headers());
            let change = Change { method, key: &key, query, headers, body: request.body().to_vec() };
            let mut writes = self.writes.lock().unwrap();
            match change.op() {
                None => serve(&setup, &writes, &received, request, &mut counts).map(Some),
                Some(op) => {
                    *counts.writes.entry(op.to_string()).or_default() += 1;
                    if received.bucket.as_ref() != Some(&setup.bucket) {
                        return Err(no_bucket());
                    }
                    let fault = writes.fault(op);
                    match fault {
                        Some(OssEffect::Status(status, code)) => return Err((status, code, "planned fault".into())),
                        Some(OssEffect::Broken) => return Ok(None),
                        _ => {}
                    }
                    let done = writes.serve(op, &mut setup, &change);
                    if fault == Some(OssEffect::Lost) {
                        return Ok(None);
                    }
                    let (status, mut headers, body) = done?;
                    if fault == Some(OssEffect::WrongSum) {
                        headers.push((header::HeaderName::from_static("x-oss-hash-crc64ecma"), "1".into()));
                    }
                    Ok(Some(respond(status, headers, body)))
                }
            }
        });
        match answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(std::io::Error::other("planned fault")),
            Err(refusal) => {
                counts.refused += 1;
                Ok(refuse(request.method() == Method::HEAD, refusal))
            }
        }
    }
}

pub fn no_bucket() -> Refusal {
    (404, "NoSuchBucket", "The specified bucket does not exist.".into())
}

/// The request decoded, and whether the bucket stood in its host.
fn receive(request: &Request<Bytes>) -> (Received, bool) {
    let headers = request.headers().iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let headers: BTreeMap<String, String> = headers.collect();
    let host = headers.get("host").map(|host| host.split(':').next().unwrap().to_owned()).unwrap_or_default();
    let label = host.split_once('.').map(|(label, _)| label).filter(|label| label.parse::<u8>().is_err());
    let path: Vec<u8> = percent_decode_str(request.uri().path().strip_prefix('/').unwrap()).collect();
    let (bucket, key) = match label {
        Some(label) => (label.to_owned(), path),
        None => {
            let at = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
            (String::from_utf8(path[..at].to_vec()).unwrap(), path.get(at + 1..).unwrap_or_default().to_vec())
        }
    };
    let decode = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
    let pairs = request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(name, value)| (decode(name), decode(value)));
    let query = query.collect();
    (Received { method: request.method().to_string(), bucket: Some(bucket), key: Some(key), query, headers }, label.is_some())
}

impl State {
    /// By the keys of the setup, or by those of the keyring that the request names.
    fn check_signature(&self, setup: &Setup, received: &Received, signature: &mut String) -> Result<(), Refusal> {
        let id = key_id(received.headers.get("authorization").map_or("", String::as_str));
        let others = self.keyring.get(id).filter(|_| id != setup.who.id).map(|held| {
            let who = Signee { id: id.to_owned(), secret: held.secret, region: setup.who.region.clone() };
            Setup {
                who,
                token: held.token,
                bucket: setup.bucket.clone(),
                public: setup.public,
                objects: BTreeMap::new(),
                redirect_to: None,
            }
        });
        let now = SystemTime::now() + *self.ahead.lock().unwrap();
        let checked = check_signature(others.as_ref().unwrap_or(setup), received, now, signature);
        if !id.is_empty() {
            self.seen.lock().unwrap().push(Seen { key_id: id.to_owned(), let_in: checked.is_ok() });
        }
        checked
    }
}

/// Whose signature it claims to be, in both versions.
fn key_id(authorization: &str) -> &str {
    let id = authorization.split_once("Credential=").map(|(_, scope)| scope.split('/').next().unwrap_or_default());
    id.or_else(|| authorization.strip_prefix("OSS ")?.split(':').next()).unwrap_or_default()
}

fn check_signature(setup: &Setup, received: &Received, now: SystemTime, seen: &mut String) -> Result<(), Refusal> {
    let refuse = |code, message: &str| Err((403, code, message.to_owned()));
    let header = |name: &str| received.headers.get(name).map(String::as_str).unwrap_or_default();
    let authorization = header("authorization");
    *seen = "none".into();
    if authorization.is_empty() {
        return if setup.public { Ok(()) } else { refuse("AccessDenied", "Anonymous access is forbidden for this operation.") };
    }
    let who = &setup.who;
    let (id, date, expected, signature, token) = if let Some(fields) = authorization.strip_prefix("OSS4-HMAC-SHA256 ") {
        *seen = "V4".into();
        // Exactly the form that the vendor documents: no blanks, AdditionalHeaders only when there are some.
        let fields: BTreeMap<&str, &str> = fields.split(',').filter_map(|field| field.split_once('=')).collect();
        let (Some(credential), Some(signature)) = (fields.get("Credential"), fields.get("Signature")) else {
            return refuse("InvalidArgument", "Authorization header is invalid.");
        };
        if header("x-oss-content-sha256") != "UNSIGNED-PAYLOAD" || header("x-oss-date").len() != 16 {
            return refuse("InvalidArgument", "x-oss-content-sha256 or x-oss-date is missing.");
        }
        let date = header("x-oss-date");
        let (id, scope) = credential.split_once('/').unwrap_or_default();
        if scope != oss_v4_scope(who, date) {
            return refuse("InvalidArgument", "The credential scope is not that of this region and day.");
        }
        let additional: Vec<&str> = fields.get("AdditionalHeaders").map(|names| names.split(';').collect()).unwrap_or_default();
        let stamp = parse_basic(date);
        (id, stamp, oss_v4(received, who, date, &additional), (*signature).to_owned(), header("x-oss-security-token"))
    } else if let Some((id, signature)) = authorization.strip_prefix("OSS ").and_then(|rest| rest.split_once(':')) {
        *seen = "V1".into();
        let stamp = httpdate::parse_http_date(header("date")).ok();
        let token = if header("x-oss-security-token").is_empty() { header("security-token") } else { header("x-oss-security-token") };
        (id, stamp, oss_v1(received, who, header("date")), signature.to_owned(), token)
    } else {
        return refuse("InvalidArgument", "Authorization header is invalid.");
    };
    let skew = date.map(|date| now.duration_since(date).or_else(|_| date.duration_since(now)).unwrap());
    match () {
        () if id != who.id => refuse("InvalidAccessKeyId", "The OSS Access Key Id you provided does not exist in our records."),
        () if skew.is_none_or(|skew| skew > SKEW) => refuse("RequestTimeTooSkewed", "The request time and ours are too different."),
        () if token != setup.token.as_deref().unwrap_or_default() => refuse("InvalidSecurityToken", "The security token is invalid."),
        () if signature != expected => refuse("SignatureDoesNotMatch", "The request signature we calculated does not match."),
        () => Ok(()),
    }
}

/// `20240229T235959Z`.
fn parse_basic(text: &str) -> Option<SystemTime> {
    let part = |range: std::ops::Range<usize>| text.get(range);
    let (year, month, day, hour, minute, second) = (part(0..4)?, part(4..6)?, part(6..8)?, part(9..11)?, part(11..13)?, part(13..16)?);
    format!("{year}-{month}-{day}T{hour}:{minute}:{second}").parse::<Timestamp>().ok().map(Timestamp::as_system_time)
}

fn refuse(head: bool, (status, code, message): Refusal) -> Answer {
    let body = format!("<Error><Code>{code}</Code><Message>{message}</Message><RequestId>5C3D9175B6FC201293AD****</RequestId></Error>");
    let ec = (header::HeaderName::from_static("x-oss-ec"), "0002-00000901".to_owned());
    if !head {
        return respond(status, vec![ec], body.into_bytes());
    }
    let error = (header::HeaderName::from_static("x-oss-err"), BASE64_STANDARD.encode(body));
    respond(status, vec![ec, error], Vec::new())
}

pub fn respond(status: u16, headers: Vec<(header::HeaderName, String)>, body: Vec<u8>) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response.headers_mut().insert("x-oss-request-id", HeaderValue::from_static("5C3D9175B6FC201293AD****"));
    response
}
