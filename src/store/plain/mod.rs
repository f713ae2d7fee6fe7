//! GETs over bare TCP whose bodies go from the socket straight into the memory of a [`RangeSink`]. It is no general
//! client: no TLS, no proxy, no compression; what it does not do the library does (see `range`). Heads are parsed by
//! httparse, the parser of hyper.
//!
//! Why it exists: a library hands the body over in buffers of its own, and moving them to where the reader wants
//! them was a fifth of the CPU of a sequential read, next to the memory for the buffers themselves.
//!
//! Invariant: a connection is used again only after the last byte of its answer was taken and nothing followed it.
//!
//! [`RangeSink`]: super::RangeSink

mod connection;
mod pool;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::answer::NOT_HTTP;
use super::leave::{self, Exit, Turns};
use crate::metrics::Metrics;
use connection::{Body, Connection};
use pool::{Peer, Pool};

/// Why there is no answer, or no more of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the connection was lost: {0}")]
    Lost(#[from] io::Error),
    #[error("{NOT_HTTP}")]
    NotHttp,
}

/// The client. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pool: Arc<Pool>,
    proxies: Arc<Matcher>,
    connect_timeout: Duration,
    exits: Turns<Exit>,
    metrics: Arc<Metrics>,
}

impl Client {
    /// A client that leaves requests to the library for which `proxies` name a proxy.
    pub fn new(proxies: Matcher, connect_timeout: Duration, exits: &[Exit], metrics: Arc<Metrics>) -> Self {
        Self { pool: Pool::new(), proxies: Arc::new(proxies), connect_timeout, exits: Turns::new(exits.to_vec()), metrics }
    }

    /// Whether a GET of `url` can be sent here.
    pub fn takes(&self, url: &Url) -> bool {
        let direct = || url.as_str().parse::<Uri>().is_ok_and(|uri| self.proxies.intercept(&uri).is_none());
        url.scheme() == "http" && url.username().is_empty() && direct()
    }

    /// Sends the GET and reads the head of its answer.
    pub async fn get(&self, url: &Url, headers: &HeaderMap) -> Result<Response, Failure> {
        let peer = Peer::of(url).ok_or(Failure::NotHttp)?;
        let request = request(url, &peer, headers);
        if let Some(mut connection) = self.pool.take(&peer) {
            match connection.exchange(&request).await {
                // The other side has closed it meanwhile; a GET may be sent again.
                Err(Failure::Lost(error)) if connection.is_untouched() => tracing::trace!(%error, "an idle connection was closed"),
                head => return Ok(self.response(peer, connection, head?)),
            }
        }
        let mut connection = Connection::new(self.connect(&peer).await?);
        let head = connection.exchange(&request).await?;
        Ok(self.response(peer, connection, head))
    }

    async fn connect(&self, peer: &Peer) -> Result<TcpStream, Failure> {
        let connected = timeout(self.connect_timeout, leave::connect(peer.host(), peer.port, self.exits.next())).await;
        let stream = connected.map_err(|_| Failure::Connect(io::ErrorKind::TimedOut.into()))?.map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;
        self.metrics.connections_opened.add(1);
        Ok(stream)
    }

    fn response(&self, peer: Peer, connection: Connection, head: connection::Head) -> Response {
        let connection::Head { status, headers, body, keep_alive } = head;
        Response { status, headers, body, keep_alive, connection, peer, pool: Arc::clone(&self.pool) }
    }
}

/// The request as it goes over the wire.
fn request(url: &Url, peer: &Peer, headers: &HeaderMap) -> Vec<u8> {
    let mut text = Vec::with_capacity(1024);
    text.extend_from_slice(b"GET ");
    text.extend_from_slice(url.path().as_bytes());
    if let Some(query) = url.query() {
        text.push(b'?');
        text.extend_from_slice(query.as_bytes());
    }
    text.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    text.extend_from_slice(peer.authority.as_bytes());
    text.extend_from_slice(concat!("\r\nuser-agent: windlass/", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes());
    for (name, value) in headers {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"\r\n");
    text
}

/// An answer whose body is still to be read. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Response {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
    keep_alive: bool,
    connection: Connection,
    peer: Peer,
    pool: Arc<Pool>,
}

impl Response {
    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Bytes of the body that are still to come, when the answer said how many; the library reads all others.
    pub fn left(&self) -> Option<u64> {
        match self.body {
            Body::Length(left) => Some(left),
            Body::Chunked | Body::UntilClose => None,
        }
    }

    /// The next bytes of a body of known length, into the front of `memory`. 0 is its end, or that the connection ended.
    pub async fn read(&mut self, memory: &mut [u8]) -> io::Result<usize> {
        let Body::Length(left) = &mut self.body else { return Ok(0) };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(memory.len());
        let n = if most == 0 { 0 } else { self.connection.read(&mut memory[..most]).await? };
        *left -= n as u64;
        Ok(n)
    }

    /// The body of a refusal, as far as it comes; what is longer than `limit` is cut.
    pub async fn document(&mut self, limit: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        // What came before a failure may still say why the request was refused.
        let _ = self.connection.document(&mut self.body, limit, &mut bytes).await;
        bytes
    }

    /// Gives the connection back, if nothing more is to come on it.
    pub fn finish(self) {
        if self.keep_alive && matches!(self.body, Body::Length(0)) && self.connection.is_drained() {
            self.pool.put(self.peer, self.connection);
        }
    }
}

#[cfg(test)]
mod tests;
