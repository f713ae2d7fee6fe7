//! One connection: a request out, the head of the answer in, its body to where it belongs. It keeps no time.

use std::io;

use bytes::{Buf, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Failure;

/// Room for the head of an answer at first. What of the body arrives with it is copied, so there is little more
/// than heads need.
const HEAD_ROOM: usize = 2 << 10;

/// A longer head is none.
const HEAD_LIMIT: usize = 64 << 10;

const MOST_HEADERS: usize = 96;

/// Bytes taken from the socket at a time: enough to make system calls rare, little enough that a reader who waits for
/// the first of them gets them while they are in the processor's cache.
const MOST_AT_ONCE: usize = 1 << 20;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// After this many more bytes.
    Length(u64),
    Chunked,
    UntilClose,
}

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Body,
    pub keep_alive: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// What was read and not used.
    buffer: BytesMut,
    /// Nothing of the current answer has come.
    untouched: bool,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: BytesMut::new(), untouched: true }
    }

    /// Whether nothing of an answer to the latest request has come.
    pub fn is_untouched(&self) -> bool {
        self.untouched
    }

    /// Whether all that came was used.
    pub fn is_drained(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Whether the other side has neither closed it nor sent what nobody asked for.
    pub fn is_idle(&self) -> bool {
        matches!(self.stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends `request` and reads the head of the answer.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<Head, Failure> {
        self.untouched = true;
        self.stream.write_all(request).await?;
        loop {
            if let Some((head, len)) = parse(&self.buffer)? {
                self.buffer.advance(len);
                // Interim answers (100, 103) come before the one that counts.
                if !head.status.is_informational() {
                    return Ok(head);
                }
                continue;
            }
            if self.buffer.len() >= HEAD_LIMIT {
                return Err(Failure::NotHttp);
            }
            self.more().await?;
        }
    }

    /// The next bytes, into the front of `memory`; 0: the other side has closed.
    pub async fn read(&mut self, memory: &mut [u8]) -> io::Result<usize> {
        if !self.buffer.is_empty() {
            let n = self.buffer.len().min(memory.len());
            self.buffer.copy_to_slice(&mut memory[..n]);
            return Ok(n);
        }
        let most = memory.len().min(MOST_AT_ONCE);
        self.stream.read(&mut memory[..most]).await
    }

    /// Appends a body of at most `limit` bytes to `into`; `body` becomes `Length(0)` when its end was reached.
    pub async fn document(&mut self, body: &mut Body, limit: usize, into: &mut Vec<u8>) -> Result<(), Failure> {
        match *body {
            Body::Length(len) if len <= limit as u64 => self.take(len as usize, into).await?,
            Body::Length(_) => return self.take(limit, into).await,
            Body::UntilClose => {
                while into.len() + self.buffer.len() < limit && self.more().await.is_ok() {}
                into.extend_from_slice(&self.buffer.split());
                return Ok(());
            }
            Body::Chunked => loop {
                let len = self.chunk_len().await?;
                if len > (limit - into.len().min(limit)) as u64 {
                    return Ok(());
                }
                self.take(len as usize, into).await?;
                // Trailers are rare and not worth a connection: whoever sends some finds it closed.
                self.take(2, &mut Vec::new()).await?;
                if len == 0 {
                    break;
                }
            },
        }
        *body = Body::Length(0);
        Ok(())
    }

    /// The size in front of a chunk.
    async fn chunk_len(&mut self) -> Result<u64, Failure> {
        loop {
            match httparse::parse_chunk_size(&self.buffer) {
                Ok(httparse::Status::Complete((end, len))) => {
                    self.buffer.advance(end);
                    return Ok(len);
                }
                Ok(httparse::Status::Partial) if self.buffer.len() < HEAD_LIMIT => self.more().await?,
                _ => return Err(Failure::NotHttp),
            }
        }
    }

    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Failure> {
        while self.buffer.len() < len {
            self.more().await?;
        }
        into.extend_from_slice(&self.buffer.split_to(len));
        Ok(())
    }

    /// Reads more into the buffer.
    async fn more(&mut self) -> Result<(), Failure> {
        if self.buffer.capacity() == self.buffer.len() {
            self.buffer.reserve(HEAD_ROOM);
        }
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(Failure::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        self.untouched = false;
        Ok(())
    }
}

/// The head at the start of `bytes` and its length; none when it is not complete.
fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Failure> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut fields);
    let len = match response.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Failure::NotHttp),
    };
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Failure::NotHttp)?;
    let mut headers = HeaderMap::with_capacity(response.headers.len());
    for field in &*response.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Failure::NotHttp)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| Failure::NotHttp)?;
        headers.append(name, value);
    }
    let says = |name: HeaderName, word: &str| {
        let values = headers.get_all(name);
        values.iter().any(|value| value.to_str().is_ok_and(|text| text.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))))
    };
    let keep_alive = response.version == Some(1) && !says(CONNECTION, "close");
    let body = match () {
        () if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) || status.is_informational() => Body::Length(0),
        () if says(TRANSFER_ENCODING, "chunked") => Body::Chunked,
        () if headers.contains_key(TRANSFER_ENCODING) => Body::UntilClose,
        () => content_length(&headers)?.map_or(Body::UntilClose, Body::Length),
    };
    Ok(Some((Head { status, headers, body, keep_alive }, len)))
}

/// Two lengths that differ would leave open where the next answer begins.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let this: u64 = digits.and_then(|text| text.parse().ok()).ok_or(Failure::NotHttp)?;
        if length.replace(this).is_some_and(|before| before != this) {
            return Err(Failure::NotHttp);
        }
    }
    Ok(length)
}
